"""Solving with a Cholesky factor in lower precision: the work of each rank."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmg._call import backends, ffi
from jaxmg._cholesky import operations as cholesky_operations
from jaxmg._kept import lower_precision, pcg
from jaxmg._stacks import scaling

# The native routines that refinement calls in addition to those of other modules.
SERVICES = ("hemm", "all_gather")


# In a residual the products of _DEPTH elements of each row of A are summed separately. A smaller
# number means less rounding but more memory (hemm.h), which is at most 1 / _MEMORY of a rank's
# rows.
_DEPTH, _MEMORY = 128, 16


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A rank's part of the factor of S A S + shift in lower precision, where S is diagonal.

    Attributes:
        tiles, overflow, tile: as in a `CholeskyFactor`; ``overflow`` may have no rows.
        status: (1,), the status of the factorization.
        scale: (n,), the diagonal of S: powers of two that bring the diagonal of S A S to about one.
        size: (1,), |S A S|_F.
    """

    tiles: jax.Array
    overflow: jax.Array
    status: jax.Array
    scale: jax.Array
    size: jax.Array
    tile: int


def plan(layout, dtype, n, tile, refine):
    """Returns the plugin's plan of the factorization in lower precision."""
    return backends.plan(
        "potrf", layout, "native", lower_precision.lower_dtype(dtype), (n, n), tile,
        products=lower_precision.products_of(refine),
    )  # fmt: skip


def parts(n, ranks, nrhs):
    """Returns the number of parts into which a residual splits x; it multiplies one at a time."""
    return max(n // max(_DEPTH, 2 * _MEMORY * ranks) // nrhs, 1)


def factor_and_solve(call, coordinates, a, b):
    """Computes `potrs` with refinement; returns (a, x, status, iterations) on this rank."""
    coordinates = lower_precision.after(coordinates, b)
    sizes = plan(call.layout, a.dtype, a.shape[1], call.tile, dict(call.attributes)["refine"])
    lower = factor_lower(call, coordinates, a, sizes["tile"], sizes["overflow_rows"])
    return solve(call, coordinates, a, lower, b)


def factor_lower(call, coordinates, a, tile, overflow_rows):
    """Factors a matrix, given this rank's rows ``a`` of it; returns a `Lowered`."""
    layout, n = call.layout, a.shape[1]
    how = lower_precision.PRECISIONS[dict(call.attributes)["refine"]]
    first = coordinates.reshape(2)[0] * a.shape[0]
    own = first + jnp.arange(a.shape[0])[:, None]
    diagonal = jnp.take_along_axis(a, jnp.minimum(own, n - 1), 1)[:, 0].real
    halves = scaling.exponents(ffi.all_gather(diagonal, layout, coordinates)) // 2
    lowest = scaling.lowest_exponent(diagonal.dtype)
    # 1 for zeros.
    root = scaling.power(jnp.where(halves < -lowest, 0, halves), diagonal.dtype)
    low, squares = _round(a, first, root, how.shift)
    size = jnp.sqrt(jnp.sum(ffi.all_gather(squares[None], layout, coordinates), keepdims=True))
    tiles, overflow, _, status = ffi.call(
        "jaxmg_potrf", layout, tile, "native", (lower_precision.after(coordinates, size), low),
        (
            jax.ShapeDtypeStruct(low.shape, low.dtype),
            jax.ShapeDtypeStruct((overflow_rows, n), low.dtype),
            jax.ShapeDtypeStruct((1,), jnp.finfo(low.dtype).dtype),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ),
        differing=2, n=n, products=how.products,
    )  # fmt: skip
    return Lowered(tiles, overflow, status, 1 / root[:n], size, tile)


def _round(a, first, root, shift):
    """Returns, for the rows from ``first`` on, S A S + shift in lower precision, and the sum of the
    squares in the upper triangle of S A S, where entries above the diagonal count twice.

    Works piece by piece, because XLA may not fuse all of it and would allocate memory of A's size.
    """
    rows, n = a.shape
    height = lower_precision.piece_height(rows, n)

    def piece(i, state):
        low, squares = state
        start = jnp.minimum(i * height, rows - height)
        row = first + start + jnp.arange(height)[:, None]
        column = jnp.arange(n)
        part = jax.lax.dynamic_slice_in_dim(a, start, height)
        part = _times_both(part, 1 / root[row], 1 / root[:n])
        shifted = jnp.where(row == column, part * (1 + shift), part)
        low = jax.lax.dynamic_update_slice_in_dim(low, shifted.astype(low.dtype), start, 0)
        fresh = row >= first + i * height  # the last piece may begin inside the one before
        part = jnp.where((row <= column) & fresh, part, 0)
        weights = jnp.where(row < column, 2, 1)
        return low, squares + jnp.sum(weights * (part.real**2 + part.imag**2))

    start = (jnp.zeros(a.shape, lower_precision.lower_dtype(a.dtype)), jnp.zeros((), root.dtype))
    return jax.lax.fori_loop(0, -(-rows // height), piece, start)


def _times_both(part, left, right):
    """Returns ``left * part * right`` for powers of two, also if ``part`` is denormal."""
    if jnp.issubdtype(part.dtype, jnp.complexfloating):
        parts = (_times_both(x, left, right) for x in (part.real, part.imag))
        return jax.lax.complex(*parts)
    lowest = scaling.lowest_exponent(part.dtype)
    half = lowest // 2
    part, small = scaling.lift_denormals(part)
    left = jnp.where(small, left * 2.0**-half, left)
    right = jnp.where(small, right * 2.0 ** (half - lowest), right)
    return left * part * right


def solve(call, coordinates, a, lower, b):
    """Solves by a factor in lower precision; returns (a, x, status, iterations) on this rank.

    The first result is A's memory with unspecified contents, for a caller who has donated A.
    """
    n, s = a.shape[1], lower.scale[:, None]
    factored = lower.status[0] == 0

    def multiply(v, parts=1):
        return s * lower_precision.native_like(
            "jaxmg_hemm", call.layout, 0, (coordinates, a, s * v), parts=parts
        )

    def precondition(r):
        largest = lower_precision.power_of_two(jnp.max(jnp.abs(r), axis=0))
        rounded = (r / largest).astype(lower.tiles.dtype)
        z = lower_precision.native_like(
            "jaxmg_factor_apply", call.layout, lower.tile,
            (coordinates, lower.tiles, lower.overflow, rounded),
            operation=cholesky_operations.SOLVE,
        )  # fmt: skip
        return largest * z.astype(r.dtype)

    def residual(b, x):
        return b - multiply(x, parts(n, call.layout.ranks, x.shape[1]))

    # Columns of b are scaled by exponents, since b and x may be denormal.
    scale = scaling.exponents(s)
    columns = jnp.max(scaling.exponents(b) + scale, axis=0)
    columns = jnp.where(jnp.any(scaling.magnitude(b) > 0, axis=0), columns, 0)
    scaled = scaling.times_power(jnp.where(factored, b, 0), scale - columns)
    solution = pcg.refine(multiply, residual, precondition, scaled, lower.size[0])
    x = scaling.times_power(solution.x, scale + columns)
    solution = solution._replace(x=x)
    return lower_precision.or_plain(
        call, a, b, factored, solution, functools.partial(_plain, call, coordinates)
    )


def _plain(call, coordinates, a, b):
    """Solves by a factorization in A's own precision; returns (A's memory, x, status)."""
    number = jax.ShapeDtypeStruct((1,), jnp.finfo(a.dtype).dtype)
    a, x, _, status = lower_precision.plain_solve("potrs", call, coordinates, a, b, number)
    return a, x, status
