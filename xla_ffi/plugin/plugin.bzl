"""jaxmg_plugin: one platform's native library, as a Python library and as a wheel."""

load("@local_python//:version.bzl", "PYTHON")
load("@rules_python//python:defs.bzl", "py_library")
load("//tools:wheel.bzl", "metadata", "wheel")

_CPYTHON = "cp" + PYTHON.replace(".", "")

def jaxmg_plugin(platform, srcs, deps, py_deps):
    """The targets `<platform>` (for runfiles) and `wheel_<platform>`.

    Args:
      platform: such as "cpu"; the Python package is jaxmg_plugin_<platform>, its metadata
        pyproject_<platform>.toml.
      srcs: C++ of the extension module `_native`.
      deps: C++ libraries of the extension module.
      py_deps: Python packages that it uses when it runs.
    """
    package = "jaxmg_plugin_" + platform
    native_module = package + "/_native.so"
    native.cc_binary(
        name = native_module,
        srcs = srcs,
        additional_linker_inputs = ["export.lds"],
        copts = ["-fvisibility=hidden"],
        linkopts = ["-Wl,--version-script=$(location export.lds)"],
        linkshared = True,
        deps = deps + [
            "@local_python//:headers",
            "@pybind11//:headers",
        ],
    )
    sources = native.glob([package + "/*.py"])
    dist = {
        "distribution": package,
        "pyproject": "pyproject_%s.toml" % platform,
    }
    metadata(name = "metadata_" + platform, **dist)
    py_library(
        name = platform,
        srcs = sources,
        data = [
            native_module,
            "metadata_" + platform,
        ],
        imports = [
            ".",
            "metadata_" + platform,
        ],
        deps = py_deps,
    )
    wheel(
        name = "wheel_" + platform,
        srcs = sources + [native_module],
        strip_prefix = native.package_name(),
        tag = "%s-%s-manylinux_2_28_x86_64" % (_CPYTHON, _CPYTHON),
        **dist
    )
