"""Solves one system whose matrix fills the memory of all GPUs, and checks the residual.

    fill.py [SHARE [N]]

SHARE is the part of each GPU's memory that the matrix takes, 0.86 by default. N replaces the order
that follows from it, for a trial on smaller machines. Needs benchmarks/ on PYTHONPATH.

float32, one right-hand side, `donate=True`. Each device makes its own rows of the matrix, and makes
them again, a few at a time, for the residual. Prints one line of JSON, a record like those in
benchmarks/results.
"""

import json
import os
import subprocess
import sys
import time

# The rest of the memory is for CUDA and its libraries.
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.965"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import problems  # noqa: E402
import records  # noqa: E402
from absl import app  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jaxmg  # noqa: E402

jax.config.update("jax_enable_x64", True)

DTYPE = "float32"
MULTIPLE = 256  # each device's number of rows is a multiple of it
PIECE_BYTES = 64 << 20  # of rows in double precision, so that XLA's copies of them are small
TOLERATED = 1e-5  # backward error: far above float32's, far below TF32's


def memory():
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    return min(map(int, lines)) * 2**20


def order(share, devices):
    """Returns the smallest order whose matrix takes this share of each device's memory."""
    multiple = MULTIPLE * devices
    elements = share * memory() * devices / np.dtype(DTYPE).itemsize
    return int(elements**0.5 / multiple + 1) * multiple


def backward_error(n, mesh):
    """Returns f(x, b), with (n,) vectors on all devices: |b - A x| / (|A| |x| + |b|) in the
    infinity norm.

    f makes A again, a few rows at a time, so that no program of XLA's needs a buffer as large as A.
    """
    rows = n // mesh.devices.size
    count = MULTIPLE
    while count > 1 and 8 * count * n > PIECE_BYTES:
        count //= 2

    def norm(v):
        return abs(v).max()

    def local(x, b):
        begin = jax.lax.axis_index("rank").astype(jnp.uint32) * rows
        x = x.astype(jnp.float64)

        def piece(k):
            block = problems.matrix(jnp, n, DTYPE, begin + k * count, count).astype(jnp.float64)
            # Not a matrix product: XLA would materialize the block and try algorithms.
            return (block * x).sum(axis=1), abs(block).sum(axis=1)

        image, sums = jax.lax.map(piece, jnp.arange(rows // count, dtype=jnp.uint32))
        mine = jax.lax.dynamic_slice(b, (begin,), (rows,))
        worst = jnp.stack([norm(mine - image.reshape(-1)), norm(sums)])
        residual, largest = jax.lax.pmax(worst, "rank")
        return residual / (largest * norm(x) + norm(b))

    return jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
    )


def held(devices, key):
    return [(device.memory_stats() or {}).get(key, 0) for device in devices]


def main(argv):
    share = float(argv[1]) if len(argv) > 1 else 0.86
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("rank",))
    rows, everywhere = NamedSharding(mesh, P("rank", None)), NamedSharding(mesh, P())
    given = len(argv) > 2
    n = int(argv[2]) if given else order(share, len(devices))
    if n % (MULTIPLE * len(devices)):
        sys.exit(f"n = {n} must be a multiple of {MULTIPLE} x {len(devices)}")
    options = {"donate": True, "return_status": True, "backend": "native"}
    # One-time work of libraries isn't timed.
    small = jax.device_put(np.eye(MULTIPLE * len(devices), dtype=DTYPE), rows)
    jax.block_until_ready(jaxmg.potrs(small, small[0], mesh=mesh, **options))

    b = jax.device_put(np.random.default_rng(0).standard_normal(n, np.float32), everywhere)
    a = jax.jit(lambda: problems.matrix(jnp, n, DTYPE), out_shardings=rows)()
    jax.block_until_ready(a)
    before = held(devices, "bytes_in_use")
    start = time.perf_counter()
    x, status = jax.block_until_ready(jaxmg.potrs(a, b, **options))
    seconds = time.perf_counter() - start
    peaks = held(devices, "peak_bytes_in_use")
    needed = max(peak - then for peak, then in zip(peaks, before, strict=True))
    print(f"solved n = {n} in {seconds:.2f} s, status {int(status)}", file=sys.stderr, flush=True)
    start = time.perf_counter()
    error = float(backward_error(n, mesh)(x, b))
    print(f"residual in {time.perf_counter() - start:.2f} s", file=sys.stderr, flush=True)
    block = np.dtype(DTYPE).itemsize * n * (n // len(devices))
    record = {
        **records.origin(
            records.name_of(devices), records.python("tests/gpu/fill.py", sys.argv[1:])
        ),
        "routine": "potrs",
        "backend": "native",
        "dtype": DTYPE,
        "matrix": "dominant",
        "precision": None,
        "n": n,
        "nrhs": 1,
        "T_A": None,
        "ranks": len(devices),
        "processes": 1,
        "seconds": seconds,
        "spread": 0.0,
        "tflops": problems.operations("potrs", DTYPE, n, 1) / seconds / 1e12,
        "peak_bytes": needed or None,
        "backward_error": error,
        "donate": True,
        "threads": None,
        "runs": [seconds],
        "cold": True,  # includes compilation
        "status": int(status),
        "matrix_bytes_per_device": block,
        "matrix_share_of_memory": None if given else block / memory(),
    }
    print(json.dumps(record), flush=True)
    filled = given or record["matrix_share_of_memory"] >= share
    return 0 if int(status) == 0 and error < TOLERATED and filled else 1


if __name__ == "__main__":
    app.run(main)
