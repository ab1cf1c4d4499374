"""JAXMg 1.4.1's call for Q and R."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._qr import geqrf
from jaxmg._types import Else, MatrixLike, MeshLike, Specs


@overload
def qr(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, donate: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_status: Literal[True], pad: bool = True, donate: bool = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None, *,
    in_specs: Specs | None | Else = None, return_status: bool | Else = False,
    pad: bool | Else = True, donate: bool | Else = False,
) -> tuple[Array, ...]: ...  # fmt: skip


@_compat.overloaded_boundary
def qr(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_status: bool = False,
    pad: bool = True,
    donate: bool = False,
) -> tuple[Array, ...]:
    """Computes Q and R of any matrix, with the arguments of JAXMg 1.4.1.

    Calls `geqrf` and returns the factor's ``q()`` and ``r``. `jaxmg.linalg.qr` has JAX's modes and
    is faster for a tall matrix.

    Args:
        a, T_A, mesh, matrix_specs, in_specs, donate: As in `geqrf`. In JAXMg 1.4.1 ``donate`` is
            True by default.
        return_status: Whether to return the status too.
        pad: Ignored.

    Returns:
        (Q, R) | (Q, R, status). Q is (m, k), k = min(m, n), and R is (k, n), both sharded like
        ``a``, with LAPACK's signs. The status is as in `geqrf`.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `geqrf`.

    Examples:
        >>> q, r = jaxmg.qr(a, 256, mesh=mesh, in_specs=P("x", None))
    """
    factor = geqrf.geqrf(a, T_A, mesh, matrix_specs, in_specs=in_specs, donate=donate)
    results = factor.q(), factor.r
    return (*results, factor.status) if return_status else results
