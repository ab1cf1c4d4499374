"""Stacks of positive definite matrices on one device: the ways to factor them, LAPACK's potrf, and
the routines that compute all matrices of a batch at once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._plugin import plugins
from jaxmg._stacks import choice, library, native, products, scaling, sections, triangle
from jaxmg._stacks.choice import JAX, Row


def _differentiable(cholesky, triangular_solve):
    """Returns a function that computes L of A = L L^H, (count, n, n), from A's lower triangle. L is
    NaN if A isn't positive definite."""
    factor = jax.custom_jvp(lambda a: cholesky(library.unless_infinite(a)))

    @factor.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        """L^-1 dL is the lower triangle of L^-1 dA L^-H with half of its diagonal (S. F. Walter and
        L. Lehmann, Algorithmic differentiation of linear algebra functions, 2010)."""
        lower = factor(*primals)
        solve = functools.partial(triangular_solve, lower, lower=True)
        inner = solve(
            solve(triangle.whole(tangents[0]), left_side=False, transpose_a=True, conjugate_a=True),
            left_side=True,
        )
        half = jnp.tril(inner, -1) + jnp.tril(jnp.triu(inner)) / 2
        return lower, products.multiply(lower, half)

    return factor


def factor_hermitian(a, upper, composition):
    """Computes L, or U, of Hermitian a (count, n, n) on a CPU device, which checks and scales each
    matrix while it is in a core's cache. ``composition`` computes the same and has a derivative."""

    @jax.custom_jvp
    def factor(a):
        return native.factor_cholesky(a, upper, hermitian=True)

    @factor.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        return jax.jvp(composition, primals, tangents)

    return factor(a)


factor_by_jax = _differentiable(
    functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False),
    jax.lax.linalg.triangular_solve,
)
factor_by_plugin = _differentiable(native.factor_cholesky, jax.lax.linalg.triangular_solve)
factor_by_lapack = _differentiable(native.factor_cholesky, triangle.solve_in_turn)


# From this order on, a second solve with the factor is faster on an H200 than the product of the
# factor's inverse with its adjoint: by 10 to 18 % in complex64, and in no other dtype.
_BY_TWO_SOLVES = 1024


def factorize(platform, a):
    """Returns U with A = U^H U, the logarithms of det(A), and which factorizations failed."""
    u = UPPER(platform, a)
    diagonal = _diagonal(u)
    failed = ~jnp.isfinite(diagonal).all(axis=-1)
    return u, 2 * jnp.log(diagonal).sum(axis=-1), failed


def _cholesky_by_jax(a):
    lower = sections.adjoint(a)  # cholesky reads the lower triangle
    lower = jax.lax.linalg.cholesky(_with_real_diagonal(lower), symmetrize_input=False)
    return sections.adjoint(lower)


def solve_upper(platform, u, b, adjoint=False, left=True):
    """Returns U^-1 B, or B U^-1 if not ``left``; with U^H in place of U if ``adjoint``."""
    if not left:
        return jax.lax.linalg.triangular_solve(
            u, b, left_side=False, lower=False, transpose_a=adjoint, conjugate_a=adjoint
        )
    columns = b[..., None] if b.ndim == 2 else b
    x = triangle.solve_on(platform, u, columns, upper=True, adjoint=adjoint)
    return x.reshape(b.shape)


def solve(platform, u, b):
    """Solves U^H U x = b."""
    return solve_upper(platform, u, solve_upper(platform, u, b, adjoint=True)) if b.size else b


def inverse(platform, u):
    """Returns the Hermitian inverse of U^H U, of upper triangular matrices."""
    return INVERSE(platform, u)


def _inverse_by_jax(u):
    eye = jnp.broadcast_to(jnp.eye(u.shape[-1], dtype=u.dtype), u.shape)
    if u.dtype == jnp.complex64 and u.shape[-1] >= _BY_TWO_SOLVES:
        return triangle.whole(solve(None, u, eye), upper=True)
    inverse = solve_upper(None, u, eye)
    return triangle.whole(multiply(inverse, sections.adjoint(inverse)), upper=True)


def invert_by_plugin(u):
    """Computes `inverse` by the plugin."""
    lower = native.multiply_triangle(native.invert_triangle(u, upper=True))
    return triangle.whole(lower)


INVERSE = choice.Operation(
    "potri",
    {JAX: _inverse_by_jax, "plugin": invert_by_plugin},
    (Row("gpu", "plugin", (1, 4096)),),
)


def multiply(x, y):
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def potrs(platform, a, b):
    u, log_det, failed = factorize(platform, a)
    return (a, solve(platform, u, b), log_det, jnp.zeros_like(failed, jnp.int32)), failed


def potri(platform, a):
    u, _, failed = factorize(platform, a)
    return (inverse(platform, u), jnp.zeros_like(failed, jnp.int32)), failed


def cho_factor(platform, a):
    """Returns the factor as the engine has it on one rank: U, and an empty overflow."""
    u, log_det, failed = factorize(platform, a)
    overflow = jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    return (u, overflow, log_det, jnp.zeros_like(failed, jnp.int32)), failed


POTRS = choice.at_once(potrs, *choice.rows_at_once(gpu=2048, cpu=64))
POTRI = choice.at_once(potri, *choice.rows_at_once(gpu=2048, cpu=96))
CHO_FACTOR = choice.at_once(cho_factor, *choice.rows_at_once(gpu=2048, cpu=64))


def _diagonal(a):
    return jnp.diagonal(a, axis1=-2, axis2=-1).real


def _with_real_diagonal(a):
    if not jnp.iscomplexobj(a):
        return a
    eye = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(eye, _diagonal(a)[..., None].astype(a.dtype), a)


CHOLESKY = choice.Operation(
    "cholesky",
    {
        JAX: scaling.homogeneous(factor_by_jax, 0.5, reads=scaling.lower),
        "plugin": scaling.homogeneous(factor_by_plugin, 0.5, reads=scaling.lower),
        "lapack": scaling.homogeneous(factor_by_lapack, 0.5, reads=scaling.lower),
    },
    (
        Row("gpu", "plugin", (1, 4096), 16),
        Row("gpu", "plugin", (512, 4096)),
        choice.on_cpus("lapack"),
    ),
)
# U, from the upper triangles.
UPPER = choice.Operation(
    "cholesky",
    {
        JAX: _cholesky_by_jax,
        **dict.fromkeys(
            ("plugin", "lapack"), functools.partial(native.factor_cholesky, upper=True)
        ),
    },
    CHOLESKY.rows,
)


def cholesky(platform, a):
    """Computes L of Hermitian matrices; reads the lower triangles."""
    plugins.load(platform)  # the derivative multiplies with it
    return CHOLESKY(platform, a)
