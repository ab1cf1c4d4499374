"""Parts of stacks, and products by JAX."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


def padded(n, width):
    """Returns the least multiple of ``width`` that is at least n."""
    return -(-n // width) * width


def pad(a, rows, columns):
    """Pads each matrix with zeros to the given shape."""
    m, n = a.shape[-2:]
    return jnp.pad(a, ((0, 0), (0, max(rows - m, 0)), (0, max(columns - n, 0))))


def put(a, block, row, column=0):
    """Replaces a block of each matrix of a stack, the one that begins at (row, column).

    `a.at[...].set` of a whole matrix has an index array without elements, which JAX makes an
    operand of the surrounding `shard_map`; XLA of jaxlib 0.11.2 then ends the process.
    """
    return jax.lax.dynamic_update_slice(a, block, (0, row, column))


def multiply(*stacks):
    """Returns the product of the stacks."""
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return functools.reduce(product, stacks)


def adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


def identity(n, like):
    """Returns a stack of identities of order n, with ``like``'s number of matrices and dtype."""
    return jnp.broadcast_to(jnp.eye(n, dtype=like.dtype), (len(like), n, n))


def in_front(arrays, dimensions):
    """Moves the batch to the front. Returns its size, which arrays have it, and the arrays."""
    marks = [dimension is not None for dimension in dimensions]
    each = list(zip(arrays, dimensions, marks, strict=True))
    size = next(array.shape[dimension] for array, dimension, mark in each if mark)
    moved = [jnp.moveaxis(x, dimension, 0) if mark else x for x, dimension, mark in each]
    return size, tuple(marks), moved
