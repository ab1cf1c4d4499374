#!/usr/bin/env bash
# Builds the docs site and copies it into a new folder in the form that web servers need: without
# links.
#
#   ci/site.sh FOLDER
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./tools/bazel build --config=ci //docs:site
site=$(./tools/bazel cquery --config=ci --output=files //docs:site)
mkdir "$folder"
cp -rL "$site/." "$folder"
chmod -R u+w "$folder" # Bazel write-protects its outputs
