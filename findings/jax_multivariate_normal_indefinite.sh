#!/usr/bin/env bash
# JAX 0.11.2: jax.random.multivariate_normal(method="svd") of the indefinite matrix [[1, 2], [2, 1]]
# draws samples whose covariance is [[2, 1], [1, 2]], the matrix with absolute eigenvalues. No value
# is NaN and nothing is said.
# Guess: NaN, as with method="cholesky" (the default) and method="eigh", or the variances that the
# caller asked for. NumPy 2.4.6 draws the same samples, but warns.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX <<'PROGRAM'
import jax
import jax.numpy as jnp

covariance = jnp.array([[1.0, 2], [2, 1]])
for method in ("cholesky", "eigh", "svd"):
    x = jax.random.multivariate_normal(jax.random.key(0), jnp.zeros(2), covariance, (200000,), method=method)
    print(method, jnp.cov(x.T).round(2).tolist())
    if method == "svd":
        assert jnp.allclose(jnp.cov(x.T), jnp.array([[2.0, 1], [1, 2]]), atol=0.05)
    else:
        assert jnp.isnan(x).all()
PROGRAM
