"""jaxmg_plugin: one platform's native library, as a Python library and as a wheel."""

load("@local_python//:version.bzl", "PYTHON")
load("@rules_python//python:defs.bzl", "py_library")
load("//tools:wheel.bzl", "metadata", "wheel")

_CPYTHON = "cp" + PYTHON.replace(".", "")

def jaxmg_plugin(name, srcs, deps, py_deps):
    """The targets `<name>` (for runfiles) and `wheel_<name>`.

    Args:
      name: the platform, such as "cpu"; the Python package is jaxmg_plugin_<name>, its metadata
        pyproject_<name>.toml.
      srcs: C++ of the extension module `_native`.
      deps: C++ libraries of the extension module.
      py_deps: Python packages that it uses when it runs.
    """
    package = "jaxmg_plugin_" + name
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
        "pyproject": "pyproject_%s.toml" % name,
    }
    metadata(name = "metadata_" + name, **dist)
    py_library(
        name = name,
        srcs = sources,
        data = [
            native_module,
            "metadata_" + name,
        ],
        imports = [
            ".",
            "metadata_" + name,
        ],
        deps = py_deps,
    )
    wheel(
        name = "wheel_" + name,
        srcs = sources + [native_module],
        strip_prefix = native.package_name(),
        tag = "%s-%s-manylinux_2_28_x86_64" % (_CPYTHON, _CPYTHON),
        **dist
    )
