"""Which calls on matrices in host memory leave the core, in which block columns, and what they
cost: `HostPlan`."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxmg._call import backends, checks
from jaxmg._host import block_columns, pool
from jaxmg._layouts import layouts, meshes
from jaxmg._plugin import plugins

# The share of JAX's memory of a device that a call takes without memory=.
_SHARE = 15 / 16
# The functions whose block rows have all columns.
LU = ("gesv", "lu_factor")
LIKELIHOOD = "gaussian_log_likelihood"
# A matrix of less than this share of a device's memory fits, with its copy and workspace.
_SURELY = 1 / 8


@functools.cache
def limit(platform):
    """Returns `layouts.device_memory`, read once."""
    return layouts.device_memory(platform)


def surely_fits(a):
    """Whether an array certainly fits the default devices, so that a call needn't look closer."""
    most = limit(jax.default_backend())
    return most is None or a.nbytes <= most * _SURELY


def fits_in_core(layout, native, n, dtype, nrhs, memory, copies):
    """Whether a call that has the matrix on the devices fits in ``memory`` bytes of each."""
    if memory is None:
        return True
    backend = backends.resolve(native, layout, "native", jax.ShapeDtypeStruct((n, n), dtype))
    sizes = backends.plan(native, layout, backend, dtype, (n, n), 0, max(nrhs, 1))
    own = (copies * -(-n // layout.ranks) * n + n * nrhs) * np.dtype(dtype).itemsize
    return own + max(sizes["bytes"]) <= memory


def over(caller, mesh):
    """Returns the layout of a call on the devices of a mesh, along one axis."""
    line = Mesh(np.array(mesh.devices).ravel(), ("rank",))
    return meshes.with_processes(caller, layouts.Layout(line, ("rank",), (), P("rank", None)))


def budget(memory, there):
    """Returns the bytes of each device that a call may take; None if they are unknown."""
    if memory is not None:
        return memory
    return None if there is None else int(there * _SHARE)


def cut(caller, layout, n, nrhs, dtype, memory, products, caches, whole=False):
    """Returns (`block_columns.Geometry`, bytes of each device for all, bytes of each device for all
    but b) of a call. Raises a ValueError if ``memory`` isn't enough for even one tile on a rank.

    Args:
        caches: whether a part of the factor stays on the devices, in the memory that is left.
        whole: whether for LU.
    """
    nrhs, size = max(nrhs, 1), np.dtype(dtype).itemsize
    own = n * nrhs * size  # b; the plan has x
    room = max(memory - own, 0)
    try:
        found = widest(layout, n, nrhs, dtype, room, products, whole)
    except ValueError as error:
        raise ValueError(
            f"{caller}: memory={memory} bytes of each device aren't enough: {error}; b takes "
            f"{own} more"
        ) from None
    sizes = found["width"], found["tile"]
    cache = found["cache"] if caches else 0
    shape = block_columns.Geometry(layout, n, nrhs, str(dtype), *sizes, products, cache, whole)
    return shape, found["bytes"] + own + cache * size, room


def widest(layout, n, nrhs, dtype, memory, products, whole):
    """Returns the plugin's plan with the widest block columns for ``memory`` bytes."""
    return plugins.load(layout.platform).host_plan(
        str(dtype), n, nrhs, layout.ranks, layout.platform, memory, 0, products, *[whole] * whole
    )


def narrower(shape, room):
    """Returns a `block_columns.Geometry` with about half the columns in a block column, or None.
    Its factor takes less host memory, and passes more often over the links. LU factors always take
    a square.

    Args:
        room: the bytes of each device from `cut`.
    """
    if shape.width == 1 or shape.whole:
        return None
    found = plugins.load(shape.layout.platform).host_plan(
        shape.dtype, shape.n, shape.nrhs, shape.layout.ranks, shape.layout.platform, room,
        shape.width // 2, shape.products,
    )  # fmt: skip
    if found["width"] >= shape.width:
        return None
    cache = found["cache"] if shape.cache else 0
    return dataclasses.replace(shape, width=found["width"], tile=found["tile"], cache=cache)


@dataclasses.dataclass(frozen=True)
class HostPlan:
    """Holds the result of `plan` with ``host=True``; prints as a sentence.

    Attributes:
        routine, n, dtype: The arguments of `plan`; of a tall matrix n is the number of columns.
        width: Number of columns of a block column, or of rows of a chunk of a tall matrix.
        blocks: Number of block columns, or of chunks.
        tile: Tile width; 0 for a tall matrix.
        bytes: Peak bytes on each device: two block columns, right-hand sides and workspace, and
            with ``memory`` a part of the factor; of a tall matrix two chunks, R and workspace.
        memory: Bytes of each device that the call may take.
        host_bytes: Bytes of host memory that each process allocates beyond A: for the factor, 0 if
            A is donated; of a tall matrix for copies of chunks, if A is in pageable memory.
        host_memory: Bytes of host memory that are there; None if unknown.
        traffic: Bytes that pass over the busiest device's link to host memory.
        operations: Floating-point operations of the call.
        devices: Number of devices.
        m: Number of rows of a tall matrix; None for a square one.
    """

    routine: str
    n: int
    dtype: np.dtype
    width: int
    blocks: int
    tile: int
    bytes: int
    memory: int
    host_bytes: int
    host_memory: int | None
    traffic: int
    operations: float
    devices: int
    m: int | None = None

    @property
    def fits(self) -> bool | None:
        """Returns whether ``host_bytes`` fit in host memory; None if unknown."""
        return None if self.host_memory is None else self.host_bytes <= self.host_memory

    def seconds(self, rate: float, link: float = 50e9) -> float:
        """Estimates the time of the call: the longer of its operations and its copies.

        Args:
            rate: Operations per second of each device, such as 52e12 for products in float64 on an
                H200.
            link: Bytes per second between host memory and a device, each way.
        """
        return max(self.operations / (rate * self.devices), self.traffic / link)

    def __str__(self) -> str:
        fits = {True: "it fits", False: "it does NOT fit", None: "whether it fits isn't known"}
        where = f"{self.devices} device{'s' if self.devices > 1 else ''}"
        of = "" if self.host_memory is None else f" of {pool.readable(self.host_memory)}"
        size, blocks = f"n = {self.n}", f"block column{'s' if self.blocks > 1 else ''} of"
        if self.m is not None:
            size, blocks = f"({self.m}, {self.n})", "chunks of rows, of"
        return (
            f"{self.routine} from host memory, {size}, {self.dtype}, on {where}: "
            f"{self.blocks} {blocks} {self.width}, "
            f"{pool.readable(self.bytes)} of {pool.readable(self.memory)} on each device, "
            f"{pool.readable(self.traffic)} over each link; {pool.readable(self.host_bytes)}{of} "
            f"of host memory beyond A: {fits[self.fits]}"
        )


def plan(routine, n, nrhs, dtype, layout, memory, donate, operations, factor_bytes):
    """Returns the `HostPlan` of a call.

    Args:
        operations: its floating-point operations.
        factor_bytes: function of a `block_columns.Geometry` that returns the bytes of a factor in
            memory of its own.
    """
    caller = f"plan({routine!r})"
    most = known_budget(caller, memory, layout)
    shape, count, _ = cut(
        caller, layout, n, nrhs, dtype, most, checks.DEFAULT, memory is not None, routine in LU
    )
    passed = traffic(shape, sweeps=1 if routine in ("potrs", "gesv") else 0)
    if routine == LIKELIHOOD:  # A is made; the inverse streams as much as a factorization
        passed += traffic(shape, sweeps=1, made=True)
    own = 0 if donate else -(-factor_bytes(shape) // layout.process_count)
    return HostPlan(
        routine, n, np.dtype(dtype), shape.width, shape.blocks, shape.tile, count, most, own,
        pool.available()[0], passed, operations, layout.ranks,
    )  # fmt: skip


def known_budget(caller, memory, layout):
    """Returns `budget` for a plan. Raises a ValueError if it is unknown."""
    most = budget(memory, layout.memory)
    if most is None:
        raise ValueError(
            f"{caller}: host=True needs memory=, because the devices don't report their memory"
        )
    return int(most)


def traffic(shape, sweeps, made=False):
    """Returns the bytes that pass over the busiest device's link: its part of A in and of the
    factor out, and for each block column the part of all earlier ones that it needs.

    Args:
        sweeps: the number of substitutions that stream the factor again.
        made: whether A is made on the devices.
    """
    n, ranks, total = shape.n, shape.layout.ranks, 0
    for j in range(shape.blocks):
        first, end = shape.ends(j)
        # On one device the last block column is still there.
        earlier = max(first - (shape.width if ranks == 1 else 0), 0)
        below = earlier * (n - first)
        if shape.whole:  # L from the diagonal down, for all block columns on the right
            below = earlier * n - earlier**2 // 2
        total += (end - first) * (n - shape.start(j)) // ranks * (2 - made)
        total += (end - first) * (n - first) // ranks * sweeps + below
    total -= sweeps * shape.cache
    return total * np.dtype(shape.dtype).itemsize
