"""LU with partial pivoting of each matrix of a stack, all matrices in step: LAPACK's getrf, getrs
and getri.

`solve_by_plugin` and `inverse_by_plugin` factor by the plugin, in shared memory of GPUs, which has
room for panels of matrices of order 1024. What follows is for all orders.

As in qr.py a panel is factored column by column and what is right of it is updated by products. A
matrix that is singular has a zero on U's diagonal, and one with NaN is NaN; others are not
concerned.
"""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import native, sections, triangle


@_compat.default_promotion()
def factor(a, width=sections.WIDTH):
    """(LU, pivots, permutation) of a (count, n, n), as `jax.lax.linalg.lu` gives them.

    Cost for each matrix: about 2/3 n^3 multiplications and additions more than LAPACK's 1/3 n^3; 5
    n kernels on vectors. Memory: about three stacks.
    """
    n = a.shape[-1]
    columns = sections.padded(n, width)
    a = sections.pad(a, columns, columns)
    if columns > n:  # so that no row of padding is a pivot before the last
        ones = jnp.arange(columns) >= n
        a = a + jnp.diag(ones.astype(a.dtype))
    order = jnp.broadcast_to(jnp.arange(columns, dtype=jnp.int32), a.shape[:2])
    pivots = []
    for start, stop in sections.of(columns, width):
        trailing, local, chosen = _factor_section(a[:, start:, start:], stop - start, width)
        a = a.at[:, start:, :start].set(_rows(a[:, start:, :start], local))
        a = a.at[:, start:, start:].set(trailing)
        order = order.at[:, start:].set(jnp.take_along_axis(order[:, start:], local, 1))
        pivots.append(chosen + start)
    return a[:, :n, :n], jnp.concatenate(pivots, axis=1)[:, :n], order[:, :n]


def _rows(a, order):
    return jnp.take_along_axis(a, order[..., None], axis=1)


def _factor_section(a, columns, width):
    """The first ``columns`` columns factored, with what is right of them updated; the order in
    which rows were taken, and the pivots."""
    count, m, n = a.shape
    rows, across = jnp.arange(m)[:, None], jnp.arange(n)

    def reduce(i, state):
        a, order, pivots = state
        first = i * width
        panel = jax.lax.dynamic_slice_in_dim(a, first, width, 2)
        panel, local, chosen = _factor_panel(panel, first)
        a = _rows(a, local)
        a = jax.lax.dynamic_update_slice_in_dim(a, panel, first, 2)
        block = jax.lax.dynamic_slice_in_dim(panel, first, width, 1)
        top = jax.lax.dynamic_slice_in_dim(a, first, width, 1)
        solved = jax.lax.linalg.triangular_solve(
            block, top, left_side=True, lower=True, unit_diagonal=True
        )
        top = jnp.where(across >= first + width, solved, top)
        a = jax.lax.dynamic_update_slice_in_dim(a, top, first, 1)
        below = jnp.where(rows >= first + width, panel, 0)
        right = jnp.where(across >= first + width, top, 0)
        a = a - sections.multiply(below, right)
        order = jnp.take_along_axis(order, local, 1)
        return a, order, jax.lax.dynamic_update_slice_in_dim(pivots, chosen, first, 1)

    order = jnp.broadcast_to(jnp.arange(m, dtype=jnp.int32), (count, m))
    state = a, order, jnp.zeros((count, columns), jnp.int32)
    return jax.lax.fori_loop(0, columns // width, reduce, state)


def _sizes(x):
    """What LAPACK takes the largest of."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _factor_panel(panel, first):
    """The panel (count, m, width), whose column i has its pivot in row ``first`` + i, with its
    multipliers; the order of its rows, and the pivots."""
    count, m, width = panel.shape
    rows, across = jnp.arange(m, dtype=jnp.int32), jnp.arange(width)

    def reduce(i, state):
        panel, order, pivots = state
        here = first + i
        x = jax.lax.dynamic_index_in_dim(panel, i, 2, keepdims=False)
        sizes = jnp.where(rows >= here, _sizes(x), -1)
        chosen = jnp.argmax(sizes, axis=1).astype(jnp.int32)
        taken = _rows(panel, chosen[:, None])
        replaced = jax.lax.dynamic_slice_in_dim(panel, here, 1, 1)
        is_chosen, is_here = rows == chosen[:, None], rows == here
        panel = jnp.where(is_chosen[..., None], replaced, panel)
        panel = jnp.where(is_here[:, None], taken, panel)
        before = jax.lax.dynamic_slice_in_dim(order, here, 1, 1)
        after = jnp.take_along_axis(order, chosen[:, None], 1)
        order = jnp.where(is_here, after, jnp.where(is_chosen, before, order))

        pivot = jax.lax.dynamic_index_in_dim(taken, i, 2)
        x = jax.lax.dynamic_slice_in_dim(panel, i, 1, 2)
        ratios = jnp.where((rows > here)[:, None], x / jnp.where(pivot == 0, 1, pivot), 0)
        panel = jnp.where(across > i, panel - ratios * taken, panel)
        panel = jnp.where((across == i) & (rows > here)[:, None], ratios, panel)
        return panel, order, jnp.where(across == i, chosen[:, None], pivots)

    order = jnp.broadcast_to(rows, (count, m))
    state = panel, order, jnp.zeros((count, width), jnp.int32)
    return jax.lax.fori_loop(0, width, reduce, state)


def _differentiable_solve(function):
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        (a, b), (a_dot, b_dot) = primals, tangents
        x = value(a, b)
        return x, jax.lax.custom_linear_solve(
            functools.partial(sections.multiply, a),
            b_dot - sections.multiply(a_dot, x),
            lambda _, y: value(a, y),
            lambda _, y: value(jnp.swapaxes(a, 1, 2), y),
        )

    return value


def _differentiable_inverse(function):
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        x = value(*primals)
        return x, -sections.multiply(sections.multiply(x, tangents[0]), x)

    return value


@_compat.default_promotion()
def solve_by(a, b, width=sections.WIDTH):
    """A^-1 B of a (count, n, n) and b (count, n, nrhs), without a rule for its derivative."""
    packed, _, order = factor(a, width)
    return _substitute(packed, _rows(b, order))


def _substitute(packed, x):
    solve = jax.lax.linalg.triangular_solve
    x = solve(packed, x, left_side=True, lower=True, unit_diagonal=True)
    return solve(packed, x, left_side=True, lower=False)


def _by_plugin(a):
    """(LU, the order of the rows)"""
    packed, pivots = native.factor_lu(a)
    return packed, jax.lax.linalg.lu_pivots_to_permutation(pivots, a.shape[-1])


@_compat.default_promotion()
def _solve_by_plugin(a, b):
    packed, order = _by_plugin(a)
    return _substitute(packed, _rows(b, order))


@_compat.default_promotion()
def _inverse_by_plugin(a):
    packed, order = _by_plugin(a)
    ones = order[:, :, None] == jnp.arange(a.shape[-1], dtype=order.dtype)
    return _substitute(packed, ones.astype(a.dtype))


@_compat.default_promotion()
def inverse_by(a, width=sections.WIDTH):
    """A^-1 of a (count, n, n): U^-1 L^-1, with its columns in the order of A's rows. Without a
    derivative."""
    packed, _, order = factor(a, width)
    n = a.shape[-1]
    unit = jnp.tril(packed, -1) + jnp.eye(n, dtype=a.dtype)
    lower = triangle.inverse(unit)
    upper = sections.adjoint(triangle.inverse(sections.adjoint(jnp.triu(packed))))
    product = sections.multiply(upper, lower)
    back = jnp.argsort(order, axis=1)
    return jnp.take_along_axis(product, back[:, None, :], axis=2)


# Without their widths: custom_jvp would trace these arguments.
solve = _differentiable_solve(lambda a, b: solve_by(a, b))
inverse = _differentiable_inverse(lambda a: inverse_by(a))
solve_by_plugin = _differentiable_solve(_solve_by_plugin)
inverse_by_plugin = _differentiable_inverse(_inverse_by_plugin)
