"""`jaxmg.linalg.eigh` and `eigvalsh`: eigenvalues of Hermitian matrices."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import jax
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._call.arguments import matrix_spec
from jaxmg._cholesky import cho_factor
from jaxmg._eigen import syevd, sygvd
from jaxmg._layouts import exporting
from jaxmg._linalg import compositions
from jaxmg._matrices import hermitian
from jaxmg._stacks import scaling
from jaxmg._types import AnyMatrixLike, Else, MeshLike, Triangle


@exporting.named_tuple
class EighResult(NamedTuple):
    """Holds the results of `eigh`."""

    eigenvalues: jax.Array
    eigenvectors: jax.Array


@overload
def eigh(
    a: AnyMatrixLike | Else, UPLO: Triangle | AnyMatrixLike | None | Else = None,
    symmetrize_input: bool | Else = True, *, b: AnyMatrixLike | None | Else = None,
    lower: bool | None | Else = None, eigvals_only: Literal[False] = False,
    overwrite_a: bool | Else = False, overwrite_b: bool | Else = False, turbo: bool | Else = True,
    eigvals: None | Else = None, type: Literal[1, 2, 3] | Else = 1,
    check_finite: bool | Else = True, mesh: MeshLike | None | Else = None,
    matrix_specs: PartitionSpec | None | Else = None, in_specs: PartitionSpec | None | Else = None,
) -> EighResult: ...  # fmt: skip


@overload
def eigh(
    a: AnyMatrixLike | Else, UPLO: Triangle | AnyMatrixLike | None | Else = None,
    symmetrize_input: bool | Else = True, *, b: AnyMatrixLike | None | Else = None,
    lower: bool | None | Else = None, eigvals_only: Literal[True] | Else,
    overwrite_a: bool | Else = False, overwrite_b: bool | Else = False, turbo: bool | Else = True,
    eigvals: None | Else = None, type: Literal[1, 2, 3] | Else = 1,
    check_finite: bool | Else = True, mesh: MeshLike | None | Else = None,
    matrix_specs: PartitionSpec | None | Else = None, in_specs: PartitionSpec | None | Else = None,
) -> Array: ...  # fmt: skip


@_compat.overloaded_boundary
def eigh(
    a: AnyMatrixLike,
    UPLO: Triangle | AnyMatrixLike | None = None,
    symmetrize_input: bool = True,
    *,
    b: AnyMatrixLike | None = None,
    lower: bool | None = None,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: Literal[1, 2, 3] = 1,
    check_finite: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> EighResult | Array:
    """Computes eigenvalues and eigenvectors of a Hermitian matrix, as `jax.numpy.linalg.eigh`.

    With SciPy's keywords it follows `jax.scipy.linalg.eigh`. `jaxmg.eigh` has ``subset_by_index``.

    Args:
        a: (n, n), Hermitian.
        UPLO: Triangle to read with ``symmetrize_input=False``: "L" (or None) or "U". Or b, as in
            ``eigh(a, b)`` of SciPy.
        symmetrize_input: True: ``a`` has to be Hermitian. False: only one triangle is read.
        b: (n, n), Hermitian positive definite. None: the identity.
        lower: SciPy's argument: whether to read the lower triangles or the upper ones. None:
            ``UPLO`` and ``symmetrize_input`` decide.
        eigvals_only: Whether to return the eigenvalues only, as `eigvalsh`.
        type: With b, the problem: 1 is ``a @ v = w * b @ v``, 2 is ``a @ b @ v = w * v``, and 3 is
            ``b @ a @ v = w * v``.
        eigvals: Must be None, as in JAX.
        overwrite_a, overwrite_b, turbo, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.syevd`.

    Returns:
        An `EighResult` (eigenvalues, eigenvectors). The eigenvalues are (n,), real, ascending,
        replicated. The eigenvectors are the columns of an array (n, n) of a's dtype and sharding;
        ``v^H v``, with b of types 1 and 2 ``v^H b v``, and of type 3 ``v^H b^-1 v``, is the
        identity. With ``eigvals_only`` only the eigenvalues are returned. If b isn't positive
        definite, the results are NaN.

    Cost: that of `jaxmg.syevd`; with b that of `jaxmg.sygvd`, and for types 2 and 3 up to 4 n^3
    flops more. These use memory for five matrices like ``a``. Derivatives of eigenvectors are
    infinite or NaN if eigenvalues are equal up to rounding; docs/api.md names alternatives.

    Raises:
        NotImplementedError: ``eigvals`` is passed.
        TypeError, ValueError, RuntimeError: As `jaxmg.syevd`. An invalid ``UPLO`` or ``type``, and
            matrices of different shapes, raise a ValueError.

    Examples:
        >>> w, v = jaxmg.linalg.eigh(a)
        >>> w, v = jaxmg.linalg.eigh(a, b, type=2)  # of a @ b @ v = w * v
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.eigh", matrix_specs, in_specs)
    if eigvals is not None:
        raise NotImplementedError(
            "linalg.eigh: eigvals is not supported, as in JAX; jaxmg.eigh(a, b, "
            "subset_by_index=(first, last)) takes a range of eigenvalues"
        )
    second: Any = b
    if b is None and checks.is_array(UPLO):
        UPLO, second = None, UPLO
    read = (
        _part_to_read("eigh", UPLO, symmetrize_input)
        if lower is None
        else compositions.triangle(lower)
    )
    if second is not None:
        found = _of_two(a, second, type, read, not eigvals_only, mesh, matrix_specs)
        return found if eigvals_only else EighResult(*found)
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


def _of_two(a, b, type, read, vectors, mesh, spec):
    """Returns (w, v), or w, of a generalized eigenproblem."""
    if type not in (1, 2, 3):
        raise ValueError(f"linalg.eigh: type must be 1, 2 or 3; got {type!r}")
    for name, array in (("a", a), ("b", b)):
        checks.is_an_array("linalg.eigh", name, array)
    if a.shape[-2:] != b.shape[-2:] or b.ndim < 2:
        raise ValueError(
            "linalg.eigh: b must have the order of a; they have shapes "
            f"{tuple(b.shape)} and {tuple(a.shape)}"
        )
    kinds = ("small", "matrix") if vectors else ("small",)
    return compositions.run(
        (a, b), "eigh", generalized, kinds, mesh, spec, read, int(type), vectors
    )


def pairs(arrays, name, mesh, spec, read=compositions.HERMITIAN):
    """Returns (w, v). ``name`` is the public function's name, for errors."""
    return compositions.run(arrays, name, eigenvectors, ("small", "matrix"), mesh, spec, read)


@compositions.program(single=(0,))
def eigenvectors(call, a):
    return eigenpairs_of(a, call.layout, *call.attributes)


@compositions.program(single=(0,))
def eigenvalues(call, a):
    return (eigenvalues_of(a, call.layout, *call.attributes),)


@compositions.program(with_b=True, single=(0,))
def generalized(call, a, b):
    """Computes (w, v) or (w,). With B = U^H U, w of types 2 and 3 are the eigenvalues of C =
    U A U^H. If y are its eigenvectors, v is U^-1 y for type 2 and U^H y for type 3 (LAPACK Users'
    Guide, section 2.3.7)."""
    (read, kind, vectors), layout = call.attributes, call.layout
    reads = compositions.reads(read)
    b = compositions.upper(b, layout, read)

    def type_1(a, b, largest):
        a = compositions.upper(a, layout, read, largest)
        return sygvd.sygvd(a, b, return_eigenvectors=vectors, **layout.where)

    def product(a, b, largest):
        a = compositions.upper(a, layout, read, largest)
        factor = cho_factor.cho_factor(b, **layout.where)
        on, n = factor.layout, a.shape[0]
        u, rows = hermitian.rows(on, factor.upper()), hermitian.rows(on, a)
        if read != compositions.HERMITIAN:  # only its upper triangle is known
            rows = hermitian.full(on, rows)
        c = hermitian.times_adjoint(on, hermitian.times(on, u, rows), u)
        c = hermitian.with_padding(on, c, n)
        if not vectors:
            return eigenvalues_of(c, layout, compositions.UPPER)
        w, y = eigenpairs_of(c, layout, compositions.UPPER)
        y = hermitian.rows(on, y)
        if kind == 2:
            inverse = factor._divide_rows(hermitian.adjoint(on, y), adjoint=True)
            v = hermitian.adjoint(on, inverse)
        else:
            v = hermitian.adjoint_times(on, u, y)
        return w, hermitian.with_padding(on, v, n)

    solve = type_1 if kind == 1 else product
    found = scaling.homogeneous(solve, *(1, 0)[: 1 + vectors], reads=reads, passes_largest=True)
    values = found(a, b)
    return values if vectors else (values,)


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
