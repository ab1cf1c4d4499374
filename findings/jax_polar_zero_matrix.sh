#!/usr/bin/env bash
# JAX 0.11.2: the unitary factor of jax.scipy.linalg.polar of the zero matrix is 0.
# Guess: a unitary matrix, as SciPy 1.17.1 gives I; A = U H holds for any, but 0 is not unitary.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax.scipy.linalg
import numpy as np
import scipy.linalg

zero = np.zeros((2, 2), np.float32)
ours, reference = (f(zero)[0] for f in (jax.scipy.linalg.polar, scipy.linalg.polar))
print("JAX:", np.asarray(ours).tolist(), " SciPy:", reference.tolist())
assert not np.asarray(ours).any() and np.array_equal(reference, np.eye(2))
PROGRAM
