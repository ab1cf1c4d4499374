"""What the blocked algorithms for stacks have in common: sections of panels.

An algorithm takes one panel of columns after the other, in a loop that is compiled once. A loop has
arrays of one shape, and so each panel updates a whole matrix. Therefore the panels are divided into
a few sections, each with a loop of its own for the trailing matrix that is left at its start: four
of them take half the operations of one, and sixteen a few percent less but four times as long to
compile.
"""

import jax
import jax.numpy as jnp

# The columns of a panel, and the most sections.
WIDTH = 32
_SECTIONS = 4


def of(columns, width=WIDTH):
    """The sections of so many columns, a multiple of ``width``: (first, after the last) of each."""
    panels = columns // width
    length = -(-panels // _SECTIONS) * width
    return [(start, min(start + length, columns)) for start in range(0, columns, max(length, 1))]


def padded(n, width=WIDTH):
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


def multiply(x, y):
    """X Y of two stacks."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


def identity(n, like):
    """A stack of identities, as many as ``like`` has matrices and of its dtype."""
    return jnp.broadcast_to(jnp.eye(n, dtype=like.dtype), (len(like), n, n))
