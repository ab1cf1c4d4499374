#!/usr/bin/env bash
# SciPy 1.17.1 and NumPy 2.4.6 (OpenBLAS): Cholesky of a matrix with NaN on its diagonal is a success.
# LAPACK's ?potrf returns info 0, scipy.linalg.cholesky without its check and numpy.linalg.cholesky
# return a factor with NaN and raise nothing, in all four dtypes. ?pstrf and ?sytrf of the same
# library do tell.
# Guess: info is the order of the leading minor, as in the reference LAPACK, whose dpotrf2 looks for
# NaN, so that both raise LinAlgError.
# In jaxmg potrs has a status that tells, on CPU devices too.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $NUMPY <<'PROGRAM'
import numpy as np
import scipy.linalg

for n in (2, 50, 300):
    for kind, dtype in zip("sdcz", ("float32", "float64", "complex64", "complex128"), strict=True):
        a = np.eye(n, dtype=dtype)
        a[1, 1] = np.nan
        of = {name: getattr(scipy.linalg.lapack, kind + name) for name in ("potrf", "pstrf", "sytrf")}
        info = of["potrf"](a, lower=1)[-1], of["pstrf"](a)[-1], of["sytrf"](a)[-1]
        print(f"n = {n}, {dtype}: info of potrf, pstrf, sytrf:", *info)
        assert info[0] == 0 and info[1] > 0 and info[2] > 0
        for cholesky in (np.linalg.cholesky, lambda a: scipy.linalg.cholesky(a, check_finite=False)):
            factor = cholesky(a)
            assert np.isnan(factor[1, 1]), factor
print("numpy.linalg.cholesky and scipy.linalg.cholesky(check_finite=False) raise nothing")
PROGRAM
