"""One process that measures: run.py starts it and asks it over pipes, one line of JSON each way.

The environment, which run.py sets, determines the number of BLAS threads, the platform and the
number of CPU devices. A request is {"do": one of ACTIONS, "case": {...}, "arguments": {...}}; see
run.py for a case. `python worker.py` without run.py waits for requests on standard input.
"""

import contextlib
import ctypes
import functools
import json
import math
import os
import sys
import time

import numpy as np
import problems
import records
import workspace

REST = 0.1  # seconds before a timed call, in which threads of earlier work stop spinning
GEMM_ORDER = {"cpu": 512, "gpu": 8192}  # order of the products that show the sustained rate
GEMM_COUNT = 8  # products in one program, so that the time of its start is negligible
GEMM_SECONDS = 1.0  # long enough for a GPU to slow down to its power limit


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the replies
    for line in sys.stdin:
        request = json.loads(line)
        try:
            solver = solver_for(json.dumps(request["case"]))
            reply = ACTIONS[request["do"]](solver, **request["arguments"])
        except Exception as error:
            message = str(error).strip() or "no message"
            reply = {"error": f"{type(error).__name__}: {message.splitlines()[0]}"}
        print(json.dumps(reply), file=replies, flush=True)


@functools.lru_cache(maxsize=16)  # bounded, because solvers hold right-hand sides
def solver_for(case):
    case = json.loads(case)
    kind = {"scipy": ScipySolver, "jax": JaxSolver}.get(case["backend"], JaxmgSolver)
    return kind(case)


def measure_time(solver):
    operands = solver.operands()
    time.sleep(REST)
    start = time.perf_counter()
    solver.run(operands)
    return {"seconds": time.perf_counter() - start, **solver.details}


def measure_peak(solver):
    solver.run(solver.operands())  # compiles, and allocates the memory that libraries keep
    operands = solver.operands()
    with solver.memory() as used:
        solver.run(operands)
    return {"peak_bytes": used.get("bytes"), "machine": solver.machine()}


def check(solver):
    operands = solver.operands()
    return {"backward_error": float(solver.check(solver.run(operands)))}


def first(solver):
    """Returns peak and error of one run, the warm-up of later ones in this process."""
    operands = solver.operands()
    with solver.memory() as used:
        start = time.perf_counter()
        results = solver.run(operands)
        seconds = time.perf_counter() - start
    del operands
    return {
        "seconds": seconds,
        "peak_bytes": used.get("bytes"),
        "machine": solver.machine(),
        "backward_error": float(solver.check(results)),
    }


def repeat(solver):
    """Returns whether two runs with the same input return the same bits."""
    one, other = (as_tuple(solver.run(solver.operands())) for _ in range(2))
    return {"same_bits": bool(solver.compare(one, other))}


def measure_gemm(solver):
    return {"gemm_tflops": solver.gemm_tflops()}


def trace(solver, file):
    """Times a run for which the plugin writes a timeline."""
    operands = solver.operands()
    os.environ["JAXMG_TRACE"] = file  # read at every call
    start = time.perf_counter()
    try:
        solver.run(operands)
    finally:
        del os.environ["JAXMG_TRACE"]
    return {"traced_seconds": time.perf_counter() - start}


ACTIONS = {
    "time": measure_time,
    "peak": measure_peak,
    "check": check,
    "first": first,
    "repeat": repeat,
    "gemm": measure_gemm,
    "trace": trace,
}


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


class JaxmgSolver:
    """Calls jaxmg's public functions with a matrix that is sharded by rows over the ranks."""

    details = {}  # numbers of the last run; their medians go into the record

    def __init__(self, case):
        import jax
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        self.jax, self.case = jax, case
        self.devices = jax.devices()[: case["ranks"]]
        if len(self.devices) < case["ranks"]:
            raise ValueError(f"{case['ranks']} ranks on {len(self.devices)} devices")
        mesh = Mesh(np.array(self.devices), ("rank",))
        self.rows, self.everywhere = NamedSharding(mesh, P("rank", None)), NamedSharding(mesh, P())
        n, dtype = case["n"], case["dtype"]
        xp = jax.numpy
        self.make_matrix = jax.jit(
            lambda: problems.matrix(xp, n, dtype, kind=case["matrix"]), out_shardings=self.rows
        )
        if case["routine"] in problems.SOLVES:
            self.b = jax.jit(
                lambda: problems.vectors(xp, n, case["nrhs"], dtype), out_shardings=self.everywhere
            )()

    @functools.cached_property
    def plugin(self):
        return workspace.plugins.load(self.devices[0].platform)

    def operands(self):
        kept = self.case["routine"] in problems.ON_FACTORS
        operands = [self.factor if kept else self.make_matrix()]
        if self.case["routine"] in problems.SOLVES:
            operands.append(self.b)
        return self.jax.block_until_ready(operands)

    @functools.cached_property
    def factor(self):
        return self.jax.block_until_ready(self.make_factor())

    def make_factor(self):
        import jaxmg

        case = self.case
        self.check_factors()
        options = {"precision": case["precision"]} if case["precision"] else {}
        general = case["routine"] in problems.GENERAL
        factor = jaxmg.lu_factor if general else jaxmg.cho_factor
        return factor(self.make_matrix(), case["T_A"], donate=True, **options)

    def check_factors(self):
        if self.case["backend"] not in ("auto", "native"):
            raise ValueError(f"there are no factors of {self.case['backend']}")

    def run(self, operands):
        return self.jax.block_until_ready(self.call(operands))

    def call(self, operands):
        import jaxmg

        case = self.case
        if case["routine"] in problems.ON_FACTORS:
            return getattr(jaxmg, case["routine"])(*operands)
        options = {name: case[name] for name in ("T_A", "donate", "backend")}
        if case["routine"] in problems.FACTORIZATIONS:
            self.check_factors()
            del options["backend"]
        if case["routine"] == "syevd":
            self.plugin.set_eigensolver(case["eigensolver"])  # cases may share the process
            options["return_eigenvectors"] = case["vectors"]
        if case["precision"]:
            options["precision"] = case["precision"]
        return getattr(jaxmg, case["routine"])(*operands, **options)

    def check(self, results):
        jax, b = self.jax, getattr(self, "b", None)
        if self.case["routine"] in problems.FACTORIZATIONS:
            b = jax.device_put(self.probes(), self.everywhere)
            results = self.solve_by(results, b)
        results = as_tuple(results)
        multiply = functools.partial(jax.numpy.matmul, precision="highest")

        @functools.partial(jax.jit, out_shardings=self.everywhere)
        def error(a, b, results):
            return problems.backward_error(
                jax.numpy, self.case["routine"], a, {"b": b}, results, multiply
            )

        return error(self.make_matrix(), b, results)

    def probes(self):
        return problems.vectors(np, self.case["n"], problems.PROBES, self.case["dtype"])

    def solve_by(self, factor, b):
        return factor.solve(b)

    def machine(self):
        return records.name_of(self.devices)

    def compare(self, one, other):
        jax = self.jax
        one, other = jax.tree.leaves(one), jax.tree.leaves(other)
        return jax.jit(functools.partial(problems.same_bits, jax.numpy))(one, other)

    def gemm_tflops(self):
        return gemm_tflops(self.case["dtype"], self.case["precision"], tuple(self.devices))

    def memory(self):
        return host_memory() if self.devices[0].platform == "cpu" else self.device_memory()

    @contextlib.contextmanager
    def device_memory(self):
        """Measures the bytes that the busiest device needs in addition to those in use before."""
        import peaks

        used = {}
        with peaks.peaks(self.devices, self.most_bytes()) as found:
            yield used
        if None not in found:
            used["bytes"] = max(found)

    def most_bytes(self):
        """Returns an upper bound of the bytes that a call takes on a GPU."""
        case = self.case
        n, nrhs, ranks, routine = case["n"], case["nrhs"] or 0, case["ranks"], case["routine"]
        # An older jaxmg, with which this one is compared, has no plans.
        native = case["backend"] in ("auto", "native") and routine in ("potrs", "potri")
        if native and workspace.known():
            paper = workspace.needed(
                routine, case["dtype"], n, ranks, case["T_A"], nrhs, case["donate"]
            )
            return int(1.1 * paper) + (1 << 30)
        # Copies of the matrix, all of which syevd may have on one GPU, and wide panels.
        copies = 6 * ranks if routine == "syevd" else 4
        elements = copies * n**2 // ranks + 3 * n * (2048 + nrhs)
        return elements * np.dtype(case["dtype"]).itemsize


@functools.cache
def gemm_tflops(dtype, precision, devices):
    """Returns the rate that all devices together sustain in products of large square matrices, each
    its own. Operations are counted as in `problems.operations`."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    order, spec = GEMM_ORDER.get(devices[0].platform, GEMM_ORDER["gpu"]), P("rank", None)
    mesh = Mesh(np.array(devices), ("rank",))
    # "default" lets GPUs use TF32; "highest" does not.
    multiply = functools.partial(
        jax.numpy.matmul, precision="default" if precision == "tf32" else "highest"
    )

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, spec), static_argnums=0)
    def random(seed, scale):
        shape = (order * len(devices), order)
        return scale * problems.vectors(jax.numpy, *shape, dtype, seed)

    # cuBLAS is best at GEMMs, and a search through Triton's would take longer than all of this.
    options = {} if devices[0].platform == "cpu" else {"xla_gpu_enable_triton_gemm": False}

    @functools.partial(jax.jit, donate_argnums=1, compiler_options=options)
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    def products(a, x):
        for _ in range(GEMM_COUNT):  # unrolled, because a loop would copy x in every iteration
            x = multiply(a, x)
        return x

    # Scaled so that the products neither grow nor vanish.
    complex_ = np.dtype(dtype).kind == "c"
    variance = (2 if complex_ else 1) / 3
    a = random(11, np.finfo(dtype).dtype.type((order * variance) ** -0.5))
    x = products(a, random(13, np.finfo(dtype).dtype.type(1)))
    x = jax.block_until_ready(products(a, jax.block_until_ready(x)))
    start, calls, seconds = time.perf_counter(), 0, 0.0
    while seconds < GEMM_SECONDS:
        x = jax.block_until_ready(products(a, x))
        calls, seconds = calls + 1, time.perf_counter() - start
    if not math.isfinite(abs(x[0, 0])):
        raise ArithmeticError("the products are not finite")
    count = calls * GEMM_COUNT * len(devices) * 2 * order**3 * (4 if complex_ else 1)
    return count / seconds / 1e12


class JaxSolver(JaxmgSolver):
    """Calls JAX's own functions on one device."""

    def __init__(self, case):
        super().__init__(case)
        # Only a result of the same shape can reuse the matrix's memory.
        donated = (0,) if case["donate"] and case["routine"] in ("potri", "getri") else ()
        self.compiled = self.jax.jit(getattr(self, case["routine"]), donate_argnums=donated)

    def call(self, operands):
        return self.compiled(*operands)

    def potrs(self, a, b):
        linalg = self.jax.scipy.linalg
        return linalg.cho_solve(linalg.cho_factor(a), b)

    def gesv(self, a, b):
        return self.jax.numpy.linalg.solve(a, b)

    def lu_factor(self, a):
        return self.jax.scipy.linalg.lu_factor(a)

    def cho_factor(self, a):
        return self.jax.scipy.linalg.cho_factor(a)[0]

    def solve_by(self, factor, b):
        general = self.case["routine"] in problems.GENERAL
        return self.lu_solve(factor, b) if general else self.cho_solve(factor, b)

    def make_factor(self):
        general = self.case["routine"] in problems.GENERAL
        return self.jax.jit(self.lu_factor if general else self.cho_factor)(self.make_matrix())

    def cho_solve(self, factor, b):
        return self.jax.scipy.linalg.cho_solve((factor, False), b)

    def lu_solve(self, factor, b):
        return self.jax.scipy.linalg.lu_solve(factor, b)

    def potri(self, a):
        return self.jax.numpy.linalg.inv(a)

    getri = potri

    def syevd(self, a):
        if not self.case["vectors"]:
            return self.jax.numpy.linalg.eigvalsh(a, symmetrize_input=False)
        return tuple(self.jax.numpy.linalg.eigh(a, symmetrize_input=False))


class ScipySolver:
    """Calls SciPy's LAPACK with column-major arrays, so that no call has to transpose.

    For potrs and gesv, `details` has the time of the factorization only.
    """

    def __init__(self, case):
        import scipy.linalg

        self.linalg, self.case, self.details = scipy.linalg, case, {}
        self.options = {"overwrite_a": case["donate"], "check_finite": False}
        self.b = problems.vectors(np, case["n"], case["nrhs"] or 1, case["dtype"])

    def matrix(self):
        n, dtype = self.case["n"], self.case["dtype"]
        general = self.case["routine"] in problems.GENERAL
        a = np.empty((n, n), dtype, order="F")
        step = max(1, 2**22 // n)
        for first in range(0, n, step):
            rows = min(step, n - first)
            # The columns are these rows, conjugated, and contiguous; for a general matrix they are
            # the columns of its transpose, which is as hard.
            block = problems.matrix(np, n, dtype, first, rows, self.case["matrix"])
            a[:, first : first + rows] = block.T if general else block.conj().T
        return a

    def operands(self):
        return self.factor if self.case["routine"] in problems.ON_FACTORS else self.matrix()

    @functools.cached_property
    def factor(self):
        if self.case["routine"] in problems.GENERAL:
            return self.linalg.lu_factor(self.matrix(), **self.options)
        return self.linalg.cho_factor(self.matrix(), lower=True, **self.options)

    def run(self, a):
        options, linalg = self.options, self.linalg
        if self.case["routine"] == "cho_solve":
            return linalg.cho_solve(a, self.b, check_finite=False)
        if self.case["routine"] == "lu_solve":
            return linalg.lu_solve(a, self.b, check_finite=False)
        if self.case["routine"] == "lu_factor":
            return linalg.lu_factor(a, **options)
        if self.case["routine"] == "cho_factor":
            return linalg.cho_factor(a, lower=True, **options)
        if self.case["routine"] == "gesv":
            start = time.perf_counter()
            factor = linalg.lu_factor(a, **options)
            self.details = {"factor_seconds": time.perf_counter() - start}
            return linalg.lu_solve(factor, self.b, check_finite=False)
        if self.case["routine"] == "getri":
            return linalg.inv(a, **options)
        if self.case["routine"] == "potrs":
            start = time.perf_counter()
            factor = linalg.cho_factor(a, lower=True, **options)
            self.details = {"factor_seconds": time.perf_counter() - start}
            return linalg.cho_solve(factor, self.b, check_finite=False)
        if self.case["routine"] == "potri":
            factor, _ = linalg.cho_factor(a, lower=True, **options)
            potri = linalg.get_lapack_funcs("potri", (factor,))
            inverse, info = potri(factor, lower=True, overwrite_c=True)
            if info:
                raise np.linalg.LinAlgError(f"potri: info = {info}")
            return mirror(inverse)
        vectors = self.case["vectors"]
        return linalg.eigh(a, eigvals_only=not vectors, driver="evd", **options)

    def check(self, results):
        if self.case["routine"] in problems.FACTORIZATIONS:
            general = self.case["routine"] in problems.GENERAL
            solve = self.linalg.lu_solve if general else self.linalg.cho_solve
            results = solve(results, self.b, check_finite=False)
        return problems.backward_error(
            np, self.case["routine"], self.matrix(), {"b": self.b}, as_tuple(results), np.matmul
        )

    def compare(self, one, other):
        return problems.same_bits(np, one, other)

    def gemm_tflops(self):
        return None

    def machine(self):
        return None

    def memory(self):
        return host_memory()


def mirror(a, step=512):
    """Fills the upper triangle from the lower one, in place."""
    n = len(a)
    for i in range(0, n, step):
        block = a[i : i + step, i : i + step]
        block[:] = np.tril(block) + np.tril(block, -1).conj().T
        a[i : i + step, i + step :] = a[i + step :, i : i + step].conj().T
    return a


@contextlib.contextmanager
def host_memory():
    """Measures the peak of this process's resident memory beyond that before (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)  # otherwise memory freed before would seem to cost nothing
    before = resident("VmRSS")
    used, known = {}, False
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as f:  # some sandboxes
        f.write("5")  # resets VmHWM
        known = True
    yield used
    if known:
        used["bytes"] = max(0, resident("VmHWM") - before)


def resident(field):
    with open("/proc/self/status") as f:
        line = next(line for line in f if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
