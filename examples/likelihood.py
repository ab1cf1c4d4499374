"""The log-density of a normal distribution whose covariance matrix is sharded."""

import jax.numpy as jnp

import jaxmg


def log_density(a, y, mesh):
    """Returns log N(y | 0, A) = -(y^T A^-1 y + log det A + n log 2 pi) / 2. Differentiable; runs
    under ``jit``.

    Args:
        a: (n, n), symmetric positive definite, float32 or float64, its rows sharded over all axes
            of ``mesh``.
        y: (n,), of a's dtype, on every device.
        mesh: ``jax.sharding.Mesh``.

    Returns:
        A real scalar. It and its gradient are NaN if A isn't positive definite.

    Cost: n^3 / 3 multiplications and additions over all ranks, n^3 with the gradient, from one
    factorization. Memory: one temporary of A's size; with the gradient two, for the factor and the
    inverse.
    """
    x, logdet = jaxmg.potrs(a, y, mesh=mesh, return_logdet=True)
    return -(y @ x + logdet + len(y) * jnp.log(2 * jnp.pi)) / 2
