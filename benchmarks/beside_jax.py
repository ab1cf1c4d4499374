"""Times every family against JAX's function on one device, and on a GPU torch's if installed.

    beside_jax.py [--platform gpu] [--devices 1 2 4] [--draws 40] [--seed 55] [--named]
                  [--match TEXT] [--cell NAME] [--calls 10] [--seconds 900] [--out FILE]
                  [--limit-bytes 2e9] [--minimum]

A cell is (routine, dtype, shape, eager or jitted, gradient or not). Cells are drawn at random from
a seed, ``--named`` adds those that issues have named, and ``--cell`` any by its name. In one
process jaxmg's functions on meshes of the given numbers of devices and JAX's on one device take
turns. A round repeats each call until it takes a few milliseconds; the result is the median of nine
rounds, or the shortest call of all (``--minimum``), for a busy machine. On GPUs a call is ten
(``--calls``) in one jitted loop, to exclude Python's time. Prints a line for each cell, and at the
end the cells that miss their limits:

    CPU devices: 1.1 times JAX's on one device, 1.2 times on several, and 0.1 ms
    GPUs: 1.1 times the better of JAX and torch, and 0.05 ms

A run stops after ``--seconds``. Another run with the same ``--out`` continues with the cells that
have no record there.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import pathlib
import re
import statistics
import sys
import time

import numpy as np
import records

ROUNDS = 9
PAUSE = 0.05  # seconds before a turn, in which the BLAS threads of the turn before stop spinning
SLOW = 4.0  # seconds of a round above which only three rounds are made
LOOP = 10  # calls in one program, on GPUs
DTYPES = ("float64", "float32", "complex128", "complex64")


@dataclasses.dataclass(frozen=True)
class Family:
    """A function of jaxmg and of JAX, with its operands and its number of operations."""

    call: object  # (numpy.linalg or jaxmg.linalg, scipy.linalg or jaxmg.linalg, operands) -> result
    operands: str = "g"  # g: general, p: positive definite, s: symmetric, t: any m x n
    right_sides: int = 0
    operations: float = 4.0  # m n min(m, n) times this
    differentiable: bool = True
    drawn: bool = True


def _lstsq(linalg, scipy, a, b):
    return linalg.lstsq(a, b)[0]


def _solve_triangular(linalg, scipy, a, b):
    return scipy.solve_triangular(a, b, lower=True)


FAMILIES = {
    "cholesky": Family(lambda np, sp, a: np.cholesky(a), "p", operations=0.5),
    "potrs": Family(None, "p", 1, 0.5),
    "solve": Family(lambda np, sp, a, b: np.solve(a, b), "g", 1, 1),
    "inv": Family(lambda np, sp, a: np.inv(a), "g", operations=2),
    "slogdet": Family(lambda np, sp, a: np.slogdet(a)[1], "g", operations=1),
    "det": Family(lambda np, sp, a: np.det(a), "g", operations=1),
    "lu_factor": Family(lambda np, sp, a: sp.lu_factor(a)[0], "g", operations=1),
    "eigh": Family(lambda np, sp, a: tuple(np.eigh(a)), "s", operations=9),
    "eigvalsh": Family(lambda np, sp, a: np.eigvalsh(a), "s", operations=3),
    "qr": Family(lambda np, sp, a: tuple(np.qr(a)), "t", operations=3),
    "svd": Family(lambda np, sp, a: tuple(np.svd(a, full_matrices=False)), "t", operations=12),
    "svdvals": Family(lambda np, sp, a: np.svd(a, compute_uv=False), "t", operations=4),
    "pinv": Family(lambda np, sp, a: np.pinv(a), "t", operations=14),
    "lstsq": Family(_lstsq, "t", 1, 12),
    "expm": Family(lambda np, sp, a: sp.expm(a), "g", operations=20, differentiable=False),
    "cond": Family(lambda np, sp, a: np.cond(a), "g", operations=4, differentiable=False),
    "matrix_rank": Family(
        lambda np, sp, a: np.matrix_rank(a), "t", operations=4, differentiable=False
    ),
    "solve_triangular": Family(_solve_triangular, "p", 1, 1, drawn=False),
    "solve_triangular_100": Family(_solve_triangular, "p", 100, 1, drawn=False),
}
_SINGLE = ("potrs", "lstsq", "matrix_rank", "expm")  # JAX: no batches, or minutes to compile


@dataclasses.dataclass(frozen=True)
class Cell:
    routine: str
    dtype: str
    shape: tuple
    eager: bool = False
    gradient: bool = False

    @property
    def name(self):
        size = " x ".join(map(str, self.shape[-2:]))
        batch = f"{self.shape[0]} of " if len(self.shape) == 3 else ""
        how = "eager" if self.eager else "jitted"
        return f"{self.routine} {self.dtype} {batch}{size} {how}" + " gradient" * self.gradient

    @property
    def operations(self):
        m, n = self.shape[-2:]
        count = math.prod(self.shape[:-2]) * m * n * min(m, n) * FAMILIES[self.routine].operations
        return count * (4 if "complex" in self.dtype else 1) * (3 if self.gradient else 1)

    @property
    def bytes(self):
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _named_on_cpu():
    cells = []

    def add(routine, *shapes, **how):
        cells.extend(Cell(routine, "float64", shape, **how) for shape in shapes)

    square = lambda *orders: [(n, n) for n in orders]  # noqa: E731
    tall = [(5000, 500), (20000, 50)]
    add("svd", *square(400, 1000, 2000), *tall)
    for routine in ("svdvals", "cond", "matrix_rank"):
        add(routine, *square(1000))
    add("pinv", (5000, 500))
    add("lstsq", (5000, 500), (500, 5000), (20000, 50))
    add("qr", *square(50, 200, 400, 1000), (5000, 500))
    add("expm", *square(500))
    add("cholesky", *square(1000))
    for routine in ("potrs", "solve"):
        add(routine, *square(50, 200), eager=True)
    add("solve", *square(2000))
    add("eigvalsh", *square(1000))
    add("potrs", *square(500), gradient=True)
    for routine in ("cholesky", "solve", "inv", "qr", "svd"):
        add(routine, (40, 200, 200))
    add("svd", (200, 50, 50))
    add("cholesky", (200, 50, 50))
    return cells


def _named_on_gpu():
    cells = [Cell("potrs", "float64", (n, n)) for n in (100, 256, 1000, 2048, 3000, 4096)]
    cells += [
        Cell(routine, "float32", (5000, 5000)) for routine in ("solve", "inv", "slogdet", "expm")
    ]
    cells += [
        Cell("cholesky", "float32", (2000, 48, 48)),
        Cell("cholesky", "float64", (700, 96, 96)),
        Cell("cholesky", "float32", (300, 200, 200)),
        Cell("cholesky", "complex64", (500, 100, 100)),
        Cell("slogdet", "complex64", (500, 100, 100)),
        Cell("slogdet", "float64", (12, 1500, 1500)),
        Cell("slogdet", "float32", (40, 700, 700)),
        Cell("slogdet", "float64", (7, 3000, 3000)),
        Cell("eigh", "complex64", (50, 300, 300)),
        Cell("lstsq", "float64", (20000, 1025)),
    ]
    return cells


def named(platform):
    """Returns the cells that issues name."""
    return _named_on_cpu() if platform == "cpu" else _named_on_gpu()


def parse(name):
    """Returns the cell that has this name."""
    words = r"(\w+) (\w+) (?:(\d+) of )?(\d+) x (\d+) (eager|jitted)( gradient)?"
    if not (found := re.fullmatch(words, name)) or found[1] not in FAMILIES:
        raise SystemExit(f"{name} names no cell")
    shape = tuple(int(size) for size in found.group(3, 4, 5) if size)
    return Cell(found[1], found[2], shape, found[6] == "eager", bool(found[7]))


def draw(platform, count, seed, most_bytes=2e9):
    """Draws ``count`` cells at random; the same arguments give the same cells."""
    random = np.random.default_rng(seed)
    least, most = (20, 4096) if platform == "cpu" else (50, 8192)
    operations = 1.5e10 if platform == "cpu" else 4e12
    least_bytes, most_bytes = (0, min(most_bytes, 2e8)) if platform == "cpu" else (1e6, most_bytes)

    def order(to=most):
        return int(round(math.exp(random.uniform(math.log(least), math.log(to)))))

    cells = []
    while len(cells) < count:
        routine = str(random.choice([name for name, f in FAMILIES.items() if f.drawn]))
        family = FAMILIES[routine]
        kind = random.choice(["square", "batch", "tall", "wide"], p=[0.4, 0.3, 0.2, 0.1])
        n = order()
        shape = (n, n)
        if kind == "batch":
            n = order(most // 4)
            shape = (order(1024) // 10 + 2, n, n)
        elif kind in ("tall", "wide") and family.operands == "t":
            shape = (n, int(n * math.exp(random.uniform(0, 4))))
            shape = shape[::-1] if kind == "tall" else shape
        eager = platform == "cpu" and bool(random.random() < 0.3)
        gradient = bool(random.random() < 0.25) and family.differentiable
        cell = Cell(routine, str(random.choice(DTYPES, p=[0.4, 0.3, 0.15, 0.15])), shape, eager,
                    gradient)  # fmt: skip
        if kind == "batch" and routine in _SINGLE:
            continue
        if gradient and routine in ("svd", "qr", "pinv", "lstsq") and shape[-2] < shape[-1]:
            continue  # JAX lacks the derivatives of some of these
        if cell.operations <= operations and least_bytes <= cell.bytes <= most_bytes:
            cells.append(cell)
    return cells


def operands_of(cell):
    """Returns NumPy arrays: the matrix, and right-hand sides if the family takes them."""
    family = FAMILIES[cell.routine]
    random = np.random.default_rng(0)

    def normal(shape):
        x = random.standard_normal(shape)
        if "complex" in cell.dtype:
            x = (x + 1j * random.standard_normal(shape)) / 2**0.5
        return x

    n = cell.shape[-1]
    a = normal(cell.shape) / max(n, 1) ** 0.5
    if family.operands in ("p", "s"):
        a = (a + a.conj().swapaxes(-1, -2)) / 2
    if family.operands == "p":
        a = a + 4 * np.eye(n)
    arrays = [a.astype(cell.dtype)]
    if family.right_sides:
        arrays.append(normal(cell.shape[:-1] + (family.right_sides,)).astype(cell.dtype))
    return arrays


def _total(results):
    import jax
    import jax.numpy as jnp

    leaves = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return sum(jnp.sum(jnp.abs(x)) for x in leaves)


def _function(cell, peer):
    """Returns jaxmg's or JAX's function of the operands."""
    import jax
    import jax.numpy as jnp

    import jaxmg
    from jaxmg import linalg

    family = FAMILIES[cell.routine]
    if cell.routine == "potrs" and peer:
        scipy = jax.scipy.linalg
        plain = lambda a, b: scipy.cho_solve(scipy.cho_factor(a, lower=True), b)  # noqa: E731
    elif cell.routine == "potrs":
        plain = jaxmg.potrs
    else:
        modules = (jnp.linalg, jax.scipy.linalg) if peer else (linalg, linalg)
        plain = lambda *arrays: family.call(*modules, *arrays)  # noqa: E731
    if not cell.gradient:
        return plain
    return jax.grad(lambda *arrays: _total(plain(*arrays)))


def _looped(function, calls):
    """Puts the calls into one program; each call's matrix depends on the call before."""
    import jax
    import jax.numpy as jnp

    def first_of(results):
        leaves = jax.tree.leaves(results)
        return sum(jnp.ravel(x)[0].real.astype(jnp.float32) for x in leaves if x.size)

    def run(a, *others):
        def step(_, c):
            scaled = a + (c * jnp.float32(1e-30)).astype(a.dtype)
            return jnp.nan_to_num(first_of(function(scaled, *others)))

        return jax.lax.fori_loop(0, calls, step, jnp.float32(0))

    return run


def call_of(cell, platform, devices, peer, calls=LOOP):
    """Returns the timed function, which has no arguments and waits for its results, and the context
    of a round."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    function = _function(cell, peer)
    arrays = operands_of(cell)
    if peer:
        arrays = [jax.device_put(x, jax.devices()[0]) for x in arrays]
        mesh = None
    else:
        mesh = Mesh(np.array(jax.devices()[:devices]), ("rank",))
        axis = "rank" if cell.shape[0] % devices == 0 else None
        first = jax.device_put(arrays[0], NamedSharding(mesh, P(axis)))
        spread = "rank" if len(cell.shape) == 3 and axis else None
        arrays = [first, *(jax.device_put(x, NamedSharding(mesh, P(spread))) for x in arrays[1:])]
    if platform == "gpu":
        function = _looped(function, calls)
    compiled = function if cell.eager else jax.jit(function)
    context = contextlib.nullcontext if peer else lambda: jax.set_mesh(mesh)
    return (lambda: jax.block_until_ready(compiled(*arrays))), context


def torch_call_of(cell, calls=LOOP):
    """Returns torch's function like `call_of`; None without torch, a GPU or such a function."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available() or cell.gradient:
        return None
    linalg = torch.linalg
    functions = {
        "cholesky": linalg.cholesky,
        "potrs": lambda a, b: torch.cholesky_solve(b, linalg.cholesky(a)),
        "solve": linalg.solve,
        "inv": linalg.inv,
        "slogdet": linalg.slogdet,
        "det": linalg.det,
        "lu_factor": linalg.lu_factor,
        "eigh": linalg.eigh,
        "eigvalsh": linalg.eigvalsh,
        "qr": linalg.qr,
        "svd": lambda a: linalg.svd(a, full_matrices=False),
        "svdvals": linalg.svdvals,
        "pinv": linalg.pinv,
        "expm": linalg.matrix_exp,
        "cond": linalg.cond,
        "matrix_rank": linalg.matrix_rank,
        "solve_triangular": lambda a, b: linalg.solve_triangular(a, b, upper=False),
        "solve_triangular_100": lambda a, b: linalg.solve_triangular(a, b, upper=False),
    }
    if cell.routine not in functions:
        return None
    arrays = [torch.from_numpy(x).cuda() for x in operands_of(cell)]

    def call():
        for _ in range(calls):
            functions[cell.routine](*arrays)
        torch.cuda.synchronize()

    return call, contextlib.nullcontext


def by_turns(calls, rounds=ROUNDS, least=3e-3, minimum=False, pause=0.0):
    """Returns the median of the seconds of each call, or the minimum. Calls each one a few times
    before, slow ones in fewer rounds. Each turn begins after a pause of so many seconds."""
    counts, once = {}, 0.0
    for name, (call, context) in calls.items():
        seconds = math.inf
        with context():
            call()
            for _ in range(3):
                time.sleep(pause)
                start = time.perf_counter()
                call()
                seconds = min(seconds, time.perf_counter() - start)
                if seconds > least:
                    break
        counts[name] = max(1, min(200, int(least / seconds)))
        once += max(seconds, least)
    rounds = rounds if once < SLOW else min(rounds, 3)
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (call, context) in calls.items():
            time.sleep(pause)
            with context():
                marks = [time.perf_counter()]
                for _ in range(counts[name]):
                    call()
                    marks.append(time.perf_counter())
                each = [end - begin for begin, end in itertools.pairwise(marks)]
                times[name].append(min(each) if minimum else statistics.fmean(each))
    take = min if minimum else statistics.median
    return {name: take(seconds) for name, seconds in times.items()}


def limit_of(platform, devices, best):
    """Returns the seconds that a call may take if the best peer takes ``best``."""
    if platform == "gpu":
        return 1.1 * best + 0.05e-3
    return (1.1 if devices == 1 else 1.2) * best + 0.1e-3


def measure(cell, options):
    """Returns the results of a cell for each number of devices, as a list for the records."""
    calls = {"jax": call_of(cell, options.platform, 1, True, options.calls)}
    if options.platform == "gpu":
        torch = torch_call_of(cell, options.calls)
        if torch is not None:
            calls["torch"] = torch
    for devices in options.devices:
        calls[devices] = call_of(cell, options.platform, devices, False, options.calls)
    pause = PAUSE if options.platform == "cpu" else 0.0
    seconds = by_turns(calls, options.rounds, minimum=options.minimum, pause=pause)
    if options.platform == "gpu":
        seconds = {name: time / options.calls for name, time in seconds.items()}
    peers = {name: seconds[name] for name in ("jax", "torch") if name in seconds}
    results = []
    for devices in options.devices:
        limit = limit_of(options.platform, devices, min(peers.values()))
        results.append({
            "cell": cell.name, "routine": cell.routine, "dtype": cell.dtype,
            "shape": list(cell.shape), "eager": cell.eager, "gradient": cell.gradient,
            "devices": devices, "ms": 1e3 * seconds[devices],
            **{f"{name}_ms": 1e3 * value for name, value in peers.items()},
            "limit_ms": 1e3 * limit, "misses": seconds[devices] > limit,
        })  # fmt: skip
    return results


def _known(path, label):
    """Returns the cells that have a record with this label."""
    if not path or not pathlib.Path(path).exists():
        return set()
    lines = pathlib.Path(path).read_text().splitlines()
    found = (json.loads(line) for line in lines if line)
    return {(r["cell"], r["devices"]) for r in found if r.get("label", "") == label}


def line_of(record):
    peers = "  ".join(
        f"{name} {record[f'{name}_ms']:9.3f}" for name in ("jax", "torch") if f"{name}_ms" in record
    )
    miss = "  MISSES" if record["misses"] else ""
    ratio = record["ms"] / min(record[k] for k in ("jax_ms", "torch_ms") if k in record)
    return (f"{record['cell']:50} {record['devices']}  {record['ms']:9.3f} ms  {peers}"
            f"  x {ratio:5.2f}{miss}")  # fmt: skip


def arguments(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--devices", nargs="+", type=int)
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--seed", type=int, default=55)
    parser.add_argument("--named", action="store_true", help="the cells that issues name, too")
    parser.add_argument("--match", nargs="*", default=[], help="parts of names, of which one fits")
    parser.add_argument("--cell", nargs="+", default=[], help="names of cells")
    parser.add_argument("--calls", type=int, default=LOOP, help="in one program, on GPUs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minimum", action="store_true", help="of all calls: the machine is busy")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for everything")
    parser.add_argument("--limit-bytes", type=float, default=2e9, help="of a drawn operand")
    parser.add_argument("--label", default="", help="of the build that is measured")
    parser.add_argument("--out", help="file to append records to, and to go on with")
    options = parser.parse_args(words)
    options.devices = options.devices or ([1, 2, 4] if options.platform == "cpu" else [1])
    return options


def cells_of(options):
    all_named = options.named or not (options.draws or options.cell)
    cells = named(options.platform) if all_named else []
    cells += draw(options.platform, options.draws, options.seed, options.limit_bytes)
    fits = [c for c in cells if not options.match or any(m in c.name for m in options.match)]
    return list(dict.fromkeys([*fits, *map(parse, options.cell)]))


def main(words=None):
    """Returns the records that miss their limits."""
    options = arguments(words)
    import jax

    jax.config.update("jax_enable_x64", True)
    if options.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        with contextlib.suppress(RuntimeError):  # if JAX has started, it keeps its devices
            jax.config.update("jax_num_cpu_devices", max(options.devices))
    if len(jax.devices()) < max(options.devices):
        raise SystemExit(f"{max(options.devices)} devices are wanted; JAX has {jax.device_count()}")
    end = time.perf_counter() + options.seconds
    command = records.python("benchmarks/beside_jax.py", sys.argv[1:] if words is None else words)
    known, found = _known(options.out, options.label), []
    for cell in cells_of(options):
        if all((cell.name, devices) in known for devices in options.devices):
            continue
        if time.perf_counter() > end:
            print(f"# left out for time, from here on: {cell.name}", flush=True)
            break
        try:
            results = measure(cell, options)
        except Exception as error:  # noqa: BLE001  # the other cells go on
            print(f"# {cell.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        for result in results:
            machine = records.name_of(jax.devices()[: result["devices"]])
            labelled = {"label": options.label} if options.label else {}
            records.append(options.out, records.origin(machine, command) | labelled | result)
            print(line_of(result), flush=True)
            found.append(result)
        jax.clear_caches()
    missing = [result for result in found if result["misses"]]
    print(f"\n{len(missing)} of {len(found)} miss their limit" + ":" * bool(missing))
    for result in sorted(missing, key=lambda r: r["limit_ms"] / r["ms"]):
        print(line_of(result))
    return missing


if __name__ == "__main__":
    main()
