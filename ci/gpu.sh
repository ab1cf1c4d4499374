#!/usr/bin/env bash
# Every check that needs GPUs, from wheels, on a machine whose Python has JAX for CUDA, pytest,
# hypothesis, and absl-py where WHEELS doesn't have it. Goes on after a failure and ends with one line
# a step; logs and records go to RESULTS.
#
#   ci/gpu.sh WHEELS RESULTS [STEP ...]      all steps, or those named
#
# python2:3/8 is the third of eight parts of the step python2, which as a whole may take longer than its
# limit; the last lines name the parts that were not run. MARKS chooses tests, as pytest's -m has it;
# PYTEST_WORKERS=24 runs as many at a time, by pytest-xdist.
# WHEELS is a folder that ci/wheels.sh filled; wheels for other Pythons may be in it. PYTHON names
# another one than python3, and FIRST_GPU=2 keeps the steps that need two GPUs or fewer off the first
# two, so that others can run there meanwhile. All steps take about 17 minutes on four H200.
# CUDA12 is for the step `cuda12`: a folder that `ci/cuda12.sh pack` filled, with one release or both.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
checkout=$PWD
wheels=$(realpath "$1") results=$(realpath -m "$2")
shift 2
python=${PYTHON:-python3}
mkdir -p "$results"
[ -z "${CUDA12:-}" ] || CUDA12=$(realpath "$CUDA12") || exit

# The tests leave the checkout, where its own jaxmg would be imported.
site=$(mktemp -d) || exit
trap 'rm -rf "$site"' EXIT
PYTHON=$python ci/gpu_install.sh "$wheels" "$site" || exit
mkdir "$site/tests" && cp -r tests/python tests/gpu tests/pytest_main.py "$site/tests" && cp -r benchmarks "$site" || exit
cd "$site" || exit
export PYTHONPATH=$site:$site/benchmarks:$site/tests
export JAX_PLATFORMS=cuda JAXMG_TEST_PLATFORM=cuda PYTHONUNBUFFERED=1
export JAXMG_RENDEZVOUS_TIMEOUT=60
count=$(nvidia-smi --list-gpus | wc -l) || exit

# N of the GPUs, from FIRST_GPU on.
first=${FIRST_GPU:-0}
on() {
  [ $((first + $1)) -le "$count" ] || return 77
  CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + $1 - 1))) "${@:2}"
}

# Several processes share the GPUs, so none may take all memory at its start.
tests() {
  XLA_PYTHON_CLIENT_PREALLOCATE=false on "$1" timeout 550 \
    "$python" -m pytest -q -p no:cacheprovider -p pytest_main ${MARKS:+-m "$MARKS"} \
    ${PYTEST_WORKERS:+-n "$PYTEST_WORKERS"} "$site/tests/python"
}
program() { timeout 550 "$python" -X faulthandler "$site/tests/gpu/$1" "${@:2}"; }
check() { program check.py "$@"; }

crowd() { on 2 timeout 120 "$python" "$site/tests/gpu/crowd.py"; }

# On N GPUs. Every allocation is one of CUDA's, so that a read beyond its end is seen. The programs
# that XLA starts to compile are left alone: attached to them too, the tool crashed now and then.
sanitize() {
  XLA_PYTHON_CLIENT_ALLOCATOR=platform on "$1" timeout 550 compute-sanitizer --error-exitcode 9 \
    --target-processes application-only "${@:2}" "$python" "$site/tests/gpu/check.py" small
}

python1() { tests 1; }
python2() { tests 2; }
python4() { tests 4; }
python8() { tests 8; }
report() { timeout 120 "$python" -m jaxmg; }
figures() { on 4 "$checkout/ci/gpu_bench.sh" "$results/gpu.jsonl" brief; }
table() { check table wide; }
programs() { check programs threads failures; }
accuracy() { program hard.py accuracy; }
repeat() { program hard.py repeat; }
loop() { check loop; }
memory() { timeout 300 "$python" "$site/tests/gpu/memory.py"; }
link() { timeout 120 "$python" "$site/tests/gpu/link.py"; }
fill() { timeout 400 "$python" "$site/tests/gpu/fill.py"; }
# The steps that say most, in a Python of its own for each release that is in the folder.
cuda12() {
  [ -n "${CUDA12:-}" ] || { echo "CUDA12 names no folder of ci/cuda12.sh" && return 77; }
  local first release home libraries failed=0
  for first in "$CUDA12"/12.*.tar.xz.00; do
    release=$(basename "$first" .tar.xz.00)
    home=$site/cuda$release
    PYTHON=$python "$checkout/ci/cuda12.sh" python "$CUDA12" "$release" "$home" || return
    libraries=$(printf '%s:' "$home"/lib/python*/site-packages/nvidia/*/lib)
    # What it lacks of what JAX checks, such as cuFFT, nothing here uses.
    env -u PYTHONPATH PYTHON="$home/bin/python" JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 \
      LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" "$checkout/ci/gpu.sh" "$wheels" \
      "$results/$release" report python4 figures || failed=1
    grep -q "'libcublas.so.12': '$home/" "$results/$release/report.log" || failed=1
    rm -r "$home"
  done
  return $failed
}
# An API error is no finding: "peer access is already enabled" is one, where XLA was first.
memcheck() { sanitize 2 --tool memcheck --report-api-errors no; }
# NVIDIA's own kernels synchronise in ways that this tool doesn't know.
racecheck() { sanitize 2 --tool racecheck --kernel-name kernel_substring=jaxmg_; }
# Needs to see every kernel that writes; what counts is what ours read. On one GPU: where several
# work at once the tool loses track of what has been written (docs/cuda.md).
initcheck() {
  sanitize 1 --tool initcheck --print-limit 100000
  local result=$?
  [ $result -ne 0 ] && [ $result -ne 77 ] || return $result
  grep -q '^0 failures' "$results/initcheck.log" &&
    ! grep -q 'in jaxmg_\|at jaxmg_' "$results/initcheck.log"
}

steps=("$@")
[ $# -gt 0 ] ||
  steps=(report python1 python2 python4 python8 programs crowd table loop accuracy repeat memory link fill
    cuda12 memcheck racecheck initcheck)

summary='' failed=0
declare -A parts
for step in "${steps[@]}"; do
  start=$SECONDS log=$results/${step//[:\/]/_}
  export TEST_SHARD_INDEX=0 TEST_TOTAL_SHARDS=1
  if [[ $step =~ ^(.*):([0-9]+)/([0-9]+)$ ]]; then
    TEST_SHARD_INDEX=$((BASH_REMATCH[2] - 1)) TEST_TOTAL_SHARDS=${BASH_REMATCH[3]}
    parts[${BASH_REMATCH[1]}/$TEST_TOTAL_SHARDS]+=" ${BASH_REMATCH[2]} "
  fi
  "${step%%:*}" </dev/null >"$log.log" 2>&1
  case $? in
    0) result=passed ;;
    77) result=skipped ;;
    *) result=FAILED failed=$((failed + 1)) ;;
  esac
  grep -aE '^FAIL|^FAILED|passed|seconds|growth|failures$|ERROR SUMMARY|RACECHECK SUMMARY' \
    "$log.log" | cut -c1-200 | tail -20
  seconds=$((SECONDS - start))
  # Records, for benchmarks/results.
  grep -a '^{"' "$log.log" >"$log.jsonl" || rm "$log.jsonl"
  summary+=$(printf '%-14s %-8s %5d s' "$step" "$result" $seconds)$'\n'
  "$python" "$site/tests/gpu/outcome.py" ci/gpu.sh "$step" "$result" $seconds "$log.log" \
    >>"$results/checks.jsonl"
done
for name in "${!parts[@]}"; do
  for ((i = 1; i <= ${name##*/}; ++i)); do
    [[ ${parts[$name]} == *" $i "* ]] || summary+="${name%/*}:$i/${name##*/} not run"$'\n'
  done
done
printf '\n%s\n' "$summary" | tee "$results/summary.txt"
[ $failed -eq 0 ]
