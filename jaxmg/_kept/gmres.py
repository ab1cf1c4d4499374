"""Corrections by GMRES that a factor in lower precision preconditions."""

import functools
import typing

import jax
import jax.numpy as jnp

from jaxmg._kept import correction
from jaxmg._kept.correction import norms

# Number of directions that are kept, each with two arrays like b. After these the residual is
# computed anew, and the next directions start from it.
RESTART = 20
# A step that leaves a larger part of the residual than this has stagnated.
_STALLED = 0.9
# If orthogonalization leaves at most this many eps of a direction, the rest is rounding errors.
_ROUNDING = 16


class _Inner(typing.NamedTuple):
    d: jax.Array  # the correction
    r: jax.Array  # the residual by recursion
    v: jax.Array  # the vector from which the next direction is computed
    z: jax.Array  # (RESTART, n, nrhs), the directions
    w: jax.Array  # A z, orthonormal for each column
    norm: jax.Array
    active: jax.Array
    steps: jax.Array
    sound: jax.Array


def refine(multiply, precondition, b, size):
    """Solves A x = b for all columns of b at once, each independently.

    This is `correction.refine` with restarted flexible GMRES. It is flexible because the rounding
    of solves in lower precision makes the preconditioner vary (E. Carson and N. J. Higham, "A new
    analysis of iterative refinement and its application to accurate solution of ill-conditioned
    sparse linear systems", SIAM J. Sci. Comput. 39, 2017, and in three precisions, 40, 2018). The
    form is that of generalized conjugate residuals (S. C. Eisenstat, H. C. Elman and M. H. Schultz,
    "Variational iterative methods for nonsymmetric systems of linear equations", SIAM J. Numer.
    Anal. 20, 1983), which provides the residual at each step and needs no small problem to be
    solved. If this residual stagnates, the next direction is computed from the last direction
    instead, so the method breaks down only where GMRES does (P. Jiránek and M. Rozložník, "Adaptive
    version of simpler GMRES", Numer. Algorithms 53, 2010).

    Args:
        multiply: function that returns A v for v of b's shape; its accuracy limits the solution's.
        precondition: the same with an approximate inverse of A.
        b: (n, nrhs), columns of norms near one, or zero.
        size: |A|_F.

    Returns:
        `correction.Refined`.
    """
    correct = functools.partial(_minimize_residuals, multiply, precondition)
    return correction.refine(correct, lambda b, x: b - multiply(x), b, size)


def _minimize_residuals(multiply, precondition, outer, floor):
    """Corrects ``outer.x`` until residuals are ``floor`` times the norm of x."""

    def step(state):
        z = jnp.where(state.active, precondition(state.v), 0)
        w = multiply(z)
        whole = norms(w)
        for _ in range(2):  # a single pass leaves the rounding errors of a small difference
            share = jnp.sum(state.w.conj() * w, axis=1, keepdims=True)
            z = z - jnp.sum(state.z * share, axis=0)
            w = w - jnp.sum(state.w * share, axis=0)
        size = norms(w)
        sound = state.sound & jnp.all(size < jnp.inf)  # and no NaN
        new = state.active & (size > _ROUNDING * jnp.finfo(size.dtype).eps * whole)
        unit = jnp.where(new, 1 / jnp.where(new, size, 1), 0)
        i, steps = state.steps - outer.steps, state.steps + 1
        z, w = state.z.at[i].set(unit * z), state.w.at[i].set(unit * w)
        # Projects r on all directions: rounding leaves parts of it in earlier ones.
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
