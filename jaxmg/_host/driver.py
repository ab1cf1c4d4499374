"""The driver: factors a matrix in host memory block column by block column, and solves with the
factor. One native call for each block column, so that Ctrl-C ends a call between two of them."""

import contextlib
import ctypes
import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg._host import agreement, block_columns, pool, tiles, whole_calls
from jaxmg._layouts import places
from jaxmg._plugin import plugins

# The bytes of pinned memory on the way from and to pageable memory, for each device.
_RING, _LEAST_RING = 2**29, 2**14


@dataclasses.dataclass
class Storage:
    """Where the block columns of a factor are in host memory.

    Attributes:
        blocks: (address, elements between two columns) of each block column, from its diagonal or,
            if the geometry is whole, from its first row on.
        spans: memory that belongs to the factor alone.
        keep: what keeps other memory alive.
    """

    blocks: list[tuple[int, int]]
    spans: list[pool.Span]
    keep: typing.Any = None

    def release(self) -> None:
        """Gives memory of the factor's own back."""
        self.blocks, self.keep = [], None
        while self.spans:
            self.spans.pop().release()


class Factored(typing.NamedTuple):
    """The result of `factorize`. The solution isn't complete: `substitute` backward follows.
    ``cache`` has the array with the part of the factor that is still on the devices, if any."""

    x: jax.Array
    log_det: jax.Array
    status: int
    cache: list[jax.Array]


def packed_bytes(geometry):
    """Returns the bytes of a factor, or of this process's part of it, in memory of its own."""
    return sum(_block_bytes(geometry, j) for j in range(geometry.blocks))


def _block_bytes(geometry, j):
    count = geometry.stored(j) * (geometry.n - geometry.start(j))
    return -(-count * np.dtype(geometry.dtype).itemsize // 256) * 256


def in_place(geometry, matrix):
    """Returns the `Storage` of a factor that takes the memory of its matrix, a `HostMatrix`."""
    blocks = [matrix.block(*geometry.ends(j), geometry.start(j)) for j in range(geometry.blocks)]
    return Storage(blocks, [], matrix)


def packed(geometry, span):
    """Returns the `Storage` of a factor in memory of its own."""
    blocks, at = [], span.address
    for j in range(geometry.blocks):
        blocks.append((at, geometry.n - geometry.start(j)))
        at += _block_bytes(geometry, j)
    return Storage(blocks, [span])


def columns(geometry, b, conjugated):
    """Returns b as (n, nrhs), in memory of its own, on all devices of the layout."""
    sharding = geometry.layout.sharding(P())
    if b is None or b.size == 0:  # as `results.columns`
        b = np.zeros((geometry.n, geometry.nrhs), geometry.dtype)
    x = block_columns.host_columns(geometry)(places.put(b, sharding))
    return jnp.conj(x) if conjugated else x


def factorize(geometry, source, factor, x):
    """Factors a matrix; `factor` gets the factor. Returns `Factored`.

    Args:
        source: a `HostMatrix`, or `Tiles`.
        factor: `Storage`.
        x: right-hand sides from `columns`; donated.
    """
    run, live = block_columns.host_factor(geometry), [x]
    with contextlib.ExitStack() as stack:
        feed = feed_from(geometry, source, stack)
        handle = stack.enter_context(registered(geometry, factor.blocks, feed.blocks))
        stack.callback(wait_for, live)
        buffer, rest = block_columns.host_buffer(geometry), block_columns.host_cache(geometry)
        live[:] = [buffer(), buffer(), x, *([rest()] if geometry.cache else [])]
        shares, status = [], 0
        for j in range(geometry.blocks):
            live[j % 2] = feed.prepare(j, live[j % 2])
            a0, a1, x, share, info, *cache = run(block_columns.operand(handle, j), *live)
            live[:] = [a0, a1, x, *cache]
            shares.append(share)
            status = int(np.asarray(info)[0])  # waits, so that Ctrl-C comes between two calls
            done = whole_calls.of_cholesky(geometry, j)
            whole_calls.advance("factor", j + 1, geometry.blocks, done)
            if status:  # x and this share are NaN
                break
        return Factored(live[2], sum(shares[1:], shares[0])[0], status, live[3:])


def substitute(geometry, factor, cache, x, direction):
    """Applies a substitution with the factor to x (n, nrhs), which it overwrites."""
    if not cache:
        geometry = dataclasses.replace(geometry, cache=0)
    run, live = block_columns.host_sweep(geometry), [x]
    order = range(geometry.blocks)
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(registered(geometry, factor.blocks, []))
        stack.callback(wait_for, live)
        steps = order if direction == block_columns.FORWARD else reversed(order)
        for step, j in enumerate(steps, 1):
            live[0] = run(block_columns.operand(handle, j, direction), live[0], *cache)
            live[0].block_until_ready()
            whole_calls.advance("substitute", step, geometry.blocks, step / geometry.blocks)
    return live[0]


def invert(geometry, factor, use):
    """Replaces the factor by the inverse of the matrix, from the last block column to the first.
    Calls ``use(j, block)`` with each; the block is overwritten afterwards.

    In the block, on each rank (columns, rows from the block column's first on), only the elements
    on and below the diagonal of the conjugate of the matrix's inverse are defined.
    """
    run = block_columns.host_inverse(geometry)
    live: list[jax.Array] = []
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(registered(geometry, factor.blocks, []))
        stack.callback(wait_for, live)
        buffer = block_columns.host_buffer(geometry)
        live[:] = [buffer(), buffer()]
        for j in reversed(range(geometry.blocks)):
            live[:] = run(block_columns.operand(handle, j), *live)
            live[1].block_until_ready()
            use(j, live[1])
            done = whole_calls.of_inverse(geometry, j)
            whole_calls.advance("invert", geometry.blocks - j, geometry.blocks, done)


@contextlib.contextmanager
def registered(geometry, factor, source):
    """Registers the matrix with the plugin; yields the handle that native calls take."""
    plugin = plugins.load(geometry.layout.platform)
    spec = {
        "dtype": geometry.dtype, "n": geometry.n, "nrhs": geometry.nrhs, "width": geometry.width,
        "tile": geometry.tile, "ranks": geometry.layout.ranks, "source": source, "factor": factor,
        "whole": geometry.whole, "local": geometry.local,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        pageable = [
            name
            for name in ("source", "factor")
            if pool.is_pageable(plugin, [address for address, _ in spec[name]])
        ]
        if pageable:
            with agreement.in_step("a in pageable memory", geometry.layout, None):
                ring = _ring(plugin, geometry)
            stack.callback(ring.release)
            spec |= {"pageable": pageable, "ring": (ring.address, ring.bytes, pool.threads())}
        handle = plugin.host_open(spec)
        stack.callback(plugin.host_close, handle)
        yield handle


def _ring(plugin, geometry):
    """Returns pinned memory through which native calls copy pageable memory."""
    count = min(_RING * geometry.local_ranks, packed_bytes(geometry))
    count = max(count, _LEAST_RING * geometry.local_ranks)
    return pool.take(count) or pool.allocate("a in pageable memory", plugin, count, "copying it")


def wait_for(arrays):
    """Waits for native calls on these arrays, which use host memory that the caller will free."""
    for array in arrays:
        with contextlib.suppress(Exception):  # an error was raised already, or is NaN in the result
            if array.is_deleted():  # a call was interrupted before its results were known
                everywhere = NamedSharding(array.sharding.mesh, P())
                jax.block_until_ready(jnp.zeros((), device=everywhere) + 1)
            else:
                array.block_until_ready()


def feed_from(geometry, source, stack):
    """Returns what gives calls the block columns of a `HostMatrix` or `Tiles`: ``blocks``, their
    places in host memory, if any, and ``prepare(j, buffer)``, which returns the buffer for call j.
    Memory is given back at the end of ``stack``."""
    if isinstance(source, tiles.Tiles):
        return _Tiles(geometry, source)
    return _Rows(geometry, source, stack)


class _Tiles:
    """Fills the buffers of block columns with `Tiles`."""

    blocks: typing.ClassVar[list] = []

    def __init__(self, geometry, source):
        layout = geometry.layout
        self._parameters = tiles.put_parameters(source, layout)
        self._fill = tiles.filler(
            source.function, geometry.n, np.dtype(geometry.dtype), layout, geometry.width,
            geometry.tile, geometry.whole,
        )  # fmt: skip

    def prepare(self, j, buffer):
        return self._fill(buffer, np.int32(j), self._parameters)


class _Rows:
    """Lets native calls load block columns from host memory. Block rows that lie in several parts,
    as those of a matrix that is sharded by rows, are copied to one of two places first."""

    def __init__(self, geometry, matrix, stack):
        self._geometry, self._matrix = geometry, matrix
        self._plugin = plugins.load(geometry.layout.platform)
        starts = [geometry.start(j) for j in range(geometry.blocks)]
        found = [matrix.block(*geometry.ends(j), start) for j, start in enumerate(starts)]
        self._places: list[int] = []
        self._split = {j for j, block in enumerate(found) if block is None}
        if self._split:
            count = geometry.width * geometry.n * matrix.dtype.itemsize
            span = pool.take(2 * count) or pool.allocate(
                "a in several shards", self._plugin, 2 * count, "a copy of block rows"
            )
            stack.callback(span.release)
            self._places = [span.address, span.address + count]
        self.blocks = [
            (self._places[j % 2], geometry.n - starts[j]) if block is None else block
            for j, block in enumerate(found)
        ]
        self._copied = 0

    def prepare(self, j, buffer):
        # The native call of block column j loads the next one, too.
        while self._copied < min(j + 2, self._geometry.blocks):
            if self._copied in self._split:
                self._copy(self._copied)
            self._copied += 1
        return buffer

    def _copy(self, j):
        first, end = self._geometry.ends(j)
        target, ld = self.blocks[j]
        size = self._matrix.dtype.itemsize
        for rows, address, step in self._matrix.pieces(first, end, self._geometry.start(j)):
            self._plugin.host_copy(
                target, address, rows, ld * size, ld * size, step * size, pool.threads()
            )
            target += rows * ld * size


def read(geometry, factor):
    """Returns the rows of the upper factor as a NumPy array; for tests."""
    upper = np.zeros((geometry.n, geometry.n), geometry.dtype)
    for j, (address, ld) in enumerate(factor.blocks):
        first, end = geometry.ends(j)
        height, width = end - first, geometry.n - first
        count = ((height - 1) * ld + width) * upper.itemsize
        memory = (ctypes.c_char * count).from_address(address)
        flat = np.frombuffer(memory, upper.dtype)
        strides = (ld * upper.itemsize, upper.itemsize)
        upper[first:end, first:] = np.lib.stride_tricks.as_strided(flat, (height, width), strides)
    return np.triu(upper)
