"""`LUFactor`: its results, its path through JAX, and the arguments it refuses."""

import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxmg

_TRANS = {0: lambda a: a, "N": lambda a: a, 1: lambda a: a.T, 2: lambda a: a.conj().T}


def _factor(n=13, ranks=4, dtype="complex128", tile=2):
    matrix = cases.general("well", n, dtype)
    mesh = cases.line(ranks)
    return matrix, jaxmg.lu_factor(cases.shard_rows(matrix, mesh), tile, mesh)


def _same(factor, matrix):
    """Checks all results of a factor."""
    __tracebackhide__ = True
    n, tolerance = len(matrix), {"rtol": 0, "atol": 1e-11}
    b = cases.normal(cases.rng(n), (n, 2), matrix.dtype)
    for trans, op in _TRANS.items():
        np.testing.assert_allclose(
            op(matrix) @ np.asarray(jaxmg.lu_solve(factor, b, trans=trans)), b, **tolerance
        )
    np.testing.assert_allclose(factor.inv(), np.linalg.inv(matrix), **tolerance)
    sign, logdet = np.linalg.slogdet(matrix)
    np.testing.assert_allclose(factor.slogdet()[0], sign, **tolerance)
    np.testing.assert_allclose(factor.logdet(), logdet, **tolerance)
    np.testing.assert_allclose(factor.det(), np.linalg.det(matrix), **tolerance)
    np.testing.assert_allclose(np.abs(np.prod(factor.diagonal())), np.exp(logdet), **tolerance)
    assert factor.status == 0 and factor.shape == matrix.shape and factor.dtype == matrix.dtype


@pytest.mark.parametrize(
    "n, ranks, dtype, tile",
    cases.broad(
        [(13, 4, "complex128", 2), (8, 2, "float64", None), (7, 3, "float64", 5)],
        core=lambda n, *_: n == 13,
    ),
)
def test_what_a_factor_gives(n, ranks, dtype, tile):
    matrix, factor = _factor(n, ranks, dtype, tile)
    _same(factor, matrix)


def test_the_pivots_are_those_of_lapack():
    matrix, factor = _factor()
    lu, pivots = factor.packed()
    getrf = scipy.linalg.get_lapack_funcs("getrf", (matrix,))
    expected, expected_pivots, _ = getrf(matrix.T)
    np.testing.assert_array_equal(pivots, expected_pivots)
    np.testing.assert_allclose(lu, expected.T, atol=1e-12)


@pytest.mark.extended
@pytest.mark.parametrize("ranks", [1, 3])
def test_restored_onto_another_number_of_devices(ranks):
    matrix, factor = _factor()
    lu, pivots = map(np.asarray, factor.packed())
    again = jaxmg.LUFactor.from_packed(lu, pivots, 5, cases.line(ranks))
    assert again.mesh.size == ranks
    _same(again, matrix)


@pytest.mark.extended
def test_packed_of_a_singular_matrix():
    lu, pivots = np.diag([1.0, 0, 3]), np.arange(3)
    factor = jaxmg.LUFactor.from_packed(lu, pivots, mesh=cases.line(2))
    assert factor.status == 2 and factor.det() == 0
    lu[2, 0] = np.nan
    factor = jaxmg.LUFactor.from_packed(lu, pivots, mesh=cases.line(2))
    assert factor.status == -1 and np.isnan(factor.logdet())
    assert np.isnan(factor.solve(np.ones(3))).all()


@cases.one_process("a pickle is of one process")
def test_pickled():
    matrix, factor = _factor()
    again = pickle.loads(pickle.dumps(factor))
    assert isinstance(again, jaxmg.LUFactor) and again.mesh == factor.mesh
    _same(again, matrix)


def test_goes_through_jit_and_cond():
    matrix, factor = _factor(8, 2, "float64")
    b = np.ones(8)

    @jax.jit
    def solve(flag, factor, b):
        return jax.lax.cond(flag, lambda: factor, lambda: factor).solve(b)

    np.testing.assert_allclose(matrix @ np.asarray(solve(True, factor, b)), b, atol=1e-12)
    assert "LUFactor(n=8" in repr(factor)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda factor: factor.solve(np.ones(3)), ValueError, r"b must have shape \(13,\)"),
        (lambda factor: factor.solve(np.ones(13)), TypeError, "must have one dtype"),
        (lambda factor: factor.solve(np.ones(13), 3), ValueError, "trans must be 0 or 'N'"),
        (
            lambda factor: jaxmg.lu_solve(factor, np.ones(13), 1),
            TypeError,
            "T_A is only for a matrix",
        ),
        (
            lambda factor: jaxmg.lu_solve(factor, np.ones(13), return_status=True),
            TypeError,
            "return_status is only for a matrix",
        ),
        (
            lambda factor: jaxmg.LUFactor.from_packed(np.eye(3), np.ones(3)),
            TypeError,
            "pivots must be an array of integers",
        ),
        (
            lambda factor: jaxmg.LUFactor.from_packed(np.eye(3), np.arange(2)),
            ValueError,
            r"pivots must have shape \(3,\)",
        ),
        (
            lambda factor: jaxmg.LUFactor.from_packed(np.eye(3), np.array([0, 0, 2])),
            ValueError,
            r"pivots\[1\] is 0",
        ),
    ],
)
def test_what_can_not_be_right_raises(call, error, message):
    _, factor = _factor()
    with pytest.raises(error, match=message):
        call(factor)


@pytest.mark.slow
@cases.needs_transformations
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_what_is_restored(dtype):
    """Derivatives by L and U of a restored factor are those of JAX's products, forward and
    reverse."""
    n, mesh = 5, cases.line(2)
    lu, pivots = map(np.asarray, jaxmg.lu_factor(cases.general("well", n, dtype), 2, mesh).packed())
    b, along = (cases.normal(cases.rng(i), (n, n), dtype) for i in (4, 5))
    p = np.eye(n, dtype=dtype)[jax.lax.linalg.lu_pivots_to_permutation(pivots, n)]
    assert (np.diag(p) == 0).any()

    def ours(lu):
        factor = jaxmg.LUFactor.from_packed(lu, pivots, mesh=mesh)
        return factor.solve(b), factor.logdet(), factor.packed()[0]

    def theirs(lu):
        a = jnp.tril(lu) @ (jnp.triu(lu, 1) + jnp.eye(n, dtype=dtype)) @ p
        return jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1], lu

    def both(function):
        def loss(lu):
            return sum(jnp.sum(jnp.sin(x)).real for x in function(lu))

        return jax.jit(lambda lu: (jax.jvp(function, (lu,), (along,))[1], jax.grad(loss)(lu)))(lu)

    for x, y in zip(*map(jax.tree.leaves, map(both, (ours, theirs))), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-10 * max(1, np.abs(y).max()))


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "name", ["transposed", *map(cases.breadth, ("packed", "solve", "inverse", "diagonal"))]
)
def test_derivatives_are_those_of_jax(name):
    """Second derivatives too agree with those that JAX computes by its own factor of the
    transpose."""
    n, mesh, dtype = 5, cases.line(2), "float64"
    a, b = cases.general("well", n, dtype), cases.normal(cases.rng(4), (n, 2), dtype)

    def theirs_packed(a):
        return jax.scipy.linalg.lu_factor(a.T)[0].T

    pairs = {
        "solve": (lambda f: f.solve(b), lambda a: jnp.linalg.solve(a, b)),
        "transposed": (lambda f: f.solve(b, 1), lambda a: jnp.linalg.solve(a.T, b)),
        "inverse": (lambda f: f.inv(), jnp.linalg.inv),
        "diagonal": (lambda f: f.diagonal(), lambda a: jnp.diagonal(theirs_packed(a))),
        "packed": (lambda f: f.packed()[0], theirs_packed),
    }
    of_factor, theirs = pairs[name]

    def second(function):
        gradient = jax.grad(lambda a: jnp.sum(jnp.sin(function(a))))
        return jax.jit(lambda a: jax.jvp(gradient, (a,), (a.T,)))

    found = second(lambda a: of_factor(jaxmg.lu_factor(a, 2, mesh)))(a)
    for ours, expected in zip(found, second(theirs)(a), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("ranks", [cases.breadth(1), 4])
def test_a_batch_of_factors(ranks):
    """One device solves a batch of factors at once, by JAX's own routines."""
    n, mesh, dtype = 5, cases.line(ranks), "complex128"
    a = np.stack([cases.general("well", n, dtype) * scale for scale in (1, 2j, 3)])
    b = cases.normal(cases.rng(4), (3, n, 2), dtype)
    factors = jax.vmap(lambda a: jaxmg.lu_factor(a, 2, mesh))(a)
    for trans, op in ((0, a), (1, a.swapaxes(1, 2)), (2, a.conj().swapaxes(1, 2))):
        x = jax.vmap(lambda f, b, trans=trans: f.solve(b, trans))(factors, b)
        np.testing.assert_allclose(op @ np.asarray(x), b, atol=1e-11)
    for method, expected in (
        (lambda f: f.inv(), np.linalg.inv(a)),
        (lambda f: f.det(), np.linalg.det(a)),
        (lambda f: jnp.abs(jnp.prod(f.diagonal())), np.abs(np.linalg.det(a))),
    ):
        np.testing.assert_allclose(jax.vmap(method)(factors), expected, rtol=1e-9, atol=1e-11)
    gradient = jax.grad(
        lambda a: jnp.sum(jax.vmap(lambda a: jaxmg.lu_factor(a, 2, mesh).logdet())(a))
    )
    np.testing.assert_allclose(gradient(a), np.linalg.inv(a).swapaxes(1, 2), rtol=1e-9, atol=1e-11)
