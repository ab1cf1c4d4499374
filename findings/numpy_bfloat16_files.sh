#!/usr/bin/env bash
# NumPy 2.4.6, h5py 3.16.0 and ml_dtypes 0.6.0: a bfloat16 array written by numpy.savez or to an HDF5 file comes
# back as raw bytes of dtype V2, without a message, although ml_dtypes is imported. Arithmetic on it raises.
# Guess: bfloat16 comes back, or writing it raises.
# .view("bfloat16") has the numbers again; float32 in the file needs no such step.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages numpy==2.4.6 ml_dtypes==0.6.0 h5py==3.16.0 <<'PROGRAM'
import h5py
import ml_dtypes
import numpy as np

x = np.arange(3).astype(ml_dtypes.bfloat16)
np.savez("x.npz", x=x)
with h5py.File("x.h5", "w") as file:
    file["x"] = x
with h5py.File("x.h5") as file:
    loaded = {"savez": np.load("x.npz")["x"], "h5py": file["x"][()]}
for name, y in loaded.items():
    print(f"{name}: {x.dtype} became {y.dtype}: {y.tolist()}")
    assert y.dtype == "V2"
    assert (y.view(ml_dtypes.bfloat16) == x).all()
PROGRAM
