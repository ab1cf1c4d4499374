#!/usr/bin/env bash
# JAX 0.11.2 on CPU devices: jnp.max and jnp.min of a sharded array lose a NaN.
# Guess: the result does not depend on the sharding, and is NaN, as jnp.max of the same array on one
# device and jnp.argmax of the sharded one say.
# jaxmg.linalg.norm and all checks of jaxmg take maxima that keep a NaN.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax

jax.config.update("jax_num_cpu_devices", 4)
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

x = np.where(np.arange(8) == 1, np.nan, 1).astype(np.float32)
sharded = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()), ("rank",)), P("rank")))
print("one device:", float(jnp.max(x)), " four:", float(jnp.max(sharded)), float(jnp.min(sharded)))
assert np.isnan(jnp.max(x)) and jnp.argmax(sharded) == 1
assert jnp.max(sharded) == jnp.min(sharded) == 1, "the NaN is kept"
PROGRAM
