#!/usr/bin/env bash
# SciPy 1.17.1: scipy.sparse.linalg.eigsh(which="LA") of a diagonal matrix gives an eigenvalue of
# multiplicity 5 once, and smaller ones in place of the other four, without a warning.
# Guess: the six largest eigenvalues, as it gives them for a dense matrix with the same spectrum,
# where rounding brings the other copies in. A Krylov space of one vector has one of each.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $NUMPY <<'PROGRAM'
import numpy as np
from scipy.sparse.linalg import eigsh

w = np.r_[np.full(5, 10.0), np.arange(95) / 100]
q = np.linalg.qr(np.random.default_rng(0).normal(size=(100, 100)))[0]
dense = (q * w) @ q.T
diagonal, rotated = (
    eigsh(a, 6, which="LA", v0=np.ones(100))[0] for a in (np.diag(w), (dense + dense.T) / 2)
)
print("diagonal:", diagonal.round(4), " dense:", rotated.round(4))
assert (diagonal > 9).sum() == 1 and (rotated > 9).sum() == 5
PROGRAM
