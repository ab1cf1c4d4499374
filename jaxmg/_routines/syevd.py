"""Eigenvalues and eigenvectors of a Hermitian matrix: LAPACK's syevd and heevd."""

from __future__ import annotations

import functools
import os
from typing import Literal, SupportsIndex, overload

import jax.numpy as jnp
from jax import Array

from jaxmg import _compat
from jaxmg._call import blocks, record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._stacks import ways
from jaxmg._transform import at_once, dispatch, eigen_rules
from jaxmg._types import Backend, MatrixLike, MeshLike, Specs


def columns(rows, layout, shape):
    """A rank's columns of the eigenvectors, or its block of them if A is sharded in blocks."""
    if layout.spec[1]:
        return blocks.from_rows(rows, layout, shape)
    return blocks.to_columns(rows, layout, rows.shape[1], shape[0])


# The order from which all ranks share the work on GPUs, with eigenvectors or without.
_LEAST_SHARED = 5120


def _is_shared(n):
    return n >= _LEAST_SHARED and os.environ.get("JAXMG_EIGENSOLVER") != "one"


def _cut(call, values, n):
    """The eigenpairs of A among those of [A 0; 0 0], in the same order.

    The others have unit vectors below A, and eigenvalues of 0.
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
    local_outputs=("w", "v", "status"),
    traced_outputs=(record.WORK, "w", "v", "status"),
    options=(VECTORS,),
    extension=record.Extension(0, _is_shared, _cut, returns_matrix=True),
    older=(("mesh", "return_eigenvectors"), ("matrix_specs", "pad")),
    at_once=at_once.AtOnce(
        functools.partial(at_once.syevd, eigh=ways.eigh),
        (("gpu", 4096), ("cpu", 128)),
        (("cpu", 64),),
    ),
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
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_eigenvectors: bool = True,
    return_status: bool = False, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, backend: Backend = "auto", check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.api_boundary
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
    """Eigenvalues, and eigenvectors, of a Hermitian matrix spread over several devices.

    Reduces ``a`` to tridiagonal form and solves that by divide and conquer (LAPACK's syevd and
    heevd; J. J. M. Cuppen, Numer. Math. 36, 1981; M. Gu and S. C. Eisenstat, SIAM J. Matrix Anal.
    Appl. 16, 1995). All ranks share matrices of order 8192 and more on CPU devices (eigenvalues
    alone: 4096; complex: 2048), of 5120 and more on GPUs (4608; 4096), which goes by way of a band
    (C. H. Bischof, B. Lang, X. Sun, ACM Trans. Math. Softw. 26, 2000); smaller ones are gathered by
    one rank, which runs LAPACK or cuSOLVER. Backend "cusolvermg" has all GPUs work on any.

    Args:
        a: (n, n), Hermitian, float32, float64, complex64 or complex128; a JAX or NumPy array,
            sharded, replicated or on one device. Only the upper triangle is read.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        return_eigenvectors: False computes eigenvalues alone, in less time.
        return_status: also return the status.
        pad: as for `potrs`; where the caller padded ``a``, v has its shape, with rows of zeros in
            the same places.
        in_specs: another name of ``matrix_specs``.
        donate: compute in a's own buffer and delete ``a``; ignored under an outer ``jit``.
        backend: "native", "cusolvermg", "cusolvermp" (as for `potrs`), or "auto": the first, on
            several GPUs as long as one of them has the memory.
        check: as for `potrs`.

    Returns:
        w | (w, v) | (w, status) | (w, v, status), where

        - w, (n,), real: the eigenvalues in ascending order, replicated;
        - v, (n, n): the eigenvectors in its columns, orthonormal, of a's dtype and sharding;
        - status, an int32 scalar: 0, or LAPACK's info > 0 where the iteration did not converge, or
          a value that is not 0 where ``a`` holds NaN or infinity. Then w and v are NaN.

    Cost: 4 n^3 / 3 multiplications and additions for the eigenvalues, 4 n^3 to 9 n^3 more for the
    eigenvectors (four times as many when complex). Memory: a copy of ``a`` unless ``donate``.
    Beside it, where all ranks share the work, three times a rank's rows with eigenvectors and
    nothing of that order without; the rank that runs LAPACK on CPU needs about 3 n^2 numbers. On
    GPUs an order of 5120 or more whose rows don't begin at multiples of 16 bytes is extended by
    zeros, where two further matrices fit on a device.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`.

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
    """`syevd` on the local block inside ``shard_map``; outside of one, `syevd_jit_ctx`.

    Inside a ``shard_map`` of which all axes are manual, every rank calls it with its block:

    Args:
        a: (rows, n), this rank's rows of the matrix, rows = ceil(n / P) on P ranks, or a block of
            rows and columns, as for `potrs_shardmap_ctx`.
        T_A: tile width; None lets the plugin choose.
        mesh: not used here; True or False is taken for ``return_eigenvectors``, which is third in
            older code.
        matrix_specs: the spec that the ``shard_map`` has for A; needed where the axes are open, as
            for `potrs_shardmap_ctx`.
            True or False is taken for ``pad``, which is fourth in older code.
        in_specs: another name of ``matrix_specs``.
        return_eigenvectors: False computes eigenvalues alone.
        pad: as for `potrs_shardmap_ctx`.
        backend: as for `potrs`.

    Returns:
        (w, v, status) or (w, status): all eigenvalues, (n,), the same on all ranks; this rank's
        eigenvectors; an int32 array of shape (1,). v is (n, rows), the rank's columns of V, so that
        ``out_specs=P(None, axis)`` puts them together; where the blocks have rows of padding, as
        many columns of zeros follow the eigenvectors. Of a block of rows and columns it is that
        block of V.

    The exchange of rows of V for columns needs a copy of them. JAX may differentiate and batch it,
    as `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        SYEVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
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
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_eigenvectors: bool = True, pad: bool = True, backend: Backend = "auto",
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]: ...  # fmt: skip


@_compat.api_boundary
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
    """`syevd` on global arrays for use inside ``jit``: also gives the work array back.

    Donate A to the outer ``jit`` and return ``a_work`` from it, and the solver runs in A's buffer.

    Returns:
        (a_work, w, v, status) or (a_work, w, status); ``a_work`` has a's shape and dtype and
        unspecified contents. The rest is as for `syevd`, as are arguments, errors and cost.
    """
    arguments = collect_traced(
        SYEVD, T_A, mesh, matrix_specs, in_specs, pad, backend,
        return_eigenvectors=return_eigenvectors,
    )  # fmt: skip
    return dispatch.transform(SYEVD, (a,), arguments, _rule)


def _rule(arguments):
    return eigen_rules.rule(SYEVD, SYEVD, arguments)
