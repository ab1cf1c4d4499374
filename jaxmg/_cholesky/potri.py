"""The inverse of a positive definite matrix: LAPACK's potrf and potri."""

from __future__ import annotations

import functools
from typing import Literal, SupportsIndex, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from jaxmg import _compat
from jaxmg._call import blocks, checks, record, results
from jaxmg._call.arguments import collect, collect_local
from jaxmg._call.execute import select_results
from jaxmg._cholesky import cho_factor, stacks
from jaxmg._layouts import local_layouts, shardings
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, PrecisionLike, Specs


def _upper(rows, layout, shape):
    """Returns a rank's part of the inverse's upper triangle, zeros below it. As in JAXMg 0.0.9,
    `potri_shardmap_ctx` returns only this triangle."""
    count, n = rows.shape
    row = local_layouts.local_rank(layout) * count + jnp.arange(count)[:, None]
    return blocks.from_rows(jnp.where(row <= jnp.arange(n), rows, 0), layout, shape)


POTRI = record.Routine(
    name="potri",
    native="potri",
    results=(results.Matrix("a_inv", back=_upper), results.Status()),
    outputs=("a_inv", "status"),
    traced_outputs=("a_inv", "status"),
    options=(record.PRECISION,),
    extension=record.Extension(returns_matrix=True),
    whole=True,
    at_once=(stacks.POTRI,),
)


@overload
def potri(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, check: bool = False,
) -> Array: ...  # fmt: skip


@overload
def potri(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potri(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    return_status: bool | Else = False, pad: bool | Else = True, *,
    in_specs: Specs | None | Else = None, donate: bool | Else = False,
    backend: Backend | Else = "auto", precision: PrecisionLike | None | Else = None,
    check: bool | Else = False,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def potri(
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
    check: bool = False,
) -> Array | tuple[Array, Array]:
    """Inverts a Hermitian positive definite matrix spread over several devices.

    Factors ``a`` by a distributed Cholesky decomposition, inverts the factor and multiplies this
    inverse by its conjugate transpose, in place (LAPACK's potrf, trtri and lauum; method 2 of J. J.
    Du Croz and N. J. Higham, IMA J. Numer. Anal. 12, 1992). To solve a system, `potrs` is faster
    and more accurate.

    Args:
        a: (n, n), Hermitian positive definite; dtypes and sharding are as in `potrs`. Only the
            upper triangle is read.
        T_A, mesh, matrix_specs, return_status, in_specs, donate: As in `potrs`.
        pad: As in `potrs`. If the caller padded ``a``, the inverse has a's shape, with zeros in the
            rows of padding.
        backend: "auto", "native" or "cusolvermg".
        precision, check: As in `potrs`.

    Returns:
        a_inv | (a_inv, status). The inverse is (n, n), full and Hermitian, of a's dtype and
        sharding. The status is an int32 scalar: 0, or LAPACK's info, the order of the leading minor
        that is not positive definite. If the status is not 0, the inverse is NaN.

    Cost: n^3 flops over all ranks (complex: 4 times). Memory: a copy of ``a`` unless ``donate``,
    and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `potrs`.

    Examples:
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> a_inv = jaxmg.potri(a)
    """
    arguments = collect(
        POTRI, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, precision=precision,
        return_status=return_status,
    )  # fmt: skip
    return dispatch.call(POTRI, (a,), arguments, _rule, check)


@_compat.api_boundary
def potri_shardmap_ctx(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | bool | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array]:
    """Inverts A as `potri`, for the local block of A inside ``shard_map``.

    Every rank calls it with its block, in a ``shard_map`` with manual axes only. Outside of
    ``shard_map`` it takes global arrays, and returns the whole inverse.

    Args:
        a: (rows, n), the rank's rows of the matrix, rows = ceil(n / P) on P ranks, or a block of
            rows and columns, as in `potrs_shardmap_ctx`.
        mesh: Ignored. True or False is taken as ``pad``, the third argument in older code.
        T_A, matrix_specs, in_specs, pad: As in `potrs_shardmap_ctx`.
        backend, precision: As in `potrs`.

    Returns:
        (a_inv, status). ``a_inv`` is the rank's part of the inverse's upper triangle, of a's shape,
        with zeros below the diagonal and in rows of padding. The status is an int32 array of shape
        (1,). `potri_symmetrize` completes the matrix outside of the ``shard_map``.

    Derivatives and batches are as in `potrs_shardmap_ctx`.
    """
    arguments = collect_local(
        POTRI, T_A, mesh, matrix_specs, in_specs, pad, backend,
        older=(("mesh", "pad"),), precision=precision,
    )  # fmt: skip
    return dispatch.call_local(POTRI, (a,), arguments, _rule)


@_compat.api_boundary
def potri_symmetrize(a: MatrixLike) -> Array:
    """Completes a Hermitian matrix from its upper triangle.

    Args:
        a: (n, n), real or complex, with any sharding. Only the upper triangle is read.

    Returns:
        triu(a) + triu(a, 1)^H, (n, n), sharded like ``a``.

    Cost: a transposition of ``a`` across the devices. `potri` returns the full inverse without it.

    Raises:
        ValueError: ``a`` is not square.
    """
    checks.usable("potri_symmetrize", "a", a)
    a = jnp.asarray(a)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"potri_symmetrize: a must be square, (n, n); it has shape {a.shape}")
    if isinstance(a, Tracer):
        return _symmetrize(a)
    return _symmetrizer(a.sharding)(a)


@functools.lru_cache(maxsize=64)
def _symmetrizer(sharding):
    return jax.jit(_symmetrize, out_shardings=sharding)


def _symmetrize(a):
    lower = shardings.constrain_like(jnp.triu(a, 1).conj().T, a)
    return jnp.triu(a) + lower


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of cho_factor and a factor's `inv`."""

    def invert(a):
        factor, call = cho_factor.factor_for(a, arguments), arguments.inside

        def inverse():
            if call is None:
                return hermitian.padded_like(factor.layout, factor.inv(), a)
            return _upper(factor.inv(), call.layout, a.shape)

        makers = {"a_inv": inverse, "status": lambda: factor.status}
        return select_results(POTRI, arguments, makers)

    return derivatives.as_composed(invert)
