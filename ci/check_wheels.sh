#!/usr/bin/env bash
# Checks every wheel of a folder with the tools of its recipients: a package index, and auditors.
#
#   ci/check_wheels.sh FOLDER      the folder that ci/wheels.sh filled
#   ci/check_wheels.sh lock        pins the newest tools in ci/requirements_release.txt
#
# Needs Python 3.12, for which the tools are pinned. Installs the tools into a separate environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(tools/find_python.sh 3.12 | sed -n 1p)
requirements=ci/requirements_release.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ "${1:?a folder of wheels, or lock}" = lock ]; then
  "$python" -m pip install -q --dry-run --ignore-installed --only-binary=:all: --report - \
    auditwheel check-wheel-contents trove-classifiers twine | "$python" -c '
import json, sys
print("# Written by `ci/check_wheels.sh lock`; do not edit.")
for item in sorted(json.load(sys.stdin)["install"], key=lambda i: i["metadata"]["name"].lower()):
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
    print(f"{name}=={version} --hash=sha256:{digest}")' >$requirements.new
  mv $requirements.new $requirements
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
tools/retry.sh "$work/venv/bin/pip" install -q --no-deps --only-binary=:all: --require-hashes \
  -r "$requirements"

failed=0
"$work/venv/bin/twine" check --strict "$1"/*.whl || failed=1
"$work/venv/bin/check-wheel-contents" "$1"/*.whl || failed=1
"$work/venv/bin/python" tools/check_wheels.py "$1"/*.whl || failed=1
exit $failed
