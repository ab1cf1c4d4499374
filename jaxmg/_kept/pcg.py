"""Corrections by conjugate gradients that a factor in lower precision preconditions."""

import functools
import typing

import jax
import jax.numpy as jnp

from jaxmg._kept import correction
from jaxmg._kept.correction import dots, norms


class _Inner(typing.NamedTuple):
    d: jax.Array  # the correction
    r: jax.Array  # the residual by recursion
    p: jax.Array
    q: jax.Array  # A p
    curvature: jax.Array  # p^H A p
    active: jax.Array
    steps: jax.Array
    sound: jax.Array  # False once A isn't positive in a direction, or convergence is hopeless


def refine(multiply, residual, precondition, b, size):
    """Solves A x = b, A Hermitian and positive definite, with all columns of b at once.

    This is `correction.refine` with conjugate gradients, in place of the GMRES of E. Carson and N.
    J. Higham. They are flexible (Y. Notay, "Flexible conjugate gradients", SIAM J. Sci. Comput. 22,
    2000), because the rounding of solves in lower precision makes the preconditioner vary.

    Args:
        multiply: function that returns A v for v of b's shape; A is Hermitian, with a diagonal of
            about one.
        residual: function that returns b - A x for b and x; its accuracy limits the solution's.
        precondition: like ``multiply``, with an approximate inverse of A.
        b: (n, nrhs), columns of norms near one, or zero.
        size: |A|_F.

    Returns:
        `correction.Refined`.
    """
    correct = functools.partial(_conjugate_gradients, multiply, precondition)
    return correction.refine(correct, residual, b, size)


def _conjugate_gradients(multiply, precondition, outer, floor):
    """Corrects ``outer.x`` until residuals are ``floor`` times the norm of x."""

    def step(state):
        # Both coefficients are projections. They hold even if rounding has destroyed the relations
        # between r and p that short recurrences assume: at the end r is little but rounding errors.
        z = jnp.where(state.active, precondition(state.r), 0)
        p = z - dots(state.q, z) / state.curvature * state.p
        q = multiply(p)
        curvature = dots(p, q).real
        sound = state.sound & jnp.all(curvature >= 0)  # and no NaN
        positive = curvature > 0  # otherwise no direction is left, or the column is inactive
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
