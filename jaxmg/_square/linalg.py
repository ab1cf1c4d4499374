"""`jaxmg.linalg.solve`, `inv`, `det`, `slogdet`, `cond` and `matrix_power`."""

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
from jaxmg._call import checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._cholesky import cho_factor, potri, potrs
from jaxmg._kept import condition
from jaxmg._layouts import exporting
from jaxmg._linalg import compositions
from jaxmg._lu import gesv, getri, lu_factor
from jaxmg._lu import stacks as lu_stacks
from jaxmg._lu.linalg import solve_diagonal, solve_one_triangle
from jaxmg._matrices import completed, norms, products
from jaxmg._square import determinants, indefinite, structure
from jaxmg._stacks import scaling
from jaxmg._svd.linalg import condition_of_values
from jaxmg._transform import derivatives
from jaxmg._types import AnyMatrixLike, AssumeA, MeshLike

# SciPy's structures of few nonzero entries, and what solves with them.
_SPARSE = {
    "tridiagonal": "call jax.lax.linalg.tridiagonal_solve with the three diagonals",
    "banded": "call scipy.linalg.solve_banded with the diagonals",
}

# For these norms `cond` estimates the norm of the inverse; for the others it computes the inverse.
_ESTIMATED = (1, np.inf)


@exporting.named_tuple
class SlogdetResult(NamedTuple):
    """Holds the results of `slogdet`."""

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
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Solves ``a @ x = b`` for any square matrix, as `jax.scipy.linalg.solve`.

    Args:
        a: (n, n), as in `jaxmg.gesv`.
        b: (n,) or (..., n, nrhs).
        lower: Whether "pos", "her" and "sym" read the lower triangle or the upper one.
        overwrite_a, overwrite_b, debug, check_finite: Ignored.
        assume_a: Structure of ``a``, as in SciPy.

            - "gen" or "general": no structure; LU (`jaxmg.gesv`), half as fast as "pos".
            - "pos" or "positive definite": Hermitian positive definite; Cholesky (`jaxmg.potrs`) of
              one triangle.
            - "her" or "hermitian", "sym" or "symmetric": Hermitian, or symmetric even if complex;
              Cholesky of one triangle. If that fails, LU; on one CPU device, from order 129 to 500,
              LAPACK's sysv or hesv, except in float32, batches and derivatives; in float64 from
              order 32768 on one GPU, and 65536 on two, `ldl_factor`.
            - "upper triangular" or "lower triangular": `solve_triangular`. The other triangle isn't
              read.
            - "diagonal": division by the diagonal; other entries don't count.
            - None: as "her" if one pass over ``a`` finds it Hermitian with a positive diagonal,
              else as "gen". Batches and derivatives use "gen".
        mesh, matrix_specs, in_specs: As in `jaxmg.gesv`.

    Returns:
        x, of b's shape and sharding, with the broadcast leading dimensions of ``a`` and b. If ``a``
        is singular, x has infinity or NaN, as in JAX. If ``a`` has NaN or infinity, or with "pos"
        isn't positive definite, x is NaN.

    Cost: that of `jaxmg.gesv` or `jaxmg.potrs`, or half of gesv's flops with "her" and "sym" where
    these take no LU. Memory: one more copy of ``a`` with
    ``assume_a=None`` or "her"; with "her" or "sym" another one, to exchange blocks between all
    devices.

    Raises:
        TypeError, ValueError, RuntimeError: As `jaxmg.gesv`. An invalid ``assume_a`` raises a
            ValueError.

    Examples:
        >>> x = jaxmg.linalg.solve(a, b)
        >>> x = jaxmg.linalg.solve(a, b, assume_a="pos")
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.solve", matrix_specs, in_specs)
    if assume_a == "upper triangular" or assume_a == "lower triangular":
        options = assume_a == "lower triangular", "N", False
        return compositions.run(
            (a, b), "solve", solve_one_triangle, ("like b",), mesh, matrix_specs, *options
        )
    if assume_a == "diagonal":
        return compositions.run((a, b), "solve", solve_diagonal, ("like b",), mesh, matrix_specs)
    if not isinstance(assume_a, str | None) or assume_a not in compositions.ASSUMED:
        if isinstance(assume_a, str) and assume_a in _SPARSE:
            raise ValueError(
                f"linalg.solve: assume_a={assume_a!r} is not supported; {_SPARSE[assume_a]}"
            )
        names = *compositions.ASSUMED, "upper triangular", "lower triangular", "diagonal"
        raise ValueError(
            f"linalg.solve: assume_a must be one of {', '.join(map(repr, names))}; got {assume_a!r}"
        )
    assumed = compositions.ASSUMED[assume_a]
    read = compositions.triangle(lower) if assumed in ("pos", "her", "sym") else compositions.ANY
    return compositions.run(
        (a, b), "solve", solution, ("like b",), mesh, matrix_specs, read, assumed
    )


@_compat.api_boundary
def inv(
    a: AnyMatrixLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Inverts any square matrix, as `jax.numpy.linalg.inv`.

    Args:
        a: (n, n).
        overwrite_a, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.getri`.

    Returns:
        The inverse, (n, n), of a's dtype and sharding, with infinity or NaN if ``a`` is singular.

    Cost: that of `jaxmg.potri` if ``a`` is Hermitian positive definite, else twice as much, as
    `jaxmg.getri`. An indefinite ``a`` that is Hermitian with a positive diagonal also costs a
    failed `jaxmg.potri`.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.getri`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.inv", matrix_specs, in_specs)
    return compositions.run(
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
    in_specs: PartitionSpec | None = None,
) -> SlogdetResult:
    """Computes the sign and logarithm of the determinant, as `jax.numpy.linalg.slogdet`.

    Args:
        a: (n, n).
        method: Ignored; the matrix decides between Cholesky and LU, as in `solve`.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        A `SlogdetResult` (sign, logabsdet). The sign is a scalar of a's dtype and absolute value 1;
        logabsdet is a real scalar. They are 0 and -inf if ``a`` is singular.

    Cost: that of `jaxmg.cho_factor` if ``a`` is Hermitian positive definite, else twice as much,
    as `jaxmg.lu_factor`. `jaxmg.potrs` and `jaxmg.gesv` return the determinant with a solution.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_factor`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.slogdet", matrix_specs, in_specs)
    results = compositions.run((a,), "slogdet", log_det, ("small", "small"), mesh, matrix_specs)
    return SlogdetResult(*results)


@_compat.api_boundary
def det(
    a: AnyMatrixLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the determinant of any square matrix, as `jax.numpy.linalg.det`.

    Arguments, cost and errors are those of `slogdet`, which doesn't overflow. ``overwrite_a`` and
    ``check_finite`` are ignored.

    Returns:
        A scalar of a's dtype. If it is 0, its derivative is as in `jaxmg.LUFactor.det`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.det", matrix_specs, in_specs)
    return compositions.run((a,), "det", determinant, ("small",), mesh, matrix_specs)


@_compat.api_boundary
def cond(
    x: AnyMatrixLike,
    p: float | Literal["fro", "nuc"] | None = None,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the condition number of a matrix, as `jax.numpy.linalg.cond`.

    Args:
        x: (n, n), n > 0; (m, n) is allowed with p = None, 2 or -2, as in `svdvals`.
        p: Norm.

            - 1 or inf: the norm of the inverse is estimated from an LU factorization.
            - "fro", -1 or -inf, as in NumPy: the inverse is computed.
            - None, 2, -2 or "nuc", as in NumPy: the singular values are computed.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        norm(x) * norm(inverse of x), a real scalar. It is NaN if x has NaN. As in NumPy it is inf
        (with -2: 0) if x is singular or has infinity and no NaN. With 1 and inf it is LAPACK's
        estimate (gecon), a lower bound that is rarely less than a third of JAX's result and has no
        derivative.

    Cost: with 1 and inf that of `jaxmg.lu_factor` and at most ten solves with one or two right-hand
    sides; with "fro", -1 and -inf that of `inv`; else that of `svdvals`. `jaxmg.LUFactor.rcond`
    estimates the reciprocal from a factor.

    Raises:
        NotImplementedError: x is being differentiated with 1 or inf.
        TypeError, ValueError, RuntimeError: As `jaxmg.lu_factor`. An invalid p or shape raises a
            ValueError.

    Examples:
        >>> kappa = jaxmg.linalg.cond(a, 1)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.cond", matrix_specs, in_specs)
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
    return compositions.run((x,), "cond", condition_number, ("small",), mesh, matrix_specs, p)


@_compat.api_boundary
def matrix_power(
    a: AnyMatrixLike,
    n: SupportsIndex,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Raises a square matrix to the n-th power, as `jax.numpy.linalg.matrix_power`.

    Args:
        a: (k, k); integers are allowed if n >= 0.
        n: Exponent, any integer.
        mesh, matrix_specs, in_specs: As in `jaxmg.getri`.

    Returns:
        The power, (k, k), of a's dtype and sharding.

    Cost: at most 2 log2(abs(n)) products of 2 k^3 flops over all ranks; n < 0 adds the cost of
    `inv`. Memory: four matrices like ``a`` plus the result.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.getri`. An n that isn't
            an integer raises a TypeError.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.matrix_power", matrix_specs, in_specs)
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"linalg.matrix_power: n must be an integer; got {n!r}") from None
    return compositions.run((a,), "matrix_power", power, ("matrix",), mesh, matrix_specs, n)


def _solve_stacks(platform, options, a, b):
    """Computes `solution` of each matrix of a stack, by LU."""
    read, assumed = options
    if assumed in ("her", "sym"):
        a = completed.of_stack(a, read, assumed == "sym")
    columns = b[..., None] if b.ndim == 2 else b
    return (lu_stacks.solve(platform, a, columns).reshape(b.shape),)


@compositions.program(
    compute_stacks=_solve_stacks,
    takes=lambda read, assumed: assumed != "pos",
    by=lu_stacks.SOLVE,
)
def solution(call, a, b):
    read, assumed = call.attributes
    function: Any = functools.partial(_solve_general, call)
    if assumed == "pos":
        function = functools.partial(_solve_by_cholesky, call, read)
    elif assumed in ("her", "sym"):
        a = completed.whole(a, call.layout, read, assumed == "sym")
        function = _solve_indefinite(call, a, assumed == "her")
    elif not assumed:
        function = _by_structure(call, _solve_definite, _solve_general)
    looks = assumed in ("", "her", "sym")
    reads = compositions.reads(read) if assumed == "pos" else None
    scaled = scaling.homogeneous(function, -1, reads=reads, columns=True, passes_largest=looks)
    return (scaled(a, b),)


def _solve_indefinite(call, a, hermitian):
    """Returns the function that solves with a Hermitian or symmetric matrix like ``a``."""
    fastest, general = indefinite.solvers(call.layout, len(a), a.dtype, hermitian)
    may_be_definite = hermitian or not jnp.iscomplexobj(a)
    definite = functools.partial(_solve_definite, call) if may_be_definite else None
    return structure.ByStructure(call.layout, definite, general, True, fastest).compute


def _solve_by_cholesky(call, read, a, b):
    a = compositions.upper(a, call.layout, read)
    return potrs.potrs(a, b, **call.layout.where)


def _solve_definite(call, a, b):
    return potrs.potrs(a, b, return_status=True, **call.layout.where)


def _solve_general(call, a, b):
    return gesv.gesv(a, b, **call.layout.where)


@compositions.program(
    compute_stacks=lambda platform, options, a: (lu_stacks.inverse(platform, a),), by=lu_stacks.INV
)
def inverse(call, a):
    return (_inverse(call, a),)


def _inverse(call, a) -> Any:
    function = _by_structure(call, _invert_definite, _invert_general)
    return scaling.homogeneous(function, -1, passes_largest=True)(a)


def _invert_definite(call, a):
    return potri.potri(a, return_status=True, **call.layout.where)


def _invert_general(call, a):
    return getri.getri(a, **call.layout.where)


def _log_det_of_stacks(platform, options, a):
    function = functools.partial(lu_stacks.log_det, platform)
    return scaling.log_det_of_scaled(function, a)


@compositions.program(compute_stacks=_log_det_of_stacks, single=(0, 1))
def log_det(call, a):
    function = _by_structure(call, _log_det_definite, _log_det_general)
    return scaling.log_det_of_scaled(function, a, passes_largest=True)


def _log_det_definite(call, a):
    factor = cho_factor.cho_factor(a, **call.layout.where)
    return (jnp.ones((), a.dtype), factor.logdet()), factor.status


def _log_det_general(call, a):
    return lu_factor.lu_factor(a, **call.layout.where).slogdet()


@compositions.program(
    compute_stacks=lambda platform, options, a: (determinants.det(platform, a),), single=(0,)
)
def determinant(call, a):
    function = _by_structure(call, _determinant_definite, _determinant_general)
    size = scaling.largest(jax.lax.stop_gradient(a))
    # A matrix of zeros keeps its scale, by which tangents are multiplied too.
    down, up = scaling.powers_of(jnp.where(scaling.magnitude(size) > 0, size, 1))
    exponent = len(a) * scaling.exponent_of_power(up)
    a, size = (scaling.times_scale(x, down) for x in (a, size))
    return (function(a, exponent, largest=size),)


def _determinant_definite(call, a, exponent):
    """Returns (det(A) 2^exponent, the status)."""
    factor = cho_factor.cho_factor(a, **call.layout.where)
    value = scaling.exp_times_power(factor.logdet(), exponent)
    return value.astype(a.dtype), factor.status


def _determinant_general(call, a, exponent):
    return lu_factor.lu_factor(a, **call.layout.where)._det_times(exponent)


@compositions.program(single=(0,))
def condition_number(call, a):
    (p,) = call.attributes
    # Scaling by a power of two doesn't change the condition number.
    size = scaling.largest(jax.lax.stop_gradient(a))
    down, _ = scaling.powers_of(size)
    a = scaling.times_scale(a, down)
    if p in _ESTIMATED:
        function = functools.partial(_estimate_condition, call)
        value: Any = derivatives.differentiable(function, condition.refuse("linalg.cond", "x"), a)
    else:
        function = _by_structure(call, _invert_definite, _invert_general)
        inverse = function(a, largest=scaling.times_scale(size, down))
        value = norms.norm(a, p, scaled=True) * norms.norm(inverse, p)
    return (jnp.where(jnp.isnan(value) & ~jnp.isnan(size), jnp.inf, value),)


def _estimate_condition(call, a):
    (p,) = call.attributes
    factor = lu_factor.lu_factor(a, **call.layout.where)
    return norms.norm(a, p, scaled=True) * condition.inverse_norm(factor, p)


@compositions.program(is_product=lambda exponent: exponent >= 0)
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
    if result is None:  # which depends on A, or an eager batch isn't compiled for A's devices
        _, result = jax.lax.optimization_barrier((a, jnp.eye(call.shape[0], dtype=a.dtype)))
    return (result,)


def _product(layout, x, y):
    """Returns X Y of matrices that are sharded by rows.

    X and Y are scaled before the product, and in its derivative: products of tiny entries would
    underflow.
    """

    scaled = functools.partial(scaling.scaled, only_finite=True)

    def times(x, y):
        (x, left), (y, right) = scaled(x), scaled(y)
        value = products.rows_times_rows(x, y, layout)
        return scaling.times_all(value, *scaling.halves(left, right))

    def rule(primals, tangents):
        (x, left), (y, right) = map(scaled, primals)
        x_dot, y_dot = tangents
        parts = []
        if x_dot is not None:
            moved = products.rows_times_rows(x_dot, y, layout)
            parts.append(scaling.times(moved, right))
        if y_dot is not None:
            moved = products.rows_times_rows(x, y_dot, layout)
            parts.append(scaling.times(moved, left))
        return _product(layout, *primals), derivatives.sum_of(*parts)

    return derivatives.differentiable(times, rule, x, y)


def _by_structure(call, definite, general):
    """Returns a function of (a, *arrays) that calls ``definite`` or ``general``
    (`structure.ByStructure`).

    ``definite`` and ``general`` are hashable functions of (call, *arrays).
    """
    return structure.ByStructure(
        call.layout, functools.partial(definite, call), functools.partial(general, call)
    ).compute
