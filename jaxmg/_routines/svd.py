"""The singular value decomposition in a trace, of matrices that lie on the ranks by rows.

A = U H by the polar decomposition, H = V S V^H by the eigensolver, A = (U V) S V^H (N. J. Higham,
P. Papadimitriou, "A parallel algorithm for computing the polar decomposition", Parallel Comput. 20,
1994; Y. Nakatsukasa, N. J. Higham, SIAM J. Sci. Comput. 35, 2013). Both steps are backward stable:
singular values have errors of the size of rounding times the largest. A tall matrix is that of its
R, from the left by Q; a wide one that of its transpose.
"""

import functools

import jax.numpy as jnp

from jaxmg._routines import geqrf, jax_linalg, jax_qr, polar, shares, syevd, tall
from jaxmg._stacks import ways
from jaxmg._transform import derivatives, products


@shares.on_shares(lambda platform, options, a: ways.svd(platform, a))
@jax_linalg.program_of_any_shape
def decomposed(call, a):
    """(U, s, V^H), U (m, k) and V^H (k, n) with k = min(m, n)."""
    return _decompose(a, call.layout)


@shares.on_shares(lambda platform, options, a: jnp.linalg.svd(a, full_matrices=True))
@jax_linalg.program_of_any_shape
def completed(call, a):
    """(U, s, V^H), U (m, m) and V^H (n, n), without a derivative."""

    def value(a):
        m, n = a.shape
        if m < n:
            u, s, vh = _complete(_adjoint(a, call.layout), call.layout)
            return _adjoint(vh, call.layout), s, _adjoint(u, call.layout)
        return _complete(a, call.layout)

    return derivatives.differentiable(value, _refuse, a)


def _refuse(primals, tangents):
    raise NotImplementedError(
        "linalg.svd: a, with m != n, is being differentiated (jax.grad, jvp, linearize, ...), and "
        "full_matrices=True has no derivative, as in JAX; pass full_matrices=False"
    )


@shares.on_shares(lambda platform, options, a: (ways.singular_values(platform, a),))
@jax_linalg.program_of_any_shape
def values(call, a):
    """The singular values alone."""
    return (_values(a, call.layout),)


@jax_linalg.program_of_any_shape
def of_eigenvectors(call, v, w):
    """(U, s, V^H) of a Hermitian matrix, from its eigenvectors and eigenvalues."""
    w = w.real
    order = jnp.argsort(-jnp.abs(w))
    u, sign = v[:, order], jnp.where(w < 0, -1, 1)[order].astype(v.dtype)
    return u, jnp.abs(w)[order], products.adjoint(u * sign, call.layout)


def _polar_stacks(platform, options, a):
    """`polar_factors` of each matrix of a stack."""
    (side,) = options
    u = ways.polar(platform, a)
    adjoint = jnp.swapaxes(u, -1, -2).conj()
    p = ways.multiply(adjoint, a) if side == "right" else ways.multiply(a, adjoint)
    return u, (p + jnp.swapaxes(p, -1, -2).conj()) / 2


@shares.on_shares(_polar_stacks)
@jax_linalg.program_of_any_shape
def polar_factors(call, a):
    """(U, P) of A = U P, or A = P U."""
    (side,) = call.attributes
    return _polar(a, side, call.layout)


@shares.on_shares(lambda platform, options, a: (jnp.linalg.pinv(a, rtol=options[0]),))
@jax_linalg.program_of_any_shape
def pseudoinverse(call, a):
    (rtol,) = call.attributes
    rtol = 10 * max(call.shape) * float(jnp.finfo(a.dtype).eps) if rtol is None else rtol
    return (_pseudoinverse(a, rtol, call.layout),)


def _where(layout):
    return {"mesh": layout.mesh, "matrix_specs": layout.spec}


def _adjoint(x, layout):
    return products.transposed(x, layout).conj()


def _decompose(a, layout):
    """(U, s, V^H), with its derivative."""

    def value(a):
        m, n = a.shape
        if m < n:
            u, s, vh = _decompose_tall(_adjoint(a, layout), layout)
            return _adjoint(vh, layout), s, _adjoint(u, layout)
        return _decompose_tall(a, layout)

    def rule(primals, tangents):
        u, s, vh = _decompose(primals[0], layout)
        return (u, s, vh), _tangents(u, s, vh, tangents[0], layout)

    return derivatives.differentiable(value, rule, a)


def _decompose_tall(a, layout):
    m, n = a.shape
    if not n:
        return jnp.zeros((m, 0), a.dtype), jnp.zeros(0, jnp.finfo(a.dtype).dtype), a[:0, :0]
    a, exponent = polar.scaled(a)
    q, square = _triangular(a, layout) if m > n else (None, a)
    unitary, h = polar.decompose(square, layout)
    w, v = syevd.syevd(h, **_where(layout))
    order = jnp.argsort(-jnp.abs(w))
    v, sign = v[:, order], jnp.where(w < 0, -1, 1)[order].astype(v.dtype)
    u = products.rows_times_rows(unitary, v, layout)
    u = u if q is None else products.rows_times_rows(q, u, layout)
    return u * sign, polar.times_power(jnp.abs(w)[order], exponent), products.adjoint(v, layout)


def _complete(a, layout):
    """(U, s, V^H) of a matrix with m > n. The last m - n columns of Q complete U."""
    n = a.shape[1]
    if not n:
        return jnp.eye(len(a), dtype=a.dtype), *_decompose_tall(a, layout)[1:]
    a, exponent = polar.scaled(a)
    factor = geqrf.geqrf(a, **_where(layout))
    q = factor.q("complete")
    u, s, vh = _decompose_tall(factor.r, layout)
    u = jnp.concatenate([products.rows_times_rows(q[:, :n], u, layout), q[:, n:]], axis=1)
    return u, polar.times_power(s, exponent), vh


def _triangular(a, layout):
    """(Q, R) of a matrix with more rows than columns. R is the same on all ranks where ``a`` is
    tall, and else by rows."""
    m, n = a.shape
    if not jax_qr.by_tiles(m, n, layout.ranks):
        return tall.qr(a, layout)
    factor = geqrf.geqrf(a, **_where(layout))
    return factor.q(), factor.r


def _values(a, layout):
    def value(a):
        m, n = a.shape
        if m < n:
            a, (m, n) = products.transposed(a, layout), (n, m)
        if not n:
            return jnp.zeros(0, jnp.finfo(a.dtype).dtype)
        a, exponent = polar.scaled(a)
        if m > n:
            _, a = _triangular(a, layout)
        _, h = polar.decompose(a, layout)
        w = syevd.syevd(h, return_eigenvectors=False, **_where(layout))
        return polar.times_power(jnp.sort(jnp.abs(w))[::-1], exponent)

    def rule(primals, tangents):
        u, s, vh = _decompose(primals[0], layout)
        return s, _real_diagonal(_inner(u, vh, tangents[0], layout))

    return derivatives.differentiable(value, rule, a)


def _inner(u, vh, a_dot, layout):
    """U^H dA V"""
    moved = products.rows_times_adjoint(a_dot, vh, layout)
    return products.adjoint_times_rows(u, moved, layout)


def _real_diagonal(x):
    """Replicated, by a sum over rows."""
    return jnp.sum(jnp.where(jnp.eye(len(x), dtype=bool), x.real, 0), axis=0)


def _tangents(u, s, vh, a_dot, layout):
    """Those of (U, s, V^H), for singular values that differ (J. Townsend, "Differentiating the
    singular value decomposition", 2016). Of complex matrices the phase is that of JAX's rule."""
    (m, k), n = u.shape, vh.shape[1]
    inner = _inner(u, vh, a_dot, layout)
    adjoint = products.adjoint(inner, layout)
    gap = (s[None] - s[:, None]) * (s[None] + s[:, None])
    weights = jnp.where(jnp.eye(k, dtype=bool), 0, 1 / jnp.where(gap == 0, 1, gap))
    weights = weights.astype(u.dtype)
    columns, rows = s[None].astype(u.dtype), s[:, None].astype(u.dtype)
    inverse = jnp.where(s == 0, 0, 1 / jnp.where(s == 0, 1, s)).astype(u.dtype)
    phase = jnp.where(jnp.eye(k, dtype=bool), (inner - adjoint) / 2 * inverse, 0)

    of_u = weights * (inner * columns + rows * adjoint) + phase
    of_v = weights * (rows * inner + adjoint * columns)
    u_dot = products.rows_times_rows(u, of_u, layout)
    vh_dot = products.rows_times_rows(products.adjoint(of_v, layout), vh, layout)
    if m > k:
        moved = products.rows_times_adjoint(a_dot, vh, layout)
        u_dot += (moved - products.rows_times_rows(u, inner, layout)) * inverse
    if n > k:
        moved = products.adjoint_times_rows(u, a_dot, layout)
        vh_dot += inverse[:, None] * (moved - products.rows_times_rows(inner, vh, layout))
    return u_dot, _real_diagonal(inner), vh_dot


def _polar(a, side, layout):
    """(U, P), with its derivative."""

    def value(a):
        m, n = a.shape
        if m < n:
            u, h = _polar_tall(_adjoint(a, layout), layout)
            u = _adjoint(u, layout)
            return (u, h) if side == "left" else (u, products.adjoint_times_rows(u, a, layout))
        u, h = _polar_tall(a, layout)
        return (u, h) if side == "right" else (u, products.rows_times_adjoint(a, u, layout))

    def rule(primals, tangents):
        u, p = _polar(primals[0], side, layout)
        return (u, p), _polar_tangents(primals[0], u, side, tangents[0], layout)

    return derivatives.differentiable(value, rule, a)


def _polar_tall(a, layout):
    m, n = a.shape
    if not n:
        return jnp.zeros((m, 0), a.dtype), a[:0, :0]
    a, exponent = polar.scaled(a)
    q, square = _triangular(a, layout) if m > n else (None, a)
    u, h = polar.decompose(square, layout)
    u = u if q is None else products.rows_times_rows(q, u, layout)
    return u, polar.times_power(h, exponent)


def _polar_tangents(a, u, side, a_dot, layout):
    """With A = W S V^H and E = W^H dA V, W^H dU V is (E - E^H)_ij / (s_i + s_j), and beside the
    spaces of U what A has there times the inverse of S."""
    w, s, vh = _decompose(a, layout)
    (m, k), n = w.shape, vh.shape[1]
    inner = _inner(w, vh, a_dot, layout)
    total = s[None] + s[:, None]
    skew = (inner - products.adjoint(inner, layout)) / jnp.where(total == 0, 1, total)
    inverse = jnp.where(s == 0, 0, 1 / jnp.where(s == 0, 1, s)).astype(w.dtype)
    u_dot = products.rows_times_rows(w, products.rows_times_rows(skew, vh, layout), layout)
    if m > k:
        moved = products.rows_times_adjoint(a_dot, vh, layout)
        moved = (moved - products.rows_times_rows(w, inner, layout)) * inverse
        u_dot += products.rows_times_rows(moved, vh, layout)
    if n > k:
        moved = products.adjoint_times_rows(w, a_dot, layout)
        moved = inverse[:, None] * (moved - products.rows_times_rows(inner, vh, layout))
        u_dot += products.rows_times_rows(w, moved, layout)
    if side == "right":
        p_dot = products.adjoint_times_rows(u_dot, a, layout)
        p_dot += products.adjoint_times_rows(u, a_dot, layout)
    else:
        p_dot = products.rows_times_adjoint(a_dot, u, layout)
        p_dot += products.rows_times_adjoint(a, u_dot, layout)
    return u_dot, (p_dot + products.adjoint(p_dot, layout)) / 2


def _pseudoinverse(a, rtol, layout):
    """The Moore-Penrose inverse, with its derivative at constant rank."""
    if not a.size:
        return jnp.zeros(a.shape[::-1], a.dtype)

    def value(a):
        u, s, vh = _decompose(a, layout)
        counts = s > rtol * s[0]
        inverse = jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)
        inverse = jnp.where(jnp.isnan(s), s, inverse).astype(a.dtype)
        v = _adjoint(vh, layout)
        return products.rows_times_adjoint(v * inverse, u, layout)

    def rule(primals, tangents):
        """dP = -P dA P + P P^H dA^H (I - A P) + (I - P A) dA^H P^H P (Golub and Pereyra, 1973)"""

        def times(*matrices):
            return functools.reduce(lambda x, y: products.rows_times_rows(x, y, layout), matrices)

        (a,), (a_dot,) = primals, tangents
        p = _pseudoinverse(a, rtol, layout)
        p_adjoint, a_dot_adjoint = _adjoint(p, layout), _adjoint(a_dot, layout)
        left = times(p, p_adjoint, a_dot_adjoint)
        right = times(a_dot_adjoint, p_adjoint, p)
        p_dot = left - times(left, a, p) + right - times(p, a, right)
        return p, p_dot - times(p, a_dot, p)

    return derivatives.differentiable(value, rule, a)
