"""How singular vectors turn: the derivatives of U and V in the bases that they are.

With E = U^H dA V = H + K, its Hermitian and its skew part, and s_i != s_j,

    (U^H dU)_ij = H_ij / (s_j - s_i) + K_ij / (s_i + s_j),
    (V^H dV)_ij = H_ij / (s_j - s_i) - K_ij / (s_i + s_j)

(J. Townsend, "Differentiating the singular value decomposition", 2016, with the squares taken
apart). The two parts are divided by themselves: squares of singular values would under- and
overflow, and the part of H, which is large where two singular values are close, would take digits
from that of K, which alone counts for U V^H.

Singular values count as equal where they differ by rounding. 0 / 0 is 0, so that a zero tangent
contributes nothing. Any other quotient by 0 is infinite: singular vectors of equal singular values
have no derivative.
"""

import jax
import jax.numpy as jnp

from jaxmg._factors import scaling

# How many units of rounding apart singular values are taken for equal. LAPACK's and those of a
# polar decomposition have errors of this size at least.
_EQUAL = 4


def divide(c, by):
    """C / B elementwise, by a real B, where 0 / 0 is 0. JAX may transpose it with respect to C."""
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


def of_vectors(inner, adjoint, s):
    """(U^H dU, V^H dV), (..., k, k), of E, a function that gives adjoints, and the singular values
    (..., k). The phase of complex vectors is that of JAX's rule: dV has none."""
    pairs = _Pairs(s)
    # Each part is a call, of which JAX adds up the cotangent by itself: what of that of H is large
    # cancels then, before that of K is added.
    hermitian = jax.jit(lambda x: x / 2 + adjoint(x) / 2)(inner)
    skew = jax.jit(lambda x: x / 2 - adjoint(x) / 2)(inner)
    # Divided twice: the cotangents of U and V may cancel each other where a quotient by 0 has to
    # be seen.
    of_u, of_v = pairs.by_difference(hermitian), pairs.by_difference(hermitian)
    skew = pairs.by_sum(skew)
    phase = jnp.where(pairs.diagonal, skew, 0)
    return of_u + skew + phase, of_v - skew + phase


def of_unitary_factor(inner, adjoint, s):
    """U^H d(U V^H) V, (..., k, k), likewise."""
    return _Pairs(s).by_sum(inner - adjoint(inner))


class _Pairs:
    """The differences s_j - s_i and the sums s_i + s_j, scaled by a power of two for each pair, so
    that none of them leaves the range."""

    def __init__(self, s):
        rows, columns = s[..., :, None], s[..., None, :]
        self.diagonal = jnp.eye(s.shape[-1], dtype=bool)
        info = jnp.finfo(s.dtype)
        larger = jax.lax.stop_gradient(jnp.maximum(rows, columns))
        exponent = -jnp.maximum(scaling.exponents(larger), int(info.minexp))
        half = exponent // 2
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
