"""The inverse of any square matrix: LAPACK's getrf and getri."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._call import blocks, record, results
from jaxmg._call.arguments import collect, collect_local
from jaxmg._call.execute import select_results
from jaxmg._lu import lu_factor, stacks
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, PrecisionLike, Specs

GETRI = record.Routine(
    name="getri",
    native="getri",
    results=(results.ZeroPadded("a_inv"), results.Status()),
    outputs=("a_inv", "status"),
    traced_outputs=("a_inv", "status"),
    options=(record.PRECISION,),
    triangle=None,
    extension=record.Extension(returns_matrix=True),
    whole=True,
    at_once=(stacks.GETRI,),
)


@overload
def getri(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> Array: ...  # fmt: skip


@overload
def getri(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def getri(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    return_status: bool | Else = False, pad: bool | Else = True, *,
    in_specs: Specs | None | Else = None, donate: bool | Else = False,
    backend: Backend | Else = "auto", precision: PrecisionLike | None | Else = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def getri(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    return_status: bool = False,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    donate: bool = False,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> Array | tuple[Array, Array]:
    """Inverts any square matrix spread over several devices.

    Factors ``a`` as `gesv` and inverts the factors (LAPACK's getrf and getri). To solve, use
    `gesv`: it takes a third of getri's operations and has a smaller error. Inside ``shard_map`` use
    `getri_shardmap_ctx`.

    Args:
        a: (n, n); dtypes, sharding, batches and padding are as in `potrs`.
        T_A, mesh, matrix_specs, return_status, pad, in_specs, donate: As in `potrs`.
        backend: "auto" or "native".
        precision: As in `gesv`.

    Returns:
        a_inv | (a_inv, status). The inverse is (n, n), of a's dtype and sharding, with rows of
        padding if ``a`` has them. If ``a`` is singular, the inverse has infinity or NaN. The
        status is as in `gesv`.

    Cost: 2 n^3 flops over all ranks (complex: 4 times). Memory: a copy of ``a`` unless ``donate``,
    and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `gesv`.

    Examples:
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> a_inv = jaxmg.getri(a)
    """
    arguments = collect(
        GETRI, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, precision=precision,
        return_status=return_status,
    )  # fmt: skip
    return dispatch.call(GETRI, (a,), arguments, _rule)


@_compat.api_boundary
def getri_shardmap_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array]:
    """Inverts A as `getri`, for the local block of A inside ``shard_map``.

    Arguments are those of `potri_shardmap_ctx`, for any square matrix. Outside of ``shard_map``
    `getri_shardmap_ctx` takes global arrays.

    Returns:
        (a_inv, status). ``a_inv`` is the rank's part of the inverse, of a's shape, with zeros in
        rows of padding. The status is an int32 array of shape (1,).

    Derivatives and batches are as in `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        GETRI, T_A, mesh, matrix_specs, in_specs, pad, backend, precision=precision
    )
    return dispatch.call_local(GETRI, (a,), arguments, _rule)


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of lu_factor and a factor's `inv`."""

    def invert(a):
        factor, call = lu_factor.factor_for(a, arguments), arguments.inside

        def inverse():
            if call is None:
                return hermitian.padded_like(factor.layout, factor.inv(), a)
            return blocks.from_rows(factor.inv(), call.layout, a.shape)

        makers = {"a_inv": inverse, "status": lambda: factor.status}
        return select_results(GETRI, arguments, makers)

    return derivatives.as_composed(invert)
