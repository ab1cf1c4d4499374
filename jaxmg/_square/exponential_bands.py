"""Entries of a triangular matrix's exponential that have a formula: the diagonal, the first
off-diagonal, and the zeros.

Squaring a triangular matrix loses digits of these entries if the entries differ in size. So they
are replaced by their formulas after each squaring (A. H. Al-Mohy, N. J. Higham, SIAM J. Matrix
Anal. Appl. 31, 2009, code fragment 2.1).
"""

import jax
import jax.numpy as jnp

from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives


def make(layout, rows):
    """Returns a function of (X, k), where X approximates exp(A 2^k). If A is triangular, the
    function replaces the entries of X that have a formula.

    Args:
        rows: A (n, n), laid out by `hermitian.rows`.

    The derivative is that of X itself, because the tangent of A need not be triangular.
    """
    bands, others = _bands(layout, jax.lax.stop_gradient(rows))

    def value(x, k, bands, others):
        d, above, below = scaling.multiplied(bands, k)
        slopes = _divided_difference(jnp.roll(d, 1), d)
        exact = jnp.stack([jnp.exp(d), above * slopes, below * jnp.roll(slopes, -1)])
        exact = jax.lax.optimization_barrier(exact)  # else XLA recomputes it for every entry of X

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

    def replaced(x, k):
        return derivatives.differentiable(value, rule, x, k, bands, others)

    is_triangular = jnp.min(others) == 0
    return lambda x, k: jax.lax.cond(is_triangular, replaced, lambda x, k: x, x, k)


def _bands(layout, rows):
    """Returns (bands, others).

    ``bands`` has the diagonal, the superdiagonal and the subdiagonal, indexed by column. ``others``
    says whether the strictly lower and the strictly upper triangle have nonzero entries.
    """

    def local(rank, a):
        row, column = hermitian._indices(rank, a)
        bands = [jnp.sum(jnp.where(column - row == k, a, 0), axis=0) for k in (0, 1, -1)]
        others = [jnp.any((a != 0) & where) for where in (row > column, row < column)]
        sums = jnp.stack(bands), jnp.stack(others).astype(jnp.int32)
        return tuple(hermitian.sum_over_ranks(layout, x) for x in sums)

    return hermitian.over_ranks(layout, local, (rows,), (), jax.sharding.PartitionSpec())


def _divided_difference(x, y):
    """Returns (exp(y) - exp(x)) / (y - x), without cancellation."""
    first = jnp.real(x) >= jnp.real(y)
    large, gap = jnp.where(first, x, y), jnp.where(first, y - x, x - y)
    none = gap == 0
    return jnp.exp(large) * jnp.where(none, 1, _expm1(gap) / jnp.where(none, 1, gap))


def _expm1(x):
    if not jnp.iscomplexobj(x):
        return jnp.expm1(x)
    real = jnp.expm1(x.real) * jnp.cos(x.imag) - 2 * jnp.sin(x.imag / 2) ** 2
    return jax.lax.complex(real, jnp.exp(x.real) * jnp.sin(x.imag))
