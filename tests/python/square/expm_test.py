"""The exponential of any square matrix, against SciPy's."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

from jaxmg import linalg

# 1-norms: each but the last takes another order of the approximant, and the last also squarings.
_NORMS = (1e-3, 0.2, 0.5, 1.5, 4.0, 40.0)


def _matrix(n, dtype, norm):
    matrix = cases.normal(cases.rng(n, 3), (n, n), dtype)
    return (matrix * norm / np.linalg.norm(matrix, 1)).astype(dtype)


def _close(found, matrix):
    __tracebackhide__ = True
    expected = scipy.linalg.expm(cases.wide(matrix))
    error = np.linalg.norm(cases.wide(found) - expected, 1) / np.linalg.norm(expected, 1)
    assert error <= 20 * len(matrix) * cases.eps(matrix.dtype) * max(1, np.linalg.norm(matrix, 1))


@pytest.mark.parametrize(
    "n, ranks, dtype, kind",
    cases.broad(
        [
            (n, ranks, dtype, kind)
            for i, dtype in enumerate(cases.DTYPES)
            for j, n in enumerate((1, 8, 13))
            for ranks in ((1, 2, 3, 4, 8)[(i + j) % 5],)
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda *case: case == (13, 3, "float32", AxisType.Explicit),
    ),
)
def test_of_all_orders(n, ranks, dtype, kind):
    mesh = cases.line(ranks, kind=kind)
    for norm in _NORMS:
        matrix = _matrix(n, dtype, norm)
        a = cases.shard_rows(matrix, mesh)
        found = linalg.expm(a)
        _close(found, matrix)
        assert found.dtype == dtype and found.sharding.is_equivalent_to(a.sharding, 2)


@pytest.mark.extended
def test_triangles_and_squarings():
    mesh, matrix = cases.line(2), _matrix(6, "float64", 90.0)
    spoilt = np.where(np.tri(6, k=-1, dtype=bool), np.nan, matrix)
    found = linalg.expm(spoilt, upper_triangular=True, mesh=mesh)
    _close(found, np.triu(matrix))
    assert (np.tril(found, -1) == 0).all()
    _close(linalg.expm(matrix, max_squarings=5, mesh=mesh), matrix)
    for wrong in (np.nan, np.inf):
        matrix[1, 2] = wrong
        assert np.isnan(linalg.expm(matrix, mesh=mesh)).all()


@pytest.mark.breadth
def test_too_many_squarings():
    matrix = _matrix(6, "float64", 90.0)
    assert np.isnan(linalg.expm(matrix, max_squarings=2, mesh=cases.line(2))).all()
    assert linalg.expm(np.zeros((0, 0))).shape == (0, 0)


def _second(function):
    """Returns the gradient of a directional derivative."""

    def gradient(a, along):
        slope = jax.grad(lambda a: jnp.sum(jnp.sin(function(a))).real)(a)
        return jnp.sum((slope * along).real)

    return jax.grad(gradient)


@cases.needs_transformations
@pytest.mark.parametrize(
    "of, norm, kind",
    cases.broad(
        [
            (of, norm, kind)
            for of in ("jvp", "gradient", "second", "jvp of gradient")
            for norm in (0.2, 9.0)
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda *_: False,
    ),
)
def test_derivatives(of, norm, kind):
    n, mesh = 8, cases.line(4, kind=kind)
    matrix = _matrix(n, "complex128", norm)
    along = cases.normal(cases.rng(2), (n, n), "complex128")

    def derivative(f):
        def gradient(a):
            return jax.grad(lambda a: jnp.sum(jnp.sin(f(a))).real)(a)

        return {
            "jvp": lambda a, e: jax.jvp(f, (a,), (e,))[1],
            "gradient": lambda a, e: gradient(a),
            "second": _second(f),
            "jvp of gradient": lambda a, e: jax.jvp(gradient, (a,), (e,))[1],
        }[of]

    ours = jax.jit(derivative(functools.partial(linalg.expm, mesh=mesh)))
    found = cases.on(mesh, ours)(*(cases.shard_rows(x, mesh) for x in (matrix, along)))
    expected = jax.jit(derivative(jax.scipy.linalg.expm))(matrix, along)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * scale)


@pytest.mark.slow
@cases.needs_transformations
def test_gradient():
    """The gradient is the adjoint of the Fréchet derivative, which SciPy has too."""
    n, mesh = 7, cases.line(2)
    matrix, weights = _matrix(n, "float64", 3.0), cases.normal(cases.rng(4), (n, n), "float64")

    @jax.jit
    def gradient(a):
        return jax.grad(lambda a: jnp.sum(weights * linalg.expm(a, mesh=mesh)))(a)

    expected = scipy.linalg.expm_frechet(matrix.T, weights)[1]
    np.testing.assert_allclose(gradient(matrix), expected, rtol=1e-10, atol=1e-10)


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("ranks", [2, cases.breadth(1)])
def test_derivatives_where_the_exponential_is_nan(ranks):
    a = np.stack([_matrix(5, "complex128", 1.0)] * 3)
    a[1, 2, 1] = np.nan

    def function(a, squarings=40):
        return linalg.expm(a, max_squarings=squarings, mesh=cases.line(ranks))

    def loss(a):
        return function(a).real.sum()

    gradient = np.asarray(jax.grad(loss)(jnp.asarray(a)))
    assert np.isnan(gradient[1]).all() and np.isfinite(gradient[::2]).all()
    assert np.isnan(jax.grad(loss)(jnp.asarray(a[1]))).all()
    assert np.isnan(jax.jvp(lambda a: function(1e3 * a, 2), (a[0],), (a[0],))[1]).all()


@pytest.mark.breadth
@cases.kinds
@cases.needs_transformations
def test_a_batch(kind):
    """Matrices of a batch may need different orders and numbers of squarings; the batch has a
    gradient."""
    stack = np.stack([_matrix(5, "float64", norm) for norm in _NORMS[1:]])
    mesh = cases.line(2, kind=kind)
    for found, matrix in zip(linalg.expm(stack, mesh=mesh), stack, strict=True):
        _close(found, matrix)

    def gradient(function):
        return jax.jit(jax.grad(lambda a: jnp.sum(jnp.cos(function(a)))))(stack[:3])

    ours = cases.on(mesh, gradient)(functools.partial(linalg.expm, mesh=mesh))
    np.testing.assert_allclose(ours, gradient(jax.scipy.linalg.expm), rtol=1e-9, atol=1e-9)


@pytest.mark.breadth
@cases.kinds
@cases.needs_transformations
def test_derivatives_where_nothing_is_promoted(kind):
    matrix, mesh = _matrix(5, "float64", 2.0), cases.line(2, kind=kind)

    def gradient(function, a):
        x, transposed = jax.vjp(function, a)
        return transposed(cases.like(a, x))[0]

    expected = gradient(jax.scipy.linalg.expm, jnp.asarray(matrix))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        ours = functools.partial(gradient, functools.partial(linalg.expm, mesh=mesh))
        found = cases.on(mesh, ours)(jnp.asarray(matrix))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.breadth
def test_of_a_hermitian_matrix():
    """``assume_a="her"`` takes eigenvalues, whatever number of squarings the default would take."""
    mesh, matrix = cases.line(2), cases.hermitian(6, "complex128")
    expected = scipy.linalg.expm(matrix)
    for assumed in (None, "gen", "general", "her", "hermitian"):
        np.testing.assert_allclose(
            linalg.expm(matrix, assume_a=assumed, mesh=mesh), expected, rtol=0, atol=1e-11
        )
    matrix[0, 1] += 1
    assert np.isnan(linalg.expm(matrix, assume_a="her", mesh=mesh)).all()
    large = np.diag([-1e9, -1.0]).astype("float64")
    found = linalg.expm(large, assume_a="her", mesh=mesh)
    np.testing.assert_allclose(found, np.diag([0, np.exp(-1)]), rtol=0, atol=1e-14)


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("dtype", [cases.breadth("float32"), "complex128"])
def test_of_triangular_matrices(dtype):
    """Each entry of a triangular matrix's exponential is right although entries differ in size,
    whether the matrix is detected or declared to be triangular."""
    mesh, n = cases.line(3), 5
    matrix = np.triu(cases.normal(cases.rng(5), (n, n), dtype)) * 10.0 ** np.tri(n, k=-1).T
    for scale in (1, 1e5):
        upper = np.where(np.eye(n), matrix, matrix * np.dtype(dtype).type(scale)).astype(dtype)
        exact = scipy.linalg.expm(cases.wide(upper))
        for found in (
            linalg.expm(upper, mesh=mesh),
            linalg.expm(upper + np.tri(n, k=-1, dtype=dtype), upper_triangular=True, mesh=mesh),
            linalg.expm(upper.T, mesh=mesh).T,
            linalg.expm(upper[None], mesh=mesh)[0],
        ):
            found = np.asarray(found)
            assert (np.tril(found, -1) == 0).all()
            for band in (0, 1):
                np.testing.assert_allclose(
                    np.diagonal(found, band), np.diagonal(exact, band), rtol=20 * cases.eps(dtype)
                )
            error = np.abs(found - exact).max() / np.abs(exact).max()
            assert error <= 100 * cases.eps(dtype)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("lower", [cases.breadth(False), True])
def test_derivatives_at_a_triangular_matrix(lower):
    """Derivatives at a triangular matrix are right in directions that aren't triangular."""
    a, along = np.triu(_matrix(5, "float64", 9.0)), _matrix(5, "float64", 1.0)
    a = a.T.copy() if lower else a
    mesh = cases.line(2)
    exact, moved = scipy.linalg.expm_frechet(a, along)
    found = jax.jvp(lambda a: linalg.expm(a, mesh=mesh), (a,), (along,))
    np.testing.assert_allclose(found[0], exact, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], moved, rtol=1e-11, atol=1e-11)
    gradient = jax.grad(lambda a: jnp.vdot(along, linalg.expm(a, mesh=mesh)))(a)
    adjoint = scipy.linalg.expm_frechet(a.T, along, compute_expm=False)
    np.testing.assert_allclose(gradient, adjoint, rtol=1e-11, atol=1e-11)


@pytest.mark.extended
def test_of_badly_scaled_matrices():
    """The first matrix is large, but its powers are small. The second one is triangular up to a
    permutation of rows and columns."""
    mesh, matrix = cases.line(2), np.zeros((4, 4))
    matrix[0] = -6e-2, -1.37e9, -1.17e19, 1e-12
    matrix[1, 0] = matrix[2, 1] = 1e-12
    # Computed by mpmath with 120 digits.
    row = [0.9411045099874178, -1335139667.3814385, -1.1353317781704958e19, 9.703690411713645e-13]
    np.testing.assert_allclose(linalg.expm(matrix, mesh=mesh)[0], row, rtol=1e-13)
    single = linalg.expm(matrix.astype(np.float32), mesh=mesh)
    np.testing.assert_allclose(single[0], row, rtol=1e-3)
    order = [2, 0, 1]
    matrix = np.array([[-1, 1e5, 1e9], [0, -2, 1e4], [0, 0, -3]])[np.ix_(order, order)]
    exact = scipy.linalg.expm(matrix)
    error = np.abs(linalg.expm(matrix, mesh=mesh) - exact).max() / np.abs(exact).max()
    assert error <= 1e-11


@pytest.mark.core("1-complex128")
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_of_nilpotent_matrices(dtype, ranks):
    """Powers of |A| are 0, and bound no number of squarings from below."""
    mesh = cases.line(ranks)
    found = linalg.expm(np.array([[0, 1e7], [0, 0]], dtype), mesh=mesh)
    np.testing.assert_array_equal(found, [[1, 1e7], [0, 1]])
    a = np.zeros((3, 3), dtype)
    a[0, 2], a[2, 1] = 1e7, 3e6
    expected = np.eye(3) + a + a.astype("complex128") @ a / 2
    np.testing.assert_allclose(linalg.expm(a, mesh=mesh), expected, rtol=1e-6)
