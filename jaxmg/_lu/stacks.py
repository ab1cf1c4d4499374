"""Stacks of general matrices on one device: the ways to factor and invert them, to solve with them
and to compute determinants, and the routines that compute all matrices of a batch at once.

The plugin has LU with partial pivoting, LAPACK's getrf, getrs and getri, and for small matrices
elimination in registers. Panels of the LU are in the shared memory of a GPU's multiprocessor,
which is large enough for matrices of order 2048. A singular matrix has no finite inverse, and the
inverse of a matrix with NaN is NaN; others are unaffected.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import choice, library, native, products, scaling, sections, triangle
from jaxmg._stacks.choice import JAX, Row


def _differentiable_solve(function):
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        (a, b), (a_dot, b_dot) = primals, tangents
        x = value(a, b)
        return x, jax.lax.custom_linear_solve(
            functools.partial(products.multiply, a),
            b_dot - products.multiply(a_dot, x),
            lambda _, y: value(a, y),
            lambda _, y: value(jnp.swapaxes(a, 1, 2), y),
        )

    return value


def _differentiable_inverse(function):
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        x = value(*primals)
        return x, -products.multiply(products.multiply(x, tangents[0]), x)

    return value


@_compat.default_promotion()
def _solve_by_plugin(a, b, **few):
    packed, pivots = native.factor_lu(a)
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, a.shape[-1])
    x = triangle.solve(
        True, packed, jnp.take_along_axis(b, order[..., None], axis=1), unit=True, **few
    )
    return triangle.solve(True, packed, x, upper=True, **few)


@_compat.default_promotion()
def inverse_of_factors(packed, pivots):
    """Returns U^-1 L^-1, with columns in the order of A's rows, from `native.factor_lu`."""
    n = packed.shape[-1]
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, n)
    lower = native.invert_triangle(jnp.tril(packed, -1) + jnp.eye(n, dtype=packed.dtype))
    upper = native.invert_triangle(jnp.triu(packed), upper=True)
    back = jnp.argsort(order, axis=1)[:, None, :]
    return jnp.take_along_axis(products.multiply(upper, lower), back, axis=2)


def _inverse_by_plugin(a):
    return inverse_of_factors(*native.factor_lu(a))


solve_by_plugin = _differentiable_solve(library.spoiled(_solve_by_plugin))
solve_by_lapack = _differentiable_solve(
    library.spoiled(lambda a, b: _solve_by_plugin(a, b, few=math.inf))
)
_solve_small = _differentiable_solve(library.spoiled(native.solve_small))
inverse_by_plugin = _differentiable_inverse(library.spoiled(_inverse_by_plugin))
inverse_of_small = _differentiable_inverse(library.spoiled(native.invert_small))


def solve_small(a, b):
    """Computes A^-1 B for a (count, n, n), n <= 32, and b (count, n, nrhs). JAX computes it for
    many columns."""
    few = b.shape[-1] <= native.MOST_SMALL_COLUMNS
    return _solve_small(a, b) if few else library.solve(a, b)


def gesv(platform, a, b):
    lu, pivots, log_det, sign, failed = _lu(platform, a)
    return (
        a,
        lu_solve(platform, lu, pivots, b),
        log_det,
        sign,
        jnp.zeros_like(failed, jnp.int32),
    ), failed


def getri(platform, a):
    lu, pivots, *_, failed = _lu(platform, a)
    return (lu_inverse(platform, lu, pivots), jnp.zeros_like(failed, jnp.int32)), failed


def lu_factor(platform, a):
    """Returns the factor as the engine has it on one rank: of A^T, and with an empty overflow."""
    lu, pivots, log_det, sign, failed = _lu(platform, a)
    overflow = jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    return (lu, overflow, pivots, log_det, sign, jnp.zeros_like(failed, jnp.int32)), failed


def _lu(platform, a):
    """Returns (the transpose of the LU factors of A^T; their pivots; the logarithm and the sign of
    det(A); a mask of the matrices with det(A) = 0 or with entries that aren't finite)."""
    turned = jnp.swapaxes(a, -1, -2)
    lu, pivots = LU(platform, turned)
    sign, log_det = log_det_of_factors(lu, pivots)
    # U may have a finite diagonal although A isn't finite: cuSOLVER's pivot search skips NaN.
    good = jnp.isfinite(log_det) & jnp.isfinite(a).all(axis=(-2, -1))
    return jnp.swapaxes(lu, -1, -2), pivots, log_det, sign, ~good


# On a GPU small batches of medium orders are as fast with JAX's routine.
_ROWS = (
    Row("gpu", "plugin", (33, 1024), 4),
    Row("gpu", "plugin", (1025, 2048), 8, ("f4", "f8", "c4")),
    Row("gpu", "plugin", (1025, 2048), 12),
)
LU = choice.Operation(
    "lu",
    {JAX: lambda a: library.lu(a)[:2], "plugin": native.factor_lu},
    (*_ROWS, choice.on_cpus("plugin")),
)
GESV = choice.at_once(gesv, *choice.rows_at_once(gpu=1024, cpu=64))
GETRI = choice.at_once(getri, *choice.rows_at_once(gpu=1024, cpu=64))
LU_FACTOR = choice.at_once(lu_factor, *choice.rows_at_once(gpu=2048, cpu=64))


def lu_solve(platform, lu, pivots, b, adjoint=False):
    """Solves A x = b, or A^H x = b if ``adjoint``, by the factors of `_lu`: A = U^T L^T P."""
    if not b.size:
        return b
    columns = b[..., None] if b.ndim == 2 else b
    permutation = jax.lax.linalg.lu_pivots_to_permutation(pivots, lu.shape[-1])
    rows = (permutation if adjoint else jnp.argsort(permutation, axis=-1))[..., None]

    def solve(x, upper):
        return triangle.solve_on(platform, lu, x, upper=upper, adjoint=adjoint, unit=upper)

    if adjoint:
        x = solve(solve(jnp.take_along_axis(columns, rows, axis=-2), True), False)
    else:
        x = jnp.take_along_axis(solve(solve(columns, False), True), rows, axis=-2)
    return x.reshape(b.shape)


def lu_solve_rows(platform, lu, pivots, b, adjoint=False):
    """Returns B A^-1, or B A^-H if ``adjoint``, by the factors of `_lu`."""
    return sections.adjoint(
        lu_solve(platform, lu, pivots, sections.adjoint(b), adjoint=not adjoint)
    )


def lu_inverse(platform, lu, pivots):
    """Returns the inverse of A by the factors of `_lu`."""
    return INVERSE_OF_FACTOR(platform, lu, pivots)


def _lu_inverse_by_jax(lu, pivots):
    eye = jnp.broadcast_to(jnp.eye(lu.shape[-1], dtype=lu.dtype), lu.shape)
    return lu_solve(None, lu, pivots, eye)


def _lu_inverse_by_plugin(lu, pivots):
    return jnp.swapaxes(inverse_of_factors(jnp.swapaxes(lu, -1, -2), pivots), -1, -2)


@_compat.default_promotion()
def log_det(platform, a):
    """Returns (signs, logarithms of the absolute values). For order 2 JAX takes the logarithm of
    the determinant itself, and for order 3 LU, so order 2 is padded to 3."""
    if a.shape[-1] != 2:
        return slogdet(platform, a)
    larger = sections.pad(a, 3, 3) + jnp.diag(jnp.array([0, 0, 1], a.dtype))
    return tuple(library.slogdet(larger))


def slogdet(platform, a):
    """Computes `log_det` by LU."""
    sign, log = SLOGDET(platform, a)
    return sign, log


@_compat.default_promotion()
def log_det_of_factors(packed, pivots):
    """Returns (signs, logarithms of the absolute values), given LU and LAPACK's pivots."""
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sizes = jnp.abs(diagonal)
    units = diagonal / jnp.where(sizes == 0, 1, sizes).astype(packed.dtype)
    sign = jnp.prod(units, axis=-1) * parity(pivots).astype(packed.dtype)
    return sign, jnp.log(sizes).sum(axis=-1)


def parity(pivots):
    """Returns the signs of permutations, as integers."""
    moved = jnp.sum(pivots != jnp.arange(pivots.shape[-1], dtype=pivots.dtype), axis=-1)
    return 1 - 2 * (moved % 2)


@library.spoiled
def _slogdet_by_plugin(a):
    return log_det_of_factors(*native.factor_lu(a))


slogdet_by_plugin = jax.custom_jvp(_slogdet_by_plugin)


@slogdet_by_plugin.defjvp
@_compat.default_promotion()
def _(primals, tangents):
    """d log det(A) = trace(A^-1 dA); its imaginary part is that of the phase."""
    (a,), (a_dot,) = primals, tangents
    sign, log = slogdet_by_plugin(a)
    trace = trace_by_plugin(a, a_dot)
    turned = sign * (trace - trace.real.astype(trace.dtype))
    return (sign, log), (turned, trace.real)


SLOGDET = choice.Operation("lu", {JAX: library.slogdet, "plugin": slogdet_by_plugin}, LU.rows)


def trace_by_plugin(a, a_dot):
    return jnp.sum(jnp.swapaxes(inverse_by_plugin(a), -1, -2) * a_dot, axis=(-2, -1))


INV = choice.Operation(
    "inv",
    {
        JAX: library.inv,
        "plugin": scaling.homogeneous(inverse_by_plugin, -1),
        "small": scaling.homogeneous(inverse_of_small, -1),
    },
    (*_ROWS, Row("gpu", "small", (1, 32)), choice.on_cpus("plugin")),
)
INVERSE_OF_FACTOR = choice.Operation(
    "inv",
    {JAX: _lu_inverse_by_jax, "plugin": _lu_inverse_by_plugin, "small": _lu_inverse_by_jax},
    INV.rows,
)
SOLVE = choice.Operation(
    "solve",
    {
        JAX: library.solve,
        "plugin": scaling.homogeneous(solve_by_plugin, -1, columns=True),
        "lapack": scaling.homogeneous(solve_by_lapack, -1, columns=True),
        "small": scaling.homogeneous(solve_small, -1, columns=True),
    },
    (*_ROWS, Row("gpu", "small", (1, 32)), choice.on_cpus("lapack")),
)


def inverse(platform, a):
    """Computes the inverse by LU."""
    return INV(platform, a)


def solve(platform, a, b):
    """Computes A^-1 B by LU, for b (count, n, nrhs)."""
    return SOLVE(platform, a, b)
