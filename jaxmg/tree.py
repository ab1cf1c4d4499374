"""Pytrees of many matrices, as an optimizer has them: each matrix on one device.

`jaxmg.linalg` spreads a matrix over all devices, which is the way for a large one. Of hundreds of
middle size each is quicker on a single device: its home. The functions here take any pytree of
arrays (..., m, n), of which leading dimensions are batches. They deal the matrices to the devices
so that these end together, bring them there by one exchange for all leaves, and the results back by
another.

    jaxmg.tree.eigh(statistics)        # a tree of (w, v)
    jaxmg.tree.map(f, tree)            # any function of one matrix

A single array is a tree of one leaf. ``None`` in a tree is no leaf, as anywhere in JAX.
docs/howto/optimizers.md has what it costs. All of it needs JAX 0.10 or newer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp

from jaxmg import _compat, _names
from jaxmg._call import checks
from jaxmg._routines import iterations, of_stacks, trees
from jaxmg._transform import homes
from jaxmg._types import MeshLike, Triangle

__all__ = [
    "cholesky", "eigh", "inv", "inverse_pth_root", "map", "orthogonal_iteration", "orthogonalize",
    "qr", "svd",
]  # fmt: skip

_METHODS = ("newton-schulz", "polar-express", "exact")
_FLOATS = (*checks.DTYPES, "bfloat16", "float16")


@_compat.api_boundary
def map(
    f: Callable[[Any], Any],
    tree: Any,
    *,
    cost: Callable[[jax.ShapeDtypeStruct], float] | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """``f`` of each matrix of a pytree, as `jax.tree.map` has it of each leaf.

    Args:
        f: a function of one matrix, (m, n), that JAX can trace. It gives an array or a pytree of
            arrays. An eager call with another object in the place of ``f`` compiles again, as with
            `jax.jit`: pass no new lambda each time.
        tree: a pytree of arrays (..., m, n), of any shapes, dtypes and shardings.
        cost: gives what ``f`` costs for a matrix, by a `jax.ShapeDtypeStruct` of shape (m, n), in
            any unit; by it the matrices are dealt. None: m n min(m, n), four times that where it is
            complex, and 64^3 for its being there.
        mesh: the devices. None: the mesh that a leaf is on, else the context mesh.
        matrix_specs: how the leaves are sharded where arrays don't say, which is under ``jit`` on
            automatic axes: a `PartitionSpec` for all, or a pytree of them that is a prefix of the
            tree. None: the first dimension that the number of devices divides is sharded over all
            of them; a leaf without one is replicated.

    Returns:
        A pytree like ``tree``, in which each leaf is what ``f`` gives, with the leaf's leading
        dimensions in front. A result that is a matrix is sharded as the leaf is, but for dimensions
        that the axes don't divide; others are replicated but for the leading dimensions.

    A matrix for which ``f`` gives NaN or infinity leaves all others as they are. Equal shapes at
    one home are one ``jax.vmap`` of ``f``; on several CPU devices they are taken one after the
    other, since JAX's LAPACK kernels lock up there otherwise. JAX may differentiate it.

    Cost: beside ``f`` one exchange of all devices with all each way, of the leaves' and of the
    results' numbers (where leaves are replicated none in, and all results are gathered). Memory:
    beside operands and results twice what is at home on a device, of operands and of results; of
    replicated results one more copy.

    Raises:
        TypeError: a leaf isn't an array.
        ValueError: a leaf has fewer than two dimensions; a spec that doesn't fit; under ``jit`` on
            automatic axes no mesh; a call inside ``shard_map``.
        NotImplementedError: JAX before 0.10.

    Examples:
        >>> factors = jaxmg.tree.map(jnp.linalg.cholesky, statistics)
    """
    return trees.of_each("map", f, tree, mesh, matrix_specs, cost=cost)


@_compat.api_boundary
def eigh(
    tree: Any,
    UPLO: Triangle | None = None,
    symmetrize_input: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """Eigenvalues and eigenvectors of each Hermitian matrix of a pytree: `jax.numpy.linalg.eigh`.

    Args:
        tree: a pytree of arrays (..., n, n) of float32, float64, complex64 or complex128.
        UPLO, symmetrize_input: as of JAX's.
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree in which each leaf is JAX's ``EighResult``: eigenvalues (..., n), real, ascending,
        and eigenvectors (..., n, n), sharded as the leaf. Both are NaN of a matrix that has NaN.

    Cost and errors are as for `map`; a dtype that isn't one of the four is a TypeError.
    """
    if not (UPLO is None or (isinstance(UPLO, str) and UPLO in ("L", "U"))):
        raise ValueError(f"tree.eigh: UPLO must be None, 'L' or 'U'; got {UPLO!r}")
    function = _function("eigh", UPLO=UPLO, symmetrize_input=bool(symmetrize_input))
    return trees.of_each("eigh", function, tree, mesh, matrix_specs, checks.DTYPES, square=True)


@_compat.api_boundary
def cholesky(
    tree: Any,
    *,
    upper: bool = False,
    symmetrize_input: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """The Cholesky factor of each Hermitian positive definite matrix of a pytree:
    `jax.numpy.linalg.cholesky`.

    Args:
        tree: a pytree of arrays (..., n, n) of float32, float64, complex64 or complex128.
        upper, symmetrize_input: as of JAX's.
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree of factors like ``tree``, sharded as it is, with zeros in the other triangle. NaN
        of a matrix that isn't positive definite.

    Cost and errors are as for `map`; a dtype that isn't one of the four is a TypeError.
    """
    function = _function("cholesky", upper=bool(upper), symmetrize_input=bool(symmetrize_input))
    return trees.of_each("cholesky", function, tree, mesh, matrix_specs, checks.DTYPES, square=True)


@_compat.api_boundary
def inv(tree: Any, *, mesh: MeshLike | None = None, matrix_specs: Any = None) -> Any:
    """The inverse of each square matrix of a pytree, by LU: `jax.numpy.linalg.inv`.

    Args:
        tree: a pytree of arrays (..., n, n) of float32, float64, complex64 or complex128.
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree of inverses like ``tree``, sharded as it is; with infinity or NaN of a matrix that
        is singular.

    Cost and errors are as for `map`; a dtype that isn't one of the four is a TypeError.
    """
    function = _function("inv")
    return trees.of_each("inv", function, tree, mesh, matrix_specs, checks.DTYPES, square=True)


@_compat.api_boundary
def qr(
    tree: Any,
    mode: Literal["reduced", "complete", "r"] = "reduced",
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """The QR decomposition of each matrix of a pytree: `jax.numpy.linalg.qr`.

    Args:
        tree: a pytree of arrays (..., m, n) of float32, float64, complex64 or complex128.
        mode: as of JAX's; "reduced": Q (..., m, k) and R (..., k, n), k = min(m, n).
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree in which each leaf is JAX's ``QRResult``, or R with "r". Dimensions of Q and R are
        sharded as the leaf's where the axes divide them.

    Cost and errors are as for `map`; a dtype that isn't one of the four is a TypeError.
    """
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"tree.qr: mode must be 'reduced', 'complete' or 'r'; got {mode!r}")
    function = _function("qr", mode=mode)
    return trees.of_each("qr", function, tree, mesh, matrix_specs, checks.DTYPES)


@_compat.api_boundary
def svd(
    tree: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """The singular value decomposition of each matrix of a pytree: `jax.numpy.linalg.svd`.

    Args:
        tree: a pytree of arrays (..., m, n) of float32, float64, complex64 or complex128.
        full_matrices, compute_uv: as of JAX's.
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree in which each leaf is JAX's ``SVDResult``: U, the singular values, descending, and
        V^H; or those alone. Dimensions of U and V^H are sharded as the leaf's where the axes divide
        them.

    Cost and errors are as for `map`; a dtype that isn't one of the four is a TypeError.
    """
    function = _function("svd", full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    return trees.of_each("svd", function, tree, mesh, matrix_specs, checks.DTYPES)


@functools.lru_cache(maxsize=64)
def _function(name: str, **options: Any) -> Callable[[Any], Any]:
    """A function of jax.numpy.linalg with these options: the same object each time."""
    return of_stacks.Function(name, tuple(options.items()))


@_compat.api_boundary
def orthogonal_iteration(
    tree: Any,
    bases: Any,
    steps: SupportsIndex = 1,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """Bases that are nearer to the eigenvectors of each matrix of a pytree: the Q of A Q = Q R, by
    which SOAP refreshes its eigenbases.

    Args:
        tree: a pytree of arrays (..., n, n) of float32, float64, complex64 or complex128; SOAP's
            are the two statistics of each matrix of weights.
        bases: a pytree of the same structure, with the orthonormal columns to begin with, of the
            shapes and dtypes of ``tree``.
        steps: so many products and QR decompositions, at least 1; SOAP takes one each time.
        mesh, matrix_specs: as for `map`, of the leaves of both trees.

    Returns:
        A pytree like ``tree``, sharded as it is, of matrices with orthonormal columns: by
        orthogonal iteration (G. H. Golub, C. F. Van Loan, "Matrix Computations", 2013, 8.2.4),
        where an eigenvector's error is multiplied by the ratio of its eigenvalue to the next larger
        one in each step. R's diagonal is not negative, so that columns keep their directions. NaN
        of a matrix with NaN in it or in its basis.

    Both trees go to the matrices' homes by one exchange. Cost and errors are as for `map`; bases
    that aren't like ``tree`` are a ValueError or a TypeError.

    Examples:
        >>> bases = jaxmg.tree.orthogonal_iteration(statistics, bases)  # N. Vyas et al., 2024
    """
    count = checks.positive("tree.orthogonal_iteration", "steps", steps)
    pairs = trees.side_by_side("orthogonal_iteration", tree, bases, checks.DTYPES, matrix_specs)
    function = of_stacks.OrthogonalIteration(count)
    return trees.of_each(
        "orthogonal_iteration", function, pairs, mesh, matrix_specs, cost=of_stacks.cost_of_pair
    )


@_compat.api_boundary
def orthogonalize(
    tree: Any,
    steps: SupportsIndex = 5,
    method: Literal["newton-schulz", "polar-express", "exact"] = "newton-schulz",
    *,
    dtype: Any = None,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """The nearest matrix with orthonormal rows or columns to each matrix of a pytree: U V^H of its
    singular value decomposition, as Muon has it of a momentum.

    Args:
        tree: a pytree of arrays (..., m, n) of float32, float64, complex64, complex128, bfloat16 or
            float16; a single array among them.
        steps: of the iteration, each of 2 k^2 l + k^3 multiplications and additions, where k is the
            smaller of m and n and l the larger; at least 1. "exact" has none.
        method: "newton-schulz": with Muon's coefficients (K. Jordan et al., 2024), which take
            singular values of at least 0.001 of the Frobenius norm to somewhere in [0.4, 1.21] with
            5 steps, and no nearer to 1 with more. "polar-express": the best polynomials for the
            same singular values (N. Amsel et al., "The Polar Express", 2025): [0.84, 1.13] with 5
            steps, 1 within 0.006 with 6, and within rounding with 8. "exact": by JAX's singular
            value decomposition.
        dtype: in which the iteration is computed, such as ``jnp.bfloat16``; None: the leaf's.
            Complex leaves are computed in the complex dtype of its precision, at least complex64.
            The scaling by the Frobenius norm before it is done in at least float32. Leaves of
            float32 are rounded to bfloat16 before they go to their homes, which halves what is
            exchanged. Not for "exact".
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree like ``tree``, of its dtypes and sharded as it is. Singular values that are 0 stay
        so; with "exact" they become 1, in a direction that is arbitrary. NaN of a matrix with NaN.

    Cost and errors are as for `map`, with three to five matrices of a leaf's shape beside; another
    ``method``, ``steps`` or ``dtype`` is a ValueError or a TypeError.

    Examples:
        >>> updates = jaxmg.tree.orthogonalize(momenta, dtype=jnp.bfloat16)
    """
    if method not in _METHODS:
        raise ValueError(
            f"tree.orthogonalize: method must be one of {', '.join(_METHODS)}; got {method!r}"
        )
    count = checks.positive("tree.orthogonalize", "steps", steps)
    if method == "exact":
        if dtype is not None:
            raise ValueError("tree.orthogonalize: dtype is not for method='exact'; leave it out")
        return trees.of_each(
            "orthogonalize", of_stacks.EXACTLY_ORTHOGONAL, tree, mesh, matrix_specs, checks.DTYPES
        )
    if dtype is not None and str(jnp.dtype(dtype)) not in _FLOATS:
        raise TypeError(
            f"tree.orthogonalize: dtype must be one of {', '.join(_FLOATS)}; got {dtype!r}"
        )
    of = None if dtype is None else jnp.dtype(dtype)
    return trees.of_each(
        "orthogonalize", _orthogonal(method, count, of), tree, mesh, matrix_specs, _FLOATS,
        cost=_steps_cost, rounded={"float32": "bfloat16"} if of == jnp.bfloat16 else None,
    )  # fmt: skip


@_compat.api_boundary
def inverse_pth_root(
    tree: Any,
    p: SupportsIndex,
    epsilon: float = 1e-6,
    method: Literal["eigh", "newton"] = "eigh",
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
) -> Any:
    """(A + epsilon w I)^(-1/p) of each Hermitian positive semidefinite matrix A of a pytree, w its
    largest eigenvalue: the preconditioners of Shampoo.

    Args:
        tree: a pytree of arrays (..., n, n) of float32, float64, complex64 or complex128; a single
            array among them.
        p: at least 1; Shampoo's is 4 for the two statistics of a matrix.
        epsilon: the ridge, relative to w; at least 0.
        method: "eigh": by eigenvalues and eigenvectors. "newton": the coupled Newton iteration
            (C.-H. Guo and N. J. Higham, "A Schur-Newton method for the matrix pth root and its
            inverse", 2006), by products alone, about log(1 / epsilon) + 6 steps of 2 log2(p) + 2
            products, with w by 100 steps of power iteration: too small by a few percent where the
            largest eigenvalues are close to each other, and so is the ridge.
        mesh, matrix_specs: as for `map`.

    Returns:
        A pytree like ``tree``, of its dtypes and sharded as it is, Hermitian. NaN or infinity of a
        matrix that isn't positive definite with its ridge, and of one that is zero.

    Rounding in A's small eigenvalues, n eps w, counts against the ridge. In float32, with
    eigenvalues down to the ridge, relative errors were up to 4e-4 / p of "newton" and 3e-3 / p of
    "eigh" with epsilon 1e-4, and 2e-2 / p and 2e-1 / p with 1e-6 (order 128 and less). In float64
    both agreed to 4e-8, with epsilon 1e-6.

    Cost and errors are as for `map`; another ``method``, ``p`` or ``epsilon`` is a ValueError or a
    TypeError.

    Examples:
        >>> preconditioners = jaxmg.tree.inverse_pth_root(statistics, 4)
    """
    if method not in ("eigh", "newton"):
        raise ValueError(
            f"tree.inverse_pth_root: method must be 'eigh' or 'newton'; got {method!r}"
        )
    root = checks.positive("tree.inverse_pth_root", "p", p)
    if not (isinstance(epsilon, (int, float)) and 0 <= epsilon < math.inf):
        raise ValueError(
            f"tree.inverse_pth_root: epsilon must be a number of at least 0; got {epsilon!r}"
        )
    function = _inverse_root(method, root, float(epsilon))
    return trees.of_each(
        "inverse_pth_root", function, tree, mesh, matrix_specs, checks.DTYPES, square=True
    )


@functools.lru_cache(maxsize=64)
def _orthogonal(method: str, steps: int, dtype: Any) -> Callable[[Any], Any]:
    """The function of `orthogonalize`: the same object each time."""
    known = iterations.POLAR_EXPRESS if method == "polar-express" else iterations.NEWTON_SCHULZ
    coefficients = known[:steps] + known[-1:] * max(0, steps - len(known))
    return of_stacks.Orthogonal(coefficients, method == "polar-express", dtype)


@functools.lru_cache(maxsize=64)
def _inverse_root(method: str, p: int, epsilon: float) -> Callable[[Any], Any]:
    """The function of `inverse_pth_root`: the same object each time."""
    by = iterations.root_by_newton if method == "newton" else iterations.root_by_eigenvalues
    return of_stacks.InverseRoot(by, p, epsilon)


def _steps_cost(matrix: jax.ShapeDtypeStruct) -> float:
    """As `homes.operations`, of a step of `orthogonalize`."""
    k, larger = sorted(matrix.shape)
    return homes.operations(matrix) * (2 * larger + k) / max(3 * larger, 1)


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        raise _names.missing(__name__, name)
