"""A C++ toolchain from one PyPI wheel: zig's clang and lld, libc++ linked statically, glibc 2.28.

It needs no compiler on the host, and what it builds loads on every system that
manylinux_2_28 names.
"""

load("//third_party/pypi:pypi.bzl", "FETCH_ATTRS", "any_python", "fetch_wheel")

_VERSION = "0.15.2"
_SHA256 = "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130"
_TARGET = "x86_64-linux-gnu.2.28"

_WRAPPER = """#!/bin/sh
# ziglang {version} {sha256}
export ZIG_GLOBAL_CACHE_DIR={cache} ZIG_LOCAL_CACHE_DIR={cache}
exec {zig} {command} "$@"
"""

_WARM = """
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
int main(int argc, char **) {
  std::map<std::string, int> m;
  std::thread([&] { m["a"] = argc; }).join();
  try { throw std::runtime_error("a"); } catch (const std::exception &e) { return m[e.what()] - 1; }
}
"""

_BUILD = """
load("@bazel_tools//tools/cpp:unix_cc_toolchain_config.bzl", "cc_toolchain_config")

filegroup(name = "empty")

filegroup(name = "tools", srcs = glob(["bin/*"]))

cc_toolchain_config(
    name = "config",
    abi_libc_version = "glibc_2.28",
    abi_version = "gcc",
    compile_flags = ["-fno-sanitize=undefined", "-fstack-protector", "-Wall"],
    compiler = "clang",
    coverage_compile_flags = [],
    coverage_link_flags = [],
    cpu = "k8",
    cxx_builtin_include_directories = ["{lib}"],
    cxx_flags = ["-std=c++17"],
    dbg_compile_flags = ["-g"],
    host_system_name = "local",
    link_flags = ["-Wl,-z,relro,-z,now"],
    link_libs = [],
    opt_compile_flags = ["-O3", "-DNDEBUG", "-ffunction-sections", "-fdata-sections"],
    opt_link_flags = ["-Wl,--gc-sections", "-s"],
    supports_start_end_lib = False,
    target_libc = "glibc_2.28",
    target_system_name = "x86_64-linux-gnu",
    tool_paths = {{
        "ar": "bin/ar",
        "cpp": "bin/c++",
        "gcc": "bin/c++",
        "gcov": "/bin/false",
        "ld": "bin/c++",
        "llvm-cov": "/bin/false",
        "nm": "/bin/false",
        "objcopy": "bin/objcopy",
        "objdump": "/bin/false",
        "strip": "bin/strip",
    }},
    toolchain_identifier = "zig-{version}",
    unfiltered_compile_flags = ["-Wno-builtin-macro-redefined", "-D__DATE__=\\"redacted\\"", "-D__TIMESTAMP__=\\"redacted\\"", "-D__TIME__=\\"redacted\\""],
)

cc_toolchain(
    name = "cc",
    all_files = ":tools",
    ar_files = ":tools",
    as_files = ":tools",
    compiler_files = ":tools",
    dwp_files = ":empty",
    linker_files = ":tools",
    objcopy_files = ":tools",
    strip_files = ":tools",
    supports_param_files = True,
    toolchain_config = ":config",
)

toolchain(
    name = "toolchain",
    exec_compatible_with = ["@platforms//cpu:x86_64", "@platforms//os:linux"],
    target_compatible_with = ["@platforms//cpu:x86_64", "@platforms//os:linux"],
    toolchain = ":cc",
    toolchain_type = "@bazel_tools//tools/cpp:toolchain_type",
)
"""

def _zig_impl(rctx):
    fetch_wheel(rctx, any_python(rctx), "ziglang==" + _VERSION, _SHA256)
    zig = str(rctx.path("ziglang/zig"))
    user = rctx.os.environ.get("USER", "user")
    cache = "/tmp/zig-cache-%s-%s" % (_VERSION, user)
    rctx.execute(["chmod", "+x", zig])
    for name, command in {
        "c++": "c++ -target " + _TARGET,
        "ar": "ar",
        "objcopy": "objcopy",
        "strip": "objcopy",
    }.items():
        rctx.file("bin/" + name, _WRAPPER.format(
            version = _VERSION,
            sha256 = _SHA256,
            cache = cache,
            zig = zig,
            command = command,
        ))
    rctx.file("BUILD.bazel", _BUILD.format(lib = rctx.path("ziglang/lib"), version = _VERSION))

    # Build the C++ runtime now (20 s on two cores) instead of in the first link.
    rctx.report_progress("building libc++")
    rctx.file("warm.cc", _WARM)
    for flags in (["-O2", "-s"], ["-shared", "-fPIC", "-O2", "-s"]):
        result = rctx.execute(["bin/c++"] + flags + ["warm.cc", "-o", "warm.out"])
        if result.return_code:
            fail(result.stderr)
    rctx.delete("warm.out")

zig_repository = repository_rule(
    implementation = _zig_impl,
    attrs = FETCH_ATTRS,
    environ = ["USER"],
)
