"""Checks the backend "cusolvermp" with one process per GPU, and prints a table.

    python -m jaxmg.launch -n 4 tests/gpu/cusolvermp.py [SECTION ...]

Compares with the native backend and NumPy. Needs the extra `mp` of the plugin, and benchmarks/ on
PYTHONPATH. Exits with the number of failures.
"""

import functools
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "4")  # of each process

import jax
import jax.numpy as jnp
import numpy as np
import problems
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import DTYPES, wide
from sections import attempt, eps, report, run

import jaxmg

jax.distributed.initialize()
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")  # for the results to compare with

SIZES = (1, 2, 3, 5, 16, 97, 130, 1100)
solve = functools.partial(jaxmg.potrs, backend="cusolvermp")
general = functools.partial(jaxmg.gesv, backend="cusolvermp")
eigen = functools.partial(jaxmg.syevd, backend="cusolvermp")


def line():
    return Mesh(np.array(jax.devices()), ("r",))


def grids():
    """Returns the line, and all grids of all devices."""
    count = jax.device_count()
    shapes = [(r, count // r) for r in range(1, count + 1) if count % r == 0]
    devices = np.array(jax.devices())
    return [
        *[(line(), P("r", None))],
        *[(Mesh(devices.reshape(shape), ("r", "c")), P("r", "c")) for shape in shapes],
    ]


def matrix(n, dtype):
    return problems.matrix(np, n, dtype, kind="moderate")


def spread(a, mesh, spec):
    """Returns A with NaN where no routine may read, sharded if the mesh divides it."""
    return whole(np.where(np.tri(len(a), k=-1, dtype=bool), np.nan, a).astype(a.dtype), mesh, spec)


def whole(entries, mesh, spec):
    sharding = NamedSharding(mesh, spec)
    try:
        return jax.make_array_from_callback(entries.shape, sharding, lambda index: entries[index])
    except ValueError:  # n isn't a multiple of the devices
        return entries


def check_potrs(name, n, dtype, mesh, spec, tile=None, nrhs=3):
    a, b = matrix(n, dtype), problems.vectors(np, n, nrhs, dtype)
    x, logdet, status = solve(spread(a, mesh, spec), b, tile, mesh, spec, True, return_logdet=True)
    x = wide(np.asarray(x))
    error = problems.backward_error(np, "potrs", wide(a), {"b": wide(b)}, (x,), np.matmul)
    exact = np.linalg.slogdet(wide(a))[1]
    log_error = abs(float(logdet) - exact) / max(1, abs(exact)) / eps(dtype)
    passed = status == 0 and error / eps(dtype) < 20 and log_error < 10 * n + 50
    report(name, passed, f"{error / eps(dtype):.2g} {log_error:.2g} {status}")


def general_matrix(n, dtype):
    return problems.matrix(np, n, dtype, kind="uniform")


def check_gesv(name, n, dtype, mesh, spec, tile=None, nrhs=3):
    a, b = general_matrix(n, dtype), problems.vectors(np, n, nrhs, dtype)
    x, status = general(whole(a, mesh, spec), b, tile, mesh, spec, True)
    x = wide(np.asarray(x))
    error = problems.backward_error(np, "gesv", wide(a), {"b": wide(b)}, (x,), np.matmul)
    report(name, status == 0 and error / eps(dtype) < 20, f"{error / eps(dtype):.2g} {status}")


def check_svd(name, shape, dtype, mesh, spec):
    """Checks all vectors, only values, and the polar decomposition from both sides."""
    a = problems.vectors(np, *shape, dtype)
    options = {"mesh": mesh, "matrix_specs": spec, "backend": "cusolvermp"}
    placed = whole(a, mesh, spec)
    results = jaxmg.linalg.svd(placed, **options)
    alone = jaxmg.linalg.svdvals(placed, **options)
    factors = [jaxmg.linalg.polar(placed, side, **options) for side in ("right", "left")]
    everywhere = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))
    (u, s, vh), alone, factors = jax.tree.map(
        lambda x: wide(np.asarray(everywhere(x))), (tuple(results), alone, factors)
    )
    a, least = wide(a), min(shape)
    expected = np.linalg.svd(a, compute_uv=False)
    (right, p), (left, q) = factors

    def off(x):
        """Returns the departure of the columns, or of a wide matrix's rows, from orthonormality."""
        x = x if x.shape[0] >= x.shape[1] else x.conj().T
        return np.abs(x.conj().T @ x - np.eye(x.shape[1])).max()

    size = expected.max(initial=1)
    found = [
        np.abs(s - expected).max() / size,
        np.abs(alone - expected).max() / size,
        np.abs((u[:, :least] * s) @ vh[:least] - a).max() / size,
        *(off(x) for x in (u, vh, right, left)),
        np.abs(right @ p - a).max() / size,
        np.abs(q @ left - a).max() / size,
        np.abs(p - p.conj().T).max() / size,
    ]
    unit = eps(dtype) * max(*shape, 10)
    text = " ".join(f"{x / unit:.2g}" for x in found)
    report(name, max(found) < 3 * unit, text)


def check_syevd(name, n, dtype, mesh, spec, tile=None):
    a = matrix(n, dtype)
    rows = spread(a, mesh, spec)
    w, v, status = eigen(rows, tile, mesh, spec, return_status=True)
    alone, other = eigen(rows, tile, mesh, spec, return_eigenvectors=False, return_status=True)
    expected = np.linalg.eigvalsh(a)
    size = max(np.abs(expected).max(), 1)

    def errors(v, w):
        everywhere = NamedSharding(mesh, P())
        v, whole = (jax.lax.with_sharding_constraint(m, everywhere) for m in (v, jnp.asarray(a)))
        residual = jnp.abs(whole @ v - v * w).max()
        return residual, jnp.abs(v.conj().T @ v - jnp.eye(n)).max()

    residual, orthogonal = jax.jit(errors, out_shardings=NamedSharding(mesh, P()))(v, w)
    unit = eps(dtype) * size * max(n, 10)
    found = [
        np.abs(np.asarray(w) - expected).max() / unit,
        np.abs(np.asarray(alone) - expected).max() / unit,
        float(residual) / unit,
        float(orthogonal) / (eps(dtype) * max(n, 10)),
    ]
    passed = status == 0 and other == 0 and max(found) < 3
    report(name, passed, " ".join(f"{x:.2g}" for x in found) + f" {status} {other}")


def small(quick):
    for n in SIZES[:6] if quick else SIZES:
        for i, dtype in enumerate(DTYPES):
            meshes = grids()
            mesh, spec = meshes[(i + n) % len(meshes)]
            label = f"n {n} {dtype} {dict(mesh.shape)}"
            nrhs = (1, 3, 40)[n % 3]
            attempt(f"potrs {label}", check_potrs, n, dtype, mesh, spec, None, nrhs)
            attempt(f"gesv {label}", check_gesv, n, dtype, mesh, spec, None, nrhs)
            attempt(f"syevd {label}", check_syevd, n, dtype, mesh, spec)
            shape = ((n, n), (n + 7, n), (n, 2 * n + 3))[(n + i) % 3]
            attempt(f"svd {shape} {label}", check_svd, shape, dtype, mesh, spec)


def layouts(quick):
    for mesh, spec in grids():
        for tile in (7, 64, 300, 2000):
            label = f"tile {tile} {dict(mesh.shape)}"
            attempt(f"potrs {label}", check_potrs, 700, "float64", mesh, spec, tile, 500)
            attempt(f"gesv {label}", check_gesv, 700, "complex128", mesh, spec, tile, 500)
            attempt(f"syevd {label}", check_syevd, 700, "complex128", mesh, spec, tile)
    for mesh, spec in grids():
        for dtype in DTYPES:
            label = f"svd of order 701 {dtype} {dict(mesh.shape)}"
            attempt(label, check_svd, (701, 701), dtype, mesh, spec)


def failures(quick):
    mesh, n = line(), 400
    for dtype in DTYPES:
        a, b = matrix(n, dtype), problems.vectors(np, n, 2, dtype)
        for place in (0, 123, n - 1):
            broken = a.copy()
            broken[place, place] = -1
            x, status = solve(broken, b, mesh=mesh, return_status=True)
            given = jaxmg.potrs(broken, b, mesh=mesh, return_status=True, backend="native")[1]
            passed = int(status) == int(given) == place + 1 and np.isnan(np.asarray(x)).all()
            report(f"not positive definite at {place} {dtype}", passed, f"{status} {given}")
        for value in (np.nan, np.inf):
            broken = a.copy()
            broken[17, 200] = value
            x, status = solve(broken, b, mesh=mesh, return_status=True)
            passed = status != 0 and np.isnan(np.asarray(x)).all()
            report(f"potrs of {value} {dtype}", passed, f"{status}")
            w, v, status = eigen(broken, mesh=mesh, return_status=True)
            parts = [np.isnan(shard.data).all() for shard in v.addressable_shards]
            report(f"syevd of {value} {dtype}", status != 0 and all(parts), f"{status}")
        g = general_matrix(n, dtype)
        singular = g.copy()
        singular[:, 123] = 0
        x, status = general(singular, b, mesh=mesh, return_status=True)
        passed = status != 0 and np.isnan(np.asarray(x)).all()
        report(f"singular {dtype}", passed, f"{status}")
        for value in (np.nan, np.inf):
            broken = g.copy()
            broken[200, 17] = value
            x, status = general(broken, b, mesh=mesh, return_status=True)
            passed = status == -1 and np.isnan(np.asarray(x)).all()
            report(f"gesv of {value} {dtype}", passed, f"{status}")
            options = {"mesh": mesh, "backend": "cusolvermp"}
            results = (*jaxmg.linalg.svd(broken, **options), *jaxmg.linalg.polar(broken, **options))
            parts = [np.isnan(part.data).all() for x in results for part in x.addressable_shards]
            report(f"svd and polar of {value} {dtype}", all(parts))
        x, status = general(g, b, mesh=mesh, return_status=True)
        report(f"the next general one {dtype}", status == 0 and np.isfinite(np.asarray(x)).all())
        x, status = solve(a, b, mesh=mesh, return_status=True)
        report(f"the next one {dtype}", status == 0 and np.isfinite(np.asarray(x)).all())


def programs(quick):
    """Calls repeatedly, in a program with other work and native calls, and with a subset."""
    mesh, n = line(), 512
    a, b = matrix(n, "float64"), problems.vectors(np, n, 1, "float64")
    rows = spread(a, mesh, P("r", None))

    @jax.jit
    def both(a, b):
        one = jaxmg.potrs(a, b, mesh=mesh, matrix_specs=P("r", None), backend="cusolvermp")
        other = jaxmg.potrs(a, b, mesh=mesh, matrix_specs=P("r", None), backend="native")
        return one, other, jnp.abs(one - other).max()

    expected = np.linalg.solve(a, b)
    first = None
    for turn in range(5 if quick else 50):
        one, _, apart = both(rows, b)
        first = np.asarray(one) if first is None else first
        error = np.abs(np.asarray(one) - expected).max() / np.abs(expected).max()
        if error > 1e-10 or float(apart) > 1e-10 or not np.array_equal(first, one):
            report(f"turn {turn}", False, f"{error:.2g} {apart:.2g}")
            return
    report("50 calls beside native ones", True, "the same bits")
    w, v = jaxmg.eigh(rows, subset_by_index=(3, 8), mesh=mesh, backend="cusolvermp")
    report("a subset", np.allclose(w, np.linalg.eigvalsh(a)[3:8]) and v.shape == (n, 5))


if __name__ == "__main__":
    run({"small": small, "layouts": layouts, "failures": failures, "programs": programs})
