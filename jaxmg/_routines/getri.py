"""The inverse of any square matrix: LAPACK's getrf and getri."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._call import blocks, record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._call.execute import select_results
from jaxmg._routines import lu_factor
from jaxmg._transform import at_once, derivatives, dispatch, hermitian
from jaxmg._types import Backend, MatrixLike, MeshLike, PrecisionLike, Specs

GETRI = record.Routine(
    name="getri",
    native="getri",
    results=(results.ZeroPadded("a_inv"), results.Status()),
    outputs=("a_inv", "status"),
    local_outputs=("a_inv", "status"),
    traced_outputs=("a_inv", "status"),
    options=(record.PRECISION,),
    triangle=None,
    extension=record.Extension(returns_matrix=True),
    at_once=at_once.AtOnce(at_once.getri, (("gpu", 1024), ("cpu", 64))),
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
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.api_boundary
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
    """The inverse of any square matrix spread over several devices.

    Factors ``a`` as `gesv` does, and inverts from there (LAPACK's getrf and getri). To solve, use
    `gesv`, which takes a third of the operations and has a smaller error. Inside ``shard_map`` use
    `getri_shardmap_ctx`.

    Args:
        a: (n, n), float32, float64, complex64 or complex128; sharding, batches and padding are as
            for `potrs`. All of it is read.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        return_status: also return the status.
        pad: as for `potrs`.
        in_specs: another name of ``matrix_specs``.
        donate: give a's buffer to the inverse; ``a`` is deleted. Ignored under an outer ``jit``,
            whose own ``donate_argnums`` decides.
        backend: "auto" or "native".
        precision: as for `gesv`.

    Returns:
        a_inv | (a_inv, status). The inverse is (n, n), of a's dtype and sharding, and like ``a``
        with rows of padding where that has them; the status is that of `gesv`. Where ``a`` is
        singular, the inverse has infinity or NaN.

    Cost: 2 n^3 multiplications and additions over all ranks (four times as many when complex).
    Memory: a copy of ``a`` unless ``donate``, and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `gesv`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("r",))
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
    """`getri` on the local block inside ``shard_map``; outside of one, `getri_jit_ctx`.

    Arguments are those of `potri_shardmap_ctx`, for any square matrix.

    Returns:
        (a_inv, status): this rank's part of the inverse, of the shape of ``a``, zero in rows of
        padding, and an int32 array of shape (1,).

    JAX may differentiate and batch it, as `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        GETRI, T_A, mesh, matrix_specs, in_specs, pad, backend, precision=precision
    )
    return dispatch.call_local(GETRI, (a,), arguments, _rule)


@_compat.api_boundary
def getri_jit_ctx(
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
    """`getri` on global arrays for use inside ``jit``: always returns (a_inv, status).

    Donate A to the outer ``jit`` and the inverse is computed in A's own buffer. Arguments, errors
    and cost are those of `getri`.
    """
    arguments = collect_traced(
        GETRI, T_A, mesh, matrix_specs, in_specs, pad, backend, precision=precision
    )
    return dispatch.transform(GETRI, (a,), arguments, _rule)


def _rule(arguments):
    """JVP rule: differentiates the inverse that a kept factor gives."""

    def invert(a):
        factor, call = lu_factor.factor_for(a, arguments), arguments.inside

        def inverse():
            if call is None:
                return hermitian.padded_like(factor.layout, factor.inv(), a)
            return blocks.from_rows(factor.inv(), call.layout, a.shape)

        makers = {"a_inv": inverse, "status": lambda: factor.status}
        return select_results(GETRI, arguments, makers)

    return derivatives.as_composed(invert)
