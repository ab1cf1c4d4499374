"""Programs of `jaxmg.linalg` that one of several CPU devices runs for all."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import linalg
from jaxmg._linalg import first, on_one
from jaxmg._plugin import plugins

pytestmark = [
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices"),
    cases.one_process("devices of several processes share no cores"),
]


@pytest.fixture(autouse=True)
def _on_one(monkeypatch):
    monkeypatch.setattr(on_one, "MOST", 1024)
    cases.forget_plans()
    yield
    cases.forget_plans()


def _definite(a):
    return a @ a.conj().T / a.shape[-1] + 4 * jnp.eye(a.shape[0], dtype=a.dtype)


def _without_signs(svd):
    """Singular vectors have any sign."""
    return jnp.abs(svd.U), svd.S, jnp.abs(svd.Vh)


# Function of a (n, n) and b -> its results.
_FUNCTIONS = {
    "cholesky": lambda a, b, **on: linalg.cholesky(_definite(a), **on),
    "cho_factor": lambda a, b, **on: linalg.cho_factor(_definite(a), **on)[0],
    "cho_solve": lambda a, b, **on: linalg.cho_solve((jnp.triu(a + 9 * jnp.eye(len(a))), False),
                                                     b, **on),
    "cond": lambda a, b, **on: linalg.cond(a, 1, **on),
    "det": lambda a, b, **on: linalg.det(a, **on),
    "eigh": lambda a, b, **on: linalg.eigh(a + a.conj().T, **on),
    "eigvalsh": lambda a, b, **on: linalg.eigvalsh(a + a.conj().T, **on),
    "expm": lambda a, b, **on: linalg.expm(a, **on),
    "inv": lambda a, b, **on: linalg.inv(a, **on),
    "lstsq": lambda a, b, **on: linalg.lstsq(a, b, **on)[0],
    "lu": lambda a, b, **on: linalg.lu(a, **on),
    "lu_factor": lambda a, b, **on: linalg.lu_factor(a, **on),
    "matrix_power": lambda a, b, **on: linalg.matrix_power(a, 3, **on),
    "matrix_rank": lambda a, b, **on: linalg.matrix_rank(a, **on),
    "pinv": lambda a, b, **on: linalg.pinv(a, **on),
    "polar": lambda a, b, **on: linalg.polar(a, **on),
    "qr": lambda a, b, **on: linalg.qr(a, **on),
    "slogdet": lambda a, b, **on: linalg.slogdet(a, **on),
    "solve": lambda a, b, **on: linalg.solve(a, b, **on),
    "solve_triangular": lambda a, b, **on: linalg.solve_triangular(a, b, **on),
    "sqrtm": lambda a, b, **on: linalg.sqrtm(_definite(a), **on),
    "svd": lambda a, b, **on: _without_signs(linalg.svd(a, full_matrices=False, **on)),
    "svdvals": lambda a, b, **on: linalg.svdvals(a, **on),
}  # fmt: skip


def _arrays(n, dtype="float64", m=None):
    rng = cases.rng(n)
    a = cases.normal(rng, (m or n, n), dtype) + 0
    return jnp.asarray(a), jnp.asarray(cases.normal(rng, (m or n, 2), dtype))


def _close(actual, expected, dtype="float64"):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        rounding = 1e4 * jnp.finfo(dtype).eps
        np.testing.assert_allclose(x, y, rtol=rounding, atol=rounding * np.abs(y).max(initial=0))


def _calls(function, *arrays):
    """The exchanges and the collectives of a compiled program."""
    text = jax.jit(lambda *arrays: function(*arrays)).lower(*arrays).compile().as_text()
    collectives = re.findall(r"\b(all-gather|all-reduce|all-to-all|collective-permute)\(", text)
    return text.count('custom_call_target="jaxmg_root_exchange"'), collectives


def _leaves(function, *arrays):
    """The number of exchanges where no rank of a compiled program waits."""
    text = jax.jit(lambda *arrays: function(*arrays)).lower(*arrays).compile().as_text()
    calls = [line for line in text.splitlines() if '"jaxmg_root_exchange"' in line]
    return sum("gathers = true" in line and ", s32[])" in line for line in calls)


@pytest.mark.core("cholesky-4", "svd-4", "lu_factor-4", "solve-4")
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_one_device_does_it_for_all(name, devices):
    mesh = cases.line(devices)
    a, b = _arrays(12)
    function = functools.partial(_FUNCTIONS[name], mesh=mesh, matrix_specs=P("r", None))
    rows = jax.device_put(a, NamedSharding(mesh, P("r", None)))
    results = function(rows, b)
    _close(jax.jit(function)(rows, b), results)
    with cases.by_all_ranks():  # which a program that runs must not see change
        expected = jax.block_until_ready(function(rows, b))
    _close(results, expected)
    for x, y in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


@pytest.mark.core("qr", "solve")
@pytest.mark.parametrize("name", ["cholesky", "qr", "solve", "inv", "svdvals", "slogdet"])
def test_ranks_wait_once_and_exchange_nothing_else(name):
    """At the first exchange ranks leave their parts, and nobody waits."""
    mesh = cases.line(4)
    a, b = _arrays(12)
    rows = jax.device_put(a, NamedSharding(mesh, P("r", None)))
    functions = _FUNCTIONS | {"cholesky": lambda a, b, **on: linalg.cholesky(a, **on)}
    function = functools.partial(functions[name], mesh=mesh, matrix_specs=P("r", None))
    assert _calls(function, rows, b) == (2, [])
    assert _leaves(function, rows, b) == 1


@cases.needs_transformations
@pytest.mark.parametrize("name, most_bytes, leaves", [("cholesky", 0, 0), ("pinv", 1 << 18, 2)])
def test_ranks_of_a_gradient_meet_four_times(name, most_bytes, leaves, monkeypatch):
    """One device computes the derivative, too: no product is by all. What the derivative needs goes
    to all if it is small, so that ranks wait twice."""
    monkeypatch.setattr(first, "MOST_BYTES", most_bytes)
    mesh = cases.line(4)
    a, b = _arrays(12)
    rows = jax.device_put(_definite(a), NamedSharding(mesh, P("r", None)))
    functions = _FUNCTIONS | {"cholesky": lambda a, b, **on: linalg.cholesky(a, **on)}
    function = functools.partial(functions[name], mesh=mesh, matrix_specs=P("r", None))
    exchanges, collectives = _calls(jax.grad(lambda a: jnp.sum(function(a, b) ** 3)), rows)
    assert exchanges == 4
    assert _leaves(jax.grad(lambda a: jnp.sum(function(a, b) ** 3)), rows) == leaves
    assert "all-to-all" not in collectives and "all-gather" not in collectives


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("most_bytes, n", [(1 << 18, 5), (0, 8), (1 << 18, 8)])
def test_derivatives_of_any_kind(most_bytes, n, monkeypatch):
    monkeypatch.setattr(first, "MOST_BYTES", most_bytes)
    mesh = cases.line(4)
    a, b = _arrays(n)
    a = a + 5 * jnp.eye(n)
    function = functools.partial(linalg.solve, mesh=mesh, matrix_specs=P("r", None))
    value = lambda a, b: jnp.sum(function(a, b) ** 2)  # noqa: E731
    peer = lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2)  # noqa: E731
    for of in (
        lambda f: jax.jit(jax.jacfwd(f, (0, 1))), lambda f: jax.jit(jax.jacrev(f, (0, 1))),
        lambda f: jax.grad(jax.checkpoint(jax.jit(f))), lambda f: jax.jit(jax.hessian(f)),
        lambda f: jax.jit(jax.grad(lambda a, b: jnp.sum(jax.grad(f, 1)(a, b) ** 2))),
    ):  # fmt: skip
        _close(of(value)(a, b), of(peer)(a, b))
    moved, pull = jax.vjp(jax.jit(function), a, b)
    cotangents = jnp.stack([moved, 2 * moved])
    _close(
        jax.vmap(pull)(cotangents),
        jax.vmap(jax.vjp(jnp.linalg.solve, a, b)[1])(cotangents),
    )


@pytest.mark.core("complex128-2")
@pytest.mark.parametrize("n", [1, 2, 13])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_orders_that_devices_do_not_divide(dtype, n):
    mesh = cases.line(4)
    a, b = _arrays(n, dtype)
    for name in ("solve", "qr", "cholesky"):
        function = functools.partial(_FUNCTIONS[name], mesh=mesh, matrix_specs=P("r", None))
        results = function(a, b)
        with cases.by_all_ranks():
            _close(results, function(a, b), dtype)


@pytest.mark.core("shape1")
@pytest.mark.parametrize("shape", [(40, 3), (3, 40), (16, 12), (12, 16)])
def test_matrices_that_are_not_square(shape):
    mesh = cases.line(4)
    m, n = shape
    a, b = _arrays(n, m=m)
    for name in ("qr", "svd", "pinv", "lstsq"):
        function = functools.partial(_FUNCTIONS[name], mesh=mesh, matrix_specs=P("r", None))
        results = function(a, b)
        with cases.by_all_ranks():
            _close(results, function(a, b))


@pytest.mark.parametrize("spec", [P(), P("r"), P(None, "r"), P("r", "c"), P(("c", "r"))])
def test_any_sharding(spec):
    mesh = cases.grid()
    a, b = _arrays(16)
    placed = jax.device_put(_definite(a), NamedSharding(mesh, spec))
    for function in (linalg.cholesky, linalg.inv):
        result = function(placed)
        _close(result, function(_definite(a), mesh=cases.line(1)))
        assert result.sharding.is_equivalent_to(placed.sharding, 2)


@cases.needs_transformations
@pytest.mark.core("cholesky")
@pytest.mark.parametrize(
    "name",
    ["cholesky", "solve", "svd", "qr", "slogdet", cases.breadth("expm"), cases.breadth("lu")],
)
def test_derivatives_and_batches_are_those_of_all_devices(name):
    mesh = cases.line(4)
    a, b = _arrays(8)
    function = functools.partial(_FUNCTIONS[name], mesh=mesh, matrix_specs=P("r", None))

    def total(a):
        leaves = [
            x for x in jax.tree.leaves(function(a, b)) if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return sum(jnp.sum(jnp.sin(x)) for x in leaves)

    batch = jnp.stack([a, a + 1])

    def results():
        return (
            jax.grad(total)(a), jax.jit(jax.grad(total))(a), jax.grad(jax.jit(total))(a),
            jax.jvp(jax.jit(total), (a,), (b @ b.T,)), jax.vmap(jax.jit(total))(batch),
            jax.jit(jax.vmap(total))(batch), jax.vmap(jax.grad(jax.jit(total)))(batch),
        )  # fmt: skip

    actual = results()
    with cases.by_all_ranks():
        _close(actual, results())


@cases.needs_transformations
def test_second_derivatives():
    mesh = cases.line(2)
    a, b = _arrays(6)
    function = functools.partial(linalg.solve, mesh=mesh, matrix_specs=P("r", None))
    hessian = jax.hessian(jax.jit(lambda a: jnp.sum(function(a, b) ** 2)))
    actual = hessian(a)
    with cases.by_all_ranks():
        _close(actual, hessian(a))


def test_failures_are_those_of_all_devices():
    mesh = cases.line(4)
    a, b = _arrays(8)
    on = {"mesh": mesh, "matrix_specs": P("r", None)}
    for wrong in (-_definite(a), _definite(a) + jnp.triu(a, 1)):
        np.testing.assert_array_equal(np.isnan(linalg.cholesky(wrong, **on)), np.tri(8) > 0)
    assert np.isnan(linalg.solve(a.at[2, 3].set(jnp.nan), b, **on)).all()
    assert not np.isfinite(linalg.inv(jnp.zeros_like(a), **on)).any()


def test_in_a_loop():
    mesh = cases.line(4)
    a, b = _arrays(8)
    rows = jax.device_put(a, NamedSharding(mesh, P("r", None)))

    @jax.jit
    def solve(a, b):
        on = {"mesh": mesh, "matrix_specs": P("r", None)}
        return jax.lax.fori_loop(0, 5, lambda _, x: linalg.solve(a, x, **on), b)

    _close(solve(rows, b), jnp.linalg.matrix_power(jnp.linalg.inv(a), 5) @ b)


def test_a_thread_of_its_own_gives_the_same(plugin):
    mesh = cases.line(4)
    a, b = _arrays(8)
    on = {"mesh": mesh, "matrix_specs": P("r", None)}
    expected = linalg.solve(a, b, **on)
    plugin.set_brief_wait(0)
    try:
        _close(linalg.solve(a, b, **on), expected)
    finally:
        plugin.set_brief_wait(1e-3)


def test_large_matrices_are_for_all(monkeypatch):
    mesh = cases.line(4)
    a, b = _arrays(12)
    rows = jax.device_put(a, NamedSharding(mesh, P("r", None)))
    function = functools.partial(linalg.solve, mesh=mesh, matrix_specs=P("r", None))
    monkeypatch.setattr(on_one, "MOST", 11)
    cases.forget_plans()
    assert _calls(function, rows, b)[0] == 0
    monkeypatch.setattr(on_one, "MOST", 12)
    cases.forget_plans()
    assert _calls(function, rows, b)[0] == 2
    with cases.by_all_ranks():
        assert _calls(function, rows, b)[0] == 0
    assert plugins.load("cpu").whole_svd_order() > 0
