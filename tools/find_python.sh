#!/usr/bin/env bash
# Prints the path and the version of a Python interpreter that has pip, on two lines.
#
#   tools/find_python.sh [3.12 | python3.12 | /path/to/python]
#
# Without an argument: python3 if its version is supported, else the newest supported version. Also
# finds interpreters that pyenv, uv or tools/debian_python.sh installed, which are not on PATH.
set -euo pipefail

SUPPORTED=(3.14 3.13 3.12 3.11)

# Tries to start each, because a shim on PATH may exist for a version that it can't start.
try() {
  local found
  found=$("$1" -c '
import importlib.util, sys
importlib.util.find_spec("pip") or sys.exit(1)
print(sys.executable)
print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
  [[ " ${SUPPORTED[*]} " == *" ${found##*$'\n'} "* ]] || return 1
  echo "$found"
  exit 0
}

version() {
  local f
  ! command -v "python$1" >/dev/null || try "python$1" || true
  for f in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/"python$1" \
           "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-"$1".*/bin/"python$1" \
           "${XDG_CACHE_HOME:-$HOME/.cache}/jaxmg/python$1/usr/bin/python$1"; do
    [ ! -x "$f" ] || try "$f" || true
  done
}

want=${1:-}
case $want in
  */*) try "$want" || true ;;
  '' | python | python3)
    try python3 || true
    for v in "${SUPPORTED[@]}"; do version "$v"; done ;;
  *) version "${want#python}" ;;
esac
echo "no Python ${want:-(${SUPPORTED[*]})} with pip on this machine; supported: ${SUPPORTED[*]}" >&2
exit 1
