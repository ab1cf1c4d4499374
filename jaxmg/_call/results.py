"""The kinds of results. Each has the shape of the native code's result on a rank, and turns it into
the result for the caller: of global arrays, inside a shard_map, and for a matrix without rows.

``a`` and ``b`` are the arrays of the call: in `native` a rank's rows and `columns` of b, elsewhere
the caller's own arrays.
"""

import abc
import collections.abc
import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks
from jaxmg._layouts import local_layouts, shardings


@dataclasses.dataclass(frozen=True)
class Result(abc.ABC):
    """A result. If `differs` is false, it is the same on all ranks; else each rank has its own
    rows. If `in_place`, it is in the memory of the operand in the same position.

    Attributes:
        name: its name in a `Routine`.
        argument: the public function's argument that requests it. If that is None, and in functions
            without the argument, the result is always returned.
    """

    differs = False
    in_place = False

    name: str
    argument: str | None = None

    @abc.abstractmethod
    def native(self, call, a, *b):
        """Returns the shape and dtype of the native code's result on a rank."""

    @abc.abstractmethod
    def empty(self, a, *b, local):
        """Returns the caller's result for a matrix without rows; ``local``: inside a shard_map."""

    def spec(self, layout, a, *b):
        """Returns the spec of the global result, or None if XLA chooses it."""
        return P()

    def finished(self, value, rank):
        """Completes the native code's result on this rank."""
        return value

    def part(self, value, layout, a):
        """Returns a rank's part of the global result."""
        return value

    def whole(self, value, call, *b):
        """Returns the caller's global result, given the ranks' parts."""
        return value

    def on_rank(self, value, layout, a, *b):
        """Returns the caller's result on this rank, inside a shard_map."""
        return value

    def cut(self, value, n):
        """Extracts the global result for a matrix of order n from the result for an extended
        matrix."""
        return value


@dataclasses.dataclass(frozen=True)
class Matrix(Result):
    """A matrix in A's memory, with A's shape and sharding; the first result of its routine.

    Attributes:
        back: function of (rows, layout, shape) that returns the block for a caller inside a
            shard_map.
    """

    differs = True
    in_place = True

    back: collections.abc.Callable = blocks.from_rows

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct(a.shape, a.dtype)

    def spec(self, layout, a, *b):
        return layout.result_spec(a.shape)

    def part(self, value, layout, a):
        return blocks.from_rows(value, layout.by_rows, a.shape)

    def whole(self, value, call, *b):
        return blocks.join_rows(value, call.layout, call.shape[0])

    def on_rank(self, value, layout, a, *b):
        return self.back(value, layout, a.shape)

    def empty(self, a, *b, local):
        return jnp.asarray(a)

    def cut(self, value, n):
        return value[:n, :n]


@dataclasses.dataclass(frozen=True)
class UpperTriangle(Matrix):
    """A matrix with zeros below the diagonal, where the native code's result is unspecified."""

    def finished(self, value, rank):
        rows, n = value.shape
        row = rank * rows + jnp.arange(rows)[:, None]
        return jnp.where(row <= jnp.arange(n), value, 0)


@dataclasses.dataclass(frozen=True)
class ZeroPadded(Matrix):
    """A matrix with zeros in rows of padding, where the native code's result is unspecified."""

    def on_rank(self, value, layout, a, *b):
        rows, n = value.shape
        if rows * layout.ranks > n:
            row = local_layouts.local_rank(layout) * rows + jnp.arange(rows)[:, None]
            value = jnp.where(row < n, value, 0)
        return super().on_rank(value, layout, a, *b)


@dataclasses.dataclass(frozen=True)
class Tiles(Matrix):
    """A result in A's memory that stays in the engine's layout: (rows, n) on a rank."""

    def spec(self, layout, a, *b):
        return layout.row_spec

    def part(self, value, layout, a):
        return value

    def whole(self, value, call, *b):
        return value


@dataclasses.dataclass(frozen=True)
class TransposedTiles(Tiles):
    """The tiles of a factor of A^T, which is made by an exchange of A's rows for its columns."""

    in_place = False


@dataclasses.dataclass(frozen=True)
class RowsOf(Tiles):
    """Rows of a matrix, with the shape of the right-hand sides, which are rows as well."""

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct(b[-1].shape, a.dtype)


@dataclasses.dataclass(frozen=True)
class Overflow(Result):
    """The part of the engine's layout that doesn't fit in A's memory: one tile on a rank, or
    none."""

    differs = True

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((call.overflow, a.shape[1]), a.dtype)

    def spec(self, layout, a, *b):
        return layout.row_spec

    def empty(self, a, *b, local):
        return jnp.asarray(a)

    def cut(self, value, n):
        return value[:, :n]


@dataclasses.dataclass(frozen=True)
class Solution(Result):
    """The solution, with b's shape, dtype and sharding."""

    def native(self, call, a, b):
        return jax.ShapeDtypeStruct(b.shape, b.dtype)

    def spec(self, layout, a, b):
        return shardings.spec_of(b, layout)

    def whole(self, value, call, b):
        return like(value, b)

    def on_rank(self, value, layout, a, b):
        return like(value, b)

    def cut(self, value, n):
        return value[:n]

    def empty(self, a, *b, local):
        return jnp.zeros(b[0].shape, b[0].dtype)


@dataclasses.dataclass(frozen=True)
class Minimizer(Solution):
    """The solution of a problem with A (m, n): n rows, the same on all devices."""

    def native(self, call, a, b):
        return jax.ShapeDtypeStruct((max(call.shape), b.shape[1]), b.dtype)

    def spec(self, layout, a, b):
        return P()

    def empty(self, a, *b, local):
        return jnp.zeros((a.shape[1], *b[0].shape[1:]), a.dtype)


@dataclasses.dataclass(frozen=True)
class RealVector(Result):
    """A vector (n,) of A's real dtype."""

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((a.shape[1],), self._dtype(a))

    def empty(self, a, *b, local):
        return jnp.zeros((0,), self._dtype(a))

    def _dtype(self, a):
        return jnp.finfo(a.dtype).dtype


@dataclasses.dataclass(frozen=True)
class RealNumber(Result):
    """A real scalar. Inside a shard_map and in native code its shape is (1,)."""

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((1,), self._dtype(a))

    def whole(self, value, call, *b):
        return value[0]

    def empty(self, a, *b, local):
        return jnp.zeros((1,) if local else (), self._dtype(a))

    def _dtype(self, a):
        return jnp.finfo(a.dtype).dtype


@dataclasses.dataclass(frozen=True)
class Sign(RealNumber):
    """The sign of a determinant, of A's dtype; 1 for a matrix without rows."""

    def empty(self, a, *b, local):
        return jnp.ones((1,) if local else (), a.dtype)

    def _dtype(self, a):
        return a.dtype


@dataclasses.dataclass(frozen=True)
class Vector(RealVector):
    """A vector (n,) of A's dtype."""

    def _dtype(self, a):
        return a.dtype


@dataclasses.dataclass(frozen=True)
class Pivots(RealVector):
    """The pivots, (min(m, n),), int32."""

    def native(self, call, a, *b):
        m = blocks.height(call.shape, call.routine.square)
        return jax.ShapeDtypeStruct((min(m, a.shape[1]),), jnp.int32)

    def cut(self, value, n):
        return value[:n]

    def _dtype(self, a):
        return jnp.int32


@dataclasses.dataclass(frozen=True)
class Diagonal(Vector):
    """A vector (min(m, n),) of A's dtype."""

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((min(call.shape),), a.dtype)


@dataclasses.dataclass(frozen=True)
class PanelFactors(Diagonal):
    """The T factors of panels of reflectors: (min(m, n), 64), one row for each reflector."""

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((min(call.shape), 64), a.dtype)

    def empty(self, a, *b, local):
        return jnp.zeros((0, 64), a.dtype)


@dataclasses.dataclass(frozen=True)
class Status(RealNumber):
    """The status: 0, or LAPACK's info."""

    name: str = "status"
    argument: str | None = "return_status"

    def _dtype(self, a):
        return jnp.int32


def columns(b):
    """Returns the right-hand sides as a matrix. If there are none, it has one column of zeros, so
    that the native code still computes the status and the log-determinant of A."""
    if b.size == 0:
        return jnp.zeros((b.shape[0], 1), b.dtype)
    return b[:, None] if b.ndim == 1 else b


def like(x, b):
    """Returns ``x``, the solution for `columns` of ``b``, in the shape of ``b``."""
    return x[:, 0] if b.ndim == 1 else x[:, : b.shape[1]]
