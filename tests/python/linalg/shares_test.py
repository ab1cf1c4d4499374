"""Batches of jaxmg.linalg: each device computes its share of the matrices."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases
from jax.sharding import AxisType

from jaxmg import linalg
from jaxmg._stacks import choice

pytestmark = cases.needs_transformations

_N = 5


def _matrices(leading, m, n, dtype, seed=0):
    return cases.normal(cases.rng(seed, *leading, m, n), (*leading, m, n), dtype)


def _svd_by(function, **options):
    """Returns a function of results that don't depend on signs."""

    def call(a, **where):
        u, s, vh = function(a, full_matrices=False, **options, **where)
        return (u * jnp.exp(-s)[..., None, :]) @ vh, s

    return call


def _qr_by(a, **where):
    """Returns QR factors with the signs of JAX's."""
    q, r = linalg.qr(a, **where)
    units = jnp.sign(jnp.diagonal(jnp.linalg.qr(a)[1], axis1=-2, axis2=-1).real)
    return q * units[..., None, :], units[..., None] * r


@cases.precisely
def _polar(a):
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return u @ vh, jnp.swapaxes(vh, -1, -2).conj() * s[..., None, :] @ vh


_B = _matrices((), _N, 2, "float64")
# Name -> (our function, JAX's, whether matrices are square).
_FUNCTIONS = {
    "inv": (linalg.inv, jnp.linalg.inv, True),
    "solve": (
        lambda a, **o: linalg.solve(a, _B.astype(a.dtype), **o),
        lambda a: jnp.linalg.solve(a, _B.astype(a.dtype)),
        True,
    ),
    "solve vector": (
        lambda a, **o: linalg.solve(a, _B[:, 0].astype(a.dtype), **o),
        lambda a: jnp.linalg.solve(a, _B[:, 0].astype(a.dtype)),
        True,
    ),
    "slogdet": (linalg.slogdet, jnp.linalg.slogdet, True),
    "det": (linalg.det, jnp.linalg.det, True),
    "lu": (linalg.lu, jax.vmap(jax.scipy.linalg.lu), False),
    "permuted lu": (
        lambda a, **o: linalg.lu(a, True, **o),
        jax.vmap(lambda a: jax.scipy.linalg.lu(a, True)),
        False,
    ),
    "qr": (_qr_by, jnp.linalg.qr, False),
    "svd": (_svd_by(linalg.svd), _svd_by(jnp.linalg.svd), False),
    "svdvals": (linalg.svdvals, jnp.linalg.svdvals, False),
    "pinv": (linalg.pinv, jnp.linalg.pinv, False),
    "polar": (linalg.polar, _polar, False),
    "solve_triangular": (
        lambda a, **o: linalg.solve_triangular(a, _B.astype(a.dtype), "C", lower=True, **o),
        jax.vmap(lambda a: jax.scipy.linalg.solve_triangular(a, _B.astype(a.dtype), 2, lower=True)),
        True,
    ),
}
_CASES = [
    (name, ranks, dtype, kind)
    for name in _FUNCTIONS
    for ranks in (1, 2, 4, 8)
    for dtype in cases.DTYPES
    for kind in (AxisType.Auto, AxisType.Explicit)
]
_CORE = [("inv", 2, "float32", AxisType.Explicit)]


@pytest.mark.parametrize(
    "name, ranks, dtype, kind", cases.broad(_CASES, lambda *case: case in _CORE, alone=True)
)
def test_each_matrix_as_by_jax(name, ranks, dtype, kind):
    ours, theirs, square = _FUNCTIONS[name]
    mesh = cases.line(ranks, kind=kind)
    for count, m, entries in ((5, _N, ()), (ranks, _N if square else 7, ("r",))):
        a = _matrices((count,), m, _N, dtype) + 3 * np.eye(m, _N, dtype=dtype)
        expected = theirs(jnp.asarray(a))
        placed = cases.shard(a, mesh, *entries)
        for found in (ours(placed, mesh=mesh), jax.vmap(lambda a: ours(a, mesh=mesh))(placed)):
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                assert x.shape == y.shape and x.dtype == y.dtype
                limit = 500 * cases.eps(dtype) * max(1, float(jnp.abs(y).max()))
                np.testing.assert_allclose(x, y, rtol=0, atol=limit)


_GRADIENTS = [
    (name, ranks, dtype, kind)
    for name in _FUNCTIONS
    for ranks, kind in ((1, AxisType.Auto), (4, AxisType.Auto), (2, AxisType.Explicit))
    for dtype in ("float64", "complex128")
]


@pytest.mark.parametrize(
    "name, ranks, dtype, kind",
    cases.broad(_GRADIENTS, lambda *_: False, alone=True),
)
def test_gradients_are_those_of_jax(name, ranks, dtype, kind):
    ours, theirs, square = _FUNCTIONS[name]
    mesh, m = cases.line(ranks, kind=kind), _N if square else 7
    if "lu" in name:
        m = _N  # for other shapes derivatives of the product with the permutation differ
    a = _matrices((4,), m, _N, dtype) + 3 * np.eye(m, _N, dtype=dtype)

    def evaluate(function):
        def loss(a):
            leaves = jax.tree.leaves(function(a))
            return sum(jnp.sum(jnp.sin(leaf.real) + leaf.imag**2) for leaf in leaves)

        return jax.grad(loss)

    expected = evaluate(theirs)(jnp.asarray(a))
    placed = cases.shard(a, mesh)
    for function in (lambda a: ours(a, mesh=mesh), jax.vmap(lambda a: ours(a, mesh=mesh))):
        found = cases.on(mesh, evaluate(function))(placed)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


_HERMITIAN = {
    "cholesky": (linalg.cholesky, jnp.linalg.cholesky),
    "upper": (
        lambda a, **o: linalg.cholesky(a, upper=True, **o),
        lambda a: jnp.linalg.cholesky(a, upper=True),
    ),
    "eigvalsh": (linalg.eigvalsh, jnp.linalg.eigvalsh),
}


@pytest.mark.parametrize(
    "name, ranks, dtype, kind",
    cases.broad(
        [
            (name, ranks, dtype, kind)
            for name in _HERMITIAN
            for ranks in (1, 2, 4)
            for dtype in cases.DTYPES
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        lambda *case: case == ("cholesky", 2, "complex128", AxisType.Auto),
        slow=lambda *_: True,
    ),
)
def test_hermitian_matrices_and_gradients(name, ranks, dtype, kind):
    ours, theirs = _HERMITIAN[name]
    mesh = cases.line(ranks, kind=kind)
    a = _matrices((4,), _N, _N, dtype)
    a = a @ a.swapaxes(1, 2).conj() + np.eye(_N, dtype=dtype)
    placed = cases.shard(a, mesh)

    def evaluate(function):
        return lambda a: jnp.sum(jnp.sin(function(a).real)) + jnp.sum(function(a).imag ** 2)

    found, expected = ours(placed, mesh=mesh), theirs(jnp.asarray(a))
    limit = 1e3 * cases.eps(dtype)
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit * np.abs(expected).max())
    found = cases.on(mesh, jax.grad(evaluate(functools.partial(ours, mesh=mesh))))(placed)
    expected = jax.grad(evaluate(theirs))(jnp.asarray(a))
    # Our gradient may be upper triangular, with doubled entries. Derivatives along Hermitian
    # matrices depend only on its Hermitian part.
    found, expected = map(_hermitian_part, (found, expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=10 * limit * np.abs(expected).max())


def _hermitian_part(a):
    return (np.asarray(a) + np.asarray(a).swapaxes(-1, -2).conj()) / 2


@pytest.mark.slow
def test_which_triangle_of_a_batch_is_read():
    mesh, a = cases.line(2), np.tile(np.eye(4) + 3, (3, 1, 1))
    a[1, 0, 3] = 7
    whole = np.asarray(linalg.cholesky(a, mesh=mesh))
    assert list(np.isnan(whole).any(axis=(1, 2))) == [False, True, False]
    lower = linalg.cholesky(a, symmetrize_input=False, mesh=mesh)
    np.testing.assert_allclose(lower, np.linalg.cholesky(np.tile(np.eye(4) + 3, (3, 1, 1))))
    a[2] = -np.eye(4)
    failed = np.asarray(linalg.cholesky(a, symmetrize_input=False, mesh=mesh))
    assert list(np.isnan(failed).any(axis=(1, 2))) == [False, False, True]


@pytest.mark.slow
def test_leading_dimensions_and_batches_of_batches():
    mesh = cases.line(4)
    a = _matrices((2, 3), 6, 4, "float64")
    q, r = linalg.qr(a, mesh=mesh)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), a, atol=1e-13)
    assert (np.diagonal(r, axis1=-2, axis2=-1) >= 0).all()
    again = jax.vmap(jax.vmap(lambda a: linalg.qr(a, "r", mesh=mesh), 1), 1)(np.moveaxis(a, 2, 0))
    np.testing.assert_allclose(again, r, atol=1e-13)


@pytest.mark.slow
def test_right_hand_sides_that_broadcast():
    mesh = cases.line(2)
    a, b = _matrices((3, 1), 4, 4, "float64"), _matrices((2,), 4, 2, "float64")
    x = linalg.solve(a, b, mesh=mesh)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), atol=1e-12)


@pytest.mark.breadth
def test_modes_of_qr():
    mesh, a = cases.line(2), _matrices((3,), 6, 4, "complex64")
    q, r = linalg.qr(a, "complete", mesh=mesh)
    assert q.shape == (3, 6, 6) and r.shape == (3, 6, 4)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), a, atol=1e-5)
    h, taus = linalg.qr(a, "raw", mesh=mesh)
    assert h.shape == (3, 4, 6) and taus.shape == (3, 4)


@pytest.mark.slow
def test_a_failure_is_that_of_one_matrix():
    mesh = cases.line(2)
    a = _matrices((4,), 6, 6, "float64")
    a[2, 1, 3] = np.nan
    for name in ("inv", "svdvals", "qr", "polar"):
        result = getattr(linalg, name)(cases.shard(a, mesh, "r"), mesh=mesh)
        for x in jax.tree.leaves(result):
            bad = np.isnan(np.asarray(x)).reshape(4, -1).any(axis=1)
            assert list(bad) == [False, False, True, False], name


def _collectives(function, *arrays):
    text = jax.jit(function).lower(*arrays).compile().as_text()
    names = ("all-to-all", "all-gather", "all-reduce", "collective-permute")
    return {name for name in names if re.search(rf" {name}(?:-start)?\(", text)}


@pytest.mark.extended
def test_a_batch_that_lies_by_matrices_is_not_exchanged():
    mesh = cases.line(4)
    a = cases.shard(_matrices((8,), 6, 6, "float64"), mesh, "r")
    for function in (linalg.inv, linalg.qr, linalg.svdvals):
        assert not _collectives(functools.partial(function, mesh=mesh), a)
    assert linalg.inv(a).sharding.is_equivalent_to(a.sharding, 3)


@pytest.mark.slow
def test_a_row_of_the_table_is_what_is_computed(monkeypatch):
    """A row of the table determines the algorithm. JAX's own contains a primitive that the other
    one doesn't."""
    mesh = cases.line(1)
    a = jax.ShapeDtypeStruct((3, 37, 37), "float32")

    def text():
        jax.clear_caches()
        return jax.jit(lambda a: linalg.qr(a, mesh=mesh)).lower(a).as_text()

    stack_cases.use_rows(monkeypatch)
    assert "geqrf" in text()
    stack_cases.use_rows(monkeypatch, qr=(choice.Row("cpu", "blocked", (37, 37)),))
    cases.forget_plans()
    assert "geqrf" not in text()
    cases.forget_plans()
