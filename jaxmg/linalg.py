"""`jax.numpy.linalg` and `jax.scipy.linalg` for matrices spread over several devices.

Names, order of arguments, defaults and results are those of JAX: of ``jax.numpy.linalg`` where it
has the name, else of ``jax.scipy.linalg``. `solve`, `solve_triangular`, `inv`, `det`, `slogdet`,
`cond`, `lu_solve`, `matrix_power` and `expm` take any square matrix, `lu`, `lu_factor`, `qr`,
`qr_multiply`, `least_squares`, `lstsq`, `svd`, `svdvals`, `polar`, `pinv`, `matrix_rank` and `norm`
any (m, n). The others are for Hermitian matrices, positive definite ones where a function says so.
Results are spread over the devices as A is. Beside JAX's arguments each function takes ``mesh`` and
``matrix_specs``, as `jaxmg.potrs` does.

What is read of A:

- Where an argument names a triangle (``lower``; ``UPLO`` or ``upper`` with
  ``symmetrize_input=False``), that one alone. The upper one is read where it lies; for the lower
  one all devices exchange blocks with all, which takes a copy of A.
- `solve`, `inv`, `det`, `slogdet` and negative powers read all of A. One pass over A finds whether
  it is Hermitian, but for rounding, and has a positive diagonal. Then a Cholesky factorization is
  tried, which has half the operations of LU; LU follows where that fails, and is taken at once of
  all other matrices, of batches, and where JAX differentiates. ``assume_a`` of `solve` skips this.
- Otherwise A has to be Hermitian. That is looked at with one pass over A; where it isn't, but for
  rounding, the results are NaN. ``symmetrize_input=True`` stands for this: the average of A and its
  adjoint isn't taken.

Matrices with leading dimensions are batches, as in JAX, and those of ``b`` broadcast against them.
A ``b`` with one dimension is a vector, one with two a matrix, for all of them.

Arrays are promoted as JAX promotes them: float32 with float64, real with complex, integers and
booleans to JAX's default; where ``jax_numpy_dtype_promotion`` is "strict" what differs raises. What
isn't a matrix of float32, float64, complex64 or complex128 then raises.

``overwrite_a``, ``overwrite_b``, ``check_finite``, ``turbo`` and ``debug`` are accepted and do
nothing, as in JAX.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, SupportsIndex, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._factors.cholesky_factor import CholeskyFactor
from jaxmg._factors.lu_factor import LUFactor
from jaxmg._factors.refined_factor import RefinedFactor
from jaxmg._factors.refined_lu_factor import RefinedLUFactor
from jaxmg._routines import cho_factor as keep_factor
from jaxmg._routines import jax_linalg
from jaxmg._routines.jax_householder import householder_product, qr_multiply
from jaxmg._routines.jax_lstsq import least_squares, lstsq
from jaxmg._routines.jax_qr import QRResult, qr
from jaxmg._routines.jax_svd import (
    SVDResult,
    condition_of_values,
    matrix_rank,
    norm,
    pinv,
    polar,
    svd,
    svdvals,
)
from jaxmg._types import AnyArray, AnyMatrixLike, AssumeA, MeshLike, Trans, Triangle

__all__ = [
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "det",
    "eigh",
    "eigvalsh",
    "expm",
    "funm",
    "householder_product",
    "inv",
    "least_squares",
    "logm",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "matrix_power",
    "matrix_rank",
    "norm",
    "pinv",
    "polar",
    "qr",
    "qr_multiply",
    "slogdet",
    "solve",
    "solve_triangular",
    "sqrtm",
    "svd",
    "svdvals",
]


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: jax.Array
    eigenvectors: jax.Array


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: jax.Array
    logabsdet: jax.Array


@_compat.api_boundary
def solve(
    a: AnyMatrixLike,
    b: AnyMatrixLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: AssumeA | None = None,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The x with ``a @ x = b``, for any square matrix: `jax.scipy.linalg.solve`.

    Args:
        a: (n, n), as for `jaxmg.gesv`.
        b: (n,) or (..., n, nrhs).
        lower: with "pos", "her" and "sym" the triangle that is read.
        overwrite_a, overwrite_b, debug, check_finite: do nothing.
        assume_a: as in SciPy. "gen" or "general": nothing, so that it is LU (`jaxmg.gesv`), of half
            the speed of "pos". "pos" or "positive definite": Hermitian positive definite, of which
            one triangle is read (`jaxmg.potrs`). "her" or "hermitian", "sym" or "symmetric":
            Hermitian, or symmetric also where it is complex; one triangle is read, and LU solves
            where the matrix isn't positive definite. None, SciPy's default: find out with one pass
            over ``a`` whether it is Hermitian with a positive diagonal. Then Cholesky is tried, and
            LU takes its place where that fails; else it is LU. In batches and where JAX
            differentiates, None is "gen".

    Returns:
        x, of b's shape and sharding; with leading dimensions, of those of ``a`` and b together.
        Where ``a`` is singular x has infinity or NaN, as of JAX; where ``a`` has NaN or infinity it
        is NaN. With "pos" it is NaN where ``a`` isn't positive definite.

    Cost: that of `jaxmg.gesv` or `jaxmg.potrs`, which also take a tile width, a precision and a's
    memory. Where the matrix decides which (None and "her"), memory: one more copy of ``a``. With
    "her" and "sym" all devices exchange blocks with all, which takes a copy of ``a``.

    Raises:
        ValueError: another ``assume_a``.
        TypeError, ValueError, RuntimeError: as `jaxmg.gesv`.

    Examples:
        >>> x = jaxmg.linalg.solve(a, b)
        >>> x = jaxmg.linalg.solve(a, b, assume_a="pos")
    """
    if not isinstance(assume_a, str | None) or assume_a not in jax_linalg.ASSUMED:
        raise ValueError(
            f"linalg.solve: assume_a must be one of "
            f"{', '.join(map(repr, jax_linalg.ASSUMED))}; got {assume_a!r}"
        )
    assumed = jax_linalg.ASSUMED[assume_a]
    read = jax_linalg.triangle(lower) if assumed in ("pos", "her", "sym") else jax_linalg.ANY
    return jax_linalg.run(
        (a, b), "solve", jax_linalg.solve, ("like b",), mesh, matrix_specs, read, assumed
    )


@_compat.api_boundary
def solve_triangular(
    a: AnyMatrixLike,
    b: AnyMatrixLike,
    trans: Trans = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The x with ``op(T) @ x = b``, T a triangle of ``a``: `jax.scipy.linalg.solve_triangular`.

    Args:
        a: (n, n), of which one triangle is read.
        b: (n,) or (..., n, nrhs).
        trans: 0 or "N" for T, 1 or "T" for its transpose, 2 or "C" for its conjugate transpose.
        lower: T is the lower triangle; else the upper one.
        unit_diagonal: T has ones on its diagonal, and that of ``a`` isn't read.
        overwrite_b, debug, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        x, of b's shape and sharding; with leading dimensions, of those of ``a`` and b together.
        Where the diagonal has a zero, x has infinity or NaN, as of JAX.

    Cost: n^2 nrhs multiplications and additions over all ranks, and as many again where T is the
    lower triangle, by substitution (N. J. Higham, "Accuracy and Stability of Numerical
    Algorithms", 2002, chapter 8). The triangle goes into the solver's layout each time; no device
    gets all of it. Memory: two more copies of ``a``. A factor that is kept (`jaxmg.cho_factor`,
    `jaxmg.lu_factor`) is there already.

    Raises:
        ValueError: another ``trans``.
        TypeError, ValueError, RuntimeError: as `jaxmg.gesv`.
    """
    return jax_linalg.solve_triangular(a, b, trans, lower, unit_diagonal, mesh, matrix_specs)


@_compat.api_boundary
def inv(
    a: AnyMatrixLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The inverse of any square matrix: `jax.numpy.linalg.inv`.

    Args:
        a: (n, n).
        overwrite_a, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.getri`.

    Returns:
        (n, n), of a's dtype and sharding; with infinity or NaN where ``a`` is singular.

    Cost: that of `jaxmg.potri` where ``a`` is Hermitian positive definite, and else of
    `jaxmg.getri`, twice as much; a pass over ``a`` finds out.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.getri`.
    """
    return jax_linalg.run(
        (a,),
        "inv",
        jax_linalg.inverse,
        ("matrix",),
        mesh,
        matrix_specs,
    )


@_compat.api_boundary
def cholesky(
    a: AnyMatrixLike,
    lower: bool | None = None,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    upper: bool = False,
    symmetrize_input: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The Cholesky factor of a Hermitian positive definite matrix: `jax.numpy.linalg.cholesky`,
    and with ``lower`` `jax.scipy.linalg.cholesky`.

    Args:
        a: (n, n), Hermitian positive definite.
        lower: as in SciPy: True gives L by the lower triangle of ``a``, False U by the upper one,
            and nothing else of ``a`` is read. None: ``upper`` says what to give.
        overwrite_a, check_finite: do nothing.
        upper: give U with ``a = U^H U`` in place of L with ``a = L L^H``.
        symmetrize_input: True: ``a`` has to be Hermitian. False: of ``a`` that triangle is read
            which is asked for.
        mesh, matrix_specs: as for `jaxmg.cho_factor`.

    Returns:
        L or U, (n, n), of a's dtype and sharding, with zeros in its other triangle; NaN where ``a``
        isn't positive definite.

    Cost: that of `jaxmg.cho_factor`, and of two ways between layouts. L is U's adjoint, for which
    all devices exchange blocks with all: U is there sooner. A factor that is to be solved with is
    better left in the solver's own layout: `jaxmg.cho_factor`.

    Raises:
        ValueError: ``lower`` and ``upper`` both.
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.cho_factor`.
    """
    if lower is not None:
        if upper:
            raise ValueError(
                f"linalg.cholesky: lower={lower!r} is SciPy's argument and upper={upper!r} is that "
                "of jax.numpy.linalg; pass one of them"
            )
        upper, symmetrize_input = not lower, False
    read = jax_linalg.HERMITIAN if symmetrize_input else jax_linalg.triangle(not upper)
    return jax_linalg.run(
        (a,),
        "cholesky",
        jax_linalg.cholesky,
        ("matrix",),
        mesh,
        matrix_specs,
        read,
        bool(upper),
    )


@_compat.api_boundary
def cho_factor(
    a: AnyMatrixLike,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, bool]:
    """A Cholesky factor for `cho_solve`: `jax.scipy.linalg.cho_factor`.

    Args:
        a: (n, n), Hermitian positive definite, of which one triangle is read.
        lower: which one, and which factor to give.
        overwrite_a, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.cho_factor`.

    Returns:
        (c, lower), where c is U with ``a = U^H U``, or with ``lower`` L with ``a = L L^H``, as of
        `cholesky`.

    Cost: as `cholesky`. `jaxmg.cho_factor` gives a factor that is solved with sooner and that has a
    log-determinant, an inverse and products.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.cho_factor`.
    """
    read = jax_linalg.triangle(lower)
    c = jax_linalg.run(
        (a,),
        "cho_factor",
        jax_linalg.cholesky,
        ("matrix",),
        mesh,
        matrix_specs,
        read,
        not lower,
    )
    return c, lower


@_compat.api_boundary
def cho_solve(
    c_and_lower: tuple[AnyMatrixLike | CholeskyFactor | RefinedFactor, bool]
    | CholeskyFactor
    | RefinedFactor,
    b: AnyMatrixLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The x with ``a @ x = b`` by a factor of ``a``: `jax.scipy.linalg.cho_solve`.

    Args:
        c_and_lower: what `cho_factor` gave; in the place of the pair, or of c, also a factor that
            `jaxmg.cho_factor` gave.
        b: (n,) or (..., n, nrhs).
        overwrite_b, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.cho_factor`, of c.

    Returns:
        x, of b's shape and sharding; with leading dimensions, of those of c and b together. NaN
        where ``lower`` isn't what c is: `jaxmg.CholeskyFactor.from_upper` has how it is seen.

    Cost: that of `jaxmg.cho_solve`, and of c's way into the solver's layout, L's by way of its
    adjoint; a `jaxmg.CholeskyFactor` is there already.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.cho_solve`.
    """
    if isinstance(c_and_lower, (CholeskyFactor, RefinedFactor)):
        return keep_factor.cho_solve(c_and_lower, b)  # type: ignore[arg-type]
    try:
        c, lower = c_and_lower
    except (TypeError, ValueError):
        raise TypeError(
            "linalg.cho_solve: c_and_lower must be a pair (c, lower), as linalg.cho_factor makes "
            "it, or a factor, as jaxmg.cho_factor does; got "
            f"{type(c_and_lower).__name__}"
        ) from None
    if isinstance(c, (CholeskyFactor, RefinedFactor)):
        return keep_factor.cho_solve(c, b)  # type: ignore[arg-type]
    return jax_linalg.run(
        (c, b),
        "cho_solve",
        jax_linalg.solve_again,
        ("like b",),
        mesh,
        matrix_specs,
        jax_linalg.triangle(lower),
    )


@overload
def eigh(
    a: AnyMatrixLike, UPLO: Triangle | None = None, symmetrize_input: bool = True, *,
    b: None = None, lower: bool | None = None, eigvals_only: Literal[False] = False,
    overwrite_a: bool = False, overwrite_b: bool = False, turbo: bool = True,
    eigvals: None = None, type: Literal[1] = 1, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> EighResult: ...  # fmt: skip


@overload
def eigh(
    a: AnyMatrixLike, UPLO: Triangle | None = None, symmetrize_input: bool = True, *,
    b: None = None, lower: bool | None = None, eigvals_only: Literal[True],
    overwrite_a: bool = False, overwrite_b: bool = False, turbo: bool = True,
    eigvals: None = None, type: Literal[1] = 1, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> Array: ...  # fmt: skip


@_compat.api_boundary
def eigh(
    a: AnyMatrixLike,
    UPLO: Triangle | None = None,
    symmetrize_input: bool = True,
    *,
    b: None = None,
    lower: bool | None = None,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: Literal[1] = 1,
    check_finite: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> EighResult | Array:
    """Eigenvalues and eigenvectors of a Hermitian matrix: `jax.numpy.linalg.eigh`, and by keywords
    `jax.scipy.linalg.eigh`.

    Args:
        a: (n, n), Hermitian.
        UPLO: with ``symmetrize_input=False`` the triangle that is read, "L" (None too) or "U".
        symmetrize_input: True: ``a`` has to be Hermitian.
        lower: as in SciPy: the triangle that is read, whether the lower one. None: as above.
        eigvals_only: give the eigenvalues alone, as `eigvalsh`.
        b, eigvals, type: None, None and 1 alone, as in JAX.
        overwrite_a, overwrite_b, turbo, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.syevd`.

    Returns:
        `EighResult`: eigenvalues (n,), real, ascending and the same on all devices; eigenvectors
        (n, n) in the columns, of a's dtype and sharding. With ``eigvals_only`` the eigenvalues.

    Cost: that of `jaxmg.syevd`. `jaxmg.eigh` has ``b`` and ``subset_by_index``.

    Raises:
        ValueError: another ``UPLO``; and all that `jaxmg.syevd` raises.
        NotImplementedError: ``b``, ``eigvals`` or another ``type``.
    """
    if b is not None or eigvals is not None or type != 1:
        raise NotImplementedError(
            "linalg.eigh: b, eigvals and another type than 1 are not supported, as in JAX; "
            "jaxmg.eigh(a, b, subset_by_index=(first, last)) has both"
        )
    read = (
        _part_to_read("eigh", UPLO, symmetrize_input)
        if lower is None
        else jax_linalg.triangle(lower)
    )
    if eigvals_only:
        return jax_linalg.run(
            (a,), "eigh", jax_linalg.eigenvalues, ("small",), mesh, matrix_specs, read
        )
    return EighResult(*jax_linalg.eigh(a, "eigh", mesh, matrix_specs, read))


@_compat.api_boundary
def eigvalsh(
    a: AnyMatrixLike,
    UPLO: Triangle | None = "L",
    *,
    symmetrize_input: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """Eigenvalues of a Hermitian matrix: `jax.numpy.linalg.eigvalsh`.

    Arguments, cost and errors are as for `eigh`.

    Returns:
        (n,), real, ascending, the same on all devices.
    """
    read = _part_to_read("eigvalsh", UPLO, symmetrize_input)
    return jax_linalg.run(
        (a,), "eigvalsh", jax_linalg.eigenvalues, ("small",), mesh, matrix_specs, read
    )


@_compat.api_boundary
def slogdet(
    a: AnyMatrixLike,
    *,
    method: str | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> SlogdetResult:
    """The determinant's sign and logarithm for any square matrix: `jax.numpy.linalg.slogdet`.

    Args:
        a: (n, n).
        method: does nothing: the matrix decides, as for `solve`.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        `SlogdetResult`: sign, a scalar of a's dtype with the absolute value 1, and logabsdet, a
        real scalar; 0 and -inf where ``a`` is singular.

    Cost: that of `jaxmg.cho_factor` where ``a`` is Hermitian positive definite, and else of
    `jaxmg.lu_factor`, twice as much. `jaxmg.potrs` and `jaxmg.gesv` give it beside a solution.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.lu_factor`.
    """
    return SlogdetResult(*jax_linalg.slogdet(a, "slogdet", mesh, matrix_specs))


@_compat.api_boundary
def det(
    a: AnyMatrixLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The determinant of any square matrix: `jax.numpy.linalg.det`.

    Arguments, cost and errors are as for `slogdet`, which doesn't overflow; ``overwrite_a`` and
    ``check_finite`` do nothing.

    Returns:
        A scalar of a's dtype.
    """
    sign, logabsdet = jax_linalg.slogdet(a, "det", mesh, matrix_specs)
    return sign * jnp.exp(logabsdet).astype(sign.dtype)


@_compat.api_boundary
def cond(
    x: AnyMatrixLike,
    p: float | Literal["fro", "nuc"] | None = None,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The condition number of a matrix: `jax.numpy.linalg.cond`.

    Args:
        x: (n, n), n > 0; with None, 2 and -2 (m, n), as for `svdvals`.
        p: the norm: 1 or inf, of which the inverse's is estimated by a factor; "fro", -1 or -inf,
            as NumPy has them, by the inverse itself. None, JAX's default, and 2 are the largest
            singular value over the smallest, -2 is its inverse, and "nuc" the sum of all times that
            of their inverses.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        norm(x) * norm(inverse of x), a real scalar; inf where x is singular and NaN where it has
        NaN. With 1 and inf it is LAPACK's estimate (gecon), a lower bound that is mostly exact and
        rarely less than a third of what JAX computes, and has no derivative.

    Cost: that of `jaxmg.lu_factor`, and at most ten solves of one or two right-hand sides; with
    "fro", -1 and -inf that of `inv`, and with None, 2, -2 and "nuc" that of `svdvals`.
    `jaxmg.LUFactor.rcond` has it of a factor that is there.

    Raises:
        NotImplementedError: with 1 or inf x is being differentiated.
        ValueError: another p, or no square matrix; and all that `jaxmg.lu_factor` raises.

    Examples:
        >>> kappa = jaxmg.linalg.cond(a, 1)
    """
    known = isinstance(p, float | int | str | None) and not isinstance(p, bool)
    if known and p in (None, 2, -2, "nuc"):
        return condition_of_values(x, p, mesh, matrix_specs)
    if not known or p not in (1, -1, jnp.inf, -jnp.inf, "fro"):
        raise ValueError(
            f"linalg.cond: p must be None, 1, -1, 2, -2, inf, -inf, 'fro' or 'nuc'; got {p!r}"
        )
    return jax_linalg.cond(x, p, mesh, matrix_specs)


@_compat.api_boundary
def matrix_power(
    a: AnyMatrixLike,
    n: SupportsIndex,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The n-th power of a square matrix: `jax.numpy.linalg.matrix_power`.

    Args:
        a: (k, k), of integers too where n >= 0.
        n: an integer, of any sign.
        mesh, matrix_specs: as for `jaxmg.getri`.

    Returns:
        (k, k), of a's dtype and sharding.

    Cost: at most 2 log2(abs(n)) products of 2 k^3 operations over all ranks, and for n < 0 `inv`.
    Memory: A's four times, and the result.

    Raises:
        TypeError: n is no integer; and all that `jaxmg.getri` raises.
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"linalg.matrix_power: n must be an integer; got {n!r}") from None
    return jax_linalg.run(
        (a,), "matrix_power", jax_linalg.power, ("matrix",), mesh, matrix_specs, n
    )


@_compat.api_boundary
def lu_factor(
    a: AnyMatrixLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]:
    """L and U of a matrix with LAPACK's pivots: `jax.scipy.linalg.lu_factor`.

    Args:
        a: (m, n).
        overwrite_a, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        (lu, piv). lu, (m, n), of a's dtype and sharding, has U in its upper triangle and L, but for
        its unit diagonal, below. piv, (min(m, n),), int32, is the same on all devices: row i was
        interchanged with row piv[i], counted from 0.

    Cost: that of `jaxmg.lu_factor`, and of two transpositions, for which all devices exchange
    blocks with all. Memory: A's twice. `jaxmg.lu_factor` gives a factor without these, that also
    has an inverse and a determinant.

    A derivative of a matrix that isn't square takes products, and a few matrices, of order
    max(m, n), as JAX's does.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.lu_factor`.
    """
    return jax_linalg.lu_factor_of(a, mesh, matrix_specs)


@_compat.api_boundary
def lu_solve(
    lu_and_piv: tuple[AnyMatrixLike, AnyArray] | LUFactor | RefinedLUFactor,
    b: AnyMatrixLike,
    trans: Trans = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The x with ``op(a) @ x = b`` by L and U of ``a``: `jax.scipy.linalg.lu_solve`.

    Args:
        lu_and_piv: what `lu_factor` gave of a square matrix; or a factor that `jaxmg.lu_factor`
            gave.
        b: (n,) or (n, nrhs).
        trans: 0 or "N" for a, 1 or "T" for its transpose, 2 or "C" for its conjugate transpose.
        overwrite_b, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.lu_factor`, of lu.

    Returns:
        x, of b's shape and sharding.

    Cost: that of `jaxmg.lu_solve`, and of lu's way into the solver's layout, by a transposition; a
    `jaxmg.LUFactor` is there already. It has derivatives by lu and b.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.lu_solve`.
    """
    if isinstance(lu_and_piv, LUFactor | RefinedLUFactor):
        return lu_and_piv.solve(b, trans)  # type: ignore[arg-type]
    try:
        lu, piv = lu_and_piv
    except (TypeError, ValueError):
        raise TypeError(
            "linalg.lu_solve: lu_and_piv must be a pair (lu, piv), as linalg.lu_factor makes it, "
            f"or a factor, as jaxmg.lu_factor does; got {type(lu_and_piv).__name__}"
        ) from None
    return jax_linalg.solve_again_by_lu(lu, piv, b, trans, mesh, matrix_specs)


@overload
def lu(
    a: AnyMatrixLike, permute_l: Literal[False] = False, overwrite_a: bool = False,
    check_finite: bool = True, *, mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def lu(
    a: AnyMatrixLike, permute_l: Literal[True], overwrite_a: bool = False,
    check_finite: bool = True, *, mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@_compat.api_boundary
def lu(
    a: AnyMatrixLike,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array, Array] | tuple[Array, Array]:
    """The decomposition ``a = P L U`` with partial pivoting: `jax.scipy.linalg.lu`.

    Args:
        a: (m, n).
        permute_l: give P L in place of P and L.
        overwrite_a, check_finite: do nothing.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        (P, L, U), or (P L, U): P (m, m), a permutation of real zeros and ones; L (m, k), lower
        triangular with a unit diagonal, k = min(m, n); U (k, n), upper triangular.

    Cost: that of `lu_factor`, and the memory of P. A derivative of a matrix that isn't square takes
    products, and a few matrices, of order max(m, n), as JAX's does.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.lu_factor`.
    """
    return jax_linalg.lu(a, bool(permute_l), mesh, matrix_specs)


@_compat.api_boundary
def funm(
    A: AnyMatrixLike,
    func: Callable[[Array], Array],
    disp: Literal[True] = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """A function of a Hermitian matrix, by its eigenvalues: `jax.scipy.linalg.funm`.

    Args:
        A: (n, n), Hermitian.
        func: gives for the eigenvalues, (n,), those of the result. They are of A's dtype: make A
            complex for a function that is complex at real places.
        disp: only True.
        mesh, matrix_specs: as for `jaxmg.syevd`.

    Returns:
        V func(w) V^H, (n, n), sharded like A; real where A and func(w) are, as of SciPy. NaN where
        A isn't Hermitian.

    Cost: that of `jaxmg.syevd`, and 2 n^3 multiplications and additions over all ranks. Memory: A's
    four times, and the result; what `jaxmg.syevd` takes before.

    Raises:
        NotImplementedError: ``disp=False``, an estimate of the error.
        ValueError: ``func`` gives another shape; and all that `jaxmg.syevd` raises.

    Examples:
        >>> b = jaxmg.linalg.funm(a, jnp.tanh)
    """
    if not disp:
        raise NotImplementedError(
            "linalg.funm: disp=False asks for an estimate of the error, which there isn't; as the "
            "eigenvectors are orthonormal, it is some n eps max(abs(func(w)))"
        )
    return jax_linalg.function(A, func, "funm", mesh, matrix_specs)


@_compat.api_boundary
def sqrtm(
    A: AnyMatrixLike,
    blocksize: int = 1,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The principal square root of a Hermitian matrix: `jax.scipy.linalg.sqrtm`.

    Args:
        A: (n, n), Hermitian. Real, it has to be positive semidefinite: make it complex for a root
            of a matrix with negative eigenvalues. Negative ones within rounding of 0, which is
            n eps times the largest, are taken for 0.
        blocksize: does nothing.
        mesh, matrix_specs: as for `jaxmg.syevd`.

    Returns:
        (n, n), of A's dtype (JAX's is complex always) and sharding; NaN where A is real and
        indefinite, or not Hermitian.

    Cost and errors are as for `funm`.
    """

    def root(w: Array) -> Array:
        rounding = w.size * jnp.finfo(w.dtype).eps * jnp.max(jnp.abs(w), initial=0)
        zero = (w.real <= 0) & (w.real >= -rounding)
        return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, w)))

    return jax_linalg.function(A, root, "sqrtm", mesh, matrix_specs)


@_compat.api_boundary
def expm(
    A: AnyMatrixLike,
    *,
    upper_triangular: bool = False,
    max_squarings: SupportsIndex = 16,
    assume_a: Literal["her", "hermitian", "gen", "general"] | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The exponential of any square matrix: `jax.scipy.linalg.expm`.

    Args:
        A: (n, n).
        upper_triangular: read the upper triangle of A alone. It saves nothing.
        max_squarings: how many squarings there may be, at most: about log2 of the 1-norm of A, less
            2.4, and 2 in single precision.
        assume_a: "her" or "hermitian": A is Hermitian, and its eigenvalues give the result, however
            large they are. None, "gen" or "general": scaling and squaring with Padé approximants.
        mesh, matrix_specs: as for `jaxmg.lu_factor`, or as for `jaxmg.syevd`.

    Returns:
        (n, n), of A's dtype and sharding; NaN where it would take more squarings, and with "her"
        where A isn't Hermitian.

    Cost: 2 to 6 products of 2 n^3 operations over all ranks and one for each squaring, a
    factorization of 2 n^3 / 3 and 2 n^3 for the solve with it (N. J. Higham, SIAM J. Matrix Anal.
    Appl. 26, 2005); a gradient has three times as many, and as many as the result again. Memory:
    A's nine times. With "her" as for `funm`.

    Raises:
        ValueError: another ``assume_a``; ``upper_triangular`` with "her".
        TypeError: ``max_squarings`` is no integer.
        TypeError, ValueError, NotImplementedError, RuntimeError: as `jaxmg.lu_factor`, or `funm`.

    Examples:
        >>> propagator = jaxmg.linalg.expm(-1j * t * h, assume_a=None)
        >>> weights = jaxmg.linalg.expm(-beta * h, assume_a="her")
    """
    names = ("her", "hermitian", "gen", "general", None)
    if not isinstance(assume_a, str | None) or assume_a not in names:
        raise ValueError(
            f"linalg.expm: assume_a must be one of {', '.join(map(repr, names))}; got {assume_a!r}"
        )
    try:
        squarings = operator.index(max_squarings)
    except TypeError:
        raise TypeError(
            f"linalg.expm: max_squarings must be an integer; got {max_squarings!r}"
        ) from None
    if jax_linalg.ASSUMED[assume_a] != "her":
        return jax_linalg.expm(A, bool(upper_triangular), squarings, mesh, matrix_specs)
    if upper_triangular:
        raise ValueError(
            f"linalg.expm: upper_triangular=True is of a matrix that isn't Hermitian, as "
            f"assume_a={assume_a!r} says that A is"
        )
    return jax_linalg.function(A, jnp.exp, "expm", mesh, matrix_specs)


@_compat.api_boundary
def logm(
    A: AnyMatrixLike,
    disp: Literal[True] = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array:
    """The principal logarithm of a Hermitian matrix: `scipy.linalg.logm`, which JAX hasn't.

    Args:
        A: (n, n), Hermitian. Real, it has to be positive definite: make it complex for the
            logarithm of a matrix with negative eigenvalues.
        disp: only True.
        mesh, matrix_specs: as for `jaxmg.syevd`.

    Returns:
        (n, n), of A's dtype and sharding; NaN where A is real and has negative eigenvalues, or
        isn't Hermitian.

    Cost and errors are as for `funm`.
    """
    if not disp:
        raise NotImplementedError(
            "linalg.logm: disp=False asks for an estimate of the error, which there isn't"
        )
    return jax_linalg.function(A, jnp.log, "logm", mesh, matrix_specs)


def _part_to_read(name: str, UPLO: Triangle | None, symmetrize_input: bool) -> str:
    if not (UPLO is None or (isinstance(UPLO, str) and UPLO in ("L", "U"))):
        raise ValueError(f"linalg.{name}: UPLO must be None, 'L' or 'U'; got {UPLO!r}")
    return jax_linalg.HERMITIAN if symmetrize_input else jax_linalg.triangle(UPLO != "U")
