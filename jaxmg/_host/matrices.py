"""Where a matrix in host memory lies: `HostMatrix`, made of NumPy arrays, maps of files and JAX
arrays of memory kind "pinned_host".

The engine reads block row j of the matrix: rows from j * width on. It reads all columns for LU, and
for Cholesky those from the diagonal on: the upper triangle of memory that has rows one after the
other. The memory of a Fortran-ordered array has columns one after the other: it is the transposed
matrix. For Cholesky its upper triangle is the transpose of the array's lower one. The transpose of
a Hermitian matrix is its conjugate, so right-hand sides and solutions are conjugated.
"""

import ctypes
import dataclasses
import mmap
import os
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxmg._call import checks
from jaxmg._host import tiles

# The types of matrices in host memory, besides JAX arrays of this memory kind.
KINDS = (np.ndarray, tiles.Tiles)
PINNED = "pinned_host"
_SAMPLES = 256  # pairs of entries that are compared in a Fortran-ordered array
# Entries may differ by the rounding errors of at most this number of operations.
_MOST_ROUNDED = 1000


@dataclasses.dataclass(frozen=True)
class HostMatrix:
    """A matrix in host memory.

    Attributes:
        n, dtype: its order and dtype.
        rows: (first row, address of its first element, elements between two rows) of each part of
            consecutive rows.
        transposed: whether the memory has the transposed matrix.
        keep: what keeps the memory alive.
    """

    n: int
    dtype: np.dtype
    rows: tuple[tuple[int, int, int], ...]
    transposed: bool
    keep: typing.Any

    def block(self, first, end, column):
        """Returns (address, elements between two rows) of rows [first, end), from a column on; None
        if they are in several parts."""
        inside = [part for part in self.rows if part[0] <= first]
        start, address, ld = inside[-1]
        if len(inside) < len(self.rows) and self.rows[len(inside)][0] < end:
            return None
        return address + ((first - start) * ld + column) * self.dtype.itemsize, ld

    def pieces(self, first, end, column):
        """Returns (rows, address, elements between two rows) of the parts of `block`."""
        ends = [*(part[0] for part in self.rows[1:]), self.n]
        found = []
        for (start, address, ld), stop in zip(self.rows, ends, strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                place = address + ((low - start) * ld + column) * self.dtype.itemsize
                found.append((high - low, place, ld))
        return found


def is_host(a):
    """Whether ``a`` is in host memory, or made from a function."""
    if isinstance(a, jax.Array):
        return not isinstance(a, Tracer) and a.sharding.memory_kind == PINNED
    return isinstance(a, KINDS)


def describe(caller, a, donate, hermitian=True):
    """Returns the `HostMatrix` of an array whose shape and dtype have been checked."""
    if isinstance(a, jax.Array):
        return _of_jax(caller, a)
    return _of_numpy(caller, a, donate, hermitian)


def _of_numpy(caller, a, donate, hermitian):
    n, size = a.shape[1], a.itemsize
    a = a[:n]
    by_row, by_column = a.strides
    if by_column == size and by_row % size == 0 and by_row >= n * size:
        ld, transposed = by_row // size, False
    elif by_row == size and by_column % size == 0 and by_column >= n * size:
        ld, transposed = by_column // size, True
    else:
        raise ValueError(
            f"{caller}: a, in host memory, must be C- or Fortran-ordered, or whole rows or columns "
            f"of such an array; it has strides {a.strides} for items of {size} bytes. Convert it "
            "with np.ascontiguousarray(a)"
        )
    if donate and not a.flags.writeable:
        raise ValueError(
            f"{caller}: donate=True overwrites a with its factor, and a is read-only. Map a file "
            "with mode='r+' (it is overwritten) or 'c', or pass donate=False"
        )
    check_file(caller, a)
    if transposed and hermitian:
        _check_both_triangles(caller, a)
    return HostMatrix(n, a.dtype, ((0, a.ctypes.data, ld),), transposed, a)


def _check_both_triangles(caller, a):
    """Raises if entries of both triangles differ: of a Fortran-ordered array the lower one is read,
    where the caller may have only the other."""
    n = len(a)
    random = np.random.default_rng(n)
    rows, columns = random.integers(0, n, (2, _SAMPLES))
    near = np.minimum(rows + random.integers(1, 9, _SAMPLES), n - 1)  # beside the diagonal, too
    rows, columns = np.r_[rows, rows], np.r_[columns, near]
    one, other = a[rows, columns], a[columns, rows].conj()
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0, np.abs(one - other))
    known = np.r_[one, a.diagonal()]
    largest = np.abs(known[np.isfinite(known)]).max(initial=0)
    rounding = np.finfo(a.dtype).eps * largest
    one_sided = ((one == 0) != (other == 0)) & (apart > 8 * rounding)
    if one_sided.any() or not (apart <= 20 * min(n, _MOST_ROUNDED) * rounding).all():
        raise ValueError(
            f"{caller}: a is Fortran-ordered and in host memory, so its lower triangle is read, "
            "but its triangles differ; pass a.T (conjugated, if complex) to use the upper triangle"
        )


def _map_below(a):
    """Returns (the map of a file that has the memory of ``a``, bytes of the file, offset of the
    map); None if there is none."""
    owner, offset = a, None
    while owner is not None and not isinstance(owner, mmap.mmap):
        if isinstance(owner, np.memmap) and owner.offset is not None:
            offset = owner.offset
        if isinstance(owner, memoryview):
            owner = owner.obj
        else:
            owner = getattr(owner, "base", None)
    if owner is None:
        return None
    try:
        return owner, owner.size(), offset
    except (OSError, ValueError):  # anonymous memory
        return None


def is_mapped(a):
    """Whether the memory of an array is that of a file."""
    return isinstance(a, np.ndarray) and _map_below(a) is not None


def check_file(caller, a):
    """Raises if ``a`` is a map of a file that has become too short: reading it would end the
    process (SIGBUS)."""
    found = _map_below(a)
    if found is None:
        return
    owner, there, offset = found
    view = np.frombuffer(owner, np.uint8)
    start = (offset or 0) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    first = a.ctypes.data - view.ctypes.data
    needed = start + first + sum(
        (size - 1) * step for size, step in zip(a.shape, a.strides, strict=True)
    ) + a.itemsize  # fmt: skip
    if needed > there:
        name = getattr(a, "filename", None)
        raise ValueError(
            f"{caller}: the file of a{f', {os.fspath(name)!r},' if name else ''} has {there} bytes,"
            f" and a needs {needed}: it has been cut off since it was mapped"
        )


def _of_jax(caller, a):
    """Returns the `HostMatrix` of an array of memory kind "pinned_host"."""
    n = a.shape[1]
    a.block_until_ready()
    if not a.is_fully_addressable:
        raise ValueError(f"{caller}: a, in host memory, must be on devices of this process")
    parts: dict[int, tuple[int, int, int]] = {}
    for shard in a.addressable_shards:
        rows, columns = shard.index
        if columns.indices(n)[:2] != (0, n):
            raise ValueError(
                f"{caller}: a, in host memory, must be whole or sharded by rows; its sharding is "
                f"{a.sharding}"
            )
        start = rows.indices(a.shape[0])[0]
        if start < n:
            parts.setdefault(start, (start, shard.data.unsafe_buffer_pointer(), n))
    return HostMatrix(n, a.dtype, tuple(parts[key] for key in sorted(parts)), False, a)


def check_symmetry(caller, a, rows=512):
    """Raises unless a NumPy array is Hermitian up to rounding; compares all entries."""
    n = a.shape[1]
    flaw = largest = 0.0
    for i in range(0, n, rows):
        for k in range(i, n, rows):
            tile = np.asarray(a[i : min(i + rows, n), k : k + rows])
            other = np.asarray(a[k : min(k + rows, n), i : min(i + rows, n)]).conj().T
            with np.errstate(invalid="ignore"):
                flaw = np.maximum(flaw, np.abs(tile - other).max())  # NaN stays
            largest = np.maximum(largest, np.abs(tile).max())
    if not flaw <= 20 * n * np.finfo(a.dtype).eps * largest:
        raise ValueError(
            f"{caller}: a is not Hermitian: it differs from its adjoint by more than rounding, or "
            "holds NaN or infinity. With check=False only one triangle would be read"
        )


def view(matrix):
    """Returns a NumPy array on the memory of a matrix, which must be in one part; for tests."""
    (_, address, ld), n = matrix.rows[0], matrix.n
    memory = (ctypes.c_char * (((n - 1) * ld + n) * matrix.dtype.itemsize)).from_address(address)
    flat = np.frombuffer(memory, matrix.dtype)
    strides = (ld * matrix.dtype.itemsize, matrix.dtype.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (n, n), strides)


def require_values(caller, operands):
    """Raises if an operand is traced, or the call is: ``operands`` are the arguments of a call with
    a matrix in host memory, or with its factor."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(operands))
    if not traced and not isinstance(jnp.zeros(()), Tracer):
        return
    raise ValueError(
        f"{caller}: a matrix in host memory (a NumPy or pinned_host array with memory=, or "
        "jaxmg.Tiles) and its factor work in eager calls only; call it outside of jit, grad, vmap, "
        "shard_map and jax.export"
    )


def check_processes(caller, layout, a, donate):
    """Raises if the layout has devices of several processes, and not each of these has all of a."""
    if not layout.processes:
        return
    if not isinstance(a, tiles.Tiles) and not is_mapped(a):
        raise ValueError(
            f"{caller}: the mesh has devices of several processes, so a matrix in host memory must "
            "be jaxmg.Tiles or a NumPy array that maps a file (np.memmap, the same file in all "
            "processes). Pass one of them, or a mesh of jax.local_devices(), or an array that is "
            "sharded over the devices of all processes"
        )
    if donate and not isinstance(a, tiles.Tiles):
        raise ValueError(
            f"{caller}: donate=True isn't supported for a file that several processes map: each "
            "has its part of the factor in memory of its own; leave donate out"
        )


def sample(a):
    """Returns some bytes of a matrix, to compare it with that of another process."""
    if isinstance(a, tiles.Tiles):
        return b""
    rows, columns = (np.linspace(0, size - 1, _SAMPLES).astype(int) for size in a.shape)
    return np.stack([a[rows, columns], a[rows, columns[::-1]]]).tobytes()


def separate(caller, a, b):
    """Raises if b shares the memory of a donated NumPy matrix."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.may_share_memory(a, b):
        raise ValueError(
            f"{caller}: donate=True overwrites a, and b shares its memory; pass a copy of b "
            "(b.copy())"
        )


def check(caller, a, pad):
    """Checks type, shape and dtype of a matrix in host memory."""
    if not isinstance(a, tiles.Tiles):
        checks.matrix(caller, "a", a, pad, checks.ALL)
        return
    if a.shape[0] != a.shape[1]:
        raise ValueError(
            f"{caller}: a must be a square matrix of shape (n, n); it has shape {a.shape}"
        )
