"""LAPACK's packed L, U and pivots of any matrix (m, n).

The native getrf factors the transpose of the matrix that is sharded by rows. So A is transposed
before the call, and the result after it.
"""

import jax
import jax.numpy as jnp

from jaxmg._call import blocks, ffi, record, results
from jaxmg._call.arguments import Arguments
from jaxmg._kept import lower_precision
from jaxmg._layouts import shardings
from jaxmg._lu import operations as lu_operations
from jaxmg._matrices import hermitian, products
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives, dispatch


def _factor_and_return(call, coordinates, a):
    """Runs getrf on A^T, whose columns are a rank's rows of A. Returns the rank's rows of the
    transposed packed factor, the pivots and the status."""
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
        (lower_precision.after(coordinates, log_det), tiles, overflow),
        (jax.ShapeDtypeStruct(a.shape, a.dtype),), m=m, n=n,
    )  # fmt: skip
    return lu, pivots, status


PACKED = record.Routine(
    name="linalg.lu_factor",
    native="getrf",
    results=(results.Matrix("lu"), results.Pivots("pivots"), results.Status()),
    outputs=("lu", "pivots"),
    options=(record.PRECISION,),
    square=False,
    triangle=None,
    native_alone=True,
    plans=False,
    factor=record.Factor("getrf"),
    kernel=_factor_and_return,
)


def packed(a, layout):
    """Returns (L and U packed, pivots) of a (m, n) in a trace, as LAPACK's getrf."""
    down, up = scaling.scale_of(a)
    lu, pivots = _factor_scaled(scaling.times_scale(a, down), layout)
    return scaling.with_upper_times(lu, up), pivots


def _factor_scaled(a, layout):
    return derivatives.differentiable(
        lambda a: _packed(a, layout), lambda *moved: _rule(layout, *moved), a
    )


def _packed(a, layout):
    columns = products.transposed(a, layout)
    mesh, spec = (layout, None) if layout.solo else (layout.mesh, layout.row_spec)
    arguments = Arguments(
        PACKED.name, PACKED.outputs, None, mesh, spec, True, "native",
        options=(("precision", None),),
    )  # fmt: skip
    lu, pivots = dispatch.batch(PACKED, (columns,), arguments)
    return products.transposed(lu, layout), pivots


def _rule(layout, primals, tangents):
    """JVP rule. P A = L U implies A^H P^T = U^H L^H, which `lu_operations` differentiates. If A
    isn't square, L or U is extended by the identity and dA by zeros, as in JAX's own rule."""
    (a,), (a_dot,) = primals, tangents
    lu, pivots = _factor_scaled(a, layout)
    if not a.size:
        return (lu, pivots), (jnp.zeros_like(lu), derivatives.still(pivots))
    lu_rows, a_dot = (_adjoint_of_square(layout, x) for x in (lu, a_dot))
    row, column = (jax.lax.broadcasted_iota(jnp.int32, lu_rows.shape, i) for i in (0, 1))
    lu_rows += ((row == column) & (row >= min(a.shape))).astype(a.dtype)
    tangent = lu_operations.packed_tangent(layout, lu_rows, pivots, a_dot)
    m, n = a.shape
    if m < n:
        tangent = blocks.join_rows(tangent[:, :m], layout, n)
        tangent = shardings.constrain_like(products.transposed(tangent.conj(), layout), lu)
    else:
        tangent = hermitian.adjoint(layout, tangent)[:, :n]
        tangent = hermitian.laid_out_like(layout, tangent, lu)
    return (lu, pivots), (tangent, derivatives.still(pivots))


def _adjoint_of_square(layout, x):
    """Pads x (m, n) with zeros to a square matrix; returns its adjoint, laid out by rows."""
    m, n = x.shape
    if m < n:
        x = products.transposed(x.conj(), layout)
    rows = jnp.pad(blocks.split_rows(x, layout), ((0, 0), (0, abs(m - n))))
    return rows if m < n else hermitian.adjoint(layout, rows)
