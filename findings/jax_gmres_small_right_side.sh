#!/usr/bin/env bash
# JAX 0.11.2: jax.scipy.sparse.linalg.gmres returns x = 0 and info 0, success, for a right-hand side
# whose norm is below the dtype's epsilon, 1.2e-7 in float32, although atol is 0 and tol 1e-5.
# It takes a vector of so small a norm for zero when it normalizes the first residual.
# Guess: x is proportional to b, as in cg and bicgstab and SciPy 1.17.1; the tolerance is relative.
# A residual of iterative refinement is such a b: divide it by its norm first.
# jaxmg.gesv(refine=) runs its own GMRES, whose x is proportional to b.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX <<'PROGRAM'
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

a, x = np.diag([1, 2, 4]).astype("float32"), np.ones(3, "float32")
for scale in np.float32([1, 1e-8]):
    b = jnp.asarray(scale * (a @ x))
    ours, info = gmres(a, b)
    reference, status = scipy.sparse.linalg.gmres(a, np.asarray(b), rtol=1e-5, atol=0)
    print("|b|:", float(jnp.linalg.norm(b)), " JAX:", ours.tolist(), int(info), " SciPy:", reference)
    assert info == status == 0 and np.allclose(reference, scale * x, rtol=1e-4, atol=0)
    assert all(np.allclose(f(a, b)[0], scale * x, rtol=1e-4, atol=0) for f in (cg, bicgstab))
    if scale == 1:
        assert np.allclose(ours, x, rtol=1e-4)
    else:
        assert not ours.any(), "x is not 0"
PROGRAM
