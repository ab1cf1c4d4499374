#!/usr/bin/env bash
# Builds every wheel for every supported Python into a folder. Needs no GPU. `ci/gpu.sh` takes the
# folder on a machine with GPUs.
#
#   ci/wheels.sh FOLDER [PYTHON ...]      default: 3.11 3.12 3.13 3.14
#
# A Python that the machine doesn't have comes from Debian's packages (tools/debian_python.sh).
# TARGETS="//:wheels" leaves out the CUDA wheels. CPUS="x86_64 aarch64" adds another machine's
# wheels. Removes wheels of other versions from the folder.
set -euo pipefail
folder=$(realpath -m "$1") pythons=("${@:2}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -ra targets <<<"${TARGETS:-//:wheels //:wheels_cuda}"
[ ${#pythons[@]} -gt 0 ] || pythons=(3.11 3.12 3.13 3.14)

for python in "${pythons[@]}"; do
  tools/find_python.sh "$python" >/dev/null 2>&1 || tools/debian_python.sh "$python"
done
mkdir -p "$folder"
version=$(sed -n 's/^VERSION = "\(.*\)"/\1/p' version.bzl)
find "$folder" -maxdepth 1 -name 'jaxmg*.whl' ! -name "*-$version-*" -delete
for cpu in ${CPUS:-x86_64}; do
  for python in "${pythons[@]}"; do
    config=(--config=ci "--config=py${python/./}")
    [ "$cpu" = x86_64 ] || config+=("--config=$cpu")
    ./tools/bazel build "${config[@]}" "${targets[@]}"
    wheels=$(./tools/bazel cquery "${config[@]}" --output=files "set(${targets[*]})")
    install -m 644 $wheels "$folder"
  done
done

# Packages that the programs of benchmarks/ and tests/gpu/ need on GPU machines, which may have no
# network. The lock's hashes apply. They go into a separate folder, since they are not ours to
# release.
if [[ "${targets[*]}" == *wheels_cuda* ]]; then
  requirement=$(mktemp)
  trap 'rm -f "$requirement"' EXIT
  sed -n '/"absl_py":/{s/.*("\([^"]*\)", "\([^"]*\)".*/absl-py==\1 --hash=sha256:\2/p;q}' \
    third_party/pypi/lock.bzl >"$requirement"
  "$(tools/find_python.sh "" | sed -n 1p)" -m pip download -q --disable-pip-version-check \
    --no-deps --require-hashes --only-binary=:all: -r "$requirement" -d "$folder/for_tests"
fi
ls -lR "$folder"
