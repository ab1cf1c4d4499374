"""Triangular matrices of a stack: inverses by products, as LAPACK's trtri, and substitution."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import choice, native, sections

# The order of diagonal blocks that are inverted by substitution.
_LEAF = 64


@_compat.default_promotion()
def inverse(a):
    """Inverts each lower triangular matrix of a (count, n, n); doesn't read the upper triangle.

    [A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1, C^-1], recursively for halves. As for substitution,
    errors are bounded by the condition number times the rounding unit (J. J. Du Croz, N. J. Higham,
    IMA J. Numer. Anal. 12, 1992).
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
    """Returns the Hermitian matrices with the lower triangles of the stack, or with ``upper`` the
    upper ones. Imaginary parts of the diagonal are ignored."""
    half = jnp.triu(a, 1) if upper else jnp.tril(a, -1)
    diagonal = jnp.diagonal(a, axis1=-2, axis2=-1).real.astype(a.dtype)
    eye = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(eye, diagonal[..., None], half + sections.adjoint(half))


# The maximum number of right-hand sides for the plugin, which reads the matrix again for each. It
# was measured with one (docs/laboratory.md).
_FEW = 4


def solve_in_turn(a, b, **options):
    """Calls JAX's `triangular_solve` for one matrix after the other. With JAX 0.10 its batched
    kernel waits in a thread of XLA's pool for other threads of the pool, and several CPU devices
    at a time can deadlock."""
    function = functools.partial(jax.lax.linalg.triangular_solve, **options)
    return jax.lax.map(lambda one: function(*one), (a, b))


def solve(by_plugin, a, b, upper=False, adjoint=False, unit=False, few: float = _FEW):
    """Computes T^-1 B, with ``adjoint`` T^-H B. T are the lower or upper triangles of a (count, n,
    n); b is (count, n, nrhs). Calls the plugin if ``by_plugin`` and there are few columns, else
    JAX."""
    if by_plugin and b.shape[-1] <= few and a.shape[-1] <= native.MOST_SUBSTITUTION:
        return native.solve_triangle(a, b, upper, adjoint, unit)
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, transpose_a=adjoint, conjugate_a=adjoint,
        unit_diagonal=unit,
    )  # fmt: skip


def solve_on(platform, a, b, **triangle_of_a):
    """Runs the way of `triangle.solve` chosen for the stack ``a``; JAX's way if the platform is
    None."""
    return SOLVE.function(platform, a)(a, b, **triangle_of_a)


SOLVE = choice.Operation(
    "trsm",
    {
        choice.JAX: functools.partial(solve, False),
        "plugin": functools.partial(solve, True),
        "lapack": functools.partial(solve, True, few=math.inf),
    },
    (choice.Row("gpu", "plugin", (1, 4096)), choice.on_cpus("lapack")),
)
