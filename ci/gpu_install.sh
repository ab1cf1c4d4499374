#!/usr/bin/env bash
# Installs jaxmg and a plugin from a folder of wheels, and the packages for tests beside them, for
# PYTHON (python3 unless given) into a folder that PYTHONPATH then names. Needs no network.
#
#   ci/gpu_install.sh WHEELS FOLDER [PLUGIN]      PLUGIN: a pattern, cuda* unless given
#
# FOR_TESTS names another folder of wheels from which those packages come, absl-py say.
set -euo pipefail
python=${PYTHON:-python3} wheels=$1
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
needed=("${FOR_TESTS:-$wheels}"/for_tests/*.whl)
[ -e "${needed[0]}" ] || needed=()
# shellcheck disable=SC2086  # a pattern
"$python" -m pip install -q --no-index --no-deps --target "$2" "$wheels"/jaxmg-*.whl \
  "$wheels"/jaxmg_plugin_${3:-cuda*}-*-"$tag"-*_"$(uname -m)".whl "${needed[@]}"
