"""QR of each matrix of a stack by blocked Householder reflectors: LAPACK's geqrf and orgqr, all
matrices in step.

A panel is reduced column by column, which are vector operations of all matrices at a time; what
lies to the right of it is updated by products, with the compact form I - V T V^H of its reflectors
(R. Schreiber, C. Van Loan, "A storage-efficient WY representation for products of Householder
transformations", SIAM J. Sci. Stat. Comput. 10, 1989). Results are LAPACK's up to rounding, for
every matrix: R's diagonal is real, of any sign, and Q orthogonal to rounding. A column that holds
NaN makes the results of its own matrix NaN.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import sections


def reduced(a, width=sections.WIDTH) -> tuple[Any, Any]:
    """(Q, R) of a (count, m, n): Q (count, m, k) and R (count, k, n), k = min(m, n).

    Cost for each matrix: about 2 m n k multiplications and additions for R, where LAPACK has n k
    (m - k / 3), and as many for Q; 5 k kernels on vectors. Memory: about four stacks.
    """
    results: Any = _reduced(a, width)
    return results


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
@_compat.default_promotion()
def _reduced(a, width):
    m, n = a.shape[-2:]
    k = min(m, n)
    packed, ts, scale = _factor(a, width)
    return _make_q(packed, ts, m, k, width), _make_r(packed, scale, k, n)


@_reduced.defjvp
@_compat.default_promotion()
def _reduced_jvp(width, primals, tangents):
    """S. F. Walter, L. Lehmann, R. Lamour, Optim. Methods Softw. 27, 2012."""
    (a,), (a_dot,) = primals, tangents
    q, r = reduced(a, width)
    k = r.shape[-2]
    square, multiply = r[..., :k], sections.multiply
    w = jax.lax.linalg.triangular_solve(square, a_dot[..., :k], left_side=False, lower=False)
    h = multiply(sections.adjoint(q), w)
    half = jnp.tril(h, -1)
    skew = half - sections.adjoint(half)
    if jnp.iscomplexobj(h):  # R's diagonal stays real
        imaginary = 1j * jnp.diagonal(h, axis1=-2, axis2=-1).imag
        skew += imaginary[..., None] * jnp.eye(k, dtype=h.dtype)
    q_dot = w - multiply(q, h - skew)
    r_dot = multiply(h - skew, square)
    if a.shape[-1] > k:
        rest = multiply(sections.adjoint(q_dot), a[..., k:])
        rest += multiply(sections.adjoint(q), a_dot[..., k:])
        r_dot = jnp.concatenate([r_dot, rest], axis=-1)
    return (q, r), (q_dot, r_dot)


@_compat.default_promotion()
def triangular(a, width=sections.WIDTH):
    """R of `reduced` alone, without a derivative of its own."""
    packed, _, scale = _factor(a, width)
    return _make_r(packed, scale, min(a.shape[-2:]), a.shape[-1])


def _make_r(packed, scale, k, n):
    return jnp.triu(packed[:, :k, :n]) / scale


def _scale(a):
    """Powers of two, (count, 1, n), that bring the largest entry of each column near 1: squares
    of entries neither overflow nor vanish then, and Q stays the same."""
    largest = jnp.max(jnp.abs(a), axis=-2, keepdims=True, initial=0)
    exponent = jnp.clip(jnp.frexp(largest)[1], *_exponents(largest.dtype))
    usual = (largest > 0) & jnp.isfinite(largest)
    return jnp.ldexp(jnp.ones_like(largest), jnp.where(usual, -exponent, 0)).astype(a.dtype)


def _exponents(dtype):
    """Of powers of two that are normal numbers, as are their inverses."""
    most = jnp.finfo(dtype).maxexp - 2
    return -most, most


def _factor(a, width):
    """(The reflectors below R, the T of each panel, the scale of R's columns)"""
    m, n = a.shape[-2:]
    columns = sections.padded(min(m, n), width)
    scale = _scale(a)
    a = sections.pad(a * scale, columns, columns)
    ts = []
    for start, stop in sections.of(columns, width):
        trailing, t = _reduce_section(a[:, start:, start:], stop - start, width)
        a = sections.put(a, trailing, start, start)
        ts.append(t)
    return a, ts, scale


def _reduce_section(a, columns, width):
    """The first ``columns`` columns, a multiple of the panel's width, as reflectors and R, with
    what is right of them updated; the T's, (panels, count, width, width)."""
    count, _, n = a.shape
    across = jnp.arange(n)

    def reduce(i, state):
        a, ts = state
        first = i * width
        panel = jax.lax.dynamic_slice_in_dim(a, first, width, 2)
        panel, taus = _reduce_panel(panel, first)
        v = _reflectors(panel, first)
        t = _compact(v, taus)
        update = sections.multiply(sections.adjoint(t), sections.multiply(sections.adjoint(v), a))
        updated = a - sections.multiply(v, update)
        a = jnp.where(across >= first + width, updated, a)
        a = jax.lax.dynamic_update_slice_in_dim(a, panel, first, 2)
        return a, jax.lax.dynamic_update_index_in_dim(ts, t, i, 0)

    ts = jnp.zeros((columns // width, count, width, width), a.dtype)
    return jax.lax.fori_loop(0, columns // width, reduce, (a, ts))


def _reduce_panel(panel, first):
    """The panel (count, m, width), whose column i has its pivot in row ``first`` + i, as R's
    rows and reflectors; the factors of these, (count, width)."""
    count, m, width = panel.shape
    rows, across = jnp.arange(m), jnp.arange(width)

    def reduce(i, state):
        panel, taus = state
        x = jax.lax.dynamic_index_in_dim(panel, i, 2, keepdims=False)
        pivot = rows == first + i
        tail = jnp.where(rows > first + i, x, 0)
        head = jnp.sum(jnp.where(pivot, x, 0), axis=1)
        rest = jnp.sum(_squares(tail), axis=1)
        length = jnp.sqrt(_squares(head) + rest)
        # Squares may vanish of what is nothing beside the column's length, 1 or so at the start.
        nothing = (length == 0) | ((rest == 0) & (jnp.imag(head) == 0))  # H is the identity
        beta = jnp.where(nothing, jnp.real(head), jnp.where(jnp.real(head) > 0, -length, length))
        safe = jnp.where(nothing, 1, beta).astype(panel.dtype)
        tau = jnp.where(nothing, 0, (safe - head) / safe)
        below = tail / jnp.where(nothing, 1, head - safe)[:, None]
        v = below + pivot.astype(panel.dtype)
        product = jnp.sum(v.conj()[:, :, None] * panel, axis=1)
        update = v[:, :, None] * (tau.conj()[:, None] * product)[:, None, :]
        column = jnp.where(rows < first + i, x, below)
        column = jnp.where(pivot, beta[:, None].astype(panel.dtype), column)
        panel = jnp.where(across > i, panel - update, panel)
        panel = jnp.where(across == i, column[:, :, None], panel)
        return panel, jnp.where(across == i, tau[:, None], taus)

    return jax.lax.fori_loop(0, width, reduce, (panel, jnp.zeros((count, width), panel.dtype)))


def _squares(x):
    return jnp.square(jnp.real(x)) + jnp.square(jnp.imag(x)) if jnp.iscomplexobj(x) else x * x


def _reflectors(panel, first):
    """V of a reduced panel: ones on its diagonal, which begins in row ``first``, zeros above."""
    diagonal = first + jnp.arange(panel.shape[2])
    rows = jnp.arange(panel.shape[1])[:, None]
    return jnp.where(rows > diagonal, panel, (rows == diagonal).astype(panel.dtype))


def _compact(v, taus):
    """T with H_1 ... H_k = I - V T V^H: (I + D U)^-1 D, with D of the factors and U the part of
    V^H V above the diagonal."""
    products = jnp.triu(sections.multiply(sections.adjoint(v), v), 1)
    eye = jnp.eye(taus.shape[-1], dtype=v.dtype)
    system = taus[..., None] * products + eye
    return jax.lax.linalg.triangular_solve(
        system, taus[..., None] * eye, left_side=True, lower=False, unit_diagonal=True
    )


def _make_q(packed, ts, m, k, width):
    """The first k columns of Q, from the last panel to the first."""
    columns = sections.padded(k, width)
    q = sections.pad(jnp.broadcast_to(jnp.eye(m, k, dtype=packed.dtype), (len(packed), m, k)),
                     packed.shape[1], columns)  # fmt: skip
    parts = list(zip(sections.of(columns, width), ts, strict=True))
    for (start, stop), t in reversed(parts):
        v = packed[:, start:, start:stop]
        rest = _apply_section(v, t, q[:, start:, start:], width)
        q = sections.put(q, rest, start, start)
    return q[:, :m, :k]


def _apply_section(packed, ts, x, width):
    """The reflectors of a section times X, the last panel first."""
    panels = len(ts)

    def apply(step, x):
        i = panels - 1 - step
        first = i * width
        v = _reflectors(jax.lax.dynamic_slice_in_dim(packed, first, width, 2), first)
        t = jax.lax.dynamic_index_in_dim(ts, i, 0, keepdims=False)
        inner = sections.multiply(t, sections.multiply(sections.adjoint(v), x))
        return x - sections.multiply(v, inner)

    return jax.lax.fori_loop(0, panels, apply, x)
