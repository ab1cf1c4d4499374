"""Times the ways to compute a batch of matrices on one device.

    batches.py [--platform gpu] [--routine qr inv ...] [--n 64 256 ...] [--dtype float32 ...]
               [--bytes 5e8] [--way jax ...] [--limit 230] [--out FILE]

For each routine, dtype and order, a batch of `--bytes` of random matrices is computed in several
ways: "jax", JAX's own function; "turns", JAX's function for one matrix after the other, which on a
GPU may call another routine of a library; the ways of jaxmg._stacks; and "ours", jaxmg's function
on a mesh of the device. All are compiled first, in threads. A way whose first call takes over a
second is timed by that call, the others by the median of a few calls. Prints a line for each case,
with the milliseconds of the ways and the errors of wrong results, and writes a record for each way.
A way that fails, or that has no time left after ``--limit`` seconds, is printed and has no other
effect. The exit code is 1 if a result is wrong.
"""

import concurrent.futures
import functools
import itertools
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
from jax.sharding import Mesh

import jaxmg
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._eigen import stacks as eigen_stacks
from jaxmg._lu import stacks as lu_stacks
from jaxmg._plugin import plugins
from jaxmg._qr import stacks as qr_stacks
from jaxmg._stacks import native, scaling
from jaxmg._svd import polar_stacks

SLOW, REPEATS, MOST = 1.0, 5, 4096
_product = functools.partial(jnp.matmul, precision="highest")


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", nargs="+", choices=problems.DTYPES, default=("float32",))
    parser.add_argument("--routine", nargs="+", choices=tuple(ROUTINES), default=tuple(ROUTINES))
    parser.add_argument("--n", nargs="+", type=int, default=(64, 256, 1024))
    parser.add_argument("--bytes", type=float, default=2.6e8, help="of a batch")
    parser.add_argument("--most", type=int, default=MOST, help="matrices of a batch")
    parser.add_argument("--way", nargs="+", help="these alone")
    parser.add_argument("--threads", type=int, default=12, help="that compile")
    parser.add_argument("--limit", type=float, default=600, help="seconds in all")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    devices.prepare(args.platform, 1)
    plugins.load(args.platform)
    start = time.perf_counter()
    pool = concurrent.futures.ThreadPoolExecutor(args.threads)
    cases = list(itertools.product(args.n, args.dtype, args.routine))
    waiting = [(case, _compile(pool, args, *case)) for case in cases]
    futures = [future for _, compiled in waiting for future in compiled.values()]
    # Compilers time products, which would disturb the measurements, so all is compiled first.
    concurrent.futures.wait(futures, timeout=0.6 * args.limit)
    late = sum(not future.done() for future in futures)
    for future in futures:
        future.cancel()
    print(
        f"compiled in {time.perf_counter() - start:.0f} s, {late} of {len(futures)} not", flush=True
    )
    end = start + args.limit
    return 0 if all([measure(args, *case, compiled, end) for case, compiled in waiting]) else 1


def count_of(args, n, dtype, name):
    """Returns the number of matrices, fewer for slow functions that JAX computes one by one."""
    count = int(args.bytes / (n * n * np.dtype(dtype).itemsize))
    return max(1, min(count, args.most) // (4 if name in ("svd", "polar", "eigh") else 1))


def _compile(pool, args, n, dtype, name):
    """Returns futures of a case's compiled functions: its matrices, its ways and their error."""
    kind, ways, error_of = ROUTINES[name]
    shape = (count_of(args, n, dtype, name), n, n)
    a = jax.ShapeDtypeStruct(shape, dtype)
    results = jax.eval_shape(_plain(ways["jax"]), a)
    functions = {
        "make": (functools.partial(make, kind, shape, dtype), jax.eval_shape(jax.random.key, 0)),
        "check": (error_of, a, results),
    }
    functions |= {way: (_plain(f), a) for way, f in ways.items() if not args.way or way in args.way}
    return {name: pool.submit(_compiled, *one) for name, one in functions.items()}


def _compiled(function, *shapes):
    return jax.jit(function).lower(*shapes).compile()


def _plain(function):
    """Wraps ``function`` so that it returns an array or a plain tuple, in place of named ones."""

    def call(a):
        results = function(a)
        return tuple(results) if isinstance(results, tuple) else results

    return call


def measure(args, n, dtype, name, compiled, end):
    """Prints and records the ways of a case; returns whether all results are right."""
    count = count_of(args, n, dtype, name)
    line, good, make, check = [], True, compiled.pop("make"), compiled.pop("check")
    if make.cancelled() or check.cancelled():
        print(f"{name:9}{dtype:10}{count:5} x {n:<5} not compiled")
        return True
    a = make.result()(jax.random.key(0))
    for way, future in compiled.items():
        if future.cancelled() or not future.done() or time.perf_counter() > end:
            line.append(f"{way} no time")
            continue
        try:
            seconds, runs, results = _time(future.result(), a)
            error = float(check.result()(a, results))
        except Exception as failure:
            line.append(f"{way} {type(failure).__name__} {str(failure)[:60]}")
            continue
        right = error <= 10 * n * float(jnp.finfo(dtype).eps)
        good &= right
        line.append(f"{way} {seconds * 1e3:.2f}" + ("" if right else f" ({error:.0e}!)"))
        records.append(
            args.out,
            {
                "routine": name, "way": way, "dtype": dtype, "n": n, "batch": count,
                "seconds": seconds, "runs": runs, "error": error,
                **records.origin(
                    records.name_of(jax.devices()[:1]),
                    records.python("benchmarks/batches.py", sys.argv[1:]),
                ),
            },
        )  # fmt: skip
    print(f"{name:9}{dtype:10}{count:5} x {n:<5} ms  " + "  ".join(line), flush=True)
    return good


def _time(call, a):
    """Returns (the median of seconds, the seconds of every call, the results)."""
    runs = []
    while len(runs) < REPEATS + 1:
        start = time.perf_counter()
        results = jax.block_until_ready(call(a))
        runs.append(time.perf_counter() - start)
        if runs[0] > SLOW:
            return runs[0], runs, results
    return statistics.median(runs[1:]), runs[1:], results


def make(kind, shape, dtype, key):
    """Returns random normal matrices; Hermitian ones have eigenvalues in [-2, 2] or [2, 6]."""
    a = jax.random.normal(key, shape, dtype)
    if kind == "any":
        return a
    a = (a + _adjoint(a)) / (2 * shape[-1]) ** 0.5
    return a + (4 if kind == "definite" else 0) * jnp.eye(shape[-1], dtype=dtype)


def _adjoint(a):
    return jnp.conj(jnp.swapaxes(a, -1, -2))


_norm = functools.partial(jnp.linalg.norm, axis=(1, 2))


def _off(q):
    """Returns |Q^H Q - 1| / n^(1/2) of each matrix."""
    n = q.shape[-1]
    return _norm(_product(_adjoint(q), q) - jnp.eye(n, dtype=q.dtype)) / n**0.5


def error_of_factor(a, lower):
    return (_norm(_product(lower, _adjoint(lower)) - a) / _norm(a)).max()


def error_of_inverse(a, x):
    return (_norm(_product(a, x) - jnp.eye(a.shape[-1])) / (_norm(a) * _norm(x))).max()


def error_of_solution(a, x):
    x = x.reshape(*a.shape[:2], -1)
    return (_norm(_product(a, x) - 1) / (_norm(a) * _norm(x))).max()


def error_of_qr(a, results):
    q, r = results
    return jnp.maximum(_norm(_product(q, r) - a) / _norm(a), _off(q)).max()


def error_of_eigh(a, results):
    w, v = results
    return jnp.maximum(_norm(_product(a, v) - v * w[:, None]) / _norm(a), _off(v)).max()


def error_of_svd(a, results):
    u, s, vh = results
    residual = _norm(_product(u * s[:, None], vh) - a) / _norm(a)
    return jnp.maximum(jnp.maximum(residual, _off(u)), _off(_adjoint(vh))).max()


def error_of_polar(a, results):
    u, p = results
    return jnp.maximum(_norm(_product(u, p) - a) / _norm(a), _off(u)).max()


def in_turn(function):
    return lambda a: jax.lax.map(function, a)


def ours(function, **options):
    """Returns jaxmg's function on a mesh of the first device."""

    def call(a):
        return function(a, mesh=Mesh(np.array(jax.devices()[:1]), ("rank",)), **options)

    return call


def with_ones(function):
    """Returns a function that solves with one column of ones."""
    return lambda a: function(a, jnp.ones((*a.shape[:-1], 1), a.dtype))


def _cho_solve(a, b):
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a, symmetrize_input=False), True), b)


def _invert_definite(a):
    return _cho_solve(a, jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape))


def _invert_by_plugin(a):
    return cholesky_stacks.invert_by_plugin(native.factor_cholesky(a, upper=True))


def _solve_by_plugin(a, b):
    u = native.factor_cholesky(a, upper=True)
    return native.solve_triangle(u, native.solve_triangle(u, b, True, True), True)


def _one_polar(a):
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return _product(u, vh), _product(_adjoint(vh) * s[..., None, :], vh)


def _stack_polar(a):
    u, h, exponent = native.polar(a, hermitian=True)
    return u, scaling.multiplied(h, exponent[:, None, None])


def _algorithm(name):
    def call(a):
        return jax.lax.linalg.svd(
            a, full_matrices=False, algorithm=getattr(jax.lax.linalg.SvdAlgorithm, name)
        )

    return call


def _jacobi(a):
    v, w = jax.lax.linalg.eigh(
        a, symmetrize_input=False, implementation=jax.lax.linalg.EighImplementation.JACOBI
    )
    return w, v


def _eigh(a):
    return jnp.linalg.eigh(a, symmetrize_input=False)


def _svd(a):
    return jnp.linalg.svd(a, full_matrices=False)


_linalg = jaxmg.linalg
# For each routine the kind of matrices, the ways, and the error of the results.
ROUTINES = {
    "qr": (
        "any",
        {
            "blocked": qr_stacks.reduced,
            "turns": in_turn(jnp.linalg.qr),
            "ours": ours(_linalg.qr),
            "jax": jnp.linalg.qr,
        },
        error_of_qr,
    ),
    "inv": (
        "any",
        {
            "plugin": lu_stacks.inverse_by_plugin,
            "small": lu_stacks.inverse_of_small,
            "turns": in_turn(jnp.linalg.inv),
            "ours": ours(_linalg.inv),
            "jax": jnp.linalg.inv,
        },
        error_of_inverse,
    ),
    "solve": (
        "any",
        {
            "plugin": with_ones(lu_stacks.solve_by_plugin),
            "small": with_ones(lu_stacks.solve_small),
            "turns": in_turn(with_ones(jnp.linalg.solve)),
            "ours": with_ones(lambda a, b: ours(lambda a, mesh: _linalg.solve(a, b, mesh=mesh))(a)),
            "jax": with_ones(jnp.linalg.solve),
        },
        error_of_solution,
    ),
    "cholesky": (
        "definite",
        {
            "jax": functools.partial(jnp.linalg.cholesky, symmetrize_input=False),
            "plugin": cholesky_stacks.factor_by_plugin,
            "turns": in_turn(functools.partial(jnp.linalg.cholesky, symmetrize_input=False)),
            "ours": ours(_linalg.cholesky, symmetrize_input=False),
        },
        error_of_factor,
    ),
    "potri": (
        "definite",
        {
            "jax": _invert_definite,
            "plugin": _invert_by_plugin,
            "ours": ours(jaxmg.potri),
        },
        error_of_inverse,
    ),
    "potrs": (
        "definite",
        {
            "jax": with_ones(_cho_solve),
            "plugin": with_ones(_solve_by_plugin),
            "ours": with_ones(lambda a, b: ours(lambda a, mesh: jaxmg.potrs(a, b, mesh=mesh))(a)),
        },
        error_of_solution,
    ),
    "eigh": (
        "hermitian",
        {
            "stages": eigen_stacks.decompose,
            "jax": _eigh,
            "jacobi": _jacobi,
            "turns": in_turn(_eigh),
            "ours": ours(_linalg.eigh),
        },
        error_of_eigh,
    ),
    "polar": (
        "any",
        {
            "qdwh": _stack_polar,
            "ours": ours(_linalg.polar),
            "jax": _one_polar,
        },
        error_of_polar,
    ),
    "svd": (
        "any",
        {
            "polar": lambda a: polar_stacks.decompose(a, _eigh),
            "polar stages": lambda a: polar_stacks.decompose(a, eigen_stacks.decompose),
            "ours": ours(_linalg.svd, full_matrices=False),
            "QR": _algorithm("QR"),
            "JACOBI": _algorithm("JACOBI"),
            "jax": _svd,
        },
        error_of_svd,
    ),
}


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
