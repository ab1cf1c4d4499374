#!/usr/bin/env bash
# JAX 0.11.2 on a CPU device: Q of jnp.linalg.qr of a complex64 matrix with entries near 1e37 is far from
# orthonormal.
# Guess: LAPACK's Householder reflectors scale where squares would overflow, so that Q is orthonormal to
# rounding while the entries of R are representable, as SciPy 1.17.1, which calls the same LAPACK, has it.
# jaxmg.linalg.qr multiplies each column by a power of two first.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax.numpy as jnp
import numpy as np
import scipy.linalg

r = np.random.default_rng(0)
a = r.normal(size=(40, 3)) + 1j * r.normal(size=(40, 3))


def error(q):
    q = np.asarray(q, complex)
    return np.linalg.norm(q.conj().T @ q - np.eye(3))


for size in (1, 1e37):
    scaled = (a * size).astype(np.complex64)
    ours, reference = error(jnp.linalg.qr(scaled)[0]), error(scipy.linalg.qr(scaled, mode="economic")[0])
    print(f"entries near {size:g}: error of Q {ours:.1e} by JAX, {reference:.1e} by SciPy")
    assert reference < 1e-6 and (ours < 1e-5 if size == 1 else ours > 0.1)
PROGRAM
