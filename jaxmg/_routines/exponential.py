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
    order = sum(size > limit for _, limit in table[:-1])
    powers = _even_powers(layout, rows, order, highest=len(table) - 1)
    squarings = _squarings(layout, rows, size, order, powers, table)
    fails = ~(squarings <= of.squarings)
    squarings = jnp.where(fails, 0, squarings).astype(jnp.int32)
    scaled = scaling.multiplied(rows, -squarings)
    powers = [x.times(-k * squarings) for k, x in zip((2, 4, 6), powers, strict=True)]
    p, q = _numerator_and_denominator(layout, scaled, powers, order, [m for m, _ in table])
    factor = lu_factor.lu_factor(
        hermitian.with_padding(layout, q, a.shape[0]),
        **layout.by_rows.where,
    )
    exact = exponential_bands.make(layout, rows)

    def square(i, x):
        return exact(hermitian.times(layout, x, x), i + 1 - squarings)

    result = exact(factor._divide_rows(p), -squarings)
    result = jax.lax.fori_loop(0, squarings, square, result)
    return hermitian.with_padding(layout, jnp.where(fails, jnp.nan, result), a.shape[0])


@dataclasses.dataclass(frozen=True)
class _Power:
    """A power of A, ``mantissa`` 2^exponent, of which no entry overflows."""

    mantissa: jax.Array
    exponent: jax.Array

    def times(self, exponent):
        """The matrix 2^exponent."""
        return scaling.multiplied(self.mantissa, self.exponent + exponent)

    def log_of_norm(self):
        """log2 of its 1-norm."""
        return _log_of_norm(self.mantissa) + self.exponent


def _log_of_norm(x):
    return jnp.log2(scaling.largest(jnp.sum(jnp.abs(jax.lax.stop_gradient(x)), axis=0)))


def _product(layout, x, y):
    value = hermitian.times(layout, x.mantissa, y.mantissa)
    exponent = scaling.exponent_of(value)
    return _Power(scaling.multiplied(value, -exponent), x.exponent + y.exponent + exponent)


def _even_powers(layout, a, order, highest):
    """A^2, A^4 and A^6; zeros for those that this order doesn't need."""
    exponent = scaling.exponent_of(a)
    one = _Power(scaling.multiplied(a, -exponent), exponent)
    second = _product(layout, one, one)
    fourth = _product_if(order >= min(1, highest), layout, second, second)
    sixth = _product_if(order >= min(2, highest), layout, fourth, second)
    return second, fourth, sixth


def _product_if(needed, layout, x, y):
    def product(x, y):
        value = _product(layout, _Power(*x), _Power(*y))
        return value.mantissa, value.exponent

    def zero(x, y):
        return 0 * x[0], 0 * x[1]

    pairs = [(z.mantissa, z.exponent) for z in (x, y)]
    return _Power(*jax.lax.cond(needed, product, zero, *pairs))


def _squarings(layout, a, size, order, powers, table):
    """How often the result of A 2^-s is squared, of the highest order; 0 of a lower one.

    By the norms of powers, which may be far smaller than the powers of the norm where entries
    differ in size; so that no more digits are lost than needed (A. H. Al-Mohy, N. J. Higham, SIAM
    J. Matrix Anal. Appl. 31, 2009). Never more than by the norm.
    """
    m, limit = table[-1]
    by_norm = jnp.maximum(jnp.ceil(jnp.log2(size / limit)), 0)
    _, fourth, sixth = powers
    d4, d6 = fourth.log_of_norm() / 4, sixth.log_of_norm() / 6
    least = _squarings_for(jnp.maximum(d4, d6), table)

    def with_higher_powers(fourth, sixth):
        fourth, sixth = _Power(*fourth), _Power(*sixth)
        d8 = _product(layout, fourth, fourth).log_of_norm() / 8
        d10 = _product(layout, fourth, sixth).log_of_norm() / 10
        eta = jnp.minimum(jnp.maximum(d6, d8), jnp.maximum(d8, d10))
        return jnp.minimum(_squarings_for(eta, table), least)

    pairs = [(jax.lax.stop_gradient(x.mantissa), x.exponent) for x in (fourth, sixth)]
    far = (order == len(table) - 1) & (least > _MANY)
    least = jax.lax.cond(far, with_higher_powers, lambda *_: least, *pairs)
    # The first term of the backward error is that of |A|, to the power of 2 m + 1.
    needed = (order == len(table) - 1) & (least < by_norm)
    power = _log_of_absolute_power(layout, a, jnp.where(needed, 2 * m + 1, 0))
    f = math.factorial
    error = -math.log2(f(2 * m) // (f(m) * f(m)) * f(2 * m + 1)) + power - jnp.log2(size)
    unit = math.log2(float(jnp.finfo(a.dtype).eps)) - 1
    more = jnp.ceil((error - 2 * m * least - unit) / (2 * m))
    by_powers = least + jnp.maximum(more, 0)
    found = jnp.where(needed & (by_powers < by_norm), by_powers, by_norm)
    return jnp.where(size <= table[-2][1], 0, found)  # not of NaN


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
        exponent = scaling.exponent_of(sums)
        return scaling.multiplied(sums, -exponent), log + exponent

    sums, log = jax.lax.fori_loop(0, count, step, (sums, jnp.zeros((), jnp.int32)))
    return jnp.log2(scaling.largest(sums)) + log


def _numerator_and_denominator(layout, a, powers, order, orders):
    """p(A) and q(A) by rows, by A's even powers, of the order with this index among ``orders``.
    Products that the order doesn't need aren't computed."""
    eye = jnp.eye(len(a), a.shape[1], dtype=a.dtype)
    rows = [_coefficients(m, max(orders)) for m in orders]
    c = [jnp.asarray(column, a.dtype)[order] for column in zip(*rows, strict=True)]
    last = len(orders) - 1

    def times(x, y, lowest):
        """x y, where the order is at least this one of ``orders``."""
        return jax.lax.cond(
            order >= min(lowest, last + 1),
            lambda x, y: hermitian.times(layout, x, y),
            lambda x, y: x,
            x,
            y,
        )

    a2, a4, a6 = powers
    odd = c[1] * eye + c[3] * a2 + c[5] * a4 + c[7] * a6
    even = eye + c[2] * a2 + c[4] * a4 + c[6] * a6
    if max(orders) > 7:
        # Order 9 has one more power; order 13 has two products of sums with A^6.
        highest = order == last
        sum_of_odd = jnp.where(highest, c[13] * a6 + c[11] * a4 + c[9] * a2, a2)
        sum_of_even = c[12] * a6 + c[10] * a4 + c[8] * a2
        first = times(a6, sum_of_odd, 3)
        second = times(a6, sum_of_even, 4)
        nine = order == 3
        odd += jnp.where(highest, 1, jnp.where(nine, c[9], 0)).astype(a.dtype) * first
        even += jnp.where(highest, 1, 0).astype(a.dtype) * second
        even += jnp.where(nine, c[8], 0).astype(a.dtype) * first
    odd = hermitian.times(layout, a, odd)
    return even + odd, even - odd


def _coefficients(order, highest):
    """Those of p, which has 1 for the first, up to ``highest``."""
    f = math.factorial
    coefficients = [
        f(2 * order - j) * f(order) / (f(2 * order) * f(order - j) * f(j)) for j in range(order + 1)
    ]
    return coefficients + [0.0] * (highest - order)
