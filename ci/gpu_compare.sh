#!/usr/bin/env bash
# Two versions of jaxmg on one machine with GPUs: whether they compute the same to the bit, and which
# is faster. Under four minutes on four H200.
#
#   ci/gpu_compare.sh OLD_WHEELS NEW_WHEELS RESULTS [STEP ...]     digests and times, or those named
#
# `digests` prints those of both versions' results (benchmarks/digests.py) and what is not the same.
# `times` measures by turns, old, new, old, new, ..., each turn a new process, and ends with a table
# (benchmarks/versions.py). `small` does the same for what takes a millisecond and differs by a tenth
# from process to process: many of them. All use the programs of this checkout, and leave their files
# in RESULTS.
#
# Environment: PYTHON, another one than python3, with JAX for CUDA, and absl-py where NEW_WHEELS
# doesn't have it; ROUNDS, turns of each version, 2 unless given (`small`: 8); RANKS, 4 unless given;
# PLATFORM=cpu to try it without GPUs, with orders 16 times less.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
old=$(realpath "${1:?a folder of wheels}") || exit
new=$(realpath "${2:?another folder of wheels}") || exit
results=$(realpath -m "${3:?a folder for results}")
shift 3
python=${PYTHON:-python3} ranks=${RANKS:-4} platform=${PLATFORM:-gpu}
scale=1 plugin='cuda*'
[ "$platform" = gpu ] || { scale=16 && plugin=cpu; }
mkdir -p "$results"
scratch=$(mktemp -d) || exit
trap 'rm -rf "$scratch"' EXIT

for version in old new; do
  PYTHON=$python FOR_TESTS=$new \
    ci/gpu_install.sh "${!version}" "$scratch/$version" "$plugin" || exit
done

# VERSION PROGRAM ...: a program of this checkout with a version. Compiled programs are kept, but the
# versions share none.
with() {
  PYTHONPATH=$scratch/$1 JAX_COMPILATION_CACHE_DIR=$scratch/cache/$1 \
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
    timeout --foreground 300 "$python" "benchmarks/$2" --platform "$platform" "${@:3}"
}

# Nothing is timed, so all run at once, and none may take all memory at its start.
digests() {
  local parts=3 part version jobs=() failed=0
  [ "$platform" = gpu ] || parts=1
  for version in old new; do
    for part in $(seq $parts); do
      XLA_PYTHON_CLIENT_PREALLOCATE=false with "$version" digests.py --share "$part/$parts" \
        --out "$scratch/$version.$part" &
      jobs+=($!)
    done
  done
  for part in "${jobs[@]}"; do wait "$part" || failed=1; done
  for version in old new; do
    cat "$scratch/$version".[1-9] >"$results/digests-$version.jsonl" || failed=1
  done
  "$python" benchmarks/digests.py --compare "$results"/digests-{old,new}.jsonl || failed=1
  return $failed
}

n() { printf -- '--n' && for size in "$@"; do printf ' %d' $((size / scale)); done; }

# VERSION FILE OPTIONS ...: records of run.py.
measure() {
  XLA_PYTHON_CLIENT_MEM_FRACTION=0.93 with "$1" run.py --shared --no-gemm --donate --limit 120 \
    --ranks "$ranks" --backend native --out "$2" "${@:3}"
}
# Many runs of what takes milliseconds; of what takes half a second few.
# shellcheck disable=SC2046  # n prints several words
turn_times() {
  measure "$@" + $(n 512 1024 4096) --repeats 25 + $(n 16384) --repeats 9 \
    + $(n 65536) --repeats 3 + --routine potri $(n 32768) --repeats 5
}
# shellcheck disable=SC2046
turn_small() { measure "$@" + $(n 512 1024) --repeats 50; }

# STEP ROUNDS: each version's turns of that step, and their table.
by_turns() {
  local round version failed=0
  rm -f "$results/$1"-{old,new}.jsonl
  for round in $(seq "$2"); do
    for version in old new; do
      echo "== round $round, $version"
      "turn_$1" $version "$results/$1-$version.jsonl" || failed=1
    done
  done
  "$python" benchmarks/versions.py "$results/$1"-{old,new}.jsonl || failed=1
  return $failed
}
times() { by_turns times "${ROUNDS:-2}"; }
small() { by_turns small "${ROUNDS:-8}"; }

steps=("$@") failed=0
[ $# -gt 0 ] || steps=(digests times)
for step in "${steps[@]}"; do
  start=$SECONDS
  "$step" </dev/null || failed=1
  echo "== $step: $((SECONDS - start)) s"
done
exit $failed
