#!/usr/bin/env bash
# SciPy 1.18.1: scipy.linalg's inv, det, svd, qr, lu, eig, expm, sqrtm, pinv and polar of a big-endian
# array, as FITS files and many instruments give it, take its bytes for little-endian numbers: their
# results are those of another matrix, some with a warning of its condition, most without a word.
# solve, eigh, lu_factor and norm of the same array are right; so is NumPy's linalg.
# Guess: byte order is part of the dtype, and is converted or refused; SciPy 1.16.3 had inv, svd, qr,
# eig, pinv and polar right.
# JAX and jaxmg refuse big-endian arrays and name the dtype.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages numpy==2.4.6 scipy==1.18.1 <<'PROGRAM'
import warnings

import numpy as np
import scipy.linalg as linalg

warnings.simplefilter("ignore")
a = np.random.default_rng(0).normal(size=(3, 3))
a = a @ a.T + np.eye(3)


def agree(function):
    """Whether it gives the same of both byte orders."""
    results = [function(x) for x in (a.astype(">f8"), a.astype("<f8"))]
    pairs = [x if isinstance(x, tuple) else (x,) for x in results]
    return all(np.allclose(x, y) for x, y in zip(*pairs, strict=True))


wrong = ("inv", "det", "svd", "qr", "lu", "eig", "expm", "sqrtm", "pinv", "polar")
right = ("eigh", "lu_factor", "norm", "hessenberg")
for name in (*wrong, *right):
    same = agree(getattr(linalg, name))
    print(f"scipy.linalg.{name}:", "the same of both byte orders" if same else "WRONG of >f8")
    assert same == (name in right), name
assert agree(lambda x: linalg.solve(x, np.ones(3)))
for name in ("inv", "det", "svdvals", "qr", "eigvals", "pinv"):
    assert agree(getattr(np.linalg, name)), name
PROGRAM
