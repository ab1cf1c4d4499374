"""Conjugate gradients in a trace, for all columns of b at once, with derivatives.

    outer loop: r = b - A x, from A itself
        inner loop: a correction, until the residual by recursion is small enough

So residuals are those of x, not of the recursion, and a second correction makes up for rounding in
the first one. Columns are independent: one that has converged doesn't change any more.
"""

import typing

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._layouts import shardings
from jaxmg._stacks import scaling


class Found(typing.NamedTuple):
    """The outcome of an iteration, by columns.

    Attributes:
        iterations: number of steps, int32.
        residuals: the norms of b - A x.
        unsolved: the mask of columns that didn't converge.
    """

    iterations: jax.Array
    residuals: jax.Array
    unsolved: jax.Array


class _Outer(typing.NamedTuple):
    x: jax.Array
    r: jax.Array  # b - A x, as computed
    norm: jax.Array  # the norms of its columns
    going: jax.Array  # the mask of columns to correct
    steps: jax.Array
    sound: jax.Array  # False where A or M isn't positive in a direction


class _Inner(typing.NamedTuple):
    d: jax.Array  # the correction
    r: jax.Array  # the residual by recursion
    p: jax.Array  # 0 in columns that aren't active
    rz: jax.Array  # r^H M r
    active: jax.Array
    steps: jax.Array
    sound: jax.Array


def solve(multiply, precondition, b, x0, tolerances, limit):
    """Returns (x, `Found`) with A x = b, A Hermitian and positive definite.

    Derivatives with respect to b and to what ``multiply`` depends on are solutions of further
    systems, by the same iteration, which starts at 0 and ends at ``tol``.

    Args:
        multiply: function that returns A v for v of b's shape, which JAX can differentiate.
        precondition: like ``multiply``, with an approximate inverse of A; None: the identity.
        b: (n, m), columns with largest entries near one.
        x0: the start, like b; None: 0.
        tolerances: (tol, atol of each column): residuals have to be at most max(tol norm(b), atol).
        limit: the largest number of steps.
    """
    size = norms(jax.lax.stop_gradient(b))
    tol, atol = tolerances
    x0 = None if x0 is None else jax.lax.stop_gradient(x0)
    # The start enters the right-hand side, so that derivatives don't start there.
    r = b if x0 is None else b - multiply(x0)
    own = jax.lax.stop_gradient(r)

    def run(multiply, r):
        # The residuals of derivatives are relative to their own right-hand sides.
        is_own = jnp.all(r == own, axis=0)
        goal = jnp.where(is_own, jnp.maximum(tol * size, atol), -tol)
        return _iterate(multiply, precondition, r, goal, limit)

    def run_transposed(multiply, r):
        """A^T x = r means A conj(x) = conj(r)."""
        x, found = run(lambda v: jnp.conj(multiply(jnp.conj(v))), jnp.conj(r))
        return jnp.conj(x), found

    is_symmetric = not jnp.iscomplexobj(b) or not _compat.TRANSFORMS
    x, found = jax.lax.custom_linear_solve(
        multiply, r, solve=run, transpose_solve=run if is_symmetric else run_transposed,
        symmetric=is_symmetric, has_aux=True,
    )  # fmt: skip
    residuals = found.residuals / jnp.where(size > 0, size, 1)
    return x if x0 is None else x + x0, found._replace(residuals=residuals)


def _iterate(multiply, precondition, b, goal, limit):
    """Returns (x, `Found`). A negative ``goal`` is relative to the norms of b."""
    down, up = scaling.scale_of(b, 0, only_finite=True)
    b = scaling.times_scale(b, down)
    norm = norms(b)
    goal = jnp.where(goal >= 0, goal * down, -goal * norm)

    def product(v):
        return shardings.constrain_like(multiply(v), v)

    def advance(outer):
        inner = _descend(product, precondition, outer, goal, limit)
        x = outer.x + inner.d
        r = b - product(x)
        norm = norms(r)
        # Beyond what rounding allows, residuals no longer fall.
        falls = (norm > goal) & (norm < outer.norm / 2)
        going = outer.going & falls & inner.sound & (inner.steps < limit)
        return _Outer(x, r, norm, going, inner.steps, inner.sound)

    finite = jnp.isfinite(norm)
    steps = jnp.zeros(norm.shape, jnp.int32)
    going = finite & (norm > goal) & (limit > 0)
    start = _Outer(jnp.zeros_like(b), b, norm, going, steps, finite)
    end = jax.lax.while_loop(lambda outer: jnp.any(outer.going), advance, start)
    x = scaling.times(jnp.where(end.sound, end.x, jnp.nan), up)
    unsolved = ~((end.norm <= goal) & end.sound)
    return x, Found(end.steps, jnp.where(end.sound, end.norm * up, jnp.nan), unsolved)


def _descend(multiply, precondition, outer, goal, limit):
    """Returns a correction of ``outer.x``, an `_Inner`."""

    def preconditioned(r, norm, power=None):
        """Returns M r, r^H M r and the power of two that scales each column of M r."""
        if precondition is None:
            return r, norm * norm, None
        z = shardings.constrain_like(precondition(r), r)
        power = scaling.scale_of(z, 0, only_finite=True)[0] if power is None else power
        z = scaling.times_scale(z, power)
        return z, dots(r, z), power

    def step(inner):
        q = multiply(inner.p)
        curvature = dots(inner.p, q)
        moves = inner.active & (curvature > 0) & (inner.rz > 0)
        # Zeros are no flaw: products of small numbers underflow, or A is singular.
        sound = inner.sound & ((curvature >= 0) & (inner.rz >= 0) | ~inner.active)
        alpha = inner.rz / jnp.where(moves, curvature, 1)
        d = jnp.where(moves, inner.d + alpha * inner.p, inner.d)
        r = jnp.where(moves, inner.r - alpha * q, inner.r)
        norm, steps = norms(r), inner.steps + inner.active
        active = moves & (norm > goal) & (steps < limit)
        z, rz, _ = preconditioned(r, norm, power)
        beta = rz / jnp.where(moves, inner.rz, 1)
        p = jnp.where(active, z + beta * inner.p, 0)
        return _Inner(d, r, p, rz, active, steps, sound)

    z, rz, power = preconditioned(outer.r, outer.norm)
    p = jnp.where(outer.going, z, 0)
    zeros = jnp.zeros_like(outer.r)
    start = _Inner(zeros, outer.r, p, rz, outer.going, outer.steps, outer.sound)
    return jax.lax.while_loop(lambda inner: jnp.any(inner.active), step, start)


def norms(v):
    """Returns the norms of the columns."""
    return jnp.sqrt(dots(v, v))


def dots(v, w):
    """Returns the real parts of the inner products of the columns."""
    if jnp.iscomplexobj(v):
        return jnp.sum(v.real * w.real + v.imag * w.imag, axis=0)
    return jnp.sum(v * w, axis=0)
