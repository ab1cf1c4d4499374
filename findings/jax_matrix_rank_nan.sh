#!/usr/bin/env bash
# JAX 0.11.2: jnp.linalg.matrix_rank of a matrix that holds NaN is 0.
# Guess: an error as in NumPy 2.4.6 (LinAlgError), or a number that cannot be a rank, such as -1.
# All singular values are NaN, and NaN > cutoff is false. lstsq gives rank 0 and x = NaN.
# jaxmg.linalg.matrix_rank does as JAX does.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax.numpy as jnp
import numpy as np

a = np.eye(3, dtype=np.float32)
a[1, 2] = np.nan
x, _, rank, _ = jnp.linalg.lstsq(a, jnp.ones(3))
print("matrix_rank:", int(jnp.linalg.matrix_rank(a)), " lstsq:", int(rank), x)
assert jnp.linalg.matrix_rank(a) == rank == 0 and jnp.isnan(x).all()
try:
    np.linalg.matrix_rank(a)
except np.linalg.LinAlgError as error:
    print("NumPy:", error)
else:
    raise SystemExit("NumPy gives a rank")
PROGRAM
