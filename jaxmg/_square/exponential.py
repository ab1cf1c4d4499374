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

The k-th derivative in the directions E_1 ... E_k is the forward-mode derivative of the program,
with the same s. Reverse mode evaluates the same function at A^H: the adjoint of E -> D exp(A)[E] is
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
# Products after which `_squarings` may stop, and the rounding of their logarithm.
_FIRST_STEPS, _ROUNDING = 3, 1e-3
# Largest norms, by degree, for which t and JAX's Padé approximants are accurate to the rounding.
_LIMITS = {18: (1.090863719290036, 5.371920351148152), 12: (1.461661507209034, 3.925724783138660)}


def exponential(a, layout, squarings):
    """Returns exp(A) of a (n, n) in a trace, with derivatives; NaN if A needs more squarings than
    JAX would do with ``squarings`` as its limit."""
    if not a.size:
        return a
    derivative = _Derivative(layout)
    s = _each_alone(_Squarings(layout, squarings), jax.lax.stop_gradient(a))
    return _differentiable(derivative, s, a)


def _differentiable(derivative, s, a):
    def rule(primals, tangents):
        (s, a), (_, a_dot) = primals, tangents
        value = _differentiable(derivative, s, a)
        return value, derivative(s, a, shardings.constrain_like(a_dot, a))

    value = functools.partial(_each_alone, _Value(derivative.layout))
    return derivatives.differentiable(value, rule, s, a)


def _each_alone(function, *arrays):
    """Calls ``function``. On explicit axes the matrices of a batch are computed one after the
    other: JAX can't batch a `cond` there if its operands are sharded."""
    if function.layout.explicit:
        return batching.batchable(function, *arrays)
    return function(*arrays)


@dataclasses.dataclass(frozen=True)
class _Squarings(batching.Batchable):
    """The number of squarings, int32; -1 if it is larger than that of JAX with ``most`` as its
    limit, or if A isn't finite."""

    layout: layouts.Layout
    most: int

    def __call__(self, a):
        degree = _degree(a)
        squarings = _squarings(self.layout, hermitian.rows(self.layout, a), degree)
        # The caller's limit counts squarings of JAX's Padé approximants; t takes a few more.
        limit, of_jax = _LIMITS[degree]
        works = squarings <= self.most + math.ceil(math.log2(of_jax / limit))
        return jnp.where(works, squarings, -1).astype(jnp.int32)

    def batched(self, settled, size, marks, *arrays):
        return batching.in_turn(self, marks, *arrays)


@dataclasses.dataclass(frozen=True)
class _Value(batching.Batchable):
    """The exponential, from the number of squarings and A."""

    layout: layouts.Layout

    def __call__(self, s, a):
        return shardings.constrain_like(_compute(self.layout, s, a), a)

    def batched(self, settled, size, marks, *arrays):
        placement = batching.placement_of_last(self.layout, arrays, marks)
        return batching.in_turn(self, marks, *arrays, placement=placement)


@dataclasses.dataclass(frozen=True)
class _Derivative(derivatives.Linear):
    """The k-th derivative of exp at A in the directions E_1 ... E_k, for arrays (s, A, E_1, ...
    E_k), where s is the number of squarings.

    It is linear in each direction and symmetric in all of them.
    """

    on: layouts.Layout

    @property
    def layout(self):
        return self.on

    def run(self, *arrays):
        s, a, *directions = arrays
        function = functools.partial(_compute, self.on, s)
        for direction in directions:
            function = functools.partial(_along, function, direction)
        return shardings.constrain_like(function(a), arrays[-1])

    def rule(self, primals, tangents):
        _, a_dot, *moving = tangents
        directions = primals[2:]
        parts = [] if a_dot is None else [self(*primals, a_dot)]
        for i, moved in enumerate(moving):
            if moved is not None:
                others = (x for j, x in enumerate(directions) if j != i)
                parts.append(self(*primals[:2], *others, moved))
        value = self(*primals)
        return value, derivatives.sum_of(*parts)

    @property
    def adjoint(self):
        def apply(*arrays):
            s, *others, direction = arrays
            return self(s, *(products.adjoint(x, self.on) for x in others), direction)

        return apply


def _along(function, direction, a):
    return jax.jvp(function, (a,), (direction,))[1]


def _degree(a):
    return 18 if jnp.finfo(a.dtype).eps < 1e-10 else 12


def _compute(layout, s, a):
    """Computes exp(A) with s squarings, with all matrices laid out by rows; NaN if s is -1."""
    rows = hermitian.rows(layout, a)
    one = jnp.ones((), jnp.finfo(a.dtype).dtype)
    down = _once(scaling.multiplied(one, -jnp.maximum(s, 0)) * jnp.where(s < 0, jnp.nan, one))
    times = functools.partial(hermitian.times, layout)
    approximate = _polynomial_18 if _degree(a) == 18 else _polynomial_12
    exact = exponential_bands.make(layout, rows)

    def square(i, x):
        x = jax.lax.cond(i > 0, lambda x: times(x, x), lambda x: x, x)
        return exact(x, i - s)

    result = approximate(times, scaling.times(rows, down))
    result = jax.lax.fori_loop(0, s + 1, square, result)
    return hermitian.with_padding(layout, result, a.shape[0])


def _once(scalars):
    """Passes the scalars through a barrier, so that XLA doesn't recompute them at each use."""
    return jax.lax.optimization_barrier(scalars)


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
        sums, largest, log, most, _ = state
        down, up = scaling.powers_of(largest)
        before = scaling.times(sums, down)
        sums = hermitian.general_adjoint_product(layout, absolute, before)
        ratio = jnp.min(jnp.where(before > 0, sums / before, jnp.inf))
        ratio = jnp.where(largest == 0, 0, ratio)  # a power is 0; NaN stays
        largest = scaling.largest(sums)
        log += scaling.exponent_of_power(up)
        root = (jnp.log2(largest) + log) / k
        most = jnp.where(k > degree, jnp.maximum(most, root), most)
        return sums, largest, log, most, jnp.log2(ratio)

    def squarings(most):
        return jnp.minimum(jnp.maximum(jnp.ceil(most - log_of_limit), 0), by_norm)

    # Each root is at least the spectral radius of |A|, which is at least each ratio (Collatz and
    # Wielandt). So if A's entries are of one size, a few steps show that the number of squarings
    # is `by_norm`. Every higher power is a product of powers from degree + 1 to 2 degree + 1.
    last = 2 * degree + 1

    def step_and_check(state):
        k, found, _ = state
        found = step(k, found)
        most = jnp.where(k <= degree, found[4] - _ROUNDING, found[3])
        checks = (k == _FIRST_STEPS + 1) | (k == degree + 1)
        return k + 1, found, ~checks | (squarings(most) < by_norm)

    none = jnp.full((), -jnp.inf, largest.dtype)
    state = 2, (sums, largest, jnp.zeros((), jnp.int32), none, none), by_norm > 0
    k, found, _ = jax.lax.while_loop(
        lambda state: (state[0] <= last) & state[2], step_and_check, state
    )
    return jnp.where(k > last, squarings(found[3]), by_norm)


def _polynomial_18(times, a):
    """Returns t(A). ``times`` is the product."""
    second = times(a, a)
    third = times(second, a)
    powers = a, second, third, times(third, third)
    first, last, b, c, d = (_sum(row, powers) for row in _DOUBLE)
    ninth = times(first, d) + c
    return last + times(b + ninth, ninth)


def _polynomial_12(times, a):
    """Returns t(A), as `_polynomial_18`."""
    second = times(a, a)
    powers = a, second, times(second, a)
    last, b, c, d = (_sum(row, powers) for row in _SINGLE)
    sixth = c + times(d, d)
    return last + times(b + sixth, sixth)


def _sum(coefficients, powers):
    """Returns the sum of I and the powers times the coefficients."""
    constant, *others = coefficients
    a = powers[0]
    terms = [a.dtype.type(c) * x for c, x in zip(others, powers, strict=True) if c]
    if constant:
        terms.append(jnp.eye(len(a), a.shape[1], dtype=a.dtype) * constant)
    return functools.reduce(jnp.add, terms)
