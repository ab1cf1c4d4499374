"""How a tall matrix in host memory is cut into chunks of rows, and the program that adds a chunk to
R and Q^H b: `Cut`."""

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
from jaxmg._matrices import products
from jaxmg._plugin import plugins
from jaxmg._stacks import scaling

ROWS = "host_rows"
# A chunk of A on a device has _CHUNK bytes, or _TIMES as many rows as R if that is more. On an H200
# QR of a chunk that has 16 times R's rows takes half as long as the chunk's transfer.
_CHUNK = 2**30
_TIMES = 16
_LOWEST = -(2**20)  # the exponent of a column of zeros
# Sums of squares count as equal if they differ by less than this number of units of rounding.
_UNITS = 100


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a matrix is cut into chunks: the key of the compiled programs.

    Attributes:
        layout: the devices, along one automatic axis. Chunk q is the device's of index q % ranks.
        m, n, nrhs: sizes; nrhs is 0 without right-hand sides.
        dtype: NumPy's name.
        rows: rows of a chunk.
        by_columns: whether chunks lie column by column in their buffers.
        function: that of `Tiles`, which makes the chunks; or None.
        residuals: whether to sum up squares of residuals.
    """

    layout: layouts.Layout
    m: int
    n: int
    nrhs: int
    dtype: str
    rows: int
    by_columns: bool = False
    function: typing.Any = None
    residuals: bool = False

    @property
    def chunks(self) -> int:
        return -(-self.m // self.rows)

    @functools.cached_property
    def here(self) -> tuple[int, ...]:
        """The indices of this process's devices."""
        mesh: typing.Any = self.layout.mesh
        process, devices = jax.process_index(), mesh.devices.flat
        return tuple(i for i, device in enumerate(devices) if device.process_index == process)

    @property
    def steps(self) -> int:
        return -(-self.chunks // self.layout.ranks)

    def ends(self, chunk: int) -> tuple[int, int]:
        """Returns the first row of a chunk, and that after its last; equal beyond the matrix."""
        return min(chunk * self.rows, self.m), min((chunk + 1) * self.rows, self.m)

    @property
    def buffer_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of a device's buffers, of A's rows and b's; (1, 1) for those without use."""
        of_a = (self.n, self.rows) if self.by_columns else (self.rows, self.n)
        of_b = (self.rows, self.nrhs) if self.nrhs else (1, 1)
        return (1, 1) if self.function else of_a, of_b

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """The bytes of a chunk in these."""
        size = np.dtype(self.dtype).itemsize
        of_a = 0 if self.function else self.rows * self.n * size
        return of_a, self.rows * self.nrhs * size

    @property
    def bytes(self) -> int:
        """The bytes of a device for a pass."""
        n, k, h, size = self.n, self.nrhs, self.rows, np.dtype(self.dtype).itemsize
        native = plugins.load(self.layout.platform).host_rows_bytes(
            self.dtype, n, h + n, k, k > 0, self.layout.platform
        )
        # The buffers, R above the chunk, and the chunk by rows. Not less if that is a buffer, so
        # that an array's order changes no bit.
        own = 2 * sum(self.buffer_bytes) + (h + n) * (n + 2 * k) * size + h * n * size
        return native + own + 3 * n * (n + k) * size


def cut(caller, layout, shape, nrhs, dtype, memory, **named):
    """Returns the `Cut` with the largest chunks for ``memory`` bytes of each device (None: no
    limit), up to those that are large enough. Depends on nothing but its arguments. Raises a
    ValueError if there is not even room for one row."""
    m, n = shape
    size = np.dtype(dtype).itemsize

    def of(rows):
        return Cut(layout, m, n, nrhs, str(dtype), rows, **named)

    most = min(-(-m // layout.ranks), max(_CHUNK // (n * size), _TIMES * n, 1))
    if memory is None or of(most).bytes <= memory:
        return of(most)
    least = of(1).bytes
    if least > memory:
        raise ValueError(
            f"{caller}: memory={memory} bytes of each device aren't enough: R and one row of a, "
            f"of shape {shape}, need {least}"
        )
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if of(middle).bytes <= memory else (low, middle)
    return of(low)


class SoFar(typing.NamedTuple):
    """What a pass carries along, on each device its own.

    R is the factor of A's columns divided by powers of two, and Q^H b of b's. Global arrays have
    those of one device after those of another.

    Attributes:
        r, c: R (n, n) and Q^H b (n, nrhs).
        of_a, of_b: the exponents (n,) and (nrhs,).
        squares: sums of squares of residuals (nrhs,), of the divided b.

    Without right-hand sides there is one of zeros in place of none, because XLA of jaxlib 0.11.2
    ends the process at some operations on no elements.
    """

    r: typing.Any
    c: typing.Any
    of_a: typing.Any
    of_b: typing.Any
    squares: typing.Any


def _compiled(make) -> typing.Any:
    """Decorates a function of a `Cut` that returns a function to jit, and the arguments that are
    donated. It must not read m, so that matrices of any m share one program."""

    @functools.lru_cache(maxsize=64)
    def of_any_m(cut):
        function, donated = make(cut)
        function.__name__ = f"jaxmg_{make.__name__}"
        jitted, mesh = jax.jit(function, donate_argnums=donated), cut.layout.mesh

        def run(*arrays):
            with _compat.entered(mesh), _compat.launching(mesh), _compat.default_promotion():
                return jitted(*arrays)

        return run

    return lambda cut: of_any_m(dataclasses.replace(cut, m=0))


def _mapped(cut, function, inputs, results):
    """Maps a function of a device's parts over the devices. All arrays but the last ``inputs``
    ones, which are the same on all devices, have the devices' parts one after the other."""
    axis = cut.layout.rows
    alone = layouts.alone(cut.layout.mesh)

    def local(coordinates, *arrays):
        return function(alone, coordinates, *arrays)

    def run(*arrays):
        parts = len(arrays) - inputs
        specs = tuple(P(axis) for _ in range(parts)) + (P(),) * inputs
        return ffi.over_ranks(alone, local, specs, (P(axis),) * results)(*arrays)

    return run


@_compiled
def host_start(cut):
    """Returns the function that allocates both pairs of buffers, and the `SoFar` of no rows."""
    dtype = np.dtype(cut.dtype)
    real = jnp.finfo(dtype).dtype
    n, k = cut.n, max(cut.nrhs, 1)

    def local(layout, coordinates):
        buffers = [jnp.zeros(shape, dtype) for shape in 2 * cut.buffer_shapes]
        exponents = (jnp.full((1, count), _LOWEST, jnp.int32) for count in (n, k))
        zeros = jnp.zeros((n, n), dtype), jnp.zeros((n, k), dtype)
        return *buffers, *zeros, *exponents, jnp.zeros((1, k), real)

    mapped = _mapped(cut, local, 0, 9)
    return (lambda: mapped()), ()


@_compiled
def host_step(cut):
    """Returns the function of (call, place, a, b, next a, next b, *state, *parameters) that adds a
    chunk of A, in a and b, to the state, and loads the next one. It overwrites the next buffers and
    the state, and returns them, after an array to wait for.

    On each device ``call`` (1, 4) is the operand of the native call, and ``place`` (1, 3) the first
    row of the chunk, the number of its rows, and the last row of the matrix.
    """

    def local(layout, coordinates, call, place, a, b, next_a, next_b, r, c, of_a, of_b, squares,
              parameters):  # fmt: skip
        first, count, last = place[0]
        if cut.function:
            a = _made(cut, first, last, parameters)
        elif cut.by_columns:
            a = a.T
        old = SoFar(r, c, of_a, of_b, squares)
        inside = (jnp.arange(cut.rows, dtype=jnp.int32) < count)[:, None]
        rows, of_a = _stacked(r, of_a[0], a, inside)
        columns = jnp.zeros((0, 0), r.dtype)
        if cut.nrhs:
            columns, exponents = _stacked(c, of_b[0], b, inside)
        shapes = next_a.shape, next_b.shape, r.shape, (cut.n, cut.nrhs)
        results = [jax.ShapeDtypeStruct(shape, r.dtype) for shape in shapes]
        results += [jax.ShapeDtypeStruct((size,), np.int32) for size in (1, cut.nrhs)]
        next_a, next_b, r, found, i, j = ffi.call(
            f"jaxmg_{ROWS}", layout, 0, "native",
            (coordinates, call.reshape(4), rows, columns, next_a, next_b), results,
            aliases={4: 0, 5: 1}, differing=6, n=cut.n, with_b=cut.nrhs > 0,
        )  # fmt: skip
        r = scaling.times_power(r, i)
        if cut.nrhs:
            c = scaling.times_power(found, j)
            if cut.residuals:
                moved = scaling.times_power(squares[0], 2 * (of_b[0] - exponents))
                squares = (moved + _lost(layout, rows, columns, r, c))[None]
            of_b = exponents[None]
        new = SoFar(r, c, of_a[None], of_b, squares)
        kept = (jnp.where(call[0, 2] != 0, x, y) for x, y in zip(old, new, strict=True))
        return i, next_a, next_b, *kept

    mapped = _mapped(cut, local, 1, 8)

    def run(*arrays):
        return mapped(*arrays[:11], arrays[11:])

    return run, (4, 5, 6, 7, 8, 9, 10)


def _stacked(r, exponents, chunk, inside):
    """Returns R above the rows of a chunk that are inside the matrix, columns divided by common
    powers of two, and the exponents of these."""
    chunk = jnp.where(inside, chunk, 0)
    common = jnp.maximum(exponents, scaling.exponents(scaling.largest(chunk, axis=0)))
    above = scaling.times_power(r, exponents - common)
    return jnp.concatenate([above, scaling.times_power(chunk, -common)]), common


def _lost(layout, rows, columns, r, c):
    """Returns the squares of the residuals of a chunk below R: of what Q^H b doesn't keep.

    The difference of squares has an error of some units of |b|^2. The residual of the solution has
    a small one if R is well conditioned; otherwise it may be anything.
    """

    def squares(x):
        return jnp.sum(jnp.square(x.real) + jnp.square(x.imag), axis=0)

    whole = squares(columns)
    difference = whole - squares(c)
    x = jax.lax.linalg.triangular_solve(r, c, left_side=True, lower=False)
    explicit = squares(columns - products.dot(rows, x, 1, 0, layout))
    close = jnp.abs(explicit - difference) <= _UNITS * jnp.finfo(r.dtype).eps * whole
    lost = jnp.where(close, explicit, jnp.maximum(difference, 0))
    return jnp.where(jnp.isnan(whole), whole, lost)


def _made(cut, first, last, parameters):
    """Returns the rows of `Tiles` from ``first`` on, up to ``last``."""
    rows, n = cut.rows, cut.n
    length = min(256 if cut.layout.platform == "cpu" else 1024, max(rows, n))
    height, width = max(rows, length), max(n, length)
    steps = jnp.arange(length, dtype=jnp.int32)

    def tile(i, block):
        across = -(-width // length)
        down, right = i // across * length, i % across * length
        down, right = jnp.minimum(down, height - length), jnp.minimum(right, width - length)
        at = jnp.minimum(first + down + steps, last), jnp.minimum(right + steps, n - 1)
        made = cut.function(*at, *parameters).astype(block.dtype)
        return jax.lax.dynamic_update_slice(block, made, (down, right))

    count = -(-height // length) * -(-width // length)
    block = jnp.zeros((height, width), np.dtype(cut.dtype))
    return jax.lax.fori_loop(0, count, tile, block)[:rows, :n]


@_compiled
def host_scaled(cut):
    """Returns the function of a `SoFar` that returns (R (ranks n, n) by devices, Q^H b (ranks n,
    nrhs), the squares (nrhs,), e, f): R is the factor of A 2^-e, and so on; the f of b (nrhs,) are
    one for each column."""
    ranks, n, k = cut.layout.ranks, cut.n, max(cut.nrhs, 1)

    def common(exponents, axis):
        largest = jnp.max(exponents, axis=axis)
        return jnp.where(largest > _LOWEST // 2, largest, 0)

    def run(r, c, of_a, of_b, squares):
        e, f = common(of_a, None), common(of_b, 0)
        r = scaling.times_power(r.reshape(ranks, n, n), (of_a - e)[:, None])
        c = scaling.times_power(c.reshape(ranks, n, k), (of_b - f)[:, None])
        squares = jnp.sum(scaling.times_power(squares, 2 * (of_b - f)), axis=0)
        return r.reshape(ranks * n, n), c.reshape(ranks * n, k), squares, e, f

    return run, ()
