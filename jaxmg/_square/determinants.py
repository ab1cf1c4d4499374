"""Determinants of each matrix of a stack, with the same derivatives as for single matrices."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._lu import stacks as lu_stacks
from jaxmg._stacks import choice, library, scaling, sections
from jaxmg._svd import stacks as svd_stacks


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@_compat.default_promotion()
def det(platform, a):
    """Computes the determinants. If one is 0, its derivative is computed by cofactors, for any
    rank."""
    return _by_polynomial(a) if a.shape[-1] <= 3 else _by_lu(platform, a)


def _by_polynomial(a):
    return scaling.homogeneous(library.det, a.shape[-1])(a)


def _by_lu(platform, a):
    """Computes determinants by logarithms, so that only the result has to be in range."""
    a, up = scaling.scaled(a, (-2, -1))
    sign, log = lu_stacks.slogdet(platform, a)
    exponent = a.shape[-1] * scaling.exponent_of_power(up[..., 0, 0])
    return sign * scaling.exp_times_power(log, exponent).astype(a.dtype)


@det.defjvp
@_compat.default_promotion()
def _(platform, primals, tangents):
    """JVP rule: d det(A) = trace(adj(A) dA). For a singular A, JAX's rule computes adj(A) only if
    the last pivot is the only one that is zero."""
    (a,), (a_dot,) = primals, tangents
    value = det(platform, a)
    singular = (value == 0)[..., None, None]
    regular = jnp.where(singular, jnp.eye(a.shape[-1], dtype=a.dtype), a)
    slope = _slope(platform, value, regular, a_dot)
    adjugate = jax.lax.cond(
        jnp.any(singular),
        functools.partial(_adjugates, platform),
        jnp.zeros_like,
        jnp.where(singular, a, 1),
    )
    by_cofactors = jnp.sum(jnp.swapaxes(adjugate, -1, -2) * a_dot, axis=(-2, -1))
    return value, jnp.where(singular[..., 0, 0], by_cofactors, slope)


def _slope(platform, value, a, a_dot):
    """Computes trace(adj(A) dA) for regular matrices, where adj(A) is det(A) A^-1. By LU both
    factors come from one factorization, so their errors cancel if A is nearly singular."""
    if a.shape[-1] <= 3:
        return jax.jvp(_by_polynomial, (a,), (a_dot,))[1]
    down, _ = scaling.scale_of(a, (-2, -1))
    scaled = scaling.times_scale(a, scaling.over(down, 2))
    trace = TRACE.function(platform, a)(scaled, a_dot)
    return value * scaling.times(trace, down)


def _trace_by_jax(a, a_dot):
    """Computes trace(A^-1 dA)."""
    moved = jax.lax.custom_linear_solve(  # linear in dA, unlike scaling by bits
        functools.partial(sections.multiply, a),
        a_dot,
        lambda _, y: library.solve(a, y),
        lambda _, y: library.solve(jnp.swapaxes(a, -1, -2), y),
    )
    return jnp.trace(moved, axis1=-2, axis2=-1)


TRACE = choice.Operation(
    "lu", {choice.JAX: _trace_by_jax, "plugin": lu_stacks.trace_by_plugin}, lu_stacks.LU.rows
)


def _adjugates(platform, a):
    """Computes det(U V^H) V D U^H, where D_ii is the product of the other singular values (G. W.
    Stewart, Linear Algebra Appl. 283, 1998)."""
    u, s, vh = svd_stacks.svd(platform, a)
    multiply = functools.partial(choice.multiply, platform)
    sign = lu_stacks.slogdet(platform, multiply(u, vh))[0]
    ones = jnp.ones_like(s[..., :1])
    before = jnp.cumprod(jnp.concatenate([ones, s[..., :-1]], -1), -1)
    after = jnp.cumprod(jnp.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    others = (before * after).astype(a.dtype)
    v = sections.adjoint(vh) * others[..., None, :]
    return sign[..., None, None] * multiply(v, sections.adjoint(u))
