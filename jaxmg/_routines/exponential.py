"""The exponential of any square matrix: scaling and squaring with Padé approximants.

    exp(A) = r(A / 2^s)^(2^s),  r = p / q

N. J. Higham, "The scaling and squaring method for the matrix exponential revisited", SIAM J. Matrix
Anal. Appl. 26, 2005: the order of r is the lowest that is accurate for the 1-norm of A, and s is 0
but for the highest order. p and q share their even powers, and commute, so that p q^-1 is a solve
of rows as they lie, with the LU factor of q.

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
from jaxmg._routines import lu_factor
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
    size = jnp.max(jnp.sum(jnp.abs(jax.lax.stop_gradient(a)), axis=0))
    squarings = jnp.ceil(jnp.log2(size / table[-1][1]))
    fails = ~(squarings <= of.squarings)
    squarings = jnp.where(fails, 0, jnp.maximum(squarings, 0)).astype(jnp.int32)
    shrink = scaling.power(-squarings, size.dtype)
    order = sum(size > limit for _, limit in table[:-1])
    rows = hermitian.rows(layout, a) * shrink.astype(a.dtype)
    p, q = _numerator_and_denominator(layout, rows, order, [m for m, _ in table])
    factor = lu_factor.lu_factor(
        hermitian.with_padding(layout, q, a.shape[0]),
        mesh=layout.mesh,
        matrix_specs=layout.row_spec,
    )
    result = jax.lax.fori_loop(
        0, squarings, lambda _, x: hermitian.times(layout, x, x), factor._divide_rows(p)
    )
    return hermitian.with_padding(layout, jnp.where(fails, jnp.nan, result), a.shape[0])


def _numerator_and_denominator(layout, a, order, orders):
    """p(A) and q(A) by rows, of the order with this index among ``orders``. Products that the order
    doesn't need aren't computed."""
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

    a2 = hermitian.times(layout, a, a)
    a4 = times(a2, a2, 1)
    a6 = times(a4, a2, 2)
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
