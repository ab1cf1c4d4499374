#!/usr/bin/env bash
# Installs jaxmg and a plugin from a folder of wheels, and the packages for tests in it, for PYTHON
# (default: python3) into a folder for PYTHONPATH. Needs no network.
#
#   ci/gpu_install.sh WHEELS FOLDER [PLUGIN]      PLUGIN: a pattern, default cuda*
#
# FOR_TESTS names another folder of wheels with the packages for tests, such as absl-py.
set -euo pipefail
python=${PYTHON:-python3} wheels=$1
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
needed=("${FOR_TESTS:-$wheels}"/for_tests/*.whl)
[ -e "${needed[0]}" ] || needed=()
# shellcheck disable=SC2086  # a pattern
"$python" -m pip install -q --no-index --no-deps --target "$2" "$wheels"/jaxmg-*.whl \
  "$wheels"/jaxmg_plugin_${3:-cuda*}-*-"$tag"-*_"$(uname -m)".whl "${needed[@]}"
