"""The generalized eigenproblem A x = lambda B x: LAPACK's sygvd and hegvd."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local
from jaxmg._eigen import rules as eigen_rules
from jaxmg._eigen import stacks, syevd
from jaxmg._transform import dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, Specs

SYGVD = record.Routine(
    name="sygvd",
    native="sygvd",
    operands=(record.MATRIX, record.SECOND_MATRIX),
    results=(
        results.Matrix("x", argument="return_eigenvectors", back=syevd.columns),
        results.Matrix(record.SECOND_WORK),
        results.RealVector("w"),
        results.Status(),
    ),
    outputs=("w", "x", "status"),
    traced_outputs=(record.WORK, record.SECOND_WORK, "w", "x", "status"),
    options=(syevd.VECTORS,),
    at_once=(stacks.SYGVD,),
)


@overload
def sygvd(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def sygvd(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> Array: ...  # fmt: skip


@overload
def sygvd(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def sygvd(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def sygvd(
    a: MatrixLike | Else, b: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    return_eigenvectors: bool | Else = True, return_status: bool | Else = False,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    backend: Backend | Else = "auto", check: bool | Else = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def sygvd(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    return_eigenvectors: bool = True,
    return_status: bool = False,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    donate: bool = False,
    backend: Backend = "auto",
    check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    """Computes eigenvalues and eigenvectors of ``a @ x = w * b @ x``, spread over several devices.

    Solves LAPACK's ``itype=1`` (sygvd and hegvd): factors b = L L^H as `potrs`, solves the
    eigenproblem of L^-1 a L^-H as `syevd`, and multiplies its eigenvectors by L^-H (G. H. Golub and
    C. F. Van Loan, "Matrix Computations", 4th ed., section 8.7.2). All ranks share all steps,
    except that one rank solves a small eigenproblem (see `syevd`).

    Args:
        a: (n, n), Hermitian; dtypes and sharding are as in `potrs`. Only the upper triangle is
            read.
        b: (n, n), Hermitian positive definite, of a's dtype. Only the upper triangle is read. It is
            moved to a's devices.
        T_A, mesh, matrix_specs, in_specs: As in `potrs`, for ``a``.
        return_eigenvectors: False computes eigenvalues only, in less time.
        return_status: Whether to return the status too.
        pad, check: As in `potrs`, for both matrices.
        donate: Whether to compute in the buffers of ``a`` and b and delete both. Under ``jit`` use
            ``donate_argnums``.
        backend: "auto" or "native", which are the same.

    Returns:
        w | (w, x) | (w, status) | (w, x, status).

        - w, (n,), has the eigenvalues: real, ascending, replicated.
        - x, (n, n), has the eigenvectors in its columns, of a's dtype and sharding; ``x^H b x`` is
          the identity.
        - status is an int32 scalar: 0, or LAPACK's info: at most n, as `syevd` returns it, or n + k
          if b's leading minor of order k is not positive definite; another value if a matrix has
          NaN or infinity. If it is not 0, w and x are NaN.

    The errors of w and of ``x^H b x = I`` grow with b's condition number, as in LAPACK (LAPACK
    Users' Guide).

    Cost: n^3 / 3 + 2 n^3 flops, then the cost of `syevd`, then n^3 flops for the eigenvectors.
    Memory: copies of ``a`` and b unless ``donate``, the memory of `syevd` and of a factorization,
    and at most one more block of a rank's rows.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `potrs`. Matrices of different
            shapes or dtypes raise too.

    Examples:
        >>> w, x = jaxmg.sygvd(fock, overlap)  # Roothaan's equations, F C = S C E
    """
    arguments = collect(
        SYGVD, T_A, mesh, matrix_specs, in_specs, pad, backend, donate,
        return_eigenvectors=return_eigenvectors, return_status=return_status,
    )  # fmt: skip
    return dispatch.call(SYGVD, (a, b), arguments, _rule, check)


@_compat.api_boundary
def sygvd_shardmap_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_eigenvectors: bool = True,
    pad: bool = True,
    backend: Backend = "auto",
) -> tuple[Array, ...]:
    """Computes eigenvalues and eigenvectors as `sygvd`, for the local blocks inside ``shard_map``.

    Outside of ``shard_map`` it takes global arrays, and returns the work arrays of ``a`` and b,
    with unspecified contents, before w. The solver runs in the memory of ``a`` and b if you donate
    both to the outer ``jit`` and return the work arrays from it.

    Args:
        a: The rank's block of A, as in `syevd_shardmap_ctx`.
        b: The rank's block of B, of the same shape.
        T_A, mesh, matrix_specs, in_specs, return_eigenvectors, pad, backend: As in
            `syevd_shardmap_ctx`, but ``mesh`` and ``matrix_specs`` can't be True or False.

    Returns:
        (w, x, status) | (w, status), as `syevd_shardmap_ctx`. x has the rank's eigenvectors.

    Derivatives and batches are as in `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        SYGVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
        return_eigenvectors=return_eigenvectors,
    )  # fmt: skip
    return dispatch.call_local(SYGVD, (a, b), arguments, _rule)


def _rule(arguments):
    return eigen_rules.rule(SYGVD, SYGVD, arguments)
