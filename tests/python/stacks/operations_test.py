"""All ways to compute an operation on stacks give the same results."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases

import jaxmg.linalg  # noqa: F401  all operations
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._eigen import stacks as eigen_stacks
from jaxmg._lu import stacks as lu_stacks
from jaxmg._plugin import plugins
from jaxmg._qr import stacks as qr_stacks
from jaxmg._square import determinants
from jaxmg._stacks import choice, native, triangle
from jaxmg._svd import stacks as svd_stacks

_N = 6
_A = stack_cases.stack((3, _N, _N), "float32") + 3 * np.eye(_N, dtype="float32")
_B = stack_cases.stack((3, _N, 2), "float32", seed=1)
_DEFINITE = stack_cases.definite(3, _N, "float32")
_TALL = stack_cases.stack((3, 9, _N), "float32")
# Operation -> stacks, if they aren't general square matrices and, as a second operand, right-hand
# sides.
_STACKS = {
    triangle.SOLVE: lambda: (_DEFINITE, _B),
    cholesky_stacks.CHOLESKY: lambda: (_DEFINITE,),
    cholesky_stacks.UPPER: lambda: (_DEFINITE,),
    cholesky_stacks.INVERSE: lambda: (jnp.triu(_DEFINITE),),
    determinants.TRACE: lambda: (_A, _A[::-1]),
    lu_stacks.INVERSE_OF_FACTOR: lambda: native.factor_lu(_A),
    qr_stacks.QR: lambda: (_TALL,),
    qr_stacks.R: lambda: (_TALL,),
    eigen_stacks.EIGH: lambda: (_DEFINITE,),
    svd_stacks.SVD: lambda: (_TALL,),
    svd_stacks.VALUES: lambda: (_TALL,),
    svd_stacks.POLAR: lambda: (_TALL,),
}
_OPERATIONS = [one for one in choice.OPERATIONS if choice.AT_ONCE not in one.ways]
# Their vectors may have any signs.
_UP_TO_SIGNS = (eigen_stacks.EIGH, svd_stacks.SVD)


def _stacks_of(operation, way):
    if operation in _STACKS:
        return _STACKS[operation]()
    parameters = inspect.signature(operation.ways[way]).parameters.values()
    return (_A, _B)[: sum(x.kind == x.POSITIONAL_OR_KEYWORD for x in parameters)]


@pytest.mark.parametrize(
    "operation, way",
    [(one, way) for one in _OPERATIONS for way in one.ways if way != choice.JAX],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_way_gives_what_jaxs_gives(operation, way):
    if jax.default_backend() != "cpu" and "cpu" in {
        row.platform for row in operation.rows if row.way == way
    }:
        pytest.skip("a way for CPU devices")
    plugins.load(jax.default_backend())
    stacks = _stacks_of(operation, way)
    found, expected = (operation.ways[one](*stacks) for one in (way, choice.JAX))
    for ours, jaxs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        pair = (ours, jaxs) if operation not in _UP_TO_SIGNS else (jnp.abs(ours), jnp.abs(jaxs))
        np.testing.assert_allclose(*pair, rtol=0, atol=1e-4)
