"""Derivatives of a few eigenpairs.

With V^H V = 1 and G = V^H dA V, for distinct eigenvalues,

    dw_j = G_jj,   dv_j = sum_i v_i G_ij / (w_j - w_i) + x_j,   (A - w_j) x_j = -(1 - V V^H) dA v_j,

where x_j is orthogonal to V (J. R. Magnus, Econom. Theory 1, 1985). MINRES solves for all x_j at
once, with products of A with a block (C. C. Paige, M. A. Saunders, SIAM J. Numer. Anal. 12, 1975).
So eigenvalues that aren't computed need no vectors. The rule consists of functions that have rules
themselves, which gives derivatives of higher order.
"""

import typing

import jax
import jax.numpy as jnp

from jaxmg._krylov.conjugate_gradients import dots, norms
from jaxmg._layouts import shardings
from jaxmg._qr import tall
from jaxmg._stacks import rotations


def tangents(layout, multiply, w, v, moved, iterations):
    """Returns (dw, dv).

    Args:
        multiply: function of a block of vectors, linear: their products with A.
        w, v: the pairs.
        moved: dA V.
        iterations: the largest number of products.
    """
    g = tall.adjoint_product(layout, v, moved)
    w_dot = jnp.diagonal(g).real.astype(w.dtype)
    unequal = 1 - jnp.eye(len(w), dtype=w.dtype)
    gap = jnp.where(unequal == 0, 1, rotations.gaps(w[:, None], w[None]))
    inside = rotations.divide(jnp.where(unequal == 0, 0, g), gap)
    rest = tall.times(layout, v, g) - moved
    x = _solve(layout, multiply, w, v, rest, iterations)
    return w_dot, shardings.constrain_like(tall.times(layout, v, inside) + x, v)


def _solve(layout, multiply, w, v, b, iterations):
    """Returns X, orthogonal to V, with (A - w_j) x_j = b_j. NaN in columns that didn't converge."""

    def without(x):
        return x - tall.times(layout, v, tall.adjoint_product(layout, v, x))

    def shifted(x):
        x = without(x)
        y = multiply(x)
        return shardings.constrain_like(without(y - x * w.astype(x.dtype)), b)

    def run(product, b):
        # A cotangent isn't orthogonal to V. Nor do vectors stay so by themselves: components of V,
        # for which the operator is singular, would grow from rounding errors.
        def project(x):
            return shardings.constrain_like(without(x), b)

        return _minres(product, project, project(b), iterations)

    def run_transposed(product, b):
        """A^T x = b means A conj(x) = conj(b)."""
        return jnp.conj(run(lambda x: jnp.conj(product(jnp.conj(x))), jnp.conj(b)))

    symmetric = not jnp.iscomplexobj(b)
    return jax.lax.custom_linear_solve(
        shifted, b, run, run if symmetric else run_transposed, symmetric=symmetric
    )


class _State(typing.NamedTuple):
    """The state of MINRES, by columns, with the names of the paper's program where it has them."""

    x: jax.Array
    r1: jax.Array
    r2: jax.Array
    w: jax.Array
    w2: jax.Array
    numbers: tuple
    step: jax.Array


def _minres(multiply, project, b, iterations):
    """Solves with a Hermitian operator, which may be indefinite, on the range of a projection."""
    eps = float(jnp.finfo(b.dtype).eps)
    size = norms(b)
    zero = jnp.zeros_like(size)

    def goes_on(state):
        return (state.step < iterations) & jnp.any(_is_active(state.numbers))

    def _is_active(numbers):
        beta, *_, phibar, _, _, largest = numbers
        return (phibar > 4 * eps * size) & (beta > 4 * eps * largest)

    def advance(state):
        beta, old, dbar, epsilon, phibar, cs, sn, largest = state.numbers
        active = _is_active(state.numbers)
        v = state.r2 / jnp.where(active, beta, 1)
        y = multiply(v) - jnp.where(old > 0, beta / jnp.where(old > 0, old, 1), 0) * state.r1
        alpha = dots(v, y)
        y = project(y - alpha / jnp.where(active, beta, 1) * state.r2)
        following = norms(y)
        largest = jnp.maximum(largest, jnp.maximum(jnp.abs(alpha), following))
        delta, gbar = cs * dbar + sn * alpha, sn * dbar - cs * alpha
        gamma = jnp.maximum(jnp.hypot(gbar, following), eps * largest)
        gamma = jnp.where(gamma > 0, gamma, 1)
        c, s = gbar / gamma, following / gamma
        w = (v - epsilon * state.w2 - delta * state.w) / gamma
        numbers = following, beta, -cs * following, sn * following, s * phibar, c, s, largest
        moved = _State(state.x + c * phibar * w, state.r2, y, w, state.w, numbers, state.step + 1)
        kept = jax.tree.map(lambda new, old: jnp.where(active, new, old), moved, state)
        return kept._replace(step=moved.step)

    zeros = jnp.zeros_like(b)
    numbers = size, zero, zero, zero, size, zero - 1, zero, zero
    start = _State(zeros, zeros, b, zeros, zeros, numbers, jnp.int32(0))
    end = jax.lax.while_loop(goes_on, advance, start)
    good = end.numbers[4] <= eps**0.5 * size
    return end.x * jnp.where(good, 1, jnp.nan)
