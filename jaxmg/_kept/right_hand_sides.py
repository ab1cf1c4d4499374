"""Right-hand sides in derivative rules of solvers, inside the caller's shard_map."""

import dataclasses

import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._layouts import local_layouts
from jaxmg._matrices import hermitian


@_compat.default_promotion()
def alike(factor, b, call, determinant):
    """Makes a factor and right-hand sides vary over the same axes, inside the caller's shard_map.
    If b differs between the ranks, it and the determinant are NaN and the status is -2, as from the
    native code.

    Args:
        determinant: the names of the factor's numbers that are returned with solutions.
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
