"""`jaxmg.linalg.lstsq` and `least_squares`, and the choice of their algorithm.

The algorithms are tile QR (`gels`) for a matrix of full rank that is neither tall nor wide, the SVD
for a large one of unknown rank, and QR with the singular values of R (`_svd/least_squares.py`)
otherwise.
"""

from __future__ import annotations

import operator
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._host import passes
from jaxmg._host.tiles import Tiles
from jaxmg._layouts import shardings
from jaxmg._linalg import compositions, halves
from jaxmg._qr import gels, tall
from jaxmg._qr import linalg as qr_linalg
from jaxmg._stacks import scaling
from jaxmg._svd import least_squares as least_squares_by_qr
from jaxmg._svd import spaces, svd
from jaxmg._transform import derivatives
from jaxmg._types import AnyArray, AnyMatrixLike, MeshLike


@_compat.api_boundary
def lstsq(
    a: AnyMatrixLike | Tiles,
    b: AnyMatrixLike,
    rcond: AnyArray | SupportsFloat | None = None,
    *,
    numpy_resid: bool = False,
    damp: AnyArray | SupportsFloat | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
    memory: float | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Minimizes norm(b - a x) for a matrix of any rank, as `jax.numpy.linalg.lstsq`.

    Args:
        a: (m, n), sharded by rows. A wide ``a`` is transposed. A matrix in host memory (a NumPy
            array, or one of memory kind "pinned_host") that doesn't fit the devices passes through
            them once by chunks of rows, and so do `jaxmg.Tiles`: see docs/howto/host_memory.md.
        b: (m,) or (m, nrhs), sharded by rows or replicated.
        rcond: Cutoff, a number or scalar array; singular values of at most rcond times the largest
            count as 0. None: eps max(m, n). Negative: eps.
        numpy_resid: Whether to return no residuals if m <= n or the rank is below n, as in JAX.
            Unsupported under ``jit``.
        damp: Real scalar; x minimizes norm(b - a x)^2 + damp^2 norm(x)^2 (ridge or Tikhonov
            regression). s and the rank are then those of ``a`` with damp times I appended.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.
        memory: As in `jaxmg.potrs`.

    Returns:
        (x, resid, rank, s), all replicated.

        - x is (n,) or (n, nrhs), of least norm.
        - resid is (nrhs,), norm(b - a x)^2 of each column.
        - rank is an integer.
        - s is (min(m, n),), the singular values of ``a``, descending.

    A tall, well-conditioned ``a`` is solved by the seminormal equations with one correction (A.
    Bjorck, Linear Algebra Appl. 88/89, 1987). Other matrices are solved by `qr` and the singular
    values of R, or by `svd` if min(m, n) > 4096 and neither ``a`` nor its transpose is tall on the
    devices. docs/howto/least_squares.md has details.

    Cost: m n^2 flops over all ranks for a well-conditioned ``a``, else 3 m n^2 or more, and the
    singular values of an n x n matrix on every device. `least_squares` needs no singular values.
    Memory: up to about three times a's. If `svd` is used, cost and memory are those of `svd`.

    If squares or products of entries would overflow or underflow, ``a`` and b are scaled by powers
    of two, in two more passes over ``a``. Derivatives, ill-conditioned matrices and wide matrices
    always take these passes.

    x has derivatives with respect to ``a``, b and ``damp``, valid at constant rank. s has
    derivatives, 0 for singular values that count as 0.

    Raises:
        TypeError, ValueError, RuntimeError: As `jaxmg.gesv`.

    Examples:
        >>> x, resid, rank, s = jaxmg.linalg.lstsq(a, b)
        >>> x = jaxmg.linalg.lstsq(a, b, damp=0.1)[0]
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.lstsq", matrix_specs, in_specs)
    results = _run(a, b, damp, "lstsq", ("small",) * 4, mesh, matrix_specs, rcond, memory)
    x, resid, rank, s = results
    if numpy_resid and (a.shape[0] <= a.shape[1] or operator.index(rank) < a.shape[1]):
        resid = resid[:0]
    return x, resid, rank, s


@_compat.api_boundary
def least_squares(
    a: AnyMatrixLike | Tiles,
    b: AnyMatrixLike,
    damp: AnyArray | SupportsFloat | None = None,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
    memory: float | None = None,
) -> Array:
    """Minimizes norm(b - a x) for an ``a`` of full rank, as LAPACK's gels.

    Args:
        a, b, damp, mesh, matrix_specs, in_specs, memory: As in `lstsq`.

    Returns:
        x, (n,) or (n, nrhs), replicated; of least norm if ``a`` is wide. If ``a`` doesn't have full
        rank, x has infinity, NaN or large entries: use `lstsq`.

    Cost: m n^2 flops over all ranks for a well-conditioned ``a``, 3 m n^2 if CholeskyQR2 suffices.
    Derivatives, errors and memory are those of `lstsq`.

    Examples:
        >>> x = jaxmg.linalg.least_squares(a, b)
        >>> ridge = jaxmg.linalg.least_squares(a, b, damp=0.1)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.least_squares", matrix_specs, in_specs)
    return _run(a, b, damp, "least_squares", ("small",), mesh, matrix_specs, None, memory)


# An attribute of a call with this value: the cutoff is the last of the program's arrays.
_IN_ARRAY = "array"


def _run(a, b, damp, name, results, mesh, spec, rcond, memory=None) -> Any:
    residuals = len(results) > 1
    request = passes.choose(f"linalg.{name}", a, b, mesh, spec, memory, residuals)
    if request is not None:
        return _run_pass(request, b.shape, damp, name, results, rcond)
    cutoff = _IN_ARRAY if isinstance(rcond, jax.Array) else rcond
    scalars = {"damp": damp, "rcond": rcond if cutoff is _IN_ARRAY else None}
    scalars = {key: value for key, value in scalars.items() if value is not None}
    if scalars:
        for argument, array in (("a", a), ("b", b)):
            checks.is_an_array(f"linalg.{name}", argument, array)
        a, b = compositions.promote(name, a, b)
        checks.usable(f"linalg.{name}", "a", a)
    arrays = a, b, *(_real_scalar(name, a, *scalar) for scalar in scalars.items())
    cutoff = cutoff if cutoff is None or cutoff is _IN_ARRAY else float(cutoff)
    return compositions.run(arrays, name, solved, results, mesh, spec, cutoff)


def _run_pass(request, shape, damp, name, results, rcond):
    """Returns the results of a matrix that passes through the devices, with a b of this shape."""
    small, dtype = passes.small_problem(request), np.dtype(request.cut.dtype)
    if damp is not None:
        value = _real_scalar(name, small.r, "damp", damp)
        damp = _times_power(value, -small.e)
    if rcond is None:
        rcond = float(jnp.finfo(dtype).eps) * max(request.cut.m, request.cut.n)
    layout = small.layout
    with _compat.default_promotion():
        found = _run(small.r, small.c, damp, name, results, layout.mesh, layout.row_spec, rcond)
        x, *others = found if len(results) > 1 else (found,)
        x = _times_power(x, small.f - small.e)
        found = [x.reshape(-1, *shape[1:]) if len(shape) == 1 or shape[1] else x[:, :0]]
        if others:
            resid, rank, s = others
            resid = _times_power(resid + small.squares, 2 * small.f)
            resid = resid[:0] if shape[1:] == (0,) else resid
            found += [resid, rank, _times_power(s, small.e)]
    replicated = NamedSharding(request.mesh, P())
    found = tuple(jax.device_put(each, replicated) for each in found)
    return found if others else found[0]


_times_power = jax.jit(scaling.times_power)


def _real_scalar(name, a, argument, value):
    """Returns the value as a scalar of a's real dtype."""
    dtype = np.dtype(np.float32) if halves.is_half(a) else a.dtype
    real = np.finfo(dtype).dtype if jnp.issubdtype(dtype, jnp.inexact) else dtype
    if np.ndim(value) or jnp.iscomplexobj(value):
        raise ValueError(f"linalg.{name}: {argument} must be a real scalar; got {value!r}")
    return value.astype(real) if isinstance(value, jax.Array) else np.asarray(value, real)


def _solved(call, a, b, *scalars):
    """Returns (x, resid, rank, s), or (x,) for `least_squares`.

    ``scalars`` are ``damp``, if passed, and ``rcond``, if it is an array.
    """
    (cutoff,) = call.attributes
    if b.ndim == 2 and not b.shape[1]:  # products of 0 columns crash XLA
        x, *others = _solved(call, a, jnp.zeros(a.shape[0], a.dtype), *scalars)
        rest = (others[0][:0], *others[1:]) if others else ()
        return x[:, None][:, :0], *rest
    rcond = None
    if cutoff == _IN_ARRAY:
        scalars, rcond = scalars[:-1], scalars[-1]
        cutoff = None
    damp = scalars[0] if scalars else None
    full_rank = call.name == "linalg_least_squares"
    if full_rank and qr_linalg.by_tiles(max(a.shape), min(a.shape), call.layout.ranks):
        return (_by_tiles(call, a, b, damp),)
    columns = b if b.ndim == 2 else b[:, None]
    of = least_squares_by_qr.LeastSquares(call.layout, full_rank, cutoff, a.shape[0] < a.shape[1])
    if not full_rank and _takes_whole_svd(call.layout, max(a.shape), min(a.shape)):
        x, resid, *others = _by_singular_values(call, of, a, columns, damp, rcond)
        return x if b.ndim == 2 else x[:, 0], resid, *others
    x, s, rank = least_squares_by_qr.Solve(of)(a, columns, damp, rcond)
    shape = x if b.ndim == 2 else x[:, 0]
    if full_rank:
        return (shape,)
    return shape, of.residuals(a, columns, x), rank, s


def _by_tiles(call, a, b, damp):
    """Returns x for a matrix of full rank that is neither tall nor wide."""
    n = a.shape[1]
    a, b = (a, b) if damp is None else _damped(call, a, b, damp)
    down, _ = scaling.scale_of(a)
    b, of_b = scaling.scaled(b, 0)
    x = gels.least_squares(scaling.times_scale(a, down), b, **call.layout.where)
    return scaling.times_all(x[:n], *scaling.halves(down, of_b))


def _damped(call, a, b, damp):
    """Returns (A, b) of the equivalent problem without ``damp``, whose solution begins with x."""
    (m, n), layout = a.shape, call.layout
    shift = damp.astype(a.dtype) * jnp.eye(min(m, n), dtype=a.dtype)
    a, b, shift = (blocks.replicate(x, layout) for x in (a, b, shift))
    if m < n:  # its solution is the y of least norm with [A, damp I] y = b
        return jnp.concatenate([a, shift], axis=1), b
    b = jnp.concatenate([b, jnp.zeros((n, *b.shape[1:]), b.dtype)])
    return jnp.concatenate([a, shift]), b


def _takes_whole_svd(layout, m, k):
    """Returns whether to compute the SVD of the matrix, and not of its R. On GPUs this is faster
    unless the matrix is tall. On CPU devices LAPACK's SVD of R is faster."""
    return not qr_linalg.fits(m, k, layout.ranks) or (
        layout.platform != "cpu" and k > svd.SMALL and m < 3 * k
    )


def _by_singular_values(call, of, a, b, damp, rcond):
    """Returns (x, resid, rank, s) of a large matrix that is neither tall nor wide, by its SVD."""
    matrix, columns = (a, b) if damp is None else _damped(call, a, b, damp)
    cutoff = of.cutoff(a.shape, a.dtype, rcond)
    static, moving = (cutoff, None) if rcond is None else (0.0, cutoff)
    cut = spaces.Cut(static)
    down, up = scaling.scale_of(matrix)
    # Without the barrier XLA recomputes the scaled columns for each element of a product, and
    # splits the product into two passes.
    columns, of_b = jax.lax.optimization_barrier(scaling.scaled(columns, 0))
    x, s, rank = _least_norm(scaling.times_scale(matrix, down), columns, moving, cut, call.layout)
    x = scaling.times_all(x[: a.shape[1]], *scaling.halves(down, of_b))
    return x, of.residuals(a, b, x), rank, s * up


def _least_norm(a, b, rtol, cut, layout):
    """Returns (A^+ b, the singular values, the rank), with the derivative at constant rank.

    Args:
        rtol: replaces the ``rtol`` of ``cut`` unless None; may be traced.
    """

    def value(a, b, rtol):
        u, s, vh = svd.decompose(a, layout)
        at = cut.at(rtol)
        c = at.inverse(s).astype(a.dtype)[:, None] * tall.adjoint_product(layout, u, b)
        x = shardings.constrain(tall.adjoint_product(layout, vh, c), layout, P())
        return x, s, jnp.sum(at.counts(s))

    def rule(primals, tangents):
        a, b, rtol = primals

        def composed(a, b):
            inverse = spaces.pseudoinverse_of(a, cut, layout, rtol)
            x = shardings.constrain(tall.times(layout, inverse, b), layout, P())
            return x, svd.values_of(a, layout)

        results = _least_norm(a, b, rtol, cut, layout)
        if tangents[0] is None and tangents[1] is None:
            return results, derivatives.still(results)
        _, (x_dot, s_dot) = derivatives.as_composed(composed)((a, b), tangents[:2])
        s_dot = jnp.where(cut.at(rtol).counts(results[1]), s_dot, 0)
        return results, (x_dot, s_dot, derivatives.still(results[2]))

    return derivatives.differentiable(value, rule, a, b, rtol)


solved = compositions.Program(_solved, any_shape=True, with_b=True, single=(1, 3))
