#!/usr/bin/env bash
# SciPy 1.18.1: scipy.linalg.solve and inv of diag(1e-20, 1) warn of "rcond = 1e+20". For a diagonal
# matrix the number in the warning is the condition number, not its reciprocal.
# Guess: 1e-20, as in the warning about the same matrix with assume_a="gen". A program that reads
# rcond out of the warning takes the worst matrix for the best.
# jaxmg.linalg has no such warning: the factors' rcond() is always the reciprocal.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages numpy==2.4.6 scipy==1.18.1 <<'PROGRAM'
import re
import warnings

import numpy as np
from scipy.linalg import inv, solve

a = np.diag([1e-20, 1])


def told(function, *args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    return float(re.search(r"rcond = (\S+?)\.?$", str(caught[0].message)).group(1))


diagonal, inverse = told(solve, a, np.ones(2)), told(inv, a)
general = told(solve, a, np.ones(2), assume_a="gen")
print("rcond in the warning: diagonal", diagonal, " inv", inverse, " general", general)
assert diagonal == inverse == 1e20 and np.isclose(general, 1e-20)
PROGRAM
