"""Values at extreme scales: a function that is homogeneous of degree d maps 2^k A to 2^(dk) f(A).

scale_cases.py has all functions, and tests/fuzz/scales.py tries random scales of them.
"""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scale_cases
import scipy.linalg

import jaxmg
from jaxmg import linalg
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._lu import stacks as lu_stacks
from jaxmg._matrices import norms
from jaxmg._qr import linalg as qr_linalg

# Powers of two at which squares of entries overflow or underflow, but entries don't.
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
    """Returns x 2^k, exactly."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return (np.ldexp(x.real, k) + 1j * np.ldexp(x.imag, k)).astype(x.dtype)
    return np.ldexp(x, k)


def _powers(dtype):
    return _FAR[str(np.finfo(dtype).dtype)]


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_norm(dtype):
    a, where = _random(dtype, 8, 8), {"mesh": cases.line(4)}
    for order in _NORMS:
        exact = np.linalg.norm(a.astype(np.complex128), order)
        value = np.asarray(linalg.norm(jnp.asarray(a), order, **where))
        assert abs(value - exact) <= 100 * np.finfo(dtype).eps * exact
        for k in _powers(dtype):
            assert linalg.norm(jnp.asarray(_times(a, k)), order, **where) == _times(value, k)


@pytest.mark.extended
@pytest.mark.parametrize("order", _VECTOR_NORMS)
def test_norm_of_vectors_and_gradient(order):
    x = _random("float32", 3, 8)

    def evaluate(x):
        return linalg.norm(x, order, axis=1)

    value, gradient = (
        evaluate(jnp.asarray(x)),
        jax.grad(lambda x: evaluate(x).sum())(jnp.asarray(x)),
    )
    np.testing.assert_allclose(value, np.linalg.norm(x, order, axis=1), rtol=1e-5)
    exact = jax.grad(lambda x: jnp.linalg.norm(x, order, axis=1).sum())(x.astype(float))
    np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=1e-6)
    for k in _powers(x.dtype):
        scaled = jnp.asarray(_times(x, k))
        np.testing.assert_array_equal(evaluate(scaled), _times(value, k))
        np.testing.assert_array_equal(jax.grad(lambda x: evaluate(x).sum())(scaled), gradient)


@pytest.mark.extended
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


@pytest.mark.extended
@pytest.mark.parametrize("ranks", [cases.breadth(1), 4])
def test_norm_keeps_nan(ranks):
    """NaN is preserved on any device. XLA's maximum over a sharded axis loses it on CPU devices."""
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


@pytest.mark.extended
@pytest.mark.parametrize("order", [1, -1, np.inf, -np.inf])
def test_norm_by_sums_has_a_derivative_at_ties(order):
    """The derivative is right although XLA may compute the sums twice, with different rounding, so
    that no sum equals the norm."""
    a = np.array([[1.0, -2, 1 if order > 0 else 3], [3, 2, -2]])  # sums 4, 4 and 3 or 5
    expected = np.sign(a) * [0.5, 0.5, 0]
    if abs(order) == np.inf:
        a, expected = a.T, expected.T
    slope = jax.grad(lambda a: linalg.norm(a, order))
    np.testing.assert_array_equal(slope(jnp.asarray(a)), expected)
    assert np.isnan(slope(jnp.asarray(a) * np.nan)).all()
    sums = jnp.array([[3.0, 5, 4]])
    for value in (3.0, 3 * (1 + 1e-15), 3 * (1 - 1e-15)):
        np.testing.assert_array_equal(norms._weights(sums, value, 1, False), [[1, 0, 0]])
    np.testing.assert_array_equal(norms._weights(sums, 5 * (1 + 1e-15), 1, True), [[0, 1, 0]])


@pytest.mark.extended
@pytest.mark.parametrize(
    "p", [None, 1, -np.inf, *map(cases.breadth, (-2, -1, np.inf, "fro", "nuc"))]
)
def test_cond(p):
    a = _random("float32", 6, 6)
    a[:, 0] *= 2.0**-12
    value = linalg.cond(jnp.asarray(a), p, mesh=cases.line(2))
    np.testing.assert_allclose(value, np.linalg.cond(a.astype(float), p), rtol=1e-2)
    for k in (-104, 124):
        assert linalg.cond(jnp.asarray(_times(a, k)), p, mesh=cases.line(2)) == value


@pytest.mark.extended
def test_cond_of_identity():
    for n in (2, 3, 7):
        assert linalg.cond(np.eye(n), 1, mesh=cases.line(2)) == 1


@pytest.mark.extended
def test_matrix_rank():
    """The rank is right although the smaller singular value is denormal; no entry is."""
    a = np.array([[1, 1], [1, 1 + 2.0**-20]], np.float32)
    for k in (0, -115):
        assert linalg.matrix_rank(jnp.asarray(_times(a, k)), 1e-9, mesh=cases.line(2)) == 2


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("exponent", [-25, -21, 18, 30])
def test_inverse_root_by_newton(exponent):
    a = (np.diag([1.0, 2, 3]) * 10.0**exponent).astype(np.float32)
    (root,) = jaxmg.tree.inverse_pth_root([a], 4, method="newton", mesh=cases.line(2))
    exact = (np.array([1, 2, 3]) + 3e-6) ** -0.25
    np.testing.assert_allclose(np.diagonal(root) * 10.0 ** (exponent / 4), exact, rtol=1e-5)


_LEAST_SQUARES = {
    "linalg.least_squares": lambda a, b, **o: linalg.least_squares(a, b, **o),
    "linalg.lstsq": lambda a, b, **o: linalg.lstsq(a, b, **o)[0],
    "least_squares": lambda a, b, **o: jaxmg.least_squares(a, b, **o),
}


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize(
    ("ranks", "shape", "name"),
    cases.broad(
        itertools.product((1, 4), ((24, 3), (3, 24)), _LEAST_SQUARES),
        lambda ranks, shape, name: ranks == 4 and (shape[0] > 3 or name == "linalg.lstsq"),
    ),
)
def test_least_squares(ranks, shape, name):
    """Solutions and gradients scale exactly, although products of A's entries with b's overflow or
    underflow."""
    dtype, mesh = "float32", cases.line(ranks)
    a, b = _random(dtype, *shape), _random(dtype, shape[0], 2, seed=1)

    def evaluate(a, b):
        return _LEAST_SQUARES[name](a, b, mesh=mesh)

    def loss(a, b, scale):
        return jnp.sum(jnp.cos(evaluate(a, b) * scale))

    run, gradients = jax.jit(evaluate), jax.jit(jax.grad(loss, (0, 1)))
    x, slopes = run(a, b), gradients(a, b, np.float32(1))
    np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0], rtol=1e-4, atol=1e-5)
    for i, j in ((-60, -60), (-60, -70), (60, 60), (62, 0), (-10, -110)):
        scaled = _times(a, i), _times(b, j)
        np.testing.assert_array_equal(run(*scaled), _times(x, j - i))
        for slope, now, power in zip(
            slopes, gradients(*scaled, _times(np.float32(1), i - j)), (i, j), strict=True
        ):
            np.testing.assert_array_equal(now, _times(slope, -power))


@pytest.mark.extended
@pytest.mark.parametrize("damp", [cases.breadth(None), 0.5])
def test_lstsq_of_columns_far_apart(damp):
    """Columns of b may be far apart in size; residuals and singular values are right too."""
    a, b = _random("float32", 24, 3), _random("float32", 24, 1, seed=1)
    mesh = cases.line(4)
    # A library may round a product with one column otherwise than one with four.
    x, resid, rank, s = linalg.lstsq(a, np.repeat(b, 4, axis=1), damp=damp, mesh=mesh)
    assert rank == 3
    columns = np.concatenate([_times(b, k) for k in (-110, -25, 0, 40)], axis=1)
    for i in (-40, 50):
        scaled = None if damp is None else damp * 2.0**i
        results = linalg.lstsq(_times(a, i), columns, damp=scaled, mesh=mesh)
        for column, k in enumerate((-110, -25, 0, 40)):
            if -120 < k - i < 120:
                np.testing.assert_array_equal(results[0][:, column], _times(x[:, column], k - i))
        np.testing.assert_array_equal(
            results[1][1:], [_times(resid[j], 2 * k) for j, k in ((1, -25), (2, 0), (3, 40))]
        )
        np.testing.assert_array_equal(results[3], _times(s, i))


@cases.needs_transformations
@pytest.mark.breadth
def test_lstsq_of_a_large_matrix_that_is_not_tall(monkeypatch):
    monkeypatch.setattr(qr_linalg, "SMALL", 4)
    cases.forget_plans()
    a, b, mesh = _random("float32", 9, 9), _random("float32", 9, 2, seed=1), cases.line(2)
    x, resid, rank, s = linalg.lstsq(a, b, mesh=mesh)
    assert rank == 9
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-3, atol=1e-4)
    for i, j in ((118, 0), (-118, 0), (100, 120), (-100, -116)):
        found = linalg.lstsq(_times(a, i), _times(b, j), mesh=mesh)
        assert found[2] == 9
        np.testing.assert_array_equal(found[0], _times(x, j - i))
        np.testing.assert_array_equal(found[3], _times(s, i))
    cases.forget_plans()


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("n", [cases.breadth(2), cases.breadth(3), 8])
def test_det_of_batches(n):
    """Determinants scale exactly, also if those of scaled matrices overflow, and of singular
    matrices."""
    a = _random("float32", 4, n, n)
    a[3, 0] = a[3, 1]
    run = jax.jit(jax.value_and_grad(lambda a: linalg.det(a, mesh=cases.line(1)).sum()))
    exact = np.linalg.det(a.astype(float))
    values = linalg.det(jnp.asarray(a), mesh=cases.line(1))
    np.testing.assert_allclose(values, exact, rtol=1e-5, atol=1e-5)
    slope = run(a)[1]
    for k in (-112 // n, 112 // n):
        scaled = _times(a, k)
        found = np.asarray(linalg.det(jnp.asarray(scaled), mesh=cases.line(1)))
        np.testing.assert_array_equal(found[:3], _times(values, k * n)[:3])
        np.testing.assert_array_equal(run(scaled)[1][:3], _times(slope, k * (n - 1))[:3])


@cases.needs_transformations
@pytest.mark.extended
def test_det_of_a_batch_of_large_matrices():
    """The determinants are right, and near 1, although those of the scaled matrices overflow."""
    n = 200
    a = np.stack([_random("float32", n, n, seed=i) for i in range(2)]) * np.float32(0.1165)
    exact = np.linalg.slogdet(a.astype(float))
    assert (np.abs(exact[1]) < 20).all()
    assert (exact[1] - n * np.log(np.abs(a).max((1, 2))) > 100).all()
    run = jax.jit(jax.value_and_grad(lambda a: linalg.det(a, mesh=cases.line(1)).sum()))
    value, slope = run(a)
    exact = exact[0] * np.exp(exact[1])
    np.testing.assert_allclose(value, exact.sum(), rtol=0, atol=1e-3 * np.abs(exact).max())
    slopes = exact[:, None, None] * np.linalg.inv(a.astype(float)).swapaxes(1, 2)
    np.testing.assert_allclose(slope, slopes, rtol=0, atol=1e-2 * np.abs(slopes).max())


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("operation", "way", "degree"),
    [(lu_stacks.INV, "small", -1), (lu_stacks.INV, "plugin", -1), (lu_stacks.SOLVE, "small", -1),
     (lu_stacks.SOLVE, "plugin", -1), (cholesky_stacks.CHOLESKY, "plugin", 0.5)],
)  # fmt: skip
def test_stacks_by_the_plugin(operation, way, degree):
    """Stacks scale exactly, although partial sums of results near the least normal number are
    denormal."""
    a = _random("float32", 40, 6, 6)
    if degree == 0.5:
        a = a @ a.swapaxes(1, 2) + np.eye(6, dtype="float32")
    others = (_random("float32", 40, 6, 2, seed=1),) * (operation is lu_stacks.SOLVE)
    run = jax.jit(operation.ways[way])
    value = np.asarray(run(a, *others))
    info = np.finfo("float32")
    for k in (-118, -60, 60, 124):
        expected = _times(value, int(degree * k))
        scaled = _times(a, k)
        normal = np.isfinite(scaled).all((1, 2)) & (np.abs(scaled) >= info.tiny).all((1, 2))
        assert normal.any()
        found = np.asarray(run(scaled, *others))
        fine = (np.abs(expected) >= info.tiny) & np.isfinite(expected) & normal[:, None, None]
        np.testing.assert_array_equal(found[fine], expected[fine])


@pytest.mark.extended
def test_rcond_of_a_tie():
    """A singular value of exactly rcond times the largest counts as 0, as in NumPy."""
    a, b = np.diag([1.0, 0.5]), np.ones(2)
    x, _, rank, _ = linalg.lstsq(a, b, 0.5, mesh=cases.line(1))
    expected = np.linalg.lstsq(a, b, 0.5)
    assert rank == expected[2] == linalg.matrix_rank(a, 0.5) == np.linalg.matrix_rank(a, rtol=0.5)
    np.testing.assert_array_equal(x, expected[0])
    np.testing.assert_array_equal(linalg.pinv(a, 0.5), np.linalg.pinv(a, 0.5))
    assert linalg.null_space(a, 0.5).shape == scipy.linalg.null_space(a, 0.5).shape == (2, 1)
    assert linalg.orth(a, 0.5).shape == scipy.linalg.orth(a, 0.5).shape == (2, 1)


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("dtype", [cases.breadth("float32"), "complex64"])
@pytest.mark.parametrize("mode", ["plain", "pivoting", "stack", "complete"])
def test_qr_of_huge(mode, dtype):
    a, where = _random(dtype, 24, 3), {"mesh": cases.line(4)}

    def evaluate(a):
        if mode == "stack":
            return linalg.qr(a[None].repeat(2, 0), **where)
        if mode == "complete":
            return linalg.qr(a, mode="complete", **where)
        return linalg.qr(a, pivoting=mode == "pivoting", **where)[:2]

    q, r = evaluate(jnp.asarray(a))
    for k in (-110, 121):
        found = evaluate(jnp.asarray(_times(a, k)))
        np.testing.assert_array_equal(found[0], q)
        np.testing.assert_array_equal(found[1], _times(r, k))


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("batch", [False, True])
def test_qr_of_columns_far_apart(batch):
    a, mesh = _random("float32", 24, 3), cases.line(4)
    far = np.stack([_times(a[:, i], k) for i, k in enumerate((110, 0, -110))], axis=1)
    q, found = (linalg.qr(x[None] if batch else x, mesh=mesh)[0] for x in (a, far))
    np.testing.assert_array_equal(found, q)


def _all_functions():
    """Returns all functions in one dtype and on one mesh; some of them are the core."""
    core = {
        ("norm fro", "tall", False, False),
        ("svdvals", "square", False, False),
        ("eigh", "definite", False, False),
        ("cholesky", "definite", False, False),
        ("inv of definite", "definite", False, False),
        ("matrix_power 2", "square", False, False),
        ("vectors' norm 3", "wide", False, False),
        ("polar", "tall", False, True),
    }
    cases_ = [
        (name, kind, gradient, batch)
        for name, function in scale_cases.FUNCTIONS.items()
        for kind in function.kinds
        for gradient in (False, True)[: 1 + function.differentiable]
        for batch in (False, True)[: 1 + function.batches]
    ]
    return cases.broad(cases_, lambda *case: case in core)


@cases.needs_transformations
@pytest.mark.parametrize(("name", "kind", "gradient", "batch"), _all_functions())
def test_two_scales(name, kind, gradient, batch):
    """Results scale exactly by the least and the largest power of two with which no number leaves
    the normal range."""
    case = name, kind, "float32", 2, batch, gradient
    wrong, _ = scale_cases.find_wrong(*case, 0, powers=0, matrices=40)
    assert wrong is None, wrong
