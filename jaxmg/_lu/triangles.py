"""Triangles in the engine's layout, without what a factor also needs, and divisions by them.

An upper triangle takes the place of the Cholesky factor U of A = U^H U. A lower triangle takes that
of the lower triangular matrix of an LU factor whose other matrix is the identity.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmg._call import checks, ffi, record, results
from jaxmg._call.arguments import Arguments
from jaxmg._cholesky import operations as cholesky_operations
from jaxmg._kept import operations
from jaxmg._layouts import layouts
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives, dispatch


def divided(layout, b, u):
    """Returns B U^-1 for an upper triangular U, both square and by rows."""
    n = u.shape[1]
    factor = place(hermitian.with_padding(layout, u, n), layout.by_rows, UPPER)
    divide = _Divide(cholesky_operations.Cholesky(*factor.static), inverse=False)
    if factor.layout.ranks == layout.ranks:
        return divide(*factor.arrays, b)
    # In a batch each device may have whole factors, whose rows have no padding.
    return hermitian.rows(layout, divide(*factor.arrays, hermitian.with_padding(layout, b, n)))


@dataclasses.dataclass(frozen=True)
class _Divide(operations.LinearOperation):
    """Computes B U^-1, or B U^-H if ``inverse``, for a matrix B by rows."""

    of: cholesky_operations.Cholesky
    inverse: bool

    @property
    def native(self):
        attributes = (("inverse", self.inverse),)
        return operations.FactorCall(self.of, cholesky_operations.SOLVE_ROWS, attributes)

    @property
    def adjoint(self):
        return dataclasses.replace(self, inverse=not self.inverse)

    def rule(self, primals, tangents):
        """JVP rule: the tangent of X = B op(U)^-1 is (dB - X op(dU)) op(U)^-1."""
        *factor, _ = primals
        u_dot, moved = tangents[0], tangents[-1]
        x = self(*primals)
        if u_dot is not None:
            product = hermitian.times_adjoint if self.inverse else hermitian.times
            moved = derivatives.sum_of(moved, -product(self.of.layout, x, u_dot))
        return x, jnp.zeros_like(x) if moved is None else self(*factor, moved)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow"],
    meta_fields=["layout", "tile"],
)
@dataclasses.dataclass(frozen=True)
class Triangle:
    """A triangle in the engine's layout. Its tangent is laid out by rows."""

    tiles: jax.Array
    overflow: jax.Array | None
    layout: layouts.Layout
    tile: int

    @property
    def n(self):
        return self.tiles.shape[-1]

    @property
    def arrays(self):
        return self.tiles, *(() if self.overflow is None else (self.overflow,))

    @property
    def static(self):
        """The arguments of a factor's class in `_cholesky/operations.py` or `operations.py`."""
        return NAME, self.layout, self.n, self.tile, self.overflow is not None, checks.DEFAULT


def place(triangle, layout, routine):
    """Moves a triangle (n, n), which is sharded by rows, to the engine's layout. The entries beside
    it must be zeros. ``routine`` is UPPER or LOWER."""
    mesh, spec = (layout, None) if layout.solo else (layout.mesh, layout.row_spec)
    arguments = Arguments(NAME, routine.outputs, None, mesh, spec, True, "native")
    return dispatch.transform(
        routine, (triangle,), arguments, functools.partial(_rule, routine), _pack
    )


def _pack(call, values):
    tiles, overflow = values
    return Triangle(tiles, overflow if call.overflow else None, call.layout, call.tile)


def _rule(routine, arguments):
    """JVP rule: the tangent of the factor is the triangle's tangent."""

    def derivative(primals, tangents):
        again = functools.partial(_rule, routine)
        factor = dispatch.transform(routine, primals, arguments, again, _pack)
        return factor, operations.tangent(factor, tangents[0])

    return derivative


def _move(call, coordinates, a):
    """Moves a rank's rows to the engine's layout."""
    n = a.shape[1]
    sizes = {"n": n} if call.routine is UPPER else {"m": n, "n": n}
    return ffi.call(
        f"jaxmg_{call.routine.native}", call.layout, call.tile, call.backend, (coordinates, a),
        tuple(result.native(call, a) for result in call.routine.results),
        differing=2, **sizes,
    )  # fmt: skip


NAME = "linalg.solve_triangular"
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
        kernel=_move,
    )
    for native, factor in (("factor_tiles", "potrf"), ("lu_tiles", "getrf"))
)
