"""How devices hold a matrix: the mesh and the spec, as a `Layout`."""

import dataclasses
import functools
import itertools
import math
import typing

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat


class _Whole:
    """The type of `WHOLE`."""

    def __repr__(self):
        return "WHOLE"


# In place of a spec: each device has whole matrices, those of its part of a batch (`alone`).
WHOLE = _Whole()


@dataclasses.dataclass(frozen=True)
class Layout:
    """A matrix sharded by rows over a mesh.

    Attributes:
        mesh: the devices; their order along ``rows`` is the order of the ranks.
        rows: the axes that the rows are sharded over while the native code runs.
        others: the remaining axes; the matrix is replicated along them.
        spec: the caller's sharding, which a result of the same shape gets too.
        processes: the process of each rank of each group of replicas, one group after the other;
            empty if every group has its ranks in one process.
        inside: whether the layout describes blocks inside the caller's shard_map.
        solo: whether one device computes for all, inside a shard_map of this package (`on_one`).
        memory_kind: JAX's name of the memory space that holds the matrix; None: the devices' own
            memory, the only one so far.
    """

    mesh: Mesh | AbstractMesh
    rows: tuple[str, ...]
    others: tuple[str, ...]
    spec: P
    processes: tuple[int, ...] = ()
    inside: bool = False
    solo: bool = False
    memory_kind: str | None = None

    @functools.cached_property
    def ranks(self) -> int:
        return axes_size(self.mesh, self.rows)

    @functools.cached_property
    def row_spec(self) -> P:
        return P(self.rows, None)

    @functools.cached_property
    def by_rows(self) -> "Layout":
        """This layout for a matrix that has been resharded to ``row_spec``."""
        return dataclasses.replace(self, spec=self.row_spec)

    @property
    def is_whole(self) -> bool:
        """Whether each device has whole matrices of a batch, and XLA places operations."""
        return not (self.rows or self.inside or self.explicit)

    @property
    def where(self) -> dict[str, typing.Any]:
        """The arguments with which a program calls a routine on this layout. The program's caller
        has checked the arrays."""
        return {"mesh": self}

    @property
    def grid_rows(self) -> int | None:
        """Number of rows of the grid of ranks, if a matrix is sharded over both of its dimensions;
        else None. Native code reads the grid column by column, so the axes that shard the columns
        of the matrix count as the rows of the grid."""
        rows, columns = map(entry_axes, (*self.spec, None, None)[:2])
        return axes_size(self.mesh, columns) if rows and columns else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The axes of several ranks over which the caller has sharded the columns."""
        return tuple(axis for axis in entry_axes(self.spec[1]) if self.mesh.shape[axis] > 1)

    @functools.cached_property
    def explicit(self) -> bool:
        return AxisType.Explicit in self.mesh.axis_types

    @property
    def automatic(self) -> "Layout":
        """This layout on automatic axes."""
        return dataclasses.replace(self, mesh=_automatic(self.mesh)) if self.explicit else self

    @functools.cached_property
    def platform(self) -> str:
        if isinstance(self.mesh, Mesh):
            return self.mesh.devices.flat[0].platform
        return _compat.abstract_platform(self.mesh) or jax.default_backend()

    @property
    def memory(self) -> int | None:
        """Bytes that JAX may take on one device, assumed to be the same for all devices; None if
        JAX doesn't say."""
        return device_memory(self.platform)

    @property
    def coordinates(self) -> np.ndarray:
        """[rank, group of replicas] of each device, in the mesh's order: (devices, 2), int32."""
        sizes = self.mesh.shape
        index = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))

        def along(axes):
            linear = np.zeros(tuple(sizes.values()), np.int32)
            for axis in axes:
                linear = linear * sizes[axis] + index[axis]
            return linear.ravel()

        return np.stack([along(self.rows), along(self.others)], axis=1).astype(np.int32)

    def sharding(self, spec: P) -> NamedSharding:
        return NamedSharding(self.mesh, spec, memory_kind=self.memory_kind)

    def result_spec(self, shape: tuple[int, ...]) -> P | None:
        """Returns ``spec`` if its axes divide ``shape``, which JAX requires. Otherwise returns
        None, which leaves the choice to XLA."""
        for size, axes in zip(shape, self.spec, strict=True):
            if size % axes_size(self.mesh, entry_axes(axes)):
                return None
        return self.spec


def alone(mesh):
    """Returns the layout in which each device of ``mesh`` is the only rank of its problem."""
    return Layout(mesh, (), tuple(mesh.axis_names), P(None, None))


def device_memory(platform):
    """Returns the bytes that JAX may take on one device of this process; None if it doesn't say."""
    stats = jax.local_devices(backend=platform)[0].memory_stats()
    return (stats or {}).get("bytes_limit")


# The compute capabilities of GPUs (A100; H100 and H200) whose tensor cores multiply float64 at
# least as fast as their other cores multiply float32.
_FAST_IN_DOUBLE = ("8.0", "9.0")


def fast_in_double(platform):
    """Whether devices of this platform multiply matrices in float64 as fast as in float32."""
    if platform not in ("gpu", "cuda"):
        return False
    device = jax.local_devices(backend=platform)[0]
    return getattr(device, "compute_capability", None) in _FAST_IN_DOUBLE


def traced(arrays):
    for array in arrays:  # called often, so without a generator
        if isinstance(array, Tracer):
            return True
    return False


def axes_in(spec):
    """Returns all axes of a spec."""
    return tuple(itertools.chain.from_iterable(map(entry_axes, spec)))


def without(spec, axes):
    """Returns ``spec`` without these axes."""
    if not axes:
        return spec
    entries = (tuple(axis for axis in entry_axes(entry) if axis not in axes) for entry in spec)
    return P(*(entry or None for entry in entries))


@functools.lru_cache(maxsize=64)
def _automatic(mesh):
    kinds = dict.fromkeys(mesh.axis_names, AxisType.Auto)
    if isinstance(mesh, AbstractMesh):
        return mesh.update_axis_types(kinds)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=tuple(kinds.values()))


def entry_axes(entry):
    """Converts an entry of a spec to a tuple of axes."""
    if entry is None:
        return ()
    if isinstance(entry, (tuple, list)):
        return tuple(entry)
    return (entry,)


def axes_size(mesh, axes):
    return math.prod(mesh.shape[axis] for axis in axes)


def axes_names(axes):
    return " x ".join(map(repr, axes))
