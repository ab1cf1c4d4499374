"""jaxmg_plugin: one platform's native library, as a Python library and as a wheel."""

load("@local_python//:version.bzl", "PYTHON")
load("@rules_python//python:defs.bzl", "py_library")
load("//third_party/zig:zig.bzl", "MANYLINUX")
load("//tools:cc.bzl", "cc_binary")
load("//tools:wheel.bzl", "metadata", "wheel")

_CPYTHON = "cp" + PYTHON.replace(".", "")

_TAGS = {
    "@platforms//cpu:" + cpu: "%s-%s-%s_%s" % (_CPYTHON, _CPYTHON, MANYLINUX, cpu)
    for cpu in ("aarch64", "x86_64")
}

# The licenses of the third-party code that is linked in; see NOTICE.
_LICENSES = {
    "@pybind11//:license": "pybind11/LICENSE",
    "@zig//:ziglang/LICENSE": "ziglang/LICENSE",
    "@zig//:ziglang/lib/libcxx/LICENSE.TXT": "libcxx/LICENSE.TXT",
    "@zig//:ziglang/lib/libcxxabi/LICENSE.TXT": "libcxxabi/LICENSE.TXT",
    "@zig//:ziglang/lib/libunwind/LICENSE.TXT": "libunwind/LICENSE.TXT",
}
_EXPRESSION = "Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSD-3-Clause AND MIT"

def jaxmg_plugin(name, srcs, deps, package_src, py_deps, pyproject, substitutions = {}, tags = []):
    """The targets `<name>` (for runfiles) and `wheel_<name>`.

    Args:
      name: the platform, such as "cpu"; the Python package is jaxmg_plugin_<name>.
      srcs: C++ of the extension module `_native`.
      deps: C++ libraries of the extension module.
      package_src: the package's __init__.py, in its place or to be copied there.
      py_deps: Python packages that it uses when it runs.
      pyproject: the wheel's metadata.
      substitutions: what to replace in the metadata.
      tags: of all targets.
    """
    package = "jaxmg_plugin_" + name
    native_module = package + "/_native.so"
    cc_binary(
        name = native_module,
        srcs = srcs,
        additional_linker_inputs = ["export.lds"],
        copts = ["-fvisibility=hidden"],
        linkopts = ["-Wl,--version-script=$(location export.lds)"],
        linkshared = True,
        tags = tags,
        deps = deps + [
            "@local_python//:headers",
            "@pybind11//:headers",
        ],
    )
    init = package + "/__init__.py"
    if package_src != init:
        native.genrule(
            name = name + "_package",
            srcs = [package_src],
            outs = [init],
            cmd = "cp $< $@",
            tags = tags,
        )
    dist = {
        "distribution": package,
        "license_texts": _LICENSES,
        "pyproject": pyproject,
        "substitutions": substitutions | {"@LICENSES@": _EXPRESSION},
        "tags": tags,
    }
    metadata(name = "metadata_" + name, **dist)
    py_library(
        name = name,
        srcs = [init],
        data = [
            native_module,
            "metadata_" + name,
        ],
        imports = [
            ".",
            "metadata_" + name,
        ],
        tags = tags,
        deps = py_deps,
    )
    wheel(
        name = "wheel_" + name,
        srcs = [
            init,
            native_module,
        ],
        strip_prefix = native.package_name(),
        tag = select(_TAGS),
        **dist
    )
