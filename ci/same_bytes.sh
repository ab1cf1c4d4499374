#!/usr/bin/env bash
# Builds the wheels twice from scratch, with MODULE.bazel here and with WORKSPACE in another folder,
# and compares them byte for byte.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
other=(./tools/bazel "--output_base=$work/output")
# Bazel write-protects its outputs. What fails here must not become the script's exit code.
trap '"${other[@]}" shutdown || true; chmod -R u+w "$work" && rm -rf "$work" || true' EXIT

./tools/bazel build --config=ci //:wheels
"${other[@]}" build --config=ci --config=workspace --symlink_prefix=/ //:wheels

here=$(./tools/bazel info --config=ci output_path)
there=$("${other[@]}" info --config=ci --config=workspace output_path)
wheels=$(./tools/bazel cquery --config=ci --output=files //:wheels)
for wheel in $wheels; do
  wheel=${wheel#bazel-out/}
  cmp "$here/$wheel" "$there/$wheel"
  sha256sum "$here/$wheel"
done
