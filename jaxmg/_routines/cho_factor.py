"""The Cholesky factorization, kept for later solves: LAPACK's potrf and potrs."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect
from jaxmg._factors import cholesky_factor, making, operations, refined_factor
from jaxmg._transform import at_once
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Refine, Specs

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
    factor="potrf",
    at_once=at_once.AtOnce(at_once.cho_factor, operations.ORDERS_AT_ONCE),
)


# It has no results: an operation on the factor (`cholesky_operations.APPLY`) does the work.
CHO_SOLVE = record.Routine(
    name="cho_solve",
    native="factor_apply",
    results=(),
    outputs=(),
    operands=("factor", "b"),
    overwrites=False,
    native_alone=True,
    refines=True,
)


@overload
def cho_factor(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, precision: PrecisionLike | None = None, refine: None = None,
    check: bool = False,
) -> cholesky_factor.CholeskyFactor: ...  # fmt: skip


@overload
def cho_factor(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, precision: Literal["highest"] | None = None, refine: Refine,
    check: bool = False,
) -> refined_factor.RefinedFactor: ...  # fmt: skip


@_compat.api_boundary
def cho_factor(
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
    check: bool = False,
) -> cholesky_factor.CholeskyFactor | refined_factor.RefinedFactor:
    """The Cholesky factor of a Hermitian positive definite matrix, to be kept and used again.

    `potrs` is faster for right-hand sides that are there at once, and needs no second matrix; it
    has the same factorization and its accuracy.

    Args:
        a: (n, n), Hermitian positive definite, float32, float64, complex64 or complex128; a JAX or
            NumPy array, sharded, replicated or on one device. Only the upper triangle is read.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        pad: as for `potrs`.
        in_specs: another name of ``matrix_specs``.
        donate: the factor takes a's own buffer, and ``a`` is deleted; ignored under an outer
            ``jit``, whose own ``donate_argnums`` decides.
        precision: as for `potrs`, of the factorization and of `inv`.
        refine: as for `potrs`: the factor is one in lower precision, and is kept with ``a``, for
            solutions that are refined on it. The result is a `RefinedFactor`, which solves and has
            nothing else; ``donate`` doesn't save memory then.
        check: as for `potrs`.

    Returns:
        A `CholeskyFactor`, or with ``refine`` a `RefinedFactor`. Where ``a`` isn't positive
        definite, its ``status`` isn't 0 and it is NaN.

    Cost: n^3 / 3 multiplications and additions over all ranks (four times as many when complex).
    Memory: the factor, which is as large as ``a``, and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`. A call inside
            ``shard_map`` is a ValueError.

    Examples:
        >>> factor = jaxmg.cho_factor(a)
        >>> x = jaxmg.cho_solve(factor, b)
        >>> sample = mean + factor.matmul(jax.random.normal(key, (n,), a.dtype))
    """
    if refine is not None:
        return refined_factor.cho_factor(
            a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check
        )
    arguments = collect(
        POTRF, T_A, mesh, matrix_specs, in_specs, pad, "native", donate, precision=precision
    )
    return _factorize(a, arguments, check)


def _factorize(a, arguments, check=False):
    return making.factorize(POTRF, cholesky_factor.pack, a, arguments, check)


def factor_for(a, arguments):
    """The factor of a matrix that is an operand of another routine, for its derivative."""
    return making.factor_for(POTRF, cholesky_factor.pack, a, arguments)


@_compat.api_boundary
def cho_solve(
    factor: cholesky_factor.CholeskyFactor | refined_factor.RefinedFactor, b: MatrixLike
) -> Array:
    """Solves A x = b with a factor of A that `cho_factor` made.

    Args:
        factor: a `CholeskyFactor` of order n, or a `RefinedFactor`.
        b: (n,) or (n, nrhs), of the factor's dtype; a JAX or NumPy array. Every device holds all of
            it during the solve.

    Returns:
        x, of b's shape, dtype and sharding, as for `potrs`; NaN where ``factor.status`` isn't 0.

    Cost: 2 n^2 nrhs multiplications and additions over all ranks (four times as many when complex).

    Raises:
        TypeError: ``factor`` is none, b is no array, or has another dtype than the factor.
        ValueError: shapes don't fit, or the call is inside ``shard_map``.

    Examples:
        >>> factor = jaxmg.cho_factor(a)
        >>> for b in measurements:
        ...     x = jaxmg.cho_solve(factor, b)
    """
    if not isinstance(factor, cholesky_factor.CholeskyFactor | refined_factor.RefinedFactor):
        raise TypeError(
            "cho_solve: factor must be a jaxmg.CholeskyFactor, as jaxmg.cho_factor makes it; got "
            f"{type(factor).__name__}"
        )
    return factor.solve(b)
