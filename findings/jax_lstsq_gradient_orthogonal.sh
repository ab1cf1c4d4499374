#!/usr/bin/env bash
# JAX 0.11.2: the gradient of jnp.linalg.lstsq with respect to a matrix with orthonormal columns is NaN.
# So it is wherever two computed singular values are equal, as with columns of +1 and -1 in float64.
# Guess: the condition is 1, the best there is, and the derivative is that of the pseudo-inverse, which
# jnp.linalg.pinv has. lstsq differentiates through the SVD, whose vectors have no derivative there.
# jaxmg.linalg.lstsq has the derivative of the pseudo-inverse there.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX <<'PROGRAM'
import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp

b = jnp.array([1.0, 2, 3])
orthonormal = jnp.eye(3, 2)
for name, a in ("orthonormal", orthonormal), ("other", orthonormal * jnp.array([1.0, 2])):
    by_lstsq = jax.grad(lambda a: jnp.linalg.lstsq(a, b)[0].sum())(a)
    by_pinv = jax.grad(lambda a: (jnp.linalg.pinv(a) @ b).sum())(a)
    print(name, "columns:", by_lstsq.tolist(), " with pinv:", by_pinv.tolist())
    assert jnp.isfinite(by_pinv).all()
    if name == "other":
        assert jnp.allclose(by_lstsq, by_pinv)
    else:
        assert jnp.isnan(by_lstsq).all(), "the gradient is not NaN"
PROGRAM
