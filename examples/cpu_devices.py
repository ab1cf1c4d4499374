"""Four CPU devices for a program that finds no GPU; to be imported before JAX is.

Each has one thread: XLA's threads for all of them can all be waiting for a device that has none
left. So has BLAS: on small matrices, threads of ranks that share cores cost far more than they
save. GPUs don't mind, and what the user has set in XLA_FLAGS goes first. JAX_NUM_CPU_DEVICES wins
over the number here: it is how `python -m jaxmg.launch` gives each process its devices.
"""

import os

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
