"""The gradient of a Gaussian log-likelihood by the parameters of `tiles.Tiles`, tile by tile.

The derivative is 1/2 tr((X X^H - k K^-1) dK), where X = K^-1 Y has k columns. A block row of K^-1
at a time is on the devices; each of its tiles is pulled back through the function. Only the upper
triangle of K is read, so entries above the diagonal count twice.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._call import ffi
from jaxmg._host import tiles as host_tiles
from jaxmg._layouts import places

_LENGTH = {"cpu": 256, "gpu": 1024}  # the most indices of a tile


class Pullback:
    """Adds up the cotangents of some of the parameters' leaves.

    Args:
        tiles: `tiles.Tiles` with values.
        wanted: for each leaf of the parameters whether its cotangent is wanted.
        solution: X, (n, k).
        layout, width, tile: how block rows are cut: those of a `block_columns.Geometry`, or one of
            all rows, with a width of 0 and a tile of the rows of a rank.
    """

    def __init__(self, tiles, wanted, solution, layout, width, tile):
        self._layout = layout
        leaves, structure = jax.tree.flatten(host_tiles.put_parameters(tiles, layout))
        self._leaves = tuple(leaf for leaf, want in zip(leaves, wanted, strict=True) if want)
        others = tuple(leaf for leaf, want in zip(leaves, wanted, strict=True) if not want)
        everywhere = layout.sharding(P())
        self._arguments = (self._leaves, others, places.put(solution, everywhere))
        key = (tiles.function, structure, tuple(wanted), tiles.shape[0], tiles.dtype, layout)
        self._add = _adder(*key, width, tile)
        self._sums = _zeros(tiles.dtype, layout)(self._leaves)

    def add(self, j, block):
        """Adds block row j: on each rank (columns, rows from the first row of the block column on)
        of the inverse of the conjugate of K, as `host_potri` leaves it."""
        self._sums = self._add(self._sums, block, np.int32(j), *self._arguments)
        jax.block_until_ready(self._sums)

    def result(self):
        """Returns the cotangents, in the order of the leaves."""
        # XLA's sum over processes could wait for a lost one without end.
        sums = ffi.meet_first(self._layout, *self._sums)
        return _totals(self._layout)(sums, self._leaves)


@functools.lru_cache(maxsize=32)
def _totals(layout):
    """Returns the compiled function of (sums, leaves) that returns the cotangents everywhere."""

    def run(sums, leaves):
        pairs = zip(sums, leaves, strict=True)
        return tuple(jnp.sum(one, 0).astype(leaf.dtype) for one, leaf in pairs)

    return jax.jit(run, out_shardings=layout.sharding(P()))


@functools.lru_cache(maxsize=32)
def _zeros(dtype, layout):
    """Returns the function of leaves that returns the sums of no tile, those of the ranks one after
    the other. A sum has at least the matrix's precision."""

    def local(coordinates, leaves):
        real = jnp.finfo(dtype).dtype
        return tuple(
            jnp.zeros((1, *leaf.shape), jnp.promote_types(leaf.dtype, real)) for leaf in leaves
        )

    return jax.jit(ffi.over_ranks(layout, local, (P(),), P(layout.rows)))


@functools.lru_cache(maxsize=32)
def _adder(function, structure, wanted, n, dtype, layout, width, tile):
    """Returns the compiled function of (sums, block, j, leaves, others, solution) that returns the
    sums, which it overwrites, with those of block row j."""

    def local(coordinates, sums, block, j, leaves, others, solution):
        length = min(tile, block.shape[1], _LENGTH.get(layout.platform, 1024))

        def add(sums, place):
            def made(*leaves):
                given, kept = iter(leaves), iter(others)
                all_leaves = [next(given) if want else next(kept) for want in wanted]
                parameters = jax.tree.unflatten(structure, all_leaves)
                return function(place.rows, place.columns, *parameters)

            inverse = jax.lax.dynamic_slice(block, place.at, (length, length))
            left, right = solution[place.rows].conj(), solution[place.columns].T
            outer = jnp.matmul(left, right, precision="highest")
            rows, columns = place.rows[:, None], place.columns[None, :]
            counted = place.new_rows[:, None] & place.new_columns[None, :] & (rows <= columns)
            # Elsewhere the block may have anything.
            weight = jnp.where(rows == columns, 0.5, 1).astype(outer.real.dtype)
            difference = outer - solution.shape[1] * inverse.conj()
            cotangent = jnp.where(counted, weight * difference, 0)
            value, pull = jax.vjp(made, *leaves)
            each = pull(cotangent.astype(value.dtype))
            return tuple(one + by for one, by in zip(sums, each, strict=True))

        sizes = (coordinates, j, n, width, tile, layout.ranks, length)
        return host_tiles.each_tile(add, sums, block.shape, *sizes)

    by_rank = P(layout.rows)
    specs = (by_rank, layout.row_spec, P(), P(), P(), P())
    return jax.jit(ffi.over_ranks(layout, local, specs, by_rank), donate_argnums=0)
