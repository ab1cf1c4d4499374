"""The operations on a Cholesky factor, with their derivatives and batches.

With A = L L^H, the derivative of L is L F, where F is the lower triangle, with half the diagonal,
of the Hermitian S = L^-1 dA L^-H (S. P. Smith, J. Comput. Graph. Stat. 4, 1995). The
tangent of a factor (`operations`) has the rows of dA (`hermitian.rows`); only their upper triangle
is read.
"""

import dataclasses
import functools

import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import results
from jaxmg._cholesky import stacks
from jaxmg._kept import operations
from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives

# The values of APPLY's attribute ``operation``, with A = L L^H.
SOLVE, FORWARD, BACKWARD, LOWER, LOWER_H = range(5)
_ADJOINTS = {SOLVE: SOLVE, FORWARD: BACKWARD, BACKWARD: FORWARD, LOWER: LOWER_H, LOWER_H: LOWER}


# The functions for batches take stacks of upper factors U, A = U^H U, as a rank that holds whole
# factors stores them. Entries below U's diagonal are arbitrary.


def _apply_at_once(platform, u, b, operation):
    u = jnp.triu(u)
    if not b.size:
        return b
    if operation == SOLVE:
        return stacks.solve(platform, u, b)
    if operation in (FORWARD, BACKWARD):
        return stacks.solve_upper(platform, u, b, adjoint=operation == FORWARD)
    factor = u if operation == LOWER_H else jnp.swapaxes(u, -1, -2).conj()
    columns = b[..., None] if b.ndim == 2 else b
    return stacks.multiply(factor, columns).reshape(b.shape)


def _solve_rows_at_once(platform, u, b, inverse):
    return stacks.solve_upper(platform, jnp.triu(u), b, adjoint=bool(inverse), left=False)


APPLY = operations.Operation("factor_apply", results.Solution("x"), at_once=_apply_at_once)
SOLVE_ROWS = operations.Operation(
    "factor_solve_rows", results.Tiles("x"), by_rows=True, at_once=_solve_rows_at_once
)
INVERT = operations.Operation(
    "factor_invert",
    results.Matrix("a_inv"),
    in_place=True,
    at_once=lambda platform, u, products: stacks.inverse(platform, jnp.triu(u)),
)
DIAGONAL = operations.Operation(
    "factor_diagonal",
    results.RealVector("diagonal"),
    at_once=lambda platform, u: jnp.diagonal(u, axis1=-2, axis2=-1).real,
)
ROWS = operations.Operation(
    "factor_rows",
    results.UpperTriangle("u"),
    in_place=True,
    at_once=lambda platform, u: jnp.triu(u),
)


OPERATIONS = (APPLY, SOLVE_ROWS, INVERT, DIAGONAL, ROWS)


@dataclasses.dataclass(frozen=True)
class Cholesky(operations.Factor):
    """A Cholesky factor without its arrays.

    Attributes:
        products: the precision of `invert`.
    """

    products: int

    def apply(self, operation, *arrays):
        """Applies an ``operation`` of APPLY to the last array."""
        if layouts.traced(arrays):
            self.check(APPLY, *arrays)
        return _Apply(self, operation)(*arrays)

    def invert(self, *arrays):
        """Computes the inverse of A."""
        run = functools.partial(self.run, INVERT, products=self.products)
        return self.differentiable(run, self._invert_rule, arrays)

    def diagonal(self, *arrays):
        """Returns the diagonal of L."""
        run = functools.partial(self.run, DIAGONAL)
        return self.differentiable(run, self._diagonal_rule, arrays)

    def upper(self, *arrays):
        """Returns U = L^H."""
        run = functools.partial(self.run, ROWS)
        return self.differentiable(run, self._upper_rule, arrays)

    def logdet(self, log_det, *arrays):
        """Returns ``log_det``, which is log(det(A)), with its derivative."""
        return self.differentiable(
            lambda *arrays: arrays[-1], self._logdet_rule, (*arrays, log_det)
        )

    def divide_rows(self, *arrays, adjoint=False):
        """Multiplies the last array, a matrix by rows, by the inverse of U = L^H from the right, or
        by that of L."""
        return _SolveRows(self, inverse=adjoint)(*arrays)

    def reduced(self, factor, a_dot):
        """Returns S = L^-1 dA L^-H by rows."""
        solve = functools.partial(_SolveRows(self, inverse=False), *factor)
        half = solve(hermitian.full(self.layout, a_dot))
        return solve(hermitian.adjoint(self.layout, half))

    def _invert_rule(self, primals, tangents):
        inverse = self.invert(*primals)
        rows = hermitian.rows(self.layout, inverse)
        half = hermitian.times(self.layout, rows, hermitian.full(self.layout, tangents[0]))
        tangent = -hermitian.times(self.layout, half, rows)
        return inverse, hermitian.laid_out_like(self.layout, tangent, inverse)

    def _diagonal_rule(self, primals, tangents):
        diagonal = self.diagonal(*primals)
        reduced = self.reduced(primals, tangents[0])
        return diagonal, diagonal * hermitian.diagonal(self.layout, reduced) / 2

    def _upper_rule(self, primals, tangents):
        upper = self.upper(*primals)
        half = hermitian.half(self.layout, self.reduced(primals, tangents[0]))
        rows = hermitian.rows(self.layout, upper)
        tangent = hermitian.times(self.layout, half, rows)
        return upper, hermitian.laid_out_like(self.layout, tangent, upper)

    def _logdet_rule(self, primals, tangents):
        *factor, log_det = primals
        inverse = hermitian.rows(self.layout, self.invert(*factor))
        tangent = hermitian.trace(self.layout, inverse, tangents[0]).astype(log_det.dtype)
        # Inside a shard_map log_det has shape (1,) and varies like the call's right-hand sides.
        tangent = _compat.vary(tangent.reshape(log_det.shape), _compat.varying_axes(log_det))
        return self.logdet(log_det, *factor), shardings.constrain_like(tangent, log_det)


@dataclasses.dataclass(frozen=True)
class _Apply(operations.Apply):
    """APPLY as a linear function of the right-hand sides."""

    of: Cholesky
    operation: int

    @property
    def native(self):
        return operations.FactorCall(self.of, APPLY, (("operation", self.operation),))

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=_ADJOINTS[self.operation])

    def rule(self, primals, tangents):
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x = self(*primals)
        if a_dot is None:
            return x, jnp.zeros_like(x) if b_dot is None else self(*factor, b_dot)
        before, after = self._moved(factor, a_dot, b, x)
        moved = derivatives.sum_of(b_dot, before)
        return x, derivatives.sum_of(after, None if moved is None else self(*factor, moved))

    def _moved(self, factor, a_dot, b, x):
        """Returns the terms of dA in the tangent of b and in that of the result."""

        def times(product, matrix, vector):
            return hermitian.multiply_right_hand_sides(product, self.of.layout, matrix, vector)

        if self.operation == SOLVE:
            return -times(hermitian.product, a_dot, x), None
        reduced = self.of.reduced(factor, a_dot)
        if self.operation == FORWARD:
            return None, -times(hermitian.half_adjoint_product, reduced, x)
        if self.operation == BACKWARD:
            return -times(hermitian.half_product, reduced, b), None
        if self.operation == LOWER:
            return times(hermitian.half_adjoint_product, reduced, b), None
        return None, times(hermitian.half_product, reduced, x)


@dataclasses.dataclass(frozen=True)
class _SolveRows(operations.LinearOperation):
    """Computes B L^-H, or B L^-1 if ``inverse``, for a matrix B by rows."""

    of: Cholesky
    inverse: bool

    @property
    def native(self):
        return operations.FactorCall(self.of, SOLVE_ROWS, (("inverse", self.inverse),))

    @property
    def adjoint(self):
        return dataclasses.replace(self, inverse=not self.inverse)

    def rule(self, primals, tangents):
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x, layout = self(*primals), self.of.layout
        if a_dot is None:
            return x, jnp.zeros_like(x) if b_dot is None else self(*factor, b_dot)
        half = hermitian.half(layout, self.of.reduced(factor, a_dot))
        if self.inverse:  # d(B L^-1) = (dB - B F) L^-1
            moved = -hermitian.times_adjoint(layout, b, half)
            return x, self(*factor, derivatives.sum_of(b_dot, moved))
        moved = -hermitian.times(layout, x, half)  # d(B L^-H) = dB L^-H - B L^-H F^H
        return x, moved if b_dot is None else self(*factor, b_dot) + moved
