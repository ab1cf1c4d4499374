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
    bands = _bands(layout, jax.lax.stop_gradient(rows))
    others = jnp.max(bands[3:].real, 1)
    is_upper = others[0] == 0
    # By column: the diagonal, the off-diagonal, and the diagonal of the other row of the latter.
    d, above, below = bands[:3]
    neighbor = jnp.where(is_upper, jnp.roll(d, 1), jnp.roll(d, -1))
    lines = jnp.stack([d, jnp.where(is_upper, above, below), neighbor])

    def value(x, k, lines, others):
        d, beside, neighbor = scaling.multiplied(lines, k)
        exact = jnp.stack([jnp.exp(d), beside * _divided_difference(neighbor, d)])
        exact = jax.lax.optimization_barrier(exact)  # else XLA recomputes it for every entry of X

        def local(rank, x, exact, others):
            row, column = hermitian._indices(rank, x)
            is_upper, is_diagonal = others[0] == 0, others[0] + others[1] == 0
            offset = jnp.where(is_upper, column - row, row - column)
            x = jnp.where(offset == 0, exact[0], jnp.where(offset == 1, exact[1], x))
            return jnp.where((offset < 0) | ((offset > 0) & is_diagonal), 0, x)

        return hermitian.over_ranks(layout, local, (x,), (exact, others))

    def rule(primals, tangents):
        result = value(*primals)
        return result, jnp.zeros_like(result) if tangents[0] is None else tangents[0]

    def replaced(x, k):
        return derivatives.differentiable(value, rule, x, k, lines, others)

    is_triangular = jnp.min(others) == 0
    return lambda x, k: jax.lax.cond(is_triangular, replaced, lambda x, k: x, x, k)


def _bands(layout, rows):
    """Returns by column: the diagonal, the superdiagonal and the subdiagonal, and the numbers of
    nonzero entries of the strictly lower and of the strictly upper triangle."""

    def local(rank, a):
        row, column = hermitian._indices(rank, a)
        where = [column - row == k for k in (0, 1, -1)]
        others = [(a != 0) & (row > column), (a != 0) & (row < column)]
        chosen = [*(jnp.where(x, a, 0) for x in where), *(x.astype(a.dtype) for x in others)]
        return hermitian.sum_over_ranks(layout, jnp.sum(jnp.stack(chosen), axis=1))

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
