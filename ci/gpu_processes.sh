#!/usr/bin/env bash
# Runs the checks that need GPUs in several processes, from wheels, on a machine as for ci/gpu.sh.
# Continues after a failure and ends with one line per step. Logs and records go to RESULTS.
#
#   ci/gpu_processes.sh WHEELS RESULTS [STEP ...]     default: all steps except those only by name
#
# suite: tests/python in one process per GPU, each of which sees all GPUs.
# own: the same for the solvers' tests only, where each process sees its own GPU.
# shared2, shared4, shared2_nccl, shared4_nccl (only by name): the tests of LU, or those that
# GENERAL names, in 2 or 4 processes that share one GPU, over memory and over NCCL.
# nccl: the solvers' tests over NCCL, as between hosts. sockets: the same over TCP. hosts: two
# processes in separate network namespaces, over NCCL's sockets.
# jobs: solves during other programs, replicas, a thousand calls.
# lost: processes that are killed and stopped. nccl_lost: the same over NCCL.
# mp (only by name): backend "cusolvermp".
# times: one process compared with several, in turns. nccl_times: shared memory compared with NCCL.
#
# Environment: PYTHON, which replaces python3; GPUS, their number, default all; MP, for `mp`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python3} wheels=$(realpath "$1") results=$(realpath -m "$2")
shift 2
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)} || exit
mkdir -p "$results"

# The tests run outside of the checkout, because Python would import the checkout's jaxmg.
site=$(mktemp -d) || exit
trap 'rm -rf "$site"' EXIT
PYTHON=$python ci/gpu_install.sh "$wheels" "$site" || exit
cp -r tests benchmarks "$site" || exit
cd "$site" || exit
export PYTHONPATH=$site
export JAX_PLATFORMS=cuda JAXMG_TEST_PLATFORM=cuda PYTHONUNBUFFERED=1
export JAXMG_RENDEZVOUS_TIMEOUT=60 XLA_PYTHON_CLIENT_PREALLOCATE=false

launch() { timeout "$1" "$python" -X faulthandler -m jaxmg.launch -n "$gpus" "${@:2}"; }
routines=(tests/python/*/{potrs,potri,syevd,factor,calls}_test.py)
# GENERAL names tests other than those of LU. MARKS selects among them, as pytest's -m.
general=()
for name in ${GENERAL:-gesv lu_factor}; do general+=(tests/python/*/"$name"_test.py); done

suite() { launch 500 tests/processes/suite.py tests/python; }
own() { launch 300 tests/processes/own_gpus.py tests/processes/suite.py "${routines[@]}"; }
shared() { # PROCESSES TRANSPORT
  JAXMG_TRANSPORT=$2 timeout "${SHARED_LIMIT:-300}" "$python" -X faulthandler -m jaxmg.launch -n "$1" \
    tests/processes/one_gpu.py tests/processes/suite.py ${MARKS:+-m "$MARKS"} "${general[@]}"
}
shared2() { shared 2 auto; }
shared4() { shared 4 auto; }
shared2_nccl() { shared 2 nccl; }
shared4_nccl() { shared 4 nccl; }
jobs() { launch 300 tests/gpu/jobs.py "${COUNT:-200}"; }
sockets() {
  export JAXMG_TRANSPORT=tcp
  local failed=0
  launch 300 tests/processes/suite.py "${routines[@]}" || failed=1
  launch 200 tests/gpu/jobs.py 20 || failed=1
  launch 200 benchmarks/processes.py --n 4096 --n 16384 --n 65536 --repeats 2 --label tcp || failed=1
  unset JAXMG_TRANSPORT
  return $failed
}
nccl() {
  local failed=0
  JAXMG_TRANSPORT=nccl launch 200 tests/processes/suite.py "${routines[@]}" || failed=1
  JAXMG_TRANSPORT=nccl launch 200 tests/gpu/jobs.py 20 || failed=1
  return $failed
}
nccl_times() (
  export XLA_PYTHON_CLIENT_PREALLOCATE=true XLA_PYTHON_CLIENT_MEM_FRACTION=0.8
  sizes=(--n 4096 --n 16384 --n 65536 --n 131072) failed=0
  launch 200 benchmarks/processes.py "${sizes[@]}" --repeats 2 --label all || failed=1
  JAXMG_TRANSPORT=nccl \
    launch 200 benchmarks/processes.py "${sizes[@]}" --repeats 2 --label nccl || failed=1
  exit $failed
)
nccl_lost() { JAXMG_TRANSPORT=nccl lost; }
# Backend "cusolvermp". MP is a folder with NVIDIA's libraries for it, laid out as in wheels and
# including NCCL, unless they are installed.
mp() (
  if [ -n "${MP:-}" ]; then
    export PYTHONPATH=$PYTHONPATH:$MP LD_PRELOAD=$MP/nvidia/nccl/lib/libnccl.so.2
  fi
  export PYTHONPATH=$site/tests/gpu:$site/benchmarks:$PYTHONPATH failed=0
  launch "${MP_LIMIT:-400}" tests/gpu/cusolvermp.py || failed=1
  export JAXMG_TEST_BACKEND=cusolvermp
  lost || failed=1
  launch 200 tests/gpu/jobs.py 5 || failed=1
  export XLA_PYTHON_CLIENT_PREALLOCATE=true XLA_PYTHON_CLIENT_MEM_FRACTION=0.8
  local backend
  for backend in native cusolvermp; do
    launch 100 benchmarks/processes.py --backend $backend --n 1024 --n 4096 --n 16384 --n 32768 \
      --n 65536 --repeats 3 --label mp || failed=1
    launch 100 benchmarks/processes.py --routine syevd --backend $backend --n 2048 --n 8192 \
      --n 16384 --repeats 1 --label mp || failed=1
  done
  exit $failed
)
hosts() { timeout 300 "$python" tests/gpu/hosts.py; }
lost() { timeout 500 "$python" tests/gpu/lost.py "$gpus" "${LOST_N:-65536}"; }

# One process, then several that see all GPUs, then several that see their own.
turns() {
  local failed=0
  timeout 250 "$python" benchmarks/processes.py --ranks "$gpus" --label one "$@" || failed=1
  launch 250 benchmarks/processes.py --label all "$@" || failed=1
  launch 250 tests/processes/own_gpus.py benchmarks/processes.py --label own "$@" || failed=1
  return $failed
}
times() {
  export XLA_PYTHON_CLIENT_PREALLOCATE=true XLA_PYTHON_CLIENT_MEM_FRACTION=0.8
  local round failed=0
  for round in $(seq "${ROUNDS:-2}"); do
    turns --n 512 --n 1024 --n 4096 --n 16384 --n 32768 --n 65536 || failed=1
  done
  turns --n 131072 --repeats 2 || failed=1
  turns --routine potri --n 32768 || failed=1
  return $failed
}

steps=("$@")
[ $# -gt 0 ] || steps=(suite own nccl sockets hosts jobs lost nccl_lost times nccl_times)
summary='' failed=0
for step in "${steps[@]}"; do
  start=$SECONDS
  if "$step" </dev/null >"$results/$step.log" 2>&1; then
    result=passed
  else
    result=FAILED failed=$((failed + 1))
  fi
  # Extracts the records for benchmarks/results. The launcher prefixes lines with the process's
  # number.
  sed -n 's/^\(\[0\] \)\?\({"\)/\2/p' "$results/$step.log" >"$results/$step.jsonl"
  grep -aE 'FAIL|passed|failed|failures$' "$results/$step.log" | cut -c1-200 | tail -20
  seconds=$((SECONDS - start))
  PYTHONPATH=$site:$site/benchmarks "$python" tests/gpu/outcome.py ci/gpu_processes.sh "$step" \
    "$result" $seconds "$results/$step.log" >>"$results/checks.jsonl"
  summary+=$(printf '%-12s %-8s %5d s' "$step" "$result" $seconds)$'\n'
done
printf '\n%s\n' "$summary" | tee "$results/summary.txt"
[ $failed -eq 0 ]
