#!/usr/bin/env bash
# optax 0.2.8: the update of optax.contrib.muon is 0 for a float32 gradient of 1e20 times the identity.
# Its Frobenius norm overflows to infinity, and the gradient is divided by it.
# Guess: the same update as for the identity, since Muon's update doesn't depend on the scale.
# jaxmg.tree.orthogonalize scales by a power of two first.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX optax==0.2.8 <<'PROGRAM'
import jax.numpy as jnp
import optax

muon = optax.contrib.muon(1.0)
for scale in (1.0, 1e20):
    weights = {"w": scale * jnp.eye(3)}
    update, _ = muon.update(weights, muon.init(weights), weights)
    print(scale, "diagonal of the update:", jnp.diag(update["w"]))
    assert (jnp.abs(jnp.diag(update["w"])) > 0.5).all() if scale == 1 else not update["w"].any()
PROGRAM
