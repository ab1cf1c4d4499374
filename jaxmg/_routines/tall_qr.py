"""QR of a tall matrix that lies on the ranks by rows, of which no row moves.

A rank sends and receives matrices of n x n alone. Three algorithms:

- CholeskyQR2 (Y. Yamamoto, Y. Nakatsukasa, Y. Yanagisawa, T. Fukaya, ETNA 44, 2015): A^H A = R^H R
  with A^H A the sum of the ranks' products, Q = A R^-1, and the same again of Q. What is left of a
  failure of the first pass shows in the second Gram matrix. Where that is I to less than a quarter,
  the second pass makes Q orthogonal to rounding, whatever A is; in practice it is up to a condition
  of 1e8 in double precision, of A with its columns scaled. Else a pass with a shifted Gram matrix
  is made before the two (T. Fukaya et al., SIAM J. Sci. Comput. 42, 2020), which takes that to
  about 1e15.
- TSQR (J. Demmel, L. Grigori, M. Hoemmen, J. Langou, SIAM J. Sci. Comput. 34, 2012), where these
  don't do: Householder's QR of each rank's rows, and one of all their R's, which every rank has. It
  is right for every A.

- Where Q isn't wanted but Q^H b is, and A is well conditioned, the first Gram matrix does: R^H R =
  A^H A, and x by the seminormal equations R^H R x = A^H b, corrected once by its residual (A.
  Bjorck, Linear Algebra Appl. 88/89, 1987). Q^H b is R x.

The diagonal of R is real and not negative, so that Q and R of an A of full rank don't depend on how
many ranks there are.
"""

import jax
import jax.numpy as jnp

from jaxmg._call import ffi
from jaxmg._factors import scaling
from jaxmg._stacks import library, triangle
from jaxmg._transform import products

# How far the second Gram matrix may be from I. A quarter is far below what CholeskyQR2 allows.
_BOUND = 0.25
# How many columns of a product with a triangular matrix are computed at a time.
_COLUMNS = 512
# Up to which |R| |R^-1| / n, in Frobenius's norm, R^-1 itself is multiplied with. Its rounding then
# moves A - Q R by no more than a few times n^(1/2) units of |A|.
_MODERATE = 4


def factor_on_rank(layout, coordinates, rows, below=None, b=None, with_q=True):
    """(a rank's rows of Q, R, Q^H b, i, j) of A (m, n), m >= n, inside a shard_map; None for what
    there isn't.

    R is that of A 2^-i, and Q^H b of b 2^-j, with a j for each column. Without right-hand sides
    there are no powers, and squares of A's entries must neither overflow nor underflow.

    Args:
        coordinates: this rank's, [rank, group of replicas].
        rows: its rows of A; those of padding are zeros.
        below: (p, n), the same on all ranks: further rows of A, below the others. The rows of Q
            that are theirs are not returned.
        b: its rows of right-hand sides, (m, nrhs); zeros beside ``below``.
        with_q: whether to compute Q.
    """
    rank, met = coordinates.reshape(2)[0], ffi.meet(layout, coordinates, rows)
    b = None if b is None else ffi.after_meeting(met, b)

    if b is None:
        return *_by_qr(layout, rank, met, rows, below, b, with_q), None, None
    if with_q:
        return _by_scaled_qr(layout, rank, met, rows, below, b, with_q)
    first, in_range, good = _seminormal(layout, met, rows, below, b)

    def scaled():
        (rows_, below_, b_), powers = _scaled(layout, rows, below, b)
        again, _, good = _seminormal(layout, met, rows_, below_, b_)
        return (*again, *powers), good

    zeros = jnp.zeros((), jnp.int32), jnp.zeros(b.shape[1], jnp.int32)
    found, good = jax.lax.cond(in_range, lambda: ((*first, *zeros), good), scaled)
    return jax.lax.cond(
        good, lambda: found, lambda: _by_scaled_qr(layout, rank, met, rows, below, b, with_q)
    )


def _by_scaled_qr(layout, rank, met, rows, below, b, with_q):
    (rows, below, b), powers = _scaled(layout, rows, below, b)
    return *_by_qr(layout, rank, met, rows, below, b, with_q), *powers


def _scaled(layout, rows, below, b):
    """The matrices times powers of two, (i, j), by which the largest entry of A, and that of each
    right-hand side, is near 1."""
    axes = layout.rows if layout.ranks > 1 else ()
    largest = scaling.largest_of_ranks(rows, axes)
    if below is not None:
        largest = jnp.maximum(largest, scaling.largest(below))
    i = scaling.exponent_of(largest)
    j = scaling.exponent_of(scaling.largest_of_ranks(b, axes, axis=0), ())
    rows, below, b = (
        None if x is None else scaling.multiplied(x, -power)
        for x, power in ((rows, i), (below, i), (b, j))
    )
    return (rows, below, b), (i, j)


def _by_qr(layout, rank, met, rows, below, b, with_q):
    parts = layout, met, rows, below, b, with_q
    first, good = _cholesky_qr2(*parts)

    def shifted():
        again, good = _cholesky_qr2(*parts, shifted=True)
        return jax.lax.cond(
            good, lambda: again, lambda: _tsqr(layout, rank, rows, below, b, with_q)
        )

    return jax.lax.cond(good, lambda: first, shifted)


def _seminormal(layout, met, rows, below, b):
    """(None, R, Q^H b) by the seminormal equations; whether no square or product overflows or
    underflows; and whether the results are right. All ranks agree on both."""
    gram = _gram(layout, met, rows, below)
    factor, lengths = _scaled_cholesky(gram, 0)
    inverse = inverse_of_upper(factor)
    moderate = is_moderate(factor, inverse)
    r, inverse = factor * lengths[None], inverse / lengths[:, None]

    def solve(rest, below_x):
        """R^-1 R^-H (A^H rest - below^H below_x)"""
        right = adjoint_product(layout, rows, rest)
        if below_x is not None:
            right = right - dot(below.conj().T, below_x)
        return dot(inverse, dot(inverse.conj().T, right))

    x = solve(b, None)
    change = solve(b - dot(rows, x), None if below is None else dot(below, x))
    squares = sum_over_ranks(layout, jnp.sum(jnp.square(jnp.abs(b)), axis=0))
    changed = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(dot(r, change))), axis=0))
    good = moderate & (changed <= jnp.sqrt(squares) * jnp.finfo(b.dtype).eps ** 0.5).all()
    in_range = _in_range(jnp.diagonal(gram).real) & _in_range(squares)
    return (None, r, dot(r, x + change)), _agreed(layout, in_range), _agreed(layout, good)


def _in_range(squares):
    """Whether sums of squares are so far from overflow and underflow that nothing that is made of
    them, or of their roots, gets there."""
    info = jnp.finfo(squares.dtype)
    limit = 2.0 ** (info.maxexp // 2 - 4)
    return ((squares > 1 / limit) & (squares < limit)).all()


def _agreed(layout, good):
    return jax.lax.pmin(good.astype(jnp.int32), layout.rows) > 0 if layout.ranks > 1 else good


def _cholesky_qr2(layout, met, rows, below, b, with_q, shifted=False):
    """The results by CholeskyQR2, and whether they are right, which all ranks agree on."""
    n = rows.shape[1]
    r = None
    for shift in (10 * n * jnp.finfo(rows.dtype).eps, 0) if shifted else (0,):
        factor, lengths = _scaled_cholesky(_gram(layout, met, rows, below), shift)
        rows, below = _divided(factor, lengths, rows, below)
        factor = factor * lengths[None]
        r = factor if r is None else dot(factor, r)
    gram = _gram(layout, met, rows, below)
    off = jnp.sum(jnp.square(jnp.abs(gram - jnp.eye(n, dtype=gram.dtype))))
    good = _agreed(layout, off < _BOUND**2)
    last = _cholesky(gram)
    inverse = inverse_of_upper(last)  # of a matrix that is close to I
    q = times_upper(rows, inverse) if with_q else None
    c = None if b is None else dot(inverse.conj().T, adjoint_product(layout, rows, b))
    return (q, jnp.triu(dot(last, r)), c), good


def _tsqr(layout, rank, rows, below, b, with_q):
    """The results by a Householder QR of each rank's rows, and one of their R's."""
    q, r = library.qr(rows)
    c = None if b is None else dot(q.conj().T, b)
    if layout.ranks > 1 or below is not None:
        k = len(r)
        stack = jax.lax.all_gather(r, layout.rows, tiled=True) if layout.ranks > 1 else r
        q_stack, r = library.qr(stack if below is None else jnp.concatenate([stack, below]))
        mine = jax.lax.dynamic_slice_in_dim(q_stack, rank * k, k)
        q = dot(q, mine) if with_q else q
        c = None if b is None else sum_over_ranks(layout, dot(mine.conj().T, c))
    q, r, units = with_positive_diagonal(q if with_q else None, r)
    return q, r, None if c is None else units.conj()[:, None] * c


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


def _divided(factor, lengths, rows, below):
    """``rows`` and ``below`` times (R D)^-1, where D = diag(lengths). With R^-1 at hand that is a
    product, which takes less time than a substitution."""
    inverse = inverse_of_upper(factor)
    known = (rows,) if below is None else (rows, below)

    def by_product():
        return tuple(times_upper(x, inverse / lengths[:, None]) for x in known)

    def by_substitution():
        return tuple(right_solve(x, factor * lengths[None]) for x in known)

    divided = jax.lax.cond(is_moderate(factor, inverse), by_product, by_substitution)
    return divided if below is not None else (*divided, None)


def is_moderate(r, inverse):
    """Whether R is so well conditioned that its inverse may take its place."""
    return _frobenius(r) * _frobenius(inverse) <= _MODERATE * len(r)


def _frobenius(x):
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x))))


def _scaled_cholesky(gram, shift):
    """(R, lengths) with R^H R = ``gram`` + shift I after its rows and columns were scaled to a
    diagonal of ones: the condition is that of A with columns of one length. What R is of ``gram``
    itself is R times diag(lengths)."""
    lengths = jnp.sqrt(jnp.diagonal(gram).real)
    lengths = jnp.where((lengths > 0) & jnp.isfinite(lengths), lengths, 1).astype(gram.dtype)
    scaled = gram / lengths[:, None] / lengths[None]
    return _cholesky(scaled + shift * jnp.eye(len(gram), dtype=gram.dtype)), lengths


def _cholesky(gram):
    return jnp.triu(jax.lax.linalg.cholesky(gram, symmetrize_input=False).conj().T)


def right_solve(rows, r):
    """rows R^-1."""
    return jax.lax.linalg.triangular_solve(r, rows, left_side=False, lower=False)


def inverse_of_upper(r):
    """R^-1 of an upper triangular R."""
    return triangle.inverse(r.conj().T[None])[0].conj().T


def times_upper(x, r):
    """X R of an upper triangular R: a few columns at a time, by no more rows of R than they have.
    Half of the operations of a product."""
    n = len(r)
    if n <= _COLUMNS:
        return dot(x, r)
    ends = [(start, min(start + _COLUMNS, n)) for start in range(0, n, _COLUMNS)]
    columns = [dot(x[:, :end], r[:end, start:end]) for start, end in ends]
    return jnp.concatenate(columns, axis=1)


def _gram(layout, met, rows, below):
    gram = sum_over_ranks(layout, ffi.after_meeting(met, products.own_product(rows)))
    return gram if below is None else gram + dot(below.conj().T, below)


def adjoint_product(layout, x, y):
    """X^H Y of what the ranks have rows of, the same on all of them."""
    return sum_over_ranks(layout, products.dot(x.conj(), y, 0, 0))


def sum_over_ranks(layout, value):
    """The sum of all ranks' values."""
    return jax.lax.psum(value, layout.rows) if layout.ranks > 1 else value


def dot(x, y):
    return products.dot(x, y, 1, 0)


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
