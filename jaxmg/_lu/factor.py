"""`LUFactor`, a factor that outlives the call that created it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._call.arguments import collect
from jaxmg._kept import condition, leaves, pickling, transposed
from jaxmg._layouts import exporting, layouts, meshes, shardings
from jaxmg._lu import operations as lu_operations
from jaxmg._lu import packed as packed_lu
from jaxmg._lu import stacks
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import AnyArray, MatrixLike, MeshLike, Norm, PrecisionLike, Specs, Trans


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "pivots", "_sign", "_log_det", "status", "made_for"],
    meta_fields=["layout", "n", "tile", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LUFactor(pickling.Pickled):
    """Holds the LU factorization with partial pivoting of a square A, spread over a mesh.

    `jaxmg.lu_factor` creates it. It is a pytree and takes as much memory as a `CholeskyFactor`.

    Methods, derivatives and ``vmap`` work as for a `CholeskyFactor`.

    If A is singular, solutions and the inverse have infinity or NaN, and the determinant is 0. If A
    has NaN or infinity, all results are NaN.

    A pickled factor loads only in a single process with at least as many devices of the same
    platform.

    Attributes:
        tiles: (P ceil(n / P), n) on P ranks, sharded by rows: L and U in the engine's layout, whose
            columns are the rows of A. A = U^T L^T P, where L has a unit diagonal.
        pivots: (n,), int32, replicated: for i = 0, 1, ... column i of A was interchanged with
            column pivots[i], counted from 0.
        status: int32 scalar: 0; k > 0, LAPACK's info, if the k-th diagonal entry of U is the first
            that is exactly zero; or -1 if A has NaN or infinity.
        overflow, made_for, layout, n, tile, precision: As in `CholeskyFactor`.
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
        """Creates a factor from the results of `packed`.

        Args:
            lu: (n, n), float32, float64, complex64 or complex128; a JAX or NumPy array, sharded,
                replicated or on one device.
            pivots: (n,), integers; pivots[i] is at least i and less than n.
            T_A, mesh, matrix_specs, pad, in_specs, donate, precision: As in `lu_factor`. The mesh
                may have another number of devices than lu's.

        Returns:
            An `LUFactor`. Its ``status`` is 0; the first row, counted from 1, whose diagonal entry
            is 0; or -1 if ``lu`` has NaN or infinity. Derivatives are with respect to ``lu``.

        Raises:
            TypeError, ValueError, NotImplementedError, RuntimeError: As `gesv`. Pivots that aren't
                integers or have another shape raise too.
        """
        routine = packed_lu.FROM_PACKED
        checks.matrix(routine.name, "lu", lu, pad, checks.ALL)
        products = checks.precision(routine.name, precision, lu.dtype, "native")
        pivots = packed_lu.check_pivots(routine.name, pivots, lu.shape[1])
        arguments = collect(routine, T_A, mesh, matrix_specs, in_specs, pad, "native", donate)
        factor = dispatch.call(routine, (lu,), arguments, _rule_of_packed, pack=_pack_without)
        pivots = shardings.placed_like(pivots, factor.status)
        return dataclasses.replace(
            packed_lu.with_pivots(factor, pivots),
            _sign=factor._sign * stacks.parity(pivots).astype(lu.dtype),
            precision=checks.precision_of(products),
        )

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
            trans: 0 or "N" for A x = b, 1 or "T" for A^T x = b, 2 or "C" for A^H x = b, as in
                `scipy.linalg.lu_solve`.

        Returns:
            x, of b's shape, dtype and sharding, as in `jaxmg.gesv`.

        Cost: 2 n^2 nrhs flops over all ranks (complex: 4 times).

        Raises:
            TypeError: b isn't an array, or has another dtype than the factor.
            ValueError: Shapes don't match, ``trans`` is invalid, or the call is inside
                ``shard_map``.
        """
        operations = {"N": lu_operations.SOLVE, "C": lu_operations.SOLVE_ADJOINT}
        return transposed.apply("LUFactor.solve", "A", parts, self, b, operations, trans)

    @_compat.api_boundary
    def slogdet(self) -> tuple[Array, Array]:
        """Returns the sign of det(A) and log(abs(det(A))), as `jax.numpy.linalg.slogdet`.

        Both are scalars: the sign has A's dtype, the logarithm is real. They are 0 and -inf if A is
        singular. The derivative computes the inverse, with the cost and memory of `inv`.
        """
        factor, arrays = parts("LUFactor.slogdet", self)
        return factor.slogdet(self._sign, self._log_det, *arrays)

    @_compat.api_boundary
    def logdet(self) -> Array:
        """Returns log(abs(det(A))), a real scalar; -inf if A is singular."""
        return self.slogdet()[1]

    @_compat.api_boundary
    def det(self) -> Array:
        """Returns det(A), a scalar of A's dtype. It can overflow; `slogdet` can't.

        The derivative computes the inverse and a copy of the factor. If one to three pivots are
        exactly 0, it consists of A's cofactors, as in JAX if only the last pivot is 0; if more
        pivots are 0, it is 0. Second derivatives of a singular A are NaN.
        """
        return self._det_times(jnp.int32(0))

    def _det_times(self, exponent):
        """Returns det(A) 2^exponent."""
        factor, arrays = parts("LUFactor.det", self)
        return factor.det(self._sign, self._log_det, exponent, *arrays)

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """Returns the diagonal of U: (n,), of A's dtype, replicated.

        The product of its entries is det(A) up to the sign. If an entry is far smaller than the
        others, A is close to singular.
        """
        factor, arrays = parts("LUFactor.diagonal", self)
        return factor.diagonal(*arrays)

    @_compat.api_boundary
    def rcond(self, anorm: float | AnyArray, norm: Norm = 1) -> Array:
        """Estimates the reciprocal condition number of A, as LAPACK's gecon.

        Args:
            anorm: Norm of A, a real scalar, ``jnp.linalg.norm(a, norm)``; the factor doesn't
                contain it.
            norm: 1 ("1" or "O") for the 1-norm, inf ("inf" or "I") for the infinity norm.

        Returns:
            1 / (anorm * norm(A^-1)), a real scalar. The norm of the inverse is estimated from
            below, so the result is an upper bound, rarely more than three times too large. It is 0
            if A is singular, and NaN if A or ``anorm`` is NaN or infinite. It has no derivative.

        Cost: at most ten solves with one or two right-hand sides (LAPACK's lacn2; N. J. Higham, ACM
        Trans. Math. Softw. 14, 1988). `jaxmg.linalg.cond` computes the condition number of a
        matrix.

        Raises:
            ValueError: ``norm`` is invalid, ``anorm`` isn't a scalar, or the call is inside
                ``shard_map``.
            NotImplementedError: The factor is being differentiated.
        """
        name = "LUFactor.rcond"
        meshes.refuse_manual_axes(name)
        parts(name, self)
        return condition.reciprocal_of(name, self, anorm, norm)

    @_compat.api_boundary
    def matrix_rank(self, tol: float | AnyArray | None = None) -> Array:
        """Estimates the rank of A, an int32 scalar, from the diagonal of U.

        Partial pivoting doesn't reveal the rank: a numerically singular A may have no small
        diagonal entry in U (the matrices of W. Kahan and J. H. Wilkinson). The estimate is mostly
        right if some rows depend on others, and may be too high otherwise. `rcond` is more reliable
        for an A that should be regular; singular values are always reliable.

        Args:
            tol: Threshold; entries with a larger absolute value count. None: n eps times the
                largest absolute value.

        Returns:
            Number of such entries; 0 if A has NaN or infinity.
        """
        size = jnp.abs(self.diagonal())
        if tol is None:
            eps = float(jnp.finfo(self.dtype).eps)
            tol = self.n * eps * jnp.max(size, initial=0)
        return jnp.sum(size > tol).astype(jnp.int32)

    @_compat.api_boundary
    def packed(self) -> tuple[Array, Array]:
        """Returns (lu, pivots); `from_packed` recreates the factor on any number of devices.

        Returns:
            lu, (n, n), sharded like A, with A = tril(lu) @ (triu(lu, 1) + I) @ P: the transposed
            result of LAPACK's getrf for A^T. ``pivots``, (n,), defines P:
            ``P = numpy.eye(n)[jax.lax.linalg.lu_pivots_to_permutation(pivots, n)]``.

        Memory: the result, and a few tiles per rank. The result replaces the factor in memory if
        you donate the factor to an outer ``jit``.
        """
        factor, arrays = parts("LUFactor.packed", self)
        return factor.rows(*arrays), self.pivots

    @_compat.api_boundary
    def inv(self) -> Array:
        """Computes the inverse of A: (n, n), sharded like A.

        Cost: 4 n^3 / 3 flops over all ranks (complex: 4 times). Memory: the result, and a few
        panels of n x T per rank. The result replaces the factor in memory if you donate the factor
        to an outer ``jit``.
        """
        factor, arrays = parts("LUFactor.inv", self)
        return factor.invert(*arrays)

    def _divide_rows(self, b):
        """Returns B A^-1 for a matrix B sharded by rows, as in `hermitian`."""
        factor, arrays = parts("LUFactor", self)
        return factor.divide_rows(*arrays, b)

    def __repr__(self) -> str:
        return leaves.describe(self, f"n={self.n}", self.tiles, "precision")


def pack(call, values):
    """Creates the factor from a call and its results."""
    tiles, overflow, pivots, log_det, sign, status = values
    products = dict(call.attributes).get("products", checks.DEFAULT)
    return LUFactor(
        tiles, overflow if call.overflow else None, pivots, sign, log_det, status,
        leaves.made_for(call, tiles.shape[-1], status), call.layout, tiles.shape[-1], call.tile,
        checks.precision_of(products),
    )  # fmt: skip


def _pack_without(call, values):
    """Like `pack`, for results without pivots, whose sign is that of U's diagonal."""
    tiles, overflow, log_det, sign, status = values
    return pack(call, (tiles, overflow, None, log_det, sign, status))


def _rule_of_packed(arguments):
    """Returns the JVP rule: until the factor has its pivots, its tangent is that of A P^T."""

    def derivative(primals, tangents):
        factor = dispatch.transform(
            packed_lu.FROM_PACKED, primals, arguments, _rule_of_packed, _pack_without
        )
        moved = tangents[0]
        if factor.n:
            lu, moved = (hermitian.rows(factor.layout, x) for x in (primals[0], tangents[0]))
            moved = lu_operations.product_tangent(factor.layout, lu, moved)
        moved = shardings.constrain_like(moved, factor.tiles)
        return factor, dataclasses.replace(derivatives.still(factor), tiles=moved)

    return derivative


def parts(routine, factor):
    """Returns (`lu_operations.LU`, the arrays) of a factor."""
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
