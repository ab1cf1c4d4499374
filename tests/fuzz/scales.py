"""Values at random scales: f(2^k A) = 2^(dk) f(A) exactly, for functions f of degree d.

    scales.py [--seed 0] [--seconds 60] [--case N] [--only TEXT]

A case is a function of `jaxmg.linalg` or `jaxmg.tree`, or its gradient; a dtype; a mesh; a single
matrix or a batch; and many matrices and k for which no entry of the operands or of the result
leaves the normal range. All follow from the seed and the case's number. Prints each failure with
the command that repeats it, and the numbers of cases and of scales compared; the exit code is 1 if
any failed. Without --seed or SCALES_SEED the seed is random. Nearly all the time is spent on
compiling, once per case.
"""

import argparse
import collections
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax  # noqa: E402
import numpy as np  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))

from scale_cases import DTYPES, FUNCTIONS, find_wrong  # noqa: E402

# Number of matrices of a case, and of random powers of two for each.
MATRICES, POWERS = 25, 6


def run(seed, number, only=""):
    """Returns (the name of a case, what is wrong with it or None, the number of scales
    compared)."""
    random = np.random.default_rng([seed, number])

    def choice(options):
        options = list(options)
        return options[random.integers(len(options))]

    name = choice(name for name in FUNCTIONS if only in name)
    function = FUNCTIONS[name]
    kind, dtype, ranks = choice(function.kinds), choice(DTYPES), choice((1, 2, 4))
    batch = bool(function.batches and random.integers(2))
    gradient = bool(function.differentiable and random.integers(2))
    described = (
        f"{'gradient of ' * gradient}{name}, {kind}{' batch' * batch}, {dtype}, {ranks} ranks"
    )
    case = name, kind, dtype, ranks, batch, gradient
    try:
        return described, *find_wrong(*case, [seed, number], POWERS, MATRICES)
    except Exception as error:
        return described, f"{type(error).__name__}: {str(error)[:200]!r}", 0


def main():
    parser = argparse.ArgumentParser()
    fresh = int.from_bytes(os.urandom(4), "little")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SCALES_SEED", fresh)))
    seconds = float(os.environ.get("SCALES_SECONDS", 60))
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--only", default="", help="functions whose names contain this")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    end, failures = time.monotonic() + args.seconds, collections.Counter()
    count = comparisons = 0
    numbers = iter([args.case]) if args.case is not None else iter(range(10**9))
    for number in numbers:
        if count and time.monotonic() > end:
            break
        count += 1
        if count % 50 == 0:
            jax.clear_caches()
        described, wrong, compared = run(args.seed, number, args.only)
        comparisons += compared
        if wrong:
            failures[described.split(",")[0]] += 1
            only = f" --only '{args.only}'" * bool(args.only)
            command = f"scales.py --seed {args.seed} --case {number}{only}"
            print(f"{command}: {described}: {wrong}", flush=True)
    print(f"{count} cases, {comparisons} comparisons, {failures.total()} failed")
    for name, times in failures.most_common():
        print(f"{times:6d} {name}")
    return 1 if failures else 0


if __name__ == "__main__":
    # In the main program, so that a test may import this file.
    jax.config.update("jax_enable_x64", True)
    sys.exit(main())
