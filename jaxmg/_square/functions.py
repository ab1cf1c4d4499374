"""`jaxmg.linalg.funm`, `sqrtm`, `expm` and `logm`: functions of a matrix."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import blocks, checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._eigen import linalg as eigh_linalg
from jaxmg._layouts import meshes, places
from jaxmg._linalg import compositions, halves, whole
from jaxmg._matrices import hermitian, products
from jaxmg._square import exponential
from jaxmg._stacks import batching, rotations
from jaxmg._transform import derivatives
from jaxmg._types import AnyMatrixLike, MeshLike


@_compat.api_boundary
def funm(
    A: AnyMatrixLike,
    func: Callable[[Array], Array],
    disp: Literal[True] = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes a function of a Hermitian matrix from its eigenvalues, as `jax.scipy.linalg.funm`.

    Args:
        A: (n, n), Hermitian.
        func: Function that maps the eigenvalues of A, (n,), to the eigenvalues of the result. Its
            argument has A's dtype: pass a complex A for a complex function.
        disp: Must be True.
        mesh, matrix_specs, in_specs: As in `jaxmg.syevd`.

    Returns:
        V func(w) V^H, (n, n), sharded like A. As in SciPy it is real if A and func(w) are. If A
        isn't Hermitian, the result is NaN.

    Cost: that of `jaxmg.syevd`, and 2 n^3 flops over all ranks. Memory: first that of
    `jaxmg.syevd`, then four matrices like A plus the result.

    Raises:
        NotImplementedError: ``disp=False``, which asks for an estimate of the error.
        TypeError, ValueError, RuntimeError: As `jaxmg.syevd`. A ``func`` that returns another shape
            raises a ValueError.

    Examples:
        >>> b = jaxmg.linalg.funm(a, jnp.tanh)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.funm", matrix_specs, in_specs)
    if not disp:
        raise NotImplementedError(
            "linalg.funm: disp=False, which asks for an estimate of the error, is not supported; "
            "because the eigenvectors are orthonormal, the error is about n eps max(abs(func(w)))"
        )
    return _function(A, func, "funm", mesh, matrix_specs)


@_compat.api_boundary
def sqrtm(
    A: AnyMatrixLike,
    blocksize: int = 1,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the principal square root of a Hermitian matrix, as `jax.scipy.linalg.sqrtm`.

    Args:
        A: (n, n), Hermitian. A real A has to be positive semidefinite; pass a complex A if it has
            negative eigenvalues. Negative eigenvalues of magnitude up to n eps times the largest
            magnitude count as 0.
        blocksize: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.syevd`.

    Returns:
        The root, (n, n), of A's dtype and sharding; JAX's is always complex. It is NaN if A is real
        and indefinite, or isn't Hermitian. If A is singular, the derivative is infinite or NaN,
        except for tangents dA with N^H dA N = 0, where the columns of N span A's null space.

    Cost and errors are those of `funm`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.sqrtm", matrix_specs, in_specs)

    return _function(A, _root, "sqrtm", mesh, matrix_specs)


@_compat.api_boundary
def expm(
    A: AnyMatrixLike,
    *,
    upper_triangular: bool = False,
    max_squarings: SupportsIndex = 16,
    assume_a: Literal["her", "hermitian", "gen", "general"] | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the exponential of any square matrix, as `jax.scipy.linalg.expm`.

    Args:
        A: (n, n).
        upper_triangular: Whether to read only the upper triangle of A. The cost is the same.
        max_squarings: Largest number of squarings, as JAX counts them: A needs at most about
            log2(w) - 2.4 (single precision: log2(w) - 2), where w is its 1-norm.
        assume_a: "her" or "hermitian": A is Hermitian, and the result is computed from its
            eigenvalues; ``max_squarings`` doesn't apply. None, "gen" or "general": scaling and
            squaring with a Taylor polynomial.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`, or with "her" as in `jaxmg.syevd`.

    Returns:
        The exponential, (n, n), of A's dtype and sharding. It is NaN if A needs more squarings
        than ``max_squarings``, or with "her" if A isn't Hermitian.

    For a triangular A the diagonal and the first off-diagonal are exact to rounding, and the other
    triangle is zero.

    Cost: 5 products of 2 n^3 flops over all ranks (single precision: 4), and one product for each
    squaring. `expm` takes at most 3 more squarings than JAX counts (P. Bader, S. Blanes, F. Casas,
    Mathematics 7, 2019; A. H. Al-Mohy, N. J. Higham, SIAM J. Matrix Anal. Appl. 31, 2009). A
    gradient takes three times as many products as the result, and computes the result again.
    Memory: about eight times A's. With "her" cost and memory are those of `funm`.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_factor` or `funm`. An
            invalid ``assume_a``, or ``upper_triangular`` with "her", raises a ValueError.

    Examples:
        >>> propagator = jaxmg.linalg.expm(-1j * t * h, assume_a=None)
        >>> weights = jaxmg.linalg.expm(-beta * h, assume_a="her")
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.expm", matrix_specs, in_specs)
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
    if compositions.ASSUMED[assume_a] != "her":
        return compositions.run(
            (A,),
            "expm",
            exponential_of,
            ("matrix",),
            mesh,
            matrix_specs,
            bool(upper_triangular),
            squarings,
        )
    if upper_triangular:
        raise ValueError(
            f"linalg.expm: upper_triangular=True contradicts assume_a={assume_a!r}, which says "
            "that A is Hermitian; pass only one of them"
        )
    return _function(A, jnp.exp, "expm", mesh, matrix_specs)


@_compat.api_boundary
def logm(
    A: AnyMatrixLike,
    disp: Literal[True] = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the principal logarithm of a Hermitian matrix, as `scipy.linalg.logm`.

    JAX has no ``logm``.

    Args:
        A: (n, n), Hermitian. A real A has to be positive definite; pass a complex A if it has
            negative eigenvalues.
        disp: Must be True.
        mesh, matrix_specs, in_specs: As in `jaxmg.syevd`.

    Returns:
        The logarithm, (n, n), of A's dtype and sharding. It is NaN if A is real with negative
        eigenvalues, or isn't Hermitian.

    Cost and errors are those of `funm`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.logm", matrix_specs, in_specs)
    if not disp:
        raise NotImplementedError(
            "linalg.logm: disp=False, which asks for an estimate of the error, is not supported"
        )
    return _function(A, jnp.log, "logm", mesh, matrix_specs)


@jax.custom_jvp
def _root(w):
    """Returns the square roots of eigenvalues; 0 for eigenvalues that are negative by rounding."""
    rounding = w.size * jnp.finfo(w.dtype).eps * jnp.max(jnp.abs(w), initial=0)
    zero = (w.real <= 0) & (w.real >= -rounding)
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, w)))


@_root.defjvp
def _root_jvp(primals, tangents):
    """JVP rule: the tangent at 0 is infinite, unless the tangent of w is 0."""
    (w_dot,), root = tangents, _root(*primals)
    zero = root == 0
    slopes = jnp.where(zero, 0, 0.5 / jnp.where(zero, 1, root))
    at_zero = jnp.where(zero, w_dot, 0)
    return root, w_dot * slopes + rotations.divide(at_zero, jnp.where(zero, 0, 1))


def _function(a, func, name, mesh, spec) -> Any:
    """Computes a function of a Hermitian matrix from ``func`` of its eigenvalues."""
    if not halves.is_half(a):
        return _function_of(a, func, name, mesh, spec, compositions.HERMITIAN)
    (found,) = places.fetch((a,))
    checks.usable(f"linalg.{name}", compositions.matrix_name(name), found)
    result = _function_of(halves.widened(found), func, name, mesh, spec, halves.read_of(a))
    return halves.narrowed(result, a.dtype)


def _function_of(a, func, name, mesh, spec, read) -> Any:
    if isinstance(a, Tracer) or getattr(a, "ndim", 2) > 2:
        return _function_of_traced(a, func, name, mesh, spec, read)
    w, v = eigh_linalg.pairs((a,), name, mesh, spec, read)
    values = _values_at(w.astype(v.dtype), func, name)
    if isinstance(values, Tracer):
        return _function_of_traced(a, func, name, mesh, spec, read)
    return compositions.run((v, values), name, scaled, ("matrix",), mesh, spec)


def _values_at(points, func, name):
    values = jnp.asarray(func(points))
    if values.shape != points.shape:
        raise ValueError(
            f"linalg.{name}: func must return an array of its argument's shape, {points.shape}; it "
            f"returned shape {values.shape}"
        )
    return values


def _function_of_traced(a, func, name, mesh, spec, read) -> Any:
    checks.is_an_array(f"linalg.{name}", compositions.matrix_name(name), a)
    (a,) = compositions.promote(name, a)
    if batching.is_batch(a):
        where = compositions.where_each_is(name, a, mesh, matrix_spec(f"linalg.{name}", spec, None))
        lie = whole.places(where[0], (a,), (a.ndim - 2,))
        (mesh, spec), each = where, functools.partial(_function_of, func=func, name=name, read=read)
        found = compositions.over_leading(name, lambda a: each(a, mesh=mesh, spec=spec), (a,))
        return found if lie is None else lie.put(("matrix",), found)
    if _compat.transformation(a):
        mesh, spec = compositions.seen_below(
            name, (a,), mesh, matrix_spec(f"linalg.{name}", spec, None)
        )
    w, v = eigh_linalg.pairs((a,), name, mesh, spec, read)
    points = w.astype(v.dtype)
    values = _values_at(points, func, name)
    if not _compat.TRANSFORMS:
        return compositions.run((v, values), name, scaled, ("matrix",), mesh, spec)
    slopes = jax.jvp(func, (points,), (jnp.ones_like(points),))[1]
    return _recompose((name, mesh, spec), a, w, v, values, slopes)


def _recompose(where, *arrays):
    """Returns V diag(values) V^H for arrays (a, w, v, values, slopes), with the derivative

        V (F o V^H dA V) V^H,  F_ij = (values_i - values_j) / (w_i - w_j), slopes_i if w_i = w_j

    (N. J. Higham, "Functions of Matrices", SIAM 2008, theorem 3.11). The diagonal of the inner
    matrix has the tangents of the values, which may depend on more than A. The rule ignores the
    tangents of w and v: those of eigenvectors are infinite if eigenvalues are equal.
    """
    name, mesh, spec = where

    def value(a, w, v, values, slopes):
        return compositions.run((v, values), name, scaled, ("matrix",), mesh, spec)

    def derivative(primals, tangents):
        result = _recompose(where, *primals)
        (a, w, v, values, slopes), (a_dot, *_, values_dot, _) = primals, tangents
        values_dot = jnp.zeros_like(values) if values_dot is None else values_dot
        if a_dot is None:
            return result, value(a, w, v, values_dot, slopes)
        # Else XLA recomputes the values and slopes for each pair of eigenvalues.
        w, values, slopes = jax.lax.optimization_barrier((w, values, slopes))
        layout = meshes.infer(
            f"linalg.{name}", (a,), *compositions.seen_below(name, (a,), mesh, spec)
        )
        x = hermitian.rows(layout, v)
        a_dot = hermitian.full(layout, hermitian.rows(layout, a_dot))
        inner = hermitian.adjoint_times(layout, x, hermitian.times(layout, a_dot, x))
        inner = hermitian.divided(layout, inner, w, values, slopes, values_dot)
        x = x.astype(inner.dtype)
        rows = hermitian.times_adjoint(layout, hermitian.times(layout, x, inner), x)
        return result, hermitian.laid_out_like(layout, rows, result)

    return derivatives.differentiable(value, derivative, *arrays)


@compositions.program()
def exponential_of(call, a):
    upper, squarings = call.attributes
    return (exponential.exponential(jnp.triu(a) if upper else a, call.layout, squarings),)


@compositions.program(is_product=lambda: True)
def scaled(call, v, values):
    """Computes V diag(values) V^H. The values may be complex while V is real."""
    values = blocks.replicate(values, call.layout)
    inexact = jnp.issubdtype(values.dtype, jnp.inexact)
    dtype = np.promote_types(v.dtype, values.dtype) if inexact else v.dtype
    v, values = v.astype(dtype), values.astype(dtype)
    return (products.rows_times_adjoint(v * values[None], v, call.layout),)
