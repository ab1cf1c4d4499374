"""Times ten calls in a jitted loop, for small and medium orders on one GPU, and JAX's.

    jitted_loops.py [--label NAME] [--only WORD] [--out FILE]

A loop shows the time of a call within a program, without the overhead of eager calls and of the end
of a program: x of a call is b of the next, and 0 is added to A. jaxmg's and JAX's loops take turns,
nine times; the result is the median of each, in milliseconds per call. To compare two builds, run
them by turns, each with its label.
"""

import argparse
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsp
import numpy as np
import records

import jaxmg

_CALLS, _TURNS = 10, 9


def random(shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.standard_normal(shape)
    return x.astype(dtype)


def definite(n, dtype):
    """Returns a matrix near the identity, so that solutions neither grow nor vanish."""
    a = random((n, n), dtype) * 0.3 / n**0.5
    return ((a + a.conj().T) / 2 + np.eye(n)).astype(dtype)


def general(n, dtype):
    return (random((n, n), dtype) * 0.5 / n**0.5 + np.eye(n)).astype(dtype)


def stack(count, a):
    return np.broadcast_to(a, (count, *a.shape))


def cho_solve(a, b):
    return jsp.cho_solve(jsp.cho_factor(a, lower=True), b)


def in_place_of_b(function):
    """Returns a function of (a, b) that computes function(a), for a loop that passes b on."""

    def sum_both(a, b):
        return b + 0 * function(a).ravel()[0].astype(b.dtype)

    return sum_both


def pair(name, result=lambda x: x):
    """Returns jaxmg's function of that name and JAX's."""
    modules = jaxmg.linalg, jnp.linalg
    return [in_place_of_b(lambda a, m=m: result(getattr(m, name)(a))) for m in modules]


def cases():
    """Yields (name, jaxmg's function and JAX's, A, the shape of b)."""
    solve = (jaxmg.potrs, cho_solve)
    for dtype, orders in (
        ("float64", (64, 100, 256, 1000, 2048, 3000, 4096)),
        ("float32", (64, 256, 1000, 4096)),
        ("complex64", (1000,)),
    ):
        for n in orders:
            yield f"potrs {dtype} {n}", solve, definite(n, dtype), (n,)
    for nrhs in (4, 16, 100):
        yield f"potrs float64 1000x{nrhs}", solve, definite(1000, "float64"), (1000, nrhs)
    for n, dtype in ((64, "float64"), (256, "float64"), (1000, "float32"), (2048, "float64"),
                     (5000, "float32")):  # fmt: skip
        yield f"gesv {dtype} {n}", (jaxmg.gesv, jnp.linalg.solve), general(n, dtype), (n,)
    log_det = pair("slogdet", lambda pair: pair[1])
    for n, dtype in ((256, "float64"), (5000, "float32")):
        yield f"slogdet {dtype} {n}", log_det, general(n, dtype), (n,)
        yield f"inv {dtype} {n}", pair("inv"), general(n, dtype), (n,)
    for count, n, dtype in ((2000, 48, "float32"), (700, 96, "float64"), (300, 200, "float64"),
                            (500, 100, "complex64")):  # fmt: skip
        a = stack(count, definite(n, dtype))
        yield f"cholesky {dtype} {count}x({n})", pair("cholesky"), a, (4,)
    for count, n, dtype in ((500, 100, "complex64"), (12, 1500, "float64"), (40, 700, "float32")):
        yield f"slogdet {dtype} {count}x({n})", log_det, stack(count, general(n, dtype)), (4,)


def loop(function):
    @jax.jit
    def run(a, b):
        def body(_, carry):
            a, x = carry
            zero = (0 * x.ravel()[0]).astype(a.dtype)
            a = a.at[(0,) * a.ndim].add(zero)
            return a, function(a, x)

        return jax.lax.fori_loop(0, _CALLS, body, (a, b))[1]

    return run


def measure(functions, a, b):
    """Returns milliseconds per call for each function: (medians, least)."""
    runs = [loop(function) for function in functions]
    for run in runs:
        run(a, b).block_until_ready()
    times = [[] for _ in runs]
    for _ in range(_TURNS):
        for run, of_run in zip(runs, times, strict=True):
            began = time.perf_counter()
            run(a, b).block_until_ready()
            of_run.append((time.perf_counter() - began) / _CALLS * 1e3)
    return [[round(of(t), 4) for t in times] for of in (statistics.median, min)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", default="jaxmg", help="of this build")
    parser.add_argument("--only", default="", help="a part of the names of the cases to measure")
    parser.add_argument("--out", help="file to append records to")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    command = records.python("benchmarks/jitted_loops.py", sys.argv[1:])
    origin = records.origin(records.name_of(jax.devices()[:1]), command)
    for name, functions, a, shape in cases():
        if args.only not in name:
            continue
        a, b = jnp.asarray(a), jnp.asarray(random(shape, a.dtype, 1))
        medians, least = measure(functions, a, b)
        record = {"label": args.label, "case": name, "ms": medians, "least_ms": least}
        print(f"{name:30} {args.label} {medians[0]:9.4f}  JAX {medians[1]:9.4f}", flush=True)
        records.append(args.out, {**origin, **record})


if __name__ == "__main__":
    main()
