"""A Cholesky factor that outlives the call that made it."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal, SupportsIndex, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import backends, blocks, checks, ffi, layouts, record, results
from jaxmg._factors import operations, pickling, refined_factor, refinement, scaling
from jaxmg._transform import at_once, derivatives, hermitian
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike, Refine, Specs, Trans

# scipy.linalg.solve_triangular's names of what is done to L.
_TRANS = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tiles", "overflow", "_log_det", "status"],
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

    To save a factor, pickle it, for as many devices of the same platform in one process; keep its
    leaves (orbax, onto the same mesh); or save U, for any number of devices:

        >>> numpy.savez(file, u=factor.upper())
        >>> factor = jaxmg.CholeskyFactor.from_upper(numpy.load(file)["u"], mesh=mesh)

    Attributes:
        tiles: (P ceil(n / P), n) on P ranks, sharded by rows: the factor as the engine has it.
        overflow: (P T, n), sharded likewise, for tiles of T rows of which one on each rank reaches
            past ``tiles``; None where there is none. Neither means anything without the rest.
        status: int32 scalar: 0, or LAPACK's info, as of `potrs`.
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
                need not have as many devices as that which U comes from.

        Returns:
            A `CholeskyFactor`. Its ``log_det`` is that of U^H U. Its ``status`` is 0, or -1 where u
            is a lower triangular factor, or the first row (from 1) whose diagonal entry isn't
            positive. Where it isn't 0, all that the factor gives is NaN.

        Raises:
            TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`.
        """
        name = _FROM_UPPER.name
        checks.array(name, "u", u, checks.ALL)
        products = checks.precision(name, precision, u.dtype, "native")
        factor = _FROM_UPPER.plain((u,), T_A, mesh, matrix_specs, in_specs, pad, "native", donate)
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
        return cho_solve(self, b)

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
        by_transposition = {"N": operations.FORWARD, "C": operations.BACKWARD}
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
        by_transposition = {"N": operations.LOWER, "C": operations.LOWER_H}
        return _apply("CholeskyFactor.matmul", self, b, by_transposition, trans)

    @_compat.api_boundary
    def logdet(self) -> Array:
        """log(det(A)), a real scalar; NaN where A wasn't positive definite.

        Its derivative takes the inverse: the cost and the memory of `inv`.
        """
        kept, arrays = _parts("CholeskyFactor.logdet", self)
        return kept.logdet(self._log_det, *arrays)

    @property
    def log_det(self) -> Array:
        """log(det(A)): `logdet`."""
        return self.logdet()

    @_compat.api_boundary
    def diagonal(self) -> Array:
        """The diagonal of L, and of U: (n,), real, the same on all devices."""
        kept, arrays = _parts("CholeskyFactor.diagonal", self)
        return kept.diagonal(*arrays)

    @_compat.api_boundary
    def inv(self) -> Array:
        """The inverse of A: (n, n), full and Hermitian, sharded like A; see `potri`.

        Cost: 2 n^3 / 3 multiplications and additions over all ranks (four times as many when
        complex). Memory: the result, and a few panels of n x T per rank; the result takes the
        factor's place where that is donated to a ``jit`` around it.
        """
        kept, arrays = _parts("CholeskyFactor.inv", self)
        return kept.invert(*arrays)

    @_compat.api_boundary
    def upper(self) -> Array:
        """U, (n, n), upper triangular with zeros below its diagonal, sharded like A.

        Memory: the result, which takes the factor's place where that is donated, and a few tiles.
        """
        kept, arrays = _parts("CholeskyFactor.upper", self)
        return kept.upper(*arrays)

    def __repr__(self) -> str:
        dtype = getattr(self.tiles, "dtype", None)
        return (
            f"CholeskyFactor(n={self.n}, dtype={dtype}, tile={self.tile}, "
            f"mesh={dict(self.mesh.shape)}, rows over {self.layout.rows}, "
            f"precision={self.precision!r})"
        )


@overload
def cho_factor(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, precision: PrecisionLike | None = None, refine: None = None,
    check: bool = False,
) -> CholeskyFactor: ...  # fmt: skip


@overload
def cho_factor(
    a: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, pad: bool = True, *, in_specs: Specs | None = None,
    donate: bool = False, precision: Literal["highest"] | None = None, refine: Refine,
    check: bool = False,
) -> refined_factor.RefinedFactor: ...  # fmt: skip


@_compat.api_boundary
def cho_factor(
    a: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    donate: bool = False,
    precision: PrecisionLike | None = None,
    refine: Refine | None = None,
    check: bool = False,
) -> CholeskyFactor | refined_factor.RefinedFactor:
    """The Cholesky factor of a Hermitian positive definite matrix, to be kept and used again.

    `potrs` is faster for right-hand sides that are there at once, and needs no second matrix; it
    has the same factorization and its accuracy.

    Args:
        a: (n, n), Hermitian positive definite, float32, float64, complex64 or complex128; a JAX or
            NumPy array, sharded, replicated or on one device. Only the upper triangle is read.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        pad: as for `potrs`.
        in_specs: another name of ``matrix_specs``.
        donate: the factor takes a's own buffer, and ``a`` is deleted; ignored under an outer
            ``jit``, whose own ``donate_argnums`` decides.
        precision: as for `potrs`, of the factorization and of `inv`.
        refine: as for `potrs`: the factor is one in lower precision, and is kept with ``a``, for
            solutions that are refined on it. The result is a `RefinedFactor`, which solves and has
            nothing else; ``donate`` doesn't save memory then.
        check: as for `potrs`.

    Returns:
        A `CholeskyFactor`, or with ``refine`` a `RefinedFactor`. Where ``a`` isn't positive
        definite, its ``status`` isn't 0 and it is NaN.

    Cost: n^3 / 3 multiplications and additions over all ranks (four times as many when complex).
    Memory: the factor, which is as large as ``a``, and a few panels of n x T_A per rank.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`. A call inside
            ``shard_map`` is a ValueError.

    Examples:
        >>> factor = jaxmg.cho_factor(a)
        >>> x = jaxmg.cho_solve(factor, b)
        >>> sample = mean + factor.matmul(jax.random.normal(key, (n,), a.dtype))
    """
    if refine is not None:
        return refined_factor.cho_factor(
            a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check
        )
    return _POTRF.plain(
        (a,), T_A, mesh, matrix_specs, in_specs, pad, "native", donate, check=check,
        precision=precision,
    )  # fmt: skip


def factored(a, chosen):
    """The factor of a matrix that is given to another routine, as that call would have it."""
    if chosen.inside is not None:
        return _factored_inside(blocks.to_rows(a, chosen.inside.layout), chosen.inside)
    return _POTRF.plain(
        (a,), chosen.T_A, chosen.mesh, chosen.spec, None, chosen.pad, "native", chosen.donate,
        caller=chosen.caller, precision=dict(chosen.options)["precision"],
    )  # fmt: skip


def _factored_inside(rows, call):
    """The factor of a matrix of which a rank has these rows, inside a shard_map of the caller's.

    Args:
        call: that of the other routine.
    """
    layout = call.layout.by_rows
    products = dict(call.attributes).get("products", checks.DEFAULT)
    backend = backends.resolve(_POTRF.native_name, layout, "native", rows)
    call = _POTRF.described(layout, rows, call.tile, backend, {"products": products})

    def rule(primals, tangents):
        factor = differentiable(*primals)
        return factor, _tangent(factor, tangents[0])

    def run(rows):
        return _keep(call, *_POTRF.on_rows(call, rows))

    def differentiable(rows):
        return derivatives.differentiable(run, rule, rows)

    return differentiable(rows)


@_compat.api_boundary
def cho_solve(factor: CholeskyFactor | refined_factor.RefinedFactor, b: MatrixLike) -> Array:
    """Solves A x = b with a factor of A that `cho_factor` made.

    Args:
        factor: a `CholeskyFactor` of order n, or a `RefinedFactor`.
        b: (n,) or (n, nrhs), of the factor's dtype; a JAX or NumPy array. Every device holds all of
            it during the solve.

    Returns:
        x, of b's shape, dtype and sharding, as for `potrs`; NaN where ``factor.status`` isn't 0.

    Cost: 2 n^2 nrhs multiplications and additions over all ranks (four times as many when complex).

    Raises:
        TypeError: ``factor`` is none, b is no array, or has another dtype than the factor.
        ValueError: shapes don't fit, or the call is inside ``shard_map``.

    Examples:
        >>> factor = jaxmg.cho_factor(a)
        >>> for b in measurements:
        ...     x = jaxmg.cho_solve(factor, b)
    """
    if isinstance(factor, refined_factor.RefinedFactor):
        return factor.solve(b)
    if not isinstance(factor, CholeskyFactor):
        raise TypeError(
            "cho_solve: factor must be a jaxmg.CholeskyFactor, as jaxmg.cho_factor makes it; got "
            f"{type(factor).__name__}"
        )
    return _apply("cho_solve", factor, b, {"N": operations.SOLVE}, 0)


def _apply(routine, factor, b, by_transposition, trans):
    """The operation that ``by_transposition`` has for ``trans``, applied to b."""
    how = _transposition(trans)
    if how is None:
        raise ValueError(
            f"{routine}: trans must be 0 or 'N' (L), 1 or 'T' (its transpose), or 2 or 'C' (its "
            f"conjugate transpose); got {trans!r}"
        )
    if how == "T" and jnp.issubdtype(factor.dtype, jnp.complexfloating):
        checks.array(routine, "b", b, checks.ALL)  # L^T b = conj(L^H conj(b))
        return jnp.conj(_apply(routine, factor, jnp.conj(b), by_transposition, "C"))
    operation = by_transposition["C" if how == "T" else how]
    kept, arrays = _parts(routine, factor)
    return kept.apply(operation, *arrays, b)


def _transposition(trans):
    """ "N", "T" or "C" by one of scipy.linalg.solve_triangular's names for it; else None."""
    if not isinstance(trans, str):
        try:
            trans = checks.index(trans)
        except TypeError:
            return None
    return _TRANS.get(trans)


def _parts(routine, factor):
    """A factor as the native code takes it: what is known of it, and its arrays."""
    checks.usable(routine, "factor", factor.tiles, factor.overflow, factor._log_det)
    overflow = () if factor.overflow is None else (factor.overflow,)
    kept = operations.Kept(
        routine,
        factor.layout,
        factor.n,
        factor.tile,
        bool(overflow),
        checks.PRODUCTS[factor.precision],
    )
    return kept, (factor.tiles, *overflow)


def _keep(call, tiles, overflow, log_det, status):
    """The factor that a call made."""
    products = dict(call.attributes).get("products", checks.DEFAULT)
    return CholeskyFactor(
        tiles, overflow if call.overflow else None, log_det, status, call.layout,
        tiles.shape[-1], call.tile, checks.precision_of(products),
    )  # fmt: skip


def _tangent(factor, a_dot):
    """The tangent of a factor: the rows of that of A (operations.py)."""
    tiles = hermitian.rows(factor.layout, a_dot) if factor.n else a_dot
    tiles = layouts.constrain_like(tiles, factor.tiles)
    return dataclasses.replace(derivatives.still(factor), tiles=tiles)


def _factor_rule(routine, chosen):
    def rule(primals, tangents):
        factor = routine.run(primals, chosen)
        return factor, _tangent(factor, tangents[0])

    return rule


def _from_upper_rule(routine, chosen):
    def rule(primals, tangents):
        factor = routine.run(primals, chosen)
        if not factor.n:
            return factor, _tangent(factor, tangents[0])
        layout = factor.layout
        u, u_dot = (
            hermitian.upper(layout, hermitian.rows(layout, value))
            for value in (factor.upper(), tangents[0])
        )
        half = hermitian.adjoint_times(layout, u, u_dot)
        return factor, _tangent(factor, half + hermitian.adjoint(layout, half))

    return rule


class _FromUpper(record.Routine):
    """Brings U into the engine's layout, or NaN in its place where the status isn't 0."""

    def call(self, call, place, u):
        log_det, status = _measure(call.layout, place, u)
        u = jnp.where(status[0] == 0, u, jnp.nan)
        tiles, overflow = ffi.call(
            f"jaxmg_{self.native_name}", call.layout, call.tile, call.backend,
            (refinement.after(place, log_det), u),
            tuple(result.native(call, u) for result in self.results[:2]),
            differing=2, n=u.shape[1],
        )  # fmt: skip
        return tiles, overflow, log_det, status


def _measure(layout, place, u):
    """(log(det(U^H U)), status), each of shape (1,), of a rank's rows of what should be U."""
    rows, n = u.shape
    row = place.reshape(2)[0] * rows + jnp.arange(rows)[:, None]
    column, some = jnp.arange(n), (scaling.magnitude(u) > 0) & (row < n)
    diagonal = jnp.take_along_axis(u, jnp.minimum(row, n - 1), 1)[:, 0].real
    sides = [jnp.any(some & side)[None] for side in (row < column, row > column)]
    part = jnp.concatenate([diagonal, *(side.astype(diagonal.dtype) for side in sides)])
    if layout.ranks > 1:
        part = refinement.gathered(part, layout, place)
    parts = part.reshape(layout.ranks, rows + 2)
    above, below = jnp.any(parts[:, rows:] > 0, axis=0)
    diagonal, denormal = scaling.lifted(parts[:, :rows].reshape(-1)[:n])
    unit = jnp.where(denormal, scaling.lowest_exponent(diagonal.dtype) * math.log(2), 0)
    positive = diagonal > 0
    status = jnp.where(jnp.all(positive), 0, 1 + jnp.argmin(positive))
    status = jnp.where(below & ~above, -1, status).astype(jnp.int32)
    log_det = 2 * jnp.sum(jnp.log(jnp.where(positive, diagonal, 1)) - unit)
    return jnp.where(status == 0, log_det, jnp.nan)[None], status[None]


_AT_ONCE = at_once.AtOnce(at_once.cho_factor, operations.ORDERS_AT_ONCE)
_POTRF = record.Routine(
    name="cho_factor",
    native="potrf",
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.RealNumber("log_det"),
        results.Status(),
    ),
    plain_gives=("tiles", "overflow", "log_det", "status"),
    options=(record.PRECISION,),
    keeps=_keep,
    rule=_factor_rule,
    together=lambda options: _AT_ONCE if at_once.has_plain_products(options) else None,
)
_FROM_UPPER = _FromUpper(
    name="CholeskyFactor.from_upper",
    native="factor_tiles",
    operands=("u",),
    results=_POTRF.results,
    plain_gives=_POTRF.plain_gives,
    keeps=_keep,
    rule=_from_upper_rule,
)
