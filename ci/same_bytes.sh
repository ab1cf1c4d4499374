#!/usr/bin/env bash
# Builds the wheels twice from nothing, through MODULE.bazel here and through WORKSPACE in
# another folder, and compares them byte for byte.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
other=(./tools/bazel "--output_base=$work/output")
# Bazel write-protects its outputs.
trap '"${other[@]}" shutdown; chmod -R u+w "$work"; rm -rf "$work"' EXIT

./tools/bazel build --config=ci //:wheels
"${other[@]}" build --config=ci --config=workspace --symlink_prefix=/ //:wheels

here=$(./tools/bazel info output_path 2>/dev/null)
there=$("${other[@]}" info --config=workspace output_path 2>/dev/null)
for wheel in $(./tools/bazel cquery --config=ci --output=files //:wheels 2>/dev/null); do
  wheel=${wheel#bazel-out/}
  cmp "$here/$wheel" "$there/$wheel"
  sha256sum "$here/$wheel"
done
