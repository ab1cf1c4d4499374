"""Checks the solvers on all GPUs of one process, and prints a table.

    check.py [--quick] [SECTION ...]

The tests of tests/python run on GPUs too; this program adds the sizes, backends and loops that need
GPUs. Sections are at the end of this file; by default, all except the small ones run. Exits with
the number of failures. Needs benchmarks/ on PYTHONPATH.
"""

import gc
import json
import os
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import problems
import records
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import DTYPES, wide
from sections import attempt, eps, mesh_of, report, run

import jaxmg

jax.config.update("jax_enable_x64", True)

BACKENDS = ("native", "cusolvermg")


def matrix(n, dtype):
    return problems.matrix(np, n, dtype, kind="moderate")


def vectors(n, count, dtype="float64"):
    return problems.vectors(np, n, count, dtype)


def upper(a, mesh):
    """Returns the matrix with NaN where no routine may read, sharded by rows if the ranks divide
    them."""

    def entries(a):
        return jnp.where(jnp.tri(len(a), k=-1, dtype=bool), jnp.nan, a)

    rows = NamedSharding(mesh, P("r", None)) if len(a) % mesh.devices.size == 0 else None
    return jax.jit(entries, out_shardings=rows)(a)


def backward_error(routine, a, results, b=None):
    """Returns the backward error in units of the dtype's eps, measured in double precision."""
    results = tuple(wide(np.asarray(result)) for result in results)
    operands = {"b": None if b is None else wide(b)}
    error = problems.backward_error(np, routine, wide(a), operands, results, np.matmul)
    return float(error) / eps(a.dtype)


def check_potrs(name, n, dtype, mesh, tile, backend, nrhs=3):
    a, b = matrix(n, dtype), vectors(n, nrhs, dtype)
    x, logdet, status = jaxmg.potrs(
        upper(a, mesh), b, tile, mesh, P("r", None), True, return_logdet=True, backend=backend
    )
    error = backward_error("potrs", a, (x,), b)
    exact = np.linalg.slogdet(wide(a))[1]
    log_error = abs(float(logdet) - exact) / max(1, abs(exact)) / eps(dtype)
    report(
        name,
        status == 0 and error < 20 and log_error < 10 * n + 50,
        f"{error:.2g} {log_error:.2g} {status}",
    )


def check_potri(name, n, dtype, mesh, tile, backend):
    a = matrix(n, dtype)
    inverse, status = jaxmg.potri(
        upper(a, mesh), tile, mesh, P("r", None), return_status=True, backend=backend
    )
    error = backward_error("potri", a, (inverse,))
    report(name, status == 0 and error < 20, f"{error:.2g} {status}")


def check_factor(name, n, dtype, mesh, tile):
    """Checks all functions of a kept factor."""
    a, b = matrix(n, dtype), vectors(n, 3, dtype)
    factor = jaxmg.cho_factor(upper(a, mesh), tile, mesh, P("r", None))
    u = wide(factor.upper())
    again = jaxmg.CholeskyFactor.from_upper(np.asarray(factor.upper()), tile, mesh)
    solutions = factor.solve(b), again.solve(b), factor.solve(b[:, 0])[:, None]
    errors = [backward_error("potrs", a, (x,), b[:, : x.shape[1]]) for x in solutions]
    errors.append(backward_error("potri", a, (factor.inv(),)))
    products = [(factor.matmul(b), u.conj().T), (factor.matmul(b, trans=2), u)]
    products.append((b, u.conj().T @ wide(factor.solve_triangular(b))))
    for product, op in products:
        exact = op @ wide(b) if op.shape[1] == n else op
        errors.append(np.abs(wide(product) - exact).max() / np.abs(exact).max() / eps(dtype) / n)
    same = np.array_equal(
        np.asarray(factor.diagonal()), np.diagonal(np.asarray(factor.upper())).real
    )
    report(name, factor.status == 0 and same and max(errors) < 20, f"{max(errors):.2g}")


def check_refined(name, n, dtype, mesh, refine, kind):
    """Checks that the solution is as accurate as the plain one, whether refined or by the
    fallback."""
    a, b = problems.matrix(np, n, dtype, kind=kind), vectors(n, 3, dtype)
    there, spec = upper(a, mesh), P("r", None)
    plain = jaxmg.potrs(there, b, None, mesh, spec)
    *solution, iterations = jaxmg.potrs(
        there, b, None, mesh, spec, True, refine=refine, return_iterations=True
    )
    factor = jaxmg.cho_factor(there, None, mesh, spec, refine=refine)
    again, taken = factor.solve(b, return_iterations=True)
    usual, *errors = (backward_error("potrs", a, (x,), b) for x in (plain, solution[0], again))
    report(
        name,
        solution[1] == 0 and taken == iterations and max(errors) <= 2 * usual + 2
        and (iterations > 0 or kind == "ill"),
        f"{max(errors):.2g} {usual:.2g} {iterations}",
    )  # fmt: skip


def check_syevd(name, n, dtype, mesh, tile, backend, vectors=True):
    a = problems.matrix(np, n, dtype, kind="ill")
    *results, status = jaxmg.syevd(
        upper(a, mesh), tile, mesh, P("r", None), return_eigenvectors=vectors, return_status=True,
        backend=backend,
    )  # fmt: skip
    exact = problems.ill_eigenvalues(n, dtype)
    error = float(abs(np.asarray(results[0]) - exact).max()) / exact[-1] / eps(dtype)
    others = backward_error("syevd", a, results)
    report(
        name,
        status == 0 and error < 50 + n and others < 50 + n,
        f"{error:.2g} {others:.2g} {status}",
    )


def check_sygvd(name, n, dtype, mesh, tile, backend):
    """Checks D Z D x = w D^2 x with a diagonal D: the eigenvalues are Z's, and the vectors are D^-1
    times Z's."""
    z = problems.matrix(np, n, dtype, kind="ill")
    d = 1 + np.arange(n, dtype=np.finfo(dtype).dtype) / n
    a, b = (d[:, None] * z * d).astype(dtype), np.diag(d * d).astype(dtype)
    w, x, status = jaxmg.sygvd(
        upper(a, mesh), upper(b, mesh), tile, mesh, P("r", None), return_status=True,
        backend=backend,
    )  # fmt: skip
    exact = problems.ill_eigenvalues(n, dtype)
    error = float(abs(np.asarray(w) - exact).max()) / exact[-1] / eps(dtype)
    others = backward_error("syevd", z, (w, d[:, None] * np.asarray(x)))
    report(
        name,
        status == 0 and error < 50 + 4 * n and others < 50 + 4 * n,
        f"{error:.2g} {others:.2g} {status}",
    )


def check_row(name, n, dtype, mesh, tile, backend, routine, nrhs):
    """Checks a routine of the table by the table's error."""
    a, m, b = matrix(n, dtype), problems.matrix(np, n, dtype), vectors(n, nrhs, dtype)
    arrays = {"a": a, "m": m, "g": problems.matrix(np, n, dtype, kind="uniform"), "b": b}
    where = {"mesh": mesh, "in_specs": P("r", None)}
    operands = routine.make_operands(jaxmg, arrays.get, tile, **where)
    options = {"backend": backend} if routine.backends else {}
    results = dict(
        zip(routine.returns, routine.call(jaxmg, operands, tile, **where, **options), strict=True)
    )
    status = results.pop("status", 0)
    error = routine.error(arrays[routine.matrix], m, b, results.values()) / eps(dtype)
    report(name, status == 0 and error < 50 + 10 * n, f"{error:.2g} {status}")


# Routines with stricter checks than the table's.
CHECKS = {
    "potrs": lambda *case, turn: check_potrs(*case, nrhs=(1, 3, 300)[turn % 3]),
    "potri": lambda *case, turn: check_potri(*case),
    "syevd": lambda *case, turn: check_syevd(*case, vectors=turn % 3 != 0),
    "sygvd": lambda *case, turn: check_sygvd(*case),
}


def check_routine(name, routine, turn, *case):
    if routine in CHECKS:
        CHECKS[routine](name, *case, turn=turn)
    else:
        check_row(name, *case, problems.TABLE[routine], (1, 3)[turn % 2])


def table(quick):
    """Checks every routine. Those without a check of their own take one dtype each, in turn."""
    sizes = (1, 7, 97, 1000) if quick else (1, 2, 7, 97, 130, 513, 1000, 2048)
    tiles = (None, 3, 64, 500)
    counts = [count for count in (1, 2, 3, 4, 8) if count <= len(jax.devices())]
    for i, n in enumerate(sizes):
        for j, count in enumerate(counts):
            mesh = mesh_of(jax.devices()[:count][:: -1 if (i + j) % 2 else 1])
            for k, dtype in enumerate(DTYPES):
                tile = tiles[(i + j + k) % 4]
                if tile == 3 and n > 200:
                    tile = 32
                case = n, dtype, mesh, tile
                for name, routine in problems.TABLE.items():
                    if name not in CHECKS and k != (i + j) % len(DTYPES):
                        continue
                    for backend in routine.backends or ("native",):
                        label = f"{name} n={n} ranks={count} {dtype} tile={tile} {backend}"
                        attempt(label, check_routine, name, i + j + k, *case, backend)


def refined(quick):
    for count in sorted({1, len(jax.devices())}):
        mesh = mesh_of(jax.devices()[:count])
        for n in (97, 1000) if quick else (97, 2048, 9001):
            for dtype in DTYPES:
                wide = np.finfo(dtype).eps < 1e-10
                for refine in ("tf32", "float32")[: 1 + wide]:
                    for kind in ("moderate", "graded", "ill"):
                        case = f"n={n} ranks={count} {dtype} {refine} {kind}"
                        attempt(f"refined {case}", check_refined, n, dtype, mesh, refine, kind)


def wide_tiles(quick):
    mesh = mesh_of(jax.devices())
    n = 4000 if quick else 9000
    for backend in BACKENDS:
        for tile in (1024, 2000, 4096):
            case = f"n={n} tile={tile} {backend}"
            attempt(f"potrs {case}", check_potrs, n, "float64", mesh, tile, backend)
            attempt(f"syevd {case}", check_syevd, n // 4, "float64", mesh, tile, backend)


def check_not_positive_definite(name, mesh, backend):
    n, k = 300, 211
    for dtype in DTYPES:
        a = matrix(n, dtype)
        a[k - 1, k - 1] = -5
        b = vectors(n, 2, dtype)
        x, status = jaxmg.potrs(a, b, 32, mesh, P("r", None), True, backend=backend)
        inverse, second = jaxmg.potri(
            a, 32, mesh, P("r", None), return_status=True, backend=backend
        )
        ok = status == k and second == k and np.isnan(x).all() and np.isnan(inverse).all()
        report(f"{name} {dtype}", bool(ok), f"status {status} {second}, not {k}")
        for bad in (np.nan, np.inf):
            a = matrix(n, dtype)
            a[3, 200] = bad
            x, status = jaxmg.potrs(a, b, 32, mesh, P("r", None), True, backend=backend)
            w, v, second = jaxmg.syevd(
                a, None, mesh, P("r", None), return_status=True, backend=backend
            )
            ok = status != 0 and second != 0 and np.isnan(x).all() and np.isnan(v).all()
            report(f"{name} {dtype} {bad}", bool(ok and np.isnan(w).all()), f"{status} {second}")


def check_out_of_memory(name, mesh, backend):
    """If the workspace doesn't fit on one device, the last, all ranks get the error, and the next
    call works."""
    n, dtype = 16384, "float64"
    device = mesh.devices.flat[-1]
    a = big(n, dtype, mesh)
    b = jnp.ones((n, 1), dtype)
    jaxmg.potrs(jnp.eye(64), jnp.ones(64), 32, mesh, P("r", None)).block_until_ready()
    stats = device.memory_stats()
    room = stats["bytes_limit"] - stats["bytes_in_use"]
    ballast = jax.device_put(jnp.zeros(((room - (400 << 20)) // 8,), dtype, device=device), device)
    ballast.block_until_ready()
    try:
        x = jaxmg.potrs(a, b, 8192, mesh, P("r", None), donate=True, backend=backend)
        x.block_until_ready()
        report(name, False, "no error")
    except Exception as error:
        report(name, "RESOURCE_EXHAUSTED" in str(error), str(error)[:300])
    attempt(name + ", the next call", check_potrs, 97, "float64", mesh, 32, backend)
    ballast.delete()


def failing(quick):
    mesh = mesh_of(jax.devices())
    for backend in BACKENDS:
        attempt(f"not positive definite {backend}", check_not_positive_definite, mesh, backend)
        attempt(f"out of memory {backend}", check_out_of_memory, mesh, backend)


def big(n, dtype, mesh):
    """Returns a matrix that is made in its sharding."""
    rows = NamedSharding(mesh, P("r", None))
    return jax.jit(lambda: problems.matrix(jnp, n, dtype), out_shardings=rows)()


def check_programs(name, mesh, backend):
    n, ranks = 240, mesh.devices.size
    a, b = matrix(n, "float64"), vectors(n, 2)

    def local(block, b):
        total = jax.lax.psum(block.sum(), "r")

        def step(carry, _):
            x, status = jaxmg.potrs_shardmap_ctx(block, carry, 16, backend=backend)
            return x, status

        x, _ = jax.lax.scan(step, b + 0 * total, None, length=5)
        return x + 0 * jax.lax.psum(x.sum(), "r")

    f = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=(P("r", None), P()), out_specs=P(), check_vma=False
        )
    )
    a_there = jax.device_put(a, NamedSharding(mesh, P("r", None)))
    results = [f(a_there, b) for _ in range(20)]  # none awaited
    exact = b
    for _ in range(5):
        exact = np.linalg.solve(a, exact)
    error = max(np.max(np.abs(np.asarray(r) - exact)) for r in results)
    report(name, error < 1e-10, f"{ranks} ranks, {error:.2g}")


def programs(quick):
    devices = jax.devices()
    for backend in BACKENDS:
        attempt(f"scan between collectives {backend}", check_programs, mesh_of(devices), backend)
        attempt(f"permuted {backend}", check_programs, mesh_of(devices[::-1]), backend)
        attempt(f"last device alone {backend}", check_programs, mesh_of(devices[-1:]), backend)
        if len(devices) >= 2:
            # Two groups of replicas in one mesh, with the ranks along its second axis.
            mesh = Mesh(np.array(devices).reshape(2, -1), ("g", "r"))
            attempt(f"two groups {backend}", check_potrs, 97, "float64", mesh, 16, backend)


def resources():
    """Returns MiB of the GPUs' memory and of this process's, and the number of open files."""
    import pynvml

    pynvml.nvmlInit()
    used = 0
    for i in range(pynvml.nvmlDeviceGetCount()):
        used += pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i)).used
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return used >> 20, resident >> 20, len(os.listdir("/proc/self/fd"))


# The growth of each count of `resources` that is tolerated after the calls.
TOLERATED = {"growth_gpu_mib": 0, "growth_host_mib": 8, "growth_open_files": 0}


def check_loop(name, mesh, backend, calls):
    n, tile = 512, 64
    a = jax.device_put(matrix(n, "float64"), NamedSharding(mesh, P("r", None)))
    b = jnp.asarray(vectors(n, 1))

    def call():
        return jaxmg.potrs(a, b, tile, mesh, P("r", None), backend=backend)

    for _ in range(50):
        call().block_until_ready()
    gc.collect()
    compilations = []

    def listen(event, *_, **__):
        if event.startswith("/jax/core/compile"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    before, start = resources(), time.perf_counter()
    for _ in range(calls):
        x = call()
    x.block_until_ready()
    seconds = time.perf_counter() - start
    gc.collect()
    after = resources()
    jax.monitoring.clear_event_listeners()
    growth = {key: y - x for key, x, y in zip(TOLERATED, before, after, strict=True)}
    ok = all(growth[key] <= TOLERATED[key] for key in TOLERATED) and not compilations
    found = growth | {"compilations": len(compilations)}
    report(name, ok, f"{1e3 * seconds / calls:.2f} ms a call;", found)
    devices = list(mesh.devices)
    record = {
        "routine": "potrs", "backend": backend, "dtype": "float64", "n": n, "nrhs": 1,
        "T_A": tile, "ranks": len(devices), "calls": calls, "seconds": seconds, **found,
        **records.origin(
            records.name_of(devices), records.python("tests/gpu/check.py", sys.argv[1:])
        ),
    }  # fmt: skip
    print(json.dumps(record), flush=True)


def check_threads(name, meshes, backend):
    """Host threads call at the same time, on one mesh or on several."""
    n, calls = 200, 30
    a, b = matrix(n, "float64"), vectors(n, 2)
    exact = np.linalg.solve(a, b)
    errors = []

    def run(mesh):
        there = jax.device_put(a, NamedSharding(mesh, P("r", None)))
        results = [jaxmg.potrs(there, b, 32, mesh, P("r", None), backend=backend)
                   for _ in range(calls)]  # fmt: skip
        errors.extend(np.max(np.abs(np.asarray(x) - exact)) for x in results)

    threads = [threading.Thread(target=run, args=(mesh,)) for mesh in meshes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ok = len(errors) == calls * len(meshes) and max(errors) < 1e-10
    report(name, ok, f"{len(errors)} calls, {max(errors, default=np.nan):.2g}")


def threads(quick):
    devices = jax.devices()
    half = max(1, len(devices) // 2)
    for backend in BACKENDS:
        apart = [mesh_of(devices[:half]), mesh_of(devices[half:] or devices)]
        attempt(f"two meshes at once {backend}", check_threads, apart, backend)
        attempt(
            f"two threads on one mesh {backend}", check_threads, [mesh_of(devices)] * 2, backend
        )


def check_all_ranks(dtype, mesh):
    """Checks an eigenproblem by the engine's own stages, with and without eigenvectors."""
    plugin = jaxmg._plugin.plugins.load(jax.default_backend())
    plugin.set_eigensolver("all")
    try:
        for vectors in (True, False):
            name = f"syevd {dtype} by all ranks, vectors={vectors}"
            attempt(name, check_syevd, 300, dtype, mesh, None, "native", vectors)
    finally:
        plugin.set_eigensolver("auto")


def check_singular_values(name, n, dtype, mesh):
    """Checks singular values by reduction to a band, as for large matrices."""
    a = problems.matrix(np, n, dtype, kind="uniform")
    layout = jaxmg._layouts.meshes.infer("svdvals", (a,), mesh, P("r", None))
    values = jax.jit(lambda a: jaxmg._svd.gesvd.singular_values(a, layout))(a)
    exact = np.linalg.svd(a.astype(np.complex128), compute_uv=False)
    error = np.abs(values - exact).max() / exact[0] / np.finfo(dtype).eps
    report(name, error < 10 * n**0.5, f"{error:.2g}")


def check_triangle(name, n, dtype, mesh, lower):
    """Checks a triangle of a general matrix whose diagonal isn't real."""
    a, b = problems.matrix(np, n, dtype, kind="uniform"), vectors(n, 20, dtype)
    a = a + 2 * n**0.5 * np.diag(np.diagonal(a) / np.abs(np.diagonal(a)))
    x = np.asarray(jaxmg.linalg.solve_triangular(a, b, lower=lower, mesh=mesh))
    triangle = np.tril(a) if lower else np.triu(a)
    error = backward_error("gesv", triangle, (x,), b)
    report(name, error < 200, f"{error:.2g}")


def check_parts(name, n, dtype, mesh, tile, precision):
    a, b = matrix(n, dtype), vectors(n, 3, dtype)
    where = (tile, mesh, P("r", None))
    x, status = jaxmg.potrs(upper(a, mesh), b, *where, True, precision=precision)
    inverse = jaxmg.potri(upper(a, mesh), *where, precision=precision)
    errors = backward_error("potrs", a, (x,), b), backward_error("potri", a, (inverse,))
    report(name, status == 0 and max(errors) < 200, *(f"{error:.2g}" for error in errors))


def check_scaled_parts(name, n, dtype, mesh, tile):
    """Checks LU by products of float16 parts, whose factors have rows and columns of any size."""
    a, b = problems.matrix(np, n, dtype, kind="uniform"), vectors(n, 3, dtype)
    sizes = np.ldexp(np.float32(1), np.linspace(-40, 40, n).astype(int))
    scaled = a * sizes[:, None] * sizes[::-1]
    x, status = jaxmg.gesv(
        scaled, b * sizes[:, None], tile, mesh, P("r", None), True, precision="F16_F16_F32_X3"
    )
    error = backward_error("gesv", a, (np.asarray(x) * sizes[::-1, None],), b)
    report(name, status == 0 and error < 200, f"{error:.2g}")


def small(quick):
    """Runs every kernel and every copy once, for compute-sanitizer; with several GPUs, copies
    between them too."""
    mesh = mesh_of(jax.devices())
    for k, dtype in enumerate(DTYPES):
        for backend in BACKENDS[: 1 + (k == 1)]:
            case = f"{dtype} {backend}"
            attempt(f"potrs {case}", check_potrs, 70, dtype, mesh, 16, backend)
            attempt(f"potri {case}", check_potri, 70, dtype, mesh, 16, backend)
            attempt(f"syevd {case}", check_syevd, 70, dtype, mesh, 16, backend)
        # One GPU solves for all.
        attempt(f"potrs {dtype} gathered", check_potrs, 70, dtype, mesh, None, "native")
        attempt(f"potri {dtype} gathered", check_potri, 70, dtype, mesh, None, "native")
        attempt(f"factor {dtype}", check_factor, 70, dtype, mesh, 16)
        check_all_ranks(dtype, mesh)
        attempt(f"svdvals {dtype}", check_singular_values, 300, dtype, mesh)
        for lower in (False, True):
            label = f"solve_triangular {dtype} {'lower' if lower else 'upper'}"
            attempt(label, check_triangle, 70, dtype, mesh, lower)
        for name, routine in problems.TABLE.items():
            # The routines above have checks of their own; those with hemm are in small_refined.
            if name not in ("potrs", "potri", "syevd") and "jaxmg_hemm" not in routine.handlers:
                label = f"{name} {dtype}"
                attempt(label, check_routine, name, 1, 70, dtype, mesh, 16, "native")
    for precision in ("BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3"):
        for dtype in ("float32", "complex64"):
            attempt(f"{dtype} by {precision}", check_parts, 150, dtype, mesh, 70, precision)
    for dtype in ("float32", "complex64"):
        label = f"gesv {dtype} by scaled parts"
        attempt(label, check_scaled_parts, 1600, dtype, mesh, 520)  # products of 512 or more
    # Columns with more bytes than one block copies, and blocks that are inverted in several parts.
    attempt("factor n=2200", check_factor, 2200, "float64", mesh, None)
    attempt("potrs n=2200", check_potrs, 2200, "float64", mesh, 128, "native")
    a = matrix(70, "float64")
    a[50, 50] = -1
    _, status = jaxmg.potrs(a, np.ones(70), 16, mesh, P("r", None), True)
    report("not positive definite", status == 51)


def small_refined(quick):
    """Runs programs with XLA's collectives, with which the sanitizer's tools may not terminate."""
    for dtype in DTYPES:
        attempt(
            f"refined {dtype}", check_refined, 70, dtype, mesh_of(jax.devices()), "tf32", "moderate"
        )


def loop(quick):
    for backend in BACKENDS:
        attempt(
            f"loop {backend}", check_loop, mesh_of(jax.devices()), backend, 200 if quick else 1000
        )


if __name__ == "__main__":
    run(
        {"programs": programs, "threads": threads, "failures": failing, "loop": loop,
         "table": table, "refined": refined, "wide": wide_tiles, "small": small,
         "small_refined": small_refined},
        left_out=("small", "small_refined"),
    )  # fmt: skip
