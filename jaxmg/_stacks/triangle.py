"""Triangular matrices of a stack: their inverses by products, LAPACK's trtri, and substitution."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import native, sections

# Blocks on the diagonal are inverted by substitution.
_LEAF = 64


@_compat.default_promotion()
def inverse(a):
    """The inverse of each lower triangular matrix of a (count, n, n), of which it reads nothing
    else.

    [A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1, C^-1], for halves of halves. Errors are bounded as those
    of substitution are, by the condition times rounding (J. J. Du Croz, N. J. Higham, IMA J. Numer.
    Anal. 12, 1992).
    """
    n = a.shape[-1]
    if n <= _LEAF:
        eye = sections.identity(n, a)
        return jax.lax.linalg.triangular_solve(a, eye, left_side=True, lower=True)
    half = sections.padded(n // 2, _LEAF)
    if 2 * half == n:  # both halves at once
        both = inverse(jnp.concatenate([a[:, :half, :half], a[:, half:, half:]]))
        first, last = jnp.split(both, 2)
    else:
        first, last = inverse(a[:, :half, :half]), inverse(a[:, half:, half:])
    below = -sections.multiply(sections.multiply(last, a[:, half:, :half]), first)
    top = jnp.pad(first, ((0, 0), (0, 0), (0, n - half)))
    return jnp.concatenate([top, jnp.concatenate([below, last], axis=2)], axis=1)


def whole(a, upper=False):
    """The Hermitian matrices whose lower triangles the stack has, or with ``upper`` the upper ones;
    of the diagonal the real part counts."""
    half = jnp.triu(a, 1) if upper else jnp.tril(a, -1)
    diagonal = jnp.diagonal(a, axis1=-2, axis2=-1).real.astype(a.dtype)
    eye = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(eye, diagonal[..., None], half + sections.adjoint(half))


# The most right-hand sides for the plugin, which reads the matrix again for each. It was measured
# with one (docs/laboratory.md).
_FEW = 4


def solve_in_turn(a, b, **options):
    """JAX's `triangular_solve` of one matrix after the other. Its kernel of a batch waits in a
    thread of XLA's pool for other threads of it with JAX 0.10, and several CPU devices at a time
    can lock up."""
    function = functools.partial(jax.lax.linalg.triangular_solve, **options)
    return jax.lax.map(lambda one: function(*one), (a, b))


def solve(by_plugin, a, b, upper=False, adjoint=False, unit=False, few: float = _FEW):
    """T^-1 B of the lower or upper triangles T of a (count, n, n) and b (count, n, nrhs); with
    ``adjoint`` T^-H B. By JAX, or with ``by_plugin`` by the plugin if there are few columns."""
    if by_plugin and b.shape[-1] <= few and a.shape[-1] <= native.MOST_SUBSTITUTION:
        return native.solve_triangle(a, b, upper, adjoint, unit)
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, transpose_a=adjoint, conjugate_a=adjoint,
        unit_diagonal=unit,
    )  # fmt: skip
