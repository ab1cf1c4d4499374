"""The LU factorization, kept for later solves: LAPACK's getrf and getrs."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect
from jaxmg._factors import lu_factor as kept
from jaxmg._factors import making, operations, refined_lu_factor
from jaxmg._transform import at_once
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Refine, Specs

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
    takes_m=True,
    triangle=None,
    native_alone=True,
    extension=record.Extension(returns_matrix=True),
    factor="getrf",
    at_once=at_once.AtOnce(at_once.lu_factor, operations.ORDERS_AT_ONCE),
    refines=True,
)


@overload
def lu_factor(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, precision: PrecisionLike | None = None, refine: None = None,
) -> kept.LUFactor: ...  # fmt: skip


@overload
def lu_factor(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, precision: Literal["highest"] | None = None, refine: Refine,
) -> refined_lu_factor.RefinedLUFactor: ...  # fmt: skip


@_compat.api_boundary
def lu_factor(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    donate: bool = False,
    precision: PrecisionLike | None = None,
    refine: Refine | None = None,
) -> kept.LUFactor | refined_lu_factor.RefinedLUFactor:
    """The LU factorization of any square matrix, to be kept and used again.

    `gesv` is faster for right-hand sides that are there at once, and needs no second matrix; it has
    the same factorization and its accuracy. `jaxmg.linalg.lu_factor` gives LAPACK's pivots and L
    and U of ``a`` itself.

    Args:
        a: (n, n), float32, float64, complex64 or complex128; a JAX or NumPy array, sharded,
            replicated or on one device.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        pad: as for `potrs`.
        in_specs: another name of ``matrix_specs``.
        donate: the factor takes a's own buffer, and ``a`` is deleted; ignored under an outer
            ``jit``, whose own ``donate_argnums`` decides.
        precision: as for `gesv`, of the factorization and of `inv`.
        refine: as for `gesv`: the factor is one in lower precision, and is kept with ``a``, for
            solutions that are refined on it. The result is a `RefinedLUFactor`, which solves and
            has nothing else; ``donate`` doesn't save memory then.

    Returns:
        An `LUFactor`, or with ``refine`` a `RefinedLUFactor`. Its ``status`` is that of `gesv`.

    Cost: 2 n^3 / 3 multiplications and additions over all ranks (four times as many when complex).
    Memory: the factor, which is as large as ``a``, and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `gesv`. A call inside
            ``shard_map`` is a ValueError.

    Examples:
        >>> factor = jaxmg.lu_factor(a)
        >>> x, y = factor.solve(b), factor.solve(c, trans=1)
        >>> sign, logdet = factor.slogdet()
    """
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
    """The factor of a matrix that is an operand of another routine, for its derivative."""
    return making.factor_for(GETRF, kept.pack, a, arguments)
