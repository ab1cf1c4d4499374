"""Iterative refinement: corrects a solution by residuals of the matrix itself.

The solver for a correction (`pcg`, `gmres`) and the operators are function arguments, so this
module is independent of devices: every rank of a matrix runs it on the same numbers and takes the
same decisions.
"""

import typing

import jax
import jax.numpy as jnp

# Steps of the inner iteration before a solution is given up. On GPUs they cost about as much as the
# factorization in lower precision has saved.
LIMIT = 50
# From this step on a solution is given up if LIMIT steps, at the pace so far, would cover less than
# half of the way: residuals fall faster later on, but not that much faster.
_PATIENCE = 10
# Residuals in units of u |A|_F |x| / sqrt(n). Rounding x leaves less than 1, and sums of one or two
# hundred products in the residuals leave 2 to 5. The inner iteration stops at _INNER by its own
# recursive residual, which can fall to any size. Above _OUTER x is corrected again as long as that
# improves it. Up to _ACCEPTED sqrt(n) x is accepted as a solution, as in LAPACK's dsposv.
_INNER, _OUTER, _ACCEPTED = 1, 6, 2


class Refined(typing.NamedTuple):
    """A refined solution.

    Attributes:
        x: the solution.
        steps: number of steps of the inner iteration, for the column that took most; int32.
        accepted: whether every column is solved to working precision.
    """

    x: jax.Array
    steps: jax.Array
    accepted: jax.Array


class Outer(typing.NamedTuple):
    """The state of `refine`, from which an inner iteration computes a correction."""

    x: jax.Array
    r: jax.Array  # b - A x, as computed
    norm: jax.Array  # the norms of its columns
    going: jax.Array  # the mask of columns to correct
    steps: jax.Array
    sound: jax.Array  # False once the inner iteration can't go on


def refine(correct, residual, b, size):
    """Solves A x = b, with all columns of b at once.

    x is corrected by residuals of A itself until they are as small as those of a solution by
    factorization (J. Langou et al., "Exploiting the performance of 32 bit floating point
    arithmetic in obtaining 64 bit accuracy", SC 2006, which is LAPACK's dsposv and dsgesv). The
    corrections come from an iteration that a factor in lower precision preconditions (E. Carson and
    N. J. Higham, "Accelerating the solution of linear systems by iterative refinement in three
    precisions", SIAM J. Sci. Comput. 40, 2018).

    Args:
        correct: function of an `Outer` and a number that returns the final state of the inner
            iteration, with attributes ``d`` (the correction), ``steps`` and ``sound``. It stops
            when residuals are that number times the norm of x (see `goal`).
        residual: function that returns b - A x for b and x; its accuracy limits the solution's.
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
    """Returns the norms of residuals at which a correction ``d`` is good enough."""
    return floor * norms(outer.x + d)


def is_hopeful(outer, steps, norm, aim):
    """Returns for each column whether further steps can reduce its residual from ``norm`` to
    ``aim``."""
    # Logarithms, because the ratio itself may be out of range.
    made, left = jnp.log(outer.norm / norm), jnp.log(norm / aim)
    pace = made / (steps - outer.steps)
    return (steps - outer.steps < _PATIENCE) | (2 * LIMIT * pace > made + left)


def norms(v):
    """Returns the norms of the columns."""
    return jnp.sqrt(dots(v, v).real)


def dots(v, w):
    """Returns the inner products of the columns."""
    return jnp.sum(v.conj() * w, axis=0)
