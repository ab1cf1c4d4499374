"""Times first and later calls with batches and tall matrices.

    first_and_second.py [--gpus 2] [--label new] [--case qr svd]

The first call traces, compiles and runs; the median is over 15 later calls. To compare two builds,
run each on one machine with its own folder on PYTHONPATH, and name them with --label.
"""

import argparse
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import records
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import linalg

CASES = {
    "qr": (linalg.qr, (64, 200, 200)),
    "syevd": (jax.vmap(jaxmg.syevd), (64, 300, 300)),
    "svd": (lambda a: linalg.svd(a, full_matrices=False), (64, 300, 300)),
    "inv": (linalg.inv, (64, 300, 300)),
    "lstsq": (lambda a: linalg.lstsq(a, a[:, 0]), (30000, 1000)),
    "tall qr": (linalg.qr, (30000, 1000)),
    "expm": (linalg.expm, (2000, 2000)),
    "norm": (linalg.norm, (8192, 8192)),
}


def measure(function, a):
    """Returns (seconds of the first call, median milliseconds of 15 later ones)."""
    function = jax.jit(function)
    times = []
    for _ in range(16):
        start = time.perf_counter()
        jax.block_until_ready(function(a))
        times.append(time.perf_counter() - start)
    return times[0], 1e3 * statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--label", default="")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    devices = jax.devices()[: options.gpus]
    mesh = Mesh(np.array(devices), ("rank",))
    command = records.python("benchmarks/first_and_second.py", sys.argv[1:])
    for name in options.case:
        function, shape = CASES[name]
        a = np.random.default_rng(0).normal(size=shape).astype(np.float32) / shape[-1] ** 0.5
        if name == "syevd":
            a = a + a.swapaxes(1, 2)
        with jax.set_mesh(mesh):
            first, later = measure(
                function, jax.device_put(jnp.asarray(a), NamedSharding(mesh, P("rank")))
            )
        record = records.origin(records.name_of(devices), command) | {
            "code": options.label, "gpus": options.gpus, "routine": name, "shape": shape,
            "dtype": "float32", "first_s": round(first, 2), "median_ms": round(later, 3),
        }  # fmt: skip
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
