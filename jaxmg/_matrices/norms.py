"""Norms whose intermediate results neither overflow nor underflow, and maxima that propagate NaN.

Sums of powers are taken after scaling by a power of two that brings the largest entry near 1. XLA's
maximum over a sharded axis loses NaN on CPU devices (jaxlib 0.11.2). So the bits of the entries, or
a sum, decide whether there is a NaN.
"""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import scaling

_MATRIX_SUMS = (1, -1, jnp.inf, -jnp.inf)


def largest(x, axis, keepdims=False):
    """Returns the largest of nonnegative numbers; NaN if there is one, and 0 for no numbers."""
    value = _extreme(x, axis % x.ndim, True)
    return value if keepdims else jnp.squeeze(value, axis)


def smallest(x, axis, keepdims=False):
    """Returns the smallest of nonnegative numbers; NaN if there is one."""
    value = _extreme(x, axis % x.ndim, False)
    return value if keepdims else jnp.squeeze(value, axis)


def _smallest(x, axis, keepdims=False):
    total = jnp.sum(x, axis, keepdims=keepdims)
    return jnp.where(jnp.isnan(total), total, jnp.min(x, axis, keepdims=keepdims))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
@_compat.default_promotion()
def norm(x, ord=None, axis=None, keepdims=False, scaled=False):
    """Computes `jax.numpy.linalg.norm` of inexact numbers, except matrix norms of singular values.

    Args:
        scaled: whether the largest entry is known to be near 1.
    """
    if x.dtype in (jnp.bfloat16, jnp.float16):  # float16 sums would overflow
        return norm(x.astype(jnp.float32), ord, axis, keepdims, scaled).astype(x.dtype)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not isinstance(ord, str | None):
        if len(axes) == 2 and ord in _MATRIX_SUMS:
            return _extreme_sum(x, ord, *axes, keepdims)
        if len(axes) == 1 and ord in (jnp.inf, -jnp.inf):
            extreme = largest if ord > 0 else smallest
            return extreme(jnp.abs(x), axes[0], keepdims)
        if len(axes) == 1 and ord in (0, 1):
            return jnp.linalg.norm(x, ord, axis, keepdims)
        if len(axes) == 1 and ord == 2:
            ord = None
    if (ord is None and (axis is None or len(axes) < 3)) or (ord == "fro" and len(axes) == 2):
        value = _root_of_squares(x, axes) if scaled else _euclidean(x, axes)
        return value if keepdims else jnp.squeeze(value, axes)
    if isinstance(ord, str | None):
        return jnp.linalg.norm(x, ord, axis, keepdims)  # raises
    return _power_norm(x, ord, axis, keepdims)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _euclidean(x, axes):
    """Returns the square root of the sum of squares."""
    down, up = scaling.scale_of(x, axes, keepdims=True)
    return _root_of_squares(scaling.times_scale(x, down), axes) * up


@_euclidean.defjvp
@_compat.default_promotion()
def _euclidean_jvp(axes, primals, tangents):
    """JVP rule. A norm's derivative is the same for a scaled x, so x is scaled and x_dot isn't."""
    (x,), (x_dot,) = primals, tangents
    scaled = scaling.times_scale(x, scaling.scale_of(x, axes, keepdims=True)[0])
    moved = jax.jvp(lambda x: _root_of_squares(x, axes), (scaled,), (x_dot,))[1]
    return _euclidean(x, axes), moved


def _root_of_squares(x, axes):
    squares = x.real * x.real + x.imag * x.imag if jnp.iscomplexobj(x) else x * x
    return jnp.sqrt(jnp.sum(squares, axes, keepdims=True))


def _extreme_sum(x, ord, row, column, keepdims):
    """Returns the largest or smallest sum of absolute values of a column or of a row."""
    along, across = (row, column) if abs(ord) == 1 else (column, row)
    sums = jnp.sum(jnp.abs(x), along, keepdims=True)
    value = _extreme(sums, across % x.ndim, bool(ord > 0))
    return value if keepdims else jnp.squeeze(value, (row, column))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _extreme(sums, axis, is_largest):
    return (scaling.largest if is_largest else _smallest)(sums, axis, keepdims=True)


@_extreme.defjvp
@_compat.default_promotion()
def _extreme_jvp(axis, is_largest, primals, tangents):
    (sums,), (sums_dot,) = primals, tangents
    value = _extreme(sums, axis, is_largest)
    return value, jnp.sum(_weights(sums, value, axis, is_largest) * sums_dot, axis, keepdims=True)


def _weights(sums, value, axis, is_largest):
    """Returns the derivatives of the largest or smallest sum with respect to each sum.

    Equal sums share the derivative equally, as in JAX. XLA's code for GPUs may recompute the sums
    in another order, so that none equals ``value``. Then the first extreme sum has derivative 1.
    """
    first = (jnp.argmax if is_largest else jnp.argmin)(sums, axis, keepdims=True)
    position = jax.lax.broadcasted_iota(first.dtype, sums.shape, axis)
    ties = ((sums == value) | (position == first)).astype(sums.dtype)
    weights = ties / jnp.sum(ties, axis, keepdims=True)
    return jnp.where(jnp.isnan(value), jnp.nan, weights)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _power_norm(x, ord, axis, keepdims):
    scaled, exponent, factor = _scaled(x, ord, axis)
    value = jnp.linalg.norm(scaled, ord, axis, keepdims)
    if not keepdims:
        exponent, factor = (jnp.squeeze(each, axis) for each in (exponent, factor))
    return scaling.multiplied(value * factor, exponent)


@_power_norm.defjvp
@_compat.default_promotion()
def _power_norm_jvp(ord, axis, keepdims, primals, tangents):
    """JVP rule. A norm's derivative is the same for a scaled x, so x is scaled and x_dot isn't."""
    (x,), (x_dot,) = primals, tangents
    scaled, *_ = _scaled(x, ord, axis)
    moved = jax.jvp(lambda x: jnp.linalg.norm(x, ord, axis, keepdims), (scaled,), (x_dot,))[1]
    return _power_norm(x, ord, axis, keepdims), moved


def _scaled(x, ord, axis):
    """Returns (x / c, e, f), where c = f 2^e, 1 <= f < 2, is the magnitude that dominates the norm.

    For negative powers this is the smallest one, otherwise the largest. x is divided by 2^e and f
    separately: XLA divides by multiplying with the reciprocal, and that of the largest numbers is
    denormal and flushed to 0.
    """
    still = jax.lax.stop_gradient(x)
    if float(ord) > 0:
        scale = scaling.largest(still, axis, keepdims=True)
    else:
        scale = _smallest(jnp.abs(still), axis, keepdims=True)
    scale = jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1)
    exponent = scaling.exponent_of(scale, ())
    x, factor = scaling.multiplied(x, -exponent), scaling.multiplied(scale, -exponent)
    if jnp.iscomplexobj(x):
        return jax.lax.complex(x.real / factor, x.imag / factor), exponent, factor
    return x / factor, exponent, factor
