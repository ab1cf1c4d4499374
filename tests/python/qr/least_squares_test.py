"""jaxmg.linalg.lstsq and least_squares against NumPy's."""

import functools
import itertools
import types

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from qr_test import HARD, hard

from jaxmg import linalg
from jaxmg._qr import linalg as qr_linalg
from jaxmg._qr import tall_qr
from jaxmg._stacks import choice
from jaxmg._svd import least_squares, svd


def _low_rank(m, n, rank, dtype):
    """Returns a matrix of this rank, and the left and right factors of its tangent (see
    `_moved`)."""
    a = cases.normal(cases.rng(m, n), (m, n), dtype)
    if rank < min(m, n):
        left = cases.normal(cases.rng(1), (m, rank), dtype)
        a = left @ cases.normal(cases.rng(2), (rank, n), dtype)
    return a, *(cases.normal(cases.rng(i, 3), (i, i), dtype) for i in (m, n))


def _b(m, dtype, columns=2):
    return cases.normal(cases.rng(m, 9), (m, columns), dtype)


def _numpys(a, b, damp=None, rcond=None):
    """Returns NumPy's (x, resid, rank, s) in double precision, with residuals in all cases."""
    rcond = cases.eps(a.dtype) * max(a.shape) if rcond is None else rcond
    a, b = cases.wide(a), cases.wide(b)
    whole, right = a, b
    if damp is not None:
        whole = np.concatenate([a, damp * np.eye(a.shape[1])])
        right = np.concatenate([b, np.zeros((a.shape[1], *b.shape[1:]))])
    x, _, rank, s = np.linalg.lstsq(whole, right, rcond=rcond)
    return x, np.sum(abs(b - a @ x).reshape(len(b), -1) ** 2, axis=0), rank, s


def _compare(found, expected, dtype, factor=300):
    __tracebackhide__ = True
    x, resid, rank, s = found
    assert x.dtype == dtype and int(rank) == expected[2]
    for one, other in zip((x, resid, s), (expected[0], expected[1], expected[3]), strict=True):
        assert one.shape == other.shape
        scale = max(np.abs(other).max(initial=0), 1)
        np.testing.assert_allclose(one, other, rtol=0, atol=factor * cases.eps(dtype) * scale)


_SHAPES = (((12, 3), 4), ((13, 5), 2), ((5, 5), 1), ((5, 13), 2), ((3, 7), 4))


@pytest.mark.parametrize(
    "shape, ranks, rank, dtype, kind",
    cases.broad(
        [
            (*each, rank, cases.DTYPES[(i + j) % 4], kind)
            for (i, each), (j, rank), kind in itertools.product(
                enumerate(_SHAPES), enumerate((3, 2)), (AxisType.Auto, AxisType.Explicit)
            )
        ],
        core=lambda shape, ranks, rank, dtype, kind: (
            (shape, rank, kind) == ((13, 5), 2, AxisType.Auto)
        ),
    ),
)
def test_as_numpy(shape, ranks, rank, dtype, kind):
    """Results agree with NumPy's for full rank (rank 3) and low rank, for vectors and several
    columns."""
    rank = min(shape) if rank == 3 else rank
    mesh, (a, *_) = cases.line(ranks, kind=kind), _low_rank(*shape, rank, dtype)
    b, rcond = _b(shape[0], dtype), 50 * cases.eps(dtype)
    for right in (b, b[:, 0]) if rank == min(shape) else (b,):
        found = linalg.lstsq(cases.shard_rows(a, mesh), right, rcond, mesh=mesh)
        _compare(found, _numpys(a, right, rcond=rcond), dtype, factor=3000)
        assert all(x.sharding.is_fully_replicated for x in found)
    if rank == min(shape):
        x = linalg.least_squares(cases.shard_rows(a, mesh), cases.shard_rows(b, mesh), mesh=mesh)
        atol = 1e4 * cases.eps(dtype)
        np.testing.assert_allclose(x, _numpys(a, b)[0], rtol=0, atol=atol)


@pytest.mark.extended
@pytest.mark.parametrize(
    "shape, ranks, dtype",
    cases.broad(
        [(*each, dtype) for each in _SHAPES for dtype in cases.DTYPES],
        core=lambda shape, ranks, dtype: (shape, dtype) == ((5, 13), "float64"),
    ),
)
def test_ridge(shape, ranks, dtype):
    """Ridge is least squares of A with damp times I below it."""
    mesh, (a, *_) = cases.line(ranks), _low_rank(*shape, min(shape), dtype)
    b = _b(shape[0], dtype)
    x, resid, *_ = linalg.lstsq(cases.shard_rows(a, mesh), b, damp=0.3, mesh=mesh)
    expected, residuals, *_ = _numpys(a, b, 0.3)
    np.testing.assert_allclose(x, expected, rtol=0, atol=300 * cases.eps(dtype))
    np.testing.assert_allclose(resid, residuals, rtol=0, atol=1e3 * cases.eps(dtype))
    if shape == (12, 3):
        again = linalg.least_squares(a, b, np.float64(0.3), mesh=mesh)
        np.testing.assert_allclose(again, expected, rtol=0, atol=300 * cases.eps(dtype))


def _check_normal_equations(a, b, found, rcond=None):
    """Checks the residual of the normal equations against LAPACK's gelsd, the rank and the
    values."""
    __tracebackhide__ = True
    x, _, rank, s = map(np.asarray, found)
    unit, scale = cases.eps(a.dtype), np.abs(a).max(initial=0) or 1
    theirs, _, expected, exact = np.linalg.lstsq(a, b, rcond=rcond)
    assert x.shape == theirs.shape and x.dtype == a.dtype and rank == expected
    largest = exact.max(initial=0) / scale
    np.testing.assert_allclose(s / scale, exact / scale, rtol=0, atol=20 * unit * largest)
    a = cases.wide(a) / scale

    def residual(x):
        with np.errstate(over="ignore"):
            rest = b - a @ (x * scale)
        size = np.linalg.norm(x * scale) * np.linalg.norm(a) + np.linalg.norm(b)
        return np.linalg.norm(a.conj().T @ rest) / (np.linalg.norm(a) or 1) / size

    assert residual(cases.wide(x)) <= 10 * residual(cases.wide(theirs)) + 100 * unit


@pytest.mark.breadth
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_conditions(ranks, dtype):
    """Rank and residual of the normal equations agree with LAPACK's for all condition numbers."""
    mesh, n, unit = cases.line(ranks), 6, cases.eps(dtype)
    wide = "complex128" if np.dtype(dtype).kind == "c" else "float64"
    left, right = (np.linalg.qr(cases.normal(cases.rng(m), (m, n), wide))[0] for m in (48, n))
    b = _b(48, dtype, 1)
    for power in range(0, 15 if unit < 1e-10 else 6, 2):
        a = ((left * np.logspace(0, -power, n)) @ right).astype(dtype)
        found = linalg.lstsq(cases.shard_rows(a, mesh), b, mesh=mesh)
        _check_normal_equations(a, b, found)
        expected = _numpys(a, b)[0]
        forward = np.linalg.norm(cases.wide(found[0]) - expected) / np.linalg.norm(expected)
        assert forward <= 50 * unit * 10.0 ** (2 * power) + 500 * unit


@pytest.mark.breadth
@pytest.mark.parametrize(
    "shape, ranks, dtype",
    [
        (shape, (1, 2, 4, 3, 8)[(i + j) % 5], dtype)
        for i, shape in enumerate(((40, 7), (13, 9), (11, 11), (9, 13), (7, 40)))
        for j, dtype in enumerate(cases.DTYPES)
    ],
)
def test_hard_matrices(shape, ranks, dtype):
    """For hard A, rank and singular values are LAPACK's, and residuals are not much larger than
    its."""
    mesh, b = cases.line(ranks), _b(shape[0], dtype)
    for kind in HARD:
        m, n = max(shape), min(shape)
        a = hard(kind, m, n, dtype) if shape[0] >= shape[1] else hard(kind, m, n, dtype).T
        # The cutoff is well away from singular values that are rounding errors.
        rcond = 1e-3 if kind == "nearly of rank 1" else 100 * max(shape) * cases.eps(dtype)
        _check_normal_equations(a, b, linalg.lstsq(a, b, rcond, mesh=mesh), rcond)


def _scaled_lapacks(a, b):
    """Returns LAPACK's x of scaled columns. Unscaled, LAPACK is less accurate if lengths differ."""
    lengths = np.linalg.norm(a, axis=0)
    return np.linalg.lstsq(a / lengths, b)[0] / lengths[:, None]


@pytest.mark.extended
@pytest.mark.parametrize("condition", (2, 1e3, 1e6))
@pytest.mark.parametrize("damp", (None, 1e-4))
def test_each_way_of_least_squares(condition, damp):
    """least_squares takes the seminormal equations for a well-conditioned A, and Q otherwise; both
    are equally accurate."""
    a = _conditioned(40, 8, condition)
    a = a * np.logspace(-3, 3, 8)  # has no effect: columns are scaled
    b, mesh = _b(40, "float64"), cases.line(2)
    found = linalg.least_squares(jnp.asarray(a), b, damp=damp, mesh=mesh)
    whole = a if damp is None else np.concatenate([a, damp * np.eye(8)])
    expected = _scaled_lapacks(whole, np.concatenate([b, np.zeros((len(whole) - 40, 2))]))
    bound = 1e-14 * condition * np.linalg.norm(b)
    assert np.linalg.norm(whole @ (found - expected)) <= bound


@pytest.mark.extended
def test_singular_values_of_well_conditioned_matrices_by_eigenvalues(monkeypatch):
    monkeypatch.setattr(svd, "SMALL", 4)
    monkeypatch.setattr(choice, "_PRODUCTS", ())
    gpus = types.SimpleNamespace(platform="gpu", is_whole=False)
    for condition, by_svd in ((2, False), (1e7, True)):
        r = np.triu(np.linalg.qr(_conditioned(9, 9, condition))[1])
        r = r * np.sign(np.diagonal(r))[:, None]
        assert bool(tall_qr.is_moderate(r, np.linalg.inv(r))) != by_svd
        exact = np.linalg.svd(r, compute_uv=False)
        found = least_squares._singular_values(jnp.asarray(r), gpus)
        np.testing.assert_allclose(found, exact, rtol=0, atol=5e-15)


def _conditioned(m, n, condition):
    left = np.linalg.qr(cases.normal(cases.rng(m, 1), (m, n), "float64"))[0]
    right = np.linalg.qr(cases.normal(cases.rng(n, 2), (n, n), "float64"))[0]
    return left * np.logspace(0, -np.log10(condition), n) @ right


@pytest.mark.breadth
@pytest.mark.parametrize("ranks", range(1, 6))
def test_every_small_shape(ranks):
    mesh = cases.line(ranks)
    for m, n in itertools.product(range(6), range(6)):
        dtype = cases.DTYPES[(m + n + ranks) % 4]
        a, b = cases.normal(cases.rng(m, n), (m, n), dtype), _b(m, dtype)
        found = linalg.lstsq(cases.shard_rows(a, mesh), b, mesh=mesh)
        expected = jnp.linalg.lstsq(a, b)
        assert found[0].dtype == dtype
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            atol = 1e4 * cases.eps(dtype) * np.abs(other).max(initial=1)
            np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    x, resid, rank, _ = linalg.lstsq(cases.shard_rows(a, mesh), b[:, :0], mesh=mesh)
    assert x.shape == (5, 0) and resid.shape == (0,) and int(rank) == 5


@pytest.mark.breadth
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(12, 3), (7, 5), (3, 7)], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite(shape, bad, dtype):
    mesh, (a, *_), b = cases.line(2), _low_rank(*shape, 3, dtype), _b(shape[0], dtype)
    wrong = a.copy()
    wrong[-1, 1] = bad
    x, *_ = linalg.lstsq(wrong, b, mesh=mesh)
    assert np.isnan(x).all()
    right = b.copy()
    right[1, 0] = bad
    x, *_ = linalg.lstsq(a, right, mesh=mesh)
    assert not np.isfinite(x[:, 0]).any() and np.isfinite(x[:, 1]).all()


def _moved(a, b, left, right, b_dot, h):
    """Returns a nearby problem of the same rank."""
    return (np.eye(len(a)) + h * left) @ a @ (np.eye(len(right)) + h * right), b + h * b_dot


@cases.needs_transformations
@pytest.mark.parametrize(
    "shape, ranks, rank, dtype, kind",
    cases.broad(
        [
            (*each, rank, dtype, kind)
            for each in _SHAPES
            for rank, dtype in ((2, "float64"), (3, "complex128"))
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda shape, ranks, rank, dtype, kind: (
            (shape, rank, kind) == ((12, 3), 2, AxisType.Auto)
        ),
    ),
)
def test_derivatives(shape, ranks, rank, dtype, kind):
    """Derivatives agree with differences along a direction that preserves the rank."""
    mesh, (a, left, right) = cases.line(ranks, kind=kind), _low_rank(*shape, rank, dtype)
    b, b_dot = _b(shape[0], dtype), _b(shape[0], dtype)[::-1].copy()
    a_dot, cutoff, h = left @ a + a @ right, 1e-9, 1e-6

    def run(a, b, a_dot, b_dot):
        return jax.jvp(lambda a, b: linalg.lstsq(a, b, cutoff, mesh=mesh), (a, b), (a_dot, b_dot))

    on_mesh = [cases.shard_rows(x, mesh) for x in (a, b, a_dot, b_dot)]
    _, moved = cases.on(mesh, jax.jit(run))(*on_mesh)
    plus, minus = (
        _numpys(*_moved(a, b, left, right, b_dot, step), rcond=cutoff) for step in (h, -h)
    )
    for i in (0, 1, 3):
        expected = (plus[i] - minus[i]) / (2 * h)
        scale = max(np.abs(expected).max(initial=0), 1)
        np.testing.assert_allclose(moved[i], expected, rtol=0, atol=1e-7 * scale)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("rank", [3, 2])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("shape", [(12, 3), (5, 5), (3, 8)], ids=str)
def test_gradients(shape, dtype, rank):
    """Gradients agree with those of JAX's pseudo-inverse, for full and low rank."""
    mesh, (a, *_) = cases.line(2), _low_rank(*shape, rank, dtype)
    b = _b(shape[0], dtype)

    def loss(solve):
        return lambda a, b: jnp.sum(jnp.abs(solve(a, b)) ** 2)

    def ours(a, b):
        return linalg.lstsq(a, b, 1e-10, mesh=mesh)[0]

    found, expected = (
        jax.grad(loss(solve), (0, 1))(jnp.asarray(a), jnp.asarray(b))
        for solve in (ours, lambda a, b: jnp.linalg.pinv(a, 1e-10) @ b)
    )
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * scale)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("shape", ((12, 3), (3, 8)))
def test_gradients_and_second_derivatives_of_ridge(shape):
    """Derivatives by A, b and damp agree with those of the normal equations."""
    mesh, (a, *_) = cases.line(2), _low_rank(*shape, 3, "float64")
    b = _b(shape[0], "float64", 1)[:, 0]

    def ours(a, b, damp):
        return jnp.sum(linalg.least_squares(a, b, damp, mesh=mesh) ** 3)

    def normal(a, b, damp):
        gram = a.T @ a + damp**2 * jnp.eye(shape[1])
        return jnp.sum(jnp.linalg.solve(gram, a.T @ b) ** 3)

    arrays = jnp.asarray(a), jnp.asarray(b), jnp.float64(0.4)
    for function in (jax.grad, lambda f, argnums: jax.jacfwd(jax.grad(f, argnums), argnums)):
        for one, other in zip(
            jax.tree.leaves(jax.jit(function(ours, argnums=(0, 1, 2)))(*arrays)),
            jax.tree.leaves(function(normal, argnums=(0, 1, 2))(*arrays)),
            strict=True,
        ):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_batches(dtype):
    mesh, a = cases.line(2), cases.normal(cases.rng(4), (3, 9, 3), dtype)
    b = cases.normal(cases.rng(5), (3, 9, 2), dtype)
    a[1, :, 1] = a[1, :, 0]
    found = linalg.lstsq(a, b, mesh=mesh, damp=0.1)
    same = linalg.lstsq(a, b[0], mesh=mesh)
    columns = jax.vmap(lambda b: linalg.lstsq(a[0], b, mesh=mesh)[0])(b)
    for i in range(3):
        # If A is singular, [A; 0.1 I] has condition 50, and errors grow with its square.
        _compare([x[i] for x in found], _numpys(a[i], b[i], 0.1), dtype, factor=3000)
        _compare([x[i] for x in same], _numpys(a[i], b[0]), dtype)
        expected = _numpys(a[0], b[i])[0]
        np.testing.assert_allclose(columns[i], expected, rtol=0, atol=500 * cases.eps(dtype))


@pytest.mark.breadth
def test_residuals_as_numpy_has_them():
    a, b, mesh = _low_rank(12, 3, 2, "float64")[0], _b(12, "float64"), cases.line(4)
    run = functools.partial(linalg.lstsq, rcond=1e-12, numpy_resid=True, mesh=mesh)
    assert run(cases.shard_rows(a, mesh), b)[1].shape == (0,)


@pytest.mark.breadth
@pytest.mark.parametrize("damp", [None, 0.3])
@pytest.mark.parametrize(
    "dtype, shape, rank, devices",
    [
        ("float64", (13, 13), 9, 4),
        ("float32", (17, 11), 11, 2),
        ("complex128", (11, 17), 5, 4),
        ("complex64", (9, 9), 4, 8),
    ],
)
def test_large_matrices_that_are_neither_tall_nor_wide(
    monkeypatch, dtype, shape, rank, devices, damp
):
    monkeypatch.setattr(qr_linalg, "SMALL", 4)
    cases.forget_plans()
    a, b = _low_rank(*shape, rank, dtype)[0], _b(shape[0], dtype)
    mesh, rcond = cases.line(devices), 1e-4
    expected = _numpys(a, b, damp, rcond) if damp is None or shape[0] >= shape[1] else None
    for right, columns in ((b, expected), (b[:, 0], None)):
        found = linalg.lstsq(a, right, rcond, damp=damp, mesh=mesh)
        if columns is not None:
            _compare(found, columns, dtype)
        else:  # ridge of a wide matrix, by its normal equations
            x = np.linalg.pinv(cases.wide(a), rcond) @ cases.wide(right)
            if damp is not None:
                adjoint = cases.wide(a).conj().T
                normal = adjoint @ cases.wide(a) + damp**2 * np.eye(shape[1])
                x = np.linalg.solve(normal, adjoint @ cases.wide(right))
            np.testing.assert_allclose(found[0], x, rtol=0, atol=1e4 * cases.eps(dtype))
    cases.forget_plans()


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("shape", [(9, 9), (7, 11)], ids=str)
def test_derivatives_of_large_matrices(monkeypatch, shape):
    mesh, (a, left, _), b = cases.line(4), _low_rank(*shape, 5, "float64"), _b(shape[0], "float64")
    left, b_dot = left / 10, _b(shape[0] + 1, "float64")[1:]

    def run(t):
        moved = a + t * (left @ a)
        return linalg.lstsq(moved, b + t * b_dot, 1e-10, mesh=mesh)

    expected = jax.jvp(run, (0.0,), (1.0,))[1]
    monkeypatch.setattr(qr_linalg, "SMALL", 4)
    cases.forget_plans()
    found = jax.jvp(run, (0.0,), (1.0,))[1]
    for x, y in zip(found, expected, strict=True):
        if jnp.issubdtype(y.dtype, jnp.floating):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-8)
    cases.forget_plans()


def test_errors():
    a, b = _low_rank(6, 3, 3, "float64")[0], _b(6, "float64")
    with pytest.raises(ValueError, match=r"b must have shape \(6,\) or \(6, nrhs\)"):
        linalg.lstsq(a, b[:5])
    with pytest.raises(ValueError, match="damp must be a real scalar"):
        linalg.least_squares(a, b, damp=np.ones(3))
