#!/usr/bin/env bash
# SciPy 1.17.1: scipy.linalg.solve_sylvester of an equation that has no solution, because A and -B have
# an eigenvalue in common, returns finite entries of 1e15 without an error or a warning. For the same
# reason solve_continuous_lyapunov warns, and solve_discrete_lyapunov raises up to order 9 and warns
# from order 10 on. Guess: LinAlgError, or the warning of solve_continuous_lyapunov.
# JAX's function of the same name returns NaN.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX <<'PROGRAM'
import warnings

import jax
import jax.scipy.linalg as jsl
import numpy as np
from scipy import linalg as sl

jax.config.update("jax_enable_x64", True)
a, b, q = np.diag([1.0, 2]), np.diag([-1.0, 3]), np.ones((2, 2))
with warnings.catch_warnings():
    warnings.simplefilter("error")
    x = sl.solve_sylvester(a, b, q)
residual = np.abs(a @ x + x @ b - q).max()
print("X:", x.tolist(), " residual:", residual)
assert np.isfinite(x).all() and np.abs(x).max() > 1e14 and residual > 0.1

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    sl.solve_continuous_lyapunov(np.diag([1.0, -1]), q)
print("Lyapunov:", [str(w.message) for w in caught])
assert any("perturbing" in str(w.message) for w in caught)

for n in (9, 10):
    c = np.diag(np.r_[2, 0.5, np.linspace(0.1, 0.3, n - 2)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = f"finite: {np.isfinite(sl.solve_discrete_lyapunov(c, np.ones((n, n)))).all()}"
        except sl.LinAlgError as error:
            outcome = f"LinAlgError: {error}"
    print("discrete Lyapunov,", n, outcome, len(caught), "warning(s)")
    assert outcome.startswith("LinAlgError" if n == 9 else "finite: True"), outcome

print("JAX:", jsl.solve_sylvester(a, b, q).tolist())
assert np.isnan(jsl.solve_sylvester(a, b, q)).any()
PROGRAM
