"""Multiplication by powers of two, exact over the whole range.

XLA's CPU code takes denormals for 0, in operands and in results. The functions here work on bits.
They scale a problem whose numbers or intermediate products are denormal to one whose numbers
aren't, and scale its solution back.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._layouts import shardings


def exponents(x):
    """Returns e of |x| = f 2^e with 1 <= f < 2, int32; 0 if x isn't finite, and very low if x is 0.
    For a complex number this is the exponent of its larger part."""
    if _is_complex(x):
        return jnp.maximum(exponents(x.real), exponents(x.imag))
    return _split(x)[1]


def times_power(x, exponent):
    """Returns x 2^exponent for int32 exponents, rounded once if it is denormal."""
    if _is_complex(x):
        return jax.lax.complex(times_power(x.real, exponent), times_power(x.imag, exponent))
    format_ = _Format(x.dtype)
    fraction, own = _split(x)
    total = jnp.clip(own + exponent, -4 * format_.bias, 4 * format_.bias)
    normal = jnp.clip(total, 1 - format_.bias, format_.bias)
    scaled = fraction * format_.power(normal)  # exact, as |fraction| is in [1, 2)
    # The bits of a denormal are an integer: how often it contains the least denormal.
    power = total + format_.lowest
    steps = jnp.abs(fraction) * format_.power(jnp.clip(power, -2, format_.digits))
    bits = jax.lax.round(steps, jax.lax.RoundingMethod.TO_NEAREST_EVEN).astype(format_.integer)
    denormal = format_.number(bits | (format_.bits(fraction) & format_.sign))
    result = jnp.where(total < 1 - format_.bias, denormal, scaled)
    result = jnp.where(total > format_.bias, fraction * jnp.inf, result)
    return jnp.where(jnp.isfinite(x) & (fraction != 0), result, x)


def lift_denormals(x):
    """Returns (y, is_small) for a real x. ``is_small`` says whether x is denormal or 0. If it is, y
    is x divided by the least denormal, an integer; otherwise y is x."""
    format_ = _Format(x.dtype)
    bits = format_.bits(x)
    small = (bits & ~format_.sign) < format_.first_normal
    # With the exponent of 2^digits, the digits are an integer that is added to 2^digits.
    base = format_.number(bits & format_.digit_mask | format_.power_bits(format_.digits))
    count = base - format_.power(format_.digits)
    count = jnp.where((bits & format_.sign) != 0, -count, count)
    return jnp.where(small, count, x), small


def denormals_over_tiny(x):
    """Divides real denormal numbers, which XLA's CPU code takes for 0, by the least normal number.
    The result for other numbers is arbitrary."""
    format_ = _Format(x.dtype)
    one = format_.number(format_.bits(x) | format_.power_bits(0))  # 1 + |x| / tiny, with x's sign
    return one - jax.lax.sign(one)


def power(exponent, dtype):
    """Returns 2^exponent, which is normal, for int32 exponents."""
    return _Format(dtype).power(exponent)


def lowest_exponent(dtype):
    """Returns -e, where 2^e is the least denormal."""
    return _Format(jnp.finfo(dtype).dtype).lowest


def magnitude(x):
    """Returns the bits of |x|, unsigned integers in the order of |x|, to compare denormals too."""
    if _is_complex(x):
        return jnp.maximum(magnitude(x.real), magnitude(x.imag))
    format_ = _Format(x.dtype)
    return format_.bits(x) & ~format_.sign


def largest(x, axis=None, keepdims=False):
    """Returns the largest magnitude, for complex numbers of their parts; NaN if there is a NaN."""
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(each % x.ndim for each in axes)
    # Fewer operations than `magnitude`. CPUs would compare these bits with 0 as floats.
    parts = (x.real, x.imag) if _is_complex(x) else (x,)
    of_parts = (_Format(part.dtype).bits(jax.lax.abs(part)) for part in parts)
    bits = jax.lax.reduce_max(functools.reduce(jnp.maximum, of_parts), axes)
    bits = jnp.expand_dims(bits, axes) if keepdims else bits
    return _Format(jnp.finfo(x.dtype).dtype).number(bits)


def largest_of_ranks(x, axes, axis=None):
    """Returns `largest` of the values of all ranks, inside a shard_map over these axes of the mesh.
    A maximum of floating-point numbers would lose a NaN there on CPU devices."""
    dtype = jnp.finfo(x.dtype).dtype
    found = _Format(dtype).bits(largest(x, axis))
    return _Format(dtype).number(jax.lax.pmax(found, axes) if axes else found)


def exponent_of(x, axis=None, keepdims=False):
    """Returns e of the largest magnitude f 2^e, 1 <= f < 2, if it is normal; 0 if it is zero or not
    finite. The result has no derivative."""
    return exponent_of_largest(largest(jax.lax.stop_gradient(x), axis, keepdims))


def exponent_of_largest(x):
    """Returns `exponent_of`, given `largest`."""
    format_ = _Format(x.dtype)
    bits = format_.bits(x)
    found = (bits >> format_.digits).astype(jnp.int32) - format_.bias
    usable = (bits != 0) & (found <= format_.bias)
    return jnp.where(usable, jnp.maximum(found, 1 - format_.bias), 0)


def powers_of(largest, even=False, only_finite=False):
    """Returns (2^-e, 2^e) for the exponents e of these numbers, |x| = f 2^e with 1 <= f < 2. Both
    are normal for any x.

    Args:
        even: whether e must be even, with 1 <= f < 4.
        only_finite: whether e is 0 for numbers that aren't finite. Otherwise the other entries of
            their matrix vanish.
    """
    format_ = _Format(largest.dtype)
    least, most = format_.first_normal, format_.power_bits(format_.bias - (not even))
    bits = format_.bits(largest)
    if only_finite:
        one, infinite = format_.power_bits(0), format_.power_bits(format_.bias + 1)
        bits = jnp.where(bits < infinite, bits, one)
    bits = jax.lax.clamp(least, bits, most)
    if even:  # the biased exponent is odd
        bits = (bits - least) | least
    bits = bits & ~format_.digit_mask
    return format_.number(format_.power_bits(format_.bias) - bits), format_.number(bits)


def exponent_of_power(power):
    """Returns e of 2^e, int32."""
    format_ = _Format(power.dtype)
    return (format_.bits(power) >> format_.digits).astype(jnp.int32) - format_.bias


def scale_of(x, axis=None, keepdims=False, only_finite=False):
    """Returns `powers_of` the largest magnitude along these axes. They have no derivative."""
    size = largest(jax.lax.stop_gradient(x), axis, keepdims)
    return powers_of(size, only_finite=only_finite)


def scaled(x, axis=None, only_finite=False):
    """Returns (x 2^-e, 2^e) for the exponents e of the largest entries along these axes, which are
    in [1, 2) after scaling."""
    down, up = scale_of(x, axis, axis is not None, only_finite)
    return times_scale(x, down), up


def times(x, power):
    """Multiplies x by real numbers, which broadcast against it."""
    if _is_complex(x):  # infinity times a complex number would be NaN
        return jax.lax.complex(x.real * power, x.imag * power)
    return x * power


def homogeneous(
    function, *degrees, reads=None, columns=False, passes_largest=False, only_finite=False
):
    """Computes a homogeneous ``function(a, *others, **options)`` on scaled matrices (..., m, n).

    Each matrix is multiplied by the power of two that brings its largest entry to [1, 2), and each
    result by the power that undoes it.

    Args:
        degrees: degrees of the results. If ``function`` returns only one of the results, its degree
            is the one that isn't 0. With half-integer degrees the exponents are even, and the
            largest entries are in [1, 4).
        reads: function of ``a`` and the options that returns the entries that ``function`` reads.
            None: all of ``a``.
        columns: whether the results are linear in the columns of the next array, (..., m) or (...,
            m, k). CPU devices scale it too, because products with small entries are denormal.
        passes_largest: whether ``function`` takes the largest of the entries that it reads, (...),
            as ``largest``.
        only_finite: whether matrices with entries that aren't finite keep their scale, because
            other results are finite then.
    """
    even = any(degree != int(degree) for degree in degrees)

    @functools.wraps(function)
    def scaled_function(a, *others, **options):
        read = a if reads is None else reads(a, **options)
        size = largest(jax.lax.stop_gradient(read), (-2, -1))
        down, up = powers_of(size, even, only_finite)
        named = {"largest": times_scale(size, down)} if passes_largest else {}
        of_columns = None
        if columns:
            b = others[0]
            of_columns = _scale_of_columns(b, -1 if b.ndim < a.ndim else -2)
            others = times_scale(b, of_columns[0]), *others[1:]
        results = function(times_scale(a, over(down, 2)), *others, **options, **named)
        leaves, tree = jax.tree.flatten(results)
        of_each = degrees if len(leaves) == len(degrees) else (max(degrees, key=abs),)
        values = []
        for x, degree in zip(leaves, of_each, strict=True):
            power = over(_power(down, up, degree), x.ndim - a.ndim + 2)
            if of_columns is not None:
                values.append(_times_both(x, power, of_columns[1]))
            else:
                powers = [power] * max(round(abs(degree)), degree != 0)
                values.append(times_all(x, *powers))
        return jax.tree.unflatten(tree, values)

    return scaled_function


def _power(down, up, degree):
    """Returns 2^(e d) for a degree d that is 0.5 or -0.5, else 2^e or 2^-e, by the sign of d."""
    power = up if degree > 0 else down
    if degree == int(degree):
        return power
    format_ = _Format(power.dtype)
    bits = (format_.bits(power) + format_.power_bits(0)) >> 1
    return format_.number(bits)


def times_all(x, *powers):
    """Multiplies x by these powers, one after the other."""
    return functools.reduce(times, powers, x)


def linear_in_columns(solve):
    """Computes ``solve(a, b)``, which is linear in the columns of b, (..., m) or (..., m, k). CPU
    devices scale the columns, because products with small entries are denormal."""

    @functools.wraps(solve)
    def scaled_solve(a, b, power=None):
        """The solution, times ``power`` (...) if it is given."""
        down, up = _scale_of_columns(b, -1 if b.ndim < a.ndim else -2)
        x = solve(a, times_scale(b, down))
        power = jnp.ones_like(up) if power is None else over(power, x.ndim - a.ndim + 2)
        return _times_both(x, power, up)

    return scaled_solve


def _scale_of_columns(b, axis):
    """Returns `scale_of` each column on CPU devices, else ones."""

    def ones(b):
        one = jnp.ones_like(largest(b, axis, keepdims=True))
        return one, one

    b = jax.lax.stop_gradient(b)
    return jax.lax.platform_dependent(
        b, cpu=lambda b: powers_of(largest(b, axis, True), only_finite=True), default=ones
    )


def _times_both(x, p, q):
    """Returns x p q, where p and q are powers of two. Only the result must be in range."""
    return jax.lax.platform_dependent(
        x, p, q, cpu=_times_both_on_cpu, default=lambda x, p, q: times(x, p)
    )


@jax.custom_jvp
def _times_both_on_cpu(x, p, q):
    if _is_complex(x):
        parts = (_times_both_on_cpu(part, p, q) for part in (x.real, x.imag))
        return jax.lax.complex(*parts)
    p, q = halves(p, q)
    x = x * p
    # XLA's code returns 0 for a denormal x, whose bits are those of 1 + |x| / tiny less those of 1.
    format_, tiny = _Format(x.dtype), jnp.finfo(x.dtype).tiny
    small = x * (jnp.minimum(q, 1) * (1 / tiny))
    bits = format_.bits(small + jax.lax.sign(small)) - format_.power_bits(0)
    result = x * q
    return jnp.where((result == 0) & (small != 0), format_.number(bits), result)


@_times_both_on_cpu.defjvp
def _times_both_on_cpu_jvp(primals, tangents):
    p, q = halves(*primals[1:])
    return _times_both_on_cpu(*primals), times(times(tangents[0], p), q)


def halves(p, q):
    """Returns two powers of two of about equal size with the product p q."""
    format_ = _Format(p.dtype)
    both = format_.bits(p) + format_.bits(q)
    half = (both >> 1) & ~format_.digit_mask
    return format_.number(half), format_.number(both - half)


def times_scale(x, power):
    """Multiplies x by real powers of two, which broadcast against it. x may be denormal if the
    result is normal."""
    return jax.lax.platform_dependent(x, power, cpu=_times_scale_on_cpu, default=times)


@jax.custom_jvp
def _times_scale_on_cpu(x, power):
    """Corrects products that are 0 because XLA's CPU code takes denormals for 0."""
    if _is_complex(x):
        return jax.lax.complex(*(_times_scale_on_cpu(part, power) for part in (x.real, x.imag)))
    # XLA may merge the power with a constant factor of x, into a denormal.
    x = jax.lax.optimization_barrier(x)
    small = denormals_over_tiny(x) * (power * jnp.finfo(x.dtype).tiny)
    return jnp.where(x == 0, small, x * power)


@_times_scale_on_cpu.defjvp
def _times_scale_on_cpu_jvp(primals, tangents):
    return _times_scale_on_cpu(*primals), times(tangents[0], primals[1])


def over(exponent, dimensions):
    """Returns ``exponent`` with this number of additional dimensions of size 1."""
    return exponent.reshape(exponent.shape + (1,) * dimensions)


def log_det_of_scaled(function, a, passes_largest=False):
    """Returns (sign, logarithm) of the determinants of matrices (..., n, n), by ``function``.
    Matrices whose factors might overflow or underflow are scaled. With ``passes_largest`` the
    function takes their largest entry as ``largest``."""
    size = largest(jax.lax.stop_gradient(a), (-2, -1))
    down, up = powers_of(size)
    near = jnp.abs(exponent_of_power(up)) <= _Format(up.dtype).bias // 2
    down = jnp.where(near, jnp.ones_like(down), down)
    named = {"largest": times_scale(size, down)} if passes_largest else {}
    sign, log = function(times_scale(a, over(down, 2)), **named)
    return sign, log - exponent_of_power(down).astype(log.dtype) * (a.shape[-1] * math.log(2))


def exp_times_power(log, exponent):
    """Returns e^log 2^exponent, where only the result has to be in range. Results for different
    exponents are exact multiples of each other."""
    log2 = np.log(2).astype(log.dtype)
    own = jnp.round(jax.lax.stop_gradient(log) / log2)
    own = jnp.where(jnp.isfinite(own), own, 0)
    return multiplied(jnp.exp(log - own * log2), own.astype(jnp.int32) + exponent)


def in_upper(a, diagonal=0):
    """Returns the mask of the upper triangles of matrices (..., m, n), from this diagonal on."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, a.shape[-2:], i) for i in (0, 1))
    mask = column >= row + diagonal if diagonal else column >= row
    mask = jnp.broadcast_to(mask, a.shape)
    # On explicit axes the operands of a selection must be sharded alike.
    return mask if shardings.explicit_spec(a) is None else shardings.constrain_like(mask, a)


def upper(a, diagonal=0):
    """Returns `jax.numpy.triu` in fewer operations."""
    return jnp.where(in_upper(a, diagonal), a, 0)


def lower(a, diagonal=0):
    """Returns `jax.numpy.tril` in fewer operations."""
    return jnp.where(in_upper(a, diagonal + 1), 0, a)


def unit_lower(a):
    """Returns the lower triangle of a matrix (m, n) with ones on its diagonal."""
    return lower(a, -1) + jnp.eye(a.shape[0], a.shape[1], dtype=a.dtype)


def with_upper_times(a, power):
    """Multiplies the upper triangles of matrices (..., m, n) by these powers, (...)."""
    return jnp.where(in_upper(a), times(a, over(power, 2)), a)


def multiplied(x, exponent):
    """Returns x 2^exponent for normal numbers, by two products, which JAX can differentiate and
    which are faster than `times_power`."""
    if _is_complex(x):  # infinity times a complex number would be NaN
        return jax.lax.complex(multiplied(x.real, exponent), multiplied(x.imag, exponent))
    format_ = _Format(x.dtype)
    half = exponent >> 1
    for part in (half, exponent - half):
        x = x * format_.power(clamped(part, 1 - format_.bias, format_.bias))
    return x


def clamped(x, least, most):
    """Clamps integers to [least, most]."""
    return jax.lax.clamp(x.dtype.type(least), x, x.dtype.type(most))


def _is_complex(x):
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _split(x):
    """Returns (f, e) with x = f 2^e and 1 <= |f| < 2; (x, 0) if x isn't finite."""
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
        """Returns 2^exponent, which is normal, for an integer or int32."""
        if isinstance(exponent, int):
            return self.number(self.power_bits(exponent))
        return self.number((exponent + self.bias).astype(self.integer) << self.digits)
