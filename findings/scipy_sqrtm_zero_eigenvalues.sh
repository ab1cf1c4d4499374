#!/usr/bin/env bash
# SciPy 1.18.1: scipy.linalg.sqrtm of the zero matrix of order 3 has infinities above its diagonal;
# so has that of diag(0, 0, 1) and of the zero matrix of order 5, with the warning of any singular
# matrix. Up to 1.17.1 the roots were those of the entries; those of diag(1, 0, 0) and of orders 2
# and 4 are in both.
# Guess: the root of a diagonal matrix has the roots of its entries, which JAX 0.11.2 gives too.
# jaxmg.linalg.sqrtm takes Hermitian matrices, by their eigenvalues, and gives these roots.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages numpy==2.4.6 scipy==1.18.1 <<'PROGRAM'
import warnings

import numpy as np
import scipy.linalg

warnings.simplefilter("ignore")  # "Matrix is singular. The result might be inaccurate"
wrong = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0, 0))
for entries in (*wrong, (1, 0, 0), (0, 0), (0, 1), (0, 0, 4, 9)):
    a = np.diag(np.array(entries, float))
    root = scipy.linalg.sqrtm(a)
    print(f"diag{entries}:", root.tolist())
    assert np.isinf(root).any() == (entries in wrong)
    assert entries in wrong or np.array_equal(root, np.sqrt(a))
PROGRAM
