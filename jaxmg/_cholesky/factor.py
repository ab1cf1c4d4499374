"""`CholeskyFactor`, a factor that outlives the call that created it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._call.arguments import collect
from jaxmg._cholesky import growing, updates, upper_factor
from jaxmg._cholesky import operations as cholesky_operations
from jaxmg._kept import leaves, pickling, transposed
from jaxmg._layouts import exporting, layouts
from jaxmg._transform import dispatch
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Specs, Trans


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "_log_det", "status", "made_for", "count"],
    meta_fields=["layout", "n", "tile", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CholeskyFactor(pickling.Pickled):
    """Holds the Cholesky factor of a Hermitian positive definite A, spread over a mesh.

    A = L L^H, where L is lower triangular with a positive diagonal. U = L^H is the upper factor, A
    = U^H U. `cho_factor` creates it from A, and `from_upper` from a saved U. It is a pytree, which
    may be donated (``jax.jit(f, donate_argnums=0)``). It takes as much memory as A, and on each
    device one more tile column if the tile width doesn't divide the device's rows.

    Methods take and return global arrays, eagerly or under ``jit``; inside ``shard_map`` they raise
    a ValueError. The methods and the factor itself support derivatives and ``vmap``; the factor's
    tangent is the tangent of A. If A isn't positive definite, all results are NaN.

    The factor's leaves fit only this mesh. To save a factor, pickle it: a pickle loads only in a
    single process with at least as many devices of the same platform. Or save its `portable` form,
    which loads on any number of devices:

        >>> numpy.savez(file, **factor.portable())
        >>> factor = jaxmg.from_portable(dict(numpy.load(file)), mesh=mesh)

    Attributes:
        tiles: (P ceil(n / P), n) on P ranks, sharded by rows: the factor in the engine's layout.
        overflow: (P T, n), sharded by rows: for each rank one tile of T rows that doesn't fit into
            ``tiles``; None if all tiles fit.
        status: int32 scalar: 0, or LAPACK's info, as in `potrs`.
        made_for: The mesh size P and the tile width T (at most ceil(n / P)) for which the leaves
            were made: a dictionary whose only key names both; its value is int8 zeros of shape
            (P, T). Methods raise a ValueError if P or T differs from the static attributes; use
            `portable` to change them.
        layout: The mesh and the axes that shard the rows; static, as are the following attributes.
        n: Order of A.
        tile: T, the tile width.
        precision: "highest", "tf32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3", or
            None for the default; also applies to `inv`.
        count: int32 scalar, the order of A in a factor with a capacity; None in others.
    """

    tiles: jax.Array
    overflow: jax.Array | None
    _log_det: jax.Array
    status: jax.Array
    made_for: dict[str, jax.Array] | None
    layout: layouts.Layout
    n: int
    tile: int
    precision: str | None = None
    count: jax.Array | None = None

    @classmethod
    @_compat.api_boundary
    def from_upper(
        cls,
        u: MatrixLike,
        T_A: SupportsIndex | None = None,
        mesh: MeshLike | None = None,
        matrix_specs: Specs | None = None,
        pad: bool = True,
        *,
        in_specs: Specs | None = None,
        donate: bool = False,
        precision: PrecisionLike | None = None,
    ) -> CholeskyFactor:
        """Creates the factor of A = U^H U from U, as `upper` or another library returns it.

        Args:
            u: (n, n), float32, float64, complex64 or complex128, with a real positive diagonal; a
                JAX or NumPy array, sharded, replicated or on one device. Entries below the diagonal
                are ignored, so u may be the result of LAPACK's potrf. A matrix with only zeros
                above its diagonal and nonzero entries below is taken for a lower triangular factor
                and refused: pass its adjoint.
            T_A, mesh, matrix_specs, pad, in_specs, donate, precision: As in `cho_factor`. The mesh
                may have another number of devices than U's.

        Returns:
            A `CholeskyFactor`. Its ``log_det`` is log(det(U^H U)). Its ``status`` is 0; -1 if u is
            a lower triangular factor; or the first row, from 1, whose diagonal entry isn't
            positive. If ``status`` is not 0, all results of the factor are NaN.

        Raises:
            TypeError, ValueError, NotImplementedError, RuntimeError: As `potrs`.
        """
        routine = upper_factor.FROM_UPPER
        checks.array(routine.name, "u", u, checks.ALL)
        products = checks.precision(routine.name, precision, u.dtype, "native")
        factor = dispatch.call(
            routine,
            (u,),
            collect(routine, T_A, mesh, matrix_specs, in_specs, pad, "native", donate),
            _from_upper_rule,
            pack=pack,
        )
        return dataclasses.replace(factor, precision=checks.precision_of(products))

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
    def solve(self, b: MatrixLike) -> Array:
        """Solves A x = b; x has b's shape. See `cho_solve`."""
        return _apply("cho_solve", self, b, {"N": cholesky_operations.SOLVE}, 0)

    @_compat.api_boundary
    def solve_triangular(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """Solves op(L) x = b. With ``trans=0`` this whitens data with covariance A.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype.
            trans: 0 or "N" for L x = b, 1 or "T" for L^T x = b, 2 or "C" for L^H x = b, as in
                `scipy.linalg.solve_triangular`.

        Returns:
            x, of b's shape, dtype and sharding, as in `potrs`.

        Cost: n^2 nrhs flops over all ranks.

        Raises:
            TypeError, ValueError, NotImplementedError: As `cho_solve`. An invalid ``trans`` raises
                a ValueError.
        """
        name = "CholeskyFactor.solve_triangular"
        by_transposition = {"N": cholesky_operations.FORWARD, "C": cholesky_operations.BACKWARD}
        return _apply(name, self, b, by_transposition, trans)

    @_compat.api_boundary
    def matmul(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """Multiplies b by op(L). Standard normal b and ``trans=0`` give samples with covariance A.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype.
            trans: 0 or "N" for L b, 1 or "T" for L^T b, 2 or "C" for L^H b.

        Returns:
            The product, of b's shape, dtype and sharding, as x in `potrs`.

        Cost: n^2 nrhs flops over all ranks.

        Raises:
            TypeError, ValueError, NotImplementedError: As `cho_solve`. An invalid ``trans`` raises
                a ValueError.
        """
        by_transposition = {"N": cholesky_operations.LOWER, "C": cholesky_operations.LOWER_H}
        return _apply("CholeskyFactor.matmul", self, b, by_transposition, trans)

    @_compat.api_boundary
    def logdet(self) -> Array:
        """Returns log(det(A)), a real scalar; NaN if A isn't positive definite.

        Its derivative computes the inverse, with the cost and memory of `inv`.
        """
        factor, arrays = _parts("CholeskyFactor.logdet", self)
        return factor.logdet(self._log_det, *arrays)

    @property
    def log_det(self) -> Array:
        """Returns log(det(A)), as `logdet`."""
        return self.logdet()

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """Returns the diagonal of L, which is also U's: (n,), real, replicated."""
        factor, arrays = _parts("CholeskyFactor.diagonal", self)
        return factor.diagonal(*arrays)

    @_compat.api_boundary
    def inv(self) -> Array:
        """Computes the inverse of A: (n, n), full and Hermitian, sharded like A. See `potri`.

        Cost: 2 n^3 / 3 flops over all ranks (complex: 4 times). Memory: the result, and a few
        panels of n x T per rank. The result replaces the factor in memory if you donate the factor
        to an outer ``jit``.
        """
        factor, arrays = _parts("CholeskyFactor.inv", self)
        return factor.invert(*arrays)

    @_compat.api_boundary
    def upper(self) -> Array:
        """Returns U: (n, n), upper triangular with zeros below its diagonal, sharded like A.

        Memory: the result, and a few tiles per rank. The result replaces the factor in memory if
        you donate the factor to an outer ``jit``.
        """
        factor, arrays = _parts("CholeskyFactor.upper", self)
        return factor.upper(*arrays)

    @_compat.api_boundary
    def update(self, v: MatrixLike, sign: SupportsIndex = 1) -> CholeskyFactor:
        """Computes the factor of A + V V^H, or with ``sign=-1`` of A - V V^H.

        Args:
            v: V, (n,) or (n, k), of the factor's dtype.
            sign: 1 or -1; static.

        Returns:
            A new `CholeskyFactor`; this one stays as it is. If A - V V^H isn't positive definite,
            the new factor's ``status`` is the order of its first leading minor that isn't, and its
            entries are NaN. If this factor's ``status`` isn't 0, the new one's is the same.

        Cost: 2 n^2 k + 64 n^2 flops over all ranks (on GPUs 256 n^2; complex: 4 times), and V moves
        once over all ranks. Memory: the result, which replaces the factor in memory if you donate
        the factor to an outer ``jit``, and per rank n x (k + 64) numbers (on GPUs 256), k at most
        256, and a few tiles.

        Raises:
            TypeError, ValueError, NotImplementedError: As `cho_solve`. An invalid ``sign`` raises a
                ValueError.

        Examples:
            >>> factor = factor.update(v)
            >>> factor = factor.update(v, -1)
        """
        return updates.update(self, v, sign)

    @_compat.api_boundary
    def append(self, a12: MatrixLike, a22: MatrixLike) -> CholeskyFactor:
        """Computes the factor of [A A12; A12^H A22], of a factor with a capacity m.

        Args:
            a12: A12 in its first `count` rows, (m,) or (m, k), of the factor's dtype; the other
                rows don't matter, so that the shape is always the same.
            a22: A22, (k, k), Hermitian; for a12 (m,) also a scalar.

        Returns:
            A new `CholeskyFactor` of the same capacity, with k rows more; this one stays as it is.
            If the matrix isn't positive definite, the new factor's ``status`` is not 0 and its
            entries are NaN.

        Cost: m^2 k flops over all ranks, and on several ranks U moves to rows and back. Memory:
        two factors.

        Raises:
            ValueError: Less than k rows are left, shapes don't match, or the factor has no
                capacity. Where ``count`` is traced, a factor without room becomes NaN instead.
            TypeError, NotImplementedError: As `cho_solve`.

        Examples:
            >>> factor = jaxmg.cho_factor(a, capacity=1000)
            >>> factor = factor.append(a12, a22)
        """
        return growing.append(self, a12, a22)

    @_compat.api_boundary
    def remove(self, indices: ArrayLike | Sequence[int]) -> CholeskyFactor:
        """Computes the factor of A without some rows and columns, of a factor with a capacity m.

        The rows that are left move up, in the same order.

        Args:
            indices: The rows to remove, from 0 to `count` - 1: an integer, or k different ones.

        Returns:
            A new `CholeskyFactor` of the same capacity; this one stays as it is.

        Cost: that of `update` with k columns, and U moves to rows and back. Memory: two factors.

        Raises:
            TypeError, ValueError: ``indices`` are not such integers, or the factor has no capacity.
        """
        return growing.remove(self, indices)

    def _divide_rows(self, b, adjoint=False):
        """Returns B U^-1, or B U^-H, for a matrix B sharded by rows, as in `hermitian`."""
        factor, arrays = _parts("CholeskyFactor", self)
        return factor.divide_rows(*arrays, b, adjoint=adjoint)

    def __repr__(self) -> str:
        return leaves.describe(self, f"n={self.n}", self.tiles, "precision")


def pack(call, values):
    """Creates the factor from a call and its results."""
    tiles, overflow, log_det, status = values
    products = dict(call.attributes).get("products", checks.DEFAULT)
    return CholeskyFactor(
        tiles, overflow if call.overflow else None, log_det, status,
        leaves.made_for(call, tiles.shape[-1], status), call.layout, tiles.shape[-1], call.tile,
        checks.precision_of(products),
    )  # fmt: skip


_from_upper_rule = functools.partial(upper_factor.rule, pack)


def _apply(routine, factor, b, by_transposition, trans):
    """Applies to b the operation that ``by_transposition`` has for ``trans``."""
    return transposed.apply(routine, "L", _parts, factor, b, by_transposition, trans)


def _parts(routine, factor):
    """Returns (`cholesky_operations.Cholesky`, the arrays) of a factor."""
    checks.usable(routine, "factor", factor.tiles, factor.overflow, factor._log_det)
    leaves.check(routine, factor, factor.n)
    overflow = () if factor.overflow is None else (factor.overflow,)
    static = cholesky_operations.Cholesky(
        routine,
        factor.layout,
        factor.n,
        factor.tile,
        bool(overflow),
        checks.PRODUCTS[factor.precision],
    )
    return static, (factor.tiles, *overflow)
