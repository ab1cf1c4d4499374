#!/usr/bin/env bash
# Applies each of a set of faults to a copy of the tree and requires that a test finds it: see
# tests/mutants/run.py, which receives the arguments. Needs g++ and Python 3.12. Takes about half an
# hour on two cores, less if $JAXMG_MUTANTS_CACHE is a folder that persists.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(tools/find_python.sh 3.12 | sed -n 1p)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
tools/retry.sh "$work/venv/bin/pip" install -q jax==0.11.2 scipy pybind11 pytest hypothesis matplotlib \
  packaging pyelftools
# The XLA headers that Bazel uses (third_party/repositories.bzl).
tools/retry.sh "$work/venv/bin/pip" install -q --no-deps --target "$work/oldest" jaxlib==0.6.0
export JAXMG_XLA_HEADERS=$work/oldest/jaxlib/include
"$work/venv/bin/python" tests/mutants/run.py \
  --cache "${JAXMG_MUTANTS_CACHE:-$work/cache}" "$@"
