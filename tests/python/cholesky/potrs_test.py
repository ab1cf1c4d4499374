import cases
import jax
import numpy as np
import pytest
import scipy.linalg

import jaxmg

_NRHS = (None, 1, 3, 17)


@pytest.mark.parametrize("n, ranks, dtype, tile", cases.TABLE)
def test_solves(n, ranks, dtype, tile):
    mesh = cases.line(ranks)
    matrix = cases.positive_definite("well", n, dtype)
    nrhs = _NRHS[(n + ranks) % 4]
    b = cases.normal(cases.rng(n, ranks), (n,) if nrhs is None else (n, nrhs), dtype)
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    x, logdet, status = jaxmg.potrs(a, b, tile, mesh, return_logdet=True, return_status=True)
    cases.check_potrs(matrix, x, b)
    expected = np.linalg.slogdet(cases.wide(matrix))[1]
    np.testing.assert_allclose(logdet, expected, rtol=0, atol=10 * n * cases.eps(dtype))
    assert logdet.shape == () and logdet.dtype == np.finfo(dtype).dtype
    assert status.shape == () and status.dtype == np.int32 and status == 0


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_backward_error(kind, dtype):
    n = 60
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite(kind, n, dtype)
    b = cases.normal(cases.rng(1), (n, 2), dtype)
    cases.check_potrs(matrix, jaxmg.potrs(cases.shard_rows(matrix, mesh), b, 8), b)


@pytest.mark.parametrize("minor", [1, 2, 23, 40])
def test_not_positive_definite(minor):
    """The status is LAPACK's info: the order of the leading minor that isn't positive definite."""
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite("well", 40, "float64")
    matrix[minor - 1, minor - 1] = -1
    info = scipy.linalg.lapack.dpotrf(matrix)[1]
    assert info == minor
    x, logdet, status = jaxmg.potrs(
        cases.shard_rows(matrix, mesh), np.ones(40), 7, return_logdet=True, return_status=True
    )
    assert status == info
    assert np.isnan(x).all()
    assert np.isnan(logdet)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("row, column", [(0, 0), (3, 30), (39, 39)])
def test_not_finite(value, row, column):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite("well", 40, "float64")
    matrix[row, column] = value
    x, status = jaxmg.potrs(cases.shard_rows(matrix, mesh), np.ones(40), 7, return_status=True)
    assert status != 0
    assert np.isnan(x).all()


def test_not_finite_right_hand_side():
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite("well", 40, "float64")
    b = np.ones((40, 2))
    b[3, 0] = np.nan
    x = np.asarray(jaxmg.potrs(cases.shard_rows(matrix, mesh), b, 7))
    assert np.isnan(x[:, 0]).any()
    cases.check_potrs(matrix, x[:, 1], b[:, 1])


@pytest.mark.parametrize("optional", [{}, {"return_status": True}, {"return_logdet": True}])
def test_order_of_results(optional):
    matrix = cases.positive_definite("well", 7, "float64")
    results = jaxmg.potrs(matrix, np.ones(7), **optional)
    x, *others = results if optional else (results,)
    cases.check_potrs(matrix, x, np.ones(7))
    dtypes = {"return_status": np.int32, "return_logdet": np.float64}
    assert [other.dtype for other in others] == [dtypes[name] for name in optional]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("optional", [{}, {"return_logdet": True}])
def test_status_without_right_hand_sides(optional, ranks):
    matrix = cases.positive_definite("well", 8, "complex64")
    matrix[5, 5] = -1
    a, b = cases.shard(matrix, cases.line(ranks), "r", None), np.ones((8, 0), "complex64")
    x, *logdet, status = jaxmg.potrs(a, b, 3, return_status=True, **optional)
    assert x.shape == (8, 0) and status == 6
    assert np.isnan(logdet).all() and len(logdet) == len(optional)


def test_many_right_hand_sides():
    mesh = cases.line(min(2, len(jax.devices())))
    matrix = cases.positive_definite("well", 10, "float64")
    b = cases.normal(cases.rng(2), (10, 700), "float64")
    cases.check_potrs(matrix, jaxmg.potrs(cases.shard(matrix, mesh, "r", None), b, 4), b)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (7, 0)])
def test_nothing_to_solve(shape):
    matrix = cases.positive_definite("well", shape[0], "float32")
    x, logdet, status = jaxmg.potrs(
        matrix, np.zeros(shape, "float32"), return_logdet=True, return_status=True
    )
    assert x.shape == shape and x.dtype == np.float32
    assert status == 0
    np.testing.assert_allclose(logdet, np.linalg.slogdet(matrix)[1], rtol=1e-5)
