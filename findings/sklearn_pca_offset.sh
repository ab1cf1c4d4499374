#!/usr/bin/env bash
# scikit-learn 1.9.1: PCA() of 2000 samples of 5 features with a mean of 1e4 and deviations from 1 to
# 1e-4 gives a smallest variance 10 times too large. For tall data the default takes the eigenvalues
# of XᵀX - n mean meanᵀ, which cancels; svd_solver="full" subtracts the mean first and is right.
# Guess: the default is right to the digits that centred float64 data has, as NumPy's SVD of X - mean.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $NUMPY scikit-learn==1.9.1 <<'PROGRAM'
import numpy as np
from sklearn.decomposition import PCA

x = np.random.default_rng(0).standard_normal((2000, 5)) * 10.0 ** -np.arange(5) + 1e4
exact = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2 / (len(x) - 1)
for solver in ("auto", "full"):
    error = np.abs(PCA(svd_solver=solver).fit(x).explained_variance_ / exact - 1)
    print(solver, "relative errors of the variances:", error.round(9))
    assert error.max() > 1 if solver == "auto" else error.max() < 1e-6
PROGRAM
