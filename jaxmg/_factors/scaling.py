"""Multiplication by powers of two, exact whatever the range.

XLA's CPU code takes denormals for 0, in what it reads and in what it gives. Functions here look at
bits, so that a problem whose numbers are denormal, or whose products are on the way, is scaled to
one whose numbers are not, and its solution is scaled back.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat


def exponents(x):
    """e of |x| = f 2^e with 1 <= f < 2, int32; 0 of what isn't finite, very low of 0. Of a complex
    number that of its larger part."""
    if _is_complex(x):
        return jnp.maximum(exponents(x.real), exponents(x.imag))
    return _split(x)[1]


def times_power(x, exponent):
    """x 2^exponent for int32 exponents, rounded once where it is denormal."""
    if _is_complex(x):
        return jax.lax.complex(times_power(x.real, exponent), times_power(x.imag, exponent))
    format_ = _Format(x.dtype)
    fraction, own = _split(x)
    total = jnp.clip(own + exponent, -4 * format_.bias, 4 * format_.bias)
    normal = jnp.clip(total, 1 - format_.bias, format_.bias)
    scaled = fraction * format_.power(normal)  # of which one factor is in [1, 2)
    # The bits of a denormal are an integer, of the least one's size.
    power = total + format_.lowest
    steps = jnp.abs(fraction) * format_.power(jnp.clip(power, -2, format_.digits))
    bits = jax.lax.round(steps, jax.lax.RoundingMethod.TO_NEAREST_EVEN).astype(format_.integer)
    denormal = format_.number(bits | (format_.bits(fraction) & format_.sign))
    result = jnp.where(total < 1 - format_.bias, denormal, scaled)
    result = jnp.where(total > format_.bias, fraction * jnp.inf, result)
    return jnp.where(jnp.isfinite(x) & (fraction != 0), result, x)


def raised(x, exponent):
    """x 2^exponent of denormal numbers, too, where the result is normal; else it may be 0."""
    if _is_complex(x):
        return jax.lax.complex(raised(x.real, exponent), raised(x.imag, exponent))
    value, small = lift_denormals(x)
    return multiplied(value, exponent - jnp.where(small, _Format(x.dtype).lowest, 0))


def lift_denormals(x):
    """(x where it is normal, and the multiple of the least denormal that it is elsewhere; where it
    is denormal or 0); of a real x."""
    format_ = _Format(x.dtype)
    bits = format_.bits(x)
    small = (bits & ~format_.sign) < format_.first_normal
    # With the exponent of 2^digits the digits are an integer behind that.
    base = format_.number(bits & format_.digit_mask | format_.power_bits(format_.digits))
    count = base - format_.power(format_.digits)
    count = jnp.where((bits & format_.sign) != 0, -count, count)
    return jnp.where(small, count, x), small


def power(exponent, dtype):
    """2^exponent, which is normal, for int32 exponents."""
    return _Format(dtype).power(exponent)


def lowest_exponent(dtype):
    """-e of the least denormal, 2^e."""
    return _Format(jnp.finfo(dtype).dtype).lowest


def magnitude(x):
    """The bits of |x|, unsigned integers in the order of |x|: what compares denormals too."""
    if _is_complex(x):
        return jnp.maximum(magnitude(x.real), magnitude(x.imag))
    format_ = _Format(x.dtype)
    return format_.bits(x) & ~format_.sign


def largest(x, axis=None, keepdims=False):
    """The largest magnitude, of complex numbers that of a part; NaN where there is one."""
    dtype = jnp.finfo(x.dtype).dtype
    return _Format(dtype).number(jnp.max(magnitude(x), axis=axis, initial=0, keepdims=keepdims))


def largest_of_ranks(x, axes, axis=None):
    """`largest` of the values of all ranks, inside a shard_map over these axes of the mesh. A
    maximum of floating-point numbers loses a NaN there on CPU devices."""
    dtype = jnp.finfo(x.dtype).dtype
    found = jnp.max(magnitude(x), axis=axis, initial=0)
    return _Format(dtype).number(jax.lax.pmax(found, axes) if axes else found)


def exponent_of(x, axis=None, keepdims=False):
    """e of the largest magnitude f 2^e, 1 <= f < 2, of a normal number; 0 where it is zero or isn't
    finite. It has no derivative."""
    return exponent_of_largest(largest(jax.lax.stop_gradient(x), axis, keepdims))


def exponent_of_largest(x):
    """`exponent_of` where `largest` is known."""
    format_ = _Format(x.dtype)
    bits = format_.bits(x)
    found = (bits >> format_.digits).astype(jnp.int32) - format_.bias
    usable = (bits != 0) & (found <= format_.bias)
    return jnp.where(usable, jnp.maximum(found, 1 - format_.bias), 0)


def scaled(x, axis=None):
    """``x`` times the power of two that brings its largest entry to [1, 2), along these axes."""
    return multiplied(x, -exponent_of(x, axis, keepdims=True))


def homogeneous(function, *degrees, reads=None):
    """Computes a homogeneous ``function(a, *others, **options)`` on scaled matrices (..., m, n).

    Each matrix is multiplied by the power of two that brings its largest entry to [1, 2), and each
    result by the power that undoes it.

    Args:
        degrees: of the results. A single result has the degree that isn't 0. With halves the
            exponents are even, and the largest entries in [1, 4).
        reads: of ``a`` and the options, what the function reads of ``a``; None: everything.
    """
    step = 1 if all(degree == int(degree) for degree in degrees) else 2
    # A branch would take another copy of a result.
    back = multiplied if _compat.COMPILES_EXCHANGES else times_power

    @functools.wraps(function)
    def scaled_function(a, *others, **options):
        exponent = exponent_of(a if reads is None else reads(a, **options), (-2, -1))
        exponent = exponent if step == 1 else exponent >> 1
        results = function(_lifted(a, -step * exponent[..., None, None]), *others, **options)
        leaves, tree = jax.tree.flatten(results)
        of_each = degrees if len(leaves) == len(degrees) else (max(degrees, key=abs),)
        values = [
            back(x, int(step * degree) * over(exponent, x.ndim - a.ndim + 2)) if degree else x
            for x, degree in zip(leaves, of_each, strict=True)
        ]
        return jax.tree.unflatten(tree, values)

    return scaled_function


def over(exponent, dimensions):
    """``exponent`` with so many more dimensions of size 1."""
    return exponent.reshape(exponent.shape + (1,) * dimensions)


def log_det_of_scaled(function, a):
    """(sign, logarithm) of determinants by ``function``, of matrices (..., n, n) that are scaled if
    their factors might overflow or underflow."""
    exponent = exponent_of(a, (-2, -1))
    far = jnp.abs(exponent) > _Format(jnp.finfo(a.dtype).dtype).bias // 2
    exponent = jnp.where(far, exponent, 0)
    sign, log = function(multiplied(a, -exponent[..., None, None]))
    return sign, log + a.shape[-1] * exponent.astype(log.dtype) * np.log(2).astype(log.dtype)


def exp_times_power(log, exponent):
    """e^log 2^exponent, where only the result has to be in the range; and bit for bit a multiple of
    what it is with another exponent."""
    log2 = np.log(2).astype(log.dtype)
    own = jnp.round(jax.lax.stop_gradient(log) / log2)
    own = jnp.where(jnp.isfinite(own), own, 0)
    return multiplied(jnp.exp(log - own * log2), own.astype(jnp.int32) + exponent)


def with_upper_multiplied(a, exponent):
    """Matrices (..., m, n) of which the upper triangles are multiplied by 2^exponent, (...)."""
    return jnp.tril(a, -1) + jnp.triu(multiplied(a, over(exponent, 2)))


def multiplied(x, exponent):
    """x 2^exponent of normal numbers, by two products, which JAX may differentiate and which take
    less time than `times_power`."""
    if _is_complex(x):  # of which infinity times a complex number is NaN
        return jax.lax.complex(multiplied(x.real, exponent), multiplied(x.imag, exponent))
    format_ = _Format(x.dtype)
    half = exponent >> 1
    for part in (half, exponent - half):
        x = x * format_.power(clamped(part, 1 - format_.bias, format_.bias))
    return x


def clamped(x, least, most):
    """Integers, at least and at most these."""
    return jax.lax.clamp(x.dtype.type(least), x, x.dtype.type(most))


def _lifted(x, exponent):
    """`multiplied` where numbers or results may be denormal, too."""
    return jax.lax.platform_dependent(x, exponent, cpu=_lifted_on_cpu, default=multiplied)


@jax.custom_jvp
def _lifted_on_cpu(x, exponent):
    """XLA's code for CPUs takes denormals for 0. Beside large entries they are rounding."""
    info = jnp.finfo(x.dtype)
    if not _compat.COMPILES_EXCHANGES:  # the XLA of JAX 0.6.2 loses more of them, and branches
        return times_power(x, exponent)
    far = jnp.any(exponent > -info.minexp - 2 * info.nmant)
    return jax.lax.cond(far, raised, multiplied, x, exponent)


@_lifted_on_cpu.defjvp
def _lifted_on_cpu_jvp(primals, tangents):
    x, exponent = primals
    return _lifted_on_cpu(x, exponent), multiplied(tangents[0], exponent)


def _is_complex(x):
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _split(x):
    """(f, e) with x = f 2^e and 1 <= |f| < 2; (x, 0) of what isn't finite."""
    format_ = _Format(x.dtype)
    value, small = lift_denormals(x)
    bits = format_.bits(value)
    own = ((bits & ~format_.sign) >> format_.digits).astype(jnp.int32) - format_.bias
    one = bits & (format_.digit_mask | format_.sign) | format_.power_bits(0)
    finite, zero = jnp.isfinite(x), value == 0
    fraction = jnp.where(finite & ~zero, format_.number(one), value)
    own = jnp.where(small, own - format_.lowest, own)
    return fraction, jnp.where(finite, jnp.where(zero, -4 * format_.bias, own), 0)


class _Format:
    """The bits of a real dtype of IEEE 754."""

    def __init__(self, dtype):
        info = jnp.finfo(dtype)
        self.dtype = dtype
        self.integer = np.dtype(f"uint{info.bits}")
        self.digits = info.nmant
        self.bias = 1 - int(info.minexp)
        self.lowest = self.bias - 1 + self.digits
        self.sign = self.integer.type(1 << (info.bits - 1))
        self.first_normal = self.integer.type(1 << self.digits)
        self.digit_mask = self.integer.type((1 << self.digits) - 1)

    def bits(self, x):
        return jax.lax.bitcast_convert_type(x, self.integer)

    def number(self, bits):
        return jax.lax.bitcast_convert_type(bits, self.dtype)

    def power_bits(self, exponent):
        return self.integer.type((exponent + self.bias) << self.digits)

    def power(self, exponent):
        """2^exponent, which is normal, of an integer or of int32."""
        if isinstance(exponent, int):
            return self.number(self.power_bits(exponent))
        return self.number((exponent + self.bias).astype(self.integer) << self.digits)
