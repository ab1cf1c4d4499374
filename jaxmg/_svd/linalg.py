"""`jaxmg.linalg.svd`, `svdvals`, `polar`, `matrix_rank` and `norm`; `cond` by singular values."""

from __future__ import annotations

import functools
import operator
from typing import Any, Literal, NamedTuple, SupportsIndex, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import checks, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import exporting, places, shardings
from jaxmg._linalg import compositions
from jaxmg._matrices import norms
from jaxmg._svd import spaces
from jaxmg._svd import svd as svd_programs
from jaxmg._types import AnyArray, AnyMatrixLike, Backend, Else, MeshLike


@exporting.named_tuple
class SVDResult(NamedTuple):
    """Holds the results of `svd`."""

    U: jax.Array
    S: jax.Array
    Vh: jax.Array


@overload
def svd(
    a: AnyMatrixLike | Else, full_matrices: bool | Else = True, compute_uv: Literal[True] = True,
    hermitian: bool | Else = False, subset_by_index: tuple[int, int] | None | Else = None, *,
    overwrite_a: bool | Else = False, check_finite: bool | Else = True,
    lapack_driver: Literal["gesdd", "gesvd"] | Else = "gesdd", backend: Backend | Else = "auto",
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> SVDResult: ...  # fmt: skip


@overload
def svd(
    a: AnyMatrixLike | Else, full_matrices: bool | Else = True,
    compute_uv: Literal[False] | Else = ..., hermitian: bool | Else = False,
    subset_by_index: tuple[int, int] | None | Else = None, *, overwrite_a: bool | Else = False,
    check_finite: bool | Else = True, lapack_driver: Literal["gesdd", "gesvd"] | Else = "gesdd",
    backend: Backend | Else = "auto", mesh: MeshLike | None | Else = None,
    matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> Array: ...  # fmt: skip


@_compat.overloaded_boundary
def svd(
    a: AnyMatrixLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: Literal["gesdd", "gesvd"] = "gesdd",
    backend: Backend = "auto",
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> SVDResult | Array:
    """Computes the singular value decomposition A = U S V^H, as `jax.numpy.linalg.svd`.

    Args:
        a: (m, n), sharded by rows.
        full_matrices: False returns only the first k = min(m, n) columns of U and rows of V^H.
            Ignored with ``subset_by_index``.
        compute_uv: False returns the singular values only.
        hermitian: Whether ``a`` is Hermitian; if so, `eigh` is used.
        subset_by_index: (start, end) selects singular values start <= i < end, from the largest
            (0), and their vectors. `svd_lowrank` is faster for a few of the largest.
        overwrite_a, check_finite, lapack_driver: Ignored.
        backend: "auto", "native" or "cusolvermp" (NVIDIA's gesvd, for all singular values; one
            matrix of a batch after the other).
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        An `SVDResult` (U, S, Vh); without ``compute_uv`` S. If ``a`` has NaN or infinity, the
        results are NaN.

        - U is (m, m) or (m, k), sharded like ``a``.
        - S is (k,), real, descending, replicated.
        - Vh is (n, n) or (k, n), sharded by rows.

    The error of S is about eps times the largest singular value, as in LAPACK's gesdd. U and Vh are
    orthonormal to rounding. S always has a derivative. U and Vh have JAX's derivative if singular
    values differ by more than rounding, else infinity or NaN; docs/api.md names alternatives. As in
    JAX, ``full_matrices`` with m != n has no derivative.

    Cost for n x n: that of `polar` and `jaxmg.syevd`, and 3 n^3 flops over all ranks for vectors.
    Other matrices are reduced to square ones by `qr` first. One rank solves matrices with n <= 256
    (CPU devices of one process: 4096). Memory over all devices: six matrices like ``a`` on one
    device, seven on several, and the memory of `syevd`.

    Source: Higham and Papadimitriou, Parallel Comput. 20, 1994; Nakatsukasa and Higham, SIAM J.
    Sci. Comput. 35, 2013.

    Raises:
        NotImplementedError: ``full_matrices`` with m != n is being differentiated.
        TypeError, ValueError, RuntimeError: As `jaxmg.lu_factor`. An invalid ``subset_by_index``,
            an unavailable ``backend``, and ``hermitian`` with m != n or with "cusolvermp" raise a
            ValueError.

    Examples:
        >>> u, s, vh = jaxmg.linalg.svd(a, full_matrices=False)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.svd", matrix_specs, in_specs)
    options = bool(full_matrices), subset_by_index, backend
    if not compute_uv:
        return _values((a,), "svd", hermitian, *options[1:], mesh, matrix_specs)
    return _vectors((a,), hermitian, *options, mesh, matrix_specs)


@programs.cache_plans
def _vectors(arrays, hermitian, full, subset, backend, mesh, spec):
    (a,) = arrays
    m, n = shape_of("svd", a)
    start, end = _subset(subset, min(m, n))
    whole = full and m != n and subset is None and not hermitian
    shapes = (m, m if whole else end - start), "small", (n if whole else end - start, n)
    pack: Any = SVDResult
    options: tuple[Any, ...] = (start, end)
    if not _is_native("svd", backend):
        _refuse_hermitian(hermitian, backend)
        k = min(m, n)
        shapes = (m, m if whole else k), "small", (n if whole else k, n)
        program, options = svd_programs.decomposed_by, (backend, whole)
        if subset is not None:
            pack = functools.partial(_part, start, end)
    elif hermitian:
        _needs_square("svd", m, n)
        program, options = svd_programs.decomposed_hermitian, (compositions.HERMITIAN, *options)
    elif whole:
        program, options = svd_programs.completed, ()
    else:
        program = svd_programs.decomposed
    return compositions.plan(arrays, "svd", program, shapes, mesh, spec, *options, pack=pack)


def _part(start, end, u, s, vh):
    vh = shardings.columns(vh, start, end, axis=-2)
    return SVDResult(shardings.columns(u, start, end), s[..., start:end], vh)


@programs.cache_plans
def _values(arrays, name, hermitian, subset, backend, mesh, spec):
    m, n = shape_of(name, arrays[0])
    start, end = _subset(subset, min(m, n))
    program: Any = svd_programs.values
    options: tuple[Any, ...] = ()
    if not _is_native(name, backend):
        _refuse_hermitian(hermitian, backend)
        program, options = svd_programs.values_by, (backend,)
    elif hermitian:
        _needs_square(name, m, n)
        program, options = svd_programs.hermitian_values, (compositions.HERMITIAN,)
    planned: Any = compositions.plan(arrays, name, program, ("small",), mesh, spec, *options)
    return planned if subset is None else lambda a: planned(a)[..., start:end]


def _refuse_hermitian(hermitian, backend):
    if hermitian:
        raise ValueError(
            "linalg.svd: hermitian=True takes backend 'auto' or 'native'; got "
            f"{backend!r}. jaxmg.syevd has others"
        )


@_compat.api_boundary
def svdvals(
    x: AnyMatrixLike,
    /,
    *,
    backend: Backend = "auto",
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the singular values, (k,), descending, as `jax.numpy.linalg.svdvals`.

    Arguments and errors are those of `svd`.

    Cost: 8/3 n^3 flops over all ranks, to reduce the matrix to a band of b = 64 diagonals
    (complex128: 48; CPU devices: 32), and 24 n^2 b on one rank, to reduce the band to tridiagonal
    form. GPUs use this method from n = 6144 on, and CPU devices use it for all matrices that aren't
    solved by LAPACK on one rank (see `svd`). Other matrices cost as much as `svd` without vectors.
    Memory: a copy of ``x``.

    Source: Grosser and Lang, Parallel Comput. 25, 1999, for the reduction.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.svdvals", matrix_specs, in_specs)
    return _values((x,), "svdvals", False, None, backend, mesh, matrix_specs)


def _needs_square(name, m, n):
    if m != n:
        raise ValueError(f"linalg.{name}: hermitian=True needs a square matrix; got ({m}, {n})")


def _is_native(name, backend):
    """Returns whether the native engine computes it; raises if ``backend`` isn't the name of a
    backend."""
    return checks.backend_name(f"linalg.{name}", backend) in ("auto", "native")


@_compat.api_boundary
def polar(
    a: AnyMatrixLike,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: SupportsIndex | None = None,
    backend: Backend = "auto",
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]:
    """Computes the polar decomposition A = U P, or A = P U, as `jax.scipy.linalg.polar`.

    Args:
        a: (m, n), as in `svd`.
        side: "right": A = U P with P (n, n). "left": A = P U with P (m, m).
        method, eps, max_iterations: Ignored. The method is QDWH, which stops by itself.
        backend: As in `svd`; "cusolvermp" is NVIDIA's polar.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        (U, P). U, (m, n), sharded like ``a``, has orthonormal columns for m >= n, else orthonormal
        rows, even if ``a`` is rank-deficient and U isn't unique. P, sharded by rows, is Hermitian
        and positive semidefinite. If ``a`` has NaN or infinity, both are NaN.

    Both factors are backward stable. They have derivatives if ``a`` has full rank, even with equal
    singular values; otherwise the derivatives are infinite or NaN.

    Cost for n x n: 3 to 7 steps of 3 n^3 to 5 n^3 flops over all ranks, and 2 n^3 for P. If ``a``
    is ill-conditioned, the first steps take up to 10 n^3 each: one step if the condition number is
    above about 100; in double precision two steps if it is above about 1e8, and three if it is
    above about 1e13. Memory: about eight matrices like ``a`` over all devices.

    Source: QDWH, Nakatsukasa, Bai and Gygi, SIAM J. Matrix Anal. Appl. 31, 2010.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_factor`. An invalid
            ``side`` or ``method``, or an unavailable ``backend``, raises a ValueError.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.polar", matrix_specs, in_specs)
    if side not in ("right", "left"):
        raise ValueError(f"linalg.polar: side must be 'right' or 'left'; got {side!r}")
    if method not in ("qdwh", "svd"):
        raise ValueError(f"linalg.polar: method must be 'qdwh' or 'svd'; got {method!r}")
    m, n = shape_of("polar", a)
    of_p = (n, n) if side == "right" else (m, m)
    shapes = ((m, n), of_p)
    program, options = svd_programs.polar_factors, [side]
    if not _is_native("polar", backend):
        program, options = svd_programs.polar_factors_by, [side, backend]
    u, p = compositions.run((a,), "polar", program, shapes, mesh, matrix_specs, *options)
    return u, p


@_compat.api_boundary
def matrix_rank(
    M: AnyMatrixLike,
    rtol: AnyArray | float | None = None,
    *,
    hermitian: bool = False,
    tol: AnyArray | float | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Counts the singular values above a tolerance, as `jax.numpy.linalg.matrix_rank`.

    Args:
        M: (m, n), as in `svd`. A vector has rank 1, or 0 if all its entries are 0, as in NumPy.
        rtol: Tolerance relative to the largest singular value, as in NumPy; JAX takes it as
            absolute. None: max(m, n) eps.
        hermitian: Whether M is Hermitian; if so, `eigvalsh` is used.
        tol: Absolute tolerance, in place of ``rtol``.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        Rank, an integer scalar.

    Cost and errors are those of `svdvals`. Passing both ``rtol`` and ``tol`` raises a ValueError.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.matrix_rank", matrix_specs, in_specs)
    if tol is not None and rtol is not None:
        raise ValueError("linalg.matrix_rank: only one of rtol and tol may be given; got both")
    m, n = shape_of("matrix_rank", M)
    if getattr(M, "ndim", 2) < 2:
        (vector,) = compositions.promote("matrix_rank", M)
        return jnp.any(jnp.asarray(vector) != 0).astype(int)
    program = svd_programs.values if tol is not None else svd_programs.relative_values
    options: tuple[Any, ...] = ()
    if hermitian:
        _needs_square("matrix_rank", m, n)
        program, options = svd_programs.hermitian_values, (compositions.HERMITIAN,)
    s = compositions.run((M,), "matrix_rank", program, ("small",), mesh, matrix_specs, *options)
    if not min(m, n):
        return jnp.zeros(s.shape[:-1], int)
    if tol is not None:
        return jnp.sum(s > jnp.asarray(tol)[..., None], axis=-1)
    tolerance = max(m, n) * jnp.finfo(s.dtype).eps if rtol is None else jnp.asarray(rtol)[..., None]
    return jnp.sum(s > tolerance * s[..., :1], axis=-1)


@_compat.api_boundary
def norm(
    x: AnyArray,
    ord: int | float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the norm of a matrix or a vector, as `jax.numpy.linalg.norm`.

    Args:
        x: (m, n), sharded by rows; or an array of any dimensions.
        ord: Norm, as in NumPy; for a matrix None, "fro", 1, -1, inf, -inf, 2, -2 or "nuc".
        axis: Axis of vectors, or two axes of matrices. None: all of x.
        keepdims: Whether to keep reduced axes, with length 1.
        mesh, matrix_specs, in_specs: As in `svdvals`, for 2, -2 and "nuc".

    Returns:
        The norm, real; replicated if it is the norm of all of x.

    For 2, -2 and "nuc" of matrices, cost, errors and derivative are those of `svdvals`. JAX
    computes other norms on x's devices; one more pass scales x so that sums of powers neither
    overflow nor underflow.

    Raises:
        ValueError: ``ord`` or ``axis`` is invalid.
        TypeError, ValueError, RuntimeError: As `svdvals`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.norm", matrix_specs, in_specs)
    axes = tuple(range(getattr(x, "ndim", 0))) if axis is None else axis
    of_values = (isinstance(ord, str) and ord == "nuc") or (
        not isinstance(ord, str | None) and ord in (2, -2)
    )
    if of_values and isinstance(axes, tuple) and len(axes) == 2:
        return _norm_of_values((x,), ord, axes, bool(keepdims), mesh, matrix_specs)
    (x,) = places.fetch((x,))
    checks.usable("linalg.norm", "x", x)
    try:
        x = jnp.asarray(x)
    except TypeError:
        checks.is_an_array("linalg.norm", "x", x)
        checks.promotable("linalg.norm", ("x",), (x,))
        raise
    (x,) = compositions.promote("norm", x, names=("x",))
    return norms.norm(x, ord, axis, keepdims)


@programs.cache_plans
def _norm_of_values(arrays, ord, axes, keepdims, mesh, spec):
    (x,) = arrays
    checks.usable("linalg.norm", "x", x)
    checks.is_an_array("linalg.norm", "x", x)
    rank = x.ndim
    row, column = (operator.index(each) % rank if -rank <= each < rank else rank for each in axes)
    if row == column or rank in (row, column):
        raise ValueError(
            f"linalg.norm: axis must be two different axes of x, which has {rank} axes; got "
            f"{axes!r}"
        )
    call = "norm", spaces.norm, ("small",), mesh, spec, ord
    if (row, column) == (rank - 2, rank - 1) and not keepdims:
        return compositions.plan(arrays, *call)

    def run(x):
        value = compositions.run((jnp.moveaxis(x, (row, column), (-2, -1)),), *call)
        return jnp.expand_dims(value, (row, column)) if keepdims else value

    return run


def condition_of_values(
    x: AnyMatrixLike, p: Any, mesh: MeshLike | None, spec: PartitionSpec | None
) -> Array:
    """Computes `jaxmg.linalg.cond` for p = None, 2, -2 and "nuc"."""
    m, n = shape_of("cond", x)
    if getattr(x, "ndim", 0) > 1 and not min(m, n):
        raise ValueError(
            f"linalg.cond: an empty matrix has no condition number; x has shape {(m, n)}"
        )
    if p == "nuc" and m != n:
        raise ValueError(f"linalg.cond: p='nuc' needs a square matrix; got ({m}, {n})")
    return compositions.run((x,), "cond", spaces.condition, ("small",), mesh, spec, p)


def shape_of(name: str, a: Any) -> tuple[int, int]:
    """Returns the shape of a matrix, or of each matrix of a batch; (0, 0) for fewer dimensions."""
    if isinstance(a, Tracer) and not places.is_on_host(a):  # else `compositions.run` checks it
        checks.usable(f"linalg.{name}", compositions.matrix_name(name), a)
    if getattr(a, "ndim", 0) < 2:
        return 0, 0
    m, n = a.shape[-2:]
    return m, n


def _subset(subset: tuple[int, int] | None, k: int) -> tuple[int, int]:
    if subset is None:
        return 0, k
    try:
        start, end = (operator.index(value) for value in subset)
    except (TypeError, ValueError):
        start, end = 0, -1
    if not 0 <= start <= end <= k:
        raise ValueError(
            "linalg.svd: subset_by_index must be (start, end) with 0 <= start <= end <= "
            f"{k}; got {subset!r}"
        )
    return start, end
