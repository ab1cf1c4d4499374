"""Values at extreme scales: a function that is homogeneous of degree d gives 2^(dk) f(A) of 2^k A.

tests/fuzz/scales.py has all functions and random scales.
"""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmg import linalg

# Powers of two at which squares of entries overflow or vanish, and entries don't.
_FAR = {"float32": (-100, 120), "float64": (-900, 1000)}
_NORMS = (None, "fro", 1, -1, np.inf, -np.inf, 2, -2, "nuc")
_VECTOR_NORMS = (None, 1, 2, 3, -1, -2, 0.5, np.inf, -np.inf)


def _random(dtype, *shape, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * random.standard_normal(shape)
    return x.astype(dtype)


def _times(x, k):
    """x 2^k, exactly."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return (np.ldexp(x.real, k) + 1j * np.ldexp(x.imag, k)).astype(x.dtype)
    return np.ldexp(x, k)


def _powers(dtype):
    return _FAR[str(np.finfo(dtype).dtype)]


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_norm(dtype):
    a, where = _random(dtype, 8, 8), {"mesh": cases.line(4)}
    for order in _NORMS:
        exact = np.linalg.norm(a.astype(np.complex128), order)
        value = np.asarray(linalg.norm(jnp.asarray(a), order, **where))
        assert abs(value - exact) <= 100 * np.finfo(dtype).eps * exact
        for k in _powers(dtype):
            assert linalg.norm(jnp.asarray(_times(a, k)), order, **where) == _times(value, k)


@pytest.mark.parametrize("order", _VECTOR_NORMS)
def test_norm_of_vectors_and_gradient(order):
    x = _random("float32", 3, 8)

    def of(x):
        return linalg.norm(x, order, axis=1)

    value, gradient = of(jnp.asarray(x)), jax.grad(lambda x: of(x).sum())(jnp.asarray(x))
    np.testing.assert_allclose(value, np.linalg.norm(x, order, axis=1), rtol=1e-5)
    with jax.enable_x64(True):
        exact = jax.grad(lambda x: jnp.linalg.norm(x, order, axis=1).sum())(x.astype(float))
    np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=1e-6)
    for k in _powers(x.dtype):
        scaled = jnp.asarray(_times(x, k))
        np.testing.assert_array_equal(of(scaled), _times(value, k))
        np.testing.assert_array_equal(jax.grad(lambda x: of(x).sum())(scaled), gradient)


def test_norm_of_zeros_infinity_and_other_dtypes():
    assert linalg.norm(jnp.zeros(3)) == 0 == linalg.norm(jnp.zeros((3, 2)), "fro")
    assert linalg.norm(jnp.zeros(0)) == 0
    for dtype in ("float32", "complex64"):
        assert linalg.norm(jnp.array([1, np.inf], dtype)) == np.inf
        assert linalg.norm(jnp.array([1, 0], dtype), -2) == 0
    assert linalg.norm(jnp.array([3, 4])) == 5
    assert linalg.norm(jnp.array([3, 4], jnp.bfloat16)).dtype == jnp.bfloat16
    hessian = jax.hessian(linalg.norm)(jnp.array([3e-20, 4e-20]))
    np.testing.assert_allclose(hessian, np.array([[16, -12], [-12, 9]]) / 125e-20, rtol=1e-5)


@pytest.mark.parametrize("ranks", [1, 4])
def test_norm_keeps_nan(ranks):
    """Whichever device has it: XLA's maximum over a sharded axis loses it on CPU devices."""
    mesh = cases.line(ranks)
    for row in (0, 5):
        a = np.ones((8, 8))
        a[row, 1] = np.nan
        placed = cases.shard_rows(a, mesh)
        for order in _NORMS:
            assert np.isnan(linalg.norm(placed, order)), order
        for order in _VECTOR_NORMS:
            assert np.isnan(linalg.norm(placed[:, 1], order)), order
        for p in (None, 1, -1, np.inf, -np.inf, "fro", "nuc"):
            assert np.isnan(linalg.cond(placed, p)), p


@pytest.mark.parametrize("p", [None, -2, 1, -1, np.inf, -np.inf, "fro", "nuc"])
def test_cond(p):
    a = _random("float32", 6, 6)
    a[:, 0] *= 2.0**-12
    value = linalg.cond(jnp.asarray(a), p, mesh=cases.line(2))
    np.testing.assert_allclose(value, np.linalg.cond(a.astype(float), p), rtol=1e-2)
    for k in (-104, 124):
        assert linalg.cond(jnp.asarray(_times(a, k)), p, mesh=cases.line(2)) == value


def test_cond_of_identity():
    for n in (2, 3, 7):
        assert linalg.cond(np.eye(n), 1, mesh=cases.line(2)) == 1


def test_matrix_rank():
    """The smaller singular value is denormal, and no entry is."""
    a = np.array([[1, 1], [1, 1 + 2.0**-20]], np.float32)
    for k in (0, -115):
        assert linalg.matrix_rank(jnp.asarray(_times(a, k)), 1e-9, mesh=cases.line(2)) == 2
