"""Random batches and derivatives on random meshes, beside JAX's own on one device.

    transformations.py [--seed 0] [--seconds 60] [--case N]

A case is a function, a transformation, a mesh (automatic or explicit axes, permuted devices, some
of them), how the batch lies, and a dtype, all of which follow from the seed and the case's number.
Prints each failure with the command that repeats it, and how many cases were run; the exit code is
1 if any failed.
"""

import argparse
import contextlib
import os
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

jax.config.update("jax_enable_x64", True)

_N, _SIZE = 8, 8
DTYPES = ("float32", "float64", "complex64", "complex128")
# Function of (a, b, mesh) -> the same by JAX of (a, b).
FUNCTIONS = {
    "potrs": (lambda a, b, m: jaxmg.potrs(a, b, mesh=m), jnp.linalg.solve),
    "potri": (lambda a, b, m: jaxmg.potri(a, mesh=m), lambda a, b: jnp.linalg.inv(a)),
    "cho_solve": (
        lambda a, b, m: jaxmg.cho_solve(jaxmg.cho_factor(a, mesh=m), b),
        jnp.linalg.solve,
    ),
    "logdet": (
        lambda a, b, m: jaxmg.cho_factor(a, mesh=m).logdet(),
        lambda a, b: jnp.linalg.slogdet(a)[1],
    ),
    "eigvalsh": (lambda a, b, m: jaxmg.eigvalsh(a, mesh=m), lambda a, b: jnp.linalg.eigvalsh(a)),
    "inv": (lambda a, b, m: jaxmg.linalg.inv(a, mesh=m), lambda a, b: jnp.linalg.inv(a)),
}
SPECS = (
    ((), ()),
    (("r",), ("r",)),
    ((("r", "c"),), (("r", "c"),)),
    (("c", "r"), ("c",)),
    ((None, "r", None), ()),
    ((None, None, "c"), ()),
    ((None, "r", "c"), (None, "c")),
)
WAYS = {
    "vmap": lambda f: jax.vmap(f),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(_size(f), (0, 1))),
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(_size(f), (0, 1)))),
    "grad of vmap": lambda f: jax.grad(_size(jax.vmap(f)), (0, 1)),
    "jit of jvp of vmap": lambda f: jax.jit(_jvp(jax.vmap(f))),
}


def _size(function):
    return lambda a, b: jnp.sum(jnp.abs(function(a, b)) ** 2)


def _jvp(function):
    return lambda a, b: jax.jvp(function, (a, b), (a * a + 1, b - 1))[1]


def _of_hermitian_part(function):
    def called(a, b):
        adjoint, sharding = a.conj().T, jax.typeof(a).sharding
        if AxisType.Explicit in sharding.mesh.axis_types:
            adjoint = jax.sharding.reshard(adjoint, sharding)
        return function((a + adjoint) / 2, b)

    return called


def run(seed, number):
    """None, or what is wrong with a case."""
    random = np.random.default_rng([seed, number])
    name, way, dtype = (str(random.choice(list(x))) for x in (FUNCTIONS, WAYS, DTYPES))
    kind = (AxisType.Auto, AxisType.Explicit)[random.integers(2)]
    shape = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4))[random.integers(6)]
    devices = random.permutation(np.array(jax.devices()))[: shape[0] * shape[1]]
    mesh = Mesh(devices.reshape(shape), ("r", "c"), axis_types=(kind,) * 2)
    of_a, of_b = SPECS[random.integers(len(SPECS))]
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64

    def normal(*shape):
        value = random.standard_normal(shape)
        return value + 1j * random.standard_normal(shape) if wide is np.complex128 else value

    x = normal(_SIZE, _N, _N)
    a = x @ x.conj().swapaxes(1, 2) / _N + np.diag(np.arange(1.0, _N + 1))
    a, b = a.astype(dtype), normal(_SIZE, _N, 2).astype(dtype)
    where = f"{name}, {way}, {dtype}, {kind.name} {shape}, {of_a} {of_b}"
    ours, theirs = FUNCTIONS[name]
    expected = WAYS[way](_of_hermitian_part(theirs))(a.astype(wide), b.astype(wide))
    context = jax.set_mesh(mesh) if kind == AxisType.Explicit else contextlib.nullcontext()
    try:
        with context:
            placed = (
                jax.device_put(x, NamedSharding(mesh, P(*s))) for x, s in ((a, of_a), (b, of_b))
            )
            function = _of_hermitian_part(lambda a, b: ours(a, b, mesh))
            found = jax.block_until_ready(WAYS[way](function)(*placed))
    except Exception as error:
        return f"{where}: {type(error).__name__}: {str(error)[:200]!r}"
    limit = 5000 * float(np.finfo(dtype).eps)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        apart = np.abs(np.asarray(x) - np.asarray(y)).max()
        if not apart <= limit * max(1, np.abs(np.asarray(y)).max()):
            return f"{where}: differs by {apart}"
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
