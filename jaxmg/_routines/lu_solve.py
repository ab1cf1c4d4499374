"""Solving with a kept LU factor, and JAXMg 1.4.1's call with a matrix."""

from __future__ import annotations

from typing import Literal, SupportsIndex, cast, overload

from jax import Array

from jaxmg import _compat
from jaxmg._factors import lu_factor as kept
from jaxmg._factors import refined_lu_factor
from jaxmg._routines import gesv
from jaxmg._types import MatrixLike, MeshLike, Specs, Trans


@overload
def lu_solve(
    a: kept.LUFactor | refined_lu_factor.RefinedLUFactor, b: MatrixLike, T_A: None = None,
    mesh: None = None, matrix_specs: None = None, *, in_specs: None = None,
    return_status: Literal[False] = False, pad: bool = True, donate: bool = False, trans: Trans = 0,
) -> Array: ...  # fmt: skip


@overload
def lu_solve(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, donate: bool = False,
    trans: Literal[0, "N"] = 0,
) -> Array: ...  # fmt: skip


@overload
def lu_solve(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: Literal[True], pad: bool = True, donate: bool = False,
    trans: Literal[0, "N"] = 0,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def lu_solve(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: bool = False, pad: bool = True, donate: bool = False,
    trans: Literal[0, "N"] = 0,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.api_boundary
def lu_solve(
    a: kept.LUFactor | refined_lu_factor.RefinedLUFactor | MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_status: bool = False,
    pad: bool = True,
    donate: bool = False,
    trans: Trans = 0,
) -> Array | tuple[Array, Array]:
    """Solves A x = b with a factor of A that `lu_factor` made.

    With a matrix in its place it is the call of JAXMg 1.4.1, and does what `gesv` does. There
    ``donate`` is True unless one says otherwise; here it is False.

    Args:
        a: an `LUFactor` or a `RefinedLUFactor` of order n, or (n, n) as for `gesv`.
        b: (n,) or (n, nrhs), of a's dtype; a JAX or NumPy array. Every device holds all of it
            during the solve.
        T_A, mesh, matrix_specs, in_specs, return_status, pad, donate: of a matrix, as for `gesv`.
        trans: of a factor, as in `scipy.linalg.lu_solve`: 0 or "N" for A x = b, 1 or "T" for
            A^T x = b, 2 or "C" for A^H x = b.

    Returns:
        x, of b's shape, dtype and sharding; with ``return_status`` (x, status), as of `gesv`.

    Cost: 2 n^2 nrhs multiplications and additions over all ranks (four times as many when complex),
    and with a matrix that of `lu_factor`.

    Raises:
        TypeError: b is no array, or has another dtype; an argument for a matrix beside a factor.
        ValueError: shapes don't fit, ``trans`` beside a matrix, or the call is inside
            ``shard_map``; and all that `gesv` raises.

    Examples:
        >>> factor = jaxmg.lu_factor(a)
        >>> for b in measurements:
        ...     x = jaxmg.lu_solve(factor, b)
    """
    if isinstance(a, kept.LUFactor | refined_lu_factor.RefinedLUFactor):
        values = {"T_A": T_A, "mesh": mesh, "matrix_specs": matrix_specs, "in_specs": in_specs}
        given = [name for name, value in values.items() if value is not None]
        if given or return_status or donate:
            name = (*given, *(["return_status"] if return_status else ["donate"]))[0]
            raise TypeError(
                f"lu_solve: {name} is for a matrix, and a is an LUFactor, which has its mesh, tile "
                "width and status; pass b and trans (by its name)"
            )
        return a.solve(b, trans)
    if trans not in (0, "N"):
        raise ValueError(
            f"lu_solve: trans={trans!r} needs a factor: lu_solve(lu_factor(a), b, trans=...)"
        )
    results = gesv.gesv(
        a, b, T_A, mesh, matrix_specs, return_status, pad, in_specs=in_specs, donate=donate
    )
    return cast("Array | tuple[Array, Array]", results)
