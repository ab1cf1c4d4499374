#!/usr/bin/env bash
# Runs every check that needs GPUs, from wheels, on a machine whose Python has JAX for CUDA, pytest,
# hypothesis, and also absl-py unless WHEELS has it. Continues after a failure and ends with one
# line per step. Logs and records go to RESULTS.
#
#   ci/gpu.sh WHEELS RESULTS [STEP ...]      default: all steps
#
# python2:3/8 is the third of eight parts of the step python2, which may take longer than its limit
# as a whole; the last lines name the parts that did not run. MARKS selects tests, as pytest's -m.
# PYTEST_WORKERS=24 runs 24 tests at a time, with pytest-xdist. WHEELS is a folder that ci/wheels.sh
# filled; it may have wheels for other Pythons. PYTHON replaces python3. FIRST_GPU=2 keeps the steps
# that need at most two GPUs off the first two, so that other programs can run there. All steps take
# about 17 minutes on four H200. CUDA12 is for the step `cuda12`: a folder that `ci/cuda12.sh pack`
# filled, with one release or both.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
checkout=$PWD
wheels=$(realpath "$1") results=$(realpath -m "$2")
shift 2
python=${PYTHON:-python3}
mkdir -p "$results"
[ -z "${CUDA12:-}" ] || CUDA12=$(realpath "$CUDA12") || exit

# The tests run outside of the checkout, because Python would import the checkout's jaxmg.
site=$(mktemp -d) || exit
trap 'rm -rf "$site"' EXIT
PYTHON=$python ci/gpu_install.sh "$wheels" "$site" || exit
mkdir "$site/tests" && cp -r tests/python tests/gpu tests/pytest_main.py "$site/tests" && cp -r benchmarks "$site" || exit
cd "$site" || exit
export PYTHONPATH=$site:$site/benchmarks:$site/tests
export JAX_PLATFORMS=cuda JAXMG_TEST_PLATFORM=cuda PYTHONUNBUFFERED=1
export JAXMG_RENDEZVOUS_TIMEOUT=60
count=$(nvidia-smi --list-gpus | wc -l) || exit

# Runs a command with N GPUs, from FIRST_GPU on.
first=${FIRST_GPU:-0}
on() {
  [ $((first + $1)) -le "$count" ] || return 77
  CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + $1 - 1))) "${@:2}"
}

# Several processes share the GPUs, so none may allocate all memory at its start.
tests() {
  XLA_PYTHON_CLIENT_PREALLOCATE=false on "$1" timeout 550 \
    "$python" -m pytest -q -p no:cacheprovider -p pytest_main ${MARKS:+-m "$MARKS"} \
    ${PYTEST_WORKERS:+-n "$PYTEST_WORKERS"} "$site/tests/python"
}
program() { timeout 550 "$python" -X faulthandler "$site/tests/gpu/$1" "${@:2}"; }
check() { program check.py "$@"; }

crowd() { on 2 timeout 120 "$python" "$site/tests/gpu/crowd.py"; }

# Runs on N GPUs. CUDA makes every allocation, so that the tool sees a read beyond its end. The tool
# does not attach to programs that XLA starts for compilation, because it then sometimes crashed.
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
# The most informative steps, in a separate Python for each release in the folder.
cuda12() {
  [ -n "${CUDA12:-}" ] || { echo "CUDA12 names no folder of ci/cuda12.sh" && return 77; }
  local first release home libraries failed=0
  for first in "$CUDA12"/12.*.tar.xz.00; do
    release=$(basename "$first" .tar.xz.00)
    home=$site/cuda$release
    PYTHON=$python "$checkout/ci/cuda12.sh" python "$CUDA12" "$release" "$home" || return
    libraries=$(printf '%s:' "$home"/lib/python*/site-packages/nvidia/*/lib)
    # JAX checks for libraries that are missing here, such as cuFFT, but nothing here uses them.
    env -u PYTHONPATH PYTHON="$home/bin/python" JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 \
      LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" "$checkout/ci/gpu.sh" "$wheels" \
      "$results/$release" report python4 figures || failed=1
    grep -q "'libcublas.so.12': '$home/" "$results/$release/report.log" || failed=1
    rm -r "$home"
  done
  return $failed
}
# API errors don't count: "peer access is already enabled" is one, if XLA was first.
memcheck() { sanitize 2 --tool memcheck --report-api-errors no; }
# Covers only our kernels, because NVIDIA's synchronize in ways that this tool doesn't know.
racecheck() { sanitize 2 --tool racecheck --kernel-name kernel_substring=jaxmg_; }
# The tool must see every kernel that writes, but only reads by our kernels count. Uses one GPU: if
# several work at once, the tool loses track of the written memory (docs/cuda.md).
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
  # Extracts the records for benchmarks/results.
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
