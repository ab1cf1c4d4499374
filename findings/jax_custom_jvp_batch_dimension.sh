#!/usr/bin/env bash
# JAX 0.11.2: jax.jvp of jit(vmap(f)), or of vmap(jit(f)), gives transposed values and tangents, and
# jax.grad wrong gradients, without a message, where f is a custom_jvp function whose rule uses
# jax.lax.map (or a scan whose outputs are stacked). Without the jit they are right.
# Guess: jit doesn't change results; a batch dimension may lie anywhere inside, and is moved back.
# jaxmg's rules end with an operation that moves the batch to the front.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np


@jax.custom_jvp
def f(x):
    return jnp.sin(x)


@f.defjvp
def rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return jax.lax.map(jnp.sin, x), jax.lax.map(jnp.cos, x) * t


x = jnp.arange(4.0).reshape(2, 2)
value, tangent = jax.jvp(jax.vmap(f), (x,), (jnp.ones_like(x),))
assert np.allclose(value, jnp.sin(x)) and np.allclose(tangent, jnp.cos(x))
for name, mapped in {"jit(vmap(f))": jax.jit(jax.vmap(f)), "vmap(jit(f))": jax.vmap(jax.jit(f))}.items():
    value, tangent = jax.jvp(mapped, (x,), (jnp.ones_like(x),))
    print(name, "value:", value.tolist(), " sin(x):", jnp.sin(x).tolist())
    assert np.allclose(value, jnp.sin(x).T) and not np.allclose(value, jnp.sin(x))
    long = jnp.arange(6.0).reshape(2, 3)
    value, _ = jax.jvp(mapped, (long,), (long,))
    print(name, "of shape", long.shape, "has shape", mapped(long).shape, "and in jvp", value.shape)
    assert value.shape == (3, 2)
PROGRAM
