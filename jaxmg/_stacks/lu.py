"""Inverses and solutions of each matrix of a stack by the plugin: by LU with partial pivoting,
LAPACK's getrf, getrs and getri, and for small matrices by elimination in registers.

Panels of the LU are in the shared memory of a GPU's multiprocessor, which is large enough for
matrices of order 2048. A singular matrix has no finite inverse, and the inverse of a matrix with
NaN is NaN; others are unaffected.
"""

import functools
import math

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import library, native, products, triangle


def _differentiable_solve(function):
    value = jax.custom_jvp(function)

    @value.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        (a, b), (a_dot, b_dot) = primals, tangents
        x = value(a, b)
        return x, jax.lax.custom_linear_solve(
            functools.partial(products.multiply, a),
            b_dot - products.multiply(a_dot, x),
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
        return x, -products.multiply(products.multiply(x, tangents[0]), x)

    return value


@_compat.default_promotion()
def _solve_by_plugin(a, b, **few):
    packed, pivots = native.factor_lu(a)
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, a.shape[-1])
    x = triangle.solve(
        True, packed, jnp.take_along_axis(b, order[..., None], axis=1), unit=True, **few
    )
    return triangle.solve(True, packed, x, upper=True, **few)


@_compat.default_promotion()
def inverse_of_factors(packed, pivots):
    """Returns U^-1 L^-1, with columns in the order of A's rows, from `native.factor_lu`."""
    n = packed.shape[-1]
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, n)
    lower = native.invert_triangle(jnp.tril(packed, -1) + jnp.eye(n, dtype=packed.dtype))
    upper = native.invert_triangle(jnp.triu(packed), upper=True)
    back = jnp.argsort(order, axis=1)[:, None, :]
    return jnp.take_along_axis(products.multiply(upper, lower), back, axis=2)


def _inverse_by_plugin(a):
    return inverse_of_factors(*native.factor_lu(a))


solve_by_plugin = _differentiable_solve(library.spoiled(_solve_by_plugin))
solve_by_lapack = _differentiable_solve(
    library.spoiled(lambda a, b: _solve_by_plugin(a, b, few=math.inf))
)
_solve_small = _differentiable_solve(library.spoiled(native.solve_small))
inverse_by_plugin = _differentiable_inverse(library.spoiled(_inverse_by_plugin))
inverse_of_small = _differentiable_inverse(library.spoiled(native.invert_small))


def solve_small(a, b):
    """Computes A^-1 B for a (count, n, n), n <= 32, and b (count, n, nrhs); for many columns by
    JAX."""
    few = b.shape[-1] <= native.MOST_SMALL_COLUMNS
    return _solve_small(a, b) if few else library.solve(a, b)
