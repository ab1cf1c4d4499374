"""Derivatives against JAX's own on one device, which differentiates other code."""

import contextlib
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg

pytestmark = cases.needs_transformations


def _lower(a):
    return jnp.linalg.cholesky(a, symmetrize_input=False)


def _pair(a, b):
    """Another matrix to be the metric of ``a``."""
    return a + len(a) * jnp.eye(len(a), dtype=a.dtype), b


def _magnitudes(v):
    """What eigenvectors have whatever their phases."""
    return jnp.abs(v) ** 2


def _generalized(a, metric):
    lower = jnp.linalg.inv(_lower(metric))
    w, y = jnp.linalg.eigh(lower @ a @ lower.conj().T)
    return w, lower.conj().T @ y


def _factor(a, **where):
    return jaxmg.cho_factor(a, 3, **where)


def _by_place(w, v, places):
    return w[places], _magnitudes(v[:, places])


# Function of (a, b, where) -> the same of (a, b) by JAX alone.
_FUNCTIONS = {
    "potrs": (lambda a, b, **w: jaxmg.potrs(a, b, 3, **w), jnp.linalg.solve),
    "potrs of a vector": (
        lambda a, b, **w: jaxmg.potrs(a, b[:, 0], 3, **w),
        lambda a, b: jnp.linalg.solve(a, b[:, 0]),
    ),
    "logdet": (
        lambda a, b, **w: jaxmg.potrs(a, b, 3, return_logdet=True, **w),
        lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1]),
    ),
    "potri": (lambda a, b, **w: jaxmg.potri(a, 3, **w), lambda a, b: jnp.linalg.inv(a)),
    "cho_solve": (lambda a, b, **w: jaxmg.cho_solve(_factor(a, **w), b), jnp.linalg.solve),
    "refined": (
        lambda a, b, **w: jaxmg.potrs(a, b, 3, refine="auto", **w),
        jnp.linalg.solve,
    ),
    "refined factor": (
        lambda a, b, **w: jaxmg.cho_solve(jaxmg.cho_factor(a, 3, refine="auto", **w), b),
        jnp.linalg.solve,
    ),
    "solve_triangular": (
        lambda a, b, **w: [_factor(a, **w).solve_triangular(b, trans) for trans in "NTC"],
        lambda a, b: [
            jnp.linalg.inv(_lower(a)) @ b,
            jnp.linalg.inv(_lower(a)).T @ b,
            jnp.linalg.inv(_lower(a)).conj().T @ b,
        ],
    ),
    "matmul": (
        lambda a, b, **w: [_factor(a, **w).matmul(b, trans) for trans in "NTC"],
        lambda a, b: [_lower(a) @ b, _lower(a).T @ b, _lower(a).conj().T @ b],
    ),
    "diagonal": (
        lambda a, b, **w: _factor(a, **w).diagonal(),
        lambda a, b: jnp.diag(_lower(a)).real,
    ),
    "upper": (lambda a, b, **w: _factor(a, **w).upper(), lambda a, b: _lower(a).conj().T),
    "inv": (lambda a, b, **w: _factor(a, **w).inv(), lambda a, b: jnp.linalg.inv(a)),
    "log_det": (
        lambda a, b, **w: (_factor(a, **w).logdet(), _factor(a, **w).log_det),
        lambda a, b: (jnp.linalg.slogdet(a)[1],) * 2,
    ),
    "from_upper": (
        lambda a, b, **w: jaxmg.CholeskyFactor.from_upper(_lower(a).conj().T, 3, **w).solve(b),
        jnp.linalg.solve,
    ),
    "eigvalsh": (lambda a, b, **w: jaxmg.eigvalsh(a, **w), lambda a, b: jnp.linalg.eigvalsh(a)),
    "eigh": (
        lambda a, b, **w: _by_place(*jaxmg.syevd(a, **w), slice(None)),
        lambda a, b: _by_place(*jnp.linalg.eigh(a), slice(None)),
    ),
    "eigh of a subset": (
        lambda a, b, **w: _by_place(*jaxmg.eigh(a, subset_by_index=(1, 4), **w), slice(None)),
        lambda a, b: _by_place(*jnp.linalg.eigh(a), slice(1, 4)),
    ),
    "sygvd": (
        lambda a, b, **w: _by_place(*jaxmg.eigh(a, _pair(a, b)[0], **w), slice(None)),
        lambda a, b: _by_place(*_generalized(a, _pair(a, b)[0]), slice(None)),
    ),
    "eigvalsh of two": (
        lambda a, b, **w: jaxmg.eigvalsh(_pair(a, b)[0], a, **w),
        lambda a, b: _generalized(_pair(a, b)[0], a)[0],
    ),
}


def _arguments(n, dtype):
    """A matrix, right-hand sides, and directions to go from there."""
    random = cases.rng(n, 5)
    matrix = cases.positive_definite("well", n, dtype) + np.diag(np.arange(n)).astype(dtype)
    b = cases.normal(random, (n, 2), dtype)
    return (matrix, b), (cases.normal(random, (n, n), dtype), cases.normal(random, (n, 2), dtype))


def _functions(name, mesh):
    ours, theirs = _FUNCTIONS[name]
    where = {"mesh": mesh, "matrix_specs": P(mesh.axis_names[0], None)}
    return (
        lambda a, b: ours(cases.hermitian_part(a), b, **where),
        cases.precisely(lambda a, b: theirs(cases.hermitian_part(a), b)),
    )


def _assert_close(found, expected, dtype):
    __tracebackhide__ = True
    unit = 2000 * float(np.finfo(dtype).eps)

    def compare(x, y):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=unit * max(1, np.abs(y).max(initial=0)))

    jax.tree.map(compare, found, expected)


_CORE = {
    ("logdet", "complex128"),
    ("refined", "float64"),
    ("matmul", "complex64"),
    ("eigvalsh", "float32"),
}


@cases.kinds
@pytest.mark.parametrize(
    "name, dtype, ranks",
    cases.broad(
        [
            (name, dtype, (1, 2, 3, 4)[(i + j) % 4])
            for i, name in enumerate(_FUNCTIONS)
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
    ours, theirs = _functions(name, mesh)
    primals, tangents = _arguments(7, dtype)
    if (ranks + len(name)) % 2:
        ours = jax.jit(ours)
    found = cases.on(mesh, lambda *t: jax.jvp(ours, primals, t))(*tangents)
    expected = jax.jvp(theirs, primals, tangents)
    _assert_close(found, expected, dtype)
    cotangents = jax.tree.map(lambda x: cases.normal(cases.rng(3), x.shape, x.dtype), expected[0])

    def transposed(function, cotangents):
        results, vjp = jax.vjp(function, *primals)
        return vjp(jax.tree.map(lambda x, y: cases.like(jnp.asarray(x), y), cotangents, results))

    found = cases.on(mesh, transposed)(ours, cotangents)
    _assert_close(found, transposed(theirs, cotangents), dtype)


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
    ours, theirs = _functions(name, cases.line(2, kind=kind))
    (a, b), (a_dot, b_dot) = _arguments(5, "complex128" if "eig" in name else "float64")

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
    ours, theirs = _functions("logdet", mesh)
    (a, b), tangents = _arguments(4, "float64")
    found = cases.on(mesh, lambda *tangents: jax.linearize(ours, a, b)[1](*tangents))(*tangents)
    _assert_close(found, jax.jvp(theirs, (a, b), tangents)[1], float)
    for jacobian in (jax.jacfwd, jax.jacrev):
        found = cases.on(mesh, jacobian(ours, (0, 1)))(a, b)
        _assert_close(found, jacobian(theirs, (0, 1))(a, b), float)


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
    """The lower triangle, and the imaginary part of the diagonal; what is above it counts twice."""
    a = cases.upper_only(cases.positive_definite("well", 6, "complex128"))
    a_dot = cases.normal(cases.rng(1), (6, 6), "complex128")
    whole = np.triu(a_dot, 1)
    whole = whole + whole.conj().T + np.diag(np.diag(a_dot).real)
    full = cases.positive_definite("well", 6, "complex128")
    rows = cases.shard(a, cases.line(3), "r", None)
    _, found = jax.jvp(function, (rows,), (jnp.asarray(cases.upper_only(a_dot)),))
    _, expected = jax.jvp(function, (full,), (whole,))
    _assert_close(found, expected, float)
    gradient = np.asarray(jax.grad(lambda a: jnp.abs(function(a)).sum())(rows))
    assert np.all(np.tril(gradient, -1) == 0) and np.all(np.diag(gradient).imag == 0)
    step = 1e-6
    moved = [np.abs(function(full + s * step * whole)).sum() for s in (1, -1)]
    along = np.sum((gradient * np.triu(a_dot)).real)
    np.testing.assert_allclose(along, (moved[0] - moved[1]) / (2 * step), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    cases.broad(
        [(AxisType.Auto,), (AxisType.Explicit,)],
        lambda kind: kind == AxisType.Auto,
        alone=True,
    ),
)
def test_mesh_and_sharding_are_as_without_a_derivative(kind):
    """Nothing is passed; the gradient lies as the matrix does."""
    mesh = cases.line(len(jax.devices()), kind=kind)
    n = 2 * mesh.size
    a = cases.shard(cases.positive_definite("well", n, "float64"), mesh, "r", None)
    b = cases.shard(np.arange(n, dtype=float), mesh)

    def likelihood(a, b):
        x, logdet = jaxmg.potrs(a, b, return_logdet=True)
        return x @ b + logdet

    # JAX wants a mesh of explicit axes to be the context's where it transposes what is eager.
    with cases.context(mesh) if kind == AxisType.Explicit else contextlib.nullcontext():
        values = likelihood(a, b), jax.value_and_grad(likelihood)(a, b)
    np.testing.assert_allclose(values[0], values[1][0], rtol=1e-12)
    gradient = values[1][1]
    assert gradient.sharding.is_equivalent_to(a.sharding, 2)
    x = np.linalg.solve(np.asarray(a), np.asarray(b))
    expected = np.linalg.inv(np.asarray(a)) - np.outer(x, x)
    expected = np.triu(2 * expected, 1) + np.diag(np.diag(expected))
    np.testing.assert_allclose(gradient, expected, atol=1e-9)
    if kind == AxisType.Explicit:
        np.testing.assert_allclose(jax.jit(jax.grad(likelihood))(a, b), expected, atol=1e-9)


def _compiled(function, *arrays):
    return jax.jit(function).lower(*arrays).compile().as_text()


@cases.one_process("of a program's text")
@pytest.mark.parametrize(
    "name",
    cases.broad(
        [(name,) for name in ("logdet", "matmul", "eigh", "inv")], lambda name: name == "logdet"
    ),
)
def test_no_device_has_a_whole_matrix(name):
    n, mesh = 24, cases.line(4)
    ours, _ = _FUNCTIONS[name]

    def size(a, b):
        found = ours(a, b, mesh=mesh, matrix_specs=P("r", None))
        return sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(found))

    a = cases.shard(cases.positive_definite("well", n, "float64"), mesh, "r", None)
    text = _compiled(jax.grad(size, (0, 1)), a, cases.shard(np.ones((n, 2)), mesh))
    assert f"f64[{n // 4},{n}]" in text
    largest = max(
        np.prod([int(size) for size in shape.split(",")])
        for shape in re.findall(r"f64\[([\d,]+)\]", text)
    )
    assert largest < n * n


@cases.one_process("of a program's text")
def test_one_factorization_a_gradient():
    mesh = cases.line(4)
    a = cases.shard(cases.positive_definite("well", 24, "float64"), mesh, "r", None)

    def likelihood(a, b):
        x, logdet = jaxmg.potrs(a, b, 3, mesh, return_logdet=True)
        return x @ jnp.sin(b) + logdet

    text = _compiled(jax.value_and_grad(likelihood, (0, 1)), a, np.arange(24.0))
    calls = re.findall(r'custom_call_target="jaxmg_(\w+)"', text)
    assert sorted(calls) == ["factor_apply", "factor_apply", "factor_invert", "potrf"]

    def refined(a, b):
        return jaxmg.potrs(a, b, 3, mesh, refine="float32") @ jnp.sin(b)

    text = _compiled(jax.value_and_grad(refined, (0, 1)), a, np.arange(24.0))
    calls = re.findall(r'custom_call_target="jaxmg_(\w+)"', text)
    # Those of potrs are what either solve falls back to.
    assert calls.count("potrf") == 1 and calls.count("potrs") == 2


@cases.kinds
@pytest.mark.slow
@pytest.mark.parametrize(
    "around",
    cases.broad(
        [(around,) for around in ("checkpoint", "scan", "cond", "while", "custom_vjp")],
        lambda around: around == "scan",
        alone=True,
    ),
)
def test_inside(around, kind):
    mesh = cases.line(2, kind=kind)
    (a, b), _ = _arguments(6, "float64")

    def step(x, solve):
        return solve(a + jnp.diag(x**2), x + b[:, 0])

    def scaled(x, solve):
        run = lambda x: step(x, solve)  # noqa: E731
        if around == "checkpoint":
            return jax.checkpoint(run)(x)
        if around == "scan":
            return jax.lax.scan(lambda x, _: (run(x), x), x, None, 2)[0]
        if around == "cond":
            return jax.lax.cond(x[0] > 0, run, lambda x: 2 * x, x)
        if around == "while":
            return jax.lax.fori_loop(0, 2, lambda _, x: run(x), x)
        halved = jax.custom_vjp(run)
        halved.defvjp(lambda x: (run(x), x), lambda x, ct: (jax.vjp(run, x)[1](ct)[0] / 2,))
        return halved(x)

    ours = lambda x: scaled(x, lambda a, b: jaxmg.potrs(a, b, 2, mesh))  # noqa: E731
    theirs = lambda x: scaled(x, jnp.linalg.solve)  # noqa: E731
    x = jnp.linspace(0.1, 1, 6)
    for transform in (jax.jacfwd, jax.jacrev):
        if (around, transform) in (("while", jax.jacrev), ("custom_vjp", jax.jacfwd)):
            continue  # which JAX itself refuses
        _assert_close(jax.jit(transform(ours))(x), transform(theirs)(x), float)


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
def test_a_factor_in_a_loop_is_differentiated(kind):
    """It is carried, chosen by cond, and solved with in each step."""
    mesh = cases.line(2, kind=kind)
    (a, b), _ = _arguments(6, "float64")

    def ours(t):
        factor = jaxmg.cho_factor(a + t * jnp.eye(6), 2, mesh)
        other = jaxmg.cho_factor(a, 2, mesh)

        def step(carry, _):
            factor, x = carry
            factor = jax.lax.cond(x[0, 0] > 1e9, lambda: other, lambda: factor)
            return (factor, jaxmg.cho_solve(factor, x)), factor.logdet()

        (_, x), log_dets = jax.lax.scan(step, (factor, b), None, 3)
        return x, log_dets

    def theirs(t):
        matrix, x, log_dets = a + t * jnp.eye(6), b, []
        for _ in range(3):
            x = jnp.linalg.solve(matrix, x)
            log_dets.append(jnp.linalg.slogdet(matrix)[1])
        return x, jnp.stack(log_dets)

    for transform in (jax.jacfwd, jax.jacrev):
        _assert_close(jax.jit(transform(ours))(0.5), transform(theirs)(0.5), float)


@pytest.mark.breadth
@cases.one_process("it takes long")
def test_equal_eigenvalues():
    """Of their sum, and of what belongs to others, the derivative is right; of an eigenvector of
    theirs there is none."""
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


@cases.kinds
@pytest.mark.parametrize(
    "name, dtype",
    cases.broad(
        [(name, dtype) for name in _EMPTY for dtype in ("float64", "complex64")],
        lambda name, dtype: (name, dtype) in (("logdet", "float64"), ("eigvalsh", "complex64")),
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
    _assert_close(found[:, :3].reshape(n, n), jax.grad(g)(matrix), float)
    assert (found[:, 3:] == 0).all()
