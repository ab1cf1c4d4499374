"""Cholesky factorization of each matrix of a stack: LAPACK's potrf."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import library, native, products, triangle


def _differentiable(cholesky, triangular_solve):
    """Returns a function that computes L of A = L L^H, (count, n, n), from A's lower triangle. L is
    NaN if A isn't positive definite."""
    factor = jax.custom_jvp(lambda a: cholesky(library.unless_infinite(a)))

    @factor.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        """L^-1 dL is the lower triangle of L^-1 dA L^-H with half of its diagonal (S. F. Walter and
        L. Lehmann, Algorithmic differentiation of linear algebra functions, 2010)."""
        lower = factor(*primals)
        solve = functools.partial(triangular_solve, lower, lower=True)
        inner = solve(
            solve(triangle.whole(tangents[0]), left_side=False, transpose_a=True, conjugate_a=True),
            left_side=True,
        )
        half = jnp.tril(inner, -1) + jnp.tril(jnp.triu(inner)) / 2
        return lower, products.multiply(lower, half)

    return factor


def factor_hermitian(a, upper, composition):
    """Computes L, or U, of Hermitian a (count, n, n) on a CPU device, which checks and scales each
    matrix while it is in a core's cache. ``composition`` computes the same and has a derivative."""

    @jax.custom_jvp
    def factor(a):
        return native.factor_cholesky(a, upper, hermitian=True)

    @factor.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        return jax.jvp(composition, primals, tangents)

    return factor(a)


factor_by_jax = _differentiable(
    functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False),
    jax.lax.linalg.triangular_solve,
)
factor_by_plugin = _differentiable(native.factor_cholesky, jax.lax.linalg.triangular_solve)
factor_by_lapack = _differentiable(native.factor_cholesky, triangle.solve_in_turn)
