"""`jaxmg.linalg.eigh` of two matrices: the problems of types 1, 2 and 3."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from jaxmg import linalg

_TYPES = [2, *(cases.breadth(type) for type in (1, 3))]
_DTYPES = ("float32", "float64", "complex64", "complex128")


def _matrices(n, dtype, seed=0):
    rng = cases.rng(n, seed)
    a, b = (cases.normal(rng, (n, n), dtype) for _ in range(2))
    return a + a.conj().T, (b @ b.conj().T / max(n, 1) + np.eye(n)).astype(dtype)


def _check(a, b, type, found):
    """Checks the eigenvalues by SciPy's, and each pair and the scale of v by definition."""
    __tracebackhide__ = True
    w, v = map(cases.wide, found)
    a, b = cases.wide(a), cases.wide(b)
    unit = len(a) * np.finfo(found[1].dtype).eps
    expected = scipy.linalg.eigh(a, b, type=type, eigvals_only=True)
    largest, condition = np.abs(expected).max(), np.linalg.cond(b)
    np.testing.assert_allclose(w, expected, rtol=0, atol=30 * condition * unit * largest)
    product = {1: np.linalg.solve(b, a), 2: a @ b, 3: b @ a}[type]
    size = largest * np.abs(v).max()
    np.testing.assert_allclose(product @ v, v * w, rtol=0, atol=100 * condition * unit * size)
    metric = np.linalg.inv(b) if type == 3 else b
    inner = v.conj().T @ metric @ v
    np.testing.assert_allclose(inner, np.eye(len(a)), rtol=0, atol=100 * condition * unit)


@pytest.mark.parametrize(
    "type, dtype, ranks, n",
    cases.broad(
        itertools.product((1, 2, 3), _DTYPES, (1, 2, 4, 8), (1, 7, 24)),
        lambda type, dtype, ranks, n: (type, dtype, ranks, n) in (
            (2, "complex64", 4, 7), (3, "float64", 2, 24), (2, "float32", 1, 7),
        ),
    ),
)  # fmt: skip
def test_pairs(type, dtype, ranks, n):
    a, b = _matrices(n, dtype)
    mesh = cases.line(ranks)
    found = linalg.eigh(cases.shard_rows(a, mesh), b, type=type, mesh=mesh)
    assert found.eigenvectors.dtype == dtype and found.eigenvalues.dtype == a.real.dtype
    _check(a, b, type, found)


@pytest.mark.extended
@pytest.mark.parametrize("type", _TYPES)
@pytest.mark.parametrize("lower", [False, True])
def test_one_triangle_is_read(lower, type):
    a, b = _matrices(9, "complex128")
    read = [np.where(np.tri(9, k=-1, dtype=bool) == lower, x, np.nan) for x in (a, b)]
    for x, whole in zip(read, (a, b), strict=True):
        np.fill_diagonal(x, whole.diagonal())
    mesh = cases.line(3)
    _check(a, b, type, linalg.eigh(read[0], read[1], lower=lower, type=type, mesh=mesh))
    w = linalg.eigh(read[0], b=read[1], lower=lower, type=type, eigvals_only=True, mesh=mesh)
    _check(a, b, type, (w, linalg.eigh(a, b, type=type, mesh=mesh)[1]))


@pytest.mark.extended
@pytest.mark.parametrize("type", _TYPES)
@pytest.mark.parametrize("bad", ["indefinite", "nan in a", "nan in b", "not Hermitian"])
def test_matrices_without_pairs(bad, type):
    a, b = _matrices(6, "float64")
    if bad == "indefinite":
        b[3, 3] = -5
    elif bad == "nan in a":
        a[1, 1] = np.nan
    elif bad == "nan in b":
        b[5, 5] = np.nan
    else:
        b[0, 5] += 1
    w, v = linalg.eigh(a, b, type=type, mesh=cases.line(2))
    assert np.isnan(w).all() and np.isnan(v).all()


@pytest.mark.extended
@pytest.mark.parametrize("type", _TYPES)
def test_dtypes_are_promoted(type):
    a, _ = _matrices(6, "float32")
    _, b = _matrices(6, "complex128")
    found = linalg.eigh(a, b, type=type, mesh=cases.line(2))
    assert found.eigenvectors.dtype == "complex128"
    _check(a, b, type, found)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("type", _TYPES)
def test_batches_broadcast(type):
    pairs = [_matrices(6, "float64", seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    mesh = cases.line(2)
    both = linalg.eigh(a, b, type=type, mesh=mesh)
    one = jax.jit(lambda a, b: linalg.eigh(a, b, type=type, mesh=mesh))(a, b[0])
    for i in range(3):
        _check(a[i], b[i], type, (both[0][i], both[1][i]))
        _check(a[i], b[0], type, (one[0][i], one[1][i]))


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("type", _TYPES)
def test_derivatives_by_both_matrices(type):
    a, b = _matrices(5, "float64")
    mesh = cases.line(2)

    def dense(a, b):
        b = (b + b.T) / 2
        factor = jnp.linalg.cholesky(b)
        if type == 1:
            half = jax.scipy.linalg.solve_triangular(factor, (a + a.T) / 2, lower=True)
            c = jax.scipy.linalg.solve_triangular(factor, half.T, lower=True)
        else:
            c = factor.T @ (a + a.T) @ factor / 2
        w, y = jnp.linalg.eigh(c)
        if type == 3:
            v = factor @ y
        else:
            v = jax.scipy.linalg.solve_triangular(factor.T, y)
        return jnp.sum(w**3) + jnp.sum(v[0] ** 2 * jnp.arange(5))

    def ours(a, b):
        w, v = linalg.eigh((a + a.T) / 2, (b + b.T) / 2, type=type, mesh=mesh)
        return jnp.sum(w**3) + jnp.sum(v[0] ** 2 * jnp.arange(5))

    np.testing.assert_allclose(ours(a, b), dense(a, b), rtol=1e-10)
    found, expected = (jax.grad(f, (0, 1))(a, b) for f in (ours, dense))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-8)
