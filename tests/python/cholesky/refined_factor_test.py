"""`cho_factor(refine=...)`: a factor in lower precision that is kept with its matrix."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg

_FAILED = -3


@pytest.mark.extended
def test_a_kept_factor_refines():
    mesh, n = cases.line(4), 64
    matrix, b = (
        cases.positive_definite("well", n, "float64"),
        cases.normal(cases.rng(9), (n, 4), "float64"),
    )
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    factor = jaxmg.cho_factor(a, refine="auto")
    assert isinstance(factor, jaxmg.RefinedFactor) and factor.status == 0
    assert factor.shape == (n, n) and factor.dtype == a.dtype and factor.mesh == mesh
    assert factor.rows is a and factor.tiles.dtype == "float32"
    x, status, iterations = factor.solve(b, return_status=True, return_iterations=True)
    assert status == 0 and 0 < iterations < 6
    cases.check_as_good_as_plain(matrix, a, b, mesh, x)

    def step(factor, b):
        return factor, jaxmg.cho_solve(factor, b)

    _, each = jax.jit(lambda factor, b: jax.lax.scan(step, factor, b))(factor, b.T)
    cases.check_as_good_as_plain(matrix, a, b, mesh, each.T)


@pytest.mark.slow
@pytest.mark.parametrize("donate", [False, True])
def test_a_matrix_that_has_to_be_laid_out_first(donate):
    mesh, n = cases.line(3), 61
    matrix, b = (
        cases.positive_definite("graded", n, "complex128"),
        cases.normal(cases.rng(9), (n,), "complex128"),
    )
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    factor = jaxmg.cho_factor(a, 4, mesh, refine="auto", donate=donate)
    assert a.is_deleted() == donate
    assert factor.rows.shape == (63, n) and factor.rows.sharding.spec == P(("r",), None)
    assert factor.tiles.dtype == "complex64" and factor.overflow is not None
    cases.check_as_good_as_plain(matrix, matrix, b, mesh, jaxmg.cho_solve(factor, b))


@pytest.mark.extended
def test_a_kept_factor_falls_back_as_often_as_it_is_used():
    mesh, n = cases.line(4), 64
    a, b = cases.shard_rows(cases.conditioned(1e14, n), mesh), np.ones((n, 4))
    factor = jaxmg.cho_factor(a, mesh=mesh, refine="float32")
    assert factor.status != 0
    x, iterations = factor.solve(b, return_iterations=True)
    assert iterations == _FAILED
    assert cases.backward_error(a, x, b) <= 10 * cases.eps("float64")


def test_a_kept_factor_is_for_solving_alone():
    factor = jaxmg.cho_factor(np.eye(4), mesh=cases.line(2), refine="float32")
    for name in ("logdet", "inv", "diagonal", "upper", "matmul", "solve_triangular"):
        with pytest.raises(AttributeError, match=f"RefinedFactor has no '{name}': .*without refi"):
            getattr(factor, name)
        assert not hasattr(factor, name)
    assert "refine='float32'" in repr(factor)
    with pytest.raises(ValueError, match=r"^cho_solve: b must have shape \(4,\)"):
        factor.solve(np.ones(5))
    with pytest.raises(ValueError, match="inside a shard_map"):
        mapped = jax.shard_map(factor.solve, mesh=cases.line(2), in_specs=P(), out_specs=P())
        mapped(jnp.ones(4))


def test_calls_that_can_not_be():
    with pytest.raises(ValueError, match="^cho_factor: .*with refine leave precision out"):
        jaxmg.cho_factor(np.eye(3, dtype="float32"), precision="tf32", refine="auto")
    with pytest.raises(ValueError, match="^cho_factor: refine must be one of None, 'auto'"):
        jaxmg.cho_factor(np.eye(3), refine="half")


def test_empty():
    factor = jaxmg.cho_factor(np.zeros((0, 0)), refine="auto")
    assert factor.solve(np.zeros(0)).shape == (0,)
