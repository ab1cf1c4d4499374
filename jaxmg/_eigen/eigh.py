"""All or some eigenpairs of a Hermitian matrix, or of a generalized eigenproblem."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, SupportsIndex, overload

import jax
import jax.numpy as jnp
from jax import Array

from jaxmg import _compat
from jaxmg._call import blocks, checks, record, results
from jaxmg._call.arguments import collect
from jaxmg._eigen import rules as eigen_rules
from jaxmg._eigen import syevd, sygvd
from jaxmg._transform import dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, Specs, Subset


def _subset_range(call):
    """Returns the indices [first, last) of the eigenvalues that a call computes."""
    attributes = dict(call.attributes)
    return attributes["first"], attributes["last"]


@dataclasses.dataclass(frozen=True)
class _Values(results.RealVector):
    """The eigenvalues of the subset. The native code returns all eigenvalues."""

    def whole(self, value, call, *b):
        first, last = _subset_range(call)
        return value[first:last]


@dataclasses.dataclass(frozen=True)
class _Vectors(results.Result):
    """The eigenvectors of the subset as columns; sharded by rows."""

    differs = True

    def native(self, call, a, *b):
        first, last = _subset_range(call)
        return jax.ShapeDtypeStruct((a.shape[0], last - first), a.dtype)

    def spec(self, layout, a, *b):
        return layout.row_spec if a.shape[0] % layout.ranks == 0 else None

    def whole(self, value, call, *b):
        return blocks.join_rows(value, call.layout, call.shape[0])

    def empty(self, a, *b, local):
        return jnp.zeros((0, 0), a.dtype)


def _index(end):
    return lambda routine, value, *_: value[end]


def _subset_routine(native, *operands):
    """Returns the record of `eigh` with a subset. All operands are matrices."""
    works = (record.WORK, record.SECOND_WORK)[: len(operands)]
    return record.Routine(
        name="eigh",
        native=native,
        operands=operands,
        results=(
            *map(results.Matrix, works),
            _Vectors("v"),
            _Values("w"),
            results.Status(),
        ),
        outputs=("w", "v", "status"),
        plans=False,
        options=(
            record.Option("subset_by_index", "first", _index(0)),
            record.Option("subset_by_index", "last", _index(1)),
        ),
    )


SYEVX = _subset_routine("syevx", record.MATRIX)
SYGVX = _subset_routine("sygvx", record.MATRIX, record.SECOND_MATRIX)


def _subset(routine, value, a):
    """Returns the indices as integers; raises if there are no such eigenvalues."""
    # The check of the other arguments refuses an ``a`` that isn't a matrix.
    n = a.shape[1] if getattr(a, "ndim", 0) == 2 else None
    try:
        first, last = map(checks.index, value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{routine}: subset_by_index must be None or two integers, (first, last): the "
            f"eigenvalues with indices first <= i < last in ascending order; got {value!r}"
        ) from None
    if n is not None and not 0 <= first < last <= n:
        raise ValueError(
            f"{routine}: subset_by_index must be (first, last) with 0 <= first < last <= {n}, the "
            f"order of a; got {value!r}"
        )
    return first, last


def _all(caller, a, b, check, *arguments, **options):
    """Computes all eigenvalues and eigenvectors. Errors name ``caller``, the public function."""
    routine, matrices = (syevd.SYEVD, (a,)) if b is None else (sygvd.SYGVD, (a, b))
    arguments = collect(routine, *arguments, caller=caller, **options)
    return dispatch.call(routine, matrices, arguments, _rule(routine, routine, None), check)


@functools.cache
def _rule(routine, solver, subset):
    """Returns the derivative rule: the same function object for the same arguments, because
    `dispatch.call` caches plans by it."""
    positions = slice(None) if subset is None else slice(*subset)
    return lambda arguments: eigen_rules.rule(routine, solver, arguments, positions)


@overload
def eigh(
    a: MatrixLike, b: MatrixLike | None = None, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None, *,
    subset_by_index: Subset | None = None, return_status: Literal[False] = False,
    pad: bool = True, in_specs: Specs | None = None, donate: bool = False,
    backend: Backend = "auto", check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def eigh(
    a: MatrixLike, b: MatrixLike | None = None, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None, *,
    subset_by_index: Subset | None = None, return_status: Literal[True], pad: bool = True,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def eigh(
    a: MatrixLike | Else, b: MatrixLike | None | Else = None,
    T_A: SupportsIndex | None | Else = None, mesh: MeshLike | None | Else = None,
    matrix_specs: Specs | None | Else = None, *, subset_by_index: Subset | None | Else = None,
    return_status: bool | Else = False, pad: bool | Else = True,
    in_specs: Specs | None | Else = None, donate: bool | Else = False,
    backend: Backend | Else = "auto", check: bool | Else = False,
) -> tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def eigh(
    a: MatrixLike,
    b: MatrixLike | None = None,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    subset_by_index: Subset | None = None,
    return_status: bool = False,
    pad: bool = True,
    in_specs: Specs | None = None,
    donate: bool = False,
    backend: Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array] | tuple[Array, Array, Array]:
    """Computes all or some eigenvalues and eigenvectors of ``a``, or of ``a @ x = w * b @ x``.

    Solves as `syevd`, and with ``b`` as `sygvd`. If several devices share the work, k of n
    eigenvectors take k / n of the memory of all, and k / n of the operations in the last merge of
    divide and conquer and in the back-transformation.

    Args:
        a: (n, n), Hermitian, as in `syevd`. Only the upper triangle is read.
        b: (n, n), Hermitian positive definite, as in `sygvd` (SciPy's ``b`` with ``type=1``, the
            only type). None: the identity.
        T_A, mesh, matrix_specs, in_specs, pad, return_status, donate, backend, check: As in
            `syevd`.
        subset_by_index: (first, last) selects eigenvalues with indices first <= i < last in
            ascending order, as in ``jax.lax.linalg.eigh``: (n - 2, n) are the two largest. (SciPy
            includes last.) None: all.

    Returns:
        (w, v) | (w, v, status), with k = last - first.

        - w, (k,), has the eigenvalues: real, ascending, replicated.
        - v, (n, k), has the eigenvectors in its columns, as `syevd` or `sygvd`; its rows are
          sharded over all ranks if the number of ranks divides n.
        - status is as in `syevd` or `sygvd`.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `syevd` or `sygvd`. An invalid
            ``subset_by_index`` raises too.

    Examples:
        >>> w, v = jaxmg.eigh(a, subset_by_index=(0, 10))  # the ten smallest
        >>> w, v = jaxmg.eigh(a, b)  # of a @ v = (b @ v) * w
    """
    if subset_by_index is None:
        return _all(
            "eigh", a, b, check, T_A, mesh, matrix_specs, in_specs, pad, backend, donate,
            return_eigenvectors=True, return_status=return_status,
        )  # fmt: skip
    subset = _subset("eigh", subset_by_index, a)
    routine, matrices = (SYEVX, (a,)) if b is None else (SYGVX, (a, b))
    whole = syevd.SYEVD if b is None else sygvd.SYGVD
    arguments = collect(
        routine, T_A, mesh, matrix_specs, in_specs, pad, backend, donate,
        subset_by_index=subset, return_status=return_status,
    )  # fmt: skip
    return dispatch.call(routine, matrices, arguments, _rule(routine, whole, subset), check)


@overload
def eigvalsh(
    a: MatrixLike, b: MatrixLike | None = None, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None, *,
    subset_by_index: Subset | None = None, return_status: Literal[False] = False,
    pad: bool = True, in_specs: Specs | None = None, donate: bool = False,
    backend: Backend = "auto", check: bool = False,
) -> Array: ...  # fmt: skip


@overload
def eigvalsh(
    a: MatrixLike, b: MatrixLike | None = None, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None, *,
    subset_by_index: Subset | None = None, return_status: Literal[True], pad: bool = True,
    in_specs: Specs | None = None, donate: bool = False, backend: Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def eigvalsh(
    a: MatrixLike | Else, b: MatrixLike | None | Else = None,
    T_A: SupportsIndex | None | Else = None, mesh: MeshLike | None | Else = None,
    matrix_specs: Specs | None | Else = None, *, subset_by_index: Subset | None | Else = None,
    return_status: bool | Else = False, pad: bool | Else = True,
    in_specs: Specs | None | Else = None, donate: bool | Else = False,
    backend: Backend | Else = "auto", check: bool | Else = False,
) -> Array | tuple[Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def eigvalsh(
    a: MatrixLike,
    b: MatrixLike | None = None,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    subset_by_index: Subset | None = None,
    return_status: bool = False,
    pad: bool = True,
    in_specs: Specs | None = None,
    donate: bool = False,
    backend: Backend = "auto",
    check: bool = False,
) -> Array | tuple[Array, Array]:
    """Computes eigenvalues of a Hermitian matrix, or of ``a @ x = w * b @ x``.

    Arguments, errors and the status are those of `eigh`. A subset costs as much as all eigenvalues.

    Returns:
        w | (w, status). w is (k,), real, ascending, replicated.

    Examples:
        >>> smallest, largest = jaxmg.eigvalsh(a)[jnp.array([0, -1])]
    """
    subset = None
    if subset_by_index is not None:
        subset = _subset("eigvalsh", subset_by_index, a)
    values = _all(
        "eigvalsh", a, b, check, T_A, mesh, matrix_specs, in_specs, pad, backend, donate,
        return_eigenvectors=False, return_status=return_status,
    )  # fmt: skip
    if subset is None:
        return values
    first, last = subset
    return (values[0][first:last], values[1]) if return_status else values[first:last]
