#!/usr/bin/env bash
# safetensors 0.8.0: safetensors.numpy.save takes a bfloat16 array, and safetensors.numpy.load of the
# result raises KeyError: 'BF16'.
# Guess: what the module writes it reads.
# Convert the leaves to float32 before they are saved, which loses nothing.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages safetensors==0.8.0 $NUMPY ml_dtypes==0.6.0 <<'PROGRAM'
import ml_dtypes
import numpy as np
import safetensors.numpy

x = np.ones(3, ml_dtypes.bfloat16)
data = safetensors.numpy.save({"x": x})
print("saved:", data[8:].decode(errors="replace")[:60])
try:
    print(safetensors.numpy.load(data)["x"].dtype)
    raise SystemExit("it can be loaded")
except KeyError as error:
    print("load: KeyError", error)
back = safetensors.numpy.load(safetensors.numpy.save({"x": x.astype(np.float32)}))["x"]
assert (back == 1).all()
PROGRAM
