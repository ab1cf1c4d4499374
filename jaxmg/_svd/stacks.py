"""Stacks of matrices of any shape on one device: the ways to compute singular values and vectors
and polar factors, with derivatives."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._eigen import stacks as eigen_stacks
from jaxmg._qr import stacks as qr_stacks
from jaxmg._stacks import choice, library, native, products, rotations, scaling, sections
from jaxmg._stacks.choice import JAX, Row
from jaxmg._svd import polar_stacks

_adjoint = sections.adjoint


@_compat.default_promotion()
def _svd_by_jax(a):
    return tuple(library.svd(a, full_matrices=False))


@_compat.default_promotion()
def _unitary_by_jax(a):
    u, _, vh = _svd_by_jax(a)
    return sections.multiply(u, vh)


@_compat.default_promotion()
def _unitary(a):
    m, n = a.shape[-2:]
    if m < n:
        return _adjoint(_unitary(_adjoint(a)))
    if m == n:
        return polar_stacks.unitary(a)
    q, r = qr_stacks.reduced(a)
    return products.multiply(q, polar_stacks.unitary(r))


@_compat.default_promotion()
def _decompose(eigh, a):
    m, n = a.shape[-2:]
    if m < n:
        u, s, vh = _decompose(eigh, _adjoint(a))
        return _adjoint(vh), s, _adjoint(u)
    if m == n:
        return polar_stacks.decompose(a, eigh)
    q, r = qr_stacks.reduced(a)
    u, s, vh = polar_stacks.decompose(r, eigh)
    return products.multiply(q, u), s, vh


def _differentiable_svd(function, multiply):
    """Adds the derivative that `rotations` describes; ``multiply`` computes its products."""
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        (a_dot,) = tangents
        u, s, vh = value(*primals)
        k = s.shape[-1]
        inner = multiply(multiply(_adjoint(u), a_dot), _adjoint(vh))
        of_u, of_v = rotations.vector_rotations(inner, _adjoint, s)
        u_dot, vh_dot = multiply(u, of_u), multiply(_adjoint(of_v), vh)
        if u.shape[-2] > k:
            moved = multiply(a_dot, _adjoint(vh)) - multiply(u, inner)
            u_dot += rotations.divide(moved, s[..., None, :])
        if vh.shape[-1] > k:
            moved = multiply(_adjoint(u), a_dot) - multiply(inner, vh)
            vh_dot += rotations.divide(moved, s[..., :, None])
        s_dot = jnp.diagonal(inner, axis1=-2, axis2=-1).real
        return (u, s, vh), (u_dot, s_dot, vh_dot)

    return value


def _differentiable_unitary(function, svd, multiply):
    """Adds the derivative of the orthogonal factor, for matrices of full rank."""
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        """With A = W S V^H and E = W^H dA V, W^H dU V is (E - E^H)_ij / (s_i + s_j). Outside the
        spaces spanned by W and V, dU is the part of dA there times the inverse of S."""
        (a,), (a_dot,) = primals, tangents
        w, s, vh = svd(a)
        (m, n), k = a.shape[-2:], s.shape[-1]
        inner = multiply(multiply(_adjoint(w), a_dot), _adjoint(vh))
        skew = rotations.factor_rotation(inner, _adjoint, s)
        u_dot = multiply(w, multiply(skew, vh))
        if m > k:
            moved = multiply(a_dot, _adjoint(vh)) - multiply(w, inner)
            u_dot += multiply(rotations.divide(moved, s[..., None, :]), vh)
        if n > k:
            moved = multiply(_adjoint(w), a_dot) - multiply(inner, vh)
            u_dot += multiply(w, rotations.divide(moved, s[..., :, None]))
        return value(a), u_dot.astype(a.dtype)

    return value


def _differentiable_values(function, svd, multiply):
    """Adds the derivative of singular values, which needs the vectors."""
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        (a,), (a_dot,) = primals, tangents
        u, _, vh = svd(a)
        moved = multiply(a_dot, _adjoint(vh))
        return value(a), jnp.sum((u.conj() * moved).real, axis=-2)

    return value


@_compat.default_promotion()
def _values_by_jax(a):
    return library.svdvals(a)


@_compat.default_promotion()
def _svd_by_plugin(a):
    return native.decompose(a)


@_compat.default_promotion()
def _values_by_plugin(a):
    return native.decompose(a, vectors=False)


_by_plugin, _by_jax = products.multiply, sections.multiply
decompose = _differentiable_svd(
    functools.partial(_decompose, functools.partial(library.eigh, symmetrize_input=False)),
    _by_plugin,
)
decompose_by_stages = _differentiable_svd(
    functools.partial(_decompose, eigen_stacks.decompose), _by_plugin
)
decompose_by_jax = _differentiable_svd(_svd_by_jax, _by_jax)
decompose_by_plugin = _differentiable_svd(_svd_by_plugin, _by_plugin)
values_by_jax = _differentiable_values(_values_by_jax, decompose_by_jax, _by_jax)
values_by_plugin = _differentiable_values(_values_by_plugin, decompose_by_plugin, _by_plugin)
unitary = _differentiable_unitary(_unitary, decompose, _by_plugin)
unitary_by_jax = _differentiable_unitary(_unitary_by_jax, decompose_by_jax, _by_jax)


SVD = choice.Operation(
    "svd",
    {
        JAX: decompose_by_jax,
        "polar": decompose,
        "polar and stages": decompose_by_stages,
        "plugin": decompose_by_plugin,
    },
    (
        Row("gpu", "polar and stages", (256, 512), 4, ("f4", "f8")),
        Row("gpu", "polar", (32, 4096), 4),
        choice.on_cpus("plugin"),
    ),
)
VALUES = choice.Operation(
    "svd",
    {
        JAX: values_by_jax,
        "polar": lambda a: decompose(a)[1],
        "polar and stages": lambda a: decompose_by_stages(a)[1],
        "plugin": values_by_plugin,
    },
    SVD.rows,
)
POLAR = choice.Operation(
    "polar", {JAX: unitary_by_jax, "qdwh": unitary}, (Row("gpu", "qdwh", (32, 4096), 4),)
)


def svd(platform, a):
    """Computes the reduced (U, s, V^H)."""
    u, s, vh = SVD(platform, a)
    return u, s, vh


def singular_values(platform, a):
    """Computes only the singular values."""
    return VALUES(platform, a)


def polar(platform, a):
    """Computes the U of A = U H, or A = H U."""
    return POLAR(platform, a)


def polar_factors(platform, a, side="right"):
    """Computes (U, H) of A = U H, or of A = H U if ``side`` is "left"."""

    def factors(a):
        u = polar(platform, a)
        pair = (sections.adjoint(u), a) if side == "right" else (a, sections.adjoint(u))
        h = choice.multiply(platform, *pair)
        return u, (h + sections.adjoint(h)) / 2

    return scaling.homogeneous(factors, 0, 1)(a)
