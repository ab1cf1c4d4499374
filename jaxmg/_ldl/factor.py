"""`LDLFactor`, a factor of a Hermitian or symmetric matrix that need not be definite."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._kept import condition, leaves, pickling, transposed
from jaxmg._layouts import exporting, layouts, meshes
from jaxmg._ldl import operations
from jaxmg._types import AnyArray, MatrixLike, MeshLike, Norm, Trans


@jax.jit
def _scalars(counts):
    return counts[0], counts[1], counts[2]


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "tiles", "band", "band_lu", "pivots", "band_pivots", "_sign", "_log_det", "status",
        "made_for",
    ],
    meta_fields=["layout", "n", "tile", "hermitian"],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LDLFactor(pickling.Pickled):
    """Holds the factorization of a Hermitian or symmetric matrix A that need not be definite.

    `jaxmg.linalg.ldl_factor` creates it: P A P^H = L T L^H, with P^T and L^T for a symmetric A. L
    is unit lower triangular and spread over a mesh; T has a band of tiles. It is a pytree.

    Methods, derivatives and ``vmap`` work as for an `LUFactor`.

    If A is singular, solutions have infinity or NaN, and the determinant is 0. If A has NaN or
    infinity, all results are NaN.

    Attributes:
        tiles: L in the engine's layout, sharded by rows.
        band, band_lu: (n, 3 tile) and (n, 4 tile), replicated: T and its LU factors.
        pivots, band_pivots: (n,), int32, replicated: the interchanges of L and of T.
        status: int32 scalar: 0; k > 0 if the k-th pivot of T is the first that is exactly zero; or
            -1 if A has NaN or infinity.
        hermitian: Whether A is Hermitian; otherwise it is symmetric.
        made_for, layout, n, tile: As in `CholeskyFactor`.
    """

    tiles: jax.Array
    band: jax.Array
    band_lu: jax.Array
    pivots: jax.Array
    band_pivots: jax.Array
    _sign: jax.Array
    _log_det: jax.Array
    status: jax.Array
    made_for: dict[str, jax.Array] | None
    layout: layouts.Layout
    n: int
    tile: int
    hermitian: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the shape of A, (n, n)."""
        return (self.n, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of A and of the factor."""
        return self.tiles.dtype

    @property
    def mesh(self) -> MeshLike:
        """Returns the mesh that the factor is spread over."""
        return self.layout.mesh

    @_compat.api_boundary
    def solve(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """Solves op(A) x = b.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype. Every device holds all of b.
            trans: As in `LUFactor.solve`.

        Returns:
            x, of b's shape, dtype and sharding.

        Cost: 2 n^2 nrhs flops over all ranks (complex: 4 times), and the band's on every rank.

        Raises:
            TypeError: b isn't an array, or has another dtype than the factor.
            ValueError: Shapes don't match, ``trans`` is invalid, or the call is inside
                ``shard_map``.
        """
        solves = {"N": operations.SOLVE, "C": operations.SOLVE_ADJOINT}
        return transposed.apply("LDLFactor.solve", "A", parts, self, b, solves, trans)

    @_compat.api_boundary
    def inertia(self) -> tuple[Array, Array, Array]:
        """Counts the positive, negative and zero eigenvalues of A, int32 scalars.

        Eigenvalues of T that aren't larger than n eps |T| count as zero (R. S. Martin, J. H.
        Wilkinson, Numer. Math. 9, 1967); T is as accurate as A. All are -1 if A has NaN or
        infinity. They have no derivative.

        Cost: 6 n tile^2 flops on up to 16 cores of one rank's host, which waits for its device.

        Raises:
            ValueError: A is complex and symmetric: its eigenvalues are complex. Or the call is
                inside ``shard_map``.
        """
        name = "LDLFactor.inertia"
        if not self.hermitian and jnp.issubdtype(self.dtype, jnp.complexfloating):
            raise ValueError(
                f"{name}: a complex symmetric matrix has complex eigenvalues; only Hermitian "
                "matrices (hermitian=True) and real ones have an inertia"
            )
        factor, arrays = parts(name, self)
        return _scalars(factor.inertia(arrays[0], self.band))

    @_compat.api_boundary
    def slogdet(self) -> tuple[Array, Array]:
        """Returns the sign of det(A) and log(abs(det(A))), as `jax.numpy.linalg.slogdet`.

        Both are scalars: the sign has A's dtype, the logarithm is real. They are 0 and -inf if A is
        singular. The derivative computes the inverse, with the cost and memory of `inv`.
        """
        factor, arrays = parts("LDLFactor.slogdet", self)
        sign = self._sign
        if self.hermitian and jnp.iscomplexobj(sign):
            sign = jnp.sign(sign.real).astype(sign.dtype)
        return factor.slogdet(sign, self._log_det, *arrays)

    @_compat.api_boundary
    def logdet(self) -> Array:
        """Returns log(abs(det(A))), a real scalar; -inf if A is singular."""
        return self.slogdet()[1]

    @_compat.api_boundary
    def det(self) -> Array:
        """Returns det(A), a scalar of A's dtype. It can overflow; `slogdet` can't. The derivative
        of a singular A is NaN; `jaxmg.linalg.det` computes it by cofactors."""
        sign, log_det = self.slogdet()
        return sign * jnp.exp(log_det).astype(sign.dtype)

    @_compat.api_boundary
    def rcond(self, anorm: float | AnyArray, norm: Norm = 1) -> Array:
        """Estimates the reciprocal condition number of A, as `LUFactor.rcond`.

        Args:
            anorm: Norm of A, a real scalar, ``jnp.linalg.norm(a, norm)``; the factor doesn't
                contain it.
            norm: 1 or inf, as in `LUFactor.rcond`. These norms of A are equal.

        Returns:
            1 / (anorm * norm(A^-1)), a real scalar. It has no derivative.

        Cost: at most ten solves with one or two right-hand sides.

        Raises:
            NotImplementedError, ValueError: As `LUFactor.rcond`.
        """
        name = "LDLFactor.rcond"
        meshes.refuse_manual_axes(name)
        parts(name, self)
        return condition.reciprocal_of(name, self, anorm, norm)

    @_compat.api_boundary
    def inv(self) -> Array:
        """Computes the inverse of A: (n, n), sharded like A. The derivative has three products.

        Cost: 2 n^3 flops over all ranks (complex: 4 times). Memory: the result, and a few panels of
        n x 512 per rank.
        """
        factor, arrays = parts("LDLFactor.inv", self)
        return factor.invert(*arrays)

    def _transposed_lower(self):
        """Returns L^T, sharded like A."""
        factor, arrays = parts("LDLFactor.portable", self)
        return factor.rows(arrays[0])

    def __repr__(self) -> str:
        return leaves.describe(self, f"n={self.n}", self.tiles, "hermitian")


def pack(call, values):
    """Creates the factor from a call and its results."""
    tiles, band, band_lu, pivots, band_pivots, log_det, sign, status = values
    n = tiles.shape[-1]
    return LDLFactor(
        tiles, band, band_lu, pivots, band_pivots, sign, log_det, status,
        leaves.made_for(call, n, status), call.layout, n, call.tile,
        dict(call.attributes).get("hermitian", True),
    )  # fmt: skip


def parts(routine, factor):
    """Returns (`operations.LDL`, the arrays) of a factor."""
    leaves_of = (factor.tiles, factor.band, factor.band_lu, factor.pivots, factor._log_det)
    checks.usable(routine, "factor", *leaves_of)
    leaves.check(routine, factor, factor.n)
    static = operations.LDL(routine, factor.layout, factor.n, factor.tile, False, factor.hermitian)
    return static, (factor.tiles, factor.band_lu, factor.pivots, factor.band_pivots)
