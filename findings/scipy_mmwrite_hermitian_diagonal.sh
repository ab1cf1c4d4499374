#!/usr/bin/env bash
# SciPy 1.17.1: scipy.io.mmwrite calls a matrix Hermitian whose diagonal is not real.
# Guess: it looks at the diagonal, since a Hermitian one is real, and writes the matrix as "general".
# It compares only the entries beside the diagonal; a reader that trusts the header drops the
# imaginary parts of the diagonal.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $NUMPY <<'PROGRAM'
import io

import numpy as np
import scipy.io

a = np.array([[1 + 1j, 2j], [-2j, 3]])
file = io.BytesIO()
scipy.io.mmwrite(file, a)
lines = file.getvalue().decode().splitlines()
print(lines)
assert "hermitian" in lines[0] and lines[3] == "1 1" and not np.array_equal(a, a.conj().T)
PROGRAM
