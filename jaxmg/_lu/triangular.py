"""Solves with one triangle of a matrix that is sharded by rows, without transposing it.

The engine sees the transpose of a matrix that is sharded by rows. So an upper triangle serves as
the Cholesky factor U of A = U^H U, and one of the two substitutions solves with it. A lower
triangle serves as the lower triangular matrix of an LU factor whose other matrix is the identity.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmg._call import checks, ffi, record, results
from jaxmg._call.arguments import Arguments
from jaxmg._cholesky import operations as cholesky_operations
from jaxmg._kept import operations
from jaxmg._layouts import layouts, shardings
from jaxmg._lu import operations as lu_operations
from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives, dispatch


def solve(a, b, layout, lower, how, unit_diagonal):
    """Solves op(T) x = b in a trace. T is a triangle of ``a`` (n, n), which is sharded by rows.

    Args:
        lower: whether T is the lower triangle.
        how: op: "N", "T" or "C".
        unit_diagonal: whether to read T's diagonal as ones.
    """
    if how == "T":  # T^T x = b: T^H conj(x) = conj(b)
        return jnp.conj(solve(a, jnp.conj(b), layout, lower, "C", unit_diagonal))
    factor = _factor(_triangle(a, lower, unit_diagonal), layout, LOWER if lower else UPPER)
    overflow = () if factor.overflow is None else (factor.overflow,)
    common = (NAME, factor.layout, factor.n, factor.tile, bool(overflow), checks.DEFAULT)
    if lower:
        pivots = shardings.constrain(jnp.arange(factor.n, dtype=jnp.int32), factor.layout, _ALL)
        of_lu = lu_operations.SOLVE if how == "N" else lu_operations.SOLVE_ADJOINT
        return lu_operations.LU(*common).apply(of_lu, factor.tiles, *overflow, pivots, b)
    static = cholesky_operations.Cholesky(*common)
    operation = cholesky_operations.BACKWARD if how == "N" else cholesky_operations.FORWARD
    return _Substitution(static, operation)(factor.tiles, *overflow, b)


def _triangle(a, lower, unit_diagonal):
    """Returns the triangle of ``a``, with zeros in the other one."""
    if not unit_diagonal:
        return scaling.lower(a) if lower else scaling.upper(a)
    if lower:
        return scaling.unit_lower(a)
    return scaling.upper(a, 1) + jnp.eye(len(a), dtype=a.dtype)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow"],
    meta_fields=["layout", "tile"],
)
@dataclasses.dataclass(frozen=True)
class _Triangle:
    """A triangle in the engine's layout. Its tangent is laid out by rows."""

    tiles: jax.Array
    overflow: jax.Array | None
    layout: layouts.Layout
    tile: int

    @property
    def n(self):
        return self.tiles.shape[-1]


def _factor(triangle, layout, routine):
    mesh, spec = (layout, None) if layout.solo else (layout.mesh, layout.row_spec)
    arguments = Arguments(NAME, routine.outputs, None, mesh, spec, True, "native")
    return dispatch.transform(
        routine, (triangle,), arguments, functools.partial(_rule, routine), _pack
    )


def _pack(call, values):
    tiles, overflow = values
    return _Triangle(tiles, overflow if call.overflow else None, call.layout, call.tile)


def _rule(routine, arguments):
    """JVP rule: the tangent of the factor is the triangle's tangent."""

    def derivative(primals, tangents):
        again = functools.partial(_rule, routine)
        factor = dispatch.transform(routine, primals, arguments, again, _pack)
        return factor, operations.tangent(factor, tangents[0])

    return derivative


def _place(call, coordinates, a):
    """Moves a rank's rows to the engine's layout."""
    n = a.shape[1]
    sizes = {"n": n} if call.routine is UPPER else {"m": n, "n": n}
    return ffi.call(
        f"jaxmg_{call.routine.native}", call.layout, call.tile, call.backend, (coordinates, a),
        tuple(result.native(call, a) for result in call.routine.results),
        differing=2, **sizes,
    )  # fmt: skip


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


NAME = "linalg.solve_triangular"
_ALL = jax.sharding.PartitionSpec()
UPPER, LOWER = (
    record.Routine(
        name=NAME,
        native=native,
        triangle=None,
        native_alone=True,
        plans=False,
        results=(results.Tiles("tiles"), results.Overflow("overflow")),
        outputs=("tiles", "overflow"),
        factor=record.Factor(factor),
        kernel=_place,
    )
    for native, factor in (("factor_tiles", "potrf"), ("lu_tiles", "getrf"))
)
