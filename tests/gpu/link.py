"""Measures the in-place redistribution: cyclic_1d there and back, relative to the matrix's size.

    link.py [N] [T_A]      65536 and 1024 by default; float64 on all GPUs

Prints one line of JSON, like those in benchmarks/results/redistribution.jsonl: the seconds of one
way, the bytes that leave each GPU for others, and their rate, which includes the time of moves
inside the GPUs. Needs benchmarks/ on PYTHONPATH.
"""

import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import records
from absl import app
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

jax.config.update("jax_enable_x64", True)


def main(argv):
    n = int(argv[1]) if len(argv) > 1 else 65536
    tile = int(argv[2]) if len(argv) > 2 else 1024
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("rank",))
    rows = NamedSharding(mesh, P("rank", None))

    def element():
        i = jnp.arange(n, dtype=jnp.float64)
        return i[:, None] * n + i[None, :]

    a = jax.block_until_ready(jax.jit(element, out_shardings=rows)())

    def way(inverse):
        return jax.jit(
            lambda a: jaxmg.cyclic_1d(a, tile, mesh, P("rank", None), inverse=inverse),
            donate_argnums=0,
            out_shardings=rows,
        )

    there, back = way(False), way(True)
    seconds = []
    for _ in range(6):
        for step in (there, back):
            start = time.perf_counter()
            a = jax.block_until_ready(step(a))
            seconds.append(time.perf_counter() - start)
    same = bool(jax.jit(lambda a: (a == element()).all())(a))
    median = statistics.median(seconds[2:])
    leaving = 8 * n * n / len(devices) * (len(devices) - 1) / len(devices)
    print(
        json.dumps(
            {
                "routine": "cyclic_1d",
                "dtype": "float64",
                "n": n,
                "T_A": tile,
                "ranks": len(devices),
                "seconds": median,
                "bytes_leaving_each_gpu": leaving,
                "gigabytes_per_second_each_way": leaving / median / 1e9,
                "restored_bit_for_bit": same,
                **records.origin(
                    records.name_of(devices), records.python("tests/gpu/link.py", sys.argv[1:])
                ),
            }
        ),
        flush=True,
    )
    return 0 if same else 1


if __name__ == "__main__":
    app.run(main)
