"""Times solutions of Hermitian indefinite systems: by LU, by `ldl_factor`, by `solve`, and by
PyTorch's LDL.

    indefinite.py [--platform gpu] [--ranks 1] [--n 4096 16384] [--dtype float64] [--T_A 256]
        [--ways gesv ldl] [--torch] [--out FILE]

One process measures all of an order, in turns. A is the Hermitian part of problems.py's "uniform"
matrix; half of its eigenvalues are negative. Each line has the minimum and the median of the times,
and the backward error of the solution.
"""

import functools
import math
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
from jaxmg._square import indefinite

WAYS = ("gesv", "ldl", "ldl_factor", "ldl_solve", "inertia")
# `linalg.solve` in each of its ways.
FORCED = tuple(f"solve by {way}" for way in (indefinite.LU, indefinite.LAPACK, indefinite.LDL))
SOLVES = ("gesv", "ldl", "ldl_solve", *FORCED, "torch")


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=problems.DTYPES, default="float64")
    parser.add_argument("--n", nargs="+", type=int, default=(4096, 8192, 16384, 32768))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--T_A", type=int, help="the tile width of ldl_factor")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS + FORCED, default=WAYS)
    parser.add_argument("--torch", action="store_true", help="also torch.linalg.ldl_factor")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    devices.prepare(args.platform, args.ranks)
    mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("r",))
    for n in args.n:
        by_rows, everywhere = (NamedSharding(mesh, P(*spec)) for spec in (("r", None), ()))
        a = jax.jit(functools.partial(matrix, n, args.dtype), out_shardings=by_rows)()
        make_b = functools.partial(problems.vectors, jnp, n, 1, args.dtype)
        b = jax.jit(make_b, out_shardings=everywhere)()
        ways = make_ways(args, a, b)
        times = {name: [] for name in ways}
        solutions = {name: jax.block_until_ready(way()) for name, way in ways.items()}
        for _ in range(args.repeats):
            for name, way in ways.items():
                start = time.perf_counter()
                jax.block_until_ready(way())
                times[name].append(time.perf_counter() - start)
        for name, each in times.items():
            error = float(backward_error(a, solutions[name], b)) if name in SOLVES else None
            record = {
                **records.origin(
                    records.name_of(jax.devices()[: args.ranks]),
                    records.python("benchmarks/indefinite.py", sys.argv[1:]),
                ),
                "routine": name, "dtype": args.dtype, "n": n, "ranks": args.ranks,
                "seconds": statistics.median(each), "least": min(each), "backward_error": error,
            }  # fmt: skip
            print(
                f"{name} {args.dtype} n={n} {args.ranks} rank(s): {min(each) * 1e3:.2f} ms, median "
                f"{statistics.median(each) * 1e3:.2f} ms"
                + ("" if error is None else f", error {error:.1e}"),
                flush=True,
            )
            records.append(args.out, record)


def matrix(n, dtype):
    a = problems.matrix(jnp, n, dtype, kind="uniform")
    return a + a.conj().T


def make_ways(args, a, b):
    """Returns functions by name. "ldl" factors and solves, "ldl_solve" only solves."""
    ldl = functools.partial(jaxmg.linalg.ldl_factor, T_A=args.T_A)
    ways = {
        "gesv": lambda: jaxmg.gesv(a, b),
        "ldl": lambda: ldl(a).solve(b),
        "ldl_factor": lambda: ldl(a).tiles,
    }
    for name in FORCED:
        if name in args.ways:
            ways[name] = functools.partial(make_forced(args, name.split()[-1], a, b), a, b)
    if {"ldl_solve", "inertia"} & set(args.ways):  # the factor takes as much memory as A
        factor = jax.block_until_ready(ldl(a))
        ways |= {"ldl_solve": lambda: factor.solve(b), "inertia": factor.inertia}
    ways = {name: way for name, way in ways.items() if name in args.ways}
    if args.torch:
        import torch

        there = [torch.from_dlpack(x) for x in (a, b)]

        def solve():
            x = torch.linalg.ldl_solve(*torch.linalg.ldl_factor(there[0], hermitian=True), there[1])
            if x.is_cuda:
                torch.cuda.synchronize()
            return jax.dlpack.from_dlpack(x.contiguous())

        ways["torch"] = solve
    return ways


def make_forced(args, way, a, b):
    """Compiles `linalg.solve` with this way for all matrices."""
    rows = indefinite.ROWS
    every = ("f4", "f8", "c4", "c8")
    indefinite.ROWS = (indefinite.Row(args.platform, way, args.ranks, (1, math.inf), every),)
    try:
        return jax.jit(functools.partial(jaxmg.linalg.solve, assume_a="her")).lower(a, b).compile()
    finally:
        indefinite.ROWS = rows


@jax.jit
def backward_error(a, x, b):
    residual = jnp.abs(b - a @ x).max()
    return residual / (jnp.abs(a).sum(axis=1).max() * jnp.abs(x).max() + jnp.abs(b).max())


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
