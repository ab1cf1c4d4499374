"""Derivatives and batches of jaxmg.linalg, against jax.numpy.linalg on one device."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import linalg

pytestmark = cases.needs_transformations


def _recompose(function, a):
    w, v = jnp.linalg.eigh(a)
    return (v * function(w)) @ v.conj().T


def _again(a, b, **where):
    return linalg.cho_solve(linalg.cho_factor(a, True, **where), b, **where)


# Name -> (our function of a and b, the same on one device).
FUNCTIONS = {
    "solve": (linalg.solve, jnp.linalg.solve),
    "cho_solve": (_again, jnp.linalg.solve),
    "inv": (lambda a, b, **o: linalg.inv(a, **o), lambda a, b: jnp.linalg.inv(a)),
    "slogdet": (lambda a, b, **o: linalg.slogdet(a, **o)[1], lambda a, b: jnp.linalg.slogdet(a)[1]),
    "cholesky": (lambda a, b, **o: linalg.cholesky(a, **o), lambda a, b: jnp.linalg.cholesky(a)),
    "eigvalsh": (lambda a, b, **o: linalg.eigvalsh(a, **o), lambda a, b: jnp.linalg.eigvalsh(a)),
    "expm": (
        lambda a, b, **o: linalg.expm(a, assume_a="her", **o),
        lambda a, b: _recompose(jnp.exp, a),
    ),
    "matrix_power": (
        lambda a, b, **o: linalg.matrix_power(a, 3, **o),
        lambda a, b: jnp.linalg.matrix_power(a, 3),
    ),
}


@cases.kinds
@pytest.mark.parametrize(
    "name, n, dtype, jitted",
    cases.broad(
        [
            (name, n, dtype, (i + j) % 4 > 0)
            for i, name in enumerate(FUNCTIONS)
            for j, (n, dtype) in enumerate(itertools.product((8, 7), ("float64", "complex128")))
            if (i + j) % 2
        ],
        lambda name, *_: False,
        alone=True,
    ),
)
def test_derivatives(name, n, dtype, jitted, kind):
    mesh, (ours, theirs) = cases.line(4, kind=kind), FUNCTIONS[name]
    where = {"mesh": mesh, "matrix_specs": P("r", None)} if jitted else {}
    matrix, b = cases.positive_definite("well", n, dtype), cases.normal(cases.rng(5), (n,), dtype)
    a = cases.shard_rows(matrix, mesh)
    tangents = (
        cases.shard_rows(cases.normal(cases.rng(6), (n, n), dtype), mesh),
        cases.normal(cases.rng(7), (n,), dtype),
    )

    def derivatives(function):
        def symmetrized(a, b):
            return function(cases.hermitian_part(a), b)

        def loss(a, b):
            return jnp.sum(jnp.abs(symmetrized(a, b)) ** 2)

        def both(a, b, *tangents):
            return jax.jvp(symmetrized, (a, b), tangents)[1], jax.grad(loss, (0, 1))(a, b)

        return jax.jit(both) if jitted else both

    found = cases.on(mesh, derivatives(functools.partial(ours, **where)))(a, b, *tangents)
    expected = derivatives(theirs)(matrix, b, *map(np.asarray, tangents))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        largest = max(1, np.abs(y).max())
        np.testing.assert_allclose(x, y, rtol=0, atol=1e4 * cases.eps(dtype) * largest)


@cases.kinds
@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, ranks",
    cases.broad(
        list(zip(cases.DTYPES, (1, 2, 3, 4), strict=True)),
        lambda dtype, _: dtype == "float64",
        alone=True,
    ),
)
def test_functions_of_matrices_with_equal_eigenvalues(dtype, ranks, kind):
    """Derivatives of matrix functions are accurate although derivatives of eigenvectors are
    infinite or have no correct digit."""
    n, mesh = 8, cases.line(ranks, kind=kind)
    random = cases.rng(8)
    v = np.linalg.qr(cases.normal(random, (n, n), dtype))[0]
    w = np.array([1, 1, 1 + 1e-9, 2, 2 + 1e-5, 2 - 1e-3, 0, 0])
    matrix, along = ((v * w) @ v.conj().T).astype(dtype), cases.normal(random, (n, n), dtype)

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(f, a, along):
        def size(a):
            return jnp.sum(jnp.abs(f(cases.hermitian_part(a))) ** 2)

        return jax.jvp(lambda a: f(cases.hermitian_part(a)), (a,), (along,))[1], jax.grad(size)(a)

    ours = functools.partial(linalg.expm, assume_a="her", mesh=mesh)
    found = derivatives(ours, matrix, along)
    expected = derivatives(jax.scipy.linalg.expm, matrix, along)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            x, y, rtol=0, atol=10 * cases.eps(dtype) ** (2 / 3) * np.abs(y).max()
        )


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
def test_what_a_function_of_eigenvalues_depends_on(kind):
    mesh, matrix = cases.line(2, kind=kind), cases.positive_definite("well", 7, "float64")

    def ours(t, a):
        return linalg.funm(cases.hermitian_part(a), lambda w: jnp.exp(-t * w), mesh=mesh).sum()

    def theirs(t, a):
        return jax.scipy.linalg.expm(-t * cases.hermitian_part(a)).sum()

    along = np.diag(np.arange(7.0))

    def derivatives(f):
        second = jax.hessian(lambda s: f(0.3 + s, matrix + s * along))
        return jax.jit(lambda t, a: (jax.grad(f, (0, 1))(t, a), second(t - t)))(0.3, matrix)

    for x, y in zip(*map(jax.tree.leaves, map(derivatives, (ours, theirs))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9)


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(name, kind):
    mesh, (ours, theirs) = cases.line(4, kind=kind), FUNCTIONS[name]
    matrices = np.stack([cases.positive_definite("well", 7, "float64") * i for i in (1, 2, 3)])
    b = cases.normal(cases.rng(5), (3, 7), "float64")
    found = jax.jit(jax.vmap(functools.partial(ours, mesh=mesh)))(matrices, b)
    np.testing.assert_allclose(found, jax.vmap(theirs)(matrices, b), rtol=1e-10, atol=1e-10)


@cases.kinds
@pytest.mark.slow
@cases.one_process("it takes long")
@pytest.mark.parametrize(
    "name", cases.broad([(name,) for name in FUNCTIONS], lambda name: name == "inv")
)
def test_leading_dimensions(name, kind):
    mesh, (ours, theirs) = cases.line(4, kind=kind), FUNCTIONS[name]
    matrices = np.stack([cases.positive_definite("well", 7, "float64") * i for i in range(1, 5)])
    b = cases.normal(cases.rng(5), (4, 7, 2), "float64")
    theirs = jax.vmap(theirs)
    # The results are on the mesh of the batch.
    found = ours(cases.shard(matrices, mesh, "r", None, None), b)
    np.testing.assert_allclose(found, theirs(matrices, b), rtol=1e-10, atol=1e-10)
    assert found.sharding.mesh == mesh
    # Batches of two dimensions, and derivatives.
    function = functools.partial(ours, mesh=mesh)
    found = function(matrices.reshape(2, 2, 7, 7), b.reshape(2, 2, 7, 2))
    np.testing.assert_allclose(
        found, theirs(matrices, b).reshape(found.shape), rtol=1e-10, atol=1e-10
    )
    if name == "inv":
        found, expected = (
            cases.on(mesh, jax.grad(lambda a, f=f: jnp.sum(f((a + a.mT) / 2, b) ** 2)))(
                jnp.asarray(matrices)
            )
            for f in (function, theirs)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


# Leading dimensions of a and of b; None for b is a vector.
_LEADING = [
    ((3,), None),
    ((), (3,)),
    ((3,), (1,)),
    ((1,), (3,)),
    ((2, 1), (3,)),
    ((3,), (2, 3)),
    ((2, 3), (1, 3)),
    ((2, 3), ()),
    ((1,), ()),
]


@pytest.mark.extended
@cases.kinds
@pytest.mark.parametrize(
    "of_a, of_b, jitted",
    cases.broad(
        [(*case, jitted) for case in _LEADING for jitted in (False, True)],
        core=lambda of_a, of_b, jitted: (of_a, jitted) in (((), False), ((2, 1), True)),
    ),
)
def test_leading_dimensions_broadcast(of_a, of_b, jitted, kind):
    mesh, n = cases.line(4, kind=kind), 8
    random = cases.rng(1)
    x = cases.normal(random, (*of_a, n, n), "float64")
    a = x @ np.swapaxes(x, -1, -2) / n + np.eye(n)
    b = cases.normal(random, (n,) if of_b is None else (*of_b, n, 2), "float64")
    for function in (
        functools.partial(linalg.solve, mesh=mesh),
        lambda a, b: linalg.cho_solve((linalg.cho_factor(a, mesh=mesh)[0], False), b, mesh=mesh),
    ):
        found = (jax.jit(function) if jitted else function)(a, b)
        with jax.numpy_rank_promotion("allow"):
            expected = jnp.linalg.solve(a, b)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_batches_that_cannot_be():
    a, b = np.stack([np.eye(7)] * 3), np.ones((2, 7, 2))
    with pytest.raises(ValueError, match=r"linalg.inv: a must be .* shape \(3, 5, 7\)"):
        linalg.inv(a[:, :5])
    with pytest.raises(ValueError, match=r"linalg.solve: the leading dimensions of b, of shape"):
        linalg.solve(a, b)


def _cofactors(a):
    """Returns the derivatives of det(A) by A's elements, one by one."""
    n, result = len(a), np.empty_like(a)
    for i, j in np.ndindex(n, n):
        minor = np.delete(np.delete(a, i, 0), j, 1)
        result[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return result


# Row k of A is column k for the engine, and pivot k is exactly zero.
@pytest.mark.extended
@pytest.mark.parametrize(
    "n, ranks, tile, k, dtype",
    cases.broad(
        [
            (9, 4, 2, 8, "float64"),
            (7, 2, 2, 3, "complex128"),
            *((13, 4, 2, k, "float64") for k in (0, 6, 11)),
            *((10, 4, 3, k, "float32") for k in (0, 5, 9)),
            *((6, 1, None, k, "complex64") for k in (0, 2, 5)),
            (1, 1, None, 0, "float64"),
            (16, 8, 2, 15, "float64"),
        ],
        lambda n, ranks, tile, k, dtype: n == 9,
        alone=True,
    ),
)
def test_a_zero_determinant_has_cofactors(n, ranks, tile, k, dtype):
    mesh = cases.line(ranks)
    a = np.rint(3 * cases.normal(cases.rng(k), (n, n), dtype)).astype(dtype)
    a[k] = 0
    expected, is_complex = _cofactors(a.astype("complex128")), dtype.startswith("complex")

    def det(a):
        return jaxmg.lu_factor(a, tile, mesh).det()

    value, gradient = jax.jit(jax.value_and_grad(det, holomorphic=is_complex))(a)
    assert value == 0
    size = np.abs(expected).max()
    np.testing.assert_allclose(gradient, expected, atol=50 * np.finfo(dtype).eps * size)


@pytest.mark.extended
@pytest.mark.parametrize(
    "n, ranks, batch, dtype",
    cases.broad(
        itertools.product((1, 2, 3), (1, 4), (False, True), ("float32", "complex128")),
        lambda n, ranks, batch, dtype: (n, ranks, batch) == (1, 4, False) and dtype == "float32",
    ),
)
def test_determinants_of_zeros(n, ranks, batch, dtype):
    """The derivative is that of the determinant of order 1, else 0, in both modes."""
    det = functools.partial(linalg.det, mesh=cases.line(ranks))
    a = np.zeros((4,) * batch + (n, n), dtype)
    moved = cases.normal(cases.rng(1), a.shape, dtype)
    expected = moved[..., 0, 0] if n == 1 else np.zeros(a.shape[:-2])
    value, tangent = jax.jit(functools.partial(jax.jvp, det))((a,), (moved,))
    np.testing.assert_array_equal(value, 0)
    np.testing.assert_allclose(tangent, expected, rtol=1e-6, atol=1e-6)
    (gradient,) = jax.jit(lambda a: jax.vjp(det, a)[1](jnp.ones_like(value)))(a)
    np.testing.assert_allclose(gradient, np.full(a.shape, n == 1), rtol=1e-6, atol=1e-6)


@pytest.mark.breadth
def test_zero_determinants():
    """Derivatives are right in batches and with several zero pivots; second derivatives at a zero
    determinant are NaN."""
    where = {"mesh": cases.line(2)}
    det = functools.partial(linalg.det, **where)
    regular = cases.normal(cases.rng(1), (5, 5), "float64")
    singular = np.rint(3 * cases.normal(cases.rng(2), (5, 5), "float64"))
    singular[2] = 0
    batch = np.stack([singular, regular])
    expected = np.stack([_cofactors(a) for a in batch])
    np.testing.assert_allclose(jax.vmap(jax.grad(det))(batch), expected, atol=1e-11)
    _, moved = jax.jit(functools.partial(jax.jvp, det))((singular,), (regular,))
    np.testing.assert_allclose(moved, np.sum(expected[0] * regular), rtol=1e-11)
    shifted = np.eye(3, k=1)  # of rank n - 1, and all pivots are zero
    np.testing.assert_allclose(jax.grad(det)(shifted), _cofactors(shifted), atol=1e-11)
    np.testing.assert_allclose(jax.grad(det)(np.ones((5, 5))), 0, atol=1e-11)
    np.testing.assert_allclose(
        jax.hessian(det)(regular), jax.hessian(jnp.linalg.det)(regular), rtol=1e-9, atol=1e-11
    )
    assert np.isnan(jax.hessian(det)(singular)).any()
