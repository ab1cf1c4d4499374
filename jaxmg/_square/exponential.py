"""The exponential of any square matrix: scaling and squaring with Taylor polynomials.

    exp(A) = t(A / 2^s)^(2^s)

The Taylor polynomial t is from P. Bader, S. Blanes, F. Casas, "Computing the matrix exponential
with an optimized Taylor polynomial approximation", Mathematics 7, 2019. It has degree 18 in double
precision and 12 in single, and takes five and four products. A Padé approximant takes fewer
squarings, but also an LU factorization of its denominator; a GPU computes ten products in that
time.

s is the smallest number for which the backward error, estimated from norms of powers, is below the
rounding (A. H. Al-Mohy and N. J. Higham, "A new scaling and squaring algorithm for the matrix
exponential", SIAM J. Matrix Anal. Appl. 31, 2009). As in that paper, the diagonal and the first
off-diagonal of a triangular matrix's exponential are computed by formulas.

The k-th derivative in the directions E_1 ... E_k is the forward-mode derivative of the program.
Reverse mode evaluates the same function at A^H: the adjoint of E -> D exp(A)[E] is
E -> D exp(A^H)[E] (A. H. Al-Mohy and N. J. Higham, SIAM J. Matrix Anal. Appl. 30, 2009). So no
power is stored for it.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import hermitian, products
from jaxmg._square import exponential_bands
from jaxmg._stacks import batching, scaling
from jaxmg._transform import derivatives

# Coefficients of I, A, A^2, A^3 and A^6 in the sums from which `_polynomial_18` computes t(A):
# equation (17) of Bader et al., rounded to double precision.
_DOUBLE = (
    (0.0, -1.00365581030144618291e-1, -8.02924648241156932449e-3, -8.92138498045729985177e-4, 0.0),
    (
        0.0, 3.97849749499645077844e-1, 1.36783778460411720168, 4.98289622525382669416e-1,
        -6.37898194594723280150e-4,
    ),
    (
        -1.09676396052962061844e1, 1.68015813878906206114, 5.71779846478865511061e-2,
        -6.98210122488052056106e-3, 3.34975017086070470649e-5,
    ),
    (
        -9.04316832390810593223e-2, -6.76404519071381882256e-2, 6.75961301770459654925e-2,
        2.95552570429315521194e-2, -1.39180257516060693404e-5,
    ),
    (0.0, 0.0, -9.23364619367118555360e-2, -1.69364939002081722752e-2, -1.40086798182036094347e-5),
)  # fmt: skip
# Coefficients of I, A, A^2 and A^3 for `_polynomial_12`: equation (14).
_SINGLE = (
    (0.0, 0.46932117595418237389, -0.20099424927047284052, -0.04623946134063071740),
    (
        5.31597895759871264183, 1.19926790417132231573, 0.01179296240992997031,
        0.01108844528519167989,
    ),
    (
        0.18188869982170434744, 0.05502798439925399070, 0.09351590770535414968,
        0.00610700528898058230,
    ),
    (0.0, -0.13181061013830184015, -0.02027855540589259079, -0.00675951846863086359),
)  # fmt: skip
# log2 of the largest order, for a bound of a product's entries.
_LOG_OF_ORDER = 20
# Products after which `_squarings` may stop, and the rounding of their logarithm.
_FIRST_STEPS, _ROUNDING = 3, 1e-3
# Largest norms, by degree, for which t and JAX's Padé approximants are accurate to the rounding.
_LIMITS = {18: (1.090863719290036, 5.371920351148152), 12: (1.461661507209034, 3.925724783138660)}


def exponential(a, layout, squarings):
    """Returns exp(A) of a (n, n) in a trace, with derivatives; NaN if A needs more squarings than
    JAX would do with ``squarings`` as its limit."""
    return _differentiable(_Derivative(layout, squarings), a) if a.size else a


def _differentiable(derivative, a):
    def rule(primals, tangents):
        (a,), (a_dot,) = primals, tangents
        value = _differentiable(derivative, a)
        return value, derivative(a, shardings.constrain_like(a_dot, a))

    value = _Value(derivative)
    if derivative.layout.explicit:
        return derivatives.differentiable(lambda a: batching.batchable(value, a), rule, a)
    return derivatives.differentiable(value, rule, a)


@dataclasses.dataclass(frozen=True)
class _Value(batching.Batchable):
    """The exponential. On explicit axes the matrices of a batch are computed one after the other:
    JAX can't batch a `cond` there if its operands are sharded."""

    of: "_Derivative"

    def __call__(self, a):
        return shardings.constrain_like(_compute(self.of, a), a)

    def batched(self, settled, size, marks, *arrays):
        placement = batching.placement_of_last(self.of.layout, arrays, marks)
        return batching.in_turn(self, marks, *arrays, placement=placement)


@dataclasses.dataclass(frozen=True)
class _Derivative(derivatives.Linear):
    """The k-th derivative of exp at A in the directions E_1 ... E_k, for arrays (A, E_1, ... E_k).

    It is linear in each direction and symmetric in all of them.
    """

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
        return shardings.constrain_like(function(a), arrays[-1])

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
    """Computes exp(A), with all matrices laid out by rows."""
    layout = of.on
    degree = 18 if jnp.finfo(a.dtype).eps < 1e-10 else 12
    rows = hermitian.rows(layout, a)
    squarings = _squarings(layout, rows, degree)
    # The caller's limit counts squarings of JAX's Padé approximants; t takes a few more.
    limit, of_jax = _LIMITS[degree]
    fails = ~(squarings <= of.squarings + math.ceil(math.log2(of_jax / limit)))
    squarings, fails = _once((jnp.where(fails, 0, squarings).astype(jnp.int32), fails))
    powers = _powers(layout, rows, degree)
    exponents = jnp.stack([exponent - k * squarings for k, (exponent, _) in powers.items()])
    one = jnp.ones(len(powers), jnp.finfo(a.dtype).dtype)
    factors = _once(scaling.multiplied(one, exponents))
    scaled = [(x, factors[i]) for i, (_, x) in enumerate(powers.values())]
    approximate = _polynomial_18 if degree == 18 else _polynomial_12
    exact = exponential_bands.make(layout, rows)

    times = functools.partial(hermitian.times, layout)

    def square(i, x):
        x = jax.lax.cond(i > 0, lambda x: times(x, x), lambda x: x, x)
        return exact(x, i - squarings)

    result = jax.lax.fori_loop(0, squarings + 1, square, approximate(times, scaled))
    result = scaling.times(result, jnp.where(fails, jnp.nan, 1).astype(one.dtype))
    return hermitian.with_padding(layout, result, a.shape[0])


def _once(scalars):
    """Passes the scalars through a barrier, so that XLA doesn't recompute them at each use."""
    return jax.lax.optimization_barrier(scalars)


def _powers(layout, a, degree):
    """Returns {k: (e, X)} with A^k = 2^e X for k = 1, 2, 3 and, for degree 18, 6. Without this
    scale, entries of A^k may overflow."""
    # Products of matrices whose entries are below 2^highest don't overflow. Smaller entries aren't
    # scaled, so that none gets smaller.
    highest = (jnp.finfo(a.dtype).maxexp - _LOG_OF_ORDER) // 2

    def power(x, y):
        own, matrix = bounded(hermitian.times(layout, x[1], y[1]))
        return x[0] + y[0] + own, matrix

    def bounded(x):
        largest = scaling.largest(jax.lax.stop_gradient(x))
        down, up = _once(scaling.powers_of(jnp.maximum(largest * 2.0**-highest, 1)))
        return scaling.exponent_of_power(up), scaling.times(x, down)

    first = bounded(a)
    second = power(first, first)
    third = power(second, first)
    powers = {1: first, 2: second, 3: third}
    return powers | {6: power(third, third)} if degree == 18 else powers


def _squarings(layout, a, degree):
    """Returns s, the number of squarings of t(A 2^-s); NaN or infinite if A isn't finite.

    The backward error is a series of A^k, k > degree. The norms of |A|^k bound these terms. If A's
    entries differ in size, they may be far smaller than powers of A's norm, so that fewer squarings
    suffice and fewer digits are lost. s is never larger than the number that A's norm requires.
    """
    log_of_limit = math.log2(_LIMITS[degree][0])
    absolute = jnp.abs(jax.lax.stop_gradient(a))
    sums = jnp.sum(absolute, axis=0)[:, None]
    largest = scaling.largest(sums)
    by_norm = jnp.maximum(jnp.ceil(jnp.log2(largest) - log_of_limit), 0)

    def step(k, state):
        sums, log, most, _ = state
        down, up = scaling.scale_of(sums)
        before = scaling.times(sums, down)
        sums = hermitian.general_adjoint_product(layout, absolute, before)
        log += scaling.exponent_of_power(up)
        root = (jnp.log2(scaling.largest(sums)) + log) / k
        ratio = jnp.min(jnp.where(before > 0, sums / before, jnp.inf))
        ratio = jnp.where(jnp.all(before == 0), 0, ratio)  # a power is 0; NaN stays
        return sums, log, jnp.where(k > degree, jnp.maximum(most, root), most), jnp.log2(ratio)

    def squarings(most):
        return jnp.minimum(jnp.maximum(jnp.ceil(most - log_of_limit), 0), by_norm)

    def until(last, first, needed, state):
        return jax.lax.cond(
            needed,
            lambda state: jax.lax.fori_loop(first, last + 1, step, state),
            lambda x: x,
            state,
        )

    # Every higher power is a product of powers from degree + 1 to 2 degree + 1.
    none = jnp.full((), -jnp.inf, largest.dtype)
    state = until(_FIRST_STEPS + 1, 2, by_norm > 0, (sums, jnp.zeros((), jnp.int32), none, none))
    # Each root is at least the spectral radius of |A|, which is at least each ratio (Collatz and
    # Wielandt). So if A's entries are of one size, a few steps show that the number of squarings
    # is `by_norm`.
    fewer = squarings(state[3] - _ROUNDING) < by_norm
    state = until(degree + 1, _FIRST_STEPS + 2, (by_norm > 0) & fewer, state)
    fewer &= squarings(state[2]) < by_norm
    state = until(2 * degree + 1, degree + 2, fewer, state)
    return jnp.where(fewer, squarings(state[2]), by_norm)


def _polynomial_18(times, powers):
    """Returns t(A) from A, A^2, A^3 and A^6, each a pair of a matrix and its factor. ``times`` is
    the product."""
    first, last, b, c, d = (_sum(row, powers) for row in _DOUBLE)
    ninth = times(first, d) + c
    return last + times(b + ninth, ninth)


def _polynomial_12(times, powers):
    """Returns t(A) from A, A^2 and A^3, as `_polynomial_18`."""
    last, b, c, d = (_sum(row, powers) for row in _SINGLE)
    sixth = c + times(d, d)
    return last + times(b + sixth, sixth)


def _sum(coefficients, powers):
    """Returns the sum of I and the powers times the coefficients."""
    constant, *others = coefficients
    terms = [
        (c * factor).astype(x.dtype) * x for c, (x, factor) in zip(others, powers, strict=True) if c
    ]
    if constant:
        a, _ = powers[0]
        terms.append(jnp.eye(len(a), a.shape[1], dtype=a.dtype) * constant)
    return functools.reduce(jnp.add, terms)
