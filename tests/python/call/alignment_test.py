"""Matrices whose rows don't begin at multiples of 16 bytes: a larger matrix, extended by rows of
the identity, gives the same results. jaxmg extends only large orders on GPUs; these tests extend
small ones, and on CPU devices too."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

import jaxmg
from jaxmg._call import alignment

# The tests compare the whole results in one process.
pytestmark = cases.one_process("rows of processes are extended as those of devices")


@pytest.fixture
def orders(monkeypatch):
    """Returns a list of the (order, larger order) pairs of the calls so far."""
    found = []

    def extend(call, arrays):
        found.append((arrays[0].shape[1], call.order))
        return original(call, arrays)

    original = alignment.extend
    monkeypatch.setattr(alignment, "extend", extend)
    monkeypatch.setattr(alignment, "_PLATFORMS", ("cpu", "gpu"))
    monkeypatch.setattr(alignment, "_LEAST", 1)
    cases.forget_plans()  # plans of other tests ignore the patch
    yield found
    cases.forget_plans()


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
    for matrix_somewhere in (on_mesh, a):  # NumPy's lies on the mesh with rows of zeros below
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
    from jaxmg._layouts import layouts

    monkeypatch.setattr(layouts.Layout, "memory", 64 * 64 * 8 * 5 // 2)
    a = jnp.asarray(matrix(33, "float64"))
    jaxmg.potri(a)
    assert not orders
    monkeypatch.setattr(layouts.Layout, "memory", 1 << 30)
    cases.forget_plans()
    jaxmg.potri(a)
    assert orders


def test_matrices_that_the_caller_has_padded_stay_as_they_are(orders):
    a = np.zeros((35, 33))
    a[:33] = matrix(33, "float64")
    jaxmg.potrs(a, np.ones(33), mesh=cases.line(1), pad=False)
    assert not orders


def test_small_orders_stay_as_they_are():
    assert alignment._LEAST >= 1024 and alignment._PLATFORMS == ("gpu",)


def general(n, dtype):
    rng = np.random.default_rng(7)
    parts = [rng.normal(size=(n, n)) for _ in range(2 if np.dtype(dtype).kind == "c" else 1)]
    return sum(part * unit for part, unit in zip(parts, (1, 1j), strict=False)).astype(dtype)


def eager_and_jitted(make):
    mesh = cases.line(1)
    return make, jax.jit(lambda a: make(a, mesh=mesh))


@pytest.mark.core("float64-33")
@pytest.mark.parametrize("n", (1, 33, 63))
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_cholesky_factors_on_one_rank(orders, dtype, n):
    a, b = jnp.asarray(matrix(n, dtype)), jnp.arange(2 * n).reshape(n, 2).astype(dtype)
    eps = np.finfo(dtype).eps
    whole = np.linalg.cholesky(np.asarray(a)).conj().T
    for make in eager_and_jitted(jaxmg.cho_factor):
        for tile in (None, 20):
            factor = make(a) if tile is None else jaxmg.cho_factor(a, tile)
            assert factor.shape == (n, n) and factor.tiles.shape == (n, n) and factor.status == 0
            np.testing.assert_allclose(factor.upper(), whole, atol=100 * eps)
            x, inverse = map(np.asarray, (factor.solve(b), factor.inv()))
            np.testing.assert_allclose(np.asarray(a) @ x, b, atol=2000 * eps * n)
            np.testing.assert_allclose(np.asarray(a) @ inverse, np.eye(n), atol=500 * eps)
            np.testing.assert_allclose(factor.diagonal(), np.diagonal(whole).real, atol=100 * eps)
            np.testing.assert_allclose(
                factor.logdet(), np.linalg.slogdet(a)[1], rtol=1e3 * eps, atol=1e3 * eps
            )
    assert bool(orders) is is_larger(n, dtype, 1)


@pytest.mark.core("float64-33")
@pytest.mark.parametrize("n", (1, 33, 63))
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_lu_factors_on_one_rank(orders, dtype, n):
    a, b = jnp.asarray(general(n, dtype)), jnp.arange(2 * n).reshape(n, 2).astype(dtype)
    eps = np.finfo(dtype).eps
    lu, pivots = scipy.linalg.lu_factor(a.T)  # the factor is of the transpose
    for make in eager_and_jitted(jaxmg.lu_factor):
        factor = make(a)
        assert factor.tiles.shape == (n, n) and factor.pivots.shape == (n,) and factor.status == 0
        packed = factor.packed()
        np.testing.assert_array_equal(packed[1], pivots)
        np.testing.assert_allclose(packed[0].T, lu, atol=1e4 * eps)
        for trans, operand in enumerate((a, a.T, a.conj().T)):
            operand, x = np.asarray(operand), np.asarray(factor.solve(b, trans))
            scale = np.abs(operand).sum() * np.abs(x).max()
            np.testing.assert_allclose(operand @ x, b, atol=100 * eps * scale)
        sign, logdet = factor.slogdet()
        expected = np.linalg.slogdet(a)
        np.testing.assert_allclose(sign, expected[0], atol=1e3 * eps)
        np.testing.assert_allclose(logdet, expected[1], rtol=1e3 * eps, atol=1e3 * eps)
    assert bool(orders) is is_larger(n, dtype, 1)


@pytest.mark.parametrize("make", (jaxmg.cho_factor, jaxmg.lu_factor))
def test_factors_on_several_ranks_stay_as_they_are(orders, make):
    a = matrix(33, "float64")
    factor = make(cases.shard_rows(a, cases.line(2)), mesh=cases.line(2))
    np.testing.assert_allclose(a @ np.asarray(factor.solve(np.ones(33))), np.ones(33), atol=1e-12)
    assert not orders


@pytest.mark.parametrize("row", (0, 19, 32))
def test_factors_of_singular_matrices(orders, row):
    a = matrix(33, "float64")
    a[row], a[:, row] = 0, 0
    mesh = cases.line(1)
    factor = jaxmg.cho_factor(a, mesh=mesh)
    assert factor.status == row + 1
    assert np.isnan(factor.upper()).any() and np.isnan(factor.solve(np.ones(33))).all()
    factor = jaxmg.lu_factor(a, mesh=mesh)
    lu, pivots = scipy.linalg.lu_factor(a.T)
    assert factor.status == np.flatnonzero(np.diagonal(lu) == 0)[0] + 1
    np.testing.assert_array_equal(factor.packed()[1], pivots)
    np.testing.assert_allclose(factor.packed()[0].T, lu, atol=1e-12)
    assert len(orders) == 2


@pytest.mark.extended
@cases.needs_transformations
def test_derivatives_of_factors(orders):
    a, b = jnp.asarray(matrix(33, "float64")), jnp.ones(33)
    for make, assume_a in ((jaxmg.cho_factor, "pos"), (jaxmg.lu_factor, "gen")):

        def value(a, make=make):
            factor = make(a)
            return jnp.sum(factor.solve(b) ** 2) + factor.logdet()

        def reference(a, assume_a=assume_a):
            a = jnp.triu(a) + jnp.triu(a, 1).T if assume_a == "pos" else a
            return jnp.sum(jnp.linalg.solve(a, b) ** 2) + jnp.linalg.slogdet(a)[1]

        gradient, expected = jax.grad(value)(a), jax.grad(reference)(a)
        if assume_a == "pos":
            gradient, expected = jnp.triu(gradient), jnp.triu(expected)
        np.testing.assert_allclose(gradient, expected, atol=1e-10)
    assert orders


def test_a_donated_matrix_of_a_factor_is_gone(orders):
    a = jnp.asarray(matrix(33, "float64"))
    whole = np.linalg.cholesky(np.asarray(a)).T
    np.testing.assert_allclose(jaxmg.cho_factor(a, donate=True).upper(), whole, atol=1e-12)
    assert a.is_deleted() and orders


# Hermitian matrices; some have eigenvectors that might mix with those of the added zeros.
_HERMITIAN = {
    "random": lambda g: g + g.conj().T,
    "rank 5": lambda g: g[:, :5] @ g[:, :5].conj().T,
    "zero": lambda g: 0 * g,
    "identity": lambda g: np.eye(len(g), dtype=g.dtype),
    "diagonal with zeros": lambda g: np.diag(np.arange(len(g)) % 3 - 1).astype(g.dtype),
    "rows of zeros": lambda g: np.pad((g + g.conj().T)[9:, 9:], (4, 5)),
    "graded": lambda g: (
        np.logspace(0, -12, len(g))[:, None] * (g + g.conj().T) * np.logspace(0, -12, len(g))
    ).astype(g.dtype),
}


@pytest.fixture
def by_all_ranks():
    """Makes all ranks share the eigenproblems of small orders, as they share large ones."""
    cases.set_eigensolver("all")
    yield
    cases.set_eigensolver("auto")


def test_the_plugin_says_from_which_order_stages_solve():
    from jaxmg._plugin import plugins

    plugin = plugins.load(jax.default_backend())
    found = {}
    for name in ("all", "one", "auto"):
        cases.set_eigensolver(name)
        found[name] = plugin.staged_eigen_order()
    usual = 0 if jax.default_backend() == "cpu" else 5120  # LAPACK serves one CPU device
    assert found == {"all": 1, "one": 0, "auto": usual}


@pytest.mark.core("rank 5-float64-1-150", "random-complex64-2-77")
@pytest.mark.parametrize(
    "kind, dtype, ranks, n",
    cases.broad(
        itertools.product(_HERMITIAN, ("float32", "float64", "complex64"), (1, 2, 4), (77, 150)),
        lambda kind, dtype, ranks, n: ranks == 1 and (n == 150 or kind == "rank 5"),
    ),
)
def test_eigenvectors_do_not_mix(orders, by_all_ranks, kind, dtype, ranks, n):
    rng, eps = np.random.default_rng(2), np.finfo(dtype).eps
    n += np.dtype(dtype).itemsize % 16 != 0 and n * np.dtype(dtype).itemsize % 16 == 0
    g = rng.normal(size=(n, n))
    if np.dtype(dtype).kind == "c":
        g = g + 1j * rng.normal(size=(n, n))
    a = _HERMITIAN[kind](g).astype(dtype)
    scale = max(np.linalg.norm(a, 2), np.finfo(dtype).tiny)
    expected = np.linalg.eigvalsh(a.astype("complex128" if g.dtype.kind == "c" else "float64"))
    mesh = cases.line(ranks)
    on_mesh = cases.shard_rows(a, mesh)
    w, v, status = jaxmg.syevd(on_mesh, mesh=mesh, return_status=True)
    w, v = np.asarray(w), np.asarray(v)
    assert status == 0 and w.shape == (n,) and v.shape == (n, n) and v.dtype == a.dtype
    assert np.abs(a @ v - v * w).max() <= 20 * n**0.5 * eps * scale
    assert np.abs(v.conj().T @ v - np.eye(n)).max() <= 20 * n**0.5 * eps
    values = np.asarray(jaxmg.syevd(on_mesh, mesh=mesh, return_eigenvectors=False))
    for found in (w, values):
        assert (np.diff(found) >= 0).all()
        np.testing.assert_allclose(found, expected, atol=20 * n**0.5 * eps * scale)
    assert bool(orders) is is_larger(n, dtype, ranks)


@pytest.mark.extended
@cases.needs_transformations
def test_eigenpairs_under_jit_explicit_axes_and_derivatives(orders, by_all_ranks):
    mesh, n = cases.line(1, kind=AxisType.Explicit), 77
    g = np.random.default_rng(3).normal(size=(n, n))
    a = cases.shard_rows(g + g.T, mesh)
    w, v = jax.jit(lambda a: jaxmg.syevd(a, mesh=mesh))(a)
    np.testing.assert_allclose(np.asarray(a) @ np.asarray(v), np.asarray(v) * w, atol=1e-11)
    gradient = jax.grad(lambda a: jnp.sum(jaxmg.syevd(a)[0] ** 3))(jnp.asarray(g + g.T))
    np.testing.assert_allclose(
        jnp.triu(gradient + gradient.T), jnp.triu(6 * (g + g.T) @ (g + g.T)), atol=1e-9
    )
    w, v, status = jaxmg.syevd(np.full((n, n), np.nan), return_status=True)
    assert status != 0 and np.isnan(w).all() and np.isnan(v).all()
    assert orders
