"""Times updates of a kept Cholesky factor, beside a new factorization, in consecutive calls.

    updates.py [--platform gpu] [--ranks 1] [--n 32768] [--k 1 16 256] [--out FILE] ...

The factor has room for the largest k. Each call is waited for; the result is the median of at least
five calls. The factor is donated to updates, as in a loop. The error is that of A x = b, after as
many downdates as updates.
"""

import statistics
import sys
import time

import devices
import jax
import jax.numpy as jnp
import numpy as np
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

CALLS, SECONDS = 5, 0.5


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--n", nargs="+", type=int, default=(32768,))
    parser.add_argument("--k", nargs="+", type=int, default=(1, 16, 256))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    devices.prepare(args.platform, args.ranks)
    mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("r",))
    for n in args.n:
        for record in measure(mesh, n, args):
            print(
                f"{record['routine']} {args.dtype} n={n} k={record['k']} {args.ranks} rank(s): "
                f"{record['seconds'] * 1e3:.3f} ms, error {record['error'] or 0:.1e}",
                flush=True,
            )
            records.append(args.out, record)


def measure(mesh, n, args):
    """Yields the records of a factorization and, for each k, of the changes of its factor."""
    capacity = -(-(n + max(args.k)) // args.ranks) * args.ranks
    by_rows = NamedSharding(mesh, P("r", None))

    def matrix():
        row, column = jnp.arange(n)[:, None], jnp.arange(n)
        return (jnp.exp(-abs(row - column) / 50.0) + (row == column)).astype(args.dtype)

    a = jax.block_until_ready(jax.jit(matrix)() if n % args.ranks else
                              jax.jit(matrix, out_shardings=by_rows)())  # fmt: skip
    b = jnp.where(jnp.arange(capacity) < n, 1, 0).astype(args.dtype)
    kept = []

    def make():
        kept[:] = [jaxmg.cho_factor(a, mesh=mesh, capacity=capacity)]
        return kept[0]

    def error():
        x = kept[0].solve(b)[:n]
        return float(abs(b[:n] - a @ x).max() / (abs(a).sum(1).max() * abs(x).max()))

    def record(routine, k, times):
        return {
            **records.origin(
                records.name_of(mesh.devices.ravel().tolist()),
                records.python("benchmarks/updates.py", sys.argv[1:]),
            ),
            "routine": routine, "dtype": args.dtype, "n": n, "k": k, "ranks": args.ranks,
            "seconds": statistics.median(times), "calls": len(times),
            "error": None if routine == "update" else error(),
        }  # fmt: skip

    yield record("cho_factor", 0, timed(make))
    for k in args.k:
        v = jnp.asarray(np.random.default_rng(k).standard_normal((capacity, k)), args.dtype)
        for routine, sign in (("update", 1), ("downdate", -1)):
            step = jax.jit(lambda f, v, sign=sign: f.update(v, sign), donate_argnums=0)

            def change(step=step, v=v):
                kept[:] = [step(kept[0], v)]
                return kept[0]

            # As many downdates as updates, so that A is the matrix again.
            yield record(routine, k, timed(change, CALLS))
        a12 = jnp.zeros((capacity, k), args.dtype)
        a22 = jnp.eye(k, dtype=args.dtype)
        yield record("append", k, timed(lambda a12=a12, a22=a22: kept[0].append(a12, a22)))
        rows = np.arange(k) * (n // (k + 1))
        yield record("remove", k, timed(lambda rows=rows: kept[0].remove(rows)))


def timed(call, exactly=0):
    """Returns the seconds of calls after the first one: ``exactly`` so many, if that isn't 0."""
    times, end = [], time.perf_counter() + SECONDS
    while len(times) <= (exactly or CALLS) or (not exactly and time.perf_counter() < end):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return times[1:]


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
