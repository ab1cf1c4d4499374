"""The exponential of any square matrix: scaling and squaring with Padé approximants.

    exp(A) = r(A / 2^s)^(2^s),  r = p / q

N. J. Higham, "The scaling and squaring method for the matrix exponential revisited", SIAM J. Matrix
Anal. Appl. 26, 2005: the order of r is the lowest that is accurate for the 1-norm of A, and s is 0
but for the highest order. There it is chosen by the norms of powers, and of a triangular matrix the
diagonal and the one beside it are computed as such (A. H. Al-Mohy and N. J. Higham, "A new scaling
and squaring algorithm for the matrix exponential", SIAM J. Matrix Anal. Appl. 31, 2009). p and q
share their even powers, and commute, so that p q^-1 is a solve of rows as they lie, with the LU
factor of q.

The k-th derivative in the directions E_1 ... E_k is that of the program itself, forward. Reverse
ones are the same of A^H: the adjoint of E -> D exp(A)[E] is D exp(A^H) (A. H. Al-Mohy and N. J.
Higham, SIAM J. Matrix Anal. Appl. 30, 2009), so that no power is kept for them.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import layouts
from jaxmg._factors import scaling
from jaxmg._routines import exponential_bands, lu_factor
from jaxmg._transform import batching, derivatives, hermitian, products

# Orders of the approximants, and up to which 1-norm each is accurate to the rounding: table 2.3 of
# Higham's, and the same for single precision.
_DOUBLE = (
    (3, 1.495585217958292e-2),
    (5, 2.539398330063230e-1),
    (7, 9.504178996162932e-1),
    (9, 2.097847961257068),
    (13, 5.371920351148152),
)
_SINGLE = ((3, 4.258730016922831e-1), (5, 1.880152677804762), (7, 3.925724783138660))
# The same of the highest order for the norms of powers, where Al-Mohy and Higham have another.
_LIMIT_OF_POWERS = {13: 4.25}
# From how many squarings on two higher powers are worth their products.
_MANY = 8


def exponential(a, layout, squarings):
    """exp(A) of a (n, n) in a trace, with derivatives; NaN where it takes more ``squarings``."""
    return _differentiable(_Derivative(layout, squarings), a) if a.size else a


def _differentiable(derivative, a):
    def rule(primals, tangents):
        (a,), (a_dot,) = primals, tangents
        value = _differentiable(derivative, a)
        return value, derivative(a, layouts.constrain_like(a_dot, a))

    value = _Value(derivative)
    if derivative.layout.explicit:
        return derivatives.differentiable(lambda a: batching.batchable(value, a), rule, a)
    return derivatives.differentiable(value, rule, a)


@dataclasses.dataclass(frozen=True)
class _Value(batching.Batchable):
    """exp. A batch on explicit axes is taken one matrix after the other: JAX can't batch a `cond`
    there whose operands lie on several devices."""

    of: "_Derivative"

    def __call__(self, a):
        return layouts.constrain_like(_compute(self.of, a), a)

    def batched(self, settled, size, marks, *arrays):
        placement = batching.placement_of_last(self.of.layout, arrays, marks)
        return batching.in_turn(self, marks, *arrays, placement=placement)


@dataclasses.dataclass(frozen=True)
class _Derivative(derivatives.Linear):
    """The k-th derivative of exp at A in the directions E_1 ... E_k, of arrays (A, E_1, ... E_k): a
    symmetric function of these, and linear in each."""

    on: layouts.Layout
    squarings: int

    @property
    def layout(self):
        return self.on

    def run(self, *arrays):
        a, *directions = arrays
        function = functools.partial(_compute, self)
        for direction in directions:
            function = functools.partial(_along, function, direction)
        return layouts.constrain_like(function(a), arrays[-1])

    def rule(self, primals, tangents):
        a_dot, *moving = tangents
        directions = primals[1:]
        parts = [] if a_dot is None else [self(*primals, a_dot)]
        for i, moved in enumerate(moving):
            if moved is not None:
                others = (x for j, x in enumerate(directions) if j != i)
                parts.append(self(primals[0], *others, moved))
        value = self(*primals)
        return value, derivatives.sum_of(*parts)

    @property
    def adjoint(self):
        def apply(*arrays):
            *others, direction = arrays
            return self(*(products.adjoint(x, self.on) for x in others), direction)

        return apply


def _along(function, direction, a):
    return jax.jvp(function, (a,), (direction,))[1]


def _compute(of, a):
    """exp(A), by rows within."""
    layout = of.on
    table = _DOUBLE if jnp.finfo(a.dtype).eps < 1e-10 else _SINGLE
    rows = hermitian.rows(layout, a)
    size = scaling.largest(jnp.sum(jnp.abs(jax.lax.stop_gradient(a)), axis=0))
    limits = np.array([limit for _, limit in table[:-1]], size.dtype)
    order = _in_memory(jnp.sum(size > limits, dtype=jnp.int32))
    powers = _powers(layout, rows, order, highest=len(table) - 1)
    squarings = _squarings(layout, rows, size, order, powers[1:], table, of.squarings)
    fails = squarings < 0
    squarings = jnp.maximum(squarings, 0)
    p, q = _numerator_and_denominator(layout, powers, squarings, order, [m for m, _ in table])
    factor = lu_factor.lu_factor(
        hermitian.with_padding(layout, q, a.shape[0]),
        **layout.by_rows.where,
    )
    exact = exponential_bands.make(layout, rows)

    def square(i, x):
        return exact(hermitian.times(layout, x, x), i + 1 - squarings)

    result = exact(factor._divide_rows(p), -squarings)
    result = jax.lax.fori_loop(0, squarings, square, result)
    result = scaling.times(result, jnp.where(fails, jnp.nan, 1).astype(size.dtype))
    return hermitian.with_padding(layout, result, a.shape[0])


@dataclasses.dataclass(frozen=True)
class _Power:
    """A power of A, ``mantissa`` 2^exponent, of which no entry overflows."""

    mantissa: jax.Array
    exponent: jax.Array

    def log_of_norm(self):
        """log2 of its 1-norm."""
        return _log_of_norm(self.mantissa) + self.exponent


def _normalized(x, exponent):
    """x 2^exponent as a `_Power`."""
    x, up = scaling.scaled(x)
    return _Power(x, scaling.exponent_of_power(up) + exponent)


def _log_of_norm(x):
    return jnp.log2(scaling.largest(jnp.sum(jnp.abs(jax.lax.stop_gradient(x)), axis=0)))


def _product(layout, x, y):
    value = hermitian.times(layout, x.mantissa, y.mantissa)
    return _normalized(value, x.exponent + y.exponent)


def _powers(layout, a, order, highest):
    """A, A^2, A^4 and A^6; zeros for those that this order doesn't need."""
    one = _normalized(a, 0)
    second = _product(layout, one, one)
    fourth = _product_if(order >= min(1, highest), layout, second, second)
    sixth = _product_if(order >= min(2, highest), layout, fourth, second)
    return one, second, fourth, sixth


def _in_memory(integers):
    """The same, of which XLA has results instead of computing them again where they are read."""
    return jax.lax.optimization_barrier(integers)


def _product_if(needed, layout, x, y):
    def product(x, y):
        value = _product(layout, _Power(*x), _Power(*y))
        return value.mantissa, value.exponent

    def zero(x, y):
        return 0 * x[0], 0 * x[1]

    pairs = [(z.mantissa, z.exponent) for z in (x, y)]
    return _Power(*jax.lax.cond(needed, product, zero, *pairs))


def _squarings(layout, a, size, order, powers, table, most):
    """How often the result of A 2^-s is squared, int32, of the highest order; 0 of a lower one, and
    -1 if it is more than ``most``."""
    function = functools.partial(_squarings_of_highest, layout, table=table, most=most)
    pairs = [(jax.lax.stop_gradient(x.mantissa), x.exponent) for x in powers[1:]]
    is_highest = order == len(table) - 1
    never = lambda *_: jnp.where(jnp.isnan(size), -1, 0).astype(jnp.int32)  # noqa: E731
    return jax.lax.cond(is_highest, function, never, jax.lax.stop_gradient(a), size, *pairs)


def _squarings_of_highest(layout, a, size, fourth, sixth, *, table, most):
    """By the norms of powers, which may be far smaller than the powers of the norm where entries
    differ in size; so that no more digits are lost than needed (A. H. Al-Mohy, N. J. Higham, SIAM
    J. Matrix Anal. Appl. 31, 2009). Never more than by the norm.
    """
    m, limit = table[-1]
    by_norm = jnp.maximum(jnp.ceil(jnp.log2(size / limit)), 0)
    fourth, sixth = _Power(*fourth), _Power(*sixth)
    d4, d6 = fourth.log_of_norm() / 4, sixth.log_of_norm() / 6
    least = _squarings_for(jnp.maximum(d4, d6), table)

    def with_higher_powers():
        d8 = _product(layout, fourth, fourth).log_of_norm() / 8
        d10 = _product(layout, fourth, sixth).log_of_norm() / 10
        eta = jnp.minimum(jnp.maximum(d6, d8), jnp.maximum(d8, d10))
        return jnp.minimum(_squarings_for(eta, table), least)

    least = jax.lax.cond(least > _MANY, with_higher_powers, lambda: least)
    # The first term of the backward error is that of |A|, to the power of 2 m + 1.
    needed = least < by_norm
    power = _log_of_absolute_power(layout, a, jnp.where(needed, 2 * m + 1, 0))
    f = math.factorial
    error = -math.log2(f(2 * m) // (f(m) * f(m)) * f(2 * m + 1)) + power - jnp.log2(size)
    unit = math.log2(float(jnp.finfo(a.dtype).eps)) - 1
    more = jnp.ceil((error - 2 * m * least - unit) / (2 * m))
    by_powers = least + jnp.maximum(more, 0)
    found = jnp.where(needed & (by_powers < by_norm), by_powers, by_norm)
    return jnp.where(found <= most, found, -1).astype(jnp.int32)


def _squarings_for(log_of_eta, table):
    _, limit = table[-1]
    limit = _LIMIT_OF_POWERS.get(table[-1][0], limit)
    return jnp.maximum(jnp.ceil(log_of_eta - math.log2(limit)), 0)


def _log_of_absolute_power(layout, a, count):
    """log2 of the 1-norm of |A|^count, by as many products with a vector."""
    absolute = jnp.abs(jax.lax.stop_gradient(a))
    sums = jnp.ones((a.shape[1], 1), absolute.dtype)

    def step(_, state):
        sums, log = state
        sums = hermitian.general_adjoint_product(layout, absolute, sums)
        sums, up = scaling.scaled(sums)
        return sums, log + scaling.exponent_of_power(up)

    sums, log = jax.lax.fori_loop(0, count, step, (sums, jnp.zeros((), jnp.int32)))
    return jnp.log2(scaling.largest(sums)) + log


def _numerator_and_denominator(layout, powers, squarings, order, orders):
    """p and q of A 2^-s by rows, by powers of A, of the order with this index among ``orders``.
    Products that the order doesn't need aren't computed."""
    a, a2, a4, a6 = (x.mantissa for x in powers)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, a.shape, i) for i in (0, 1))
    eye = (row == column).astype(a.dtype)
    factors = _factors(powers, squarings, order, orders)
    last = len(orders) - 1

    def combined(start, *matrices):
        terms = (scaling.times(x, factors[start + i]) for i, x in enumerate(matrices))
        return functools.reduce(jnp.add, terms)

    def times(x, y, lowest):
        """x y, where the order is at least this one of ``orders``."""
        return jax.lax.cond(
            order >= min(lowest, last + 1),
            lambda x, y: hermitian.times(layout, x, y),
            lambda x, y: x,
            x,
            y,
        )

    odd, even = combined(1, eye, a2, a4, a6), combined(5, eye, a2, a4, a6)
    if max(orders) > 7:
        # Order 9 has one more power; order 13 has two products of sums with A^6.
        first = times(a6, combined(9, a2, a4, a6), 3)
        second = times(a6, combined(12, a2, a4, a6), 4)
        odd, even = odd + combined(15, first), even + combined(16, first, second)
    odd = combined(0, hermitian.times(layout, a, odd))
    return even + odd, even - odd


# Which of I, A, A^2, A^4 and A^6 the factors of `_row` are of.
_POWERS = (1, 0, 2, 3, 4, 0, 2, 3, 4, 2, 3, 4, 2, 3, 4, 4, 4, 4)


def _factors(powers, squarings, order, orders):
    """Those of `_row`, times the powers of two that the mantissas of A 2^-s lack."""
    dtype = jnp.finfo(powers[0].mantissa.dtype).dtype
    rows = [_row(m, max(orders)) for m in orders]
    table, which = np.array(rows, dtype), np.array(_POWERS[: len(rows[0])])
    factors = jax.lax.dynamic_slice_in_dim(table, order, 1, allow_negative_indices=False)[0]
    exponents = jnp.stack([squarings, *(x.exponent for x in powers)])
    of_each = np.eye(5, dtype=np.int32)
    of_each[0] = 0, -1, -2, -4, -6
    exponents = jnp.sum(exponents[:, None] * of_each[:, which], axis=0, dtype=jnp.int32)
    # A is at most near 1 here, and what is far below doesn't count beside I.
    exponents = jnp.maximum(exponents, int(jnp.finfo(dtype).minexp))
    factors = factors * scaling.power(exponents, dtype)
    bits = _in_memory(jax.lax.bitcast_convert_type(factors, f"int{jnp.finfo(dtype).bits}"))
    return jax.lax.bitcast_convert_type(bits, dtype)


def _row(order, highest):
    """The factors of `_numerator_and_denominator`: of A; of I, A^2, A^4, A^6 in the odd part over A
    and in the even one; of A^2, A^4, A^6 in the two sums that are multiplied with A^6; of the first
    product in the odd part over A, and of both in the even one."""
    c = _coefficients(order, 13)
    lowest = [1, *c[1:8:2], *c[0:8:2]]
    if highest <= 7:
        return lowest
    if order == 13:
        return [*lowest, *c[9:14:2], *c[8:13:2], 1, 0, 1]
    return [*lowest, 1, 0, 0, *c[8:13:2], c[9], c[8], 0]


def _coefficients(order, highest):
    """Those of p, which has 1 for the first, up to ``highest``."""
    f = math.factorial
    coefficients = [
        f(2 * order - j) * f(order) / (f(2 * order) * f(order - j) * f(j)) for j in range(order + 1)
    ]
    return coefficients + [0.0] * (highest - order)
