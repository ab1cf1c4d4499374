"""Compiles functions for several GPUs on a machine without one, from a description of the GPU.

    python tests/gpu/topologies.py [GPUS ...]      numbers of GPUs, by default 2 and 8

Needs jaxmg with its plugin for CUDA 13, and JAX with its own plugin for it. Each function has a
process of its own, so that a compilation that ends the process is detected.
"""

import os
import subprocess
import sys
import time
import types

# JAX's plugin looks for CUDA's libraries, which compilation doesn't need.
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# XLA's description of an H200: xla's stream_executor.GpuTargetConfigProto.
_H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 10 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000
  device_memory_size: 151397597184
  l2_cache_size: 52428800
}
"""


def _functions(jaxmg):
    """Returns name -> (function of a, shape of a): functions that use the GPUs' rows of the table,
    functions of single matrices, and derivatives."""
    linalg = jaxmg.linalg

    def gradient(function):
        def loss(a):
            return sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(function(a)))

        return jax.grad(loss)

    def reduced_svd(a):
        return linalg.svd(a, full_matrices=False)

    return {
        "batched qr": (linalg.qr, (64, 200, 200)),
        "batched syevd": (jax.vmap(jaxmg.syevd), (64, 300, 300)),
        "batched svd": (reduced_svd, (64, 300, 300)),
        "batched eigh": (linalg.eigh, (64, 300, 300)),
        "batched polar": (linalg.polar, (64, 200, 200)),
        "batched inv": (linalg.inv, (64, 200, 200)),
        "batched cholesky": (linalg.cholesky, (64, 200, 200)),
        "batched expm": (linalg.expm, (64, 50, 50)),
        "gradient of batched qr": (gradient(linalg.qr), (64, 200, 200)),
        "qr": (linalg.qr, (3000, 400)),
        "polar": (linalg.polar, (1000, 1000)),
        "svd": (reduced_svd, (1000, 1000)),
        "lstsq": (lambda a: linalg.lstsq(a, a[:, 0]), (3000, 400)),
        "eigh": (linalg.eigh, (1000, 1000)),
        "solve": (lambda a: linalg.solve(a, a[:, 0]), (1000, 1000)),
        "gradient of potrs": (gradient(lambda a: jaxmg.potrs(a, a[:, 0])), (1000, 1000)),
    }


def _local_devices(original, devices):
    """Returns `jax.local_devices` as on a machine that has these GPUs."""
    client = types.SimpleNamespace(platform_version="PJRT C API\ncuda 13000")
    gpu = types.SimpleNamespace(
        platform="gpu",
        client=client,
        compute_capability="9.0",
        memory_stats=lambda: {"bytes_limit": 100 * 2**30},
    )

    def local_devices(*args, backend=None, **options):
        if backend in ("gpu", "cuda"):
            return [gpu] * devices
        return original(*args, backend=backend, **options)

    return local_devices


def _compile(name, gpus):
    jax.local_devices = _local_devices(jax.local_devices, gpus)
    import jaxmg
    import jaxmg.linalg

    description = topologies.get_topology_desc(
        "gpus", platform="cuda", target_config=_H200, topology=f"1x1x{gpus}"
    )
    mesh = Mesh(np.array(description.devices), ("rank",))
    function, shape = _functions(jaxmg)[name]
    spec = P("rank", *(None,) * (len(shape) - 1))
    a = jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        jax.jit(function).trace(a).lower(lowering_platforms=("cuda",)).compile()


def main():
    if sys.argv[1:2] == ["--compile"]:
        _compile(sys.argv[2], int(sys.argv[3]))
        return 0
    import jaxmg
    import jaxmg.linalg

    failed = passed = 0
    for gpus in [int(x) for x in sys.argv[1:]] or (2, 8):
        for name in _functions(jaxmg):
            start = time.perf_counter()
            command = [sys.executable, __file__, "--compile", name, str(gpus)]
            run = subprocess.run(command, capture_output=True, text=True, timeout=600)
            took = time.perf_counter() - start
            if run.returncode == 0:
                passed += 1
                print(f"{gpus} GPUs, {name}: {took:.0f} s", flush=True)
            else:
                failed += 1
                print(f"{gpus} GPUs, {name}: FAILED with {run.returncode}", flush=True)
                print(run.stderr[-2000:], flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
