#!/usr/bin/env bash
# Measures the records of benchmarks/results/gpu.jsonl, on a machine whose Python has JAX for CUDA,
# absl-py and jaxmg. Appends each record to RESULTS_FILE at once and prints a line for it. Continues
# if a case fails.
#
#   ci/gpu_bench.sh RESULTS_FILE [quick] [PART ...]      default: all except `eight`, `brief`
#
# `quick` divides every n by 16, to test the script. Each part is a separate process and ends within
# 10 minutes. The numbers after the parts below are seconds on four H200, estimated from earlier
# runs.
#
# Environment: WHEELS, a folder of wheels to install first (as for ci/gpu.sh); PYTHON, which
# replaces python3; REPEATS, the number of timed runs instead of each part's own; TRACE, a folder
# for a timeline of one more run of each case; RANKS, default 4; PLATFORM=cpu, to test the script
# without GPUs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:?a file to append records to}
out=$(realpath -m "$out")
shift
scale=1
[ "${1:-}" != quick ] || { scale=16 && shift; }
python=${PYTHON:-python3} ranks=${RANKS:-4}
scratch=$(mktemp -d) || exit
trap 'rm -rf "$scratch"' EXIT
if [ -n "${WHEELS:-}" ]; then
  site=$scratch/site
  PYTHON=$python ci/gpu_install.sh "$WHEELS" "$site" || exit
  export PYTHONPATH=$site
fi

# JAX's solvers at the largest sizes need more than JAX's default part of the memory.
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.93}

# Batches of options for run.py, separated by +. The first batch applies to all.
bench() {
  timeout --foreground 590 "$python" benchmarks/run.py --platform "${PLATFORM:-gpu}" --shared \
    --warmup 0 --donate --limit 300 ${TRACE:+--trace "$TRACE"} --out "$out" "$@"
}
# Runs another program of benchmarks/ with its own options.
program() {
  timeout --foreground 590 "$python" "benchmarks/$1.py" --platform "${PLATFORM:-gpu}" \
    --ranks "$ranks" --out "$out" "${@:2}"
}
n() {
  printf -- '--n'
  for size in "$@"; do printf ' %d' $((size / scale)); done
}
repeats() { echo "--repeats ${REPEATS:-$1}"; }
both=(--backend native cusolvermg --compare --ranks "$ranks")

# shellcheck disable=SC2046  # n and repeats print several words
{
  # The table of the solvers, the reference for every change of the engine. Includes JAX's solver on
  # one GPU where it fits; last where it takes most of the memory.
  table() { # 120
    bench "${both[@]}" $(repeats 3) + --backend native cusolvermg jax $(n 16384 32768) \
      + $(n 131072) + --dtype float32 --precision default tf32 $(n 131072) \
      + --backend native cusolvermg jax $(n 65536)
  }
  inverse() { # 70
    bench --backend native jax --compare --ranks "$ranks" --routine potri \
      + $(n 16384 32768) $(repeats 3) + $(n 65536) $(repeats 1)
  }
  # Measures the library's own share of the time of a call of cuSOLVERMg.
  library() { # 75
    TRACE=${TRACE:-$scratch/trace} bench --backend cusolvermg --ranks "$ranks" $(repeats 3) \
      + $(n 16384 32768 65536 131072) + --routine syevd $(n 16384)
  }
  # Orders that can't fill the GPUs: each tile costs more time than its operations.
  small() { # 30
    bench "${both[@]}" $(repeats 9) + --backend native cusolvermg jax \
      $(n 1024 2048 4096 8192 12288) + --routine potri --backend native jax $(n 2048 4096 8192)
  }
  # One GPU, compared with JAX's solver where that fits.
  one() { # 80
    bench --ranks 1 $(repeats 3) --backend native jax --compare + $(n 16384 32768) \
      + --routine potri $(n 16384 32768) + --backend native $(n 65536)
  }
  dtypes() { # 220
    bench "${both[@]}" $(repeats 3) --repeat-check $(n 32768) \
      + --dtype float32 complex64 --precision tf32 \
      + --backend native cusolvermg jax --dtype float64 float32 complex64 complex128 \
      + --backend native jax --routine potri --dtype float64 float32 complex64 complex128
  }
  # Orders without suitable divisors, on one GPU: float32 with default and with plain products, and
  # JAX.
  orders() { # 120
    local all=(20000 20480 20001 20002 20004 20008 20011 20015) base=(--ranks 1 --backend native)
    bench "${base[@]}" $(repeats 5) --no-gemm + --dtype float32 --precision default highest \
      $(n "${all[@]}") + --backend jax --dtype float32 $(n 20000 20480 20001 20011) \
      + --routine potri --dtype float32 $(n 20000 20480 20001) \
      + --dtype complex64 $(n 20000 20480 20001) + $(n 20480 20001) \
      + --routine syevd $(n 12288 12289) \
      && bench "${base[@]}" $(repeats 5) --no-gemm $(n 20480 20001) \
        + --routine cho_factor --dtype float32 complex64 float64 \
        + --routine lu_factor --dtype float32 float64
  }
  # Eigenvalues without vectors, on one GPU.
  values() { # 40
    bench --ranks 1 --backend native --no-gemm --no-vectors --routine syevd $(repeats 3) \
      + $(n 8192 16384 32768) + --dtype float32 $(n 32768)
  }
  # General matrices on one GPU, compared with JAX where that fits, and kept factors.
  general() { # 170
    local base=(--ranks 1 --no-gemm)
    bench "${base[@]}" $(repeats 3) --routine gesv + --backend native jax $(n 8192 16384 32768) \
      + --backend native jax --dtype complex128 $(n 32768) \
      + --backend native --dtype float32 $(n 65536) + --routine getri $(n 32768) \
      && bench "${base[@]}" $(repeats 1) --routine gesv --backend native jax $(n 65536) \
      && timeout --foreground 120 "$python" benchmarks/kept.py --platform "${PLATFORM:-gpu}" \
        --ranks 1 --out "$out" --routine lu_solve $(n 65536)
  }
  # QR, SVD and least squares, compared with JAX where that is quick enough. s is to shapes what n
  # is to orders.
  s() {
    printf -- '--shape'
    for shape in "$@"; do printf ' %dx%d' $((${shape%x*} / scale)) $((${shape#*x} / scale)); done
  }
  decompositions() { # not estimated
    local small one=(timeout --foreground 300 "$python" benchmarks/decompositions.py
      --platform "${PLATFORM:-gpu}" --ranks 1 --out "$out" $(repeats 3)) failed=0
    "${one[@]}" --function r qr $(s 1000x1000 4096x4096 8192x8192 16384x16384) || failed=1
    "${one[@]}" --function r --kind jaxmg $(s 32768x32768) || failed=1
    "${one[@]}" --function qr $(s 200000x4096 4000000x256) || failed=1
    "${one[@]}" --function least_squares lstsq --kind jaxmg $(s 100000x2048 200000x8192) || failed=1
    "${one[@]}" --function svd svdvals $(s 1000x1000 2048x2048 4096x4096) || failed=1
    "${one[@]}" --function svd svdvals polar --kind jaxmg $(s 8192x8192 16384x16384) || failed=1
    "${one[@]}" --function svd --kind jaxmg $(s 200000x4096) || failed=1
    "${one[@]}" --function svd_lowrank --kind jaxmg $(s 16384x16384 65536x65536) || failed=1
    # With one rank's algorithm, and with the one for large orders.
    for small in 1024 0; do
      echo "SVD by one rank up to n = $small"
      "${one[@]}" --function svd svdvals --kind jaxmg --small $small \
        $(s 64x64 256x256 512x512 1000x1000) || failed=1
    done
    "${one[@]}" --dtype float32 --function r svd --kind jaxmg $(s 8192x8192 16384x16384) || failed=1
    return $failed
  }
  # Small matrices, call by call.
  small_general() { # 40
    timeout --foreground 300 "$python" benchmarks/small.py --platform "${PLATFORM:-gpu}" --ranks 1 \
      --out "$out" --routine gesv getri --dtype float64 $(n 100 256 1000 2048 4096)
  }
  # Twice as many GPUs, on a machine with eight.
  eight() { # 70
    bench --ranks 8 --backend native --compare $(repeats 3) + --routine potri $(n 32768 65536) \
      + --backend native cusolvermg $(n 4096 8192 16384 32768 65536 131072)
  }
  # Enough to compare another release of CUDA: the step `figures` of ci/gpu.sh.
  brief() { # 40
    bench --backend native --compare --ranks "$ranks" $(repeats 3) \
      + --backend native cusolvermg $(n 16384 32768 65536) + --routine potri $(n 32768) \
      + --dtype float32 --precision tf32 $(n 32768)
  }
  # Many right-hand sides.
  nrhs() { # 60
    bench "${both[@]}" $(repeats 3) $(n 32768) + --nrhs 1 16 + --nrhs 256 4096
  }
  # With a kept factor: reading it bounds one right-hand side, products bound many.
  kept() { # 60
    local program=(timeout --foreground 300 "$python" benchmarks/kept.py
      --platform "${PLATFORM:-gpu}" --ranks "$ranks" --out "$out")
    "${program[@]}" $(n 16384 32768 131072) && "${program[@]}" $(n 65536) --nrhs 1 16 256
  }
  tiles() { # 110
    bench --ranks "$ranks" --backend native --compare $(repeats 2) \
      + --T_A 512 1024 2048 $(n 16384 32768 65536 131072)
  }
  # A single run of more than 20 seconds is as informative as several.
  syevd() { # 190
    bench --routine syevd --backend native cusolvermg jax --ranks "$ranks" --compare \
      + $(n 16384) $(repeats 1) + $(n 32768) $(repeats 0) \
      + --dtype float32 complex128 $(n 16384) $(repeats 1)
  }
  # The native backend solves on one GPU, where this order does not fit.
  syevd_large() { # 110
    bench --routine syevd --backend cusolvermg --ranks "$ranks" $(repeats 0) --limit 500 \
      + $(n 65536)
  }
  # With all GPUs, with one of them (cuSOLVER), and with the algorithm for all GPUs on one GPU.
  eigen() { # 300
    local base=(--routine syevd --backend native --ranks "$ranks") failed=0
    local all=("${base[@]}" --eigensolver all) one=("${base[@]}" --eigensolver one)
    local complex='--dtype complex128' single='--dtype float32' values=--no-vectors
    bench "${all[@]}" $(repeats 3) + $(n 2048 4096 6144 8192 16384 32768) \
      + $values $(n 2048 4096 8192 16384 32768) + $single $(n 8192 16384 32768) \
      + $complex $(n 2048 4096 8192 16384) || failed=1
    bench "${one[@]}" $(repeats 3) + $(n 2048 4096 6144 8192 16384) \
      + $values $(n 2048 4096 8192) + $single $(n 8192) + $complex $(n 2048 4096 8192) || failed=1
    bench "${all[@]}" --ranks 1 $(repeats 2) + $(n 4096 8192 16384) || failed=1
    return $failed
  }
  eigen_large() { # 90
    local all=(--routine syevd --backend native --ranks "$ranks" --eigensolver all)
    bench "${all[@]}" $(repeats 0) + --dtype complex128 $(n 32768) + $(n 65536) \
      + --no-vectors $(n 65536)
  }
  eigen_largest() { # 120
    bench --routine syevd --backend native --ranks "$ranks" --eigensolver all --no-vectors \
      $(repeats 0) + $(n 131072)
  }
  # 64 eigenproblems; each GPU solves its share. Four must have at least 3.5 times the speed of one.
  batch() { # not estimated
    local least=()
    [ "$ranks" != 4 ] || least=(--least 3.5)
    timeout --foreground 590 "$python" benchmarks/batch.py --platform "${PLATFORM:-gpu}" \
      --ranks 1 2 "$ranks" $(n 2048) "${least[@]}" --out "$out"
  }
  # Value and gradient of a Gaussian process, compared with potrs and potri.
  gradient() { # not estimated
    local most=()
    [ "$ranks" != 4 ] || [ "$scale" != 1 ] || most=(--most 1.25)
    program gradient $(n 8192 16384 32768) $(repeats 5) "${most[@]}"
  }
  # Products of bfloat16 parts compared with TF32 and plain ones, also on matrices for which they
  # lose accuracy.
  lower=(--precision highest default tf32 BF16_BF16_F32_X3 BF16_BF16_F32_X6)
  precisions() { # not estimated
    bench --ranks "$ranks" --backend native --compare $(repeats 2) "${lower[@]}" \
      + --dtype float32 $(n 16384 32768 65536 131072) + --dtype complex64 $(n 32768) \
      + --dtype float32 --routine potri $(n 32768 65536)
  }
  precisions_hard() { # not estimated
    bench --ranks "$ranks" --backend native $(repeats 1) "${lower[@]}" \
      --matrix dominant moderate ill graded $(n 8192 32768) + --dtype float32 complex64
  }
  precision_errors() { # not estimated
    program precision_errors $(n 16384 32768) && program precision_errors $(n 16384) --dtype complex64
  }
  # Solutions from factors in lower precision, by condition number.
  modes=(--refine tf32 F16_F16_F32_X3 BF16_BF16_F32_X3 float32)
  refine() { # not estimated
    program refine $(n 16384 65536) $(repeats 1) "${modes[@]}"
  }
  refine_general() { # not estimated
    program refine --routine gesv $(n 16384 65536) $(repeats 1) \
      --refine tf32 BF16_BF16_F32_X3 float32 --condition 1e2 1e4 1e6 1e8
  }
  # On two GPUs the matrix takes half of the memory, and the factor in lower precision a quarter.
  refine_large() { # not estimated
    program refine $(n 131072) $(repeats 1) "${modes[@]:0:3}" --condition 1e2 1e4 1e6 1e10
  }
  # With the engine on all GPUs, compared with JAX's solver on one.
  eigen_accuracy() { # not estimated
    program eigen_accuracy $(n 1000 3001)
  }
  # Matrices that are difficult for accuracy.
  hard() { # 50
    bench --ranks "$ranks" --backend native $(repeats 1) --matrix ill graded $(n 32768) \
      + --routine potrs potri + --routine potrs --dtype float32
  }
}

parts=("$@")
[ $# -gt 0 ] || parts=(table inverse library small one dtypes nrhs kept tiles hard syevd syevd_large)
failed=0
for part in "${parts[@]}"; do
  start=$SECONDS
  echo "== $part"
  "$part" </dev/null || failed=$((failed + 1))
  echo "== $part: $((SECONDS - start)) s"
done
[ $failed -eq 0 ]
