"""`jaxmg.linalg.qr`, and functions that other modules use for their QR decompositions."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call.arguments import matrix_spec
from jaxmg._host import passes
from jaxmg._host.tiles import Tiles
from jaxmg._layouts import exporting, shardings
from jaxmg._linalg import compositions
from jaxmg._matrices import products
from jaxmg._qr import geqrf, stacks, tall, tall_qr
from jaxmg._stacks import library, scaling
from jaxmg._transform import derivatives
from jaxmg._types import AnyMatrixLike, Else, MeshLike

# The modes by NumPy's and SciPy's names.
_MODES = {
    "reduced": "reduced", "economic": "reduced", "r": "r", "complete": "complete",
    "full": "complete", "raw": "raw",
}  # fmt: skip
# Up to this order replicated matrices such as R may be larger than a device's rows of A.
SMALL = 4096
# CPU devices factor tall matrices with more columns than this by tile columns.
_LEAST_BY_TILES = 512

_Reduced: TypeAlias = Literal["reduced", "economic", "complete", "full"]


@exporting.named_tuple
class QRResult(NamedTuple):
    """Holds the results of `qr`."""

    Q: jax.Array
    R: jax.Array


@overload
def qr(
    a: AnyMatrixLike, mode: _Reduced = "reduced", *, pivoting: Literal[False] = False,
    overwrite_a: bool = False, lwork: int | None = None, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None, memory: None = None,
) -> QRResult: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike | Tiles, mode: Literal["r"], *, pivoting: Literal[False] = False,
    overwrite_a: bool = False, lwork: int | None = None, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None, memory: float | None = None,
) -> Array: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike, mode: Literal["raw"], *, pivoting: Literal[False] = False,
    overwrite_a: bool = False, lwork: int | None = None, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None, memory: None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike, mode: Literal["reduced", "economic"] = "reduced", *, pivoting: Literal[True],
    overwrite_a: bool = False, lwork: int | None = None, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None, memory: None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike | Tiles, mode: Literal["r"], *, pivoting: Literal[True],
    overwrite_a: bool = False, lwork: int | None = None, check_finite: bool = True,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None, memory: float | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike | Tiles | Else, mode: _Reduced | Literal["r", "raw"] | Else = "reduced", *,
    pivoting: bool | Else = False, overwrite_a: bool | Else = False,
    lwork: int | None | Else = None, check_finite: bool | Else = True,
    mesh: MeshLike | None | Else = None,
    matrix_specs: PartitionSpec | None | Else = None, in_specs: PartitionSpec | None | Else = None,
    memory: float | None | Else = None,
) -> QRResult | Array | tuple[Array, ...]: ...  # fmt: skip


@_compat.overloaded_boundary
def qr(
    a: AnyMatrixLike | Tiles,
    mode: str = "reduced",
    *,
    pivoting: bool = False,
    overwrite_a: bool = False,
    lwork: int | None = None,
    check_finite: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
    memory: float | None = None,
) -> QRResult | Array | tuple[Array, ...]:
    """Computes the QR decomposition of any matrix, as `jax.numpy.linalg.qr`.

    Args:
        a: (m, n), sharded by rows. ``a`` is tall if m >= P k on P devices, k = min(m, n). The
            rows of a tall ``a`` don't move, with few exceptions on CPU devices.
        mode: "reduced" (SciPy's "economic"), "r", "complete" (SciPy's "full") or "raw". In NumPy
            and `jax.numpy` "full" is a deprecated name of "reduced".
        pivoting: Whether to pivot columns, as `scipy.linalg.qr`: each step takes the remaining
            column of largest norm. Requires mode "reduced" or "r", and a tall ``a`` or k <= 4096.
        overwrite_a, lwork, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.
        memory: As in `lstsq`, which also says which ``a`` passes through the devices. Only R of it
            can be computed (mode "r").

    Returns:
        A `QRResult` (Q, R), R for "r", or (h, taus) for "raw"; with ``pivoting`` (Q, R, p) or (R,
        p).

        - Q is (m, k), of a's dtype and sharding; for "complete" it is (m, m), and R (m, n).
        - R is (k, n), upper triangular; replicated if ``a`` is tall, else sharded like ``a``. Its
          diagonal is real and nonnegative; JAX's may be negative.
        - h, (n, m), has LAPACK's Householder vectors, transposed; taus, (k,), are their factors.
        - p, (n,), int32, has ``a[:, p] = Q R``.

    Q is orthogonal to rounding for every ``a``. A tall ``a`` is factored by CholeskyQR2, with a
    shift if ``a`` is ill-conditioned, or by TSQR if it is nearly singular; the choice is made on
    the devices. Other matrices are factored by Householder reflectors, as in `jaxmg.geqrf`.
    docs/howto/least_squares.md has conditions and exceptions.

    Derivatives are JAX's: Q and R have derivatives if the first k columns of ``a`` have full rank;
    "raw" has none, nor has "complete" with m > n.

    Cost: 4 m n^2 flops over all ranks for CholeskyQR2, 6 m n^2 with a shift, at least 8 m n^2 for
    TSQR. Other matrices cost as much as `jaxmg.geqrf`, and as much again for Q. Memory: twice Q,
    and a few matrices of n x n on each device; TSQR takes P n^2.

    Raises:
        NotImplementedError: ``pivoting`` with another mode, or with an ``a`` that is neither tall
            nor small.
        TypeError, ValueError, RuntimeError: As `jaxmg.lu_factor`. An invalid ``mode`` raises a
            ValueError.

    Examples:
        >>> q, r = jaxmg.linalg.qr(a)
        >>> r = jaxmg.linalg.qr(jnp.concatenate([r, more]), mode="r")  # appends rows
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.qr", matrix_specs, in_specs)
    if mode not in _MODES:
        raise ValueError(
            f"linalg.qr: mode must be one of {', '.join(map(repr, _MODES))}; got {mode!r}"
        )
    how, pivoting = _MODES[mode], bool(pivoting)
    if how == "r":
        request = passes.choose("linalg.qr", a, None, mesh, matrix_specs, memory)
        if request is not None:
            return _of_pass(request, pivoting)
    elif memory is not None or isinstance(a, Tiles):
        raise ValueError(
            f"linalg.qr: memory= and jaxmg.Tiles are for mode='r'; got mode={mode!r}. Q is as "
            "large as a; pass an array without memory="
        )
    if pivoting and how not in ("reduced", "r"):
        raise NotImplementedError(
            f"linalg.qr: pivoting=True works only with mode 'reduced' or 'r', not with {mode!r}"
        )
    m, n = a.shape[-2:] if getattr(a, "ndim", 0) > 1 else (0, 0)
    program = pivoted if pivoting else packed if how == "raw" else decomposed
    shapes = Shapes(m, n, how, pivoting)
    results = compositions.run((a,), "qr", program, shapes, mesh, matrix_specs, how)
    if how == "r" and not pivoting:
        return results
    return tuple(results) if pivoting or how == "raw" else QRResult(*results)


def _of_pass(request, pivoting):
    """Returns R, or (R, p), of a matrix that passes through the devices."""
    small = passes.small_problem(request)
    with _compat.default_promotion():
        layout = small.layout
        found = qr(small.r, "r", pivoting=pivoting, mesh=layout.mesh, matrix_specs=layout.row_spec)
        r, *order = found if pivoting else (found,)
        found = [_times_power(r, small.e), *order]
    replicated = NamedSharding(request.mesh, P())
    found = tuple(jax.device_put(each, replicated) for each in found)
    return found if pivoting else found[0]


_times_power = jax.jit(scaling.times_power)


def fits(m, n, ranks):
    """Returns whether every device may hold a matrix of order min(m, n), such as R."""
    return min(m, n) <= SMALL or tall.fits(m, n, ranks)


def check_fits(name, m, n, ranks):
    """Raises an error unless `fits`."""
    k = min(m, n)
    if not fits(m, n, ranks):
        raise NotImplementedError(
            f"linalg.{name}: a, of shape ({m}, {n}), is neither tall nor small: on {ranks} devices "
            f"it must have at least {ranks * k} rows, or at most {SMALL} rows or columns. Pass a "
            f"mesh= of fewer devices, or use jax.numpy.linalg.{name} for a on one device"
        )


def by_tiles(m, n, ranks):
    """Returns whether a matrix (m, n) is factored by tile columns, and not by its rows.

    This holds for matrices that aren't tall, and on a single device for large matrices unless they
    are much taller than wide. R takes 2 m n^2 - 2/3 n^3 operations by Householder reflectors, and
    about 4 m n^2 by CholeskyQR2, which is faster if panels or communication dominate.
    """
    k = min(m, n)
    return k > 0 and (not tall.fits(m, n, ranks) or (ranks == 1 and k > SMALL and m < 4 * k))


def _is_faster_by_tiles(m, n, layout):
    """Returns whether tile columns are faster than rows for a tall matrix (m, n).

    They are on CPU devices of one process: XLA's products run at half the speed of LAPACK's there,
    and the devices exchange tiles in memory. A matrix that is much taller than wide has too few
    tiles.
    """
    k, alone = min(m, n), len(set(layout.processes)) <= 1
    return layout.platform == "cpu" and alone and k > _LEAST_BY_TILES and m < 16 * k


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Returns the shapes of `qr`'s results for a layout, for `compositions.run`."""

    m: int
    n: int
    mode: str
    pivoting: bool

    def __call__(self, layout):
        m, n = self.m, self.n
        k = min(m, n)
        spread = by_tiles(m, n, layout.ranks) and not self.pivoting
        r = (k, n) if spread else "small"
        shapes = {
            "reduced": ((m, k), r),
            "r": (r,),
            "complete": ((m, m), (m, n)),
            "raw": ((n, m), "small"),
        }[self.mode]
        return shapes + ("small",) * self.pivoting


def reduced(call, a) -> tuple[Any, Any]:
    """Returns (Q, R) of any matrix. Scales columns by powers of two, which doesn't change Q."""
    a, up = scaling.scaled(a, 0)
    q, r = _reduced(call, a)
    return q, scaling.times(r, up)


def _reduced(call, a) -> tuple[Any, Any]:
    m, n = a.shape
    k = min(m, n)
    if not k:
        return jnp.zeros((m, 0), a.dtype), jnp.zeros((0, n), a.dtype)
    spread = by_tiles(m, n, call.layout.ranks) or _is_faster_by_tiles(m, n, call.layout)
    if spread and not tall.is_whole(m, k, call.layout):
        factor, units, r = factor_and_r(call, a)
        r = r if spread else shardings.constrain(r, call.layout, PartitionSpec())
        return factor.q() * units, r
    if n > k:
        a = _with_whole_rows(a, call.layout)
    factors: Any = tall.qr(a[:, :k], call.layout)
    q, r = factors
    if n > k:
        r = jnp.concatenate([r, tall.adjoint_product(call.layout, q, a[:, k:])], axis=1)
    return q, r


def _with_whole_rows(a, layout):
    """Gathers columns that explicit axes shard, because JAX can't slice them."""
    if not layout.explicit:
        return a
    divides = a.shape[0] % layout.ranks == 0
    return shardings.constrain(a, layout, layout.row_spec if divides else PartitionSpec())


def compute_stacks(platform, options, a):
    """Computes `decomposed` of each matrix of a stack."""
    (mode,) = options
    if mode == "complete" and a.shape[-2] > a.shape[-1]:
        q, r = library.qr(a, mode="complete")
    elif mode == "r":
        q, r = None, stacks.upper_factor(platform, a)
    else:
        q, r = stacks.reduced_qr(platform, a)
    diagonal = jax.lax.stop_gradient(jnp.diagonal(r, axis1=-2, axis2=-1)).real
    units = jnp.where(diagonal < 0, -1, 1).astype(r.dtype)
    units = jnp.pad(units, ((0, 0), (0, r.shape[-2] - units.shape[-1])), constant_values=1)
    r = units[:, :, None] * r
    return (r,) if q is None else (q * units[:, None, :], r)


@compositions.program(
    any_shape=True,
    compute_stacks=compute_stacks,
    takes=lambda mode: mode != "raw",
    by=stacks.QR,
)
def decomposed(call, a):
    (mode,) = call.attributes
    if mode == "r":
        return reduced(call, a)[1:]
    if mode == "reduced":
        return reduced(call, a)
    return _raw(call, a) if mode == "raw" else _complete(call, a)


# Reflectors stay float32, because rounded ones aren't orthogonal.
packed = dataclasses.replace(decomposed, single=(0, 1))


def _factor(call, a):
    return geqrf.geqrf(a, **call.layout.where)


def factor_and_r(call, a):
    """Returns (the factor, the signs of its R's diagonal, R with a nonnegative diagonal)."""
    factor = _factor(call, a)
    units = _units(factor)
    return factor, units, units[:, None] * factor.r


def _units(factor):
    """Returns the signs of R's diagonal, which is real."""
    diagonal = jax.lax.stop_gradient(factor.diagonal())
    return jnp.where(diagonal.real < 0, -1, 1).astype(diagonal.dtype)


def _raw(call, a):
    """Returns LAPACK's packed Householder vectors and R, transposed, and the scalars tau."""
    h, taus = _factor(call, a).packed()
    return (products.transposed(h, call.layout) if a.size else h.T), taus


def _complete(call, a):
    """Returns (Q, R) with a square Q."""
    m, n = a.shape
    if m <= n:
        return reduced(call, a)
    if not n:
        return jnp.eye(m, dtype=a.dtype), a
    a, up = scaling.scaled(a, 0)
    factor = _factor(call, a)
    units = jnp.concatenate([_units(factor), jnp.ones(m - n, a.dtype)])
    r = units[:, None] * scaling.upper(factor.packed()[0])
    return factor.q("complete") * units, scaling.times(r, up)


@compositions.program(any_shape=True)
def pivoted(call, a):
    """Computes (Q, R, p), or (R, p) for mode "r"."""
    (mode,) = call.attributes
    results = _pivoted(call, a)
    return results[1:] if mode == "r" else results


def _pivoted(call, a):
    """Returns (Q, R, p). The derivative is that of the QR of A[:, p], with a constant p."""

    m, n = a.shape
    check_fits("qr", m, n, call.layout.ranks)

    def value(a):
        a, up = scaling.scaled(a)
        q, r = reduced(call, a)
        if not q.shape[1]:
            return q, r, jnp.arange(r.shape[1], dtype=jnp.int32)
        order, inner, r = tall.small(call.layout, _pivoted_triangle, r, library=True)
        r = scaling.times(r, up)
        return tall.times(call.layout, q, inner), r, order

    def rule(primals, tangents):
        order = _pivoted(call, *primals)[2]

        def reduced_in_order(a):
            return reduced(call, _with_whole_rows(a, call.layout)[:, order])

        (q, r), moved = jax.jvp(reduced_in_order, primals, tangents)
        return (q, r, order), (*moved, derivatives.still(order))

    return derivatives.differentiable(value, rule, a)


def _pivoted_triangle(a):
    """Returns (p, Q, R) with Q R = A[:, p] for a matrix that is whole on the device."""
    order = tall_qr.pivot_order(a)
    return order, *tall_qr.with_positive_diagonal(*library.qr(a[:, order]))[:2]
