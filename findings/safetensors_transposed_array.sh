#!/usr/bin/env bash
# safetensors 0.8.0: safetensors.numpy.save of a transposed NumPy array stores the numbers in the order
# in which they lie in memory, so that loading gives another matrix of the same shape, silently.
# Guess: it copies such an array, or refuses it, as its functions for PyTorch do.
# SciPy's factors are often in Fortran order: pass np.ascontiguousarray(a).
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages safetensors==0.8.0 $NUMPY <<'PROGRAM'
import numpy as np
import scipy.linalg
from safetensors.numpy import load, save

a = np.arange(6.0).reshape(2, 3)
print("a.T:", a.T.tolist(), " loaded:", load(save({"a": a.T}))["a"].tolist())
assert np.array_equal(load(save({"a": a.T}))["a"], a.reshape(3, 2))

lu, _ = scipy.linalg.lu_factor(np.array([[4.0, 1.0], [2.0, 3.0]]))
loaded = load(save({"lu": lu}))["lu"]
print("LU:", lu.tolist(), " loaded:", loaded.tolist())
assert np.array_equal(loaded, lu.T) == lu.flags.f_contiguous
assert np.array_equal(load(save({"lu": np.ascontiguousarray(lu)}))["lu"], lu)
PROGRAM
