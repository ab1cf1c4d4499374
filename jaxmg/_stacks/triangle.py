"""Inverses of the lower triangular matrices of a stack by products: LAPACK's trtri."""

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import sections

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
