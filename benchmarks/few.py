"""Times a few eigenpairs: by `eigsh`, by `eigh(subset_by_index)`, and by others' iterations.

    few.py [--platform gpu] [--ranks 1] [--n 16384] [--dtype float64] [--k 10 100]
        [--families random kernel laplacian chain] [--which SA LA]
        [--ways eigsh eigh scipy cupy jax torch] [--limit 45] [--out FILE]

One process measures a cell: a matrix, k and an end of its spectrum. Each line has the time of the
first call, the least of the next ones, and the largest residual, relative to the norm of A. A way
whose first call takes longer than the limit isn't called again. Iterations are asked for residuals
of 1e-10; JAX's LOBPCG counts them in another way, and ends with larger ones. It computes the
largest pairs of positive definite matrices, so A is shifted for it. Ways that aren't installed are
left out.
"""

import functools
import importlib.util
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

FAMILIES = ("random", "kernel", "laplacian", "chain")
WAYS = ("eigsh", "eigh", "scipy", "cupy", "jax", "torch")
_RESIDUAL = 1e-10


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=problems.DTYPES, default="float64")
    parser.add_argument("--n", nargs="+", type=int, default=(16384,))
    parser.add_argument("--k", nargs="+", type=int, default=(10, 100))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--which", nargs="+", choices=("SA", "LA"), default=("SA", "LA"))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=45, help="seconds of a first call")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    devices.prepare(args.platform, args.ranks)
    mesh = Mesh(np.array(jax.devices()[: args.ranks]), ("r",))
    by_rows = NamedSharding(mesh, P("r", None))
    for n in args.n:
        for family in args.families:
            make = functools.partial(matrix, family, n, args.dtype)
            a = jax.block_until_ready(jax.jit(make, out_shardings=by_rows)())
            norm = float(jnp.abs(jaxmg.linalg.eigsh(a, 1, tol=1e-3, return_eigenvectors=False)[0]))
            for k in args.k:
                for which in args.which:
                    measure(args, family, a, norm, k, which)


def matrix(family, n, dtype):
    """Returns a matrix of a family: random; a Gaussian kernel of points in space; the differences
    of a square grid; a Heisenberg chain, if n is a power of two."""
    if family == "random":
        a = problems.matrix(jnp, n, dtype, kind="uniform")
        return (a + a.conj().T) / 2
    i = jnp.arange(n)
    if family == "kernel":
        points = jax.random.uniform(jax.random.key(0), (n, 3), jnp.finfo(dtype).dtype)
        squares = sum((x[:, None] - x) ** 2 for x in points.T)
        return jnp.exp(-squares / (2 * 0.3**2)).astype(dtype)
    if family == "laplacian":
        side = round(n**0.5)
        x, y = i // side, i % side
        apart = jnp.abs(x[:, None] - x) + jnp.abs(y[:, None] - y)
        return jnp.where(apart == 0, 4, jnp.where(apart == 1, -1, 0)).astype(dtype)
    bits = n.bit_length() - 1
    if n != 2**bits:
        raise ValueError(f"a chain needs an order that is a power of two; got {n}")
    a = jnp.zeros((n, n), dtype)
    for site in range(bits):
        pair = (1 << site) | (1 << (site + 1) % bits)
        unequal = ((i & pair) != 0) & ((i & pair) != pair)
        a = a.at[i, i].add(jnp.where(unequal, -0.25, 0.25).astype(dtype))
        a = a.at[i, i ^ pair].add(jnp.where(unequal, 0.5, 0).astype(dtype))
    return a


def measure(args, family, a, norm, k, which):
    for name in args.ways:
        try:
            way = make_way(name, a, norm, k, which)
        except ImportError:
            continue
        first, (found, note) = timed(way)
        least = min([first, *(timed(way)[0] for _ in range(args.repeats) if first < args.limit)])
        residual = None if found is None else residual_of(a, found, norm)
        record = {
            **records.origin(
                records.name_of(jax.devices()[: args.ranks]),
                records.python("benchmarks/few.py", sys.argv[1:]),
            ),
            "routine": name, "family": family, "dtype": args.dtype, "n": len(a), "k": k,
            "which": which, "ranks": args.ranks, "first": first, "least": least,
            "residual": residual, **note,
        }  # fmt: skip
        print(
            f"{family} n={len(a)} k={k} {which} {name}: first {first:.3f} s, least {least:.3f} s, "
            f"residual {residual} {note}",
            flush=True,
        )
        records.append(args.out, record)


def timed(way):
    start = time.perf_counter()
    result = jax.block_until_ready(way())
    return time.perf_counter() - start, result


@jax.jit
def _residual(a, w, v):
    return jnp.max(jnp.linalg.norm(a @ v - v * w.astype(v.dtype), axis=0))


def residual_of(a, found, norm):
    w, v = (jnp.asarray(np.asarray(x)) for x in found)
    with jax.default_matmul_precision("highest"):
        return float(_residual(a, w.astype(jnp.finfo(a.dtype).dtype), v.astype(a.dtype))) / norm


def make_way(name, a, norm, k, which):
    """Returns a function that returns ((w, v) or None, dict of notes)."""
    n = len(a)
    if name == "eigsh":

        def run():
            w, v, info = jaxmg.linalg.eigsh(a, k, which=which, return_info=True)
            return (w, v), {"passes": int(info.iterations), "status": int(info.status)}

        return run
    if name == "eigh":
        subset = (0, k - 1) if which == "SA" else (n - k, n - 1)
        return lambda: (tuple(jaxmg.eigh(a, subset_by_index=subset)), {})
    if name == "scipy":
        return scipys(a, norm, k, which)
    if name == "cupy":
        return cupys(a, k, which)
    sign = 1 if which == "LA" else -1
    start = jax.random.normal(jax.random.key(1), (n, k), a.dtype)
    if name == "torch":
        return torchs(a, k, which == "LA", start)
    return jaxs(a, norm, k, sign, start)


def scipys(a, norm, k, which):
    import scipy.sparse.linalg

    there = np.asarray(a)

    def run():
        try:
            found = scipy.sparse.linalg.eigsh(there, k, which=which, tol=_RESIDUAL / 10)
        except scipy.sparse.linalg.ArpackNoConvergence:
            return None, {"failure": "not converged"}
        return found, {}

    return run


def cupys(a, k, which):
    import cupy
    import cupyx.scipy.sparse.linalg

    there = cupy.from_dlpack(a.addressable_data(0))

    def run():
        w, v = cupyx.scipy.sparse.linalg.eigsh(there, k, which=which, tol=_RESIDUAL / 10)
        return (cupy.asnumpy(w), cupy.asnumpy(v)), {}

    return run


def jaxs(a, norm, k, sign, start):
    from jax.experimental.sparse.linalg import lobpcg_standard

    if 5 * k >= len(a):
        raise ImportError("lobpcg_standard needs 5 k < n")

    @jax.jit
    def run(a):
        def multiply(x):
            product = jnp.matmul(a, x, precision="highest")
            return sign * product + 1.01 * norm * x

        return lobpcg_standard(multiply, start, m=1000, tol=_RESIDUAL)

    def call():
        w, v, steps = run(a)
        return (sign * (w - 1.01 * norm), v), {"steps": int(steps)}

    return call


def torchs(a, k, largest, start):
    if importlib.util.find_spec("torch") is None:
        raise ImportError("torch")
    import torch

    there, x = (torch.from_dlpack(one.addressable_data(0)) for one in (a, start))

    def run():
        w, v = torch.lobpcg(there, k, X=x, largest=largest, niter=1000, tol=_RESIDUAL)
        return (w.cpu().numpy(), v.cpu().numpy()), {}

    return run


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
