"""Random batches and derivatives on random meshes, against JAX's own on one device.

    transformations.py [--seed 0] [--seconds 60] [--case N]

A case is a function (a routine of the table in tests/python/routines.py, or another one), a
transformation, a mesh (automatic or explicit axes, permuted devices, a subset of them), a sharding
of the batch, an order, and a dtype. All follow from the seed and the case's number. Prints each
failure with the command that repeats it, and the number of cases; the exit code is 1 if any failed.
"""

import argparse
import contextlib
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jaxmg  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))

from routines import ROUTINES  # noqa: E402

jax.config.update("jax_enable_x64", True)

ORDERS = (1, 2, 3, 5, 6, 7, 8, 11, 12)
SIZES = (1, 3, 8)
DTYPES = ("float32", "float64", "complex64", "complex128")


def _adjoint(x):
    return jnp.swapaxes(x, -1, -2).conj()


def _lower(a):
    return jnp.linalg.cholesky(a)


def _metric(a, b):
    n = a.shape[-1]
    return (
        jnp.eye(n) * (2 + jnp.mean(jnp.abs(b) ** 2)) + jnp.eye(n, k=1) + jnp.eye(n, k=-1)
    ).astype(a.dtype)


def _general(a):
    """Returns a matrix that isn't Hermitian; its condition number is no worse than ``a``'s."""
    return a * (1 - 2 * jnp.tri(a.shape[-1], k=-1)).astype(a.dtype)


def _recompose(function):
    def evaluate(a, b):
        w, v = jnp.linalg.eigh(a)
        return (v * function(w).astype(v.dtype)) @ _adjoint(v)

    return evaluate


def _factor(use):
    """Returns a function of (a, b, where) that calls ``use`` with a factor and b."""
    return lambda a, b, where: use(jaxmg.cho_factor(a, **where), b)


def _solution(a, b, m):
    return {"x": jnp.linalg.solve(a, b)}


def _inverse(a, b, m):
    return {"inverse": jnp.linalg.inv(a)}


def _upper(a, b, m):
    return {"upper": _adjoint(_lower(a))}


def _updated(a, b, m):
    a = a + b @ _adjoint(b)
    return {**_upper(a, b, m), "logdet": _log_det(a)}


def _log_det(a):
    return jnp.linalg.slogdet(a)[1]


def _eigen(a, b, m):
    return dict(zip("wv", jnp.linalg.eigh(a), strict=True))


def _pair(a, b, m):
    inverse = jnp.linalg.inv(_lower(m))
    w, y = jnp.linalg.eigh(inverse @ a @ _adjoint(inverse))
    return {"w": w, "v": _adjoint(inverse) @ y}


def _subset(name, results, n):
    first, last = ROUTINES[name].options(n)["subset_by_index"]
    return {key: value[..., first:last] for key, value in results.items()}


def _general_case(function):
    return lambda a, b, m: function(_general(a), b, m)


def _general_solution(g, b, m):
    return {**_solution(g, b, m), "logdet": _log_det(g)}


def _lu(g, b, m):
    """Returns the transpose of the transposed matrix's factor, as the engine does."""
    return {"lu": jnp.swapaxes(jax.scipy.linalg.lu_factor(jnp.swapaxes(g, -1, -2))[0], -1, -2)}


def _lu_diagonal(g, b, m):
    return {"lu_diagonal": jnp.diagonal(_lu(g, b, m)["lu"], axis1=-2, axis2=-1)}


# Row of the table -> function of (a, b, m) that returns its results by JAX.
REFERENCES = {
    "potrs": lambda a, b, m: {**_solution(a, b, m), "logdet": _log_det(a)},
    "refine": _solution,
    "potri": _inverse,
    "syevd": _eigen,
    "eigvalsh": lambda a, b, m: {"w": jnp.linalg.eigvalsh(a)},
    "eigh": lambda a, b, m: _subset("eigh", _eigen(a, b, m), a.shape[-1]),
    "sygvd": _pair,
    "eigh_pair": lambda a, b, m: _subset("eigh_pair", _pair(a, b, m), a.shape[-1]),
    "cho_factor": lambda a, b, m: {**_upper(a, b, m), "logdet": _log_det(a)},
    "cho_solve": _solution,
    "solve_triangular": lambda a, b, m: {"x": jnp.linalg.solve(_lower(a), b)},
    "matmul": lambda a, b, m: {"product": _lower(a) @ b},
    "inv": _inverse,
    "diagonal": lambda a, b, m: {"diagonal": jnp.diagonal(_lower(a), axis1=-2, axis2=-1).real},
    "from_upper": _upper,
    "upper": _upper,
    "update": _updated,
    "gesv": _general_case(_general_solution),
    "getri": _general_case(_inverse),
    "lu_factor": _general_case(lambda g, b, m: {**_lu(g, b, m), "logdet": _log_det(g)}),
    "lu_solve": _general_case(_solution),
    "lu_inv": _general_case(_inverse),
    "slogdet": _general_case(lambda g, b, m: {"logdet": _log_det(g)}),
    "lu_diagonal": _general_case(_lu_diagonal),
    "packed": _general_case(_lu),
    "refined": _solution,
}


def _comparable(results):
    """Returns results by name, without those that have no derivative. Eigenvectors become squared
    magnitudes, which don't depend on phases."""
    without = ("status", "iterations", "pivots")
    results = {name: x for name, x in results.items() if name not in without}
    return {name: jnp.abs(x) ** 2 if name == "v" else x for name, x in results.items()}


def _row(name):
    """Returns (function of (a, b, where) that calls the routine of a row, the same function of (a,
    b) by JAX)."""
    routine = ROUTINES[name]

    def ours(a, b, where):
        arrays = {"a": a, "b": b, "m": _metric(a, b), "g": _general(a)}
        operands = routine.make_operands(jaxmg, arrays.get, **where)
        results = routine.call(jaxmg, operands, **where)
        return _comparable(dict(zip(routine.returns, results, strict=True)))

    return ours, lambda a, b: _comparable(REFERENCES[name](a, b, _metric(a, b)))


# Name -> (function of (a, b, where), the same function of (a, b) by JAX).
FUNCTIONS = {
    **{name: _row(name) for name, routine in ROUTINES.items() if routine.transforms},
    "factor: L^T b": (
        _factor(lambda f, b: f.matmul(b, "T")),
        lambda a, b: jnp.swapaxes(_lower(a), -1, -2) @ b,
    ),
    "factor: L^H b": (
        _factor(lambda f, b: f.matmul(b, "C")),
        lambda a, b: _adjoint(_lower(a)) @ b,
    ),
    "factor: L^H \\ b": (
        _factor(lambda f, b: f.solve_triangular(b, 2)),
        lambda a, b: jnp.linalg.solve(_adjoint(_lower(a)), b),
    ),
    "linalg.solve": (lambda a, b, w: jaxmg.linalg.solve(a, b, **w), jnp.linalg.solve),
    "linalg.inv": (lambda a, b, w: jaxmg.linalg.inv(a, **w), lambda a, b: jnp.linalg.inv(a)),
    "linalg.cholesky": (lambda a, b, w: jaxmg.linalg.cholesky(a, **w), lambda a, b: _lower(a)),
    "linalg.slogdet": (
        lambda a, b, w: jaxmg.linalg.slogdet(a, **w)[1],
        lambda a, b: jnp.linalg.slogdet(a)[1],
    ),
    "linalg.matrix_power": (
        lambda a, b, w: jaxmg.linalg.matrix_power(a, -3, **w),
        lambda a, b: jnp.linalg.matrix_power(a, -3),
    ),
    "linalg.expm": (
        lambda a, b, w: jaxmg.linalg.expm(a / a.shape[-1], **w),
        lambda a, b: jax.scipy.linalg.expm(a / a.shape[-1]),
    ),
    "linalg.sqrtm": (lambda a, b, w: jaxmg.linalg.sqrtm(a, **w), _recompose(jnp.sqrt)),
}
# Functions that take arrays with leading dimensions.
LEADING = [
    name
    for name in FUNCTIONS
    if name.startswith("linalg")
    or (name in ROUTINES and {*ROUTINES[name].takes} <= {"a", "b"} and not ROUTINES[name].unpack)
]


# Specs of the batches of a and of b.
SPECS = (
    ((), ()),
    (("r",), ("r",)),
    ((("r", "c"),), (("r", "c"),)),
    (("c", "r"), ("c",)),
    ((None, "r", None), ()),
    ((None, None, "c"), ()),
    ((None, "r", "c"), (None, "c")),
    ((None, ("c", "r")), (None, None, "c")),
)
# Functions of (f, each). If each is vmap, f takes one matrix; if each does nothing, f takes arrays
# with leading dimensions.
WAYS = {
    "batch": lambda f, each: each(f),
    "jit of batch": lambda f, each: jax.jit(each(f)),
    "batch of jit": lambda f, each: each(jax.jit(f)),
    "grad of batch": lambda f, each: jax.grad(_size(each(f)), (0, 1)),
    "jit of grad of batch": lambda f, each: jax.jit(jax.grad(_size(each(f)), (0, 1))),
    "jit of jvp of batch": lambda f, each: jax.jit(_jvp(each(f))),
    "jvp of batch": lambda f, each: _jvp(each(f)),
}
# Transformations of a function of one matrix; then those that allow only vmap around them.
ONE = {
    "one": lambda f: f,
    "jit": lambda f: jax.jit(f),
    "grad": lambda f: jax.grad(_size(f), (0, 1)),
    "jit of grad": lambda f: jax.jit(jax.grad(_size(f), (0, 1))),
    "jit of jvp of grad": lambda f: jax.jit(_jvp(jax.grad(_size(f), (0, 1)))),
}
MAPPED = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(_size(f), (0, 1))),
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(_size(f), (0, 1)))),
}
# One matrix with a batch of right-hand sides.
SIDES = {
    "vmap over b": lambda f: jax.vmap(f, (None, 0)),
    "jit of grad of vmap over b": lambda f: jax.jit(
        jax.grad(_size(jax.vmap(f, (None, 0))), (0, 1))
    ),
}
KINDS = {"vmap": WAYS, "leading": WAYS, "one": ONE, "mapped": MAPPED, "sides": SIDES}


def _size(function):
    return lambda a, b: sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(function(a, b)))


def _jvp(function):
    return lambda a, b: jax.jvp(function, (a, b), (a * a + 1, b - 1))[1]


def _hermitian_case(function):
    def called(a, b):
        adjoint, sharding = _adjoint(a), jax.typeof(a).sharding
        if AxisType.Explicit in sharding.mesh.axis_types:
            adjoint = jax.sharding.reshard(adjoint, sharding)
        return function((a + adjoint) / 2, b)

    return called


def _transformed(kind, way, ours, theirs):
    """Returns both functions, transformed in this way."""
    if kind == "vmap":
        return (WAYS[way](f, jax.vmap) for f in (ours, theirs))
    if kind == "leading":
        return WAYS[way](ours, lambda f: f), WAYS[way](theirs, jax.vmap)
    return (KINDS[kind][way](f) for f in (ours, theirs))


def _divides(spec, shape, mesh):
    """Returns whether the mesh's axes divide the dimensions that are sharded over them."""
    for size, axes in zip(shape, spec, strict=False):
        axes = axes if isinstance(axes, tuple) else (axes,) if axes else ()
        if size % int(np.prod([mesh.shape[axis] for axis in axes], dtype=int)):
            return False
    return True


def run(seed, number):
    """Returns None, or a description of what is wrong with a case."""
    random = np.random.default_rng([seed, number])

    def choice(options):
        options = list(options)
        return options[random.integers(len(options))]

    kind = choice(KINDS)
    way, dtype = choice(KINDS[kind]), choice(DTYPES)
    name = choice(LEADING if kind == "leading" else FUNCTIONS)
    axes = choice((AxisType.Auto, AxisType.Explicit))
    shape = choice(((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4)))
    devices = random.permutation(np.array(jax.devices()))[: shape[0] * shape[1]]
    mesh = Mesh(devices.reshape(shape), ("r", "c"), axis_types=(axes,) * 2)
    while True:
        (of_a, of_b), n, size = choice(SPECS), choice(ORDERS), choice(SIZES)
        if _divides(of_a, (size, n, n), mesh) and _divides(of_b, (size, n, 2), mesh):
            break
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64

    def normal(*shape):
        value = random.standard_normal(shape)
        return value + 1j * random.standard_normal(shape) if wide is np.complex128 else value

    x = normal(size, n, n)
    a = x @ x.conj().swapaxes(1, 2) / n + np.diag(np.arange(1.0, n + 1))
    a, b = a.astype(dtype), normal(size, n, 2).astype(dtype)
    each = of_a[1:]
    if kind in ("one", "sides"):
        a, of_a = a[0], of_a[1:]
    if kind == "one":
        b, of_b = b[0], of_b[1:]
    given = {"mesh": mesh}
    if any(each) and random.integers(2):
        given["matrix_specs"] = P(*each)
    described = (
        f"{name}, {kind}: {way}, {dtype}, n = {n}, {size}, {axes.name} {shape}, {of_a} {of_b}, "
        f"{given.get('matrix_specs', '')}"
    )
    ours, theirs = FUNCTIONS[name]
    found, expected = _transformed(
        kind,
        way,
        _hermitian_case(lambda a, b: ours(a, b, given)),
        _hermitian_case(theirs),
    )
    expected = expected(jnp.asarray(a, wide), jnp.asarray(b, wide))
    context = jax.set_mesh(mesh) if axes == AxisType.Explicit else contextlib.nullcontext()
    try:
        with context:
            placed = (
                jax.device_put(x, NamedSharding(mesh, P(*s))) for x, s in ((a, of_a), (b, of_b))
            )
            found = jax.block_until_ready(found(*placed))
    except Exception as error:
        return f"{described}: {type(error).__name__}: {str(error)[:200]!r}"
    limit = 5000 * float(np.finfo(dtype).eps)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        of_y = np.dtype(dtype) if y.dtype.kind == "c" else np.finfo(dtype).dtype
        if (x.shape, x.dtype) != (y.shape, of_y):
            return f"{described}: {x.dtype} {x.shape} for {y.dtype} {y.shape}"
        apart = np.abs(np.asarray(x) - np.asarray(y)).max()
        if not apart <= limit * max(1, np.abs(np.asarray(y)).max()):
            return f"{described}: differs by {apart} of {np.abs(np.asarray(y)).max()}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seconds = float(os.environ.get("FUZZ_SECONDS", 60))
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--case", type=int, help="this one alone")
    args = parser.parse_args()
    end, count, failures = time.monotonic() + args.seconds, 0, 0
    numbers = iter([args.case]) if args.case is not None else iter(range(10**9))
    for number in numbers:
        if count and time.monotonic() > end:
            break
        count += 1
        if count % 20 == 0:
            jax.clear_caches()
        if wrong := run(args.seed, number):
            failures += 1
            print(f"transformations.py --seed {args.seed} --case {number}: {wrong}", flush=True)
    print(f"{count} cases, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
