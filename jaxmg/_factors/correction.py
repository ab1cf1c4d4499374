"""Iterative refinement: corrects a solution by residuals of the matrix itself.

What solves for a correction is a function (`pcg`, `gmres`), as the operators are, so nothing here
knows of devices: every rank of a matrix runs it on the same numbers, and comes to the same
decisions.
"""

import typing

import jax
import jax.numpy as jnp

# Steps of the inner iteration before a solution is given up. On GPUs that many cost about as much
# as the factorization in lower precision has saved.
LIMIT = 50
# From this step on it is given up where the steps so far, at their pace, would not make half of the
# way within LIMIT: residuals fall faster later on, but not that much faster.
_PATIENCE = 10
# Residuals in units of u |A|_F |x| / sqrt(n), of which rounding x leaves less than one, and sums of
# a hundred products or two in the residuals 2 to 5: to the first, the inner iteration goes by its
# own account, which can fall to anything; above the second, x is corrected again while that makes
# it better; up to the third, times sqrt(n), it is a solution, as LAPACK's dsposv has it.
_INNER, _OUTER, _ACCEPTED = 1, 6, 2


class Refined(typing.NamedTuple):
    """Attributes:
    x: the solution.
    steps: of the inner iteration, those of the column that took most; int32.
    accepted: whether every column is solved for to working precision.
    """

    x: jax.Array
    steps: jax.Array
    accepted: jax.Array


class Outer(typing.NamedTuple):
    """The state of `refine`, of which an inner iteration solves for a correction."""

    x: jax.Array
    r: jax.Array  # b - A x, as computed
    norm: jax.Array  # its columns' norms
    going: jax.Array  # which columns are to be corrected
    steps: jax.Array
    sound: jax.Array  # the inner iteration has found nothing that it can't work with


def refine(correct, residual, b, size):
    """Solves A x = b, with all columns of b at once.

    x is corrected by residuals of A itself, until they are as small as those of a solution by
    factorization (J. Langou et al., "Exploiting the performance of 32 bit floating point
    arithmetic in obtaining 64 bit accuracy", SC 2006, which is LAPACK's dsposv and dsgesv). A
    correction is solved for by an iteration that a factor in lower precision preconditions
    (E. Carson and N. J. Higham, "Accelerating the solution of linear systems by iterative
    refinement in three precisions", SIAM J. Sci. Comput. 40, 2018).

    Args:
        correct: function of an `Outer` and a number that gives the inner iteration's end, with
            attributes ``d``, the correction, ``steps`` and ``sound``. It stops at residuals of that
            number times the norm of x, by `goal`.
        residual: function that gives b - A x for b and x; the solution is as exact as this is.
        b: (n, nrhs), columns of norms near one, or zero.
        size: |A|_F.

    Returns:
        `Refined`.
    """
    n = b.shape[0]
    unit = jnp.finfo(b.dtype).eps / 2
    floor = unit * size / n**0.5

    def advance(state):
        inner = correct(state, _INNER * floor)
        x = state.x + inner.d
        r = residual(b, x)
        norm = norms(r)
        better = norm < state.norm
        x, r = jnp.where(better, x, state.x), jnp.where(better, r, state.r)
        going = (norm > _OUTER * floor * norms(x)) & (norm < state.norm / 2)
        norm = jnp.minimum(norm, state.norm)  # NaN stays
        return Outer(x, r, norm, going, inner.steps, inner.sound)

    def wanted(state):
        return jnp.any(state.going) & (state.steps < LIMIT) & state.sound

    norm = norms(b)
    finite = jnp.all(norm < jnp.inf)
    start = Outer(jnp.zeros_like(b), b, norm, norm > 0, jnp.int32(0), finite)
    end = jax.lax.while_loop(wanted, advance, start)
    small = end.norm <= _ACCEPTED * n**0.5 * floor * norms(end.x)
    return Refined(end.x, end.steps, end.sound & jnp.all(small))


def goal(outer, d, floor):
    """The norms of residuals at which a correction ``d`` will do."""
    return floor * norms(outer.x + d)


def is_hopeful(outer, steps, norm, aim):
    """For each column whether steps from here on can take its residual from ``norm`` to ``aim``."""
    # Logarithms: the ratio itself may be beyond the range.
    made, left = jnp.log(outer.norm / norm), jnp.log(norm / aim)
    pace = made / (steps - outer.steps)
    return (steps - outer.steps < _PATIENCE) | (2 * LIMIT * pace > made + left)


def norms(v):
    """The norms of the columns."""
    return jnp.sqrt(dots(v, v).real)


def dots(v, w):
    """The inner products of the columns."""
    return jnp.sum(v.conj() * w, axis=0)
