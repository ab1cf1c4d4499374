"""Where a matrix with many more rows than columns lies in host memory: `Rows`."""

import dataclasses
import typing

import jax
import numpy as np

from jaxmg._host import matrices


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a matrix (m, n) in host memory.

    Attributes:
        parts: (first row, address, bytes between two rows) of each part of consecutive rows; if
            ``by_columns``, the one part, and the bytes between two columns.
        by_columns: whether the memory has columns one after the other.
        keep: what keeps the memory alive.
    """

    m: int
    n: int
    dtype: np.dtype
    parts: tuple[tuple[int, int, int], ...]
    by_columns: bool
    keep: typing.Any

    def pieces(self, first, end, height):
        """Returns (offset, pitch, address, pitch in host memory, bytes, count) of blocks of bytes
        that cover rows [first, end), to copy to a buffer of ``height`` rows."""
        size = self.dtype.itemsize
        if self.by_columns:
            _, address, step = self.parts[0]
            start, count = address + first * size, (end - first) * size
            return [(0, height * size, start, step, count, self.n)]
        width, found = self.n * size, []
        ends = [*(part[0] for part in self.parts[1:]), self.m]
        for (begin, address, step), stop in zip(self.parts, ends, strict=True):
            low, high = max(begin, first), min(stop, end)
            if low >= high:
                continue
            start, offset, rows = address + (low - begin) * step, (low - first) * width, high - low
            if step == width:
                count = rows * width
                found.append((offset, count, start, count, count, 1))
            else:
                found.append((offset, width, start, step, width, rows))
        return found


def describe(caller, a):
    """Returns the `Rows` of an array with elements, whose dtype has been checked."""
    return _of_jax(caller, a) if isinstance(a, jax.Array) else _of_numpy(caller, a)


def _of_numpy(caller, a):
    (m, n), size = a.shape, a.itemsize
    by_row, by_column = a.strides
    if (by_column == size or n == 1) and (by_row >= n * size or m == 1):
        found = Rows(m, n, a.dtype, ((0, a.ctypes.data, max(by_row, n * size)),), False, a)
    elif (by_row == size or m == 1) and (by_column >= m * size or n == 1):
        found = Rows(m, n, a.dtype, ((0, a.ctypes.data, max(by_column, m * size)),), True, a)
    else:
        raise ValueError(
            f"{caller}: a, in host memory, must be C- or Fortran-ordered, or whole rows or columns "
            f"of such an array; it has strides {a.strides} for items of {size} bytes. Convert it "
            "with np.ascontiguousarray(a)"
        )
    matrices.check_file(caller, a)
    return found


def _of_jax(caller, a):
    """Returns the `Rows` of an array of memory kind "pinned_host"."""
    m, n = a.shape
    a.block_until_ready()
    parts: dict[int, tuple[int, int, int]] = {}
    for shard in a.addressable_shards:
        rows, columns = shard.index
        if columns.indices(n)[:2] != (0, n):
            raise ValueError(
                f"{caller}: a, in host memory, must be whole or sharded by rows; its sharding is "
                f"{a.sharding}"
            )
        start, end, _ = rows.indices(m)
        if start < end:
            address = shard.data.unsafe_buffer_pointer()
            parts.setdefault(start, (start, address, n * a.dtype.itemsize))
    return Rows(m, n, a.dtype, tuple(parts[key] for key in sorted(parts)), False, a)
