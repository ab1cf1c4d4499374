"""Condition numbers from an LU factor, as LAPACK's gecon.

A few solves estimate the norm of the inverse (W. W. Hager, SIAM J. Sci. Stat. Comput. 5, 1984;
N. J. Higham, ACM Trans. Math. Softw. 14, 1988), in the iteration of LAPACK's lacn2. The estimate is
a lower bound and mostly exact; only in constructed cases is it below a third of the norm.
"""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._layouts import layouts, meshes
from jaxmg._transform import derivatives

# The maximum number of solves with A, and of solves with its adjoint, as in LAPACK.
_ITERATIONS = 5
# Names of the norms that are estimated.
_NORMS = {**dict.fromkeys((1, "1", "O"), 1), **dict.fromkeys((jnp.inf, "inf", "I"), jnp.inf)}


def norm_of(routine, name, value):
    """Returns 1 or infinity for LAPACK's, NumPy's and JAX's names of a norm."""
    norm = _NORMS.get(value) if isinstance(value, str | int | float) else None
    if norm is None or isinstance(value, bool):
        raise ValueError(f"{routine}: {name} must be 1 or inf; got {value!r}")
    return norm


def inverse_norm(factor, norm):
    """Estimates the norm of A^-1, a real scalar, in a trace; infinity if A is singular."""
    # The infinity norm of A^-1 is the 1-norm of its adjoint.
    how, adjoint = ("N", "C") if norm == 1 else ("C", "N")
    size = _largest_column(
        lambda x: factor.solve(x, how),
        lambda x: factor.solve(x, adjoint),
        factor.n,
        factor.dtype,
        factor.status * 0,
        _repeat if factor.layout.explicit else jax.lax.while_loop,
    )
    # With status 0 a NaN means that solutions overflow. A matrix with NaN or infinity keeps NaN.
    singular = (factor.status > 0) | (jnp.isnan(size) & (factor.status == 0))
    return jnp.where(singular, jnp.inf, size)


def _largest_column(apply, apply_adjoint, n, dtype, zero=None, loop=jax.lax.while_loop):
    """Returns a lower bound of the 1-norm of an operator, which ``apply`` applies to (n, 2).

    Args:
        zero: an int32 scalar, sharded like the factors of a batch over explicit axes.
        loop: `jax.lax.while_loop`, or a function with the same arguments.
    """
    rows = jnp.arange(n, dtype=jnp.int32)
    # lacn2's alternating vector, applied together with each vector of the iteration: it catches
    # underestimates by cancellation.
    real = jnp.finfo(dtype).dtype
    alternating = (1 - 2 * (rows % 2)) * (1 + rows.astype(real) / max(n - 1, 1))

    def goes_on(state):
        count, *_, ends = state
        return (count < _ITERATIONS) & ~ends

    def step(state):
        count, largest, _, last_signs, column, _ = state
        x = jnp.where(count == 0, 1 / n, (rows == column).astype(real))
        # Adds 0 x, because on explicit axes JAX stacks only arrays that are batched alike.
        y = apply(jnp.stack([x, alternating + 0 * x], 1).astype(dtype))
        size, beside = jnp.sum(jnp.abs(y), axis=0)
        signs = _signs(y[:, 0])
        z = jnp.abs(apply_adjoint(signs))
        found = jnp.argmax(z).astype(jnp.int32)
        # Repeated signs, if real, lead to the same column again.
        repeated = jnp.all(signs == last_signs) & (not jnp.iscomplexobj(y))
        ends = (count > 0) & (~(size > largest) | repeated | (z[found] == z[column]))
        return count + 1, jnp.maximum(largest, size), beside, signs, found, ends

    zero = jnp.zeros((), jnp.int32) if zero is None else zero
    number, signs = zero.astype(real), jnp.zeros(n, dtype) + zero.astype(dtype)
    start = zero, number, number, signs, zero, zero > 0
    _, largest, beside, *_ = loop(goes_on, step, start)
    return jnp.maximum(largest, 2 * beside / (3 * n))


def _repeat(goes_on, step, start):
    """Replaces `jax.lax.while_loop`, which JAX can't batch on explicit axes, for at most
    _ITERATIONS steps."""

    def masked(state, _):
        select = functools.partial(jnp.where, goes_on(state))
        return jax.tree.map(select, step(state), state), None

    return jax.lax.scan(masked, start, length=_ITERATIONS)[0]


def _signs(y):
    """Returns y / abs(y), and 1 where y is 0."""
    if not jnp.iscomplexobj(y):
        return jnp.where(y >= 0, 1, -1).astype(y.dtype)
    size = jnp.abs(y)
    return jnp.where(size > 0, y / jnp.where(size > 0, size, 1), 1)


def reciprocal_of(routine, factor, anorm, norm):
    """Checks the arguments of a factor's `rcond`, and returns its result."""
    norm = norm_of(routine, "norm", norm)
    anorm = jnp.asarray(anorm, jnp.finfo(factor.dtype).dtype)
    if anorm.ndim:
        raise ValueError(f"{routine}: anorm must be a scalar; it has shape {anorm.shape}")
    return reciprocal(routine, factor, anorm, norm)


def reciprocal(routine, factor, anorm, norm):
    """Returns 1 / (anorm * norm(A^-1)), as gecon."""
    leaves, tree = jax.tree.flatten((factor, anorm))
    return derivatives.differentiable(
        functools.partial(_run, routine, tree, norm), refuse(routine, "the factor"), *leaves
    )


def refuse(routine, what):
    """Returns a JVP rule that raises, because there is no derivative."""

    def derivative(primals, tangents):
        raise NotImplementedError(
            f"{routine}: {what} is being differentiated (jax.grad, jvp, linearize, ...), but an "
            "estimate of a condition number has no derivative; exclude it from differentiation "
            "with jax.lax.stop_gradient"
        )

    return derivative


def _run(routine, tree, norm, *leaves):
    factor, anorm = tree.unflatten(leaves)
    mesh = meshes.located(routine, factor.layout, leaves).mesh
    if layouts.traced(leaves):
        with _compat.entered(mesh):
            return _reciprocal(factor, anorm, norm)
    with _compat.entered(mesh), _compat.launching(mesh):
        return _reciprocal(factor, anorm, norm)


@functools.partial(jax.jit, static_argnums=2)
@_compat.default_promotion()
def _reciprocal(factor, anorm, norm):
    if not factor.n:
        return jnp.ones_like(anorm)
    value = 1 / inverse_norm(factor, norm)
    return jnp.where(anorm == 0, 0 * value, value / anorm)
