import cases
import jax
import numpy as np
import pytest

import jaxmg


@pytest.mark.parametrize("n, ranks, dtype, tile", cases.TABLE)
def test_inverts(n, ranks, dtype, tile):
    mesh = cases.line(ranks)
    matrix = cases.positive_definite("well", n, dtype)
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    inverse, status = jaxmg.potri(a, tile, mesh, return_status=True)
    cases.check_potri(matrix, inverse)
    assert inverse.sharding.is_equivalent_to(a.sharding, 2)
    np.testing.assert_array_equal(inverse, np.conj(inverse).T)
    assert status.shape == () and status.dtype == np.int32 and status == 0


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_accuracy_of_lapack(kind, dtype):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite(kind, 60, dtype)
    cases.check_potri(matrix, jaxmg.potri(cases.shard_rows(matrix, mesh), 8))


@pytest.mark.parametrize("minor", [1, 23, 40])
def test_not_positive_definite(minor):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite("well", 40, "complex64")
    matrix[minor - 1, minor - 1] = -1
    inverse, status = jaxmg.potri(cases.shard_rows(matrix, mesh), 7, return_status=True)
    assert status == minor
    assert np.isnan(inverse).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(value):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite("well", 40, "complex64")
    matrix[3, 30] = value
    inverse, status = jaxmg.potri(cases.shard_rows(matrix, mesh), 7, return_status=True)
    assert status != 0
    assert np.isnan(inverse).all()


def test_empty():
    inverse, status = jaxmg.potri(np.zeros((0, 0), "float32"), return_status=True)
    assert inverse.shape == (0, 0) and inverse.dtype == np.float32
    assert status == 0


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_symmetrize(dtype):
    mesh = cases.line(min(4, len(jax.devices())))
    matrix = cases.positive_definite("well", 8, dtype)
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    full = jaxmg.potri_symmetrize(a)
    np.testing.assert_array_equal(full, matrix)
    assert full.sharding.is_equivalent_to(a.sharding, 2)
    np.testing.assert_array_equal(jax.jit(jaxmg.potri_symmetrize)(a), matrix)
    with pytest.raises(ValueError, match=r"must be square, \(n, n\); it has shape \(2, 3\)"):
        jaxmg.potri_symmetrize(np.ones((2, 3)))
