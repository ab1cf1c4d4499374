"""Four CPU devices of a thread each, as the examples have them, in 64-bit mode."""

import os

# Before JAX starts; the last of two flags counts.
_FLAGS = "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
