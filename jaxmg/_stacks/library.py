"""Factorizations and eigenvalues by JAX's own functions, which call LAPACK, cuSOLVER or Eigen.

Some of these libraries don't return for a matrix with NaN or infinity (an SVD or an eigensolver
whose iteration never converges), or read beyond its end (a search for the largest of NaNs). So
every library call with a matrix that depends on the caller's goes through this file: `guarded`
checks the matrix first, passes the identity in its place, and returns NaN in all results of that
matrix. Integer results, such as pivots, are then those of the identity. A batch is checked matrix
by matrix. Derivatives of such a matrix are NaN, and those of the others are unaffected.

Cholesky factorization and substitution with a triangle are not guarded: they take the same steps
for any entries, so they return. Before a factorization an infinite diagonal is replaced by NaN.

| function | called for |
|---|---|
| `svd`, `svdvals`, `svd_of_scaled` | `linalg.svd`, `svdvals`, `polar`, `cond`, `norm`, `matrix_rank`, `pinv`, `orth` and `null_space` of small matrices and of batches, the R of `lstsq`, `tree.svd`, `tree.orthogonalize(method="exact")` |
| `eigh`, `eigvalsh`, `eigh_lower`, `eigh_of_scaled`, `eigvalsh_of_scaled` | eigenproblems of batches, `tree.eigh`, `tree.inverse_pth_root`, the second step of batched SVDs on GPUs, the R of `lstsq` |
| `qr` | `linalg.qr` of batches, with pivots the R of single matrices, the rows of each rank where CholeskyQR2 fails, `tree.qr` |
| `lu` | `lu`, `lu_factor`, `gesv`, `getri` of batches, and functions composed of them: `expm`, `inv`, `solve`, `cond` |
| `inv`, `solve`, `slogdet`, `det` | the functions of `linalg` of these names, of batches; `tree.inv` |

On CPU devices the native code calls LAPACK's potrf, trtri, getrf (for a panel) and syevd or heevd;
xla_ffi/device/host/solver.h checks the matrix before the last two.
"""  # noqa: E501

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import rotations, scaling


def eigh_of_scaled(a, bad):
    """Returns (w, V) of the Hermitian parts of matrices (..., n, n) with entries near 1. Matrices
    that aren't finite, as ``bad`` (...) says, give NaN."""
    return jax.tree.map(lambda x: _spoiled(x, bad), _eigh(None, True, _replaced(a, bad)))


def guarded(function, reads=None):
    """Wraps ``function`` of matrices (..., m, n) and other arguments so that it never gets a matrix
    with NaN or infinity. The results of such a matrix are NaN.

    Args:
        reads: function of the matrices and the options that returns the entries that ``function``
            reads. None: all entries.
    """

    @functools.wraps(function)
    def checked(a, *others, **options):
        read = a if reads is None else reads(a, **options)
        bad = ~jnp.isfinite(read).all((-2, -1))
        results = function(_replaced(a, bad), *others, **options)
        return jax.tree.map(lambda x: _spoiled(x, bad), results)

    return checked


def spoiled(function):
    """Wraps ``function`` of matrices (..., n, n) and other arguments, which returns for any
    entries, so that the results of a matrix with NaN or infinity are NaN. Elimination divides by
    an infinite pivot, which leaves finite numbers."""

    @functools.wraps(function)
    def checked(a, *others):
        bad = ~jnp.isfinite(a).all((-2, -1))
        return jax.tree.map(lambda x: _spoiled(x, bad), function(a, *others))

    return checked


def _over(bad, x):
    """Returns ``bad`` (...) in a shape that broadcasts with ``x`` (..., more dimensions). JAX 0.6
    selects only by a scalar if explicit axes shard ``x``."""
    return bad.reshape(bad.shape + (1,) * (x.ndim - bad.ndim)) if bad.ndim else bad


def _nan(dtype):
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return jnp.asarray(complex(jnp.nan, jnp.nan) if is_complex else jnp.nan, dtype)


def _tangent(x_dot, bad):
    """Makes the tangents of bad matrices NaN, in forward and reverse mode."""
    return x_dot * jnp.where(_over(bad, x_dot), _nan(x_dot.dtype), jnp.ones((), x_dot.dtype))


@jax.custom_jvp
def _replaced(a, bad):
    """Replaces each bad matrix by the identity."""
    eye = jnp.broadcast_to(jnp.eye(a.shape[-2], a.shape[-1], dtype=a.dtype), a.shape)
    return jnp.where(_over(bad, a), eye, a)


@_replaced.defjvp
@_compat.default_promotion()
def _(primals, tangents):
    return _replaced(*primals), _tangent(tangents[0], primals[1])


def _spoiled(x, bad):
    """Replaces the results of each bad matrix by NaN, except integers."""
    return with_nan(x, bad) if jnp.issubdtype(x.dtype, jnp.inexact) else x


@jax.custom_jvp
def with_nan(x, bad):
    """Returns ``x`` (..., more dimensions), with NaN where ``bad`` (...) is true. Derivatives are
    NaN there too; those of `jnp.where` would be 0."""
    return jnp.where(_over(bad, x), _nan(x.dtype), x)


@with_nan.defjvp
@_compat.default_promotion()
def _(primals, tangents):
    return with_nan(*primals), _tangent(tangents[0], primals[1])


def _call_jax(name):
    return lambda *arrays, **options: getattr(jnp.linalg, name)(*arrays, **options)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _eigh(triangle, symmetrize, a):
    return jnp.linalg.eigh(a, triangle, symmetrize)


@_eigh.defjvp
@_compat.default_promotion()
def _(triangle, symmetrize, primals, tangents):
    """JVP rule in place of JAX's, which divides by the differences of eigenvalues even if these
    are only rounding errors."""
    (a,), (a_dot,) = primals, tangents
    results = w, v = _eigh(triangle, symmetrize, a)
    if symmetrize:
        a_dot = (a_dot + jnp.swapaxes(a_dot, -1, -2).conj()) / 2
    moved = rotations.of_eigenpairs(w, v, a_dot, functools.partial(jnp.matmul, precision="highest"))
    return results, type(results)(*moved)


def _eigh_with_options(a, UPLO=None, symmetrize_input=True):
    return _eigh(UPLO, symmetrize_input, a)


def _guard(name, reads=None, degrees=(), columns=False, function=None):
    """Returns the guarded function of `jax.numpy.linalg` of this name.

    Args:
        degrees: of the results, if they are homogeneous. The matrices are then scaled here, because
            LAPACK scales by numbers other than powers of two, and not in every routine.
        columns: see `scaling.homogeneous`.
        function: called in place of JAX's.
    """
    function = function or _call_jax(name)
    if degrees:
        function = scaling.homogeneous(function, *degrees, reads=reads, columns=columns)
    return guarded(function, reads)


def _read_by_cholesky(a, upper=False, symmetrize_input=True):
    return _read_by_eigh(a, "U" if upper else "L", symmetrize_input)


def _read_by_eigh(a, UPLO=None, symmetrize_input=True):
    if symmetrize_input:
        return a
    return jnp.triu(a) if UPLO == "U" else jnp.tril(a)


# For matrices with entries near 1.
svd_of_scaled = _guard("svd")
eigvalsh_of_scaled = _guard("eigvalsh", _read_by_eigh)
# `jaxmg._trees.functions` also calls these by name.
svd = _guard("svd", degrees=(0, 1, 0))
eigh = _guard("eigh", _read_by_eigh, degrees=(1, 0), function=_eigh_with_options)
eigvalsh = _guard("eigvalsh", _read_by_eigh, degrees=(1,))
inv = _guard("inv", degrees=(-1,))
solve = _guard("solve", degrees=(-1,), columns=True)
slogdet = _guard("slogdet")
det = _guard("det")


_cholesky = scaling.homogeneous(_call_jax("cholesky"), 0.5, reads=_read_by_cholesky)
_qr = _guard("qr", degrees=(0, 1))


def cholesky(a, upper=False, symmetrize_input=True):
    """Calls JAX's function; a matrix with infinity gives NaN too."""
    return _cholesky(unless_infinite(a), upper=upper, symmetrize_input=symmetrize_input)


def unless_infinite(a):
    """Replaces matrices by NaN if their diagonal isn't finite: an infinite entry would leave finite
    columns after it in a Cholesky factor."""
    return with_nan(a, ~jnp.isfinite(jnp.diagonal(a, axis1=-2, axis2=-1)).all(-1))


def qr(a, mode="reduced"):
    """Calls JAX's function with mode "reduced", "complete" or "r". R has zeros below its diagonal
    for every matrix."""
    if mode == "r":
        return jnp.triu(_qr(a, mode=mode))
    q, r = results = _qr(a, mode=mode)
    return type(results)(q, jnp.triu(r))


@guarded
def lu(a):
    """Returns (LU, LAPACK's pivots, the permutation of rows)."""
    down, up = scaling.scale_of(a, (-2, -1))
    packed, *order = jax.lax.linalg.lu(scaling.times_scale(a, scaling.over(down, 2)))
    return scaling.with_upper_times(packed, up), *order


def svdvals(a):
    """Returns only the singular values, in descending order."""
    return svd(a, compute_uv=False)


def eigh_lower(a):
    """Returns (w, V) of Hermitian matrices; reads the lower triangles."""
    w, v = eigh(a, UPLO="L", symmetrize_input=False)
    return w, v
