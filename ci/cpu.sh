#!/usr/bin/env bash
# Runs every check that needs no GPU, each step with a time limit. Continues after a failure, and
# ends with the errors of failed steps and one line per step.
#
#   ci/cpu.sh [all | STEP ...]     default: the steps of CI; or all steps; or the named ones
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

bazel() { timeout 1800 ./tools/bazel "$1" --config=ci "${@:2}"; }

# The sanitizers use the host's compiler. Everything else brings its own.
host_gcc() {
  command -v g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++; }
}

tests() { bazel test //tests:all; }
# Includes the C++ tests that are slow to build or to run: CUDA kernels on the host, several
# processes.
cc() { bazel test //tests/cc; }
quickstart() { bazel run //examples:quickstart; }
# Runs the other examples at the size of a laptop, one on each core, and their slow tests.
# EXAMPLES=core has one run of each.
examples() {
  local runs=(gaussian_process host_gaussian_process minsr soap 'muon -- --width 32'
    random_field scattering principal_components tall_fit)
  [ "${EXAMPLES:-all}" = core ] || runs+=('gaussian_process -- --n 500 --refine auto'
    'random_field -- --fft_bench 128' 'scattering -- --scene kite')
  bazel test //tests/examples:all && printf '%s\n' "${runs[@]}" |
    xargs -d '\n' -P "$(nproc)" -I{} bash -c '
    said=$(timeout 600 ./tools/bazel run --config=ci //examples:{} 2>&1)
    code=$?
    printf "%s\n" "$said"
    exit $code'
}
# Also tests the linter itself, and the scripts that start Bazel and pytest. Checks that every fault
# of the step mutants applies to the sources, that names in pages exist, and that their tables equal
# the records.
lint() {
  local python
  bazel test //tests:lint_test //tests:bazel_test //tests:pip_backend_test \
    //tests:pytest_main_test && bazel run //tools:lint &&
    python=$(tools/find_python.sh 3.12 | sed -n 1p) &&
    "$python" tests/mutants/run.py --check && "$python" tests/names.py &&
    "$python" docs/tables.py --check
}
# Checks the docs site, its links, and the code blocks of README and of the how-to pages.
docs() { bazel test //docs:all; }
commands() { timeout 900 ci/compile_commands.sh; }
# Runs type checkers on the package and its users' code with the JAX for Python 3.11, whose stubs
# are older, and with the newest JAX; and on users' code with the oldest JAX.
types() { bazel test //tests/typing:all && bazel run //tools:typecheck; }
types312() { bazel run --config=py312 //tools:typecheck; }
types311() {
  timeout 1800 ci/installed_wheels.sh 3.11 tests/typing/check.py jax==0.6.2 mypy basedpyright
}
# Tests the benchmarks' modules, and the benchmarks themselves in small.
benchmarks() { bazel test //tests/benchmarks:all; }
asan() { host_gcc && bazel test --config=asan //tests/cc; }
tsan() { host_gcc && bazel test --config=tsan //tests/cc; }
# Checks the CUDA wheels' contents, and that NVIDIA's libraries have all symbols that they use.
cuda() { bazel test //tests/wheels:cuda //third_party/cuda:cuda_test; }
# Checks that the plugin for CUDA 13 compiles, with kernels for Hopper and PTX only, and that
# NVIDIA's libraries have the symbols that it opens. The steps cuda and wheels compile the kernels
# for all GPUs.
cuda13() {
  bazel test --//third_party/cuda:archs=sm_90a,compute_90 \
    //tests/wheels:symbols_cuda13_test //third_party/cuda:axpy_cu13_test
}
# Checks that XLA compiles programs for several GPUs on a machine without one. Takes five minutes.
topologies() { timeout 1800 ci/topologies.sh; }
# Builds all released wheels, for all Pythons. GPU machines take them from dist/.
wheels() { timeout 1800 ci/wheels.sh dist; }
# Checks that an index accepts the wheels, with their licences, and that their tags are right.
release() { timeout 600 ci/check_wheels.sh dist; }
# Checks the aarch64 wheels' contents, and that NVIDIA's libraries for aarch64 have their symbols.
aarch64() {
  bazel test --config=aarch64 //tests/wheels:contents_test //tests/wheels:contents_cuda_test &&
    bazel test //tests/wheels:symbols_aarch64_test
}
# Runs the CPU wheel for aarch64. Takes five minutes, so it runs only by name.
qemu() { timeout 1800 ci/aarch64.sh; }
workspace() { timeout 1800 ci/same_bytes.sh; }
# The oldest and the newest supported JAX, and one in between. One plugin serves them all.
py311() { timeout 1800 ci/installed_wheels.sh 3.11 tests/python jax==0.6.2; }
py312() { timeout 1800 ci/installed_wheels.sh 3.12 tests/python jax==0.11.2; }
py313() { PAGES='README or start' timeout 1800 ci/installed_wheels.sh 3.13 tests/python jax; }
# A Python that may have to come from Debian's packages. Tests all pages with the newest JAX.
py314() { PAGES=md timeout 1800 ci/installed_wheels.sh 3.14 tests/python jax optax; }
# The strict settings of JAX's and lineax's own tests: no promotion of dtypes or ranks, no leaked
# tracers.
strict() {
  JAXMG_TEST_STRICT=1 PYTEST_ADDOPTS="-m 'not breadth and not slow'" \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/python jax==0.11.2
}
# Ranks in several processes: tests/python in two and in four, and the loss of a process.
# PROCESSES=core leaves out the tests of tests/python in which each process works by itself.
processes() {
  JAXMG_TEST_PROCESSES=${PROCESSES:-all} \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/processes/run.py jax==0.11.2
}
# Attacks by processes outside of a job, as another user if this is root, and invalid messages from
# the job's own processes. Takes well under a minute without compilation. The step processes has the
# other tests of processes.
attacks() {
  [ "$(id -u)" = 0 ] || echo "not root: nothing is tried as another user of the host"
  bazel test //tests/cc:hmac_test //tests/cc:strangers_test //tests/cc:wrong_frames_test \
    //tests/processes:attacks_test
}
# The two generations of NetKet, each with a JAX on which it imports.
netket322() { timeout 1800 ci/installed_wheels.sh 3.12 tests/netket/run.py jax==0.10.2 netket==3.22.4; }
netket323() { timeout 1800 ci/installed_wheels.sh 3.12 tests/netket/run.py jax==0.11.2 netket==3.23.0; }
# The solver for lineax, which is an extra, and factors and states of optimizers in orbax checkpoints.
lineax() {
  timeout 1800 ci/installed_wheels.sh 3.12 tests/extras jax==0.11.2 lineax orbax-checkpoint optax
}
# Makes every allocation and thread start of a call fail once. FAULTS_OUT names a file for the
# record.
faults() {
  bazel build //tests/faults:failing.so &&
    FAILING_SO=$PWD/$(bazel cquery --output=files //tests/faults:failing.so) \
      FAULTS_OUT=${FAULTS_OUT:+$(realpath -m "$FAULTS_OUT")} \
      timeout 1800 ci/installed_wheels.sh 3.12 tests/faults/inject.py jax==0.11.2
}
# Tests batches and derivatives on random meshes, for FUZZ_SECONDS.
fuzz() {
  FUZZ_SECONDS=${FUZZ_SECONDS:-1200} \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/fuzz/transformations.py jax==0.11.2
}
# Tests functions at random scales, for SCALES_SECONDS.
scales() {
  SCALES_SECONDS=${SCALES_SECONDS:-1200} \
    timeout 1800 ci/installed_wheels.sh 3.12 tests/fuzz/scales.py jax==0.11.2
}
# Checks that a test finds each fault of a set. Takes half an hour, so it runs only by name.
# MUTANTS_OUT names a file for the record.
mutants() { host_gcc && timeout 3600 ci/mutants.sh ${MUTANTS_OUT:+--out "$MUTANTS_OUT"}; }
# Ends processes during calls, EXITS of them.
exits() {
  bazel test //tests/python:exit_test --test_env=JAXMG_TEST_EXITS="${EXITS:-50}" --test_timeout=900
}

# Most consecutive steps build for the same Python.
default=(tests quickstart attacks examples exits benchmarks lint docs cuda13 py313 processes types
  py311)
# GitHub also runs these steps; `ci/cpu.sh` runs them by name.
also=(cc asan tsan faults fuzz scales strict cuda netket322 netket323 lineax types311 types312 workspace commands
  topologies aarch64 wheels release py312 py314)
# CI's own run has half an hour. It leaves to GitHub's jobs the slow C++ tests (`cc`; `asan` and
# `tsan` run all of them), the tests marked `breadth` or `slow`, most tests that `processes`
# repeats, and second runs of examples, and it ends fewer processes. Tests marked `extended`, which
# `tests` leaves out, run only in `py313`; tests marked `repeated` run only in `tests`.
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

# Prints the reason at the end, for readers who see only the end of a long log.
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
