"""QR of a tall matrix that lies on the ranks by rows, of which no row moves, by the plugin
(xla_ffi/engine/qr/tall_qr.h has the algorithms), and small products that go with it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import ffi, plugins
from jaxmg._transform import products

# The routine of the plugin.
NATIVE = "tall_qr"
# Up to which |R| |R^-1| / n, in Frobenius's norm, R^-1 itself is multiplied with: as the plugin.
_MODERATE = 4


def factor_on_rank(layout, coordinates, rows, below=None, b=None, with_q=True):
    """(a rank's rows of Q, R, Q^H b, i, j) of A (m, n), m >= n, inside a shard_map; None for what
    there isn't.

    R is that of A 2^-i, and Q^H b of b 2^-j, with a j for each column. Without right-hand sides
    there are no powers, and squares of A's entries must neither overflow nor underflow. The
    diagonal of R is real and not negative.

    Args:
        coordinates: this rank's, [rank, group of replicas].
        rows: its rows of A; those of padding are zeros.
        below: (p, n), the same on all ranks: further rows of A, below the others. The rows of Q
            that are theirs are not returned.
        b: its rows of right-hand sides, (m, nrhs); zeros beside ``below``.
        with_q: whether to compute Q.
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
    """(Q, R, u) with R's diagonal real and not negative, of (Q, R), as Q times diag(u) and its
    adjoint times R; a Q may be left out, and may have more columns than R has on its diagonal."""
    diagonal = jnp.diagonal(r)
    sizes = jnp.abs(diagonal)
    units = jnp.where(sizes == 0, 1, diagonal / jnp.where(sizes == 0, 1, sizes).astype(r.dtype))
    # XLA of jaxlib 0.11.2 crashes on `.at[...].set` here.
    units = jnp.concatenate([units, jnp.ones(len(r) - len(units), r.dtype)])
    turned = units.conj()[:, None] * r
    if jnp.iscomplexobj(r):  # whose products leave rounding on the diagonal
        turned = jnp.where(
            jnp.eye(len(r), r.shape[1], dtype=bool), turned.real.astype(r.dtype), turned
        )
    return None if q is None else q * units, jnp.triu(turned), units


def is_moderate(r, inverse):
    """Whether R is so well conditioned that its inverse may take its place."""
    return _frobenius(r) * _frobenius(inverse) <= _MODERATE * len(r)


def _frobenius(x):
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x))))


def right_solve(rows, r):
    """rows R^-1."""
    return jax.lax.linalg.triangular_solve(r, rows, left_side=False, lower=False)


def adjoint_product(layout, x, y):
    """X^H Y of what the ranks have rows of, the same on all of them."""
    return sum_over_ranks(layout, products.dot(x.conj(), y, 0, 0, layout))


def sum_over_ranks(layout, value):
    """The sum of all ranks' values."""
    return jax.lax.psum(value, layout.rows) if layout.ranks > 1 else value


def dot(x, y, layout=None):
    """X Y; with a ``layout`` in its `shard_map`."""
    return products.dot(x, y, 1, 0, layout)


def pivot_order(r):
    """The order in which a QR with column pivoting takes the columns of ``r`` (k, n).

    The longest one that is left, perpendicular to those before, comes next (P. Businger, G. H.
    Golub, Numer. Math. 7, 1965; LAPACK's geqp3). Lengths are computed again in each step.
    """
    k, n = r.shape
    rows, columns = jnp.arange(k), jnp.arange(n)

    def step(i, state):
        r, order = state
        lengths = jnp.where(columns >= i, _lengths(jnp.where((rows >= i)[:, None], r, 0)), -1)
        swap = jnp.where(columns == i, jnp.argmax(lengths), columns)
        swap = jnp.where(columns == jnp.argmax(lengths), i, swap)
        r, order = r[:, swap], order[swap]
        x = jnp.where(rows >= i, r[:, i], 0)
        length = _lengths(x[:, None])[0]
        unit = jnp.where(length > 0, x / jnp.where(length > 0, length, 1).astype(r.dtype), 0)
        head = unit[i]
        size = jnp.abs(head)
        phase = jnp.where(size > 0, head / jnp.where(size > 0, size, 1).astype(r.dtype), 1)
        v = unit + jnp.where((rows == i) & (length > 0), phase, 0)
        reflected = r - v[:, None] * dot(v.conj()[None], r) / (1 + size).astype(r.dtype)
        return reflected, order

    return jax.lax.fori_loop(0, k, step, (r, columns.astype(jnp.int32)))[1]


def _lengths(x):
    """The lengths of columns, without overflow."""
    largest = jnp.max(jnp.abs(x), axis=0, initial=0)
    safe = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    scaled = jnp.abs(x) / safe
    return safe * jnp.sqrt(jnp.sum(scaled * scaled, axis=0))
