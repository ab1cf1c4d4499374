"""The building blocks of solvers' derivatives: products with matrices, mostly Hermitian, that are
sharded by rows.

Matrices have the layout that `rows` makes: (P ceil(n / P), n), each rank with its rows, and zeros
below the last row. Vectors are (n, k) and replicated. Inside the caller's shard_map
(`Layout.inside`), a matrix is a rank's rows of this. Functions read only the upper triangle of a
Hermitian matrix, unless they ask for the whole matrix. JAX can differentiate all functions.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, ffi, results
from jaxmg._layouts import local_layouts, shardings
from jaxmg._matrices import products
from jaxmg._stacks import rotations


def on_mesh(function):
    """Decorates ``function(layout, *arrays)``: it is compiled once, and runs on the layout's mesh,
    whatever the context's."""
    return on_mesh_with()(function)


def on_mesh_with(*static):
    """As `on_mesh`, for a function with further, static arguments in these positions."""

    def decorated(function):
        compiled = jax.jit(function, static_argnums=(0, *static))

        @functools.wraps(function)
        @_compat.default_promotion()
        def run(layout, *arguments):
            if not arguments[0].size:  # there are no rows to exchange
                layout = dataclasses.replace(layout, rows=(), others=layout.mesh.axis_names)
            if layout.inside:
                return compiled(layout, *arguments)
            with _compat.entered(layout.mesh):
                return compiled(layout, *arguments)

        return run

    return decorated


@on_mesh
def rows(layout, a):
    """Lays out the caller's square matrix, which may have padding, for the functions here."""
    return over_ranks(
        layout, lambda rank, block: blocks.to_rows(block, layout.by_rows, block.shape[1]), (a,)
    )


@on_mesh_with(2)
def with_padding(layout, matrix, count):
    """Undoes `rows`: returns a matrix of ``count`` rows, with zeros as padding."""
    if layout.inside:  # callers have only their rows there
        return matrix
    shape = count // layout.ranks, matrix.shape[1]
    if count <= len(matrix):
        return blocks.join_rows(matrix, layout, count)
    return over_ranks(layout, lambda rank, a: blocks.from_rows(a, layout.by_rows, shape), (matrix,))


def padded_like(layout, matrix, a):
    """Pads the caller's square matrix as ``a`` is padded."""
    if a.shape == matrix.shape:
        return matrix
    return with_padding(layout, rows(layout, matrix), a.shape[0])


def laid_out_like(layout, matrix, other):
    """As `with_padding`, with the height and the sharding of ``other``."""
    return shardings.constrain_like(with_padding(layout, matrix, other.shape[0]), other)


@on_mesh
def product(layout, a, x):
    """Returns H x for the Hermitian H with the upper triangle of ``a``."""

    def local(rank, a, x):
        upper, diagonal = _upper(rank, a)
        own = own_rows(layout, rank, x)
        below = _dot(upper.conj().T, own)
        return _placed(layout, rank, _dot(upper, x) + diagonal[:, None] * own, below)

    return over_ranks(layout, local, (a,), (x,), P())


@on_mesh
def half_product(layout, h, x):
    """Returns the upper triangle of a Hermitian H, with half its diagonal, times x."""

    def local(rank, h, x):
        return _placed(layout, rank, _dot(_half(rank, h), x), jnp.zeros_like(x))

    return over_ranks(layout, local, (h,), (x,), P())


@on_mesh
def half_adjoint_product(layout, h, x):
    """Returns the adjoint of the triangle in `half_product`, times x."""

    def local(rank, h, x):
        below = _dot(_half(rank, h).conj().T, own_rows(layout, rank, x))
        return sum_over_ranks(layout, below)

    return over_ranks(layout, local, (h,), (x,), P())


@on_mesh
def general_product(layout, a, x):
    """Returns A x for any square A."""

    def local(rank, a, x):
        return _placed(layout, rank, _dot(a, x), jnp.zeros_like(x))

    return over_ranks(layout, local, (a,), (x,), P())


@on_mesh
def general_adjoint_product(layout, a, x):
    """Returns A^H x for any square A."""

    def local(rank, a, x):
        return sum_over_ranks(layout, _dot(a.conj().T, own_rows(layout, rank, x)))

    return over_ranks(layout, local, (a,), (x,), P())


def multiply_right_hand_sides(product, layout, matrix, b):
    """Applies ``product`` to the caller's b, (n,) or (n, nrhs); the result is sharded like b."""
    if not b.size:
        return jnp.zeros_like(b)
    x = product(layout, matrix, results.columns(b))
    return shardings.constrain_like(results.like(x, b), b)


@on_mesh
def trace(layout, a, b):
    """Returns the trace of H B, for Hermitian matrices with the upper triangles of ``a`` and
    ``b``."""

    def local(rank, a, b):
        (upper, diagonal), (others, its) = _upper(rank, a), _upper(rank, b)
        twice = jnp.sum((upper * others.conj()).real)
        return sum_over_ranks(layout, 2 * twice + jnp.sum((diagonal * its).real))

    return over_ranks(layout, local, (a, b), (), P())


@on_mesh
def general_diagonal(layout, a):
    """Returns the diagonal of any square A, (n,)."""

    def local(rank, a):
        row, column = _indices(rank, a)
        own = jnp.sum(jnp.where(row == column, a, 0), axis=1)[:, None]
        return _placed(layout, rank, own, jnp.zeros((a.shape[1], 1), a.dtype))[:, 0]

    return over_ranks(layout, local, (a,), (), P())


@on_mesh
def general_trace(layout, a):
    """Returns the trace of any square A."""

    def local(rank, a):
        row, column = _indices(rank, a)
        return sum_over_ranks(layout, jnp.sum(jnp.where(row == column, a, 0)))

    return over_ranks(layout, local, (a,), (), P())


@on_mesh
def diagonal(layout, a):
    """Returns the real diagonal of a Hermitian matrix, (n,)."""

    def local(rank, a):
        n = a.shape[1]
        own = _upper(rank, a)[1].real[:, None]
        return _placed(layout, rank, own, jnp.zeros((n, 1), own.dtype))[:, 0]

    return over_ranks(layout, local, (a,), (), P())


@on_mesh
def triangles(layout, a):
    """Returns the lower triangle of any square A, and the upper one with ones on its diagonal."""

    def local(rank, a):
        row, column = _indices(rank, a)
        above = jnp.where(row < column, a, 0)
        return jnp.where(row < column, 0, a), jnp.where(row == column, 1, above)

    return over_ranks(layout, local, (a,))


@on_mesh
def permuted_columns(layout, a, order):
    """Returns the columns of A in this order."""
    return over_ranks(layout, lambda rank, a, order: a[:, order], (a,), (order,))


@on_mesh
def full(layout, a):
    """Returns the whole Hermitian matrix with the upper triangle of ``a``, by one exchange of all
    ranks with all."""

    def local(coordinates, a):
        half = _half(_rank(layout, coordinates), a)
        return half + products.adjoint_on_rank(half, layout.by_rows, coordinates)

    return _with_coordinates(layout, local, (a,))


@on_mesh
def upper(layout, a):
    """Returns the upper triangle, with a real diagonal."""

    def local(rank, a):
        row, column = _indices(rank, a)
        above, diagonal = _upper(rank, a)
        return above + jnp.where(row == column, diagonal[:, None], 0)

    return over_ranks(layout, local, (a,))


@on_mesh
def half(layout, h):
    """Returns the upper triangle of a Hermitian H, with half its diagonal."""
    return over_ranks(layout, _half, (h,))


@on_mesh
def adjoint(layout, a):
    """Returns the conjugate transpose."""
    return _product(products.adjoint_on_rank, layout, a)


@on_mesh
def times(layout, x, y):
    """Returns X Y."""
    return _product(products.rows_times_rows_on_rank, layout, x, y)


@on_mesh
def times_adjoint(layout, x, y):
    """Returns X Y^H."""
    n = x.shape[1]

    def multiply(x, y, layout, coordinates):
        return products.rows_times_adjoint_on_rank(x, y, layout, coordinates)[:, :n]

    return _product(multiply, layout, x, y)


@on_mesh
def adjoint_times(layout, x, y):
    """Returns X^H Y."""
    return _product(products.adjoint_times_rows_on_rank, layout, x, y)


@on_mesh
def scaled(layout, x, w):
    """Returns the columns of X, each times a number of w, (n,)."""
    return over_ranks(layout, lambda rank, x, w: x * w.astype(x.dtype), (x,), (w,))


@on_mesh
def column_products(layout, x, y):
    """Returns the real parts of the inner products of the columns of X with those of Y, (n,)."""

    def local(rank, x, y):
        return sum_over_ranks(layout, jnp.sum((x.conj() * y).real, axis=0))

    return over_ranks(layout, local, (x, y), (), P())


@on_mesh
def quotients(layout, c, w, diagonal=None):
    """Returns C_ij / (w_j - w_i) for i != j, by `rotations.gaps`, where 0 / 0 is 0, with
    ``diagonal`` or zeros on the diagonal."""

    def local(rank, c, w, *diagonal):
        row, column = _indices(rank, c)
        gap = rotations.gaps(own_rows(layout, rank, w[:, None]), w)
        gap = jnp.where(row == column, 1, gap)
        gap = _compat.vary(gap, _compat.varying_axes(c))
        off_diagonal = rotations.divide(jnp.where(row == column, 0, c), gap)
        return off_diagonal + sum(jnp.where(row == column, x, 0).astype(c.dtype) for x in diagonal)

    return over_ranks(layout, local, (c,), (w,) if diagonal is None else (w, diagonal))


@on_mesh
def divided(layout, c, w, values, slopes, diagonal):
    """Returns C_ij F_ij, where F are the divided differences of the values at w, with ``diagonal``
    on the diagonal.

    If w_i and w_j are so close that rounding dominates their divided difference, the mean of the
    two slopes replaces it: it is closer to the exact value. If a slope is infinite, as the slope of
    a root is at 0, so is the product, unless C_ij is 0.
    """
    unit = jnp.finfo(w.dtype).eps

    def local(rank, c, w, values, slopes, diagonal):
        row, column = _indices(rank, c)
        own_w, own_values, own_slopes = (
            own_rows(layout, rank, x[:, None]) for x in (w, values, slopes)
        )
        gap = w - own_w
        equal = gap == 0
        gap = jnp.where(equal, 1, gap)
        quotient = (values - own_values) / gap
        mean = (slopes + own_slopes) / 2
        rounding = 4 * unit * (jnp.abs(values) + jnp.abs(own_values)) / jnp.abs(gap)
        close = equal | (jnp.abs(mean - quotient) <= rounding)
        factor = jnp.where(close, mean, quotient)
        infinite = ~jnp.isfinite(factor) & jnp.isfinite(values) & jnp.isfinite(own_values)
        divided = c * jnp.where(infinite, 0, factor)
        divided += rotations.divide(jnp.where(infinite, c, 0), jnp.where(infinite, 0, 1))
        return jnp.where(row == column, diagonal, divided)

    return over_ranks(layout, local, (c,), (w, values, slopes, diagonal))


@on_mesh
def same_on_ranks(layout, x):
    """Whether a replicated array has the same numbers, or NaN, on all ranks."""

    def local(rank, x):
        first = sum_over_ranks(layout, jnp.where(rank == 0, x, 0))
        apart = (x != first) & ~(jnp.isnan(x) & jnp.isnan(first))
        return sum_over_ranks(layout, jnp.any(apart).astype(jnp.int32)) == 0

    return over_ranks(layout, local, (), (jax.lax.stop_gradient(x),), P())


def over_ranks(layout, local, matrices, vectors=(), result=None):
    """Calls ``local`` on each rank with its index, its rows of ``matrices``, and ``vectors``. The
    result has the spec ``result``, by default by rows."""

    def run(coordinates, *arrays):
        return local(_rank(layout, coordinates), *arrays)

    return _with_coordinates(layout, run, matrices, vectors, result)


def _rank(layout, coordinates):
    if coordinates is not None:
        return coordinates.reshape(2)[0]
    return local_layouts.local_rank(layout) if layout.inside else 0


def _with_coordinates(layout, local, matrices, vectors=(), result=None):
    """As `over_ranks`, but passes the rank's coordinates instead of its index; None outside of a
    shard_map of this package."""
    if layout.inside:
        return local(None, *matrices, *vectors)
    out = layout.row_spec if result is None else result
    if not layout.rows:  # a batch is spread over the devices
        return local(None, *(blocks.replicate(x, layout) for x in (*matrices, *vectors)))
    specs = (*(layout.row_spec for _ in matrices), *(P() for _ in vectors))
    mapped = ffi.over_ranks(layout, local, specs, out)
    matrices = (blocks.split_rows(matrix, layout) for matrix in matrices)
    return mapped(*matrices, *(blocks.replicate(vector, layout) for vector in vectors))


def _product(of, layout, *matrices):
    def local(coordinates, *matrices):
        return of(*matrices, layout.by_rows, coordinates)

    return _with_coordinates(layout, local, matrices)


def _upper(rank, a):
    """Returns a rank's rows of the strict upper triangle, and their part of the real diagonal."""
    row, column = _indices(rank, a)
    diagonal = jnp.sum(jnp.where(row == column, a.real, 0), axis=1)
    return jnp.where(row < column, a, 0), diagonal.astype(a.dtype)


def _half(rank, a):
    row, column = _indices(rank, a)
    upper, diagonal = _upper(rank, a)
    return upper + jnp.where(row == column, diagonal[:, None] / 2, 0)


def _indices(rank, a):
    count, n = a.shape
    return rank * count + jnp.arange(count)[:, None], jnp.arange(n)[None]


def own_rows(layout, rank, x):
    """Returns the rows of a vector that match a rank's rows of a matrix."""
    count = -(-len(x) // layout.ranks)
    padded = jnp.pad(x, ((0, count * layout.ranks - len(x)), (0, 0)))
    return jax.lax.dynamic_slice_in_dim(padded, rank * count, count)


def _placed(layout, rank, own, all_rows):
    """Adds ``own`` to a rank's rows of ``all_rows``, and sums the result over the ranks."""
    if layout.ranks == 1:
        return all_rows + own
    n, count = len(all_rows), len(own)
    padded = jnp.pad(all_rows, ((0, count * layout.ranks - n), (0, 0)))
    start = rank * count
    mine = jax.lax.dynamic_slice_in_dim(padded, start, count) + own
    return sum_over_ranks(layout, jax.lax.dynamic_update_slice_in_dim(padded, mine, start, 0)[:n])


def sum_over_ranks(layout, value):
    """Returns the sum of ``value`` over the ranks."""
    if layout.inside:
        return local_layouts.summed(value, layout)
    return jax.lax.psum(value, layout.rows) if layout.rows else value


def _dot(x, y):
    return products.dot(x, y, 1, 0)
