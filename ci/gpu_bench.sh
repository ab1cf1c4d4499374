#!/usr/bin/env bash
# Measures what benchmarks/results/gpu.jsonl holds, on a machine whose Python has JAX for CUDA,
# absl-py and jaxmg. Appends each record to RESULTS_FILE as soon as it is there and prints a line for
# it; goes on where a case fails.
#
#   ci/gpu_bench.sh RESULTS_FILE [quick] [PART ...]      all parts but `eight` and `brief`, or those named
#
# `quick` divides every n by 16, to try the script. Each part is a process of its own and ends within
# 10 minutes; seconds on four H200, estimated from earlier runs, stand beside them below.
#
# Environment: WHEELS, a folder of wheels to install first (as for ci/gpu.sh); PYTHON, another one
# than python3; REPEATS, timed runs in place of each part's own number; TRACE, a folder for a
# timeline of one more run of each case; RANKS, 4 unless given; PLATFORM=cpu to try it without GPUs.
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

# JAX's solvers at the largest sizes need more than the part of the memory that it takes by itself.
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.93}

# Batches of options for run.py, separated by +; the first are for all.
bench() {
  timeout --foreground 590 "$python" benchmarks/run.py --platform "${PLATFORM:-gpu}" --shared \
    --warmup 0 --donate --limit 300 ${TRACE:+--trace "$TRACE"} --out "$out" "$@"
}
# Another program of benchmarks/, with options of its own.
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
  # The table of the solvers: what every change of the engine is held against.
  # JAX's own on one GPU is beside it where that fits; where it takes most of the memory, last.
  table() { # 120
    bench "${both[@]}" $(repeats 3) + --backend native cusolvermg jax $(n 16384 32768) \
      + $(n 131072) + --dtype float32 --precision default tf32 $(n 131072) \
      + --backend native cusolvermg jax $(n 65536)
  }
  inverse() { # 70
    bench --backend native jax --compare --ranks "$ranks" --routine potri \
      + $(n 16384 32768) $(repeats 3) + $(n 65536) $(repeats 1)
  }
  # How much of a call of cuSOLVERMg is the library's own time.
  library() { # 75
    TRACE=${TRACE:-$scratch/trace} bench --backend cusolvermg --ranks "$ranks" $(repeats 3) \
      + $(n 16384 32768 65536 131072) + --routine syevd $(n 16384)
  }
  # What can't fill the GPUs: here each tile costs more time than its operations.
  small() { # 30
    bench "${both[@]}" $(repeats 9) + --backend native cusolvermg jax \
      $(n 1024 2048 4096 8192 12288) + --routine potri --backend native jax $(n 2048 4096 8192)
  }
  # One GPU, beside JAX's own where that fits.
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
  # Orders that nothing divides, on one GPU: float32 by default and by plain products, and JAX.
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
  # General matrices on one GPU, beside JAX where that fits, and kept factors.
  general() { # 170
    local base=(--ranks 1 --no-gemm)
    bench "${base[@]}" $(repeats 3) --routine gesv + --backend native jax $(n 8192 16384 32768) \
      + --backend native jax --dtype complex128 $(n 32768) \
      + --backend native --dtype float32 $(n 65536) + --routine getri $(n 32768) \
      && bench "${base[@]}" $(repeats 1) --routine gesv --backend native jax $(n 65536) \
      && timeout --foreground 120 "$python" benchmarks/kept.py --platform "${PLATFORM:-gpu}" \
        --ranks 1 --out "$out" --routine lu_solve $(n 65536)
  }
  # How many multiprocessors panels of LU have to themselves, and tiles below n = 12288. Prints what
  # each line is of; records don't have it, so name another RESULTS_FILE.
  panels() { # 240
    local case orders failed=0
    for case in "0 12288 0" "0 12288 16" "0 4096 16" "16 4096 16" "32 4096 16" "48 4096 16" \
      "64 4096 16"; do
      orders="8192 16384 32768" && [ "${case%% *}" != 32 ] || orders+=" 65536"
      # shellcheck disable=SC2086  # numbers
      set -- $case $orders
      echo "multiprocessors of panels $1, a single tile up to n = $2, right-hand sides at once $3"
      JAXMG_PANEL_MULTIPROCESSORS=$1 JAXMG_WHOLE_LU_ORDER=$2 JAXMG_FEW_RIGHT_HAND_SIDES=$3 \
        bench --ranks 1 --no-gemm $(repeats 3) --routine gesv --backend native $(n "${@:4}") \
        || failed=1
    done
    echo "multiprocessors of panels 32, tiles of 512"
    JAXMG_PANEL_MULTIPROCESSORS=32 JAXMG_WHOLE_LU_ORDER=4096 JAXMG_FEW_RIGHT_HAND_SIDES=16 \
      bench --ranks 1 --no-gemm $(repeats 3) --routine gesv --backend native --T_A 512 \
      $(n 8192 16384 32768) || failed=1
    return $failed
  }
  # QR, SVD and least squares beside JAX where that is quick enough; s has shapes as n has orders.
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
    # By one rank, and as large ones.
    for small in 1024 0; do
      echo "SVD by one rank up to n = $small"
      "${one[@]}" --function svd svdvals --kind jaxmg --small $small \
        $(s 64x64 256x256 512x512 1000x1000) || failed=1
    done
    "${one[@]}" --dtype float32 --function r svd --kind jaxmg $(s 8192x8192 16384x16384) || failed=1
    return $failed
  }
  # Small ones, call by call.
  small_general() { # 40
    timeout --foreground 300 "$python" benchmarks/small.py --platform "${PLATFORM:-gpu}" --ranks 1 \
      --out "$out" --routine gesv getri --dtype float64 $(n 100 256 1000 2048 4096)
  }
  # Twice as many GPUs, where there are eight.
  eight() { # 70
    bench --ranks 8 --backend native --compare $(repeats 3) + --routine potri $(n 32768 65536) \
      + --backend native cusolvermg $(n 4096 8192 16384 32768 65536 131072)
  }
  # What shows another release of CUDA to be as fast: the step `figures` of ci/gpu.sh.
  brief() { # 40
    bench --backend native --compare --ranks "$ranks" $(repeats 3) \
      + --backend native cusolvermg $(n 16384 32768 65536) + --routine potri $(n 32768) \
      + --dtype float32 --precision tf32 $(n 32768)
  }
  # Many right-hand sides.
  nrhs() { # 60
    bench "${both[@]}" $(repeats 3) $(n 32768) + --nrhs 1 16 + --nrhs 256 4096
  }
  # With a factor that is kept: reading it bounds one right-hand side, products bound many.
  kept() { # 60
    local program=(timeout --foreground 300 "$python" benchmarks/kept.py
      --platform "${PLATFORM:-gpu}" --ranks "$ranks" --out "$out")
    "${program[@]}" $(n 16384 32768 131072) && "${program[@]}" $(n 65536) --nrhs 1 16 256
  }
  tiles() { # 110
    bench --ranks "$ranks" --backend native --compare $(repeats 2) \
      + --T_A 512 1024 2048 $(n 16384 32768 65536 131072)
  }
  # A single run of more than 20 seconds says as much as several.
  syevd() { # 190
    bench --routine syevd --backend native cusolvermg jax --ranks "$ranks" --compare \
      + $(n 16384) $(repeats 1) + $(n 32768) $(repeats 0) \
      + --dtype float32 complex128 $(n 16384) $(repeats 1)
  }
  # The native backend solves on one GPU, where this does not fit.
  syevd_large() { # 110
    bench --routine syevd --backend cusolvermg --ranks "$ranks" $(repeats 0) --limit 500 \
      + $(n 65536)
  }
  # By all GPUs, by one of them (cuSOLVER), and by the stages of all on one GPU alone.
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
  # 64 eigenproblems, each GPU its share of them: four are to have 3.5 times the speed of one.
  batch() { # not estimated
    local least=()
    [ "$ranks" != 4 ] || least=(--least 3.5)
    timeout --foreground 590 "$python" benchmarks/batch.py --platform "${PLATFORM:-gpu}" \
      --ranks 1 2 "$ranks" $(n 2048) "${least[@]}" --out "$out"
  }
  # A Gaussian process's value and gradient, beside potrs and potri.
  gradient() { # not estimated
    local most=()
    [ "$ranks" != 4 ] || [ "$scale" != 1 ] || most=(--most 1.25)
    program gradient $(n 8192 16384 32768) $(repeats 5) "${most[@]}"
  }
  # Products by bfloat16 parts beside TF32 and plain ones; and what is hard on their accuracy.
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
  # Solutions from factors in lower precision, by condition.
  modes=(--refine tf32 F16_F16_F32_X3 BF16_BF16_F32_X3 float32)
  refine() { # not estimated
    program refine $(n 16384 65536) $(repeats 1) "${modes[@]}"
  }
  refine_general() { # not estimated
    program refine --routine gesv $(n 16384 65536) $(repeats 1) \
      --refine tf32 BF16_BF16_F32_X3 float32 --condition 1e2 1e4 1e6 1e8
  }
  # On two GPUs the matrix is half of the memory, and the factor in lower precision a quarter.
  refine_large() { # not estimated
    program refine $(n 131072) $(repeats 1) "${modes[@]:0:3}" --condition 1e2 1e4 1e6 1e10
  }
  # By the engine of all GPUs, beside JAX's on one.
  eigen_accuracy() { # not estimated
    program eigen_accuracy $(n 1000 3001)
  }
  # What is hard on accuracy.
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
