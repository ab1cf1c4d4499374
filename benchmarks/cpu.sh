#!/usr/bin/env bash
# The CPU figures: potrs against SciPy with as many threads, in one run. On a quiet machine with two
# cores it takes about five minutes; arguments go on to run.py.
#
#   PYTHON=python3.12 benchmarks/cpu.sh [--repeats 7] [--out FILE]
#
# 1 rank and 2 ranks of one thread each, beside SciPy with 1 and 2 threads. Wanted, of the speed of
# cho_factor: at least 0.8 with 1 rank, at least 1 with 2; and at most 4 panels of memory a rank.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${PYTHON:-python3}" benchmarks/run.py --platform cpu --routine potrs --dtype float64 \
  --n 4096 8192 --ranks 1 2 --threads 1 --T_A 128 256 --backend native scipy --donate --compare "$@"
