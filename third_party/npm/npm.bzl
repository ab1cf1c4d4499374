"""Repositories made from pinned npm packages, fetched with npm (its configuration holds)."""

def _npm_files_impl(rctx):
    npm = rctx.which("npm")
    if not npm:
        fail("%s comes from npm, which is not on PATH" % rctx.attr.package)
    rctx.report_progress("npm pack " + rctx.attr.package)
    result = rctx.execute([npm, "pack", "--silent", "%s@%s" % (rctx.attr.package, rctx.attr.version)])
    if result.return_code:
        fail("%s: %s%s" % (rctx.attr.package, result.stdout, result.stderr))
    archive = result.stdout.strip().split("\n")[-1]

    # Checks the hash; `extract` alone would not.
    rctx.download_and_extract(
        url = "file://%s" % rctx.path(archive),
        integrity = rctx.attr.integrity,
        stripPrefix = "package",
    )
    rctx.delete(archive)
    for program in rctx.attr.programs:
        rctx.file(program.name, rctx.read(program))
    rctx.file("BUILD.bazel", rctx.attr.build_file_content)

npm_files = repository_rule(
    implementation = _npm_files_impl,
    attrs = {
        "package": attr.string(mandatory = True),
        "version": attr.string(mandatory = True),
        "integrity": attr.string(mandatory = True),
        "programs": attr.label_list(doc = "files of ours that go beside the package's"),
        "build_file_content": attr.string(mandatory = True),
    },
)
