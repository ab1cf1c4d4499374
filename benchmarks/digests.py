"""Prints digests of results to the bit: versions of jaxmg with equal digests compute the same.

    digests.py [--platform gpu] [--out FILE] [--routine potrs ...] [--share 2/3]
    digests.py --compare OLD NEW

Prints a line of JSON for each call: all routines of the table in tests/python/routines.py, all
dtypes, 1, 2 and 4 devices, orders from 1 to 2200 (9001 on GPUs), with and without a given tile
width, with TF32, and a matrix that is not positive definite.
--share 2/3 takes every third call, from the second on, to run several processes at a time.
--compare prints the differences between two such files, and the calls in only one of them, and
exits with 1 if there are any.

The results of all routines depend on the libraries, and LAPACK's on its threads; LAPACK gets one.
"""

import collections
import hashlib
import itertools
import json
import os
import pathlib
import sys

import numpy as np
import problems
import records
from absl import app
from absl.flags import argparse_flags

SIZES = (1, 2, 7, 97, 130, 513, 1000, 2200)
LARGE = 9001  # on GPUs: too large for a single one to compute alone
RANKS = (1, 2, 4)
TILES = (3, 64, 500)
CASE = ("routine", "dtype", "n", "ranks", "T_A", "nrhs", "precision", "matrix")


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--out", help="file to write, standard output unless given")
    parser.add_argument(
        "--routine", nargs="+", choices=problems.TABLE, default=list(problems.TABLE)
    )
    parser.add_argument("--n", nargs="+", type=int, help="orders, in place of the usual ones")
    parser.add_argument("--share", default="1/1", help="I/N: the I-th of N parts of the calls")
    parser.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), type=pathlib.Path)
    return parser.parse_args(argv[1:])


def main(args):
    if args.compare:
        return compare(*map(read, args.compare))
    # Before JAX and SciPy are imported.
    os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda"}[args.platform]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={max(RANKS)}"
    import jax

    jax.config.update("jax_enable_x64", True)
    sizes = args.n or (*SIZES, *[LARGE] * (args.platform == "gpu"))
    here = len(jax.devices())
    wanted = [case for case in cases(args.routine, sizes) if case["ranks"] <= here]
    part, parts = map(int, args.share.split("/"))
    origin = records.origin(
        records.name_of(jax.devices()), records.python("benchmarks/digests.py", sys.argv[1:])
    )
    with open(args.out, "w") if args.out else os.fdopen(os.dup(1), "w") as out:
        print(json.dumps(origin), file=out)
        for case in wanted[part - 1 :: parts]:
            print(json.dumps(case | {"digests": digests(case)}), file=out, flush=True)
    return 0


def cases(routines, sizes):
    """Yields the calls. Tile widths, right-hand sides and kinds of matrices are distributed over
    the other parameters, as are dtypes for routines that benchmarks don't measure."""
    kinds = [*problems.KINDS, "indefinite"]
    table = itertools.product(enumerate(sizes), enumerate(RANKS), enumerate(problems.DTYPES))
    for (i, n), (j, ranks), (k, dtype) in table:
        if n == LARGE and k % 2 == 0:
            continue
        turn = i + j + k
        tile = TILES[turn % len(TILES)]
        tile = 32 if tile == 3 and n > 200 else tile
        tf32 = dtype in ("float32", "complex64") and n > 7
        means = [(None, None), (tile, None)] + [(tile, "tf32")] * tf32
        for routine, (T_A, precision) in itertools.product(routines, means):
            row = problems.TABLE[routine]
            if precision and not row.precision:
                continue
            if not row.benchmark and k != (i + j) % len(problems.DTYPES):
                continue
            # Eigenproblems take longest; one width is enough for routines without a precision.
            if not row.precision and (T_A is None) == turn % 2:
                continue
            if "w" in row.returns and n > 600:
                continue
            yield {
                "routine": routine,
                "dtype": dtype,
                "n": n,
                "ranks": ranks,
                "T_A": T_A,
                "nrhs": (1, 3)[turn % 2] if "b" in row.takes else None,
                "precision": precision,
                "matrix": kinds[(turn // 2) % len(kinds)],
            }


def matrix(n, dtype, kind):
    if kind != "indefinite":
        return problems.matrix(np, n, dtype, kind=kind)
    a = problems.matrix(np, n, dtype)
    a[2 * n // 3, 2 * n // 3] = -1
    return a


def digests(case):
    """Returns the digest of each result of the call, or the type of the error that it raised."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxmg

    n, dtype, routine = case["n"], case["dtype"], problems.TABLE[case["routine"]]
    mesh = Mesh(np.array(jax.devices()[: case["ranks"]]), ("rank",))
    divides = n % case["ranks"] == 0
    rows = NamedSharding(mesh, P("rank", None) if divides else P())
    make = {
        "a": lambda: jax.device_put(matrix(n, dtype, case["matrix"]), rows),
        "m": lambda: jax.device_put(matrix(n, dtype, "moderate"), rows),
        "g": lambda: jax.device_put(matrix(n, dtype, "uniform"), rows),
        "b": lambda: jax.device_put(
            problems.vectors(np, n, case["nrhs"], dtype), NamedSharding(mesh, P())
        ),
    }
    where = {"mesh": mesh, "in_specs": P("rank", None)}
    options = {"backend": "native"} if routine.backends else {}
    if case["precision"]:
        options["precision"] = case["precision"]
    try:
        operands = routine.make_operands(jaxmg, lambda kind: make[kind](), case["T_A"], **where)
        results = routine.call(jaxmg, operands, case["T_A"], **where, **options)
        results = jax.block_until_ready(results)
    except Exception as error:
        return {"error": type(error).__name__}
    return {
        name: hashlib.sha256(np.ascontiguousarray(result).tobytes()).hexdigest()
        for name, result in zip(routine.returns, results, strict=True)
    }


def read(path):
    """Returns {case: digests}."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        tuple(entry[key] for key in CASE): entry["digests"] for entry in found if "digests" in entry
    }


def compare(old, new):
    counts = collections.Counter()
    for case in old | new:
        name = " ".join(f"{key}={value}" for key, value in zip(CASE, case, strict=True) if value)
        one, other = old.get(case), new.get(case)
        if one is None or other is None:
            counts["in one file alone"] += 1
            print(f"{name}: only in the {'new' if one is None else 'old'} one")
        elif one != other:
            counts["different"] += 1
            unlike = sorted(key for key in one | other if one.get(key) != other.get(key))
            print(f"{name}: other {', '.join(unlike)}")
        else:
            counts["errors in both" if "error" in one else "the same"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()) or "no results")
    return 0 if set(counts) == {"the same"} else 1


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
