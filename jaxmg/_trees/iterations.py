"""Matrix functions for optimizers, computed by products: the orthogonal factor and inverse roots.

`jaxmg.tree` calls them for each matrix on one device. ``multiply`` is the product to use.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat
from jaxmg._stacks import library, scaling, sections

# Coefficients of K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
# They are chosen for speed: singular values stay up to 0.3 away from 1.
NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),)
# N. Amsel, D. Persson, C. Musco, R. M. Gower, "The Polar Express: Optimal Matrix Sign Methods and
# Their Application to the Muon Algorithm", 2025: the published sequence of best odd polynomials of
# degree 5 for singular values in [0.001, 1]. The last one is repeated.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
# Singular values that rounding raises above 1 would diverge without this (the same paper).
_SAFETY = 1.01
# Numbers of steps of the power iteration and, at most, of the coupled Newton iteration.
_POWERS, _NEWTON_STEPS = 100, 100


def choose_coefficients(method, steps, coefficients) -> tuple[tuple[float, ...], ...]:
    """Returns the coefficients of each step of `jaxmg.tree.orthogonalize`, whose arguments these
    are."""
    known: tuple[tuple[float, ...], ...] = NEWTON_SCHULZ
    if method == "polar-express":
        known = POLAR_EXPRESS
    if coefficients is not None:
        numbers = np.asarray(coefficients, np.float64)
        if numbers.ndim not in (1, 2) or numbers.shape[-1] != 3 or not numbers.size:
            raise ValueError(
                "tree.orthogonalize: coefficients must be (a, b, c), or such a triple for each "
                f"step; got an array of shape {numbers.shape}"
            )
        known = tuple(tuple(triple) for triple in numbers.reshape(-1, 3).tolist())
        steps = steps if numbers.ndim == 1 else len(known)
    return known[:steps] + known[-1:] * max(0, steps - len(known))


@_compat.default_promotion()
def orthogonal(g, coefficients, safe, dtype, scale=None, multiply=sections.multiply):
    """Applies odd polynomials, a x + b x^3 + c x^5, one after the other to g's singular values.

    Computes in ``dtype``, or for a complex g in the complex dtype of that precision. ``scale`` is a
    `Scale`.
    """
    if not g.size:
        return g
    tall = g.shape[0] > g.shape[1]
    x = start(g.T.conj() if tall else g, safe, dtype, scale, multiply)
    for a, b, c in polynomials(coefficients, safe):
        gram = multiply(x, x.T.conj())
        x = a * x + multiply(b * gram + c * multiply(gram, gram), x)
    return (x.T.conj() if tall else x).astype(g.dtype)


@_compat.default_promotion()
def start(g, safe, dtype, scale=None, multiply=sections.multiply):
    """Returns the initial X of `orthogonal`, whose singular values are at most 1."""
    x = _unit(g)
    if scale is not None:
        x = scale(x, g.astype(x.dtype), multiply)
    return rounded(x, safe, dtype)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Scales matrices G (..., m, n) for `orthogonal` in another way than to Frobenius norm 1.

    Attributes:
        preconditioning, eps: as for `jaxmg.tree.orthogonalize`.
    """

    preconditioning: str
    eps: float

    def __call__(self, x, g, multiply=sections.multiply, values=library.svdvals):
        """Returns the scaled G. ``x`` is G over its Frobenius norm, so that its products are in
        range; ``values`` computes singular values."""
        if self.preconditioning in ("frobenius", "spectral"):
            own = jnp.ones_like(x[..., :1, :1], jnp.finfo(x.dtype).dtype)
            if self.preconditioning == "spectral":
                own = values(x)[..., :1, None]
                own = jnp.where(own == 0, 1, own)
            return x / (own + _over_norm(self.eps, g) if self.eps else own)
        tall = x.shape[-2] > x.shape[-1]
        x = sections.adjoint(x) if tall else x
        gram = jnp.abs(multiply(x, sections.adjoint(x)))
        if self.preconditioning == "aol":
            size = jnp.sum(gram, axis=-1, keepdims=True)
        else:  # the Schatten norm of order 4
            size = jnp.sqrt(jnp.sum(gram**2, axis=(-2, -1), keepdims=True))
        size = jnp.sqrt(jnp.maximum(size, jnp.finfo(size.dtype).tiny))
        if self.eps:
            size = jnp.maximum(size, _over_norm(math.sqrt(self.eps), g))
        x = x / size
        return sections.adjoint(x) if tall else x


def _over_norm(number, g):
    """Divides a number by the Frobenius norms of matrices (..., m, n), for any range of their
    entries. The quotients for zero matrices are arbitrary, but not NaN."""
    down, _ = scaling.scale_of(g, (-2, -1), keepdims=True)
    squares = jnp.abs(scaling.times_scale(g, down)) ** 2
    norm = jnp.sqrt(jnp.sum(squares, axis=(-2, -1), keepdims=True))
    return number * down / jnp.where(norm == 0, 1, norm)


def rounded(x, safe, dtype):
    """Rounds a matrix of norm 1 to the dtype in which `orthogonal` computes."""
    if jnp.iscomplexobj(x):
        dtype = jnp.promote_types(dtype, jnp.complex64)
    return (x / _SAFETY if safe else x).astype(dtype)


def polynomials(coefficients, safe):
    """Returns the triples (a, b, c) that `orthogonal` applies."""
    if not safe:
        return tuple(coefficients)
    *first, last = coefficients
    return *((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in first), last


def _unit(g):
    """Returns g over its Frobenius norm, in at least float32; zeros if g is zero."""
    x = g.astype(jnp.promote_types(g.dtype, jnp.float32))
    # A power of two scales: XLA would divide by the largest entry by multiplying with its inverse,
    # which may be denormal.
    x, _ = scaling.scaled(x)
    norm = jnp.sqrt(jnp.sum(jnp.abs(x) ** 2))
    return x / jnp.where(norm == 0, 1, norm)


@_compat.default_promotion()
def inverse_root(a, p, epsilon, by, multiply=sections.multiply):
    """Returns (A + epsilon max(w) I)^(-1/p), where w are the eigenvalues of A.

    The function ``by`` computes the root of a scaled A. If p is small, the scale is a power of 2^p,
    so that scaling back is exact.
    """
    largest = scaling.largest(jax.lax.stop_gradient(a))
    exponent = scaling.exponent_of_largest(largest)
    exponent -= exponent % p if p <= 32 else 0
    root = by(scaling.multiplied(a, -exponent), p, epsilon, multiply, ~jnp.isfinite(largest))
    rest = (exponent % p).astype(jnp.finfo(a.dtype).dtype) / p
    return scaling.multiplied(root * jnp.exp2(-rest).astype(a.dtype), -(exponent // p))


def root_by_eigenvalues(a, p, epsilon, multiply, bad):
    """Computes `inverse_root` by eigenvalues and eigenvectors. ``bad``: whether A isn't finite."""
    return _root_by_eigenvalues(p, epsilon, multiply, a, bad) if a.size else a


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _root_by_eigenvalues(p, epsilon, multiply, a, bad):
    return _root_of(p, epsilon, multiply, *library.eigh_of_scaled(a, bad))


def _root_of(p, epsilon, multiply, w, v):
    root = multiply(v * ((w + epsilon * w[-1:]) ** (-1 / p)).astype(v.dtype), v.T.conj())
    return (root + root.T.conj()) / 2


@_root_by_eigenvalues.defjvp
@_compat.default_promotion()
def _(p, epsilon, multiply, primals, tangents):
    """JVP rule by divided differences (Y. L. Daleckii, S. G. Krein, 1965), which also exist for
    equal eigenvalues. For x^-q and x_i = (1 + t) x_j the divided difference is
    x_j^(-q-1) ((1 + t)^-q - 1) / t."""
    (a, bad), (a_dot, _) = primals, tangents
    w, v = library.eigh_of_scaled(a, bad)
    inner = _inner(multiply, v, a_dot)
    moved = inner + epsilon * inner[-1, -1].real.astype(a.dtype) * jnp.eye(len(w), dtype=a.dtype)
    root_dot = _moved_root(p, multiply, w + epsilon * w[-1:], v, moved)
    return _root_of(p, epsilon, multiply, w, v), root_dot


def _inner(multiply, v, a_dot):
    """Returns V^H dA V of the Hermitian part of dA."""
    return multiply(v.T.conj(), multiply(a_dot / 2 + a_dot.T.conj() / 2, v))


def _moved_root(p, multiply, x, v, inner):
    """Returns the tangent of (V X V^H)^(-1/p) where V^H d(V X V^H) V is ``inner``."""
    power = -1 / p
    t = (x[:, None] - x) / x
    quotient = jnp.expm1(power * jnp.log1p(t)) / jnp.where(t == 0, 1, t)
    quotient = jnp.where(t == 0, power, quotient) * x ** (power - 1)
    root_dot = multiply(multiply(v, quotient.astype(inner.dtype) * inner), v.T.conj())
    return (root_dot + root_dot.T.conj()) / 2


def root_by_newton(a, p, epsilon, multiply, bad):
    """Computes `inverse_root` by Newton's iteration. ``bad``: whether A isn't finite."""
    if not a.size:
        return a
    ridge = (epsilon * _largest(a, multiply)).astype(a.dtype)
    return _newton(p, multiply, a + ridge * jnp.eye(a.shape[-1], dtype=a.dtype), bad)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _newton(p, multiply, a, bad):
    """Computes A^(-1/p) by the coupled Newton iteration of H and M = H^p A: equation (1.2) of
    C.-H. Guo, N. J. Higham, "A Schur-Newton method for the matrix pth root and its inverse", 2006.
    """
    n, real = a.shape[-1], jnp.finfo(a.dtype).dtype
    eye = jnp.eye(n, dtype=a.dtype)
    scale = (1 + p) / (2 * jnp.linalg.norm(a))  # eigenvalues of M are below p + 1
    enough = 10 * jnp.finfo(a.dtype).eps

    def far(state):
        _, _, error, before, count = state
        # An error e below 1 / (p + 1) becomes (p + 1) / 2 e^2 in one step, up to rounding.
        better = (before > 1 / (p + 1)) | (error < before / 2)
        return (count < _NEWTON_STEPS) & (error > enough) & better

    def step(state):
        m, h, error, _, count = state
        factor = ((p + 1) * eye - m) / p
        m = multiply(_power(factor, p, multiply), m)
        return m, multiply(h, factor), jnp.linalg.norm(m - eye), error, count + 1

    m = scale.astype(a.dtype) * a
    h = (scale ** (1 / p)).astype(a.dtype) * eye
    first = m, h, jnp.linalg.norm(m - eye), jnp.array(jnp.inf, real), 0
    _, h, error, _, _ = jax.lax.while_loop(far, step, first)
    h = (h + h.T.conj()) / 2
    return library.with_nan(h, ~(error <= 0.3))


@_newton.defjvp
@_compat.default_promotion()
def _(p, multiply, primals, tangents):
    """JVP rule by divided differences, because JAX can't transpose a loop of unknown length."""
    (a, bad), (a_dot, _) = primals, tangents
    root = _newton(p, multiply, a, bad)
    w, v = library.eigh_of_scaled(a, bad)
    root_dot = _moved_root(p, multiply, w, v, _inner(multiply, v, a_dot))
    return root, library.with_nan(root_dot, jnp.isnan(root).any())


def _largest(a, multiply):
    """Returns the largest eigenvalue of a positive semidefinite matrix, by power iteration."""
    n = a.shape[-1]
    # A generic initial vector, which is not an eigenvector.
    v = jnp.cos(jnp.arange(n, dtype=jnp.finfo(a.dtype).dtype)).astype(a.dtype)

    def step(_, v):
        v = multiply(a, v)
        size = jnp.sqrt(jnp.sum(jnp.abs(v) ** 2))
        return v / jnp.where(size == 0, 1, size).astype(a.dtype)

    v = jax.lax.fori_loop(0, _POWERS, step, v[:, None])
    return _dot(v, multiply(a, v)) / jnp.maximum(_dot(v, v), 1e-30)


def _dot(x, y):
    """Returns the real part of the inner product."""
    return jnp.sum((x.conj() * y).real)


def _power(a, p, multiply):
    """Returns a^p by repeated squaring."""
    result = None
    while p:
        if p % 2:
            result = a if result is None else multiply(result, a)
        p //= 2
        a = multiply(a, a) if p else a
    return result
