"""The leading singular triplets of a large matrix in a trace, by a randomized range finder.

N. Halko, P.-G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Rev. 53, 2011:
subspace iteration with a QR after each product (algorithm 4.4), then the SVD of Q^H A (5.1). Each
rank multiplies its rows of A, which never move. The n x l matrices that A multiplies are
replicated. If A's entries are huge or tiny, a power of two scales them: one half of it is applied
to the matrix that A multiplies, the other half to the product. So A isn't copied.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks
from jaxmg._layouts import layouts
from jaxmg._linalg import compositions
from jaxmg._qr import tall, tall_qr
from jaxmg._stacks import batching, scaling
from jaxmg._svd import polar, svd
from jaxmg._transform import derivatives

# Number of additional random vectors, which estimate the error.
PROBES = 6
# The 2-norm of a matrix exceeds _BOUND times the length of its longest product with PROBES random
# vectors with a probability of at most 10^-PROBES (lemma 4.1).
_BOUND = 10 * (2 / np.pi) ** 0.5


@compositions.program(any_shape=True, single=(1, 3))
def decomposed(call, a, omega):
    """Returns (U, s, V^H, the estimated error) from random numbers ``omega`` (n, l + PROBES)."""
    k, iterations = call.attributes
    of = _LowRank(call.layout, k, iterations)

    def refuse(primals, tangents):
        raise NotImplementedError(
            "linalg.svd_lowrank: a is being differentiated (jax.grad, jvp, linearize, ...), but "
            "the derivative needs singular vectors that svd_lowrank doesn't compute; linalg.svd "
            "has a derivative. To treat the results as constants, pass jax.lax.stop_gradient(a)"
        )

    return derivatives.differentiable(
        lambda *arrays: batching.batchable(of, *arrays), refuse, a, omega
    )


@dataclasses.dataclass(frozen=True)
class _LowRank(batching.Batchable):
    """`decomposed` with k triplets. The matrices of a batch are computed one after the other,
    unless each device has whole matrices."""

    layout: layouts.Layout
    k: int
    iterations: int

    def __call__(self, *arrays):
        a, omega = arrays
        layout = self.layout
        width = omega.shape[1] - PROBES
        # Without the barrier XLA generates the numbers twice, once for each of the two slices.
        omega = jax.lax.optimization_barrier(blocks.replicate(omega, layout))
        probes, (down, up) = omega[:, width:], scaling.scale_of(a)
        q, w, r, images = self._subspaces(a, down, omega[:, :width], probes)
        # A times ``down`` is about Q R^H W^H. R is scaled by a further power of two.
        r, scale = scaling.scaled(blocks.replicate(r.conj().T, layout))
        u, s, vh = (
            x[:, : self.k] if i == 0 else x[: self.k]
            for i, x in enumerate(svd.decompose_square(r, layout))
        )
        u = tall.times(layout, q, blocks.replicate(u, layout))
        s = s * scale
        vh = tall.small(
            layout, lambda vh, w: tall_qr.dot(vh, w.conj().T), blocks.replicate(vh, layout), w
        )
        error = self._error(u, s, vh, probes, images)
        return u, s * up, vh, error * up

    def _subspaces(self, a, power, w, probes):
        """Returns (Q, W, R, A times the probes) with A^H Q = W R, where A is ``a`` times ``power``,
        a power of two."""
        layout, width, dtype = self.layout, w.shape[1], a.dtype
        before, behind = scaling.halves(power, jnp.ones_like(power))

        def scaled_product(product, a, x):
            y = product(layout, a, scaling.times(x, before))
            return scaling.times(y, behind)

        def step(_, state):
            w, *_ = state
            y = scaled_product(tall.times, a, jnp.concatenate([w, probes], axis=1))
            q = tall.factor(y[:, :width], layout)[0]
            w, r, *_ = tall.factor(scaled_product(tall.adjoint_product, a, q), layout)
            return settled(w, q, r, y[:, width:])

        def settled(w, q, r, images):
            """Shards the loop's state the same way in each iteration, as explicit axes require."""
            w, r = (blocks.replicate(x, layout) for x in (w, r))
            return w, polar.by_rows(q, layout), r, polar.by_rows(images, layout)

        zeros = (jnp.zeros((len(a), columns), dtype) for columns in (width, PROBES))
        state = settled(w, next(zeros), jnp.zeros((width, width), dtype), next(zeros))
        w, q, r, images = jax.lax.fori_loop(0, self.iterations + 1, step, state)
        return q, w, r, images

    def _error(self, u, s, vh, probes, images):
        """Returns a probable bound of norm(A - U S V^H, 2), from its products with the probes."""
        layout = self.layout
        scale = jnp.where(s[0] > 0, s[0], 1)

        def lengths(u, images, s, vh, probes, scale):
            inner = s.astype(u.dtype)[:, None] * tall_qr.dot(vh, probes)
            rest = jnp.abs((images - tall_qr.dot(u, inner)) / scale.astype(u.dtype))
            return tall_qr.sum_over_ranks(layout, jnp.sum(rest * rest, axis=0))

        squares = tall.over_ranks(layout, lengths, (u, images), (s, vh, probes, scale))
        return _BOUND * scale * jnp.sqrt(jnp.max(squares))

    def batched(self, settled, size, marks, *arrays):
        if self.layout.is_whole:
            return jax.vmap(self, [0 if mark else None for mark in marks])(*arrays)
        shape = arrays[0].shape[-2], self.k
        specs = self.layout.result_spec(shape), P(), P(), P()
        placement = batching.make_placement(self.layout, arrays, marks, specs)
        return batching.in_turn(self, marks, *arrays, placement=placement)
