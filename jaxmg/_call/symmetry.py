"""Checks whether a matrix is Hermitian. The native code reads one triangle and can't."""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, layouts, programs
from jaxmg._factors import scaling
from jaxmg._transform import products

# The number of elements that are multiplied at a time if products need memory.
_PIECE = 2**14


def nan_unless_hermitian(a, layout):
    """Returns ``a`` (n, n) if it is Hermitian, else NaN, with NaN as its derivative."""
    if not a.size:
        return a
    # In a batch, explicit axes must shard all operands of a selection alike.
    hermitian = jnp.broadcast_to(is_hermitian(a, layout), a.shape)
    hermitian = layouts.constrain_like(hermitian, a)
    # A constant NaN would have the derivative 0.
    return jnp.where(hermitian, a, a * jnp.where(hermitian, 1, jnp.nan).astype(a.dtype))


def is_hermitian(a, layout):
    """Whether ``a`` (n, n), n > 0, differs from its adjoint by no more than rounding, a scalar.

    Compares the products of both with one vector, in one pass over each rank's rows; a comparison
    of entries would need an exchange of all ranks with all. Differences below 10 n eps times the
    largest entry count as rounding, because they are below the solver's backward error.
    """
    layout = layout.by_rows
    rows = blocks.split_rows(jax.lax.stop_gradient(a), layout)
    compare = ffi.over_ranks(
        layout,
        lambda coordinates, rows: _is_hermitian(coordinates.reshape(2)[0], rows, layout),
        (layout.row_spec,),
        jax.sharding.PartitionSpec(),
        plain=True,
    )
    return compare(rows)


def has_positive_diagonal(a, layout):
    """Whether the diagonal of ``a`` (n, n), n > 0, is positive, a scalar."""
    layout = layout.by_rows

    def local(coordinates, rows):
        count, n = rows.shape
        row = coordinates.reshape(2)[0] * count + jnp.arange(count)[:, None]
        if count * layout.ranks == n:
            positive = jnp.all(jnp.take_along_axis(rows, row, 1).real > 0)
        else:  # there are rows of padding
            diagonal = jnp.take_along_axis(rows, jnp.minimum(row, n - 1), 1).real
            positive = jnp.all((diagonal > 0) | (row >= n))
        return jax.lax.pmin(positive.astype(jnp.int32), layout.rows) if layout.rows else positive

    compare = ffi.over_ranks(
        layout, local, (layout.row_spec,), jax.sharding.PartitionSpec(), plain=True
    )
    return compare(blocks.split_rows(jax.lax.stop_gradient(a), layout)) > 0


def check(caller, name, a, arrays, arguments, triangle="upper"):
    """Returns ``a`` (n, n) if it is Hermitian, else raises. In a trace, returns NaN instead.

    Args:
        arrays: the arrays of the call, from which the placement of ``a`` is inferred.
    """
    mesh, spec = arguments.mesh, arguments.spec
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(
            f"{caller}: check=True looks at a square matrix; {name} has shape {tuple(a.shape)}, "
            "with rows of padding"
        )
    if not layouts.traced(arrays) and _compat.trace_state_clean():
        if not a.size or _compare_eagerly((a, *arrays), caller, name, mesh, spec):
            return a
        raise ValueError(
            f"{caller}: {name} is not Hermitian: it differs from its adjoint by more than "
            f"rounding, or holds NaN or infinity. Of it the {triangle} triangle would be read "
            "alone (check=False)"
        )
    layout = layouts.infer(caller, arrays, mesh, spec)
    with _compat.entered(layout.mesh):
        return _nan_unless_hermitian(a, layout)


@functools.partial(jax.jit, static_argnums=1)
def _nan_unless_hermitian(a, layout):
    return nan_unless_hermitian(a, layout)


def _compare_eagerly(arrays, caller, name, mesh, spec):
    """Whether the first of the arrays is Hermitian."""
    return bool(_compare(arrays, caller, name, mesh, spec))


@programs.cache_plans
def _compare(arrays, caller, name, mesh, spec):
    a, *others = arrays
    checks.matrix(caller, name, a, True, checks.ALL)
    layout = layouts.infer(caller, others, mesh, spec)
    call = programs.Call(
        "is_hermitian", _program, layout, a.shape, 0, "", (jax.sharding.PartitionSpec(),)
    )
    run = programs.runner(call, (a,))
    return lambda a, *_: run(a)[0]


def _program(call, a):
    a = nan_unless_hermitian(blocks.join_rows(a, call.layout, call.shape[0]), call.layout)
    return (~jnp.isnan(a[0, 0]),)


def _is_hermitian(rank, rows, layout):
    count, n = rows.shape
    dtype = jnp.finfo(rows.dtype).dtype
    largest = scaling.largest_of_ranks(rows, layout.rows)
    exponent = scaling.exponent_of(largest)
    # Products with the probe are near 1, so that none overflows or underflows.
    limit = scaling.lowest_exponent(dtype) - jnp.finfo(dtype).nmant - 1
    shift = scaling.clamped(-exponent, -limit, limit)
    probe = _probe(count * layout.ranks, dtype) * scaling.power(shift, dtype)
    probe = probe.astype(rows.dtype)
    own = jax.lax.dynamic_slice_in_dim(probe, rank * count, count)
    probe = probe[:n]

    def row_products(rows, own):
        return products.dot(rows, probe, 1, 0), products.dot(own, rows, 0, 0)

    def row_products_of_small(rows, own):
        """For XLA's CPU code, which flushes denormals to 0. In pieces, without a second matrix."""
        height = min(max(_PIECE // n, 1), count)

        def piece(i, sums):
            start = jnp.minimum(i * height, count - height)
            part, weights = (
                jax.lax.dynamic_slice_in_dim(array, start, height) for array in (rows, own)
            )
            # The last piece overlaps the previous one.
            fresh = start + jnp.arange(height) >= i * height
            weights = jnp.where(fresh, weights, 0)
            part = scaling.raised(part, jnp.int32(_raise(dtype)))
            along, across = row_products(part, weights)
            return jax.lax.dynamic_update_slice_in_dim(sums[0], along, start, 0), sums[1] + across

        zeros = (jnp.zeros((count,), rows.dtype), jnp.zeros((n,), rows.dtype))
        return jax.lax.fori_loop(0, -(-count // height), piece, zeros)

    if layout.platform == "cpu":
        small = exponent < _raise(dtype) - limit
        along, across = jax.lax.cond(small, row_products_of_small, row_products, rows, own)
        shift = jnp.where(small, shift + _raise(dtype), shift)
    else:
        along, across = row_products(rows, own)
    across = jnp.pad(across, (0, count * layout.ranks - n))
    across = products.reduce_scatter(across, layout).conj()
    # Padding rows are zeros, and so are absent columns.
    apart = scaling.largest_of_ranks(jnp.abs(along - across), layout.rows)
    return apart <= 10 * n * jnp.finfo(dtype).eps * scaling.raised(largest, shift)


def _raise(dtype):
    """Returns the exponent of a power of 2 that makes all entries normal, if denormal entries
    matter. Beside large entries they are rounding."""
    return 2 * jnp.finfo(dtype).nmant


def _probe(count, dtype):
    """Returns pseudorandom numbers of both signs, so that differences don't cancel: D. E. Knuth's
    multiplicative hashing ("The Art of Computer Programming", volume 3, section 6.4)."""
    hashed = jax.lax.iota(jnp.uint32, count) * jnp.uint32(2654435769)
    fraction = (hashed >> 9).astype(dtype) / 2**23
    return jnp.where(fraction < 0.5, fraction - 1, fraction)
