"""The polar decomposition A = U H of each matrix of a stack by the plugin's dynamically weighted
Halley iteration (`xla_ffi/engine/stacks/iterations.h`), and the singular value decomposition that
follows from it and the eigenvectors of H."""

import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import native, products, scaling, sections


@_compat.default_promotion()
def unitary(a):
    """Computes U of A = U H for a (count, n, n); its columns are orthonormal for any rank of A."""
    return native.polar(a)[0]


@_compat.default_promotion()
def decompose(a, eigh):
    """Computes (U, s, V^H) of a (count, n, n); ``eigh`` computes (w, v) of a stack."""
    u, h, exponent = native.polar(a, hermitian=True)
    w, v = eigh(h)
    order = jnp.argsort(-jnp.abs(w), axis=-1)
    w = jnp.take_along_axis(w, order, -1)
    v = jnp.take_along_axis(v, order[:, None, :], -1)
    sign = jnp.where(w < 0, -1, 1)[:, None, :].astype(v.dtype)
    s = scaling.multiplied(jnp.abs(w), exponent[:, None])
    return products.multiply(u, v) * sign, s, sections.adjoint(v)
