"""The operations on a QR factor, with their derivatives and batches.

The engine factors M = A = Q R, of which the ranks have A^T by rows, (n, m) for A (m, n). The
tangent of a factor (`operations`) has the rows of dA^T. A tall A has these three linear maps, where
P is the projector on its range:

    S b = A^+ b,    S^H b = A^+H b,    P b = A A^+ b.

Their derivatives don't differentiate the factorization (G. H. Golub, V. Pereyra, SIAM J. Numer.
Anal. 10, 1973):

    dS b   = S (-dA S b + S^H dA^H (I - P) b)
    dS^H b = -S^H dA^H S^H b + (I - P) dA S S^H b
    dP b   = (I - P) dA S b + S^H dA^H (I - P) b
"""

import abc
import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp

from jaxmg._call import results
from jaxmg._kept import operations
from jaxmg._layouts import layouts, shardings
from jaxmg._lu import triangles
from jaxmg._matrices import hermitian
from jaxmg._qr import rectangular
from jaxmg._transform import derivatives

# Values of the attribute ``operation`` of APPLY and SOLVE: multiply by Q or A^+, or by the adjoint.
# 1 means the transpose, which is computed through the adjoint, except for rows of a matrix.
PLAIN, TRANSPOSED, ADJOINT = 0, 1, 2

APPLY = operations.Operation("qr_apply", results.Solution("x"), shared=1)
SOLVE = operations.Operation("qr_solve", results.Solution("x"), shared=1)
APPLY_ROWS = operations.Operation("qr_apply_rows", results.RowsOf("x"), by_rows=True, shared=1)
FORM = operations.Operation("qr_form", results.Tiles("q"), shared=1, in_place=True)

OPERATIONS = (APPLY, SOLVE, APPLY_ROWS, FORM)

_ROWS = operations.Operation("lu_rows", results.Tiles("rows"), in_place=True)
_DIAGONAL = operations.Operation("lu_diagonal", results.Diagonal("diagonal"))


@dataclasses.dataclass(frozen=True)
class QR(operations.Factor):
    """A QR factor without its arrays. The last array is T of the panels. n is the number of A's
    rows.

    Attributes:
        columns: the number of A's columns, which are the rows of the matrix in the tiles.
        products: the precision of `q`.
    """

    columns: int
    products: int

    @property
    def shape(self):
        return self.columns, self.n

    @property
    def count(self):
        """The number of reflectors, min(m, n)."""
        return min(self.shape)

    def multiply(self, operation, *arrays):
        """Multiplies the last array by Q or its adjoint."""
        if layouts.traced(arrays):
            self.check(APPLY, *arrays)
        return _Multiply(self, operation)(*arrays)

    def multiply_rows(self, operation, *arrays):
        """Returns the product of the last array, a matrix (k, m), and Q^T, Q or conj(Q), sharded by
        rows like the array."""

        def refuse(primals, tangents):
            raise NotImplementedError(_no_derivative(self.routine))

        run = functools.partial(self.run, APPLY_ROWS, m=self.columns, operation=operation)
        return derivatives.differentiable(run, refuse, *arrays)

    def solve(self, operation, *arrays):
        """Returns A^+ times the last array, or A^+H times the first rows of the array."""
        if layouts.traced(arrays):
            self.check(SOLVE, *arrays)
        return _Solve(self, operation)(*arrays)

    def q(self, *arrays):
        """Returns the first columns of Q, (m, k) with k = min(m, n)."""
        return self.differentiable(self._q, self._q_rule, arrays)

    def r(self, *arrays):
        """Returns R, (k, n)."""
        return self.differentiable(self._r, self._r_rule, arrays)

    def packed(self, *arrays):
        """Returns R and the reflectors below it, (m, n)."""

        def refuse(primals, tangents):
            raise NotImplementedError(_no_derivative(self.routine))

        return derivatives.differentiable(self._packed, refuse, *arrays)

    def diagonal(self, *arrays):
        """Returns the diagonal of R, (k,)."""
        run = functools.partial(self.run, _DIAGONAL, m=self.columns)
        return self.differentiable(lambda *arrays: run(*arrays[:-1]), self._diagonal_rule, arrays)

    def _q(self, *arrays):
        columns = self.run(FORM, *arrays, m=self.columns, products=self.products)
        return self._finish(rectangular.transposed(self.layout, columns, self.count), self.n)

    def _packed(self, *arrays):
        rows = self.run(_ROWS, *arrays[:-1], m=self.columns)
        return self._finish(rectangular.transposed(self.layout, rows, self.columns), self.n)

    def _r(self, *arrays):
        return self._finish(jnp.triu(self._packed(*arrays)), self.count)

    def _finish(self, rows, count):
        """Returns the first ``count`` rows in the form of a result."""
        return rectangular.finished(self.layout, rows, count)

    def _moved(self, primals, tangents):
        """Returns (Q, R, dA, W = dA R^-1, Q^H W, its skew-Hermitian part that keeps R upper
        triangular), all as square matrices of order max(m, n) by rows, padded with zeros. This is
        the rule of S. F. Walter, L. Lehmann, R. Lamour, Optim. Methods Softw. 27, 2012; for a wide
        A, W is that of its first columns."""
        layout, k, order = self.layout, self.count, max(self.shape)

        def square(matrix):
            return rectangular.resize(layout, matrix, order, order)

        q, r = square(self.q(*primals)), square(self.r(*primals))
        a_dot = square(rectangular.transposed(layout, tangents[0], self.columns))
        row, column = (jax.lax.broadcasted_iota(jnp.int32, r.shape, i) for i in (0, 1))
        behind = (row == column) & (row >= k)
        first = jnp.where(column < k, r, 0) + behind.astype(r.dtype)
        w = triangles.divided(layout, jnp.where(column < k, a_dot, 0), first)
        h = hermitian.adjoint_times(layout, q, w)
        below = jnp.where(row > column, h, 0)
        skew = below - hermitian.adjoint(layout, below)
        if jnp.iscomplexobj(h):  # R's diagonal stays real
            skew += jnp.where(row == column, 1j * h.imag, 0)
        return q, r, a_dot, w, h, skew

    def _q_rule(self, primals, tangents):
        q, _, _, w, h, skew = self._moved(primals, tangents)
        value = self.q(*primals)
        q_dot = w - hermitian.times(self.layout, q, h - skew)
        return value, self._like(q_dot, value)

    def _r_rule(self, primals, tangents):
        value = self.r(*primals)
        return value, self._like(self._r_dot(primals, tangents), value)

    def _diagonal_rule(self, primals, tangents):
        value = self.diagonal(*primals)
        moved = hermitian.general_diagonal(self.layout, self._r_dot(primals, tangents))
        return value, moved[: self.count].astype(value.dtype)

    def _r_dot(self, primals, tangents):
        q, r, a_dot, _, _, skew = self._moved(primals, tangents)
        moved = hermitian.adjoint_times(self.layout, q, a_dot)
        moved -= hermitian.times(self.layout, skew, r)
        row, column = (jax.lax.broadcasted_iota(jnp.int32, r.shape, i) for i in (0, 1))
        return jnp.where(row <= column, moved, 0)

    def _like(self, square, value):
        m, n = value.shape
        square = rectangular.replicated_to_resize(self.layout, square[:, :n], m)
        moved = rectangular.finished(self.layout, square, m)
        return shardings.constrain_like(moved, value)


def _no_derivative(routine):
    """Returns an error message. The last m - n columns of Q depend on the choice of the reflectors,
    which JAX doesn't differentiate either."""
    return (
        f"{routine}: the complete Q and its reflectors have no derivative with respect to A, "
        "because A determines only the first min(m, n) columns of Q. q(), r and solve() have "
        "derivatives"
    )


class _ColumnOperation(operations.Apply):
    """An operation on right-hand sides (m,) or (m, nrhs) that is composed of native ones."""

    of: QR

    @abc.abstractmethod
    def compute(self, apply, *arrays) -> typing.Any:
        """Computes the result by calls of ``apply(native, operation, *arrays)``."""

    @property
    def native(self):
        return self._native(APPLY, PLAIN)

    def _native(self, native, operation):
        attributes = ("m", self.of.columns), ("operation", operation)
        return operations.FactorCall(self.of, native, attributes)

    def run(self, *arrays):
        def apply(native, operation, *arrays):
            return self._native(native, operation)(*arrays)

        return self.compute(apply, *arrays)

    @property
    def program(self):
        return _OnDevice(self)

    def on_device(self, coordinates, *arrays):
        """Computes the result on a device that has whole factors, inside a shard_map."""

        def apply(native, operation, *arrays):
            return operations.OnDevice(self._native(native, operation))(coordinates, *arrays)

        return self.compute(apply, *arrays)

    def _first(self, x):
        """Replaces all rows of ``x`` by zeros, except the first ``columns`` rows."""
        return x if len(x) <= self.of.columns else _first_rows(x, self.of.columns)

    def _times(self, a_dot, x):
        """Returns dA times the first rows of x."""
        product = functools.partial(_with_rows, rectangular.transposed_product, self.of.columns)
        return hermitian.multiply_right_hand_sides(product, self.of.layout, a_dot, x)

    def _adjoint_times(self, a_dot, x):
        """Returns dA^H x in the first rows of the result."""
        product = functools.partial(_with_rows, rectangular.conjugate_product, self.of.columns)
        return hermitian.multiply_right_hand_sides(product, self.of.layout, a_dot, x)


@functools.partial(jax.jit, static_argnums=1)
def _first_rows(x, count):
    row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.where(row < count, x, jnp.zeros_like(x))


def _with_rows(product, m, layout, a, x):
    return product(layout, a, x, m)


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    of: _ColumnOperation

    def __call__(self, coordinates, *arrays):
        return self.of.on_device(coordinates, *arrays)


@dataclasses.dataclass(frozen=True)
class _Multiply(_ColumnOperation):
    """Computes Q b, or Q^H b."""

    of: QR
    operation: int

    def compute(self, apply, *arrays):
        return apply(APPLY, self.operation, *arrays)

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=PLAIN + ADJOINT - self.operation)

    def rule(self, primals, tangents):
        *factor, _ = primals
        if tangents[0] is not None:
            raise NotImplementedError(_no_derivative(self.of.routine))
        x, moved = self(*primals), tangents[-1]
        return x, jnp.zeros_like(x) if moved is None else self(*factor, moved)


@dataclasses.dataclass(frozen=True)
class _Solve(_ColumnOperation):
    """Computes S b, padded with zeros to m rows, or S^H of the first n rows of b."""

    of: QR
    operation: int

    def compute(self, apply, *arrays):
        x = apply(SOLVE, self.operation, *arrays)
        # The native code leaves the components of the residual below the solution.
        return self._first(x) if self.operation == PLAIN else x

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=PLAIN + ADJOINT - self.operation)

    def rule(self, primals, tangents):
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x, solve, project = self(*primals), _Solve(self.of, PLAIN), _Project(self.of)
        if a_dot is None:
            return x, jnp.zeros_like(x) if b_dot is None else self(*factor, b_dot)
        if self.operation == PLAIN:
            rest = self._adjoint_times(a_dot, b - project(*factor, b))
            moved = self.adjoint(*factor, rest) - self._times(a_dot, x)
            return x, self(*factor, derivatives.sum_of(b_dot, moved))
        change = self._times(a_dot, solve(*factor, x))
        moved = derivatives.sum_of(b_dot, -self._adjoint_times(a_dot, x))
        return x, self(*factor, moved) + change - project(*factor, change)


@dataclasses.dataclass(frozen=True)
class _Project(_ColumnOperation):
    """Computes P b."""

    of: QR

    def compute(self, apply, *arrays):
        *factor, b = arrays
        return apply(APPLY, PLAIN, *factor, self._first(apply(APPLY, ADJOINT, *factor, b)))

    @property
    def adjoint(self):
        return self

    def rule(self, primals, tangents):
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        p = self(*primals)
        moved = None if b_dot is None else self(*factor, b_dot)
        if a_dot is not None:
            change = self._times(a_dot, _Solve(self.of, PLAIN)(*factor, b))
            rest = self._adjoint_times(a_dot, b - p)
            moved = derivatives.sum_of(
                moved, change - self(*factor, change) + _Solve(self.of, ADJOINT)(*factor, rest)
            )
        return p, jnp.zeros_like(p) if moved is None else moved
