"""Where results of jaxmg.linalg lie on automatic axes, and which data move between devices. The
results of a batch lie where its operands do."""

import itertools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxmg import linalg
from jaxmg._svd import svd

pytestmark = cases.needs_transformations

_N = 8
_B = np.arange(1.0, 2 * _N + 1).reshape(_N, 2) / _N


def _solve_factored(a, how):
    make, solve = {
        "cholesky": (linalg.cho_factor, linalg.cho_solve),
        "lu": (linalg.lu_factor, linalg.lu_solve),
    }[how]
    return solve(make(a), _B)


# Name -> (function of a batch of Hermitian positive definite matrices, kinds of its results). The
# function returns a tuple of results that don't depend on signs of vectors. A "sharded" result is
# sharded like the matrices; in a "small" one only the batch dimensions are sharded.
_FUNCTIONS = {
    "cholesky": (lambda a: (linalg.cholesky(a),), "sharded"),
    "cho_solve": (lambda a: (_solve_factored(a, "cholesky"),), "small"),
    "lu_solve": (lambda a: (_solve_factored(a, "lu"),), "small"),
    "solve": (lambda a: (linalg.solve(a, _B),), "small"),
    "solve_pos": (lambda a: (linalg.solve(a, _B, assume_a="pos"),), "small"),
    "solve_triangular": (lambda a: (linalg.solve_triangular(a, _B),), "small"),
    "inv": (lambda a: (linalg.inv(a),), "sharded"),
    "slogdet": (lambda a: linalg.slogdet(a), "small small"),
    "det": (lambda a: (linalg.det(a),), "small"),
    "cg": (lambda a: (linalg.cg(a, _B, tol=1e-14).x,), "small"),
    "pivoted_cholesky": (
        lambda a: linalg.pivoted_cholesky(a, 3, method="greedy"),
        "sharded small small small small small",
    ),
    "cond": (lambda a: (linalg.cond(a),), "small"),
    "cond_1": (lambda a: (linalg.cond(a, 1),), "small"),
    "cond_fro": (lambda a: (linalg.cond(a, "fro"),), "small"),
    "matrix_power": (lambda a: (linalg.matrix_power(a, 3),), "sharded"),
    "inverse_power": (lambda a: (linalg.matrix_power(a, -2),), "sharded"),
    "lu": (lambda a: linalg.lu(a, permute_l=True), "sharded sharded"),
    "qr": (lambda a: linalg.qr(a), "sharded small"),
    "qr_pivoted": (lambda a: linalg.qr(a, pivoting=True), "sharded small small"),
    "eigh": (lambda a: _without_signs(*linalg.eigh(a)), "small sharded"),
    "eigsh": (lambda a: _without_signs(*linalg.eigsh(a, 2)), "small sharded"),
    "eigvalsh": (lambda a: (linalg.eigvalsh(a),), "small"),
    "svd": (lambda a: _without_signs(*linalg.svd(a)[1::-1]), "small sharded"),
    "svdvals": (lambda a: (linalg.svdvals(a),), "small"),
    "svd_lowrank": (
        lambda a: _without_signs(*linalg.svd_lowrank(a, 2)[1::-1]),
        "small sharded",
    ),
    "polar": (lambda a: linalg.polar(a), "sharded sharded"),
    "pinv": (lambda a: (linalg.pinv(a),), "sharded"),
    "orth": (lambda a: _without_signs(linalg.orth(a, rank=3)), "sharded"),
    "null_space": (lambda a: _without_signs(linalg.null_space(a, rank=_N - 1)), "sharded"),
    "lstsq": (lambda a: linalg.lstsq(a, _B), "small small small small"),
    "ridge": (lambda a: (linalg.lstsq(a, _B, damp=0.1)[0],), "small"),
    "least_squares": (lambda a: (linalg.least_squares(a, _B),), "small"),
    "expm": (lambda a: (linalg.expm(a),), "sharded"),
    "expm_her": (lambda a: (linalg.expm(a, assume_a="her"),), "sharded"),
    "sqrtm": (lambda a: (linalg.sqrtm(a),), "sharded"),
    "logm": (lambda a: (linalg.logm(a),), "sharded"),
}
# Specs of a batch on a mesh of two axes.
_LIE = {
    "replicated": P(),
    "matrices": P(("r", "c")),
    "matrices_over_one": P("r"),
    "rows": P(None, "r"),
    "columns": P(None, None, "c"),
    "matrices_and_rows": P("c", "r"),
    "blocks": P(None, "c", "r"),
}


def _without_signs(*arrays):
    return tuple(abs(x) for x in arrays)


def _matrices(count, n=_N, dtype="float64", *leading):
    x = cases.normal(cases.rng(5, count), (*leading, count, n, n), dtype)
    x = x @ x.swapaxes(-1, -2).conj() / n
    return (x / 4 + np.diag(np.arange(1, n + 1) / n).astype(dtype)).astype(dtype)


def _each(function, matrices):
    """Returns the results of one device, computed for one matrix after the other."""
    n = matrices.shape[-1]
    each = [function(jnp.asarray(a)) for a in matrices.reshape(-1, n, n)]
    leaves = zip(*each, strict=True)
    return [np.reshape(np.stack(x), (*matrices.shape[:-2], *x[0].shape)) for x in map(list, leaves)]


def _close(found, expected, dtype="float64"):
    for x, y in zip(found, expected, strict=True):
        limit = 1e4 * cases.eps(dtype) * max(1, np.abs(y).max(initial=0))
        np.testing.assert_allclose(x, y, rtol=0, atol=limit)


def _expected_spec(kind, spec, shape, mesh):
    """Returns the spec of a result with one batch dimension."""
    front, *rest = (*spec, *(None,) * (3 - len(spec)))
    rest = rest if kind == "sharded" else (None,) * (len(shape) - 1)
    sizes = zip(rest, shape[1:], strict=True)
    return P(
        front, *(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in sizes)
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, lie",
    cases.broad(
        [(name, lie) for name in _FUNCTIONS for lie in _LIE],
        lambda name, lie: (
            list(_FUNCTIONS).index(name) % len(_LIE) == list(_LIE).index(lie)
            or (name, lie) in (("expm", "matrices"), ("qr", "rows"))
        ),
        alone=True,
    ),
)
def test_results_lie_where_operands_do(name, lie):
    function, kinds = _FUNCTIONS[name]
    mesh, spec = cases.grid(), _LIE[lie]
    matrices = _matrices(mesh.size)
    a = cases.shard(matrices, mesh, *spec)
    expected = _each(function, matrices)
    for found in (tuple(function(a)), jax.vmap(function)(a)):
        found = tuple(found)
        _close(found, expected)
        for kind, x in zip(kinds.split(), found, strict=True):
            wanted = jax.sharding.NamedSharding(mesh, _expected_spec(kind, spec, x.shape, mesh))
            assert x.sharding.is_equivalent_to(wanted, x.ndim), (x.sharding, wanted)


def _gathers(compiled):
    return re.findall(r"= \S+ (all-gather|all-to-all|collective-permute)", compiled.as_text())


@pytest.mark.core("cho_solve")
@pytest.mark.parametrize(
    "name, ranks, dtype",
    cases.broad(
        [
            (name, ranks, dtype)
            for i, name in enumerate(_FUNCTIONS)
            for j, (ranks, dtype) in enumerate(
                [(4, "float64"), (8, "complex128"), (2, "float32"), (1, "complex64")]
            )
        ],
        lambda name, ranks, dtype: (ranks, dtype) == (4, "float64"),
        alone=True,
    ),
)
def test_a_batch_by_matrices_stays_where_it_is(name, ranks, dtype):
    """No matrix moves, also inside jit, where no type carries the sharding."""
    function, _ = _FUNCTIONS[name]
    mesh = cases.line(ranks)
    matrices = _matrices(2 * ranks, dtype=dtype)
    a = cases.shard(matrices, mesh, "r")
    with cases.context(mesh):
        compiled = jax.jit(function).lower(a).compile()
        found = compiled(a)
        mapped = jax.jit(jax.vmap(function)).lower(a).compile()
    assert not _gathers(compiled) and not _gathers(mapped)
    _close(found, _each(function, matrices), dtype)
    for x in (*found, *mapped(a)):
        by_matrices = jax.sharding.NamedSharding(mesh, P("r"))
        assert x.sharding.is_equivalent_to(by_matrices, x.ndim), x.sharding


_SIZES = [(3, 8), (5, 4), (8, 1), (1, 4), (0, 2), (9, 2)]


@pytest.mark.core("expm")
@pytest.mark.parametrize(
    "name, count, ranks",
    cases.broad(
        [
            (name, *size)
            for name in (
                "expm",
                "sqrtm",
                "null_space",
                "lstsq",
                "cho_solve",
                "svd_lowrank",
                "cond_1",
            )
            for size in _SIZES
        ],
        lambda name, count, ranks: name == "sqrtm" and count == 3,
        alone=True,
    ),
)
def test_sizes_that_do_not_divide(name, count, ranks):
    """Results are right for batches that the ranks don't divide. JAX can't shard them, so they are
    replicated or NumPy arrays."""
    function, _ = _FUNCTIONS[name]
    mesh = cases.line(ranks)
    matrices = _matrices(count)
    expected = _each(function, matrices) if count else _empty(function)
    with cases.context(mesh):
        for a in (cases.shard(matrices, mesh), matrices):
            _close(tuple(function(a)), expected)
            _close(tuple(jax.jit(function)(a)), expected)
        found = jax.jit(jax.vmap(function, 2, 0))(np.moveaxis(matrices, 0, 2))
        _close(tuple(found), expected)


def _empty(function):
    return [np.zeros((0, *x.shape[1:]), x.dtype) for x in _each(function, _matrices(1))]


@pytest.mark.extended
@pytest.mark.parametrize(
    "spec, name",
    cases.broad(
        itertools.product(
            [P("r"), P("r", "c"), P(None, "c"), P(None, None, "r")],
            ["expm", "sqrtm", "null_space", "cho_solve", "lstsq"],
        ),
        lambda spec, name: name not in ("expm", "sqrtm") or spec == P("r", "c"),
    ),
)
def test_two_leading_dimensions(name, spec):
    function, kinds = _FUNCTIONS[name]
    mesh = cases.grid()
    matrices = _matrices(2, _N, "float64", 4)
    a = cases.shard(matrices, mesh, *spec)
    entries = (*spec, *(None,) * (4 - len(spec)))
    found, expected = function(a), _each(function, matrices)
    _close(found, expected)
    for kind, x in zip(kinds.split(), found, strict=True):
        each = zip(entries[2:], x.shape[2:], strict=False)
        rest = [axis if kind == "sharded" and size == _N else None for axis, size in each]
        wanted = jax.sharding.NamedSharding(mesh, P(*entries[:2], *rest))
        assert x.sharding.is_equivalent_to(wanted, x.ndim), (x.sharding, wanted)
    _close(jax.vmap(function)(a), expected)
    with cases.context(mesh):
        _close(jax.jit(jax.vmap(jax.vmap(function)))(a), expected)


_GRADIENTS = {
    name: _FUNCTIONS[name][0]
    for name in (
        "expm", "expm_her", "sqrtm", "logm", "matrix_power", "inverse_power", "cho_solve",
        "solve_pos", "cond", "cond_fro", "eigvalsh", "lstsq", "ridge", "least_squares", "pinv",
    )
}  # fmt: skip
_WAYS = {
    "grad of batch": lambda f: jax.grad(lambda a: _total(f(a))),
    "jit of grad of batch": lambda f: jax.jit(jax.grad(lambda a: _total(f(a)))),
    "grad of vmap": lambda f: jax.grad(lambda a: _total(jax.vmap(f)(a))),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda a: _total(f(a)))),
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(lambda a: _total(f(a))))),
    "jvp of batch": lambda f: lambda a: jax.jvp(lambda a: _total(f(a)), (a,), (a,))[1],
}


def _total(results):
    return sum(jnp.sum(jnp.sin(x)) for x in results if jnp.issubdtype(x.dtype, jnp.inexact))


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, way",
    cases.broad(
        [(name, way) for name in _GRADIENTS for way in _WAYS],
        lambda name, way: list(_GRADIENTS).index(name) % len(_WAYS) == list(_WAYS).index(way),
        alone=True,
    ),
)
def test_derivatives(name, way):
    function, mesh = _GRADIENTS[name], cases.line(4)
    matrices = _matrices(8)
    one = jax.grad(lambda a: _total(function(a)))
    expected = np.stack([one(jnp.asarray(a)) for a in matrices])
    a = cases.shard(matrices, mesh, "r")
    with cases.context(mesh):
        found = _WAYS[way](function)(a)
    if "jvp" in way:
        expected = np.sum(expected * matrices)
    else:
        assert found.sharding.is_equivalent_to(a.sharding, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", [cases.breadth("expm"), "sqrtm", "cho_solve", "lstsq", "matrix_power"]
)
def test_derivatives_stay_where_the_batch_is(name):
    function, mesh = _GRADIENTS[name], cases.line(4)
    a = cases.shard(_matrices(8), mesh, "r")
    for way in ("jit of grad of batch", "jit of vmap of grad"):
        with cases.context(mesh):
            compiled = _WAYS[way](function).lower(a).compile()
        assert not _gathers(compiled), way
        found = compiled(a)
        assert found.sharding.is_equivalent_to(a.sharding, 3)


@pytest.mark.extended
def test_matrices_that_are_not_small(monkeypatch):
    """Larger matrices aren't gathered either; they take the polar decomposition, and QR if they
    aren't square."""
    monkeypatch.setattr(svd, "SMALL", 4)
    mesh = cases.line(4)
    random = cases.rng(9)
    wide, square = random.normal(size=(8, 11, 17)), random.normal(size=(8, 11, 11))
    values = np.linalg.svd(square)[1]
    functions = [
        (lambda a: a @ linalg.null_space(a, rank=11), wide, np.zeros((8, 11, 6))),
        (lambda a: linalg.svd_lowrank(a, 3)[1], square, values[:, :3]),
        (lambda a: linalg.lstsq(a, np.ones(11))[3], wide, np.linalg.svd(wide)[1]),
    ]
    for function, matrices, expected in functions:
        a = cases.shard(matrices, mesh, "r")
        with cases.context(mesh):
            compiled = jax.jit(function).lower(a).compile()
        assert not _gathers(compiled)
        found = compiled(a)
        assert found.sharding.is_equivalent_to(a.sharding, found.ndim)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
