"""The polar decomposition A = U H by QDWH, the dynamically weighted Halley iteration.

All ranks compute it together, with a routine of the engine (`xla_ffi/engine/svd/qdwh.h`) or of a
vendor's library. The functions are called in a trace, with matrices that are sharded by rows.

Y. Nakatsukasa, Z. Bai, F. Gygi, "Optimizing Halley's iteration for computing the matrix polar
decomposition", SIAM J. Matrix Anal. Appl. 31, 2010; Y. Nakatsukasa, N. J. Higham, "Stable and
efficient spectral divide and conquer algorithms for the symmetric eigenvalue decomposition and the
SVD", SIAM J. Sci. Comput. 35, 2013.

On GPUs whose float64 is as fast as float32, U of a matrix in single precision is computed in
double. The rounding of X^H X then hides no singular value, so that fewer steps are needed.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._call import backends, blocks, ffi
from jaxmg._layouts import layouts, shardings
from jaxmg._linalg import shares
from jaxmg._matrices import products
from jaxmg._stacks import batching
from jaxmg._svd import stacks

# The routine of the plugin.
NATIVE = "polar"
# U of a matrix in single precision is computed in double, on devices where double is fast, if the
# order is at least DOUBLE and a rank's rows in double precision take at most _DOUBLE_BYTES.
DOUBLE = 1024
_DOUBLE_BYTES = 2**31


def decompose(a, layout, backend="native"):
    """Returns (U, H) of a square matrix in a trace.

    U has orthonormal columns and is sharded by rows like ``a``. H is Hermitian and positive
    semidefinite. The matrices of a batch are computed one after the other, so that each takes only
    the steps it needs, unless each device has whole matrices.
    """
    results = batching.batchable(_Decomposition(layout, backend), a)
    if backend == "native":
        return results
    (u,) = results
    h = products.adjoint_times_rows(u, a, layout)
    return u, (h + products.adjoint(h, layout)) / 2


@dataclasses.dataclass(frozen=True)
class _Decomposition(batching.Batchable):
    """Computes (U, H), or (U,) with a vendor's library."""

    layout: layouts.Layout
    backend: str

    def __call__(self, *arrays):
        (a,) = arrays
        layout, n = self.layout.by_rows, len(arrays[0])
        backend = backends.resolve(NATIVE, layout, self.backend, a, "linalg.polar")
        hermitian, doubled = self.backend == "native", in_double(a, layout)

        def on_rank(coordinates, rows):
            results = (
                jax.ShapeDtypeStruct(rows.shape, rows.dtype),
                jax.ShapeDtypeStruct((len(rows) if hermitian else 0, n), rows.dtype),
                jax.ShapeDtypeStruct((1,), np.int32),
            )
            return ffi.call(
                f"jaxmg_{NATIVE}", layout, 0, backend, (coordinates, rows), results, differing=2,
                n=n, hermitian=hermitian, in_double=doubled,
            )[: self._count]  # fmt: skip

        specs = (layout.row_spec,) * self._count
        mapped = ffi.over_ranks(layout, on_rank, (layout.row_spec,), specs)
        results = mapped(blocks.split_rows(a, layout))
        return tuple(blocks.join_rows(rows, layout, n) for rows in results)

    @property
    def _count(self):
        return 2 if self.backend == "native" else 1

    def batched(self, settled, size, marks, *arrays):
        layout = self.layout
        if layout.is_whole and self.backend == "native":
            share = shares.Share(_Stacks, (), layout.platform, layout.mesh.size)
            return batching.spread(layout, share, size, marks, *arrays)
        spec = layout.result_spec(arrays[0].shape[-2:])
        placement = batching.make_placement(layout, arrays, marks, (spec,) * self._count)
        return batching.in_turn(self, marks, *arrays, placement=placement)


class _Stacks:
    """`_Decomposition` of a device's share of a batch, for `shares.Share`."""

    by = None

    @staticmethod
    def compute_stacks(platform, options, a):
        return stacks.polar_factors(platform, a)


def in_double(a, layout):
    """Returns whether ``a`` is in single precision and its U is computed in double."""
    fits = 2 * a.size * a.dtype.itemsize <= _DOUBLE_BYTES * layout.ranks
    single = jnp.finfo(a.dtype).bits == 32
    large = fits and a.shape[1] >= DOUBLE
    return bool(single and large and layouts.fast_in_double(layout.platform))


def by_rows(x, layout):
    """Shards ``x`` by rows on explicit axes, where the sharding of a loop's state is fixed.

    Replicates ``x`` if the number of ranks doesn't divide its rows.
    """
    if not layout.explicit:
        return x
    fits = len(x) % layout.ranks == 0
    return shardings.constrain(x, layout, layout.by_rows.row_spec if fits else P())
