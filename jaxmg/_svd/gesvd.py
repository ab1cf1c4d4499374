"""Singular value decomposition of a square matrix by all ranks: LAPACK's gesvd.

Singular vectors come from the polar decomposition A = Q H and the eigenvectors of H
(`xla_ffi/engine/svd/gesvd_vectors.h`). Without vectors, reflectors from both sides reduce A to a
band B (B. Grosser, B. Lang, Parallel Comput. 25, 1999). The singular values are eigenvalues of
[0 B^H; B 0], which a permutation makes a band too. Bulge chasing reduces this band to tridiagonal
form, and divide and conquer computes its eigenvalues. This takes 8/3 n^3 multiplications and
additions on all ranks; the eigenvalues of [0 A^H; A 0] would take four times as many.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._call import backends, blocks, ffi
from jaxmg._layouts import layouts
from jaxmg._linalg import shares
from jaxmg._plugin import plugins
from jaxmg._stacks import batching
from jaxmg._svd import polar, stacks

# The routine of the plugin.
NATIVE = "gesvd"
# Width of the band by platform, for complex128 and for other dtypes: the same as the engine's
# (`xla_ffi/device/tunings.h`).
_WIDTHS = {"cpu": (32, 32), "gpu": (48, 64)}


def singular_values(a, layout):
    """Returns the singular values (n,) of a (n, n) in a trace, descending and replicated.

    They are NaN if ``a`` has NaN or infinity. The entries must be scaled so that their squares are
    finite.
    """
    return batching.batchable(_SingularValues(layout.by_rows), a)


@dataclasses.dataclass(frozen=True)
class _SingularValues(batching.Batchable):
    layout: layouts.Layout

    def __call__(self, *arrays):
        (a,) = arrays
        layout = self.layout
        backends.resolve(NATIVE, layout, "native", a, "linalg.svdvals")
        on_rank = functools.partial(_values_on_rank, layout)
        mapped = ffi.over_ranks(layout, on_rank, (layout.row_spec,), P())
        return mapped(blocks.split_rows(a, layout))

    def batched(self, settled, size, marks, *arrays):
        if self.layout.is_whole:
            one = functools.partial(_values_on_rank, self.layout)
            return batching.spread(self.layout, one, size, marks, *arrays)
        placement = batching.make_placement(self.layout, arrays, marks, (P(),))
        return batching.in_turn(self, marks, *arrays, placement=placement)


def _values_on_rank(layout, coordinates, rows):
    n = rows.shape[1]
    width = _width(layout, rows.dtype)
    if layout.platform == "cpu" and n <= plugins.load("cpu").whole_svd_order():
        width = 1  # one rank's LAPACK computes the matrix without padding
    height = -(-n // (layout.ranks * width)) * width
    order = height * layout.ranks
    # Pads with zeros: each added row and column adds one singular value 0.
    rows = jnp.pad(rows, ((0, height - rows.shape[0]), (0, order - n)))
    _, w, _ = _call(coordinates, rows, order, layout, width, "native", vectors=False)
    return jnp.abs(w)[::-1][:n]


@dataclasses.dataclass(frozen=True)
class Decomposition(batching.Batchable):
    """Computes (U, s, V^H) of a square matrix, s descending; without ``vectors`` only (s,), which
    needs a vendor's library. The native routine can compute a ``part`` of the triplets."""

    layout: layouts.Layout
    backend: str
    vectors: bool
    caller: str
    part: tuple | None = None

    def __call__(self, *arrays):
        (a,) = arrays
        layout, n = self.layout.by_rows, len(arrays[0])
        backend = backends.resolve(NATIVE, layout, self.backend, a, self.caller)
        in_double = self.vectors and backend == "native" and polar.in_double(a, layout)

        def on_rank(coordinates, rows):
            results = _call(
                coordinates, rows, n, layout, 0, backend, self.vectors, self.part, in_double
            )
            return results if self.vectors else results[1:2]

        specs = (layout.row_spec, P(), layout.row_spec) if self.vectors else (P(),)
        mapped = ffi.over_ranks(layout, on_rank, (layout.row_spec,), specs)
        results = mapped(blocks.split_rows(a, layout))
        if not self.vectors:
            return results
        u, s, vh = results
        return blocks.join_rows(u, layout, n), s, blocks.join_rows(vh, layout, len(s))

    def batched(self, settled, size, marks, *arrays):
        specs: tuple[P | None, ...] = (P(),)
        if self.layout.is_whole and self.backend == "native":
            share = shares.Share(
                _Stacks, self.part or (0, None), self.layout.platform, self.layout.mesh.size
            )
            return batching.spread(self.layout, share, size, marks, *arrays)
        if self.vectors:
            n = arrays[0].shape[-1]
            start, end = self.part or (0, n)
            u, vh = (n, end - start), (end - start, n)
            specs = (self.layout.result_spec(u), P(), self.layout.result_spec(vh))
        placement = batching.make_placement(self.layout, arrays, marks, specs)
        return batching.in_turn(self, marks, *arrays, placement=placement)


class _Stacks:
    """Native `Decomposition` of a device's share of a batch, for `shares.Share`."""

    by = stacks.SVD

    @staticmethod
    def compute_stacks(platform, options, a):
        u, s, vh = stacks.svd(platform, a)
        part = slice(*options)
        return u[..., part], s[..., part], vh[..., part, :]


def _call(coordinates, rows, n, layout, tile, backend, vectors, part=None, in_double=False):
    """Returns (rows of U, the singular values, rows of V^H)."""
    start, end = part or (0, n)
    count = end - start
    height = -(-count // layout.ranks) if vectors else 0
    results = (
        jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        jax.ShapeDtypeStruct((len(rows) if count < n else 0, count), rows.dtype),
        jax.ShapeDtypeStruct((height, n), rows.dtype),
        jax.ShapeDtypeStruct((count,), jnp.finfo(rows.dtype).dtype),
        jax.ShapeDtypeStruct((1,), np.int32),
    )
    in_place, of_part, vh, s, _ = ffi.call(
        f"jaxmg_{NATIVE}", layout, tile, backend, (coordinates, rows), results, differing=3,
        n=n, vectors=vectors, first=start, last=end, in_double=in_double,
    )  # fmt: skip
    return of_part if count < n else in_place, s, vh


def _width(layout, dtype):
    wide, usual = _WIDTHS["cpu" if layout.platform == "cpu" else "gpu"]
    return wide if dtype == jnp.complex128 else usual
