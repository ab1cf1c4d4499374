#!/usr/bin/env bash
# SciPy 1.17.1: scipy.linalg.norm of a vector of tiny or huge entries is right, and that of the same
# numbers as a matrix is 0 or inf.
# Guess: both are scaled, since both are LAPACK's and BLAS's in SciPy. The vector's norm is BLAS's
# nrm2; the Frobenius norm of a matrix is NumPy's, a sum of squares.
# jaxmg.linalg.norm is right for both.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $NUMPY <<'PROGRAM'
import numpy as np
import scipy.linalg

np.seterr(all="ignore")
for x in (1e-200, 1e200):
    vector, matrix = np.full(4, x), np.full((2, 2), x)
    norms = scipy.linalg.norm(vector), scipy.linalg.norm(matrix), np.linalg.norm(vector)
    print(f"entries {x:g}: vector {norms[0]:g}, matrix {norms[1]:g}, NumPy's vector {norms[2]:g}")
    assert np.isclose(norms[0], 2 * x, rtol=1e-12, atol=0)
    assert norms[1] == norms[2] == (0 if x < 1 else np.inf)
PROGRAM
