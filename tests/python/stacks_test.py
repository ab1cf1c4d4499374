"""jaxmg._stacks: what one device does with a stack of matrices."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.test_util import check_grads

import jaxmg
from jaxmg import _compat
from jaxmg._call import plugins
from jaxmg._stacks import (
    cholesky,
    eigh,
    householder,
    lu,
    native,
    parts,
    polar_svd,
    qr,
    triangle,
    tridiagonal,
    ways,
)

pytestmark = cases.needs_transformations


@pytest.fixture(autouse=True, scope="module")
def _plugin():
    plugins.load(jax.default_backend())


_MULTIPLE = 40  # of n eps, for backward errors


def _stack(shape, dtype, seed=0):
    return jnp.asarray(cases.normal(cases.rng(seed, *shape), shape, dtype))


def _definite(count, n, dtype):
    a = np.asarray(_stack((count, n, n), dtype))
    return jnp.asarray((a @ a.swapaxes(1, 2).conj() / n + np.eye(n)).astype(dtype))


def _adjoint(a):
    return np.swapaxes(a, -1, -2).conj()


def _check(found, expected, dtype, scale=None):
    __tracebackhide__ = True
    found, expected = cases.wide(np.asarray(found)), cases.wide(np.asarray(expected))
    if not expected.size:
        assert found.shape == expected.shape
        return
    scale = np.linalg.norm(expected, axis=(-2, -1)).max() if scale is None else scale
    limit = _MULTIPLE * max(expected.shape[-2:]) * cases.eps(dtype) * scale
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= limit


def _check_orthonormal(q, dtype):
    __tracebackhide__ = True
    q = cases.wide(np.asarray(q))
    _check(_adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), q.shape[:1] + q.shape[-1:] * 2),
           dtype, 1)  # fmt: skip


# Of one panel, of several, of several sections, and none that a panel divides.
_SHAPES = [(3, 1, 1), (2, 5, 3), (2, 3, 5), (2, 32, 32), (2, 40, 70), (1, 170, 130), (2, 0, 2)]
_CORE = [((2, 5, 3), "complex64")]


@pytest.mark.parametrize(
    "shape, dtype",
    cases.broad([(s, d) for s in _SHAPES for d in cases.DTYPES], lambda *case: case in _CORE),
)
def test_qr_is_that_of_lapack(shape, dtype):
    a = _stack(shape, dtype)
    q, r = jax.jit(qr.reduced)(a)
    q0, r0 = np.linalg.qr(np.asarray(a))
    assert q.dtype == r.dtype == a.dtype
    _check_orthonormal(q, dtype)
    if a.size:
        _check(np.asarray(q) @ np.asarray(r), a, dtype)
        _check(r, r0, dtype)
        _check(q, q0, dtype, 10)
    assert not np.tril(np.asarray(r), -1).any()
    assert not np.diagonal(r, axis1=1, axis2=2).imag.any()


@pytest.mark.breadth
def test_qr_of_matrices_without_full_rank_and_of_any_size_of_numbers():
    a = np.zeros((5, 9, 4), "float32")
    a[1], a[2, :, 0], a[3] = 1, 1e-30, np.asarray(_stack((9, 4), "float32")) * 1e30
    a[4] = np.asarray(_stack((9, 4), "float32")) * 10.0 ** np.array([20, 0, -20, -30])
    q, r = qr.reduced(jnp.asarray(a))
    _check_orthonormal(q, "float32")
    lengths = np.linalg.norm(a.astype("float64"), axis=1)  # of columns, each by itself
    off = np.abs(cases.wide(np.asarray(q)) @ cases.wide(np.asarray(r)) - a).max(axis=1)
    assert (off <= 40 * cases.eps("float32") * lengths).all()


@pytest.mark.breadth
def test_a_matrix_with_nan_is_alone():
    a = np.asarray(_stack((3, 40, 40), "float64")).copy()
    a[1, 35, 3] = np.nan
    for function in (qr.reduced, lu.inverse, polar_svd.decompose, polar_svd.unitary):
        for result in jax.tree.leaves(jax.jit(function)(jnp.asarray(a))):
            bad = np.isnan(np.asarray(result)).reshape(3, -1).any(axis=1)
            assert list(bad) == [False, True, False]


@pytest.mark.extended
@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, d) for n in (1, 5, 32, 70, 170) for d in cases.DTYPES],
        lambda *case: case == (5, "complex128"),
    ),
)
def test_lu_is_that_of_lapack(n, dtype):
    a = _stack((2, n, n), dtype)
    packed, pivots, order = jax.jit(lu.factor)(a)
    expected = jax.lax.linalg.lu(a)
    np.testing.assert_array_equal(pivots, expected[1])
    np.testing.assert_array_equal(order, expected[2])
    _check(packed, expected[0], dtype, 30)
    _check_inverses_and_solutions(a, lu.inverse, lu.solve)


def _check_inverses_and_solutions(a, inverse, solve):
    __tracebackhide__ = True
    n, dtype = a.shape[-1], a.dtype
    x = cases.wide(np.asarray(jax.jit(inverse)(a)))
    _check(cases.wide(np.asarray(a)) @ x, np.broadcast_to(np.eye(n), x.shape), dtype,
           np.linalg.norm(x, axis=(1, 2)).max() * n)  # fmt: skip
    b = _stack((2, n, 3), dtype)
    x = cases.wide(np.asarray(jax.jit(solve)(a, b)))
    _check(cases.wide(np.asarray(a)) @ x, b, dtype, np.abs(x).max() * n)


@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, d) for n in (1, 5, 32, 45, 70) for d in cases.DTYPES],
        lambda *case: case in [(5, "complex128"), (45, "float32")],
    ),
)
def test_lu_by_the_plugin(n, dtype):
    a = _stack((2, n, n), dtype)
    packed, pivots = native.factor_lu(a)
    expected = [scipy.linalg.lu_factor(one) for one in np.asarray(a)]
    np.testing.assert_array_equal(pivots, [pivots for _, pivots in expected])
    _check(packed, np.stack([packed for packed, _ in expected]), dtype, 30)
    _check_inverses_and_solutions(a, lu.inverse_by_plugin, lu.solve_by_plugin)


def test_lu_by_the_plugin_of_singular_matrices_and_nan():
    a = np.ones((3, 3, 3))
    a[1] += np.eye(3)
    a[2, 1, 1] = np.nan
    packed, pivots = native.factor_lu(jnp.asarray(a))
    np.testing.assert_array_equal(packed[0], [[1, 1, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(packed[1], scipy.linalg.lu_factor(a[1])[0], atol=1e-15)
    np.testing.assert_array_equal(pivots[:2], 2 * [[0, 1, 2]])
    for result in (lu.inverse_by_plugin(a), lu.solve_by_plugin(a, a[..., :1])):
        assert np.isnan(result[2]).any() and np.isfinite(np.asarray(result[1])).all()
    assert lu.inverse_by_plugin(jnp.zeros((0, 3, 3))).shape == (0, 3, 3)


@pytest.mark.breadth
def test_lu_of_a_singular_matrix_has_a_zero():
    a = np.ones((2, 3, 3))
    a[1] += np.eye(3)
    packed, pivots, _ = lu.factor(jnp.asarray(a))
    expected = jax.lax.linalg.lu(jnp.asarray(a))
    np.testing.assert_allclose(packed, expected[0], atol=1e-15)
    np.testing.assert_array_equal(pivots, expected[1])


@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, d) for n in (1, 64, 130, 300) for d in cases.DTYPES],
        lambda *_: False,
    ),
)
def test_cholesky_and_triangles(n, dtype):
    a = _definite(2, n, dtype)
    upper = jnp.triu(jnp.full((n, n), jnp.nan, dtype), 1)  # isn't read
    lower = jax.jit(cholesky.factor)(jnp.where(upper != upper, upper, a))
    _check(lower, np.linalg.cholesky(np.asarray(a)), dtype)
    x = triangle.inverse(lower)
    _check(np.asarray(x) @ np.asarray(lower), np.broadcast_to(np.eye(n), x.shape), dtype, n)
    _check(cholesky.inverse(a), np.linalg.inv(np.asarray(a)), dtype)
    b = _stack((2, n, 2), dtype)
    _check(np.asarray(a) @ np.asarray(cholesky.solve(a, b)), b, dtype)


@pytest.mark.breadth
def test_cholesky_of_an_indefinite_matrix_is_nan_alone():
    a = np.stack([np.eye(5), np.diag([1.0, 1, -1, 1, 1]), 4 * np.eye(5)])
    lower = np.asarray(cholesky.factor(jnp.asarray(a)))
    assert np.isnan(lower[1]).any()
    np.testing.assert_array_equal(lower[[0, 2]], [np.eye(5), 2 * np.eye(5)])


@pytest.mark.parametrize(
    "shape, dtype, kind",
    cases.broad(
        [
            (s, d, k)
            for s in ((2, 6, 6), (2, 9, 4), (2, 4, 9), (1, 40, 40))
            for d in cases.DTYPES
            for k in ("random", "zero", "equal", "graded")
        ],
        lambda *_: False,
    ),
)
def test_polar_and_svd(shape, dtype, kind):
    a = np.asarray(_stack(shape, dtype)).copy()
    if kind == "zero":
        a[0], a[-1, :, 1:] = 0, a[-1, :, :1]  # of rank 0 and 1
    elif kind == "equal":
        a = np.broadcast_to(3 * np.eye(*shape[1:]), shape).astype(dtype)
    elif kind == "graded":
        a = (a * np.geomspace(1, cases.eps(dtype) ** 2, shape[-1])).astype(dtype)
    u, s, vh = map(np.asarray, jax.jit(polar_svd.decompose)(jnp.asarray(a)))
    assert (np.diff(s) <= 0).all() and (s >= 0).all()
    _check((u * s[:, None]) @ vh, a, dtype, max(np.abs(a).max(), 1e-30) * 10)
    _check(s[:, None], np.linalg.svd(a, compute_uv=False)[:, None], dtype, s.max() + 1e-30)
    _check_orthonormal(u, dtype)
    _check_orthonormal(_adjoint(vh), dtype)
    tall = shape[1] >= shape[2]
    w = np.asarray(jax.jit(polar_svd.unitary)(jnp.asarray(a)))
    _check_orthonormal(w if tall else _adjoint(w), dtype)
    h = _adjoint(w) @ a if tall else a @ _adjoint(w)
    _check(h, _adjoint(h), dtype, max(np.abs(a).max(), 1e-30) * 10)
    assert (np.linalg.eigvalsh(cases.wide(h + _adjoint(h))) >= -1e-3 * np.abs(a).max()).all()


def _loss(function):
    def loss(a):
        return sum(jnp.sum(jnp.sin(x.real) + x.imag**2) for x in jax.tree.leaves(function(a)))

    return loss


def _svd(a):
    return jnp.linalg.svd(a, full_matrices=False)


def _unphased(function):
    """What of U, s, V^H doesn't depend on signs."""

    def call(a):
        u, s, vh = function(a)
        return (u * jnp.cos(s)[:, None]) @ vh, s

    return call


_GRADIENTS = {
    "qr": (qr.reduced, jnp.linalg.qr, [(2, 5, 3), (2, 4, 4)]),
    "inverse": (lu.inverse, jnp.linalg.inv, [(2, 4, 4)]),
    "solve": (
        lambda a: lu.solve(a, jnp.cos(a)[..., :2]),
        lambda a: jnp.linalg.solve(a, jnp.cos(a)[..., :2]),
        [(2, 4, 4)],
    ),
    "inverse by the plugin": (lu.inverse_by_plugin, jnp.linalg.inv, [(2, 4, 4)]),
    "solve by the plugin": (
        lambda a: lu.solve_by_plugin(a, jnp.cos(a)[..., :2]),
        lambda a: jnp.linalg.solve(a, jnp.cos(a)[..., :2]),
        [(2, 4, 4)],
    ),
    "svd": (_unphased(polar_svd.decompose), _unphased(_svd), [(2, 4, 4), (2, 5, 3), (2, 3, 5)]),
    "polar": (
        polar_svd.unitary,
        lambda a: (lambda u, s, vh: u @ vh)(*_svd(a)),
        [(2, 4, 4), (2, 5, 3), (2, 3, 5)],
    ),
}


@pytest.mark.parametrize(
    "name, shape, dtype",
    cases.broad(
        [(k, s, d) for k, v in _GRADIENTS.items() for s in v[2] for d in ("float64", "complex128")],
        lambda *_: False,
    ),
)
def test_gradients_are_those_of_jax(name, shape, dtype):
    ours, theirs, _ = _GRADIENTS[name]
    a = _stack(shape, dtype)
    found, expected = (jax.jit(jax.grad(_loss(f)))(a) for f in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("count", range(1, 8))
def test_a_large_stack_is_taken_in_parts(monkeypatch, count):
    a = np.arange(count * 6.0).reshape(count, 2, 3)
    b = np.arange(count * 2.0).reshape(count, 2)
    lengths = []

    def function(a, b):
        lengths.append(len(a))
        return {"sum": a.sum(-1) + b, "b": (b,)}

    for most in (1, 2, 3, 100):  # matrices at once
        monkeypatch.setattr(parts, "LARGEST", most * 6 + 1)
        lengths.clear()
        found = parts.in_parts(function, jnp.asarray(a), jnp.asarray(b))
        np.testing.assert_array_equal(found["sum"], a.sum(-1) + b)
        np.testing.assert_array_equal(found["b"][0], b)
        assert max(lengths) <= most
    monkeypatch.setattr(parts, "LARGEST", 1)  # a matrix is never divided
    np.testing.assert_array_equal(parts.in_parts(function, *map(jnp.asarray, (a, b)))["b"][0], b)


def test_a_large_share_in_parts(monkeypatch):
    """Of a batch, by jaxmg's own call."""
    a = np.random.default_rng(2).standard_normal((7, 13, 13))  # compiled by no other test
    mesh = jax.make_mesh((1,), ("r",))
    expected = np.linalg.inv(a)
    sizes, original = [], ways.inverse
    monkeypatch.setattr(parts, "LARGEST", 3 * 169)
    monkeypatch.setattr(
        ways, "inverse", lambda platform, a: sizes.append(len(a)) or original(platform, a)
    )
    np.testing.assert_allclose(jaxmg.linalg.inv(jnp.asarray(a), mesh=mesh), expected, atol=1e-10)
    assert sizes and max(sizes) <= 3


def test_the_first_row_that_fits_is_the_way(monkeypatch):
    rows = (
        ways.Row("gpu", "qr", "turns", (512, 4096), 4, ("f4",)),
        ways.Row("gpu", "qr", "blocked", (64, 4096)),
    )
    monkeypatch.setattr(ways, "TABLE", rows)

    def way(count, m, n, dtype="float32", platform="gpu", function="qr"):
        return ways.choose(platform, function, jax.ShapeDtypeStruct((count, m, n), dtype))

    assert way(4, 600, 512) == "turns" and way(3, 600, 512) == way(4, 600, 511) == "blocked"
    assert way(4, 512, 512, "complex64") == "blocked" and way(4, 64, 63) == ways.JAX
    assert way(4, 512, 512, platform="cpu") == way(4, 512, 512, function="inv") == ways.JAX
    assert way(1, 512, 512) == ways.JAX and way(2, 4097, 4097) == ways.JAX


def test_every_row_names_a_way():
    known = {"qr": ways._QR, "inv": ways._INV, "solve": ways._SOLVE, "svd": ways._SVD,
             "eigh": ways._EIGH, "polar": ways._POLAR}  # fmt: skip
    for row in ways.TABLE:
        assert row.way in known[row.function] and row.platform in ("cpu", "gpu")
        assert row.orders[0] <= row.orders[1] and row.least >= 2


def test_a_way_by_the_plugin_loads_it(monkeypatch):
    """Nothing else does in `jaxmg.tree`."""
    loaded, platform = [], jax.default_backend()
    monkeypatch.setattr(plugins, "load", loaded.append)
    a = _stack((3, 5, 5), "float64")
    ways.inverse(platform, a)
    assert not loaded
    monkeypatch.setattr(ways, "TABLE", (ways.Row(platform, "inv", "plugin", (5, 5)),))
    ways.inverse(platform, a)
    assert loaded == [platform]


def test_kernels_are_chosen_where_they_can_be_compiled(monkeypatch):
    a = jax.ShapeDtypeStruct((100, 300, 300), "float32")
    ways_of = [("eigh", "stages", ways.JAX), ("svd", "polar and stages", "polar")]
    for has in (True, False):
        monkeypatch.setattr(ways, "has_kernels", lambda has=has: has)
        for function, by_kernels, without in ways_of:
            assert ways.choose("gpu", function, a) == (by_kernels if has else without)
    monkeypatch.undo()
    if jax.default_backend() == "cpu":
        assert not ways.has_kernels()


_TRIDIAGONAL = ("random", "zero", "identity", "wilkinson", "graded", "low rank", "huge", "tiny")


def _tridiagonal(kind, n, dtype):
    """Diagonals, and what is beside them, of three matrices."""
    rng = cases.rng(0, n)
    d, e = rng.standard_normal((3, n)), rng.standard_normal((3, n - 1))
    huge, tiny = (1e30, 1e-25) if np.finfo(dtype).bits == 32 else (1e300, 1e-290)
    index, grades = np.arange(n), np.logspace(0, -20, n)
    d, e = {
        "random": (d, e),
        "zero": (0 * d, 0 * e),
        "identity": (0 * d + 1, 0 * e),
        "wilkinson": (np.abs(index - n // 2) + 0 * d, 0 * e + 1),
        "graded": (d * grades, e * grades[1:]),
        "low rank": (d * (index < n // 4), e * (index[1:] < n // 4)),
        "huge": (d * huge, e * huge),
        "tiny": (d * tiny, e * tiny),
    }[kind]
    return d.astype(dtype), e.astype(dtype)


def _check_eigenpairs(a, w, v, dtype):
    """To rounding, also of eigenvalues that are close to each other or equal."""
    __tracebackhide__ = True
    a, w, v = (np.asarray(x, np.float64) for x in (a, w, v))
    bound = 8 * cases.eps(dtype) * a.shape[-1] ** 0.5
    for one, values, vectors in zip(a, w, v, strict=True):
        scale = np.abs(one).max() or 1
        one, values = one / scale, values / scale
        size = max(np.linalg.norm(one, 2), 1)
        assert np.all(np.diff(values) >= 0)
        assert np.linalg.norm(one @ vectors - vectors * values, 2) <= bound * size
        assert np.linalg.norm(vectors.T @ vectors - np.eye(len(one)), 2) <= bound
        assert np.abs(np.linalg.eigvalsh(one) - values).max() <= 2 * bound * size


@pytest.mark.parametrize(
    "dtype, kind, n",
    cases.broad(
        [
            (dtype, kind, n)
            for dtype in ("float32", "float64")
            for kind in _TRIDIAGONAL
            for n in (1, 2, 3, 32, 33, 65, 150)
        ],
        lambda dtype, kind, n: (dtype, n) == ("float32", 33),
    ),
)
def test_tridiagonal_eigenproblems(dtype, kind, n):
    d, e = _tridiagonal(kind, n, dtype)
    w, v = jax.jit(tridiagonal.eigh)(d, e)
    a = np.stack([np.diag(x) + np.diag(y, 1) + np.diag(y, -1) for x, y in zip(d, e, strict=True)])
    assert w.dtype == v.dtype == dtype
    _check_eigenpairs(a, w, v, dtype)


def test_a_tridiagonal_matrix_that_is_not_finite():
    d, e = _tridiagonal("random", 33, "float32")
    solve = jax.jit(tridiagonal.eigh)
    expected = solve(d, e)
    d[0, 7], e[2, 31] = np.inf, np.nan
    w, v = solve(d, e)
    assert np.isnan(w[::2]).all() and np.isnan(v[::2]).all()
    np.testing.assert_array_equal(w[1], expected[0][1])
    np.testing.assert_array_equal(v[1], expected[1][1])


needs_kernels = pytest.mark.skipif(
    _compat.pallas_triton() is None, reason="kernels for Triton need JAX 0.8"
)


def _symmetric(count, n, dtype):
    a = np.asarray(_stack((count, n, n), dtype))
    return a + a.swapaxes(1, 2)


@needs_kernels
@pytest.mark.parametrize(
    "dtype, n",
    cases.broad(
        [(dtype, n) for dtype in ("float32", "float64") for n in (1, 2, 3, 16, 17, 64, 65, 130)],
        lambda dtype, n: (dtype, n) == ("float32", 65),
    ),
)
def test_reduction_to_tridiagonal_form(dtype, n):
    a = _symmetric(2, n, dtype) / n
    if n > 3:
        a[1, 2:, :2] = a[1, :2, 2:] = 0  # nothing to reduce in columns 0 and 1
    d, e, reflectors, tau = householder.reduce(jnp.asarray(a), interpret=True)
    q = householder.multiply(reflectors, tau, jnp.broadcast_to(jnp.eye(n, dtype=dtype), a.shape))
    q = np.asarray(q, np.float64)
    t = [np.diag(x) + np.diag(y, 1) + np.diag(y, -1) for x, y in zip(d, e, strict=True)]
    _check(q @ np.asarray(t, np.float64) @ q.swapaxes(1, 2), a, dtype)
    _check(q @ q.swapaxes(1, 2), np.broadcast_to(np.eye(n), a.shape), dtype)


@pytest.fixture
def interpreted(monkeypatch):
    original = householder.reduce
    monkeypatch.setattr(householder, "reduce", lambda a: original(a, interpret=True))


@needs_kernels
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.breadth), "float64"])
def test_symmetric_eigenproblems_by_stages(dtype, interpreted):
    n, solve = 40, jax.jit(eigh.decompose)
    huge, tiny = (1e30, 1e-25) if dtype == "float32" else (1e300, 1e-290)
    for scale in (huge, tiny, 1):
        a = (_symmetric(3, n, "float64") * scale).astype(dtype)
        a[1] = scale * np.eye(n)
        w, v = solve(jnp.asarray(a))
        _check_eigenpairs(a, w, v, dtype)
    a[1, 20, 30] = np.nan
    bad = solve(jnp.asarray(a))
    assert np.isnan(bad[0][1]).all() and np.isnan(bad[1][1]).all()
    np.testing.assert_array_equal(bad[0][::2], w[::2])


@needs_kernels
@pytest.mark.breadth
def test_derivatives_of_symmetric_eigenproblems_by_stages(interpreted):
    a = _symmetric(2, 7, "float64")

    def invariant(a):
        w, v = eigh.decompose((a + jnp.swapaxes(a, 1, 2)) / 2)
        return jnp.sin(w), (v * jnp.cos(w)[:, None, :]) @ jnp.swapaxes(v, 1, 2)

    check_grads(invariant, (jnp.asarray(a),), order=1, modes=("fwd", "rev"), rtol=1e-5)


@pytest.fixture
def by_stages(monkeypatch, interpreted):
    """This platform takes that way for order 22; the list of what it took it for."""
    taken, original = [], eigh.decompose
    monkeypatch.setattr(ways, "has_kernels", lambda: True)
    row = ways.Row(jax.default_backend(), "eigh", "stages", (22, 22), 3, ("f4", "f8"))
    monkeypatch.setattr(ways, "TABLE", (row,))
    monkeypatch.setattr(eigh, "decompose", lambda a: taken.append(a.shape) or original(a))
    return taken


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.breadth)])
def test_batches_by_stages(by_stages, dtype):
    mesh = cases.line(1)
    a = _symmetric(3, 22, dtype)
    b = np.asarray(_definite(3, 22, dtype))
    upper = np.triu(a) + np.tril(np.full_like(a, 7), -1)  # below the diagonal nothing is read
    w, v = jax.vmap(lambda a: jaxmg.syevd(a, mesh=mesh))(jnp.asarray(upper))
    assert by_stages == [a.shape]
    _check_eigenpairs(a, w, v, dtype)
    w, x = jax.vmap(lambda a, b: jaxmg.sygvd(a, b, mesh=mesh))(jnp.asarray(upper), jnp.asarray(b))
    assert by_stages == 2 * [a.shape]
    _check(a @ np.asarray(x), b @ np.asarray(x) * np.asarray(w)[:, None], dtype, 100)
    bad = a.copy()
    bad[1, 3, 5] = np.nan
    w, v, status = jax.vmap(lambda a: jaxmg.syevd(a, mesh=mesh, return_status=True))(bad)
    assert list(np.asarray(status) != 0) == [False, True, False]
    assert np.isnan(w[1]).all() and np.isnan(v[1]).all() and np.isfinite(np.asarray(v[::2])).all()


@needs_kernels
def test_trees_by_stages(by_stages):
    mesh = cases.line(1)
    a = _symmetric(3, 22, "float32")
    tree = {"three": jnp.asarray(a), "two": jnp.asarray(a[:2, :9, :9])}
    for uplo, read in (("L", np.tril), ("U", np.triu)):
        one = jnp.where(read(np.ones_like(a)) > 0, a, 7)
        found = jaxmg.tree.eigh({"a": one}, UPLO=uplo, symmetrize_input=False, mesh=mesh)["a"]
        _check_eigenpairs(a, found.eigenvalues, found.eigenvectors, "float32")
    found = jaxmg.tree.eigh(tree, mesh=mesh)
    assert by_stages == 3 * [a.shape]  # the other leaf has JAX's way
    for name, leaf in tree.items():
        _check_eigenpairs(leaf, *found[name], "float32")
        assert type(found[name]) is type(jnp.linalg.eigh(leaf))


@needs_kernels
@pytest.mark.parametrize(
    "shape",
    [(3, 20, 20)]
    + [pytest.param(shape, marks=pytest.mark.breadth) for shape in ((2, 30, 17), (2, 9, 30))],
)
def test_svd_by_stages(interpreted, shape):
    a = np.asarray(_stack(shape, "float64")).copy()
    a[0, :, 1:3] = a[0, :, :1]
    u, s, vh = map(np.asarray, jax.jit(polar_svd.decompose_by_stages)(jnp.asarray(a)))
    _check((u * s[:, None]) @ vh, a, "float64", 10 * np.abs(a).max())
    _check(s[:, None], np.linalg.svd(a, compute_uv=False)[:, None], "float64", s.max())
    _check_orthonormal(u, "float64")
    _check_orthonormal(_adjoint(vh), "float64")
