"""`QRFactor`, which outlives the call that made it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks, exporting, layouts, programs
from jaxmg._call.arguments import collect
from jaxmg._factors import leaves, packed_qr, pickling, qr_operations, transposed
from jaxmg._transform import dispatch, rectangular
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Specs, Trans


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "taus", "_factors", "status", "made_for"],
    meta_fields=["layout", "m", "n", "tile", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class QRFactor(pickling.Pickled):
    """The QR decomposition of A (m, n), as Householder vectors, spread over the devices of a mesh.

    `jaxmg.geqrf` makes it. It is a pytree: it goes in and out of ``jit``, through ``scan`` and
    ``cond``, and may be donated. It holds as much memory as A.

    The methods take and return global arrays, eagerly or under ``jit``; inside ``shard_map`` they
    raise a ValueError. ``vmap`` takes them, and the factor itself. Q is square here, (m, m), but
    for `q`; R (k, n), with k = min(m, n). Its diagonal is real, with LAPACK's signs. The factor's
    tangent is that of A, and solutions, `q`, `r` and `diagonal` have derivatives with respect to
    it, where A has full rank; the other methods have those with respect to b.

    Of an A with NaN or infinity all that the methods return is NaN.

    A pickle of a factor is for as many devices of the same platform in one process.

    Attributes:
        tiles: (P ceil(n / P), m) on P ranks, sharded by rows: R and the vectors as the engine has
            them, with the columns of A for its rows.
        overflow: (P T, m), sharded likewise, for tiles of T rows of which one on each rank reaches
            past ``tiles``; None where there is none. Neither means anything without the rest.
        taus: (k,), of A's dtype, the same on all devices: the scale factors of the reflectors.
        status: int32 scalar: 0, or -1, where A has NaN or infinity.
        made_for: int8 zeros of shape (P, T), T at most ceil(n / P), in a dict by a key that has P
            and T in it: tells for which the leaves are. Methods compare it with what follows and
            raise a ValueError where it differs; `portable` takes a factor to another mesh or tile
            width.
        layout: the mesh and the axes that the rows are sharded over; static, as what follows.
        m, n: the shape of A.
        tile: T, the width of the tiles.
        precision: "highest", "tf32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3",
            or None for the default; `q` computes with it too.
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
        """The factor of which `packed` gave ``h`` and ``taus``; also LAPACK's geqrf gives them.

        Args:
            h: (m, n), float32, float64, complex64 or complex128; a JAX or NumPy array, sharded,
                replicated or on one device.
            taus: (min(m, n),), of h's dtype.
            T_A, mesh, matrix_specs, in_specs, donate, precision: as for `geqrf`; the mesh need not
                have as many devices as the mesh of ``h``.

        Returns:
            A `QRFactor`. Its ``status`` is 0, or -1 where ``h`` has NaN or infinity.

        Cost: 64 m min(m, n) multiplications and additions over all ranks, and an exchange of all
        devices with all.

        Raises:
            TypeError, ValueError, RuntimeError: as `geqrf`; taus of another shape or dtype.
            NotImplementedError: ``h`` is being differentiated. JAX has no derivative of
                reflectors either: those of `q`, `r` and `solve` are with respect to A.
        """
        routine = packed_qr.FROM_PACKED
        checks.matrix(routine.name, "h", h, True, checks.ALL, square=False)
        packed_qr.check_taus(routine.name, taus, h)
        products = checks.precision(routine.name, precision, h.dtype, "native")
        arguments = collect(routine, T_A, mesh, matrix_specs, in_specs, True, "native", donate)
        factor = dispatch.call(routine, (h,), arguments, _refuse, pack=_pack_without)
        m, n = factor.shape
        taus = layouts.placed_like(taus, factor.status)
        factors = factor._factors
        if m and n:
            factors = packed_qr.panel_factors(factors, taus, factor.layout.ranks, n, factor.tile)
        return dataclasses.replace(
            factor, taus=taus, _factors=factors, precision=checks.precision_of(products)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), the shape of A."""
        return (self.m, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of A and of the factor."""
        return self.tiles.dtype

    @property
    def mesh(self) -> MeshLike:
        """The mesh that the factor is spread over."""
        return self.layout.mesh

    @_compat.api_boundary
    def q(self, mode: Literal["reduced", "complete"] = "reduced") -> Array:
        """Q, by rows, as A is sharded.

        Args:
            mode: "reduced": its first k = min(m, n) columns, (m, k); "complete": all, (m, m), which
                have a derivative where m <= n alone.

        Cost: 2 m k^2 and less multiplications and additions over all ranks, or 4 m^2 k (four times
        as many when complex). Memory: twice the result.
        """
        name = "QRFactor.q"
        if mode not in ("reduced", "complete"):
            raise ValueError(f"{name}: mode must be 'reduced' or 'complete'; got {mode!r}")
        layouts.refuse_manual_axes(name)
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
        """R, (k, n), upper triangular, sharded by rows."""
        layouts.refuse_manual_axes("QRFactor.r")
        if not min(self.shape):
            return jnp.zeros((0, self.n), self.dtype)
        factor, arrays = parts("QRFactor.r", self)
        return factor.r(*arrays)

    @_compat.api_boundary
    def packed(self) -> tuple[Array, Array]:
        """(h, taus), as LAPACK's geqrf gives them: R on and above the diagonal of h, (m, n), and
        below it the vectors of the reflectors without their ones. It has no derivative.

        `from_packed` makes the factor again, on any number of devices.
        """
        layouts.refuse_manual_axes("QRFactor.packed")
        if not min(self.shape):
            return jnp.zeros(self.shape, self.dtype), self.taus
        factor, arrays = parts("QRFactor.packed", self)
        return factor.packed(*arrays), self.taus

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """The diagonal of R: (k,), of A's dtype, the same on all devices. A has full rank where no
        entry is 0; LAPACK's info of gels is the first that is 0, counted from 1."""
        if not min(self.shape):
            return jnp.zeros(0, self.dtype)
        factor, arrays = parts("QRFactor.diagonal", self)
        return factor.diagonal(*arrays)

    @_compat.api_boundary
    def multiply(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """op(Q) b, of b's shape.

        Args:
            b: (m,) or (m, nrhs), of the factor's dtype. Every device holds all of it.
            trans: 0 or "N" for Q b, 1 or "T" for Q^T b, 2 or "C" for Q^H b.

        Cost: 4 m k nrhs multiplications and additions over all ranks (four times as many when
        complex).

        Raises:
            TypeError: b is no array, or has another dtype than the factor.
            ValueError: shapes don't fit, another ``trans``, or a call inside ``shard_map``.
            NotImplementedError: the factor is being differentiated, and not ``b`` alone: A
                determines the first k columns of Q alone. Products with `q` have a derivative.
        """
        return self._apply("QRFactor.multiply", "Q", b, self._multiply, trans)

    @_compat.api_boundary
    def solve(self, b: MatrixLike, trans: Trans = 0) -> Array:
        """The solution of a problem with a tall A, m >= n, of full rank.

        Args:
            b: of the factor's dtype; every device holds all of it. With ``trans`` 0 (m,) or
                (m, nrhs), else (n,) or (n, nrhs).
            trans: 0 or "N": the x, with n rows, of least norm(b - A x); 1 or "T": the x of least
                norm, with m rows, of those with A^T x = b; 2 or "C": that of A^H x = b.

        Returns:
            x, the same on all devices. Where A hasn't full rank it has infinity or NaN, or is
            large.

        Cost: 4 m n nrhs + n^2 nrhs multiplications and additions over all ranks (four times as many
        when complex). Derivatives are those of the normal equations, by the implicit function
        theorem; the factorization isn't differentiated.

        Raises:
            TypeError: b is no array, or has another dtype than the factor.
            ValueError: m < n (factor the adjoint of A, and pass ``trans="C"``), shapes don't fit,
                another ``trans``, or a call inside ``shard_map``.
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
        dtype = getattr(self.tiles, "dtype", None)
        return (
            f"QRFactor(shape={self.shape}, dtype={dtype}, tile={self.tile}, "
            f"mesh={dict(self.mesh.shape)}, rows over {self.layout.rows}, "
            f"precision={self.precision!r})"
        )


@programs.cache_plans
def _check_right_hand_sides(arrays, name, rows, dtype):
    """Raises if the array isn't one of right-hand sides with so many rows."""
    layouts.refuse_manual_axes(name)
    checks.array(name, "b", arrays[0], checks.ALL)
    like = jax.ShapeDtypeStruct((rows, 0), dtype)
    checks.right_hand_side(name, like, arrays[0], checks.ALL, False)
    return lambda b: None


def pack(call, values):
    """The factor, of a call and its results."""
    return _pack(call, values, call.shape)


def _pack_without(call, values):
    """The factor without taus, and with the products V^H V in place of T."""
    tiles, overflow, grams, status = values
    return _pack(call, (tiles, overflow, None, grams, status), call.shape)


def _refuse(arguments):
    def derivative(primals, tangents):
        raise NotImplementedError(
            "QRFactor.from_packed: h is being differentiated, and reflectors have no derivative "
            "here; differentiate geqrf(a), whose q, r and solve have one"
        )

    return derivative


def pack_transposed(call, values):
    """The same of a matrix whose rows are A's columns."""
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
    """(`qr_operations.QR`, the arrays) of a factor."""
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
