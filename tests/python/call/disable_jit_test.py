"""If the caller has disabled JAX's compilation, or JAX evaluates a trace eagerly, the results are
those of compiled programs.

The tests run in a process of their own: a program that isn't compiled as a whole can end the
process.
"""

import cases
import pytest
from processes import run

from jaxmg._plugin import plugins

_PROGRAM = """
import sys
import cases
import jax
import jax.numpy as jnp
import numpy as np
import jaxmg
from routines import ROUTINES

mesh = cases.line(2)  # whose tiles have no overflow at this order, an operand without elements
operand = {
    "a": cases.shard_rows(cases.positive_definite("well", 8, "float64"), mesh),
    "m": cases.shard_rows(np.eye(8), mesh),
    "g": cases.shard_rows(cases.general("well", 8, "float64"), mesh),
    "b": cases.shard(cases.normal(cases.rng(8), (8, 2), "float64"), mesh),
}


def check(name, function, *arguments):
    print(name, flush=True)
    expected = function(*arguments)
    with jax.disable_jit():
        results = function(*arguments)
    for result, value in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-12, atol=1e-12)
        assert result.sharding.is_equivalent_to(value.sharding, value.ndim), name


def check_routines(names):
    made = {}
    for name in names:
        routine = ROUTINES[name]
        kind = routine.takes[0]
        if kind not in made or not routine.on_factor:
            made[kind] = routine.make_operands(jaxmg, operand.get, 2, mesh=mesh)[0]
        rest = [operand[other] for other in routine.takes[1:] if other in operand]
        if len(rest) + 1 == len(routine.takes):
            check(name, lambda *all: routine.call(jaxmg, all, 2, mesh=mesh), made[kind], *rest)
"""
_CHOLESKY = """
check_routines(("cho_solve", "diagonal"))
factor = jaxmg.cho_factor(operand["a"], 2, mesh)
np.testing.assert_array_equal(
    jax.checkpoint(lambda factor: factor.diagonal())(factor), factor.diagonal()
)
"""
_ROUTINES = """
check_routines(ROUTINES)
"""
_DERIVATIVES = """
jax.set_mesh(mesh)
a, b = operand["a"], operand["b"]
losses = {
    "factors": lambda a: jnp.sum(jaxmg.cho_factor(a, 2, mesh).solve(b) ** 2),
    "logdet": lambda a: jaxmg.cho_factor(a, 2, mesh).logdet(),
    "lu": lambda a: jnp.sum(jaxmg.lu_factor(a, 2, mesh).solve(b) ** 2),
    "qr": lambda a: jnp.sum(jaxmg.geqrf(a, 2, mesh).solve(b) ** 2),
    "potrs": lambda a: jnp.sum(jaxmg.potrs(a, b, 2, mesh) ** 2),
    "eigh": lambda a: jnp.sum(jaxmg.syevd(a, 2, mesh, return_eigenvectors=False) ** 2),
    "svd": lambda a: jnp.sum(jaxmg.linalg.svdvals(a) ** 3),
    "batch": lambda a: jnp.sum(jaxmg.linalg.inv(jnp.stack([a, 2 * a])) ** 2),
}
for name, loss in losses.items():
    check(name, jax.grad(loss), a)
    check(name, lambda a: jax.jvp(jax.checkpoint(loss), (a,), (a,)), a)
"""
_OTHERS = """
jax.set_mesh(mesh)
a, b = operand["a"], operand["b"]
kept = [make(a, 2, mesh) for make in (jaxmg.cho_factor, jaxmg.lu_factor, jaxmg.geqrf)]
batch = jnp.stack([a, 2 * a, 3 * a])
for factor in kept:
    check("vmap", jax.vmap(factor.solve), jnp.stack([b, 2 * b]))
    check("linearize", lambda b: jax.linearize(factor.solve, b)[1](b), b)
for name in ("inv", "cholesky", "eigh", "svd", "qr", "expm", "sqrtm", "det", "pinv"):
    check(name, getattr(jaxmg.linalg, name), a)
    check(name, getattr(jaxmg.linalg, name), batch)
for function in (jaxmg.tree.inv, jaxmg.tree.orthogonalize, jaxmg.tree.eigh):
    check(function.__name__, lambda a: function({"a": a, "b": [batch]}, mesh=mesh), a)
"""


def _run(program):
    if "cpu" not in plugins.entry_points():
        pytest.skip("needs the plugin for CPU devices")
    cases.devices(2)  # skips the test if there are fewer
    result = run("-X", "faulthandler", "-c", _PROGRAM + program, JAX_ENABLE_X64="1")
    assert result.returncode == 0, result.stdout + result.stderr


def test_methods_of_a_factor():
    _run(_CHOLESKY)


@pytest.mark.extended
def test_routines():
    _run(_ROUTINES)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("program", [_DERIVATIVES, _OTHERS], ids=["derivatives", "others"])
def test_transformations(program):
    _run(program)
