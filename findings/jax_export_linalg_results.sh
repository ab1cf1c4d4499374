#!/usr/bin/env bash
# JAX 0.11.2: an exported program that returns what jnp.linalg.qr, eigh, svd or slogdet return cannot
# be serialized.
# Guess: JAX registers its own result types with jax.export. It does not; the program has to return
# plain tuples, or the caller registers the types.
# jaxmg registers its own result types in jaxmg.register_handlers().
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX flatbuffers==25.12.19 <<'PROGRAM'
import jax
import jax.numpy as jnp
from jax import export

a = jax.ShapeDtypeStruct((3, 3), jnp.float32)
for name in ("qr", "eigh", "svd", "slogdet"):
    exported = export.export(jax.jit(getattr(jnp.linalg, name)))(a)
    try:
        exported.serialize()
    except ValueError as error:
        print(name, "->", str(error)[:90])
    else:
        raise SystemExit(f"{name} is serialized")
    as_tuple = export.export(jax.jit(lambda a, name=name: tuple(getattr(jnp.linalg, name)(a))))(a)
    assert as_tuple.serialize()
PROGRAM
