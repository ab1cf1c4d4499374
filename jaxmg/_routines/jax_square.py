"""Square matrices by the names of JAX: `solve`, `inv`, `det`, `slogdet`, `cond`, `matrix_power`."""

from __future__ import annotations

import functools
import operator
from typing import Any, Literal, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import checks, exporting
from jaxmg._factors import condition, scaling
from jaxmg._routines import (
    cho_factor,
    gesv,
    getri,
    jax_linalg,
    lu_factor,
    norms,
    potri,
    potrs,
    structure,
)
from jaxmg._routines.jax_svd import condition_of_values
from jaxmg._stacks import determinants, ways
from jaxmg._transform import derivatives, products
from jaxmg._types import AnyMatrixLike, AssumeA, MeshLike

# Norms of which `cond` estimates that of the inverse; of the others it takes the inverse's.
_ESTIMATED = (1, np.inf)


@exporting.named_tuple
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
    return jax_linalg.run((a, b), "solve", solution, ("like b",), mesh, matrix_specs, read, assumed)


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
        inverse,
        ("matrix",),
        mesh,
        matrix_specs,
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
    results = jax_linalg.run((a,), "slogdet", log_det, ("small", "small"), mesh, matrix_specs)
    return SlogdetResult(*results)


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
        A scalar of a's dtype. Where it is 0, its derivative is that of `jaxmg.LUFactor.det`.
    """
    return jax_linalg.run((a,), "det", determinant, ("small",), mesh, matrix_specs)


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
        norm(x) * norm(inverse of x), a real scalar; NaN where x has NaN, and inf where it has
        infinity and no NaN, as of NumPy, or is singular (with -2 it is 0 there). With 1 and inf it
        is LAPACK's estimate (gecon), a lower bound that is mostly exact and rarely less than a
        third of what JAX computes, and has no derivative.

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
    if checks.is_array(x) and x.ndim > 1 and 0 in x.shape[-2:]:
        raise ValueError(
            f"linalg.cond: an empty matrix has no condition number; x has shape {tuple(x.shape)}"
        )
    return jax_linalg.run((x,), "cond", condition_number, ("small",), mesh, matrix_specs, p)


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
    return jax_linalg.run((a,), "matrix_power", power, ("matrix",), mesh, matrix_specs, n)


def _solve_stacks(platform, options, a, b):
    """`solution` of each matrix of a stack, by LU."""
    read, assumed = options
    if assumed in ("her", "sym"):
        a = _whole_stack(a, read, assumed == "sym")
    columns = b[..., None] if b.ndim == 2 else b
    return (ways.solve(platform, a, columns).reshape(b.shape),)


@jax_linalg.program(
    of_stacks=_solve_stacks, takes=lambda read, assumed: assumed != "pos", by="solve"
)
def solution(call, a, b):
    read, assumed = call.attributes
    function: Any = functools.partial(_solve_general, call)
    if assumed == "pos":
        a, function = (
            jax_linalg.upper(a, call.layout, read),
            functools.partial(_solve_by_cholesky, call),
        )
    elif assumed in ("her", "sym"):
        a = _whole(call, a, read, assumed == "sym")
    if assumed in ("", "her") or (assumed == "sym" and not jnp.iscomplexobj(a)):
        function = _by_structure(call, _solve_definite, _solve_general, bool(assumed))
    reads = jnp.triu if assumed == "pos" else None
    return (scaling.homogeneous(function, -1, reads=reads)(a, b),)


def _solve_by_cholesky(call, a, b):
    return potrs.potrs(a, b, **call.layout.where)


def _solve_definite(call, a, b):
    return potrs.potrs(a, b, return_status=True, **call.layout.where)


def _solve_general(call, a, b):
    return gesv.gesv(a, b, **call.layout.where)


@jax_linalg.program(of_stacks=lambda platform, options, a: (ways.inverse(platform, a),), by="inv")
def inverse(call, a):
    return (_inverse(call, a),)


def _inverse(call, a) -> Any:
    function = _by_structure(call, _invert_definite, _invert_general)
    return scaling.homogeneous(function, -1)(a)


def _invert_definite(call, a):
    return potri.potri(a, return_status=True, **call.layout.where)


def _invert_general(call, a):
    return getri.getri(a, **call.layout.where)


def _log_det_of_stacks(platform, options, a):
    function = functools.partial(determinants.log_det, platform)
    return scaling.log_det_of_scaled(function, a)


@jax_linalg.program(of_stacks=_log_det_of_stacks)
def log_det(call, a):
    function = _by_structure(call, _log_det_definite, _log_det_general)
    return scaling.log_det_of_scaled(function, a)


def _log_det_definite(call, a):
    factor = cho_factor.cho_factor(a, **call.layout.where)
    return (jnp.ones((), a.dtype), factor.logdet()), factor.status


def _log_det_general(call, a):
    return lu_factor.lu_factor(a, **call.layout.where).slogdet()


@jax_linalg.program(of_stacks=lambda platform, options, a: (determinants.det(platform, a),))
def determinant(call, a):
    exponent = scaling.exponent_of(a)
    function = _by_structure(call, _determinant_definite, _determinant_general)
    return (function(scaling.multiplied(a, -exponent), len(a) * exponent),)


def _determinant_definite(call, a, exponent):
    """det(A) 2^exponent"""
    factor = cho_factor.cho_factor(a, **call.layout.where)
    value = scaling.exp_times_power(factor.logdet(), exponent)
    return value.astype(a.dtype), factor.status


def _determinant_general(call, a, exponent):
    return lu_factor.lu_factor(a, **call.layout.where)._det_times(exponent)


@jax_linalg.program()
def condition_number(call, a):
    (p,) = call.attributes
    a = scaling.scaled(a)  # of any power of two the condition is the same
    if p in _ESTIMATED:
        function = functools.partial(_estimate_condition, call)
        value: Any = derivatives.differentiable(function, condition.refuse("linalg.cond", "x"), a)
    else:
        value = norms.norm(a, p) * norms.norm(_inverse(call, a), p)
    return (jnp.where(jnp.isnan(value) & ~jnp.isnan(a).any(), jnp.inf, value),)


def _estimate_condition(call, a):
    (p,) = call.attributes
    factor = lu_factor.lu_factor(a, **call.layout.where)
    return norms.norm(a, p) * condition.inverse_norm(factor, p)


@jax_linalg.program(is_product=lambda exponent: exponent >= 0)
def power(call, a):
    (exponent,) = call.attributes
    if exponent < 0:
        a, exponent = _inverse(call, a), -exponent

    times = functools.partial(_product, call.layout)
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        times = functools.partial(products.rows_times_rows, layout=call.layout)

    result: Any = None
    while exponent:
        if exponent % 2:
            result = a if result is None else times(result, a)
        exponent //= 2
        a = times(a, a) if exponent else a
    return (jnp.eye(call.shape[0], dtype=a.dtype) if result is None else result,)


def _product(layout, x, y):
    """X Y of matrices by rows. Products of entries, of which one may vanish beside the others, are
    those of scaled matrices, as are those of the derivative."""

    def scaled(x):
        exponent = scaling.exponent_of(x)
        return scaling.multiplied(x, -exponent), exponent

    def times(x, y):
        (x, left), (y, right) = scaled(x), scaled(y)
        return scaling.multiplied(products.rows_times_rows(x, y, layout), left + right)

    def rule(primals, tangents):
        (x, left), (y, right) = map(scaled, primals)
        x_dot, y_dot = tangents
        parts = []
        if x_dot is not None:
            moved = products.rows_times_rows(x_dot, y, layout)
            parts.append(scaling.multiplied(moved, right))
        if y_dot is not None:
            moved = products.rows_times_rows(x, y_dot, layout)
            parts.append(scaling.multiplied(moved, left))
        return _product(layout, *primals), derivatives.sum_of(*parts)

    return derivatives.differentiable(times, rule, x, y)


def _by_structure(call, definite, general, known=False):
    """`structure.ByStructure` of functions of (call, arrays), which are hashable."""
    return structure.ByStructure(
        call.layout, functools.partial(definite, call), functools.partial(general, call), known
    ).of


def _whole_stack(a, read, symmetric):
    """`_whole` of each matrix of a stack."""
    half = jnp.tril(a, -1) if read == jax_linalg.LOWER else jnp.triu(a, 1)
    return _with_other_triangle(a, half, jnp.swapaxes(half, -1, -2), symmetric)


def _whole(call, a, read, symmetric):
    """The whole Hermitian, or symmetric, matrix of which one triangle is read."""
    half = jnp.tril(a, -1) if read == jax_linalg.LOWER else jnp.triu(a, 1)
    return _with_other_triangle(a, half, products.transposed(half, call.layout), symmetric)


def _with_other_triangle(a, half, other, symmetric):
    eye = jnp.eye(a.shape[-1], dtype=bool)
    if symmetric:
        return half + other + jnp.where(eye, a, 0)
    return half + other.conj() + jnp.where(eye, a.real.astype(a.dtype), 0)
