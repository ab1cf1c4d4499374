"""The polar decomposition A = U H by QDWH, the dynamically weighted Halley iteration: in a trace,
of matrices that lie on the ranks by rows.

Y. Nakatsukasa, Z. Bai, F. Gygi, "Optimizing Halley's iteration for computing the matrix polar
decomposition", SIAM J. Matrix Anal. Appl. 31, 2010; Y. Nakatsukasa, N. J. Higham, "Stable and
efficient spectral divide and conquer algorithms for the symmetric eigenvalue decomposition and the
SVD", SIAM J. Sci. Comput. 35, 2013.

A step maps each singular value x of the iterate to x (a + b x^2) / (1 + c x^2), with weights that
take the interval [l, 1] as close to 1 as such a function can. It is computed in one of two ways:

- where c is small, by the Cholesky factor of I + c X^H X, whose condition is at most 1 + c;
- where it isn't, by the QR decomposition of [sqrt(c) X; I], the QR by the Cholesky factorization of
  its Gram matrix and a correction by that of the Q it gives (CholeskyQR2). That is as orthogonal
  as Householder's while sqrt(c) is below the inverse square root of the rounding, so the weights
  are those of an l that keeps it there: tiny singular values take some steps more.

From l = 0.99 on a step is by the binomial series of (I + D)^(-1/2), D = X^H X - I, which needs no
inverse (A. Bjorck, C. Bowie, "An iterative algorithm for computing the best estimate of an
orthogonal matrix", SIAM J. Numer. Anal. 8, 1971): by as many of its terms as the norm of D asks
for, up to D^4, of which the error is 63/256 |D|^5. With S = D^2 - 4/7 D they are
I - D / 2 + 2/7 D^2 + 35/128 S^2, two products of a matrix with its adjoint.

On GPUs that are as fast in float64, U of a matrix in single precision is computed in double: the
rounding of X^H X hides no singular value there, so that it takes fewer steps.

So nearly all the work is in products and Cholesky factors. l comes from an
estimate of the smallest singular value, by inverse iteration with X^H X. Where the rounding of X^H
X hides that value, the step is taken with a hundredth of what can be told from rounding, or the
smallest l that a QR step allows, and the estimate is repeated with the next X, whose small singular
values are at least 10^4 times as large in float64. If the rounding hides it there too, X gets a
perturbation of the size of rounding, after which no singular value is 0, so that U has orthonormal
columns whatever the rank of A.
"""

import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import backends, blocks, ffi, layouts
from jaxmg._factors import cholesky_factor, cholesky_operations
from jaxmg._routines import cho_factor, gesvd, shares, tall_qr
from jaxmg._transform import batching, products

# The routine of the plugin, which only a vendor's library has.
NATIVE = "polar"
# The c from which on a step is by QR (Nakatsukasa and Higham, section 3); or n / 8 where that is
# more: the inverse is exact to c units of rounding, as other results are to n.
_CHOLESKY = 100
_MOST_STEPS = 24
# The l from which on steps are by the binomial series.
_NEAR = 0.99
_INVERSE_ITERATIONS = 8
# What the norm of a Hermitian matrix by the power method is raised by.
_MARGIN = 1.25
# What the smallest eigenvalue of X^H X has to be, in units of its rounding, to be known.
_DISTINCT = 3
# The order from which on U of a matrix in single precision is computed in double where that is
# fast, and the bytes of a rank's rows, in double precision, up to which it is.
DOUBLE = 1024
_DOUBLE_BYTES = 2**31


def decompose(a, layout, backend="native"):
    """(U, H) of a (m, n), m >= n, in a trace: U with orthonormal columns, by rows like ``a``, and
    the Hermitian, positive semidefinite H (n, n). Another backend takes square matrices."""
    if backend == "native":
        u = unitary(a, layout)
    else:
        u = batching.batchable(_ByLibrary(layout, backend), a)
    return u, hermitian_factor(u, a, layout)


def hermitian_factor(u, a, layout):
    """The Hermitian part of U^H A."""
    h = products.adjoint_times_rows(u, a, layout)
    return (h + products.adjoint(h, layout)) / 2


def unitary(a, layout):
    """U of A = U H, (m, n), m >= n. A batch is taken one after the other, each its own steps,
    unless devices have whole matrices."""
    return batching.batchable(_Unitary(layout), a)


@dataclasses.dataclass(frozen=True)
class _Unitary(batching.Batchable):
    layout: layouts.Layout

    def __call__(self, *arrays):
        (a,) = arrays
        if not _in_double(a, self.layout):
            return _iterate(a, self.layout)
        with _compat.double_precision():
            u = _iterate(a.astype(jnp.promote_types(a.dtype, np.float64)), self.layout)
            return u.astype(a.dtype)

    def batched(self, settled, size, marks, *arrays):
        layout = self.layout
        if layout.is_whole:
            share = shares.Share(_OfStacks, (), layout.platform, layout.mesh.size)
            return batching.spread(layout, share, size, marks, *arrays)[0]
        spec = layout.result_spec(arrays[0].shape[-2:])
        placement = batching.make_placement(layout, arrays, marks, (spec,))
        return batching.in_turn(self, marks, *arrays, placement=placement)


class _OfStacks:
    """What a device does with its share of `_Unitary`, for `shares.Share`."""

    @staticmethod
    def of_stacks(platform, options, a):
        from jaxmg._stacks import ways  # which needs this file

        return (ways.polar(platform, a),)


@dataclasses.dataclass(frozen=True)
class _ByLibrary(batching.Batchable):
    """U of a square matrix by a vendor's library."""

    layout: layouts.Layout
    backend: str

    def __call__(self, *arrays):
        (a,) = arrays
        layout, n = self.layout.by_rows, len(arrays[0])
        # The libraries that have gesvd have it, too.
        backend = backends.resolve(gesvd.NATIVE, layout, self.backend, a, "linalg.polar")

        def on_rank(coordinates, rows):
            results = (
                jax.ShapeDtypeStruct(rows.shape, rows.dtype),
                jax.ShapeDtypeStruct((1,), np.int32),
            )
            return ffi.call(
                f"jaxmg_{NATIVE}", layout, 0, backend, (coordinates, rows), results, n=n
            )[0]

        mapped = ffi.over_ranks(layout, on_rank, (layout.row_spec,), layout.row_spec)
        return blocks.join_rows(mapped(blocks.split_rows(a, layout)), layout, n)

    def batched(self, settled, size, marks, *arrays):
        spec = self.layout.result_spec(arrays[0].shape[-2:])
        placement = batching.make_placement(self.layout, arrays, marks, (spec,))
        return batching.in_turn(self, marks, *arrays, placement=placement)


def _in_double(a, layout):
    """Whether U of this matrix in single precision is computed in double."""
    fits = 2 * a.size * a.dtype.itemsize <= _DOUBLE_BYTES * layout.ranks
    single = jnp.finfo(a.dtype).bits == 32
    large = fits and a.shape[1] >= DOUBLE
    return single and large and _compat.has_double() and layouts.fast_in_double(layout.platform)


def _iterate(a, layout):
    x, _ = scaled(a)
    gram = products.gram(x, layout)
    bound = _norm(gram, layout)
    bound = jnp.where(bound > 0, bound, 1)
    gram = gram / bound.astype(gram.dtype)
    x = x / jnp.sqrt(bound).astype(x.dtype)

    def goes_on(state):
        return state.apart & (state.steps < _MOST_STEPS)

    no, none = jnp.zeros((), bool), jnp.zeros((), jnp.int32)
    start = _State(_by_rows(x, layout), gram, jnp.zeros_like(bound), no, ~no, none)
    return jax.lax.while_loop(goes_on, lambda state: _step(state, layout), start).x


class _State(typing.NamedTuple):
    """Of the iteration.

    Attributes:
        x: the iterate X.
        gram: X^H X.
        low: l, below the singular values of X.
        known: whether l is.
        apart: whether X is apart from U by more than rounding.
        steps: how many were taken.
    """

    x: jax.Array
    gram: jax.Array
    low: jax.Array
    known: jax.Array
    apart: jax.Array
    steps: jax.Array


def _step(state, layout):
    x, gram = state.x, state.gram
    n, unit = x.shape[1], float(jnp.finfo(x.dtype).eps) / 2
    least = _least_low(unit, n)
    low, known = jax.lax.cond(
        state.known,
        lambda gram, low: (low, state.known),
        lambda gram, low: _estimate(gram, least, low, unit, layout),
        gram,
        state.low,
    )
    hidden = ~known & (state.steps > 0)
    x = x + jnp.where(hidden, 4 * unit / n**0.5, 0).astype(x.dtype) * _noise(x)
    # A step by the inverse for a slightly larger l costs less than one by QR.
    most = max(_CHOLESKY, n / 8)
    invertible = max(_low_of(most), least)
    weights = _weights(jnp.maximum(low, jnp.where(low >= invertible / 3, invertible, least)))
    a, b, c = weights

    def rational(way):
        def step(x, gram):
            new = way(x, gram, *(w.astype(x.dtype) for w in weights), layout)
            square = low * low
            raised = jnp.minimum(low * (a + b * square) / (1 + c * square), 1)
            # With NaN the iteration ends here, as no later step would be better.
            return new, raised, jnp.isfinite(jnp.sum(_squares(gram)))

        return step

    def series(x, gram):
        new, apart = _by_series(x, gram, unit, layout)
        return new, low, apart

    ways = rational(_by_inverse), rational(_by_qr), series
    way = jnp.where(low >= _NEAR, 2, (c > most).astype(jnp.int32))
    new, low, apart = jax.lax.switch(way, ways, x, gram)
    new = _by_rows(new, layout)
    gram = jax.lax.cond(
        apart, lambda x, _: products.gram(x, layout), lambda _, gram: gram, new, gram
    )
    return _State(new, gram, low, known, apart, state.steps + 1)


def _estimate(gram, least, expected, unit, layout):
    """(l of an X with this Gram matrix, whether it is known).

    ``expected`` is the l that the step before leads to, if its own l was small enough, or 0.
    """
    rounding = 8 * _rounding_of_gram(unit, len(gram))
    square, known = _smallest(gram, rounding, layout)
    # An estimate from above.
    found = jnp.sqrt(jnp.maximum(square, 0))
    low = jnp.where((expected > 0) & (found >= 0.9 * expected), expected, found / 2)
    # Most that are hidden are not far below rounding, and a smaller l costs them a step more.
    hidden = max(least, (_DISTINCT * rounding) ** 0.5 / 100)
    return jnp.where(known, low, hidden), known


def _weights(low):
    """a, b and c for the singular values in [l, 1]."""
    square = low * low
    d = jnp.cbrt(4 * (1 - square) / (square * square))
    root = jnp.sqrt(1 + d)
    a = root + jnp.sqrt(jnp.maximum(8 - 4 * d + 8 * (2 - square) / (square * root), 0)) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1


def _low_of(c):
    """A little more than the l whose weights have this c: with small l, b is 4^(1/3) l^(-4/3)."""
    return (4 ** (1 / 3) / ((c + 1) ** 0.5 - 1) ** 2) ** 0.75


def _rounding_of_gram(unit, n):
    """That of X^H X, or another product, in the 2-norm, for X of norm 1. n units bound it, and
    roundings that are independent of each other stay below n^(1/2) (N. J. Higham, T. Mary, SIAM J.
    Sci. Comput. 41, 2019)."""
    return unit * n**0.5


def _least_low(unit, n):
    """The l at which I + c X^H X is 100 times its rounding."""
    most = 0.01 / _rounding_of_gram(unit, n)
    return 2 / (4 * most) ** 0.75


def _by_inverse(x, gram, a, b, c, layout):
    """b / c X + (a - b / c) X (I + c X^H X)^-1"""
    return b / c * x + (a - b / c) * _divided_by_sum(x, gram, c, layout)


def _by_qr(x, gram, a, b, c, layout):
    """b / c X + (a - b / c) / sqrt(c) Q1 Q2^H, with the Q of [sqrt(c) X; I] = [Q1; Q2] R.

    R is by a Cholesky factorization. [Q1; Q2] = [sqrt(c) X; I] R^-1 is orthogonal only as far as
    its Gram matrix G is I, and Q1 G^-1 Q2^H takes the place of Q1 Q2^H: that is exact. G^-1 is
    I - (G - I) where the square of G - I is no more than rounding, in the Frobenius norm.
    """
    root, n = jnp.sqrt(c), len(gram)
    q2 = _inverse_of_upper(_factor(gram, c, layout), layout)
    q1 = root * products.rows_times_upper(x, q2, layout)
    apart = products.gram(q1, layout) + products.gram(q2, layout) - _identity(gram)
    near = jnp.sum(_squares(apart)) <= n**0.5 * float(jnp.finfo(x.dtype).eps) / 2

    def corrected(q1, apart):
        return q1 - products.rows_times_rows(q1, apart, layout)

    def divided(q1, apart):
        return _divided_by_sum(q1, apart, 1, layout)

    q1 = jax.lax.cond(near, corrected, divided, _by_rows(q1, layout), apart)
    product = products.rows_times_lower(q1, products.adjoint(q2, layout), layout)
    return b / c * x + (a - b / c) / root * product


def _by_series(x, gram, unit, layout):
    """(The next iterate, whether it is apart from U by more than rounding)"""
    apart = gram - _identity(gram)
    norm = _norm(apart, layout)

    def two_terms(apart):
        return _identity(gram) - apart / 2

    def three_terms(apart):
        return two_terms(apart) + 3 / 8 * products.gram(apart, layout)

    def five_terms(apart):
        square = products.gram(apart, layout)
        fourth = products.gram(square - 4 / 7 * apart, layout)
        return two_terms(apart) + 2 / 7 * square + 35 / 128 * fourth

    # The errors of two, three and five terms. The product itself has one of rounding.
    errors = 3 / 8 * norm**2, 5 / 16 * norm**3, 63 / 256 * norm**5
    two, three, five = (error > _rounding_of_gram(unit, len(gram)) for error in errors)
    index = two.astype(jnp.int32) + three.astype(jnp.int32)
    series = jax.lax.switch(index, (two_terms, three_terms, five_terms), apart)
    return products.rows_times_rows(x, series, layout), five


def _identity(gram):
    return jnp.eye(len(gram), dtype=gram.dtype)


def _divided_by_sum(x, gram, c, layout):
    """X (I + c G)^-1 of a Hermitian G, by the Cholesky factor: faster than by the inverse and a
    product, and more exact."""
    factor = _factor(gram, c, layout)
    return _divided(_divided(x, factor, layout, False), factor, layout, True)


def _inverse_of_upper(factor, layout):
    """U^-1 of an upper factor U. A single rank has a faster way than the engine's, by products."""
    if layout.ranks > 1 or layout.explicit:
        return _divided(jnp.eye(factor.n, dtype=factor.dtype), factor, layout, False)
    return tall_qr.inverse_of_upper(factor.upper())


def _factor(gram, c, layout, shift=1):
    """The Cholesky factor of ``shift`` I + c X^H X."""
    matrix = c * gram + shift * jnp.eye(len(gram), dtype=gram.dtype)
    return cho_factor.cho_factor(matrix, precision="highest", **layout.where)


def _divided(b, factor, layout, adjoint):
    """B U^-1, or B U^-H, of an upper factor U and a matrix B by rows."""
    static, arrays = cholesky_factor._parts("polar", factor)
    rows = blocks.split_rows(b, layout.by_rows)
    solved = cholesky_operations._SolveRows(static, inverse=adjoint)(*arrays, rows)
    return blocks.join_rows(solved, layout.by_rows, len(b))


def _norm(matrix, layout):
    """A bound of the 2-norm of a Hermitian matrix, at most a quarter above it.

    By the power method. Where many eigenvalues are just below the largest, what it finds is too
    small by n^(1/2 / steps), of which so many are taken that the margin makes up for it, and two
    more. The Frobenius norm is a bound, too.
    """
    n = len(matrix)
    steps = 2 + math.ceil(math.log(n) / (2 * math.log(_MARGIN)))
    v = products.power(matrix, _noise(jnp.zeros((n, 1), matrix.dtype)), steps, layout)
    found = _MARGIN * jnp.sqrt(jnp.sum(_squares(v)))
    return jnp.minimum(found, jnp.sqrt(jnp.sum(_squares(matrix))))


def _smallest(gram, rounding, layout):
    """(The smallest eigenvalue of X^H X, from above; whether it is distinct from rounding)"""
    n, dtype = len(gram), gram.dtype
    factor = _factor(gram, 1, layout, shift=rounding)
    v = _noise(jnp.zeros((n, 1), dtype))

    def iterate(_, state):
        v, _ = state
        v = factor.solve(v / jnp.sqrt(jnp.sum(_squares(v))).astype(dtype))
        return v, jnp.sqrt(jnp.sum(_squares(v)))

    start = (v, jnp.ones((), jnp.finfo(dtype).dtype))
    _, growth = jax.lax.fori_loop(0, _INVERSE_ITERATIONS, iterate, start)
    smallest = 1 / growth - rounding
    return smallest, smallest > _DISTINCT * rounding


def _by_rows(x, layout):
    """``x`` where explicit axes have it by rows, as a loop's state has to be."""
    if not layout.explicit:
        return x
    fits = len(x) % layout.ranks == 0
    return layouts.constrain(x, layout, layout.by_rows.row_spec if fits else P())


def _squares(x):
    return x.real**2 + x.imag**2 if jnp.iscomplexobj(x) else x * x


def scaled(a):
    """(``a`` times a power of two by which its largest entry is between 1/2 and 1, the exponent
    that undoes it)"""
    exponent = exponent_of(a)
    return times_power(a, -exponent), exponent


def exponent_of(a):
    """The exponent of the power of two that is above the largest entry of ``a`` and next to it."""
    parts = (a.real, a.imag) if jnp.iscomplexobj(a) else (a,)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(part), initial=0) for part in parts]))
    return jnp.frexp(largest)[1]


def times_power(a, exponent):
    """``a`` times 2 to this power, which may be out of range itself."""
    half = exponent // 2
    one = jnp.ones((), jnp.finfo(a.dtype).dtype)
    for part in (half, exponent - half):
        a = a * jnp.ldexp(one, part).astype(a.dtype)
    return a


def _noise(x):
    """Numbers between -1 and 1 without a pattern, of x's shape: a hash of row and column."""
    row, column = (jax.lax.broadcasted_iota(jnp.uint32, x.shape, i) for i in (0, 1))
    word = row * jnp.uint32(0x9E3779B1) + column * jnp.uint32(0x85EBCA77) + jnp.uint32(1)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word = (word ^ (word >> jnp.uint32(shift))) * jnp.uint32(factor)
    word = word ^ (word >> jnp.uint32(16))
    real = jnp.finfo(x.dtype).dtype
    return (word.astype(real) / 2.0**31 - 1).astype(x.dtype)
