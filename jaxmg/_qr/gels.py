"""Least squares with any matrix of full rank: LAPACK's gels."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

import jax
import jax.numpy as jnp
from jax import Array

from jaxmg import _compat
from jaxmg._call import blocks, ffi, record, results
from jaxmg._call.arguments import collect
from jaxmg._call.execute import select_results
from jaxmg._qr import geqrf
from jaxmg._stacks import scaling
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import Else, MatrixLike, MeshLike, PrecisionLike, Specs

# The native operations: minimize norm(b - M x), or find the x of least norm with M^T x = b.
_LEAST_SQUARES, _LEAST_NORM = 0, 1


def _solve(call, coordinates, rows, b):
    """Runs gels on a rank's rows of A and returns (x, status). If A is tall, the ranks first
    exchange its rows for those of A^T."""
    (m, n), layout = call.shape, call.layout
    tall = m >= n
    if tall:
        rows = ffi.after_meeting(ffi.meet(layout, coordinates, rows), rows)
        rows = blocks.transposed_rows(rows, layout, m, coordinates.reshape(2)[0])
    else:
        b = jnp.pad(b, ((0, n - m), (0, 0)))
    shapes = (rows.shape, b.shape, (min(m, n),))
    results_of = [jax.ShapeDtypeStruct(shape, rows.dtype) for shape in shapes]
    _, x, diagonal, status = ffi.call(
        f"jaxmg_{call.routine.native}", layout, call.tile, call.backend, (coordinates, rows, b),
        (*results_of, jax.ShapeDtypeStruct((1,), jnp.int32)), m=min(m, n), n=max(m, n),
        operation=_LEAST_SQUARES if tall else _LEAST_NORM, **dict(call.attributes),
    )  # fmt: skip
    return x[:n], _status(status, diagonal)


def _status(status, diagonal):
    """Returns LAPACK's info: the index, from 1, of the first zero on R's diagonal, or 0."""
    zero = diagonal == 0
    singular = jnp.where(jnp.any(zero), 1 + jnp.argmax(zero), 0).astype(jnp.int32)
    return jnp.where(status < 0, status, singular)


GELS = record.Routine(
    name="least_squares",
    native="gels",
    operands=(record.MATRIX, record.RIGHT_HAND_SIDES),
    results=(results.Minimizer("x"), results.Status()),
    outputs=("x", "status"),
    options=(record.PRECISION,),
    square=False,
    triangle=None,
    native_alone=True,
    kernel=_solve,
)


@overload
def least_squares(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, donate: bool = False,
    precision: PrecisionLike | None = None,
) -> Array: ...  # fmt: skip


@overload
def least_squares(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: Literal[True], pad: bool = True, donate: bool = False,
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def least_squares(
    a: MatrixLike | Else, b: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None, *,
    in_specs: Specs | None | Else = None, return_status: bool | Else = False,
    pad: bool | Else = True, donate: bool | Else = False,
    precision: PrecisionLike | None | Else = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def least_squares(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_status: bool = False,
    pad: bool = True,
    donate: bool = False,
    precision: PrecisionLike | None = None,
) -> Array | tuple[Array, Array]:
    """Minimizes norm(b - a x) for any matrix of full rank, as LAPACK's gels.

    If ``a`` is wide, x is the least-norm solution of a x = b. Uses Householder's QR of ``a``, or of
    its transpose if ``a`` is wide. The arguments are those of JAXMg 1.4.1, except that
    ``donate`` is False by default. `jaxmg.linalg.least_squares` is faster for tall matrices and has
    ``damp``; `jaxmg.linalg.lstsq` takes any rank.

    Args:
        a: (m, n); dtypes and sharding are as in `potrs`. Leading dimensions make a batch.
        b: (m,) or (m, nrhs), of a's dtype. Every device holds all of b.
        T_A, mesh, matrix_specs, in_specs, donate: As in `geqrf`.
        return_status: Whether to return the status too.
        pad: Ignored.
        precision: As in `gesv`.

    Returns:
        x | (x, status). x is (n,) or (n, nrhs), replicated. The status is an int32 scalar. 0:
        success. k > 0, LAPACK's info: the k-th diagonal entry of R is the first that is exactly
        zero, so ``a`` is rank-deficient and x has infinity or NaN. -1: ``a`` has NaN or infinity,
        and x is NaN.

    Cost: 2 n^2 (m - n / 3) + 4 m n nrhs flops over all ranks for m >= n (complex: 4 times). Memory:
    a copy of ``a``, panels of m x T_A, and b. Derivatives are those of the normal equations, as in
    `QRFactor.solve`.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `gesv`. A call inside
            ``shard_map`` raises a ValueError.

    Examples:
        >>> x = jaxmg.least_squares(a, b)
    """
    arguments = collect(
        GELS, T_A, mesh, matrix_specs, in_specs, bool(pad), "native", donate, precision=precision,
        return_status=return_status,
    )  # fmt: skip
    return dispatch.call(GELS, (a, b), arguments, _rule)


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of geqrf and `QRFactor.solve`. A is
    scaled so that the inverse of A^H A neither overflows nor underflows."""

    def solve(a, b):
        m, n = a.shape
        down, _ = scaling.scale_of(a)
        b, up = scaling.scaled(b, 0)
        factor = geqrf.factor_for(scaling.times_scale(a, down), arguments, transposed=m < n)

        def solution():
            x = factor.solve(b, "N" if m >= n else "T")
            return scaling.times_all(x, *scaling.halves(down, up))

        makers = {
            "x": solution,
            "status": lambda: _status(factor.status, jax.lax.stop_gradient(factor.diagonal())),
        }
        return select_results(GELS, arguments, makers)

    return derivatives.as_composed(solve)
