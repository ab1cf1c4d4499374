"""Iterative refinement whose corrections come from preconditioned conjugate gradients.

Of `refine` the operators are functions, so it knows nothing of devices: every rank of a matrix runs
it on the same numbers, and comes to the same decisions.
"""

import typing

import jax
import jax.numpy as jnp

# Steps of conjugate gradients before a solution is given up. On GPUs that many cost about as much
# as the factorization in lower precision has saved.
LIMIT = 50
# From this step on it is given up where the steps so far, at their pace, would not make half of the
# way within LIMIT: residuals fall faster later on, but not that much faster.
_PATIENCE = 10
# Residuals in units of u |A|_F |x| / sqrt(n), of which rounding x leaves less than one, and sums of
# a hundred products or two in the residuals 2 to 5: to the first, conjugate gradients go by their
# own account, which can fall to anything; above the second, x is corrected again while that makes
# it better; up to the third, times sqrt(n), it is a solution, as LAPACK's dsposv has it.
_INNER, _OUTER, _ACCEPTED = 1, 6, 2


class Refined(typing.NamedTuple):
    """Attributes:
    x: the solution.
    steps: of conjugate gradients, those of the column that took most; int32.
    accepted: whether every column is solved for to working precision.
    """

    x: jax.Array
    steps: jax.Array
    accepted: jax.Array


class _Outer(typing.NamedTuple):
    x: jax.Array
    r: jax.Array  # b - A x, as computed
    norm: jax.Array  # its columns' norms
    going: jax.Array  # which columns are to be corrected
    steps: jax.Array
    sound: jax.Array  # A has shown no direction in which it isn't positive


class _Inner(typing.NamedTuple):
    d: jax.Array  # the correction
    r: jax.Array  # the residual by recursion
    p: jax.Array
    q: jax.Array  # A p
    curvature: jax.Array  # p^H A p
    active: jax.Array
    steps: jax.Array
    sound: jax.Array


def refine(multiply, residual, precondition, b, size):
    """Solves A x = b, with all columns of b at once.

    Outside, x is corrected by residuals of A itself, until they are as small as those of a solution
    by factorization (J. Langou et al., "Exploiting the performance of 32 bit floating point
    arithmetic in obtaining 64 bit accuracy", SC 2006, which is LAPACK's dsposv). Inside, a
    correction is solved for by conjugate gradients, preconditioned by the factor in lower precision
    (E. Carson and N. J. Higham, "Accelerating the solution of linear systems by iterative
    refinement in three precisions", SIAM J. Sci. Comput. 40, 2018, have GMRES there), in the
    flexible form (Y. Notay, "Flexible conjugate gradients", SIAM J. Sci. Comput. 22, 2000): what
    solving in lower precision rounds is no fixed matrix.

    Args:
        multiply: function that gives A v for v of b's shape; A is Hermitian of unit diagonal or so.
        residual: function that gives b - A x for b and x; the solution is as exact as this is.
        precondition: the same as `multiply` with about the inverse of A.
        b: (n, nrhs), columns of norms near one, or zero.
        size: |A|_F.

    Returns:
        `Refined`.
    """
    n = b.shape[0]
    unit = jnp.finfo(b.dtype).eps / 2
    floor = unit * size / n**0.5

    def correct(state):
        inner = _conjugate_gradients(multiply, precondition, state, _INNER * floor)
        x = state.x + inner.d
        r = residual(b, x)
        norm = _norms(r)
        better = norm < state.norm
        x, r = jnp.where(better, x, state.x), jnp.where(better, r, state.r)
        going = (norm > _OUTER * floor * _norms(x)) & (norm < state.norm / 2)
        norm = jnp.minimum(norm, state.norm)  # NaN stays
        return _Outer(x, r, norm, going, inner.steps, inner.sound)

    def wanted(state):
        return jnp.any(state.going) & (state.steps < LIMIT) & state.sound

    norm = _norms(b)
    finite = jnp.all(norm < jnp.inf)
    start = _Outer(jnp.zeros_like(b), b, norm, norm > 0, jnp.int32(0), finite)
    end = jax.lax.while_loop(wanted, correct, start)
    small = end.norm <= _ACCEPTED * n**0.5 * floor * _norms(end.x)
    return Refined(end.x, end.steps, end.sound & jnp.all(small))


def _conjugate_gradients(multiply, precondition, outer, floor):
    """The correction of ``outer.x`` that leaves residuals of ``floor`` times the norm of x."""

    def goal(d):
        return floor * _norms(outer.x + d)

    def step(state):
        # Both factors as projections, which hold where rounding has taken r and p apart from what
        # short recurrences take them for: at the end, where r is little else.
        z = jnp.where(state.active, precondition(state.r), 0)
        p = z - _dots(state.q, z) / state.curvature * state.p
        q = multiply(p)
        curvature = _dots(p, q).real
        sound = state.sound & jnp.all(curvature >= 0)  # and no NaN
        positive = curvature > 0  # else there is no further direction, or none is looked for
        curvature = jnp.where(positive, curvature, 1)
        alpha = jnp.where(positive, _dots(p, state.r) / curvature, 0)
        d, r = state.d + alpha * p, state.r - alpha * q
        norm, aim = _norms(r), goal(d)
        steps = state.steps + 1
        # Logarithms: the ratio itself may be beyond the range.
        made, left = jnp.log(outer.norm / norm), jnp.log(norm / aim)
        pace = made / (steps - outer.steps)
        hopeful = (steps - outer.steps < _PATIENCE) | (2 * LIMIT * pace > made + left)
        active = state.active & positive & (norm > aim)
        sound = sound & jnp.all(hopeful | ~active)
        return _Inner(d, r, p, q, curvature, active, steps, sound)

    def wanted(state):
        return jnp.any(state.active) & (state.steps < LIMIT) & state.sound

    zero, one = jnp.zeros_like(outer.r), jnp.ones_like(outer.norm)
    start = _Inner(zero, outer.r, zero, zero, one, outer.going, outer.steps, outer.sound)
    return jax.lax.while_loop(wanted, step, start)


def _norms(v):
    """The norms of the columns."""
    return jnp.sqrt(_dots(v, v).real)


def _dots(v, w):
    """The inner products of the columns."""
    return jnp.sum(v.conj() * w, axis=0)
