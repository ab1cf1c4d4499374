"""`Tiles`, a matrix that a function makes tile by tile on the devices that need it.

A tile is made with two index vectors of one length, which is the same for all tiles of a matrix on
its devices. Indices beyond the matrix are replaced by the last one, and what comes of them isn't
used.
"""

from __future__ import annotations

import collections.abc
import functools
from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import DTypeLike

from jaxmg import _compat
from jaxmg._call import checks, ffi
from jaxmg._layouts import places

_CHECKED = 8  # the length of the index vectors of the check at construction
_COMPARED = 64  # the largest length of those of `check_hermitian`
_PLACES = 3  # the tiles that it compares, besides one on the diagonal
_MOST_ROWS = 2**31 - 2**20  # int32 indices, and room for the last tile to reach beyond


class Tiles:
    """Describes a matrix by a function of its indices; only tiles of it exist at a time.

    `potrs` and `cho_factor` take it in place of an array. The function is traced and compiled once
    for each shape, and runs on the devices. `Tiles` is a pytree with the leaves of its parameters.

    Attributes:
        function: As passed.
        shape: (m, n).
        dtype: NumPy dtype.
        parameters: As passed, a tuple.

    Examples:
        >>> def kernel(rows, columns, points, scale):
        ...     apart = points[rows][:, None] - points[columns]
        ...     same = rows[:, None] == columns
        ...     return jnp.exp(-((apart / scale) ** 2).sum(-1)) + 1e-3 * same
        >>> a = jaxmg.Tiles(kernel, (n, n), "float64", points, 0.5)
        >>> x = jaxmg.potrs(a, b)
    """

    @_compat.api_boundary
    def __init__(
        self,
        function: collections.abc.Callable[..., Any],
        shape: tuple[SupportsIndex, SupportsIndex],
        dtype: DTypeLike,
        *parameters: Any,
    ) -> None:
        """Describes the matrix, and checks the function's shape and dtype. Computes nothing.

        Args:
            function: ``function(rows, columns, *parameters)`` returns the entries of the matrix at
                ``rows[:, None], columns[None, :]``. Both are int32 vectors of one static length,
                with consecutive indices of which the last may repeat. A pure function of JAX.
            shape: (m, n).
            dtype: float32, float64, complex64 or complex128, the dtype of the function's result.
            *parameters: Further arguments of the function: arrays, numbers, or pytrees of them.

        Raises:
            TypeError, ValueError: ``function`` isn't callable, its result has another shape or
                dtype, or another argument is invalid.
        """
        if not callable(function):
            raise TypeError(f"Tiles: function must be callable; got {type(function).__name__}")
        self.function = function
        self.shape: tuple[int, int] = _shape(shape)
        self.dtype: np.dtype[Any] = _dtype(dtype)
        self.parameters: tuple[Any, ...] = parameters
        self._check_result()

    @property
    def ndim(self) -> int:
        """Returns 2."""
        return 2

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes of the whole matrix."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def _check_result(self):
        index = jax.ShapeDtypeStruct((_CHECKED,), jnp.int32)
        with _compat.default_promotion():
            result = jax.eval_shape(self.function, index, index, *self.parameters)
        shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
        if shape != (_CHECKED, _CHECKED) or dtype != self.dtype:
            got = type(result).__name__ if shape is None else f"shape {shape} and dtype {dtype}"
            raise ValueError(
                f"Tiles: function must return an array of shape (len(rows), len(columns)) and "
                f"dtype {self.dtype}; for {_CHECKED} rows and {_CHECKED} columns it returns {got}"
            )

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", repr(self.function))
        count = len(self.parameters)
        return (
            f"Tiles({name}, shape={self.shape}, dtype={self.dtype}, "
            f"{count} parameter{'' if count == 1 else 's'})"
        )


def _unflatten(static, parameters):
    """Returns `Tiles` without checks: JAX puts anything in the place of parameters."""
    new = object.__new__(Tiles)
    new.function, new.shape, new.dtype = static
    new.parameters = tuple(parameters)
    return new


jax.tree_util.register_pytree_node(
    Tiles, lambda tiles: (tiles.parameters, (tiles.function, tiles.shape, tiles.dtype)), _unflatten
)


def _shape(shape):
    try:
        sizes = tuple(checks.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"Tiles: shape must be two integers, (m, n); got {shape!r}") from None
    if len(sizes) != 2 or not all(0 <= size <= _MOST_ROWS for size in sizes):
        raise ValueError(f"Tiles: shape must be (m, n), below {_MOST_ROWS}; got {sizes}")
    return sizes


def _dtype(dtype):
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"Tiles: dtype must name a dtype; got {dtype!r}") from None
    if str(dtype) not in checks.DTYPES:
        raise TypeError(f"Tiles: dtype must be one of {', '.join(checks.DTYPES)}; got {dtype}")
    if str(dtype) in ("float64", "complex128") and not _compat.x64_enabled():
        raise ValueError(
            f"Tiles: dtype {dtype} needs JAX's 64-bit mode. Enable this mode with "
            "jax.config.update('jax_enable_x64', True) or the environment variable "
            "JAX_ENABLE_X64=1, or use single precision"
        )
    return dtype


def put_parameters(tiles, layout):
    """Returns the parameters on all devices of the layout. In several processes numbers stay
    what they are: arrays that are made by each process have no weak types."""
    everywhere = NamedSharding(layout.mesh, P())
    if not layout.processes:
        return jax.device_put(tiles.parameters, everywhere)

    def put(leaf):
        return places.put(leaf, everywhere) if hasattr(leaf, "dtype") else leaf

    return jax.tree.map(put, tiles.parameters)


def make(tiles, layout, whole=False):
    """Returns the matrix, or only its upper triangle, sharded by rows over the layout: (rows *
    ranks, n). Entries below the triangle's tiles are zeros."""
    run = _maker(tiles.function, tiles.shape[0], tiles.dtype, layout, whole)
    return run(put_parameters(tiles, layout))


@functools.lru_cache(maxsize=32)
def _maker(function, n, dtype, layout, whole):
    rows = -(-n // layout.ranks)
    tile = min(256 if layout.platform == "cpu" else 1024, rows)

    def local(coordinates, parameters):
        block = jnp.zeros((rows, n), dtype)
        return _fill(
            function, parameters, block, coordinates, 0, n, 0, rows, layout.ranks, tile, whole
        )

    def run(parameters):
        return ffi.over_ranks(layout, local, (P(),), layout.row_spec)(parameters)

    return jax.jit(run)


@functools.lru_cache(maxsize=32)
def filler(function, n, dtype, layout, width, tile, whole=False):
    """Returns the compiled function of (buffer, j, parameters) that returns ``buffer``, which it
    overwrites, with block column j of the matrix: on each rank (columns, rows), all rows or those
    from j * width on.
    """

    def local(coordinates, buffer, j, parameters):
        length = min(tile, buffer.shape[1])
        return _fill(
            function, parameters, buffer, coordinates, j, n, width, tile, layout.ranks, length,
            whole,
        )  # fmt: skip

    def run(buffer, j, parameters):
        specs = (layout.row_spec, P(), P())
        return ffi.over_ranks(layout, local, specs, layout.row_spec)(buffer, j, parameters)

    return jax.jit(run, donate_argnums=0)


class Place(NamedTuple):
    """A tile in a rank's rows of block row j.

    Attributes:
        rows, columns: the index vectors; indices beyond the matrix are the last one.
        at: the tile's first row and first column in the rank's block.
        new_rows, new_columns: which of the indices are within the matrix and in no tile before.
    """

    rows: jax.Array
    columns: jax.Array
    at: tuple[jax.Array, jax.Array]
    new_rows: jax.Array
    new_columns: jax.Array


def each_tile(step, carry, shape, coordinates, j, n, width, tile, ranks, length, whole=False):
    """Returns ``carry`` after ``carry = step(carry, place)`` for the tiles of a rank's rows of
    block row j, each from its diagonal on, or all columns.

    Args:
        shape: (slots * tile, columns) of the rank's block; tile row s has the rows from j * width +
            (s * ranks + rank) * tile on, and its first column is the matrix's first, or column j *
            width.
        length: the length of the index vectors, at most the tile and the columns.
        whole: whether to fill all columns, or only the upper triangle.
    """
    rank = coordinates.reshape(2)[0]
    (height, columns), parts = shape, -(-tile // length)
    steps, first = jnp.arange(length, dtype=jnp.int32), jnp.int32(j) * jnp.int32(width)
    last, left = jnp.int32(n - 1), jnp.int32(0) if whole else first

    def each_row(i, carry):
        slot, part = i // parts, i % parts
        inside = jnp.minimum(part * length, tile - length)
        start = first + (slot * ranks + rank) * tile + inside
        rows = jnp.minimum(start + steps, last)
        new_rows = (steps >= part * length - inside) & (start + steps <= last)

        def each_column(k, carry):
            at = jnp.minimum(k * length, columns - length)
            reached = left + at + steps
            new_columns = (steps >= k * length - at) & (reached <= last)
            place = (slot * tile + inside, at)
            return step(
                carry, Place(rows, jnp.minimum(reached, last), place, new_rows, new_columns)
            )

        return jax.lax.fori_loop(
            0 if whole else (start - first) // length, -(-(n - left) // length), each_column, carry
        )

    with _compat.default_promotion():
        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(height // tile * parts), each_row, carry)


def _fill(function, parameters, block, *sizes):
    """Returns ``block`` with a rank's rows of the upper triangle of a matrix.

    Args:
        *sizes: those of `each_tile`, from ``coordinates`` on.
    """

    def fill(block, place):
        made = function(place.rows, place.columns, *parameters)
        return jax.lax.dynamic_update_slice(block, made.astype(block.dtype), place.at)

    return each_tile(fill, block, block.shape, *sizes)


def check_hermitian(caller, tiles, layout):
    """Raises a ValueError if some tiles of the matrix aren't the adjoints of their mirror images.
    NaN is equal to NaN: such a matrix is reported by its status. Computes on one device."""
    n, here = tiles.shape[0], jax.process_index()
    devices = layout.mesh.devices.flat
    device = next((one for one in devices if one.process_index == here), devices[0])
    length = min(n, _COMPARED)
    random = np.random.default_rng(n)
    starts = random.integers(0, n - length + 1, (_PLACES + 1, 2))
    starts[0, 1] = starts[0, 0]
    parameters = jax.device_put(tiles.parameters, device)
    evaluate = _evaluator(tiles.function, length)
    # The context mesh may have other devices.
    alone = _compat.entered(Mesh(np.array([device]), ("device",)))
    with alone, _compat.default_promotion():
        pairs = [tuple(map(np.asarray, evaluate(*place, parameters))) for place in starts.tolist()]
    finite = [np.abs(tile[np.isfinite(tile)]).max(initial=0) for tile, _ in pairs]
    rounding = 20 * min(n, 1000) * np.finfo(tiles.dtype).eps * max(finite)
    for (tile, mirrored), (row, column) in zip(pairs, starts.tolist(), strict=True):
        mirrored = mirrored.conj().T
        same = (tile == mirrored) | (np.isnan(tile) & np.isnan(mirrored))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(same, 0, np.abs(tile - mirrored))
        if not (apart <= rounding).all():
            raise ValueError(
                f"{caller}: a is not Hermitian: the tile of rows {row} to {row + length - 1} and "
                f"columns {column} to {column + length - 1} differs from the adjoint of its mirror "
                f"image by {np.max(apart):.2g}"
            )


@functools.lru_cache(maxsize=32)
def _evaluator(function, length):
    """Returns the compiled function that returns the tile at (row, column) and the one at (column,
    row)."""

    def run(row, column, parameters):
        steps = jnp.arange(length, dtype=jnp.int32)
        rows, columns = jnp.int32(row) + steps, jnp.int32(column) + steps
        return function(rows, columns, *parameters), function(columns, rows, *parameters)

    return jax.jit(run)
