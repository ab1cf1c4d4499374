"""Solves with one triangle of a matrix that is sharded by rows, without transposing it.

The engine sees the transpose of a matrix that is sharded by rows. So an upper triangle serves as
the Cholesky factor U of A = U^H U, and one of the two substitutions solves with it. A lower
triangle serves as the lower triangular matrix of an LU factor whose other matrix is the identity.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxmg._cholesky import operations as cholesky_operations
from jaxmg._kept import operations
from jaxmg._layouts import shardings
from jaxmg._lu import operations as lu_operations
from jaxmg._lu import triangles
from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives


def solve(a, b, layout, lower, how, unit_diagonal):
    """Solves op(T) x = b in a trace. T is a triangle of ``a`` (n, n), which is sharded by rows.

    Args:
        lower: whether T is the lower triangle.
        how: op: "N", "T" or "C".
        unit_diagonal: whether to read T's diagonal as ones.
    """
    if how == "T":  # T^T x = b: T^H conj(x) = conj(b)
        return jnp.conj(solve(a, jnp.conj(b), layout, lower, "C", unit_diagonal))
    matrix = _triangle(a, lower, unit_diagonal)
    factor = triangles.place(matrix, layout, triangles.LOWER if lower else triangles.UPPER)
    if lower:
        pivots = shardings.constrain(jnp.arange(factor.n, dtype=jnp.int32), factor.layout, _ALL)
        of_lu = lu_operations.SOLVE if how == "N" else lu_operations.SOLVE_ADJOINT
        return lu_operations.LU(*factor.static).apply(of_lu, *factor.arrays, pivots, b)
    static = cholesky_operations.Cholesky(*factor.static)
    operation = cholesky_operations.BACKWARD if how == "N" else cholesky_operations.FORWARD
    return _Substitution(static, operation)(*factor.arrays, b)


def _triangle(a, lower, unit_diagonal):
    """Returns the triangle of ``a``, with zeros in the other one."""
    if not unit_diagonal:
        return scaling.lower(a) if lower else scaling.upper(a)
    if lower:
        return scaling.unit_lower(a)
    return scaling.upper(a, 1) + jnp.eye(len(a), dtype=a.dtype)


@dataclasses.dataclass(frozen=True)
class _Substitution(operations.Apply):
    """One of the two substitutions of a Cholesky solve, as a function of U and b."""

    of: cholesky_operations.Cholesky
    operation: int

    @property
    def native(self):
        attributes = (("operation", self.operation),)
        return operations.FactorCall(self.of, cholesky_operations.APPLY, attributes)

    @property
    def adjoint(self):
        both = cholesky_operations.FORWARD + cholesky_operations.BACKWARD
        return dataclasses.replace(self, operation=both - self.operation)

    def rule(self, primals, tangents):
        """JVP rule: the tangent of x = op(U)^-1 b is op(U)^-1 (db - op(dU) x)."""
        *factor, b = primals
        u_dot, moved = tangents[0], tangents[-1]
        x = self(*primals)
        if u_dot is not None:
            backward = self.operation == cholesky_operations.BACKWARD
            product = hermitian.general_product if backward else hermitian.general_adjoint_product
            change = -hermitian.multiply_right_hand_sides(product, self.of.layout, u_dot, x)
            moved = derivatives.sum_of(moved, change)
        return x, jnp.zeros_like(x) if moved is None else self(*factor, moved)


_ALL = jax.sharding.PartitionSpec()
