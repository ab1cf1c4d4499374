#!/usr/bin/env bash
# SciPy 1.17.1: scipy.linalg.fractional_matrix_power([[0, 1], [0, 0]], 0.5) is the zero matrix, without
# an error or a warning. That matrix has no square root at all, and the square of the result is not it.
# Guess: NaN or an error, as scipy.linalg.sqrtm warns and logm says that the matrix is singular.
# jaxmg.linalg.sqrtm takes Hermitian matrices alone, which have a root whenever they are semidefinite.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $NUMPY <<'PROGRAM'
import warnings

import numpy as np
from scipy.linalg import fractional_matrix_power, sqrtm

a = np.array([[0.0, 1], [0, 0]])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    root = fractional_matrix_power(a, 0.5)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    other = sqrtm(a)
print("power:", root.tolist(), " sqrtm:", other.tolist(), [str(w.message) for w in caught])
assert not root.any() and not np.allclose(root @ root, a)
assert caught or not np.isfinite(other).all()
PROGRAM
