#!/usr/bin/env bash
# Builds the wheels for one Python, installs them with one JAX in an empty environment and runs
# tests/python there, where the checkout can't be imported; or other Python in a copy of tests/.
#
#   ci/installed_wheels.sh 3.11 jax==0.6.2 [FILE ARGUMENT ...]     default: pytest_main.py python
#
# Exits with 77, "skipped", if the machine lacks that Python and isn't CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$1 jax=$2 command=("${@:3}")
[ ${#command[@]} -gt 0 ] || command=(pytest_main.py python)

if ! python=$(tools/find_python.sh "$version" | sed -n 1p); then
  [ -n "${CI:-}" ] || exit 77
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TARGETS=//:wheels ci/wheels.sh "$work/wheels" "$version"

"$python" -m venv "$work/venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# By path: a package index may have another `jaxmg`, of a higher version.
install=("$work/venv/bin/pip" install -q "$(echo "$work"/wheels/jaxmg-*.whl)[cpu,plot]"
  "$work"/wheels/jaxmg_plugin_*.whl "$jax" pytest hypothesis)
# Many versions of pip give up when a connection drops halfway.
"${install[@]}" || { sleep 10 && "${install[@]}"; }
"$work/venv/bin/pip" check
"$work/venv/bin/pip" list | grep -iE '^(jax|numpy|scipy)'

cp -r tests "$work"
cd "$work/tests"
../venv/bin/python "${command[@]}"
