"""`plan`: the solver, tile width and memory of a call, without running it."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Literal, SupportsIndex, overload

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import DTypeLike

from jaxmg import _compat
from jaxmg._call import backends, checks
from jaxmg._cholesky import refinement
from jaxmg._host import driver, passes, plans
from jaxmg._host.plans import HostPlan
from jaxmg._kept import lower_precision
from jaxmg._layouts import layouts
from jaxmg._lu import refinement as lu_refinement
from jaxmg._plugin import plugins
from jaxmg._routines import counts, table
from jaxmg._types import (
    Backend,
    Devices,
    Else,
    HostRoutineName,
    PrecisionLike,
    Refine,
    RoutineName,
)

# The functions of tall matrices in host memory.
_TALL = ("lstsq", "least_squares", "qr")
# Memory of an iteration with ``refine``: arrays like b (solution, residual, correction, directions)
# and additional vectors of n numbers. Both counts were read from compiled programs of XLA.
_LIKE_B, _OF_ROWS = 8, 2
_MANY = 2**20  # an order for which tiles have their largest width
# `plan` computes the memory of each device in turn; more devices than this would take seconds.
_MOST_DEVICES = 4096


@dataclasses.dataclass(frozen=True)
class Plan:
    """Holds the result of `plan`; prints as a sentence.

    Attributes:
        routine, n, dtype: The arguments of `plan`.
        backend: Solver of the call.
        tile: Tile width.
        gathered: Whether one device does all the work, as is best for small matrices.
        bytes: Peak bytes of memory, one number for each device: rows of A (for "cho_solve" rows of
            the factor; for "sygvd" also rows of B), their copy unless donated, right-hand sides,
            results and workspace. Empty if the backend can't tell without the matrix (cuSOLVERMg).
        memory: Bytes that JAX may use on one device, including those of other arrays. None if no
            ``memory`` was passed to `plan` and the device doesn't report it (CPU devices don't).
        devices: Number of devices.
        refine: Precision of the factorization, by its name in `potrs`; None without ``refine``.
    """

    routine: str
    n: int
    dtype: np.dtype
    backend: str
    tile: int
    gathered: bool
    bytes: tuple[int, ...]
    memory: int | None
    devices: int
    refine: str | None = None

    @property
    def fits(self) -> bool | None:
        """Returns whether each device has enough memory; None if unknown."""
        if self.memory is None or not self.bytes:
            return None
        return max(self.bytes) <= self.memory

    def __str__(self) -> str:
        fits = {True: "it fits", False: "it does NOT fit", None: "whether it fits isn't known"}
        of = "" if self.memory is None else f" of {_readable(self.memory)}"
        where = f"{self.devices} device{'s' if self.devices > 1 else ''}"
        needed = f"{_readable(max(self.bytes))}{of}" if self.bytes else "memory that isn't known"
        refine = f" with refine={self.refine!r}" if self.refine else ""
        gathered = ", gathered on one device" if self.gathered else ""
        return (
            f"{self.routine}{refine}, n = {self.n}, {self.dtype}, on {where}: backend "
            f"{self.backend!r}, tiles of {self.tile}{gathered}; "
            f"{needed} on the busiest device: {fits[self.fits]}"
        )


@overload
def plan(
    routine: RoutineName | Else, n: SupportsIndex | Else, dtype: DTypeLike | Else,
    devices: Devices | SupportsIndex | None | Else = None, *, nrhs: SupportsIndex | Else = 1,
    T_A: SupportsIndex | None | Else = None, backend: Backend | Else = "auto",
    donate: bool | Else = False, return_eigenvectors: bool = True, refine: Refine | None = None,
    precision: PrecisionLike | None | Else = None, memory: float | None | Else = None,
    host: Literal[False] = False,
) -> Plan: ...  # fmt: skip


@overload
def plan(
    routine: RoutineName | HostRoutineName | Else,
    n: SupportsIndex | tuple[SupportsIndex, SupportsIndex] | Else, dtype: DTypeLike | Else,
    devices: Devices | SupportsIndex | None | Else = None, *, nrhs: SupportsIndex | Else = 1,
    T_A: SupportsIndex | None | Else = None, backend: Backend | Else = "auto",
    donate: bool | Else = False, return_eigenvectors: bool | Else = True,
    refine: Refine | None | Else = None, precision: PrecisionLike | None | Else = None,
    memory: float | None | Else = None, host: Literal[True] | Else,
) -> HostPlan: ...  # fmt: skip


@_compat.overloaded_boundary
def plan(
    routine: RoutineName | HostRoutineName,
    n: SupportsIndex | tuple[SupportsIndex, SupportsIndex],
    dtype: DTypeLike,
    devices: Devices | SupportsIndex | None = None,
    *,
    nrhs: SupportsIndex = 1,
    T_A: SupportsIndex | None = None,
    backend: Backend = "auto",
    donate: bool = False,
    return_eigenvectors: bool = True,
    refine: Refine | None = None,
    precision: PrecisionLike | None = None,
    memory: float | None = None,
    host: bool = False,
) -> Plan | HostPlan:
    """Plans a call: its solver, tile width and memory. Runs nothing.

    Args:
        routine: "potrs", "potri", "gesv", "getri", "syevd", "sygvd", "cho_factor", "cho_solve",
            "lu_factor", "geqrf" or "least_squares"; with ``host`` "potrs", "cho_factor", "gesv",
            "lu_factor", "gaussian_log_likelihood" (with its gradient), or "lstsq",
            "least_squares" or "qr" of `jaxmg.linalg`.
        n: Order of A, at least 1; for the last three (m, n).
        dtype: float32, float64, complex64 or complex128.
        devices: Devices that share A by rows: a sequence, a ``jax.sharding.Mesh``, or a number of
            devices like ``jax.local_devices()[0]``, which need not exist. None: all local devices.
        nrhs: Number of right-hand sides, for "potrs", "gesv", "cho_solve" and "least_squares".
        T_A: Tile width, as in the call. None: the plugin chooses.
        backend: "auto", "native", "cusolvermg" or "cusolvermp", as in the call.
        donate: Whether A (and the B of "sygvd") is donated, which saves its copy.
        return_eigenvectors: As in the call, for "syevd" and "sygvd".
        refine: As in the call, for "potrs", "gesv", "cho_factor" and "lu_factor"; for "cho_solve"
            as in `cho_factor`. The tile width is for the factor in lower precision; the bytes
            include those of a fallback.
        precision: As in the call. Precisions that split operands into parts take memory for them.
        memory: Bytes that JAX may use on one device, such as 80e9. None: as the device reports.
        host: Whether the matrix stays in host memory.

    Returns:
        A `Plan`. It assumes that A is sharded by rows; any other A needs one more copy. With
        ``host`` a `HostPlan`.

    Raises:
        TypeError, ValueError: An argument is invalid, or the backend isn't available.
        RuntimeError: No plugin is installed for the platform.

    Examples:
        >>> print(jaxmg.plan("potrs", 65536, "float64", nrhs=16))
        >>> assert jaxmg.plan("potri", n, a.dtype, mesh, donate=True).fits is not False
        >>> jaxmg.plan("syevd", 131072, "float64", devices=8, memory=140e9).fits
        >>> jaxmg.plan("potrs", 150000, "float64", host=True, memory=72e9).seconds(52e12)
        >>> jaxmg.plan("lstsq", (6000000, 2048), "float64", host=True, memory=72e9)
    """
    name = f"plan({routine!r})"
    if host and isinstance(routine, str) and routine in _TALL:
        sizes = n if isinstance(n, tuple) and len(n) == 2 else (0, 0)
        shape = tuple(checks.non_negative(name, "n", size) for size in sizes)
        if not shape[0] >= shape[1] >= 1:
            raise ValueError(f"{name}: n must be (m, n) with m >= n >= 1; got {n!r}")
        nrhs = 0 if routine == "qr" else max(checks.non_negative(name, "nrhs", nrhs), 1)
        layout = _layout(name, devices, memory)
        return passes.plan(routine, shape, nrhs, _dtype(name, dtype), layout, memory)
    if host and routine == plans.LIKELIHOOD:
        n, nrhs = checks.positive(name, "n", n), checks.positive(name, "nrhs", nrhs)
        return _plan_host(
            name, routine, n, nrhs, _dtype(name, dtype), _layout(name, devices, memory), memory,
            donate=False,
        )  # fmt: skip
    if not isinstance(routine, str) or routine not in table.PLANS:
        raise ValueError(
            f"plan: routine must be one of {', '.join(map(repr, table.PLANS))}; got {routine!r}"
        )
    n, nrhs = checks.positive(name, "n", n), checks.non_negative(name, "nrhs", nrhs)
    dtype = _dtype(name, dtype)
    tile = checks.tile(name, T_A)
    layout = _layout(name, devices, memory)
    if host:
        return _plan_host(name, routine, n, nrhs, dtype, layout, memory, donate)
    a = jax.ShapeDtypeStruct((n, n), dtype)
    row = table.PLANS[routine]
    if refine is not None and not row.refines:
        takers = (other.name for other in table.PLANS.values() if other.refines)
        raise ValueError(f"{name}: refine={refine!r} is only for {', '.join(map(repr, takers))}")
    if backend == "auto" and (row.native_alone or refine is not None):
        backend = "native"
    if backend != "native" and row.native_alone:
        checks.backend(routine, backend, ["native"], layout.platform)
    backend = backends.resolve(row.native, layout, backend, a)
    if refine is not None:
        general = routine in ("gesv", "lu_factor")
        precision_name = lower_precision.check(name, refine, dtype, backend, layout.platform)
        planned = lu_refinement if general else refinement
        lower = planned.plan(layout, dtype, n, tile, precision_name)
        refined = _refined_general_bytes if general else _refined_bytes
        needed = refined(routine, layout, dtype, n, max(nrhs, 1), tile, donate, lower)
        return Plan(
            routine, n, dtype, backend, lower["tile"], False, needed, layout.memory, layout.ranks,
            precision_name,
        )  # fmt: skip
    vectors = bool(return_eigenvectors)
    products = checks.precision(name, precision, dtype, backend)
    sizes = backends.plan(
        row.native, layout, backend, dtype, (n, n), tile, max(nrhs, 1), vectors, products
    )
    own = _own_bytes(row, n, layout.ranks, dtype, nrhs, donate)
    if routine == "cho_solve":
        own += sizes["overflow_rows"] * n * dtype.itemsize
    return Plan(
        routine, n, dtype, backend, sizes["tile"], bool(sizes["gathered"]),
        tuple(own + count for count in sizes["bytes"]), layout.memory, layout.ranks,
    )  # fmt: skip


def _plan_host(name, routine, n, nrhs, dtype, layout, memory, donate):
    """Returns the `HostPlan` of a call."""
    if routine not in ("potrs", "cho_factor", "gesv", "lu_factor", plans.LIKELIHOOD):
        raise ValueError(
            f"{name}: host=True is only for 'potrs', 'cho_factor', 'gesv', 'lu_factor', "
            f"'{plans.LIKELIHOOD}' and {', '.join(map(repr, _TALL))}"
        )
    nrhs = nrhs if routine in ("potrs", "gesv", plans.LIKELIHOOD) else 0
    is_complex = dtype.kind == "c"
    if routine == plans.LIKELIHOOD:  # the inverse, with the factor, and both substitutions
        parts = ("potri", "cho_solve")
        count = sum(counts.operations(part, is_complex, n, nrhs) for part in parts)
    else:
        count = counts.operations(routine, is_complex, n, nrhs)
    return plans.plan(routine, n, nrhs, dtype, layout, memory, donate, count, driver.packed_bytes)


def _own_bytes(row, n, ranks, dtype, nrhs, donate):
    """Returns the bytes per device of the caller's arrays and of XLA's copies of matrices."""
    copies = 2 if row.results and not donate else 1  # without results none is overwritten
    sides = len(row.operands) - row.matrices
    elements = copies * row.matrices * -(-n // ranks) * n + sides * n * nrhs
    return elements * dtype.itemsize


def _refined_bytes(routine, layout, dtype, n, nrhs, tile, donate, lower):
    """Returns the bytes that a call with ``refine`` takes on each device.

    They are the sum of the call's own arrays, the peak of XLA's other arrays, and the largest
    workspace of its native routines.

    Args:
        lower: the plugin's plan of the factorization in lower precision.
    """
    size, low = dtype.itemsize, lower_precision.lower_dtype(dtype).itemsize
    real = np.finfo(dtype).dtype.itemsize
    height = -(-n // layout.ranks)
    a, b, overflow = height * n * size, n * nrhs * size, lower["overflow_rows"] * n * low
    tiles = height * n * low
    vectors = _LIKE_B * b + _OF_ROWS * n * size
    # A piece of A, and the squares of its elements, which are summed.
    rounding = lower_precision.piece_height(height, n) * n * (size + real) + _OF_ROWS * n * size
    # XLA computes the exponents of b before it rounds A, and keeps them for the solve.
    exponents = n * nrhs * np.dtype(np.int32).itemsize
    # The fallback takes a copy of A, in memory that the other arrays no longer need.
    in_place = routine == "potrs" and donate and _compat.BRANCHES_WORK_IN_PLACE
    again = 0 if in_place else a + b
    factor_bytes = a + tiles + overflow + n * real
    factoring = [count - overflow for count in lower["bytes"]]
    solving = _solving_bytes(layout, dtype, n, nrhs, tile, lower["tile"])
    own, others, native = {
        "potrs": (
            a + 2 * b,
            max(tiles + max(rounding + exponents, overflow + vectors), again),
            map(max, factoring, solving),
        ),
        "cho_factor": (factor_bytes, rounding, factoring),
        "cho_solve": (factor_bytes + 2 * b, max(vectors, again), solving),
    }[routine]
    return tuple(own + others + count for count in native)


def _refined_general_bytes(routine, layout, dtype, n, nrhs, tile, donate, lower):
    """As `_refined_bytes`, for LU."""
    size, low = dtype.itemsize, lower_precision.lower_dtype(dtype).itemsize
    height = -(-n // layout.ranks)
    a, b, overflow = height * n * size, n * nrhs * size, lower["overflow_rows"] * n * low
    tiles, shared = height * n * low, 3 * n * np.dtype(np.int32).itemsize
    columns = lu_refinement.columns_at_a_time(n, layout.ranks, nrhs)
    vectors = lu_refinement.LIKE_B * n * columns * size + 2 * b + _OF_ROWS * n * size
    if dtype.kind == "c":  # XLA's complex products take temporary memory
        vectors += (16 * columns + 10) * n * size
    # A piece of A, scaled, rounded, and a mask of its denormals.
    piece = lower_precision.piece_height(height, n) * n
    rounding = piece * (size + low + 1) + _OF_ROWS * n * size
    in_place = routine == "gesv" and donate and _compat.BRANCHES_WORK_IN_PLACE
    again = 0 if in_place else a + b

    def beside_x(native, dtype, tile):
        sizes = backends.plan(native, layout, "native", dtype, (n, n), tile, nrhs)
        return [count - n * nrhs * dtype.itemsize for count in sizes["bytes"]]

    factoring = [count - overflow for count in lower["bytes"]]
    if routine == "lu_factor":
        own, others, native = a + tiles + overflow + shared, rounding, factoring
    else:
        solving = beside_x("lu_apply", lower_precision.lower_dtype(dtype), lower["tile"])
        again_bytes = beside_x("gesv", dtype, tile)
        native = list(map(max, factoring, solving, again_bytes))
        own = a + 2 * b
        others = max(tiles + shared + max(rounding, overflow + vectors), again)
    return tuple(own + others + count for count in native)


def _solving_bytes(layout, dtype, n, nrhs, tile, lower_tile):
    """Returns the largest workspace of the routines that a refined solve calls, on each device."""
    height, low = -(-n // layout.ranks), lower_precision.lower_dtype(dtype)

    def beside_x(routine, dtype, tile):
        sizes = backends.plan(routine, layout, "native", dtype, (n, n), tile, nrhs)
        return [count - n * nrhs * dtype.itemsize for count in sizes["bytes"]]

    usual = plugins.load(layout.platform).plan(
        "potri", "native", str(dtype), _MANY, _MANY, _MANY, 1, 0, 1, False
    )["tile"]
    parts = refinement.parts(n, layout.ranks, nrhs)
    vectors = n * nrhs * (1 + 2 * parts * (parts > 1)) + height * nrhs
    product = (vectors + min(usual, height) ** 2) * dtype.itemsize
    applied, again = beside_x("factor_apply", low, lower_tile), beside_x("potrs", dtype, tile)
    return [max(product, *both) for both in zip(applied, again, strict=True)]


def _dtype(name, dtype) -> np.dtype:
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{name}: dtype must name a dtype; got {dtype!r}") from None
    if str(dtype) not in checks.DTYPES:
        raise TypeError(f"{name}: dtype must be one of {', '.join(checks.DTYPES)}; got {dtype}")
    return dtype


@dataclasses.dataclass(frozen=True)
class _Imagined:
    """The part of a `layouts.Layout` that plans need, for devices that need not exist.

    Attributes:
        platform: platform of this process's devices, whose plugin makes the plan.
        memory: bytes of one device.
        process_count: number of processes that the devices belong to.
    """

    ranks: int
    platform: str
    memory: int | None
    process_count: int = 1
    processes = ()


def _layout(name, devices, memory):
    """Returns the layout of A's rows over the devices."""
    if memory is not None and not (isinstance(memory, numbers.Real) and float(memory) > 0):
        raise ValueError(
            f"{name}: memory must be a positive number of bytes of one device, or None for the "
            f"memory of the local devices; got {memory!r}"
        )
    if isinstance(devices, Mesh):
        devices = devices.devices.flat
    elif devices is None:
        devices = jax.local_devices()
    elif not isinstance(devices, (list, tuple, np.ndarray)):
        return _imagine(_count(name, devices), jax.local_devices()[0].platform, memory)
    devices = np.array(devices, dtype=object).ravel()
    if not devices.size or not all(isinstance(device, jax.Device) for device in devices):
        raise TypeError(
            f"{name}: devices must be a sequence of JAX devices, a jax.sharding.Mesh, or a number "
            f"of devices; got {devices.tolist()}"
        )
    count = len({device.process_index for device in devices})
    return _imagine(devices.size, devices[0].platform, memory, count)


def _imagine(ranks, platform, memory, process_count=1):
    memory = layouts.device_memory(platform) if memory is None else int(memory)
    return _Imagined(ranks, platform, memory, process_count)


def _count(name, devices):
    try:
        count = checks.index(devices)
    except TypeError:
        raise TypeError(
            f"{name}: devices must be a sequence of JAX devices, a jax.sharding.Mesh, or a number "
            f"of devices; got {devices!r}"
        ) from None
    if not 1 <= count <= _MOST_DEVICES:
        raise ValueError(f"{name}: devices must be from 1 to {_MOST_DEVICES}; got {count}")
    return count


def _readable(count):
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.2f} {unit}" if unit != "bytes" else f"{count} bytes"
        count /= 1024
    return None
