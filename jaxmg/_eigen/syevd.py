"""Eigenvalues and eigenvectors of a Hermitian matrix: LAPACK's syevd and heevd."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

import jax.numpy as jnp
from jax import Array

from jaxmg import _compat
from jaxmg._call import blocks, record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._eigen import rules as eigen_rules
from jaxmg._eigen import stacks
from jaxmg._plugin import plugins
from jaxmg._transform import dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, Specs


def columns(rows, layout, shape):
    """Returns a rank's columns of the eigenvectors, or its block if A is sharded in blocks."""
    if layout.spec[1]:
        return blocks.from_rows(rows, layout, shape)
    return blocks.to_columns(rows, layout, rows.shape[1], shape[0])


def _is_staged(platform, n):
    """Whether the engine's stages solve the problem, whatever its dtype and results are."""
    order = plugins.load(platform).staged_eigen_order()
    return 0 < order <= n


def _cut(call, values, n):
    """Selects the eigenpairs of A among those of [A 0; 0 0], in the same order.

    The other eigenpairs have eigenvalue 0 and eigenvectors that are zero in A's rows.
    """
    v, w, status = values
    if dict(call.attributes)["vectors"]:
        foreign = jnp.sum(jnp.square(jnp.abs(v[n:])), axis=0)
    else:
        foreign = -jnp.abs(w)
    kept = jnp.sort(jnp.argsort(foreign)[:n])
    return v[:n][:, kept], w[kept], status


VECTORS = record.Option("return_eigenvectors", "vectors", lambda routine, value, *_: bool(value))
SYEVD = record.Routine(
    name="syevd",
    native="syevd",
    results=(
        results.Matrix("v", argument="return_eigenvectors", back=columns),
        results.RealVector("w"),
        results.Status(),
    ),
    outputs=("w", "v", "status"),
    traced_outputs=(record.WORK, "w", "v", "status"),
    options=(VECTORS,),
    extension=record.Extension(0, _is_staged, _cut, returns_matrix=True),
    at_once=(stacks.SYEVD, stacks.VALUES),
)


@overload
def syevd(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def syevd(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> Array: ...  # fmt: skip


@overload
def syevd(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def syevd(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def syevd(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    return_eigenvectors: bool | Else = True, return_status: bool | Else = False,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    backend: Backend | Else = "auto", check: bool | Else = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def syevd(
    a: MatrixLike,
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
    """Computes eigenvalues and eigenvectors of a Hermitian matrix spread over several devices.

    Reduces ``a`` to tridiagonal form and solves it by divide and conquer (LAPACK's syevd and heevd;
    J. J. M. Cuppen, Numer. Math. 36, 1981; M. Gu and S. C. Eisenstat, SIAM J. Matrix Anal. Appl.
    16, 1995). For large matrices (from order 8192 on CPU devices and 5120 on GPUs; docs/api.md has
    all thresholds) all ranks share the work and reduce ``a`` to a band first (C. H. Bischof, B.
    Lang, X. Sun, ACM Trans. Math. Softw. 26, 2000). One rank solves a smaller matrix by LAPACK or
    cuSOLVER.

    Args:
        a: (n, n), Hermitian; dtypes and sharding are as in `potrs`. Only the upper triangle is
            read.
        T_A, mesh, matrix_specs, return_status, in_specs, donate, check: As in `potrs`.
        return_eigenvectors: False computes eigenvalues only, in less time.
        pad: As in `potrs`. If the caller padded ``a``, v has a's shape, with zeros in the rows of
            padding.
        backend: "auto", "native", "cusolvermg" or "cusolvermp"; see docs/api.md.

    Returns:
        w | (w, v) | (w, status) | (w, v, status).

        - w, (n,), has the eigenvalues: real, ascending, replicated.
        - v, (n, n), has the eigenvectors in its columns: orthonormal, of a's dtype and sharding.
        - status is an int32 scalar: 0, or LAPACK's info > 0 if the iteration did not converge, or
          another value if ``a`` has NaN or infinity. If it is not 0, w and v are NaN.

    Cost: 4 n^3 / 3 flops for the eigenvalues, 4 n^3 to 9 n^3 more for the eigenvectors (complex: 4
    times). Memory: a copy of ``a`` unless ``donate``, and for eigenvectors three times a rank's
    rows if all ranks share the work, or about 3 n^2 elements on a single CPU rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `potrs`.

    Examples:
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> w, v = jaxmg.syevd(a)
    """
    arguments = collect(
        SYEVD, T_A, mesh, matrix_specs, in_specs, pad, backend, donate,
        return_eigenvectors=return_eigenvectors, return_status=return_status,
    )  # fmt: skip
    return dispatch.call(SYEVD, (a,), arguments, _rule, check)


@_compat.api_boundary
def syevd_shardmap_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | bool | None = None,
    matrix_specs: Specs | bool | None = None,
    *,
    in_specs: Specs | None = None,
    return_eigenvectors: bool = True,
    pad: bool = True,
    backend: Backend = "auto",
) -> tuple[Array, ...]:
    """Computes eigenvalues and eigenvectors as `syevd`, for the local block inside ``shard_map``.

    Every rank calls it with its block, in a ``shard_map`` with manual axes only. Outside of
    ``shard_map`` it is `syevd_jit_ctx`.

    Args:
        a: (rows, n), the rank's rows of the matrix, rows = ceil(n / P) on P ranks, or a block of
            rows and columns, as in `potrs_shardmap_ctx`.
        mesh: Ignored. True or False is taken as ``return_eigenvectors``, the third argument in
            older code.
        matrix_specs: As in `potrs_shardmap_ctx`. True or False is taken as ``pad``, the fourth
            argument in older code.
        T_A, in_specs, pad: As in `potrs_shardmap_ctx`.
        return_eigenvectors, backend: As in `syevd`.

    Returns:
        (w, v, status) | (w, status).

        - w, (n,), has all eigenvalues, the same on all ranks.
        - v, (n, rows), has the rank's columns of V, so ``out_specs=P(None, axis)`` assembles V.
          Columns of zeros follow if blocks have rows of padding. For a block of rows and columns v
          is that block of V.
        - status is an int32 array of shape (1,).

    Memory: a copy of the rank's rows of V, to exchange them for columns. Derivatives and batches
    are as in `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        SYEVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
        older=(("mesh", "return_eigenvectors"), ("matrix_specs", "pad")),
        return_eigenvectors=return_eigenvectors,
    )  # fmt: skip
    return dispatch.call_local(SYEVD, (a,), arguments, _rule)


@overload
def syevd_jit_ctx(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_eigenvectors: Literal[True] = True, pad: bool = True, backend: Backend = "auto",
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip


@overload
def syevd_jit_ctx(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_eigenvectors: Literal[False], pad: bool = True, backend: Backend = "auto",
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def syevd_jit_ctx(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None, *,
    in_specs: Specs | None | Else = None, return_eigenvectors: bool | Else = True,
    pad: bool | Else = True, backend: Backend | Else = "auto",
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def syevd_jit_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_eigenvectors: bool = True,
    pad: bool = True,
    backend: Backend = "auto",
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]:
    """Computes eigenpairs as `syevd` inside ``jit``, and returns the work array too.

    The solver runs in a's buffer if you donate ``a`` to the outer ``jit`` and return ``a_work``
    from it.

    Returns:
        (a_work, w, v, status) | (a_work, w, status). ``a_work`` has a's shape and dtype; its
        contents are unspecified. Arguments, other results, errors and cost are those of `syevd`.
    """
    arguments = collect_traced(
        SYEVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
        return_eigenvectors=return_eigenvectors,
    )  # fmt: skip
    return dispatch.transform(SYEVD, (a,), arguments, _rule)


def _rule(arguments):
    return eigen_rules.rule(SYEVD, SYEVD, arguments)
