"""Creation of a Cholesky factor from U: the routine's record, a rank's work, and the derivative."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import blocks, ffi, record, results
from jaxmg._kept import lower_precision, operations
from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._transform import dispatch


def _from_upper(call, coordinates, u):
    """Brings U into the engine's layout; replaces it by NaN if the status isn't 0."""
    log_det, status = _measure(call.layout, coordinates, u)
    u = jnp.where(status[0] == 0, u, jnp.nan)
    tiles, overflow = ffi.call(
        f"jaxmg_{call.routine.native}", call.layout, call.tile, call.backend,
        (lower_precision.after(coordinates, log_det), u),
        tuple(result.native(call, u) for result in call.routine.results[:2]),
        differing=2, n=u.shape[1],
    )  # fmt: skip
    return tiles, overflow, log_det, status


def _measure(layout, coordinates, u):
    """Returns (log(det(U^H U)), status), each (1,), from a rank's rows of the supposed U."""
    (rows, n), rank = u.shape, coordinates.reshape(2)[0]
    diagonal = blocks.diagonal(rank, u, layout.ranks).real
    side = _largest_side(layout, rank, u).astype(diagonal.dtype)
    part = jnp.concatenate([diagonal, side[None]])
    if layout.ranks > 1:
        part = ffi.all_gather(part, layout, coordinates)
    parts = part.reshape(layout.ranks, rows + 1)
    diagonal = parts[:, :rows].reshape(-1)[:n]
    # XLA's CPU code takes denormals for 0.
    small = diagonal == 0
    diagonal = jnp.where(small, scaling.denormals_over_tiny(diagonal), diagonal)
    positive = diagonal > 0
    first = jnp.min(jnp.where(positive, n, jax.lax.iota(jnp.int32, n)))
    status = jnp.where(first == n, 0, first + 1)
    status = jnp.where(jnp.max(parts[:, rows]) == _BELOW, -1, status)
    tiny = float(np.log(jnp.finfo(diagonal.dtype).tiny))
    logs = jnp.log(jnp.where(positive, diagonal, 1)) + jnp.where(small, tiny, 0)
    log_det = jnp.where(status == 0, 2 * jnp.sum(logs), jnp.nan)
    return log_det[None], status[None]


# Sides of the diagonal with nonzero entries; of several `_largest_side` returns the last.
_DIAGONAL, _BELOW, _ABOVE = range(3)


def _largest_side(layout, rank, u):
    """Returns the last of `_DIAGONAL`, `_BELOW` and `_ABOVE` that has nonzero entries."""
    rows, n = u.shape
    row, column = (jax.lax.broadcasted_iota(jnp.int32, u.shape, i) for i in (0, 1))
    row = row + rank * rows
    some = scaling.magnitude(u) > 0
    if rows * layout.ranks > n:
        some &= row < n
    side = jnp.where(column > row, _ABOVE, (column < row).astype(jnp.int32) * _BELOW)
    return jnp.max(jnp.where(some, side, _DIAGONAL))


FROM_UPPER = record.Routine(
    name="CholeskyFactor.from_upper",
    native="factor_tiles",
    operands=(record.Operand("u"),),
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
    factor=record.Factor("potrf"),
    kernel=_from_upper,
)


def rule(pack, arguments):
    """Returns the JVP rule: the tangent of A = U^H U is dU^H U + U^H dU."""

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
