"""Times matrices in host memory, which pass through the devices.

    host_memory.py [--platform gpu] [--ranks 1] [--row KIND:N[:DTYPE[:MEMORY]] ...] [--pool BYTES]
                   [--nrhs 1] [--columns 2048] [--runs 2] [--rate FLOPS] [--link BYTES]
                   [--out FILE]

Kinds of rows:

    square    potrs of a NumPy array in pinned memory, donated: the factor replaces its upper half
    pageable  the same of an array in ordinary memory
    file      the same of np.memmap of a new file in --folder
    tiles     potrs of jaxmg.Tiles
    factor    cho_factor of jaxmg.Tiles, whose factor is kept, and a solve with it
    core      potrs of an array that is on the devices, donated, in core
    tall      lstsq, least_squares and qr of an array of N rows and --columns in pinned memory
    loose     the same of an array in ordinary memory
    likelihood gaussian_log_likelihood of jaxmg.Tiles, and its gradient by three parameters and y
    general   gesv of a NumPy array in pinned memory, donated: the factors replace it
    lu        lu_factor of jaxmg.Tiles, whose factors are kept, and solves with A and its transpose
    lucore    gesv of an array that is on the devices, donated, in core

MEMORY is the memory= of the call, such as 72e9. One pinned region of --pool bytes serves all rows
one after the other; it is made once, and its time is printed. A square of order n takes 8 n^2
bytes of it (float64), the factor of tiles 4 n^2 + 4 n w, w the width of block columns (on GPUs at
most 12288).

On one H200 with 128 GB of host memory. Two calls, because pinned memory for both kinds takes long:

    XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 JAXMG_HOST_MEMORY_GB=120 python benchmarks/host_memory.py \\
      --pool 92e9 --row square:106496:float64:72e9 core:65536 square:65536:float64:12e9 \\
      pageable:32768:float64:4e9 square:32768:float64:4e9 --out OUT/host_memory.jsonl
    XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 JAXMG_HOST_MEMORY_GB=120 python benchmarks/host_memory.py \\
      --pool 98e9 --row tiles:150000:float64:72e9 factor:150000:float64:72e9 \\
      tiles:200000:float32:72e9 --out OUT/host_memory.jsonl
    XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 JAXMG_HOST_MEMORY_GB=120 python benchmarks/host_memory.py \\
      --pool 99e9 --row tall:6000000:float64:72e9 --out OUT/host_memory.jsonl
    XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 JAXMG_HOST_MEMORY_GB=120 python benchmarks/host_memory.py \\
      --pool 36e9 --row tall:2000000:float64:30e9 loose:2000000:float64:30e9 \\
      --out OUT/host_memory.jsonl
    XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 JAXMG_HOST_MEMORY_GB=120 python benchmarks/host_memory.py \\
      --pool 46e9 --row likelihood:100000:float64:72e9 --out OUT/host_memory.jsonl

    XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 JAXMG_HOST_MEMORY_GB=120 python benchmarks/host_memory.py \\
      --pool 92e9 --row general:104000:float64:72e9 lu:90000:float64:72e9 lucore:65536 \\
      general:65536:float64:12e9 --out OUT/host_memory.jsonl

host_memory_peers.py runs SciPy, JAX, CuPy and torch beside the likelihood. On CPU devices, in some
seconds:

    python benchmarks/host_memory.py --platform cpu --ranks 2 --pool 5e7 \\
      --row square:1536:float64:8e6 tiles:1536:float32:4e6 factor:1024 core:1024 \\
      tall:20000:float64:2e6 likelihood:1024:float64:3e6 general:1536:float64:12e6 \\
      lu:1024:float64:8e6 --columns 64

The matrix has hashes of (i, j) between -1 and 1. For gesv and lu_factor that is all; for potrs and
cho_factor it is symmetric, with 2 sqrt(n) more on the diagonal, which makes it positive definite
with a condition below 10. A device makes it by blocks of rows,
fills host memory through JAX's own pinned memory, and makes it again for the backward error,
|A x - b| / (|A| |x| + |b|) in the maximum norm. A tall matrix is as random; its error is
|A^H (b - A x)| / (|A| |b|) in the Frobenius norm. Rows of kind likelihood have the kernel of
host_memory_peers.py. Their error is relative to n, of an identity: scaled by 1 + t, the matrix has
the log-likelihood's derivative (y^H K^-1 y - n) / 2 at t = 0, and the gradient by y has the first
term. "model" is `jaxmg.plan`: bytes over the link, and the seconds for --rate and --link. Peaks are
those of the process: JAX's on the first device, and VmHWM of the host.
"""

import functools
import gc
import os
import sys
import tempfile
import time

import devices
import host_memory_peers
import jax
import jax.numpy as jnp
import numpy as np
import records
from absl import app
from absl.flags import argparse_flags
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._host import pool
from jaxmg._plugin import plugins

BLOCK = 1 << 30  # bytes of a block of rows that a device makes at a time


def arguments(argv):
    parser = argparse_flags.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--row", nargs="+", type=_row, required=True, help=_row.__doc__)
    parser.add_argument("--pool", type=float, help="bytes of pinned memory; default: none is kept")
    parser.add_argument("--nrhs", type=int, default=1)
    parser.add_argument("--columns", type=int, default=2048, help="of tall matrices")
    parser.add_argument("--runs", type=int, default=2, help="of each row")
    parser.add_argument("--rate", type=float, default=52e12, help="of products on a device, flop/s")
    parser.add_argument("--link", type=float, default=53e9, help="bytes/s")
    parser.add_argument("--folder", help="for files")
    parser.add_argument("--out", help="file to append records to")
    return parser.parse_args(argv[1:])


def _row(text):
    """KIND:N[:DTYPE[:MEMORY]]"""
    kind, n, *more = text.split(":")
    if kind not in KINDS:
        raise ValueError(f"{kind} is none of {', '.join(KINDS)}")
    dtype, memory = [*more, *("float64", "")[len(more) :]]
    return kind, int(n), np.dtype(dtype), float(memory) if memory else None


def entries(rows, columns, n, dtype, general=False):
    """Returns the test matrix at these indices; a function for `jaxmg.Tiles`."""
    i, j = rows[:, None], columns[None, :]
    low, high = (i, j) if general else (jnp.minimum(i, j), jnp.maximum(i, j))
    bits = low.astype(jnp.uint32) * jnp.uint32(2654435761)
    bits = bits ^ high.astype(jnp.uint32) * jnp.uint32(2246822519)
    for shift, factor in ((15, 2246822507), (13, 3266489909)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    value = (bits >> 8).astype(dtype) * dtype.type(2.0**-23) - dtype.type(1)
    return value if general else value + (i == j) * dtype.type(2 * n**0.5)


@functools.cache
def function(n, dtype, general=False):
    return lambda rows, columns: entries(rows, columns, n, dtype, general)


@functools.cache
def block_maker(n, dtype, rows, general):
    """Returns the compiled function of the first row that makes a block of rows."""

    def make(first):
        index = jnp.minimum(first + jnp.arange(rows, dtype=jnp.int32), n - 1)
        return entries(index, jnp.arange(n, dtype=jnp.int32), n, dtype, general)

    return jax.jit(make)


def height(n, dtype):
    return max(min(BLOCK // (n * dtype.itemsize), n), 1)


def fill(a, device, general):
    """Fills an array on the host, or its upper triangle, by blocks of rows that a device makes."""
    rows = height(len(a), a.dtype)
    _fill(a, device, block_maker(len(a), a.dtype, rows, general), rows, upper=not general)


def _fill(a, device, make, rows, upper=False):
    """Fills ``a`` by blocks of ``rows`` rows; ``make`` returns the one from a first row on."""
    plugin, itemsize = plugins.load(device.platform), a.dtype.itemsize
    kinds = [memory.kind for memory in device.addressable_memories()]
    pinned = "pinned_host" in kinds and SingleDeviceSharding(device, memory_kind="pinned_host")

    def made(first):
        with jax.default_device(device):
            block = make(first)
        return jax.device_put(block, pinned) if pinned else block

    following = made(0)
    for first in range(0, len(a), rows):
        block, count = following, min(rows, len(a) - first)
        if first + rows < len(a):
            following = made(first + rows)
        block.block_until_ready()
        left = first if upper else 0
        skipped = left * itemsize
        address, kept = _address(block)
        plugin.host_copy(
            a.ctypes.data + first * a.strides[0] + skipped, address + skipped, count,
            (a.shape[1] - left) * itemsize, a.strides[0], a.shape[1] * itemsize, pool.threads(),
        )  # fmt: skip
        del kept


def _address(block):
    """Returns the address of a block in host memory, and what keeps it there."""
    try:
        if block.sharding.memory_kind == "pinned_host":
            return block.unsafe_buffer_pointer(), block
    except jax.errors.JaxRuntimeError:  # no address: a slow copy
        pass
    kept = np.asarray(block)
    return kept.ctypes.data, kept


@functools.cache
def residual(n, dtype, rows, general):
    """Returns the compiled function of (first row, x, b) that returns, for a block of rows, the
    largest entry of A x - b and the largest sum of magnitudes of a row."""
    make = block_maker(n, dtype, rows, general)

    def compute(first, x, b):
        block = make(first)
        index = jnp.minimum(first + jnp.arange(rows), n - 1)
        apart = jnp.matmul(block, x, precision="highest") - b[index]
        return jnp.abs(apart).max(), jnp.abs(block).sum(1).max()

    return jax.jit(compute)


def backward_error(case, x):
    n, dtype, rows = case.n, case.dtype, height(case.n, case.dtype)
    x, b = (jax.device_put(np.asarray(value), case.device) for value in (x, case.b))
    compute = residual(n, dtype, rows, case.general)
    parts = [compute(first, x, b) for first in range(0, n, rows)]
    flaw, norm = (max(float(part[i]) for part in parts) for i in (0, 1))
    return flaw / (norm * float(jnp.abs(x).max()) + float(jnp.abs(b).max()))


def timed(call):
    began = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - began


def square(case, args):
    """Donated array in pinned memory."""
    memory = args.memory
    if memory is None:
        raise ValueError("rows of kind square need --pool")
    return _donated(case, args, memory.array((case.n, case.n), case.dtype))


def pageable(case, args):
    return _donated(case, args, np.zeros((case.n, case.n), case.dtype))


def file(case, args):
    with tempfile.NamedTemporaryFile(dir=args.folder) as place:
        return _donated(case, args, np.memmap(place, case.dtype, "w+", 0, (case.n, case.n)))


def _donated(case, args, a):
    _, filling = timed(lambda: fill(a, case.device, case.general))
    x, seconds = timed(
        lambda: case.solve(a, case.b, mesh=case.mesh, memory=case.memory, donate=True)
    )
    return x, {"seconds": seconds, "filling": filling}


def general(case, args):
    """As `square`."""
    return square(case, args)


def _tiles(case):
    return jaxmg.Tiles(function(case.n, case.dtype, case.general), (case.n, case.n), case.dtype)


def tiles(case, args):
    x, seconds = timed(
        lambda: jaxmg.potrs(_tiles(case), case.b, mesh=case.mesh, memory=case.memory)
    )
    return x, {"seconds": seconds}


def factor(case, args):
    kept, seconds = timed_factor(case)
    try:
        x, solving = timed(lambda: kept.solve(case.b))
        x, again = timed(lambda: kept.solve(case.b))
    finally:
        getattr(kept, "release", lambda: None)()
    return x, {"seconds": seconds, "first solve": solving, "solve": again}


def lu(case, args):
    kept, seconds = timed_factor(case)
    try:
        x, solving = timed(lambda: kept.solve(case.b))
        _, transposed = timed(lambda: kept.solve(case.b, "T"))
    finally:
        getattr(kept, "release", lambda: None)()
    return x, {"seconds": seconds, "solve": solving, "transposed": transposed}


def timed_factor(case):
    began = time.perf_counter()
    make = jaxmg.lu_factor if case.general else jaxmg.cho_factor
    kept = make(_tiles(case), mesh=case.mesh, memory=case.memory)
    jax.block_until_ready(kept.status)
    return kept, time.perf_counter() - began


def core(case, args):
    rows, dtype = -(-case.n // args.ranks), case.dtype
    by_rows = NamedSharding(case.mesh, P("rank", None))

    def make():
        index = jnp.arange(rows * args.ranks, dtype=jnp.int32)
        clipped = jnp.minimum(index, case.n - 1)
        return entries(clipped, index[: case.n], case.n, dtype, case.general)

    a = jax.block_until_ready(jax.jit(make, out_shardings=by_rows)())
    x, seconds = timed(lambda: case.solve(a, case.b, donate=True, pad=False))
    return x, {"seconds": seconds}


def tall(case, args):
    if args.memory is None:
        raise ValueError("rows of kind tall need --pool")
    return _tall(case, args.memory.array((case.n, args.columns), case.dtype))


def loose(case, args):
    return _tall(case, np.empty((case.n, args.columns), case.dtype))


def _tall(case, a):
    named = {"mesh": case.mesh, "memory": case.memory}
    _, filling = timed(lambda: fill_tall(a, case.device))
    found, seconds = timed(lambda: jaxmg.linalg.lstsq(a, case.b, **named))
    _, of_x = timed(lambda: jaxmg.linalg.least_squares(a, case.b, **named))
    _, of_r = timed(lambda: jaxmg.linalg.qr(a, "r", **named))
    times = {"seconds": seconds, "least_squares": of_x, "qr": of_r, "filling": filling}
    return found[0], times | {"columns": a.shape[1]}


@functools.cache
def tall_maker(shape, dtype, rows):
    """Returns the compiled function of the first row that makes a block of rows of a tall matrix;
    those beyond it are zeros."""
    m, n = shape

    def make(first):
        index = first + jnp.arange(rows, dtype=jnp.int32)
        made = entries(index, jnp.arange(n, dtype=jnp.int32), 1, dtype)
        return jnp.where((index < m)[:, None], made, 0)

    return jax.jit(make)


def fill_tall(a, device):
    rows = min(max(BLOCK // (a.shape[1] * a.itemsize), 1), len(a))
    _fill(a, device, tall_maker(a.shape, a.dtype, rows), rows)


def gradient(case, shape, x):
    """Returns |A^H (b - A x)| / (|A| |b|)."""
    m, n = shape
    rows = min(max(BLOCK // (n * case.dtype.itemsize), 1), m)
    make = tall_maker(shape, case.dtype, rows)

    @jax.jit
    def compute(first, x, b):
        block = make(first)
        rest = b - jnp.matmul(block, x, precision="highest")
        return jnp.matmul(block.T, rest, precision="highest"), jnp.sum(block**2)

    x = jax.device_put(np.asarray(x), case.device)
    total, squares = 0, 0.0
    for first in range(0, m, rows):
        b = np.zeros((rows, case.b.shape[1]), case.dtype)
        part = case.b[first : first + rows]
        b[: len(part)] = part
        found, square = compute(first, x, jax.device_put(b, case.device))
        total, squares = total + found, squares + float(square)
    return float(jnp.linalg.norm(total)) / (squares**0.5 * float(np.linalg.norm(case.b)))


def likelihood(case, args):
    points, p, y = host_memory_peers.problem(case.n, case.dtype)
    points, y = (jax.device_put(one, case.device) for one in (points, y))

    def value(p, y):
        made = jaxmg.Tiles(host_memory_peers.tile, (case.n, case.n), case.dtype, points, p)
        return jaxmg.gaussian_log_likelihood(made, y, case.mesh, memory=case.memory)

    (found, (of_p, of_y)), seconds = timed(lambda: jax.value_and_grad(value, (0, 1))(tuple(p), y))
    size, noise = p[0] * of_p[0], p[2] * of_p[2]
    error = abs(size + noise - (-jnp.vdot(of_y, y) - case.n) / 2) / case.n
    more = {"log-likelihood": float(found), "gradient": [float(one) for one in of_p]}
    return None, {"seconds": seconds, "identity": float(error), **more}


def lucore(case, args):
    """As `core`."""
    return core(case, args)


KINDS = {
    f.__name__: f
    for f in (square, pageable, file, tiles, factor, core, tall, loose, likelihood, general, lu)
} | {"lucore": lucore}
TALL = ("tall", "loose")
# The routine that each kind plans, if it isn't potrs.
ROUTINES = {"factor": "cho_factor", "general": "gesv", "lu": "lu_factor", "lucore": "gesv"}


class Case:
    def __init__(self, args, row):
        self.kind, self.n, self.dtype, self.memory = row
        self.routine = ROUTINES.get(self.kind, "potrs")
        self.general = self.routine in ("gesv", "lu_factor")
        self.solve = jaxmg.gesv if self.general else jaxmg.potrs
        found = jax.devices(args.platform)[: args.ranks]
        self.device, self.mesh = found[0], Mesh(np.array(found), ("rank",))
        random = np.random.default_rng(0)
        self.b = random.standard_normal((self.n, args.nrhs)).astype(self.dtype)


def model(case, args):
    """Returns the numbers of `jaxmg.plan`; none for what runs in core."""
    if case.kind in ("core", "lucore") or case.memory is None and args.platform == "cpu":
        return {}
    if case.kind in TALL:
        traffic = case.n * (args.columns + args.nrhs) * case.dtype.itemsize // args.ranks
        return {"traffic": traffic, "model seconds": traffic / args.link}
    plan = jaxmg.plan(
        case.routine, case.n, case.dtype, case.mesh, nrhs=args.nrhs, host=True, memory=case.memory,
        donate=plan_donates(case),
    )  # fmt: skip
    triangle = case.dtype.itemsize * case.n**2 // (1 if case.general else 2)
    traffic = plan.traffic - (0 if plan_donates(case) else triangle // args.ranks)
    seconds = plan.seconds(args.rate, args.link)
    if case.kind == "likelihood":  # the inverse: the factor in, all later block columns, and out
        left = (max(case.n - (j + 1) * plan.width, 0) for j in range(plan.blocks))
        more = 2 * triangle // args.ranks + case.dtype.itemsize * sum(m * m // 2 for m in left)
        traffic += more
        seconds += max(2 * plan.operations / (args.rate * args.ranks), more / args.link)
    return {
        "width": plan.width, "blocks": plan.blocks, "device bytes": plan.bytes,
        "host bytes": plan.host_bytes, "traffic": traffic, "model seconds": seconds,
    }  # fmt: skip


def plan_donates(case):
    return case.kind not in ("tiles", "factor", "likelihood", "lu")


def peaks(case):
    stats = case.device.memory_stats() or {}
    found = {
        "device peak": stats.get("peak_bytes_in_use"),
        "device limit": stats.get("bytes_limit"),
    }
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                found["host peak"] = int(line.split()[1]) * 1024
    return found


def run(case, args, attempt):
    x, numbers = KINDS[case.kind](case, args)
    high, name = case.kind in TALL, "backward error"
    operations = case.n * args.columns**2 if high else case.n**3 / 3 * (2 if case.general else 1)
    operations *= 4 if case.dtype.kind == "c" else 1
    if high:
        error = gradient(case, (case.n, args.columns), x)
    elif case.kind == "likelihood":
        operations, name, error = 3 * operations, "identity", numbers["identity"]
    else:
        error = backward_error(case, x)
    found = {
        "kind": case.kind, "n": case.n, "dtype": str(case.dtype), "ranks": args.ranks,
        "nrhs": args.nrhs, "memory": case.memory, "run": attempt, **numbers,
        "tflops": operations / numbers["seconds"] / 1e12, name: error,
        **model(case, args), **peaks(case),
    }  # fmt: skip
    print(_line(found), flush=True)
    name = records.name_of(list(case.mesh.devices.flat))
    command = records.python("benchmarks/host_memory.py", sys.argv[1:])
    records.append(args.out, records.origin(name, command) | found)
    return error


def _line(found):
    parts = [f"{found['kind']:8} n={found['n']} {found['dtype']} {found['seconds']:.2f} s"]
    error = found.get("identity", found.get("backward error"))
    parts.append(f"{found['tflops']:.2f} TFLOP/s, error {error:.1e}")
    for name in (
        "filling",
        "first solve",
        "solve",
        "transposed",
        "least_squares",
        "qr",
        "model seconds",
    ):
        if name in found:
            parts.append(f"{name} {found[name]:.2f} s")
    if "width" in found:
        parts.append(f"{found['blocks']} blocks of {found['width']}, {_gb(found['traffic'])} moved")
        parts.append(f"planned {_gb(found['device bytes'])}")
    parts.append(f"peaks {_gb(found['device peak'])} device, {_gb(found['host peak'])} host")
    return "; ".join(parts)


def _gb(count):
    return "?" if count is None else f"{count / 1e9:.3g} GB"


def main(args):
    devices.prepare(args.platform, args.ranks)
    args.memory, failed = None, 0
    if args.pool:
        began = time.perf_counter()
        args.memory = jaxmg.pinned(args.pool)
        print(f"pinned {_gb(args.pool)} in {time.perf_counter() - began:.1f} s", flush=True)
    for row in args.row:
        for attempt in range(args.runs):
            case = Case(args, row)
            try:
                error = run(case, args, attempt)
                failed += not error < 100 * np.finfo(case.dtype).eps
            except Exception as problem:  # the other rows are still worth their time
                print(f"{case.kind} n={case.n}: {type(problem).__name__}: {problem}", flush=True)
                failed += 1
            gc.collect()
    if args.memory is not None:
        args.memory.release()
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    app.run(main, flags_parser=arguments)
