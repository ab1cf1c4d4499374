"""Numbers without a pattern that are the same on any number of devices and in each run."""

import jax
import jax.numpy as jnp


def hashed(shape, dtype, first_row=0, salt=1):
    """Returns a matrix of numbers between -1 and 1: hashes of ``salt``, the column, and the row
    counted from ``first_row``. If the dtype is complex, the numbers are real."""
    row, column = (jax.lax.broadcasted_iota(jnp.uint32, shape, i) for i in (0, 1))
    row = row + jnp.asarray(first_row).astype(jnp.uint32)
    salt = jnp.asarray(salt).astype(jnp.uint32)
    word = row * jnp.uint32(0x9E3779B1) + column * jnp.uint32(0x85EBCA77) + salt
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word = (word ^ (word >> jnp.uint32(shift))) * jnp.uint32(factor)
    word = word ^ (word >> jnp.uint32(16))
    real = jnp.finfo(dtype).dtype
    return (word.astype(real) / 2.0**31 - 1).astype(dtype)
