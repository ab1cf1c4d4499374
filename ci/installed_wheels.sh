#!/usr/bin/env bash
# Builds the wheels for one Python, installs them with one JAX into an empty environment, and runs a
# folder of tests or a program there, where the checkout can't be imported.
#
#   ci/installed_wheels.sh PYTHON FOLDER|PROGRAM REQUIREMENT ...
#   ci/installed_wheels.sh 3.11 tests/python jax==0.6.2
#   ci/installed_wheels.sh 3.12 tests/netket/run.py jax==0.10.2 netket==3.22.4
#
# WHEELS=FOLDER takes the wheels from FOLDER, which ci/wheels.sh filled, instead of building them.
# PAGES=EXPRESSION, as pytest's -k, also runs the code blocks of README and of the selected pages.
#
# Exits with 77, "skipped", if the machine lacks that Python and isn't CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$1 tests=$2 requirements=("${@:3}")

python=$(tools/find_python.sh "$version" | sed -n 1p) || python=$(tools/debian_python.sh "$version") || {
  [ -n "${CI:-}" ] || exit 77
  exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${WHEELS:-}" ]; then
  wheels=$(realpath "$WHEELS")
else
  wheels=$work/wheels
  TARGETS=//:wheels ci/wheels.sh "$wheels" "$version"
fi

# The environment would take pip from a bundle that some systems leave out.
"$python" -m venv --without-pip "$work/venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip=("$python" -m pip --python "$work/venv/bin/python")
# Installs by path, because a package index may have another `jaxmg` of a higher version.
tools/retry.sh "${pip[@]}" install -q "$(echo "$wheels"/jaxmg-*.whl)[cpu,plot]" \
  "$wheels"/jaxmg_plugin_cpu-*-cp"${version/./}"-*_"$(uname -m)".whl "${requirements[@]}" pytest hypothesis flatbuffers absl-py
"${pip[@]}" check
"${pip[@]}" list | grep -iE '^(jax|numpy|scipy|netket|dask|diffrax|gpjax|joblib|lineax|numpyro|optax|optimistix|orbax|quantax|tinygp)'

cp -r tests examples docs README.md "$work"
mkdir "$work/benchmarks" && cp benchmarks/records.py "$work/benchmarks"
cd "$work"
if [ ! -d "$tests" ]; then
  venv/bin/python "$tests"
  exit
fi

# Runs a part of the tests on every core, because most tests have one thread. Prints part by part.
parts=$(nproc) failed=0
for ((i = 0; i < parts; ++i)); do
  TEST_SHARD_INDEX=$i TEST_TOTAL_SHARDS=$parts \
    venv/bin/python tests/pytest_main.py "$tests" >"part$i.log" 2>&1 &
  started[i]=$!
done
for ((i = 0; i < parts; ++i)); do
  wait "${started[i]}" || failed=1
  cat "part$i.log"
done
if [ -n "${PAGES:-}" ]; then
  venv/bin/python -m pytest -q docs/pages_test.py -k "$PAGES" || failed=1
fi
exit $failed
