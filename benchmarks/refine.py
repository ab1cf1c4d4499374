"""Measures time and accuracy of solutions from a factor in lower precision, by condition.

    refine.py [--platform gpu] [--ranks 2] [--n 16384] [--refine tf32 float32] [--out FILE] ...
    refine.py --routine gesv ...      the same with the matrix's columns rotated by half of them

For each n and condition, `jaxmg.potrs` or `jaxmg.gesv` without `refine` and with each one take
turns, in one process. The eigenvalues of the matrices are evenly spaced in the logarithm
(`problems.even_matrix`); for `gesv` their columns are rotated. The matrix is donated, and made
again for every run, outside the timed part, and once more by blocks of rows for the error, so only
the call's own memory is needed. At the end comes a table, with a row for each n and condition:
milliseconds and the backward error in units of eps; for refined solutions also the speed relative
to the plain one and the iterations (or the reason for a fallback: -3 the factorization, -51 too
many iterations). The exit code is 1 if a refined solution's error is beyond eps and beyond 10 times
the plain one's.
"""

import functools
import statistics
import sys
import time

import devices
import jax
import jax.numpy as jnp
import numpy as np
import peaks
import problems
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

CONDITIONS = (1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14)
BLOCK = 1024  # rows that are made at a time to compute the error


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--routine", choices=("potrs", "gesv"), default="potrs")
    parser.add_argument("--dtype", choices=problems.DTYPES, default="float64")
    parser.add_argument("--n", nargs="+", type=int, default=(16384, 32768))
    parser.add_argument("--nrhs", type=int, default=1)
    parser.add_argument("--condition", nargs="+", type=float, help="as far as the dtype goes")
    parser.add_argument("--refine", nargs="+", default=("tf32", "float32"), help="jaxmg's refine=")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="file to append records to")
    args = parser.parse_args(argv[1:])
    devices.check_orders(parser, args)
    if args.condition is None:
        args.condition = [c for c in CONDITIONS if c * np.finfo(args.dtype).eps < 0.1]
    return args


def main(args):
    devices.prepare(args.platform, args.ranks)
    lines, good = [], True
    for n in args.n:
        problem = Problem(n, args)
        peak = {mode: problem.warm_up(mode, args.condition[0]) for mode in (None, *args.refine)}
        for condition in args.condition:
            results = measure(problem, condition, args)
            worse = [mode for mode in args.refine if is_worse(results, mode, args.dtype)]
            good &= not worse
            for mode, result in results.items():
                record = entry(args, n, condition, mode, result, results[None])
                records.append(args.out, record | {"peak_bytes": peak[mode]})
            lines.append(line(n, condition, results, args.dtype) + "  WORSE" * bool(worse))
            print(lines[-1], flush=True)
    said = {mode: "" if p is None else f", {p / 1e9:.1f} GB" for mode, p in peak.items()}
    print(f"\n{args.dtype}, nrhs {args.nrhs}, {args.ranks} rank(s): ms, error in eps; GB at last n")
    titles = "".join(f"  {f'{mode}{said[mode]}':>34}" for mode in args.refine)
    print(f"{'n':>7} {'cond':>6}  {f'plain{said[None]}':>18}{titles}", *lines, sep="\n")
    return 0 if good else 1


class Problem:
    """Matrices of order n with any condition, by rows over the mesh, and their solution."""

    def __init__(self, n, args):
        self.n, self.dtype, self.platform = n, args.dtype, args.platform
        self.mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("r",))
        by_rows, self.everywhere = (NamedSharding(self.mesh, P(*s)) for s in (("r", None), ()))
        self.routine = args.routine
        # The columns are rotated by this number if the matrix must not be Hermitian.
        self.turn = 0 if args.routine == "potrs" else n // 2
        make = functools.partial(_matrix, dtype=args.dtype, turn=self.turn)
        self._make = jax.jit(make, out_shardings=by_rows)
        vectors = functools.partial(problems.vectors, jnp, n, args.nrhs, args.dtype)
        self.b = jax.jit(vectors, out_shardings=self.everywhere)()

    def column(self, condition):
        return jax.device_put(problems.even_column(self.n, condition), self.everywhere)

    def warm_up(self, mode, condition):
        """Compiles a solve; returns the bytes that it needs on a GPU, including the matrix, or None
        if unknown."""
        column = self.column(condition)
        if self.platform == "cpu":
            self.solve(mode, column)
            return None
        # The factor in lower precision takes half of the matrix's memory; the rest is for panels.
        needed = 1.7 * self.n**2 * np.dtype(self.dtype).itemsize / self.mesh.size
        with peaks.peaks(list(self.mesh.devices.flat), int(needed)) as found:
            self.solve(mode, column)
        return max(found) if None not in found else None

    def solve(self, mode, column):
        """Makes a matrix and solves; returns (seconds, x, status, iterations or None)."""
        a = jax.block_until_ready(self._make(column))
        options = {} if mode is None else {"refine": mode, "return_iterations": True}
        start = time.perf_counter()
        solve = getattr(jaxmg, self.routine)
        results = solve(a, self.b, donate=True, return_status=True, **options)
        x, status, *iterations = jax.block_until_ready(results)
        seconds = time.perf_counter() - start
        return seconds, x, int(status), int(iterations[0]) if iterations else None

    def error(self, x, column):
        """Returns the largest |b - A x| / (|A| |x| + |b|) of the columns, in the infinity norm. A
        is made again, by blocks of rows."""
        step = min(BLOCK, self.n)
        x = jnp.roll(x, -self.turn, axis=0)
        # The last block may begin inside the one before.
        parts = [
            _residual(x, self.b, column, jnp.uint32(min(first, self.n - step)), step)
            for first in range(0, self.n, step)
        ]
        norm = abs(np.asarray(column)).sum() * np.abs(np.asarray(x)).max(axis=0)
        residual = np.max([np.asarray(part) for part in parts], axis=0)
        return float((residual / (norm + np.abs(np.asarray(self.b)).max(axis=0))).max())


def _matrix(column, dtype, turn):
    return jnp.roll(problems.even_matrix(jnp, column, dtype), turn, axis=1)


@functools.partial(jax.jit, static_argnums=4)
def _residual(x, b, column, first, rows):
    a = problems.even_matrix(jnp, column, x.dtype, first, rows)
    here = jax.lax.dynamic_slice_in_dim(b, first, rows)
    # In double precision: the measured errors are smaller than those of a product in single.
    product = jnp.matmul(problems.wide(a), problems.wide(x), precision="highest")
    return abs(here - product).max(axis=0)


def measure(problem, condition, args):
    """Returns {mode, None for the plain one: seconds, runs, status, iterations, backward_error}."""
    column = problem.column(condition)
    runs = {mode: [] for mode in (None, *args.refine)}
    solutions = {}
    for _ in range(args.repeats):
        for mode, times in runs.items():
            seconds, *solutions[mode] = problem.solve(mode, column)
            times.append(seconds)
    results = {}
    for mode, (x, status, iterations) in solutions.items():
        results[mode] = {
            "seconds": statistics.median(runs[mode]),
            "runs": runs[mode],
            "status": status,
            "iterations": iterations,
            "backward_error": problem.error(x, column) if status == 0 else None,
        }
    return results


def is_worse(results, mode, dtype):
    """Returns whether a solution is worse than the plain one, or than eps if there is none."""
    error, plain = (results[m]["backward_error"] for m in (mode, None))
    if error is None:
        return plain is not None  # a fallback succeeds wherever the plain solution does
    return not error <= max(10 * (plain or 0), np.finfo(dtype).eps)


def line(n, condition, results, dtype):
    """Returns a row of the table."""

    def error_of(result):
        error = result["backward_error"]
        return f"status {result['status']}" if error is None else f"{error / eps:8.1e}"

    eps, plain = np.finfo(dtype).eps, results[None]
    said = f"{n:7} {condition:6.0e}  {plain['seconds'] * 1e3:9.1f} {error_of(plain):>8}"
    for mode, result in results.items():
        if mode is not None:
            times = plain["seconds"] / result["seconds"]
            facts = f"{result['seconds'] * 1e3:9.1f} {times:5.2f}x {result['iterations']:4} it."
            said += f"  {f'{facts} {error_of(result):>8}':>34}"
    return said


def entry(args, n, condition, mode, result, plain):
    """Returns a record."""
    return {
        **records.origin(
            records.name_of(jax.devices()[: args.ranks]),
            records.python("benchmarks/refine.py", sys.argv[1:]),
        ),
        "routine": args.routine, "backend": "native", "refine": mode, "dtype": args.dtype,
        "matrix": "even", "condition": condition, "n": n, "nrhs": args.nrhs, "ranks": args.ranks,
        "donate": True, "speed": plain["seconds"] / result["seconds"], **result,
    }  # fmt: skip


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
