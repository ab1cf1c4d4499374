"""Derivatives against JAX's own on one device, which differentiates other code."""

import cases
import derivative_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg

pytestmark = cases.needs_transformations

_CORE = {
    ("logdet", "complex128"),
    ("refined", "float64"),
}


@cases.kinds
@pytest.mark.parametrize(
    "name, dtype, ranks",
    cases.broad(
        [
            (name, dtype, (1, 2, 3, 4)[(i + j) % 4])
            for i, name in enumerate(derivative_cases.FUNCTIONS)
            for j, dtype in enumerate(cases.DTYPES)
            if (i + j) % 2 or (name, dtype) in _CORE
        ],
        lambda name, dtype, _: (name, dtype) in _CORE,
        alone=True,
        slow=lambda name, *_: name == "refined",
    ),
)
def test_jvp_and_vjp(name, dtype, ranks, kind):
    mesh = cases.line(ranks, kind=kind)
    ours, theirs = derivative_cases.make_functions(name, mesh)
    primals, tangents = derivative_cases.make_arguments(7, dtype)
    if (ranks + len(name)) % 2:
        ours = jax.jit(ours)
    found = cases.on(mesh, lambda *t: jax.jvp(ours, primals, t))(*tangents)
    expected = jax.jvp(theirs, primals, tangents)
    derivative_cases.assert_close(found, expected, dtype)
    cotangents = jax.tree.map(lambda x: cases.normal(cases.rng(3), x.shape, x.dtype), expected[0])

    def transposed(function, cotangents):
        results, vjp = jax.vjp(function, *primals)
        return vjp(jax.tree.map(lambda x, y: cases.like(jnp.asarray(x), y), cotangents, results))

    found = cases.on(mesh, transposed)(ours, cotangents)
    derivative_cases.assert_close(found, transposed(theirs, cotangents), dtype)


_SECOND = {
    "hessian": jax.hessian,
    "reverse": lambda f: jax.grad(jax.grad(f)),
    "forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
}


@cases.kinds
@pytest.mark.parametrize(
    "name, order",
    cases.broad(
        [
            ("potrs", "hessian"),
            ("refined", "hessian"),
            ("logdet", "reverse"),
            ("potri", "forward"),
            ("solve_triangular", "hessian"),
            ("matmul", "reverse"),
            ("upper", "hessian"),
            ("from_upper", "forward"),
            ("eigvalsh", "reverse"),
            ("eigh", "hessian"),
            ("sygvd", "forward"),
        ],
        lambda name, _: False,
        alone=True,
    ),
)
def test_second_derivatives(name, order, kind):
    ours, theirs = derivative_cases.make_functions(name, cases.line(2, kind=kind))
    (a, b), (a_dot, b_dot) = derivative_cases.make_arguments(
        5, "complex128" if "eig" in name else "float64"
    )

    def along(f):
        def size(t):
            leaves = jax.tree.leaves(f(a + t * a_dot, b + t * b_dot))
            return sum(jnp.sum(jnp.abs(x * (1 + x)) ** 2) for x in leaves)

        return jax.jit(_SECOND[order](size))(0.1)

    np.testing.assert_allclose(along(ours), along(theirs), rtol=1e-8)


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
def test_linearize_and_jacobians(kind):
    mesh = cases.line(2, kind=kind)
    ours, theirs = derivative_cases.make_functions("logdet", mesh)
    (a, b), tangents = derivative_cases.make_arguments(4, "float64")
    found = cases.on(mesh, lambda *tangents: jax.linearize(ours, a, b)[1](*tangents))(*tangents)
    derivative_cases.assert_close(found, jax.jvp(theirs, (a, b), tangents)[1], float)
    for jacobian in (jax.jacfwd, jax.jacrev):
        found = cases.on(mesh, jacobian(ours, (0, 1)))(a, b)
        derivative_cases.assert_close(found, jacobian(theirs, (0, 1))(a, b), float)


@pytest.mark.parametrize(
    "function",
    cases.broad(
        [
            pytest.param(lambda a: jaxmg.potrs(a, jnp.ones(len(a), a.dtype), 2), id="potrs"),
            pytest.param(lambda a: jaxmg.potri(a, 2).sum(1), id="potri"),
            pytest.param(lambda a: jaxmg.eigvalsh(a), id="eigvalsh"),
            pytest.param(lambda a: jaxmg.cho_factor(a, 2).upper().sum(1), id="upper"),
        ],
        lambda function: False,
        alone=True,
    ),
)
def test_what_is_not_read_has_no_derivative(function):
    """The derivative ignores the lower triangle and the diagonal's imaginary part. Elements above
    the diagonal count twice."""
    a = cases.upper_only(cases.positive_definite("well", 6, "complex128"))
    a_dot = cases.normal(cases.rng(1), (6, 6), "complex128")
    whole = np.triu(a_dot, 1)
    whole = whole + whole.conj().T + np.diag(np.diag(a_dot).real)
    full = cases.positive_definite("well", 6, "complex128")
    rows = cases.shard(a, cases.line(3), "r", None)
    _, found = jax.jvp(function, (rows,), (jnp.asarray(cases.upper_only(a_dot)),))
    _, expected = jax.jvp(function, (full,), (whole,))
    derivative_cases.assert_close(found, expected, float)
    gradient = np.asarray(jax.grad(lambda a: jnp.abs(function(a)).sum())(rows))
    assert np.all(np.tril(gradient, -1) == 0) and np.all(np.diag(gradient).imag == 0)
    step = 1e-6
    moved = [np.abs(function(full + s * step * whole)).sum() for s in (1, -1)]
    along = np.sum((gradient * np.triu(a_dot)).real)
    np.testing.assert_allclose(along, (moved[0] - moved[1]) / (2 * step), rtol=1e-6)


@pytest.mark.breadth
@cases.one_process("it takes long")
def test_equal_eigenvalues():
    """Derivatives of the sum of equal eigenvalues, and of the vectors of other eigenvalues, are
    right. The derivative of an eigenvector of an equal eigenvalue isn't finite."""
    a, mesh = jnp.diag(jnp.array([1.0, 1, 2, 4])), cases.line(2)
    direction = cases.hermitian_part(cases.normal(cases.rng(2), (4, 4), "float64"))

    def along(f):
        return jax.jvp(f, (a,), (direction,))[1], jnp.vdot(jax.grad(f)(a), jnp.triu(direction))

    total = lambda a: jaxmg.eigvalsh(a, mesh=mesh)[:2].sum()  # noqa: E731
    np.testing.assert_allclose(along(total), 2 * [np.trace(direction[:2, :2])], atol=1e-13)

    def other(a):
        v = jaxmg.syevd(a, mesh=mesh)[1]
        return v[2, 3] * jnp.sign(v[3, 3])

    np.testing.assert_allclose(along(other), 2 * [direction[2, 3] / 2], atol=1e-13)
    own = lambda a: jaxmg.syevd(a, mesh=mesh)[1][0, 0]  # noqa: E731
    assert not np.isfinite(jax.jvp(own, (a,), (direction,))[1])


@pytest.mark.breadth
@cases.one_process("it takes long")
def test_a_failed_factorization_has_derivatives_that_are_nan():
    a = cases.positive_definite("well", 8, "float64")
    a[5, 5] = -1
    f = lambda a: jaxmg.potrs(a, jnp.ones(8), 3, cases.line(2), return_logdet=True)[1]  # noqa: E731
    assert np.isnan(np.triu(jax.grad(f)(a))[np.triu_indices(8)]).all()


_EMPTY = {
    "logdet": lambda a, b, mesh: jaxmg.potrs(a, b, mesh=mesh, return_logdet=True),
    "potri": lambda a, b, mesh: jaxmg.potri(a, mesh=mesh),
    "syevd": lambda a, b, mesh: jaxmg.syevd(a, mesh=mesh),
    "eigvalsh": lambda a, b, mesh: jaxmg.eigvalsh(a, mesh=mesh),
    "sygvd": lambda a, b, mesh: jaxmg.sygvd(a, a, mesh=mesh),
    "upper": lambda a, b, mesh: jaxmg.cho_factor(a, mesh=mesh).upper(),
    "matmul": lambda a, b, mesh: jaxmg.cho_factor(a, mesh=mesh).matmul(b),
    "from_upper": lambda a, b, mesh: jaxmg.CholeskyFactor.from_upper(a, mesh=mesh).solve(b),
    "refined factor": lambda a, b, mesh: jaxmg.cho_factor(a, mesh=mesh, refine="auto").solve(b),
    "expm": lambda a, b, mesh: jaxmg.linalg.expm(a, mesh=mesh),
    "det": lambda a, b, mesh: jaxmg.linalg.det(a, mesh=mesh),
}


@pytest.mark.extended
@cases.kinds
@pytest.mark.parametrize(
    "name, dtype",
    cases.broad(
        [(name, dtype) for name in _EMPTY for dtype in ("float64", "complex64")],
        lambda name, dtype: (name, dtype) == ("eigvalsh", "complex64"),
    ),
)
def test_empty(name, dtype, kind):
    mesh = cases.line(2, kind=kind)
    a, b = jnp.zeros((0, 0), dtype), jnp.zeros((0, 2), dtype)

    def function(a, b):
        return _EMPTY[name](a, b, mesh)

    def size(a, b):
        return sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(function(a, b)))

    def both(a, b):
        return jax.grad(size, (0, 1))(a, b), jax.jvp(function, (a, b), (a, b))

    for run, count in ((both, ()), (jax.vmap(both), (3,)), (jax.jit(jax.vmap(both)), (3,))):
        arrays = [jnp.zeros((*count, *x.shape), dtype) for x in (a, b)]
        gradient, _ = cases.on(mesh, run)(*arrays)
        assert [(x.shape, x.dtype) for x in gradient] == [(x.shape, x.dtype) for x in arrays]


@pytest.mark.breadth
@cases.one_process("it takes long")
def test_padding_of_the_caller():
    mesh, n = cases.line(2), 6
    matrix, b = cases.positive_definite("well", n, "float64"), np.arange(1.0, n + 1)
    blocks = np.pad(matrix.reshape(2, 3, n), ((0, 0), (0, 2), (0, 0)), constant_values=np.nan)
    a = cases.shard(blocks.reshape(10, n), mesh, "r", None)
    f = lambda a: jaxmg.potrs(a, b, 3, mesh, pad=False) @ b + jaxmg.potri(a, 3, pad=False)[0, 5]  # noqa: E731, E501
    g = lambda a: jaxmg.potrs(a, b, 3, mesh) @ b + jaxmg.potri(a, 3, mesh)[0, 5]  # noqa: E731
    found = np.asarray(jax.grad(f)(a)).reshape(2, 5, n)
    derivative_cases.assert_close(found[:, :3].reshape(n, n), jax.grad(g)(matrix), float)
    assert (found[:, 3:] == 0).all()
