#!/usr/bin/env bash
# SciPy 1.18.1: scipy.io.mmwrite writes a float16 array as integers, so that 0.75 becomes 0, and a
# longdouble array with six decimals, so that 1e-9 becomes 0. Neither warns. float32 and float64 come
# back digit by digit.
# Guess: a floating dtype makes a file of real numbers, with the digits of that dtype.
# Convert to float32 or float64 first; mmread returns float64 in any case.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages numpy==2.5.1 scipy==1.18.1 <<'PROGRAM'
import io

import numpy as np
import scipy.io


def written(array):
    file = io.BytesIO()
    scipy.io.mmwrite(file, array)
    header = file.getvalue().decode().splitlines()[0]
    file.seek(0)
    return header, scipy.io.mmread(file)


numbers = [[0.75, 1.5], [1e-9, -2.25]]
for name in "float16", "longdouble", "float32", "float64":
    array = np.array(numbers, name)
    header, result = written(array)
    print(f"{name}: {header}: {result.tolist()}")
    if name == "float16":
        assert header.split()[3] == "integer" and result.tolist() == [[0, 1], [0, -2]]
    elif name == "longdouble":
        assert result.tolist() == [[0.75, 1.5], [0, -2.25]]
    else:
        assert np.array_equal(result.astype(name), array)
PROGRAM
