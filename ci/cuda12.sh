#!/usr/bin/env bash
# Transfers CUDA 12 and JAX for it to a machine without network, whose Python 3.12 has JAX for CUDA
# 13.
#
#   ci/cuda12.sh pack PIECES [RELEASE ...]        on a machine with network; releases: 12.1 12.9
#   ci/cuda12.sh python PIECES RELEASE FOLDER     on the other machine: creates FOLDER/bin/python
#
# PIECES receives files of at most PIECE bytes (default: 16 MB): jax.tar.xz.NN, which every release
# needs, and RELEASE.tar.xz.NN. They hold the libraries that JAX and jaxmg open, with kernels only
# for sm_90. JAX is the version to pack; it must be the version of the other machine's jaxlib.
# Packing takes 20 minutes on two busy cores, unpacking one minute.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")/..
jax=${JAX:-0.11.2}

# The packages of JAX's extra `cuda12`, without cuDNN, NCCL, NVSHMEM, cuFFT, nvcc and NVRTC, which
# jaxmg does not use.
requirements() {
  case $1 in
    jax) echo "jax-cuda12-pjrt==$jax jax-cuda12-plugin==$jax lz4==4.4.5" ;;
    # The oldest release that JAX supports.
    12.1) echo nvidia-{cublas-cu12==12.1.3.1,cusolver-cu12==11.4.5.107,cusparse-cu12==12.1.0.106} \
      nvidia-{nvjitlink-cu12,cuda-runtime-cu12,cuda-cupti-cu12}==12.1.105 ;;
    # The newest release of CUDA 12.
    12.9) echo nvidia-{cublas-cu12==12.9.3.13,cusolver-cu12==11.7.5.82,cusparse-cu12==12.5.10.65} \
      nvidia-nvjitlink-cu12==12.9.86 nvidia-{cuda-runtime-cu12,cuda-cupti-cu12}==12.9.79 ;;
    *) echo "ci/cuda12.sh: no release $1; there are 12.1 and 12.9" >&2 && return 1 ;;
  esac
}

install() { # FOLDER SET
  local platforms=() words
  read -ra words <<<"$(requirements "$2")"
  for tag in manylinux{1,2014} manylinux_2_{17,24,25,27,28}; do
    platforms+=(--platform "${tag}_x86_64")
  done
  "$python" -m pip install -q --no-deps --no-compile --only-binary=:all: --implementation cp \
    --python-version 3.12 "${platforms[@]}" --target "$1" "${words[@]}"
}

# Writes two archives, one after the other, because each kind of code has its own filters. A GPU
# instruction takes 16 bytes.
archive() { # FOLDER
  tar -C "$1" --exclude='*.kernels' --sort=name -c . |
    xz --x86 --lzma2=preset=6,dict=64MiB >"$1.libraries" &
  (cd "$1" && find . -name '*.kernels' | sort | tar -c -T -) |
    xz --lzma2=preset=1,dict=256MiB,lc=0,lp=4,pb=4 >"$1.kernels"
  wait $!
  cat "$1.libraries" "$1.kernels"
}

pack() { # PIECES [RELEASE ...]
  local pieces set
  pieces=$(realpath -m "$1") && shift
  [ $# -gt 0 ] || set -- 12.1 12.9
  python=$("$here/tools/find_python.sh" 3.12 | sed -n 1p)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$pieces"
  "$python" -m pip install -q --target "$work/tools" lz4 zstandard
  for set in jax "$@"; do
    install "$work/$set" "$set"
    find "$work/$set" -depth \( -name include -o -name 'libnvblas*' -o -name 'libnvperf*' \
      -o -name libcheckpoint.so -o -name libpcsamplingutil.so \) -exec rm -r {} +
    PYTHONPATH=$work/tools "$python" "$here/tools/carry_cuda.py" slim "$work/$set"
    rm -f "$pieces/$set".tar.xz.*
    archive "$work/$set" | split -d -b "${PIECE:-16000000}" - "$pieces/$set.tar.xz."
  done
  ls -l "$pieces"
}

# Assembles a virtual environment: links to the packages of the machine's Python except for its
# CUDA.
assemble() { # PIECES RELEASE FOLDER
  local pieces=$1 release=$2 folder=$3 site there base name path
  site=$folder/lib/python3.12/site-packages
  there=$("${PYTHON:-python3}" -c \
    'import importlib.util as u, os; print(os.path.dirname(os.path.dirname(u.find_spec("jax").origin)))')
  base=$("${PYTHON:-python3}" -c 'import sys; print(sys._base_executable)')
  mkdir -p "$folder/bin" "$site"
  cat "$pieces"/jax.tar.xz.* "$pieces/$release".tar.xz.* | xz -dc | tar -x --ignore-zeros -C "$site"
  for path in "$there"/*; do
    name=$(basename "$path")
    case $name in
      jax_plugins | jax_cuda* | nvidia* | __pycache__) ;;
      *) [ -e "$site/$name" ] || ln -s "$path" "$site" ;;
    esac
  done
  # The CUDA version of these libraries makes no difference here.
  for name in nccl cudnn; do
    [ ! -d "$there/nvidia/$name" ] || ln -s "$there/nvidia/$name" "$site/nvidia"
  done
  echo "home = $(dirname "$base")" >"$folder/pyvenv.cfg"
  ln -s "$base" "$folder/bin/python"
  "$folder/bin/python" "$here/tools/carry_cuda.py" restore "$site"
}

case ${1:-} in
  pack) pack "${@:2}" ;;
  python) assemble "${@:2}" ;;
  *) sed -n '2,/^set/s/^# \?//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
