#!/usr/bin/env bash
# Compiles functions for 2 and for 8 GPUs on a machine without GPUs: runs tests/gpu/topologies.py
# with the wheels of this checkout and JAX's plugin for CUDA 13. The arguments are those of that
# program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jax=0.11.2

python=$(tools/find_python.sh 3.12 | sed -n 1p) || python=$(tools/debian_python.sh 3.12)
options=(--config=ci --config=py312 --//third_party/cuda:archs=sm_90a)
targets=(//:wheels //xla_ffi/plugin:wheel_cuda13)
./tools/bazel build "${options[@]}" "${targets[@]}"
wheels=$(./tools/bazel cquery "${options[@]}" --output=files "set(${targets[*]})" | grep -v plugin_cpu)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv --without-pip "$work/venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip=("$python" -m pip --python "$work/venv/bin/python")
tools/retry.sh "${pip[@]}" install -q jax==$jax scipy absl-py nvidia-cuda-nvcc==13.*
# Compiling needs none of NVIDIA's other libraries, which take gigabytes.
tools/retry.sh "${pip[@]}" install -q --no-deps jax-cuda13-plugin==$jax jax-cuda13-pjrt==$jax $wheels
cp tests/gpu/topologies.py "$work"
cd "$work" && venv/bin/python topologies.py "$@"
