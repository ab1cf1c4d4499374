#!/usr/bin/env bash
# JAX 0.11.2: jax.scipy.linalg.eigh_tridiagonal of a matrix with entries near 1e-200 gives one number
# for all eigenvalues, and with entries near 1e200 NaN: it counts by squares of the off-diagonal,
# which under- and overflow. Both are far from the limits of float64; in float32 1e-25 and 1e25 do.
# Guess: eigenvalues of 2^k T are 2^k times those of T, as in SciPy 1.17.1.
# jaxmg scales a matrix by a power of two before it squares anything.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax
import numpy as np
import scipy.linalg

jax.config.update("jax_enable_x64", True)
for dtype, powers in (("float64", (-200, 0, 200)), ("float32", (-25, 0, 25))):
    for power in powers:
        d, e = np.full(5, 2 * 10.0**power, dtype), np.full(4, 10.0**power, dtype)
        ours = np.asarray(jax.scipy.linalg.eigh_tridiagonal(d, e, eigvals_only=True))
        theirs = scipy.linalg.eigvalsh_tridiagonal(d, e)
        print(f"{dtype}, 1e{power}: JAX {ours[0]:.3g} to {ours[-1]:.3g}, SciPy {theirs[0]:.3g} to {theirs[-1]:.3g}")
        if power == 0:
            assert np.allclose(ours, theirs, rtol=1e-5)
        elif power < 0:
            assert np.unique(ours).size == 1 and theirs[-1] > 10 * theirs[0]
        else:
            assert np.isnan(ours).all() and np.isfinite(theirs).all()
PROGRAM
