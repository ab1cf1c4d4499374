#!/usr/bin/env python3
"""Writes compile_commands.json, which tells clangd and clang-tidy how each C++ file is compiled.

    tools/compile_commands.py           the sources for CPU devices, and the C++ tests
    tools/compile_commands.py --cuda    also those for CUDA 13, whose headers are then fetched

Run it again after adding files or dependencies. It compiles nothing.
"""

import argparse
import functools
import itertools
import json
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGETS = "//xla_ffi/... + //tests/cc/..."
CUDA = " + deps(//xla_ffi/plugin:cuda13)"

# Flags that name outputs. The first word, the compiler, is dropped too.
OUTPUTS = {"-o", "-MF"}
# Precompiled headers, which another clang can't read; sources include all that they use.
PRECOMPILED = "-include-pch"
OUTPUT_FLAGS = ("-MD", "-frandom-seed=")
FOLDERS = ("-I", "-iquote", "-isystem")


def bazel(*words):
    """Returns Bazel's output."""
    command = [ROOT / "tools/bazel", *words, "--noshow_progress", "--ui_event_filters=-info"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


@functools.cache
def own_flags(compiler):
    """Returns the flags that the compiler adds by itself: its target, and its C and C++ libraries.

    `compiler` is the script that starts zig's clang. Another clang has its own <stddef.h> and
    similar headers, which belong between the two libraries.
    """
    # The script caches compilations and is silent then; it doesn't cache preprocessing.
    command = [compiler, "-E", "-v", "-x", "c++", "/dev/null"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    words = shlex.split(next(line for line in done.stderr.splitlines() if " -cc1 " in line))
    pairs = list(itertools.pairwise(words))
    target = re.sub(r"linux[\d.]*-gnu[\d.]*", "linux-gnu", words[words.index("-triple") + 1])
    flags = [f"--target={target}", "-nostdinc++", "-nostdlibinc"]
    flags += ["-D" + value for flag, value in pairs if flag == "-D"]
    folder = "-isystem"
    for path in (value for flag, value in pairs if flag == "-isystem"):
        if path.endswith("ziglang/lib/include"):
            folder = "-idirafter"
        else:
            flags += [folder, path]
    return flags


def arguments(words, base, root=ROOT):
    """Returns the words of a compilation for another clang that runs in `root`.

    `base` is Bazel's output base, which has fetched and generated files. Folders that don't exist,
    because nothing has been generated in them, are left out.
    """

    def absolute(path):
        if path.startswith("external/"):
            return str(base / path)
        if path.startswith("bazel-out/"):
            return str(base / "execroot/_main" / path)
        return path

    kept, rest = [], iter(words[1:])
    for word in rest:
        flag = next((f for f in FOLDERS if word.startswith(f)), None)
        if word in OUTPUTS or word == PRECOMPILED:
            next(rest)
        elif flag:
            path = absolute(word.removeprefix(flag) or next(rest))
            if (root / path).is_dir():
                kept += [flag, path]
        elif not word.startswith(OUTPUT_FLAGS):
            kept.append(absolute(word))
    return ["clang++", *own_flags(absolute(words[0])), *kept]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cuda", action="store_true", help="what is for CUDA 13 too")
    args = parser.parse_args()
    query = f'mnemonic("CppCompile", {TARGETS}{CUDA if args.cuda else ""})'
    actions = json.loads(bazel("aquery", "--output=jsonproto", "--include_artifacts=false", query))
    base = pathlib.Path(bazel("info", "output_base").strip())
    commands = {}
    for action in actions["actions"]:
        words = arguments(action["arguments"], base)
        file = words[words.index("-c") + 1]
        if (ROOT / file).is_relative_to(ROOT):  # not fetched files
            commands.setdefault(file, {"directory": str(ROOT), "file": file, "arguments": words})
    text = json.dumps(list(commands.values()), indent=1)
    (ROOT / "compile_commands.json").write_text(text + "\n")
    print(f"compile_commands.json: {len(commands)} files")


if __name__ == "__main__":
    main()
