"""Measures the accuracy of eigenvalues and eigenvectors of matrices that are hard on eigensolvers.

    eigen_accuracy.py [--platform gpu] [--ranks 1 4] [--n 1000 3001] [--out FILE] ...

Runs `jaxmg.eigh` on meshes of the given numbers of ranks, always by the engine of all ranks, and
jnp.linalg.eigh on one device. The errors are, in the 1-norm and in units of n eps, the residual
|A V - V W| / |A| and the orthogonality |V^H V - 1|. Small orders, on one rank and on two, come
first. Prints a table for each order: a row for each kind of matrix and number of ranks, with both
errors, and JAX's in brackets. The exit code is 1 if an error is above 10 and above three times
JAX's, or if eigenvalues don't ascend.
"""

import functools
import sys

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
from jaxmg._plugin import plugins

SMALL = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 40)
SMALL_DTYPES = ("float64", "complex128")
MOST, MORE = 10, 3  # limits, in n eps and in multiples of JAX's error


def arguments(argv):
    parser = argparse_flags.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", nargs="+", choices=problems.DTYPES, default=problems.DTYPES)
    parser.add_argument("--n", nargs="*", type=int, default=(1000, 3001))
    parser.add_argument("--small", nargs="*", type=int, default=SMALL, help="orders taken together")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=tuple(KINDS))
    parser.add_argument("--ranks", nargs="+", type=int, default=(4,))
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def main(args):
    jax.config.update("jax_enable_x64", True)
    if args.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(args.ranks))
    plugins.load(args.platform).set_eigensolver("all")
    # Orders that are measured together, their dtypes and numbers of ranks.
    groups = [(args.small, SMALL_DTYPES, sorted({1, min(2, max(args.ranks))}))] * bool(args.small)
    groups += [((n,), args.dtype, args.ranks) for n in args.n]
    tables, good = [], True
    for orders, dtypes, counts in groups:
        found = {}
        for dtype in dtypes:
            errors = worst_of(orders, dtype, args.kind, counts)
            found |= {(*case, dtype): value for case, value in errors.items()}
            for count in counts:
                records.append(args.out, entry(args, orders, dtype, count, errors))
        tables += table(orders, dtypes, found)
        good &= not any(error.bad for error in found.values())
    print("\nresidual/orthogonality in n eps (JAX's on one device)", *tables, sep="\n")
    print("all right" if good else "WRONG")
    return 0 if good else 1


class Errors:
    """The worst errors of several solutions, residual and orthogonality in n eps: `ours` and
    `jaxs`. `bad` is true if one of ours was beyond its limits."""

    def __init__(self):
        self.ours, self.jaxs, self.bad = (0.0, 0.0), (0.0, 0.0), False

    def add(self, ours, jaxs, ascending):
        """Adds a solution; returns whether its errors are within their limits."""
        # A NaN is below no limit, and the maximum keeps it.
        limits = (max(MOST, MORE * error) if error == error else MOST for error in jaxs)
        fine = all(error <= limit for error, limit in zip(ours, limits, strict=True))
        fine &= ascending
        self.bad |= not fine
        self.ours, self.jaxs = (
            tuple(map(float, np.maximum(*both))) for both in ((self.ours, ours), (self.jaxs, jaxs))
        )
        return fine


def worst_of(orders, dtype, kinds, counts):
    """Returns {(kind, ranks): Errors}, over the orders."""
    found = {(kind, count): Errors() for kind in kinds for count in counts}
    for n in orders:
        for kind in kinds:
            a = matrix(kind, n, dtype)
            jaxs = errors_of(a, *reference(jax.device_put(a, jax.devices()[0])))[:2]
            for count in counts:
                *ours, ascending = errors_of(a, *solution(a, count))
                if not found[kind, count].add(ours, jaxs, ascending):
                    said = f"{ours[0]:.2g} and {ours[1]:.2g}, JAX's {jaxs[0]:.2g} and {jaxs[1]:.2g}"
                    print(f"WRONG {kind} {dtype} n={n} {count} rank(s): {said}", flush=True)
        print(f"{dtype} n={n}", flush=True)
    return found


reference = jax.jit(functools.partial(jnp.linalg.eigh, symmetrize_input=False))


def solution(a, count):
    """Returns jaxmg's solution on ``count`` ranks; A is sharded by rows if JAX can shard it."""
    mesh = Mesh(np.array(jax.devices()[:count]), ("r",))
    spec = P("r", None) if len(a) % count == 0 else P()
    return jaxmg.eigh(jax.device_put(a, NamedSharding(mesh, spec)), mesh=mesh)


def errors_of(a, w, v):
    """Returns (residual, orthogonality, whether w ascends)."""
    n, unit = len(a), len(a) * np.finfo(a.dtype).eps
    w, v = np.asarray(w), np.asarray(v)
    ascending = bool((np.diff(w) >= 0).all())
    if n <= 100:  # on the host, without compilation
        errors = _errors(np, np.matmul, *map(problems.wide, (a, w, v)))
    else:
        one = SingleDeviceSharding(jax.devices()[0])
        errors = _compiled(*(jax.device_put(problems.wide(x), one) for x in (a, w, v)))
    return (*(float(error) / unit for error in errors), ascending)


def _errors(xp, multiply, a, w, v):
    def norm(m):
        return abs(m).sum(axis=0).max()

    size = norm(a)
    residual = norm(multiply(a, v) - v * w) / xp.where(size > 0, size, 1)
    return residual, norm(multiply(v.conj().T, v) - xp.eye(len(a)))


_compiled = jax.jit(
    functools.partial(_errors, jnp, functools.partial(jnp.matmul, precision="highest"))
)


def matrix(kind, n, dtype):
    """Returns a Hermitian (n, n) on the host: a real one, for complex dtypes times units on both
    sides."""
    random = np.random.default_rng([n, list(KINDS).index(kind)])
    a = KINDS[kind](n, float(np.finfo(dtype).eps), random)
    if np.dtype(dtype).kind == "c":
        if kind == "random":
            a = a + 1j * KINDS[kind](n, 0, random)
        units = np.exp(2j * np.pi * random.random(n))
        a = units[:, None] * a * units.conj()
    upper = np.triu(a, 1)
    return (upper + upper.conj().T + np.diag(np.diagonal(a).real)).astype(dtype)


def tridiagonal(d, e):
    return np.diag(d) + np.diag(e, 1) + np.diag(e, -1)


def reflected(eigenvalues, random):
    """Returns a matrix with these eigenvalues: a diagonal matrix after three reflections."""
    a = np.diag(eigenvalues)
    for _ in range(3):
        u = random.standard_normal(len(a))
        u /= np.linalg.norm(u)
        p = a @ u
        p -= (u @ p) * u
        a -= 2 * (np.outer(u, p) + np.outer(p, u))
    return a


def symmetric(n, random):
    a = random.standard_normal((n, n))
    return a + a.T


def _wilkinson(n, eps, random):
    return tridiagonal(abs(np.arange(n) - (n - 1) / 2), np.ones(n - 1))


def _glued(n, eps, random):
    """Returns Wilkinson matrices of order 21 along the diagonal, barely coupled."""
    i = np.arange(n)
    return tridiagonal(abs(i % 21 - 10.0), np.where(i % 21 == 20, eps**0.5, 1)[: n - 1])


def _graded(n, eps, random, direction=1):
    """Returns a matrix with entries from 1 to eps^2, or in the other direction."""
    scale = np.geomspace(1, eps, n)[::direction] if n > 1 else np.ones(1)
    return scale[:, None] * (np.eye(n) + symmetric(n, random) / (6 * n**0.5)) * scale


def _clustered(n, eps, random):
    """Returns a matrix with eigenvalues of which half are at 1 and half at 2, within 10 n eps."""
    i = np.arange(n)
    return reflected(1 + i // 3 % 2 + 10 * eps * i, random)


def _repeated(n, eps, random):
    low = random.standard_normal((n, min(n, 3)))
    return np.eye(n) + low @ low.T / n


def _kernel(n, eps, random):
    x = np.linspace(0, 1, n)
    return np.exp(-((x[:, None] - x) ** 2) / 0.02)


KINDS = {
    "random": lambda n, eps, random: symmetric(n, random),
    "wilkinson": _wilkinson,
    "glued": _glued,
    "graded down": _graded,
    "graded up": functools.partial(_graded, direction=-1),
    "geometric": lambda n, eps, random: reflected(np.geomspace(1, eps, n), random),
    "clustered": _clustered,
    "repeated": _repeated,
    "diagonal": lambda n, eps, random: np.diag(random.standard_normal(n)),
    "tridiagonal": lambda n, eps, random: tridiagonal(
        random.standard_normal(n), random.standard_normal(n - 1)
    ),
    "kernel": _kernel,
}


def table(orders, dtypes, found):
    """Returns the lines of a table: a row for each kind and number of ranks."""
    said = str(orders[0]) if len(orders) == 1 else f"{min(orders)}..{max(orders)}"
    lines = [f"{f'n={said}':<14}ranks" + "".join(f"{dtype:>28}" for dtype in dtypes)]
    for kind, count in dict.fromkeys(case[:2] for case in found):
        row = f"{kind:<14}{count:5}"
        for dtype in dtypes:
            error = found[kind, count, dtype]
            ours, jaxs = ("/".join(f"{e:.2g}" for e in es) for es in (error.ours, error.jaxs))
            row += f"{f'{ours} ({jaxs})' + '!' * error.bad:>28}"
        lines.append(row)
    return [*lines, ""]


def entry(args, orders, dtype, count, errors):
    """Returns a record."""
    names = ("residual", "orthogonality")
    return {
        **records.origin(
            records.name_of(jax.devices()[:count]),
            records.python("benchmarks/eigen_accuracy.py", sys.argv[1:]),
        ),
        "routine": "syevd", "backend": "native", "eigensolver": "all", "dtype": dtype,
        "n": list(orders), "ranks": count, "unit": "n eps",
        "errors": {
            kind: {
                **dict(zip(names, error.ours, strict=True)),
                "jax": dict(zip(names, error.jaxs, strict=True)), "good": not error.bad,
            }
            for (kind, ranks), error in errors.items() if ranks == count
        },
    }  # fmt: skip


if __name__ == "__main__":
    app.run(main, flags_parser=arguments)
