"""Least squares by the QR of A, or of A^H if A is wide, and the singular values of R.

Derivatives are those of the normal equations, by the implicit function theorem. M is A, or A^H if A
is wide, and G = M^H M + damp^2 I. N is the pseudoinverse of G, and Z the projector on its null
space. Then x = N M^H b, or x = M N b for a wide A. The derivatives of N and Z at constant rank are
(G. H. Golub, V. Pereyra, SIAM J. Numer. Anal. 10, 1973)

    dN = -N dG N + N N dG Z + Z dG N N,    dZ = -(N dG Z + Z dG N),

N is computed from R, so that the squared condition number enters only through N.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import products
from jaxmg._qr import tall, tall_qr
from jaxmg._stacks import library, scaling
from jaxmg._svd import svd
from jaxmg._transform import derivatives


@dataclasses.dataclass(frozen=True)
class LeastSquares:
    """Least squares with a matrix (m, n).

    Attributes:
        full_rank: whether to assume full rank; then no singular values are computed.
        rcond: see `jaxmg.linalg.lstsq`.
        wide: whether m < n.
    """

    layout: layouts.Layout
    full_rank: bool
    rcond: float | None
    wide: bool

    def cutoff(self, shape, dtype, rcond):
        """Returns the cutoff of s relative to the largest; from the array ``rcond`` unless None."""
        unit = float(jnp.finfo(dtype).eps)
        if rcond is not None:
            return jnp.where(rcond < 0, jnp.asarray(unit, rcond.dtype), rcond)
        if self.rcond is None:
            return unit * max(shape)
        return unit if self.rcond < 0 else self.rcond

    def tall(self, a):
        """Returns M: A, or A^H if A is wide."""
        return products.transposed(a, self.layout).conj() if self.wide else a

    def replicated(self, x):
        return shardings.constrain(x, self.layout, P())

    def residuals(self, a, b, x):
        """Returns norm(b - A x)^2 of each column."""
        if not b.size:
            return jnp.zeros(b.shape[1], jnp.finfo(b.dtype).dtype)

        def local(a, b, x):
            rest = b - tall_qr.dot(a, x) if x.size else b  # products of 0 columns crash XLA
            squares = jnp.square(rest.real)
            squares = squares + jnp.square(rest.imag) if jnp.iscomplexobj(rest) else squares
            return tall_qr.sum_over_ranks(self.layout, jnp.sum(squares, axis=0))

        return tall.over_ranks(self.layout, local, (a, b), (x,))

    def scales(self, a, b, damp):
        """Returns `scaling.powers_of` the largest entry of A and damp, and of each column of b."""
        of_a = scaling.largest(jax.lax.stop_gradient(a))
        if damp is not None:
            of_a = jnp.maximum(of_a, jnp.abs(jax.lax.stop_gradient(damp)))
        of_b = self.replicated(scaling.largest(jax.lax.stop_gradient(b), 0))
        return [scaling.powers_of(jnp.where(x > 0, x, 1), only_finite=True) for x in (of_a, of_b)]

    def solve(self, a, b, damp, rcond, with_normal) -> tuple[Any, ...]:
        """Returns (x, s, rank, N, Z, V). s, rank and V, the singular values and vectors, are None
        with ``full_rank``.

        Args:
            with_normal: whether to return N, Z and V, which otherwise are None. The arrays must be
                scaled then (`scales`).
        """
        m, n = a.shape
        real = jnp.finfo(a.dtype).dtype
        if not a.size:
            x = jnp.zeros((n, b.shape[1]), a.dtype)
            k = min(m, n)
            small = jnp.zeros((k, k), a.dtype)
            s = None if self.full_rank else jnp.zeros(0, real)
            rank = None if self.full_rank else jnp.zeros((), int)
            return x, s, rank, *(3 * (small,) if with_normal else 3 * (None,))
        matrix = self.tall(a)
        k = matrix.shape[1]
        below = None if damp is None else damp.astype(a.dtype) * jnp.eye(k, dtype=a.dtype)
        c, of_a, of_b = b, None, None
        i: Any = None
        j: Any = None
        if self.wide and not with_normal:
            of_a, of_b = self.scales(a, b, damp)
            matrix, c, below = _scaled((matrix, b, below), of_a, of_b)
        if self.wide:
            q, r, *_ = tall.factor(matrix, self.layout, None, below)
        else:
            _, r, c, i, j = tall.factor(matrix, self.layout, b, below, with_q=False)
        cutoff = self.cutoff((m, n), a.dtype, rcond)
        static, moving = (cutoff, ()) if rcond is None else (None, (cutoff,))
        finish = functools.partial(
            _finish, wide=self.wide, full_rank=self.full_rank, with_normal=with_normal,
            cutoff=static, layout=self.layout,
        )  # fmt: skip
        x, s, rank, n, z, v = tall.small(self.layout, finish, r, c, *moving)
        if self.wide:
            x = tall.times(self.layout, q, x)
        x = self.replicated(x)
        if with_normal:
            return x, s, rank, n, z, v
        if self.wide:
            return (*_unscaled(x, s, of_a, of_b), rank, None, None, None)
        s = None if s is None else scaling.multiplied(s, i)
        return scaling.multiplied(x, j - i), s, rank, None, None, None

    def everything(self, a, b, damp, rcond) -> tuple[Any, ...]:
        """Calls `solve` with ``with_normal``, for scaled arrays, and defines the derivatives of all
        results."""
        return derivatives.differentiable(
            functools.partial(self.solve, with_normal=True), self.rule, a, b, damp, rcond
        )

    def rule(self, primals, tangents):
        """JVP rule; the module's docstring has the formulas."""
        results = self.everything(*primals)
        a, b, damp, rcond = primals
        if not a.size:
            return results, derivatives.still(results)
        x, s, rank, n, z, v = results
        a_dot, b_dot, damp_dot, _ = tangents
        layout, m = self.layout, self.tall(a)
        m_dot = jnp.zeros_like(m) if a_dot is None else self.tall(a_dot)
        b_dot = jnp.zeros_like(b) if b_dot is None else b_dot
        shift = 0 if damp_dot is None else (2 * damp * damp_dot).astype(a.dtype)
        dot, times = tall_qr.dot, functools.partial(tall.times, layout)
        adjoint_product = functools.partial(tall.adjoint_product, layout)
        half = adjoint_product(m, m_dot)
        g_dot = half + half.conj().T + shift * jnp.eye(len(half), dtype=a.dtype)
        if self.wide:
            y = dot(n, self.replicated(b))
            turned = times(m_dot, y)
            inner = self.replicated(b_dot) - adjoint_product(m_dot, x) - shift * y
            inner += dot(n, dot(g_dot, dot(z, self.replicated(b)))) - adjoint_product(m, turned)
            x_dot = self.replicated(turned) + self.replicated(times(m, dot(n, inner)))
        else:
            rest = tall.residual(layout, m, b, x)
            moved = tall.residual(layout, m_dot, b_dot, x)
            inner = adjoint_product(m_dot, rest) + adjoint_product(m, moved) - shift * x
            null = dot(z, adjoint_product(m_dot, times(m, dot(n, x))))
            x_dot = self.replicated(dot(n, inner) + null)
        left = dot(dot(n, g_dot), z)
        n_dot = -dot(dot(n, g_dot), n) + dot(n, left) + dot(left.conj().T, n)
        z_dot = -(left + left.conj().T)
        if self.full_rank:
            return results, (x_dot, None, None, n_dot, z_dot, None)
        turned = dot(dot(v.conj().T, g_dot), v)
        zero = s <= self.cutoff(a.shape, a.dtype, rcond) * s[0]
        s_dot = jnp.where(zero, 0, jnp.diagonal(turned).real / (2 * jnp.where(zero, 1, s)))
        gaps = jnp.square(s)[None] - jnp.square(s)[:, None]
        gaps = jnp.where(gaps == 0, jnp.inf, gaps).astype(a.dtype)
        v_dot = dot(v, turned / gaps)
        return results, (x_dot, s_dot, derivatives.still(rank), n_dot, z_dot, v_dot)


@dataclasses.dataclass(frozen=True)
class Solve:
    """Computes (x, s, rank) by a `LeastSquares`, with their derivatives."""

    of: LeastSquares

    def __call__(self, a, b, damp, rcond):
        def rule(primals, tangents):
            """JVP rule of a scaled problem, so that N neither overflows nor underflows."""
            of_a, of_b = self.of.scales(*primals[:3])
            both = self.of.rule(_scaled(primals, of_a, of_b), _scaled(tangents, of_a, of_b))
            return tuple((*_unscaled(x, s, of_a, of_b), rank) for x, s, rank, *_ in both)

        def values(*arrays: Any):
            solve: Any = self.of.solve
            return solve(*arrays, False)[:3]

        return derivatives.differentiable(values, rule, a, b, damp, rcond)


def _scaled(arrays, of_a, of_b):
    """Returns A, b and damp, or their tangents, divided by their scales, and the other arrays
    unchanged."""
    scaled = [
        None if x is None else scaling.times(x, down)
        for x, (down, _) in zip(arrays, (of_a, of_b, of_a), strict=False)
    ]
    return [*scaled, *arrays[3:]]


def _unscaled(x, s, of_a, of_b):
    """Returns the solution and the singular values of a problem from those of the scaled one."""
    x = scaling.times_all(x, *scaling.halves(of_a[0], of_b[1]))
    return x, None if s is None else scaling.times(s, of_a[1])


def _finish(r, b, *moving, wide, full_rank, with_normal, cutoff, layout):
    """Returns (x, s, rank, N, Z, V) from R and Q^H b; for a wide matrix Q^H x instead of x, from R
    and b. Every device computes this. Entries of R must be near 1.

    Args:
        moving: the cutoff, if it is an array.
    """
    (cutoff,) = moving or (cutoff,)
    dot = functools.partial(tall_qr.dot, layout=layout)

    def by_substitution():
        x = jax.lax.linalg.triangular_solve(
            r, b, left_side=True, lower=False, transpose_a=wide, conjugate_a=wide
        )
        if not with_normal:
            return x, None, None
        inverse = tall_qr.right_solve(jnp.eye(len(r), dtype=r.dtype), r)
        return x, dot(inverse, inverse.conj().T), jnp.zeros_like(r)

    if full_rank:
        x, n, z = by_substitution()
        return x, None, None, n, z, None
    # Singular vectors are needed if the rank isn't full, and for derivatives.
    u: Any
    vh: Any
    u, s, vh = (
        library.svd_of_scaled(r) if with_normal else (None, _singular_values(r, layout), None)
    )
    mask = (s > 0) & (s > jnp.asarray(cutoff, s.dtype) * s[0])
    rank = jnp.sum(mask)

    def by_vectors():
        left, _, right = library.svd_of_scaled(r) if u is None else (u, s, vh)
        v = right.conj().T
        left, v = (v, left) if wide else (left, v)  # a wide matrix solves with R^H
        inverse = jnp.where(mask, 1 / jnp.where(mask, s, 1), 0).astype(r.dtype)
        x = dot(v, inverse[:, None] * dot(left.conj().T, b))
        if not with_normal:
            return x, None, None
        half = right.conj().T * inverse
        null = right.conj().T * (~mask).astype(r.dtype)
        return x, dot(half, half.conj().T), dot(null, null.conj().T)

    x, n, z = jax.lax.cond(rank == len(r), by_substitution, by_vectors)
    return x, s, rank, n, z, None if vh is None else vh.conj().T


def _singular_values(r, layout):
    """Returns the singular values of R in descending order. On GPUs the eigenvalues of R^H R take a
    tenth of the time, and are as accurate if R is well conditioned."""

    def by_svd():
        return library.svd_of_scaled(r, compute_uv=False)

    if layout.platform == "cpu" or len(r) <= svd.SMALL:
        return by_svd()

    def by_eigenvalues():
        square = products.dot(r.conj(), r, 0, 0, layout)
        values = library.eigvalsh_of_scaled(square, symmetrize_input=False)
        return jnp.sqrt(jnp.maximum(values[::-1], 0))

    inverse = tall_qr.right_solve(jnp.eye(len(r), dtype=r.dtype), r)
    return jax.lax.cond(tall_qr.is_moderate(r, inverse), by_eigenvalues, by_svd)
