"""``python -m jaxmg --bench n``: measures the routines on this machine, and JAX's on one device."""

import collections.abc
import dataclasses
import functools
import statistics
import time

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat
from jaxmg._call import plugins
from jaxmg._command import output
from jaxmg._routines import counts

ROUTINES = ("potrs", "potri", "syevd")
_SECONDS = 20.0  # once the timed runs of a case have taken this long, no further one begins
_PILOT = 8  # a run of order n / 8 bounds the time for order n, because rates grow with n
_PILOT_FROM = 4096  # smaller orders run without a pilot
_LIMIT = 30  # errors are compared with this many n eps
_STEP = 1024  # the largest n that fits is reported as a multiple of this
# How many matrices a device holds at a time when JAX solves on it alone: A, its factor or its
# eigenvectors, the result, and the workspace of XLA and LAPACK. Estimated.
_ON_ONE_DEVICE = {"potrs": 3, "potri": 4, "syevd": 6}


@dataclasses.dataclass(frozen=True)
class _Case:
    """A routine of jaxmg on all devices, or its equivalent in JAX on one."""

    routine: str
    dtype: np.dtype
    mesh: Mesh
    solve: collections.abc.Callable

    def operands(self, n):
        """Returns A, whose upper triangle counts, and b; both are the same on any mesh."""
        return jax.block_until_ready(_maker(n, self.dtype, self.mesh)())

    def run(self, n, repeat):
        """Returns (seconds of each timed run, error of the last one)."""
        a, b = self.operands(n)
        jax.block_until_ready(self.solve(a, b))  # compiles
        seconds: list[float] = []
        while len(seconds) < repeat and sum(seconds) < _SECONDS:
            start = time.perf_counter()
            result = jax.block_until_ready(self.solve(a, b))
            seconds.append(time.perf_counter() - start)
        return seconds, float(_ERRORS[self.routine](a, b, result))

    def at_most(self, n):
        """Returns an upper bound on the seconds of a run of order n; 0 for small n, which have no
        pilot."""
        if n < _PILOT_FROM:
            return 0.0
        pilot = n // _PILOT // self.mesh.size * self.mesh.size
        seconds, _ = self.run(pilot, 1)
        return seconds[0] * (n / pilot) ** 3


def bench(n, routines, dtype, repeat, limit):
    """Measures and prints. Returns False if a case failed or was wrong.

    Args:
        n: order of the matrices; rounded up to a multiple of the number of devices.
        routines: names in ROUTINES.
        dtype: of the matrices; None: float64 if JAX computes in 64-bit mode, else float32.
        repeat: the largest number of timed runs of each case.
        limit: seconds; a case is left out if a run would take longer.
    """
    dtype = np.dtype(dtype or (np.float64 if _compat.x64_enabled() else np.float32))
    if dtype in (np.float64, np.complex128):
        jax.config.update("jax_enable_x64", True)  # this process is ours
    devices = jax.local_devices()
    try:
        plugins.load(devices[0].platform)
    except RuntimeError as error:
        output.fact("error", error)
        return False
    n = -(-n // len(devices)) * len(devices)
    print(
        f"n = {n}, {dtype}, {len(devices)} x {devices[0].device_kind}: the median of up to "
        f"{repeat} runs after one that compiles, with what takes more than {limit:g} s left out",
        flush=True,
    )
    # A list, so that the others are measured after one fails, too.
    return all([_routine(routine, n, dtype, devices, repeat, limit) for routine in routines])


def _routine(routine, n, dtype, devices, repeat, limit):
    print(f"\n{routine}")
    plan = jaxmg.plan(routine, n, dtype, devices)
    output.fact("plan", plan)
    everywhere = _Case(routine, dtype, Mesh(np.array(devices), ("rank",)), _OURS[routine])
    room, needed = _room(plan), _required_bytes(plan)
    if room is not None and needed is not None and needed > room:
        output.fact("jaxmg", f"left out: it needs {_gib(needed)}, and there are {_gib(room)}")
        return True
    seconds, good = _measure("jaxmg", everywhere, n, repeat, limit)
    alone = _ON_ONE_DEVICE[routine] * n * n * dtype.itemsize
    name = "JAX, one device"
    if room is not None and alone > room:
        output.fact(name, f"left out: it needs about {_gib(alone)}, and there are {_gib(room)}")
    else:
        one = _Case(routine, dtype, Mesh(np.array(devices[:1]), ("rank",)), _JAX[routine])
        theirs, _ = _measure(name, one, n, repeat, limit)
        if seconds and theirs:
            output.fact("JAX / jaxmg", f"{theirs / seconds:.2f}")
    if seconds:
        output.fact("larger n", _outlook(routine, n, dtype, devices, seconds, room))
    return good


def _measure(name, case, n, repeat, limit):
    """Measures and prints one case. Returns (its median seconds or None, False if it failed or was
    wrong)."""
    try:
        expected = case.at_most(n)
        if expected > limit:
            output.fact(
                name, f"left out: a run may take {expected:.3g} s, and --limit is {limit:g}"
            )
            return None, True
        seconds, error = case.run(n, repeat)
    except jax.errors.JaxRuntimeError as reason:  # for example, out of memory
        output.fact(name, f"FAILED: {reason}")
        return None, False
    middle = statistics.median(seconds)
    bound = _LIMIT * n * float(jnp.finfo(case.dtype).eps)
    count = counts.operations(case.routine, case.dtype.kind == "c", n)
    output.fact(
        name,
        f"{middle:.4g} s ({len(seconds)} runs, {min(seconds):.4g} to {max(seconds):.4g}), "
        f"{count / middle / 1e9:.4g} GFLOP/s, error {error:.1e} "
        f"{'ok' if error <= bound else f'WRONG, the limit is {bound:.1e}'}",
    )
    return middle, error <= bound


def _outlook(routine, n, dtype, devices, seconds, room):
    """Returns a line about larger orders: which fit, and how long they take."""
    largest = largest_order(routine, dtype, devices, room)
    if largest is None:
        return "how much memory there is isn't known"
    if largest <= n:
        return f"about n = {n} is the largest that fits"
    longer = seconds * (largest / n) ** 3
    return (
        f"up to n = {largest} fits where a is donated ({_gib(room)} are there), and that takes at "
        f"most about {longer:.3g} s, an estimate by the rate of n = {n}: rates grow with n"
    )


def largest_order(routine, dtype, devices, room):
    """Returns the largest multiple of 1024 for which `plan` is known to need no more than ``room``
    bytes; None if ``room`` is unknown."""
    if room is None:
        return None

    def fits(steps):
        needed = _required_bytes(jaxmg.plan(routine, steps * _STEP, dtype, devices, donate=True))
        return needed is not None and needed <= room

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * _STEP


def _required_bytes(plan):
    """Returns the bytes that the busiest device needs, or all devices if they share the host's
    memory. None if the backend tells them only when it has the matrix, as cuSOLVERMg does."""
    if not plan.bytes:
        return None
    return max(plan.bytes) if plan.memory else sum(plan.bytes)


def _room(plan):
    """Returns the bytes available for `_required_bytes`; None if they are unknown."""
    return plan.memory or _host_memory()


def _host_memory():
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        return None


@functools.cache
def _maker(n, dtype, mesh):
    shardings = (NamedSharding(mesh, P("rank", None)), NamedSharding(mesh, P()))
    return jax.jit(functools.partial(_operands, n, dtype), out_shardings=shardings)


def _operands(n, dtype):
    keys = jax.random.split(jax.random.key(0))
    noise = jax.random.normal(keys[0], (n, n), dtype)
    # The spectrum of the rest reaches 2 sqrt(n), so A is positive definite.
    a = jnp.where(jnp.eye(n, dtype=bool), jnp.asarray(2 * n, dtype), noise)
    return a, jax.random.normal(keys[1], (n,), dtype)


def _cho_solve(a, b):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b)


_OURS = {
    "potrs": lambda a, b: jaxmg.potrs(a, b),
    "potri": lambda a, b: jaxmg.potri(a),
    "syevd": lambda a, b: jaxmg.syevd(a),
}
_JAX = {
    "potrs": jax.jit(_cho_solve),
    "potri": jax.jit(lambda a, b: _cho_solve(a, jnp.eye(len(a), dtype=a.dtype))),
    "syevd": jax.jit(lambda a, b: jnp.linalg.eigh(a, UPLO="U", symmetrize_input=False)),
}


def _norm(x):
    return jnp.max(jnp.abs(x))


def _multiply(upper, x):
    """Returns the Hermitian matrix with this upper triangle, times x."""
    with jax.default_matmul_precision("highest"):
        strict = jnp.triu(upper, 1)
        return jnp.triu(upper) @ x + strict.conj().T @ x


def _size(upper):
    """Returns the infinity norm of the Hermitian matrix with this upper triangle."""
    strict = jnp.abs(jnp.triu(upper, 1))
    rows = jnp.sum(jnp.abs(jnp.triu(upper)), axis=1) + jnp.sum(strict, axis=0)
    return jnp.max(rows)


@jax.jit
def _solve_error(a, b, x):
    return _norm(_multiply(a, x) - b) / (_size(a) * _norm(x) + _norm(b))


@jax.jit
def _inverse_error(a, b, inverse):
    with jax.default_matmul_precision("highest"):
        error = inverse @ _multiply(a, b) - b
    return _norm(error) / (jnp.max(jnp.sum(jnp.abs(inverse), axis=1)) * _size(a) * _norm(b))


@jax.jit
def _eigen_error(a, b, result):
    """Returns the larger of two errors for one vector: the residual, and V's deviation from
    orthogonality."""
    w, v = result
    with jax.default_matmul_precision("highest"):
        image = v @ b
        residual = _norm(_multiply(a, image) - v @ (w * b)) / (_size(a) * _norm(image))
        return jnp.maximum(residual, _norm(v.conj().T @ image - b) / _norm(b))


_ERRORS = {"potrs": _solve_error, "potri": _inverse_error, "syevd": _eigen_error}


def _gib(count):
    return f"{count / 2**30:.2f} GiB"
