#!/usr/bin/env bash
# tinygp 0.3.1: the second derivatives of a Matern kernel with L2Distance are wrong where both points
# are the same: in two dimensions that of Matern52 has every entry 5/3, beside the diagonal too.
# Guess: 5/3 times the identity, the limit of what it is for two points that approach each other. It is
# the covariance of the gradient of the process, which is then singular, without a message.
# At a distance of 0 the Euclidean distance is replaced by that of the 1-norm, whose derivatives differ.
# ExpSquared, which needs no root, is right.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX tinygp==0.3.1 equinox==0.13.8 <<'PROGRAM'
import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
from tinygp import kernels

x, one = jnp.array([1.0, 2]), jnp.eye(2)
euclidean = kernels.distance.L2Distance()


def covariance(kernel, step):
    return jax.jacfwd(jax.grad(kernel.evaluate, 0), 1)(x, x + step)


for kernel, factor in (
    (kernels.Matern32(distance=euclidean), 3),
    (kernels.Matern52(distance=euclidean), 5 / 3),
    (kernels.ExpSquared(), 1),
):
    same, near = covariance(kernel, 0), covariance(kernel, 1e-7)
    print(type(kernel).__name__, "same point:", same.tolist(), " 1e-7 apart:", near.tolist())
    assert jnp.allclose(near, factor * one, atol=1e-5)
    wrong = not isinstance(kernel, kernels.ExpSquared)
    assert jnp.allclose(same, factor * (jnp.ones((2, 2)) if wrong else one))
PROGRAM
