#!/usr/bin/env bash
# Every check that needs no GPU, each step with a time limit; goes on after a failure and ends
# with what a failed step said of its errors and one line a step.
#
#   ci/cpu.sh [all | STEP ...]     what CI runs, or all steps, or those named: tests, lint, ...
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

bazel() { timeout 1800 ./tools/bazel "$1" --config=ci "${@:2}"; }

# The sanitizers are the host compiler's; all else brings its own.
host_gcc() {
  command -v g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++; }
}

tests() { bazel test //tests:all; }
# The C++ tests that are slow to build or to run, too: CUDA kernels on the host, several processes.
cc() { bazel test //tests/cc; }
quickstart() { bazel run //examples:quickstart; }
# The other examples at the size of a laptop, one on each core, and those of their tests that take
# long. EXAMPLES=core has one run of each.
examples() {
  local runs=(gaussian_process minsr soap 'muon -- --width 32' random_field scattering
    principal_components tall_fit)
  [ "${EXAMPLES:-all}" = core ] || runs+=('gaussian_process -- --n 500 --refine auto'
    'random_field -- --fft_bench 128' 'scattering -- --scene kite')
  bazel test //tests/examples:all && printf '%s\n' "${runs[@]}" |
    xargs -d '\n' -P "$(nproc)" -I{} bash -c '
    said=$(timeout 600 ./tools/bazel run --config=ci //examples:{} 2>&1)
    code=$?
    printf "%s\n" "$said"
    exit $code'
}
# That it would find something, too, that every fault of the step mutants fits the sources, that
# what pages name is there, and that their tables are those of the records; and what starts Bazel
# and pytest.
lint() {
  local python
  bazel test //tests:lint_test //tests:bazel_test //tests:pip_backend_test \
    //tests:pytest_main_test && bazel run //tools:lint &&
    python=$(tools/find_python.sh 3.12 | sed -n 1p) &&
    "$python" tests/mutants/run.py --check && "$python" tests/names.py &&
    "$python" docs/tables.py --check
}
# The docs site, its links, and the code blocks of README and of the how-to pages.
docs() { bazel test //docs:all; }
commands() { timeout 900 ci/compile_commands.sh; }
# What type checkers say of the package and of its users' code with the JAX for Python 3.11, whose
# stubs are older, with the newest, and of users' code with the oldest.
types() { bazel test //tests/typing:all && bazel run //tools:typecheck; }
types312() { bazel run --config=py312 //tools:typecheck; }
types311() {
  timeout 1800 ci/installed_wheels.sh 3.11 tests/typing/check.py jax==0.6.2 mypy basedpyright
}
# What the benchmarks compute with, and the benchmarks themselves, in small.
benchmarks() { bazel test //tests/benchmarks:all; }
asan() { host_gcc && bazel test --config=asan //tests/cc; }
tsan() { host_gcc && bazel test --config=tsan //tests/cc; }
# The CUDA wheels: what they hold, and that NVIDIA's libraries have all that they ask for.
cuda() { bazel test //tests/wheels:cuda //third_party/cuda:cuda_test; }
# The plugin for CUDA 13, with kernels for Hopper and PTX alone: that it compiles, and that NVIDIA's
# libraries have what it opens. The steps cuda and wheels compile the kernels for all GPUs.
cuda13() {
  bazel test --//third_party/cuda:archs=sm_90a,compute_90 \
    //tests/wheels:symbols_cuda13_test //third_party/cuda:axpy_cu13_test
}
# That XLA compiles for several GPUs what these run; five minutes.
topologies() { timeout 1800 ci/topologies.sh; }
# All that is released, for all Pythons; GPU machines take it from dist/.
wheels() { timeout 1800 ci/wheels.sh dist; }
# That an index takes them, with their licences, and that they are what their tags claim.
release() { timeout 600 ci/check_wheels.sh dist; }
# The wheels for aarch64: what they hold, and that NVIDIA's libraries for it have all they ask for.
aarch64() {
  bazel test --config=aarch64 //tests/wheels:contents_test //tests/wheels:contents_cuda_test &&
    bazel test //tests/wheels:symbols_aarch64_test
}
# The CPU one of these, run. Five minutes, so only where it is named.
qemu() { timeout 1800 ci/aarch64.sh; }
workspace() { timeout 1800 ci/same_bytes.sh; }
# The oldest and the newest JAX that we support, and one between; one plugin serves them all.
py311() { timeout 1800 ci/installed_wheels.sh 3.11 tests/python jax==0.6.2; }
py312() { timeout 1800 ci/installed_wheels.sh 3.12 tests/python jax==0.11.2; }
py313() { PAGES='README or start' timeout 1800 ci/installed_wheels.sh 3.13 tests/python jax; }
# On a Python that may have to come from Debian's packages; with all pages on the newest JAX.
py314() { PAGES=md timeout 1800 ci/installed_wheels.sh 3.14 tests/python jax optax; }
# As JAX's own tests run and lineax's: no promotion of dtypes or of ranks, no tracers that leak.
strict() {
  JAXMG_TEST_STRICT=1 PYTEST_ADDOPTS="-m 'not breadth and not slow'" \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/python jax==0.11.2
}
# Ranks in several processes: tests/python in two and in four, and what happens when one is lost.
# PROCESSES=core leaves out of tests/python what each process does by itself.
processes() {
  JAXMG_TEST_PROCESSES=${PROCESSES:-all} \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/processes/run.py jax==0.11.2
}
# What who is not of a job can try, as another user where this is root, and what its own processes may
# send that can't be right; well within a minute, to compile aside. The step processes has the rest.
attacks() {
  [ "$(id -u)" = 0 ] || echo "not root: nothing is tried as another user of the host"
  bazel test //tests/cc:hmac_test //tests/cc:strangers_test //tests/cc:wrong_frames_test \
    //tests/processes:attacks_test
}
# The two generations of NetKet, each with a JAX that it imports on.
netket322() { timeout 1800 ci/installed_wheels.sh 3.12 tests/netket/run.py jax==0.10.2 netket==3.22.4; }
netket323() { timeout 1800 ci/installed_wheels.sh 3.12 tests/netket/run.py jax==0.11.2 netket==3.23.0; }
# The solver for lineax, which is an extra; and factors in checkpoints of orbax.
lineax() {
  timeout 1800 ci/installed_wheels.sh 3.12 tests/extras jax==0.11.2 lineax orbax-checkpoint
}
# Every allocation and thread start of a call fails once. FAULTS_OUT is a file for a record of it.
faults() {
  bazel build //tests/faults:failing.so &&
    FAILING_SO=$PWD/$(bazel cquery --output=files //tests/faults:failing.so) \
      FAULTS_OUT=${FAULTS_OUT:+$(realpath -m "$FAULTS_OUT")} \
      timeout 1800 ci/installed_wheels.sh 3.12 tests/faults/inject.py jax==0.11.2
}
# Batches and derivatives on random meshes, for FUZZ_SECONDS.
fuzz() {
  FUZZ_SECONDS=${FUZZ_SECONDS:-1200} \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/fuzz/transformations.py jax==0.11.2
}
# Functions at random scales, for SCALES_SECONDS.
scales() {
  SCALES_SECONDS=${SCALES_SECONDS:-1200} \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/fuzz/scales.py jax==0.11.2
}
# Each of a set of faults in the code is found by a test. Half an hour, so only where it is named.
# MUTANTS_OUT is a file for a record of it.
mutants() { host_gcc && timeout 3600 ci/mutants.sh ${MUTANTS_OUT:+--out "$MUTANTS_OUT"}; }
# Processes that end with calls under way, EXITS of them.
exits() {
  bazel test //tests/python:exit_test --test_env=JAXMG_TEST_EXITS="${EXITS:-50}" --test_timeout=900
}

# Steps that follow each other mostly build for the same Python.
default=(tests quickstart cc attacks examples exits benchmarks lint docs cuda13 py313 processes types
  py311)
# What GitHub runs beside these, and `ci/cpu.sh` where it is named.
also=(asan tsan faults fuzz scales strict cuda netket322 netket323 lineax types311 types312 workspace commands
  topologies aarch64 wheels release py312 py314)
# CI's own run, which has half an hour, leaves to GitHub's jobs the tests that are marked `breadth` or
# `slow`, most of what `processes` repeats, and second runs of examples; it has fewer processes end.
# Those marked `extended`, which `tests` leaves out, run in `py313` alone, and those that `repeated`
# marks in `tests` alone.
declare -A chosen
case ${1:-} in
  '')
    steps=("${default[@]}")
    EXITS=${EXITS:-15}
    PROCESSES=${PROCESSES:-core}
    EXAMPLES=${EXAMPLES:-core}
    chosen[py313]='not repeated and not breadth and not slow'
    for step in py311 processes; do chosen[$step]="not extended and ${chosen[py313]}"; done
    ;;
  all) steps=("${default[@]}" "${also[@]}") ;;
  *) steps=("$@") ;;
esac

# Whoever sees only the end of a long log finds the reason there.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
reasons() {
  echo "=== $1 failed; of what it said:"
  grep -E 'FAILED|ERROR|Error|error:' "$log" | cut -c -300 | head -n 40
  echo ...
  tail -n 20 "$log" | cut -c -300
}

summary='' said='' passed=0 failed=0 skipped=0
for step in "${steps[@]}"; do
  echo "=== $step"
  start=$SECONDS options=
  [ -z "${chosen[$step]:-}" ] || options="-m '${chosen[$step]}'"
  PYTEST_ADDOPTS=$options "$step" </dev/null 2>&1 | tee "$log"
  case ${PIPESTATUS[0]} in
    0) result=passed passed=$((passed + 1)) ;;
    77) result=skipped skipped=$((skipped + 1)) ;;
    *) result=FAILED failed=$((failed + 1)) said+=$(reasons "$step")$'\n' ;;
  esac
  summary+=$(printf '%-12s %-8s %5d s' "$step" "$result" $((SECONDS - start)))$'\n'
done

printf '\n%s\n%s\n%d passed, %d failed, %d skipped, %d s\n' \
  "$said" "$summary" $passed $failed $skipped $SECONDS
[ $failed -eq 0 ]
