"""`lu_solve`: solves with an LU factor, or with a matrix as in JAXMg 1.4.1."""

from __future__ import annotations

from typing import Literal, SupportsIndex, cast, overload

from jax import Array

from jaxmg import _compat
from jaxmg._host.lu import HostLUFactor
from jaxmg._lu import factor as kept
from jaxmg._lu import gesv
from jaxmg._lu import refined_factor as refined_lu_factor
from jaxmg._types import Else, MatrixLike, MeshLike, Specs, Trans


@overload
def lu_solve(
    a: kept.LUFactor | refined_lu_factor.RefinedLUFactor | HostLUFactor, b: MatrixLike,
    T_A: None = None, mesh: None = None, matrix_specs: None = None, *, in_specs: None = None,
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
    a: MatrixLike | Else, b: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None, *,
    in_specs: Specs | None | Else = None, return_status: bool | Else = False,
    pad: bool | Else = True, donate: bool | Else = False, trans: Literal[0, "N"] | Else = 0,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def lu_solve(
    a: kept.LUFactor | refined_lu_factor.RefinedLUFactor | HostLUFactor | MatrixLike,
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
    """Solves ``A @ x = b`` with a factor of A from `lu_factor`.

    With a matrix instead of a factor it solves as `gesv`, with the arguments of JAXMg 1.4.1, except
    that ``donate`` is False by default.

    Args:
        a: An `LUFactor`, `RefinedLUFactor` or `HostLUFactor` of order n, or a matrix (n, n) as in
            `gesv`.
        b: (n,) or (n, nrhs), of a's dtype, as in `potrs`.
        T_A, mesh, matrix_specs, in_specs, return_status, pad, donate: As in `gesv`; for a matrix
            only.
        trans: 0 or "N" for A x = b, 1 or "T" for A^T x = b, 2 or "C" for A^H x = b, as in
            `scipy.linalg.lu_solve`; for a factor only.

    Returns:
        x, of b's shape, dtype and sharding; with ``return_status`` (x, status), as in `gesv`.

    Cost: 2 n^2 nrhs flops over all ranks (complex: 4 times). With a matrix, add the cost of
    `lu_factor`.

    Raises:
        TypeError: b isn't an array, dtypes differ, or an argument for matrices is passed with a
            factor.
        ValueError: Shapes don't match, ``trans`` is passed with a matrix, or the call is inside
            ``shard_map``. A matrix also raises the errors of `gesv`.

    Examples:
        >>> factor = jaxmg.lu_factor(a)
        >>> for b in measurements:
        ...     x = jaxmg.lu_solve(factor, b)
    """
    if isinstance(a, kept.LUFactor | refined_lu_factor.RefinedLUFactor | HostLUFactor):
        values = {"T_A": T_A, "mesh": mesh, "matrix_specs": matrix_specs, "in_specs": in_specs}
        given = [name for name, value in values.items() if value is not None]
        if given or return_status or donate:
            name = (*given, *(["return_status"] if return_status else ["donate"]))[0]
            raise TypeError(
                f"lu_solve: {name} is only for a matrix, but a is an LUFactor, which already has a "
                "mesh, tile width and status; pass only b and trans (as a keyword)"
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
