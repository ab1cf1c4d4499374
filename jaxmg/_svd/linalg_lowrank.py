"""`jaxmg.linalg.svd_lowrank`."""

from __future__ import annotations

import operator
from typing import NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import checks, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import exporting
from jaxmg._linalg import compositions, halves
from jaxmg._svd import lowrank
from jaxmg._types import AnyMatrixLike, MeshLike


@exporting.named_tuple
class SVDLowRankResult(NamedTuple):
    """Holds the results of `svd_lowrank`."""

    U: jax.Array
    S: jax.Array
    Vh: jax.Array
    error: jax.Array


@_compat.api_boundary
def svd_lowrank(
    a: AnyMatrixLike,
    k: SupportsIndex,
    *,
    oversample: SupportsIndex = 10,
    iterations: SupportsIndex = 2,
    key: Array | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> SVDLowRankResult:
    """Computes the k largest singular values and their vectors by random projection.

    Args:
        a: (m, n), sharded by rows. No row moves.
        k: Number of singular values, 1 to min(m, n).
        oversample: Number of columns of the subspaces beyond k.
        iterations: Number of subspace iterations; each is one product with ``a`` and one with its
            adjoint. 0 suffices if the singular values fall by orders of magnitude within k.
        key: Key of `jax.random`. None: the same random numbers in each call.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        An `SVDLowRankResult` (U, S, Vh, error). S, Vh and error are replicated. If ``a`` has NaN or
        infinity, the results are NaN.

        - U, (m, k), is sharded like ``a``. Its columns and the rows of Vh are orthonormal to
          rounding.
        - S, (k,), is real and descending.
        - Vh is (k, n).
        - error estimates the 2-norm of ``a - (U * S) @ Vh``. The norm exceeds it with a probability
          of 1e-6, and is usually at least a tenth of it.

    Errors of S are at most the 2-norm of ``a - (U * S) @ Vh``. This norm is at least the (k + 1)-th
    singular value of ``a``. The error of a singular vector is of the order of
    (t / s)^(2 ``iterations`` + 1), where s is its singular value and t the first one beyond the
    subspace. The results have no derivative.

    Cost: (2 ``iterations`` + 2) products of 2 m n (k + oversample) flops over all ranks. Each reads
    ``a`` once, and a QR decomposition of k + oversample columns follows. Memory: on each device
    about three (r + n) x (k + oversample) matrices, where r is the device's number of rows.

    Source: N. Halko, P.-G. Martinsson, J. A. Tropp, SIAM Rev. 53, 2011.

    Raises:
        NotImplementedError: ``a`` is being differentiated.
        TypeError, ValueError, RuntimeError: As `jaxmg.lu_factor`. k, ``oversample`` or
            ``iterations`` raise a TypeError if they aren't integers, and a ValueError if out of
            range.

    Examples:
        >>> u, s, vh, error = jaxmg.linalg.svd_lowrank(a, 100)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.svd_lowrank", matrix_specs, in_specs)
    arrays = (a,) if key is None else (a, key)
    return _lowrank(arrays, k, oversample, iterations, mesh, matrix_specs)


@programs.cache_plans
def _lowrank(arrays, k, oversample, iterations, mesh, spec):
    a = arrays[0]
    checks.is_an_array("linalg.svd_lowrank", "a", a)
    checks.usable("linalg.svd_lowrank", "a", a)
    checks.array("linalg.svd_lowrank", "a", a, checks.ALL, (*checks.DTYPES, str(a.dtype)))
    if a.ndim < 2:
        raise ValueError(f"linalg.svd_lowrank: a must be a matrix; it has shape {tuple(a.shape)}")
    m, n = a.shape[-2:]
    k = _integer("k", k, 1, min(m, n))
    width = min(k + _integer("oversample", oversample, 0), m, n)
    iterations = _integer("iterations", iterations, 0)
    (a,) = compositions.promote("svd_lowrank", a)
    dtype = a.dtype if jnp.issubdtype(a.dtype, jnp.inexact) else float
    wide = jnp.float32 if halves.is_half(a) else dtype

    def with_omega(a, key=None):
        key = jax.random.key(0) if key is None else key
        omega = jax.random.normal(key, (n, width + lowrank.PROBES), wide)
        return a, omega.astype(dtype)

    planned = compositions.plan(
        with_omega(*arrays), "svd_lowrank", lowrank.decomposed,
        ((m, k), "small", "small", "small"), mesh, spec, k, iterations, pack=SVDLowRankResult,
    )  # fmt: skip
    return lambda *arrays: planned(*with_omega(*arrays))


def _integer(name, value, least, most=None):
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"linalg.svd_lowrank: {name} must be an integer; got {value!r}") from None
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"linalg.svd_lowrank: {name} must be {limits}; got {value}")
    return value
