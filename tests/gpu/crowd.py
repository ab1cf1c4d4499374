"""Calls in sequence in several processes that share two GPUs, and checks each rank's results.

    crowd.py [PROCESSES [SECONDS]]

A GPU runs one process after another, each GPU at its own times. So one rank often waits while
another goes on to the next call, in the memory of the previous one. Exits with 1 if a rank has a
status other than 0 or a result that isn't finite. Needs benchmarks/ on PYTHONPATH.
"""

import os
import subprocess
import sys
import time

import jax
import numpy as np
import problems
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sections import mesh_of

import jaxmg


def calls(a, b):
    """Yields (routine, results, the last of which is the status) of calls, none of which is
    awaited."""
    for _ in range(10):
        yield "potrs", jaxmg.potrs(a, b, 3, return_logdet=True, return_status=True)
        yield "syevd", jaxmg.syevd(a, 3, return_status=True)
        yield "eigenvalues", jaxmg.syevd(a, 3, return_eigenvectors=False, return_status=True)
        yield "potri", jaxmg.potri(a, 3, return_status=True)


def wrong(results):
    """Returns the ranks whose status isn't 0 or whose results aren't finite."""
    ranks = set()
    for result in results:
        for rank, shard in enumerate(result.addressable_shards):
            value = np.asarray(shard.data)
            if not np.isfinite(value).all() or (result is results[-1] and value != 0):
                ranks.add(rank)
    return ranks


def work(seconds):
    mesh, n = mesh_of(jax.devices()[:2]), 24
    a = problems.matrix(np, n, "float64", kind="moderate")
    a = jax.device_put(a, NamedSharding(mesh, P("r", None)))
    b = problems.vectors(np, n, 1, "float64")
    count, failed = 0, []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for routine, results in list(calls(a, b)):
            count += 1
            failed += [f"{routine}, rank {rank}" for rank in wrong(results)]
    summary = {name: failed.count(name) for name in sorted(set(failed))}
    print("FAIL" if failed else "ok  ", f"{count} calls", summary or "", flush=True)
    return 1 if failed else 0


def main(processes=6, seconds=20):
    command = [sys.executable, __file__, "work", str(seconds)]
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}  # they share the memory
    started = [subprocess.Popen(command, env=environment) for _ in range(int(processes))]
    return 1 if any([process.wait() for process in started]) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        sys.exit(work(float(sys.argv[2])))
    sys.exit(main(*sys.argv[1:]))
