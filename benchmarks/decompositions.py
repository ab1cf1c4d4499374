"""Times QR, SVD, polar decompositions, least squares and solutions for matrices (m, n), with jaxmg,
and with JAX on one device, SciPy and cuSOLVER.

    decompositions.py [--platform gpu] [--function qr svd ...] [--shape 8192x8192 200000x4096 ...]
                      [--dtype float64] [--ranks 1] [--repeats 5]
                      [--kind jaxmg jax scipy cusolvermp] [--threads 1] [--out FILE] [--small N]
                      [--double N] [--library libcusolver.so --kind gesvd gesvdp Xpolar getrs]
    python -m jaxmg.launch -n 4 decompositions.py --ranks 4 --kind jaxmg cusolvermp ...

For each function and shape, jaxmg's function on `--ranks` devices, with the matrix sharded by rows,
and JAX's on one take turns in one process, after compilation and one run. SciPy's functions get
column-major arrays that they may overwrite. `cusolvermp` is jaxmg's function with that backend,
which needs a process for each GPU. The kinds after `--library` are routines of that cuSOLVER
(cusolver.py), for square matrices, which are copied outside the timed part. `--threads` sets the
threads of BLAS, for SciPy and for each rank of CPU devices. Matrices have normally distributed
entries. Prints a line and writes a record for each case, with the median. The exit code is 1 if an
error of jaxmg's is beyond its limit. A case that fails, for example for lack of memory, is printed
and has no other effect.
"""

import functools
import itertools
import os
import statistics
import sys
import time

import cusolver
import devices
import jax
import jax.numpy as jnp
import numpy as np
import problems
import records
import scipy.linalg
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._svd import polar, svd


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", nargs="+", choices=problems.DTYPES, default=("float64",))
    parser.add_argument("--function", nargs="+", choices=FUNCTIONS, default=("qr",))
    parser.add_argument("--shape", nargs="+", type=_shape, default=((2048, 2048),))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    kinds = ("jaxmg", "jax", "scipy", "cusolvermp", *_ROUTINES)
    parser.add_argument("--kind", nargs="+", choices=kinds, default=kinds[:2])
    parser.add_argument("--threads", type=int, help="of BLAS")
    parser.add_argument(
        "--small", type=int, default=svd.SMALL, help="order up to which an SVD is one rank's"
    )
    parser.add_argument(
        "--double",
        type=int,
        default=polar.DOUBLE,
        help="order from which polar decompositions of float32 are computed in float64",
    )
    parser.add_argument("--library", help="the cuSOLVER of kinds that are its routines")
    parser.add_argument("--out", help="file to append records to")
    args = parser.parse_args(argv[1:])
    if "scipy" in args.kind and set(args.function) - set(_SCIPY):
        parser.error(f"--kind scipy has {', '.join(_SCIPY)}")
    if "cusolvermp" in args.kind and set(args.function) - set(_BY_LIBRARY):
        parser.error(f"--kind cusolvermp has {', '.join(_BY_LIBRARY)}")
    if set(args.kind) & set(_ROUTINES) and not args.library:
        parser.error("the routines of cuSOLVER need --library")
    for m, n in args.shape:
        if m % args.ranks:
            parser.error(f"--shape {m}x{n}: JAX shards multiples of {args.ranks} rows alone")
    return args


def _shape(text):
    m, n = map(int, text.split("x"))
    return m, n


def main(args):
    svd.SMALL, polar.DOUBLE = args.small, args.double
    if args.threads and os.environ.get("OPENBLAS_NUM_THREADS") != str(args.threads):
        os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # before BLAS is loaded
    devices.prepare(args.platform, args.ranks)
    args.library = cusolver.Library(args.library) if args.library else None
    each = itertools.product(args.dtype, args.function, args.shape)
    return 0 if all([measure(args, *one) for one in each]) else 1


def measure(args, dtype, name, shape):
    """Prints and records jaxmg's and JAX's function; returns whether the errors are within their
    limits."""
    cases, times, errors, peaks = {}, {}, {}, {}
    for kind in args.kind:
        if kind in _ROUTINES and name not in _ROUTINES[kind]:
            continue
        try:
            call, operands = problem(args, dtype, name, shape, kind)
            results = jax.block_until_ready(call(*_fresh(kind, operands)))
            error = error_of(name, kind, operands, results)
            # The first of several processes has the error, and prints it.
            errors[kind] = 0.0 if jax.process_index() > 0 else float(error)
        except Exception as error:  # the other kinds are measured anyway
            print(f"{name} {dtype} {_words(shape)} {kind}: {str(error).splitlines()[0][:120]}")
            continue
        cases[kind], times[kind] = (call, operands), []
        peaks[kind] = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        del results
    for _ in range(args.repeats):
        for kind, (call, operands) in cases.items():
            operands = _fresh(kind, operands)
            start = time.perf_counter()
            jax.block_until_ready(call(*operands))
            times[kind].append(time.perf_counter() - start)
    if args.library:
        args.library.forget()
    limit = 10 * max(shape) * float(jnp.finfo(dtype).eps)
    good = "jaxmg" in cases or "jaxmg" not in args.kind
    for kind, runs in times.items():
        seconds, error = statistics.median(runs), errors[kind]
        good &= kind != "jaxmg" or error <= limit
        if jax.process_index() > 0:
            continue
        print(
            f"{name:14}{dtype:11}{_words(shape):16}{kind:11}{seconds * 1e3:11.3f} ms"
            f"  error {error:.1e}" + ("" if error <= limit else "  TOO LARGE"),
            flush=True,
        )
        count = args.ranks if kind in ("jaxmg", "cusolvermp") else 1
        records.append(
            args.out,
            {
                "routine": name, "kind": kind, "dtype": dtype, "m": shape[0], "n": shape[1],
                "ranks": count, "processes": jax.process_count(), "threads": args.threads,
                "seconds": seconds, "runs": runs,
                "error": error, "peak_bytes": peaks[kind],
                **({"cusolver": args.library.version} if kind in _ROUTINES else {}),
                **records.origin(
                    records.name_of(jax.devices()[:count]),
                    records.python("benchmarks/decompositions.py", sys.argv[1:]),
                ),
            },
        )  # fmt: skip
    return good


def _fresh(kind, operands):
    """Returns the operands of a call, copied for SciPy and cuSOLVER, which overwrite them."""
    if kind in _ROUTINES:
        return jax.block_until_ready([jnp.copy(x) for x in operands])
    return [x.copy(order="F") for x in operands] if kind == "scipy" else operands


def error_of(name, kind, operands, results):
    """Returns the error of the results, as the entry in FUNCTIONS measures it."""
    if kind in _ROUTINES:
        _, finish = _ROUTINES[kind][name]
        operands, results = (operands[0].T, *operands[1:]), finish(results)
    return FUNCTIONS[name][2](*operands, results)


def _words(shape):
    return "x".join(map(str, shape))


def problem(args, dtype, name, shape, kind):
    """Returns (the function, compiled for jaxmg and JAX, its operands)."""
    ours, theirs, _ = FUNCTIONS[name]
    if kind == "scipy":
        a = jax.random.normal(jax.random.key(0), shape, dtype)
        return _SCIPY[name], [np.asarray(a, order="F")]
    if kind == "jax" or kind in _ROUTINES:
        function, by_rows = theirs, SingleDeviceSharding(jax.devices()[0])
        everywhere = by_rows
    else:
        mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("rank",))
        function = functools.partial(ours, mesh=mesh, matrix_specs=P("rank", None))
        if kind == "cusolvermp":
            function = functools.partial(function, backend="cusolvermp")
        by_rows, everywhere = NamedSharding(mesh, P("rank", None)), NamedSharding(mesh, P())

    def make(key):
        return (
            jax.random.normal(key, shape, dtype),
            jax.random.normal(jax.random.fold_in(key, 1), shape[:1], dtype),
        )

    operands = jax.jit(make, out_shardings=(by_rows, everywhere))(jax.random.key(0))
    if kind in _ROUTINES:
        call, _ = _ROUTINES[kind][name]
        operands = (jax.jit(jnp.transpose, donate_argnums=0)(operands[0]), operands[1])
        return call(args.library), operands if name in _WITH_B else operands[:1]
    if name not in _WITH_B:
        return jax.jit(lambda a: function(a)), operands[:1]
    return jax.jit(lambda a, b: function(a, b)), operands


# Number of random vectors by which errors are estimated.
_PROBES = 8

_product = functools.partial(jnp.matmul, precision="highest")


def _adjoint(a):
    return jnp.conj(a.T)


def _probes(n, dtype):
    """Returns a few random vectors X. The Frobenius norm of M X estimates that of M, which has n
    columns. Products with few columns are cheap, and XLA tunes them quickly."""
    return jax.random.normal(jax.random.key(1), (n, _PROBES), dtype) / _PROBES**0.5


def _away_from_unitary(q):
    """Estimates |Q^H Q - 1|, or |Q Q^H - 1| for a wide Q."""
    q = q if q.shape[0] >= q.shape[1] else _adjoint(q)
    x = _probes(q.shape[1], q.dtype)
    return jnp.linalg.norm(_product(_adjoint(q), _product(q, x)) - x)


def _residual(a, *factors):
    """Estimates |A - the product of the factors| / |A|."""
    x = _probes(a.shape[1], a.dtype)
    product = functools.reduce(lambda y, factor: _product(factor, y), reversed(factors), x)
    return jnp.linalg.norm(product - _product(a, x)) / jnp.linalg.norm(a)


@jax.jit
def error_of_qr(a, results):
    q, r = results
    return jnp.maximum(_residual(a, q, r), _away_from_unitary(q) / r.shape[0] ** 0.5)


@jax.jit
def error_of_r(a, r):
    x = _probes(a.shape[1], a.dtype)
    squares = [_product(_adjoint(y), _product(y, x)) for y in (r, a)]
    return jnp.linalg.norm(squares[0] - squares[1]) / jnp.linalg.norm(a) ** 2


@jax.jit
def error_of_svd(a, results):
    u, s, vh = results
    off = jnp.maximum(_away_from_unitary(u), _away_from_unitary(vh))
    return jnp.maximum(_residual(a, u, s[:, None] * vh), off / len(s) ** 0.5)


@jax.jit
def error_of_triplets(a, results):
    """Returns the error of U^H A = S V^H, which holds for random projections too."""
    u, s, vh, *_ = results
    residual = jnp.linalg.norm(_product(_adjoint(u), a) - s[:, None] * vh) / s[0]
    off = jnp.maximum(_away_from_unitary(u), _away_from_unitary(vh))
    return jnp.maximum(residual, off) / len(s) ** 0.5


@jax.jit
def error_of_singular_values(a, s):
    """Returns the error of their Frobenius norm, which is that of A."""
    norm = jnp.linalg.norm(a)
    return jnp.abs(jnp.linalg.norm(s) - norm) / norm


@jax.jit
def error_of_polar(a, results):
    u, p = results
    return jnp.maximum(_residual(a, u, p), _away_from_unitary(u) / min(a.shape) ** 0.5)


@jax.jit
def error_of_least_squares(a, b, x):
    norm = jnp.linalg.norm(a)
    slope = _product(_adjoint(a), b - _product(a, x))
    return jnp.linalg.norm(slope) / (norm * (norm * jnp.linalg.norm(x) + jnp.linalg.norm(b)))


@jax.jit
def error_of_solution(a, b, x):
    norms = jnp.linalg.norm(a) * jnp.linalg.norm(x) + jnp.linalg.norm(b)
    return jnp.linalg.norm(b - _product(a, x)) / norms


def _leading(a, k=100):
    """Computes all singular triplets and returns the first k."""
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return u[:, :k], s[:k], vh[:k]


def _first(function):
    return lambda *arguments, **options: function(*arguments, **options)[0]


# By function: jaxmg's, JAX's, and the error, a function of the operands and the results.
_ours, _theirs = jaxmg.linalg, jnp.linalg
FUNCTIONS = {
    "qr": (_ours.qr, _theirs.qr, error_of_qr),
    "r": (
        functools.partial(_ours.qr, mode="r"), functools.partial(_theirs.qr, mode="r"), error_of_r,
    ),
    "least_squares": (_ours.least_squares, _first(_theirs.lstsq), error_of_least_squares),
    "lstsq": (_first(_ours.lstsq), _first(_theirs.lstsq), error_of_least_squares),
    "svd": (
        functools.partial(_ours.svd, full_matrices=False),
        functools.partial(_theirs.svd, full_matrices=False),
        error_of_svd,
    ),
    "svd_lowrank": (functools.partial(_ours.svd_lowrank, k=100), _leading, error_of_triplets),
    "svdvals": (_ours.svdvals, _theirs.svdvals, error_of_singular_values),
    "polar": (_ours.polar, jax.scipy.linalg.polar, error_of_polar),
    "solve": (_ours.solve, _theirs.solve, error_of_solution),
}  # fmt: skip
_WITH_B = ("least_squares", "lstsq", "solve")
_BY_LIBRARY = ("svd", "svdvals", "polar")
# By routine of cuSOLVER and function: the library's call, and the conversion of its stored results
# to the function's, outside the timed part.
_ROUTINES = {
    "gesvd": {
        "svd": (lambda library: library.gesvd, cusolver.transposed),
        "svdvals": (lambda library: functools.partial(library.gesvd, vectors=False), lambda s: s),
    },
    "gesvdp": {"svd": (lambda library: library.gesvdp, cusolver.left_transposed)},
    "Xpolar": {"polar": (lambda library: library.polar, cusolver.transposed)},
    "getrs": {"solve": (lambda library: library.getrs, lambda x: x)},
}
_IN_PLACE = {"overwrite_a": True, "check_finite": False}
_SCIPY = {
    "qr": functools.partial(scipy.linalg.qr, mode="economic", **_IN_PLACE),
    "r": lambda a: scipy.linalg.qr(a, mode="r", **_IN_PLACE)[0][: a.shape[1]],
    "svd": functools.partial(scipy.linalg.svd, full_matrices=False, **_IN_PLACE),
    "svdvals": functools.partial(scipy.linalg.svdvals, **_IN_PLACE),
}


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
