#!/usr/bin/env bash
# JAX 0.11.2 on CPU devices: under jit a product or sum in bfloat16 keeps float32's digits where a
# conversion to float32 follows; a call without jit rounds to bfloat16.
# Guess: (b * c).astype(float32) has bfloat16's digits, with jit as without: the dtype says so.
# Two rounded values of a program and of its parts differ by half a unit of bfloat16 then. It is kept
# by an optimization_barrier, and by xla_allow_excess_precision=false; a matrix product is rounded.
# jaxmg.tree cuts leaves behind a barrier, so a leaf is rounded as on one device.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax, jax.numpy as jnp, numpy as np

b = jnp.asarray(np.random.default_rng(0).standard_normal((40, 40)), jnp.bfloat16)
functions = {
    "product of entries": lambda b: (b * b.T).astype(jnp.float32),
    "sum": lambda b: (b + 3 * b.T).astype(jnp.float32),
    "sum behind a barrier": lambda b: jax.lax.optimization_barrier(b + 3 * b.T).astype(jnp.float32),
    "product of matrices": lambda b: (b @ b).astype(jnp.float32),
}
unrounded = {}
for name, function in functions.items():
    for way, call in (("eager", function), ("jit", jax.jit(function))):
        found = np.asarray(call(b))
        unrounded[name, way] = int((found.astype(jnp.bfloat16).astype(np.float32) != found).sum())
    print(name, "numbers that bfloat16 can't have:", unrounded[name, "eager"], "eager,",
          unrounded[name, "jit"], "under jit, of", b.size)
assert not any(count for (_, way), count in unrounded.items() if way == "eager")
for name in functions:
    kept = name in ("product of entries", "sum")
    assert (unrounded[name, "jit"] > b.size // 2) == kept, f"{name} is rounded otherwise now"
PROGRAM
