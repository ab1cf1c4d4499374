"""`jaxmg.linalg.eigsh`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, SupportsFloat, SupportsIndex, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import checks, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._lanczos import iteration, operators, pairs, sizes
from jaxmg._layouts import exporting, layouts, meshes, shardings
from jaxmg._linalg import compositions
from jaxmg._types import AnyMatrixLike, Else, MeshLike

_EIGSH = "linalg.eigsh"
_WHICH = ("LM", "LA", "SA", "BE")


class HasMatmat(Protocol):
    """An operator with a product, as SciPy's LinearOperator."""

    def matmat(self, X: Array) -> Array: ...


Operator = Callable[[Array], Array] | HasMatmat


@exporting.named_tuple
class EigshResult(NamedTuple):
    """Holds the results of `eigsh`."""

    eigenvalues: jax.Array
    eigenvectors: jax.Array


@exporting.named_tuple
class EigshInfo(NamedTuple):
    """Says how far `eigsh` has come."""

    residuals: jax.Array
    iterations: jax.Array
    products: jax.Array
    status: jax.Array


@overload
def eigsh(
    A: AnyMatrixLike | Operator | Else, k: SupportsIndex | Else = 6, *,
    which: Literal["LM", "LA", "SA", "BE"] | Else = "LM", v0: AnyMatrixLike | None | Else = None,
    maxiter: SupportsIndex | None | Else = None, tol: SupportsFloat | Else = 0,
    return_eigenvectors: Literal[True] = True, return_info: Literal[False] = False,
    shape: tuple[int, int] | None | Else = None, dtype: Any = None,
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> EigshResult: ...  # fmt: skip


@overload
def eigsh(
    A: AnyMatrixLike | Operator | Else, k: SupportsIndex | Else = 6, *,
    which: Literal["LM", "LA", "SA", "BE"] | Else = "LM", v0: AnyMatrixLike | None | Else = None,
    maxiter: SupportsIndex | None | Else = None, tol: SupportsFloat | Else = 0,
    return_eigenvectors: Literal[False], return_info: Literal[False] = False,
    shape: tuple[int, int] | None | Else = None, dtype: Any = None,
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> Array: ...  # fmt: skip


@overload
def eigsh(
    A: AnyMatrixLike | Operator | Else, k: SupportsIndex | Else = 6, *,
    which: Literal["LM", "LA", "SA", "BE"] | Else = "LM", v0: AnyMatrixLike | None | Else = None,
    maxiter: SupportsIndex | None | Else = None, tol: SupportsFloat | Else = 0,
    return_eigenvectors: Literal[True] = True, return_info: Literal[True],
    shape: tuple[int, int] | None | Else = None, dtype: Any = None,
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> tuple[Array, Array, EigshInfo]: ...  # fmt: skip


@overload
def eigsh(
    A: AnyMatrixLike | Operator | Else, k: SupportsIndex | Else = 6, *,
    which: Literal["LM", "LA", "SA", "BE"] | Else = "LM", v0: AnyMatrixLike | None | Else = None,
    maxiter: SupportsIndex | None | Else = None, tol: SupportsFloat | Else = 0,
    return_eigenvectors: Literal[False] | Else, return_info: Literal[True] | Else,
    shape: tuple[int, int] | None | Else = None, dtype: Any = None,
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> tuple[Array, EigshInfo]: ...  # fmt: skip


@_compat.overloaded_boundary
def eigsh(
    A: AnyMatrixLike | Operator,
    k: SupportsIndex = 6,
    *,
    which: Literal["LM", "LA", "SA", "BE"] = "LM",
    v0: AnyMatrixLike | None = None,
    maxiter: SupportsIndex | None = None,
    tol: SupportsFloat = 0,
    return_eigenvectors: bool = True,
    return_info: bool = False,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> EigshResult | Array | tuple[Array, Array, EigshInfo] | tuple[Array, EigshInfo]:
    """Computes a few eigenpairs of a Hermitian matrix, as `scipy.sparse.linalg.eigsh`.

    Block Lanczos with thick restarts. The block has more than k vectors, so that an eigenvalue of
    any multiplicity comes with its multiplicity.

    Args:
        A: An array (n, n), Hermitian, sharded by rows; no row moves. Or an operator: a
            function that returns A X, sharded like X, for X (n, m) of any m; an object with such a
            method ``matmat``; or a lineax operator. It is traced by JAX, with X sharded by rows.
        k: Number of eigenpairs, 1 to n - 1.
        which: The wanted eigenvalues: "LM" of largest magnitude, "LA" largest, "SA" smallest,
            "BE" half from each end, one more from the high end if k is odd.
        v0: Where to start: (n,), or several vectors (n, m), such as the eigenvectors of a similar
            matrix. None: always the same vectors.
        maxiter: Most products of A with a block. None: about 10 n vectors in all, and at most
            10,000 products.
        tol: A pair has converged if ``norm(A v - w v)`` is at most ``tol`` times the norm of A, or
            32 eps times, whichever is larger.
        return_eigenvectors: Whether to return the eigenvectors.
        return_info: Whether to return an `EigshInfo` too.
        shape, dtype: (n, n) and the dtype of an operator that has no attributes of these names,
            if v0 isn't passed.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`. Without them an operator's vectors
            lie on the mesh of v0, or else of an array of the operator or its closure, or else of
            the context, or else on all local devices.

    Returns:
        An `EigshResult` (eigenvalues, eigenvectors). The eigenvalues are (k,), real, ascending,
        replicated. The eigenvectors are the columns of an array (n, k), sharded by rows.

        - With ``return_eigenvectors=False``, only the eigenvalues.
        - With ``return_info``, an `EigshInfo` is appended: ``residuals``, norm(A v - w v) of each
          pair; ``iterations``, products with a block, 0 if all eigenpairs were computed;
          ``products``, the vectors in them; and ``status``.

        ``status`` is the number of pairs that didn't converge. They are NaN and last; their
        residuals are finite. If A isn't finite, or products show that it isn't Hermitian, all are
        NaN.

    Errors of eigenvalues are at most their residuals. Small k, and wanted eigenvalues far from the
    others compared to the whole spectrum, take the fewest products. Small eigenvalues of an
    ill-conditioned matrix, such as a kernel, don't converge; `jaxmg.eigh` computes them. If A is an
    array of an order of less than about 80 (k + 2), all eigenpairs are computed, as it is faster.

    The results have derivatives with respect to A, and to arrays on which an operator depends, also
    those of its closure. The derivative of vectors needs distinct eigenvalues. It solves with A on
    the complement of the vectors by MINRES, with at most ``maxiter`` products, and is NaN if that
    doesn't converge. v0 has none.

    An operator may be a pytree, such as `jax.tree_util.Partial`, whose arrays are arguments of the
    compiled program. A function with a closure is compiled again in each call outside of a jit.
    The square of an operator's norm must neither overflow nor underflow.

    Cost: a product is 2 n^2 (k + 2) flops over all ranks, and reads A once. Memory: a basis of
    12 (k + 2) vectors up to k = 30, 8 up to 126, then 6; twice while it restarts.

    Source: K. Wu, H. Simon, SIAM J. Matrix Anal. Appl. 22, 2000 (thick restarts); G. H. Golub,
    R. Underwood, Mathematical Software III, 1977 (blocks).

    Raises:
        TypeError, ValueError, RuntimeError: As `jaxmg.lu_factor`. k, ``which``, ``maxiter``,
            ``tol``, v0, ``shape`` or ``dtype`` are invalid, or an operator returns another shape or
            dtype than that of its argument.

    Examples:
        >>> w, v = jaxmg.linalg.eigsh(a, 10, which="SA")
        >>> w, v = jaxmg.linalg.eigsh(lambda x: h(x), 4, which="SA", shape=(n, n), dtype="float64")
    """
    if in_specs is not None:
        matrix_specs = matrix_spec(_EIGSH, matrix_specs, in_specs)
    if v0 is not None:
        checks.is_an_array(_EIGSH, "v0", v0)
        checks.usable(_EIGSH, "v0", v0)
    options = k, which, maxiter, tol, mesh, matrix_specs
    found: Any
    if operators.is_operator(A):
        found = _of_operator(A, v0, shape, dtype, *options)
    else:
        for name, value in (("shape", shape), ("dtype", dtype)):
            if value is not None:
                raise ValueError(f"{_EIGSH}: {name} is for operators, and A is an array")
        found = _of_array((A,) if v0 is None else (A, v0), *options)
    w, v, *info = found
    if return_info:
        told = EigshInfo(*info)
        return (w, v, told) if return_eigenvectors else (w, told)
    return EigshResult(w, v) if return_eigenvectors else w


@programs.cache_plans
def _of_array(arrays, k, which, maxiter, tol, mesh, spec):
    a, *start = arrays
    checks.is_an_array(_EIGSH, "A", a)
    checks.usable(_EIGSH, "A", a)
    checks.array(_EIGSH, "A", a, checks.ALL, (*checks.DTYPES, str(a.dtype)))
    if a.ndim < 2:
        raise ValueError(f"{_EIGSH}: A must be a square matrix; it has shape {tuple(a.shape)}")
    n = a.shape[-1]
    for v0 in start:
        _check_start(v0, n, jnp.iscomplexobj(a))
    dtype = compositions.promote("eigsh", a)[0].dtype
    problem = _problem(n, dtype, k, which, maxiter, tol, False)
    program = pairs.by_lanczos if problem.sizes.fits(sizes.OF_MATRIX) else pairs.by_eigh
    kinds = "small", (n, problem.sizes.k), *("small",) * 4
    return compositions.plan(arrays, "eigsh", program, kinds, mesh, spec, problem)


def _of_operator(operator, v0, shape, dtype, k, which, maxiter, tol, mesh, spec):
    vectors = operators.vectors_of(_EIGSH, operator, v0, shape, dtype)
    if v0 is not None:
        _check_start(v0, vectors.n, jnp.issubdtype(vectors.dtype, jnp.complexfloating))
        v0 = v0.astype(vectors.dtype)
    problem = _problem(vectors.n, vectors.dtype, k, which, maxiter, tol, True)
    meshes.refuse_manual_axes(_EIGSH)
    layout = _layout_of(operator, v0, vectors, mesh, spec)
    with _compat.entered(layout.mesh):
        block = jax.ShapeDtypeStruct((vectors.n, problem.sizes.block), vectors.dtype)
        if not problem.sizes.fits(sizes.OF_OPERATOR):
            block = jax.ShapeDtypeStruct((vectors.n, vectors.n), vectors.dtype)
        traced, arrays = operators.trace(_EIGSH, operator, pairs.sharded(block, layout))
    program = _Program(problem, traced, v0 is not None)
    arrays = arrays if v0 is None else [v0, *arrays]
    specs = P(), layout.result_spec((vectors.n, problem.sizes.k)), *(P(),) * 4
    call = programs.Call("linalg_eigsh", program, layout, (vectors.n,) * 2, 0, "", specs)
    if layouts.traced(arrays):
        # Without the jit JAX would compile operation by operation when it differentiates eagerly.
        return jax.jit(lambda *arrays: programs.runner(call, arrays, matrices=0)(*arrays))(*arrays)
    return programs.runner(call, arrays, matrices=0)(*arrays)


@dataclasses.dataclass(frozen=True)
class _Program:
    """The program of an operator, of a start, if it ``starts``, and of the operator's arrays."""

    problem: iteration.Problem
    operator: operators.Traced
    starts: bool

    def __call__(self, call, *arrays):
        start, arrays = arrays[: self.starts], arrays[self.starts :]
        begin = start[0] if start else None
        return pairs.of_operator(call.layout, self.problem, self.operator, begin, arrays)


def _layout_of(operator, v0, vectors, mesh, spec):
    """Returns the layout of the vectors that an operator multiplies."""
    start = [] if v0 is None else [v0]
    known = [x for x in start + operators.arrays_of(operator) if _lies_on_mesh(x)]
    like = jax.ShapeDtypeStruct((vectors.n, vectors.n), vectors.dtype)
    mesh = meshes.resolve_mesh(_EIGSH, known or start, mesh)
    return meshes.infer(_EIGSH, (like,), mesh, P(mesh.axis_names, None) if spec is None else spec)


def _lies_on_mesh(array):
    return shardings.sharding_below(array) is not None


def _check_start(v0, n, is_complex):
    """Raises unless v0 is a vector, or several, of order n."""
    if v0.ndim not in (1, 2) or v0.shape[0] != n or not v0.size:
        raise ValueError(
            f"{_EIGSH}: v0 must have shape ({n},) or ({n}, m) for A of order {n}; it has shape "
            f"{tuple(v0.shape)}"
        )
    if jnp.iscomplexobj(v0) and not is_complex:
        raise TypeError(f"{_EIGSH}: v0 has dtype {v0.dtype}, but A is real; pass a real v0")


def _problem(n, dtype, k, which, maxiter, tol, is_operator):
    """Returns the `iteration.Problem`. Raises if an option is invalid."""
    k = _integer("k", k)
    if not 1 <= k < n:
        raise ValueError(
            f"{_EIGSH}: k must be from 1 to n - 1, {n - 1}; got {k}. jaxmg.eigh computes all n "
            "eigenpairs"
        )
    if which not in _WHICH:
        instead = '; the smallest of a positive definite matrix are "SA"' if which == "SM" else ""
        raise ValueError(f"{_EIGSH}: which must be one of {_WHICH}; got {which!r}{instead}")
    if maxiter is not None:
        maxiter = _integer("maxiter", maxiter)
        if maxiter < 1:
            raise ValueError(f"{_EIGSH}: maxiter must be at least 1; got {maxiter}")
    try:
        tol = float(tol)
    except TypeError:
        raise TypeError(f"{_EIGSH}: tol must be a number; got {tol!r}") from None
    if not 0 <= tol < 1:
        raise ValueError(f"{_EIGSH}: tol must be from 0 to 1; got {tol}")
    size = sizes.choose(n, k, is_operator)
    tolerance = sizes.tolerance(tol, _computed_in(dtype))
    return iteration.Problem(size, which, tolerance, sizes.iterations(size, maxiter))


def _computed_in(dtype):
    """Returns the dtype in which a dtype is computed."""
    return jnp.float32 if str(dtype) in checks.HALVES else dtype


def _integer(name, value):
    try:
        return checks.index(value)
    except TypeError:
        raise TypeError(f"{_EIGSH}: {name} must be an integer; got {value!r}") from None
