"""The log-likelihood of a Gaussian process whose kernel matrix is made tile by tile."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._cholesky import cho_factor
from jaxmg._host import plans, pullback, requests
from jaxmg._host.tiles import Tiles
from jaxmg._types import MatrixLike, MeshLike, PrecisionLike

_CALLER = "gaussian_log_likelihood"


@_compat.api_boundary
def gaussian_log_likelihood(
    tiles: Tiles,
    y: MatrixLike,
    mesh: MeshLike | None = None,
    *,
    memory: float | None = None,
    precision: PrecisionLike | None = None,
) -> Array:
    """Computes log N(y | 0, K) of a kernel matrix K, with its gradient, out of core if necessary.

    That is -y^H K^-1 y / 2 - log(det(K)) / 2 - n log(2 pi) / 2, also for a complex Hermitian K. K
    is factored as in `potrs`. `jax.grad` and `jax.value_and_grad` by the parameters of ``tiles``
    and by y work outside of ``jit``: block columns of K^-1 are pulled back through the function
    tile by tile. See docs/howto/host_memory.md.

    Args:
        tiles: `Tiles` of shape (n, n), Hermitian positive definite. Only tiles on and above the
            diagonal are used.
        y: (n,) or (n, k), of K's dtype; a JAX or NumPy array. Columns are independent draws.
        mesh: As in `potrs`.
        memory: As in `potrs`. The function's own arrays for a tile, and for the gradient those of
            its derivative, come on top.
        precision: As in `potrs`.

    Returns:
        A real scalar, for k columns the sum of their log-likelihoods. NaN if K isn't positive
        definite; the gradient is then NaN, too.

    Cost: n^3 / 3 + n^2 k flops over all ranks (complex: 4 times), with the gradient n^3 + 2 n^2 k.
    Tiles are made once for the value and once, with their derivative, for the gradient. Memory: as
    `potrs`, and in core with the gradient a second matrix. The inverse replaces the factor in host
    memory.

    Raises:
        TypeError: ``tiles`` isn't `Tiles`, or y isn't an array of its dtype.
        ValueError: An argument is invalid, K isn't Hermitian, or the call is inside ``jit``,
            ``vmap``, ``shard_map``, ``jax.export`` or a second derivative.
        MemoryError, RuntimeError: As `potrs`.

    Examples:
        >>> def loss(p):
        ...     return -jaxmg.gaussian_log_likelihood(jaxmg.Tiles(kernel, (n, n), "float64", *p), y)
        >>> value, gradient = jax.value_and_grad(loss)((points, 0.5))
    """
    if not isinstance(tiles, Tiles):
        raise TypeError(
            f"{_CALLER}: tiles must be jaxmg.Tiles of the kernel's function; got "
            f"{type(tiles).__name__}"
        )
    _check(tiles, y)
    checks.precision(_CALLER, precision, tiles.dtype, "native")
    leaves, structure = jax.tree.flatten((tiles, y))
    traced = [isinstance(leaf, Tracer) for leaf in leaves]

    def compute(variables, wanted):
        if any(isinstance(one, Tracer) for one in variables) or isinstance(jnp.zeros(()), Tracer):
            raise ValueError(
                f"{_CALLER}: it runs only eagerly, and has first derivatives only; call it, and "
                "jax.grad of it, outside of jit, vmap, shard_map and jax.export"
            )
        given = iter(variables)
        values = [next(given) if one else leaf for leaf, one in zip(leaves, traced, strict=True)]
        with _compat.default_promotion():
            operands = jax.tree.unflatten(structure, values)
            return _compute(operands, mesh, memory, precision, wanted)

    if not any(traced):
        return compute([], None)[0]
    likelihood = jax.custom_vjp(lambda *variables: compute(variables, None)[0])
    likelihood.defvjp(lambda *variables: compute(variables, traced), _scaled)
    return likelihood(*itertools.compress(leaves, traced))


def _check(tiles, y):
    """Raises unless ``tiles`` are square and y fits them."""
    n = tiles.shape[0]
    if tiles.shape != (n, n):
        raise ValueError(f"{_CALLER}: tiles must have a shape (n, n); it is {tiles.shape}")
    checks.is_an_array(_CALLER, "y", y)
    checks.usable(_CALLER, "y", y)
    if y.ndim not in (1, 2) or y.shape[0] != n or y.shape[1:] == (0,):
        raise ValueError(
            f"{_CALLER}: y must have shape ({n},), or ({n}, k) with k at least 1, for tiles of "
            f"shape {tiles.shape}; it has shape {tuple(y.shape)}"
        )
    if y.dtype != tiles.dtype:
        raise TypeError(
            f"{_CALLER}: y must have the dtype of tiles, {tiles.dtype}; it has {y.dtype}"
        )


def _scaled(gradient, cotangent):
    """Returns the gradient times the cotangent of the result. Each array stays on its devices."""
    if not isinstance(cotangent, Tracer):
        cotangent = np.asarray(cotangent)
    return tuple(
        one if one.dtype == jax.dtypes.float0 else (one * cotangent).astype(one.dtype)
        for one in gradient
    )


def _compute(operands, mesh, memory, precision, wanted):
    """Returns (log-likelihood, its gradients by those leaves of ``tiles`` and y that are wanted).

    Args:
        operands: (tiles, y).
        wanted: for each leaf whether its gradient is wanted; None: none is.
    """
    tiles, y = operands
    request: Any = requests.choose(
        _CALLER, tiles, y, mesh=mesh, spec=None, memory=memory, donate=False, pad=True, tile=None,
        backend="auto", precision=precision, refine=None, check=False, inverts=wanted is not None,
    )  # fmt: skip
    leaves = jax.tree.leaves(tiles)
    by_leaf, by_y = ((), False) if wanted is None else (wanted[:-1], wanted[-1])
    pulls = None
    if wanted is not None:  # integers have no derivative
        pulls = [
            want and bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))
            for leaf, want in zip(leaves, by_leaf, strict=True)
        ]
    if not tiles.shape[0]:
        value = jnp.zeros((), jnp.finfo(tiles.dtype).dtype)
        pulled, of_y = map(jnp.zeros_like, itertools.compress(leaves, pulls or ())), y
    else:
        compute = _in_core if request.in_core else _out_of_core
        value, pulled, of_y = compute(request, tiles, precision, pulls)
    value = jnp.asarray(np.asarray(value))  # on no devices in particular
    if pulls is None:
        return value, ()
    found, given = [], iter(pulled)
    for leaf, pull in itertools.compress(zip(leaves, pulls, strict=True), by_leaf):
        nothing = np.zeros(np.shape(leaf), jax.dtypes.float0)
        found.append(_beside(next(given), leaf) if pull else nothing)
    if by_y:
        found.append(_beside(of_y, y))
    return value, tuple(found)


def _in_core(request, tiles, precision, pulls):
    """Returns (log-likelihood, gradients by the parameters that ``pulls`` selects, gradient by y).
    If ``pulls`` is None, computes only the log-likelihood."""
    with _compat.entered(request.mesh):
        factor: Any = cho_factor.cho_factor(
            request.a, mesh=request.mesh, pad=False, donate=True, precision=precision
        )
        white = factor.solve_triangular(request.b.reshape(tiles.shape[0], -1))
        value = _value(white, factor.log_det)
        if pulls is None:
            return value, (), None
        if int(factor.status):
            return value, _nan(tiles, pulls), _of_y(white, request.b.shape)
        solution = factor.solve_triangular(white, "C")
        of_y = _of_y(solution, request.b.shape)
        if not any(pulls):
            return value, (), of_y
        layout = plans.over(request.caller, request.mesh)
        rows, inverse = -(-tiles.shape[0] // layout.ranks), factor.inv()
        del factor
        inverse = jnp.pad(inverse, ((0, rows * layout.ranks - inverse.shape[0]), (0, 0)))
        pulled = pullback.Pullback(tiles, pulls, solution, layout, 0, rows)
        pulled.add(0, jax.device_put(inverse, layout.sharding(layout.row_spec)))
        return value, pulled.result(), of_y


def _out_of_core(request, tiles, precision, pulls):
    """Computes the results of `_in_core` with a factor in host memory."""
    with requests.factored(request) as (factor, white):
        value = _value(white, jax.device_put(factor.log_det, white.sharding))
        if pulls is None:
            return value, (), None
        if int(factor.status):
            return value, _nan(tiles, pulls), _of_y(white, request.b.shape)
        solution = factor._backward(white)
        of_y = _of_y(solution, request.b.shape)
        if not any(pulls):
            return value, (), of_y
        shape = factor._geometry
        pulled = pullback.Pullback(tiles, pulls, solution, shape.layout, shape.width, shape.tile)
        factor._invert(pulled.add)
        return value, pulled.result(), of_y


@jax.jit
def _value(white, log_det):
    """Returns the log-likelihood of y, given L^-1 y, (n, k)."""
    n, count = white.shape
    squares = jnp.sum(jnp.real(white * jnp.conj(white)))
    return -(squares + count * (log_det + n * math.log(2 * math.pi))) / 2


@functools.partial(jax.jit, static_argnums=1)
def _of_y(solution, shape):
    """Returns the gradient by y, of this shape, given K^-1 y, (n, k)."""
    return -jnp.conj(solution).reshape(shape)


def _nan(tiles, pulls):
    leaves = itertools.compress(jax.tree.leaves(tiles), pulls)
    return tuple(jnp.full_like(leaf, jnp.nan) for leaf in leaves)


def _beside(cotangent, leaf):
    """Puts a gradient on the devices of its variable; uncommitted if the variable is."""
    if isinstance(leaf, jax.Array) and leaf.committed:
        return jax.device_put(cotangent, leaf.sharding)
    return jnp.asarray(np.asarray(cotangent))
