#!/usr/bin/env bash
# ziglang 0.15.2 as a C++ compiler for x86-64 Linux: std::fma of doubles gives NaN where the product
# is far smaller than the third number, as in 1e-200 * 1e-200 + 1, if the program needs anything of
# zig's own runtime (a division of 128-bit integers here). Then fma is that runtime's too, which it
# takes before the C library's; a program that needs nothing else of it has the C library's, which is
# right. fmaf is right in both.
# Guess: fma is the C library's, or at any rate correctly rounded, whatever else a program calls.
# A test of jaxmg that runs kernels on the host met it; the plugin for CPU devices calls no fma of
# doubles.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages ziglang==0.15.2 <<'PROGRAM'
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = r"""
#include <cmath>
#include <cstdio>
#include <cstdlib>
int main(int count, char** words) {
#ifdef RUNTIME
  volatile unsigned __int128 whole = static_cast<unsigned __int128>(count) << 70, part = 3;
  volatile unsigned __int128 quotient = whole / part;
#endif
  volatile double x = std::atof(words[1]), z = std::atof(words[2]);
  volatile float small = 1e-30f, one = 1;
  std::printf("%g %g\n", std::fma(x, x, z), static_cast<double>(std::fma(small, small, one)));
}
"""
found = {}
with tempfile.TemporaryDirectory() as folder:
    os.environ.update(ZIG_GLOBAL_CACHE_DIR=folder, ZIG_LOCAL_CACHE_DIR=folder)
    source = pathlib.Path(folder, "fma.cc")
    source.write_text(SOURCE)
    for options in ([], ["-DRUNTIME"]):
        program = pathlib.Path(folder, "fma")
        command = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.27"]
        subprocess.run([*command, "-std=c++17", "-O1", *options, source, "-o", program], check=True)
        for x, z in (("1e-200", "1"), ("1e-276", "1e-40"), ("1e-100", "1"), ("0.5", "1")):
            out = subprocess.run([program, x, z], capture_output=True, text=True, check=True).stdout
            value, single = out.split()
            found[bool(options), x] = value
            print(*options, f"fma({x}, {x}, {z}) = {value}, fmaf(1e-30, 1e-30, 1) = {single}")
            assert single == "1"
assert [found[False, x] for x in ("1e-200", "1e-276", "0.5")] == ["1", "1e-40", "1.25"]
assert all("nan" in found[True, x] for x in ("1e-200", "1e-276")), "its own fma is right"
assert found[True, "0.5"] == "1.25"
PROGRAM
