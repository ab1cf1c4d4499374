"""QR of a tall matrix that is sharded by rows, and small products related to it.

The plugin computes the QR without moving a row (xla_ffi/engine/qr/tall/tall_qr.h has the
algorithms).
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import ffi
from jaxmg._matrices import products
from jaxmg._plugin import plugins

# The routine of the plugin.
NATIVE = "tall_qr"
# If |R| |R^-1| / n in the Frobenius norm is at most this, products with R^-1 replace solves with R.
# The plugin has the same limit.
_MODERATE = 4


def factor_on_rank(layout, coordinates, rows, below=None, b=None, with_q=True):
    """Returns (a rank's rows of Q, R, Q^H b, i, j) of A (m, n), m >= n, inside a shard_map.

    R is the factor of A 2^-i, and Q^H b is computed from b 2^-j, with one j per column. Without b
    the last three results are None, nothing is scaled, and squares of A's entries must neither
    overflow nor underflow. The diagonal of R is real and nonnegative.

    Args:
        coordinates: this rank's, [rank, group of replicas].
        rows: this rank's rows of A; rows of padding are zeros.
        below: (p, n), the same on all ranks: further rows of A, below all others. The corresponding
            rows of Q are not returned.
        b: this rank's rows of the right-hand sides (m, nrhs), which are zero for ``below``.
        with_q: whether to compute Q; otherwise the first result is None.
    """
    (height, n), dtype, with_b = rows.shape, rows.dtype, b is not None
    b = jnp.zeros((0, 0), dtype) if b is None else b
    below = jnp.zeros((0, n), dtype) if below is None else below
    shapes = (height if with_q else 0, n), (n, n), (n, b.shape[1])
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    results += [jax.ShapeDtypeStruct(shape, np.int32) for shape in ((1,), (b.shape[1],))]
    if n:
        plugins.load(layout.platform)
        q, r, c, i, j = ffi.call(
            f"jaxmg_{NATIVE}", layout, 0, "native", (coordinates, rows, b, below), results,
            in_place=0, n=n, with_b=with_b, with_q=with_q,
        )  # fmt: skip
    else:
        q, r, c, i, j = (jnp.zeros(x.shape, x.dtype) for x in results)
    others = (c, i.reshape(()), j) if with_b else (None, None, None)
    return q if with_q else None, r, *others


def with_positive_diagonal(q, r):
    """Returns (Q diag(u), diag(u)^H R, u), where |u| = 1 makes R's diagonal real and nonnegative.

    Q may be None, and may have more columns than R has diagonal entries.
    """
    diagonal = jnp.diagonal(r)
    sizes = jnp.abs(diagonal)
    units = jnp.where(sizes == 0, 1, diagonal / jnp.where(sizes == 0, 1, sizes).astype(r.dtype))
    # XLA of jaxlib 0.11.2 crashes on `.at[...].set` here.
    units = jnp.concatenate([units, jnp.ones(len(r) - len(units), r.dtype)])
    turned = units.conj()[:, None] * r
    if jnp.iscomplexobj(r):  # rounding leaves imaginary parts on the diagonal
        turned = jnp.where(
            jnp.eye(len(r), r.shape[1], dtype=bool), turned.real.astype(r.dtype), turned
        )
    return None if q is None else q * units, jnp.triu(turned), units


def is_moderate(r, inverse):
    """Returns whether R is conditioned so well that products with R^-1 may replace solves."""
    return _frobenius(r) * _frobenius(inverse) <= _MODERATE * len(r)


def _frobenius(x):
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x))))


def right_solve(rows, r):
    """Returns ``rows`` R^-1."""
    return jax.lax.linalg.triangular_solve(r, rows, left_side=False, lower=False)


def adjoint_product(layout, x, y):
    """Returns X^H Y, replicated, of matrices whose rows are distributed over the ranks."""
    return sum_over_ranks(layout, products.dot(x.conj(), y, 0, 0, layout))


def sum_over_ranks(layout, value):
    """Returns the sum of all ranks' values."""
    return jax.lax.psum(value, layout.rows) if layout.ranks > 1 else value


def dot(x, y, layout=None):
    """Returns X Y. Inside the `shard_map` of a layout this needs the ``layout``."""
    return products.dot(x, y, 1, 0, layout)


def pivot_order(r):
    """Returns the order in which a QR with column pivoting takes the columns of ``r`` (k, n).

    Each step takes the column with the longest component orthogonal to the columns before it
    (P. Businger, G. H. Golub, Numer. Math. 7, 1965; LAPACK's geqp3). All lengths are recomputed in
    each step.
    """
    k, n = r.shape
    rows, columns = jnp.arange(k), jnp.arange(n)

    def step(i, state):
        r, order = state
        lengths = jnp.where(columns >= i, _lengths(jnp.where((rows >= i)[:, None], r, 0)), -1)
        longest, length = jnp.argmax(lengths), jnp.max(lengths)
        swap = jnp.where(columns == i, longest, jnp.where(columns == longest, i, columns))
        r, order = r[:, swap], order[swap]
        x = jnp.where(rows >= i, r[:, i], 0)
        unit = jnp.where(length > 0, x / jnp.where(length > 0, length, 1).astype(r.dtype), 0)
        head = unit[i]
        size = jnp.abs(head)
        phase = jnp.where(size > 0, head / jnp.where(size > 0, size, 1).astype(r.dtype), 1)
        v = unit + jnp.where((rows == i) & (length > 0), phase, 0)
        reflected = r - v[:, None] * dot(v.conj()[None], r) / (1 + size).astype(r.dtype)
        return reflected, order

    return jax.lax.fori_loop(0, k, step, (r, columns.astype(jnp.int32)))[1]


def _lengths(x):
    """Returns the 2-norms of the columns, without overflow."""
    largest = jnp.max(jnp.abs(x), axis=0, initial=0)
    safe = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    scaled = jnp.abs(x) / safe
    return safe * jnp.sqrt(jnp.sum(scaled * scaled, axis=0))
