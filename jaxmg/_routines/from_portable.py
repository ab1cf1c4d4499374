"""`from_portable`: a factor from its portable form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex, cast

from jaxmg import _compat
from jaxmg._factors import portable
from jaxmg._factors.cholesky_factor import CholeskyFactor
from jaxmg._factors.lu_factor import LUFactor
from jaxmg._factors.qr_factor import QRFactor
from jaxmg._factors.refined_factor import RefinedFactor
from jaxmg._factors.refined_lu_factor import RefinedLUFactor
from jaxmg._routines.cho_factor import cho_factor
from jaxmg._routines.lu_factor import lu_factor
from jaxmg._types import MeshLike, Specs


@_compat.api_boundary
def from_portable(
    tree: Mapping[str, Any],
    mesh: MeshLike | None = None,
    T_A: SupportsIndex | None = None,
    matrix_specs: Specs | None = None,
) -> CholeskyFactor | LUFactor | QRFactor | RefinedFactor | RefinedLUFactor:
    """The factor of which ``factor.portable()`` gave ``tree``, on any number of devices.

    Args:
        tree: what `CholeskyFactor.portable` (`LUFactor.portable`, ...) returned, JAX or NumPy
            arrays. Under ``jit`` its "header" must have a value, as it says what is made.
        mesh, T_A, matrix_specs: as for `cho_factor`; the mesh need not have as many devices as
            that of the factor.

    Returns:
        A factor of the same kind, dtype and precision. That of a `RefinedFactor` and a
        `RefinedLUFactor` is computed again from A; of others only the layout is made again.

    Raises:
        ValueError: ``tree`` is no portable form, is of another version, or its arrays have other
            shapes or dtypes than its header says.
        TypeError, ValueError, RuntimeError: as `cho_factor`.

    Examples:
        >>> tree = factor.portable()
        >>> factor = jaxmg.from_portable(tree, mesh=mesh)
    """
    kind, precision, matrix, vector = portable.read_header("from_portable", tree)
    where: dict[str, Any] = {"T_A": T_A, "mesh": mesh, "matrix_specs": matrix_specs}
    if kind == "CholeskyFactor":
        return CholeskyFactor.from_upper(matrix, precision=precision, **where)
    if kind == "LUFactor":
        return LUFactor.from_packed(matrix, vector, precision=precision, **where)
    if kind == "QRFactor":
        return QRFactor.from_packed(matrix, vector, precision=precision, **where)
    if kind == "RefinedFactor":
        return cho_factor(matrix, refine=cast(Any, precision), **where)
    return lu_factor(matrix, refine=cast(Any, precision), **where)
