"""`LUFactor`, which outlives the call that made it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks, exporting, layouts
from jaxmg._call.arguments import collect
from jaxmg._factors import condition, leaves, lu_operations, packed_lu, pickling, transposed
from jaxmg._stacks import determinants
from jaxmg._transform import derivatives, dispatch, hermitian
from jaxmg._types import AnyArray, MatrixLike, MeshLike, Norm, PrecisionLike, Specs, Trans


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "pivots", "_sign", "_log_det", "status", "made_for"],
    meta_fields=["layout", "n", "tile", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LUFactor(pickling.Pickled):
    """The LU factorization of a square A with partial pivoting, spread over the devices of a mesh.

    `jaxmg.lu_factor` makes it. It is a pytree: it goes in and out of ``jit``, through ``scan`` and
    ``cond``, and may be donated (``jax.jit(f, donate_argnums=0)``). It holds as much memory as A,
    and on each device one tile column more where the tile width doesn't divide its rows.

    The methods take and return global arrays, eagerly or under ``jit``; inside ``shard_map`` they
    raise a ValueError. They have derivatives, and ``vmap`` takes them, as the factor itself: its
    tangent is that of A.

    The factor of a singular A is LAPACK's: solutions and the inverse have infinity or NaN, the
    determinant is 0. Of an A with NaN or infinity all that the methods return is NaN.

    A pickle of a factor is for as many devices of the same platform in one process.

    Attributes:
        tiles: (P ceil(n / P), n) on P ranks, sharded by rows: L and U as the engine has them, with
            the rows of A for its columns: A = U^T L^T P, where L has a unit diagonal.
        overflow: (P T, n), sharded likewise, for tiles of T rows of which one on each rank reaches
            past ``tiles``; None where there is none. Neither means anything without the rest.
        pivots: (n,), int32, the same on all devices: column i of A was interchanged with column
            pivots[i], counted from 0, for i = 0, 1, ...
        status: int32 scalar: 0; LAPACK's info k > 0, where the k-th diagonal entry of U is the
            first that is exactly zero; or -1, where A has NaN or infinity.
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
    pivots: jax.Array
    _sign: jax.Array
    _log_det: jax.Array
    status: jax.Array
    made_for: dict[str, jax.Array] | None
    layout: layouts.Layout
    n: int
    tile: int
    precision: str | None = None

    @classmethod
    @_compat.api_boundary
    def from_packed(
        cls,
        lu: MatrixLike,
        pivots: AnyArray,
        T_A: SupportsIndex | None = None,
        mesh: MeshLike | None = None,
        matrix_specs: Specs | None = None,
        pad: bool = True,
        *,
        in_specs: Specs | None = None,
        donate: bool = False,
        precision: PrecisionLike | None = None,
    ) -> LUFactor:
        """The factor of which `packed` gave ``lu`` and ``pivots``.

        Args:
            lu: (n, n), float32, float64, complex64 or complex128; a JAX or NumPy array, sharded,
                replicated or on one device.
            pivots: (n,), integers: pivots[i] is at least i and below n.
            T_A, mesh, matrix_specs, pad, in_specs, donate, precision: as for `lu_factor`; the mesh
                need not have as many devices as the mesh of ``lu``.

        Returns:
            An `LUFactor`. Its ``status`` is 0, or the first row (from 1) whose diagonal entry is 0,
            or -1 where ``lu`` has NaN or infinity. Its derivatives are by ``lu``.

        Raises:
            TypeError, ValueError, NotImplementedError, RuntimeError: as `gesv`; pivots that aren't
                integers, or of another shape.
        """
        routine = packed_lu.FROM_PACKED
        checks.matrix(routine.name, "lu", lu, pad, checks.ALL)
        products = checks.precision(routine.name, precision, lu.dtype, "native")
        pivots = packed_lu.check_pivots(routine.name, pivots, lu.shape[1])
        arguments = collect(routine, T_A, mesh, matrix_specs, in_specs, pad, "native", donate)
        factor = dispatch.call(routine, (lu,), arguments, _rule_of_packed, pack=_pack_without)
        pivots = layouts.placed_like(pivots, factor.status)
        return dataclasses.replace(
            packed_lu.with_pivots(factor, pivots),
            _sign=factor._sign * determinants.parity(pivots).astype(lu.dtype),
            precision=checks.precision_of(products),
        )

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
    def solve(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """The x with op(A) x = b, of b's shape.

        Args:
            b: (n,) or (n, nrhs), of the factor's dtype. Every device holds all of it.
            trans: as in `scipy.linalg.lu_solve`: 0 or "N" for A x = b, 1 or "T" for A^T x = b, 2 or
                "C" for A^H x = b.

        Returns:
            x, of b's shape, dtype and sharding, as for `jaxmg.gesv`.

        Cost: 2 n^2 nrhs multiplications and additions over all ranks (four times as many when
        complex).

        Raises:
            TypeError: b is no array, or has another dtype than the factor.
            ValueError: shapes don't fit, another ``trans``, or a call inside ``shard_map``.
        """
        operations = {"N": lu_operations.SOLVE, "C": lu_operations.SOLVE_ADJOINT}
        return transposed.apply("LUFactor.solve", "A", parts, self, b, operations, trans)

    @_compat.api_boundary
    def slogdet(self) -> tuple[Array, Array]:
        """(sign, logarithm of the absolute value) of det(A): scalars, of A's dtype and of the real
        one, as `jax.numpy.linalg.slogdet` has them; (0, -inf) where A is singular.

        Its derivative takes the inverse: the cost and the memory of `inv`.
        """
        factor, arrays = parts("LUFactor.slogdet", self)
        return factor.slogdet(self._sign, self._log_det, *arrays)

    @_compat.api_boundary
    def logdet(self) -> Array:
        """log(abs(det(A))), a real scalar; -inf where A is singular."""
        return self.slogdet()[1]

    @_compat.api_boundary
    def det(self) -> Array:
        """det(A), a scalar of A's dtype, which overflows sooner than `slogdet`.

        The derivative needs the inverse and a copy of the factor. If A is singular, it consists of
        A's cofactors for up to three pivots that are exactly 0 (in JAX only the last may be), and
        is 0 for more. Second derivatives of a singular A are NaN.
        """
        return self._det_times(jnp.int32(0))

    def _det_times(self, exponent):
        """det(A) 2^exponent."""
        factor, arrays = parts("LUFactor.det", self)
        return factor.det(self._sign, self._log_det, exponent, *arrays)

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """The diagonal of U: (n,), of A's dtype, the same on all devices. Its product is det(A) but
        for the sign; where an entry is far smaller than the others, A is close to singular."""
        factor, arrays = parts("LUFactor.diagonal", self)
        return factor.diagonal(*arrays)

    @_compat.api_boundary
    def rcond(self, anorm: float | AnyArray, norm: Norm = 1) -> Array:
        """An estimate of the reciprocal condition number of A, a real scalar: LAPACK's gecon.

        Args:
            anorm: the norm of A, a real scalar, which the factor doesn't know:
                ``jnp.linalg.norm(a, norm)``.
            norm: 1 ("1" or "O") for the 1-norm, inf ("inf" or "I") for the infinity norm.

        Returns:
            1 / (anorm * norm(A^-1)), of which the norm is estimated from below: the result is
            rarely more than three times as large as the true one. 0 where A is singular; NaN where
            A or ``anorm`` is NaN or infinite. It has no derivative.

        Cost: at most ten solves of one or two right-hand sides, in the iteration of LAPACK's lacn2
        (N. J. Higham, ACM Trans. Math. Softw. 14, 1988). `jaxmg.linalg.cond` gives the condition
        number of a matrix.

        Raises:
            ValueError: another ``norm``, an ``anorm`` that is no scalar, or a call inside
                ``shard_map``.
            NotImplementedError: the factor is being differentiated.
        """
        name = "LUFactor.rcond"
        layouts.refuse_manual_axes(name)
        parts(name, self)
        norm = condition.norm_of(name, "norm", norm)
        anorm = jnp.asarray(anorm, jnp.finfo(self.dtype).dtype)
        if anorm.ndim:
            raise ValueError(f"{name}: anorm must be a scalar; it has shape {anorm.shape}")
        return condition.reciprocal(name, self, anorm, norm)

    @_compat.api_boundary
    def matrix_rank(self, tol: float | AnyArray | None = None) -> Array:
        """An estimate of the rank of A by the diagonal of U, an int32 scalar.

        Partial pivoting doesn't reveal the rank: an A that is as good as singular may have no small
        diagonal entry in U (W. Kahan's and J. H. Wilkinson's matrices). So the estimate is mostly
        right where some rows depend on others, and may be too high elsewhere; `rcond` tells more of
        an A that should be regular, and the singular values tell all.

        Args:
            tol: entries whose absolute value is larger count; None: n eps times the largest one.

        Returns:
            The number of such entries, 0 where A has NaN or infinity.
        """
        size = jnp.abs(self.diagonal())
        if tol is None:
            eps = float(jnp.finfo(self.dtype).eps)
            tol = self.n * eps * jnp.max(size, initial=0)
        return jnp.sum(size > tol).astype(jnp.int32)

    @_compat.api_boundary
    def packed(self) -> tuple[Array, Array]:
        """(lu, pivots), from which `from_packed` makes the factor again, on any number of devices.

        Returns:
            lu, (n, n), sharded like A, with A = tril(lu) @ (triu(lu, 1) + I) @ P: the transposed
            result of LAPACK's getrf for A^T; and ``pivots``, from which P follows:
            ``P = numpy.eye(n)[jax.lax.linalg.lu_pivots_to_permutation(pivots, n)]``.

        Memory: the result, which takes the factor's place where that is donated, and a few tiles.
        """
        factor, arrays = parts("LUFactor.packed", self)
        return factor.rows(*arrays), self.pivots

    @_compat.api_boundary
    def inv(self) -> Array:
        """The inverse of A: (n, n), sharded like A.

        Cost: 4 n^3 / 3 multiplications and additions over all ranks (four times as many when
        complex). Memory: the result, and a few panels of n x T per rank; the result takes the
        factor's place where that is donated to a ``jit`` around it.
        """
        factor, arrays = parts("LUFactor.inv", self)
        return factor.invert(*arrays)

    def _divide_rows(self, b):
        """B A^-1 of a matrix B by rows, as `hermitian` has them."""
        factor, arrays = parts("LUFactor", self)
        return factor.divide_rows(*arrays, b)

    def __repr__(self) -> str:
        dtype = getattr(self.tiles, "dtype", None)
        return (
            f"LUFactor(n={self.n}, dtype={dtype}, tile={self.tile}, "
            f"mesh={dict(self.mesh.shape)}, rows over {self.layout.rows}, "
            f"precision={self.precision!r})"
        )


def pack(call, values):
    """The factor, of a call and its results."""
    tiles, overflow, pivots, log_det, sign, status = values
    products = dict(call.attributes).get("products", checks.DEFAULT)
    return LUFactor(
        tiles, overflow if call.overflow else None, pivots, sign, log_det, status,
        leaves.made_for(call, tiles.shape[-1], status), call.layout, tiles.shape[-1], call.tile,
        checks.precision_of(products),
    )  # fmt: skip


def _pack_without(call, values):
    """The same of results without pivots, and with the sign of U's diagonal."""
    tiles, overflow, log_det, sign, status = values
    return pack(call, (tiles, overflow, None, log_det, sign, status))


def _rule_of_packed(arguments):
    """JVP rule: the factor's tangent is that of A P^T, until it has its pivots."""

    def derivative(primals, tangents):
        factor = dispatch.transform(
            packed_lu.FROM_PACKED, primals, arguments, _rule_of_packed, _pack_without
        )
        moved = tangents[0]
        if factor.n:
            lu, moved = (hermitian.rows(factor.layout, x) for x in (primals[0], tangents[0]))
            moved = lu_operations.product_tangent(factor.layout, lu, moved)
        moved = layouts.constrain_like(moved, factor.tiles)
        return factor, dataclasses.replace(derivatives.still(factor), tiles=moved)

    return derivative


def parts(routine, factor):
    """(`lu_operations.LU`, the arrays) of a factor."""
    checks.usable(routine, "factor", factor.tiles, factor.overflow, factor.pivots, factor._log_det)
    leaves.check(routine, factor, factor.n)
    overflow = () if factor.overflow is None else (factor.overflow,)
    static = lu_operations.LU(
        routine,
        factor.layout,
        factor.n,
        factor.tile,
        bool(overflow),
        checks.PRODUCTS[factor.precision],
    )
    return static, (factor.tiles, *overflow, factor.pivots)
