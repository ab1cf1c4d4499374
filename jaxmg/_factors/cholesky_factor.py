"""`CholeskyFactor`, which outlives the call that made it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks, exporting, layouts
from jaxmg._call.arguments import collect
from jaxmg._factors import cholesky_operations, leaves, pickling, transposed, upper_factor
from jaxmg._transform import dispatch
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Specs, Trans


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "_log_det", "status", "made_for"],
    meta_fields=["layout", "n", "tile", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CholeskyFactor(pickling.Pickled):
    """The Cholesky factor of a Hermitian positive definite A, spread over the devices of a mesh.

    A = L L^H, where L is lower triangular with a positive diagonal; U = L^H is the upper factor,
    A = U^H U. `cho_factor` makes it, and `from_upper` from a U that was saved. It is a pytree: it
    goes in and out of ``jit``, through ``scan`` and ``cond``, and may be donated
    (``jax.jit(f, donate_argnums=0)``). It holds as much memory as A, and on each device one tile
    column more where the tile width doesn't divide its rows.

    The methods take and return global arrays, eagerly or under ``jit``; inside ``shard_map`` they
    raise a ValueError. They have derivatives, and ``vmap`` takes them, as the factor itself: its
    tangent is that of A. Where A wasn't positive definite all that they return is NaN.

    To save a factor, pickle it, for as many devices of the same platform in one process, or save
    its `portable` form, for any number of devices; its leaves are for this mesh alone:

        >>> numpy.savez(file, **factor.portable())
        >>> factor = jaxmg.from_portable(dict(numpy.load(file)), mesh=mesh)

    Attributes:
        tiles: (P ceil(n / P), n) on P ranks, sharded by rows: the factor as the engine has it.
        overflow: (P T, n), sharded likewise, for tiles of T rows of which one on each rank reaches
            past ``tiles``; None where there is none. Neither means anything without the rest.
        status: int32 scalar: 0, or LAPACK's info, as of `potrs`.
        made_for: int8 zeros of shape (P, T), T at most ceil(n / P), in a dict by a key that has P
            and T in it: tells for which the leaves are. Methods compare it with what follows and
            raise a ValueError where it differs; `portable` takes a factor to another mesh or tile
            width.
        layout: the mesh and the axes that the rows are sharded over; static, as what follows.
        n: the order of A.
        tile: T, the width of the tiles.
        precision: "highest", "tf32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3",
            or None for the default; `inv` computes with it too.
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
        """The factor of A = U^H U, of a U that `upper` or another library gave.

        Args:
            u: (n, n), float32, float64, complex64 or complex128, with a real positive diagonal; a
                JAX or NumPy array, sharded, replicated or on one device. What is below the diagonal
                doesn't count, so that u may be what LAPACK's potrf leaves. But a lower triangular
                factor, which has zeros alone above its diagonal and others below, is refused: pass
                its adjoint.
            T_A, mesh, matrix_specs, pad, in_specs, donate, precision: as for `cho_factor`; the mesh
                need not have as many devices as the mesh of U.

        Returns:
            A `CholeskyFactor`. Its ``log_det`` is that of U^H U. Its ``status`` is 0, or -1 where u
            is a lower triangular factor, or the first row (from 1) whose diagonal entry isn't
            positive. Where it isn't 0, all that the factor gives is NaN.

        Raises:
            TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`.
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
        """(n, n), the shape of A."""
        return (self.n, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of A and of the factor."""
        return self.tiles.dtype

    @property
    def mesh(self) -> MeshLike:
        """The mesh that the factor is spread over."""
        return self.layout.mesh

    @_compat.api_boundary
    def solve(self, b: MatrixLike) -> Array:
        """The x with A x = b, of b's shape: `cho_solve`."""
        return _apply("cho_solve", self, b, {"N": cholesky_operations.SOLVE}, 0)

    @_compat.api_boundary
    def solve_triangular(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """The x with op(L) x = b: with ``trans=0`` whitens what has the covariance A.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype.
            trans: as in `scipy.linalg.solve_triangular`: 0 or "N" for L x = b, 1 or "T" for
                L^T x = b, 2 or "C" for L^H x = b.

        Returns:
            x, of b's shape, dtype and sharding, as for `potrs`.

        Cost: n^2 nrhs multiplications and additions over all ranks.

        Raises:
            TypeError, ValueError, NotImplementedError: as `cho_solve`; another ``trans``.
        """
        name = "CholeskyFactor.solve_triangular"
        by_transposition = {"N": cholesky_operations.FORWARD, "C": cholesky_operations.BACKWARD}
        return _apply(name, self, b, by_transposition, trans)

    @_compat.api_boundary
    def matmul(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """op(L) b: with ``trans=0`` and b of independent normal numbers samples of covariance A.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype.
            trans: 0 or "N" for L b, 1 or "T" for L^T b, 2 or "C" for L^H b.

        Returns:
            Of b's shape, dtype and sharding, as for `potrs`.

        Cost: n^2 nrhs multiplications and additions over all ranks.

        Raises:
            TypeError, ValueError, NotImplementedError: as `cho_solve`; another ``trans``.
        """
        by_transposition = {"N": cholesky_operations.LOWER, "C": cholesky_operations.LOWER_H}
        return _apply("CholeskyFactor.matmul", self, b, by_transposition, trans)

    @_compat.api_boundary
    def logdet(self) -> Array:
        """log(det(A)), a real scalar; NaN where A wasn't positive definite.

        Its derivative takes the inverse: the cost and the memory of `inv`.
        """
        factor, arrays = _parts("CholeskyFactor.logdet", self)
        return factor.logdet(self._log_det, *arrays)

    @property
    def log_det(self) -> Array:
        """log(det(A)): `logdet`."""
        return self.logdet()

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """The diagonal of L, and of U: (n,), real, the same on all devices."""
        factor, arrays = _parts("CholeskyFactor.diagonal", self)
        return factor.diagonal(*arrays)

    @_compat.api_boundary
    def inv(self) -> Array:
        """The inverse of A: (n, n), full and Hermitian, sharded like A; see `potri`.

        Cost: 2 n^3 / 3 multiplications and additions over all ranks (four times as many when
        complex). Memory: the result, and a few panels of n x T per rank; the result takes the
        factor's place where that is donated to a ``jit`` around it.
        """
        factor, arrays = _parts("CholeskyFactor.inv", self)
        return factor.invert(*arrays)

    @_compat.api_boundary
    def upper(self) -> Array:
        """U, (n, n), upper triangular with zeros below its diagonal, sharded like A.

        Memory: the result, which takes the factor's place where that is donated, and a few tiles.
        """
        factor, arrays = _parts("CholeskyFactor.upper", self)
        return factor.upper(*arrays)

    def _divide_rows(self, b):
        """B U^-1 of a matrix B by rows, as `hermitian` has them."""
        factor, arrays = _parts("CholeskyFactor", self)
        return factor.divide_rows(*arrays, b)

    def __repr__(self) -> str:
        dtype = getattr(self.tiles, "dtype", None)
        return (
            f"CholeskyFactor(n={self.n}, dtype={dtype}, tile={self.tile}, "
            f"mesh={dict(self.mesh.shape)}, rows over {self.layout.rows}, "
            f"precision={self.precision!r})"
        )


def pack(call, values):
    """The factor, of a call and its results."""
    tiles, overflow, log_det, status = values
    products = dict(call.attributes).get("products", checks.DEFAULT)
    return CholeskyFactor(
        tiles, overflow if call.overflow else None, log_det, status,
        leaves.made_for(call, tiles.shape[-1], status), call.layout, tiles.shape[-1], call.tile,
        checks.precision_of(products),
    )  # fmt: skip


_from_upper_rule = functools.partial(upper_factor.rule, pack)


def _apply(routine, factor, b, by_transposition, trans):
    """The operation that ``by_transposition`` has for ``trans``, applied to b."""
    return transposed.apply(routine, "L", _parts, factor, b, by_transposition, trans)


def _parts(routine, factor):
    """(`cholesky_operations.Cholesky`, the arrays) of a factor."""
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
