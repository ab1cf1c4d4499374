#!/usr/bin/env bash
# JAX 0.11.2: of a Hermitian matrix that is stored in one triangle, jax.scipy.linalg.solve with
# assume_a="her" or "sym", jax.scipy.linalg.eigh and jax.numpy.linalg.eigh(UPLO=...) read the other
# triangle too, whatever lower= or UPLO= says: the result is that of another matrix, without a word.
# solve with assume_a="pos", jax.scipy.linalg.cholesky and cho_factor read what lower= says.
# Guess: lower= and UPLO= choose what is read, as in SciPy 1.17.1 and NumPy 2.4.6, which are right here.
# jaxmg.linalg.solve reads one triangle, as SciPy does. jaxmg.linalg.eigh symmetrizes as JAX does, and
# reads one triangle with symmetrize_input=False.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax
import numpy as np
import scipy.linalg

jax.config.update("jax_enable_x64", True)
random = np.random.default_rng(0)
whole = random.normal(size=(5, 5))
whole, b = whole @ whole.T + 5 * np.eye(5), random.normal(size=5)
x, values = np.linalg.solve(whole, b), np.linalg.eigvalsh(whole)
theirs, ours = scipy.linalg, jax.scipy.linalg

for lower in (True, False):
    half, uplo = (np.tril(whole), "L") if lower else (np.triu(whole), "U")
    for kind in ("pos", "her", "sym"):
        errors = [
            np.abs(np.asarray(module.solve(half, b, assume_a=kind, lower=lower)) - x).max()
            for module in (theirs, ours)
        ]
        print(f"solve, assume_a={kind!r}, {uplo}: errors of SciPy and JAX {errors[0]:.0e} {errors[1]:.0e}")
        assert errors[0] < 1e-14 and (errors[1] < 1e-14) == (kind == "pos")
    found = (
        theirs.eigh(half, lower=lower, eigvals_only=True), np.linalg.eigvalsh(half, UPLO=uplo),
        ours.eigh(half, lower=lower, eigvals_only=True), jax.numpy.linalg.eigh(half, UPLO=uplo)[0],
    )  # fmt: skip
    errors = [np.abs(np.asarray(w) - values).max() for w in found]
    print(f"eigh, {uplo}: errors of SciPy, NumPy, jax.scipy, jax.numpy", *(f"{e:.0e}" for e in errors))
    assert max(errors[:2]) < 1e-13 and min(errors[2:]) > 0.1
PROGRAM
