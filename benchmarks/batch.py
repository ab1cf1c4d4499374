"""A batch of eigenproblems spread over the devices: how long, beside one device.

    batch.py [--platform gpu] [--ranks 1 2 4] [--n 2048] [--batch 64] [--out FILE] ...

All cases take turns in one process: `jax.jit` of jnp.linalg.eigh on one device, and of jaxmg.eigh
on meshes of so many. The batch is sharded over the mesh before. Prints a line and writes a record a
case: the median, and how many times the speed of one device that is (of jaxmg's where it was
measured, else of JAX's). The exit code is 1 if a backward error is beyond its limit, or the speed
below `--least`.
"""

import functools
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
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ranks", nargs="+", type=int, default=(1, 2, 4))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=float, help="speed of most devices, in that of one")
    parser.add_argument("--out", help="file to append records to")
    args = parser.parse_args(argv[1:])
    if any(args.batch % count for count in args.ranks):
        parser.error(f"--ranks {args.ranks}: JAX shards a batch of {args.batch} evenly alone")
    return args


def main(args):
    devices.prepare(args.platform, max(args.ranks))
    cases = {("jax", 1): problem(args, None)}
    cases |= {("jaxmg", count): problem(args, count) for count in args.ranks}
    errors = {case: error_of(*functions) for case, functions in cases.items()}  # compiles, too
    times = {case: [] for case in cases}
    for _ in range(args.repeats):
        for case, (call, a) in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(call(a))
            times[case].append(time.perf_counter() - start)
    medians = {case: statistics.median(values) for case, values in times.items()}
    one = medians.get(("jaxmg", 1), medians["jax", 1])
    limit = 10 * args.n * float(jnp.finfo(args.dtype).eps)
    good = True
    for (kind, count), seconds in medians.items():
        error, speed = errors[kind, count], one / seconds
        slow = kind == "jaxmg" and count == max(args.ranks) and speed < (args.least or 0)
        good &= error <= limit and not slow
        print(
            f"eigh {args.dtype} {args.batch} x {args.n:<6}{kind:6}{count:2}"
            f"{seconds * 1e3:10.2f} ms  {speed:5.2f} x one  error {error:.1e}"
            + ("  SLOW" if slow else ""),
            flush=True,
        )
        if args.out:
            record = {
                "routine": "syevd", "kind": kind, "dtype": args.dtype, "n": args.n,
                "batch": args.batch, "ranks": count, "seconds": seconds, "speed": speed,
                "runs": times[kind, count], "backward_error": error,
                **records.origin(
                    records.name_of(jax.devices()[:count]),
                    records.python("benchmarks/batch.py", sys.argv[1:]),
                ),
            }  # fmt: skip
            with open(args.out, "a") as file:
                print(json.dumps(record), file=file)
    return 0 if good else 1


def problem(args, count):
    """(the compiled function, the batch) of jaxmg on so many devices, or of JAX if None."""
    there = jax.devices()[: count or 1]
    mesh = Mesh(np.array(there), ("rank",))
    if count is None:
        function, sharding = jnp.linalg.eigh, SingleDeviceSharding(there[0])
    else:
        function = functools.partial(jaxmg.eigh, mesh=mesh)
        sharding = NamedSharding(mesh, P("rank", None, None))
    shape = (args.batch, args.n, args.n)
    make = functools.partial(symmetric, shape=shape, dtype=args.dtype)
    return jax.jit(function), jax.jit(make, out_shardings=sharding)(jax.random.key(0))


def symmetric(key, shape, dtype):
    """Random Hermitian matrices, with eigenvalues between -2 and 2."""
    a = jax.random.normal(key, shape, dtype) / shape[-1] ** 0.5
    return (a + jnp.conj(jnp.swapaxes(a, 1, 2))) / 2**0.5


def error_of(call, a):
    """The largest |a v - v w| / |a| of the batch, and of |v^H v - 1|, in the Frobenius norm."""

    @jax.jit
    def largest(a, w, v):
        norm = functools.partial(jnp.linalg.norm, axis=(1, 2))
        multiply = functools.partial(jnp.matmul, precision="highest")
        residual = norm(multiply(a, v) - v * w[:, None, :]) / norm(a)
        product = multiply(jnp.conj(jnp.swapaxes(v, 1, 2)), v)
        return jnp.maximum(residual, norm(product - jnp.eye(a.shape[-1], dtype=a.dtype))).max()

    return float(largest(a, *call(a)))


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
