"""Corrections by conjugate gradients that a factor in lower precision preconditions."""

import functools
import typing

import jax
import jax.numpy as jnp

from jaxmg._factors import correction
from jaxmg._factors.correction import dots, norms


class _Inner(typing.NamedTuple):
    d: jax.Array  # the correction
    r: jax.Array  # the residual by recursion
    p: jax.Array
    q: jax.Array  # A p
    curvature: jax.Array  # p^H A p
    active: jax.Array
    steps: jax.Array
    sound: jax.Array  # A has shown no direction in which it isn't positive


def refine(multiply, residual, precondition, b, size):
    """Solves A x = b, A Hermitian and positive definite, with all columns of b at once.

    It is `correction.refine` with conjugate gradients, where E. Carson and N. J. Higham have GMRES,
    in the flexible form (Y. Notay, "Flexible conjugate gradients", SIAM J. Sci. Comput. 22, 2000):
    what solving in lower precision rounds is no fixed matrix.

    Args:
        multiply: function that gives A v for v of b's shape; A is Hermitian of unit diagonal or so.
        residual: function that gives b - A x for b and x; the solution is as exact as this is.
        precondition: the same as `multiply` with about the inverse of A.
        b: (n, nrhs), columns of norms near one, or zero.
        size: |A|_F.

    Returns:
        `correction.Refined`.
    """
    correct = functools.partial(_conjugate_gradients, multiply, precondition)
    return correction.refine(correct, residual, b, size)


def _conjugate_gradients(multiply, precondition, outer, floor):
    """The correction of ``outer.x`` that leaves residuals of ``floor`` times the norm of x."""

    def step(state):
        # Both factors as projections, which hold where rounding has taken r and p apart from what
        # short recurrences take them for: at the end, where r is little else.
        z = jnp.where(state.active, precondition(state.r), 0)
        p = z - dots(state.q, z) / state.curvature * state.p
        q = multiply(p)
        curvature = dots(p, q).real
        sound = state.sound & jnp.all(curvature >= 0)  # and no NaN
        positive = curvature > 0  # else there is no further direction, or none is looked for
        curvature = jnp.where(positive, curvature, 1)
        alpha = jnp.where(positive, dots(p, state.r) / curvature, 0)
        d, r = state.d + alpha * p, state.r - alpha * q
        norm, aim = norms(r), correction.goal(outer, d, floor)
        steps = state.steps + 1
        hopeful = correction.is_hopeful(outer, steps, norm, aim)
        active = state.active & positive & (norm > aim)
        sound = sound & jnp.all(hopeful | ~active)
        return _Inner(d, r, p, q, curvature, active, steps, sound)

    def wanted(state):
        return jnp.any(state.active) & (state.steps < correction.LIMIT) & state.sound

    zero, one = jnp.zeros_like(outer.r), jnp.ones_like(outer.norm)
    start = _Inner(zero, outer.r, zero, zero, one, outer.going, outer.steps, outer.sound)
    return jax.lax.while_loop(wanted, step, start)
