"""Block Lanczos with thick restarts and full orthogonalization.

K. Wu, H. Simon, SIAM J. Matrix Anal. Appl. 22, 2000 (thick restarts); G. H. Golub, R. Underwood,
"The block Lanczos method for computing eigenvalues", Mathematical Software III, 1977.

    basis V   | kept Ritz vectors | block | block | ... | next block |
    V^H A V   diagonal, and the columns that each block adds

A step multiplies the newest block by A, orthogonalizes the product against the whole basis and
appends it. After `Sizes.kept` steps the eigenvectors of V^H A V give Ritz vectors: the best ones
are kept, with the next block behind them, until the residuals of the wanted ones are small.

A block has more vectors than pairs are wanted, so that the start has a component in each vector of
a multiple eigenvalue. A product gets noise of the size of rounding before it is orthogonalized. So
the next block has full rank also where the basis is invariant, and then consists of fresh vectors.

All functions run on a rank inside a shard_map, with its rows of tall matrices, (rows, columns);
rows of padding are zeros. `Steps` runs them on global arrays, for operators, whose products aren't
part of a shard_map. Numbers of which decisions depend are computed by one rank.
"""

import dataclasses
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, ffi
from jaxmg._lanczos import sizes as sizing
from jaxmg._layouts import layouts
from jaxmg._matrices import noise
from jaxmg._qr import tall_qr
from jaxmg._stacks import library

# Noise that is added to a product, in eps of the norm of A.
_NOISE = 4
# The noise, in eps, for a matrix of zeros.
_LEAST = 1e-10
# A^H may differ from A by this many eps, relative to the norm of A and for n = 1.
_ASYMMETRY = 100


class Pairs(typing.NamedTuple):
    """The results of `run`.

    Attributes:
        w: (k,), ascending; NaN for pairs that didn't converge, which are last.
        v: (n, k) by rows.
        residuals: (k,), norms of A v - w v, also of those that didn't converge.
        iterations: number of products with a block.
        products: number of vectors in these blocks.
        status: number of pairs that didn't converge.
    """

    w: jax.Array
    v: jax.Array
    residuals: jax.Array
    iterations: jax.Array
    products: jax.Array
    status: jax.Array


@dataclasses.dataclass(frozen=True)
class Steps:
    """Runs functions of ranks.

    Attributes:
        layout: the ranks.
        coordinates: this rank's, inside a shard_map. None: outside, with global arrays.
    """

    layout: layouts.Layout
    coordinates: typing.Any = None

    def __call__(self, local, results, rows, small=()):
        """Returns ``local(coordinates, *rows, *small)``: tall matrices and replicated arrays.

        Args:
            results: for each result, whether it is a tall matrix.
        """
        if self.coordinates is not None:
            return local(self.coordinates, *rows, *small)
        specs = tuple(self.layout.row_spec if tall else P() for tall in results)
        of = (*(self.layout.row_spec for _ in rows), *(P() for _ in small))
        mapped = ffi.over_ranks(self.layout, local, of, specs)
        return mapped(*rows, *(blocks.replicate(jnp.asarray(x), self.layout) for x in small))


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is computed.

    Attributes:
        sizes: the `Sizes`.
        which: "SA", "LA", "LM" or "BE", as in SciPy.
        tolerance: the largest norm of a residual, relative to that of the matrix.
        iterations: the largest number of products with a block.
    """

    sizes: sizing.Sizes
    which: str
    tolerance: float
    iterations: int


class _State(typing.NamedTuple):
    """The state of the iteration.

    Attributes:
        v: the basis.
        t: the upper triangle of V^H A V.
        w, residuals: of the Ritz vectors that a restart kept, the wanted ones first.
        norm: lower bound of the norm of A.
        flaw: largest difference between V^H A V and its adjoint.
        restarts: their number.
    """

    v: jax.Array
    t: jax.Array
    w: jax.Array
    residuals: jax.Array
    norm: jax.Array
    flaw: jax.Array
    restarts: jax.Array


def run(steps, problem, multiply, start):
    """Returns `Pairs`.

    Args:
        multiply: function of a block of vectors (rows, block): their products with A. Its largest
            entries are near 1 for vectors with entries near 1.
        start: (rows, block), a start of the first columns; zeros elsewhere.
    """
    sizes = problem.sizes
    p, kept = sizes.block, sizes.kept
    local = _Local(steps.layout, problem, start.dtype)
    real = jnp.finfo(start.dtype).dtype
    v = steps(local.begin, (True,), (start,))[0]
    width = sizes.width
    zero = jnp.zeros((), real)
    state = _State(
        v, jnp.zeros((sizes.basis, sizes.basis), v.dtype), jnp.zeros(width, real),
        jnp.full(width, jnp.inf, real), zero, zero, jnp.int32(0),
    )  # fmt: skip

    def step(i, carry):
        v, t, _, norm, flaw = carry
        (x,) = steps(lambda _, v, i: (_columns(v, i * p, p),), (True,), (v,), (i,))
        y = multiply(x)
        return steps(local.expand, (True, *(False,) * 4), (v, y), (t, norm, flaw, i))

    def restart(state):
        first = jnp.where(state.restarts == 0, 0, kept)
        carry = state.v, state.t, jnp.zeros((p, p), v.dtype), state.norm, state.flaw
        basis, t, r, norm, flaw = jax.lax.fori_loop(first, first + kept, step, carry)
        filled = (first + kept) * p
        w, s, residuals, norm = steps(local.ritz, (False,) * 4, (), (t, r, norm, filled))
        basis, t = steps(local.rotate, (True, False), (basis,), (s, w, filled))
        return _State(basis, t, w[:width], residuals[:width], norm, flaw, state.restarts + 1)

    def goes_on(state):
        finite = jnp.isfinite(state.norm) & local.is_symmetric(state.flaw, state.norm)
        return (
            (state.restarts * kept < problem.iterations)
            & finite
            & ~jnp.all(state.residuals[: sizes.k] <= local.limit(state.norm))
        )

    state = jax.lax.while_loop(goes_on, restart, state)
    (x,) = steps(lambda _, v: (v[:, :p],), (True,), (state.v,))
    results = steps(
        local.finish, (False, True, False, False), (x, multiply(x)), (state.norm, state.flaw)
    )
    w, x, residuals, status = results
    count = state.restarts * kept + 1
    return Pairs(w, x, residuals, count, count * p, status)


@dataclasses.dataclass(frozen=True)
class _Local:
    """The functions of a rank."""

    layout: layouts.Layout
    problem: Problem
    dtype: typing.Any

    @property
    def eps(self):
        return float(jnp.finfo(self.dtype).eps)

    def limit(self, norm):
        """Returns the largest residual of a pair that has converged."""
        zero = self.problem.sizes.block * _LEAST * self.eps
        return jnp.where(norm > 0, self.problem.tolerance * norm, zero)

    def is_symmetric(self, flaw, norm):
        """Whether A is Hermitian, up to rounding."""
        return flaw <= _ASYMMETRY * self.eps * self.problem.sizes.n**0.5 * norm

    def begin(self, coordinates, start):
        """Returns the basis of one block."""
        size = jnp.sqrt(tall_qr.sum_over_ranks(self.layout, jnp.sum(_squares(start), axis=0)))
        start = start / jnp.where(size > 0, size, 1).astype(start.dtype)
        amount = jnp.where(size > 0, _NOISE * self.eps, 1)
        q, _ = self._factor(coordinates, start + self._noise(coordinates, start.shape, amount, 0))
        columns = self.problem.sizes.basis
        return (jnp.pad(q, ((0, 0), (0, columns))),)

    def expand(self, coordinates, v, y, t, norm, flaw, i):
        """Appends the block after block i, from its product with A."""
        p = self.problem.sizes.block
        h = self._adjoint(v, y)
        w = y - self._dot(v, h)
        own = jax.lax.dynamic_slice_in_dim(h, i * p, p)
        flaw = jnp.maximum(flaw, jnp.max(jnp.abs(own - own.conj().T)))
        norm = jnp.maximum(norm, jnp.sqrt(jnp.max(jnp.sum(_squares(h), axis=0))))
        amount = self.eps * jnp.where(norm > 0, _NOISE * norm, _LEAST)
        q, r = self._factor(coordinates, w + self._noise(coordinates, w.shape, amount, i + 1))
        q, _ = self._factor(coordinates, q - self._dot(v, self._adjoint(v, q)))
        v = jax.lax.dynamic_update_slice_in_dim(v, q, (i + 1) * p, 1)
        t = jax.lax.dynamic_update_slice_in_dim(t, h[: len(t)], i * p, 1)
        rest = jnp.sqrt(jnp.max(jnp.sum(_squares(r), axis=0)))
        norm = jnp.maximum(norm, jnp.where(rest > 2 * amount, rest, 0))
        return v, t, r, norm, flaw

    def ritz(self, coordinates, t, r, norm, filled):
        """Returns the Ritz values, the eigenvectors of V^H A V, and the norms of the residuals, the
        wanted ones first; and the norm of A, by the Ritz values. All but the first ``filled`` are
        of no vector."""
        p = self.problem.sizes.block
        there = jnp.arange(len(t)) < filled
        upper = jnp.triu(t)
        h = upper + jnp.triu(t, 1).conj().T
        h = jnp.where(there & there[:, None], h, 0)
        beyond = 2 * jnp.max(jnp.sum(jnp.abs(h), axis=1)) + 1
        h = h + jnp.diag(jnp.where(there, 0, beyond)).astype(h.dtype)
        w, s = self._by_first(coordinates, library.eigh, h)
        order = self._order(w, filled)
        w, s = w[order], s[:, order]
        last = jax.lax.dynamic_slice_in_dim(s, filled - p, p)
        residuals = jnp.sqrt(jnp.sum(_squares(self._dot(r, last)), axis=0))
        largest = jnp.max(jnp.where(there, jnp.abs(w), 0))
        return w, s, residuals, jnp.maximum(norm, largest)

    def _order(self, w, filled):
        """Returns the indices of the ascending Ritz values, the wanted ones first."""
        i = jnp.arange(len(w))
        which = self.problem.which
        if which == "LM":
            return jnp.argsort(jnp.where(i < filled, -jnp.abs(w), jnp.inf))
        down = filled - 1 - i
        if which == "BE":
            down = jnp.where(i % 2 == 0, filled - 1 - i // 2, i // 2)
        return i if which == "SA" else jnp.where(i < filled, down, i)

    def rotate(self, coordinates, v, s, w, filled):
        """Keeps the first Ritz vectors and, behind them, the next block."""
        sizes = self.problem.sizes
        kept = self._dot(v[:, : sizes.basis], s[:, : sizes.width])
        following = _columns(v, filled, sizes.block)
        rest = sizes.basis - sizes.width
        v = jnp.concatenate([kept, following, jnp.zeros((len(v), rest), v.dtype)], axis=1)
        t = jnp.diag(jnp.where(jnp.arange(len(w)) < sizes.width, w, 0)).astype(s.dtype)
        return v, t

    def finish(self, coordinates, x, y, norm, flaw):
        """Returns (w, v, residuals, status) of Ritz vectors and their products with A."""
        k = self.problem.sizes.k
        x, y = x[:, :k], y[:, :k]

        def column_sums(z):
            return tall_qr.sum_over_ranks(self.layout, jnp.sum(z, axis=0))

        w = column_sums((x.conj() * y).real)
        residuals = jnp.sqrt(column_sums(_squares(y - x * w.astype(x.dtype))))
        good = (residuals <= 2 * self.limit(norm)) & self.is_symmetric(flaw, norm)
        spoil = jnp.where(good, 1, jnp.nan)
        w, x = w * spoil.astype(w.dtype), x * spoil.astype(x.dtype)
        order = jnp.argsort(w)  # NaN last
        status = jnp.sum(~good).astype(jnp.int32)
        return w[order], x[:, order], residuals[order], status

    def _noise(self, coordinates, shape, amount, salt):
        """Returns noise in columns of this norm."""
        n, first = self.problem.sizes.n, coordinates.reshape(2)[0] * shape[0]
        dtype, salt = self.dtype, 2 * jnp.asarray(salt, jnp.uint32) * jnp.uint32(0x9E3779B1)
        numbers = noise.hashed(shape, dtype, first, salt + jnp.uint32(1))
        if jnp.iscomplexobj(numbers):
            numbers = numbers + 1j * noise.hashed(shape, dtype, first, salt + jnp.uint32(2))
        real = (first + jnp.arange(shape[0]) < n)[:, None]
        return jnp.where(real, numbers, 0) * (amount / n**0.5).astype(dtype)

    def _factor(self, coordinates, rows) -> typing.Any:
        return tall_qr.factor_on_rank(self.layout, coordinates, rows)[:2]

    def _by_first(self, coordinates, function, *arrays):
        """Computes ``function`` on one of several CPU devices for all: LAPACK's rounding may depend
        on the device (`tall.small`)."""
        if self.layout.platform != "cpu" or self.layout.ranks == 1:
            return function(*arrays)
        zeros = jax.eval_shape(function, *arrays)
        results = jax.lax.cond(
            coordinates.reshape(2)[0] == 0,
            function,
            lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), zeros),
            *arrays,
        )
        return jax.tree.map(lambda x: tall_qr.sum_over_ranks(self.layout, x), results)

    def _dot(self, x, y):
        return tall_qr.dot(x, y, self.layout)

    def _adjoint(self, x, y):
        return tall_qr.adjoint_product(self.layout, x, y)


def _columns(x, first, count):
    return jax.lax.dynamic_slice_in_dim(x, first, count, 1)


def _squares(x):
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)
