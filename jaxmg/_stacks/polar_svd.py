"""Functions of polar.py for matrices of any shape, with derivatives: the orthogonal factor, and the
singular value decomposition."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import eigh as stages
from jaxmg._stacks import library, polar, qr, sections

_multiply, _adjoint = sections.multiply, sections.adjoint


@_compat.default_promotion()
def _svd_by_jax(a):
    return tuple(library.svd(a, full_matrices=False))


@_compat.default_promotion()
def _unitary_by_jax(a):
    u, _, vh = _svd_by_jax(a)
    return _multiply(u, vh)


@_compat.default_promotion()
def _unitary(a):
    m, n = a.shape[-2:]
    if m < n:
        return _adjoint(_unitary(_adjoint(a)))
    if m == n:
        return polar.unitary(a)
    q, r = qr.reduced(a)
    return _multiply(q, polar.unitary(r))


@_compat.default_promotion()
def _decompose(eigh, a):
    m, n = a.shape[-2:]
    if m < n:
        u, s, vh = _decompose(eigh, _adjoint(a))
        return _adjoint(vh), s, _adjoint(u)
    if m == n:
        return polar.decompose(a, eigh)
    q, r = qr.reduced(a)
    u, s, vh = polar.decompose(r, eigh)
    return _multiply(q, u), s, vh


def _differentiable_svd(function):
    """With the derivative of JAX's `svd`, for singular values that differ."""
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        """J. Townsend, "Differentiating the singular value decomposition", 2016. Of complex
        matrices the phase is that of JAX's rule."""
        (a_dot,) = tangents
        u, s, vh = value(*primals)
        k = s.shape[-1]
        inner = _multiply(_multiply(_adjoint(u), a_dot), _adjoint(vh))
        outer = _adjoint(inner)
        columns, rows = s[:, None, :], s[:, :, None]
        gap = (columns - rows) * (columns + rows)
        eye = jnp.eye(k, dtype=bool)
        weights = jnp.where(eye, 0, 1 / jnp.where(gap == 0, 1, gap)).astype(u.dtype)
        inverse = jnp.where(columns == 0, 0, 1 / jnp.where(columns == 0, 1, columns))
        columns, rows, inverse = (x.astype(u.dtype) for x in (columns, rows, inverse))
        phase = jnp.where(eye, (inner - outer) / 2 * inverse, 0)
        u_dot = _multiply(u, weights * (inner * columns + rows * outer) + phase)
        vh_dot = _multiply(_adjoint(weights * (rows * inner + outer * columns)), vh)
        if u.shape[-2] > k:
            moved = _multiply(a_dot, _adjoint(vh))
            u_dot += (moved - _multiply(u, inner)) * inverse
        if vh.shape[-1] > k:
            moved = _multiply(_adjoint(u), a_dot)
            vh_dot += jnp.swapaxes(inverse, -1, -2) * (moved - _multiply(inner, vh))
        s_dot = jnp.diagonal(inner, axis1=-2, axis2=-1).real
        return (u, s, vh), (u_dot, s_dot, vh_dot)

    return value


def _differentiable_unitary(function, svd):
    """With the derivative of the orthogonal factor, for matrices of full rank."""
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        """With A = W S V^H and E = W^H dA V, W^H dU V is (E - E^H)_ij / (s_i + s_j), and beside the
        spaces of U what A has there times the inverse of S."""
        (a,), (a_dot,) = primals, tangents
        w, s, vh = svd(a)
        (m, n), k = a.shape[-2:], s.shape[-1]
        inner = _multiply(_multiply(_adjoint(w), a_dot), _adjoint(vh))
        columns = s[:, None, :]
        total = columns + s[:, :, None]
        skew = (inner - _adjoint(inner)) / jnp.where(total == 0, 1, total)
        inverse = jnp.where(columns == 0, 0, 1 / jnp.where(columns == 0, 1, columns))
        u_dot = _multiply(w, _multiply(skew, vh))
        if m > k:
            moved = _multiply(a_dot, _adjoint(vh))
            u_dot += _multiply((moved - _multiply(w, inner)) * inverse, vh)
        if n > k:
            moved = _multiply(_adjoint(w), a_dot) - _multiply(inner, vh)
            u_dot += _multiply(w, jnp.swapaxes(inverse, -1, -2) * moved)
        return value(a), u_dot.astype(a.dtype)

    return value


decompose = _differentiable_svd(
    functools.partial(_decompose, functools.partial(library.eigh, symmetrize_input=False))
)
decompose_by_stages = _differentiable_svd(functools.partial(_decompose, stages.decompose))
unitary = _differentiable_unitary(_unitary, decompose)
unitary_by_jax = _differentiable_unitary(_unitary_by_jax, _svd_by_jax)
