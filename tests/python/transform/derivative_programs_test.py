"""Programs of derivatives: the number of factorizations, the arrays, and JAX's loops."""

import contextlib
import re

import cases
import derivative_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg

pytestmark = cases.needs_transformations


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
    """No mesh is passed; the gradient has the sharding of the matrix."""
    mesh = cases.line(len(jax.devices()), kind=kind)
    n = 2 * mesh.size
    a = cases.shard(cases.positive_definite("well", n, "float64"), mesh, "r", None)
    b = cases.shard(np.arange(n, dtype=float), mesh)

    def likelihood(a, b):
        x, logdet = jaxmg.potrs(a, b, return_logdet=True)
        return x @ b + logdet

    # For eager transposition JAX requires a mesh of explicit axes to be the context mesh.
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


@pytest.mark.extended
@pytest.mark.parametrize("kind", [AxisType.Explicit, cases.breadth(AxisType.Auto)])
def test_some_eigenvectors_of_a_matrix_with_sharded_columns(kind):
    """The devices don't divide the number of eigenvectors. The primal has the sharding that it has
    without a derivative."""
    n, mesh = 12, cases.line(4, kind=kind)
    a = cases.shard(cases.positive_definite("well", n, "float64"), mesh, None, "r")

    def some(a):
        return jaxmg.eigh(a, mesh=mesh, subset_by_index=(2, 7))

    (w, v), (w_dot, v_dot) = jax.jvp(some, (a,), (a,))
    np.testing.assert_allclose(w, np.linalg.eigvalsh(np.asarray(a))[2:7], rtol=1e-12)
    np.testing.assert_allclose(w_dot, w, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(a) @ v, v * np.asarray(w), atol=1e-9)
    np.testing.assert_allclose(v_dot, 0, atol=1e-9)
    assert v.sharding.is_equivalent_to(some(a)[1].sharding, 2)


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
    ours, _ = derivative_cases.FUNCTIONS[name]

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


@pytest.mark.extended
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
    # The calls of potrs are the fallbacks of the two solves.
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
    (a, b), _ = derivative_cases.make_arguments(6, "float64")

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
            continue  # JAX itself refuses these
        derivative_cases.assert_close(jax.jit(transform(ours))(x), transform(theirs)(x), float)


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
def test_a_factor_in_a_loop_is_differentiated(kind):
    """A loop carries a factor, chooses it by cond, and solves with it in each step."""
    mesh = cases.line(2, kind=kind)
    (a, b), _ = derivative_cases.make_arguments(6, "float64")

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
        derivative_cases.assert_close(jax.jit(transform(ours))(0.5), transform(theirs)(0.5), float)
