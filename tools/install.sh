#!/usr/bin/env bash
# Builds jaxmg and a plugin from this checkout and installs them into the environment of `python3`.
#
#   tools/install.sh [cpu | cuda12 | cuda13]
set -euo pipefail
plugin=${1:-cpu}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo "Building the wheels with Bazel: two to five minutes the first time. pip shows no progress."
# The pip of Debian 12 has no -C.
exec "${PYTHON:-python3}" -m pip install --config-settings "plugin=$plugin" \
  ./xla_ffi/plugin ".[$plugin]"
