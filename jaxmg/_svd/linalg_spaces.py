"""`jaxmg.linalg.orth`, `null_space` and `pinv`, computed from singular vectors."""

from __future__ import annotations

import operator
from typing import Any, SupportsFloat, SupportsIndex, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._layouts import shardings
from jaxmg._linalg import compositions, halves
from jaxmg._svd import linalg as svd_linalg
from jaxmg._svd import spaces
from jaxmg._types import AnyArray, AnyMatrixLike, MeshLike


@_compat.api_boundary
def orth(
    A: AnyMatrixLike,
    rcond: float | None = None,
    *,
    rank: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes an orthonormal basis of the range of A, as `scipy.linalg.orth`.

    Args:
        A: (m, n), as in `svd`.
        rcond: Cutoff; singular values up to rcond times the largest count as 0. None: max(m, n)
            eps.
        rank: Number of singular values that don't count as 0, in place of ``rcond``. Required under
            ``jit`` and ``vmap`` and for batches, because it is a dimension of the result.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        The left singular vectors, (m, rank), sharded like A. If A has NaN or infinity, the result
        is NaN of shape (m, min(m, n)). The rows of a tall A, m >= P n on P devices, don't move.

    Derivatives are valid if the rank is constant, for functions that don't depend on the choice of
    the basis, such as U U^H.

    Cost: that of `svd`. Derivatives compute `pinv` too.

    Raises:
        TypeError: A is traced without ``rank``.
        TypeError, ValueError, RuntimeError: As `svd`. A batch without ``rank``, and a ``rank``
            outside of 0 to min(m, n), raise a ValueError.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.orth", matrix_specs, in_specs)
    u, rank = _basis("orth", spaces.range_basis, A, rcond, rank, mesh, matrix_specs)
    return shardings.columns(u, 0, rank)


@_compat.api_boundary
def null_space(
    A: AnyMatrixLike,
    rcond: float | None = None,
    *,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
    rank: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes an orthonormal basis of the null space of A, as `scipy.linalg.null_space`.

    Args:
        A, rcond, rank, mesh, matrix_specs, in_specs: As in `orth`.
        overwrite_a, check_finite, lapack_driver: Ignored.

    Returns:
        The right singular vectors whose singular values count as 0, (n, n - rank), sharded by rows.
        If A has NaN or infinity, the result is NaN of shape (n, n). The rows of a tall A don't
        move, because the basis is computed from R.

    Cost: that of `svd` of R for m >= n, else that of `svd` with ``full_matrices``. Derivatives and
    errors are those of `orth`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.null_space", matrix_specs, in_specs)
    v, rank = _basis("null_space", spaces.null_basis, A, rcond, rank, mesh, matrix_specs)
    return shardings.columns(v, rank, v.shape[-1])


def _basis(name, program, a, rcond, rank, mesh, spec):
    """Returns (vectors, rank). The caller drops the zero columns of the vectors."""
    m, n = svd_linalg.shape_of(name, a)
    rtol = None if rcond is None else float(rcond)
    if rank is not None:
        rank = operator.index(rank)
        if not 0 <= rank <= min(m, n):
            raise ValueError(
                f"linalg.{name}: rank must be from 0 to {min(m, n)} for A of shape ({m}, {n}); got "
                f"{rank}"
            )
    elif getattr(a, "ndim", 2) > 2:
        raise ValueError(
            f"linalg.{name}: the matrices of a batch, of shape {tuple(a.shape)}, may differ in "
            "rank; pass rank="
        )
    kinds = ((m, min(m, n)), "small") if name == "orth" else ((n, n), "small")
    vectors, found = compositions.run((a,), name, program, kinds, mesh, spec, rtol, rank)
    if rank is not None:
        return vectors, rank
    try:
        return vectors, operator.index(found)
    except TypeError:
        raise TypeError(
            f"linalg.{name}: the shape of the result depends on the values of A, which is being "
            "traced (jit, vmap, ...); pass rank="
        ) from None


@_compat.api_boundary
def pinv(
    a: AnyMatrixLike,
    rtol: AnyArray | SupportsFloat | None = None,
    hermitian: bool = False,
    *,
    rcond: AnyArray | SupportsFloat | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the Moore-Penrose inverse, (n, m), as `jax.numpy.linalg.pinv`.

    Args:
        a: (m, n), as in `svd`.
        rtol: Cutoff; singular values up to rtol times the largest count as 0. A number, or an array
            with one entry for each matrix of a batch, which may be traced. A different number
            triggers a recompilation; a different array doesn't. None: 10 max(m, n) eps.
        hermitian: True raises an error unless ``a`` is square, and has no other effect.
        rcond: Alias of ``rtol``.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        The inverse, (n, m), sharded by rows. Its derivative assumes a constant rank (G. H. Golub,
        V. Pereyra, SIAM J. Numer. Anal. 10, 1973).

    Cost: that of `svd`, and a product. Errors are those of `svd`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.pinv", matrix_specs, in_specs)
    if rcond is not None and rtol is not None:
        raise ValueError("linalg.pinv: only one of rtol and rcond may be given; got both")
    rtol = rcond if rtol is None else rtol
    m, n = svd_linalg.shape_of("pinv", a)
    if hermitian and m != n:
        raise ValueError(f"linalg.pinv: hermitian=True needs a square matrix; got ({m}, {n})")
    if isinstance(rtol, jax.Array) or np.ndim(cast(Any, rtol)):
        checks.is_an_array("linalg.pinv", "a", a)
        (a,) = compositions.promote("pinv", a)
        wide = halves.widened(a)
        arrays = wide, _cutoffs(rtol, wide)
        inverse = compositions.run(
            arrays, "pinv", spaces.pseudoinverse_above, ((n, m),), mesh, matrix_specs
        )
        return halves.narrowed(inverse, halves.dtype_of(a))
    rtol = None if rtol is None else float(rtol)
    return compositions.run((a,), "pinv", spaces.pseudoinverse, ((n, m),), mesh, matrix_specs, rtol)


def _cutoffs(rtol, a):
    """Returns ``rtol`` as matrices (..., 1, 1) of a's dtype, which are batched like ``a``."""
    rtol = rtol if isinstance(rtol, jax.Array) else np.asarray(rtol)
    if rtol.dtype.kind == "c":
        raise ValueError(f"linalg.pinv: rtol must be real; got {rtol!r}")
    try:
        np.broadcast_shapes(rtol.shape, a.shape[:-2])
    except ValueError:
        raise ValueError(
            f"linalg.pinv: rtol, of shape {rtol.shape}, must broadcast against the leading "
            f"dimensions of a, of shape {tuple(a.shape)}"
        ) from None
    return rtol.astype(a.dtype)[..., None, None]
