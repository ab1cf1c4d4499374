"""Eigenvalues and eigenvectors of each tridiagonal matrix of a stack by divide and conquer.

A matrix is cut in halves, and these again, until pieces have order 32 at most. A merge of two
halves is the eigenproblem of diag(d) + rho z z^T, whose eigenvalues are the roots of 1 / rho + sum
z_i^2 / (d_i - x), one between any two poles d, and whose eigenvectors follow from z as Gu and
Eisenstat compute it anew from the roots (SIAM J. Matrix Anal. Appl. 16, 1995).

All merges of a level have the same shapes, whatever the matrices are: nothing is deflated. LAPACK
deflates because poles may be equal and elements of z zero. Here a pole is a sum of two numbers,
and equal ones are set apart in the second by a distance that is nothing beside rounding errors, as
are the small numbers that take the place of elements of z and rho that vanish. Differences of poles
are accurate to their last digits in this form, which is all that the method needs. Roots and
eigenvectors of merges are the plugin's (xla_ffi/device/stack_kernels.h).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat
from jaxmg._factors import scaling
from jaxmg._stacks import native, products

_LEAF = 32


class _Least(NamedTuple):
    """The least distance of neighboring poles, element of z, and rho, of matrices near 1: exponents
    of powers of two. Products of all of them are normal numbers."""

    gap: int
    z: int
    rho: int

    @classmethod
    def of(cls, dtype):
        return cls(-36, -28, -26) if jnp.finfo(dtype).bits == 32 else cls(-90, -60, -56)


@_compat.default_promotion()
def eigh(d, e):
    """(w, V) of matrices with the diagonals d (count, n) and e (count, n - 1) beside them: w
    ascending, V (count, n, n). Where an entry isn't finite, that matrix's results are NaN.

    Cost for each matrix: about 4/3 n^3 multiplications and additions, in products. Memory: about
    four stacks.
    """
    n = d.shape[-1]
    if n == 1:
        return d, jnp.ones((*d.shape, 1), d.dtype)
    finite = jnp.isfinite(d).all(-1) & jnp.isfinite(e).all(-1)
    d, e = (jnp.where(finite[:, None], x, 0) for x in (d, e))
    # Powers of two that bring the entries to 1/2 at most.
    exponent = scaling.exponent_of(jnp.concatenate([d, e], -1), -1, keepdims=True) + 2
    w, v = _eigh(scaling.multiplied(d, -exponent), scaling.multiplied(e, -exponent))
    w = jnp.where((d != 0).any(-1)[:, None] | (e != 0).any(-1)[:, None], w, 0)
    w = scaling.multiplied(w, exponent)
    w = jnp.where(finite[:, None], w, jnp.nan)
    return w, jnp.where(finite[:, None, None], v, jnp.nan)


def _eigh(d, e):
    """Of matrices whose entries are 1/2 at most."""
    count, n = d.shape
    levels = 0
    while -(-n >> levels) > _LEAF:
        levels += 1
    leaf = -(-n // 2**levels)
    padded = leaf << levels
    # What is added has eigenvalues beyond all others, and so is the last of what is computed.
    d = jnp.pad(d, ((0, 0), (0, padded - n)), constant_values=4)
    e = jnp.pad(e, ((0, 0), (0, padded - n)))
    if not levels:
        v, w = _leaves(d, e)
        order = jnp.argsort(w, axis=-1)
        return jnp.take_along_axis(w, order, -1), jnp.take_along_axis(v, order[:, None], -1)
    least = 2.0 ** _Least.of(d.dtype).rho
    cut = jnp.zeros(padded - 1, bool).at[leaf - 1 :: leaf].set(True)
    e = jnp.where(cut, jnp.where(e < 0, -1, 1) * jnp.maximum(jnp.abs(e), least), e)
    rho = jnp.where(cut, jnp.abs(e), 0)
    d -= jnp.pad(rho, ((0, 0), (0, 1))) + jnp.pad(rho, ((0, 0), (1, 0)))
    beside = jnp.pad(jnp.where(cut, 0, e), ((0, 0), (0, 1))).reshape(count, -1, leaf)
    v, w = _leaves(d.reshape(count, -1, leaf), beside[..., :-1])
    w = Pole(w, jnp.zeros_like(w))
    size = leaf
    for _ in range(levels):
        couplings = e[:, size - 1 :: 2 * size]
        w, v = _merge(w, v, couplings, last=2 * size == padded)
        size *= 2
    return w.high[:, 0, :n], v[:, 0, :n, :n]


def _leaves(d, e):
    """(V, w), w in no order, of the pieces (count, pieces, order)."""
    row = jax.ShapeDtypeStruct(d.shape, d.dtype)
    vectors = jax.ShapeDtypeStruct((*d.shape, d.shape[-1]), d.dtype)
    w, v = native.call("stacked_tridiagonal", (row, vectors), d, e)
    return v, w


class Pole(NamedTuple):
    """The sum of two numbers, the second one small beside the first."""

    high: Any
    low: Any


def _merge(w, v, couplings, last):
    """The eigenpairs of twice the order: of w (count, pieces, k / 2), V (count, pieces, k / 2, k /
    2), and the numbers beside the diagonal where halves meet, (count, pieces / 2)."""
    count, pieces, half = w.high.shape
    k, least = 2 * half, _Least.of(v.dtype)
    halves = v.reshape(count, pieces // 2, 2, half, half)
    sign = jnp.where(couplings < 0, -1, 1).astype(v.dtype)[..., None]
    z = jnp.concatenate([halves[:, :, 0, -1], sign * halves[:, :, 1, 0]], axis=-1)
    z = jnp.where(z < 0, -1, 1) * jnp.maximum(jnp.abs(z), 2.0**least.z)
    high, low, z = (x.reshape(-1, k) for x in (*w, z))
    w, u = _native_merge(high, low, z, jnp.abs(couplings).reshape(-1), least.gap)
    product = products.multiply(
        v.reshape(-1, half, half), u.reshape(-1, k, half), right=products.TRANSPOSE
    )
    w = Pole(*(x.reshape(count, pieces // 2, k) for x in w))
    if last:  # rounded roots may not ascend
        w = Pole(jax.lax.cummax(w.high, axis=2), w.low)
    return w, product.reshape(count, pieces // 2, k, k)


def _native_merge(high, low, z, rho, gap):
    """(roots, U) of merges with poles and z (count, k), rho (count,): U (count, 2, k, k / 2) has
    eigenvectors in its rows, what goes with the first half of the poles and what with the other."""
    count, k = high.shape
    row = jax.ShapeDtypeStruct(high.shape, high.dtype)
    vectors = jax.ShapeDtypeStruct((count, 2, k, k // 2), high.dtype)
    high, low, u = native.call(
        "stacked_merge", (row, row, vectors), high, low, z, rho, gap_exponent=np.int64(gap)
    )
    return Pole(high, low), u
