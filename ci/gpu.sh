#!/usr/bin/env bash
# Every check that needs GPUs, from wheels, on a machine whose Python has JAX for CUDA, pytest and
# hypothesis. Goes on after a failure and ends with one line a step; logs and records go to RESULTS.
#
#   ci/gpu.sh WHEELS RESULTS [STEP ...]      all steps, or those named
#
# WHEELS is a folder that ci/wheels.sh filled; wheels for other Pythons may be in it. PYTHON names
# another one than python3, and FIRST_GPU=2 keeps the steps that need two GPUs or fewer off the first
# two, so that others can run there meanwhile. All steps take about 17 minutes on four H200.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
wheels=$(realpath "$1") results=$(realpath -m "$2")
shift 2
python=${PYTHON:-python3}
mkdir -p "$results"

# The tests leave the checkout, where its own jaxmg would be imported.
site=$(mktemp -d) || exit
trap 'rm -rf "$site"' EXIT
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])') || exit
"$python" -m pip install -q --no-index --no-deps --target "$site" \
  "$wheels"/jaxmg-*.whl "$wheels"/jaxmg_plugin_cuda*-"$tag"-*.whl || exit
cp -r tests/python tests/gpu benchmarks "$site" || exit
cd "$site" || exit
export PYTHONPATH=$site:$site/benchmarks
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
  XLA_PYTHON_CLIENT_PREALLOCATE=false on "$1" timeout 300 \
    "$python" -m pytest -q -p no:cacheprovider ${PYTEST_WORKERS:+-n "$PYTEST_WORKERS"} \
    "$site/python"
}
program() { timeout 550 "$python" -X faulthandler "$site/gpu/$1" "${@:2}"; }
check() { program check.py "$@"; }

crowd() { on 2 timeout 120 "$python" "$site/gpu/crowd.py"; }

# On N GPUs. Every allocation is one of CUDA's, so that a read beyond its end is seen.
sanitize() {
  XLA_PYTHON_CLIENT_ALLOCATOR=platform on "$1" timeout 550 compute-sanitizer --error-exitcode 9 \
    "${@:2}" "$python" "$site/gpu/check.py" small
}

python1() { tests 1; }
python2() { tests 2; }
python4() { tests 4; }
python8() { tests 8; }
table() { check table wide; }
programs() { check programs threads failures; }
accuracy() { program hard.py accuracy; }
repeat() { program hard.py repeat; }
loop() { check loop; }
memory() { timeout 300 "$python" "$site/gpu/memory.py"; }
link() { timeout 120 "$python" "$site/gpu/link.py"; }
fill() { timeout 400 "$python" "$site/gpu/fill.py"; }
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
  steps=(python1 python2 python4 python8 programs crowd table loop accuracy repeat memory link fill
    memcheck racecheck initcheck)

summary='' failed=0
for step in "${steps[@]}"; do
  start=$SECONDS
  "$step" </dev/null >"$results/$step.log" 2>&1
  case $? in
    0) result=passed ;;
    77) result=skipped ;;
    *) result=FAILED failed=$((failed + 1)) ;;
  esac
  grep -aE '^FAIL|^FAILED|passed|seconds|growth|failures$|ERROR SUMMARY|RACECHECK SUMMARY' \
    "$results/$step.log" | cut -c1-200 | tail -20
  seconds=$((SECONDS - start))
  # Records, for benchmarks/results.
  grep -a '^{"' "$results/$step.log" >"$results/$step.jsonl" || rm "$results/$step.jsonl"
  summary+=$(printf '%-12s %-8s %5d s' "$step" "$result" $seconds)$'\n'
  "$python" "$site/gpu/outcome.py" "$step" "$result" $seconds "$results/$step.log" \
    >>"$results/checks.jsonl"
done
printf '\n%s\n' "$summary" | tee "$results/summary.txt"
[ $failed -eq 0 ]
