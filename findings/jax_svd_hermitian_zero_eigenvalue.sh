#!/usr/bin/env bash
# JAX 0.11.2: jnp.linalg.svd(hermitian=True) of a singular matrix has a row of zeros in Vh for each
# eigenvalue that is exactly 0: Vh isn't unitary, and its last rows don't span the null space.
# Guess: Vh is unitary, as in NumPy 2.4.6 and as without hermitian=True. Each row is an eigenvector
# times the sign of its eigenvalue, and sign(0) is 0.
# jaxmg.linalg.svd takes the sign of 0 for 1.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX <<'PROGRAM'
import jax.numpy as jnp
import numpy as np

a = np.diag([-1, 2, 0]).astype("float32")
results = {
    "JAX, hermitian": jnp.linalg.svd(a, hermitian=True),
    "JAX": jnp.linalg.svd(a),
    "NumPy, hermitian": np.linalg.svd(a, hermitian=True),
}
for name, (u, s, vh) in results.items():
    norms = np.linalg.norm(vh, axis=1)
    print(f"{name}: norms of the rows of Vh {norms.tolist()}")
    assert np.allclose(u * s @ vh, a, atol=1e-6)
    expected = [1, 1, 0] if name == "JAX, hermitian" else [1, 1, 1]
    assert np.allclose(norms, expected, atol=1e-6)
PROGRAM
