"""`jaxmg.linalg.qr_multiply` and `householder_product`."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import blocks, checks, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._linalg import compositions, whole
from jaxmg._qr import linalg as qr_linalg
from jaxmg._qr import stacks, tall
from jaxmg._stacks import products, scaling
from jaxmg._transform import derivatives
from jaxmg._types import AnyMatrixLike, MeshLike


@_compat.api_boundary
def qr_multiply(
    a: AnyMatrixLike,
    c: AnyMatrixLike,
    mode: Literal["left", "right"] = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, Array]:
    """Computes R and a product with Q of a's QR decomposition, as `scipy.linalg.qr_multiply`.

    Args:
        a: (..., m, n), as in `qr`.
        c: Array to multiply. Every device holds all of it. With k = min(m, n): (k,) or (..., k, p)
            for "left", (m,) or (..., p, m) for "right". Leading dimensions broadcast against those
            of ``a``.
        mode: "left": Q c. "right": c Q. Q is (m, k), as in `qr`.
        pivoting: Must be False.
        conjugate: Whether to use conj(Q) in place of Q.
        overwrite_a, overwrite_c: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        (product, R). The product has the shape of NumPy's ``@``. R is as in `qr`.

    Cost: that of `jaxmg.geqrf` and 4 m k p flops, without forming Q; for a tall ``a`` that of `qr`
    and a product. Derivatives are those of `qr`.

    Raises:
        NotImplementedError: ``pivoting=True``.
        TypeError, ValueError, RuntimeError: As `qr`. An invalid ``mode`` or shapes that don't match
            raise a ValueError.

    Examples:
        >>> ctq, r = jaxmg.linalg.qr_multiply(a, c)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.qr_multiply", matrix_specs, in_specs)
    if pivoting:
        raise NotImplementedError(
            "linalg.qr_multiply: pivoting=True is not supported; call linalg.qr with pivoting=True "
            "and multiply by its Q"
        )
    return _multiply((a, c), mode, bool(conjugate), mesh, matrix_specs)


@programs.cache_plans
def _multiply(arrays, mode, conjugate, mesh, spec):
    (a, c), name = arrays, "linalg.qr_multiply"
    if mode not in ("left", "right"):
        raise ValueError(f"{name}: mode must be 'left' or 'right'; got {mode!r}")
    checks.array(name, "a", a, checks.ALL, (*checks.DTYPES, str(getattr(a, "dtype", ""))))
    checks.array(name, "c", c, checks.ALL, (*checks.DTYPES, str(getattr(c, "dtype", ""))))
    if a.ndim < 2 or c.ndim < 1:
        raise ValueError(
            f"{name}: a must be a matrix and c a matrix or a vector; they have shapes "
            f"{tuple(a.shape)} and {tuple(c.shape)}"
        )
    wanted = min(a.shape[-2:]) if mode == "left" else a.shape[-2]
    if c.shape[-2 if mode == "left" and c.ndim > 1 else -1] != wanted:
        raise ValueError(
            f"{name}: for mode {mode!r} and a of shape {tuple(a.shape)} c must have {wanted} "
            f"{'rows' if mode == 'left' else 'columns'}; it has shape {tuple(c.shape)}"
        )
    m, n = a.shape[-2:]
    shapes = _Shapes(m, n, "r", False)
    options = mode, conjugate
    return compositions.plan(
        arrays, "qr_multiply", multiplied, shapes, mesh, spec, *options, pack=_pair
    )


def _pair(*results):
    return results


class _Shapes(qr_linalg.Shapes):
    """Returns the shapes of `qr_multiply`'s results for a layout, for `compositions.plan`."""

    def __call__(self, layout):
        return "small", *super().__call__(layout)


def _multiply_stacks(platform, options, a, c):
    """Computes `multiplied` for a stack of matrices and a stack of matrices or vectors ``c``."""
    mode, conjugate = options
    factors: Any = qr_linalg.compute_stacks(platform, ("reduced",), a)
    q, r = factors
    q = q.conj() if conjugate else q
    vectors = c.ndim == 2
    if mode == "left":
        product = products.multiply(q, c[:, :, None] if vectors else c)
        return (product[:, :, 0] if vectors else product), r
    product = products.multiply(c[:, None] if vectors else c, q)
    return (product[:, 0] if vectors else product), r


@compositions.program(any_shape=True, compute_stacks=_multiply_stacks, by=stacks.QR)
def multiplied(call, a, c):
    """Returns (Q c or c Q, R)."""
    mode, conjugate = call.attributes
    left, vector = mode == "left", c.ndim == 1
    columns = c[:, None] if vector else c if left else c.T
    columns = columns.conj() if left and conjugate else columns

    def multiply(a, columns):
        return _product_and_r(call, a, columns, left, conjugate)

    product, r = scaling.homogeneous(multiply, 0, 1)(a, columns)
    product = product.conj() if left and conjugate else product
    return (product[:, 0] if vector else product if left else product.T), r


def _product_and_r(call, a, c, left, conjugate):
    """Returns (Q c, R) if ``left``, else (Q^T c, R), or (Q^H c, R) with ``conjugate``."""

    def by_q(a, c):
        q, r = qr_linalg.reduced(call, a)
        layout = call.layout
        if not (q.size and c.size):
            return jnp.zeros((q.shape[0 if left else 1], c.shape[1]), a.dtype), r
        if left:
            return blocks.replicate(tall.times(layout, q, c), layout), r
        return tall.adjoint_product(layout, q if conjugate else q.conj(), c), r

    m, n = a.shape
    k = min(m, n)
    tiled = qr_linalg.by_tiles(m, n, call.layout.ranks) and not tall.is_whole(m, k, call.layout)
    if not tiled or not c.size:
        return by_q(a, c)

    def by_reflectors(a, c):
        factor, units, r = qr_linalg.factor_and_r(call, a)
        if left:
            c = jnp.pad(units[:, None] * c, ((0, m - k), (0, 0)))
            return factor.multiply(c), r
        return units[:, None] * factor.multiply(c, "C" if conjugate else "T")[:k], r

    return derivatives.differentiable(by_reflectors, derivatives.as_composed(by_q), a, c)


@_compat.api_boundary
def householder_product(
    a: AnyMatrixLike,
    taus: AnyMatrixLike,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Multiplies Householder reflectors, as `jax.lax.linalg.householder_product` (orgqr).

    Args:
        a: (..., m, n) with m >= n, sharded by rows. Its part below the diagonal has the reflectors,
            as `jaxmg.QRFactor.packed` returns them. Only this part is read.
        taus: (..., k), k <= n, scale factors of the reflectors.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        The first n columns of H_0 H_1 ... H_(k-1), (..., m, n), sharded like ``a``. Reflector j is
        H_j = I - taus[j] v_j v_j^H.

    The product is computed as I - V S^-1 V^H, where S has 1 / taus on its diagonal and the entries
    of V^H V above it (C. Puglisi, SIAM J. Sci. Stat. Comput. 13, 1992). No row moves.

    Cost: 2 m k^2 + 2 m k n flops over all ranks. Memory: the result, and a few matrices of k x k on
    each device. The result has derivatives.

    Raises:
        NotImplementedError: k > 4096, and ``a`` isn't tall (m >= P k on P devices).
        TypeError, ValueError, RuntimeError: As `qr`. Shapes that don't match raise a ValueError.

    Examples:
        >>> h, taus = jaxmg.geqrf(a).packed()
        >>> q = jaxmg.linalg.householder_product(h, taus)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.householder_product", matrix_specs, in_specs)
    return _householder_product((a, taus), mesh, matrix_specs)


@programs.cache_plans
def _householder_product(arrays, mesh, spec):
    (a, taus), name = arrays, "linalg.householder_product"
    for argument, array in (("a", a), ("taus", taus)):
        checks.array(
            name, argument, array, checks.ALL, (*checks.DTYPES, str(getattr(array, "dtype", "")))
        )
    fits = a.ndim > 1 and a.shape[-2] >= a.shape[-1] and taus.shape[:-1] == a.shape[:-2]
    if not fits or taus.ndim < 1 or taus.shape[-1] > a.shape[-1]:
        raise ValueError(
            f"{name}: a must have shape (..., m, n) with m >= n, and taus (..., k) with k <= n; "
            f"they have shapes {tuple(a.shape)} and {tuple(taus.shape)}"
        )

    call = "householder_product", product, ("matrix",)
    if a.ndim == 2:
        return compositions.plan(arrays, *call, mesh, spec)
    where = compositions.where_each_is(
        "householder_product", a, mesh, matrix_spec(name, spec, None)
    )
    function: Any = lambda *arrays: compositions.run(arrays, *call, *where)  # noqa: E731
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    lie = whole.places(where[0], (a,), (a.ndim - 2,))
    return function if lie is None else lambda *arrays: lie.put(("matrix",), function(*arrays))


@compositions.program(any_shape=True)
def product(call, a, taus):
    (m, n), (k,), layout = a.shape, taus.shape, call.layout
    if not k or not m:
        return (jnp.eye(m, n, dtype=a.dtype),)
    qr_linalg.check_fits("householder_product", m, k, layout.ranks)
    there = taus != 0
    v = jnp.tril(a[:, :k], -1) + jnp.eye(m, k, dtype=a.dtype)
    v = jnp.where(there[None], v, 0)
    gram = tall.adjoint_product(layout, v, v)

    def weights(gram, taus, first):
        scale = jnp.where(taus != 0, 1 / jnp.where(taus != 0, taus, 1), 1)
        s = jnp.triu(gram, 1) + jnp.diag(scale)
        return jax.lax.linalg.triangular_solve(s, first.conj().T, left_side=True, lower=False)

    first = blocks.join_rows(v, layout, n)
    w = tall.over_ranks(layout, weights, (), (gram, taus, first))  # JAX can differentiate this
    return (jnp.eye(m, n, dtype=a.dtype) - tall.times(layout, v, w),)
