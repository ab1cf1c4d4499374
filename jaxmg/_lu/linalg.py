"""`jaxmg.linalg.lu`, `lu_factor`, `lu_solve` and `solve_triangular`."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import blocks, checks, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._kept import transposed
from jaxmg._linalg import compositions, halves, whole
from jaxmg._lu import factorization, triangular
from jaxmg._lu import packed as kept_lu
from jaxmg._lu.factor import LUFactor
from jaxmg._lu.refined_factor import RefinedLUFactor
from jaxmg._matrices import products
from jaxmg._stacks import batching, library, scaling
from jaxmg._types import AnyArray, AnyMatrixLike, Else, MeshLike, Trans


@_compat.api_boundary
def lu_factor(
    a: AnyMatrixLike,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]:
    """Computes L, U and LAPACK's pivots of a matrix, as `jax.scipy.linalg.lu_factor`.

    Args:
        a: (m, n).
        overwrite_a, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        (lu, piv). lu, (m, n), of a's dtype and sharding, has U in its upper triangle and L without
        its unit diagonal below. piv, (min(m, n),), int32, is replicated: row i was interchanged
        with row piv[i], counted from 0.

    Cost: that of `jaxmg.lu_factor` and two transpositions, for which all devices exchange blocks.
    Derivatives for m != n multiply and store a few matrices of order max(m, n), as in JAX. Memory:
    twice A's. `jaxmg.lu_factor` saves the transpositions, and its factor has an inverse and a
    determinant.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_factor`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.lu_factor", matrix_specs, in_specs)
    results = ("matrix", "small")
    return tuple(compositions.run((a,), "lu_factor", factored, results, mesh, matrix_specs))


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
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Solves ``op(a) @ x = b`` with L and U of ``a``, as `jax.scipy.linalg.lu_solve`.

    Args:
        lu_and_piv: The result of `lu_factor` for a square matrix, or a factor of `jaxmg.lu_factor`.
        b: (n,) or (n, nrhs).
        trans: 0 or "N" for a, 1 or "T" for its transpose, 2 or "C" for its conjugate transpose.
        overwrite_b, check_finite: Ignored.
        mesh, matrix_specs, in_specs: Mesh and sharding of lu, as in `jaxmg.lu_factor`.

    Returns:
        x, of b's shape and sharding. Derivatives are with respect to lu and b.

    Cost: that of `jaxmg.lu_solve`, and a transposition of lu to the solver's layout. A
    `jaxmg.LUFactor` has this layout already.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_solve`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.lu_solve", matrix_specs, in_specs)
    if isinstance(lu_and_piv, LUFactor | RefinedLUFactor):
        b = halves.promoted(b, lu_and_piv)
        return lu_and_piv.solve(b, trans)  # type: ignore[arg-type]
    try:
        lu, piv = lu_and_piv
    except (TypeError, ValueError):
        raise TypeError(
            "linalg.lu_solve: lu_and_piv must be a pair (lu, piv), the result of linalg.lu_factor, "
            "or a factor, the result of jaxmg.lu_factor; got "
            f"{type(lu_and_piv).__name__}"
        ) from None
    return _solve_again((lu, piv, halves.promoted(b, lu)), trans, mesh, matrix_specs)


@overload
def lu(
    a: AnyMatrixLike | Else, permute_l: Literal[False] = False, overwrite_a: bool | Else = False,
    check_finite: bool | Else = True, *, mesh: MeshLike | None | Else = None,
    matrix_specs: PartitionSpec | None | Else = None, in_specs: PartitionSpec | None | Else = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def lu(
    a: AnyMatrixLike | Else, permute_l: Literal[True] | Else, overwrite_a: bool | Else = False,
    check_finite: bool | Else = True, *, mesh: MeshLike | None | Else = None,
    matrix_specs: PartitionSpec | None | Else = None, in_specs: PartitionSpec | None | Else = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def lu(
    a: AnyMatrixLike,
    permute_l: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, Array, Array] | tuple[Array, Array]:
    """Computes the decomposition ``a = P L U`` with partial pivoting, as `jax.scipy.linalg.lu`.

    Args:
        a: (m, n).
        permute_l: Whether to return P L in place of P and L.
        overwrite_a, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        (P, L, U) | (P L, U). P is (m, m), a permutation of real zeros and ones. L is (m, k), lower
        triangular with a unit diagonal, k = min(m, n). U is (k, n), upper triangular.

    Cost: that of `lu_factor`, and the memory of P.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_factor`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.lu", matrix_specs, in_specs)
    m, n = a.shape[-2:] if getattr(a, "ndim", 0) > 1 else (0, 0)
    shapes = ((m, m), (m, min(m, n)), (min(m, n), n))[bool(permute_l) :]
    program = decomposed
    return tuple(compositions.run((a,), "lu", program, shapes, mesh, matrix_specs, bool(permute_l)))


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
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Solves ``op(T) @ x = b`` for a triangle T of ``a``, as `jax.scipy.linalg.solve_triangular`.

    Args:
        a: (n, n). Only one triangle is read.
        b: (n,) or (..., n, nrhs).
        trans: 0 or "N" for T, 1 or "T" for its transpose, 2 or "C" for its conjugate transpose.
        lower: Whether T is the lower triangle or the upper one.
        unit_diagonal: Whether T has ones on its diagonal; then a's diagonal isn't read.
        overwrite_b, debug, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        x, of b's shape and sharding, with the broadcast leading dimensions of ``a`` and b. If the
        diagonal has a zero, x has infinity or NaN, as in JAX.

    Cost: n^2 nrhs flops over all ranks, twice as many for a lower triangle, by substitution (N. J.
    Higham, 2002, chapter 8). Each call moves the triangle to the solver's layout; factors of
    `jaxmg.cho_factor` and `jaxmg.lu_factor` have this layout already. On a mesh of one device the
    call uses JAX's own function instead. Memory: two more copies of ``a``.

    Raises:
        TypeError, ValueError, RuntimeError: As `jaxmg.gesv`. An invalid ``trans`` raises a
            ValueError.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.solve_triangular", matrix_specs, in_specs)
    options = bool(lower), _checked(trans, "solve_triangular"), bool(unit_diagonal)
    return compositions.run(
        (a, b), "solve_triangular", solve_one_triangle, ("like b",), mesh, matrix_specs, *options
    )


@programs.cache_plans
def _solve_again(arrays, trans, mesh, spec):
    """Plans a solve with (L and U packed, LAPACK's pivots, b)."""
    lu, pivots, b = arrays
    how = _checked(trans, "lu_solve")
    checks.is_an_array("linalg.lu_solve", "lu", lu)
    checks.is_an_array("linalg.lu_solve", "b", b)
    given = lu, b
    lu, b = _promoted(*given)  # names ``lu`` and ``b`` in errors
    checks.array("linalg.lu_solve", "lu", lu, checks.ALL, (*checks.DTYPES, *checks.HALVES))
    n, call = lu.shape[-1], ("lu_solve", solve_factored, ("like b",))

    def checked(pivots):
        return kept_lu.check_pivots("linalg.lu_solve", pivots, n)  # also checks their values

    if not batching.is_batch(lu):
        planned = compositions.plan((*given, checked(pivots)), *call, mesh, spec, how)
        return lambda lu, pivots, b: planned(lu, b, checked(pivots))
    mesh, spec = compositions.where_each_is(
        "lu_solve", lu, mesh, matrix_spec("linalg.lu_solve", spec, None)
    )
    lie = whole.places(mesh, (lu, b), (lu.ndim - 2, max(b.ndim - 2, 0)))
    each: Any = lambda *arrays: compositions.run(arrays, *call, mesh, spec, how)  # noqa: E731
    for _ in lu.shape[:-2]:
        each = jax.vmap(each, (0, 0 if b.ndim > 2 else None, 0))

    def run(lu, pivots, b):
        x = each(*_promoted(lu, b), checked(pivots))
        return x if lie is None else lie.put(("like b",), x)

    return run


def _promoted(lu, b):
    return compositions.promote("lu_solve", lu, b, names=("lu", "b"))


def _checked(trans, name):
    """Returns "N", "T" or "C"; raises if ``trans`` isn't one of SciPy's names for them."""
    how = transposed.name(trans)
    if how is None:
        raise ValueError(
            f"linalg.{name}: trans must be 0 or 'N' (a), 1 or 'T' (its transpose), or 2 or 'C' "
            f"(its conjugate transpose); got {trans!r}"
        )
    return how


# The factor stays float32: a solve with it is as accurate as `solve`.
@compositions.program(
    any_shape=True, compute_stacks=lambda platform, options, a: library.lu(a)[:2], single=(0,)
)
def factored(call, a):
    """Computes LAPACK's L and U, packed, and pivots."""
    return factorization.packed(a, call.layout)


def _solve_factored_stacks(platform, options, lu, b, pivots):
    """Computes `solve_factored` of each matrix of a stack."""
    trans = "NTC".index(options[0])
    one = jax.scipy.linalg.lu_solve
    each = jax.vmap(lambda lu, b, pivots: one((lu, pivots), b, trans))
    solve = scaling.linear_in_columns(lambda lu, b: each(lu, b, pivots))
    lu, down = _with_scaled_upper(lu)
    return (solve(lu, b, down),)


def _with_scaled_upper(lu):
    """Returns the factors with a scaled U, and the power of two that scales U and solutions."""
    down, _ = scaling.scale_of(scaling.upper(lu), (-2, -1))
    return scaling.with_upper_times(lu, down), down


@compositions.program(compute_stacks=_solve_factored_stacks)
def solve_factored(call, lu, b, pivots):
    """Solves with P A = L U. Transposed, the packed matrix is a factor of A^T in the form of
    `LUFactor`, so that A x = b is a transposed solve."""
    (how,) = call.attributes

    def solve(lu, b, pivots):
        columns = products.transposed(lu, call.layout)
        factor = LUFactor.from_packed(columns, pivots, **call.layout.where)
        if how == "C":
            return factor.solve(b.conj()).conj()
        return factor.solve(b, "T" if how == "N" else "N")

    lu, down = _with_scaled_upper(lu)
    return (scaling.times(solve(lu, b, pivots), down),)


def _decompose_stacks(platform, options, a):
    """Computes `decomposed` of each matrix of a stack."""
    (permute_l,), (m, n) = options, a.shape[-2:]
    lu, _, order = library.lu(a)
    k = min(m, n)
    lower, upper = jnp.tril(lu, -1)[:, :, :k] + jnp.eye(m, k, dtype=a.dtype), jnp.triu(lu)[:, :k]
    if permute_l:
        rows = jnp.argsort(order, axis=-1)[..., None]
        return jnp.take_along_axis(lower, rows, axis=1), upper
    permutation = order[:, None, :] == jnp.arange(m)[:, None]
    return permutation.astype(jnp.finfo(a.dtype).dtype), lower, upper


@compositions.program(any_shape=True, compute_stacks=_decompose_stacks)
def decomposed(call, a):
    """Computes (P, L, U), or (P L, U), of A = P L U."""
    (permute_l,) = call.attributes
    (m, n), layout = call.shape, call.layout
    lu, pivots = factorization.packed(a, layout)
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, m)
    lower = scaling.unit_lower(lu)[:, : min(m, n)]
    upper = blocks.join_rows(scaling.upper(lu), layout, min(m, n))
    if permute_l:
        columns = products.transposed(lower, layout)[:, jnp.argsort(order)]
        return products.transposed(columns, layout), upper
    permutation = order[None, :] == jnp.arange(m)[:, None]
    return permutation.astype(jnp.finfo(a.dtype).dtype), lower, upper


def _solve_triangle_stacks(platform, options, a, b):
    """Computes `solve_one_triangle` of each matrix of a stack."""
    lower, trans, unit_diagonal = options

    def solve(a, b):
        return jax.lax.linalg.triangular_solve(
            a, b, left_side=True, lower=lower, transpose_a=trans != "N", conjugate_a=trans == "C",
            unit_diagonal=unit_diagonal,
        )  # fmt: skip

    if unit_diagonal:
        solve = scaling.linear_in_columns(solve)
    x = _scale_triangle(solve, lower, unit_diagonal)(a, b[..., None] if b.ndim == 2 else b)
    return (x.reshape(b.shape),)


def _scale_triangle(solve, lower, unit_diagonal):
    """Returns ``solve(a, b)`` on scaled triangles, or ``solve`` for a constant diagonal."""
    if unit_diagonal:
        return solve
    reads = scaling.lower if lower else scaling.upper
    return scaling.homogeneous(solve, -1, reads=reads, columns=True, only_finite=True)


# The largest order for which a device that is alone substitutes by its library in one call: stacks
# of more than 2^31 elements may be wrong on a GPU (`_stacks/parts.py`).
ALONE = {"gpu": 46340, "cpu": 2**31}


@compositions.program(compute_stacks=_solve_triangle_stacks, alone=ALONE)
def solve_one_triangle(call, a, b):
    lower, _, unit_diagonal = call.attributes

    def solve(a, b):
        return triangular.solve(a, b, call.layout, *call.attributes)

    return (_scale_triangle(solve, lower, unit_diagonal)(a, b),)


def _diagonal(a):
    return jnp.sum(scaling.lower(scaling.upper(a)), -1)  # XLA moves no entry of A


def _divide(diagonal, b):
    return b / (diagonal if b.ndim == diagonal.ndim else diagonal[..., None])


@compositions.program(compute_stacks=lambda platform, options, a, b: (_divide(_diagonal(a), b),))
def solve_diagonal(call, a, b):
    return (_divide(*(blocks.replicate(x, call.layout) for x in (_diagonal(a), b))),)
