"""Generalized eigenproblems, A x = lambda B x: LAPACK's sygvd and hegvd."""

from __future__ import annotations

import functools
from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._routines import syevd
from jaxmg._stacks import ways
from jaxmg._transform import at_once, dispatch, eigen_rules
from jaxmg._types import Backend, MatrixLike, MeshLike, Specs

SYGVD = record.Routine(
    name="sygvd",
    native="sygvd",
    operands=("a", "b"),
    matrices=2,
    results=(
        results.Matrix("x", argument="return_eigenvectors", back=syevd.columns),
        results.Matrix(record.SECOND_WORK),
        results.RealVector("w"),
        results.Status(),
    ),
    outputs=("w", "x", "status"),
    local_outputs=("w", "x", "status"),
    traced_outputs=(record.WORK, record.SECOND_WORK, "w", "x", "status"),
    options=(syevd.VECTORS,),
    at_once=at_once.AtOnce(
        functools.partial(at_once.sygvd, eigh=ways.eigh), (("gpu", 2048), ("cpu", 64))
    ),
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
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: bool = True,
    return_status: bool = False, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.api_boundary
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
    """Eigenvalues, and eigenvectors, of ``a @ x = w * b @ x`` spread over several devices.

    LAPACK's sygvd and hegvd with ``itype=1``: b = L L^H as `potrs` factors it, the eigenproblem of
    L^-1 a L^-H as `syevd` solves it, and its eigenvectors times L^-H (G. H. Golub and C. F. Van
    Loan, "Matrix Computations", 4th ed., section 8.7.2). All ranks share the factorization and the
    solves with L, whichever solver the eigenproblem has.

    Args:
        a: (n, n), Hermitian, float32, float64, complex64 or complex128; a JAX or NumPy array,
            sharded, replicated or on one device. Only the upper triangle is read.
        b: (n, n), Hermitian positive definite, of a's dtype. Only the upper triangle is read. It is
            brought to where ``a`` is, if it is elsewhere.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh, matrix_specs, in_specs: as for `syevd`, of ``a``.
        return_eigenvectors: False computes eigenvalues alone, in less time.
        return_status: also return the status.
        pad: as for `potrs`, of both matrices.
        donate: compute in the buffers of ``a`` and ``b`` and delete both; ignored under an outer
            ``jit``.
        backend: "native" or "auto", which are the same here.
        check: as for `potrs`, of both matrices.

    Returns:
        w | (w, x) | (w, status) | (w, x, status), where

        - w, (n,), real: the eigenvalues in ascending order, replicated;
        - x, (n, n): the eigenvectors in its columns, of a's dtype and sharding; ``x^H b x`` is the
          identity;
        - status, an int32 scalar: 0, or LAPACK's info: up to n, that of `syevd`; n + k where the
          leading minor of b of order k is not positive definite. NaN or infinity in either matrix
          gives a status that is not 0. Where it is not 0, w and x are NaN.

    The error of w is at the level of LAPACK's: where b is ill-conditioned, it grows with its
    condition, and x departs from ``x^H b x = 1`` likewise (LAPACK Users' Guide, "Error bounds for
    the generalized symmetric definite eigenproblem").

    Cost: that of `syevd`, n^3 / 3 + 2 n^3 before it and n^3 after it for the eigenvectors. Memory:
    copies of ``a`` and ``b`` unless ``donate``, and beside what `syevd` and a factorization need at
    most a rank's rows once more.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`, of two matrices of one
            shape and dtype.

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
    """`sygvd` on the local blocks inside ``shard_map``; outside of one, `sygvd_jit_ctx`.

    Args:
        a: this rank's block, as for `syevd_shardmap_ctx`.
        b: its block of b, of the same shape.
        T_A, mesh, matrix_specs, in_specs, return_eigenvectors, pad, backend: as for
            `syevd_shardmap_ctx`, but for the flags of older code.

    Returns:
        (w, x, status) or (w, status), as `syevd_shardmap_ctx`: x is this rank's eigenvectors.

    JAX may differentiate and batch it, as `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        SYGVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
        return_eigenvectors=return_eigenvectors,
    )  # fmt: skip
    return dispatch.call_local(SYGVD, (a, b), arguments, _rule)


@overload
def sygvd_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_eigenvectors: Literal[True] = True, pad: bool = True, backend: Backend = "auto",
) -> tuple[Array, Array, Array, Array, Array]: ...  # fmt: skip


@overload
def sygvd_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_eigenvectors: Literal[False], pad: bool = True, backend: Backend = "auto",
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip


@overload
def sygvd_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_eigenvectors: bool = True, pad: bool = True, backend: Backend = "auto",
) -> tuple[Array, Array, Array, Array] | tuple[Array, Array, Array, Array, Array]: ...  # fmt: skip


@_compat.api_boundary
def sygvd_jit_ctx(
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
) -> tuple[Array, Array, Array, Array] | tuple[Array, Array, Array, Array, Array]:
    """`sygvd` on global arrays for use inside ``jit``: also gives the work arrays back.

    Donate A and B to the outer ``jit`` and return both from it, and the solver runs in their
    buffers.

    Returns:
        (a_work, b_work, w, x, status) or (a_work, b_work, w, status); the work arrays have a's
        shape and dtype and unspecified contents. The rest is as for `sygvd`, as are arguments,
        errors and cost.
    """
    arguments = collect_traced(
        SYGVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
        return_eigenvectors=return_eigenvectors,
    )  # fmt: skip
    return dispatch.transform(SYGVD, (a, b), arguments, _rule)


def _rule(arguments):
    return eigen_rules.rule(SYGVD, SYGVD, arguments)
