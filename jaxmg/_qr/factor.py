"""`QRFactor`, a factor that outlives the call that created it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks, programs
from jaxmg._call.arguments import collect
from jaxmg._kept import leaves, pickling, transposed
from jaxmg._layouts import exporting, layouts, meshes, shardings
from jaxmg._qr import operations as qr_operations
from jaxmg._qr import packed as packed_qr
from jaxmg._qr import rectangular
from jaxmg._transform import dispatch
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Specs, Trans


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "taus", "_factors", "status", "made_for"],
    meta_fields=["layout", "m", "n", "tile", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class QRFactor(pickling.Pickled):
    """Holds the QR decomposition of A (m, n) as Householder vectors, spread over a mesh.

    `jaxmg.geqrf` creates it. It is a pytree, as a `CholeskyFactor`, and takes as much memory as A.

    Methods work as for a `CholeskyFactor`, also under ``vmap``. Q is (m, m), except in `q`, and R
    is (k, n) with k = min(m, n). R's diagonal is real, with LAPACK's signs. The factor's tangent is
    the tangent of A. If A has full rank, solutions, `q`, `r` and `diagonal` have derivatives with
    respect to A; other methods have derivatives with respect to b only.

    If A has NaN or infinity, all results are NaN. A pickled factor loads only in a single process
    with at least as many devices of the same platform.

    Attributes:
        tiles: (P ceil(n / P), m) on P ranks, sharded by rows: R and the vectors in the engine's
            layout, whose rows are the columns of A.
        taus: (k,), of A's dtype, replicated: scale factors of the reflectors.
        status: int32 scalar: 0, or -1 if A has NaN or infinity.
        m, n: Shape of A.
        overflow, made_for, layout, tile: As in `CholeskyFactor`; ``overflow`` is (P T, m).
        precision: As in `CholeskyFactor`; also applies to `q`.
    """

    tiles: jax.Array
    overflow: jax.Array | None
    taus: jax.Array
    _factors: jax.Array
    status: jax.Array
    made_for: dict[str, jax.Array] | None
    layout: layouts.Layout
    m: int
    n: int
    tile: int
    precision: str | None = None

    @classmethod
    @_compat.api_boundary
    def from_packed(
        cls,
        h: MatrixLike,
        taus: MatrixLike,
        T_A: SupportsIndex | None = None,
        mesh: MeshLike | None = None,
        matrix_specs: Specs | None = None,
        *,
        in_specs: Specs | None = None,
        donate: bool = False,
        precision: PrecisionLike | None = None,
    ) -> QRFactor:
        """Creates a factor from the results of `packed` or of LAPACK's geqrf.

        Args:
            h: (m, n), float32, float64, complex64 or complex128; a JAX or NumPy array, sharded,
                replicated or on one device.
            taus: (min(m, n),), of h's dtype.
            T_A, mesh, matrix_specs, in_specs, donate, precision: As in `geqrf`. The mesh may have
                another number of devices than h's.

        Returns:
            A `QRFactor`. Its ``status`` is 0, or -1 if ``h`` has NaN or infinity.

        Cost: 64 m min(m, n) flops over all ranks, and an exchange between all devices.

        Raises:
            TypeError, ValueError, RuntimeError: As `geqrf`. ``taus`` of another shape or dtype
                raises too.
            NotImplementedError: ``h`` is being differentiated. As in JAX, reflectors have no
                derivative; `q`, `r` and `solve` have derivatives with respect to A.
        """
        routine = packed_qr.FROM_PACKED
        checks.matrix(routine.name, "h", h, True, checks.ALL, square=False)
        packed_qr.check_taus(routine.name, taus, h)
        products = checks.precision(routine.name, precision, h.dtype, "native")
        arguments = collect(routine, T_A, mesh, matrix_specs, in_specs, True, "native", donate)
        factor = dispatch.call(routine, (h,), arguments, _refuse, pack=_pack_without)
        m, n = factor.shape
        taus = shardings.placed_like(taus, factor.status)
        factors = factor._factors
        if m and n:
            factors = packed_qr.panel_factors(factors, taus, factor.layout.ranks, n, factor.tile)
        return dataclasses.replace(
            factor, taus=taus, _factors=factors, precision=checks.precision_of(products)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the shape of A, (m, n)."""
        return (self.m, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of A and of the factor."""
        return self.tiles.dtype

    @property
    def mesh(self) -> MeshLike:
        """Returns the mesh that the factor is spread over."""
        return self.layout.mesh

    @_compat.api_boundary
    def q(self, mode: Literal["reduced", "complete"] = "reduced") -> Array:
        """Computes Q, sharded by rows over the axes that shard A.

        Args:
            mode: "reduced": the first k = min(m, n) columns, (m, k). "complete": all columns,
                (m, m), which have a derivative only for m <= n.

        Cost: at most 2 m k^2 flops over all ranks, or 4 m^2 k for "complete" (complex: 4 times).
        Memory: twice the result.
        """
        name = "QRFactor.q"
        if mode not in ("reduced", "complete"):
            raise ValueError(f"{name}: mode must be 'reduced' or 'complete'; got {mode!r}")
        meshes.refuse_manual_axes(name)
        factor, arrays = parts(name, self)
        if mode == "complete" and self.m > self.n:
            if not self.n:
                return jnp.eye(self.m, dtype=self.dtype)
            eye = rectangular.identity(self.layout, self.tiles, self.m)
            rows = factor.multiply_rows(qr_operations.TRANSPOSED, *arrays, eye)
            return rectangular.finished(self.layout, rows, self.m)
        if not min(self.shape):
            return jnp.zeros((self.m, 0), self.dtype)
        return factor.q(*arrays)

    @property
    @_compat.api_boundary
    def r(self) -> Array:
        """Returns R: (k, n), upper triangular, sharded by rows."""
        meshes.refuse_manual_axes("QRFactor.r")
        if not min(self.shape):
            return jnp.zeros((0, self.n), self.dtype)
        factor, arrays = parts("QRFactor.r", self)
        return factor.r(*arrays)

    @_compat.api_boundary
    def packed(self) -> tuple[Array, Array]:
        """Returns (h, taus) as LAPACK's geqrf; `from_packed` recreates the factor on any mesh.

        h, (m, n), has R on and above its diagonal. Below the diagonal it has the vectors of the
        reflectors, without their first entries, which are 1. The results have no derivative.
        """
        meshes.refuse_manual_axes("QRFactor.packed")
        if not min(self.shape):
            return jnp.zeros(self.shape, self.dtype), self.taus
        factor, arrays = parts("QRFactor.packed", self)
        return factor.packed(*arrays), self.taus

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """Returns the diagonal of R: (k,), of A's dtype, replicated.

        A has full rank if no entry is 0. LAPACK's info of gels is the index, from 1, of the first
        entry that is 0.
        """
        if not min(self.shape):
            return jnp.zeros(0, self.dtype)
        factor, arrays = parts("QRFactor.diagonal", self)
        return factor.diagonal(*arrays)

    @_compat.api_boundary
    def multiply(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """Multiplies b by op(Q); the result has b's shape.

        Args:
            b: (m,) or (m, nrhs), of the factor's dtype. Every device holds all of b.
            trans: 0 or "N" for Q b, 1 or "T" for Q^T b, 2 or "C" for Q^H b.

        Cost: 4 m k nrhs flops over all ranks (complex: 4 times).

        Raises:
            TypeError: b isn't an array, or has another dtype than the factor.
            ValueError: Shapes don't match, ``trans`` is invalid, or the call is inside
                ``shard_map``.
            NotImplementedError: The factor is being differentiated; only b may be, because A
                determines only the first k columns of Q. Products with `q` have a derivative.
        """
        return self._apply("QRFactor.multiply", "Q", b, self._multiply, trans)

    @_compat.api_boundary
    def solve(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """Solves a least squares or least norm problem for a tall A, m >= n, of full rank.

        Args:
            b: (m,) or (m, nrhs) with ``trans=0``, else (n,) or (n, nrhs); of the factor's dtype.
                Every device holds all of b.
            trans: 0 or "N": x, with n rows, minimizes norm(b - A x). 1 or "T": x, with m rows, is
                the solution of A^T x = b of least norm. 2 or "C": the same for A^H x = b.

        Returns:
            x, replicated. If A is rank-deficient, x has infinity, NaN or large entries.

        Cost: 4 m n nrhs + n^2 nrhs flops over all ranks (complex: 4 times). Derivatives follow from
        the normal equations by the implicit function theorem; the factorization isn't
        differentiated.

        Raises:
            TypeError: b isn't an array, or has another dtype than the factor.
            ValueError: m < n (factor A^H instead and pass ``trans="C"``), shapes don't match,
                ``trans`` is invalid, or the call is inside ``shard_map``.
        """
        name = "QRFactor.solve"
        if self.m < self.n:
            raise ValueError(
                f"{name}: A is wide, {self.shape}; for the x of least norm with A x = b pass b and "
                "trans='C' to the factor of its adjoint: geqrf(a.conj().T)"
            )
        if transposed.checked(name, "A", trans) == "N":
            return self._apply(name, "A", b, self._solve, trans)
        checks.array(name, "b", b, checks.ALL)
        a = jax.ShapeDtypeStruct((self.n, self.n), self.dtype)
        checks.right_hand_side(name, a, b, checks.ALL)
        below = ((0, self.m - self.n),) + ((0, 0),) * (b.ndim - 1)
        return self._apply(name, "A", jnp.pad(jnp.asarray(b), below), self._solve, trans)

    def _apply(self, name, matrix, b, operation, trans):
        how = transposed.checked(name, matrix, trans)
        _check_right_hand_sides((b,), name, self.m, self.dtype)
        if how == "T" and jnp.issubdtype(self.dtype, jnp.complexfloating):
            return jnp.conj(operation(name, jnp.conj(b), qr_operations.ADJOINT))
        return operation(name, b, qr_operations.PLAIN if how == "N" else qr_operations.ADJOINT)

    def _multiply(self, name, b, operation):
        if not min(self.shape) or not b.size:
            return jnp.asarray(b)
        factor, arrays = parts(name, self)
        return factor.multiply(operation, *arrays, b)

    def _solve(self, name, b, operation):
        rows = self.n if operation == qr_operations.PLAIN else self.m
        if not min(self.shape) or not b.size:
            return jnp.zeros((rows, *b.shape[1:]), self.dtype)
        factor, arrays = parts(name, self)
        x = factor.solve(operation, *arrays, b)
        return x if len(x) == rows else jax.lax.slice_in_dim(x, 0, rows)

    def __repr__(self) -> str:
        return leaves.describe(self, f"shape={self.shape}", self.tiles, "precision")


@programs.cache_plans
def _check_right_hand_sides(arrays, name, rows, dtype):
    """Raises if the array isn't right-hand sides with this number of rows."""
    meshes.refuse_manual_axes(name)
    checks.array(name, "b", arrays[0], checks.ALL)
    like = jax.ShapeDtypeStruct((rows, 0), dtype)
    checks.right_hand_side(name, like, arrays[0], checks.ALL, False)
    return lambda b: None


def pack(call, values):
    """Creates the factor from a call and its results."""
    return _pack(call, values, call.shape)


def _pack_without(call, values):
    """Creates the factor without taus, and with the products V^H V in place of T."""
    tiles, overflow, grams, status = values
    return _pack(call, (tiles, overflow, None, grams, status), call.shape)


def _refuse(arguments):
    def derivative(primals, tangents):
        raise NotImplementedError(
            "QRFactor.from_packed: h is being differentiated, but reflectors have no derivative; "
            "differentiate geqrf(a) instead, whose q, r and solve have derivatives"
        )

    return derivative


def pack_transposed(call, values):
    """Like `pack`, for a call with a matrix whose rows are A's columns."""
    return _pack(call, values, call.shape[::-1])


def _pack(call, values, shape):
    tiles, overflow, taus, factors, status = values
    m, n = shape
    products = dict(call.attributes).get("products", checks.DEFAULT)
    return QRFactor(
        tiles, overflow if call.overflow else None, taus, factors, status,
        leaves.made_for(call, n, status), call.layout, m, n, call.tile,
        checks.precision_of(products),
    )  # fmt: skip


def parts(routine, factor):
    """Returns (`qr_operations.QR`, the arrays) of a factor."""
    checks.usable(routine, "factor", factor.tiles, factor.overflow, factor._factors)
    leaves.check(routine, factor, factor.n)
    overflow = () if factor.overflow is None else (factor.overflow,)
    static = qr_operations.QR(
        routine,
        factor.layout,
        factor.m,
        factor.tile,
        bool(overflow),
        factor.n,
        checks.PRODUCTS[factor.precision],
    )
    return static, (factor.tiles, *overflow, factor._factors)
