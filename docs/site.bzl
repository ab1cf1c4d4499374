"""site: a folder of HTML, built by mkdocs from the repository's pages."""

def _site_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    args = ctx.actions.args()
    args.add(ctx.file.config)
    args.add(ctx.file.iframe_worker)
    args.add(out.path)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [args],
        inputs = [ctx.file.config, ctx.file.iframe_worker] + ctx.files.srcs,
        outputs = [out],
        # Pages have no date, so that the same sources make the same site.
        env = {"SOURCE_DATE_EPOCH": "0"},
        mnemonic = "Site",
        progress_message = "Building %{output}",
    )
    return DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))

site = rule(
    doc = "A folder to open in a browser, from disk or from any server.",
    implementation = _site_impl,
    attrs = {
        "config": attr.label(allow_single_file = [".yml"], mandatory = True),
        "iframe_worker": attr.label(allow_single_file = [".js"], mandatory = True),
        "srcs": attr.label_list(allow_files = True, doc = "pages, pictures, and the package"),
        "_tool": attr.label(default = "//docs:build_site", executable = True, cfg = "exec"),
    },
)
