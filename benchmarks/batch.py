"""Times batches of matrices that are sharded over devices, and JAX on one device.

    batch.py [--platform gpu] [--routine potrs potri syevd] [--ranks 1 2 4] [--n 256 2048]
             [--count 64] [--out FILE] ...

For each routine, order and count all cases take turns in one process: `jax.jit` of the `jax.vmap`
of JAX's functions on one device, and of jaxmg's on meshes of the given numbers of devices. The
batch is sharded over the mesh before the calls. Prints a line and writes a record for each case:
the median, and the speed relative to one device (jaxmg's if it was measured, else JAX's). The exit
code is 1 if a backward error is beyond its limit, or the speed below `--least`.
"""

import functools
import itertools
import json
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
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jaxmg


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=problems.DTYPES, default="float64")
    parser.add_argument("--routine", nargs="+", choices=tuple(ROUTINES), default=("syevd",))
    parser.add_argument("--n", nargs="+", type=int, default=(2048,))
    parser.add_argument("--count", "--batch", nargs="+", type=int, default=(64,))
    parser.add_argument("--ranks", nargs="+", type=int, default=(1, 2, 4))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=float, help="speed of most devices, in that of one")
    parser.add_argument("--out", help="file to append records to")
    args = parser.parse_args(argv[1:])
    if any(count % ranks for count in args.count for ranks in args.ranks):
        parser.error(f"--ranks {args.ranks}: JAX shards batches of {args.count} evenly alone")
    return args


def main(args):
    devices.prepare(args.platform, max(args.ranks))
    each = itertools.product(args.routine, args.n, args.count)
    return 0 if all([measure(args, *one) for one in each]) else 1


def measure(args, routine, n, batch):
    """Prints and records all cases of a batch; returns whether errors and speed are acceptable."""
    cases = {("jax", 1): problem(args, routine, n, batch, None)}
    cases |= {("jaxmg", count): problem(args, routine, n, batch, count) for count in args.ranks}
    error_of = ROUTINES[routine][2]
    errors = {case: error_of(*functions) for case, functions in cases.items()}  # also compiles
    times = {case: [] for case in cases}
    for _ in range(args.repeats):
        for case, (call, a) in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(call(a))
            times[case].append(time.perf_counter() - start)
    medians = {case: statistics.median(values) for case, values in times.items()}
    one = medians.get(("jaxmg", 1), medians["jax", 1])
    limit = 10 * n * float(jnp.finfo(args.dtype).eps)
    good = True
    for (kind, count), seconds in medians.items():
        error, speed = errors[kind, count], one / seconds
        slow = kind == "jaxmg" and count == max(args.ranks) and speed < (args.least or 0)
        good &= error <= limit and not slow
        print(
            f"{routine} {args.dtype} {batch} x {n:<6}{kind:6}{count:2}"
            f"{seconds * 1e3:10.2f} ms  {speed:5.2f} x one  error {error:.1e}"
            + ("  SLOW" if slow else ""),
            flush=True,
        )
        if args.out:
            record = {
                "routine": routine, "kind": kind, "dtype": args.dtype, "n": n,
                "batch": batch, "ranks": count, "seconds": seconds, "speed": speed,
                "runs": times[kind, count], "backward_error": error,
                **records.origin(
                    records.name_of(jax.devices()[:count]),
                    records.python("benchmarks/batch.py", sys.argv[1:]),
                ),
            }  # fmt: skip
            with open(args.out, "a") as file:
                print(json.dumps(record), file=file)
    return good


def problem(args, routine, n, batch, count):
    """Returns (the compiled function, the batch) of jaxmg on ``count`` devices; None: of JAX."""
    there = jax.devices()[: count or 1]
    mesh = Mesh(np.array(there), ("rank",))
    theirs, ours, _ = ROUTINES[routine]
    if count is None:
        function, sharding = theirs, SingleDeviceSharding(there[0])
    else:
        function = functools.partial(ours, mesh=mesh)
        sharding = NamedSharding(mesh, P("rank", None, None))
    make = functools.partial(
        symmetric, shape=(batch, n, n), dtype=args.dtype, shift=0 if routine == "syevd" else 4
    )
    a = jax.jit(make, out_shardings=sharding)(jax.random.key(0))
    return jax.jit(jax.vmap(function)), a


def symmetric(key, shape, dtype, shift):
    """Returns random Hermitian matrices, with eigenvalues between -2 and 2, then shifted."""
    a = jax.random.normal(key, shape, dtype) / shape[-1] ** 0.5
    a = (a + jnp.conj(jnp.swapaxes(a, 1, 2))) / 2**0.5
    return a + shift * jnp.eye(shape[-1], dtype=dtype)


def error_of_eigenvectors(call, a):
    """Returns the largest |a v - v w| / |a| or |v^H v - 1| in the batch, in the Frobenius norm."""

    @jax.jit
    def largest(a, w, v):
        norm = functools.partial(jnp.linalg.norm, axis=(1, 2))
        multiply = functools.partial(jnp.matmul, precision="highest")
        residual = norm(multiply(a, v) - v * w[:, None, :]) / norm(a)
        product = multiply(jnp.conj(jnp.swapaxes(v, 1, 2)), v)
        return jnp.maximum(residual, norm(product - jnp.eye(a.shape[-1], dtype=a.dtype))).max()

    return float(largest(a, *call(a)))


def error_of_solutions(call, a):
    """Returns the largest |a x - 1| / (|a| |x|) of the batch, in the Frobenius norm, where x is the
    inverse, or the solution for a column of ones."""

    @jax.jit
    def largest(a, x):
        x = x if x.ndim == 3 else x[..., None]
        expected = jnp.eye(a.shape[-1], dtype=a.dtype) if x.shape == a.shape else 1
        norm = functools.partial(jnp.linalg.norm, axis=(1, 2))
        residual = norm(jnp.matmul(a, x, precision="highest") - expected)
        return (residual / (norm(a) * norm(x))).max()

    return float(largest(a, call(a)))


def solve(a):
    """Solves like `jax.scipy.linalg.solve`, with one column of ones."""
    return jax.scipy.linalg.cho_solve(factor(a), jnp.ones(len(a), a.dtype))


def invert(a):
    return jax.scipy.linalg.cho_solve(factor(a), jnp.eye(len(a), dtype=a.dtype))


def factor(a):
    return jax.lax.linalg.cholesky(a, symmetrize_input=False), True


# For one matrix JAX's and jaxmg's function; for a batch the error of the results.
ROUTINES = {
    "potrs": (
        solve,
        lambda a, mesh: jaxmg.potrs(a, jnp.ones(len(a), a.dtype), mesh=mesh),
        error_of_solutions,
    ),
    "potri": (invert, lambda a, mesh: jaxmg.potri(a, mesh=mesh), error_of_solutions),
    "syevd": (jnp.linalg.eigh, lambda a, mesh: jaxmg.eigh(a, mesh=mesh), error_of_eigenvectors),
}


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
