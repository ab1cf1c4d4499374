"""Computes all matrices of a batch at once on one device: by JAX's own routines, which use LAPACK
on CPUs and batched routines of cuSOLVER and cuBLAS on GPUs, or by the plugin's operations on
stacks. `jaxmg._stacks.choice` selects between them.

The functions take a platform and stacks, (count, n, n) and (count, n) or (count, n, nrhs), and
return all results of a `Routine` with a leading batch dimension. Like the native code they read
only the upper triangle of a Hermitian matrix.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from jaxmg._call import checks
from jaxmg._stacks import choice, determinants, library, native, triangle
from jaxmg._stacks import lu as of_lu

# From this order on, a second solve with the factor is faster on an H200 than the product of the
# factor's inverse with its adjoint: by 10 to 18 % in complex64, and in no other dtype.
_BY_TWO_SOLVES = 1024


@dataclasses.dataclass(frozen=True)
class AtOnce:
    """How a routine computes many matrices at once.

    Attributes:
        function: function of the platform and the stacks. Returns all results, and a mask
            (count,) of the matrices that the native code must compute again, or None.
        orders: (platform, order) pairs: the largest order for which this is faster than one matrix
            after the other (docs/laboratory.md).
        least: (order, count) pairs: on GPUs, the least number of matrices on a device for which
            this is faster, for matrices up to each order.
        values: the `AtOnce` for eigenvalues without eigenvectors; None: this one.
    """

    function: collections.abc.Callable
    orders: tuple
    least: tuple = ()
    values: AtOnce | None = None

    def is_faster(self, layout, n, count=math.inf):
        """Whether this is faster for ``count`` matrices of order n, which the devices of ``layout``
        share. False for several CPU devices: JAX's LAPACK kernels wait in a thread of XLA's pool
        for other threads of it, and several devices at a time can lock up (seen with jaxlib
        0.10.2)."""
        if layout.platform == "cpu" and layout.mesh.size > 1:
            return False
        if layout.platform == "gpu":
            least = next((least for order, least in self.least if n <= order), 1)
            if -(-count // layout.mesh.size) < least:
                return False
        return n <= dict(self.orders).get(layout.platform, 0)


def has_plain_products(options):
    """Whether JAX's routines have the precision that the options request."""
    name = checks.plain_precision(options.get("precision"))
    return checks.PRODUCTS.get(name) in (checks.PRODUCTS["highest"], checks.DEFAULT)


def factorize(platform, a):
    """Returns U with A = U^H U, the logarithms of det(A), and which factorizations failed."""
    u = choice.function(_CHOLESKY, platform, "cholesky", a)(a)
    diagonal = _diagonal(u)
    failed = ~jnp.isfinite(diagonal).all(axis=-1)
    return u, 2 * jnp.log(diagonal).sum(axis=-1), failed


def _cholesky_by_jax(a):
    lower = _adjoint(a)  # cholesky reads the lower triangle
    lower = jax.lax.linalg.cholesky(_with_real_diagonal(lower), symmetrize_input=False)
    return _adjoint(lower)


_CHOLESKY = {
    choice.JAX: _cholesky_by_jax,
    **dict.fromkeys(("plugin", "lapack"), functools.partial(native.factor_cholesky, upper=True)),
}


def solve_upper(platform, u, b, adjoint=False, left=True):
    """Returns U^-1 B, or B U^-1 if not ``left``; with U^H in place of U if ``adjoint``."""
    if not left:
        return jax.lax.linalg.triangular_solve(
            u, b, left_side=False, lower=False, transpose_a=adjoint, conjugate_a=adjoint
        )
    columns = b[..., None] if b.ndim == 2 else b
    x = _solve(platform, u, columns, upper=True, adjoint=adjoint)
    return x.reshape(b.shape)


def _solve(platform, a, b, **triangle_of_a):
    """Runs the way of `triangle.solve` chosen for the stack ``a``; JAX's way if the platform is
    None."""
    function = choice.function(_SOLVE, platform, "trsm", a)
    return function(a, b, **triangle_of_a)


_SOLVE = {
    choice.JAX: functools.partial(triangle.solve, False),
    "plugin": functools.partial(triangle.solve, True),
    "lapack": functools.partial(triangle.solve, True, few=math.inf),
}


def solve(platform, u, b):
    """Solves U^H U x = b."""
    return solve_upper(platform, u, solve_upper(platform, u, b, adjoint=True)) if b.size else b


def inverse(platform, u):
    """Returns the Hermitian inverse of U^H U, of upper triangular matrices."""
    return choice.function(_INVERSE, platform, "potri", u)(u)


def _inverse_by_jax(u):
    eye = jnp.broadcast_to(jnp.eye(u.shape[-1], dtype=u.dtype), u.shape)
    if u.dtype == jnp.complex64 and u.shape[-1] >= _BY_TWO_SOLVES:
        return triangle.whole(solve(None, u, eye), upper=True)
    inverse = solve_upper(None, u, eye)
    return triangle.whole(multiply(inverse, _adjoint(inverse)), upper=True)


def invert_by_plugin(u):
    """Computes `inverse` by the plugin."""
    lower = native.multiply_triangle(native.invert_triangle(u, upper=True))
    return triangle.whole(lower)


_INVERSE = {choice.JAX: _inverse_by_jax, "plugin": invert_by_plugin}


def multiply(x, y):
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def potrs(platform, a, b):
    u, log_det, failed = factorize(platform, a)
    return (a, solve(platform, u, b), log_det, _zero_status(failed)), failed


def potri(platform, a):
    u, _, failed = factorize(platform, a)
    return (inverse(platform, u), _zero_status(failed)), failed


def cho_factor(platform, a):
    """Returns the factor as the engine has it on one rank: U, and an empty overflow."""
    u, log_det, failed = factorize(platform, a)
    overflow = jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    return (u, overflow, log_det, _zero_status(failed)), failed


def gesv(platform, a, b):
    lu, pivots, log_det, sign, failed = _lu(platform, a)
    return (a, lu_solve(platform, lu, pivots, b), log_det, sign, _zero_status(failed)), failed


def getri(platform, a):
    lu, pivots, *_, failed = _lu(platform, a)
    return (lu_inverse(platform, lu, pivots), _zero_status(failed)), failed


def lu_factor(platform, a):
    """Returns the factor as the engine has it on one rank: of A^T, and with an empty overflow."""
    lu, pivots, log_det, sign, failed = _lu(platform, a)
    overflow = jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    return (lu, overflow, pivots, log_det, sign, _zero_status(failed)), failed


def _lu(platform, a):
    """Returns (the transpose of the LU factors of A^T; their pivots; the logarithm and the sign of
    det(A); a mask of the matrices with det(A) = 0 or with entries that aren't finite)."""
    turned = jnp.swapaxes(a, -1, -2)
    lu, pivots = choice.function(_LU, platform, "lu", turned)(turned)
    sign, log_det = determinants.of_factors(lu, pivots)
    # U may have a finite diagonal although A isn't finite: cuSOLVER's pivot search skips NaN.
    good = jnp.isfinite(log_det) & jnp.isfinite(a).all(axis=(-2, -1))
    return jnp.swapaxes(lu, -1, -2), pivots, log_det, sign, ~good


_LU = {choice.JAX: lambda a: library.lu(a)[:2], "plugin": native.factor_lu}


def lu_solve(platform, lu, pivots, b, adjoint=False):
    """Solves A x = b, or A^H x = b if ``adjoint``, by the factors of `_lu`: A = U^T L^T P."""
    if not b.size:
        return b
    columns = b[..., None] if b.ndim == 2 else b
    permutation = jax.lax.linalg.lu_pivots_to_permutation(pivots, lu.shape[-1])
    rows = (permutation if adjoint else jnp.argsort(permutation, axis=-1))[..., None]

    def solve(x, upper):
        return _solve(platform, lu, x, upper=upper, adjoint=adjoint, unit=upper)

    if adjoint:
        x = solve(solve(jnp.take_along_axis(columns, rows, axis=-2), True), False)
    else:
        x = jnp.take_along_axis(solve(solve(columns, False), True), rows, axis=-2)
    return x.reshape(b.shape)


def lu_solve_rows(platform, lu, pivots, b, adjoint=False):
    """Returns B A^-1, or B A^-H if ``adjoint``, by the factors of `_lu`."""
    return _adjoint(lu_solve(platform, lu, pivots, _adjoint(b), adjoint=not adjoint))


def lu_inverse(platform, lu, pivots):
    """Returns the inverse of A by the factors of `_lu`."""
    return choice.function(_LU_INVERSE, platform, "inv", lu)(lu, pivots)


def _lu_inverse_by_jax(lu, pivots):
    eye = jnp.broadcast_to(jnp.eye(lu.shape[-1], dtype=lu.dtype), lu.shape)
    return lu_solve(None, lu, pivots, eye)


def _lu_inverse_by_plugin(lu, pivots):
    return jnp.swapaxes(of_lu.inverse_of_factors(jnp.swapaxes(lu, -1, -2), pivots), -1, -2)


_LU_INVERSE = {
    choice.JAX: _lu_inverse_by_jax,
    "small": _lu_inverse_by_jax,
    "plugin": _lu_inverse_by_plugin,
}


def syevd(platform, a, eigh):
    """Computes eigenvalues and eigenvectors. ``eigh`` is a function of the platform and a stack
    that reads the lower triangles and returns (w, V)."""
    v, w, status = _eigh(platform, a, eigh)
    return (v, w, status), None


def sygvd(platform, a, b, eigh):
    """Solves for C = L^-1 A L^-H, where B = L L^H. The mask has the failures of both steps."""
    u, _, failed = factorize(platform, b)
    half = solve_upper(platform, u, triangle.whole(a, upper=True), left=False)
    v, w, status = _eigh(platform, solve_upper(platform, u, half, adjoint=True), eigh)
    return (solve_upper(platform, u, v), b, w, status), failed | (status != 0)


def _eigh(platform, a, eigh):
    """Returns (v, w, status); v and w are NaN where the status isn't 0."""
    w, v = eigh(platform, _adjoint(a))  # cuSOLVER is slower on an upper triangle
    good = jnp.isfinite(jnp.triu(a)).all(axis=-1)
    failed = jnp.where(jnp.isfinite(w).all(axis=-1), 0, a.shape[-1])
    first = 1 + jnp.argmin(good, axis=-1)
    status = jnp.where(good.all(axis=-1), failed, first).astype(jnp.int32)
    solved = status[:, None] == 0
    return jnp.where(solved[..., None], v, jnp.nan), jnp.where(solved, w, jnp.nan), status


def _zero_status(failed):
    """Returns the status 0 for each matrix."""
    return jnp.zeros(failed.shape, jnp.int32)


def _adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


def _diagonal(a):
    return jnp.diagonal(a, axis1=-2, axis2=-1).real


def _with_real_diagonal(a):
    if not jnp.iscomplexobj(a):
        return a
    eye = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(eye, _diagonal(a)[..., None].astype(a.dtype), a)
