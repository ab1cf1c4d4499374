"""LAPACK's L, U and pivots of any matrix (m, n): getrf of its transpose, as it lies by rows."""

import jax
import jax.numpy as jnp

from jaxmg._call import ffi, record, results
from jaxmg._call.arguments import Arguments
from jaxmg._factors import lu_operations, refinement
from jaxmg._transform import derivatives, dispatch, hermitian, products


def _factor_and_return(call, coordinates, a):
    """A rank's rows of what getrf makes of A^T, transposed, with the pivots."""
    m, n = call.shape
    real = jnp.finfo(a.dtype).dtype
    shapes = (
        (a.shape, a.dtype), ((call.overflow, n), a.dtype), ((min(m, n),), jnp.int32),
        ((1,), real), ((1,), a.dtype), ((1,), jnp.int32),
    )  # fmt: skip
    tiles, overflow, pivots, log_det, _, status = ffi.call(
        f"jaxmg_{call.routine.native}", call.layout, call.tile, call.backend, (coordinates, a),
        tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes),
        differing=2, m=m, n=n, **dict(call.attributes),
    )  # fmt: skip
    (lu,) = ffi.call(
        f"jaxmg_{lu_operations.ROWS.native}", call.layout, call.tile, call.backend,
        (refinement.after(coordinates, log_det), tiles, overflow),
        (jax.ShapeDtypeStruct(a.shape, a.dtype),), m=m, n=n,
    )  # fmt: skip
    return lu, pivots, status


PACKED = record.Routine(
    name="linalg.lu_factor",
    native="getrf",
    results=(results.Matrix("lu"), results.Pivots("pivots"), results.Status()),
    outputs=("lu", "pivots"),
    options=(record.GENERAL_PRECISION,),
    square=False,
    triangle=None,
    native_alone=True,
    plans=False,
    factor="getrf",
    kernel=_factor_and_return,
)


def packed(a, layout):
    """(L and U packed, pivots) of a (m, n) in a trace, as LAPACK's getrf gives them."""
    return derivatives.differentiable(
        lambda a: _packed(a, layout), lambda *moved: _rule(layout, *moved), a
    )


def _packed(a, layout):
    columns = products.transposed(a, layout)
    arguments = Arguments(
        PACKED.name, PACKED.outputs, None, layout.mesh, layout.row_spec, True, "native",
        options=(("precision", None),),
    )  # fmt: skip
    lu, pivots = dispatch.batch(PACKED, (columns,), arguments)
    return products.transposed(lu, layout), pivots


def _rule(layout, primals, tangents):
    """JVP rule: with P A = L U, A^H P^T = U^H L^H is what `lu_operations` differentiates."""
    (a,), (a_dot,) = primals, tangents
    if a.shape[0] != a.shape[1]:
        raise NotImplementedError(
            f"linalg.lu: a has shape {tuple(a.shape)} and is being differentiated (jax.grad, jvp, "
            "linearize, ...): there is a derivative for square matrices alone"
        )
    lu, pivots = packed(a, layout)
    lu_rows, a_dot = (hermitian.adjoint(layout, hermitian.rows(layout, x)) for x in (lu, a_dot))
    tangent = lu_operations.packed_tangent(layout, lu_rows, pivots, a_dot)
    tangent = hermitian.laid_out_like(layout, hermitian.adjoint(layout, tangent), lu)
    return (lu, pivots), (tangent, derivatives.still(pivots))
