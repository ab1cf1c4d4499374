"""`jaxmg.linalg.eigh` and `eigvalsh`: eigenvalues of Hermitian matrices."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import jax
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._eigen import syevd
from jaxmg._layouts import exporting
from jaxmg._linalg import compositions
from jaxmg._stacks import scaling
from jaxmg._types import AnyMatrixLike, Else, MeshLike, Triangle


@exporting.named_tuple
class EighResult(NamedTuple):
    """Holds the results of `eigh`."""

    eigenvalues: jax.Array
    eigenvectors: jax.Array


@overload
def eigh(
    a: AnyMatrixLike | Else, UPLO: Triangle | None | Else = None,
    symmetrize_input: bool | Else = True, *, b: None | Else = None,
    lower: bool | None | Else = None, eigvals_only: Literal[False] = False,
    overwrite_a: bool | Else = False, overwrite_b: bool | Else = False, turbo: bool | Else = True,
    eigvals: None | Else = None, type: Literal[1] | Else = 1, check_finite: bool | Else = True,
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> EighResult: ...  # fmt: skip


@overload
def eigh(
    a: AnyMatrixLike | Else, UPLO: Triangle | None | Else = None,
    symmetrize_input: bool | Else = True, *, b: None | Else = None,
    lower: bool | None | Else = None, eigvals_only: Literal[True] | Else,
    overwrite_a: bool | Else = False, overwrite_b: bool | Else = False, turbo: bool | Else = True,
    eigvals: None | Else = None, type: Literal[1] | Else = 1, check_finite: bool | Else = True,
    mesh: MeshLike | None | Else = None, matrix_specs: PartitionSpec | None | Else = None,
    in_specs: PartitionSpec | None | Else = None,
) -> Array: ...  # fmt: skip


@_compat.overloaded_boundary
def eigh(
    a: AnyMatrixLike,
    UPLO: Triangle | None = None,
    symmetrize_input: bool = True,
    *,
    b: None = None,
    lower: bool | None = None,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: Literal[1] = 1,
    check_finite: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> EighResult | Array:
    """Computes eigenvalues and eigenvectors of a Hermitian matrix, as `jax.numpy.linalg.eigh`.

    With SciPy's keywords it follows `jax.scipy.linalg.eigh`. `jaxmg.eigh` has ``b`` and
    ``subset_by_index``.

    Args:
        a: (n, n), Hermitian.
        UPLO: Triangle to read with ``symmetrize_input=False``: "L" (or None) or "U".
        symmetrize_input: True: ``a`` has to be Hermitian. False: only one triangle is read.
        lower: SciPy's argument: whether to read the lower triangle or the upper one. None: ``UPLO``
            and ``symmetrize_input`` decide.
        eigvals_only: Whether to return the eigenvalues only, as `eigvalsh`.
        b, eigvals, type: Must be None, None and 1, as in JAX.
        overwrite_a, overwrite_b, turbo, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.syevd`.

    Returns:
        An `EighResult` (eigenvalues, eigenvectors). The eigenvalues are (n,), real, ascending,
        replicated. The eigenvectors are the columns of an array (n, n) of a's dtype and sharding.
        With ``eigvals_only`` only the eigenvalues are returned.

    Cost: that of `jaxmg.syevd`. Derivatives of eigenvectors are infinite or NaN if eigenvalues are
    equal up to rounding; docs/api.md names alternatives.

    Raises:
        NotImplementedError: ``b`` or ``eigvals`` is passed, or ``type`` is not 1.
        TypeError, ValueError, RuntimeError: As `jaxmg.syevd`. An invalid ``UPLO`` raises a
            ValueError.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.eigh", matrix_specs, in_specs)
    if b is not None or eigvals is not None or type != 1:
        raise NotImplementedError(
            "linalg.eigh: b, eigvals and types other than 1 are not supported, as in JAX; "
            "jaxmg.eigh(a, b, subset_by_index=(first, last)) takes b and a range of eigenvalues"
        )
    read = (
        _part_to_read("eigh", UPLO, symmetrize_input)
        if lower is None
        else compositions.triangle(lower)
    )
    if eigvals_only:
        return compositions.run((a,), "eigh", eigenvalues, ("small",), mesh, matrix_specs, read)
    return EighResult(*pairs((a,), "eigh", mesh, matrix_specs, read))


@_compat.api_boundary
def eigvalsh(
    a: AnyMatrixLike,
    UPLO: Triangle | None = "L",
    *,
    symmetrize_input: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes eigenvalues of a Hermitian matrix, as `jax.numpy.linalg.eigvalsh`.

    Arguments, cost and errors are those of `eigh`.

    Returns:
        Eigenvalues, (n,), real, ascending, replicated.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.eigvalsh", matrix_specs, in_specs)
    read = _part_to_read("eigvalsh", UPLO, symmetrize_input)
    return compositions.run((a,), "eigvalsh", eigenvalues, ("small",), mesh, matrix_specs, read)


def _part_to_read(name: str, UPLO: Any, symmetrize_input: bool) -> str:
    if checks.is_array(UPLO):
        instead = {"eigh": "jaxmg.eigh", "eigvalsh": "jaxmg.eigvalsh"}[name]
        raise TypeError(
            f"linalg.{name}: the second argument is UPLO, as in jax.numpy.linalg, and must be "
            f"None, 'L' or 'U'; got an array of shape {tuple(UPLO.shape)}. For generalized "
            f"eigenvalues call {instead}(a, b)"
        )
    if not (UPLO is None or (isinstance(UPLO, str) and UPLO in ("L", "U"))):
        raise ValueError(f"linalg.{name}: UPLO must be None, 'L' or 'U'; got {UPLO!r}")
    return compositions.HERMITIAN if symmetrize_input else compositions.triangle(UPLO != "U")


def pairs(arrays, name, mesh, spec, read=compositions.HERMITIAN):
    """Returns (w, v). ``name`` is the public function's name, for errors."""
    return compositions.run(arrays, name, eigenvectors, ("small", "matrix"), mesh, spec, read)


@compositions.program()
def eigenvectors(call, a):
    return eigenpairs_of(a, call.layout, *call.attributes)


@compositions.program()
def eigenvalues(call, a):
    return (eigenvalues_of(a, call.layout, *call.attributes),)


def eigenpairs_of(a, layout, read):
    """Returns (w, v) of the Hermitian matrix that the part ``read`` of ``a`` defines."""
    return _scaled(layout, read, 1, 0)(a)


def eigenvalues_of(a, layout, read):
    """As `eigenpairs_of`, without eigenvectors."""
    return _scaled(layout, read, 1, return_eigenvectors=False)(a)


def _scaled(layout, read, *degrees, **options) -> Any:
    """Returns a function that computes `jaxmg.syevd` of the part ``read``, scaled by a power of
    two."""

    def function(a, largest):
        a = compositions.upper(a, layout, read, largest)
        return syevd.syevd(a, **options, **layout.where)

    reads = compositions.reads(read)
    return scaling.homogeneous(function, *degrees, reads=reads, passes_largest=True)
