"""The entries of a triangular matrix's exponential that have a formula: its diagonal, the diagonal
beside it, and the zeros.

Products of a triangular matrix with itself lose these digits where entries differ in size. So each
matrix of the squarings gets them anew (A. H. Al-Mohy, N. J. Higham, SIAM J. Matrix Anal. Appl. 31,
2009, code fragment 2.1).
"""

import jax
import jax.numpy as jnp

from jaxmg._factors import scaling
from jaxmg._transform import derivatives, hermitian


def make(layout, rows):
    """A function of (X, k), X about exp(A 2^k), that replaces these entries if A is triangular.

    Args:
        rows: A (n, n), as the functions of `hermitian` have it.

    Derivatives are those of X itself: A's may be in any direction.
    """
    bands, others = _bands(layout, jax.lax.stop_gradient(rows))

    def value(x, k, bands, others):
        d, above, below = scaling.multiplied(bands, k)
        slopes = _divided_difference(jnp.roll(d, 1), d)
        exact = jnp.stack([jnp.exp(d), above * slopes, below * jnp.roll(slopes, -1)])
        exact = jax.lax.optimization_barrier(exact)  # or XLA computes it for every entry

        def local(rank, x, exact, others):
            row, column = hermitian._indices(rank, x)
            offset = column - row
            is_upper, is_lower = others[0] == 0, others[1] == 0
            x = jnp.where((offset == 0) & (is_upper | is_lower), exact[0], x)
            x = jnp.where((offset == 1) & is_upper, exact[1], x)
            x = jnp.where((offset == -1) & is_lower, exact[2], x)
            return jnp.where(((offset < 0) & is_upper) | ((offset > 0) & is_lower), 0, x)

        return hermitian.over_ranks(layout, local, (x,), (exact, others))

    def rule(primals, tangents):
        result = value(*primals)
        return result, jnp.zeros_like(result) if tangents[0] is None else tangents[0]

    return lambda x, k: derivatives.differentiable(value, rule, x, k, bands, others)


def _bands(layout, rows):
    """By columns the entries on the diagonal, above and below it; whether there are entries in the
    lower and in the upper triangle."""

    def local(rank, a):
        row, column = hermitian._indices(rank, a)
        bands = [jnp.sum(jnp.where(column - row == k, a, 0), axis=0) for k in (0, 1, -1)]
        others = [jnp.any((a != 0) & where) for where in (row > column, row < column)]
        sums = jnp.stack(bands), jnp.stack(others).astype(jnp.int32)
        return tuple(hermitian.sum_over_ranks(layout, x) for x in sums)

    return hermitian.over_ranks(layout, local, (rows,), (), jax.sharding.PartitionSpec())


def _divided_difference(x, y):
    """(exp(y) - exp(x)) / (y - x), without cancellation."""
    first = jnp.real(x) >= jnp.real(y)
    large, gap = jnp.where(first, x, y), jnp.where(first, y - x, x - y)
    none = gap == 0
    return jnp.exp(large) * jnp.where(none, 1, _expm1(gap) / jnp.where(none, 1, gap))


def _expm1(x):
    if not jnp.iscomplexobj(x):
        return jnp.expm1(x)
    real = jnp.expm1(x.real) * jnp.cos(x.imag) - 2 * jnp.sin(x.imag / 2) ** 2
    return jax.lax.complex(real, jnp.exp(x.real) * jnp.sin(x.imag))
