#!/usr/bin/env bash
# SciPy 1.17.1: scipy.linalg.det is inf for diag(1e200, 1e200, 1e-200, 1e-200), whose determinant is 1.
# Guess: SciPy and NumPy, which both multiply the pivots of LAPACK's LU, agree. NumPy 2.4.6 sums
# logarithms and gives 1.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $NUMPY <<'PROGRAM'
import numpy as np
import scipy.linalg

a = np.diag([1e200, 1e200, 1e-200, 1e-200])
print("NumPy:", np.linalg.det(a), " SciPy:", scipy.linalg.det(a))
assert np.linalg.det(a) == 1 and np.isinf(scipy.linalg.det(a))
PROGRAM
