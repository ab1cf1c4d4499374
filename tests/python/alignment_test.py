"""Orders whose rows begin off 16 bytes: a larger matrix, whose other rows are the identity's, gives
the same results. That is for large orders on GPUs; these tests have it for small ones, and on CPU
devices too."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg._call import alignment, execute, programs
from jaxmg._transform import dispatch

# Rows of results are looked at whole.
pytestmark = cases.one_process("rows of processes are extended as those of devices")


@pytest.fixture
def orders(monkeypatch):
    """The larger orders that calls work on, a list that grows."""
    found = []

    def extend(call, arrays):
        found.append((arrays[0].shape[1], call.order))
        return original(call, arrays)

    def forget():  # the plans of other tests, which don't know of this one
        dispatch._plan.cache_clear()
        execute._resolve_with_call.cache_clear()
        programs._compiled.cache_clear()

    original = alignment.extend
    monkeypatch.setattr(alignment, "extend", extend)
    monkeypatch.setattr(alignment, "_PLATFORMS", ("cpu", "gpu"))
    monkeypatch.setattr(alignment, "_LEAST", 1)
    forget()
    yield found
    forget()


def matrix(n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(n, n))
    if np.dtype(dtype).kind == "c":
        g = g + 1j * rng.normal(size=(n, n))
    return (g @ g.conj().T / n + np.eye(n)).astype(dtype)


def is_larger(n, dtype, ranks):
    return n * np.dtype(dtype).itemsize % 16 != 0 and (ranks == 1 or n % ranks != 0)


_ORDERS, _RANKS = (1, 33, 42, 63), (1, 2, 4)


@pytest.mark.core("2-float64-42", "4-complex128-63")
@pytest.mark.parametrize(
    "ranks, dtype, n",
    cases.broad(
        itertools.product(_RANKS, cases.DTYPES, _ORDERS),
        lambda ranks, dtype, n: (
            (_RANKS.index(ranks) + cases.DTYPES.index(dtype) + _ORDERS.index(n)) % 4 == 0 and n > 40
        ),
    ),
)
def test_results_are_those_of_the_matrix(orders, n, dtype, ranks):
    mesh = cases.line(ranks)
    a = matrix(n, dtype)
    b = np.arange(3 * n).reshape(n, 3).astype(dtype)
    on_mesh, eps = cases.shard_rows(a, mesh), np.finfo(dtype).eps

    def solve(a, b):
        return jaxmg.potrs(a, b, mesh=mesh, return_logdet=True, return_status=True)

    for run in (solve, jax.jit(solve)):
        x, logdet, status = run(on_mesh, b)
        assert x.shape == b.shape and x.dtype == b.dtype and status == 0
        np.testing.assert_allclose(a @ np.asarray(x), b, atol=500 * eps * np.abs(b).max())
        np.testing.assert_allclose(logdet, np.linalg.slogdet(a)[1], rtol=1e3 * eps, atol=1e3 * eps)
    for matrix_somewhere in (on_mesh, a):  # NumPy's comes to the mesh with rows of zeros below
        inverse = jaxmg.potri(matrix_somewhere, mesh=mesh)
        assert inverse.shape == (n, n)
        np.testing.assert_allclose(a @ np.asarray(inverse), np.eye(n), atol=500 * eps)
    assert bool(orders) is is_larger(n, dtype, ranks)
    for order, larger in orders:
        assert order == n and n < larger < n + 32 * ranks and larger % (32 * ranks) == 0


@pytest.mark.parametrize("kind", (AxisType.Auto, AxisType.Explicit))
def test_explicit_axes(orders, kind):
    mesh = cases.line(1, kind=kind)
    a = cases.shard_rows(matrix(33, "float64"), mesh)
    x = jaxmg.potrs(a, jnp.ones(33), mesh=mesh)
    np.testing.assert_allclose(np.asarray(a) @ np.asarray(x), np.ones(33), atol=1e-12)
    assert orders


@pytest.mark.extended
@cases.needs_transformations
def test_derivatives(orders):
    a, b = jnp.asarray(matrix(33, "float64")), jnp.ones(33)

    def value(a):
        x, logdet = jaxmg.potrs(a, b, return_logdet=True)
        return jnp.sum(x**2) + logdet

    def reference(a):
        a = jnp.triu(a) + jnp.triu(a, 1).T
        return jnp.sum(jnp.linalg.solve(a, b) ** 2) + jnp.linalg.slogdet(a)[1]

    np.testing.assert_allclose(value(a), reference(a), rtol=1e-12)
    np.testing.assert_allclose(
        jnp.triu(jax.grad(value)(a)), jnp.triu(jax.grad(reference)(a)), atol=1e-10
    )


@pytest.mark.core("20")
@pytest.mark.parametrize("minor", (1, 20, 33))
def test_not_positive_definite(orders, minor):
    a = matrix(33, "float64")
    a[minor - 1, minor - 1] = -1
    x, status = jaxmg.potrs(a, np.ones(33), return_status=True)
    assert status == minor and np.isnan(x).all()
    inverse, status = jaxmg.potri(a, return_status=True)
    assert status == minor and np.isnan(inverse).all()
    assert orders


def test_donated_matrices_are_gone(orders):
    a = jnp.asarray(matrix(33, "float64"))
    expected = np.linalg.solve(np.asarray(a), np.ones(33))
    np.testing.assert_allclose(jaxmg.potrs(a, jnp.ones(33), donate=True), expected, atol=1e-12)
    assert a.is_deleted() and orders


def test_matrices_that_fill_a_device_stay_as_they_are(orders, monkeypatch):
    from jaxmg._call import layouts

    monkeypatch.setattr(layouts.Layout, "memory", 64 * 64 * 8 * 5 // 2)
    a = jnp.asarray(matrix(33, "float64"))
    jaxmg.potri(a)
    assert not orders
    monkeypatch.setattr(layouts.Layout, "memory", 1 << 30)
    dispatch._plan.cache_clear()
    jaxmg.potri(a)
    assert orders


def test_matrices_that_the_caller_has_padded_stay_as_they_are(orders):
    a = np.zeros((35, 33))
    a[:33] = matrix(33, "float64")
    jaxmg.potrs(a, np.ones(33), mesh=cases.line(1), pad=False)
    assert not orders


def test_small_orders_stay_as_they_are():
    assert alignment._LEAST >= 1024 and alignment._PLATFORMS == ("gpu",)
