"""The plugin's operations on stacks of matrices (xla_ffi/device/stack_kernels.h).

XLA compiles a program for each of them anew, for a GPU by trying algorithms for each shape of a
product; these are there already. JAX can't differentiate them, so functions with derivatives of
their own call them. The plugin must be loaded.
"""

import jax

from jaxmg import _compat

HANDLERS = ("stacked_merge", "stacked_product")


def call(name, results, *operands, **attributes):
    """Calls the operation; the results are `jax.ShapeDtypeStruct`."""
    function = jax.ffi.ffi_call(f"jaxmg_{name}", results, vmap_method="broadcast_all")
    values = function(*operands, **attributes)
    varying = frozenset().union(*map(_compat.varying_axes, operands))
    return jax.tree.map(lambda value: _compat.vary(value, varying), values)


def multiply(x, y, transposed=False):
    """X Y of two stacks, (count, m, k) and (count, k, n), or X Y^T with y (count, n, k)."""
    n = y.shape[-2 if transposed else -1]
    result = jax.ShapeDtypeStruct((*x.shape[:-1], n), x.dtype)
    return call("stacked_product", result, x, y, transposed=transposed)
