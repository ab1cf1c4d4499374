"""Sets up four CPU devices for a program that finds no GPU. Import it before JAX.

XLA and BLAS get one thread per device. Otherwise all of XLA's threads can end up waiting for a
device that has no thread left, and on small matrices BLAS threads of ranks that share cores cost
far more than they save. GPUs are not affected. The user's XLA_FLAGS take precedence.
JAX_NUM_CPU_DEVICES overrides the number here: `python -m jaxmg.launch` uses it to give each process
its devices.
"""

import os

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
