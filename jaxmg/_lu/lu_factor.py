"""LU factorization for repeated solves: LAPACK's getrf and getrs."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jaxmg import _compat
from jaxmg._call import execute, record, results
from jaxmg._call.arguments import collect, matrix_spec
from jaxmg._host import matrices, requests
from jaxmg._host.lu import HostLUFactor
from jaxmg._host.tiles import Tiles
from jaxmg._kept import making
from jaxmg._lu import factor as kept
from jaxmg._lu import refined_factor as refined_lu_factor
from jaxmg._lu import stacks
from jaxmg._types import Else, MatrixLike, MeshLike, PrecisionLike, Refine, Specs


def _factor(call, coordinates, rows):
    """Runs getrf, which factors matrices of any shape and takes both sizes."""
    return execute.call_native(call, coordinates, rows, m=call.shape[1])


GETRF = record.Routine(
    name="lu_factor",
    native="getrf",
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.Pivots("pivots"),
        results.RealNumber("log_det"),
        results.Sign("sign"),
        results.Status(),
    ),
    outputs=("tiles", "overflow", "pivots", "log_det", "sign", "status"),
    options=(record.PRECISION,),
    triangle=None,
    native_alone=True,
    extension=record.Extension(returns_matrix=True),
    factor=record.Factor("getrf"),
    kernel=_factor,
    at_once=(stacks.LU_FACTOR,),
    refines=True,
)


@overload
def lu_factor(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    precision: PrecisionLike | None | Else = None, refine: None = None, memory: None = None,
) -> kept.LUFactor: ...  # fmt: skip


@overload
def lu_factor(
    a: MatrixLike | Tiles | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    precision: PrecisionLike | None | Else = None, refine: None = None,
    memory: float | None | Else = None,
) -> kept.LUFactor | HostLUFactor: ...  # fmt: skip


@overload
def lu_factor(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    precision: Literal["highest"] | None | Else = None, refine: Refine | Else,
    memory: float | None | Else = None,
) -> refined_lu_factor.RefinedLUFactor: ...  # fmt: skip


@_compat.overloaded_boundary
def lu_factor(
    a: MatrixLike | Tiles,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    donate: bool = False,
    precision: PrecisionLike | None = None,
    refine: Refine | None = None,
    memory: float | None = None,
) -> kept.LUFactor | refined_lu_factor.RefinedLUFactor | HostLUFactor:
    """Factors any square matrix by LU with partial pivoting, for repeated use.

    If all right-hand sides are known at once, `gesv` is faster and needs no second matrix.
    `jaxmg.linalg.lu_factor` returns L, U and LAPACK's pivots of ``a`` itself.

    Args:
        a: (n, n); dtypes and sharding are as in `potrs`.
        T_A, mesh, matrix_specs, pad, in_specs, donate: As in `potrs`.
        precision: As in `gesv`; also applies to `LUFactor.inv`.
        refine: As in `gesv`. The result is then a `RefinedLUFactor`, which holds ``a`` and its
            factor in lower precision and can only solve. ``donate`` then saves no memory.
        memory: As in `gesv`. A donated NumPy array becomes the memory of the factors.

    Returns:
        An `LUFactor`, or with ``refine`` a `RefinedLUFactor`; for a matrix in host memory that
        doesn't fit the devices (or ``memory``) a `HostLUFactor`. Its ``status`` is as in `gesv`.

    Cost: 2 n^3 / 3 flops over all ranks (complex: 4 times). Memory: the factor, which is as large
    as ``a``, and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `gesv`. A call inside
            ``shard_map`` raises a ValueError.

    Examples:
        >>> factor = jaxmg.lu_factor(a)
        >>> x, y = factor.solve(b), factor.solve(c, trans=1)
        >>> sign, logdet = factor.slogdet()
    """
    if memory is not None or matrices.is_host(a):
        request = requests.choose(
            "lu_factor", a, mesh=mesh, spec=matrix_spec("lu_factor", matrix_specs, in_specs),
            memory=memory, donate=donate, pad=pad, tile=T_A, backend="auto", precision=precision,
            refine=refine,
        )  # fmt: skip
        if request is not None and not request.in_core:
            return requests.factorize(request)
        if request is not None:
            a, mesh, matrix_specs, in_specs = request.a, request.mesh, None, None
            pad, donate = False, True
    if refine is not None:
        return refined_lu_factor.lu_factor(
            a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine
        )
    arguments = collect(
        GETRF, T_A, mesh, matrix_specs, in_specs, pad, "native", donate, precision=precision
    )
    return _factorize(a, arguments)


def _factorize(a, arguments):
    return making.factorize(GETRF, kept.pack, a, arguments)


def factor_for(a, arguments):
    """Factors an operand of another routine, for the derivative of that routine."""
    return making.factor_for(GETRF, kept.pack, a, arguments)
