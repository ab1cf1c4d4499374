"""Converts between the caller's matrix (m, n) and the ranks' blocks of rows for the native code.

`split_rows`, `join_rows` and `replicate` take global arrays. The other functions take this device's
block, inside a shard_map. The ranks are those of a `Layout`, in the order of its ``rows``.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import shardings


def split_rows(array, layout, multiple=1):
    """Pads ``array`` with rows of zeros until each rank has a multiple of ``multiple`` rows."""
    extra = -array.shape[0] % (layout.ranks * multiple)
    if extra:
        if layout.explicit:
            array = shardings.constrain(array, layout, P())
        array = jnp.pad(array, ((0, extra), (0, 0)))
    return shardings.constrain(array, layout, layout.row_spec) if layout.explicit else array


def join_rows(array, layout, count):
    """Returns the first ``count`` rows: undoes `split_rows`."""
    if array.shape[0] == count:
        return array
    if layout.explicit:  # a size that P doesn't divide can't be sharded over explicit axes
        array = shardings.constrain(array, layout, P())
    return array[:count]


def replicate(array, layout):
    """Replicates ``array``, which shard_map requires for explicit axes."""
    return shardings.constrain(array, layout, P()) if layout.explicit else array


def height(shape, square):
    """Returns the number of rows m of a matrix. The rows of a square matrix beyond n are the
    caller's padding and don't count."""
    return shape[1] if square else shape[0]


def diagonal(rank, rows, ranks):
    """Returns the diagonal entry in each of a rank's ``rows`` of a square matrix, (rows,). The
    values for rows of padding are unspecified."""
    count, n = rows.shape
    flat = rows.reshape(-1)
    if count * ranks > n:  # the diagonal ends within the rows of a rank
        flat = jax.lax.pad(flat, jnp.zeros((), rows.dtype), [(0, count * ranks - n, 0)])
    start, size = rank * count, (count - 1) * (n + 1) + 1
    flat = jax.lax.dynamic_slice(flat, (start,), (size,), allow_negative_indices=False)
    return jax.lax.slice(flat, (0,), flat.shape, (n + 1,))


def matrix_shape(block, layout, square):
    """Returns the shape (m, n), without padding, of the matrix whose part on a rank is
    ``block``."""
    across = math.prod(layout.mesh.shape[axis] for axis in layout.columns)
    m, n = block.shape[0] * layout.ranks // across, block.shape[1] * across
    return height((m, n), square), n


def to_rows(block, layout, m):
    """Returns this rank's ceil(m / P) rows of a matrix of m rows. Removes the caller's padding, and
    gathers columns that a spec such as P("r", "c") shards."""
    columns = layout.columns
    if columns:
        return jax.lax.all_to_all(block, columns, 0, 1, tiled=True)
    return block[: -(-m // layout.ranks)]


def from_rows(rows, layout, shape):
    """Undoes `to_rows`: returns the rank's block of ``shape``, with zeros as padding."""
    columns = layout.columns
    if columns:
        return jax.lax.all_to_all(rows, columns, 1, 0, tiled=True)
    return _pad(rows, shape[0] - rows.shape[0], 0)


def to_columns(rows, layout, m, width):
    """Exchanges the rank's ``rows`` of a matrix (m, n) for its ceil(n / P) columns: (m, width),
    with columns of zeros at the end."""
    n = rows.shape[1]
    if layout.rows:
        rows = _pad(rows, -n % layout.ranks, 1)
        rows = jax.lax.all_to_all(rows, layout.rows, 1, 0, tiled=True)[:m]
    return _pad(rows, width - rows.shape[1], 1)


def transposed_rows(rows, layout, m, rank):
    """Exchanges a rank's ``rows`` of A (m, n) for its ceil(n / P) rows of A^T."""
    count = -(-rows.shape[1] // layout.ranks)
    if _compat.COMPILES_EXCHANGES or layout.ranks == 1:
        return to_columns(rows, layout, m, count)[:m].T
    whole = jax.lax.all_gather(rows, layout.rows, tiled=True)[:m]
    whole = _pad(whole, count * layout.ranks - whole.shape[1], 1)
    return jax.lax.dynamic_slice_in_dim(whole, rank * count, count, 1).T


def _pad(array, extra, axis):
    """Appends ``extra`` rows (axis 0) or columns (axis 1) of zeros to ``array``."""
    if not extra:
        return array
    return jnp.pad(array, [(0, extra if axis == dimension else 0) for dimension in (0, 1)])
