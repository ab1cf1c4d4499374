#!/usr/bin/env bash
# JAX 0.11.2, two processes: jax.device_put of a NumPy array onto a mesh of both raises "passed to
# device_put is not the same on each process" if the array has a NaN, though both pass the same.
# The comparison takes NaN for unequal to itself; infinities are let through.
# Guess: the same values in every process are the same.
# jaxmg gives each process's devices their shards without the comparison.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import os
import socket
import subprocess
import sys

WORKER = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
rows = NamedSharding(Mesh(np.array(jax.devices()), ("r",)), P("r"))
for value in (1, np.inf, np.nan):
    a = np.zeros((4, 4), "float32")
    a[1, 2] = value
    try:
        jax.device_put(a, rows).block_until_ready()
        print(value, "taken", flush=True)
    except AssertionError as error:
        print(value, str(error)[:91], flush=True)
"""
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
command = [sys.executable, "-c", WORKER, address]
jobs = [
    subprocess.Popen([*command, str(i)], env=environment, stdout=subprocess.PIPE, text=True)
    for i in range(2)
]
outputs = [job.communicate(timeout=120)[0] for job in jobs]
for output in outputs:
    lines = [line for line in output.splitlines() if not line.startswith("[Gloo]")]
    print(*lines, sep="\n")
    assert lines[:2] == ["1 taken", "inf taken"], output
    assert lines[2].startswith("nan ") and "not the same on each process" in lines[2], output
PROGRAM
