#!/usr/bin/env bash
# Checks that clang-tidy, and so clangd, understands the output of tools/compile_commands.py: it
# finds all headers that files of the engine, the handlers, the plugin and the tests include.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(tools/find_python.sh | sed -n 1p)" -m venv "$work"
tools/retry.sh "$work/bin/pip" install -q --disable-pip-version-check clang-tidy==23.1.4

tools/compile_commands.py
"$work/bin/clang-tidy" -p . --quiet --checks='-*,bugprone-use-after-move' \
  xla_ffi/engine/cholesky/potrf.cc xla_ffi/handlers/cholesky/potrs.cc xla_ffi/plugin/module.cc tests/cc/comm_test.cc
