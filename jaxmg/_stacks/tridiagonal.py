"""Eigenvalues and eigenvectors of each tridiagonal matrix of a stack by divide and conquer.

A matrix is cut in halves, and these again, until pieces have order 32 at most. A merge of two
halves is the eigenproblem of diag(d) + rho z z^T, whose eigenvalues are the roots of 1 / rho + sum
z_i^2 / (d_i - x), one between any two poles d, and whose eigenvectors follow from z as Gu and
Eisenstat compute it anew from the roots (SIAM J. Matrix Anal. Appl. 16, 1995).

All merges of a level have the same shapes, whatever the matrices are: nothing is deflated. LAPACK
deflates because poles may be equal and elements of z zero. Here a pole is a sum of two numbers,
and equal ones are set apart in the second by a distance that is nothing beside rounding errors, as
are the small numbers that take the place of elements of z and rho that vanish. Differences of poles
are accurate to their last digits in this form, which is all that the method needs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._routines.polar import times_power
from jaxmg._stacks import sections

_LEAF = 32
_MOST_EVALUATIONS = 80


class _Least(NamedTuple):
    """What is set apart: neighboring poles, elements of z, and rho, of matrices near 1. Products of
    all of them are normal numbers."""

    gap: float
    z: float
    rho: float

    @classmethod
    def of(cls, dtype):
        return (
            cls(2**-36, 2**-28, 2**-26)
            if jnp.finfo(dtype).bits == 32
            else cls(2**-90, 2**-60, 2**-56)
        )


@_compat.default_promotion()
def eigh(d, e):
    """(w, V) of matrices with the diagonals d (count, n) and e (count, n - 1) beside them: w
    ascending, V (count, n, n). Where an entry isn't finite, that matrix's results are NaN.

    Cost for each matrix: about 4/3 n^3 multiplications and additions, in products. Memory: about
    four stacks.
    """
    n = d.shape[-1]
    if n == 1:
        return d, jnp.ones((*d.shape, 1), d.dtype)
    finite = jnp.isfinite(d).all(-1) & jnp.isfinite(e).all(-1)
    d, e = (jnp.where(finite[:, None], x, 0) for x in (d, e))
    largest = jnp.maximum(jnp.abs(d).max(-1), jnp.abs(e).max(-1))
    # Powers of two that bring the entries to 1/2 at most.
    exponent = jnp.where(largest > 0, jnp.frexp(largest)[1] + 1, 0)[:, None]
    w, v = _eigh(times_power(d, -exponent), times_power(e, -exponent))
    w = jnp.where(largest[:, None] > 0, times_power(w, exponent), 0)
    w = jnp.where(finite[:, None], w, jnp.nan)
    return w, jnp.where(finite[:, None, None], v, jnp.nan)


def _eigh(d, e):
    """Of matrices whose entries are 1/2 at most."""
    count, n = d.shape
    levels = 0
    while -(-n >> levels) > _LEAF:
        levels += 1
    leaf = -(-n // 2**levels)
    padded = leaf << levels
    # What is added has eigenvalues beyond all others, and so is the last of what is computed.
    d = jnp.pad(d, ((0, 0), (0, padded - n)), constant_values=4)
    e = jnp.pad(e, ((0, 0), (0, padded - n)))
    if not levels:
        v, w = _leaves(d[:, None], e[:, None])
        return jax.lax.cummax(w[:, 0], axis=1), v[:, 0]  # which rounding may have mixed up
    least = _Least.of(d.dtype).rho
    cut = jnp.zeros(padded - 1, bool).at[leaf - 1 :: leaf].set(True)
    e = jnp.where(cut, jnp.where(e < 0, -1, 1) * jnp.maximum(jnp.abs(e), least), e)
    rho = jnp.where(cut, jnp.abs(e), 0)
    d -= jnp.pad(rho, ((0, 0), (0, 1))) + jnp.pad(rho, ((0, 0), (1, 0)))
    beside = jnp.pad(jnp.where(cut, 0, e), ((0, 0), (0, 1))).reshape(count, -1, leaf)
    v, w = _leaves(d.reshape(count, -1, leaf), beside[..., :-1])
    w = Pole(w, jnp.zeros_like(w))
    size = leaf
    for _ in range(levels):
        couplings = e[:, size - 1 :: 2 * size]
        w, v = _merge(w, v, couplings, last=2 * size == padded)
        size *= 2
    return w.high[:, 0, :n], v[:, 0, :n, :n]


def _leaves(d, e):
    """(V, w) of the pieces (count, pieces, order).

    A library's eigenvectors of small matrices on GPUs are orthogonal to 30 times the rounding unit.
    One step makes that a few times the unit: T. Ogita, K. Aishima, "Iterative refinement for
    symmetric eigenvalue decomposition", Jpn. J. Ind. Appl. Math. 35, 2018.
    """
    eye = jnp.eye(d.shape[-1], dtype=d.dtype)
    t = d[..., None] * eye
    if d.shape[-1] > 1:
        below = jnp.pad(e, ((0, 0), (0, 0), (0, 1)))[..., None, :]
        below = below * jnp.eye(d.shape[-1], k=-1, dtype=d.dtype)
        t += below + jnp.swapaxes(below, -1, -2)
    v, _ = jax.lax.linalg.eigh(t, symmetrize_input=False)
    off = eye - _product(jnp.swapaxes(v, -1, -2), v)
    off = (off + jnp.swapaxes(off, -1, -2)) / 2
    s = _product(jnp.swapaxes(v, -1, -2), _product(t, v))
    s = (s + jnp.swapaxes(s, -1, -2)) / 2
    w = jnp.diagonal(s, axis1=-2, axis2=-1) / (1 - jnp.diagonal(off, axis1=-2, axis2=-1))
    left, right = w[..., :, None], w[..., None, :]
    gap = right - left
    turn = (s + (left + right) / 2 * off) / jnp.where(gap == 0, 1, gap)
    # Eigenvectors are turned where the square of that is below rounding: not where eigenvalues are
    # too near to each other.
    small = (jnp.abs(turn) < float(jnp.finfo(d.dtype).eps) ** 0.5 / 4) & (gap != 0)
    return v + _product(v, jnp.where(small, turn, 0) + off / 2), w


def _product(x, y):
    """X Y of matrices so small that it compiles faster as sums than as a product."""
    return jnp.sum(x[..., :, :, None] * y[..., None, :, :], axis=-2)


class Pole(NamedTuple):
    """The sum of two numbers, the second one small beside the first."""

    high: Any
    low: Any

    def minus(self, other):
        return (self.high - other.high) + (self.low - other.low)

    def at(self, part):
        return Pole(part(self.high), part(self.low))


def _merge(w, v, couplings, last):
    """The eigenpairs of twice the order: of w (count, pieces, k / 2), V (count, pieces, k / 2, k /
    2), and the numbers beside the diagonal where halves meet, (count, pieces / 2)."""
    count, pieces, half = w.high.shape
    k, least = 2 * half, _Least.of(v.dtype)
    halves = v.reshape(count, pieces // 2, 2, half, half)
    sign = jnp.where(couplings < 0, -1, 1).astype(v.dtype)[..., None]
    z = jnp.concatenate([halves[:, :, 0, -1], sign * halves[:, :, 1, 0]], axis=-1)
    z = jnp.where(z < 0, -1, 1) * jnp.maximum(jnp.abs(z), least.z)
    rho = jnp.abs(couplings)[..., None]
    poles = w.at(lambda x: x.reshape(count, pieces // 2, k))

    index = jnp.broadcast_to(jnp.arange(k), z.shape)
    high, low, sorted_z, order = jax.lax.sort((*poles, z, index), num_keys=2)
    sorted_poles = Pole(high, low + jnp.arange(k) * least.gap)
    back = jnp.argsort(order, axis=-1)
    origin, tau = _roots(sorted_poles, sorted_z, rho)
    refined = _refined(sorted_poles, sorted_z, rho, origin, tau)
    # The rows of U as the halves have them.
    refined = jnp.take_along_axis(refined, back, -1)
    poles = sorted_poles.at(lambda x: jnp.take_along_axis(x, back, -1))
    u = refined[..., :, None] / _from_roots(poles, origin, tau)
    u = u / jnp.max(jnp.abs(u), axis=-2, keepdims=True)  # or squares may overflow
    u = u / jnp.sqrt(jnp.sum(u * u, axis=-2, keepdims=True))
    product = sections.multiply(halves, u.reshape(count, pieces // 2, 2, half, k))
    product = product.reshape(count, pieces // 2, k, k)
    total = _normalized(origin.high, origin.low + tau)
    if last:  # rounded roots may not ascend
        return Pole(jax.lax.cummax(total.high, axis=2), total.low), product
    return total, product


def _normalized(high, low):
    """The same sum, of which the first number is the rounded one."""
    total = high + low
    rest = total - high
    return Pole(total, (high - (total - rest)) + (low - rest))


def _from_roots(poles, origin, tau):
    """All d_i - root_j, (..., i, j)."""
    across = origin.at(lambda x: x[..., None, :])
    return poles.at(lambda x: x[..., :, None]).minus(across) - tau[..., None, :]


def _refined(d, z, rho, origin, tau):
    """z for which the computed roots are exact. Each root goes with the pole on its other side, so
    that all factors but the last are between 0 and 1."""
    k = z.shape[-1]
    i, j = jnp.arange(k)[:, None], jnp.arange(k - 1)
    to_roots = -_from_roots(d, origin, tau)
    here = d.at(lambda x: x[..., :, None])
    before = d.at(lambda x: x[..., None, :-1]).minus(here)
    after = d.at(lambda x: x[..., None, 1:]).minus(here)
    factors = to_roots[..., :-1] / jnp.where(j < i, before, after)
    square = jnp.prod(factors, axis=-1) * to_roots[..., -1] / rho
    return jnp.where(z < 0, -1, 1) * jnp.sqrt(jnp.abs(square))


def _smaller_root(a, b, c):
    """(b - (b^2 - 4 a c)^(1/2)) / (2 a), the root of a x^2 - b x + c between two poles."""
    root = jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0))
    return jnp.where(b > 0, 2 * c / (b + root), (b - root) / (2 * a))


def _larger_root(a, b, c):
    """The other root, beyond both poles."""
    root = jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0))
    return jnp.where(b < 0, 2 * c / (b - root), (b + root) / (2 * a))


def _bisected(lower, upper):
    """The geometric mean where the bracket spans orders of magnitude, else its middle."""
    a, b = jnp.abs(lower), jnp.abs(upper)
    mean = jnp.copysign(jnp.sqrt(a) * jnp.sqrt(b), lower)
    near = jnp.maximum(a, b) <= 4 * jnp.minimum(a, b)
    return jnp.where(near, lower + (upper - lower) / 2, mean)


class _State(NamedTuple):
    tau: Any
    lower: Any
    upper: Any
    before: Any
    middle_way: Any
    poor: Any
    found: Any
    evaluations: Any


def _roots(d, z, rho):
    """(origin, tau) of the k roots for ascending poles: a root is its nearest pole plus tau.

    Each root is interpolated by two rational functions, for the poles below and above it, with
    bisection where that gets on slowly: R.-C. Li, LAPACK Working Note 89, 1994.
    """
    k = z.shape[-1]
    j = jnp.arange(k)
    beyond = j == k - 1
    left, right = jnp.minimum(j, k - 2), jnp.minimum(j, k - 2) + 1
    d_left, d_right = (d.at(lambda x, side=side: x[..., side]) for side in (left, right))
    z_left, z_right = jnp.square(z[..., left]), jnp.square(z[..., right])
    gap, inverse = d_right.minus(d_left), 1 / rho
    unit = float(jnp.finfo(z.dtype).eps) / 2
    below = jnp.arange(k)[:, None] <= j
    squares = jnp.sum(z * z, axis=-1, keepdims=True)

    def terms(origin, tau):
        return z[..., :, None] / _from_roots(d, origin, tau)

    def start():
        middle = jnp.where(beyond, rho * squares * (1 + 8 * unit) / 2, gap / 2)
        least = jnp.where(beyond, rho * z_right * (1 - 8 * unit), 0)
        middle = jnp.maximum(middle, least)
        origin = _where(beyond, d_right, d_left)
        values = terms(origin, middle) * z[..., :, None]
        rows = jnp.arange(k)[:, None]
        low = jnp.sum(jnp.where(rows < left, values, 0), axis=-2)
        high = jnp.sum(jnp.where(rows > right, values, 0), axis=-2)
        rest, noise = inverse + low + high, 8 * unit * (inverse - low + high)
        w = rest + (z_right - z_left) / middle
        near = w >= 0
        lower = jnp.where(near, z_left / (2 * (w + z_left / middle + noise)), -middle)
        upper = -z_right / (2 * (z_right / middle - w + noise))
        between = _smaller_root(
            rest, jnp.where(near, rest * gap, -rest * gap) + z_left + z_right,
            jnp.where(near, z_left, -z_right) * gap,
        )  # fmt: skip
        lower = jnp.where(near, jnp.minimum(lower, middle), lower)
        upper = jnp.where(near, middle, jnp.maximum(upper, -middle))
        # Beyond the last pole.
        w = rest - z_left / (gap + middle) - z_right / middle
        most = jnp.maximum(rho * squares * (1 + 8 * unit), least)
        lower = jnp.where(beyond, jnp.where(w <= 0, middle, least), lower)
        upper = jnp.where(beyond, jnp.where(w <= 0, most, middle), upper)
        far = _larger_root(rest, z_left + z_right - rest * gap, -z_right * gap)
        tau = jnp.where(beyond, far, between)
        inside = (lower <= tau) & (tau <= upper)
        tau = jnp.where(inside, tau, _bisected(lower, upper))
        from_left = near & ~beyond
        return _where(from_left, d_left, d_right), from_left, lower, upper, tau

    origin, from_left, lower, upper, tau = start()
    own = jnp.where(from_left, z_left, z_right)
    to_left_pole, to_right_pole = d_left.minus(origin), d_right.minus(origin)

    def goes_on(s):
        return jnp.any(~s.found) & (s.evaluations < _MOST_EVALUATIONS)

    def again(s):
        t = terms(origin, s.tau)
        values, slopes = t * z[..., :, None], t * t
        psi, phi = (jnp.sum(jnp.where(side, values, 0), axis=-2) for side in (below, ~below))
        psi_slope, phi_slope = (
            jnp.sum(jnp.where(side, slopes, 0), axis=-2) for side in (below, ~below)
        )
        # Beyond the last pole all are below; the interpolation has the last one for itself.
        last_value = z_right / (to_right_pole - s.tau)
        last_slope = last_value / (to_right_pole - s.tau)
        psi, phi = (
            jnp.where(beyond, x, y) for x, y in ((psi - last_value, psi), (last_value, phi))
        )
        psi_slope = jnp.where(beyond, psi_slope - last_slope, psi_slope)
        phi_slope = jnp.where(beyond, last_slope, phi_slope)
        return _step(s, psi, phi, psi_slope, phi_slope)

    def _step(s, psi, phi, psi_slope, phi_slope):
        slope, w = psi_slope + phi_slope, inverse + psi + phi
        noise = 8 * (jnp.abs(psi) + jnp.abs(phi)) + inverse + jnp.abs(s.tau) * slope
        found = s.found | (jnp.abs(w) <= unit * noise) | ~jnp.isfinite(w)
        lower = jnp.where(w <= 0, s.tau, s.lower)
        upper = jnp.where(w <= 0, s.upper, s.tau)
        slow = (s.evaluations > 0) & (jnp.abs(w) > s.before / 10)
        middle_way = jnp.where(slow, beyond | ~s.middle_way, s.middle_way)
        poor = s.poor + slow
        to_left, to_right = to_left_pole - s.tau, to_right_pole - s.tau
        # The nearer pole has its own weight, the other one the rest of the slope.
        distance = jnp.where(from_left, to_left, to_right)
        weight = gap * own / distance / distance
        fixed = jnp.where(from_left, w - to_right * slope + weight, w - to_left * slope - weight)
        c = jnp.where(middle_way, w - to_left * psi_slope - to_right * phi_slope, fixed)
        a = (to_left + to_right) * w - to_left * to_right * slope
        b = to_left * to_right * w
        step = jnp.where(beyond, _larger_root(c, a, b), _smaller_root(c, a, b))
        step = jnp.where(c == 0, b / a, step)
        step = jnp.where(w * step < 0, step, -w / slope)
        after = s.tau + step
        bisects = (poor == 3) | ~((lower < after) & (after < upper))
        after = jnp.where(bisects, _bisected(lower, upper), after)
        poor = jnp.where(bisects, 0, poor)
        still = (jnp.abs(after - s.tau) <= unit * jnp.abs(s.tau)) | (
            upper - lower <= 2 * unit * jnp.abs(s.tau)
        )
        tau = jnp.where(found, s.tau, after)
        return _State(
            tau, lower, upper, jnp.abs(w), middle_way, poor, found | still, s.evaluations + 1
        )

    state = _State(
        tau, lower, upper, jnp.zeros_like(tau), jnp.broadcast_to(beyond, tau.shape),
        jnp.zeros(tau.shape, jnp.int32), jnp.zeros(tau.shape, bool), jnp.zeros((), jnp.int32),
    )  # fmt: skip
    return origin, jax.lax.while_loop(goes_on, again, state).tau


def _where(condition, x, y):
    return Pole(*(jnp.where(condition, a, b) for a, b in zip(x, y, strict=True)))
