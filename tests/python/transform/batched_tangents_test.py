"""Batches of tangents of one matrix on explicit axes: ``jax.vmap`` of ``jax.jvp``, `jax.jacfwd`.

JAX doesn't check the shardings of tangents in a batch, and shards nothing inside a vmap over the
axes that shard its batch.
"""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg

pytestmark = cases.needs_transformations

_N, _RANKS = 4, 2
_B = np.arange(1.0, 1 + _N)


# Name -> (function, the same by JAX). The matrix is positive definite.
_TABLE = {
    "potrs": (lambda a: jaxmg.potrs(a, _B), lambda a: jnp.linalg.solve(a, _B)),
    "potrs, refined": (
        lambda a: jaxmg.potrs(a, _B, refine="float32"),
        lambda a: jnp.linalg.solve(a, _B),
    ),
    "cho_factor": (
        lambda a: jaxmg.cho_factor(a).solve_triangular(_B),
        lambda a: jnp.linalg.inv(jnp.linalg.cholesky(a, symmetrize_input=False)) @ _B,
    ),
    "gesv": (lambda a: jaxmg.gesv(a, _B), lambda a: jnp.linalg.solve(a, _B)),
    "lu_factor": (lambda a: jaxmg.lu_factor(a).det(), jnp.linalg.det),
    "lu_factor, refined": (
        lambda a: jaxmg.lu_factor(a, refine="auto").solve(_B),
        lambda a: jnp.linalg.solve(a, _B),
    ),
    "geqrf": (lambda a: jaxmg.geqrf(a).solve(_B), lambda a: jnp.linalg.solve(a, _B)),
    "least_squares": (lambda a: jaxmg.least_squares(a, _B), lambda a: jnp.linalg.solve(a, _B)),
    "eigh": (lambda a: jaxmg.eigh(a)[1] ** 2, lambda a: jnp.linalg.eigh(a)[1] ** 2),
    "eigvalsh": (jaxmg.eigvalsh, jnp.linalg.eigvalsh),
    "polar": (lambda a: jaxmg.linalg.polar(a)[1], lambda a: a),
    "expm": (lambda a: jaxmg.linalg.expm(a / 8), lambda a: jax.scipy.linalg.expm(a / 8)),
}
# Name -> the specs of the matrix and of the tangents.
_LIE = {
    "tangents by rows": ((), (None, "r")),
    "tangents replicated": (("r",), ()),
    "tangents by columns": (("r",), (None, None, "r")),
    "batch of a replicated matrix": ((), ("r",)),
}
_CORE = [("least_squares", "tangents replicated"), ("potrs", "batch of a replicated matrix")]


@pytest.mark.parametrize(
    "name, lie",
    cases.broad(
        [(name, lie) for name in _TABLE for lie in _LIE],
        lambda *case: case in _CORE,
        alone=True,
    ),
)
def test_batches_of_tangents(name, lie):
    ours, theirs = _TABLE[name]
    mesh = cases.line(_RANKS, kind=AxisType.Explicit)
    matrix = cases.positive_definite("well", _N, "float64")
    tangents = cases.rng(5).standard_normal((_RANKS, _N, _N))
    tangents = tangents + np.swapaxes(tangents, -1, -2)

    def along(function):
        return jax.vmap(lambda a, moved: jax.jvp(function, (a,), (moved,))[1], (None, 0))

    with cases.context(cases.line(1)):
        wanted = jax.jit(along(theirs))(jnp.asarray(matrix), jnp.asarray(tangents))
    with cases.context(mesh):
        a, moved = (
            cases.shard(x, mesh, *s) for x, s in zip((matrix, tangents), _LIE[lie], strict=True)
        )
        found = along(ours)(a, moved)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-7, atol=1e-9)
