"""``python -m jaxmg --bench``: measures the routines on this machine, and JAX's on one device."""

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
from jaxmg._command import output
from jaxmg._plugin import plugins
from jaxmg._routines import counts
from jaxmg._types import RoutineName

_SECONDS = 20.0  # once the timed runs of a case have taken this long, no further one begins
_PILOT = 8  # a run of order n / 8 bounds the time for order n, because rates grow with n
_PILOT_FROM = 4096  # smaller orders run without a pilot
_LIMIT = 30  # errors are compared with this many n eps
_STEP = 1024  # the largest n that fits is reported as a multiple of this
_DEFAULT = {"cpu": 2048, "gpu": 16384}
# A batch has 16^2 matrices of order n / 16, so it is as large as one matrix; or a few more, so that
# the devices divide it.
_BATCH = 16


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A kind of measurement, selected by its name.

    Attributes:
        ours, jax: functions of A and b.
        error: a function of A, b and the result, of at most n eps.
        operations: a function of n, for one real matrix, or in a batch for each of its matrices.
        plan: the routine of `jaxmg.plan`; None if it has none.
        matrices: estimated number of matrices like A in the memory of a call of ``ours``, if
            ``plan`` is None.
        alone: the same number for a call of ``jax``.
        hermitian: whether A is positive definite, and only its upper triangle counts.
        batch: number of matrices in A if A is a batch, else 0.
    """

    ours: collections.abc.Callable
    jax: collections.abc.Callable
    error: collections.abc.Callable
    operations: collections.abc.Callable
    plan: RoutineName | None
    matrices: int
    alone: int
    hermitian: bool = False
    batch: int = 0

    def for_devices(self, count):
        """Returns the kind with its batch rounded up to a multiple of ``count`` devices."""
        return dataclasses.replace(self, batch=-(-self.batch // count) * count)


@dataclasses.dataclass(frozen=True)
class _Case:
    """A routine of jaxmg on all devices, or its equivalent in JAX on one."""

    kind: _Kind
    dtype: np.dtype
    mesh: Mesh
    solve: collections.abc.Callable

    def operands(self, n):
        """Returns A and b; both are the same on any mesh."""
        return jax.block_until_ready(_maker(n, self.dtype, self.mesh, self.kind)())

    def run(self, n, repeat):
        """Returns (seconds of each timed run, error of the last one)."""
        a, b = self.operands(n)
        jax.block_until_ready(self.solve(a, b))  # compiles
        seconds: list[float] = []
        while len(seconds) < repeat and sum(seconds) < _SECONDS:
            start = time.perf_counter()
            result = jax.block_until_ready(self.solve(a, b))
            seconds.append(time.perf_counter() - start)
        return seconds, float(self.kind.error(a, b, result))

    def at_most(self, n):
        """Returns an upper bound on the seconds of a run of order n; 0 for small n, which have no
        pilot."""
        if n < _PILOT_FROM:
            return 0.0
        step = _BATCH * self.mesh.size if self.kind.batch else self.mesh.size
        pilot = max(n // _PILOT // step, 1) * step
        seconds, _ = self.run(pilot, 1)
        return seconds[0] * (n / pilot) ** 3


@dataclasses.dataclass
class _Measurement:
    """A case to measure, or why it is left out."""

    name: str
    case: _Case | None
    left_out: str = ""
    failed: bool = False
    bound: float = 0.0

    def look(self, n, limit):
        """Runs the pilot."""
        if self.case is None:
            return
        try:
            self.bound = self.case.at_most(n)
        except jax.errors.JaxRuntimeError as reason:
            self.failed, self.left_out = True, f"FAILED: {reason}"
        else:
            if self.bound > limit:
                self.left_out = (
                    f"left out: a run may take {self.bound:.3g} s, and --limit is {limit:g}"
                )
        if self.left_out:
            self.case = None

    def expected(self, repeat):
        """Returns an upper bound of the total time of all runs, in seconds."""
        if self.case is None:
            return 0.0
        return self.bound + min(repeat * self.bound, _SECONDS + self.bound)

    def run(self, n, repeat):
        """Measures and prints. Returns (the median seconds or None, False if it failed or was
        wrong)."""
        if self.case is None:
            output.fact(self.name, self.left_out)
            return None, not self.failed
        return _measure(self.name, self.case, n, repeat)


def bench(n, routines, dtype, repeat, limit):
    """Measures and prints. Returns False if a case failed or was wrong.

    Args:
        n: order of the matrices, rounded up so that the devices divide it; None: as fits the
            platform.
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
    n = n or _DEFAULT.get(devices[0].platform, _DEFAULT["gpu"])
    n = -(-n // len(devices)) * len(devices)
    print(
        f"n = {n}, {dtype}, {len(devices)} x {devices[0].device_kind}: the median of up to "
        f"{repeat} runs after one that compiles, with what takes more than {limit:g} s left out",
        flush=True,
    )
    prepared = [_prepare(routine, n, dtype, devices) for routine in routines]
    for pair in prepared:
        for measurement in pair.both:
            measurement.look(n, limit)
    print(f"expected: {_expectation(n, prepared, repeat)}", flush=True)
    # A list, so that the others are measured after one fails, too.
    return all([_routine(pair, n, dtype, devices, repeat) for pair in prepared])


@dataclasses.dataclass
class _Pair:
    """The measurements of one name."""

    name: str
    kind: _Kind
    plan: jaxmg.Plan | None
    room: int | None
    both: tuple[_Measurement, _Measurement]  # ours, JAX's


def _expectation(n, prepared, repeat):
    measurements = [m for pair in prepared for m in pair.both]
    count = sum(m.case is not None for m in measurements)
    compiles = f"the time to compile {count} programs, a few seconds each"
    if n < _PILOT_FROM:
        return compiles
    seconds = sum(m.expected(repeat) for m in measurements)
    return f"at most about {seconds:.3g} s (from runs of order n / {_PILOT}), and {compiles}"


def _prepare(routine, n, dtype, devices):
    kind = KINDS[routine].for_devices(len(devices))
    plan = None if kind.plan is None else jaxmg.plan(kind.plan, n, dtype, devices)
    room = _room(devices)
    one = max(n * n, kind.batch * _order_in_batch(n) ** 2) * dtype.itemsize
    parts = 1 if devices[0].memory_stats() is None else len(devices)  # which share the host's
    needed = _required_bytes(plan) if plan else kind.matrices * one // parts

    def measurement(name, count, about, some, solve):
        if room is not None and count is not None and count > room:
            return _Measurement(name, None, _no_room(count, room, about))
        return _Measurement(name, _Case(kind, dtype, Mesh(np.array(some), ("rank",)), solve))

    ours = measurement("jaxmg", needed, "" if plan else "about ", devices, kind.ours)
    theirs = measurement("JAX, one device", kind.alone * one, "about ", devices[:1], kind.jax)
    return _Pair(routine, kind, plan, room, (ours, theirs))


def _no_room(needed, room, about):
    return f"left out: it needs {about}{_gib(needed)}, and there are {_gib(room)}"


def _routine(pair, n, dtype, devices, repeat):
    print(f"\n{pair.name}{_of_batch(n, pair.kind.batch) if pair.kind.batch else ''}")
    if pair.plan is not None:
        output.fact("plan", pair.plan)
    (seconds, good), (other, _) = (measurement.run(n, repeat) for measurement in pair.both)
    if seconds and other:
        output.fact("JAX / jaxmg", f"{other / seconds:.2f}")
    if seconds and pair.plan is not None:
        output.fact("larger n", _outlook(pair.plan.routine, n, dtype, devices, seconds, pair.room))
    return good


def _of_batch(n, count):
    return f" of {count} matrices of order {_order_in_batch(n)}, by vmap of potrs"


def _order_in_batch(n):
    return max(n // _BATCH, 1)


def _measure(name, case, n, repeat):
    """Measures and prints one case. Returns (its median seconds or None, False if it failed or was
    wrong)."""
    try:
        seconds, error = case.run(n, repeat)
    except jax.errors.JaxRuntimeError as reason:  # for example, out of memory
        output.fact(name, f"FAILED: {reason}")
        return None, False
    middle = statistics.median(seconds)
    bound = _LIMIT * n * float(jnp.finfo(case.dtype).eps)
    count = case.kind.operations(n) * max(case.kind.batch, 1) * (4 if case.dtype.kind == "c" else 1)
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


def _room(devices):
    """Returns the bytes available for `_required_bytes`; None if they are unknown."""
    return jaxmg.plan("potrs", len(devices), np.float32, devices).memory or _host_memory()


def _host_memory():
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        return None


@functools.cache
def _maker(n, dtype, mesh, kind):
    rows = P("rank", None, None) if kind.batch else P("rank", None)
    shardings = (NamedSharding(mesh, rows), NamedSharding(mesh, P("rank") if kind.batch else P()))
    return jax.jit(functools.partial(_operands, n, dtype, kind), out_shardings=shardings)


def _operands(n, dtype, kind):
    keys = jax.random.split(jax.random.key(0))
    order, many = (_order_in_batch(n), (kind.batch,)) if kind.batch else (n, ())
    a = jax.random.normal(keys[0], (*many, order, order), dtype)
    if kind.hermitian:
        # The spectrum of the rest reaches 2 sqrt(n), so A is positive definite.
        a = jnp.where(jnp.eye(order, dtype=bool), jnp.asarray(2 * order, dtype), a)
    return a, jax.random.normal(keys[1], (*many, order), dtype)


def _cho_solve(a, b):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b)


def _norm(x):
    return jnp.max(jnp.abs(x))


def _highest(function):
    """Returns the function, compiled, with products in full precision."""

    def with_precision(*args):
        with jax.default_matmul_precision("highest"):
            return function(*args)

    return jax.jit(with_precision)


def _multiply(upper, x):
    """Returns the Hermitian matrix with this upper triangle, times x."""
    strict = jnp.triu(upper, 1)
    return jnp.triu(upper) @ x + strict.conj().T @ x


def _size(upper):
    """Returns the infinity norm of the Hermitian matrix with this upper triangle."""
    strict = jnp.abs(jnp.triu(upper, 1))
    rows = jnp.sum(jnp.abs(jnp.triu(upper)), axis=1) + jnp.sum(strict, axis=0)
    return jnp.max(rows)


def _largest_row(a):
    return jnp.max(jnp.sum(jnp.abs(a), axis=1))


def _residual(a, b, x):
    return _norm(_multiply(a, x) - b) / (_size(a) * _norm(x) + _norm(b))


@_highest
def _inverse_error(a, b, inverse):
    error = inverse @ _multiply(a, b) - b
    return _norm(error) / (_largest_row(inverse) * _size(a) * _norm(b))


@_highest
def _general_error(a, b, x):
    return _norm(a @ x - b) / (_largest_row(a) * _norm(x) + _norm(b))


def _orthogonality(q, image, b):
    """Returns how far Qᴴ Q b is from b, for image = Q b."""
    return _norm(q.conj().T @ image - b) / _norm(b)


# The larger of errors for one vector: of the residual, and of orthogonality.
@_highest
def _eigen_error(a, b, result):
    w, v = result
    image = v @ b
    residual = _norm(_multiply(a, image) - v @ (w * b)) / (_size(a) * _norm(image))
    return jnp.maximum(residual, _orthogonality(v, image, b))


@_highest
def _qr_error(a, b, result):
    q, r = result
    residual = _norm(q @ (r @ b) - a @ b) / (_largest_row(a) * _norm(b))
    return jnp.maximum(residual, _orthogonality(q, q @ b, b))


@_highest
def _svd_error(a, b, result):
    u, s, vh = result
    residual = _norm(u @ (s * (vh @ b)) - a @ b) / (_largest_row(a) * _norm(b))
    orthogonality = jnp.maximum(
        _orthogonality(u, u @ b, b), _orthogonality(vh.conj().T, vh.conj().T @ b, b)
    )
    return jnp.maximum(residual, orthogonality)


def _count(routine):
    return functools.partial(counts.operations, routine, False)


KINDS = {
    "potrs": _Kind(
        lambda a, b: jaxmg.potrs(a, b), jax.jit(_cho_solve), _highest(_residual),
        _count("potrs"), "potrs", 2, 3, hermitian=True,
    ),
    "potri": _Kind(
        lambda a, b: jaxmg.potri(a),
        jax.jit(lambda a, b: _cho_solve(a, jnp.eye(len(a), dtype=a.dtype))),
        _inverse_error, _count("potri"), "potri", 2, 4, hermitian=True,
    ),
    "gesv": _Kind(
        lambda a, b: jaxmg.gesv(a, b), jax.jit(jnp.linalg.solve), _general_error,
        _count("gesv"), "gesv", 2, 3,
    ),
    "qr": _Kind(
        lambda a, b: jaxmg.linalg.qr(a), jax.jit(lambda a, b: tuple(jnp.linalg.qr(a))), _qr_error,
        lambda n: 2 * counts.operations("geqrf", False, n), None, 6, 5,
    ),
    "svd": _Kind(
        lambda a, b: jaxmg.linalg.svd(a),
        jax.jit(lambda a, b: tuple(jnp.linalg.svd(a, full_matrices=False))), _svd_error,
        # A nominal count: 8/3 n^3 for the bidiagonal reduction, and twice the count for the vectors
        # of syevd.
        lambda n: 8 / 3 * n**3 + 2 * (counts.operations("syevd", False, n) - 4 / 3 * n**3),
        None, 12, 8,
    ),
    "eigh": _Kind(
        lambda a, b: jaxmg.syevd(a),
        jax.jit(lambda a, b: jnp.linalg.eigh(a, UPLO="U", symmetrize_input=False)), _eigen_error,
        _count("syevd"), "syevd", 4, 6, hermitian=True,
    ),
    "batch": _Kind(
        lambda a, b: jax.vmap(jaxmg.potrs)(a, b), jax.jit(jax.vmap(_cho_solve)),
        _highest(lambda a, b, x: jnp.max(jax.vmap(_residual)(a, b, x))),
        lambda n: counts.operations("potrs", False, _order_in_batch(n)), None, 3, 3,
        hermitian=True, batch=_BATCH**2,
    ),
}  # fmt: skip
if not _compat.TRANSFORMS:  # batches need a newer JAX
    del KINDS["batch"]
ROUTINES = tuple(KINDS)


def _gib(count):
    return f"{count / 2**30:.2f} GiB"
