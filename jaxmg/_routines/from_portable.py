"""`from_portable`: recreates a factor from its portable form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex, cast

from jaxmg import _compat
from jaxmg._cholesky.cho_factor import cho_factor
from jaxmg._cholesky.factor import CholeskyFactor
from jaxmg._cholesky.refined_factor import RefinedFactor
from jaxmg._kept import portable
from jaxmg._ldl import portable as ldl_portable
from jaxmg._ldl.factor import LDLFactor
from jaxmg._lu.factor import LUFactor
from jaxmg._lu.lu_factor import lu_factor
from jaxmg._lu.refined_factor import RefinedLUFactor
from jaxmg._qr.factor import QRFactor
from jaxmg._types import MeshLike, Specs


@_compat.api_boundary
def from_portable(
    tree: Mapping[str, Any],
    mesh: MeshLike | None = None,
    T_A: SupportsIndex | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
) -> CholeskyFactor | LUFactor | QRFactor | RefinedFactor | RefinedLUFactor | LDLFactor:
    """Recreates a factor from its portable form, on any number of devices.

    Args:
        tree: Result of ``factor.portable()``, with JAX or NumPy arrays. Under ``jit`` its "header"
            must be concrete, because it defines the kind of factor.
        mesh, T_A, matrix_specs, in_specs: As in `cho_factor`. The mesh may have another number of
            devices than the factor's. The tile width of an `LDLFactor` is its own.

    Returns:
        A factor of the same kind, dtype and precision. A `RefinedFactor` or `RefinedLUFactor` is
        factored again from A; other factors are only redistributed.

    Raises:
        ValueError: ``tree`` isn't a portable form, has another version, or its arrays don't match
            the shapes and dtypes in its header.
        TypeError, ValueError, RuntimeError: As `cho_factor`.

    Examples:
        >>> tree = factor.portable()
        >>> factor = jaxmg.from_portable(tree, mesh=mesh)
    """
    if portable.LDL.has(tree):
        return ldl_portable.load("from_portable", tree, mesh, T_A, matrix_specs, in_specs)
    kind, precision, matrix, vector = portable.read_header("from_portable", tree)
    where: dict[str, Any] = {
        "T_A": T_A,
        "mesh": mesh,
        "matrix_specs": matrix_specs,
        "in_specs": in_specs,
    }
    if kind == "CholeskyFactor":
        return CholeskyFactor.from_upper(matrix, precision=precision, **where)
    if kind == "LUFactor":
        return LUFactor.from_packed(matrix, vector, precision=precision, **where)
    if kind == "QRFactor":
        return QRFactor.from_packed(matrix, vector, precision=precision, **where)
    if kind == "RefinedFactor":
        return cho_factor(matrix, refine=cast(Any, precision), **where)
    return lu_factor(matrix, refine=cast(Any, precision), **where)
