"""Checks hard problems: ill-conditioned and graded matrices, and bitwise repeatability.

    hard.py [--quick] [accuracy] [repeat]

Needs benchmarks/ on PYTHONPATH. Exits with the number of failures.
"""

import jax
import jax.numpy as jnp
import numpy as np
import problems
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from problems import DTYPES
from sections import attempt, eps, mesh_of, report, run

import jaxmg


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


class Problem:
    """One of the benchmarks' matrices, sharded by rows over the mesh, and the error of results for
    it."""

    def __init__(self, n, dtype, kind, mesh):
        self.n, self.dtype, self.kind = n, dtype, kind
        self.rows, self.everywhere = NamedSharding(mesh, P("r", None)), NamedSharding(mesh, P())
        self.a = self.make(self.rows)
        self.b = jax.device_put(problems.vectors(np, n, 3, dtype), self.everywhere)

    def entries(self):
        return problems.matrix(jnp, self.n, self.dtype, kind=self.kind)

    def make(self, sharding):
        return jax.jit(self.entries, out_shardings=sharding)()

    def run(self, routine, **options):
        operands = (self.a, self.b) if routine == "potrs" else (self.a,)
        *results, status = getattr(jaxmg, routine)(*operands, return_status=True, **options)
        return tuple(results), int(status)

    def reference(self, routine):
        """Returns the results of JAX's own solvers on one GPU."""
        linalg, device = jax.scipy.linalg, self.rows.mesh.devices.flat[0]
        a = self.make(jax.sharding.SingleDeviceSharding(device))
        b = jax.device_put(self.b, device)
        solvers = {
            "potrs": lambda: linalg.cho_solve(linalg.cho_factor(a), b),
            "potri": lambda: linalg.cho_solve(linalg.cho_factor(a), jnp.eye(self.n, dtype=a.dtype)),
            "syevd": lambda: tuple(jnp.linalg.eigh(a, symmetrize_input=False)),
        }
        return as_tuple(solvers[routine]())

    def error(self, routine):
        """Returns f(results), the backward error, computed in double precision."""

        @jax.jit
        def error(results):
            a = jax.lax.with_sharding_constraint(problems.wide(self.entries()), self.rows)
            results = tuple(map(problems.wide, results))
            b = {"b": problems.wide(self.b)}
            return problems.backward_error(jnp, routine, a, b, results, jnp.matmul)

        def place(x):
            return jax.device_put(x, self.rows if x.shape == (self.n,) * 2 else self.everywhere)

        return lambda results: float(error(tuple(map(place, results))))

    def eigenvalue_error(self, w):
        exact = problems.ill_eigenvalues(self.n, self.dtype)
        return np.abs(np.asarray(w, np.float64) - exact).max() / exact[-1]


def check_accuracy(name, routine, problem):
    """Errors may be at most ten times JAX's own on one GPU. They are far below eps, since |x| or
    the inverse is large, so eps would be no bound."""
    error = problem.error(routine)
    results, status = problem.run(routine)
    ours, theirs = error(results), error(reference := problem.reference(routine))
    unit = eps(problem.dtype)
    ok = status == 0 and ours <= 10 * theirs
    facts = [f"{ours / unit:.2g} eps, JAX {theirs / unit:.2g} eps, status {status}"]
    if routine == "syevd" and problem.kind == "ill":
        ours, theirs = (problem.eigenvalue_error(w) for w in (results[0], reference[0]))
        ok &= ours <= 10 * theirs
        facts.append(f"eigenvalues {ours / unit:.2g} eps, JAX {theirs / unit:.2g} eps")
    report(name, bool(ok), *facts)


def check_accuracies(name, *problem):
    problem = Problem(*problem)
    for routine in ("potrs", "potri", "syevd"):
        attempt(f"{name} {routine}", check_accuracy, routine, problem)


def uneven(n, ranks):
    """Returns an order near n for which a rank's rows aren't cut into equal tiles."""
    return (n // ranks + 1) * ranks


def accuracy(quick):
    """Checks hard matrices with the default tile width, which may or may not divide the rows."""
    mesh = mesh_of(jax.devices())
    even, odd = 1024 if quick else 8192, uneven(1200 if quick else 12000, mesh.devices.size)
    pairs = [(even, "ill"), (odd, "graded")]
    for dtype in DTYPES:
        both = pairs + [(even, "graded"), (odd, "ill")] * (dtype == "float64")
        for n, kind in both:
            attempt(f"accuracy {dtype} {kind} n={n}", check_accuracies, n, dtype, kind, mesh)


def check_repeat(name, routine, problem, options):
    (one, _), (other, _) = (problem.run(routine, **options) for _ in range(2))
    same = jax.jit(lambda x, y: problems.same_bits(jnp, x, y))(one, other)
    finite = all(bool(jnp.isfinite(x).all()) for x in one)
    report(name, bool(same) and finite, f"same bits {bool(same)}, finite {finite}")


def check_repeats(name, *problem):
    problem = Problem(*problem)
    precisions = (None, "tf32") if problem.dtype in ("float32", "complex64") else (None,)
    for routine in ("potrs", "potri"):
        for precision in precisions:
            options = {"precision": precision}
            attempt(f"{name} {routine} {precision or ''}", check_repeat, routine, problem, options)


def repeat(quick):
    """Checks that two runs with the same input yield the same bits."""
    mesh = mesh_of(jax.devices())
    for dtype in DTYPES:
        for n in (1024 if quick else 8192, uneven(1200 if quick else 12000, mesh.devices.size)):
            attempt(f"repeat {dtype} n={n}", check_repeats, n, dtype, "dominant", mesh)


if __name__ == "__main__":
    run({"accuracy": accuracy, "repeat": repeat})
