"""Programs that several devices run with the ways of the GPUs' table: that XLA compiles them."""

import dataclasses
import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases

import jaxmg
from jaxmg import linalg
from jaxmg._call import plugins
from jaxmg._routines import jax_linalg, shares
from jaxmg._stacks import choice, householder
from jaxmg._transform import at_once

pytestmark = cases.needs_transformations

# One function for each name in the table.
_FUNCTIONS = {
    "cholesky": linalg.cholesky,
    "potri": jax.vmap(jaxmg.potri),
    "trsm": lambda a: linalg.solve_triangular(a, a),
    "lu": jax.vmap(jaxmg.getri),
    "qr": linalg.qr,
    "inv": linalg.inv,
    "solve": lambda a: linalg.solve(a, a),
    "eigh": linalg.eigh,
    "svd": lambda a: linalg.svd(a, full_matrices=False),
    "polar": linalg.polar,
}


def _operands_of_shard_map(jaxpr, consts=(), inside=False):
    """The shapes of all operands of `shard_map` in a program. JAX makes operands of the constants
    of the programs inside, too."""
    if inside:
        yield from (np.shape(x) for x in consts)
    for eqn in jaxpr.eqns:
        mapped = eqn.primitive.name == "shard_map"
        if inside or mapped:
            yield from (x.aval.shape for x in eqn.invars if mapped or hasattr(x, "val"))
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                program = getattr(inner, "jaxpr", inner)
                consts = getattr(inner, "consts", ())
                yield from _operands_of_shard_map(program, consts, inside or mapped)


def _is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


@pytest.fixture
def ways_of_gpus(monkeypatch):
    """This platform takes the ways of GPUs, on several devices too."""
    platform = jax.default_backend()
    rows = [row._replace(platform=platform) for row in choice.TABLE if row.platform == "gpu"]
    monkeypatch.setattr(choice, "TABLE", tuple(rows))
    monkeypatch.setattr(choice, "has_kernels", lambda: True)
    one_device = functools.partial(dataclasses.replace, devices=1)
    share = shares.Share
    monkeypatch.setattr(shares, "Share", lambda *fields: one_device(share(*fields)))
    monkeypatch.setattr(at_once.AtOnce, "is_faster", lambda *_, **__: True)
    jax_linalg._jit_batch.cache_clear()
    jax.clear_caches()
    yield
    jax_linalg._jit_batch.cache_clear()
    jax.clear_caches()


# Orders at which a loop over panels has one section, and several.
_CASES = [
    (name, order, ranks)
    for name in _FUNCTIONS
    for order in (32, 200, 300)
    for ranks in (2, 8)
    if name != "eigh" or order == 300
]


@pytest.mark.parametrize(
    "name, order, ranks",
    cases.broad(_CASES, lambda *case: case in (("qr", 200, 2), ("eigh", 300, 2)), alone=True),
)
def test_no_operand_of_shard_map_is_empty(ways_of_gpus, name, order, ranks):
    """XLA of jaxlib 0.11.2 ends the process if it compiles such a program."""
    mesh = cases.line(ranks)
    a = jax.ShapeDtypeStruct((32 * ranks, order, order), "float32")
    with cases.context(mesh):
        program = jax.make_jaxpr(_FUNCTIONS[name])(a).jaxpr
    shapes = list(_operands_of_shard_map(program))
    assert shapes and all(0 not in shape for shape in shapes)


@pytest.mark.parametrize("name", ["qr", pytest.param("householder", marks=pytest.mark.breadth)])
def test_loops_over_sections_compile_for_two_devices(ways_of_gpus, monkeypatch, name):
    row = choice.Row(jax.default_backend(), "qr", "blocked", (70, 70))
    monkeypatch.setattr(choice, "TABLE", (row,))
    mesh = cases.line(2)
    if name == "qr":
        a = cases.normal(cases.rng(0), (4, 70, 70), "float32")
        q, r = linalg.qr(cases.shard(a, mesh, "r"), mesh=mesh)
        stack_cases.check(q @ r, a, "float32")
    else:
        plugins.load(jax.default_backend())
        spec = jax.sharding.PartitionSpec("r")
        apply = jax.shard_map(householder.multiply, mesh=mesh, in_specs=spec, out_specs=spec)
        zero = jnp.zeros((4, 70, 70))
        assert not jax.jit(apply)(zero, zero[..., 0], zero).any()
