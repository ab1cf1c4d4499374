"""Functions, arguments and meshes of the tests of derivatives and batches inside a shard_map."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxmg

_ROWS, _SAME = "rows", "same"


def magnitudes(v):
    """Returns squared magnitudes of eigenvectors, which don't depend on phases. A rank has
    columns."""
    return jnp.abs(v.T) ** 2


def generalized(a, metric):
    lower = jnp.linalg.inv(jnp.linalg.cholesky(metric, symmetrize_input=False))
    w, y = jnp.linalg.eigh(lower @ a @ lower.conj().T)
    return w, magnitudes(lower.conj().T @ y)


def _eigen(w, v, _):
    return w, magnitudes(v)


# Name -> (function of a rank's blocks (a, metric, b), the same by JAX only, layouts of the
# results).
FUNCTIONS = {
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
        lambda a, m, b: generalized(a, m),
        (_SAME, _ROWS),
    ),
}


def make_mesh(kind=AxisType.Auto, **sizes):
    chosen = np.array(cases.devices(int(np.prod(list(sizes.values())))))
    kinds = (kind,) * len(sizes)
    return Mesh(chosen.reshape(tuple(sizes.values())), tuple(sizes), axis_types=kinds)


def make_arguments(n, dtype):
    """Returns ((a, metric, b), directions of their derivatives)."""
    random = cases.rng(n, 6)
    a = cases.positive_definite("well", n, dtype) + np.diag(np.arange(n)).astype(dtype)
    metric = cases.positive_definite("well", n, dtype) + np.eye(n, dtype=dtype)
    shapes = (n, n), (n, n), (n, 2)
    return (a, metric, cases.normal(random, (n, 2), dtype)), tuple(
        cases.normal(random, shape, dtype) for shape in shapes
    )


def make_functions(name, mesh, n, check_vma, spec=None, each=lambda function: function, lead=()):
    """Returns (function of global arrays that calls a shard_map, the same by JAX only). ``each``
    wraps the rank's function and the functions of its arguments and results; it adds leading
    dimensions, whose specs are ``lead``."""
    ours, theirs, lie = FUNCTIONS[name]
    spec = spec or P(mesh.axis_names, None)
    ranks = mesh.size if spec[1:] in ((), (None,)) else 1  # blocks need no padding
    rows = -(-n // ranks) * ranks
    by_rows = P(*lead, *spec)
    out = tuple(by_rows if how == _ROWS else P() for how in lie)
    local = each(functools.partial(ours, in_specs=spec))
    inside = jax.shard_map(
        local, mesh=mesh, in_specs=(by_rows, by_rows, P()), out_specs=out, check_vma=check_vma
    )
    padded = each(lambda x: jnp.pad(cases.hermitian_part(x), ((0, rows - n), (0, 0))))
    whole = each(lambda x: x[:n])

    def put(x, spec):
        if AxisType.Explicit not in mesh.axis_types:
            return x
        return jax.sharding.reshard(x, jax.NamedSharding(mesh, spec))

    def run(a, metric, b):
        found = inside(put(padded(a), by_rows), put(padded(metric), by_rows), put(b, P()))
        found = (put(x, P()) for x in found)
        return tuple(whole(x) if how == _ROWS else x for x, how in zip(found, lie, strict=True))

    @cases.precisely
    def alone(a, metric, b):
        return theirs(cases.hermitian_part(a), cases.hermitian_part(metric), b)

    return run, alone


def loss_of(function):
    """Returns a function that reduces all results to a real number, in which no terms cancel."""

    def loss(*arguments):
        return sum(
            jnp.sum(
                jnp.abs(x) ** 2 * jnp.arange(1, x.size + 1, dtype=x.real.dtype).reshape(x.shape)
            )
            for x in jax.tree.leaves(function(*arguments))
        )

    return loss


def assert_close(found, expected, dtype):
    __tracebackhide__ = True
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        scale = np.abs(theirs).max(initial=0) + cases.eps(dtype)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2000 * cases.eps(dtype) * scale)


TRACKED = pytest.mark.parametrize("check_vma", [True, False], ids=["tracked", "untracked"])


def make_batch(n, dtype, size=3):
    """Returns a batch of (a, metric, b), all of them different."""
    arguments, _ = make_arguments(n, dtype)
    return tuple(np.stack([x * (1 + i) for i in range(size)]) for x in arguments)
