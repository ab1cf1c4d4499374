"""`jaxmg.linalg.qr`, and what is made of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._routines import jax_linalg, tall, tall_qr
from jaxmg._transform import derivatives
from jaxmg._types import AnyMatrixLike, MeshLike

# NumPy's names of the modes, and SciPy's.
_MODES = {
    "reduced": "reduced", "economic": "reduced", "r": "r", "complete": "complete",
    "full": "complete", "raw": "raw",
}  # fmt: skip
# Up to this order small matrices, which every device has, may be larger than its rows of A.
SMALL = 4096

_Reduced: TypeAlias = Literal["reduced", "economic", "complete", "full"]


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: jax.Array
    R: jax.Array


@overload
def qr(
    a: AnyMatrixLike, mode: _Reduced = "reduced", *, pivoting: Literal[False] = False,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> QRResult: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike, mode: Literal["r"], *, pivoting: Literal[False] = False,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> Array: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike, mode: Literal["raw"], *, pivoting: Literal[False] = False,
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike, mode: Literal["reduced", "economic"] = "reduced", *, pivoting: Literal[True],
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def qr(
    a: AnyMatrixLike, mode: Literal["r"], *, pivoting: Literal[True],
    mesh: MeshLike | None = None, matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@_compat.api_boundary
def qr(
    a: AnyMatrixLike,
    mode: str = "reduced",
    *,
    pivoting: bool = False,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> QRResult | Array | tuple[Array, ...]:
    """The QR decomposition of a tall matrix, whose rows stay where they are: `jax.numpy.linalg.qr`.

    Args:
        a: (m, n), sharded by rows. With k = min(m, n) and P devices either m >= P k, or k <= 4096.
        mode: "reduced" (SciPy's "economic"), "r", "complete" ("full") or "raw". The last two
            are for m <= 4096: every device computes them.
        pivoting: take the longest column that is left in each step, as `scipy.linalg.qr` does, with
            mode "reduced" or "r".
        mesh, matrix_specs: as for `jaxmg.lu_factor`.

    Returns:
        `QRResult`: Q (m, k), with orthonormal columns, of a's dtype and sharding, and R (k, n),
        upper triangular, the same on all devices; with "r" R alone. The diagonal of R is real and
        not negative, where that of JAX may be negative. "complete": Q (m, m) and R (m, n). "raw":
        LAPACK's Householder vectors, transposed (n, m), and their factors (k,), with signs of
        LAPACK's. With ``pivoting`` (Q, R, p), or (R, p), with ``a[:, p] = Q R``: p (n,), int32.

    Q is orthogonal to rounding for every ``a``. CholeskyQR2 is tried first, and a device looks
    whether it is good enough, as it is up to a condition of about 1e8 (3e3 in single precision) of
    ``a`` with columns of one length. If not, it is with a shift before, up to about 1e15 (1e7), and
    then by TSQR, Householder's QR of each device's rows and of their R's.

    Cost: 4 m n^2 multiplications and additions over all ranks, in products and triangular solves; 6
    and then 8 and more where that doesn't do. Memory: Q twice, and a few matrices of n x n on each
    device; P n^2 with TSQR.

    Raises:
        NotImplementedError: ``a`` is neither tall nor small; ``pivoting`` with another mode.
        ValueError: another ``mode``; and all that `jaxmg.lu_factor` raises.

    Examples:
        >>> q, r = jaxmg.linalg.qr(a)
        >>> r = jaxmg.linalg.qr(jnp.concatenate([r, more]), mode="r")  # more rows came
    """
    if mode not in _MODES:
        raise ValueError(
            f"linalg.qr: mode must be one of {', '.join(map(repr, _MODES))}; got {mode!r}"
        )
    how, pivoting = _MODES[mode], bool(pivoting)
    if pivoting and how not in ("reduced", "r"):
        raise NotImplementedError(
            f"linalg.qr: pivoting=True is there for mode 'reduced' and 'r', not for {mode!r}"
        )
    m, n = a.shape[-2:] if getattr(a, "ndim", 0) > 1 else (0, 0)
    k = min(m, n)
    shapes = {
        "reduced": ((m, k), "small"),
        "r": ("small",),
        "complete": ((m, m), (m, n)),
        "raw": ((n, m), "small"),
    }[how] + ("small",) * pivoting
    program = pivoted if pivoting else decomposed
    results = jax_linalg.run((a,), "qr", program, shapes, mesh, matrix_specs, how)
    if len(shapes) == 1:
        return results
    return tuple(results) if pivoting or how == "raw" else QRResult(*results)


def check_fits(name, m, n, ranks):
    """Raises where what every device has of a matrix (m, n) is more than its rows are."""
    k = min(m, n)
    if k > SMALL and m < ranks * k:
        raise NotImplementedError(
            f"linalg.{name}: a, of shape ({m}, {n}), is neither tall nor small: on {ranks} devices "
            f"it needs {ranks * k} rows, or {SMALL} columns or rows at most. Pass fewer devices as "
            f"mesh=, or for a on one device use jax.numpy.linalg.{name}"
        )


def reduced(call, a) -> tuple[Any, Any]:
    """(Q, R) of any matrix."""
    m, n = a.shape
    k = min(m, n)
    if not k:
        return jnp.zeros((m, 0), a.dtype), jnp.zeros((0, n), a.dtype)
    check_fits("qr", m, n, call.layout.ranks)
    q, r = tall.qr(a[:, :k], call.layout)
    if n > k:
        r = jnp.concatenate([r, tall.adjoint_product(call.layout, q, a[:, k:])], axis=1)
    return q, r


@jax_linalg.program_of_any_shape
def decomposed(call, a):
    (mode,) = call.attributes
    if mode == "r":
        return reduced(call, a)[1:]
    return reduced(call, a) if mode == "reduced" else _on_every_device(call, a, mode)


def _on_every_device(call, a, mode):
    """The results of JAX's own QR of a matrix that is gathered."""
    m, n = a.shape
    if m > SMALL:
        raise NotImplementedError(
            f"linalg.qr: mode {mode!r} is there for at most {SMALL} rows; a has shape ({m}, {n}). "
            "Mode 'reduced' gives the first min(m, n) columns of Q"
        )
    if not a.size:
        raw = jnp.zeros((n, m), a.dtype), jnp.zeros(0, a.dtype)
        return raw if mode == "raw" else (jnp.eye(m, dtype=a.dtype), a)

    def compute(a):
        if mode == "raw":
            return tuple(jnp.linalg.qr(a, mode=mode))
        return tall_qr.with_positive_diagonal(*jnp.linalg.qr(a, mode=mode))[:2]

    return tall.small(call.layout, compute, a)


@jax_linalg.program_of_any_shape
def pivoted(call, a):
    """(Q, R, p), or (R, p)."""
    (mode,) = call.attributes
    results = _pivoted(call, a)
    return results[1:] if mode == "r" else results


def _pivoted(call, a):
    """(Q, R, p): the derivative is that of a QR with its columns in this order."""

    def value(a):
        q, r = reduced(call, a)
        if not q.shape[1]:
            return q, r, jnp.arange(r.shape[1], dtype=jnp.int32)
        order = tall.small(call.layout, tall_qr.pivot_order, r)
        inner, r = tall.small(call.layout, _householder, r[:, order])
        return tall.times(call.layout, q, inner), r, order

    def rule(primals, tangents):
        order = _pivoted(call, *primals)[2]
        (q, r), moved = jax.jvp(lambda a: reduced(call, a[:, order]), primals, tangents)
        return (q, r, order), (*moved, derivatives.still(order))

    return derivatives.differentiable(value, rule, a)


def _householder(a):
    """The QR of a matrix that a device has whole."""
    return tall_qr.with_positive_diagonal(*jnp.linalg.qr(a))[:2]
