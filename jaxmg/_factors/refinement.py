"""Solving with a Cholesky factor in lower precision: the work of each rank."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import backends, checks, ffi, record
from jaxmg._factors import cholesky_operations, correction, pcg, scaling

# The native routines that refinement calls in addition to those of other modules.
SERVICES = ("hemm", "all_gather")
# `iterations` if the solution comes from a factorization in A's own precision, as in LAPACK's
# dsposv: the factorization in lower precision failed; refinement did not converge.
NOT_FACTORED = -3
NOT_CONVERGED = -(correction.LIMIT + 1)


@dataclasses.dataclass(frozen=True)
class _Lower:
    """A precision of factorizations.

    Attributes:
        products: the precision of the factorization's products (checks.PRODUCTS).
        shift: number added to the unit diagonal, so that a nearly singular A is positive definite
            after rounding (N. J. Higham and S. Pranesh, "Exploiting lower precision arithmetic in
            solving symmetric positive definite linear systems and least squares problems", SIAM J.
            Sci. Comput. 43, 2021). It is about the error of the products: a larger one costs
            iterations.
    """

    products: int
    shift: float


_PRECISIONS = {
    "float32": _Lower(checks.DEFAULT, 2.0**-24),
    "tf32": _Lower(1, 2.0**-14),
    "BF16_BF16_F32_X3": _Lower(2, 2.0**-20),
    "BF16_BF16_F32_X6": _Lower(3, 2.0**-23),
    "F16_F16_F32_X3": _Lower(4, 2.0**-23),
}
NAMES = (None, "auto", *_PRECISIONS)
# The precision for "auto", by (whether on GPUs, whether float64 or complex128): the fastest one
# over the most conditions (docs/laboratory.md).
_AUTO = {
    (True, True): "BF16_BF16_F32_X3",
    (True, False): "BF16_BF16_F32_X3",
    (False, True): "float32",
    (False, False): "tf32",
}
# In a residual the products of _DEPTH elements of each row of A are summed separately. A smaller
# number means less rounding but more memory (hemm.h), which is at most 1 / _MEMORY of a rank's
# rows.
_DEPTH, _MEMORY = 128, 16
# Number of elements that are rounded at a time: few for a large matrix, and many for a GPU.
_PIECE = 2**24
LOWER_DTYPES = (("float64", "float32"), ("complex128", "complex64"))


def check(routine, name, dtype, backend, platform):
    """Checks ``refine``; returns the precision of the factorization, with "auto" resolved."""
    name = checks.plain_precision(name)
    if isinstance(name, str) and 0 < checks.PRODUCTS.get(name, 0) < checks.DEFAULT:
        name = checks.precision_of(checks.PRODUCTS[name])
    if not isinstance(name, str | None) or name not in NAMES:
        raise ValueError(
            f"{routine}: refine must be one of {', '.join(map(repr, NAMES))}; got {name!r}"
        )
    wide = str(dtype) in dict(LOWER_DTYPES)
    if name == "auto":
        name = _AUTO[platform == "gpu", wide]
    if name == "float32" and not wide:
        raise ValueError(
            f"{routine}: refine='float32' is for float64 and complex128; a has dtype {dtype}. For "
            f"that pass one of refine={', '.join(repr(n) for n in _PRECISIONS if n != name)}"
        )
    if backend != "native":
        raise ValueError(
            f"{routine}: refine={name!r} needs backend 'native' (or 'auto'); got {backend!r}"
        )
    return name


OPTION = record.Option("refine", "refine", check)


def check_options(routine, refine, backend, *, precision=None, **refused):
    """Raises for options that exclude ``refine``; returns the backend to ask for."""
    if refine is None:
        raise ValueError(
            f"{routine}: return_iterations=True is for a call with refine; pass refine='auto', or "
            f"one of {', '.join(map(repr, _PRECISIONS))}"
        )
    if precision not in (None, "highest"):
        raise ValueError(
            f"{routine}: precision={precision!r} and refine={refine!r} both name the precision of "
            "the factorization; with refine leave precision out"
        )
    for argument, value in refused.items():
        if value:
            raise ValueError(
                f"{routine}: {argument}=True isn't possible with refine={refine!r}: a factor in "
                "lower precision has it with the accuracy of that; leave refine out"
            )
    return "native" if backend == "auto" else backend


def products_of(refine):
    """Returns the precision of the products of a factorization (checks.PRODUCTS)."""
    return _PRECISIONS[refine].products


def lower_dtype(dtype):
    return jnp.dtype(dict(LOWER_DTYPES).get(str(dtype), str(dtype)))


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
        "potrf", layout, "native", lower_dtype(dtype), (n, n), tile,
        products=products_of(refine),
    )  # fmt: skip


def piece_height(rows, n):
    """Returns the number of a rank's rows that are rounded at a time."""
    return min(max(_PIECE // n, 1), rows)


def parts(n, ranks, nrhs):
    """Returns the number of split components of x, which a residual multiplies one by one."""
    return max(n // max(_DEPTH, 2 * _MEMORY * ranks) // nrhs, 1)


def factor_and_solve(call, coordinates, a, b):
    """Computes `potrs` with refinement; returns (a, x, status, iterations) on this rank."""
    coordinates = after(coordinates, b)
    sizes = plan(call.layout, a.dtype, a.shape[1], call.tile, dict(call.attributes)["refine"])
    lower = factor_lower(call, coordinates, a, sizes["tile"], sizes["overflow_rows"])
    return solve(call, coordinates, a, lower, b)


def factor_lower(call, coordinates, a, tile, overflow_rows):
    """Factors the matrix of which ``a`` is this rank's rows; returns a `Lowered`."""
    layout, n = call.layout, a.shape[1]
    how = _PRECISIONS[dict(call.attributes)["refine"]]
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
        "jaxmg_potrf", layout, tile, "native", (after(coordinates, size), low),
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
    height = piece_height(rows, n)

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

    start = (jnp.zeros(a.shape, lower_dtype(a.dtype)), jnp.zeros((), root.dtype))
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
        return s * native_like("jaxmg_hemm", call.layout, 0, (coordinates, a, s * v), parts=parts)

    def precondition(r):
        largest = power_of_two(jnp.max(jnp.abs(r), axis=0))
        rounded = (r / largest).astype(lower.tiles.dtype)
        z = native_like(
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
    return or_plain(call, a, b, factored, solution, functools.partial(_plain, call, coordinates))


def _plain(call, coordinates, a, b):
    """Solves by a factorization in A's own precision; returns (A's memory, x, status)."""
    number = jax.ShapeDtypeStruct((1,), jnp.finfo(a.dtype).dtype)
    a, x, _, status = plain_solve("potrs", call, coordinates, a, b, number)
    return a, x, status


def plain_solve(native, call, coordinates, a, b, *numbers):
    """Returns all results of a native routine that solves in A's own precision.

    Args:
        numbers: shapes and dtypes of the results between x and the status.
    """
    return ffi.call(
        f"jaxmg_{native}", call.layout, call.tile, "native", (coordinates, a, b),
        (
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            jax.ShapeDtypeStruct(b.shape, b.dtype),
            *numbers,
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ),
        n=a.shape[1], products=checks.DEFAULT, check_b=False,
    )  # fmt: skip


def or_plain(call, a, b, factored, solution, plain):
    """Returns the refined solution if it is good, else a plain one: (a, x, status, iterations).

    Args:
        factored: whether the factorization in lower precision has succeeded.
        solution: `correction.Refined`.
        plain: function of (a, b) that solves in A's own precision in A's memory, and returns (that
            memory, x, status).
    """
    good = factored & solution.accepted

    def keep(a, b, x, good):
        return a, x, jnp.zeros((1,), jnp.int32)

    def factor_again(a, b, x, good):
        if not call.in_place:
            # The routine works on a copy. If it is made here, not by XLA before the branch, it
            # takes the memory where the factor was.
            a = jnp.where(good, 0, a)
        return plain(a, b)

    a, x, status = jax.lax.cond(good, keep, factor_again, a, b, solution.x, good)
    failed = jnp.where(factored, NOT_CONVERGED, NOT_FACTORED)
    return a, x, status, jnp.where(good, solution.steps, failed).astype(jnp.int32)[None]


def native_like(target, layout, tile, operands, **attributes):
    """Calls a native routine whose only result is like the last operand, equal on all ranks."""
    last = operands[-1]
    return ffi.call(
        target, layout, tile, "native", operands, (jax.ShapeDtypeStruct(last.shape, last.dtype),),
        in_place=0, differing=0, n=last.shape[0], **attributes,
    )[0]  # fmt: skip


def after(coordinates, *arrays):
    """Returns ``coordinates`` for a native call that must start after ``arrays`` are computed.

    A call that fails does so on all ranks, which then leave the program. If a second call, or a
    collective of XLA's, ran at the same time, a rank that has left would be missing in it, and the
    others would wait.
    """
    never = [array.ravel()[0].real < -jnp.inf for array in arrays if array.size]
    return coordinates + sum(value.astype(coordinates.dtype) for value in never)


def power_of_two(values):
    """Returns 2^e with values / 2^e in [1, 2); 1 for zero, denormals, NaN and infinity."""
    kind = jnp.finfo(values.dtype)
    whole = np.array(np.inf, values.dtype).view(f"uint{kind.bits}")  # all ones in the exponent
    bits = jax.lax.bitcast_convert_type(values, whole.dtype) & whole
    power = jax.lax.bitcast_convert_type(bits, values.dtype)
    return jnp.where((power > 0) & (power < np.inf), power, 1)
