"""The log-density of a normal distribution with a covariance in shards, and its gradient.

log N(y | 0, A) = -(y^T A^-1 y + log det A + n log 2 pi) / 2. jaxmg's routines have no derivatives
of their own yet, but these two terms have simple ones: with x = A^-1 y,

    d(y^T A^-1 y) = 2 x^T dy - x^T dA x        d(log det A) = tr(A^-1 dA)

so the derivative by A is (x x^T - A^-1) / 2, a matrix that is sharded as A is. JAX takes it from
there, back through whatever made A.
"""

import functools

import jax
import jax.numpy as jnp

import jaxmg


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def log_density(a, y, mesh):
    """log N(y | 0, A), differentiable by A and y; call it under ``jit``.

    Args:
        a: (n, n), symmetric positive definite, float32 or float64, its rows sharded over all axes
            of ``mesh``.
        y: (n,), of a's dtype, on every device.
        mesh: ``jax.sharding.Mesh``.

    Returns:
        A real scalar; NaN where A isn't positive definite, and so is the gradient then.

    Cost: n^3 / 3 multiplications and additions over all ranks, n^3 with the gradient, from one
    factorization. Memory: A's alone, as a temporary of the program; with the gradient twice that,
    for the factor and the inverse.
    """
    x, logdet = jaxmg.potrs(a, y, mesh=mesh, return_logdet=True)
    return _value(y, x, logdet)


def _forward(a, y, mesh):
    factor = jaxmg.cho_factor(a, mesh=mesh)
    x = jaxmg.cho_solve(factor, y)
    return _value(y, x, factor.logdet()), (factor, x)


def _backward(mesh, kept, g):
    factor, x = kept
    return g / 2 * (x[:, None] * x - factor.inv()), -g * x


log_density.defvjp(_forward, _backward)


def _value(y, x, logdet):
    return -(y @ x + logdet + len(y) * jnp.log(2 * jnp.pi)) / 2
