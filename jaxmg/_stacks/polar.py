"""The polar decomposition A = U H of each matrix of a stack by the dynamically weighted Halley
iteration, and the singular value decomposition by it and by eigenvectors of H.

As `jaxmg._routines.polar`, for many matrices on one device, which all take the steps of the one
that needs most. Weights are held where a step needs a Cholesky factorization of I + c X^H X of a
condition of 100 at most: its inverse by products is as good as substitution then. So a step is in
products but for that factorization, and multiplies small singular values by 18 at most: a condition
of 1e5 takes 7 steps, one of 1e16 16.
"""

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._factors import scaling
from jaxmg._routines import polar as _weights_of
from jaxmg._stacks import native, products, sections

_LARGEST_C = 100
# The l whose c that is: 2 / (4 c)^(3/4), as `_least_low` there has it.
_LEAST_LOW = 2 / (4 * _LARGEST_C) ** 0.75
_MOST_STEPS = 30
_INVERSE_ITERATIONS = 6


@_compat.default_promotion()
def unitary(a):
    """U of A = U H, of a (count, m, n), m >= n, with orthonormal columns whatever A's rank is."""
    return _of_scaled(scaled(a)[0])


def _of_scaled(x):
    """`unitary` of matrices whose largest entry is near 1."""
    n, unit = x.shape[-1], float(jnp.finfo(x.dtype).eps) / 2
    gram = _gram(x)
    # An upper bound of the largest singular value squared, within n^(1/2) of it.
    bound = _norm(gram)
    bound = jnp.where(bound > 0, bound, 1)
    x = x / jnp.sqrt(bound).astype(x.dtype)
    square, known = _smallest(gram / bound.astype(gram.dtype), 8 * n * unit)
    # An estimate from above; what it misses by more than this, no step would notice. The smallest
    # singular value of the noise may be a small part of its entries.
    low = jnp.where(known, jnp.sqrt(square) / 4, unit / (1000 * n))
    noise = jnp.broadcast_to(_weights_of._noise(x[0]), x.shape)
    x = x + jnp.where(known, 0, 4 * unit / n**0.5).astype(x.dtype) * noise

    def goes_on(state):
        _, low, change, steps = state
        apart = (1 - low > 10 * unit) | (change > (10 * unit) ** (1 / 3))
        return jnp.any(apart) & (steps < _MOST_STEPS)

    def again(state):
        x, low, _, steps = state
        return *_step(x, low), steps + 1

    start = x, low, jnp.ones_like(low), jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(goes_on, again, start)[0]


@_compat.default_promotion()
def hermitian_factor(u, a):
    """The Hermitian part of U^H A."""
    h = products.multiply(u, a, products.ADJOINT)
    return (h + sections.adjoint(h)) / 2


@_compat.default_promotion()
def decompose(a, eigh):
    """(U, s, V^H) of a (count, m, n), m >= n, with ``eigh`` of a stack for (w, v)."""
    a, exponent = scaled(a)
    u = _of_scaled(a)
    w, v = eigh(hermitian_factor(u, a))
    order = jnp.argsort(-jnp.abs(w), axis=-1)
    w = jnp.take_along_axis(w, order, -1)
    v = jnp.take_along_axis(v, order[:, None, :], -1)
    sign = jnp.where(w < 0, -1, 1)[:, None, :].astype(v.dtype)
    s = scaling.multiplied(jnp.abs(w), exponent[:, 0])
    return products.multiply(u, v) * sign, s, sections.adjoint(v)


def scaled(a):
    """(``a`` times powers of two by which the largest entry of each matrix is between 1 and 2, the
    exponents that undo it, (count, 1, 1))"""
    exponent = scaling.exponent_of(a, (-2, -1), keepdims=True)
    return scaling.multiplied(a, -exponent), exponent


def _step(x, low):
    """(The next iterates, their l, how far they are from ``x``)"""
    weights = _weights_of._weights(jnp.maximum(low, _LEAST_LOW))
    a, b, c = weights
    wide = [w.astype(x.dtype) for w in weights]
    new = wide[1] / wide[2] * x
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    lower = _invert_factor(eye + wide[2] * _gram(x))
    solved = products.multiply(products.multiply(x, lower, right=products.ADJOINT), lower)
    new = new + (wide[0] - wide[1] / wide[2]) * solved
    square = low * low
    low = jnp.minimum(low * (a + b * square) / (1 + c * square), 1)
    return new, low, _norm(new - x)


def _smallest(gram, rounding):
    """(The smallest eigenvalues of X^H X, from above; whether they are distinct from rounding),
    (count, 1, 1), by inverse iteration."""
    n, dtype = gram.shape[-1], gram.dtype
    lower = _invert_factor(gram + rounding * jnp.eye(n, dtype=dtype))
    v = _weights_of._noise(jnp.zeros((n, 1), dtype))

    def iterate(_, state):
        v, _ = state
        v = v / _norm(v).astype(dtype)
        v = products.multiply(lower, products.multiply(lower, v), products.ADJOINT)
        return v, _norm(v)

    start = jnp.broadcast_to(v, (len(gram), n, 1)), _norm(gram)
    _, growth = jax.lax.fori_loop(0, _INVERSE_ITERATIONS, iterate, start)
    smallest = 1 / growth - rounding
    return smallest, smallest > 3 * rounding


def _gram(x):
    return products.multiply(x, x, products.ADJOINT)


def _invert_factor(a):
    """L^-1 of A = L L^H."""
    return native.invert_triangle(native.factor_cholesky(a))


def _norm(x):
    """The Frobenius norm of each, (count, 1, 1)."""
    squares = x.real**2 + x.imag**2 if jnp.iscomplexobj(x) else x * x
    return jnp.sqrt(squares.sum((-2, -1), keepdims=True))
