"""Eigenvalues and eigenvectors of each tridiagonal matrix of a stack by divide and conquer.

A matrix is cut into halves, and these again, until pieces have order 32 at most. A merge of two
halves is the eigenproblem of diag(d) + rho z z^T. Its eigenvalues are the roots of 1 / rho + sum
z_i^2 / (d_i - x), one between any two poles d. Its eigenvectors follow from z, which is recomputed
from the roots as by Gu and Eisenstat (SIAM J. Matrix Anal. Appl. 16, 1995).

All merges of a level have the same shapes for any matrices, because nothing is deflated. LAPACK
deflates because poles may be equal and elements of z zero. Here a pole is a sum of two numbers.
Equal poles are separated in the second number by a distance that is negligible compared with
rounding errors, and small numbers, negligible as well, replace elements of z and rho that vanish.
In this form differences of poles are accurate to their last digits, which is all that the method
needs. The plugin computes roots and eigenvectors of merges (xla_ffi/device/stacks/stack_kernels.h).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat
from jaxmg._stacks import native, products, scaling

_LEAF = 32


class _Least(NamedTuple):
    """The least distance of neighboring poles, the least element of z and the least rho of
    matrices with entries near 1.

    Each attribute is the exponent of a power of two. The product of the three powers is a normal
    number.
    """

    gap: int
    z: int
    rho: int

    @classmethod
    def make(cls, dtype):
        return cls(-36, -28, -26) if jnp.finfo(dtype).bits == 32 else cls(-90, -60, -56)


@_compat.default_promotion()
def eigh(d, e):
    """Computes (w, V) of matrices with diagonals d (count, n) and off-diagonals e (count, n - 1): w
    ascending, V (count, n, n). A matrix with an entry that isn't finite gives NaN.

    Cost for each matrix: about 4/3 n^3 flops, in products. Memory: about four stacks.
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
    """Computes `eigh` of matrices whose entries are at most 1/2."""
    count, n = d.shape
    levels = 0
    while -(-n >> levels) > _LEAF:
        levels += 1
    leaf = -(-n // 2**levels)
    padded = leaf << levels
    # The padding has eigenvalues larger than all others, so they come last.
    d = jnp.pad(d, ((0, 0), (0, padded - n)), constant_values=4)
    e = jnp.pad(e, ((0, 0), (0, padded - n)))
    if not levels:
        v, w = _leaves(d, e)
        order = jnp.argsort(w, axis=-1)
        return jnp.take_along_axis(w, order, -1), jnp.take_along_axis(v, order[:, None], -1)
    least = 2.0 ** _Least.make(d.dtype).rho
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
    """Returns (V, w), with w unordered, of the pieces (count, pieces, order)."""
    row = jax.ShapeDtypeStruct(d.shape, d.dtype)
    vectors = jax.ShapeDtypeStruct((*d.shape, d.shape[-1]), d.dtype)
    w, v = native.call("stacked_tridiagonal", (row, vectors), d, e)
    return v, w


class Pole(NamedTuple):
    """The sum of two numbers, the second one small compared with the first."""

    high: Any
    low: Any


def _merge(w, v, couplings, last):
    """Merges pairs of pieces to eigenpairs of twice the order. w is (count, pieces, k / 2), V
    (count, pieces, k / 2, k / 2); couplings, (count, pieces / 2), are the off-diagonal numbers
    between the halves."""
    count, pieces, half = w.high.shape
    k, least = 2 * half, _Least.make(v.dtype)
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
    """Returns (roots, U) of merges with poles and z (count, k), and rho (count,). U (count, 2, k, k
    / 2) has eigenvectors in its rows: their parts for the first half of the poles, and for the
    second."""
    count, k = high.shape
    row = jax.ShapeDtypeStruct(high.shape, high.dtype)
    vectors = jax.ShapeDtypeStruct((count, 2, k, k // 2), high.dtype)
    high, low, u = native.call(
        "stacked_merge", (row, row, vectors), high, low, z, rho, gap_exponent=np.int64(gap)
    )
    return Pole(high, low), u
