"""Times jaxmg on all devices of a job, with any number of processes.

    python benchmarks/processes.py --n 4096 --n 65536                                in one process
    python -m jaxmg.launch -n 2 -d 2 benchmarks/processes.py --n 4096 --n 65536      in two
    python benchmarks/processes.py --ranks 2 ...                                     on two devices

Process 0 prints a line of JSON for each order: the seconds of each run after a warm-up, their
median, and the backward error of the last run. The first line is for the first call on a mesh,
in which processes connect and share memory.
"""

import json
import os
import statistics
import time

os.environ.setdefault("JAX_ENABLE_X64", "1")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import problems  # noqa: E402
import records  # noqa: E402
from absl import app, flags  # noqa: E402
from worker import JaxmgSolver  # noqa: E402

import jaxmg  # noqa: E402

_N = flags.DEFINE_multi_integer("n", [4096], "orders", lower_bound=1)
_ROUTINE = flags.DEFINE_enum("routine", "potrs", problems.ROUTINES, "what to time")
_DTYPE = flags.DEFINE_enum("dtype", "float64", problems.DTYPES, "of the matrix")
_BACKEND = flags.DEFINE_string("backend", "auto", "of the routine")
_TILE = flags.DEFINE_integer("tile", None, "tile width", lower_bound=1)
_RANKS = flags.DEFINE_integer("ranks", None, "devices, all by default", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "runs that count", lower_bound=1)
_LABEL = flags.DEFINE_string("label", "", "what the records are to be known by")


def main(_):
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    devices = jax.devices()[: _RANKS.value]
    mesh = jax.sharding.Mesh(np.array(devices), ("rank",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rank", None))
    order = 8 * len(devices)
    a = jax.block_until_ready(jax.jit(lambda: 2 * jax.numpy.eye(order), out_shardings=rows)())
    start = time.perf_counter()
    jax.block_until_ready(jaxmg.potri(a))
    seconds = time.perf_counter() - start
    connections = jaxmg._plugin.plugins.load(devices[0].platform).connections()
    about = {
        "processes": len({device.process_index for device in devices}),
        "ranks": len(devices),
        "transports": sorted({one["transport"] for one in connections}),
        "label": _LABEL.value,
    }
    _print(about, "first", first_seconds=seconds, devices=devices)
    for n in _N.value:
        _print(about, "time", **_measure(n, len(devices)), devices=devices)


def _measure(n, ranks):
    solver = JaxmgSolver({
        "routine": _ROUTINE.value, "backend": _BACKEND.value, "dtype": _DTYPE.value, "n": n,
        "matrix": problems.usual_kind(_ROUTINE.value), "precision": None, "nrhs": 1,
        "T_A": _TILE.value, "ranks": ranks, "vectors": True, "donate": True,
    })  # fmt: skip
    seconds = []
    for _ in range(1 + _REPEATS.value):
        operands = solver.operands()
        start = time.perf_counter()
        results = solver.run(operands)
        seconds.append(time.perf_counter() - start)
        del operands
    return {
        "routine": _ROUTINE.value, "backend": _BACKEND.value, "dtype": _DTYPE.value, "n": n,
        "tile": _TILE.value, "seconds": statistics.median(seconds[1:]), "all_seconds": seconds,
        "backward_error": float(solver.check(results)),
    }  # fmt: skip


def _print(about, kind, devices, **values):
    if jax.process_index() == 0:
        origin = records.origin(records.name_of(devices), "ci/gpu_processes.sh")
        print(json.dumps({"kind": kind, **values, **about, **origin}), flush=True)


if __name__ == "__main__":
    app.run(main)
