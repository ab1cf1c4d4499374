"""QR of each matrix of a stack by the plugin, as LAPACK's geqrf and orgqr, by panels of Householder
reflectors (xla_ffi/device/stacks/stack_qr.h), all matrices in step.

Results are LAPACK's up to rounding, for every matrix: R's diagonal is real, of any sign, and Q is
orthogonal up to rounding. A column with NaN makes the results of its own matrix NaN.
"""

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import choice, library, native, products, scaling, sections, triangle
from jaxmg._stacks.choice import JAX, Row


def _differentiable(triangular_solve):
    """Returns a function that computes (Q, R) of a (count, m, n): Q (count, m, k) and R (count, k,
    n), where k = min(m, n)."""

    @jax.custom_jvp
    @_compat.default_promotion()
    def both(a):
        return _by_plugin(a, True)

    @both.defjvp
    @_compat.default_promotion()
    def rule(primals, tangents):
        """The rule of S. F. Walter, L. Lehmann, R. Lamour, Optim. Methods Softw. 27, 2012."""
        (a,), (a_dot,) = primals, tangents
        q, r = both(a)
        k = r.shape[-2]
        square, multiply = r[..., :k], products.multiply
        w = triangular_solve(square, a_dot[..., :k], left_side=False, lower=False)
        h = multiply(q, w, products.ADJOINT)
        half = jnp.tril(h, -1)
        skew = half - sections.adjoint(half)
        if jnp.iscomplexobj(h):  # R's diagonal stays real
            imaginary = 1j * jnp.diagonal(h, axis1=-2, axis2=-1).imag
            skew += imaginary[..., None] * jnp.eye(k, dtype=h.dtype)
        q_dot = w - multiply(q, h - skew)
        r_dot = multiply(h - skew, square)
        if a.shape[-1] > k:
            rest = multiply(q_dot, a[..., k:], products.ADJOINT)
            rest += multiply(q, a_dot[..., k:], products.ADJOINT)
            r_dot = jnp.concatenate([r_dot, rest], axis=-1)
        return (q, r), (q_dot, r_dot)

    return both


reduced = _differentiable(jax.lax.linalg.triangular_solve)
reduced_by_lapack = _differentiable(triangle.solve_in_turn)


def _differentiable_upper(both):
    """Returns a function that computes only R."""

    @jax.custom_jvp
    @_compat.default_promotion()
    def upper(a):
        return _by_plugin(a, False)[1]

    upper.defjvp(lambda primals, tangents: jax.jvp(lambda a: both(a)[1], primals, tangents))
    return upper


upper = _differentiable_upper(reduced)
upper_by_lapack = _differentiable_upper(reduced_by_lapack)


def _by_plugin(a, with_q):
    """Scales columns by powers of two, so that squares of entries neither overflow nor underflow;
    Q stays the same."""
    a, up = scaling.scaled(a, -2)
    q, r = native.factor_qr(a, with_q)
    return q, scaling.times(r, up)


def _qr_by_jax(a):
    """Scales columns, because LAPACK's Q of huge complex numbers isn't orthogonal."""
    a, up = scaling.scaled(a, -2)
    q, r = library.qr(a)
    return q, scaling.times(r, up)


def _r_by_jax(a):
    return _qr_by_jax(a)[1]


QR = choice.Operation(
    "qr",
    {JAX: _qr_by_jax, "blocked": reduced, "lapack": reduced_by_lapack},
    (Row("gpu", "blocked", (128, 4096), 8), choice.on_cpus("lapack")),
)
R = choice.Operation("qr", {JAX: _r_by_jax, "blocked": upper, "lapack": upper_by_lapack}, QR.rows)


def reduced_qr(platform, a):
    """Computes (Q, R), with LAPACK's signs."""
    q, r = QR(platform, a)
    return q, r


def upper_factor(platform, a):
    """Computes only R of `reduced_qr`."""
    return R(platform, a)
