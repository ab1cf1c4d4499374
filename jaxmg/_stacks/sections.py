"""Parts of stacks, and products by JAX."""

import functools

import jax
import jax.numpy as jnp


def padded(n, width):
    """The least multiple of ``width`` that is n or more."""
    return -(-n // width) * width


def pad(a, rows, columns):
    """A stack with zeros behind its rows and columns, so that it has so many of them."""
    m, n = a.shape[-2:]
    return jnp.pad(a, ((0, 0), (0, max(rows - m, 0)), (0, max(columns - n, 0))))


def put(a, block, row, column=0):
    """A stack with a block of each matrix replaced: the one that begins at (row, column).

    `a.at[...].set` of a whole matrix has an index array without elements, which JAX makes an
    operand of the `shard_map` around it: XLA of jaxlib 0.11.2 ends the process there.
    """
    return jax.lax.dynamic_update_slice(a, block, (0, row, column))


def multiply(*stacks):
    """Their product."""
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return functools.reduce(product, stacks)


def adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


def identity(n, like):
    """A stack of identities, as many as ``like`` has matrices and of its dtype."""
    return jnp.broadcast_to(jnp.eye(n, dtype=like.dtype), (len(like), n, n))
