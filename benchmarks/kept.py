"""Times solutions with a Cholesky or LU factor that is kept, in consecutive calls.

    kept.py [--routine lu_solve] [--platform gpu] [--ranks 4] [--n 16384 65536] [--nrhs 1 256]
        [--out FILE] ...

`run.py --routine cho_solve` idles between calls, so each call includes the wake-up of processors
and GPUs. Here calls follow each other without a pause, as in an iteration that reuses a factor:
calls to warm up, then calls for half a second, each waited for. The result is their median. The
factor overwrites the matrix, and the backward error of the last solution checks it.
"""

import functools
import statistics
import sys
import time

import devices
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

WARM, SECONDS = 10, 0.5


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--routine", choices=problems.ON_FACTORS, default="cho_solve")
    parser.add_argument("--dtype", choices=problems.DTYPES, default="float64")
    parser.add_argument("--n", nargs="+", type=int, default=(16384, 32768, 65536))
    parser.add_argument("--nrhs", nargs="+", type=int, default=(1,))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    devices.prepare(args.platform, args.ranks)
    for n in args.n:
        factor = None  # frees the last factor's memory
        a = matrix(args.routine, n, args.dtype, args.ranks)
        make = jaxmg.lu_factor if args.routine in problems.GENERAL else jaxmg.cho_factor
        start = time.perf_counter()
        factor = jax.block_until_ready(make(a, donate=True))
        made = time.perf_counter() - start
        for nrhs in args.nrhs:
            record = measure(args.routine, factor, args.dtype, n, nrhs, args.ranks)
            record["factor_seconds"] = made
            print(
                f"{args.routine} {args.dtype} n={n} nrhs={nrhs} {args.ranks} rank(s): "
                f"{record['seconds'] * 1e3:.3f} ms ({record['calls']} calls, quartiles "
                f"{record['quartiles'][0] * 1e3:.3f} to {record['quartiles'][1] * 1e3:.3f}), "
                f"{record['tflops']:.2f} TFLOP/s, error {record['backward_error']:.1e}",
                flush=True,
            )
            records.append(args.out, record)


def mesh_of(ranks):
    return Mesh(np.array(jax.devices()[:ranks]), ("r",))


def matrix(routine, n, dtype, ranks):
    by_rows = NamedSharding(mesh_of(ranks), P("r", None))
    kind = problems.usual_kind(routine)
    make = functools.partial(problems.matrix, jnp, n, dtype, kind=kind)
    return jax.block_until_ready(jax.jit(make, out_shardings=by_rows)())


def measure(routine, factor, dtype, n, nrhs, ranks):
    everywhere = NamedSharding(mesh_of(ranks), P())
    make = functools.partial(problems.vectors, jnp, n, nrhs, dtype)
    b = jax.block_until_ready(jax.jit(make, out_shardings=everywhere)())
    solve = jax.jit(getattr(jaxmg, routine))
    for _ in range(WARM):
        x = jax.block_until_ready(solve(factor, b))
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 11:
        start = time.perf_counter()
        x = jax.block_until_ready(solve(factor, b))
        times.append(time.perf_counter() - start)
    quartiles = statistics.quantiles(times, n=4)
    return {
        **records.origin(
            records.name_of(jax.devices()[:ranks]),
            records.python("benchmarks/kept.py", sys.argv[1:]),
        ),
        "routine": routine,
        "backend": "native",
        "dtype": dtype,
        "n": n,
        "nrhs": nrhs,
        "ranks": ranks,
        "seconds": statistics.median(times),
        "quartiles": [quartiles[0], quartiles[2]],
        "calls": len(times),
        "tflops": problems.operations(routine, dtype, n, nrhs) / statistics.median(times) / 1e12,
        "factor_gbps": n * n * np.dtype(dtype).itemsize / statistics.median(times) / 1e9,
        "backward_error": float(backward_error(routine, n, dtype, x, b)),
    }


def backward_error(routine, n, dtype, x, b):
    """Returns max |b - A x| / (|A| |x| + |b|) in the infinity norm; every device makes A again, by
    rows."""
    step = min(n, 1024)

    @functools.partial(jax.jit, static_argnums=2)
    def rows(x, first, count):
        a = problems.matrix(jnp, n, dtype, first, count, problems.usual_kind(routine))
        return a @ x, abs(a).sum(axis=1).max()

    worst, norm = 0.0, 0.0
    for first in range(0, n, step):
        count = min(step, n - first)
        product, here = rows(x, jnp.uint32(first), count)
        worst = jnp.maximum(worst, abs(b[first : first + count] - product).max(axis=0))
        norm = max(norm, float(here))
    return (worst / (norm * abs(x).max(axis=0) + abs(b).max(axis=0))).max()


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
