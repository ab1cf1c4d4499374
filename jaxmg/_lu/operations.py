"""The operations on an LU factor, with their derivatives and batches.

The engine sees rows of A as columns of M = A^T, and factors P M = L U. In the caller's terms
A P^T = (U^T) (L^T), a lower triangular matrix times an upper one with a unit diagonal. The
tangent of a factor (`operations`) has the rows of dA.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat
from jaxmg._call import results
from jaxmg._kept import operations
from jaxmg._layouts import layouts, shardings
from jaxmg._lu import stacks, triangles
from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives

# Values of the attribute ``operation`` of APPLY and SOLVE_ROWS: multiply by the inverse of A, or of
# its adjoint. 1 means the transpose, which is computed through the adjoint.
SOLVE, SOLVE_ADJOINT = 0, 2


APPLY = operations.Operation(
    "lu_apply",
    results.Solution("x"),
    shared=1,
    at_once=lambda platform, lu, pivots, b, operation: stacks.lu_solve(
        platform, lu, pivots, b, adjoint=operation == SOLVE_ADJOINT
    ),
)
INVERT = operations.Operation(
    "lu_invert",
    results.ZeroPadded("a_inv"),
    shared=1,
    in_place=True,
    at_once=lambda platform, lu, pivots, products: stacks.lu_inverse(platform, lu, pivots),
)

SOLVE_ROWS = operations.Operation(
    "lu_solve_rows",
    results.Tiles("x"),
    by_rows=True,
    shared=1,
    at_once=lambda platform, lu, pivots, b, operation: stacks.lu_solve_rows(
        platform, lu, pivots, b, adjoint=operation == SOLVE_ADJOINT
    ),
)
DIAGONAL = operations.Operation(
    "lu_diagonal",
    results.Vector("diagonal"),
    at_once=lambda platform, lu, m: jnp.diagonal(lu, axis1=-2, axis2=-1),
)
ROWS = operations.Operation(
    "lu_rows", results.Matrix("lu"), in_place=True, at_once=lambda platform, lu, m: lu
)

OPERATIONS = (APPLY, SOLVE_ROWS, INVERT, DIAGONAL, ROWS)

# With more zeros than this on U's diagonal the derivative of a determinant is 0.
_MOST_ZEROS = 3


@dataclasses.dataclass(frozen=True)
class LU(operations.Factor):
    """An LU factor without its arrays. The last array is the pivots.

    Attributes:
        products: the precision of `invert`.
    """

    products: int

    def apply(self, operation, *arrays):
        """Applies an ``operation`` of APPLY to the last array."""
        if layouts.traced(arrays):
            self.check(APPLY, *arrays)
        return _Apply(self, operation)(*arrays)

    def divide_rows(self, *arrays):
        """Returns B A^-1 for the last array B, a matrix by rows."""
        return _SolveRows(self, SOLVE)(*arrays)

    def invert(self, *arrays):
        """Computes the inverse of A."""
        run = functools.partial(self.run, INVERT, products=self.products)
        return self.differentiable(run, self._invert_rule, arrays)

    def diagonal(self, *arrays):
        """Returns the diagonal of U."""
        run = functools.partial(self.run, DIAGONAL, m=self.n)
        return self.differentiable(lambda *arrays: run(*arrays[:-1]), self._diagonal_rule, arrays)

    def rows(self, *arrays):
        """Returns L and U of A^T, packed and transposed."""
        run = functools.partial(self.run, ROWS, m=self.n)
        return self.differentiable(lambda *arrays: run(*arrays[:-1]), self._rows_rule, arrays)

    def slogdet(self, sign, log_det, *arrays):
        """Returns ``sign`` and ``log_det``, those of det(A), with their derivatives."""
        return self.differentiable(
            lambda *arrays: arrays[-2:], self._slogdet_rule, (*arrays, sign, log_det)
        )

    def det(self, sign, log_det, exponent, *arrays):
        """Returns det(A) 2^exponent from the sign and the logarithm of det(A)."""

        def value(*arrays):
            *_, sign, log_det, exponent = arrays
            return sign * scaling.exp_times_power(log_det, exponent).astype(sign.dtype)

        return self.differentiable(value, self._det_rule, (*arrays, sign, log_det, exponent))

    def _diagonal_rule(self, primals, tangents):
        diagonal = self.diagonal(*primals)
        lu = hermitian.rows(self.layout, self.rows(*primals))
        reduced = _reduced(self.layout, lu, primals[-1], tangents[0])
        return diagonal, diagonal * hermitian.general_diagonal(self.layout, reduced)

    def _rows_rule(self, primals, tangents):
        layout, lu = self.layout, self.rows(*primals)
        tangent = packed_tangent(layout, hermitian.rows(layout, lu), primals[-1], tangents[0])
        return lu, hermitian.laid_out_like(layout, tangent, lu)

    def _invert_rule(self, primals, tangents):
        inverse = self.invert(*primals)
        rows = hermitian.rows(self.layout, inverse)
        half = hermitian.times(self.layout, rows, tangents[0])
        tangent = -hermitian.times(self.layout, half, rows)
        return inverse, hermitian.laid_out_like(self.layout, tangent, inverse)

    def _det_rule(self, primals, tangents):
        """d det(A) = trace(adj(A) dA), where adj(A) is det(A) A^-1."""
        *factor, sign, log_det, exponent = primals
        value = self.det(sign, log_det, exponent, *factor)
        scale, *factor = self._regular(value, exponent, *factor)
        trace = hermitian.general_trace(self.layout, self.divide_rows(*factor, tangents[0]))
        return value, _like(scale.reshape(()) * trace, value)

    def _regular(self, value, exponent, *factor):
        """Returns (determinant, *factor) of an invertible matrix that has A's adjugate up to
        rounding. The determinant is multiplied by 2^exponent, as ``value`` is.

        The adjugate's elements are polynomials in A's elements. So zeros on the diagonal of U can
        be replaced by a number so small, relative to the others, that only the inverse changes.
        """

        def regular(value, exponent, *factor):
            diagonal = self.run(DIAGONAL, *factor[:-1], m=self.n)
            zeros, size = diagonal == 0, jnp.abs(diagonal)
            count, largest = jnp.sum(zeros), jnp.max(size, initial=0)
            small = jnp.where(largest > 0, largest, 1) * jnp.finfo(size.dtype).eps ** 1.25
            signs = jnp.where(zeros, 1, diagonal / jnp.where(zeros, 1, size).astype(value.dtype))
            swaps = jnp.sum(factor[-1] != jnp.arange(self.n, dtype=factor[-1].dtype))
            log = jnp.sum(jnp.log(jnp.where(zeros, small, size)))
            product = scaling.exp_times_power(log, exponent)
            scale = jnp.where(count > _MOST_ZEROS, 0, product) * (
                1 - jax.lax.rem(swaps, swaps.dtype.type(2)) * 2
            )
            scale = (scale.astype(value.dtype) * jnp.prod(signs)).reshape(value.shape)
            added = jnp.where(zeros, small, 0).astype(value.dtype)
            tiles = self._add_to_diagonal(added, *factor[:-1])
            tiles = map(shardings.constrain_like, tiles, factor)
            return jnp.where(count > 0, scale, value), *tiles, factor[-1]

        def rule(primals, tangents):
            results = self._regular(*primals)
            # If A is singular, second derivatives would be those of another matrix.
            once = jnp.where(primals[0] == 0, jnp.nan, 1)
            moved = jnp.zeros_like(results[0]) if tangents[0] is None else tangents[0] * once
            pairs = zip(derivatives.still(results[1:]), tangents[2:], strict=True)
            return results, (moved, *(still if t is None else t for still, t in pairs))

        return derivatives.differentiable(regular, rule, value, exponent, *factor)

    def _add_to_diagonal(self, numbers, *tiles):
        """Adds ``numbers``, (n,), to the diagonal of U; returns tiles and overflow."""
        if self.n == 0:
            return tiles

        def local(rank, tiles, *others):
            *overflow, numbers = others
            block, ranks = len(tiles), self.layout.ranks
            slots = np.int32(-(-block // min(self.tile, block)))
            width = np.int32(min(self.tile, block))

            def begin(tile):
                # The engine's Tiles::offset.
                quotient, rest = jax.lax.div(tile, slots), jax.lax.rem(tile, slots)
                return jnp.minimum(quotient * block + rest * width, self.n)

            def added(rows, first):
                row = jax.lax.iota(jnp.int32, len(rows))
                slot = jax.lax.div(row + first, width)
                tile = slot * ranks + rank
                column = begin(tile) + jax.lax.rem(row, width)
                here = (column < begin(tile + 1)) & ((slot < slots - len(overflow)) | (first > 0))
                at = here[:, None] & (column[:, None] == jnp.arange(self.n)[None])
                return rows + jnp.where(at, numbers[None], 0)

            return added(tiles, 0), *(added(x, (slots - 1) * width) for x in overflow)

        return hermitian.over_ranks(self.layout, local, tiles, (numbers,))

    def _slogdet_rule(self, primals, tangents):
        """d log(det(A)) = trace(dA A^-1), whose imaginary part rotates the sign."""
        *factor, sign, log_det = primals
        trace = hermitian.general_trace(self.layout, self.divide_rows(*factor, tangents[0]))
        values = self.slogdet(sign, log_det, *factor)
        turned = 1j * trace.imag * values[0] if jnp.iscomplexobj(sign) else jnp.zeros_like(sign)
        return values, (_like(turned, sign), _like(trace.real, log_det))


def _like(tangent, primal):
    """Returns a scalar tangent of ``primal``. Inside a shard_map it has shape (1,) and varies like
    the call's right-hand sides."""
    tangent = tangent.astype(primal.dtype).reshape(primal.shape)
    tangent = _compat.vary(tangent, _compat.varying_axes(primal))
    return shardings.constrain_like(tangent, primal)


def packed_tangent(layout, lu, pivots, a_dot):
    """Returns the tangent of ``lu``, which packs F and G of A P^T = F G, where G has a unit
    diagonal. All matrices are by rows."""
    lower, upper = hermitian.triangles(layout, lu)
    below, above = hermitian.triangles(layout, _reduced(layout, lu, pivots, a_dot))
    # `above` has a unit diagonal, so the product contains G itself, which is subtracted.
    moved = hermitian.times(layout, above, upper) - upper
    return hermitian.times(layout, lower, below) + moved


def product_tangent(layout, lu, lu_dot):
    """Returns the tangent of F G from ``lu``, which packs both, and its tangent; all by rows."""
    lower, upper = hermitian.triangles(layout, lu)
    below, above = hermitian.triangles(layout, lu_dot)
    moved = hermitian.times(layout, lower, above) - lower  # since `above` has a unit diagonal
    return hermitian.times(layout, below, upper) + moved


def _reduced(layout, lu, pivots, a_dot):
    """Returns F^-1 dA P^T G^-1. Its lower triangle is F^-1 dF, its strictly upper triangle is
    dG G^-1 (the rule for LU in S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear
    algebra functions", arXiv:1001.1654)."""
    n = lu.shape[1]
    lower, upper = hermitian.triangles(layout, lu)
    units = 1 / hermitian.general_diagonal(layout, lu)
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, n)
    half = triangles.divided(layout, hermitian.permuted_columns(layout, a_dot, order), upper)
    unit = hermitian.adjoint(layout, hermitian.scaled(layout, lower, units))
    reduced = triangles.divided(layout, hermitian.adjoint(layout, half), unit)
    return hermitian.adjoint(layout, hermitian.scaled(layout, reduced, units.conj()))


@dataclasses.dataclass(frozen=True)
class _Apply(operations.Apply):
    """APPLY as a linear function of the right-hand sides."""

    of: LU
    operation: int

    @property
    def native(self):
        return operations.FactorCall(self.of, APPLY, (("operation", self.operation),))

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=SOLVE + SOLVE_ADJOINT - self.operation)

    def rule(self, primals, tangents):
        """The tangent of op(A)^-1 b is op(A)^-1 (db - op(dA) x)."""
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x = self(*primals)
        moved = b_dot
        if a_dot is not None:
            solves = self.operation == SOLVE
            product = hermitian.general_product if solves else hermitian.general_adjoint_product
            change = -hermitian.multiply_right_hand_sides(product, self.of.layout, a_dot, x)
            moved = derivatives.sum_of(b_dot, change)
        return x, jnp.zeros_like(x) if moved is None else self(*factor, moved)


@dataclasses.dataclass(frozen=True)
class _SolveRows(operations.LinearOperation):
    """SOLVE_ROWS as a linear function of the matrix, which is sharded by rows."""

    of: LU
    operation: int

    @property
    def native(self):
        return operations.FactorCall(self.of, SOLVE_ROWS, (("operation", self.operation),))

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=SOLVE + SOLVE_ADJOINT - self.operation)

    def rule(self, primals, tangents):
        """The tangent of B op(A)^-1 is (dB - X op(dA)) op(A)^-1."""
        *factor, _ = primals
        a_dot, moved = tangents[0], tangents[-1]
        x, layout = self(*primals), self.of.layout
        if a_dot is not None:
            solves = self.operation == SOLVE
            product = hermitian.times if solves else hermitian.times_adjoint
            moved = derivatives.sum_of(moved, -product(layout, x, a_dot))
        return x, jnp.zeros_like(x) if moved is None else self(*factor, moved)
