"""`gesv` and `getri` beyond the table: failures and arguments. lu_accuracy_test.py has hard
matrices."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg


@pytest.mark.parametrize(
    "n, ranks, dtype",
    cases.broad(
        [
            (n, ranks, cases.DTYPES[(n + ranks) % 4])
            for n, ranks in itertools.product((0, 1, 2, 3, 8, 13, 40), (1, 2, 4, 5, 8))
        ],
        core=lambda n, ranks, dtype: (n, ranks) in ((0, 2), (1, 4), (3, 5), (13, 8), (8, 1)),
    ),
)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_all_orders(n, ranks, dtype, kind):
    mesh = cases.line(ranks, kind=kind)
    matrix, b = cases.general("well", n, dtype), cases.normal(cases.rng(n), (n, 2), dtype)
    a = cases.shard_rows(matrix, mesh)
    x, sign, logdet, status = jaxmg.gesv(a, b, 3, mesh, return_status=True, return_logdet=True)
    assert status == 0 and x.dtype == dtype and x.shape == b.shape
    limit = 20 * max(n, 1) * cases.eps(dtype)
    np.testing.assert_allclose(cases.wide(matrix) @ cases.wide(x), b, rtol=0, atol=limit * 10)
    expected = np.linalg.slogdet(cases.wide(matrix))
    np.testing.assert_allclose(sign, expected[0], rtol=0, atol=limit)
    np.testing.assert_allclose(logdet, expected[1], rtol=0, atol=limit * 10)
    assert sign.dtype == dtype and logdet.dtype == np.finfo(dtype).dtype


@pytest.mark.core("complex64")
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_singular(dtype):
    """The status of a singular matrix is LAPACK's info, and no error is raised."""
    n, mesh = 9, cases.line(2)
    matrix = cases.general("well", n, dtype)
    matrix[4] = 0
    getrf = scipy.linalg.get_lapack_funcs("getrf", (matrix,))
    info = getrf(matrix.T)[2]
    assert info > 0
    a, b = cases.shard_rows(matrix, mesh), np.ones((n, 1), dtype)
    x, sign, logdet, status = jaxmg.gesv(a, b, 2, mesh, return_status=True, return_logdet=True)
    assert status == info and not np.isfinite(x).all()
    assert sign == 0 and logdet == -np.inf
    inverse, status = jaxmg.getri(a, 2, mesh, return_status=True)
    assert status == info and not np.isfinite(inverse).all()
    factor = jaxmg.lu_factor(a, 2, mesh)
    assert factor.status == info and factor.det() == 0
    # On one rank LAPACK inverts; its trtri leaves a singular triangle unchanged.
    alone = jaxmg.getri(matrix, mesh=cases.line(1))
    assert not np.isfinite(alone).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(value):
    n, mesh = 9, cases.line(2)
    matrix = cases.general("well", n, "float64")
    matrix[7, 2] = value
    *results, status = jaxmg.gesv(
        matrix, np.ones(n), 2, mesh, return_status=True, return_logdet=True
    )
    assert status == -1 and all(np.isnan(result).all() for result in results)
    inverse, status = jaxmg.getri(matrix, 2, mesh, return_status=True)
    assert status == -1 and np.isnan(inverse).all()
    factor = jaxmg.lu_factor(matrix, 2, mesh)
    assert factor.status == -1 and np.isnan(factor.solve(np.ones(n))).all()
    assert np.isnan(factor.logdet())


def test_a_donated_matrix_is_deleted():
    n, mesh = 8, cases.line(2)
    matrix, b = cases.general("well", n, "float64"), np.ones(8)
    for run in (
        lambda a: jaxmg.gesv(a, b, 2, mesh, donate=True),
        lambda a: jaxmg.getri(a, 2, mesh, donate=True) @ b,
        lambda a: jaxmg.lu_factor(a, 2, mesh, donate=True).solve(b),
    ):
        a = cases.shard_rows(matrix, mesh)
        np.testing.assert_allclose(run(a), np.linalg.solve(matrix, b), rtol=1e-10)
        assert a.is_deleted()


_A = np.eye(4)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: jaxmg.gesv(_A[:3], _A), ValueError, r"gesv: a must be a square matrix"),
        (lambda: jaxmg.gesv(_A, np.ones(3)), ValueError, r"gesv: b must have shape \(4,\)"),
        (lambda: jaxmg.gesv(_A, np.ones(4, "float32")), TypeError, "must have one dtype"),
        (lambda: jaxmg.gesv(_A, np.ones(4), 0), ValueError, "T_A, the tile width"),
        (lambda: jaxmg.gesv(_A, np.ones(4), backend="cusolvermg"), ValueError, "not available"),
        (lambda: jaxmg.gesv(_A, np.ones(4), precision="tf32"), ValueError, "is for float32"),
        (lambda: jaxmg.getri(_A[0]), ValueError, "getri: a must be a square matrix"),
        (lambda: jaxmg.lu_solve(_A, np.ones(4), trans=1), ValueError, "needs a factor"),
    ],
)
def test_what_can_not_be_right_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_call_of_jaxmg_1_4():
    n, mesh = 8, cases.line(4)
    matrix, b = cases.general("well", n, "float64"), np.ones(n)
    a = cases.shard_rows(matrix, mesh)
    x, status = jaxmg.lu_solve(
        a, b, 2, mesh, in_specs=P("r", None), return_status=True, pad=True, donate=False
    )
    assert status == 0
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-10)


@cases.needs_transformations
def test_in_a_shard_map():
    n, mesh = 13, cases.line(4)
    matrix, b = (
        cases.general("well", n, "complex128"),
        cases.normal(cases.rng(3), (n, 2), "complex128"),
    )
    padded = np.zeros((16, n), matrix.dtype)
    padded[:n] = matrix

    def local(a, b):
        x, sign, logdet, status = jaxmg.gesv_shardmap_ctx(a, b, 2, return_logdet=True)
        inverse, _ = jaxmg.getri_shardmap_ctx(a, 2)
        return x, sign, logdet, status, inverse

    run = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=(P("r", None), P()),
            out_specs=(P(), P(), P(), P(), P("r", None)),
        )
    )  # fmt: skip
    x, sign, logdet, status, inverse = run(cases.shard(padded, mesh, "r", None), b)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-9)
    np.testing.assert_allclose(
        np.concatenate([sign, logdet]), np.array(np.linalg.slogdet(matrix)), rtol=1e-9
    )
    np.testing.assert_allclose(inverse[:n], np.linalg.inv(matrix), atol=1e-12)
    assert status.shape == (1,) and status[0] == 0 and not np.asarray(inverse[n:]).any()


def test_work_is_given_back():
    n, mesh = 8, cases.line(2)
    matrix, b = cases.general("well", n, "float64"), np.ones(8)
    a = cases.shard_rows(matrix, mesh)
    work, x, status = jax.jit(lambda a: jaxmg.gesv_shardmap_ctx(a, b, 2, mesh))(a)
    assert work.shape == (n, n) and status.shape == (1,) and status[0] == 0
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-10)
    inverse, status = jax.jit(lambda a: jaxmg.getri_shardmap_ctx(a, 2, mesh))(a)
    assert status.shape == (1,) and status[0] == 0
    np.testing.assert_allclose(inverse, np.linalg.inv(matrix), atol=1e-12)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("dtype", [cases.breadth("float64"), "complex128"])
def test_gradients_are_those_of_jax(dtype):
    """First and second derivatives of x and of the determinant agree with JAX's, in one program
    each."""
    n, mesh = 6, cases.line(2)
    a, b = cases.general("well", n, dtype), cases.normal(cases.rng(5), (n, 2), dtype)
    weight = cases.normal(cases.rng(6), (), dtype)

    def loss(solve):
        def value(a, b):
            x, sign, logdet = solve(a, b)
            return jnp.sum(jnp.sin(x)).real + (weight * sign).real * jnp.cos(logdet)

        return value

    ours = loss(lambda a, b: jaxmg.gesv(a, b, 2, mesh, return_logdet=True))
    theirs = loss(lambda a, b: (jnp.linalg.solve(a, b), *jnp.linalg.slogdet(a)))

    def both(value):
        gradient = jax.grad(value, (0, 1))
        return jax.jit(lambda a, b: jax.jvp(gradient, (a, b), (a.T, -b)))

    for found, expected in zip(
        jax.tree.leaves(both(ours)(a, b)), jax.tree.leaves(both(theirs)(a, b)), strict=True
    ):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * scale)


@pytest.mark.core("False")
@cases.needs_transformations
@pytest.mark.leaks_in_jax
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_in_a_shard_map(check_vma):
    n, mesh = 8, cases.line(4)
    a, b = cases.general("well", n, "float64"), np.ones(n)

    def local(a, b):
        return jaxmg.gesv_shardmap_ctx(a, b, 2)[0]

    solve = jax.shard_map(
        local, mesh=mesh, in_specs=(P("r", None), P()), out_specs=P(), check_vma=check_vma
    )
    found = jax.jit(jax.grad(lambda a, b: jnp.sum(jnp.sin(solve(a, b))), (0, 1)))(a, b)
    expected = jax.grad(lambda a, b: jnp.sum(jnp.sin(jnp.linalg.solve(a, b))), (0, 1))(
        jnp.asarray(a), jnp.asarray(b)
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11 * np.abs(theirs).max())


@cases.needs_transformations
def test_in_a_shard_map_right_hand_sides_that_differ_are_a_status():
    """Different right-hand sides set the status of the call, and of its derivative."""
    n, mesh = 8, cases.line(4)
    a, b = cases.general("well", n, "float64"), np.ones(n)

    def local(a, b):
        b = b + jax.lax.axis_index("r")
        return jaxmg.gesv_shardmap_ctx(a, b, 2, return_logdet=True)

    run = jax.shard_map(
        local, mesh=mesh, in_specs=(P("r", None), P()), out_specs=P(), check_vma=False
    )
    derivative = jax.jit(lambda a, b: jax.jvp(lambda a: run(a, b), (a,), (a,))[0])
    for function in (jax.jit(run), derivative):
        *results, status = function(a, b)
        assert status[0] == -2 and all(np.isnan(result).all() for result in results)


@pytest.mark.core("4")
@cases.needs_transformations
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_batch_has_each_ones_status(ranks):
    """Each matrix of a batch has its own status. One device solves all at once, and recomputes the
    failed ones for their status."""
    n, mesh = 5, cases.line(ranks)
    a = np.stack([cases.general("well", n, "float64")] * 4) * np.arange(1, 5)[:, None, None]
    a[1, 2] = 0
    a[3, 0, 0] = np.nan
    b = np.ones((4, n, 2))
    x, status = jaxmg.gesv(a, b, 2, mesh, return_status=True)
    assert status[0] == status[2] == 0 and status[1] > 0 and status[3] == -1
    for i in (0, 2):
        np.testing.assert_allclose(a[i] @ x[i], b[i], atol=1e-12)
    assert np.isnan(x[3]).all() and not np.isfinite(x[1]).all()
