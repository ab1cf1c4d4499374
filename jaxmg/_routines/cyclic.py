"""Redistribution to the block-cyclic layout, and functions that check and plot the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import backends, blocks, checks, ffi, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import meshes
from jaxmg._processes import rendezvous
from jaxmg._types import AnyArray, MatrixLike, MeshLike, Specs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The native routine.
NATIVE = "cyclic_1d"


@_compat.api_boundary
def cyclic_1d(
    a: MatrixLike,
    T_A: SupportsIndex,
    mesh: MeshLike | None = None,
    in_specs: Specs | None = None,
    pad: bool = True,
    *,
    matrix_specs: Specs | None = None,
    inverse: bool = False,
) -> Array:
    """Redistributes rows to ScaLAPACK's 1-D block-cyclic layout with tiles of ``T_A`` rows.

    On P ranks, rank r's shard of the result holds tiles r, r + P, r + 2 P, ... of the matrix (J. J.
    Dongarra et al., J. Parallel Distrib. Comput. 22, 1994). `potrs` and other routines redistribute
    by themselves; this function is for your own code.

    Args:
        a: (m, k), float32, float64, complex64 or complex128, sharded by rows as ``P(axis, None)``.
        T_A: Tile width in rows, at least 1.
        mesh, in_specs, matrix_specs: As in `potrs`.
        pad: False raises an error instead of padding if m isn't a multiple of P * T_A.
        inverse: Whether to restore the order of the rows.

    Returns:
        The rows in their new order, of a's shape and sharding. If m isn't a multiple of P * T_A,
        zero rows are appended up to the next multiple, and the result contains them. After
        ``inverse`` they are the last rows; ``[:m]`` removes them.

    Cost: each row moves once. Memory: a copy of ``a`` and a few tiles per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `potrs`.

    Examples:
        >>> tiles = jaxmg.cyclic_1d(a, 64)
        >>> jaxmg.verify_cyclic(a, tiles, 64)
    """
    return _deal((a,), T_A, mesh, matrix_spec("cyclic_1d", matrix_specs, in_specs), pad, inverse)[0]


@_compat.api_boundary
def get_cols_cyclic(
    N: SupportsIndex,
    N_batch: SupportsIndex,
    T_A: SupportsIndex,
    num_devices: SupportsIndex,
) -> list[tuple[int, int, int]]:
    """Lists the devices of each column in the contiguous and in the block-cyclic layout.

    Args:
        N: Number of columns.
        N_batch: Number of columns of a contiguous shard; the last one may have fewer.
            ``N <= N_batch * num_devices``.
        T_A: Tile width, at least 1.
        num_devices: Number of shards.

    Returns:
        A list of N tuples (column, source, destination). Source, column // N_batch, is the
        device in the contiguous layout. Destination, column // T_A modulo num_devices, is the
        device in the block-cyclic layout.

    Examples:
        >>> get_cols_cyclic(4, 2, 1, 2)
        [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    """
    count = checks.non_negative("get_cols_cyclic", "N", N)
    batch = checks.positive("get_cols_cyclic", "N_batch", N_batch)
    width = checks.positive("get_cols_cyclic", "T_A", T_A)
    devices = checks.positive("get_cols_cyclic", "num_devices", num_devices)
    if count > batch * devices:
        raise ValueError(
            f"get_cols_cyclic: N must be at most N_batch * num_devices = {batch * devices}; "
            f"got {count}"
        )
    return [(column, column // batch, column // width % devices) for column in range(count)]


@_compat.api_boundary
def verify_cyclic(A: AnyArray, A_cyclic: AnyArray, T_A: SupportsIndex) -> None:
    """Asserts that ``A_cyclic`` is ``A`` in the block-cyclic layout of `cyclic_1d`.

    Args:
        A: (m, k), in order.
        A_cyclic: (m', k), sharded by rows, with m' >= m if padded. The number of its shards is the
            number of ranks.
        T_A: Tile width, at least 1.

    Raises:
        AssertionError: Rows are in wrong places; the message names the first one.
        ValueError: The shapes don't match.
    """
    checks.usable("verify_cyclic", "A", A)
    checks.usable("verify_cyclic", "A_cyclic", A_cyclic)
    width = checks.positive("verify_cyclic", "T_A", T_A)
    ranks = _row_shards(A_cyclic)
    expected, actual = rendezvous.gather(A), rendezvous.gather(A_cyclic)
    rows = actual.shape[0]
    if expected.shape[1:] != actual.shape[1:] or expected.shape[0] > rows or rows % (ranks * width):
        raise ValueError(
            f"verify_cyclic: A_cyclic must have as many columns as A, at least as many rows, and a "
            f"number of rows that is a multiple of ranks * T_A = {ranks} * {width}; A has shape "
            f"{expected.shape}, and A_cyclic has shape {actual.shape}"
        )
    expected = np.pad(expected, ((0, rows - expected.shape[0]), (0, 0)))[
        _cyclic_order(rows, width, ranks)
    ]
    same = (expected == actual) | ((expected != expected) & (actual != actual))  # NaN equals NaN
    wrong = np.flatnonzero(~np.all(same, axis=1))
    assert wrong.size == 0, (
        f"A_cyclic is not A in block-cyclic tiles of {width} rows on {ranks} ranks: {wrong.size} of"
        f" {rows} rows differ, the first is row {wrong[0]}"
    )


@_compat.api_boundary
def plot_block_to_cyclic(
    N: SupportsIndex,
    T_A: SupportsIndex,
    ndev: SupportsIndex,
    N_rows: SupportsIndex = 8,
) -> Figure:
    """Draws the device of each column before and after the redistribution.

    Args:
        N: Number of columns.
        T_A: Tile width, at least 1.
        ndev: Number of devices.
        N_rows: Number of rows to draw.

    Returns:
        A matplotlib figure: the contiguous layout above the block-cyclic one. Colours are devices,
        labels are tiles.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib.pyplot as plt  # an optional dependency, which only this function needs

    count = checks.positive("plot_block_to_cyclic", "N", N)
    height = checks.positive("plot_block_to_cyclic", "N_rows", N_rows)
    devices = checks.positive("plot_block_to_cyclic", "ndev", ndev)
    batch = -(-count // devices)
    moves = np.array(get_cols_cyclic(count, batch, T_A, devices))
    # The order of the columns in memory afterwards: by device, and ascending on each device.
    after = moves[np.argsort(moves[:, 2], kind="stable")]
    figure, axes = plt.subplots(2, 1, figsize=(10, 4), constrained_layout=True)
    orders = (("contiguous", moves, 1), (f"block-cyclic, T_A = {T_A}", after, 2))
    for axis, (title, columns, device) in zip(axes, orders, strict=True):
        image = np.tile(columns[:, device], (height, 1))
        axis.imshow(image, cmap="tab10", vmin=0, vmax=max(devices - 1, 9), aspect="auto")
        axis.set_title(title)
        axis.set_yticks([])
        tiles = columns[:, 0] // T_A
        starts = np.flatnonzero(np.diff(tiles, prepend=-1))
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            axis.axvline(start - 0.5, color="black", linewidth=0.5)
            axis.text((start + end - 1) / 2, (height - 1) / 2, str(tiles[start]), ha="center")
    axes[1].set_xlabel("column in memory; colour: device, number: tile")
    return figure


@programs.cache_plans
def _deal(arrays, T_A, mesh, spec, pad, inverse):
    meshes.refuse_manual_axes("cyclic_1d")
    (a,) = arrays
    checks.array("cyclic_1d", "a", a)
    if a.ndim != 2:
        raise ValueError(f"cyclic_1d: a must have 2 dimensions; it has shape {tuple(a.shape)}")
    tile = checks.tile("cyclic_1d", T_A, required=True)
    layout = meshes.infer("cyclic_1d", arrays, mesh, spec)
    if layout.spec != P() and layout.spec[1] is not None:
        raise ValueError(
            f"cyclic_1d: a must be sharded by rows, as P(axis, None); got {layout.spec}"
        )
    checks.tile("cyclic_1d", layout.ranks * tile)  # rows are padded to a multiple of this
    if not pad:
        checks.multiple("cyclic_1d", a.shape[0], layout.ranks * tile, "ranks times T_A")
    if a.size == 0:
        return lambda a: (jnp.asarray(a),)
    backend = backends.resolve(NATIVE, layout, "auto", a)
    specs, attributes = (layout.row_spec,), (("inverse", bool(inverse)),)
    call = programs.Call("cyclic_1d", _cyclic_1d, layout, a.shape, tile, backend, specs, attributes)
    return programs.runner(call, arrays)


def _cyclic_1d(call, a):
    layout, attributes = call.layout, dict(call.attributes)

    def local(coordinates, block):
        result = jax.ShapeDtypeStruct(block.shape, block.dtype)
        (out,) = ffi.call(
            f"jaxmg_{NATIVE}", layout, call.tile, call.backend, (coordinates, block), (result,),
            **attributes,
        )  # fmt: skip
        return out

    rows = blocks.split_rows(a, layout, call.tile)
    return (ffi.over_ranks(layout, local, (layout.row_spec,), layout.row_spec)(rows),)


def _row_shards(array):
    """Returns the number of different blocks of rows that the devices hold."""
    if not isinstance(array, jax.Array):
        return 1
    shards = array.sharding.devices_indices_map(array.shape).values()
    return len({index[0].indices(array.shape[0]) for index in shards})


def _cyclic_order(rows, width, ranks):
    """Returns the row of A at each position of the block-cyclic layout."""
    tiles = np.arange(rows).reshape(-1, ranks, width)
    return tiles.transpose(1, 0, 2).reshape(-1)
