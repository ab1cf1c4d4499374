"""Assigns each matrix of a pytree to the device that computes it, its home.

A leaf is a matrix or, if it has leading dimensions, a batch of them. If the leading dimensions are
sharded, a matrix stays among the devices that have the same part of these dimensions. All other
matrices may go to any device. The matrices are assigned in the order of decreasing cost, each to
the device with the least cost so far (R. L. Graham, "Bounds on multiprocessing timing anomalies",
1969). Ties are resolved by path and by rank, so that all processes get the same result.
"""

import collections.abc
import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._layouts import layouts

# The fixed cost of a matrix, in addition to its operations, is the cost of a matrix of this order.
_OVERHEAD_ORDER = 64


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of the tree, and how it lies on the mesh.

    Attributes:
        spec: has an entry for each dimension.
        axes: for each dimension, the axes of ``spec`` that have several devices.
        block: the shape of a device's part.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    spec: P
    axes: tuple[tuple[str, ...], ...]
    block: tuple[int, ...]

    @classmethod
    def make(cls, shape, dtype, spec, mesh):
        sizes = mesh.shape
        entries = tuple(map(layouts.entry_axes, (*spec, *(None,) * (len(shape) - len(spec)))))
        axes = tuple(tuple(axis for axis in entry if sizes[axis] > 1) for entry in entries)
        block = tuple(
            size // layouts.axes_size(mesh, entry)
            for size, entry in zip(shape, entries, strict=True)
        )
        return cls(tuple(shape), np.dtype(dtype), P(*(e or None for e in entries)), axes, block)

    def cast(self, dtype):
        return dataclasses.replace(self, dtype=np.dtype(dtype))

    @property
    def matrix(self):
        """Shape and dtype of one of its matrices."""
        return jax.ShapeDtypeStruct(self.shape[-2:], self.dtype)

    @property
    def count(self):
        """Number of its matrices that a device has a part of."""
        return math.prod(self.block[:-2])

    @property
    def family(self):
        """The key that leaves share if they travel together: (axes of the leading dimensions, axes
        of the matrices, dtype)."""
        leading = itertools.chain.from_iterable(self.axes[:-2])
        return tuple(sorted(leading)), self.axes[-2] + self.axes[-1], self.dtype

    @property
    def kind(self):
        """The key that matrices share if they form one stack: (shape, dtype, axes)."""
        return self.shape[-2:], self.dtype, self.axes[-2:]


@dataclasses.dataclass(frozen=True)
class Run:
    """Consecutive matrices of one kind at one home.

    Attributes:
        pieces: (leaf, start, stop) for each leaf that has some of them; ``stop`` is exclusive.
    """

    kind: tuple
    pieces: tuple[tuple[int, int, int], ...]

    @property
    def count(self):
        return sum(stop - start for _, start, stop in self.pieces)


@dataclasses.dataclass(frozen=True)
class Family:
    """Leaves that travel together.

    Attributes:
        sharded: the axes over which their matrices are sharded.
        others: the axes over which neither their matrices nor their leading dimensions are sharded.
        shape: the number of devices along ``others``, and along ``sharded``.
        homes: the runs of each place in this grid, row by row.
        places: the place of each rank, in the mesh's order.
    """

    leaves: tuple[int, ...]
    sharded: tuple[str, ...]
    others: tuple[str, ...]
    shape: tuple[int, int]
    homes: tuple[tuple[Run, ...], ...]
    places: tuple[int, ...]

    @property
    def stays(self):
        """Whether each matrix is already whole at its home."""
        return self.shape == (1, 1)


@dataclasses.dataclass(frozen=True)
class Deal:
    """All families of a tree, and the cost of each rank's matrices."""

    families: tuple[Family, ...]
    loads: tuple[float, ...]

    @property
    def balance(self):
        """The busiest rank's cost over the average."""
        average = sum(self.loads) / len(self.loads)
        return max(self.loads) / average if average else 1.0

    def runs(self, rank):
        """Returns the work of a rank: (kind, number of matrices) pairs for each family."""
        return tuple(
            tuple((run.kind, run.count) for run in family.homes[family.places[rank]])
            for family in self.families
        )


def operations(matrix: jax.ShapeDtypeStruct) -> float:
    """Returns the cost of a matrix: m n min(m, n), four times as much for complex numbers, plus a
    fixed cost of 64^3."""
    m, n = matrix.shape
    kinds = 4 if np.dtype(matrix.dtype).kind == "c" else 1
    return kinds * m * n * min(m, n) + _OVERHEAD_ORDER**3


@functools.lru_cache(maxsize=256)
def deal(
    leaves: tuple[Leaf, ...],
    axes: tuple[tuple[str, int], ...],
    cost: collections.abc.Callable[[jax.ShapeDtypeStruct], float],
) -> Deal:
    """Assigns homes to the matrices of these leaves, on a mesh of these (axis, size) pairs."""
    sizes = dict(axes)
    grid = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    coordinates = dict(zip(sizes, grid, strict=True))

    def along(names):
        """Returns the index of each rank along these axes."""
        linear = np.zeros(grid.shape[1], int)
        for name in names:
            linear = linear * sizes[name] + coordinates[name]
        return linear

    keys = sorted({leaf.family for leaf in leaves}, key=repr)
    others = {key: tuple(a for a in sizes if a not in key[0] + key[1]) for key in keys}
    places = {key: along(others[key] + key[1]) for key in keys}
    # ranks[key][place]: the ranks at a place, one for each position along the axes of the leading
    # dimensions.
    ranks = {
        key: np.array([np.flatnonzero(there == i) for i in range(there.max() + 1)])
        for key, there in places.items()
    }

    costs = [float(cost(leaf.matrix)) if leaf.count else 0.0 for leaf in leaves]
    loads = np.zeros(grid.shape[1])
    shares = [np.zeros(len(ranks[leaf.family]), int) for leaf in leaves]
    for i in sorted(range(len(leaves)), key=lambda i: -costs[i]):
        candidates = ranks[leaves[i].family]
        for _ in range(leaves[i].count):
            place = int(loads[candidates].max(axis=1).argmin())
            loads[candidates[place]] += costs[i]
            shares[i][place] += 1

    families = []
    for key in keys:
        members = tuple(i for i, leaf in enumerate(leaves) if leaf.family == key)
        across = math.prod(sizes[a] for a in key[1])
        homes = tuple(_runs(leaves, members, shares, place) for place in range(len(ranks[key])))
        shape = (len(homes) // across, across)
        there = tuple(int(place) for place in places[key])
        families.append(Family(members, key[1], others[key], shape, homes, there))
    return Deal(tuple(families), tuple(loads.tolist()))


def _runs(leaves, members, shares, place):
    """Returns the runs of one place. The matrices of each leaf go to the places in their order."""
    kinds: dict = {}
    for i in members:
        start = int(shares[i][:place].sum())
        stop = start + int(shares[i][place])
        if stop > start:
            kinds.setdefault(leaves[i].kind, []).append((i, start, stop))
    return tuple(Run(kind, tuple(kinds[kind])) for kind in sorted(kinds, key=repr))
