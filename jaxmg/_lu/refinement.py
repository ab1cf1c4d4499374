"""Solving with an LU factor in lower precision: the work of each rank."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmg._call import backends, checks, ffi, record
from jaxmg._kept import correction, gmres, lower_precision
from jaxmg._lu import operations as lu_operations
from jaxmg._matrices.products import dot
from jaxmg._stacks import scaling

# Number of arrays like b that an iteration needs: the directions z, the products A z, a temporary
# array as large as either of these two stacks, and the solution, residual, correction and the like.
LIKE_B = 3 * gmres.RESTART + 12
# Right-hand sides are refined in groups, so that these arrays take at most 1 / _MEMORY of a rank's
# rows; or in groups of _LEAST, with which a product with A takes little longer than with one.
_MEMORY, _LEAST = 16, 8
# Status of a `Lowered` if A's entries are too far apart for products with it.
OUT_OF_RANGE = -2
OPTION = record.Option("refine", "refine", lower_precision.check)


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A rank's part of the factor of R A C in lower precision. R and C are diagonal with powers of
    two that bring the largest entries of rows and columns to about one, as LAPACK's geequ.

    Attributes:
        tiles, overflow, pivots, tile: as in an `LUFactor`; ``overflow`` may have no rows.
        status: (1,), the status of the factorization, or OUT_OF_RANGE.
        rows, columns: (n,), int32, the negative exponents of R and of C.
        size: (1,), |R A C|_F.
    """

    tiles: jax.Array
    overflow: jax.Array
    pivots: jax.Array
    status: jax.Array
    rows: jax.Array
    columns: jax.Array
    size: jax.Array
    tile: int


def plan(layout, dtype, n, tile, refine):
    """Returns the plugin's plan of the factorization in lower precision."""
    return backends.plan(
        "getrf", layout, "native", lower_precision.lower_dtype(dtype), (n, n), tile,
        products=lower_precision.products_of(refine),
    )  # fmt: skip


def columns_at_a_time(n, ranks, nrhs):
    """Returns the number of right-hand sides that are refined at a time."""
    return min(max(n // (_MEMORY * LIKE_B * ranks), _LEAST), nrhs)


def factor_and_solve(call, coordinates, a, b):
    """Computes `gesv` with refinement; returns (a, x, status, iterations) on this rank."""
    coordinates = lower_precision.after(coordinates, b)
    sizes = plan(call.layout, a.dtype, a.shape[1], call.tile, dict(call.attributes)["refine"])
    lower = factor_lower(call, coordinates, a, sizes["tile"], sizes["overflow_rows"])
    return solve(call, coordinates, a, lower, b)


def factor_lower(call, coordinates, a, tile, overflow_rows):
    """Factors a matrix, given this rank's rows ``a`` of it; returns a `Lowered`."""
    layout = call.layout
    first = coordinates.reshape(2)[0] * a.shape[0]
    rows, columns = _exponents(layout, coordinates, a, first)
    low, squares, lost = _round(a, first, rows, columns)
    facts = jnp.stack([squares, lost.astype(squares.dtype)])
    facts = _gather(facts, layout, coordinates).reshape(-1, 2)
    size, lost = jnp.sqrt(jnp.sum(facts[:, :1], axis=0)), jnp.any(facts[:, 1] > 0)
    products = lower_precision.products_of(dict(call.attributes)["refine"])
    coordinates = lower_precision.after(coordinates, size)
    tiles, overflow, pivots, status = _factorize(
        layout, tile, coordinates, low, overflow_rows, products
    )
    middle = _middle(rows)
    far = jnp.maximum(jnp.max(jnp.abs(rows - middle)), jnp.max(jnp.abs(columns + middle)))
    reached = (far <= 3 * _bias(a.dtype) // 4) & ~lost
    status = jnp.where(reached, status, OUT_OF_RANGE)
    return Lowered(tiles, overflow, pivots, status, rows, columns, size, tile)


def _exponents(layout, coordinates, a, first):
    """Returns the exponents of the largest entries of A's rows, and of its columns once the rows
    are scaled: (n,) each, 0 for zeros. Reads A twice and allocates nothing of its size."""
    count, n = a.shape
    empty = -3 * _bias(a.dtype)  # less than the exponent of any entry

    def row_exponents(part, row, exponents, start):
        largest = scaling.exponents(scaling.largest(part, axis=1))
        return jax.lax.dynamic_update_slice_in_dim(exponents, largest, start, 0)

    rows = _by_pieces(a, first, row_exponents, jnp.zeros(count, jnp.int32))
    rows = _gather(rows.astype(jnp.finfo(a.dtype).dtype), layout, coordinates).astype(jnp.int32)
    rows = jnp.where(rows < empty, 0, rows)

    def column_exponents(part, row, exponents, _):
        found = scaling.exponents(part) - rows[row]
        return jnp.maximum(exponents, jnp.max(jnp.where(row < n, found, 2 * empty), axis=0))

    columns = _by_pieces(a, first, column_exponents, jnp.full(n, 2 * empty, jnp.int32))
    columns = _gather(columns.astype(jnp.finfo(a.dtype).dtype), layout, coordinates)
    columns = jnp.max(columns.reshape(-1, n), axis=0).astype(jnp.int32)
    return rows[:n], jnp.where(columns < empty, 0, columns)


def _round(a, first, rows, columns):
    """Returns, for the rows from ``first`` on, R A C in lower precision, the sum of its squares,
    and whether XLA's products with A lose significant entries, since they take denormals for 0."""
    n, real = a.shape[1], jnp.finfo(a.dtype)
    height = lower_precision.piece_height(*a.shape)

    def piece(part, row, state, start):
        low, squares, lost = state
        exponent = rows[jnp.minimum(row, n - 1)] + columns
        scaled = scaling.times_power(part, -exponent)
        low = jax.lax.dynamic_update_slice_in_dim(low, scaled.astype(low.dtype), start, 0)
        own = scaling.exponents(part)
        denormal = (own < int(real.minexp)) & (own - exponent > -(int(real.nmant) + 12))
        there = row < n
        scaled = jnp.where(there, scaled, 0)
        # The rows that the last piece shares with the one before have been counted.
        scaled = jnp.where(row >= first + start + _overlap(start, height), scaled, 0)
        squares += jnp.sum(scaled.real**2 + scaled.imag**2)
        return low, squares, lost | jnp.any(denormal & there)

    zero = jnp.zeros((), real.dtype)
    start = (jnp.zeros(a.shape, lower_precision.lower_dtype(a.dtype)), zero, jnp.zeros((), bool))
    return _by_pieces(a, first, piece, start)


def _overlap(start, height):
    """Returns the number of rows that the piece from ``start`` on shares with the one before."""
    return -start % height


def _by_pieces(a, first, function, state):
    """Computes ``state = function(rows, their numbers in A, state, start)`` for pieces of the rows.
    XLA may not fuse all of the work, and would allocate memory of A's size for all rows at once.
    """
    rows, n = a.shape
    height = lower_precision.piece_height(rows, n)

    def piece(i, state):
        start = jnp.minimum(i * height, rows - height)
        row = first + start + jnp.arange(height)[:, None]
        return function(jax.lax.dynamic_slice_in_dim(a, start, height), row, state, start)

    return jax.lax.fori_loop(0, -(-rows // height), piece, state)


def solve(call, coordinates, a, lower, b, adjoint=False):
    """Solves with A, or its adjoint, by a factor in lower precision; returns (a, x, status,
    iterations) on this rank.

    The first result is A's memory with unspecified contents, for a caller who has donated A.
    """
    layout, n, factored = call.layout, a.shape[1], lower.status[0] == 0
    real = jnp.finfo(a.dtype).dtype
    # Brings the exponents of R and C as close to 0 as possible for both: no product overflows.
    middle = _middle(lower.rows)
    scales = (lower.rows - middle, lower.columns + middle)
    # A failed factorization may have exponents out of range. The scales are then 1, and nothing is
    # solved.
    left, right = (scaling.power(jnp.where(factored, -s, 0), real)[:, None] for s in scales)

    def multiply(v):
        if adjoint:
            return right * _adjoint_product(layout, coordinates, a, left * v)
        return left * _product(layout, coordinates, a, right * v)

    def precondition(r):
        largest = lower_precision.power_of_two(jnp.max(jnp.abs(r), axis=0))
        operation = lu_operations.SOLVE_ADJOINT if adjoint else lu_operations.SOLVE
        z = lower_precision.native_like(
            "jaxmg_lu_apply", layout, lower.tile,
            (
                coordinates, lower.tiles, lower.overflow, lower.pivots,
                (r / largest).astype(lower.tiles.dtype),
            ),
            operation=operation,
        )  # fmt: skip
        return largest * z.astype(r.dtype)

    # Columns of b are scaled by exponents, since b and x may be denormal.
    into, back = (lower.columns, lower.rows) if adjoint else (lower.rows, lower.columns)
    into, back = -into[:, None], -back[:, None]
    columns = jnp.max(scaling.exponents(b) + into, axis=0)
    columns = jnp.where(jnp.any(scaling.magnitude(b) > 0, axis=0), columns, 0)
    scaled = scaling.times_power(jnp.where(factored, b, 0), into - columns)
    width = columns_at_a_time(n, layout.ranks, b.shape[1])

    def part(good, b):
        found = gmres.refine(multiply, precondition, jnp.where(good, b, 0), lower.size[0])
        return good & found.accepted, (found.x, found.steps)

    count = -(-b.shape[1] // width)
    many = jnp.pad(scaled, ((0, 0), (0, count * width - b.shape[1])))
    many = many.reshape(n, count, width).swapaxes(0, 1)
    if count == 1:
        good, (x, steps) = part(factored, many[0])
    else:
        good, (x, steps) = jax.lax.scan(part, factored, many)
        x, steps = x.swapaxes(0, 1).reshape(n, count * width)[:, : b.shape[1]], jnp.max(steps)
    x = scaling.times_power(x, back + columns)
    solution = correction.Refined(x, steps, good)
    plain = functools.partial(_plain_adjoint if adjoint else _plain, call, coordinates)
    return lower_precision.or_plain(call, a, b, factored, solution, plain)


def _plain(call, coordinates, a, b):
    """Solves by a factorization in A's own precision; returns (A's memory, x, status)."""
    numbers = (jnp.finfo(a.dtype).dtype, a.dtype)
    a, x, _, _, status = lower_precision.plain_solve(
        "gesv", call, coordinates, a, b, *(jax.ShapeDtypeStruct((1,), dtype) for dtype in numbers)
    )
    return a, x, status


def _plain_adjoint(call, coordinates, a, b):
    """Like `_plain`, with A's adjoint, by a factorization of A."""
    layout, n = call.layout, a.shape[1]
    sizes = backends.plan("getrf", layout, "native", a.dtype, (n, n), call.tile)
    tiles, overflow, pivots, status = _factorize(
        layout, sizes["tile"], coordinates, a, sizes["overflow_rows"], checks.DEFAULT
    )
    coordinates = lower_precision.after(coordinates, status)
    x = lower_precision.native_like(
        "jaxmg_lu_apply", layout, sizes["tile"], (coordinates, tiles, overflow, pivots, b),
        operation=lu_operations.SOLVE_ADJOINT,
    )  # fmt: skip
    return tiles, x, status


def _factorize(layout, tile, coordinates, a, overflow_rows, products):
    """Factors the matrix of a rank's rows; returns (tiles, overflow, pivots, status)."""
    n = a.shape[1]
    tiles, overflow, pivots, _, _, status = ffi.call(
        "jaxmg_getrf", layout, tile, "native", (coordinates, a),
        (
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            jax.ShapeDtypeStruct((overflow_rows, n), a.dtype),
            jax.ShapeDtypeStruct((n,), jnp.int32),
            jax.ShapeDtypeStruct((1,), jnp.finfo(a.dtype).dtype),
            jax.ShapeDtypeStruct((1,), a.dtype),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ),
        differing=2, m=n, n=n, products=products,
    )  # fmt: skip
    return tiles, overflow, pivots, status


def _middle(rows):
    """Returns the middle of the range of the rows' exponents."""
    return (jnp.max(rows) + jnp.min(rows)) // 2


def _bias(dtype):
    return 1 - int(jnp.finfo(dtype).minexp)


def _product(layout, coordinates, a, v):
    """Returns A v from a rank's rows of A and all of v; the ranks' rows are gathered."""
    own = dot(a, v, 1, 0)
    return _gather(own.ravel(), layout, coordinates).reshape(-1, v.shape[1])[: len(v)]


def _adjoint_product(layout, coordinates, a, v):
    """Returns A^H v, gathering the contributions of the ranks' rows. All ranks get equal sums."""
    n, count = len(v), len(a)
    padded = jnp.pad(v, ((0, count * layout.ranks - n), (0, 0)))
    first = coordinates.reshape(2)[0] * count
    own = jax.lax.dynamic_slice_in_dim(padded, first, count).conj()
    part = dot(own, a, 0, 0).conj()  # with the operands swapped A would be transposed
    parts = _gather(part.ravel(), layout, coordinates).reshape(layout.ranks, *part.shape)
    return jnp.sum(parts, axis=0).T


def _gather(part, layout, coordinates):
    return ffi.all_gather(part, layout, coordinates) if layout.ranks > 1 else part
