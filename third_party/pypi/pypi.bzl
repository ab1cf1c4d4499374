"""Bazel repositories made from pinned, hashed PyPI wheels, and from the Python on this machine."""

# A package is one folder in the runfiles, not a file for each of JAX's thousands: starting a
# test costs a few links, and Python finds the bytecode that fetch.py left beside the sources.
_LIBRARY = """
load("@rules_python//python:defs.bzl", "py_library")

exports_files(glob([
    "site/bin/*",
    "site/clang_format/data/bin/*",
]))

py_library(
    name = "pypi_{name}",
    data = ["site"],
    imports = ["site"],
    visibility = ["//visibility:public"],
    deps = {deps},
)
"""

_PYTHON = {
    "_fetch": attr.label(default = "//third_party/pypi:fetch.py"),
    "_find": attr.label(default = "//tools:find_python.sh"),
}

def _find_python(rctx, want):
    result = rctx.execute([rctx.path(rctx.attr._find), want])
    if result.return_code:
        fail(result.stderr)
    path, version = result.stdout.strip().split("\n")
    return struct(path = path, version = version)

def fetch_wheel(rctx, python, requirement, sha256, dest = ".", flags = []):
    """Unpacks a wheel into a folder.

    Args:
      rctx: the repository's context; its rule has FETCH_ATTRS.
      python: the interpreter whose pip fetches.
      requirement: distribution==version.
      sha256: the wheel's hash.
      dest: the folder.
      flags: further arguments of fetch.py.
    """
    rctx.report_progress("pip download " + requirement)
    command = [python, "-B", rctx.path(rctx.attr._fetch), dest, requirement, sha256] + flags
    result = rctx.execute(command, timeout = 3600)
    if result.return_code:
        fail("%s: %s%s" % (requirement, result.stdout, result.stderr))

def any_python(rctx):
    """An interpreter for build steps whose result doesn't depend on it."""
    return _find_python(rctx, "").path

FETCH_ATTRS = _PYTHON

def _library_impl(rctx):
    python = _find_python(rctx, rctx.os.environ.get("JAXMG_PYTHON", ""))
    deps = []
    if python.version in rctx.attr.lock:
        version, sha256, deps = json.decode(rctx.attr.lock[python.version])
        requirement = "%s==%s" % (rctx.attr.distribution, version)
        fetch_wheel(rctx, python.path, requirement, sha256, "site", ["--library"])
    else:  # not needed with this Python
        rctx.file("site/empty")
    rctx.file("BUILD.bazel", _LIBRARY.format(
        name = rctx.attr.distribution,
        deps = repr(["@pypi_" + d for d in deps]),
    ))

pypi_library = repository_rule(
    doc = "A Python package for the chosen Python (JAXMG_PYTHON).",
    implementation = _library_impl,
    attrs = _PYTHON | {
        "distribution": attr.string(mandatory = True),
        "lock": attr.string_dict(doc = "Python version: [version, sha256, dependencies] as JSON"),
    },
    environ = ["JAXMG_PYTHON"],
)

def _files_impl(rctx):
    flags = ["--python-version", "3.11", "--cpu", rctx.attr.cpu] + rctx.attr.members
    requirement = "%s==%s" % (rctx.attr.distribution, rctx.attr.version)
    fetch_wheel(rctx, any_python(rctx), requirement, rctx.attr.sha256, flags = flags)
    rctx.file("BUILD.bazel", rctx.attr.build_file_content)

pypi_files = repository_rule(
    doc = "Files out of a wheel that are the same for every Python: headers, libraries, tools.",
    implementation = _files_impl,
    attrs = FETCH_ATTRS | {
        "cpu": attr.string(default = "x86_64", doc = "which of the wheels for Linux"),
        "distribution": attr.string(mandatory = True),
        "version": attr.string(mandatory = True),
        "sha256": attr.string(mandatory = True),
        "members": attr.string_list(doc = "patterns, as fetch.py takes them; empty: everything"),
        "build_file_content": attr.string(mandatory = True),
    },
)

_LOCAL_PYTHON = """
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{path}",
    python_version = "PY3",
    stub_shebang = "#!{path}",
)

py_runtime_pair(
    name = "pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)

cc_library(
    name = "headers",
    hdrs = glob(["include/**", "multiarch/**"], allow_empty = True),
    includes = ["include", "multiarch"],
    visibility = ["//visibility:public"],
)
"""

_NO_HEADERS = """
#error "%s has no headers: install Debian's python%s-dev or the like, or choose another JAXMG_PYTHON"
"""

def _local_python_impl(rctx):
    python = _find_python(rctx, rctx.os.environ.get("JAXMG_PYTHON", ""))

    # A virtual environment of nothing: what the host's Python has installed stays out.
    result = rctx.execute([python.path, "-m", "venv", "--without-pip", "venv"])
    if result.return_code:
        fail(result.stdout + result.stderr)
    result = rctx.execute([
        python.path,
        "-c",
        "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('MULTIARCH'))",
    ])
    path, multiarch = result.stdout.strip().rsplit(" ", 1)
    include = rctx.path(path)

    # Debian's pyconfig.h includes <x86_64-linux-gnu/python3.11/pyconfig.h>. For aarch64 that one
    # serves too: what differs between the two is for Python's own sources.
    own = include.dirname.get_child(multiarch, include.basename)
    if own.exists:
        for place in (multiarch, "aarch64-linux-gnu"):
            rctx.symlink(own, "multiarch/%s/%s" % (place, include.basename))
    if include.get_child("Python.h").exists:
        rctx.symlink(include, "include")
    else:
        rctx.file("include/Python.h", _NO_HEADERS % (python.path, python.version))
    rctx.file("BUILD.bazel", _LOCAL_PYTHON.format(path = rctx.path("venv/bin/python3")))
    rctx.file("version.bzl", 'PYTHON = "%s"\n' % python.version)

local_python = repository_rule(
    doc = "The chosen Python (JAXMG_PYTHON) as a toolchain, its headers and its version.",
    implementation = _local_python_impl,
    attrs = _PYTHON,
    environ = ["JAXMG_PYTHON"],
    configure = True,
)
