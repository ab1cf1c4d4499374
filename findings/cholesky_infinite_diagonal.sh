#!/usr/bin/env bash
# JAX 0.11.2, SciPy 1.17.1 and NumPy 2.4.6: Cholesky factors of a matrix whose diagonal has infinity.
# LAPACK's potrf divides by the root of the pivot, so the column below it is 0 and the next pivots are
# as if the row and the column weren't there: status 0, no NaN. cho_solve then gives a finite x. JAX's
# solve(assume_a="pos") does too, as do SciPy's functions without their check.
# Guess: NaN, as for a matrix that isn't positive definite; or an error of the status.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

jax.config.update("jax_enable_x64", True)
a = np.array([[4.0, 1, 1], [1, np.inf, 1], [1, 1, 3]])
b = np.ones(3)
expected = np.array([[2.0, 0, 0], [0.5, np.inf, 0], [0.5, 0, 2.75**0.5]])

lower, status = scipy.linalg.lapack.dpotrf(a, lower=True, clean=True)
found = {
    "SciPy's potrf": lower,
    "SciPy's cholesky": scipy.linalg.cholesky(a, lower=True, check_finite=False),
    "NumPy's cholesky": np.linalg.cholesky(a),
    "JAX's cholesky": np.asarray(jnp.linalg.cholesky(a)),
    "JAX's, of a batch": np.asarray(jnp.linalg.cholesky(jnp.stack([a, a]))[1]),
}
print("status", status)
assert status == 0
for name, factor in found.items():
    print(name, np.round(factor, 3).tolist())
    np.testing.assert_allclose(factor, expected)
x = {
    "SciPy's cho_solve": scipy.linalg.cho_solve((lower, True), b, check_finite=False),
    "JAX's solve": np.asarray(jax.scipy.linalg.solve(a, b, assume_a="pos")),
}
for name, solution in x.items():
    print(name, np.round(solution, 3).tolist())
    assert np.isfinite(solution).all() and solution[1] == 0
PROGRAM
