#!/usr/bin/env bash
# Runs the recipes of docs/clients.md and tests/extras with the newest release of each library and
# the newest JAX that it allows, each in an environment of its own. Continues after a failure.
#
#   ci/clients.sh [LIBRARY ...]     default: all
#
# WHEELS=FOLDER takes the wheels from FOLDER instead of building them, as in ci/installed_wheels.sh.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${WHEELS:-}" ]; then
  WHEELS=$work
  TARGETS=//:wheels ci/wheels.sh "$WHEELS" 3.12 || exit
fi
export WHEELS

declare -A packages=(
  [dask]='dask distributed joblib'
  [diffrax]='diffrax lineax'
  [gpjax]=gpjax
  [lineax]=lineax
  [netket]=netket
  [numpyro]=numpyro
  [optimistix]='optimistix lineax'
  [orbax]='orbax-checkpoint optax'
  [quantax]=quantax
  [tinygp]=tinygp
)
[ $# -gt 0 ] || set -- "${!packages[@]}"

failed=()
for name; do
  echo "=== $name"
  tests=tests/extras
  [ "$name" != netket ] || tests=tests/netket/run.py
  # shellcheck disable=SC2086  # several packages
  timeout 1800 ci/installed_wheels.sh 3.12 $tests jax ${packages[$name]} || failed+=("$name")
done
echo "failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
