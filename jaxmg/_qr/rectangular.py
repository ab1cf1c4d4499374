"""Products with rectangular matrices (m, n), and their transposition, for factors of such matrices.

As in `hermitian`, a matrix is laid out by rows, (P ceil(m / P), n), with zeros below the last row.
"""

import functools
from contextlib import nullcontext

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks
from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import hermitian, products


@hermitian.on_mesh_with(2)
def transposed(layout, a, m):
    """Returns A^T (n, m), laid out by rows, for the first m rows A of ``a``."""

    def local(rank, rows):
        return blocks.transposed_rows(rows, layout, m, rank)

    return hermitian.over_ranks(layout, local, (a,))


@hermitian.on_mesh
def by_rows(layout, a):
    """Lays out the caller's matrix by rows."""
    return blocks.split_rows(a, layout.by_rows)


@hermitian.on_mesh
def exchanged(layout, a):
    """Transposes the caller's matrix, and lays the result out by rows."""
    return transposed(layout, by_rows(layout, a), a.shape[0])


@hermitian.on_mesh_with(2, 3)
def resize(layout, a, m, n):
    """Returns the matrix (m, n) with the first rows and columns of ``a``, followed by zeros."""
    a = a if a.shape[1] == n else _with_whole_rows(a)
    a = jnp.pad(a[:, :n], ((0, 0), (0, max(n - a.shape[1], 0))))
    a = replicated_to_resize(layout, a, m)
    a = blocks.join_rows(a, layout, m) if len(a) > m else a
    if len(a) < m:
        a = jnp.pad(a, ((0, m - len(a)), (0, 0)))
    return blocks.split_rows(a, layout.by_rows)


def _with_whole_rows(a):
    """Replicates columns that explicit axes shard: JAX neither pads nor cuts them."""
    known = shardings.explicit_spec(a)
    if known is None or known[1][1] is None:
        return a
    mesh, spec = known
    return _compat.reshard(a, NamedSharding(mesh, P(spec[0], None)))


@hermitian.on_mesh_with(2)
def replicated_to_resize(layout, a, m):
    """Replicates ``a`` if it doesn't have m rows. XLA fails to compile some transposed programs
    that change the number of rows of a sharded matrix, for example from 4 to 3 on 2 devices."""
    return a if len(a) == m or not layout.rows else shardings.constrain(a, layout, P())


def identity(layout, tiles, m):
    """Returns the identity of order m, laid out by rows, with the dtype and the sharding of a
    factor's tiles."""
    shape = -(-m // layout.ranks) * layout.ranks, m
    if not layouts.traced((tiles,)):
        return _make_identity(shape, tiles.dtype, tiles.sharding)
    eye = jnp.eye(shape[0], shape[1], dtype=tiles.dtype)
    return shardings.constrain(eye, layout, layout.row_spec) if layout.rows else eye


def _make_identity(shape, dtype, sharding):
    with _compat.entered(sharding.mesh) if isinstance(sharding, NamedSharding) else nullcontext():
        return _compile_identity(shape, dtype, sharding)()


@functools.lru_cache(maxsize=64)
def _compile_identity(shape, dtype, sharding):
    return jax.jit(lambda: jnp.eye(shape[0], shape[1], dtype=dtype), out_shardings=sharding)


@hermitian.on_mesh_with(2)
def finished(layout, a, m):
    """Returns the first m rows of ``a``, sharded as a result."""
    if not layout.rows:
        return a[:m]
    a = blocks.join_rows(a, layout, m)
    spec = layout.result_spec(a.shape)
    return a if spec is None else shardings.constrain(a, layout, spec)


@hermitian.on_mesh_with(3)
def transposed_product(layout, a, x, m):
    """Returns A^T x, (n, k), for the first m rows of x; A has m rows."""

    def local(rank, a, x):
        own = hermitian.own_rows(layout, rank, x[:m])
        return hermitian.sum_over_ranks(layout, products.dot(a, own, 0, 0))

    return hermitian.over_ranks(layout, local, (a,), (x,), P())


@hermitian.on_mesh_with(3)
def conjugate_product(layout, a, x, m):
    """Returns a matrix of x's shape, with conj(A) x in the first m rows and zeros below them."""

    def local(rank, a, x):
        own = products.dot(a.conj(), x, 1, 0)
        whole = jnp.zeros((len(own) * layout.ranks, own.shape[1]), own.dtype)
        whole = jax.lax.dynamic_update_slice_in_dim(whole, own, rank * len(own), 0)
        whole = hermitian.sum_over_ranks(layout, whole)[:m]
        return jnp.pad(whole, ((0, len(x) - m), (0, 0)))

    return hermitian.over_ranks(layout, local, (a,), (x,), P())
