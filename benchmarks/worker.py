"""One process that measures: run.py starts it and asks it over pipes, one line of JSON each way.

Number of BLAS threads, platform and number of CPU devices are the environment's, which run.py sets.
A request is {"do": "time" | "peak" | "check", "case": {...}}; see run.py for a case. `python
worker.py` alone waits for requests on standard input.
"""

import contextlib
import ctypes
import functools
import json
import os
import sys
import time

import numpy as np
import problems

REST = 0.1  # seconds before a timed call, in which threads of earlier work stop spinning


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = ACTIONS[request["do"]](solver_for(json.dumps(request["case"])))
        except Exception as error:
            message = str(error).strip() or "no message"
            reply = {"error": f"{type(error).__name__}: {message.splitlines()[0]}"}
        print(json.dumps(reply), file=replies, flush=True)


@functools.cache
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
    solver.run(solver.operands())  # compiles, and makes what libraries keep
    operands = solver.operands()
    with solver.memory() as used:
        solver.run(operands)
    return {"peak_bytes": used.get("bytes"), "machine": solver.machine()}


def check(solver):
    operands = solver.operands()
    return {"backward_error": float(solver.check(solver.run(operands)))}


def first(solver):
    """Peak and error of one run, which is the warm-up of those that follow in this process."""
    operands = solver.operands()
    with solver.memory() as used:
        results = solver.run(operands)
    del operands
    return {
        "peak_bytes": used.get("bytes"),
        "machine": solver.machine(),
        "backward_error": float(solver.check(results)),
    }


ACTIONS = {"time": measure_time, "peak": measure_peak, "check": check, "first": first}


class JaxmgSolver:
    """Through jaxmg's public functions, from a matrix that is sharded by rows over the ranks."""

    details = {}

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
        make = jax.jit(lambda: problems.matrix(xp, n, dtype), out_shardings=self.rows)
        self.make_matrix = make
        if case["routine"] == "potrs":
            self.b = jax.jit(
                lambda: problems.vectors(xp, n, case["nrhs"], dtype), out_shardings=self.everywhere
            )()

    def operands(self):
        operands = [self.make_matrix()]
        if self.case["routine"] == "potrs":
            operands.append(self.b)
        return self.jax.block_until_ready(operands)

    def run(self, operands):
        return self.jax.block_until_ready(self.call(operands))

    def call(self, operands):
        import jaxmg

        case = self.case
        options = {name: case[name] for name in ("T_A", "donate", "backend")}
        if case["routine"] == "syevd":
            options["return_eigenvectors"] = case["vectors"]
        return getattr(jaxmg, case["routine"])(*operands, **options)

    def check(self, results):
        jax = self.jax
        results = results if isinstance(results, tuple) else (results,)
        multiply = functools.partial(jax.numpy.matmul, precision="highest")

        @functools.partial(jax.jit, out_shardings=self.everywhere)
        def error(a, b, results):
            return problems.backward_error(
                jax.numpy, self.case["routine"], a, {"b": b}, results, multiply
            )

        return error(self.make_matrix(), getattr(self, "b", None), results)

    def machine(self):
        """None for CPU devices, of which run.py knows more."""
        device = self.devices[0]
        if device.platform == "cpu":
            return None
        return f"{len(self.devices)} x {device.device_kind}"

    def memory(self):
        return host_memory() if self.devices[0].platform == "cpu" else self.device_memory()

    @contextlib.contextmanager
    def device_memory(self):
        """What the busiest device needed beyond what it held before.

        JAX can't reset its peak: nothing is said where this process has needed as much before.
        """

        def stats(key):
            return [device.memory_stats()[key] for device in self.devices]

        before, peaks_before = stats("bytes_in_use"), stats("peak_bytes_in_use")
        used = {}
        yield used
        peaks = stats("peak_bytes_in_use")
        if all(now > then for now, then in zip(peaks, peaks_before, strict=True)):
            used["bytes"] = max(peak - held for peak, held in zip(peaks, before, strict=True))


class JaxSolver(JaxmgSolver):
    """What JAX itself has for one device."""

    def __init__(self, case):
        super().__init__(case)
        # Only a result of the same shape can take the matrix's place.
        donated = (0,) if case["donate"] and case["routine"] == "potri" else ()
        self.compiled = self.jax.jit(getattr(self, case["routine"]), donate_argnums=donated)

    def call(self, operands):
        return self.compiled(*operands)

    def potrs(self, a, b):
        linalg = self.jax.scipy.linalg
        return linalg.cho_solve(linalg.cho_factor(a), b)

    def potri(self, a):
        return self.jax.numpy.linalg.inv(a)

    def syevd(self, a):
        if not self.case["vectors"]:
            return self.jax.numpy.linalg.eigvalsh(a, symmetrize_input=False)
        return tuple(self.jax.numpy.linalg.eigh(a, symmetrize_input=False))


class ScipySolver:
    """SciPy's LAPACK on arrays as LAPACK wants them, column-major: no call has to transpose.

    For potrs, `details` has the time of cho_factor alone.
    """

    def __init__(self, case):
        import scipy.linalg

        self.linalg, self.case, self.details = scipy.linalg, case, {}
        self.b = problems.vectors(np, case["n"], case["nrhs"] or 1, case["dtype"])

    def matrix(self):
        n, dtype = self.case["n"], self.case["dtype"]
        a = np.empty((n, n), dtype, order="F")
        step = max(1, 2**22 // n)
        for first in range(0, n, step):
            rows = min(step, n - first)
            # These rows, conjugated, are the columns, which lie side by side.
            a[:, first : first + rows] = problems.matrix(np, n, dtype, first, rows).conj().T
        return a

    def operands(self):
        return self.matrix()

    def run(self, a):
        options = {"overwrite_a": self.case["donate"], "check_finite": False}
        linalg = self.linalg
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
        results = results if isinstance(results, tuple) else (results,)
        return problems.backward_error(
            np, self.case["routine"], self.matrix(), {"b": self.b}, results, np.matmul
        )

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
    """The peak of this process's resident memory beyond what it was before (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not be taken for free
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # resets VmHWM
    used = {}
    yield used
    used["bytes"] = max(0, resident("VmHWM") - before)


def resident(field):
    with open("/proc/self/status") as f:
        line = next(line for line in f if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
