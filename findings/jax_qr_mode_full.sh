#!/usr/bin/env bash
# JAX 0.11.2: jax.numpy.linalg.qr(a, mode="full") of a 4 x 2 matrix returns the reduced Q (4, 2) and R
# (2, 2), without a warning. jax.scipy.linalg.qr with the same mode returns Q (4, 4) and R (4, 2). NumPy
# has the first meaning, too, and warns that the name is deprecated. R of mode "r" is (2, 2) in
# jax.numpy, and the only element of a tuple, (4, 2), in jax.scipy.
# Guess: "full" has the meaning of "complete" in both, or an error in jax.numpy. In jaxmg.linalg.qr "full" means
# "complete", and "r" returns R as in jax.numpy.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX <<'PROGRAM'
import warnings

import jax
import jax.numpy as jnp
import numpy as np

a = np.arange(8.0).reshape(4, 2) + np.eye(4, 2)


def shapes(qr, mode):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = qr(a, mode=mode)
    found = tuple(x.shape for x in found) if isinstance(found, tuple) else found.shape
    return found, [warning.category.__name__ for warning in caught]


for name, qr, full, r, warned in (
    ("numpy", np.linalg.qr, ((4, 2), (2, 2)), (2, 2), ["DeprecationWarning"]),
    ("jax.numpy", jnp.linalg.qr, ((4, 2), (2, 2)), (2, 2), []),
    ("jax.scipy", jax.scipy.linalg.qr, ((4, 4), (4, 2)), ((4, 2),), []),
):
    found = {mode: shapes(qr, mode) for mode in ("full", "r")}
    print(name, found)
    assert found == {"full": (full, warned), "r": (r, [])}
PROGRAM
