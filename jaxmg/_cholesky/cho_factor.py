"""Cholesky factorization for repeated solves: LAPACK's potrf and potrs."""

from __future__ import annotations

import dataclasses
from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, matrix_spec
from jaxmg._cholesky import factor as cholesky_factor
from jaxmg._cholesky import growing, refined_factor, stacks
from jaxmg._host import matrices, requests
from jaxmg._host.factor import HostCholeskyFactor
from jaxmg._host.tiles import Tiles
from jaxmg._kept import making
from jaxmg._types import Else, MatrixLike, MeshLike, PrecisionLike, Refine, Specs

POTRF = record.Routine(
    name="cho_factor",
    native="potrf",
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.RealNumber("log_det"),
        results.Status(),
    ),
    outputs=("tiles", "overflow", "log_det", "status"),
    options=(record.PRECISION,),
    native_alone=True,
    refines=True,
    extension=record.Extension(returns_matrix=True),
    factor=record.Factor("potrf"),
    at_once=(stacks.CHO_FACTOR,),
)


# The record has no results, because `cholesky_operations.APPLY` does the work.
CHO_SOLVE = record.Routine(
    name="cho_solve",
    native="factor_apply",
    results=(),
    outputs=(),
    operands=(record.Operand("factor"), record.RIGHT_HAND_SIDES),
    native_alone=True,
    refines=True,
)


@overload
def cho_factor(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    precision: PrecisionLike | None | Else = None, refine: None = None, check: bool | Else = False,
    memory: None = None, capacity: SupportsIndex | None | Else = None,
) -> cholesky_factor.CholeskyFactor: ...  # fmt: skip


@overload
def cho_factor(
    a: MatrixLike | Tiles | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    precision: PrecisionLike | None | Else = None, refine: None = None, check: bool | Else = False,
    memory: float | None | Else = None, capacity: None = None,
) -> cholesky_factor.CholeskyFactor | HostCholeskyFactor: ...  # fmt: skip


@overload
def cho_factor(
    a: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    pad: bool | Else = True, *, in_specs: Specs | None | Else = None, donate: bool | Else = False,
    precision: Literal["highest"] | None | Else = None, refine: Refine | Else,
    check: bool | Else = False, memory: float | None | Else = None, capacity: None = None,
) -> refined_factor.RefinedFactor: ...  # fmt: skip


@_compat.overloaded_boundary
def cho_factor(
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
    check: bool = False,
    memory: float | None = None,
    capacity: SupportsIndex | None = None,
) -> cholesky_factor.CholeskyFactor | refined_factor.RefinedFactor | HostCholeskyFactor:
    """Factors a Hermitian positive definite matrix by Cholesky, for repeated use.

    If all right-hand sides are known at once, `potrs` is faster and needs no second matrix.

    Args:
        a: (n, n), Hermitian positive definite; dtypes and sharding are as in `potrs`. Only the
            upper triangle is read.
        T_A, mesh, matrix_specs, pad, in_specs, donate: As in `potrs`.
        precision: As in `potrs`; also applies to `CholeskyFactor.inv`.
        refine: As in `potrs`. The result is then a `RefinedFactor`, which holds ``a`` and its
            factor in lower precision and can only solve. ``donate`` then saves no memory.
        check, memory: As in `potrs`. A donated NumPy array becomes the memory of the factor.

        capacity: The most rows of A that the factor may get by `CholeskyFactor.append`, m >= n. The
            factor is that of [A 0; 0 I], of order m. b of its methods has m rows, and those after
            A's, which should be zero, don't mix with the others.

    Returns:
        A `CholeskyFactor`, or with ``refine`` a `RefinedFactor`; for a matrix in host memory that
        doesn't fit the devices (or ``memory``) a `HostCholeskyFactor`. If ``a`` isn't positive
        definite, the factor's ``status`` is not 0 and its entries are NaN.

    Cost: n^3 / 3 flops over all ranks (complex: 4 times). Memory: the factor, which is as large as
    ``a``, and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError, MemoryError: As `potrs`. A call
            inside ``shard_map`` raises a ValueError.

    Examples:
        >>> factor = jaxmg.cho_factor(a)
        >>> x = jaxmg.cho_solve(factor, b)
        >>> sample = mean + factor.matmul(jax.random.normal(key, (n,), a.dtype))
    """
    if capacity is not None:
        return _with_capacity(
            a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check, memory,
            capacity,
        )  # fmt: skip
    if memory is not None or matrices.is_host(a):
        request = requests.choose(
            "cho_factor", a, mesh=mesh, spec=matrix_spec("cho_factor", matrix_specs, in_specs),
            memory=memory, donate=donate, pad=pad, tile=T_A, backend="auto", precision=precision,
            refine=refine, check=check,
        )  # fmt: skip
        if request is not None and not request.in_core:
            return requests.factorize(request)
        if request is not None:
            a, mesh, matrix_specs, in_specs = request.a, request.mesh, None, None
            pad, donate, check = False, True, False
    if refine is not None:
        return refined_factor.cho_factor(
            a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check
        )
    arguments = collect(
        POTRF, T_A, mesh, matrix_specs, in_specs, pad, "native", donate, precision=precision
    )
    return _factorize(a, arguments, check)


def _with_capacity(
    a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check, memory, capacity
):  # fmt: skip
    if refine is not None or memory is not None or check:
        raise ValueError(
            "cho_factor: capacity goes with none of refine, memory and check; leave these out"
        )
    arguments = collect(
        POTRF, T_A, mesh, matrix_specs, in_specs, pad, "native", donate, precision=precision
    )
    rows, arguments, n = growing.extend(POTRF, a, arguments, capacity)
    factor = _factorize(rows, arguments)
    return dataclasses.replace(factor, count=factor.status * 0 + n)


def _factorize(a, arguments, check=False):
    return making.factorize(POTRF, cholesky_factor.pack, a, arguments, check)


def factor_for(a, arguments):
    """Factors an operand of another routine, for the derivative of that routine."""
    return making.factor_for(POTRF, cholesky_factor.pack, a, arguments)


@_compat.api_boundary
def cho_solve(
    factor: cholesky_factor.CholeskyFactor | refined_factor.RefinedFactor | HostCholeskyFactor,
    b: MatrixLike,
) -> Array:
    """Solves ``A @ x = b`` with a factor of A from `cho_factor`.

    Args:
        factor: A `CholeskyFactor`, `RefinedFactor` or `HostCholeskyFactor` of order n.
        b: (n,) or (n, nrhs), of the factor's dtype; a JAX or NumPy array. Every device holds all of
            b during the solve.

    Returns:
        x, of b's shape, dtype and sharding, as in `potrs`. If a `CholeskyFactor` has a ``status``
        that is not 0, x is NaN.

    Cost: 2 n^2 nrhs flops over all ranks (complex: 4 times).

    Raises:
        TypeError: ``factor`` isn't a factor, b isn't an array, or b has another dtype than the
            factor.
        ValueError: Shapes don't match, or the call is inside ``shard_map``.

    Examples:
        >>> factor = jaxmg.cho_factor(a)
        >>> for b in measurements:
        ...     x = jaxmg.cho_solve(factor, b)
    """
    if not isinstance(
        factor, cholesky_factor.CholeskyFactor | refined_factor.RefinedFactor | HostCholeskyFactor
    ):
        raise TypeError(
            "cho_solve: factor must be a jaxmg.CholeskyFactor, the result of jaxmg.cho_factor; got "
            f"{type(factor).__name__}"
        )
    return factor.solve(b)
