"""A partial Cholesky factorization with diagonal pivoting, in a trace.

    candidates, by the diagonal of A - L L^H     replicated
    their columns of A - L L^H                   each rank its rows
    a Cholesky factorization of their block,     replicated: accepts some candidates
    which become columns of L                    each rank its rows

Random candidates are accepted with probabilities by which the pivots have the distribution of
pivots that are sampled one by one (E. N. Epperly, J. A. Tropp, R. J. Webber, arXiv 2410.03969).
Greedy ones are accepted as long as no other diagonal entry can be larger, so that the pivots are
those of one step after the other. No row of A moves.
"""

import dataclasses
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, ffi
from jaxmg._layouts import layouts
from jaxmg._matrices import collective_products, noise
from jaxmg._qr import tall, tall_qr
from jaxmg._stacks import batching
from jaxmg._transform import derivatives

# The largest number of candidates of a round.
_RANDOM, _GREEDY = 128, 8
# Diagonal entries of at most _ROUNDING sqrt(k) eps times those of A count as 0, and A isn't
# positive semidefinite if one is below -_NEGATIVE times that.
_ROUNDING, _NEGATIVE = 4, 100
# The largest number of rows of a tile.
_TILE = 2048
_RESULTS = 6


class _State(typing.NamedTuple):
    rows: jax.Array  # a rank's rows of L, and columns for the candidates of the last round
    d: jax.Array  # the diagonal of A - L L^H
    pivots: jax.Array
    rank: jax.Array
    status: jax.Array
    rounds: jax.Array


class _Block(typing.NamedTuple):
    """The factorization of the block of candidates."""

    h: jax.Array  # what is left of the block
    r: jax.Array  # the columns of its factor
    order: jax.Array  # the candidates that were accepted, in this order
    accepted: jax.Array
    goes_on: jax.Array


@dataclasses.dataclass(frozen=True)
class Rows:
    """The columns of an array, of which a rank has ``rows``."""

    def diagonal(self, rank, layout, rows):
        return blocks.diagonal(rank, rows, layout.ranks).real

    def columns(self, rank, indices, rows):
        return jnp.take(rows, indices, axis=1)


@dataclasses.dataclass(frozen=True)
class Made:
    """The columns of `Tiles` of order n, which a rank makes from their parameters."""

    function: typing.Any
    tree: typing.Any
    n: int
    dtype: typing.Any
    count: int

    def _rows(self, rank):
        return rank * self.count + jnp.arange(self.count, dtype=jnp.int32)

    def diagonal(self, rank, layout, *leaves):
        parameters = jax.tree.unflatten(self.tree, leaves)

        def entry(i):
            return self.function(i[None], i[None], *parameters)[0, 0]

        return jax.vmap(entry)(jnp.minimum(self._rows(rank), self.n - 1)).real

    def columns(self, rank, indices, *leaves):
        parameters = jax.tree.unflatten(self.tree, leaves)
        rows, size = self._rows(rank), min(self.count, _TILE)

        def fill(i, columns):
            start = jnp.minimum(i * size, self.count - size)
            some = jax.lax.dynamic_slice_in_dim(rows, start, size)
            made = self.function(jnp.minimum(some, self.n - 1), indices, *parameters)
            made = jnp.where((some < self.n)[:, None], made, 0).astype(self.dtype)
            return jax.lax.dynamic_update_slice_in_dim(columns, made, start, 0)

        zeros = jnp.zeros((self.count, len(indices)), self.dtype)
        return jax.lax.fori_loop(0, -(-self.count // size), fill, zeros)


@dataclasses.dataclass(frozen=True)
class Pivoted(batching.Batchable):
    """Returns (L (n, k), pivots (k,), the diagonal of A - L L^H (n,), its sum, the rank, a status)
    for the arrays of ``source``, two words for random numbers, and a tolerance."""

    layout: layouts.Layout
    source: typing.Any
    n: int
    k: int
    greedy: bool

    def __call__(self, *arrays):
        *matrix, seed, tol = arrays
        layout = self.layout.by_rows
        small = (P(),) * (_RESULTS - 1)
        if isinstance(self.source, Rows):
            matrix = [blocks.split_rows(matrix[0], layout)]
        specs = (layout.row_spec,) if isinstance(self.source, Rows) else (P(),) * len(matrix)
        plain = isinstance(self.source, Rows)
        mapped = ffi.over_ranks(
            layout, self.on_rank, (*specs, P(), P()), (layout.row_spec, *small), plain
        )
        left, *others = mapped(*matrix, *(blocks.replicate(x, layout) for x in (seed, tol)))
        return blocks.join_rows(left, layout, self.n), *others

    def batched(self, settled, size, marks, *arrays):
        specs = self.layout.result_spec((self.n, self.k)), *(P(),) * (_RESULTS - 1)
        placement = batching.make_placement(self.layout, arrays, marks, specs)
        if self.layout.is_whole:
            one = _OnDevice(dataclasses.replace(self, layout=batching.alone(self.layout)))
            return batching.spread(one.of.layout, one, size, marks, *arrays, placement=placement)
        return batching.in_turn(self, marks, *arrays, placement=placement)

    def on_rank(self, coordinates, *arrays):
        *matrix, seed, tol = arrays
        rank, layout, n, k = coordinates.reshape(2)[0], self.layout, self.n, self.k
        own = self.source.diagonal(rank, layout, *matrix)
        if isinstance(self.source, Made):  # the processes of an array have met
            own = ffi.after_meeting(ffi.meet(layout, coordinates, own), own)
        first = collective_products.all_gather(own, layout)[:n]
        eps = jnp.finfo(first.dtype).eps
        floor = (_ROUNDING * k**0.5 * eps).astype(first.dtype) * jnp.abs(first)
        least = jnp.maximum(tol.astype(first.dtype), 0) * jnp.sum(first)
        width = min(_GREEDY if self.greedy else _RANDOM, k)

        def wanted(state):
            error = jnp.sum(state.d)
            some = (error > least) & (error > 0) & (state.rounds < 20 * k + 100)
            return some & (state.rank < k) & (state.status == 0)

        def advance(state):
            of_candidates, of_chances = _uniform(seed, state.rounds, width, first.dtype)
            candidates, bound = self._candidates(of_candidates, state.d, width)
            columns = self.source.columns(rank, candidates, *matrix)
            above = self._rows_of(candidates, rank, state.rows)
            columns -= tall_qr.dot(state.rows, above.conj().T, layout)
            least_entries = jnp.stack([floor[candidates], of_chances * state.d[candidates]])
            block = self._accept(
                self._rows_of(candidates, rank, columns), least_entries, bound, k - state.rank
            )
            taken = jnp.arange(width) < block.accepted
            r = jnp.where(taken[:, None] & taken, jnp.tril(block.r[block.order]), 0)
            r += jnp.diag(jnp.where(taken, 0, 1)).astype(r.dtype)
            new = jnp.where(taken, columns[:, block.order], 0)
            new = tall_qr.right_solve(new, r.conj().T)
            rows = jax.lax.dynamic_update_slice(state.rows, new, (jnp.int32(0), state.rank))
            pivots = jnp.where(taken, candidates[block.order], -1)
            squares = jnp.sum(jnp.square(new.real) + jnp.square(new.imag), axis=1)
            d = state.d - collective_products.all_gather(squares, layout)[:n]
            status = _status(d, floor)
            # Pivots are 0, and so is what is rounding: the recursion may not have noticed.
            spent = jnp.where(jnp.diagonal(block.h).real <= floor[candidates], candidates, n)
            d = d.at[spent].set(0, mode="drop").at[jnp.where(taken, pivots, n)].set(0, mode="drop")
            d = jnp.where(d > floor, d, 0)
            found = jax.lax.dynamic_update_slice(state.pivots, pivots, (state.rank,))
            return _State(rows, d, found, state.rank + block.accepted, status, state.rounds + 1)

        zeros = jnp.zeros((-(-n // layout.ranks), k + width), matrix_dtype(self.source, matrix))
        none = jnp.full((k + width,), -1, jnp.int32)
        d = jnp.where(first > floor, first, 0)
        start = _State(zeros, d, none, jnp.int32(0), _status(first, floor), jnp.int32(0))
        end = jax.lax.while_loop(wanted, advance, start)
        fine = end.status == 0
        factor = jnp.where(fine, end.rows[:, :k], jnp.nan)
        d = jnp.where(fine, end.d, jnp.nan)
        pivots = jnp.where(fine, end.pivots[:k], -1)
        return factor, pivots, d, jnp.sum(d), jnp.where(fine, end.rank, 0), end.status

    def _candidates(self, numbers, d, width):
        """Returns the candidates, and a bound of the other entries of the diagonal."""
        if not self.greedy:
            sums = jnp.cumsum(d)
            at = jnp.searchsorted(sums, numbers * sums[-1], side="right").astype(jnp.int32)
            return jnp.minimum(at, self.n - 1), jnp.zeros((), d.dtype)
        values, indices = jax.lax.top_k(d, min(width + 1, self.n))
        bound = values[width] if width < self.n else jnp.zeros((), d.dtype)
        return indices[:width].astype(jnp.int32), bound

    def _rows_of(self, indices, rank, rows):
        """Returns rows of a matrix, of which each rank has some, on all ranks."""
        at = indices - rank * len(rows)
        own = jnp.take(rows, jnp.clip(at, 0, len(rows) - 1), axis=0)
        here = (at >= 0) & (at < len(rows))
        return tall_qr.sum_over_ranks(self.layout, jnp.where(here[:, None], own, 0))

    def _accept(self, h, least, bound, most):
        """Factors the block ``h`` of the candidates, and accepts at most ``most`` of them."""
        width, (floor, chances) = len(h), least
        indices = jnp.arange(width, dtype=jnp.int32)

        def step(j, block):
            diagonal = jnp.diagonal(block.h).real
            if self.greedy:
                taken = jnp.zeros(width + 1, bool).at[
                    jnp.where(indices < block.accepted, block.order, width)
                ].set(True)[:width]  # fmt: skip
                left = jnp.where(taken, -jnp.inf, diagonal)
                i = jnp.argmax(left).astype(jnp.int32)
                enough = block.goes_on & ((left[i] >= bound) | (j == 0))
            else:
                i, enough = j, chances[j] < diagonal[j]
            accepted = enough & (diagonal[i] > floor[i]) & (block.accepted < most)
            root = jnp.sqrt(jnp.where(accepted, diagonal[i], 1)).astype(h.dtype)
            column = jnp.where(accepted, block.h[:, i] / root, 0)
            at = jnp.where(accepted, block.accepted, width)
            return _Block(
                block.h - column[:, None] * column.conj(),
                block.r.at[:, at].set(column, mode="drop"),
                block.order.at[at].set(i, mode="drop"),
                block.accepted + accepted.astype(jnp.int32),
                accepted,
            )

        start = _Block(h, jnp.zeros_like(h), indices, jnp.int32(0), jnp.bool_(True))
        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(width), step, start)


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """`Pivoted` of whole matrices on one device, inside a shard_map."""

    of: Pivoted

    def __call__(self, coordinates, *arrays):
        return self.of.on_rank(coordinates, *arrays)


def _uniform(seed, round, width, dtype):
    """Returns two vectors of numbers from 0 to 1. Hashes compile to a tenth of what a key of
    `jax.random` does."""
    salt = seed[0] ^ (seed[1] * jnp.uint32(0x9E3779B1))
    salt += round.astype(jnp.uint32) * jnp.uint32(0xC2B2AE35)
    numbers = noise.hashed((width, 2), dtype, salt=salt)
    return ((numbers + 1) / 2).T


def matrix_dtype(source, arrays):
    """Returns the dtype of the matrix."""
    return arrays[0].dtype if isinstance(source, Rows) else source.dtype


def _status(d, floor):
    """Returns 0, or i + 1 for the first entry i of the diagonal that is negative or not finite."""
    bad = ~((d >= -_NEGATIVE * floor) & (d < jnp.inf))
    return jnp.where(jnp.any(bad), jnp.argmax(bad) + 1, 0).astype(jnp.int32)


def factor(layout, k, greedy, a, seed, tol):
    """Returns the results of `Pivoted` of an array, with derivatives at constant pivots."""
    of = Pivoted(layout, Rows(), a.shape[0], k, greedy)

    def value(*arrays):
        return batching.batchable(of, *arrays)

    def rule(primals, tangents):
        """With C the columns of A, and R the rows of L, that the pivots select: C = L R^H, where R
        is lower triangular."""
        a_dot = tangents[0]
        results = factor(layout, k, greedy, *primals)
        if a_dot is None:
            return results, derivatives.still(results)
        left, pivots = results[:2]
        taken = pivots >= 0
        r = jnp.where(taken[:, None], jnp.tril(_selected(layout, left, pivots)), 0)
        r += jnp.diag(jnp.where(taken, 0, 1)).astype(r.dtype)
        c_dot = _columns(layout, a_dot, pivots)
        selected = _selected(layout, c_dot, pivots)
        middle = tall.over_ranks(layout, _inner_tangent, (), (r, selected, taken))
        c_dot = tall.right_solve(layout, c_dot, r.conj().T)
        l_dot = c_dot - tall.times(layout, left, middle)
        d_dot = _diagonal_tangent(layout, a_dot, left, l_dot)
        d_dot = jnp.where(results[2] > 0, d_dot, 0)
        moved = l_dot, derivatives.still(pivots), d_dot, jnp.sum(d_dot)
        return results, (*moved, *derivatives.still(results[4:]))

    return derivatives.differentiable(value, rule, a, seed, tol)


def _inner_tangent(r, selected, taken):
    """Returns dR^H R^-H for dA = dR R^H + R dR^H, the rows of dC that the pivots select."""
    x = tall_qr.right_solve(selected, r.conj().T)
    x = jax.lax.linalg.triangular_solve(r, x, left_side=True, lower=True)
    half = jnp.diag(jnp.diagonal(x) / 2)
    lower = jnp.where(taken[:, None] & taken, jnp.tril(x, -1) + half, 0)
    # dR = R lower, so that dR^H R^-H = lower^H R^H R^-H
    return lower.conj().T


def _columns(layout, a, pivots):
    """Returns the columns of A (n, n) that the pivots select, by rows."""

    def local(a, pivots):
        return jnp.where(pivots >= 0, jnp.take(a, jnp.maximum(pivots, 0), axis=1), 0)

    return tall.over_ranks(layout, local, (a,), (pivots,), a.shape[0])


def _selected(layout, x, pivots):
    """Returns the rows of X (n, k) that the pivots select, replicated."""
    by_rows = layout.by_rows

    def on_rank(coordinates, x, pivots):
        at = pivots - coordinates.reshape(2)[0] * len(x)
        own = jnp.take(x, jnp.clip(at, 0, len(x) - 1), axis=0)
        here = (pivots >= 0) & (at >= 0) & (at < len(x))
        return tall_qr.sum_over_ranks(by_rows, jnp.where(here[:, None], own, 0))

    mapped = ffi.over_ranks(by_rows, on_rank, (by_rows.row_spec, P()), P(), plain=True)
    return mapped(blocks.split_rows(x, by_rows), blocks.replicate(pivots, by_rows))


def _diagonal_tangent(layout, a_dot, left, l_dot):
    """Returns the tangent of the diagonal of A - L L^H."""
    by_rows, n = layout.by_rows, len(left)

    def on_rank(coordinates, a, left, l_dot):
        own = blocks.diagonal(coordinates.reshape(2)[0], a, by_rows.ranks).real
        own -= 2 * jnp.sum((left.conj() * l_dot).real, axis=1)
        return collective_products.all_gather(own, by_rows)[:n]

    specs = (by_rows.row_spec,) * 3
    mapped = ffi.over_ranks(by_rows, on_rank, specs, P(), plain=True)
    return mapped(*(blocks.split_rows(x, by_rows) for x in (a_dot, left, l_dot)))
