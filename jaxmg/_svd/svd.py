"""The singular value decomposition in a trace, of matrices that are sharded by rows.

The polar decomposition gives A = U H, and the eigensolver H = V S V^H, so that A = (U V) S V^H
(N. J. Higham, P. Papadimitriou, "A parallel algorithm for computing the polar decomposition",
Parallel Comput. 20, 1994; Y. Nakatsukasa, N. J. Higham, SIAM J. Sci. Comput. 35, 2013). Both steps
are backward stable: errors of singular values are of the size of rounding times the largest.

For a tall matrix this is the decomposition of its R, multiplied by Q from the left; a wide matrix
is transposed first. If R has at most `SMALL` columns, one GPU computes JAX's SVD of R for all,
which compiles in half the time, and corrects it. On CPU devices the engine calls LAPACK on one
rank, up to a larger order.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks
from jaxmg._eigen import linalg as eigh_linalg
from jaxmg._eigen import syevd
from jaxmg._layouts import layouts, shardings
from jaxmg._linalg import compositions
from jaxmg._matrices import products
from jaxmg._qr import geqrf, tall, tall_qr
from jaxmg._qr import linalg as qr_linalg
from jaxmg._stacks import batching, choice, library, rotations, scaling, sections
from jaxmg._svd import gesvd, polar, stacks
from jaxmg._transform import derivatives

# Up to this order one rank computes the SVD of a square matrix for all ranks.
SMALL = 256
# On GPUs `values` reduces to a band from this order on, and uses the polar decomposition below it.
LARGE = 6144


def _svd_stacks(platform, options, a):
    """Computes `decomposed` of each matrix of a stack."""
    u, s, vh = stacks.svd(platform, a)
    part = slice(*options)
    return u[..., part], s[..., part], vh[..., part, :]


@compositions.program(any_shape=True, compute_stacks=_svd_stacks, by=stacks.SVD, single=(1,))
def decomposed(call, a):
    """Computes (U, s, V^H) with U (m, k) and V^H (k, n), k = min(m, n). If the call has attributes
    (start, end), computes only these singular values and vectors."""
    return decompose(a, call.layout, *call.attributes)


@compositions.program(
    any_shape=True, compute_stacks=lambda platform, options, a: library.svd(a, full_matrices=True),
    single=(1,),
)  # fmt: skip
def completed(call, a):
    """Computes (U, s, V^H) with U (m, m) and V^H (n, n). It has no derivative."""
    return _completed(a, call.layout)


def _refuse(primals, tangents):
    raise NotImplementedError(
        "linalg.svd: a, with m != n, is being differentiated (jax.grad, jvp, linearize, ...), but "
        "full_matrices=True has no derivative, as in JAX; pass full_matrices=False"
    )


@compositions.program(any_shape=True, by_library=True, single=(1,))
def decomposed_by(call, a):
    """Computes all of `decomposed`, or `completed`, with a library."""
    backend, whole = call.attributes
    if whole:
        return _completed(a, call.layout, backend)
    return decompose(a, call.layout, backend=backend)


@compositions.program(any_shape=True, by_library=True, single=(0,))
def values_by(call, a):
    """Computes only the singular values, with a library."""
    (backend,) = call.attributes
    return (values_of(a, call.layout, backend),)


@compositions.program(
    any_shape=True,
    compute_stacks=lambda platform, options, a: (stacks.singular_values(platform, a),),
    by=stacks.SVD,
    single=(0,),
)
def values(call, a):
    """Computes only the singular values."""
    return (values_of(a, call.layout),)


@compositions.program(
    any_shape=True,
    compute_stacks=lambda platform, options, a: (
        stacks.singular_values(platform, scaling.scaled(a, (-2, -1))[0]),
    ),
    by=stacks.SVD,
    single=(0,),
)
def relative_values(call, a):
    """Computes the singular values times a power of two, so that they don't underflow unless A's
    entries do."""
    return (values_of(scaling.scaled(a)[0], call.layout),)


@compositions.program(single=(1,))
def decomposed_hermitian(call, a):
    """Computes (U, s, V^H) of a Hermitian matrix from its eigenvectors and eigenvalues."""
    read, start, end = call.attributes
    w, v = eigh_linalg.eigenpairs_of(a, call.layout, read)
    v = polar.by_rows(v, call.layout)  # explicit axes can't select from sharded columns
    order = jnp.argsort(-jnp.abs(w))
    u, sign = v[:, order], jnp.where(w < 0, -1, 1)[order].astype(v.dtype)
    vh = products.adjoint(u * sign, call.layout)
    if (start, end) == (0, len(vh)):
        return u, jnp.abs(w)[order], vh
    vh = blocks.replicate(vh, call.layout)[start:end]
    return u[:, start:end], jnp.abs(w)[order][start:end], vh


@compositions.program(single=(0,))
def hermitian_values(call, a):
    """Computes the singular values of a Hermitian matrix."""
    w = eigh_linalg.eigenvalues_of(a, call.layout, *call.attributes)
    return (jnp.sort(jnp.abs(w))[::-1],)


def _polar_stacks(platform, options, a):
    """Computes `polar_factors` of each matrix of a stack."""
    return stacks.polar_factors(platform, a, *options)


@compositions.program(any_shape=True, compute_stacks=_polar_stacks)
def polar_factors(call, a):
    """Computes (U, P) of A = U P, or A = P U."""
    (side,) = call.attributes
    return _polar(a, side, call.layout)


@compositions.program(any_shape=True, by_library=True)
def polar_factors_by(call, a):
    """Computes `polar_factors` with a library."""
    side, backend = call.attributes
    return _polar(a, side, call.layout, backend)


def _adjoint(x, layout):
    return products.transposed(x, layout).conj()


def _completed(a, layout, backend="native"):
    def value(a):
        m, n = a.shape
        if m < n:
            u, s, vh = _complete(_adjoint(a, layout), layout, backend)
            return _adjoint(vh, layout), s, _adjoint(u, layout)
        return _complete(a, layout, backend)

    return derivatives.differentiable(value, _refuse, a)


def decompose(a, layout, start=0, end=None, backend="native"):
    """Returns (U, s, V^H) of the singular values start to end, with its derivative. Only the native
    backend computes less than all of them."""
    end = min(a.shape) if end is None else end
    subset = None if (start, end) == (0, min(a.shape)) else (start, end)

    def value(a):
        m, n = a.shape
        if m < n:
            u, s, vh = _decompose_tall(_adjoint(a, layout), layout, subset, backend)
            return _adjoint(vh, layout), s, _adjoint(u, layout)
        return _decompose_tall(a, layout, subset, backend)

    def rule(primals, tangents):
        """JVP rule. The derivative of a part needs all singular vectors."""
        u, s, vh = decompose(primals[0], layout, backend=backend)
        both = (u, s, vh), _tangents(u, s, vh, tangents[0], layout)
        if subset is None:
            return both
        (u, s, vh), moved = (
            (u[:, start:end], s[start:end], blocks.replicate(vh, layout)[start:end])
            for u, s, vh in both
        )
        if layout.explicit:  # V^H of a wide matrix is sharded by rows in ``value``
            vh = shardings.constrain_like(vh, jax.eval_shape(value, primals[0])[2])
        return (u, s, vh), moved

    return derivatives.differentiable(value, rule, a)


def _decompose_tall(a, layout, subset=None, backend="native"):
    m, n = a.shape
    if not n:
        return jnp.zeros((m, 0), a.dtype), jnp.zeros(0, jnp.finfo(a.dtype).dtype), a[:0, :0]
    if m == n > SMALL and backend == "native":
        return decompose_square(a, layout, subset)
    a, up = scaling.scaled(a)
    u, s, vh = _decompose_scaled(a, layout, subset, backend)
    return u, s * up, vh


def _decompose_scaled(a, layout, subset, backend):
    """As `_decompose_tall`, for a matrix whose entries are near 1."""
    q, square = _triangular(a, layout) if len(a) > a.shape[1] else (None, a)
    if backend == "native":
        u, s, vh = decompose_square(square, layout, subset)
    else:
        by_library = gesvd.Decomposition(layout, backend, True, "linalg.svd")
        u, s, vh = batching.batchable(by_library, square)
    return _times(q, u, layout), s, vh


def decompose_square(a, layout, subset=None) -> Any:
    """Returns (U, s, V^H) of a square matrix, of all singular values or of a part. The entries of a
    small matrix must be scaled."""
    n = len(a)
    start, end = subset or (0, n)
    if n <= SMALL or start == end:
        u, s, vh = batching.batchable(_Small(layout), a)
        return u[:, start:end], s[start:end], blocks.replicate(vh, layout)[start:end]
    by_all = gesvd.Decomposition(layout, "native", True, "linalg.svd", subset)
    return batching.batchable(by_all, a)


def _times(q, u, layout):
    """Returns Q U, sharded by rows, of q (m, n) and u (n, k). If q is None, Q is the identity."""
    if q is None:
        return u
    if len(u) <= SMALL:
        return tall.times(layout, q, u)
    return products.rows_times_rows(q, u, layout)


@dataclasses.dataclass(frozen=True)
class _Small(batching.Batchable):
    """Computes (U, s, V^H) of a square matrix, or only s. The first GPU computes it for all. Each
    device computes its part of a batch."""

    layout: layouts.Layout
    vectors: bool = True

    def __call__(self, *arrays):
        if self.layout.platform == "cpu":
            return self._by_engine(*arrays)
        return tall.by_first_rank(self.layout, self.local, *arrays)

    def _by_engine(self, a):
        """Calls the engine, which uses LAPACK on one rank for small matrices on CPU devices."""
        if not self.vectors:
            return gesvd.singular_values(a, self.layout)
        return gesvd.Decomposition(self.layout, "native", True, "linalg.svd")(a)

    def local(self, a):
        results = library.svd(a, full_matrices=False, compute_uv=self.vectors)
        if self.vectors and self.layout.platform != "cpu":
            results = _corrected(self.layout.platform, a, *results)
        return tuple(results) if self.vectors else results

    def batched(self, settled, size, marks, *arrays):
        specs = (P(),) * (3 if self.vectors else 1)
        placement = batching.make_placement(self.layout, arrays, marks, specs)
        one = _OnDevice(self)
        return batching.spread(
            batching.alone(self.layout), one, size, marks, *arrays, placement=placement
        )


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """A `_Small` of one or many whole matrices on one device, inside a shard_map."""

    of: _Small

    def __call__(self, coordinates, a):
        return self.of.local(a)

    compute_all = __call__


def _corrected(platform, a, u, s, vh):
    """Corrects (U, s, V^H) of small square matrices to the accuracy of LAPACK.

    If singular values are close, cuSOLVER's Jacobi iteration leaves U^H U - I up to hundreds of
    times the rounding unit. A Newton-Schulz step squares this error.
    """
    multiply, adjoint = functools.partial(choice.multiply, platform), sections.adjoint
    u, v = (x + multiply(x, jnp.eye(x.shape[-1], dtype=x.dtype) - multiply(adjoint(x), x)) / 2
            for x in (u, adjoint(vh)))  # fmt: skip
    quotients = jnp.sum(u.conj() * multiply(a, v), axis=-2).real
    s = jax.lax.cummin(jnp.maximum(quotients, 0).astype(s.dtype), axis=s.ndim - 1)
    return u, s, adjoint(v)


def _complete(a, layout, backend="native"):
    """Returns (U, s, V^H) with a square U, of a matrix with m > n. The last m - n columns of Q
    complete U."""
    n = a.shape[1]
    if not n:
        return jnp.eye(len(a), dtype=a.dtype), *_decompose_tall(a, layout)[1:]
    a, up = scaling.scaled(a)
    factor = geqrf.geqrf(a, **layout.where)
    q = factor.q("complete")
    u, s, vh = _decompose_scaled(factor.r, layout, None, backend)
    u, rest = products.rows_times_rows(q[:, :n], u, layout), q[:, n:]
    if layout.explicit:  # on which Q may lie otherwise than the product
        rest = shardings.constrain_like(rest, u)
    u = jnp.concatenate([u, rest], axis=1)
    return u, scaling.times(s, up), vh


def _triangular(a, layout):
    """Returns (Q, R) of a matrix with more rows than columns. R is replicated if ``a`` is tall, and
    sharded by rows otherwise."""
    if _by_rows(a, layout):
        return tall.qr(a, layout)
    factor = geqrf.geqrf(a, **layout.where)
    return factor.q(), factor.r


def _r_alone(a, layout):
    """Returns the R of `_triangular` without computing Q; ``a`` itself if it is square."""
    if len(a) == a.shape[1]:
        return a
    if _by_rows(a, layout):
        return tall.factor(a, layout, with_q=False)[1]
    return geqrf.geqrf(a, **layout.where).r


def _by_rows(a, layout):
    """Returns whether the QR of ``a`` leaves the rows on their ranks."""
    m, n = a.shape
    return min(m, n) <= SMALL or not qr_linalg.by_tiles(m, n, layout.ranks)


def values_of(a, layout, backend="native"):
    def value(a):
        m, n = a.shape
        if m < n:
            a, (m, n) = products.transposed(a, layout), (n, m)
        if not n:
            return jnp.zeros(0, jnp.finfo(a.dtype).dtype)
        a, up = scaling.scaled(a)
        a = _r_alone(a, layout)
        if backend != "native":
            by_library = gesvd.Decomposition(layout, backend, False, "linalg.svdvals")
            s = batching.batchable(by_library, a)[0]
            return scaling.times(s, up)
        if n <= SMALL:
            s = batching.batchable(_Small(layout, vectors=False), a)
            return scaling.times(s, up)
        if n >= LARGE or layout.platform == "cpu":
            return scaling.times(gesvd.singular_values(a, layout), up)
        _, h = polar.decompose(a, layout)
        w = syevd.syevd(h, return_eigenvectors=False, **layout.where)
        return scaling.times(jnp.sort(jnp.abs(w))[::-1], up)

    def rule(primals, tangents):
        u, s, vh = decompose(primals[0], layout)
        return s, _real_diagonal(_inner(u, vh, tangents[0], layout))

    return derivatives.differentiable(value, rule, a)


def _inner(u, vh, a_dot, layout):
    """Returns U^H dA V."""
    moved = products.rows_times_adjoint(a_dot, vh, layout)
    return products.adjoint_times_rows(u, moved, layout)


def _real_diagonal(x):
    """Returns the real part of the diagonal, replicated by a sum over rows."""
    return jnp.sum(jnp.where(jnp.eye(len(x), dtype=bool), x.real, 0), axis=0)


def _tangents(u, s, vh, a_dot, layout):
    """Returns the tangents of (U, s, V^H)."""
    (m, k), n = u.shape, vh.shape[1]
    inner = _inner(u, vh, a_dot, layout)
    adjoint = functools.partial(products.adjoint, layout=layout)
    of_u, of_v = rotations.vector_rotations(inner, adjoint, s)
    u_dot = products.rows_times_rows(u, of_u, layout)
    vh_dot = products.rows_times_rows(products.adjoint(of_v, layout), vh, layout)
    if m > k:
        moved = products.rows_times_adjoint(a_dot, vh, layout)
        u_dot += rotations.divide(moved - products.rows_times_rows(u, inner, layout), s)
    if n > k:
        moved = products.adjoint_times_rows(u, a_dot, layout)
        moved = moved - products.rows_times_rows(inner, vh, layout)
        vh_dot += rotations.divide(moved, s[:, None])
    return u_dot, _real_diagonal(inner), vh_dot


def _polar(a, side, layout, backend="native"):
    """Returns (U, P), with its derivative."""

    def value(a):
        m, n = a.shape
        if m < n:
            u, h = _polar_tall(_adjoint(a, layout), layout, backend)
            u = _adjoint(u, layout)
            return u, h if side == "left" else _other_factor(a, u, side, layout)
        u, h = _polar_tall(a, layout, backend)
        return u, h if side == "right" else _other_factor(a, u, side, layout)

    def rule(primals, tangents):
        u, p = _polar(primals[0], side, layout, backend)
        return (u, p), _polar_tangents(primals[0], u, side, tangents[0], layout)

    return derivatives.differentiable(value, rule, a)


def _other_factor(a, u, side, layout):
    """Returns P on the longer side: the Hermitian part of U^H A or A U^H. A is scaled, because
    XLA's products of tiny numbers would be flushed to zero, and sums of huge ones overflow."""
    a, up = scaling.scaled(a)
    if side == "right":
        p = products.adjoint_times_rows(u, a, layout)
    else:
        p = products.rows_times_adjoint(a, u, layout)
    return scaling.times((p + products.adjoint(p, layout)) / 2, up)


def _polar_tall(a, layout, backend):
    m, n = a.shape
    if not n:
        return jnp.zeros((m, 0), a.dtype), a[:0, :0]
    if m == n > SMALL and backend == "native":
        return polar.decompose(a, layout)
    a, up = scaling.scaled(a)
    q, square = _triangular(a, layout) if m > n else (None, a)
    if n <= SMALL and backend == "native":
        of_values = decompose_square(square, layout)
        function = functools.partial(_polar_of_svd, layout)
        u, h = tall.small(layout, function, *of_values)
    else:
        u, h = polar.decompose(square, layout, backend)
    return _times(q, u, layout), scaling.times(h, up)


def _polar_of_svd(layout, u, s, vh):
    """Returns (U V^H, V S V^H)."""
    h = tall_qr.dot(vh.conj().T * s.astype(vh.dtype), vh, layout)
    return tall_qr.dot(u, vh, layout), (h + h.conj().T) / 2


def _polar_tangents(a, u, side, a_dot, layout):
    """Returns the tangents of (U, P).

    With A = W S V^H and E = W^H dA V, the entries of W^H dU V are (E - E^H)_ij / (s_i + s_j). The
    components of dU orthogonal to W or V are those of dA, divided by S.
    """
    w, s, vh = decompose(a, layout)
    (m, k), n = w.shape, vh.shape[1]
    inner = _inner(w, vh, a_dot, layout)
    adjoint = functools.partial(products.adjoint, layout=layout)
    skew = rotations.factor_rotation(inner, adjoint, s)
    u_dot = products.rows_times_rows(w, products.rows_times_rows(skew, vh, layout), layout)
    if m > k:
        moved = products.rows_times_adjoint(a_dot, vh, layout)
        moved = rotations.divide(moved - products.rows_times_rows(w, inner, layout), s)
        u_dot += products.rows_times_rows(moved, vh, layout)
    if n > k:
        moved = products.adjoint_times_rows(w, a_dot, layout)
        moved = moved - products.rows_times_rows(inner, vh, layout)
        moved = rotations.divide(moved, s[:, None])
        u_dot += products.rows_times_rows(w, moved, layout)
    if side == "right":
        p_dot = products.adjoint_times_rows(u_dot, a, layout)
        p_dot += products.adjoint_times_rows(u, a_dot, layout)
    else:
        p_dot = products.rows_times_adjoint(a_dot, u, layout)
        p_dot += products.rows_times_adjoint(a, u_dot, layout)
    return u_dot, (p_dot + products.adjoint(p_dot, layout)) / 2
