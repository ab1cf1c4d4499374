"""The derivatives of singular vectors U and V, expressed in the bases U and V.

With E = U^H dA V = H + K, its Hermitian and its skew part, and s_i != s_j,

    (U^H dU)_ij = H_ij / (s_j - s_i) + K_ij / (s_i + s_j),
    (V^H dV)_ij = H_ij / (s_j - s_i) - K_ij / (s_i + s_j)

(J. Townsend, "Differentiating the singular value decomposition", 2016, with the squares factored).
The two parts are divided separately. Squares of singular values would underflow and overflow. The
part of H is large if two singular values are close, and would then take digits from the part of K,
which is the only one that counts for U V^H.

Eigenvectors turn by H_ij / (w_j - w_i). Singular values, and eigenvalues, count as equal if they
differ by rounding (`gaps`). 0 / 0 is 0, so that a zero tangent contributes nothing. Any other
quotient by 0 is infinite: vectors of equal values have no derivative.
"""

import jax
import jax.numpy as jnp

from jaxmg._stacks import scaling

# Values count as equal if they differ by at most this many units of rounding of the larger one.
# LAPACK's eigenvalues and singular values have errors of at least this size. The errors of small
# ones are larger, but what is computed from their vectors may be right all the same.
_EQUAL = 4


def gaps(rows, columns):
    """Returns w_j - w_i for eigenvalues w_i (``rows``) and w_j, 0 if they are equal up to
    rounding."""
    gap = columns - rows
    larger = jnp.maximum(jnp.abs(rows), jnp.abs(columns))
    return jnp.where(jnp.abs(gap) <= _EQUAL * float(jnp.finfo(gap.dtype).eps) * larger, 0, gap)


def divide(c, by):
    """Returns C / B elementwise, for a real B, where 0 / 0 is 0. JAX can transpose it in C."""
    by = jnp.broadcast_to(by, c.shape)

    def quotient(c):
        if jnp.iscomplexobj(c):  # XLA's complex quotients take squares
            return jax.lax.complex(c.real / by, c.imag / by)
        return c / by

    return jax.lax.custom_linear_solve(
        lambda x: x * by.astype(x.dtype),
        c,
        lambda _, c: jnp.where(c == 0, 0, quotient(c)),
        symmetric=True,
    )


def vector_rotations(inner, adjoint, s):
    """Returns (U^H dU, V^H dV), (..., k, k), given E (``inner``), a function ``adjoint`` that
    returns adjoints, and the singular values (..., k). The phase of complex vectors is that of
    JAX's rule: dV has none."""
    pairs = _Pairs(s)
    # Each part is a jit, so that JAX sums up its cotangents separately: large terms of H's
    # cotangent cancel before K's cotangent is added.
    hermitian = jax.jit(lambda x: x / 2 + adjoint(x) / 2)(inner)
    skew = jax.jit(lambda x: x / 2 - adjoint(x) / 2)(inner)
    # Two divisions, because the cotangents of U and V may cancel each other, and so hide a quotient
    # by 0.
    of_u, of_v = pairs.by_difference(hermitian), pairs.by_difference(hermitian)
    skew = pairs.by_sum(skew)
    phase = jnp.where(pairs.diagonal, skew, 0)
    return of_u + skew + phase, of_v - skew + phase


def of_eigenpairs(w, v, a_dot, multiply):
    """Returns the tangents of eigenvalues (..., n) and eigenvectors (..., n, n) for a Hermitian
    tangent, by products ``multiply`` (J. R. Magnus, Econometric Theory 1, 1985)."""
    inner = multiply(jnp.swapaxes(v, -1, -2).conj(), multiply(a_dot, v))
    diagonal = jnp.eye(w.shape[-1], dtype=bool)
    gap = gaps(w[..., :, None], w[..., None, :])
    turn = divide(jnp.where(diagonal, 0, inner), jnp.where(diagonal, 1, gap))
    return jnp.diagonal(inner, axis1=-2, axis2=-1).real, multiply(v, turn)


def factor_rotation(inner, adjoint, s):
    """Returns U^H d(U V^H) V, (..., k, k), given the arguments of `vector_rotations`."""
    return _Pairs(s).by_sum(inner - adjoint(inner))


class _Pairs:
    """The differences s_j - s_i and the sums s_i + s_j, scaled by a power of two for each pair, so
    that none of them underflows or overflows."""

    def __init__(self, s):
        rows, columns = s[..., :, None], s[..., None, :]
        self.diagonal = jnp.eye(s.shape[-1], dtype=bool)
        info = jnp.finfo(s.dtype)
        of_each = jnp.maximum(scaling.exponents(jax.lax.stop_gradient(s)), int(info.minexp))
        of_each = jax.lax.optimization_barrier(of_each)  # else XLA recomputes it for each pair
        exponent = -jnp.maximum(of_each[..., :, None], of_each[..., None, :])
        half = exponent >> 1
        self.scales = tuple(scaling.power(x, s.dtype) for x in (half, exponent - half))
        rows, columns = (x * self.scales[0] * self.scales[1] for x in (rows, columns))
        self.total = rows + columns
        gap = columns - rows
        gap = jnp.where(jnp.abs(gap) <= _EQUAL * float(info.eps), 0, gap)
        self.gap = jnp.where(self.diagonal, 1, gap)

    def by_difference(self, c):
        return jnp.where(self.diagonal, 0, self._divide(c, self.gap))

    def by_sum(self, c):
        return self._divide(c, self.total)

    def _divide(self, c, by):
        first, second = (x.astype(c.dtype) for x in self.scales)
        return divide(c * first, by) * second
