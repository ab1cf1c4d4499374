"""The types of `jaxmg.linalg`; see ``__init__.pyi``."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, overload

import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from numpy.typing import NDArray

from jaxmg import CholeskyFactor, RefinedFactor

__all__ = [
    "EighResult",
    "SlogdetResult",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "det",
    "eigh",
    "eigvalsh",
    "expm",
    "funm",
    "inv",
    "logm",
    "matrix_power",
    "slogdet",
    "solve",
    "sqrtm",
]

_Matrix: TypeAlias = Array | NDArray[np.number[Any] | np.bool_]
_Mesh: TypeAlias = Mesh | AbstractMesh
_Triangle: TypeAlias = Literal["L", "U"]

class EighResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array

class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array

def solve(
    a: _Matrix,
    b: _Matrix,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: Literal["pos", "positive definite"] | None = None,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def inv(
    a: _Matrix,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def cholesky(
    a: _Matrix,
    lower: bool | None = None,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    upper: bool = False,
    symmetrize_input: bool = True,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def cho_factor(
    a: _Matrix,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> tuple[Array, bool]: ...
def cho_solve(
    c_and_lower: tuple[_Matrix | CholeskyFactor | RefinedFactor, bool]
    | CholeskyFactor
    | RefinedFactor,
    b: _Matrix,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
@overload
def eigh(
    a: _Matrix,
    UPLO: _Triangle | None = None,
    symmetrize_input: bool = True,
    *,
    b: None = None,
    lower: bool | None = None,
    eigvals_only: Literal[False] = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: Literal[1] = 1,
    check_finite: bool = True,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> EighResult: ...
@overload
def eigh(
    a: _Matrix,
    UPLO: _Triangle | None = None,
    symmetrize_input: bool = True,
    *,
    b: None = None,
    lower: bool | None = None,
    eigvals_only: Literal[True],
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: Literal[1] = 1,
    check_finite: bool = True,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def eigvalsh(
    a: _Matrix,
    UPLO: _Triangle | None = "L",
    *,
    symmetrize_input: bool = True,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def slogdet(
    a: _Matrix,
    *,
    method: str | None = None,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> SlogdetResult: ...
def det(
    a: _Matrix,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def matrix_power(
    a: _Matrix,
    n: SupportsIndex,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def funm(
    A: _Matrix,
    func: Callable[[Array], Array],
    disp: Literal[True] = True,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def sqrtm(
    A: _Matrix,
    blocksize: int = 1,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def expm(
    A: _Matrix,
    *,
    upper_triangular: Literal[False] = False,
    max_squarings: int = 16,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
def logm(
    A: _Matrix,
    disp: Literal[True] = True,
    *,
    mesh: _Mesh | None = None,
    matrix_specs: PartitionSpec | None = None,
) -> Array: ...
