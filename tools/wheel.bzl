"""Wheels and their metadata, from Bazel targets and a pyproject.toml."""

load("//:version.bzl", "URL", "VERSION")

def _dist_info(ctx):
    return "%s-%s.dist-info" % (ctx.attr.distribution, VERSION)

def _run(ctx, command, outputs, srcs = []):
    licenses = {ctx.file._license: "LICENSE", ctx.file._notice: "NOTICE"} | {
        target.files.to_list()[0]: name
        for target, name in ctx.attr.license_texts.items()
    }
    args = ctx.actions.args()
    args.add(command)
    args.add("--common", ctx.file._common)
    args.add("--pyproject", ctx.file.pyproject)
    for old, new in ({"@URL@": URL, "@VERSION@": VERSION} | ctx.attr.substitutions).items():
        args.add("--replace", old + "=" + new)
    args.add("--readme", ctx.file._readme)
    args.add("--url", URL)
    for f, name in licenses.items():
        args.add("--license", f, format = name + "=%s")
    for f in srcs:
        args.add("--file", f, format = _place(ctx, f) + "=%s")
    args.add("--tag", getattr(ctx.attr, "tag", ""))
    args.add_all(outputs)
    ctx.actions.run(
        executable = ctx.executable._tool,
        arguments = [args],
        inputs = [ctx.file._common, ctx.file.pyproject, ctx.file._readme] + licenses.keys() + srcs,
        outputs = outputs,
        mnemonic = "Wheel",
        progress_message = "Building %{output}",
    )

def _place(ctx, f):
    """Returns the path of a file in the wheel."""
    prefix = ctx.attr.strip_prefix + "/" if ctx.attr.strip_prefix else ""
    if not f.short_path.startswith(prefix):
        fail("%s is not under %s" % (f.short_path, prefix))
    return f.short_path[len(prefix):]

def _wheel_impl(ctx):
    out = ctx.actions.declare_file("%s-%s-%s.whl" % (ctx.attr.distribution, VERSION, ctx.attr.tag))
    _run(ctx, "wheel", [out], ctx.files.srcs)
    return DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))

def _metadata_impl(ctx):
    folder = "%s/%s/" % (ctx.label.name, _dist_info(ctx))
    outs = [ctx.actions.declare_file(folder + f) for f in ("METADATA", "entry_points.txt")]
    _run(ctx, "metadata", outs)
    return DefaultInfo(files = depset(outs), runfiles = ctx.runfiles(outs))

_ATTRS = {
    "distribution": attr.string(mandatory = True, doc = "name, as in the wheel's file name"),
    "pyproject": attr.label(allow_single_file = [".toml"], mandatory = True),
    "license_texts": attr.label_keyed_string_dict(
        allow_files = True,
        doc = "texts for what is not ours: where they lie in the wheel's folder of licences",
    ),
    "substitutions": attr.string_dict(doc = "what to replace in pyproject, beside @VERSION@, @URL@"),
    "_common": attr.label(default = "//tools:wheel.toml", allow_single_file = True),
    "_license": attr.label(default = "//:LICENSE", allow_single_file = True),
    "_notice": attr.label(default = "//:NOTICE", allow_single_file = True),
    "_readme": attr.label(default = "//:README.md", allow_single_file = True),
    "_tool": attr.label(default = "//tools:build_wheel", executable = True, cfg = "exec"),
}

wheel = rule(
    doc = "A wheel, the same bytes each time.",
    implementation = _wheel_impl,
    attrs = _ATTRS | {
        "srcs": attr.label_list(allow_files = True),
        "strip_prefix": attr.string(doc = "path from the repository's root to the wheel's root"),
        "tag": attr.string(default = "py3-none-any"),
    },
)

metadata = rule(
    doc = "The .dist-info that importlib.metadata reads, in a folder named as the target: with " +
          "it among `data` and that folder among `imports`, a library is found in runfiles as " +
          "an installed one is.",
    implementation = _metadata_impl,
    attrs = _ATTRS,
)
