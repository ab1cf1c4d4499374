"""Condition numbers and ranks by an LU factor, against LAPACK's."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

import jaxmg
from jaxmg import linalg
from jaxmg._kept import condition

_NAMES = {1: "1", np.inf: "I"}


def _gecon(matrix, p):
    """Returns LAPACK's estimate of the reciprocal condition number."""
    gecon = scipy.linalg.get_lapack_funcs("gecon", (matrix,))
    return gecon(scipy.linalg.lu_factor(matrix)[0], np.linalg.norm(matrix, p), norm=_NAMES[p])[0]


@pytest.mark.core("24")
@pytest.mark.parametrize(
    "n, ranks, dtype, p, kind",
    cases.broad(
        [
            (n, ranks, dtype, p, kind)
            for i, n in enumerate((1, 2, 13, 24))
            for j, dtype in enumerate(cases.DTYPES)
            for p in _NAMES
            for ranks in ((1, 2, 3, 4, 8)[(i + j) % 5],)
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda n, ranks, dtype, p, kind: (
            (n, dtype, p, kind)
            in (
                (13, "complex128", 1, AxisType.Auto),
                (24, "float32", np.inf, AxisType.Explicit),
            )
        ),
    ),
)
def test_the_estimate_is_that_of_lapack(n, ranks, dtype, p, kind):
    """`cond` and a factor return LAPACK's estimate. It never exceeds the condition number, up to
    rounding."""
    matrix, mesh = cases.normal(cases.rng(n), (n, n), dtype), cases.line(ranks, kind=kind)
    matrix[:, -1] = matrix[:, 0] / 2 + matrix[:, -1] / 100
    a = cases.shard_rows(matrix, mesh)
    expected, rounding = 1 / _gecon(matrix, p), 1e3 * cases.eps(dtype)
    found = linalg.cond(a, p)
    assert found.shape == () and found.dtype == np.finfo(dtype).dtype
    np.testing.assert_allclose(found, expected, rtol=rounding * expected / 100 + rounding)
    assert found <= np.linalg.cond(cases.wide(matrix), p) * (1 + rounding * expected)
    reciprocal = jaxmg.lu_factor(a).rcond(np.linalg.norm(matrix, p), _NAMES[p])
    assert reciprocal.dtype == found.dtype
    np.testing.assert_allclose(reciprocal, 1 / found, rtol=rounding)


@pytest.mark.extended
def test_cancellation_does_not_hide_the_norm():
    """The inverse I + 1000 v v^T maps the iteration's first two vectors to themselves."""
    v = np.array([0, 1, -1, 1, -1, 1, -1, 0])
    inverse = np.eye(8) + 1000 * np.outer(v, v)
    estimate = condition._largest_column(lambda x: inverse @ x, lambda x: inverse @ x, 8, "float64")
    assert np.linalg.norm(inverse, 1) / 3 < estimate <= np.linalg.norm(inverse, 1)


@pytest.mark.extended
@pytest.mark.parametrize("p", cases.broad([(-1,), (-np.inf,), ("fro",)], core=lambda p: p == "fro"))
def test_other_norms_are_by_the_inverse(p):
    matrix = cases.general("well", 7, "complex128")
    found = linalg.cond(matrix, p, mesh=cases.line(2))
    np.testing.assert_allclose(found, np.linalg.cond(matrix, p), rtol=1e-12)


@pytest.mark.extended
def test_singular_and_not_finite():
    mesh, matrix = cases.line(2), cases.general("well", 6, "float64")
    norm = np.linalg.norm(matrix, 1)
    singular = matrix.copy()
    singular[2] = 0
    factor = jaxmg.lu_factor(singular, None, mesh)
    assert linalg.cond(singular, 1, mesh=mesh) == np.inf and factor.rcond(norm) == 0
    for value, expected in ((np.nan, np.nan), (np.inf, np.inf)):  # as in JAX
        singular[2, 3] = value
        np.testing.assert_equal(float(linalg.cond(singular, 1, mesh=mesh)), expected)
        assert np.isnan(jaxmg.lu_factor(singular, None, mesh).rcond(norm))
    factor = jaxmg.lu_factor(matrix, None, mesh)
    assert factor.rcond(0) == 0 and np.isnan(factor.rcond(np.nan))
    # Here a solution overflows.
    tiny = np.triu(np.full((6, 6), -1e200)) + np.diag([1e200] * 5 + [1e-300])
    assert linalg.cond(tiny / 1e10, 1, mesh=mesh) > 1e300


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_matrix_rank(dtype):
    n, rank, mesh = 11, 6, cases.line(2)
    random = cases.rng(n)
    matrix = cases.normal(random, (n, rank), dtype) @ cases.normal(random, (rank, n), dtype)
    factor = jaxmg.lu_factor(matrix, None, mesh)
    found = factor.matrix_rank()
    assert found == rank and found.dtype == np.int32 and found.shape == ()
    assert factor.matrix_rank(1e6) == 0 and factor.matrix_rank(tol=0.0) >= rank
    assert jax.jit(lambda f: f.matrix_rank())(factor) == rank
    matrix[0, 0] = np.nan
    assert jaxmg.lu_factor(matrix, None, mesh).matrix_rank() == 0
    assert jaxmg.lu_factor(np.zeros((0, 0)), None, mesh).matrix_rank() == 0


@pytest.mark.slow
@cases.needs_transformations
def test_in_transformations():
    """Estimates of condition numbers can be traced and batched; differentiating them raises an
    error."""
    mesh = cases.line(2)
    stack = np.stack([cases.general("well", 5, "float64") + i * np.eye(5) for i in range(3)])
    expected = [1 / _gecon(matrix, 1) for matrix in stack]
    found = jax.jit(lambda a: linalg.cond(a, 1, mesh=mesh))(stack)
    np.testing.assert_allclose(found, expected, rtol=1e-10)

    def reciprocal(a):
        return jaxmg.lu_factor(a, None, mesh).rcond(jnp.linalg.norm(a, 1))

    np.testing.assert_allclose(1 / jax.jit(reciprocal)(stack[0]), expected[0], rtol=1e-10)
    for function in (lambda a: linalg.cond(a, 1, mesh=mesh), reciprocal):
        with pytest.raises(NotImplementedError, match="has no derivative"):
            jax.grad(function)(stack[0])
    gradients = (jax.grad(lambda a, f=f: f.cond(a, "fro"))(stack[0]) for f in (linalg, jnp.linalg))
    np.testing.assert_allclose(*gradients, rtol=1e-9, atol=1e-9)


def test_wrong_arguments():
    factor = jaxmg.lu_factor(np.eye(3))
    for p in (3, "f", True, [1], np.nan):
        with pytest.raises(ValueError, match="^linalg.cond: p must be"):
            linalg.cond(np.eye(3), p)
        with pytest.raises(ValueError, match="^LUFactor.rcond: norm must be 1 or inf"):
            factor.rcond(1.0, p)
    with pytest.raises(ValueError, match="^linalg.cond: an empty matrix"):
        linalg.cond(np.zeros((0, 0)), 1)
    with pytest.raises(ValueError, match="^linalg.cond: x must be .*square"):
        linalg.cond(np.ones((3, 2)), 1)
    with pytest.raises(ValueError, match="^LUFactor.rcond: anorm must be a scalar"):
        factor.rcond(np.ones(2))
    assert jaxmg.lu_factor(np.zeros((0, 0))).rcond(0) == 1


@cases.needs_transformations
def test_a_batch_of_no_matrices():
    assert linalg.cond(np.zeros((0, 4, 4)), 1).shape == (0,)


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize(
    "ranks, batch",
    [
        (2, False),
        *(pytest.param(*case, marks=pytest.mark.breadth) for case in ((4, False), (2, True))),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_cond_of_infinity_is_that_of_numpy(ranks, batch):
    for entries in ([[np.inf, 0], [0, 1]], [[1, 2], [-np.inf, 4]], [[np.inf, np.nan], [1, 2]]):
        a = np.array(entries)
        for p in (None, 2, -2, "nuc", "fro", 1, np.inf):
            stack = np.stack([a, np.eye(2)]) if batch else a
            found = linalg.cond(stack, p, mesh=cases.line(ranks))
            try:
                expected = np.linalg.cond(stack, p)
            except np.linalg.LinAlgError:  # some LAPACKs fail in an SVD of infinities
                of_a = np.nan if np.isnan(a).any() else np.inf
                expected = [of_a, np.linalg.cond(np.eye(2), p)] if batch else of_a
            np.testing.assert_array_equal(found, expected, err_msg=f"{a}, {p}")
