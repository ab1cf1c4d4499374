#!/usr/bin/env bash
# NumPy 2.4.6: np.memmap(file, mode="r+", shape=...) of a shape that is larger than the file makes the
# file larger, filled with zeros, and says nothing. Modes "r" and "c" raise ValueError and leave the
# file as it is. Whoever opens a matrix of order n in place with a wrong n changes the file, and the
# rows beyond its end are zero. Guess: ValueError in all modes for a file that exists.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $NUMPY <<'PROGRAM'
import pathlib
import warnings

import numpy as np

path = pathlib.Path("matrix.bin")
np.ones((3, 3)).tofile(path)
for mode in ("r", "c"):
    try:
        np.memmap(path, dtype="float64", mode=mode, shape=(4, 4))
    except ValueError as error:
        print(mode, "ValueError:", error)
    else:
        raise AssertionError(mode)
    assert path.stat().st_size == 72
with warnings.catch_warnings():
    warnings.simplefilter("error")
    matrix = np.memmap(path, dtype="float64", mode="r+", shape=(4, 4))
print("r+ no error, the file has", path.stat().st_size, "bytes instead of 72; sum", matrix.sum())
assert path.stat().st_size == 128 and matrix.sum() == 9
PROGRAM
