#!/usr/bin/env bash
# Runs the build for aarch64 on this machine under qemu: C++ tests, and the CPU wheel in Debian's
# Python for aarch64, with JAX's dependencies from PyPI. Takes five minutes on two cores.
#
#   ci/aarch64.sh [WORK]      keeps downloads in WORK for the next time
#
# Debian's qemu 7.2 computes wrong float32 products with the vector instructions SVE, even in NumPy
# alone, so it emulates a processor without SVE.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=3.11 suite=bookworm
[ $# -gt 0 ] || { set -- "$(mktemp -d)" && trap 'rm -rf "$1"' EXIT; }
work=$(realpath -m "$1")
mkdir -p "$work"

TARGETS=//:wheels CPUS=aarch64 ci/wheels.sh "$work/wheels" $version
python=$(tools/debian_python.sh $version $suite aarch64 "$work/root")
platforms=()
for manylinux in 2014 _2_17 _2_27 _2_28; do platforms+=(--platform "manylinux${manylinux}_aarch64"); done
host=$(tools/find_python.sh $version | sed -n 1p)
rm -rf "$work/site"
install=("$host" -m pip install -q --only-binary=:all: --no-compile --implementation cp
  --python-version $version "${platforms[@]}" --target "$work/site")
tools/retry.sh "${install[@]}" "jax>=0.6.2" scipy
"${install[@]}" --no-index --no-deps --find-links "$work/wheels" jaxmg jaxmg-plugin-cpu

export QEMU_CPU=cortex-a57 QEMU_LD_PREFIX=$work/root PYTHONPATH=$work/site
export JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 XLA_FLAGS=--xla_force_host_platform_device_count=2
qemu=$(find "$work/root" -name qemu-aarch64-static -print -quit)
config=(--config=ci "--config=py${version/./}" --config=aarch64)
for test in layout_test comm_test; do
  ./tools/bazel build "${config[@]}" //tests/cc:$test
  timeout 300 "$qemu" "$(./tools/bazel cquery "${config[@]}" --output=files //tests/cc:$test)"
done
cd "$work"
timeout 1200 "$qemu" "$python" -m jaxmg
