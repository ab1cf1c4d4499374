"""The native calls on block columns of a matrix in host memory, each compiled once for a
`Geometry`."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import ffi
from jaxmg._layouts import layouts

FACTOR, SOLVE, INVERT = "host_potrf", "host_solve", "host_potri"
LU_FACTOR, LU_SOLVE = "host_getrf", "host_getrs"
HANDLERS = (FACTOR, SOLVE, INVERT, LU_FACTOR, LU_SOLVE, "host_rows")
FORWARD, BACKWARD = 0, 1
# The substitutions of `LU_SOLVE`, and whether they begin with the first block column. M is the
# matrix whose columns are the rows of memory, and X, whose rows are right-hand sides, is multiplied
# from the right.
UPPER, LOWER, LOWER_TRANS, LOWER_ADJOINT, UPPER_TRANS, UPPER_ADJOINT = range(6)
ASCENDING = (UPPER, LOWER_TRANS, LOWER_ADJOINT)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How a matrix is cut into block columns and tiles: the key of the compiled programs.

    Attributes:
        layout: the ranks, along one automatic axis.
        n, nrhs: the order, and the number of right-hand sides, at least 1.
        dtype: NumPy's name.
        width: columns of a block column.
        tile: columns of a tile.
        products: the precision of products, as `checks.PRODUCTS` has it.
        cache: elements of the factor that stay on each device.
        whole: whether block rows have all columns, for LU, or only those from the diagonal on.
    """

    layout: layouts.Layout
    n: int
    nrhs: int
    dtype: str
    width: int
    tile: int
    products: int
    cache: int = 0
    whole: bool = False

    @property
    def blocks(self) -> int:
        """Number of block columns."""
        return -(-self.n // self.width)

    @property
    def buffer_shape(self) -> tuple[int, int]:
        """(columns, rows) of a rank's buffers of a block column."""
        group = self.tile * self.layout.ranks
        return -(-self.width // group) * self.tile, -(-(self.n + self.nrhs) // 64) * 64

    def ends(self, j: int) -> tuple[int, int]:
        """Returns the first column of block column j, and that after its last."""
        return j * self.width, min((j + 1) * self.width, self.n)

    def start(self, j: int) -> int:
        """Returns the first column of block row j that is read."""
        return 0 if self.whole else j * self.width

    @functools.cached_property
    def local(self) -> tuple[int, ...]:
        """For each rank its index among those of this process; -1: it is in another process. Empty
        if all are in this one."""
        here = [process == jax.process_index() for process in self.layout.processes]
        return tuple(sum(here[:rank]) if mine else -1 for rank, mine in enumerate(here))

    @property
    def local_ranks(self) -> int:
        return sum(index >= 0 for index in self.local) if self.local else self.layout.ranks

    def stored(self, j: int) -> int:
        """Returns the number of columns of block column j in this process's part of a factor."""
        first, end = self.ends(j)
        if not self.local:
            return end - first
        tiles = range(0, end - first, self.tile)
        mine = (at for p, at in enumerate(tiles) if self.local[p % self.layout.ranks] >= 0)
        return sum(min(self.tile, end - first - at) for at in mine)

    @property
    def _sizes(self) -> dict[str, int]:
        return {
            "n": self.n, "nrhs": self.nrhs, "width": self.width, "products": self.products,
        }  # fmt: skip


def _compiled(
    make: typing.Callable[[Geometry], typing.Any],
) -> typing.Callable[[Geometry], typing.Callable[..., typing.Any]]:
    """Decorates a function of a `Geometry` that returns a function to jit, and the arguments that
    are donated. The decorated function returns the jitted one, to be called in any context."""

    @functools.lru_cache(maxsize=64)
    def compiled(geometry):
        function, donated = make(geometry)
        function.__name__ = f"jaxmg_{make.__name__}"
        jitted, mesh = jax.jit(function, donate_argnums=donated), geometry.layout.mesh

        def run(*arrays):
            with _compat.entered(mesh), _compat.launching(mesh):
                return jitted(*arrays)

        return run

    return compiled


@_compiled
def host_buffer(geometry):
    """Returns the function that allocates a buffer of a block column."""
    layout = geometry.layout

    def local(coordinates):
        return jnp.zeros(geometry.buffer_shape, geometry.dtype)

    mapped = ffi.over_ranks(layout, local, (), layout.row_spec)
    return (lambda: mapped()), ()


@_compiled
def host_cache(geometry):
    """Returns the function that allocates the memory for the part of the factor that stays on the
    devices."""
    layout = geometry.layout

    def local(coordinates):
        return jnp.zeros((geometry.cache,), geometry.dtype)

    mapped = ffi.over_ranks(layout, local, (), P(layout.rows))
    return (lambda: mapped()), ()


@_compiled
def host_columns(geometry):
    """Returns the function of b (n,) or (n, nrhs) that returns a copy of its columns, (n, nrhs)."""

    def columns(b):
        return jnp.copy(b.reshape(geometry.n, geometry.nrhs))

    return columns, ()


@_compiled
def host_factor(geometry):
    """Returns the function of (call, a0, a1, x[, cache]) that factors a block column. It overwrites
    all but the first, and returns (a0, a1, x, share of the log-determinant, status[, cache])."""
    layout, dtype = geometry.layout, np.dtype(geometry.dtype)
    cached = geometry.cache > 0
    results = (
        *[jax.ShapeDtypeStruct(geometry.buffer_shape, dtype)] * 2,
        jax.ShapeDtypeStruct((geometry.n, geometry.nrhs), dtype),
        jax.ShapeDtypeStruct((1,), jnp.finfo(dtype).dtype),
        jax.ShapeDtypeStruct((1,), jnp.int32),
        *[jax.ShapeDtypeStruct((geometry.cache,), dtype)] * cached,
    )
    aliases = {2: 0, 3: 1, 4: 2, 5: 5}

    def local(coordinates, call, *arrays):
        return ffi.call(
            f"jaxmg_{FACTOR}", layout, geometry.tile, "native", (coordinates, call, *arrays),
            results, aliases={i: aliases[i] for i in range(2, 2 + len(arrays))}, differing=2,
            **geometry._sizes,
        )  # fmt: skip

    by_rank, cache = (layout.row_spec, layout.row_spec), (P(layout.rows),) * cached
    mapped = ffi.over_ranks(
        layout, local, (P(), *by_rank, P(), *cache), (*by_rank, P(), P(), P(), *cache)
    )
    return (lambda *arrays: mapped(*arrays)), tuple(range(1, 4 + cached))


@_compiled
def host_sweep(geometry):
    """Returns the function of (call, x[, cache]) that applies a block column of a substitution to
    x, which it overwrites."""
    layout = geometry.layout
    shape = jax.ShapeDtypeStruct((geometry.n, geometry.nrhs), np.dtype(geometry.dtype))
    cache = (P(layout.rows),) * (geometry.cache > 0)

    def local(coordinates, *arrays):
        return ffi.call(
            f"jaxmg_{SOLVE}", layout, geometry.tile, "native", (coordinates, *arrays), (shape,),
            aliases={2: 0}, differing=0, **geometry._sizes,
        )[0]  # fmt: skip

    mapped = ffi.over_ranks(layout, local, (P(), P(), *cache), P())
    return (lambda *arrays: mapped(*arrays)), (1,)


@_compiled
def host_inverse(geometry):
    """Returns the function of (call, a, z) that replaces a block column of the factor by that of
    the inverse. It overwrites a and z, and returns both; z has the block column."""
    layout = geometry.layout
    results = (jax.ShapeDtypeStruct(geometry.buffer_shape, np.dtype(geometry.dtype)),) * 2

    def local(coordinates, call, *buffers):
        return ffi.call(
            f"jaxmg_{INVERT}", layout, geometry.tile, "native", (coordinates, call, *buffers),
            results, aliases={2: 0, 3: 1}, differing=2, **geometry._sizes,
        )  # fmt: skip

    by_rank = (layout.row_spec,) * 2
    mapped = ffi.over_ranks(layout, local, (P(), *by_rank), by_rank)
    return (lambda *arrays: mapped(*arrays)), (1, 2)


@_compiled
def host_lu(geometry):
    """Returns the function of (call, a0, a1, x, pivots[, cache]) that factors a block column by LU.
    It overwrites all but the first, and returns (a0, a1, x, pivots, share of the logarithm of the
    determinant's size, factor of its sign, status[, cache])."""
    layout, dtype = geometry.layout, np.dtype(geometry.dtype)
    cached = geometry.cache > 0
    results = (
        *[jax.ShapeDtypeStruct(geometry.buffer_shape, dtype)] * 2,
        jax.ShapeDtypeStruct((geometry.n, geometry.nrhs), dtype),
        jax.ShapeDtypeStruct((geometry.n,), jnp.int32),
        jax.ShapeDtypeStruct((1,), jnp.finfo(dtype).dtype),
        jax.ShapeDtypeStruct((1,), dtype),
        jax.ShapeDtypeStruct((1,), jnp.int32),
        *[jax.ShapeDtypeStruct((geometry.cache,), dtype)] * cached,
    )
    aliases = {2: 0, 3: 1, 4: 2, 5: 3, 6: 7}

    def local(coordinates, *arrays):
        return ffi.call(
            f"jaxmg_{LU_FACTOR}", layout, geometry.tile, "native", (coordinates, *arrays), results,
            aliases={i: aliases[i] for i in range(2, 1 + len(arrays))}, differing=2,
            **geometry._sizes,
        )  # fmt: skip

    by_rank, cache = (layout.row_spec, layout.row_spec), (P(layout.rows),) * cached
    mapped = ffi.over_ranks(
        layout, local, (P(), *by_rank, P(), P(), *cache), (*by_rank, *(P(),) * 5, *cache)
    )
    return (lambda *arrays: mapped(*arrays)), tuple(range(1, 5 + cached))


@_compiled
def host_lu_sweep(geometry):
    """Returns the function of (call, x, pivots[, cache]) that applies a block column of a
    substitution with LU factors to x, which it overwrites."""
    layout = geometry.layout
    shape = jax.ShapeDtypeStruct((geometry.n, geometry.nrhs), np.dtype(geometry.dtype))

    def local(coordinates, *arrays):
        return ffi.call(
            f"jaxmg_{LU_SOLVE}", layout, geometry.tile, "native", (coordinates, *arrays), (shape,),
            aliases={2: 0}, differing=0, **geometry._sizes,
        )[0]  # fmt: skip

    cache = (P(layout.rows),) * (geometry.cache > 0)
    mapped = ffi.over_ranks(layout, local, (P(), P(), P(), *cache), P())
    return (lambda *arrays: mapped(*arrays)), (1,)


def operand(handle, j, direction=0):
    """Returns the operand `call` of a native call on block column j."""
    return np.array([handle, j, direction, 0], np.int32)
