# Sourced by the scripts beside it.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
NUMPY="numpy==2.4.6 scipy==1.17.1"
JAX="jax==0.11.2 jaxlib==0.11.2 $NUMPY"

# with_packages REQUIREMENT ... <PROGRAM: runs a program on Python 3.12 with these packages alone.
with_packages() {
  local python
  python=$("$root/tools/find_python.sh" 3.12 | sed -n 1p)
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore \
    --target "$folder/packages" "$@" >&2
  cat >"$folder/program.py"
  (cd "$folder" && PYTHONPATH=$folder/packages TF_CPP_MIN_LOG_LEVEL=3 "$python" program.py)
}
