#!/usr/bin/env bash
# JAX 0.11.2: a pickle of a float64 array, loaded by a process whose 64-bit mode is off, as it is by
# default, is float32, without a warning. orbax-checkpoint 0.12.8 restores it as float32 too, and only
# jnp.zeros(1, "float64") warns there.
# Guess: the array keeps its dtype, or a warning says that it was truncated.
# jaxmg raises where a pickled factor, or its portable form, would lose half of its digits.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX orbax-checkpoint==0.12.8 <<'PROGRAM'
import pickle
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import orbax.checkpoint

if len(sys.argv) == 1:
    jax.config.update("jax_enable_x64", True)
    x = jnp.array([1 / 3])
    with open("x.pkl", "wb") as file:
        pickle.dump(x, file)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{sys.path[0]}/x", {"x": x})
    subprocess.run([sys.executable, __file__, "load"], check=True)
else:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with open("x.pkl", "rb") as file:
            x = pickle.load(file)
    print("pickle:", x.dtype, x, " warnings:", [str(w.message) for w in seen])
    assert x.dtype == "float32" and not seen
    with orbax.checkpoint.StandardCheckpointer() as checkpointer, warnings.catch_warnings(
        record=True
    ) as seen:
        warnings.simplefilter("always")
        x = checkpointer.restore(f"{sys.path[0]}/x")["x"]
    print("orbax:", x.dtype, x, " of precision:", [str(w.message) for w in seen if "64" in str(w.message)])
    assert x.dtype == "float32" and not any("64" in str(w.message) for w in seen)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        jnp.zeros(1, "float64")
    assert "not available" in str(seen[0].message)
PROGRAM
