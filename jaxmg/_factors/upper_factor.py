"""Makes a kept Cholesky factor of U: the record, what a rank does, and the derivative."""

import functools
import math

import jax.numpy as jnp

from jaxmg._call import ffi, record, results
from jaxmg._factors import operations, refinement, scaling
from jaxmg._transform import dispatch, hermitian


def _from_upper(call, coordinates, u):
    """Brings U into the engine's layout, or NaN in its place where the status isn't 0."""
    log_det, status = _measure(call.layout, coordinates, u)
    u = jnp.where(status[0] == 0, u, jnp.nan)
    tiles, overflow = ffi.call(
        f"jaxmg_{call.routine.native}", call.layout, call.tile, call.backend,
        (refinement.after(coordinates, log_det), u),
        tuple(result.native(call, u) for result in call.routine.results[:2]),
        differing=2, n=u.shape[1],
    )  # fmt: skip
    return tiles, overflow, log_det, status


def _measure(layout, coordinates, u):
    """(log(det(U^H U)), status), each of shape (1,), of a rank's rows of what should be U."""
    rows, n = u.shape
    row = coordinates.reshape(2)[0] * rows + jnp.arange(rows)[:, None]
    column, some = jnp.arange(n), (scaling.magnitude(u) > 0) & (row < n)
    diagonal = jnp.take_along_axis(u, jnp.minimum(row, n - 1), 1)[:, 0].real
    sides = [jnp.any(some & side)[None] for side in (row < column, row > column)]
    part = jnp.concatenate([diagonal, *(side.astype(diagonal.dtype) for side in sides)])
    if layout.ranks > 1:
        part = ffi.all_gather(part, layout, coordinates)
    parts = part.reshape(layout.ranks, rows + 2)
    above, below = jnp.any(parts[:, rows:] > 0, axis=0)
    diagonal, denormal = scaling.lift_denormals(parts[:, :rows].reshape(-1)[:n])
    unit = jnp.where(denormal, scaling.lowest_exponent(diagonal.dtype) * math.log(2), 0)
    positive = diagonal > 0
    status = jnp.where(jnp.all(positive), 0, 1 + jnp.argmin(positive))
    status = jnp.where(below & ~above, -1, status).astype(jnp.int32)
    log_det = 2 * jnp.sum(jnp.log(jnp.where(positive, diagonal, 1)) - unit)
    return jnp.where(status == 0, log_det, jnp.nan)[None], status[None]


FROM_UPPER = record.Routine(
    name="CholeskyFactor.from_upper",
    native="factor_tiles",
    operands=("u",),
    triangle=None,
    native_alone=True,
    plans=False,
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.RealNumber("log_det"),
        results.Status(),
    ),
    outputs=("tiles", "overflow", "log_det", "status"),
    factor="potrf",
    kernel=_from_upper,
)


def rule(pack, arguments):
    """JVP rule: the tangent of A = U^H U is dU^H U + U^H dU."""

    def derivative(primals, tangents):
        again = functools.partial(rule, pack)
        factor = dispatch.transform(FROM_UPPER, primals, arguments, again, pack)
        if not factor.n:
            return factor, operations.tangent(factor, tangents[0])
        layout = factor.layout
        u, u_dot = (
            hermitian.upper(layout, hermitian.rows(layout, value))
            for value in (factor.upper(), tangents[0])
        )
        half = hermitian.adjoint_times(layout, u, u_dot)
        return factor, operations.tangent(factor, half + hermitian.adjoint(layout, half))

    return derivative
