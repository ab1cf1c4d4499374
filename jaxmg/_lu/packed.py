"""Creation of an LU factor from L and U: the routine's record, and the work of a rank."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._call import blocks, checks, ffi, record, results
from jaxmg._kept import lower_precision
from jaxmg._layouts import shardings
from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives


def _from_packed(call, coordinates, lu):
    """Brings L and U into the engine's layout; replaces them by NaN if the status is -1."""
    log_det, sign, status = _measure(call.layout, coordinates, lu)
    lu = jnp.where(status[0] < 0, jnp.nan, lu)
    tiles, overflow = ffi.call(
        f"jaxmg_{call.routine.native}", call.layout, call.tile, call.backend,
        (lower_precision.after(coordinates, log_det), lu),
        tuple(result.native(call, lu) for result in call.routine.results[:2]),
        differing=2, m=lu.shape[1], n=lu.shape[1],
    )  # fmt: skip
    return tiles, overflow, log_det, sign, status


def _measure(layout, coordinates, lu):
    """Returns (log(abs(det)), sign, status), each (1,), from a rank's rows of L and U."""
    (rows, n), rank = lu.shape, coordinates.reshape(2)[0]
    inside = lu
    if rows * layout.ranks > n:
        row = jax.lax.broadcasted_iota(jnp.int32, lu.shape, 0) + rank * rows
        inside = jnp.where(row < n, lu, 0)
    largest = scaling.largest(inside).astype(lu.dtype)
    part = jnp.concatenate([blocks.diagonal(rank, lu, layout.ranks), largest[None]])
    if layout.ranks > 1:
        part = ffi.all_gather(part, layout, coordinates)
    parts = part.reshape(layout.ranks, rows + 1)
    finite, diagonal = jnp.all(jnp.isfinite(parts[:, rows])), parts[:, :rows].reshape(-1)[:n]
    sizes = jnp.abs(diagonal)
    zero = sizes == 0
    first = jnp.min(jnp.where(zero, jax.lax.iota(jnp.int32, n), n))
    status = jnp.where(first == n, 0, first + 1)
    status = jnp.where(finite, status, -1)
    sign = jnp.prod(diagonal / jnp.where(zero, 1, sizes).astype(lu.dtype))
    log_det = jnp.sum(jnp.log(sizes))
    values = (jnp.where(finite, value, jnp.nan)[None] for value in (log_det, sign))
    return *values, status[None]


FROM_PACKED = record.Routine(
    name="LUFactor.from_packed",
    native="lu_tiles",
    operands=(record.Operand("lu"),),
    triangle=None,
    native_alone=True,
    plans=False,
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.RealNumber("log_det"),
        results.Sign("sign"),
        results.Status(),
    ),
    outputs=("tiles", "overflow", "log_det", "sign", "status"),
    factor=record.Factor("getrf"),
    kernel=_from_packed,
)


def check_pivots(routine, pivots, n):
    """Returns ``pivots`` as int32. Raises if they aren't (n,) integers, or if they are a NumPy
    array with values that pivots can't have."""
    if not checks.is_array(pivots) or not jnp.issubdtype(pivots.dtype, jnp.integer):
        kind = getattr(pivots, "dtype", type(pivots).__name__)
        raise TypeError(f"{routine}: pivots must be an array of integers; got {kind}")
    if pivots.shape[-1:] != (n,):
        raise ValueError(
            f"{routine}: pivots must have shape ({n},), as lu has order {n}; they have shape "
            f"{tuple(pivots.shape)}"
        )
    if isinstance(pivots, np.ndarray):
        wrong = (pivots < np.arange(n)) | (pivots >= n)
        if wrong.any():
            raise ValueError(
                f"{routine}: pivots[i] must be at least i and below {n}; pivots"
                f"{np.argwhere(wrong)[0].tolist()} is {pivots[wrong][0]}"
            )
    return jnp.asarray(pivots, jnp.int32)


def with_pivots(factor, pivots):
    """Adds pivots to a factor without them; its tangent, of A P^T, becomes that of A."""

    def rule(primals, tangents):
        tiles, pivots = primals
        if tangents[0] is None:
            return tiles, jnp.zeros_like(tiles)
        order = jax.lax.linalg.lu_pivots_to_permutation(pivots, tiles.shape[1])
        moved = hermitian.permuted_columns(factor.layout, tangents[0], jnp.argsort(order))
        return tiles, shardings.constrain_like(moved, tiles)

    tiles = derivatives.differentiable(lambda tiles, _: tiles, rule, factor.tiles, pivots)
    return dataclasses.replace(factor, tiles=tiles, pivots=pivots)
