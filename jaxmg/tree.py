"""Linear algebra on pytrees of many matrices, as in an optimizer; each matrix is on one device.

`jaxmg.linalg` spreads one large matrix over all devices. Hundreds of matrices of medium size are
faster on a single device each. The functions here take any pytree of arrays (..., m, n), with
leading dimensions as batches. They assign the matrices to devices so that all devices finish
together. One exchange moves all leaves to these devices, and another one moves the results back.

    jaxmg.tree.eigh(statistics)        # a tree of (w, v)
    jaxmg.tree.map(f, tree)            # any function of one matrix

A single array is a tree of one leaf. ``None`` isn't a leaf of a tree, as in JAX. The functions
except `map` support float32, float64, complex64, complex128, bfloat16 and float16. They compute
with the last two in float32, and round matrices to the leaf's dtype; eigenvalues and singular
values stay float32. (`orthogonalize` iterates in the leaf's dtype unless ``dtype`` is passed.)
docs/howto/optimizers.md has the costs. All functions need JAX 0.10 or newer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

import jax
import jax.numpy as jnp

from jaxmg import _compat, _names
from jaxmg._call import checks
from jaxmg._call.arguments import either_spec
from jaxmg._trees import functions, iterations, trees
from jaxmg._types import MeshLike, Triangle

__all__ = [
    "cholesky", "eigh", "inv", "inverse_pth_root", "map", "orthogonal_iteration", "orthogonalize",
    "qr", "svd",
]  # fmt: skip

# A result has the type of the tree; leaves of NumPy become JAX arrays.
_Tree = TypeVar("_Tree")

_METHODS = ("newton-schulz", "polar-express", "exact")
_PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")
_FLOATS = (*checks.DTYPES, *checks.HALVES)


@_compat.api_boundary
def map(
    f: Callable[[Any], Any],
    tree: Any,
    *,
    cost: Callable[[jax.ShapeDtypeStruct], float] | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> Any:
    """Applies ``f`` to each matrix of a pytree, as `jax.tree.map` does to each leaf.

    Args:
        f: Traceable function of one matrix, (m, n), that returns an array or a pytree of arrays. In
            eager calls a different function object triggers a recompilation, as in `jax.jit`.
        tree: Pytree of arrays (..., m, n) of any shapes, dtypes and shardings.
        cost: Function that returns the cost of ``f``, in any unit, for a `jax.ShapeDtypeStruct` of
            shape (m, n), to balance the devices' work. None: m n min(m, n) (complex: 4 times), plus
            a fixed cost of 64^3 per matrix.
        mesh: Mesh to run on. None: the mesh of a leaf, else the context mesh.
        matrix_specs: Sharding of the leaves under ``jit`` on automatic axes, where arrays carry
            none: a `PartitionSpec`, or a pytree of them that is a prefix of the tree. None: the
            first dimension that the number of devices divides is sharded; a leaf without such a
            dimension is replicated.
        in_specs: Alias of ``matrix_specs``.

    Returns:
        A pytree like ``tree`` with the results of ``f`` in place of leaves, stacked in the leaf's
        leading dimensions. A result that is a matrix is sharded like the leaf, except in dimensions
        that the axes don't divide. Other results are sharded only in the leading dimensions.

    NaN or infinity in the result for one matrix doesn't affect others. A device runs matrices of
    equal shape as one ``jax.vmap`` of ``f``. If there are several CPU devices, each runs its
    matrices in turn: JAX's LAPACK kernels deadlock otherwise. JAX can differentiate the call.

    Cost: that of ``f``, and one all-to-all exchange of the leaves and one of the results.
    Replicated leaves need no exchange, and their results are gathered. Memory: twice a device's
    operands and results, and one more copy of replicated results.

    Raises:
        TypeError: A leaf isn't an array.
        ValueError: A leaf has fewer than two dimensions, a spec doesn't match, there is no mesh
            under ``jit`` on automatic axes, or the call is inside ``shard_map``.
        NotImplementedError: JAX is older than 0.10.

    Examples:
        >>> factors = jaxmg.tree.map(jnp.linalg.cholesky, statistics)
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.map", matrix_specs, in_specs)
    return trees.map_leaves("map", f, tree, mesh, matrix_specs, cost=cost)


@_compat.api_boundary
def eigh(
    tree: Any,
    UPLO: Triangle | None = None,
    symmetrize_input: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> Any:
    """Computes the eigenvalues and eigenvectors of each Hermitian matrix of a pytree.

    Args:
        tree: Pytree of arrays (..., n, n) of a supported dtype.
        UPLO, symmetrize_input: As in `jax.numpy.linalg.eigh`.
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree like ``tree`` with JAX's ``EighResult`` in place of leaves: eigenvalues (..., n),
        real and ascending, and eigenvectors (..., n, n), sharded like the leaf. A matrix with NaN
        gives NaN.

    Cost and errors are those of `map`. Another dtype raises a TypeError.
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.eigh", matrix_specs, in_specs)
    if not (UPLO is None or (isinstance(UPLO, str) and UPLO in ("L", "U"))):
        raise ValueError(f"tree.eigh: UPLO must be None, 'L' or 'U'; got {UPLO!r}")
    function = _function("eigh", UPLO=UPLO, symmetrize_input=bool(symmetrize_input))
    return trees.map_leaves("eigh", function, tree, mesh, matrix_specs, _FLOATS, square=True)


@_compat.api_boundary
def cholesky(
    tree: _Tree,
    *,
    upper: bool = False,
    symmetrize_input: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> _Tree:
    """Computes the Cholesky factor of each Hermitian positive definite matrix of a pytree.

    Args:
        tree: Pytree of arrays (..., n, n) of a supported dtype.
        upper, symmetrize_input: As in `jax.numpy.linalg.cholesky`.
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree of factors like ``tree``, sharded like it, with zeros in the other triangle. The
        factor of a matrix that isn't positive definite is NaN.

    Cost and errors are those of `map`. Another dtype raises a TypeError.
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.cholesky", matrix_specs, in_specs)
    function = _function("cholesky", upper=bool(upper), symmetrize_input=bool(symmetrize_input))
    return trees.map_leaves("cholesky", function, tree, mesh, matrix_specs, _FLOATS, square=True)


@_compat.api_boundary
def inv(
    tree: _Tree, *, mesh: MeshLike | None = None, matrix_specs: Any = None, in_specs: Any = None
) -> _Tree:
    """Inverts each square matrix of a pytree by LU.

    Args:
        tree: Pytree of arrays (..., n, n) of a supported dtype.
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree of inverses like ``tree``, sharded like it. The inverse of a singular matrix has
        infinity or NaN.

    Cost and errors are those of `map`. Another dtype raises a TypeError.
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.inv", matrix_specs, in_specs)
    function = _function("inv")
    return trees.map_leaves("inv", function, tree, mesh, matrix_specs, _FLOATS, square=True)


@_compat.api_boundary
def qr(
    tree: Any,
    mode: Literal["reduced", "complete", "r"] = "reduced",
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> Any:
    """Computes the QR decomposition of each matrix of a pytree.

    Args:
        tree: Pytree of arrays (..., m, n) of a supported dtype.
        mode: As in `jax.numpy.linalg.qr`. "reduced": Q (..., m, k) and R (..., k, n), k = min(m,
            n).
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree like ``tree`` with JAX's ``QRResult`` in place of leaves, or R for "r". Dimensions
        of Q and R are sharded like the leaf's if the axes divide them.

    Cost and errors are those of `map`. Another dtype raises a TypeError.
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.qr", matrix_specs, in_specs)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"tree.qr: mode must be 'reduced', 'complete' or 'r'; got {mode!r}")
    function = _function("qr", mode=mode)
    return trees.map_leaves("qr", function, tree, mesh, matrix_specs, _FLOATS)


@_compat.api_boundary
def svd(
    tree: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> Any:
    """Computes the singular value decomposition of each matrix of a pytree.

    Args:
        tree: Pytree of arrays (..., m, n) of a supported dtype.
        full_matrices, compute_uv: As in `jax.numpy.linalg.svd`.
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree like ``tree`` with JAX's ``SVDResult`` in place of leaves: U, the singular values,
        descending, and V^H; without ``compute_uv`` the singular values. Dimensions of U and V^H are
        sharded like the leaf's if the axes divide them.

    Cost and errors are those of `map`. Another dtype raises a TypeError.
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.svd", matrix_specs, in_specs)
    function = _function("svd", full_matrices=bool(full_matrices), compute_uv=bool(compute_uv))
    return trees.map_leaves("svd", function, tree, mesh, matrix_specs, _FLOATS)


@functools.lru_cache(maxsize=64)
def _function(name: str, **options: Any) -> Callable[[Any], Any]:
    """Returns a function of jax.numpy.linalg with these options, always the same object."""
    return functions.InSingle(functions.Function(name, tuple(options.items())))


@_compat.api_boundary
def orthogonal_iteration(
    tree: _Tree,
    bases: _Tree,
    steps: SupportsIndex = 1,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> _Tree:
    """Improves a basis of eigenvectors of each matrix of a pytree, as SOAP does.

    Each step replaces the basis Q by the Q of the QR decomposition of A Q. It multiplies the error
    of eigenvector i by about the larger of abs(w[i] / w[i-1]) and abs(w[i+1] / w[i]), where w is
    sorted by descending magnitude (G. H. Golub, C. F. Van Loan, "Matrix Computations", 2013,
    8.2.4).

    Args:
        tree: Pytree of arrays (..., n, n) of a supported dtype.
        bases: Pytree of the same structure, shapes and dtypes, with the initial orthonormal
            columns.
        steps: Number of iterations, at least 1; each is one product and one QR decomposition. SOAP
            takes one.
        mesh, matrix_specs, in_specs: As in `map`, for the leaves of both trees.

    Returns:
        A pytree like ``tree``, sharded like it, of matrices with orthonormal columns. The diagonal
        of R is nonnegative, so columns keep their directions. A matrix or basis with NaN gives NaN.

    Cost and errors are those of `map`; one exchange moves both trees. Bases that don't match
    ``tree`` raise a ValueError or a TypeError.

    Examples:
        >>> bases = jaxmg.tree.orthogonal_iteration(statistics, bases)  # N. Vyas et al., 2024
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.orthogonal_iteration", matrix_specs, in_specs)
    count = checks.positive("tree.orthogonal_iteration", "steps", steps)
    pairs = trees.side_by_side("orthogonal_iteration", tree, bases, _FLOATS, matrix_specs)
    function = functions.InSingle(functions.OrthogonalIteration(count))
    return trees.map_leaves(
        "orthogonal_iteration", function, pairs, mesh, matrix_specs, cost=functions.cost_of_pair
    )


@_compat.api_boundary
def orthogonalize(
    tree: _Tree,
    steps: SupportsIndex = 5,
    method: Literal["newton-schulz", "polar-express", "exact"] = "newton-schulz",
    *,
    coefficients: Sequence[float] | Sequence[Sequence[float]] | None = None,
    preconditioning: Literal["frobenius", "spectral", "aol", "schatten"] = "frobenius",
    eps: float = 0.0,
    dtype: Any = None,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> _Tree:
    """Replaces each matrix of a pytree by the nearest one with orthonormal rows or columns.

    The result is U V^H for a matrix U S V^H (its singular value decomposition); Muon computes it
    for each momentum.

    Args:
        tree: Pytree of arrays (..., m, n) of a supported dtype, or a single array.
        steps: Number of iterations, at least 1; each takes 2 k^2 l + k^3 flops, where k is the
            smaller and l the larger of m and n. Ignored by "exact".
        method: Algorithm. Singular values of at least 0.001 of the Frobenius norm end in the ranges
            below.

            - "newton-schulz", with Muon's coefficients (K. Jordan et al., 2024): [0.47, 1.21] after
              5 steps, [0.68, 1.14] after 7 or more.
            - "polar-express", the best polynomials (N. Amsel et al., "The Polar Express", 2025):
              [0.84, 1.13] after 5 steps, within 0.006 of 1 after 6, and 1 to rounding after 8.
            - "exact": JAX's singular value decomposition.
        coefficients: Other coefficients for "newton-schulz": (a, b, c) of the polynomial a x + b
            x^3 + c x^5 of singular values, or one triple for each step; ``steps`` is then ignored.
        preconditioning: How matrices are scaled before the first step; not for "exact". "frobenius"
            and "spectral" divide by this norm, "schatten" by the Schatten norm of order 4. "aol"
            divides each row of A by the square root of the sum of this row of abs(A A^H), and the
            columns of a tall A likewise (T. Boissin et al., "Turbo-Muon", 2025). "spectral"
            computes all singular values; "schatten" and "aol" cost a product.
        eps: For "frobenius" and "spectral", a number that is added to the norm, as in optax's Muon.
            For "schatten" and "aol", the lower bound of the squared divisors. Not for "exact".
        dtype: Dtype of the iteration, such as ``jnp.bfloat16``; not for "exact". None: the leaf's.
            Complex leaves use the complex dtype of this precision, at least complex64. Scaling by
            the Frobenius norm uses at least float32. bfloat16 halves the exchange of float32
            leaves, which are rounded first.
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree like ``tree``, of its dtypes, sharded like it. Singular values of 0 stay 0; with
        "exact" they become 1, in an arbitrary direction. A matrix with NaN gives NaN.

    Cost and errors are those of `map`. Memory: three to five more matrices of a leaf's shape. An
    invalid option raises a ValueError or a TypeError.

    Examples:
        >>> updates = jaxmg.tree.orthogonalize(momenta, dtype=jnp.bfloat16)
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.orthogonalize", matrix_specs, in_specs)
    if method not in _METHODS:
        raise ValueError(
            f"tree.orthogonalize: method must be one of {', '.join(_METHODS)}; got {method!r}"
        )
    if preconditioning not in _PRECONDITIONINGS:
        raise ValueError(
            f"tree.orthogonalize: preconditioning must be one of {', '.join(_PRECONDITIONINGS)}; "
            f"got {preconditioning!r}"
        )
    if not (isinstance(eps, (int, float)) and 0 <= eps < math.inf):
        raise ValueError(f"tree.orthogonalize: eps must be a number of at least 0; got {eps!r}")
    count = checks.positive("tree.orthogonalize", "steps", steps)
    if coefficients is not None and method != "newton-schulz":
        raise ValueError(
            "tree.orthogonalize: coefficients are only for method='newton-schulz'; got "
            f"method={method!r}"
        )
    polynomials = iterations.choose_coefficients(method, count, coefficients)
    scale = iterations.Scale(preconditioning, float(eps))
    plain = scale == iterations.Scale("frobenius", 0.0)
    if method == "exact":
        for name, absent in (("dtype is", dtype is None), ("preconditioning and eps are", plain)):
            if not absent:
                raise ValueError(f"tree.orthogonalize: {name} not supported by method='exact'")
        return trees.map_leaves(
            "orthogonalize", functions.EXACTLY_ORTHOGONAL, tree, mesh, matrix_specs, _FLOATS
        )
    if dtype is not None and str(jnp.dtype(dtype)) not in _FLOATS:
        raise TypeError(
            f"tree.orthogonalize: dtype must be one of {', '.join(_FLOATS)}; got {dtype!r}"
        )
    of = None if dtype is None else jnp.dtype(dtype)
    function = _orthogonal(polynomials, method == "polar-express", of, None if plain else scale)
    return trees.map_leaves(
        "orthogonalize", function, tree, mesh, matrix_specs, _FLOATS,
        cost=functions.cost_of_step,
        rounded={"float32": "bfloat16"} if of == jnp.bfloat16 else None,
    )  # fmt: skip


@_compat.api_boundary
def inverse_pth_root(
    tree: _Tree,
    p: SupportsIndex,
    epsilon: float = 1e-6,
    method: Literal["eigh", "newton"] = "eigh",
    *,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> _Tree:
    """Computes the inverse p-th root of each Hermitian positive semidefinite matrix of a pytree.

    The result is (A + epsilon w I)^(-1/p), where w is A's largest eigenvalue: Shampoo's
    preconditioners.

    Args:
        tree: Pytree of arrays (..., n, n) of a supported dtype, or a single array.
        p: Order of the root, at least 1; Shampoo takes 4 for matrices.
        epsilon: Ridge relative to w, at least 0.
        method: Algorithm.

            - "eigh": eigenvalues and eigenvectors.
            - "newton": the coupled Newton iteration (C.-H. Guo and N. J. Higham, 2006): about
              (log(1 / epsilon) + 6) steps, each of (2 log2(p) + 2) products. Power iteration (100
              steps) computes w; w and the ridge are too small by a few percent if the largest
              eigenvalues are close.
        mesh, matrix_specs, in_specs: As in `map`.

    Returns:
        A pytree like ``tree``, of its dtypes, sharded like it, of Hermitian matrices. A matrix that
        is zero, or isn't positive definite even with the ridge, gives NaN or infinity.

    Derivatives of both methods compute the eigenvectors, and are correct even if eigenvalues are
    equal.

    The ridge has to be well above the rounding errors of A's eigenvalues, n eps w, where eps is
    that of the leaf's dtype. In float32 relative errors were up to 4e-4 / p ("newton") and
    3e-3 / p ("eigh") with epsilon 1e-4, and up to 2e-2 / p ("newton") and 2e-1 / p ("eigh") with
    1e-6, for orders up to 128. In float64 the two methods agreed to 4e-8 with 1e-6.

    Cost and errors are those of `map`. An invalid ``method``, ``p`` or ``epsilon`` raises a
    ValueError or a TypeError.

    Examples:
        >>> preconditioners = jaxmg.tree.inverse_pth_root(statistics, 4)
    """
    if in_specs is not None:
        matrix_specs = either_spec("tree.inverse_pth_root", matrix_specs, in_specs)
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
    return trees.map_leaves(
        "inverse_pth_root", function, tree, mesh, matrix_specs, _FLOATS, square=True
    )


@functools.lru_cache(maxsize=64)
def _orthogonal(
    polynomials: tuple[tuple[float, ...], ...],
    safe: bool,
    dtype: Any,
    scale: iterations.Scale | None,
) -> Callable[[Any], Any]:
    """Returns the function of `orthogonalize`, always the same object."""
    return functions.Orthogonal(polynomials, safe, dtype, scale)


@functools.lru_cache(maxsize=64)
def _inverse_root(method: str, p: int, epsilon: float) -> Callable[[Any], Any]:
    """Returns the function of `inverse_pth_root`, always the same object."""
    by = iterations.root_by_newton if method == "newton" else iterations.root_by_eigenvalues
    return functions.InSingle(functions.InverseRoot(by, p, epsilon))


if not TYPE_CHECKING:  # with it type checkers would accept any attribute

    def __getattr__(name):
        raise _names.missing(__name__, name)
