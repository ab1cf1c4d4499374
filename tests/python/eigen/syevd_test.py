import cases
import jax
import numpy as np
import pytest

import jaxmg


@pytest.mark.parametrize("n, ranks, dtype, tile", cases.TABLE)
def test_diagonalises(n, ranks, dtype, tile):
    cases.check_diagonalises(n, ranks, dtype, tile)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_accuracy_of_lapack(kind, dtype):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite(kind, 60, dtype)
    cases.check_syevd(matrix, *jaxmg.syevd(cases.shard_rows(matrix, mesh), 8))


@pytest.mark.parametrize("n, ranks", [(60, 4), (7, 3), (1, 2)])
def test_eigenvalues_alone(n, ranks):
    mesh = cases.line(ranks)
    matrix = cases.hermitian(n, "complex128")
    a = cases.shard_rows(matrix, mesh)
    expected = np.linalg.eigvalsh(matrix)
    tolerance = {"rtol": 0, "atol": 10 * n * cases.eps("float64") * np.abs(expected).max()}
    w = jaxmg.syevd(a, 8, mesh, return_eigenvectors=False)
    np.testing.assert_allclose(w, expected, **tolerance)
    w, status = jaxmg.syevd(a, 8, mesh, return_eigenvectors=False, return_status=True)
    np.testing.assert_allclose(w, expected, **tolerance)
    assert status == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("row, column", [(0, 0), (3, 30)])
def test_not_finite(value, row, column):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.hermitian(40, "float64")
    matrix[row, column] = value
    w, v, status = jaxmg.syevd(cases.shard_rows(matrix, mesh), 7, return_status=True)
    assert status != 0
    assert np.isnan(w).all()
    assert np.isnan(v).all()


def test_empty():
    w, v, status = jaxmg.syevd(np.zeros((0, 0), "complex64"), return_status=True)
    assert w.shape == (0,) and w.dtype == np.float32
    assert v.shape == (0, 0) and v.dtype == np.complex64
    assert status == 0
