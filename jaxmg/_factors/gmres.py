"""Corrections by GMRES that a factor in lower precision preconditions."""

import functools
import typing

import jax
import jax.numpy as jnp

from jaxmg._factors import correction
from jaxmg._factors.correction import norms

# Directions that are kept, two arrays like b each: then a residual is computed anew, and the next
# ones begin with that.
RESTART = 20
# A step that leaves more of a residual than this has all but stood still.
_STALLED = 0.9
# What is left of a direction when the others are taken off is rounding, up to so many eps.
_ROUNDING = 16


class _Inner(typing.NamedTuple):
    d: jax.Array  # the correction
    r: jax.Array  # the residual by recursion
    v: jax.Array  # what the next direction is made of
    z: jax.Array  # (RESTART, n, nrhs), the directions
    w: jax.Array  # A z, orthonormal for each column
    norm: jax.Array
    active: jax.Array
    steps: jax.Array
    sound: jax.Array


def refine(multiply, precondition, b, size):
    """Solves A x = b with all columns of b at once, each by itself.

    It is `correction.refine` with GMRES, restarted and flexible: what solving in lower precision
    rounds is no fixed matrix (E. Carson and N. J. Higham, "A new analysis of iterative refinement
    and its application to accurate solution of ill-conditioned sparse linear systems", SIAM J. Sci.
    Comput. 39, 2017, and the same in three precisions, 40, 2018). Its form is that of generalized
    conjugate residuals (S. C. Eisenstat, H. C. Elman and M. H. Schultz, "Variational iterative
    methods for nonsymmetric systems of linear equations", SIAM J. Numer. Anal. 20, 1983), which has
    the residual at each step and no small problem to solve. Where that residual stands still, the
    next direction comes from the last one instead, so that it doesn't break down where GMRES does
    not (P. Jiránek and M. Rozložník, "Adaptive version of simpler GMRES", Numer. Algorithms 53,
    2010).

    Args:
        multiply: function that gives A v for v of b's shape; the solution is as exact as this is.
        precondition: the same with about the inverse of A.
        b: (n, nrhs), columns of norms near one, or zero.
        size: |A|_F.

    Returns:
        `correction.Refined`.
    """
    correct = functools.partial(_minimize_residuals, multiply, precondition)
    return correction.refine(correct, lambda b, x: b - multiply(x), b, size)


def _minimize_residuals(multiply, precondition, outer, floor):
    """The correction of ``outer.x`` that leaves residuals of ``floor`` times the norm of x."""

    def step(state):
        z = jnp.where(state.active, precondition(state.v), 0)
        w = multiply(z)
        whole = norms(w)
        for _ in range(2):  # once leaves what rounding has made of a small difference
            share = jnp.sum(state.w.conj() * w, axis=1, keepdims=True)
            z = z - jnp.sum(state.z * share, axis=0)
            w = w - jnp.sum(state.w * share, axis=0)
        size = norms(w)
        sound = state.sound & jnp.all(size < jnp.inf)  # and no NaN
        new = state.active & (size > _ROUNDING * jnp.finfo(size.dtype).eps * whole)
        unit = jnp.where(new, 1 / jnp.where(new, size, 1), 0)
        i, steps = state.steps - outer.steps, state.steps + 1
        z, w = state.z.at[i].set(unit * z), state.w.at[i].set(unit * w)
        # Of all directions: what rounding leaves of a residual is in those before as well.
        share = jnp.sum(w.conj() * state.r, axis=1, keepdims=True)
        d = state.d + jnp.sum(z * share, axis=0)
        r = state.r - jnp.sum(w * share, axis=0)
        norm, aim = norms(r), correction.goal(outer, d, floor)
        v = jnp.where(norm <= _STALLED * state.norm, r, w[i])
        hopeful = correction.is_hopeful(outer, steps, norm, aim)
        active = new & (norm > aim)
        sound = sound & jnp.all(hopeful | ~active)
        return _Inner(d, r, v, z, w, norm, active, steps, sound)

    def wanted(state):
        going = jnp.any(state.active) & state.sound & (state.steps < correction.LIMIT)
        return going & (state.steps - outer.steps < RESTART)

    zero = jnp.zeros_like(outer.r)
    none = jnp.zeros((RESTART, *zero.shape), zero.dtype)
    start = _Inner(
        zero, outer.r, outer.r, none, none, outer.norm, outer.going, outer.steps, outer.sound
    )  # fmt: skip
    return jax.lax.while_loop(wanted, step, start)
