"""Kept factors in batches of two dimensions on explicit axes: values, derivatives of both modes and
of second order, also of a batch of a jitted function, whose derivative JAX traces without the
batch."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg._linalg import on_one

pytestmark = cases.needs_transformations


_still = jax.lax.stop_gradient


def _lower(a):
    return jnp.linalg.cholesky(a, symmetrize_input=False)


def _r(a):
    """Returns R, up to signs, of a QR factorization."""
    return _lower(a.T @ a).T


# Name -> (function of (a, b) with a kept factor, the same by JAX, kind of A).
_TABLE = {
    "cholesky-solve": (lambda a, b: jaxmg.cho_factor(a).solve(b), jnp.linalg.solve, "definite"),
    "cholesky-halves": (
        lambda a, b: [jaxmg.cho_factor(a, 3).solve_triangular(b, trans) for trans in "NT"],
        lambda a, b: [jnp.linalg.inv(x) @ b for x in (_lower(a), _lower(a).T)],
        "definite",
    ),
    "cholesky-products": (
        lambda a, b: [jaxmg.cho_factor(a).matmul(b, trans) for trans in "NT"],
        lambda a, b: [_lower(a) @ b, _lower(a).T @ b],
        "definite",
    ),
    "cholesky-parts": (
        lambda a, b: [
            getattr(jaxmg.cho_factor(a, 3), name)() for name in ("logdet", "diagonal", "inv")
        ],
        lambda a, b: [jnp.linalg.slogdet(a)[1], jnp.diagonal(_lower(a)), jnp.linalg.inv(a)],
        "definite",
    ),
    "cholesky-upper": (
        lambda a, b: jaxmg.cho_factor(a).upper(),
        lambda a, b: _lower(a).T,
        "definite",
    ),
    "cholesky-refined": (
        lambda a, b: jaxmg.cho_factor(a, refine="auto").solve(b),
        jnp.linalg.solve,
        "definite",
    ),
    "lu-solve": (
        lambda a, b: [jaxmg.lu_factor(a).solve(b, trans) for trans in "NT"],
        lambda a, b: [jnp.linalg.solve(x, b) for x in (a, a.T)],
        "general",
    ),
    "lu-parts": (
        lambda a, b: [
            jaxmg.lu_factor(a, 3).logdet(),
            jaxmg.lu_factor(a, 3).det(),
            jaxmg.lu_factor(a, 3).inv(),
        ],
        lambda a, b: [jnp.linalg.slogdet(a)[1], jnp.linalg.det(a), jnp.linalg.inv(a)],
        "general",
    ),
    "lu-refined": (
        lambda a, b: jaxmg.lu_factor(a, refine="auto").solve(b),
        jnp.linalg.solve,
        "general",
    ),
    "qr-solve": (
        lambda a, b: jaxmg.geqrf(a).solve(b),
        lambda a, b: jnp.linalg.solve(a.T @ a, a.T @ b),
        "tall",
    ),
    "qr-solve-square": (lambda a, b: jaxmg.geqrf(a, 3).solve(b), jnp.linalg.solve, "general"),
    "qr-r": (lambda a, b: jaxmg.geqrf(a).r ** 2, lambda a, b: _r(a) ** 2, "tall"),
    "qr-q": (
        lambda a, b: jaxmg.geqrf(a).q() ** 2,
        lambda a, b: (a @ jnp.linalg.inv(_r(a))) ** 2,
        "tall",
    ),
    "qr-multiply": (  # has no derivative by A
        lambda a, b: jaxmg.geqrf(_still(a)).multiply(b, "T")[: a.shape[1]] ** 2,
        lambda a, b: (jnp.linalg.inv(_r(_still(a))).T @ _still(a).T @ b) ** 2,
        "tall",
    ),
}
_SPECS = {
    "replicated": lambda ranks: ((2, 3), ()),
    "outer": lambda ranks: ((ranks, 2), ("r",)),
    "inner": lambda ranks: ((2, ranks), (None, "r")),
    "rows": lambda ranks: ((2, 3), (None, None, "r")),
    "columns": lambda ranks: ((2, 3), (None, None, None, "r")),
}
_CORE = [
    ("cholesky-solve", "replicated", "vmap of jit", 2, "all"),
]


def _matrices(kind, leading, rows, columns):
    random = cases.rng(7, rows, *leading)
    if kind == "tall":
        return random.standard_normal((*leading, rows, columns)) + 2 * np.eye(rows, columns)
    a = random.standard_normal((*leading, rows, rows))
    if kind == "general":
        return a + 4 * np.eye(rows)
    return a @ np.swapaxes(a, -1, -2) / rows + np.eye(rows)


def _total(function):
    """Returns the sum of smooth functions of all results."""
    return lambda a, b: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(function(a, b)))


def _all(function, a, b, moved):
    """Returns the values, the tangent, the gradients and a product with the second derivative."""
    total = _total(function)
    gradient = jax.grad(total, (0, 1))
    return (
        function(a, b),
        jax.jvp(total, (a, b), moved)[1],
        gradient(a, b),
        jax.jvp(gradient, (a, b), moved)[1],
    )


def _check(name, spec, way, ranks):
    ours, theirs, kind = _TABLE[name]
    leading, entries = _SPECS[spec](ranks)
    rows, columns = {"rows": (8, 4), "columns": (8 if kind != "tall" else 12, 8)}.get(spec, (7, 4))
    matrices = _matrices(kind, leading, rows, columns)
    mesh = cases.line(ranks, kind=AxisType.Explicit)
    b = np.linspace(1, 2, rows)

    def make(function, inside):
        def one(a, b):
            a = (a + cases.like(a.T, a)) / 2 if kind == "definite" else a
            return function(a, b)

        return jax.vmap(jax.vmap(inside(one), (0, None)), (0, None))

    wanted = functools.partial(_all, make(theirs, lambda f: f))
    inside = jax.jit if way == "vmap of jit" else lambda f: f
    found = functools.partial(_all, make(ours, inside))
    if way != "eager":
        found = jax.jit(found)
    with cases.context(cases.line(1)):
        moved = matrices / 3 + 0.1, np.ones(rows)
        wanted = jax.jit(wanted)(*map(jnp.asarray, (matrices, b)), tuple(map(jnp.asarray, moved)))
        wanted = jax.tree.map(np.asarray, wanted)
    with cases.context(mesh):
        a = cases.shard(matrices, mesh, *entries)
        moved = cases.shard(moved[0], mesh, *entries), cases.shard(moved[1], mesh)
        found = found(a, cases.shard(b, mesh), moved)
    assert jax.typeof(found[2][0]).sharding.spec == jax.typeof(a).sharding.spec
    for what, x, y in zip(("value", "jvp", "gradient", "second"), found, wanted, strict=True):
        for one, other in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            np.testing.assert_allclose(
                np.asarray(one), other, rtol=1e-7, atol=1e-7 * np.abs(other).max(), err_msg=what
            )


# Ways, meshes and whether one device computes for all take turns.
_CASES = [
    (name, spec, way, (2, 4, 1, 8)[(i + j + i // 4) % 4], ("all", "one")[(i + j + k) % 2])
    for (i, name), (j, spec) in itertools.product(enumerate(_TABLE), enumerate(_SPECS))
    for k, way in enumerate(("vmap of jit", "jit of vmap" if (i + j) % 4 else "eager"))
]


@pytest.mark.parametrize(
    "name, spec, way, ranks, by",
    cases.broad(_CASES, lambda *case: case in _CORE, alone=True),
)
def test_batches(name, spec, way, ranks, by, monkeypatch):
    monkeypatch.setattr(on_one, "MOST", 512 if by == "one" else 0)
    _check(name, spec, way, ranks)


@pytest.mark.parametrize("shape", [(12, 8), (13, 4)], ids=str)
@pytest.mark.parametrize("part", ["q", "r", "diagonal"])
def test_tall_matrices_by_columns(part, shape):
    """JAX pads no dimension that explicit axes shard."""
    mesh = cases.line(4, kind=AxisType.Explicit)
    a = cases.shard(np.eye(*shape), mesh, None, "r")

    def total(a):
        factor = jaxmg.geqrf(a)
        value = factor.r if part == "r" else getattr(factor, part)()
        return jnp.sum(value**4)

    with cases.context(mesh):
        gradient = jax.eval_shape(jax.grad(total), a)
    assert gradient.sharding.spec == a.sharding.spec
