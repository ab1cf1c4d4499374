"""Products of matrices that lie on the ranks by rows, and the adjoint of such a matrix.

    rows_times_adjoint   X Y^H
    rows_times_rows      X Y
    adjoint_times_rows   X^H Y
    adjoint, transposed  X^H and X^T

Each is one call of the engine (`product_calls`), for which XLA tunes and compiles nothing.
`collective_products` has products of two batches, and of matrices that aren't spread over ranks: by
XLA, and on GPUs by the plugin's products of stacks.

The functions of global arrays are for use in a trace, in a program (`_call.programs`). The
functions whose names end in ``_on_rank`` take a rank's rows, inside a shard_map; rows of padding
must be zeros. They take the device's coordinates, and can determine them inside the caller's
shard_map. JAX can differentiate all functions, to any order.
"""

import jax.numpy as jnp

from jaxmg._call import blocks, ffi
from jaxmg._matrices import collective_products as collectives
from jaxmg._matrices import product_calls as calls
from jaxmg._matrices.collective_products import dot, reduce_scatter

__all__ = ["dot", "reduce_scatter"]


def rows_times_adjoint(x, y, layout):
    """Returns X Y^H (m, n) for x (m, k) and y (n, k), all by rows on the ranks of ``layout``."""
    shape = (x.shape[0], y.shape[0])
    return _over_ranks(rows_times_adjoint_on_rank, layout, shape, x, y)


def rows_times_rows(x, y, layout):
    """Returns X Y (m, n) for x (m, k) and y (k, n), all by rows on the ranks of ``layout``."""
    return _over_ranks(rows_times_rows_on_rank, layout, (x.shape[0], y.shape[1]), x, y)


def adjoint_times_rows(x, y, layout):
    """Returns X^H Y (m, n) for x (k, m) and y (k, n), all by rows on the ranks of ``layout``."""
    return _over_ranks(adjoint_times_rows_on_rank, layout, (x.shape[1], y.shape[1]), x, y)


def adjoint(x, layout):
    """Returns X^H for x (m, n), both by rows on the ranks of ``layout``: one exchange of all with
    all."""
    return _adjoint(x, layout, True)


def transposed(x, layout):
    """Returns X^T (n, m) for x (m, n), both by rows on the ranks of ``layout``: one exchange."""
    return _adjoint(x, layout, False)


def rows_times_adjoint_on_rank(x, y, layout, coordinates=None, shape=None):
    """Returns a rank's rows of X Y^H, given its rows of X and Y. ``shape`` is that of the product
    without padding. If it is None, rows of padding of Y become columns of the result."""
    if not calls.is_for(layout, x, y):
        return collectives.rows_times_adjoint(x, y, layout)
    m, n = shape or (layout.ranks * len(x), layout.ranks * len(y))
    return _call(calls.TIMES_ADJOINT, m, n, x.shape[1], len(x), layout, coordinates, x, y)


def rows_times_rows_on_rank(x, y, layout, coordinates=None, shape=None):
    """Returns a rank's rows of X Y, given its rows of X and Y."""
    if not calls.is_for(layout, x, y):
        return collectives.rows_times_rows(x, y, layout)
    m, n = shape or (layout.ranks * len(x), y.shape[1])
    return _call(calls.TIMES, m, n, x.shape[1], len(x), layout, coordinates, x, y)


def adjoint_times_rows_on_rank(x, y, layout, coordinates=None, shape=None):
    """Returns a rank's ceil(m / P) rows of X^H Y (m, n), given its rows of X and Y."""
    if not calls.is_for(layout, x, y):
        return collectives.adjoint_times_rows(x, y, layout)
    m, n = shape or (x.shape[1], y.shape[1])
    sizes = m, n, layout.ranks * len(x), -(-m // layout.ranks)
    return _call(calls.ADJOINT_TIMES, *sizes, layout, coordinates, x, y)


def adjoint_on_rank(x, layout, coordinates=None):
    """Returns a rank's rows of X^H, given its rows of X (n, n)."""
    return _adjoint_on_rank(x, layout, coordinates, (x.shape[1], x.shape[1]), True)


def _adjoint_on_rank(x, layout, coordinates, shape, conjugates):
    if not calls.is_for(layout, x):
        return collectives.adjoint(x, layout, shape[1], conjugates)
    n, m = shape
    sizes = n, m, m, -(-n // layout.ranks)
    return _call(calls.ADJOINT, *sizes, layout, coordinates, x, conjugates=conjugates)


def _adjoint(x, layout, conjugates):
    def local(x, layout, coordinates, shape):
        return _adjoint_on_rank(x, layout, coordinates, shape, conjugates)

    return _over_ranks(local, layout, x.shape[::-1], x)


def _call(kind, m, n, k, block, layout, coordinates, *operands, **options):
    of = calls.Product(kind, m, n, k, block, layout, **options)
    return of(calls.coordinates_of(layout, coordinates), *operands)


def _over_ranks(local, layout, shape, *matrices):
    """Applies ``local`` to each rank's rows of global matrices, which it pads. Returns a matrix of
    this shape, without padding."""
    if not all(matrix.size for matrix in matrices):
        return jnp.zeros(shape, matrices[0].dtype)
    layout = layout.by_rows

    def on_rank(coordinates, *rows):
        return local(*rows, layout, coordinates=coordinates, shape=shape)[:, : shape[1]]

    in_specs = tuple(layout.row_spec for _ in matrices)
    mapped = ffi.over_ranks(layout, on_rank, in_specs, layout.row_spec, plain=True)
    rows = mapped(*(blocks.split_rows(matrix, layout) for matrix in matrices))
    return blocks.join_rows(rows, layout, shape[0])
