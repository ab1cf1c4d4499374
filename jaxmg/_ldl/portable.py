"""An `LDLFactor` from its portable form (`jaxmg._kept.portable`)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, checks, ffi, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._kept import leaves, portable
from jaxmg._layouts import meshes
from jaxmg._ldl.factor import LDLFactor
from jaxmg._plugin import plugins


def load(caller, tree, mesh, tile, matrix_specs, in_specs):
    """Returns the factor of a tree with the keys of `portable.LDL`."""
    _, _, matrix, pivots = portable.read_header(caller, tree, portable.LDL)
    width, hermitian = map(int, np.asarray(tree["header"])[-2:])
    if tile is not None and checks.index(tile) != width:
        raise ValueError(
            f"{caller}: T_A is {tile}, but the tile width is a part of an LDLFactor; this one has "
            f"{width}. Leave T_A out"
        )
    n, dtype = matrix.shape[0], matrix.dtype
    for key, shape, of in (
        ("band", (n, 3 * width), dtype), ("band_lu", (n, 4 * width), dtype),
        ("band_pivots", (n,), "int32"), ("determinant", (2,), dtype), ("status", (), "int32"),
    ):  # fmt: skip
        array = tree[key]
        if n and (np.shape(array) != shape or array.dtype != of):
            raise ValueError(
                f"{caller}: tree[{key!r}] of an LDLFactor of order {n} must be {of} of shape "
                f"{shape}; it is {array.dtype} of shape {np.shape(array)}"
            )
    layout = meshes.infer(caller, (matrix,), mesh, matrix_spec(caller, matrix_specs, in_specs))
    arrays: tuple[Any, ...] = (
        matrix, tree["band"], tree["band_lu"], pivots, tree["band_pivots"], tree["determinant"],
        tree["status"],
    )  # fmt: skip
    if n:
        plugins.load(layout.platform)
        specs = (layout.row_spec, *(P() for _ in arrays[1:]))
        call = programs.Call("ldl_tiles", _move, layout, (n, n), width, "native", specs)
        arrays = tuple(programs.runner(call, arrays)(*arrays))
    else:
        call = programs.Call("ldl_tiles", _move, layout, (n, n), width, "native")
        arrays = tuple(map(jnp.asarray, arrays))
    tiles, band, band_lu, pivots, band_pivots, determinant, status = arrays
    return LDLFactor(
        tiles, band, band_lu, pivots, band_pivots, determinant[0], determinant[1].real, status,
        leaves.made_for(call, n, status), layout, n, width, bool(hermitian),
    )  # fmt: skip


def _move(call, rows, *others):
    """Brings the rows of L^T into the engine's layout."""
    layout = call.layout
    rows = blocks.split_rows(rows, layout, call.tile)

    def local(coordinates, rows):
        n = rows.shape[1]
        overflow = jax.ShapeDtypeStruct((0, n), rows.dtype)
        tiles, _ = ffi.call(
            "jaxmg_lu_tiles", layout, call.tile, call.backend, (coordinates, rows),
            (jax.ShapeDtypeStruct(rows.shape, rows.dtype), overflow), differing=2, m=n, n=n,
        )  # fmt: skip
        return tiles

    tiles = ffi.over_ranks(layout, local, (layout.row_spec,), layout.row_spec)(rows)
    return tiles, *(blocks.replicate(x, layout) for x in others)
