"""Functions of jaxmg.linalg on meshes of explicit axes: single matrices, batches with one and two
leading dimensions, and derivatives."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxmg import linalg

pytestmark = cases.needs_transformations

# Name -> function of Hermitian positive definite matrices, whose results do not depend on signs of
# vectors.
FUNCTIONS = {
    "cholesky": linalg.cholesky,
    "cho_solve": lambda a: linalg.cho_solve(linalg.cho_factor(a), a),
    "solve": lambda a: linalg.solve(a, a),
    "inv": linalg.inv,
    "det": linalg.det,
    "slogdet": lambda a: linalg.slogdet(a)[1],
    "matrix_power": lambda a: linalg.matrix_power(a, 3),
    "lu_solve": lambda a: linalg.lu_solve(linalg.lu_factor(a), a),
    "eigh": lambda a: linalg.eigh(a)[1] ** 2,
    "sqrtm": linalg.sqrtm,
    "expm": linalg.expm,
    "svd": lambda a: linalg.svd(a)[0] ** 2,
    "svd_subset": lambda a: linalg.svd(a, subset_by_index=(0, 2))[2] ** 2,
    "svd_hermitian": lambda a: linalg.svd(a, hermitian=True, subset_by_index=(0, 2))[2] ** 2,
    "svdvals": linalg.svdvals,
    "polar": lambda a: linalg.polar(a)[0],
    "null_space": lambda a: linalg.null_space(a, rank=1) ** 2,
    "lstsq": lambda a: linalg.lstsq(a, a)[0],
    "svd_lowrank": lambda a: linalg.svd_lowrank(a, 2)[1],
    "cond_1": lambda a: linalg.cond(a, 1),
    "cond_inf": lambda a: linalg.cond(a, jnp.inf),
}


def _matrices(leading, n=4):
    """Hermitian positive definite matrices with eigenvalues that differ."""
    x = cases.rng(3).normal(size=(*leading, n, n))
    return x @ np.swapaxes(x, -1, -2) / n + np.diag(np.arange(1.0, n + 1))


SOLVERS = ("cholesky", "cho_solve", "solve", "inv", "det", "slogdet", "matrix_power", "lu_solve")
# (name, number of devices, leading dimensions).
BATCHES = [
    *((name, 4, 2) for name in ("eigh", "sqrtm", "expm", "null_space", "lstsq", "cond_inf")),
    *((name, 4, 1) for name in ("svd_lowrank", "cond_1")),
    *itertools.product(SOLVERS, (1, 2, 4, 8), (0, 1, 2)),
]


def _placed(mesh, dimensions):
    """(the matrices, these on the mesh): a batch is sharded by its first dimension."""
    ranks = mesh.size
    matrices = _matrices(((), (ranks,), (ranks, 2))[dimensions], n=2 * max(2, ranks // 2))
    return matrices, cases.shard(matrices, mesh, "r", *(None,) * (matrices.ndim - 1))


@pytest.mark.core("eigh")
@pytest.mark.parametrize(
    "name, ranks, dimensions",
    cases.broad(BATCHES, core=lambda *case: case in (("eigh", 4, 2), ("cond_1", 4, 1))),
)
def test_values(name, ranks, dimensions):
    mesh, function = cases.line(ranks, kind=AxisType.Explicit), FUNCTIONS[name]
    matrices, a = _placed(mesh, dimensions)
    with cases.context(mesh):
        found = function(a)
    order = matrices.shape[-1]
    each = [function(matrix) for matrix in matrices.reshape(-1, order, order)]
    wanted = np.reshape(each, (*matrices.shape[:-2], *each[0].shape))
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-9)
    if dimensions:
        assert found.sharding.spec[0] == "r" or ranks == 1


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, ranks, dimensions",
    cases.broad(
        [(name, 4, 0) for name in ("polar", "svd", "svd_subset", "svd_hermitian", "svdvals")],
        core=lambda name, *_: name == "polar",
    ),
)
def test_gradients(name, ranks, dimensions):
    mesh, function = cases.line(ranks, kind=AxisType.Explicit), FUNCTIONS[name]
    matrices, a = _placed(mesh, dimensions)

    def total(a):
        return jnp.sum(jnp.sin(function(a)))

    with cases.context(mesh):
        found = jax.jit(jax.grad(total))(a)
    order = matrices.shape[-1]
    each = [jax.grad(total)(jnp.asarray(x)) for x in matrices.reshape(-1, order, order)]
    wanted = np.reshape(each, matrices.shape)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.breadth
def test_gradients_of_a_tall_matrix():
    mesh, function = cases.line(4, kind=AxisType.Explicit), FUNCTIONS["svd_subset"]
    matrix = cases.rng(5).normal(size=(12, 8))

    def total(a):
        return jnp.sum(jnp.sin(function(a)))

    with cases.context(mesh):
        a = cases.shard(matrix, mesh, "r", None)
        gradient, tangent = jax.grad(total)(a), jax.jvp(total, (a,), (a**2,))[1]
    wanted = jax.grad(total)(jnp.asarray(matrix))
    np.testing.assert_allclose(np.asarray(gradient), wanted, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(tangent, np.vdot(wanted, matrix**2), rtol=1e-7, atol=1e-7)
