"""`refine=` for any square matrix under JAX's transformations, and on meshes of all kinds."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg

_N, _SIZE = 7, 3


def _kept(trans):
    return lambda a, b, mesh: jaxmg.lu_factor(a, 2, mesh, refine="auto").solve(b, trans)


# Name -> (function of (a, b, mesh), the same function of (a, b) by JAX only).
_FUNCTIONS = {
    "gesv": (
        lambda a, b, mesh: jaxmg.gesv(a, b, 2, mesh, refine="auto"),
        jnp.linalg.solve,
    ),
    "status": (
        lambda a, b, mesh: jaxmg.gesv(a, b, 2, mesh, refine="auto", return_status=True),
        lambda a, b: (jnp.linalg.solve(a, b), jnp.int32(0)),
    ),
    "kept": (_kept(0), jnp.linalg.solve),
    "transposed": (_kept("T"), lambda a, b: jnp.linalg.solve(a.T, b)),
    "adjoint": (_kept("C"), lambda a, b: jnp.linalg.solve(a.conj().T, b)),
}


def _arrays(dtype, size=None, n=_N):
    """Returns a matrix whose condition requires iterations, and right-hand sides; or a batch of
    both."""
    matrices = [
        cases.general("well", n, dtype) + i * np.diag(np.arange(n)).astype(dtype) / n
        for i in range(size or 1)
    ]
    b = cases.normal(cases.rng(n, 4), (size or 1, n, 2), dtype)
    return [jnp.asarray(x if size else x[0]) for x in (np.stack(matrices), b)]


def _check(found, expected, dtype):
    __tracebackhide__ = True
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
            x, y, rtol=0, atol=4000 * cases.eps(dtype) * max(1, np.abs(y).max(initial=0))
        ),
        found,
        expected,
    )


_ROWS = [
    (name, dtype, (1, 2, 4, 8)[(i + j) % 4], ("eager", "jit", "of jit")[(i + 2 * j) % 3])
    for i, name in enumerate(_FUNCTIONS)
    for j, dtype in enumerate(cases.DTYPES)
    if (i + j) % 2
]


@cases.needs_transformations
@cases.kinds
@pytest.mark.parametrize(
    "name, dtype, ranks, how", cases.broad(_ROWS, lambda *case: False, alone=True)
)
def test_matrices_of_a_batch(name, dtype, ranks, how, kind):
    ours, theirs = _FUNCTIONS[name]
    mesh, arrays = cases.line(ranks, kind=kind), _arrays(dtype, _SIZE)
    function = lambda a, b: ours(a, b, mesh)  # noqa: E731
    function = jax.vmap(jax.jit(function) if how == "of jit" else function)
    found = (jax.jit(function) if how == "jit" else function)(*arrays)
    _check(found, jax.vmap(cases.precisely(theirs))(*arrays), dtype)


@cases.needs_transformations
@cases.kinds
@pytest.mark.breadth
@pytest.mark.parametrize("kept", [False, True])
def test_right_hand_sides_become_columns(kept, kind):
    mesh, (a, b) = cases.line(2, kind=kind), _arrays("complex128", _SIZE)
    b = b.at[1].set(0)  # by itself it would take no iteration
    options = dict(return_status=True, return_iterations=True)
    factor = jaxmg.lu_factor(a[0], 2, mesh, refine="auto")

    def solve(b):
        if kept:
            return factor.solve(b, "C", **options)
        return jaxmg.gesv(a[0], b, 2, mesh, refine="auto", **options)

    x, status, iterations = jax.vmap(solve)(b)
    matrix = a[0].conj().T if kept else a[0]
    _check(x, jax.vmap(lambda b: jnp.linalg.solve(matrix, b))(b), float)
    np.testing.assert_array_equal(status, np.zeros(_SIZE))
    assert np.unique(iterations).size == 1 and iterations[0] > 0


@cases.needs_transformations
@cases.kinds
@pytest.mark.breadth
def test_leading_dimensions(kind):
    mesh, (a, b) = cases.line(2, kind=kind), _arrays("float64", 4)
    a, b = a.reshape(2, 2, _N, _N), b.reshape(2, 2, _N, 2)
    options = dict(refine="auto", return_status=True, return_iterations=True)
    a = a.at[1, 0, 3].set(0)
    x, status, iterations = jaxmg.gesv(a, b, 2, mesh, **options)
    np.testing.assert_array_equal(status != 0, [[False, False], [True, False]])
    np.testing.assert_array_equal(iterations > 0, [[True, True], [False, True]])
    right = (np.array([0, 0, 1]), np.array([0, 1, 1]))
    _check(x[right], jnp.linalg.solve(a[right], b[right]), float)
    factors = jaxmg.lu_factor(a, 2, mesh, refine="auto")
    x = jax.vmap(jax.vmap(jaxmg.lu_solve))(factors, b)
    _check(x[right], jnp.linalg.solve(a[right], b[right]), float)


@cases.needs_transformations
@cases.kinds
@pytest.mark.parametrize(
    "name, dtype, ranks",
    cases.broad(
        [
            (name, dtype, (1, 2, 3, 8)[(i + j) % 4])
            for i, name in enumerate(_FUNCTIONS)
            for j, dtype in enumerate(cases.DTYPES)
            if name != "status" and not (i + j) % 2
        ],
        lambda *case: False,
        alone=True,
    ),
)
def test_jvp_and_vjp(name, dtype, ranks, kind):
    ours, theirs = _FUNCTIONS[name]
    mesh, primals = cases.line(ranks, kind=kind), tuple(_arrays(dtype))
    tangents = tuple(x[1] for x in _arrays(dtype, 2))
    function = lambda a, b: ours(a, b, mesh)  # noqa: E731
    function = jax.jit(function) if (ranks + len(name)) % 2 else function
    found = cases.on(mesh, lambda *t: jax.jvp(function, primals, t))(*tangents)
    expected = jax.jvp(cases.precisely(theirs), primals, tangents)
    _check(found, expected, dtype)
    cotangent = tangents[1]

    def transposed(function, cotangent):
        x, vjp = jax.vjp(function, *primals)
        return vjp(cases.like(cotangent, x))

    found = cases.on(mesh, lambda c: transposed(function, c))(cotangent)
    _check(found, transposed(cases.precisely(theirs), cotangent), dtype)


_SECOND = {
    "hessian": jax.hessian,
    "reverse": lambda f: jax.grad(jax.grad(f)),
    "forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
}


@cases.needs_transformations
@cases.kinds
@pytest.mark.parametrize(
    "name, order",
    cases.broad(
        [("gesv", "hessian"), ("kept", "reverse"), ("transposed", "forward")],
        lambda *case: False,
        alone=True,
    ),
)
def test_second_derivatives(name, order, kind):
    mesh, (a, b), others = cases.line(2, kind=kind), _arrays("float64"), _arrays("float64", 2)
    (ours, theirs), (a_dot, b_dot) = _FUNCTIONS[name], (x[1] for x in others)

    def along(function):
        def size(t):
            return jnp.sum(jnp.sin(function(a + t * a_dot, b + t * b_dot)))

        return jax.jit(_SECOND[order](size))(0.1)

    found = along(lambda a, b: ours(a, b, mesh))
    np.testing.assert_allclose(found, along(theirs), rtol=1e-8)


@cases.needs_transformations
@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
@pytest.mark.parametrize("name", ["gesv", "adjoint"])
@pytest.mark.parametrize("order", ["grad of vmap", "vmap of grad"])
def test_derivatives_of_a_batch(name, order, kind):
    (ours, theirs), mesh = _FUNCTIONS[name], cases.line(2, kind=kind)
    arrays = _arrays("float64", _SIZE)

    def derivative(function):
        def size(a, b):
            return jnp.sum(function(a, b) ** 3)

        if order == "vmap of grad":
            return jax.vmap(jax.grad(size, (0, 1)))
        return jax.grad(lambda a, b: jax.vmap(size)(a, b).sum(), (0, 1))

    found = cases.on(mesh, derivative(lambda a, b: ours(a, b, mesh)))(*arrays)
    _check(found, derivative(theirs)(*arrays), float)


@pytest.mark.breadth
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("rows", ["r", "c", ("r", "c")])
def test_meshes_with_other_axes(rows, kind):
    """Groups of ranks solve separately."""
    mesh, n = cases.grid(kind), 13
    matrix, b = cases.general("well", n, "float64"), np.arange(2.0 * n).reshape(n, 2)
    solve = jax.jit(
        lambda a, b: jaxmg.gesv(a, b, 3, mesh, P(rows, None), refine="auto", return_iterations=True)
    )
    with cases.context(mesh):
        x, iterations = solve(matrix, b)
        factor = jaxmg.lu_factor(matrix, 3, mesh, P(rows, None), refine="auto")
        again = factor.solve(b, 1)
    assert 0 < iterations < 8
    _check((x, again), (np.linalg.solve(matrix, b), np.linalg.solve(matrix.T, b)), float)


@pytest.mark.breadth
def test_a_kept_factor_goes_through_jit_and_scan():
    mesh, n = cases.line(4), 20
    matrix, b = cases.general("well", n, "float64"), cases.normal(cases.rng(3), (n, 3), "float64")
    factor = jax.jit(lambda a: jaxmg.lu_factor(a, 3, mesh, refine="auto"))(matrix)

    def step(factor, b):
        return factor, jaxmg.lu_solve(factor, b, trans=1)

    _, each = jax.jit(lambda factor, b: jax.lax.scan(step, factor, b))(factor, b.T)
    _check(each.T, np.linalg.solve(matrix.T, b), float)
    np.testing.assert_array_equal(jaxmg.linalg.lu_solve(factor, b, 1), factor.solve(b, 1))


@pytest.mark.extended
def test_inside_a_shard_map():
    mesh = cases.line(2)
    factor = jaxmg.lu_factor(np.eye(4), mesh=mesh, refine="float32")
    for function in (factor.solve, lambda b: jaxmg.gesv(jnp.eye(4), b, refine="float32")):
        with pytest.raises(ValueError, match="inside a shard_map"):
            jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P())(jnp.ones(4))
