"""Derivatives inside the caller's shard_map, against those of JAX on one device and of the functions
of global arrays."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    DTYPES,
    broad,
    devices,
    eps,
    needs_transformations,
    normal,
    positive_definite,
    rng,
)
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxmg

pytestmark = needs_transformations

_ROWS, _SAME = "rows", "same"


def _magnitudes(v):
    """What eigenvectors have whatever their phases; a rank has columns of them."""
    return jnp.abs(v.T) ** 2


def _metric(a):
    return a + len(a.T) * jnp.eye(*a.shape, dtype=a.dtype)


def _generalized(a, metric):
    lower = jnp.linalg.inv(jnp.linalg.cholesky(metric, symmetrize_input=False))
    w, y = jnp.linalg.eigh(lower @ a @ lower.conj().T)
    return w, _magnitudes(lower.conj().T @ y)


def _eigen(w, v, _):
    return w, _magnitudes(v)


# Functions of (a, metric, b): of a rank's blocks, and the same by JAX alone; how the results lie.
_FUNCTIONS = {
    "potrs": (
        lambda a, m, b, **w: jaxmg.potrs_shardmap_ctx(a, b, 3, **w)[:1],
        lambda a, m, b: (jnp.linalg.solve(a, b),),
        (_SAME,),
    ),
    "potrs of a vector": (
        lambda a, m, b, **w: jaxmg.potrs_shardmap_ctx(a, b[:, 0], 3, **w)[:1],
        lambda a, m, b: (jnp.linalg.solve(a, b[:, 0]),),
        (_SAME,),
    ),
    "logdet": (
        lambda a, m, b, **w: jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True, **w)[:2],
        lambda a, m, b: (jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1][None]),
        (_SAME, _SAME),
    ),
    "potri": (
        lambda a, m, b, **w: jaxmg.potri_shardmap_ctx(a, 3, **w)[:1],
        lambda a, m, b: (jnp.triu(jnp.linalg.inv(a)),),
        (_ROWS,),
    ),
    "eigenvalues": (
        lambda a, m, b, **w: jaxmg.syevd_shardmap_ctx(a, return_eigenvectors=False, **w)[:1],
        lambda a, m, b: (jnp.linalg.eigvalsh(a),),
        (_SAME,),
    ),
    "syevd": (
        lambda a, m, b, **w: _eigen(*jaxmg.syevd_shardmap_ctx(a, **w)),
        lambda a, m, b: _eigen(*jnp.linalg.eigh(a), None),
        (_SAME, _ROWS),
    ),
    "sygvd": (
        lambda a, m, b, **w: _eigen(*jaxmg.sygvd_shardmap_ctx(a, m, **w)),
        lambda a, m, b: _generalized(a, m),
        (_SAME, _ROWS),
    ),
}


def _mesh(**sizes):
    count = int(np.prod(list(sizes.values())))
    return Mesh(np.array(devices(count)).reshape(tuple(sizes.values())), tuple(sizes))


def _hermitian_part(a):
    """A Hermitian matrix has Hermitian tangents: there all conventions agree."""
    return (a + a.conj().T) / 2


def _arguments(n, dtype):
    """(a, metric, b), and directions to go from there."""
    random = rng(n, 6)
    a = positive_definite("well", n, dtype) + np.diag(np.arange(n)).astype(dtype)
    metric = positive_definite("well", n, dtype) + np.eye(n, dtype=dtype)
    shapes = (n, n), (n, n), (n, 2)
    return (a, metric, normal(random, (n, 2), dtype)), tuple(
        normal(random, shape, dtype) for shape in shapes
    )


def _mapped(name, mesh, n, check_vma, spec=None):
    """(function of global arrays by way of a shard_map, the same by JAX alone)"""
    ours, theirs, lie = _FUNCTIONS[name]
    spec = spec or P(mesh.axis_names, None)
    ranks = mesh.size if spec[1:] in ((), (None,)) else 1  # blocks need no padding
    rows = -(-n // ranks) * ranks
    out = tuple(spec if how == _ROWS else P() for how in lie)
    local = functools.partial(ours, in_specs=spec)
    inside = jax.shard_map(
        local, mesh=mesh, in_specs=(spec, spec, P()), out_specs=out, check_vma=check_vma
    )

    def run(a, metric, b):
        padded = (jnp.pad(_hermitian_part(x), ((0, rows - n), (0, 0))) for x in (a, metric))
        found = inside(*padded, b)
        return tuple(x[:n] if how == _ROWS else x for x, how in zip(found, lie, strict=True))

    def alone(a, metric, b):
        return theirs(_hermitian_part(a), _hermitian_part(metric), b)

    return run, alone


def _loss(function):
    """A real number of all results of a function, none of which cancels."""

    def loss(*arguments):
        return sum(
            jnp.sum(jnp.abs(x) ** 2 * jnp.arange(1, x.size + 1).reshape(x.shape))
            for x in jax.tree.leaves(function(*arguments))
        )

    return loss


def _assert_close(found, expected, dtype):
    __tracebackhide__ = True
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        scale = np.abs(theirs).max(initial=0) + eps(dtype)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2000 * eps(dtype) * scale)


_MESHES = [{"r": 1}, {"r": 2}, {"r": 4}]
_CASES = [
    (name, sizes, check_vma, jitted, dtype)
    for i, (name, sizes, check_vma, jitted) in enumerate(
        itertools.product(_FUNCTIONS, _MESHES, [True, False], [True, False])
    )
    for dtype in [DTYPES[(i + i // 4) % 4]]
]


def _case(name, sizes, check_vma, jitted, dtype, core):
    tracked = "tracked" if check_vma else "untracked"
    how = "jit" if jitted else "eager"
    marks = () if core else (pytest.mark.breadth,)
    label = f"{name}-{'x'.join(map(str, sizes.values()))}-{tracked}-{how}-{dtype}"
    return pytest.param(name, sizes, check_vma, jitted, dtype, id=label, marks=marks)


_CORE = {("logdet", True), ("logdet", False), ("potri", False), ("syevd", True), ("sygvd", False)}


@pytest.mark.parametrize(
    "name, sizes, check_vma, jitted, dtype",
    [
        _case(*case, core=case[3] and case[1] == {"r": 2} and (case[0], case[2]) in _CORE)
        for case in _CASES
    ],
)
def test_jvp_and_gradient(name, sizes, check_vma, jitted, dtype):
    mesh, n = _mesh(**sizes), 7
    arguments, directions = _arguments(n, dtype)
    ours, theirs = _mapped(name, mesh, n, check_vma)
    wrap = jax.jit if jitted else lambda f: f
    found = wrap(functools.partial(jax.jvp, ours))(arguments, directions)
    _assert_close(found, jax.jvp(theirs, arguments, directions), dtype)
    gradient = wrap(jax.grad(_loss(ours), (0, 1, 2)))(*arguments)
    _assert_close(gradient, jax.grad(_loss(theirs), (0, 1, 2))(*arguments), dtype)
