"""C++ rules for sources that begin with precompiled headers."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain", "use_cpp_toolchain")
load("//third_party/zig:zig.bzl", "EMPTY")

_CLANG = Label("//third_party/zig:clang")
_STANDARD = "//xla_ffi/base:standard"

def _precompiled_headers_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    cpp = ctx.fragments.cpp
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = cpp.copts + cpp.cxxopts,
        use_pic = True,
    )
    action = {
        "action_name": ACTION_NAMES.cpp_compile,
        "feature_configuration": features,
        "variables": variables,
    }
    result = ctx.actions.declare_file(ctx.label.name + ".pch")
    arguments = ctx.actions.args()

    # The command line has "-c" only with a source; without it zig would go on and link.
    arguments.add_all(cc_common.get_memory_inefficient_command_line(**action))

    # clang stores absolute paths, so the including file is one of the toolchain's.
    empty = toolchain.built_in_include_directories[0] + "/" + EMPTY
    arguments.add_all(["-x", "c++-header", empty, "-o", result])
    arguments.add_all(ctx.attr.headers, before_each = "-include")

    # Omits times: only contents are the same on every machine.
    arguments.add_all(["-Xclang", "-fno-pch-timestamp"])

    # Without a dependency file, zig would reuse its cached result of another Bazel folder, which
    # has other absolute paths.
    dependencies = ctx.actions.declare_file(ctx.label.name + ".d")
    arguments.add_all(["-MD", "-MF", dependencies])
    ctx.actions.run(
        arguments = [arguments],
        env = cc_common.get_environment_variables(**action),
        executable = cc_common.get_tool_for_action(
            action_name = ACTION_NAMES.cpp_compile,
            feature_configuration = features,
        ),
        inputs = toolchain.all_files,
        mnemonic = "CppPrecompile",
        outputs = [result, dependencies],
        progress_message = "Precompiling %{output}",
    )
    return [
        DefaultInfo(files = depset([result])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([result]))),
    ]

precompiled_headers = rule(
    doc = "Precompiles headers, with the flags that a cc_library without copts is compiled with.",
    implementation = _precompiled_headers_impl,
    attrs = {
        "headers": attr.string_list(doc = "Their names, of the standard library.", mandatory = True),
    },
    fragments = ["cpp"],
    toolchains = use_cpp_toolchain(),
)

def _begun(precompiled, copts, deps):
    """Attributes of a cc_* rule whose sources begin with `precompiled_headers`."""
    return {
        "copts": copts + select({
            _CLANG: ["-include-pch", "$(execpath %s)" % precompiled],
            "//conditions:default": [],
        }),
        "deps": deps + select({
            _CLANG: [precompiled],
            "//conditions:default": [],
        }),
    }

def cc_library(name, precompiled = _STANDARD, copts = [], deps = [], **kwargs):
    """A cc_library whose sources begin with `precompiled_headers`.

    Only clang uses them: with other compilers the sources must include all headers that they use.

    Args:
      name: as a cc_library has it.
      precompiled: the precompiled_headers.
      copts: as a cc_library has them.
      deps: as a cc_library has them.
      **kwargs: as a cc_library has them.
    """
    native.cc_library(name = name, **(_begun(precompiled, copts, deps) | kwargs))

def cc_binary(name, precompiled = _STANDARD, copts = [], deps = [], **kwargs):
    """A cc_binary like `cc_library`."""
    native.cc_binary(name = name, **(_begun(precompiled, copts, deps) | kwargs))

def cc_test(name, precompiled = _STANDARD, copts = [], deps = [], **kwargs):
    """A cc_test like `cc_library`."""
    native.cc_test(name = name, **(_begun(precompiled, copts, deps) | kwargs))
