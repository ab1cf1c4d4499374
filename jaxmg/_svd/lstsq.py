"""`jaxmg.linalg.lstsq` and `least_squares`: by the QR of A, or of A^H if A is wide.

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
import operator
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import layouts, shardings
from jaxmg._linalg import compositions
from jaxmg._matrices import products
from jaxmg._qr import gels, tall, tall_qr
from jaxmg._qr import linalg as qr_linalg
from jaxmg._stacks import library, scaling
from jaxmg._svd import spaces, svd
from jaxmg._transform import derivatives
from jaxmg._types import AnyArray, AnyMatrixLike, MeshLike


@_compat.api_boundary
def lstsq(
    a: AnyMatrixLike,
    b: AnyMatrixLike,
    rcond: AnyArray | SupportsFloat | None = None,
    *,
    numpy_resid: bool = False,
    damp: AnyArray | SupportsFloat | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Minimizes norm(b - a x) for a matrix of any rank, as `jax.numpy.linalg.lstsq`.

    Args:
        a: (m, n), sharded by rows. A wide ``a`` is transposed.
        b: (m,) or (m, nrhs), sharded by rows or replicated.
        rcond: Cutoff, a number or scalar array; singular values of at most rcond times the largest
            count as 0. None: eps max(m, n). Negative: eps.
        numpy_resid: Whether to return no residuals if m <= n or the rank is below n, as in JAX.
            Unsupported under ``jit``.
        damp: Real scalar; x minimizes norm(b - a x)^2 + damp^2 norm(x)^2 (ridge or Tikhonov
            regression). s and the rank are then those of ``a`` with damp times I appended.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        (x, resid, rank, s), all replicated.

        - x is (n,) or (n, nrhs), of least norm.
        - resid is (nrhs,), norm(b - a x)^2 of each column.
        - rank is an integer.
        - s is (min(m, n),), the singular values of ``a``, descending.

    A tall, well-conditioned ``a`` is solved by the seminormal equations with one correction (A.
    Bjorck, Linear Algebra Appl. 88/89, 1987). Other matrices are solved by `qr` and the singular
    values of R, or by `svd` if min(m, n) > 4096 and neither ``a`` nor its transpose is tall on the
    devices. docs/howto/least_squares.md has details.

    Cost: m n^2 flops over all ranks for a well-conditioned ``a``, else 3 m n^2 or more, and the
    singular values of an n x n matrix on every device. `least_squares` needs no singular values.
    Memory: up to about three times a's. If `svd` is used, cost and memory are those of `svd`.

    If squares or products of entries would overflow or underflow, ``a`` and b are scaled by powers
    of two, in two more passes over ``a``. Derivatives, ill-conditioned matrices and wide matrices
    always take these passes.

    x has derivatives with respect to ``a``, b and ``damp``, valid at constant rank. s has
    derivatives, 0 for singular values that count as 0.

    Raises:
        TypeError, ValueError, RuntimeError: As `jaxmg.gesv`.

    Examples:
        >>> x, resid, rank, s = jaxmg.linalg.lstsq(a, b)
        >>> x = jaxmg.linalg.lstsq(a, b, damp=0.1)[0]
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.lstsq", matrix_specs, in_specs)
    results = _run(a, b, damp, "lstsq", ("small",) * 4, mesh, matrix_specs, rcond)
    x, resid, rank, s = results
    if numpy_resid and (a.shape[0] <= a.shape[1] or operator.index(rank) < a.shape[1]):
        resid = resid[:0]
    return x, resid, rank, s


@_compat.api_boundary
def least_squares(
    a: AnyMatrixLike,
    b: AnyMatrixLike,
    damp: AnyArray | SupportsFloat | None = None,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Minimizes norm(b - a x) for an ``a`` of full rank, as LAPACK's gels.

    Args:
        a, b, damp, mesh, matrix_specs, in_specs: As in `lstsq`.

    Returns:
        x, (n,) or (n, nrhs), replicated; of least norm if ``a`` is wide. If ``a`` doesn't have full
        rank, x has infinity, NaN or large entries: use `lstsq`.

    Cost: m n^2 flops over all ranks for a well-conditioned ``a``, 3 m n^2 if CholeskyQR2 suffices.
    Derivatives, errors and memory are those of `lstsq`.

    Examples:
        >>> x = jaxmg.linalg.least_squares(a, b)
        >>> ridge = jaxmg.linalg.least_squares(a, b, damp=0.1)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.least_squares", matrix_specs, in_specs)
    return _run(a, b, damp, "least_squares", ("small",), mesh, matrix_specs, None)


# An attribute of a call with this value: the cutoff is the last of the program's arrays.
_IN_ARRAY = "array"


def _run(a, b, damp, name, results, mesh, spec, rcond):
    cutoff = _IN_ARRAY if isinstance(rcond, jax.Array) else rcond
    scalars = {"damp": damp, "rcond": rcond if cutoff is _IN_ARRAY else None}
    scalars = {key: value for key, value in scalars.items() if value is not None}
    if scalars:
        for argument, array in (("a", a), ("b", b)):
            checks.is_an_array(f"linalg.{name}", argument, array)
        a, b = compositions.promote(name, a, b)
        checks.usable(f"linalg.{name}", "a", a)
    arrays = a, b, *(_real_scalar(name, a, *scalar) for scalar in scalars.items())
    cutoff = cutoff if cutoff is None or cutoff is _IN_ARRAY else float(cutoff)
    return compositions.run(arrays, name, solved, results, mesh, spec, cutoff)


def _real_scalar(name, a, argument, value):
    """Returns the value as a scalar of a's real dtype."""
    real = np.finfo(a.dtype).dtype if jnp.issubdtype(a.dtype, jnp.inexact) else a.dtype
    if np.ndim(value) or jnp.iscomplexobj(value):
        raise ValueError(f"linalg.{name}: {argument} must be a real scalar; got {value!r}")
    return value.astype(real) if isinstance(value, jax.Array) else np.asarray(value, real)


def _solved(call, a, b, *scalars):
    """Returns (x, resid, rank, s), or (x,) for `least_squares`.

    ``scalars`` are ``damp``, if passed, and ``rcond``, if it is an array.
    """
    (cutoff,) = call.attributes
    if b.ndim == 2 and not b.shape[1]:  # products of 0 columns crash XLA
        x, *others = _solved(call, a, jnp.zeros(a.shape[0], a.dtype), *scalars)
        rest = (others[0][:0], *others[1:]) if others else ()
        return x[:, None][:, :0], *rest
    rcond = None
    if cutoff == _IN_ARRAY:
        scalars, rcond = scalars[:-1], scalars[-1]
        cutoff = None
    damp = scalars[0] if scalars else None
    full_rank = call.name == "linalg_least_squares"
    if full_rank and qr_linalg.by_tiles(max(a.shape), min(a.shape), call.layout.ranks):
        return (_by_tiles(call, a, b, damp),)
    columns = b if b.ndim == 2 else b[:, None]
    of = _LeastSquares(call.layout, full_rank, cutoff, a.shape[0] < a.shape[1])
    if not full_rank and _takes_whole_svd(call.layout, max(a.shape), min(a.shape)):
        x, resid, *others = _by_singular_values(call, of, a, columns, damp, rcond)
        return x if b.ndim == 2 else x[:, 0], resid, *others
    x, s, rank = _Solve(of)(a, columns, damp, rcond)
    shape = x if b.ndim == 2 else x[:, 0]
    if full_rank:
        return (shape,)
    return shape, of.residuals(a, columns, x), rank, s


def _by_tiles(call, a, b, damp):
    """Returns x for a matrix of full rank that is neither tall nor wide."""
    n = a.shape[1]
    a, b = (a, b) if damp is None else _damped(call, a, b, damp)
    down, _ = scaling.scale_of(a)
    b, of_b = scaling.scaled(b, 0)
    x = gels.least_squares(scaling.times_scale(a, down), b, **call.layout.where)
    return scaling.times_all(x[:n], *scaling.halves(down, of_b))


def _damped(call, a, b, damp):
    """Returns (A, b) of the equivalent problem without ``damp``, whose solution begins with x."""
    (m, n), layout = a.shape, call.layout
    shift = damp.astype(a.dtype) * jnp.eye(min(m, n), dtype=a.dtype)
    a, b, shift = (blocks.replicate(x, layout) for x in (a, b, shift))
    if m < n:  # its solution is the y of least norm with [A, damp I] y = b
        return jnp.concatenate([a, shift], axis=1), b
    b = jnp.concatenate([b, jnp.zeros((n, *b.shape[1:]), b.dtype)])
    return jnp.concatenate([a, shift]), b


def _takes_whole_svd(layout, m, k):
    """Returns whether to compute the SVD of the matrix, and not of its R. On GPUs this is faster
    unless the matrix is tall. On CPU devices LAPACK's SVD of R is faster."""
    return not qr_linalg.fits(m, k, layout.ranks) or (
        layout.platform != "cpu" and k > svd.SMALL and m < 3 * k
    )


def _by_singular_values(call, of, a, b, damp, rcond):
    """Returns (x, resid, rank, s) of a large matrix that is neither tall nor wide, by its SVD."""
    matrix, columns = (a, b) if damp is None else _damped(call, a, b, damp)
    cutoff = of.cutoff(a.shape, a.dtype, rcond)
    static, moving = (cutoff, None) if rcond is None else (0.0, cutoff)
    cut = spaces.Cut(static)
    down, up = scaling.scale_of(matrix)
    # Without the barrier XLA recomputes the scaled columns for each element of a product, and
    # splits the product into two passes.
    columns, of_b = jax.lax.optimization_barrier(scaling.scaled(columns, 0))
    x, s, rank = _least_norm(scaling.times_scale(matrix, down), columns, moving, cut, call.layout)
    x = scaling.times_all(x[: a.shape[1]], *scaling.halves(down, of_b))
    return x, of.residuals(a, b, x), rank, s * up


def _least_norm(a, b, rtol, cut, layout):
    """Returns (A^+ b, the singular values, the rank), with the derivative at constant rank.

    Args:
        rtol: replaces the ``rtol`` of ``cut`` unless None; may be traced.
    """

    def value(a, b, rtol):
        u, s, vh = svd.decompose(a, layout)
        at = cut.at(rtol)
        c = at.inverse(s).astype(a.dtype)[:, None] * tall.adjoint_product(layout, u, b)
        x = shardings.constrain(tall.adjoint_product(layout, vh, c), layout, P())
        return x, s, jnp.sum(at.counts(s))

    def rule(primals, tangents):
        a, b, rtol = primals

        def composed(a, b):
            inverse = spaces.pseudoinverse_of(a, cut, layout, rtol)
            x = shardings.constrain(tall.times(layout, inverse, b), layout, P())
            return x, svd.values_of(a, layout)

        results = _least_norm(a, b, rtol, cut, layout)
        if tangents[0] is None and tangents[1] is None:
            return results, derivatives.still(results)
        _, (x_dot, s_dot) = derivatives.as_composed(composed)((a, b), tangents[:2])
        s_dot = jnp.where(cut.at(rtol).counts(results[1]), s_dot, 0)
        return results, (x_dot, s_dot, derivatives.still(results[2]))

    return derivatives.differentiable(value, rule, a, b, rtol)


solved = compositions.Program(_solved, any_shape=True, with_b=True)


@dataclasses.dataclass(frozen=True)
class _LeastSquares:
    """Least squares with a matrix (m, n).

    Attributes:
        full_rank: whether to assume full rank; then no singular values are computed.
        rcond: see `lstsq`.
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

    def powers(self, a, b, damp):
        """Returns (i, j) such that A 2^-i and each column of b 2^-j have largest entries near 1."""
        largest = scaling.largest(jax.lax.stop_gradient(a))
        if damp is not None:
            largest = jnp.maximum(largest, jnp.abs(jax.lax.stop_gradient(damp)))
        return scaling.exponent_of(largest), self.replicated(scaling.exponent_of(b, axis=0))

    def solve(self, a, b, damp, rcond, with_normal) -> tuple[Any, ...]:
        """Returns (x, s, rank, N, Z, V). N, Z and V are None unless ``with_normal``. s, rank and V,
        the singular values and vectors, are None with ``full_rank``."""
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
        if self.wide:
            i, j = self.powers(a, b, damp)
            matrix, c, below = _scaled((matrix, b, below), i, j)
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
        x = scaling.multiplied(self.replicated(x), j - i)
        s = None if s is None else scaling.multiplied(s, i)
        n = None if n is None else scaling.multiplied(n, -2 * i)
        return x, s, rank, n, z, v

    def everything(self, a, b, damp, rcond) -> tuple[Any, ...]:
        """Calls `solve` with ``with_normal``, and defines the derivatives of all results."""
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
class _Solve:
    """Computes (x, s, rank) by a `_LeastSquares`, with their derivatives."""

    of: _LeastSquares

    def __call__(self, a, b, damp, rcond):
        def rule(primals, tangents):
            """JVP rule of a scaled problem, so that N neither overflows nor underflows."""
            i, j = self.of.powers(*primals[:3])
            both = self.of.rule(_scaled(primals, i, j), _scaled(tangents, i, j))
            return tuple(
                (
                    scaling.multiplied(x, j - i),
                    None if s is None else scaling.multiplied(s, i),
                    rank,
                )
                for x, s, rank, *_ in both
            )

        def values(*arrays: Any):
            solve: Any = self.of.solve
            return solve(*arrays, False)[:3]

        return derivatives.differentiable(values, rule, a, b, damp, rcond)


def _scaled(arrays, i, j):
    """Returns A 2^-i, b 2^-j and damp 2^-i, or their tangents, and the other arrays unchanged."""
    scaled = [
        None if x is None else scaling.multiplied(x, -power)
        for x, power in zip(arrays, (i, j, i), strict=False)
    ]
    return [*scaled, *arrays[3:]]


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
