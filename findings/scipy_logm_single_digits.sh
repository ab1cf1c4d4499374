#!/usr/bin/env bash
# SciPy 1.17.1: logm and fractional_matrix_power of a float32 matrix are float64 with the errors of
# float32, 4e-7 and more; of complex64 they are complex128. expm, sqrtm, funm and signm of the same
# matrix are float32.
# Guess: a result has the dtype of the matrix, or else the digits of its own.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $NUMPY <<'PROGRAM'
import warnings

import numpy as np
import scipy.linalg as linalg

warnings.simplefilter("ignore")  # logm has one of its error
random = np.random.default_rng(0)
for n in (3, 10, 40):
    a = random.normal(size=(n, n))
    a = (a @ a.T / n + np.eye(n)).astype("float32")
    functions = {
        "logm": linalg.logm,
        "fractional_matrix_power": lambda a: linalg.fractional_matrix_power(a, 0.5),
    }
    for name, function in functions.items():
        single, double = function(a), function(a.astype("float64"))
        error = np.abs(single - double).max() / np.abs(double).max()
        print(f"{name}, n = {n}: {single.dtype}, error {error:.0e}")
        assert single.dtype == "float64" and 1e-8 < error < 1e-4
        assert function(a.astype("complex64")).dtype == "complex128"
    for function in (linalg.expm, linalg.sqrtm, linalg.signm, lambda a: linalg.funm(a, np.exp)):
        assert function(a).dtype == "float32"
PROGRAM
