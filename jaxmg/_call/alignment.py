"""Extends a matrix whose rows don't begin at multiples of 16 bytes to a larger order, for speed on
GPUs.

[A 0; 0 I] yields the solutions, the inverse and the determinant of A. Products that write to its
rows are up to a quarter faster (docs/laboratory.md#orders). If A isn't donated, the larger matrix
takes no additional memory: XLA would copy A anyway.

[A 0; 0 0] has the eigenvalues of A, and zeros. Reflectors, rotations and products with zeros
preserve zeros, so the stages that all ranks share never couple a row of A with an added row, even
if A has eigenvalues of 0. Each eigenvector is an eigenvector of A followed by zeros, or a unit
vector.

On one rank a kept factor is stored in the order of the columns, for any tile width, and is cut from
the factor of the larger matrix. On several ranks the distribution of its tiles depends on the
order, so A isn't extended.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxmg._call import backends

# On these platforms a matrix is extended if its order is at least _LEAST and its rows don't begin
# at multiples of _BYTES bytes.
_PLATFORMS = ("gpu",)
_BYTES = 16
_LEAST = 4096
# The larger order is a multiple of this times the number of ranks.
_MULTIPLE = 32


def larger_order(routine, layout, backend, a, tile, donate):
    """Returns the order to extend ``a`` to, or None if it isn't extended."""
    rows, n = a.shape
    whole = rows == n and (layout.ranks == 1 or n % layout.ranks)
    aligned = n * a.dtype.itemsize % _BYTES == 0
    if layout.platform not in _PLATFORMS or backend != "native" or n < _LEAST:
        return None
    if aligned or not whole or (layout.explicit and layout.ranks > 1):
        return None
    if routine.factor and layout.ranks > 1:  # the order determines the ranks of its tiles
        return None
    if not routine.extension.applies(layout.platform, n):
        return None
    order = math.ceil(n / (_MULTIPLE * layout.ranks)) * _MULTIPLE * layout.ranks
    return order if _has_room(routine, layout, a.dtype, order, tile, donate) else None


def _has_room(routine, layout, dtype, order, tile, donate):
    """Whether a device has the memory for A, the larger matrix, and the result that is cut from it.
    True if its memory is unknown."""
    if layout.memory is None:
        return True
    if not donate and not routine.extension.returns_matrix:  # A is copied anyway
        return True
    block = order // layout.ranks * order * jnp.dtype(dtype).itemsize
    taken = max(
        backends.plan(routine.native, layout, "native", dtype, (order, order), tile)["bytes"]
    )
    return taken + (3 if routine.extension.returns_matrix else 2) * block <= layout.memory


def extend(call, arrays):
    """Extends the matrices of a call to order ``call.order``. Returns the call and the arrays."""
    n, order, count = arrays[0].shape[1], call.order, call.routine.matrices
    larger = dataclasses.replace(call, order=None, shape=(order, order))
    if call.routine.factor:  # the native code needs its exact tile width
        native, dtype = call.routine.factor.native, arrays[0].dtype
        sizes = backends.plan(native, call.layout, call.backend, dtype, larger.shape, call.tile)
        larger = dataclasses.replace(larger, tile=sizes["tile"])
    diagonal = call.routine.extension.diagonal
    matrices = [extended(matrix, order, diagonal) for matrix in arrays[:count]]
    others = [jnp.pad(b, [(0, order - n), *((0, 0) for _ in b.shape[1:])]) for b in arrays[count:]]
    return larger, [*matrices, *others]


def cut(call, arrays, values):
    """Extracts the results for the caller's matrices from the results for the extended ones."""
    n, routine = arrays[0].shape[1], call.routine
    if routine.extension.cut:
        return routine.extension.cut(call, values, n)
    return tuple(
        result.cut(value, n) for result, value in zip(routine.results, values, strict=True)
    )


def extended(matrix, order, diagonal):
    """Returns [A 0; 0 D] of order ``order``, where D = ``diagonal`` I and A is ``matrix`` without
    its rows of padding at the end."""
    rows, n = matrix.shape
    larger = jnp.pad(matrix, ((0, order - rows), (0, order - n)))
    if not diagonal:
        return larger
    row, column = (jax.lax.broadcasted_iota(jnp.int32, larger.shape, d) for d in (0, 1))
    return jnp.where((row == column) & (row >= n), jnp.full((), diagonal, matrix.dtype), larger)
