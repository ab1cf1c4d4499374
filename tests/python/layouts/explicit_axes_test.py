"""All functions of jaxmg.linalg on meshes of explicit axes: single matrices, batches with one and
two leading dimensions, and their derivatives."""

import functools
import inspect
import itertools

import cases
import jax
import jax.numpy as jnp
import linalg_cases
import numpy as np
import pytest
from jax.sharding import AxisType
from linalg_cases import TABLE

from jaxmg import linalg

pytestmark = cases.needs_transformations

_RANKS = (1, 2, 4, 8)
# Name -> function of the number of ranks that returns (leading dimensions, spec).
_LAYOUTS = {
    "single": lambda ranks: ((), ("r", None)),
    "batch": lambda ranks: ((ranks,), ("r", None, None)),
    "batches": lambda ranks: ((ranks, 2), ("r", None, None, None)),
    "inner": lambda ranks: ((2, ranks), (None, "r", None, None)),
}
# Each function on each number of ranks, in alternating layouts.
_CASES = [
    (name, ranks, tuple(_LAYOUTS)[(i + j) % 4])
    for i, name in enumerate(TABLE)
    for j, ranks in enumerate(_RANKS)
]
# The core of these cases, and the extended ones, which earlier versions failed.
_CORE = [("cond-1", 4, "batch"), ("norm-None", 2, "batches"), ("solve_triangular", 2, "batch")]
_EXTENDED = [
    ("eigh", 4, "inner"),
    ("orth-tall", 4, "batch"),
    ("qr-r-tall", 2, "batch"),
    ("rcond", 2, "batches"),
]
_DERIVATIVES = [
    ("norm-None", 2, "batches"),
    ("polar-tall", 4, "single"),
    ("solve", 2, "batch"),
    ("svd-subset-wide", 2, "single"),  # two rows of Vh on two ranks
]


def test_the_table_has_all_functions():
    functions = {name for name in linalg.__all__ if inspect.isfunction(getattr(linalg, name))}
    assert {case.of for case in TABLE.values()} == functions


def _placed(name, ranks, layout):
    """Returns (the matrices, the matrices on a mesh, the mesh)."""
    mesh = cases.line(ranks, kind=AxisType.Explicit)
    leading, spec = _LAYOUTS[layout](ranks)
    matrices = linalg_cases.matrices(TABLE[name].kind, leading)
    if layout == "single" and len(matrices) % ranks:
        spec = spec[::-1]  # JAX requires shards of equal sizes
    return matrices, cases.shard(matrices, mesh, *spec), mesh


@functools.cache
def _alone(name, derivative):
    """Returns the call, or its gradient, on one device."""
    call = TABLE[name].call
    run = jax.jit(jax.grad(linalg_cases.total(call)) if derivative else call)

    def on_device(matrix):
        with cases.context(cases.line(1)):
            return jax.tree.map(np.asarray, run(jnp.asarray(matrix)))

    return on_device


def _map_each(name, derivative, matrices):
    """Returns the results of each matrix of a batch, as a batch."""
    leading = matrices.shape[:-2]
    each = [_alone(name, derivative)(x) for x in matrices.reshape(-1, *matrices.shape[-2:])]
    return jax.tree.map(lambda *leaves: np.reshape(leaves, (*leading, *leaves[0].shape)), *each)


def _selected(first, others, derivatives=False):
    """Returns cases of the table and further ones: ``first`` is the core, ``others`` are
    extended."""
    there = [case for case in _CASES if TABLE[case[0]].derivative or not derivatives]
    more = [case for case in (*first, *others) if case not in there]
    return cases.broad(
        [
            pytest.param(
                *case,
                id="-".join(map(str, case)),
                marks=(pytest.mark.extended,) if case in others else (),
            )
            for case in (*there, *more)
        ],
        core=lambda *case: case in (*first, *others),
        alone=True,
    )


@pytest.mark.parametrize("name, ranks, layout", _selected(_CORE, _EXTENDED))
def test_values(name, ranks, layout):
    matrices, a, mesh = _placed(name, ranks, layout)
    with cases.context(mesh):
        found = TABLE[name].call(a)
    wanted = _map_each(name, False, matrices)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-9)
        if layout != "single" and ranks > 1:
            assert x.sharding.spec[1 if layout == "inner" else 0] == "r"


@pytest.mark.parametrize("name, ranks, layout", _selected([], _DERIVATIVES, True))
def test_derivatives(name, ranks, layout):
    matrices, a, mesh = _placed(name, ranks, layout)
    total = linalg_cases.total(TABLE[name].call)

    @jax.jit
    def both(a, moved):
        return jax.grad(total)(a), jax.jvp(total, (a,), (moved,))[1]

    with cases.context(mesh):
        moved = a / 2 + 0.1
        gradient, tangent = both(a, moved)
    assert jax.typeof(gradient).sharding.spec == jax.typeof(a).sharding.spec
    wanted = _map_each(name, True, matrices)
    np.testing.assert_allclose(tangent, np.vdot(wanted, moved), rtol=1e-7, atol=1e-7)
    gradient = np.asarray(gradient)
    if TABLE[name].kind == "definite":  # has only Hermitian tangents
        gradient, wanted = (x + np.swapaxes(x, -1, -2) for x in (gradient, wanted))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.breadth
@pytest.mark.parametrize("name", ("cond-1", "cond-inf", "rcond", "svd_lowrank-tall"))
def test_what_has_no_derivative(name):
    _, a, mesh = _placed(name, 4, "batch")
    with cases.context(mesh), pytest.raises(NotImplementedError, match="is being differentiated"):
        jax.grad(linalg_cases.total(TABLE[name].call))(a)


# What takes columns apart, or has results that don't depend on A.
_TAKEN_APART = {
    "matrix_power": (lambda a: linalg.matrix_power(a, 0), "general"),
    "null_space": (lambda a: linalg.null_space(a, rank=3) ** 2, "wide"),
    "null_space of square": (lambda a: linalg.null_space(a, rank=7) ** 2, "general"),
    "orth": (lambda a: linalg.orth(a, rank=3) ** 2, "tall"),
    "qr": (lambda a: linalg.qr(a, pivoting=True), "wide"),
    "solve": (
        lambda a: linalg.solve(a, np.ones(8), lower=True, assume_a="her"),
        "definite",
    ),
    "svd of tall": (lambda a: linalg.svd(a)[1:], "tall"),
    "svd of wide": (lambda a: linalg.svd(a)[:2], "wide"),
}
_WITH_DERIVATIVES = ("null_space", "orth", "qr", "solve")


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, lie, batch",
    cases.broad(
        itertools.product(_TAKEN_APART, ("replicated", "columns"), (False, True)),
        lambda name, lie, batch: (name, lie, batch) in (
            ("null_space", "replicated", False), ("orth", "columns", True),
        ),
    ),
)  # fmt: skip
def test_matrices_that_lie_by_columns_or_replicated(name, lie, batch):
    """Eagerly without the mesh's context, too; derivatives within it."""
    mesh = cases.line(4, kind=AxisType.Explicit)
    call, kind = _TAKEN_APART[name]
    matrices = linalg_cases.matrices(kind, (2,) * batch)
    a = cases.shard(matrices, mesh, *([None] * batch), None, "r" if lie == "columns" else None)
    with cases.context(cases.line(1)):
        wanted = jax.tree.leaves(call(jnp.asarray(matrices)))
    for x, y in zip(jax.tree.leaves(call(a)), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-9, atol=1e-9)
    if name in _WITH_DERIVATIVES:
        gradient = jax.jit(jax.grad(linalg_cases.total(call)))
        with cases.context(mesh):
            found = gradient(a)
        assert found.sharding.is_equivalent_to(a.sharding, a.ndim)
        with cases.context(cases.line(1)):
            wanted = gradient(jnp.asarray(matrices))
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-7, atol=1e-7)
