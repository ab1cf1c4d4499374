"""Solves one system whose matrix fills the memory of all GPUs, and checks the residual.

    fill.py [SHARE]      SHARE of each GPU's memory that the matrix takes, 0.86 unless given

float32, one right-hand side, `donate=True`. Prints one line of JSON. The matrix is made by the
devices, each its own rows, and its entries again for the residual.
"""

import json
import os
import subprocess
import sys
import time

# The rest of the memory is CUDA's own and that of its libraries.
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.965"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jaxmg  # noqa: E402

SLACK = 1e-4  # of the right-hand side, in float32


def memory():
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return min(map(int, lines)) * 2**20


def matrix(n):
    """Symmetric, diagonally dominant, from a hash of the indices."""
    i = jnp.arange(n, dtype=jnp.uint32)[:, None]
    j = jnp.arange(n, dtype=jnp.uint32)[None, :]
    h = (jnp.minimum(i, j) * jnp.uint32(0x9E3779B1)) ^ (jnp.maximum(i, j) * jnp.uint32(0x85EBCA6B))
    h = (h ^ (h >> 15)) * jnp.uint32(0xC2B2AE35)
    value = (h >> 8).astype(jnp.float32) * np.float32(2.0**-23) - 1
    return jnp.where(i == j, np.float32(2 * n), value)


def main():
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 0.86
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("rank",))
    rows, everywhere = NamedSharding(mesh, P("rank", None)), NamedSharding(mesh, P())
    total = memory()
    multiple = 256 * len(devices)
    n = int((share * total * len(devices) / 4) ** 0.5 / multiple + 1) * multiple
    make = jax.jit(lambda: matrix(n), out_shardings=rows)
    # Fused with the making of the entries: no second matrix would fit.
    multiply = jax.jit(lambda x: (matrix(n) * x.T).sum(axis=1, keepdims=True), out_shardings=rows)
    b = jax.device_put(np.random.default_rng(0).standard_normal((n, 1), np.float32), everywhere)
    a = jax.block_until_ready(make())
    start = time.perf_counter()
    x, status = jax.block_until_ready(jaxmg.potrs(a, b, donate=True, return_status=True))
    seconds = time.perf_counter() - start
    peak = max(device.memory_stats()["peak_bytes_in_use"] for device in devices)
    residual = float(jnp.abs(multiply(x) - b).max() / jnp.abs(b).max())
    block = 4 * n * (n // len(devices))
    print(
        json.dumps(
            {
                "routine": "potrs",
                "dtype": "float32",
                "n": n,
                "ranks": len(devices),
                "seconds": seconds,
                "tflops": n**3 / 3 / seconds / 1e12,
                "matrix_share_of_memory": block / total,
                "peak_bytes": peak,
                "peak_beside_matrix_bytes": peak - block,
                "status": int(status),
                "residual": residual,
            }
        ),
        flush=True,
    )
    return 0 if int(status) == 0 and residual < SLACK and block / total >= share else 1


if __name__ == "__main__":
    sys.exit(main())
