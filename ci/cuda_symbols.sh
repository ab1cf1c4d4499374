#!/usr/bin/env bash
# Builds the CUDA plugins and checks every function that they ask NVIDIA's libraries for against the
# oldest and a newer release of those on PyPI. Needs no GPU; downloads 2.5 GB.
#
#   ci/cuda_symbols.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(tools/find_python.sh 3.12 | sed -n 1p)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
./tools/bazel build --config=ci --config=py312 //:wheels_cuda
./tools/bazel cquery --config=ci --config=py312 --output=files //:wheels_cuda 2>/dev/null |
  xargs -I{} cp {} "$work"

# check PLUGIN REQUIREMENT ...
check() {
  local plugin=$1
  shift
  mkdir "$work/nvidia"
  "$python" -m pip download -q --no-deps --only-binary=:all: -d "$work/nvidia" "$@"
  "$python" ci/cuda_symbols.py "$work"/jaxmg_plugin_"$plugin"-*.whl "$work"/nvidia/*.whl
  rm -r "$work/nvidia"
}

# The oldest that JAX accepts for CUDA 12, and what the plugins are compiled against.
check cuda12 nvidia-cuda-runtime-cu12==12.1.105 nvidia-cublas-cu12==12.1.3.1 \
  nvidia-cusolver-cu12==11.4.5.107
check cuda12 nvidia-cuda-runtime-cu12==12.8.90 nvidia-cublas-cu12==12.8.4.1 \
  nvidia-cusolver-cu12==11.7.3.90
check cuda13 nvidia-cuda-runtime==13.0.96 nvidia-cublas==13.1.0.3 nvidia-cusolver==12.0.4.66
