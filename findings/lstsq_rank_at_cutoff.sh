#!/usr/bin/env bash
# A singular value that equals rcond times the largest: NumPy 2.4.6 and SciPy 1.17.1 (gelsd, gelss)
# count it as zero; SciPy's gelsy and JAX 0.11.2 count it, although all document the same rule.
# Guess: the four agree on the rank of diag(1, 1/2) for rcond = 1/2, where nothing is rounded.
# jaxmg.linalg.lstsq follows NumPy.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax.numpy as jnp
import numpy as np
import scipy.linalg

a, b = np.diag([1.0, 0.5]), np.ones(2)
ranks = {"numpy": int(np.linalg.lstsq(a, b, 0.5)[2]), "jax": int(jnp.linalg.lstsq(a, b, 0.5)[2])}
for driver in ("gelsd", "gelss", "gelsy"):
    ranks[driver] = int(scipy.linalg.lstsq(a, b, 0.5, lapack_driver=driver)[2])
print(ranks)
assert ranks == {"numpy": 1, "jax": 2, "gelsd": 1, "gelss": 1, "gelsy": 2}
assert int(jnp.linalg.matrix_rank(a, rtol=0.5)) == 1  # JAX's own matrix_rank differs from its lstsq
PROGRAM
