#!/usr/bin/env bash
# JAX 0.11.2: the gradient of jnp.linalg.det is 0 at every singular matrix.
# Guess: the gradient is the matrix of cofactors, which is not 0 where the rank is n - 1.
# diag(0, 2, 3) has the cofactor 6 at (0, 0). jaxmg.linalg.det gives 6.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax, jax.numpy as jnp

for diagonal in ([0.0, 2.0], [0.0, 2.0, 3.0], [0.0, 2.0, 3.0, 4.0]):
    gradient = jax.grad(jnp.linalg.det)(jnp.diag(jnp.array(diagonal)))
    print(diagonal, "gradient at (0, 0):", float(gradient[0, 0]))
    assert not gradient.any(), "the gradient is no longer 0"
PROGRAM
