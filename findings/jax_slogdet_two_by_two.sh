#!/usr/bin/env bash
# JAX 0.11.2: jnp.linalg.slogdet overflows for 2 x 2 matrices, and not for 3 x 3 ones.
# Guess: the logarithm of a determinant never overflows where the entries are representable.
# JAX multiplies the entries of a 2 x 2 matrix before it takes the logarithm.
# jaxmg.linalg.slogdet sums logarithms for every order.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp

logarithms = {n: float(jnp.linalg.slogdet(1e200 * jnp.eye(n))[1]) for n in (2, 3)}
print("log |det(1e200 I)|:", logarithms)
assert logarithms[2] == jnp.inf and abs(logarithms[3] - 600 * jnp.log(10)) < 1e-9
PROGRAM
