"""Determinants of each matrix of a stack, with the same derivatives as for single matrices."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._factors import scaling
from jaxmg._stacks import choice, library, lu, native, sections, ways


@_compat.default_promotion()
def log_det(platform, a):
    """Returns (signs, logarithms of the absolute values). For order 2 JAX takes the logarithm of
    the determinant itself, and for order 3 LU, so order 2 is padded to 3."""
    if a.shape[-1] != 2:
        return _slogdet(platform, a)
    larger = sections.pad(a, 3, 3) + jnp.diag(jnp.array([0, 0, 1], a.dtype))
    return tuple(library.slogdet(larger))


def _slogdet(platform, a):
    """Computes `log_det` by LU."""
    sign, log = choice.function(_SLOGDET, platform, "lu", a)(a)
    return sign, log


@_compat.default_promotion()
def of_factors(packed, pivots):
    """Returns (signs, logarithms of the absolute values), given LU and LAPACK's pivots."""
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sizes = jnp.abs(diagonal)
    units = diagonal / jnp.where(sizes == 0, 1, sizes).astype(packed.dtype)
    sign = jnp.prod(units, axis=-1) * parity(pivots).astype(packed.dtype)
    return sign, jnp.log(sizes).sum(axis=-1)


def parity(pivots):
    """Returns the signs of permutations, as integers."""
    moved = jnp.sum(pivots != jnp.arange(pivots.shape[-1], dtype=pivots.dtype), axis=-1)
    return 1 - 2 * (moved % 2)


@library.spoiled
def _by_plugin(a):
    return of_factors(*native.factor_lu(a))


slogdet_by_plugin = jax.custom_jvp(_by_plugin)


@slogdet_by_plugin.defjvp
@_compat.default_promotion()
def _(primals, tangents):
    """d log det(A) = trace(A^-1 dA); its imaginary part is that of the phase."""
    (a,), (a_dot,) = primals, tangents
    sign, log = slogdet_by_plugin(a)
    trace = _trace_by_plugin(a, a_dot)
    turned = sign * (trace - trace.real.astype(trace.dtype))
    return (sign, log), (turned, trace.real)


_SLOGDET = {choice.JAX: library.slogdet, "plugin": slogdet_by_plugin}


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
    sign, log = _slogdet(platform, a)
    exponent = a.shape[-1] * scaling.exponent_of_power(up[..., 0, 0])
    return sign * scaling.exp_times_power(log, exponent).astype(a.dtype)


@det.defjvp
@_compat.default_promotion()
def _(platform, primals, tangents):
    """d det(A) = trace(adj(A) dA). JAX's rule has adj(A) of a singular A only if the last pivot is
    the only zero."""
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
    trace = choice.function(_TRACE, platform, "lu", a)(scaled, a_dot)
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


def _trace_by_plugin(a, a_dot):
    return jnp.sum(jnp.swapaxes(lu.inverse_by_plugin(a), -1, -2) * a_dot, axis=(-2, -1))


_TRACE = {choice.JAX: _trace_by_jax, "plugin": _trace_by_plugin}


def _adjugates(platform, a):
    """Computes det(U V^H) V D U^H, where D_ii is the product of the other singular values (G. W.
    Stewart, Linear Algebra Appl. 283, 1998)."""
    u, s, vh = ways.svd(platform, a)
    multiply = functools.partial(ways.multiply, platform)
    sign = _slogdet(platform, multiply(u, vh))[0]
    ones = jnp.ones_like(s[..., :1])
    before = jnp.cumprod(jnp.concatenate([ones, s[..., :-1]], -1), -1)
    after = jnp.cumprod(jnp.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    others = (before * after).astype(a.dtype)
    v = sections.adjoint(vh) * others[..., None, :]
    return sign[..., None, None] * multiply(v, sections.adjoint(u))
