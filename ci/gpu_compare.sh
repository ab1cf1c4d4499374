#!/usr/bin/env bash
# Compares two versions of jaxmg on one machine with GPUs: whether their results agree to the bit,
# and which version is faster. Takes less than four minutes on four H200.
#
#   ci/gpu_compare.sh OLD_WHEELS NEW_WHEELS RESULTS [STEP ...]     default: digests and times
#
# `digests` prints digests of both versions' results (benchmarks/digests.py) and the differences.
# `times` alternates between the versions, old, new, old, new, ..., with a new process for each
# turn, and ends with a table (benchmarks/versions.py). `small` does the same, in many processes,
# for calls of about a millisecond, whose times differ by a tenth from process to process. All steps
# use the programs of this checkout and write their files to RESULTS.
#
# Environment: PYTHON, which replaces python3 and needs JAX for CUDA, and absl-py unless NEW_WHEELS
# has it; ROUNDS, turns of each version, default 2 (`small`: 8); RANKS, default 4; PLATFORM=cpu, to
# test the script without GPUs, with orders 16 times smaller.
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

# VERSION PROGRAM ...: runs a program of this checkout with a version. Each version has its own
# cache of compiled programs.
with() {
  PYTHONPATH=$scratch/$1 JAX_COMPILATION_CACHE_DIR=$scratch/cache/$1 \
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
    timeout --foreground 300 "$python" "benchmarks/$2" --platform "$platform" "${@:3}"
}

# Times don't matter here, so all processes run at once. None may allocate all memory at its start.
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

# VERSION FILE OPTIONS ...: appends records of run.py.
measure() {
  XLA_PYTHON_CLIENT_MEM_FRACTION=0.93 with "$1" run.py --shared --no-gemm --donate --limit 120 \
    --ranks "$ranks" --backend native --out "$2" "${@:3}"
}
# Many runs for calls of milliseconds, few for calls of half a second.
# shellcheck disable=SC2046  # n prints several words
turn_times() {
  measure "$@" + $(n 512 1024 4096) --repeats 25 + $(n 16384) --repeats 9 \
    + $(n 65536) --repeats 3 + --routine potri $(n 32768) --repeats 5
}
# shellcheck disable=SC2046
turn_small() { measure "$@" + $(n 512 1024) --repeats 50; }

# STEP ROUNDS: runs each version's turns of the step, and prints their table.
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
