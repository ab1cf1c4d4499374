"""Products of matrices that lie on the ranks by rows, by XLA's collectives and products on one
device, which on GPUs are the plugin's.

With P ranks, a product takes P steps, one for each P-th part of the columns. A step gathers these
columns of Y from all ranks, or sums these columns of the product over all ranks. So at any time a
rank needs, in addition to its rows of X, Y and the product, only as much memory as its rows of a
matrix.

`products` uses these functions for batches, and if the engine can't compute a product.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import blocks
from jaxmg._layouts import layouts, meshes
from jaxmg._stacks import batching, choice
from jaxmg._stacks import products as stacked


def rows_times_adjoint(x, y, layout, conjugates=True):
    """Returns a rank's rows of X Y^H, or of X Y^T unless ``conjugates``, given its rows of X and Y.
    Rows of padding of Y become columns of the result."""
    y = y.conj() if conjugates else y
    x, y = (_with_columns(matrix, layout.ranks) for matrix in (x, y))
    width = y.shape[1] // layout.ranks

    def part(x, y, step):
        y = all_gather(_columns(y, step, width), layout)
        return dot(_columns(x, step, width), y, 1, 1, layout)

    shape = (x.shape[0], layout.ranks * y.shape[0])
    return _steps(part, lambda rows, part, _: rows + part, shape, x, y, layout)


def rows_times_rows(x, y, layout):
    """Returns a rank's rows of X Y, given its rows of X and Y."""

    def part(x, y, layout):
        y = all_gather(y, layout)[: x.shape[1]]
        return dot(x, y, 1, 0, layout)

    return _by_columns(part, x, y, x.shape[0], layout)


def adjoint_times_rows(x, y, layout, conjugates=True):
    """Returns a rank's ceil(m / P) rows of X^H Y (m, n), or of X^T Y unless ``conjugates``, given
    its rows of X and Y."""
    x = _with_columns(x.conj() if conjugates else x, layout.ranks)

    def part(x, y, layout):
        return reduce_scatter(dot(x, y, 0, 0, layout), layout)

    return _by_columns(part, x, y, x.shape[1] // layout.ranks, layout)


def adjoint(x, layout, m, conjugates=True):
    """Returns a rank's ceil(n / P) rows of X^H, or of X^T unless ``conjugates``, given its rows of
    X (m, n)."""
    columns = blocks.to_columns(x, layout, m, -(-x.shape[1] // layout.ranks))
    return (columns.conj() if conjugates else columns).T


def _by_columns(part, x, y, count, layout):
    """Returns ``count`` rows of a product; ``part(x, columns of y, layout)`` returns some
    columns."""
    columns = y.shape[1]
    y = _with_columns(y, layout.ranks)
    width = y.shape[1] // layout.ranks

    def compute(x, y, step):
        return part(x, _columns(y, step, width), layout)

    def write(rows, part, step):
        return jax.lax.dynamic_update_slice_in_dim(rows, part, step * width, 1)

    return _steps(compute, write, (count, y.shape[1]), x, y, layout)[:, :columns]


def _steps(part, write, shape, x, y, layout):
    """Returns the rows after all steps of ``rows = write(rows, part(x, y, step), step)``, which
    start with zeros of this shape.

    Without jax.checkpoint, a derivative of the loop would keep the gathered arrays of all steps,
    which are a whole matrix on each rank.
    """
    if layout.ranks == 1:
        return part(x, y, 0)

    def step(rows, i):
        return write(rows, jax.checkpoint(part)(x, y, i), i), None

    zeros = jnp.zeros(shape, x.dtype)
    # If the caller's shard_map tracks varying axes, a loop's initial values must vary as well.
    zeros = _compat.vary(zeros, _compat.varying_axes(x) | _compat.varying_axes(y))
    return jax.lax.scan(step, zeros, jnp.arange(layout.ranks))[0]


def _with_columns(x, multiple):
    """Appends columns of zeros to ``x`` until their number is a multiple of ``multiple``."""
    extra = -x.shape[1] % multiple
    return jnp.pad(x, ((0, 0), (0, extra))) if extra else x


def _columns(x, step, width):
    if width == x.shape[1]:
        return x
    return jax.lax.dynamic_slice_in_dim(x, step * width, width, 1)


def all_gather(rows, layout):
    """Returns the ``rows`` of all ranks, one rank's below another's."""
    return jax.lax.all_gather(rows, layout.rows, tiled=True) if layout.ranks > 1 else rows


def reduce_scatter(rows, layout):
    """Returns this rank's part of the sum of all ranks' ``rows``."""
    return jax.lax.psum_scatter(rows, layout.rows, tiled=True) if layout.ranks > 1 else rows


def dot(x, y, of_x, of_y, layout=None):
    """Returns the product of two matrices on one device, summed over dimension ``of_x`` of x and
    dimension ``of_y`` of y, in the precision of the dtype.

    If a ``layout`` on GPUs is passed, the plugin computes the product: XLA would time several
    algorithms for each shape, which takes most of a second. A product that XLA distributes over the
    devices is left to XLA, unless it is a batch: then each device computes its part by the plugin.
    """
    if layout is not None and _is_for_plugin(x, y, layout):
        left = stacked.TRANSPOSE if of_x == 0 else stacked.NONE
        right = stacked.TRANSPOSE if of_y == 1 else stacked.NONE
        spread = None if _is_placed(layout) else _Spread(batching.alone(layout))
        return stacked.multiply(x, y, left, right, spread)
    return jax.lax.dot_general(
        x, y, (((of_x,), (of_y,)), ((), ())), precision=jax.lax.Precision.HIGHEST
    )


def _is_for_plugin(x, y, layout):
    return (
        bool(x.size and y.size)
        and x.ndim == y.ndim == 2
        and x.dtype == y.dtype
        and str(x.dtype) in stacked.DTYPES
        and choice.multiplies_by_plugin(layout.platform)
    )


def _is_placed(layout):
    """Whether it is known here on which device a product is computed."""
    return not layout.is_whole or layout.mesh.size == 1 or bool(meshes.manual_axes())


@dataclasses.dataclass(frozen=True)
class _Spread:
    """Computes the products of a batch, each device its part; the ``spread`` of a product.

    Attributes:
        layout: an `alone` layout.
    """

    layout: layouts.Layout

    def __call__(self, size, marks, x, y, left, right):
        return batching.spread(self.layout, _Stacks(left, right), size, marks, x, y)


@dataclasses.dataclass(frozen=True)
class _Stacks:
    """Computes the products of a device's part of a batch; a function for `batching.spread`."""

    left: int
    right: int

    def compute_all(self, coordinates, x, y):
        return stacked.multiply(x, y, self.left, self.right)
