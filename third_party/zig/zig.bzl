"""C++ toolchains from one PyPI wheel: zig's clang and lld, libc++ linked statically, glibc 2.27.

They need no compiler on the host, and what they build loads on every system that
manylinux_2_27 names: for x86-64, where they run, and for aarch64.
"""

load("//third_party/pypi:pypi.bzl", "FETCH_ATTRS", "any_python", "fetch_wheel")

_VERSION = "0.15.2"
_SHA256 = "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130"

# JAX's own wheels need as much.
_GLIBC = "2.27"

# As the platform tag of a wheel begins; the CPU follows.
MANYLINUX = "manylinux_" + _GLIBC.replace(".", "_")

# A header without anything in it, in the toolchain's folder of headers.
EMPTY = "empty.h"

# The CPU, as a wheel's tag has it: what Bazel's rules call it.
_CPUS = {
    "aarch64": "aarch64",
    "x86_64": "k8",
}

ARCHS = _CPUS.keys()

_WRAPPER = """#!/bin/sh
# ziglang {version} {sha256} without {unused}
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

exports_files({licenses})

filegroup(name = "empty")
"""

_TOOLCHAIN = """
# Bazel knows compilations apart by such files, not by the compiler that they start.
filegroup(
    name = "tools_{arch}",
    srcs = glob(["bin/*"], exclude = ["bin/c++_*"]) + ["bin/c++_{arch}"],
)

cc_toolchain_config(
    name = "config_{arch}",
    abi_libc_version = "glibc_{glibc}",
    abi_version = "gcc",
    compile_flags = ["-fno-sanitize=undefined", "-fstack-protector", "-Wall"],
    compiler = "clang",
    coverage_compile_flags = [],
    coverage_link_flags = [],
    cpu = "{cpu}",
    cxx_builtin_include_directories = ["{lib}"],
    # libc++'s headers include others that they don't need, a second for most files.
    cxx_flags = ["-std=c++17", "-D_LIBCPP_REMOVE_TRANSITIVE_INCLUDES"],
    dbg_compile_flags = ["-g"],
    host_system_name = "local",
    link_flags = ["-Wl,-z,relro,-z,now"],
    link_libs = [],
    # zig's own default is debug information, which every link would throw away.
    opt_compile_flags = ["-O3", "-g0", "-DNDEBUG", "-ffunction-sections", "-fdata-sections"],
    opt_link_flags = ["-Wl,--gc-sections", "-s"],
    supports_start_end_lib = False,
    target_libc = "glibc_{glibc}",
    target_system_name = "{arch}-linux-gnu",
    tool_paths = {{
        "ar": "bin/ar",
        "cpp": "bin/c++_{arch}",
        "gcc": "bin/c++_{arch}",
        "gcov": "/bin/false",
        "ld": "bin/c++_{arch}",
        "llvm-cov": "/bin/false",
        "nm": "/bin/false",
        "objcopy": "bin/objcopy",
        "objdump": "/bin/false",
        "strip": "bin/strip",
    }},
    toolchain_identifier = "zig-{version}-{arch}",
    unfiltered_compile_flags = ["-Wno-builtin-macro-redefined", "-D__DATE__=\\"redacted\\"", "-D__TIMESTAMP__=\\"redacted\\"", "-D__TIME__=\\"redacted\\""],
)

cc_toolchain(
    name = "cc_{arch}",
    all_files = ":tools_{arch}",
    ar_files = ":tools_{arch}",
    as_files = ":tools_{arch}",
    compiler_files = ":tools_{arch}",
    dwp_files = ":empty",
    linker_files = ":tools_{arch}",
    objcopy_files = ":tools_{arch}",
    strip_files = ":tools_{arch}",
    supports_param_files = True,
    toolchain_config = ":config_{arch}",
)
"""

# What of the wheel is unpacked: four fifths of its files are of other systems.
_FILES = ["ziglang/zig", "ziglang/LICENSE", "ziglang/lib/*.zig"] + [
    "ziglang/lib/%s/*" % folder
    for folder in [
        "compiler",
        "compiler_rt",
        "include",
        "libcxx",
        "libcxxabi",
        "libunwind",
        "std",
        "libc/glibc",
        "libc/include/*-linux-any",
        "libc/include/*-linux-gnu",
        "libc/include/generic-glibc",
    ]
]

# What zig links into a program or library of C++, statically; NOTICE says how.
_LICENSES = [
    "ziglang/LICENSE",
    "ziglang/lib/libcxx/LICENSE.TXT",
    "ziglang/lib/libcxxabi/LICENSE.TXT",
    "ziglang/lib/libunwind/LICENSE.TXT",
]

# Sources of libc++ for what no C++ of this repository uses: four tenths of the time that it takes to
# build. zig has a list of all, so these are there without anything in them; what does use them has
# undefined symbols.
_UNUSED = ["lib/libcxx/src/%s.cpp" % name for name in [
    "any",
    "barrier",
    "charconv",
    "expected",
    "filesystem/directory_entry",
    "filesystem/directory_iterator",
    "filesystem/filesystem_clock",
    "filesystem/filesystem_error",
    "filesystem/operations",
    "filesystem/path",
    "memory_resource",
    "print",
    "random_shuffle",
    "regex",
    "ryu/d2fixed",
    "ryu/d2s",
    "ryu/f2s",
    "shared_mutex",
    "strstream",
    "valarray",
]]

def _zig_impl(rctx):
    fetch_wheel(rctx, any_python(rctx), "ziglang==" + _VERSION, _SHA256, flags = _FILES)
    zig = str(rctx.path("ziglang/zig"))
    user = rctx.os.environ.get("USER", "user")
    cache = "/tmp/zig-cache-%s-%s" % (_VERSION, user)
    rctx.execute(["chmod", "+x", zig])
    commands = {"ar": "ar", "objcopy": "objcopy", "strip": "objcopy"}
    build = _BUILD.format(licenses = _LICENSES)
    for arch, cpu in _CPUS.items():
        commands["c++_" + arch] = "c++ -target %s-linux-gnu.%s" % (arch, _GLIBC)
        build += _TOOLCHAIN.format(
            arch = arch,
            cpu = cpu,
            glibc = _GLIBC,
            lib = rctx.path("ziglang/lib"),
            version = _VERSION,
        )
    for name, command in commands.items():
        rctx.file("bin/" + name, _WRAPPER.format(
            version = _VERSION,
            sha256 = _SHA256,
            unused = " ".join(_UNUSED),
            cache = cache,
            zig = zig,
            command = command,
        ))
    rctx.file("BUILD.bazel", build)

    rctx.file("ziglang/lib/" + EMPTY)
    for source in _UNUSED:
        rctx.file("ziglang/" + source)

    # Build the C++ runtime now (30 s on two cores) instead of in the first link.
    rctx.report_progress("building libc++")
    rctx.file("warm.cc", _WARM)
    for flags in (["-O2", "-s"], ["-shared", "-fPIC", "-O2", "-s"]):
        result = rctx.execute(["bin/c++_x86_64"] + flags + ["warm.cc", "-o", "warm.out"])
        if result.return_code:
            fail(result.stderr)
    rctx.delete("warm.out")

zig_repository = repository_rule(
    implementation = _zig_impl,
    attrs = FETCH_ATTRS,
    environ = ["USER"],
)
