#!/usr/bin/env bash
# SciPy 1.18.1 and JAX 0.11.2: jax.scipy.linalg.cho_solve refuses a factor of scipy.linalg.cho_factor,
# "Non-hashable static arguments are not supported": its lower, which was a bool up to SciPy 1.17, is
# an array of no dimensions. SciPy's lu_factor goes with JAX's lu_solve.
# Guess: what has the same name, arguments and results goes together.
# jaxmg.linalg.cho_solve takes it.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages jax==0.11.2 jaxlib==0.11.2 numpy==2.5.1 scipy==1.18.1 <<'PROGRAM'
import jax
import numpy as np
import scipy.linalg

a, b = np.array([[4.0, 1], [1, 3]], "float32"), np.ones(2, "float32")
factor = scipy.linalg.cho_factor(a, lower=True)
print("lower of SciPy's factor:", repr(factor[1]))
assert isinstance(factor[1], np.ndarray) and factor[1].shape == ()
try:
    jax.scipy.linalg.cho_solve(factor, b)
except ValueError as error:
    print("JAX's cho_solve:", str(error).splitlines()[0])
    assert "Non-hashable static arguments" in str(error)
else:
    raise AssertionError("it takes the factor")
x = jax.scipy.linalg.cho_solve((factor[0], bool(factor[1])), b)
assert np.allclose(a @ x, b, atol=1e-6)
y = jax.scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b)
assert np.allclose(a @ y, b, atol=1e-6)
PROGRAM
