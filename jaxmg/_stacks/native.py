"""The plugin's operations on stacks of matrices (xla_ffi/device/stack_kernels.h).

XLA would compile each of them in every program, and on a GPU time several algorithms for each shape
of a product. These are compiled already. JAX can't differentiate them, so only functions with a
derivative of their own call them. The plugin must be loaded.
"""

import jax
import jax.numpy as jnp

from jaxmg import _compat

HANDLERS = ("stacked_lu", "stacked_merge", "stacked_product", "stacked_tridiagonal")


def call(name, results, *operands, aliases=None, **attributes):
    """Calls the operation; the results are `jax.ShapeDtypeStruct`. ``aliases``: the results, by
    number, that overwrite operands."""
    function = jax.ffi.ffi_call(
        f"jaxmg_{name}", results, vmap_method="broadcast_all", input_output_aliases=aliases
    )
    values = function(*operands, **attributes)
    varying = frozenset().union(*map(_compat.varying_axes, operands))
    return jax.tree.map(lambda value: _compat.vary(value, varying), values)


def multiply(x, y, transposed=False):
    """X Y of two stacks, (count, m, k) and (count, k, n), or X Y^T with y (count, n, k)."""
    n = y.shape[-2 if transposed else -1]
    result = jax.ShapeDtypeStruct((*x.shape[:-1], n), x.dtype)
    return call("stacked_product", result, x, y, transposed=transposed)


def factor_lu(a):
    """(LU, pivots) of a (count, n, n), as `jax.lax.linalg.lu` gives them: getrf."""
    pivots = jax.ShapeDtypeStruct(a.shape[:-1], jnp.int32)
    whole = jax.ShapeDtypeStruct(a.shape, a.dtype)
    return call("stacked_lu", (whole, pivots), a, aliases={0: 0})
