"""`jaxmg.linalg.svd`, `svdvals` and `polar`, and what is made of singular values."""

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
from jaxmg._call import checks, exporting, places, programs
from jaxmg._routines import jax_linalg, norms, svd_spaces
from jaxmg._routines import svd as svd_programs
from jaxmg._types import AnyArray, AnyMatrixLike, Backend, MeshLike


@exporting.named_tuple
class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: jax.Array
    S: jax.Array
    Vh: jax.Array


@overload
def svd(
    a: AnyMatrixLike, full_matrices: bool = True, compute_uv: Literal[True] = True,
    hermitian: bool = False, subset_by_index: tuple[int, int] | None = None, *,
    backend: Backend = "auto", mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> SVDResult: ...  # fmt: skip


@overload
def svd(
    a: AnyMatrixLike, full_matrices: bool = True, compute_uv: Literal[False] = ...,
    hermitian: bool = False, subset_by_index: tuple[int, int] | None = None, *,
    backend: Backend = "auto", mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...  # fmt: skip


@_compat.api_boundary
def svd(
    a: AnyMatrixLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    *,
    backend: Backend = "auto",
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> SVDResult | Array:
    """The singular value decomposition A = U S V^H: `jax.numpy.linalg.svd`.

    Args:
        a: (m, n), sharded by rows.
        full_matrices: False gives the first k = min(m, n) columns of U and rows of V^H alone. With
            ``subset_by_index`` it does nothing.
        compute_uv: False gives the singular values alone.
        hermitian: ``a`` is Hermitian: its eigenvalues and eigenvectors are taken, as for `eigh`.
        subset_by_index: (start, end): only the singular values from start (0: the largest) to
            end - 1 and their vectors. It costs the polar decomposition, and what `jaxmg.eigh` with
            as many eigenvectors does. `svd_lowrank` is faster for a few of the largest.
        backend: "auto", "native" or "cusolvermp": NVIDIA's gesvd, as for `jaxmg.potrs`, of all
            singular values. A batch goes through it matrix after matrix.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        `SVDResult`: U (m, m) or (m, k), sharded like ``a``, S (k,), real, descending, the same on
        all devices, and Vh (n, n) or (k, n), by rows. Without ``compute_uv`` S alone. NaN where
        ``a`` has NaN or infinity.

    The error of S is of the size of rounding times the largest, as LAPACK's gesdd has it; U and Vh
    are orthonormal to rounding, also where singular values are 0. S always has a derivative. U and
    Vh have that of JAX where singular values differ. Where some are equal up to rounding it is
    infinite or NaN, also for functions of U and Vh that have a derivative: `polar` has it of U V^H,
    ``a`` itself that of U S V^H, and `funm` that of V f(W) V^H. As in JAX there is none of
    ``full_matrices`` with m != n.

    Cost, n x n: the polar decomposition (`polar`), that of `jaxmg.syevd`, with vectors 3 n^3 more
    multiplications and additions over all ranks. A tall or wide matrix becomes a square one by `qr`
    first. Up to n = 256 one rank takes JAX's own SVD instead. Memory: six matrices such as ``a``
    over all devices, seven on several, and what `syevd` needs of its library.

    Source: Higham and Papadimitriou, Parallel Comput. 20, 1994; Nakatsukasa and Higham, SIAM J.
    Sci. Comput. 35, 2013.

    Raises:
        NotImplementedError: ``full_matrices`` with m != n is being differentiated.
        ValueError: another ``subset_by_index``; ``hermitian`` with m != n, or with another
            ``backend``; one that this platform doesn't have; and all that `jaxmg.lu_factor` raises.

    Examples:
        >>> u, s, vh = jaxmg.linalg.svd(a, full_matrices=False)
    """
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
        program = svd_programs.decomposed_hermitian
    elif whole:
        program, options = svd_programs.completed, ()
    else:
        program = svd_programs.decomposed
    return jax_linalg.plan(arrays, "svd", program, shapes, mesh, spec, *options, pack=pack)


def _part(start, end, u, s, vh):
    return SVDResult(u[..., start:end], s[..., start:end], vh[..., start:end, :])


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
        program = svd_programs.hermitian_values
    planned: Any = jax_linalg.plan(arrays, name, program, ("small",), mesh, spec, *options)
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
) -> Array:
    """The singular values, (k,), descending: `jax.numpy.linalg.svdvals`.

    Arguments and errors are those of `svd`. Cost: from n = 6144 on 8/3 n^3 multiplications and
    additions over all ranks, which reduce A to a band of b = 64 diagonals (32 on CPU devices), and
    24 n^2 b on one, which take the band to a tridiagonal matrix; a copy of ``x`` as memory. Below
    that, those of `svd` without vectors.

    Source: Grosser and Lang, Parallel Comput. 25, 1999, for the reduction.
    """
    return _values((x,), "svdvals", False, None, backend, mesh, matrix_specs)


def _needs_square(name, m, n):
    if m != n:
        raise ValueError(f"linalg.{name}: hermitian=True needs a square matrix; got ({m}, {n})")


def _is_native(name, backend):
    """Whether our own engine computes it; another name than those of backends is refused."""
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
) -> tuple[Array, Array]:
    """The polar decomposition A = U P, or A = P U: `jax.scipy.linalg.polar`.

    Args:
        a: (m, n), as for `svd`.
        side: "right": A = U P with P (n, n); "left": A = P U with P (m, m).
        method, eps, max_iterations: do nothing: the method is "qdwh", which ends by itself.
        backend: as for `svd`; NVIDIA's polar.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        (U, P): U (m, n), with orthonormal columns where m >= n and else rows, sharded like ``a``;
        P, Hermitian and positive semidefinite, by rows. Where ``a`` is rank-deficient U isn't
        unique; it is one with orthonormal columns all the same. NaN where ``a`` has NaN or
        infinity.

    Both factors are backward stable: U is orthonormal and A - U P small to rounding. They have
    derivatives where ``a`` has full rank, also with equal singular values; elsewhere these are
    infinite or NaN.

    Cost, n x n: 4 to 7 steps of an inverse and 2 n^3 multiplications and additions over all ranks.
    The first takes 5 n^3 where the condition of ``a`` is above some 1e3, and as many as three do
    where it is above 1e13. Memory: some eight matrices such as ``a`` over all devices.

    Source: QDWH, Nakatsukasa, Bai and Gygi, SIAM J. Matrix Anal. Appl. 31, 2010.

    Raises:
        ValueError: another ``side`` or ``method``; a ``backend`` that this platform doesn't have;
            and all that `jaxmg.lu_factor` raises.
    """
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
    u, p = jax_linalg.run((a,), "polar", program, shapes, mesh, matrix_specs, *options)
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
) -> Array:
    """The number of singular values above rtol times the largest: `jax.numpy.linalg.matrix_rank`.

    Args:
        M: (m, n), as for `svd`. The rank of a vector is 1, and 0 where all of it is 0, as in NumPy.
        rtol: None stands for max(m, n) eps. It is relative, as in NumPy; JAX compares singular
            values with ``rtol`` itself.
        hermitian: M is Hermitian: its eigenvalues are taken, as for `eigvalsh`.
        tol: what singular values have to be above, in place of ``rtol``.
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        An integer scalar. Cost and errors are those of `svdvals`.
    """
    if tol is not None and rtol is not None:
        raise ValueError("linalg.matrix_rank: only one of rtol and tol may be given; got both")
    m, n = shape_of("matrix_rank", M)
    if getattr(M, "ndim", 2) < 2:
        (vector,) = jax_linalg.promote("matrix_rank", M)
        return jnp.any(jnp.asarray(vector) != 0).astype(int)
    program = svd_programs.values if tol is not None else svd_programs.relative_values
    if hermitian:
        _needs_square("matrix_rank", m, n)
        program = svd_programs.hermitian_values
    s = jax_linalg.run((M,), "matrix_rank", program, ("small",), mesh, matrix_specs)
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
) -> Array:
    """The norm of a matrix or a vector: `jax.numpy.linalg.norm`.

    Args:
        x: (m, n), sharded by rows; or an array of any dimensions.
        ord: of a matrix None or "fro" (the root of the sum of squares), 1, -1, inf or -inf (the
            largest or smallest sum of absolute values of a column or of a row), 2, -2 or "nuc" (the
            largest and the smallest singular value, and the sum of all).
        axis: the axis of vectors, or the two of matrices; None stands for all of x.
        keepdims: keep reduced axes, with length 1.
        mesh, matrix_specs: for 2, -2 and "nuc", as for `svdvals`.

    Returns:
        Real; the same on all devices where all of x is taken.

    2, -2 and "nuc" of matrices cost and raise what `svdvals` does, and have its derivative. All
    others, vectors' too, are those of JAX, computed where ``x`` lies. Sums of squares and of other
    powers neither overflow nor underflow: one more pass over ``x`` finds its largest entry.

    Raises:
        ValueError: ``ord`` isn't one of these, or there are not one or two axes; and all that
            `svdvals` raises.
    """
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
    (x,) = jax_linalg.promote("norm", x, names=("x",))
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
            f"linalg.norm: axis must be two different axes of x, which has {rank}; got {axes!r}"
        )
    call = "norm", svd_spaces.norm, ("small",), mesh, spec, ord
    if (row, column) == (rank - 2, rank - 1) and not keepdims:
        return jax_linalg.plan(arrays, *call)

    def run(x):
        value = jax_linalg.run((jnp.moveaxis(x, (row, column), (-2, -1)),), *call)
        return jnp.expand_dims(value, (row, column)) if keepdims else value

    return run


def condition_of_values(
    x: AnyMatrixLike, p: Any, mesh: MeshLike | None, spec: PartitionSpec | None
) -> Array:
    """`jaxmg.linalg.cond` for p = None, 2, -2 and "nuc"."""
    m, n = shape_of("cond", x)
    if getattr(x, "ndim", 0) > 1 and not min(m, n):
        raise ValueError(
            f"linalg.cond: an empty matrix has no condition number; x has shape {(m, n)}"
        )
    if p == "nuc" and m != n:
        raise ValueError(f"linalg.cond: p='nuc' needs a square matrix; got ({m}, {n})")
    return jax_linalg.run((x,), "cond", svd_spaces.condition, ("small",), mesh, spec, p)


def shape_of(name: str, a: Any) -> tuple[int, int]:
    """The shape of a matrix, or of each matrix of a batch; (0, 0) of a vector or a scalar."""
    if isinstance(a, Tracer) and not places.is_on_host(a):  # else `jax_linalg.run` does
        checks.usable(f"linalg.{name}", jax_linalg.matrix_name(name), a)
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
