"""Times single calls with small matrices: eager and jitted, and JAX's own on one device.

    small.py [--platform gpu] [--ranks 1 2 4] [--n 256 1024] [--out FILE] ...

Calls of a millisecond can't be measured like calls of seconds (run.py): the cases of one n and
dtype take turns in one process, call by call, many times. Nothing is donated, and the result is the
median of each case. Prints a line and writes a record for each case, with its limit: 1.05 times
JAX's time on one device and 0.05 ms. JAX's results are checked, and jaxmg's on the most devices.
"""

import functools
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import problems
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

SIZES = (256, 512, 1024, 2048, 4096, 6144, 8192, 12288)
# A case is called for SECONDS on average, at least 7 times; or at least 3 times if a round of all
# cases takes longer than SLOW seconds.
SECONDS = 0.25
SLOW = 2.0


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument(
        "--routine", nargs="+", choices=problems.ROUTINES, default=problems.ROUTINES
    )
    parser.add_argument(
        "--dtype", nargs="+", choices=problems.DTYPES, default=("float64", "complex128")
    )
    parser.add_argument("--n", nargs="+", type=int, default=SIZES)
    parser.add_argument("--ranks", nargs="+", type=int, default=(1, 2, 4))
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    jax.config.update("jax_enable_x64", True)
    if args.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(args.ranks))
    end = time.perf_counter() + args.limit
    over = 0
    for routine in args.routine:
        for dtype in args.dtype:
            for n in args.n:
                if time.perf_counter() > end:
                    print(f"left out for time: {routine} {dtype} {n}", flush=True)
                    continue
                over += measure(routine, dtype, n, args.ranks, args.out)
    print(f"{over} cases beyond their limit")


def measure(routine, dtype, n, ranks, out):
    """Measures all cases of one problem in turns; returns the number of those beyond the limit."""
    cases = {("jax", 1): _jax(routine, dtype, n)}
    for count in ranks:
        cases["eager", count], cases["jitted", count] = _jaxmg(routine, dtype, n, count)
    last = ("eager", max(ranks))
    errors = {}
    for case, (call, check) in cases.items():  # the first call compiles and warms up
        results = jax.block_until_ready(call())
        if case in (("jax", 1), last):
            errors[case] = float(check(results))
    times = {case: [] for case in cases}
    start = time.perf_counter()
    least = 1
    while len(times["jax", 1]) < least or time.perf_counter() - start < SECONDS * len(cases):
        for case, (call, _) in cases.items():
            begin = time.perf_counter()
            jax.block_until_ready(call())
            times[case].append(time.perf_counter() - begin)
        if len(times["jax", 1]) == 1:
            least = 3 if time.perf_counter() - start > SLOW else 7
        if len(times["jax", 1]) >= 200:
            break
    medians = {case: statistics.median(values) for case, values in times.items()}
    limit = 1.05 * medians["jax", 1] + 0.05e-3
    over = 0
    for (kind, count), seconds in medians.items():
        beyond = kind != "jax" and seconds > limit
        over += beyond
        print(
            f"{routine:6} {dtype:10} n={n:<6} {kind:7} {count} {seconds * 1e3:9.3f} ms  "
            f"limit {limit * 1e3:9.3f}"
            + (f"  error {errors[kind, count]:.1e}" if (kind, count) in errors else "")
            + ("  BEYOND" if beyond else ""),
            flush=True,
        )
        if out:
            record = {
                "routine": routine, "dtype": dtype, "n": n, "kind": kind, "ranks": count,
                "seconds": seconds, "fastest": min(times[kind, count]),
                "calls": len(times[kind, count]), "limit": limit,
                "backward_error": errors.get((kind, count)),
                **records.origin(
                    records.name_of(jax.devices()[:count]),
                    records.python("benchmarks/small.py", sys.argv[1:]),
                ),
            }  # fmt: skip
            with open(out, "a") as file:
                print(json.dumps(record), file=file)
    return over


def _operands(routine, dtype, n, sharding, everywhere):
    kind = problems.usual_kind(routine)
    a = jax.jit(lambda: problems.matrix(jnp, n, dtype, kind=kind), out_shardings=sharding)()
    if routine not in problems.SOLVES:
        return (a,)
    make = jax.jit(lambda: problems.vectors(jnp, n, 1, dtype), out_shardings=everywhere)
    return a, make()


def _jax(routine, dtype, n):
    linalg = jax.scipy.linalg
    function = {
        "potrs": lambda a, b: linalg.cho_solve(linalg.cho_factor(a), b),
        "potri": jnp.linalg.inv,
        "gesv": lambda a, b: jnp.linalg.solve(a, b),
        "getri": jnp.linalg.inv,
        "syevd": lambda a: tuple(jnp.linalg.eigh(a, symmetrize_input=False)),
    }[routine]
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    operands = _operands(routine, dtype, n, one, one)
    return functools.partial(jax.jit(function), *operands), _checker(routine, operands)


def _jaxmg(routine, dtype, n, ranks):
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("r",))
    rows, everywhere = NamedSharding(mesh, P("r", None)), NamedSharding(mesh, P())
    operands = _operands(routine, dtype, n, rows, everywhere)
    function = getattr(jaxmg, routine)
    jitted = jax.jit(functools.partial(function, mesh=mesh, in_specs=P("r", None)))
    check = _checker(routine, operands)
    return tuple((functools.partial(f, *operands), check) for f in (function, jitted))


def _checker(routine, operands):
    a, *b = operands
    multiply = functools.partial(jnp.matmul, precision="highest")

    @jax.jit
    def error(a, b, results):
        results = results if isinstance(results, tuple) else (results,)
        operands = {"b": b[0]} if b else {}
        return problems.backward_error(jnp, routine, a, operands, results, multiply)

    return lambda results: error(a, b, results)


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
