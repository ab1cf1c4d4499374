"""Solving with any square matrix: LAPACK's getrf and getrs."""

from __future__ import annotations

import functools
from typing import Literal, SupportsIndex, overload

import jax
from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._call.execute import select_results
from jaxmg._factors import right_hand_sides
from jaxmg._routines import lu_factor
from jaxmg._transform import at_once, derivatives, dispatch
from jaxmg._types import Backend, MatrixLike, MeshLike, PrecisionLike, Specs

GESV = record.Routine(
    name="gesv",
    native="gesv",
    operands=("a", "b"),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.RealNumber("logdet", argument="return_logdet"),
        results.Sign("sign", argument="return_logdet"),
        results.Status(),
    ),
    outputs=("x", "sign", "logdet", "status"),
    local_outputs=("x", "sign", "logdet", "status"),
    traced_outputs=(record.WORK, "x", "sign", "logdet", "status"),
    options=(record.GENERAL_PRECISION,),
    triangle=None,
    extends=True,
    at_once=at_once.AtOnce(at_once.gesv, (("gpu", 1024), ("cpu", 64))),
)


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
) -> Array: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: bool = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
) -> Array | tuple[Array, ...]: ...  # fmt: skip


@_compat.api_boundary
def gesv(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    return_status: bool = False,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    donate: bool = False,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> Array | tuple[Array, ...]:
    """Solves ``a @ x = b`` for any square matrix spread over several devices.

    Factors ``a`` by a distributed LU decomposition with partial pivoting and substitutes (LAPACK's
    getrf and getrs; J. Choi et al., "Design and implementation of the ScaLAPACK LU, QR, and
    Cholesky factorization routines", LAPACK Working Note 80, 1994). It is the transpose of ``a``
    that is factored, which lies on the devices already: the pivots are the largest entries in the
    rows of ``a``. The backward error is that of LAPACK: N. J. Higham, "Accuracy and Stability of
    Numerical Algorithms", 2nd ed., section 9.3.

    Works eagerly, where the second call with the same shapes compiles nothing, and under ``jit``.
    Inside ``shard_map`` use `gesv_shardmap_ctx`. For a Hermitian positive definite matrix `potrs`
    takes half the operations.

    Args:
        a: (n, n), float32, float64, complex64 or complex128; sharding, batches and padding are as
            for `potrs`. All of it is read.
        b: (n,) or (n, nrhs), of a's dtype, as for `potrs`.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        return_status: also return the status.
        pad: as for `potrs`.
        in_specs: another name of ``matrix_specs``.
        return_logdet: also return the determinant's sign and logarithm.
        donate: give a's buffer to the factorization, so that no second matrix is needed; ``a`` is
            deleted. Ignored under an outer ``jit``, whose own ``donate_argnums`` decides.
        backend: "auto" or "native".
        precision: of the products that make up the factorization, for float32 and complex64, by the
            names that `potrs` takes except "F16_F16_F32_X3". None: the fastest that is as accurate
            as float32.

    Returns:
        x | (x, status) | (x, sign, logdet) | (x, sign, logdet, status). Here

        - x has b's shape, dtype and sharding, as for `potrs`;
        - sign and logdet are scalars: det(a) = sign * exp(logdet), with sign of a's dtype and
          abs(sign) = 1, and logdet real, as of `jax.numpy.linalg.slogdet`;
        - status is an int32 scalar: 0; or LAPACK's info k > 0, where ``a`` is singular: the k-th
          diagonal entry of U is the first that is exactly zero. Then x has infinity or NaN, as
          JAX's solution has it, sign is 0 and logdet is -inf; or -1, where ``a`` has NaN or
          infinity (or the factorization overflows): all other results are NaN.

    Cost: 2 n^3 / 3 + 2 n^2 nrhs multiplications and additions over all ranks (four times as many
    when complex). Memory: a copy of ``a`` unless ``donate``, a few panels of n x T_A, and b, per
    rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("r",))
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> x, status = jaxmg.gesv(a, b, return_status=True)
    """
    arguments = collect(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, precision=precision,
        return_logdet=return_logdet, return_status=return_status,
    )  # fmt: skip
    return dispatch.call(GESV, (a, b), arguments, _rule)


@_compat.api_boundary
def gesv_shardmap_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]:
    """`gesv` on the local block inside ``shard_map``; outside of one, `gesv_jit_ctx`.

    Arguments are those of `potrs_shardmap_ctx`, for any square matrix.

    Returns:
        (x, status) or (x, sign, logdet, status), the same on all ranks; x has b's shape, the others
        have shape (1,). Where b differs between the ranks, it is a ValueError if the trace tracks
        that; with ``check_vma=False`` the status is -2 and the other results are NaN.

    JAX may differentiate and batch it, as `potrs_shardmap_ctx`.

    Errors, cost and source are those of `gesv`.
    """
    arguments = collect_local(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.call_local(GESV, (a, b), arguments, _rule)


@overload
def gesv_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array, Array, Array]: ...  # fmt: skip


@overload
def gesv_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: bool = False, pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]: ...  # fmt: skip


@_compat.api_boundary
def gesv_jit_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]:
    """`gesv` on global arrays for use inside ``jit``: also gives the work array back.

    Donate A to the outer ``jit`` and return ``a_work`` from it, and the factorization runs in A's
    own buffer.

    Returns:
        (a_work, x, status) or (a_work, x, sign, logdet, status); ``a_work`` has a's shape and dtype
        and unspecified contents. The rest is as for `gesv`, as are arguments, errors and cost.
    """
    arguments = collect_traced(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.transform(GESV, (a, b), arguments, _rule)


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of lu_factor and its solve."""

    def solve(a, b):
        factor = lu_factor.factor_for(a, arguments)
        if arguments.inside is not None:
            factor, b = right_hand_sides.alike(factor, b, arguments.inside, ("_sign", "_log_det"))
        slogdet = functools.cache(factor.slogdet)
        makers = {
            record.WORK: lambda: jax.lax.stop_gradient(a),
            "x": lambda: factor.solve(b),
            "sign": lambda: slogdet()[0],
            "logdet": lambda: slogdet()[1],
            "status": lambda: factor.status,
        }
        return select_results(GESV, arguments, makers)

    return derivatives.as_composed(solve)
