"""Whether a matrix is Hermitian, which the native code, that reads one triangle, can't tell."""

import jax
import jax.numpy as jnp

from jaxmg import _blocks, _mesh, _native, _products


def nan_unless_hermitian(a, layout):
    """``a`` (n, n), or NaN where it differs from its adjoint by more than rounding.

    Compared are the products of both with one vector, which is a pass over the rows that each rank
    has; to compare the entries would be an exchange of all with all. Differences below 10 n eps
    times the largest entry are rounding, and lie below the backward error of what follows.
    """
    if not a.size:
        return a
    layout = layout.by_rows
    rows = _blocks.split_rows(jax.lax.stop_gradient(a), layout)
    compare = _native.over_ranks(
        layout,
        lambda place, rows: _is_hermitian(place.reshape(2)[0], rows, layout),
        (layout.row_spec,),
        jax.sharding.PartitionSpec(),
    )
    # Of a batch, explicit axes have to shard all operands of a selection alike.
    hermitian = _mesh.constrain_like(jnp.broadcast_to(compare(rows), a.shape), a)
    return jnp.where(hermitian, a, jnp.full_like(a, jnp.nan))


def _is_hermitian(rank, rows, layout):
    count, n = rows.shape
    dtype = jnp.finfo(rows.dtype).dtype
    probe = _probe(count * layout.ranks, dtype).astype(rows.dtype)
    own = jax.lax.dynamic_slice_in_dim(probe, rank * count, count)
    along = _products.dot(rows, probe[:n], 1, 0)
    across = jnp.pad(_products.dot(own, rows, 0, 0), (0, probe.size - n))
    across = _products.scattered_sum(across, layout).conj()
    # Rows of padding are zeros, and so are the columns that there aren't.
    apart, largest = (
        jax.lax.pmax(jnp.max(jnp.abs(values)), layout.rows) for values in (along - across, rows)
    )
    return apart <= 10 * n * jnp.finfo(dtype).eps * largest


def _probe(count, dtype):
    """Numbers of both signs and of no pattern, for differences not to cancel: D. E. Knuth's
    multiplicative hashing ("The Art of Computer Programming", volume 3, section 6.4)."""
    hashed = jax.lax.iota(jnp.uint32, count) * jnp.uint32(2654435769)
    fraction = (hashed >> 9).astype(dtype) / 2**23
    return jnp.where(fraction < 0.5, fraction - 1, fraction)
