"""What rules of solvers inside a shard_map of the caller's do to right-hand sides."""

import dataclasses

import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import local_layouts
from jaxmg._transform import hermitian


@_compat.default_promotion()
def alike(factor, b, call, determinant):
    """A factor and right-hand sides inside a shard_map of the caller's. Where b differs between the
    ranks they are NaN and the status is -2, as from the native code.

    Args:
        determinant: the names of the factor's numbers that are returned beside solutions.
    """
    axes = local_layouts.shared_axes(factor.layout, b)
    numbers = {name: _compat.vary(getattr(factor, name), axes) for name in (*determinant, "status")}
    if dict(call.attributes)["check_b"]:
        same = hermitian.same_on_ranks(factor.layout, b)
        b = jnp.where(same, b, jnp.nan)
        for name in determinant:
            numbers[name] = jnp.where(same, numbers[name], jnp.nan)
        numbers["status"] = jnp.where(same, numbers["status"], -2)
    return dataclasses.replace(factor, **numbers), b
