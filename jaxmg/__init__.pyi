"""The types of what `jaxmg` offers, for type checkers; editors take signatures from here, and the
docstrings from the functions themselves.

Where an argument decides what a function returns there is an overload for each answer. They are
tried in order: the default comes first, and last a ``bool`` of which the value isn't known.
``mypy.stubtest`` compares all this with the functions (tests/typing/check.py).
"""

# A call that leaves an argument out fits several overloads, of which the first is meant.
# pyright: reportOverlappingOverload=false

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from jax import Array
from jax.lax import DotAlgorithmPreset, Precision
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from matplotlib.figure import Figure
from numpy.typing import DTypeLike, NDArray

from jaxmg import linalg as linalg
from jaxmg._call.layouts import Layout
from jaxmg._routines.plan import Plan as Plan

__all__ = [
    "CholeskyFactor",
    "Plan",
    "RefinedFactor",
    "calculate_padding",
    "cho_factor",
    "cho_solve",
    "cyclic_1d",
    "eigh",
    "eigvalsh",
    "get_cols_cyclic",
    "pad_rows",
    "plan",
    "plot_block_to_cyclic",
    "potri",
    "potri_jit_ctx",
    "potri_shardmap_ctx",
    "potri_symmetrize",
    "potrs",
    "potrs_jit_ctx",
    "potrs_shardmap_ctx",
    "register_handlers",
    "syevd",
    "syevd_jit_ctx",
    "syevd_shardmap_ctx",
    "sygvd",
    "sygvd_jit_ctx",
    "sygvd_shardmap_ctx",
    "unpad_rows",
    "verify_cyclic",
]

_Matrix: TypeAlias = Array | NDArray[np.inexact[Any]]
_AnyArray: TypeAlias = Array | NDArray[Any]
_Mesh: TypeAlias = Mesh | AbstractMesh
# Any: a jax.Device, which isn't a type to a checker where jaxlib has no stubs.
_Devices: TypeAlias = Sequence[Any] | NDArray[Any] | Mesh
_Specs: TypeAlias = PartitionSpec | Sequence[PartitionSpec]
_Backend: TypeAlias = Literal["auto", "native", "cusolvermg"]
_Precision: TypeAlias = (
    Literal[
        "default",
        "highest",
        "high",
        "float32",
        "F32_F32_F32",
        "tf32",
        "tensorfloat32",
        "TF32_TF32_F32",
        "BF16_BF16_F32_X3",
        "BF16_BF16_F32_X6",
        "F16_F16_F32_X3",
    ]
    | Precision
    | DotAlgorithmPreset
)
_Refine: TypeAlias = Literal[
    "auto", "float32", "tf32", "high", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3"
]
_Routine: TypeAlias = Literal["potrs", "potri", "syevd", "sygvd", "cho_factor", "cho_solve"]
_Subset: TypeAlias = Sequence[SupportsIndex]
_Trans: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]
_A = TypeVar("_A", Array, NDArray[Any])

@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CholeskyFactor:
    tiles: Array
    overflow: Array | None
    _log_det: Array
    status: Array
    layout: Layout
    n: int
    tile: int
    precision: str | None = None

    @classmethod
    def from_upper(
        cls,
        u: _Matrix,
        T_A: SupportsIndex | None = None,
        mesh: _Mesh | None = None,
        matrix_specs: _Specs | None = None,
        pad: bool = True,
        *,
        in_specs: _Specs | None = None,
        donate: bool = False,
        precision: _Precision | None = None,
    ) -> CholeskyFactor: ...
    @property
    def log_det(self) -> Array: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def mesh(self) -> _Mesh: ...
    def solve(self, b: _Matrix) -> Array: ...
    def solve_triangular(self, b: _Matrix, trans: _Trans = 0) -> Array: ...
    def matmul(self, b: _Matrix, trans: _Trans = 0) -> Array: ...
    def logdet(self) -> Array: ...
    def diagonal(self) -> Array: ...
    def inv(self) -> Array: ...
    def upper(self) -> Array: ...

@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RefinedFactor:
    rows: Array
    tiles: Array
    overflow: Array | None
    scale: Array
    size: Array
    status: Array
    layout: Layout
    n: int
    tile: int
    refine: str

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def mesh(self) -> _Mesh: ...
    @overload
    def solve(
        self,
        b: _Matrix,
        return_status: Literal[False] = False,
        return_iterations: Literal[False] = False,
    ) -> Array: ...
    @overload
    def solve(
        self, b: _Matrix, return_status: Literal[True], return_iterations: Literal[False] = False
    ) -> tuple[Array, Array]: ...
    @overload
    def solve(
        self,
        b: _Matrix,
        return_status: Literal[False] = False,
        return_iterations: Literal[True] = ...,
    ) -> tuple[Array, Array]: ...
    @overload
    def solve(
        self, b: _Matrix, return_status: Literal[True], return_iterations: Literal[True]
    ) -> tuple[Array, Array, Array]: ...

@overload
def cho_factor(
    a: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None,
    pad: bool = True,
    *,
    in_specs: _Specs | None = None,
    donate: bool = False,
    precision: _Precision | None = None,
    refine: None = None,
    check: bool = False,
) -> CholeskyFactor: ...
@overload
def cho_factor(
    a: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None,
    pad: bool = True,
    *,
    in_specs: _Specs | None = None,
    donate: bool = False,
    precision: Literal["highest"] | None = None,
    refine: _Refine,
    check: bool = False,
) -> RefinedFactor: ...
def cho_solve(factor: CholeskyFactor | RefinedFactor, b: _Matrix) -> Array: ...
def plan(
    routine: _Routine,
    n: SupportsIndex,
    dtype: DTypeLike,
    devices: _Devices | SupportsIndex | None = None,
    *,
    nrhs: SupportsIndex = 1,
    T_A: SupportsIndex | None = None,
    backend: _Backend = "auto",
    donate: bool = False,
    return_eigenvectors: bool = True,
    refine: _Refine | None = None,
    precision: _Precision | None = None,
    memory: float | None = None,
) -> Plan: ...
def register_handlers(platform: str | None = None, *, mesh: Mesh | None = None) -> None: ...
def potri_shardmap_ctx(
    a: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | bool | None = None,
    matrix_specs: _Specs | None = None,
    *,
    in_specs: _Specs | None = None,
    pad: bool = True,
    backend: _Backend = "auto",
    precision: _Precision | None = None,
) -> tuple[Array, Array]: ...
def potri_jit_ctx(
    a: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None,
    *,
    in_specs: _Specs | None = None,
    pad: bool = True,
    backend: _Backend = "auto",
    precision: _Precision | None = None,
) -> tuple[Array, Array]: ...
def potri_symmetrize(a: _Matrix) -> Array: ...
def cyclic_1d(
    a: _Matrix,
    T_A: SupportsIndex,
    mesh: _Mesh | None = None,
    in_specs: _Specs | None = None,
    pad: bool = True,
    *,
    inverse: bool = False,
) -> Array: ...
def verify_cyclic(A: _AnyArray, A_cyclic: _AnyArray, T_A: SupportsIndex) -> None: ...
def get_cols_cyclic(
    N: SupportsIndex, N_batch: SupportsIndex, T_A: SupportsIndex, num_devices: SupportsIndex
) -> list[tuple[int, int, int]]: ...
def plot_block_to_cyclic(
    N: SupportsIndex, T_A: SupportsIndex, ndev: SupportsIndex, N_rows: SupportsIndex = 8
) -> Figure: ...
def calculate_padding(shard_size: SupportsIndex, T_A: SupportsIndex) -> int: ...
@overload
def pad_rows(a: Array, padding: SupportsIndex) -> Array: ...
@overload
def pad_rows(a: NDArray[Any], padding: SupportsIndex) -> _AnyArray: ...
def unpad_rows(a: _A, padding: SupportsIndex) -> _A: ...

# Inside shard_map these give (x, status) and the like, elsewhere what the *_jit_ctx functions give,
# which is one more: a type checker can't know where a call is. They may be unpacked all the same.

def potrs_shardmap_ctx(
    a: _Matrix,
    b: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | bool | None = None,
    matrix_specs: _Specs | None = None,
    *,
    in_specs: _Specs | None = None,
    return_logdet: bool = False,
    pad: bool = True,
    backend: _Backend = "auto",
    precision: _Precision | None = None,
) -> tuple[Array, ...]: ...
def syevd_shardmap_ctx(
    a: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | bool | None = None,
    matrix_specs: _Specs | bool | None = None,
    *,
    in_specs: _Specs | None = None,
    return_eigenvectors: bool = True,
    pad: bool = True,
    backend: _Backend = "auto",
) -> tuple[Array, ...]: ...
def sygvd_shardmap_ctx(
    a: _Matrix,
    b: _Matrix,
    T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None,
    *,
    in_specs: _Specs | None = None,
    return_eigenvectors: bool = True,
    pad: bool = True,
    backend: _Backend = "auto",
) -> tuple[Array, ...]: ...

# fmt: off

# One line an argument would make twenty lines of each of these.

# return_status, then return_logdet: neither, one, the other, both; with return_iterations, which
# refine has in the place of the log-determinant: without the status, with it; unknown.
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: _Refine | None = None, return_iterations: Literal[False] = False,
    check: bool = False,
) -> Array: ...
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: _Refine | None = None, return_iterations: Literal[False] = False,
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: None = None, return_iterations: Literal[False] = False,
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: None = None, return_iterations: Literal[False] = False,
    check: bool = False,
) -> tuple[Array, Array, Array]: ...
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: _Refine, return_iterations: Literal[True],
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: _Refine, return_iterations: Literal[True],
    check: bool = False,
) -> tuple[Array, Array, Array]: ...
@overload
def potrs(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: bool = False, pad: bool = True, *,
    in_specs: _Specs | None = None, return_logdet: bool = False, donate: bool = False,
    backend: _Backend = "auto", precision: _Precision | None = None,
    refine: _Refine | None = None, return_iterations: bool = False,
    check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...

# return_logdet: no, yes, unknown.
@overload
def potrs_jit_ctx(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_logdet: Literal[False] = False, pad: bool = True, backend: _Backend = "auto",
    precision: _Precision | None = None,
) -> tuple[Array, Array, Array]: ...
@overload
def potrs_jit_ctx(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_logdet: Literal[True], pad: bool = True, backend: _Backend = "auto",
    precision: _Precision | None = None,
) -> tuple[Array, Array, Array, Array]: ...
@overload
def potrs_jit_ctx(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_logdet: bool = False, pad: bool = True, backend: _Backend = "auto",
    precision: _Precision | None = None,
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]: ...

# return_status: no, yes, unknown.
@overload
def potri(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: _Specs | None = None, donate: bool = False, backend: _Backend = "auto",
    precision: _Precision | None = None,
    check: bool = False,
) -> Array: ...
@overload
def potri(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: _Specs | None = None, donate: bool = False, backend: _Backend = "auto",
    precision: _Precision | None = None,
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def potri(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_status: bool = False, pad: bool = True, *,
    in_specs: _Specs | None = None, donate: bool = False, backend: _Backend = "auto",
    precision: _Precision | None = None,
    check: bool = False,
) -> Array | tuple[Array, Array]: ...

# return_eigenvectors, then return_status: the first, neither, both, the second, unknown.
@overload
def syevd(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def syevd(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> Array: ...
@overload
def syevd(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array, Array]: ...
@overload
def syevd(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def syevd(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: bool = True,
    return_status: bool = False, pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...

# The same.
@overload
def sygvd(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def sygvd(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> Array: ...
@overload
def sygvd(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[True] = True,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array, Array]: ...
@overload
def sygvd(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: Literal[False] = ...,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def sygvd(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, return_eigenvectors: bool = True,
    return_status: bool = False, pad: bool = True, *, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...

# return_status: no, yes, unknown.
@overload
def eigh(
    a: _Matrix, b: _Matrix | None = None, T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None, matrix_specs: _Specs | None = None, *,
    subset_by_index: _Subset | None = None,
    return_status: Literal[False] = False, pad: bool = True, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def eigh(
    a: _Matrix, b: _Matrix | None = None, T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None, matrix_specs: _Specs | None = None, *,
    subset_by_index: _Subset | None = None,
    return_status: Literal[True], pad: bool = True, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array, Array]: ...
@overload
def eigh(
    a: _Matrix, b: _Matrix | None = None, T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None, matrix_specs: _Specs | None = None, *,
    subset_by_index: _Subset | None = None,
    return_status: bool = False, pad: bool = True, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array] | tuple[Array, Array, Array]: ...

@overload
def eigvalsh(
    a: _Matrix, b: _Matrix | None = None, T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None, matrix_specs: _Specs | None = None, *,
    subset_by_index: _Subset | None = None,
    return_status: Literal[False] = False, pad: bool = True, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> Array: ...
@overload
def eigvalsh(
    a: _Matrix, b: _Matrix | None = None, T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None, matrix_specs: _Specs | None = None, *,
    subset_by_index: _Subset | None = None,
    return_status: Literal[True], pad: bool = True, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> tuple[Array, Array]: ...
@overload
def eigvalsh(
    a: _Matrix, b: _Matrix | None = None, T_A: SupportsIndex | None = None,
    mesh: _Mesh | None = None, matrix_specs: _Specs | None = None, *,
    subset_by_index: _Subset | None = None,
    return_status: bool = False, pad: bool = True, in_specs: _Specs | None = None,
    donate: bool = False, backend: _Backend = "auto",
    check: bool = False,
) -> Array | tuple[Array, Array]: ...

# return_eigenvectors: yes, no, unknown.
@overload
def syevd_jit_ctx(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_eigenvectors: Literal[True] = True, pad: bool = True, backend: _Backend = "auto",
) -> tuple[Array, Array, Array, Array]: ...
@overload
def syevd_jit_ctx(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_eigenvectors: Literal[False], pad: bool = True, backend: _Backend = "auto",
) -> tuple[Array, Array, Array]: ...
@overload
def syevd_jit_ctx(
    a: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_eigenvectors: bool = True, pad: bool = True, backend: _Backend = "auto",
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]: ...

# The same.
@overload
def sygvd_jit_ctx(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_eigenvectors: Literal[True] = True, pad: bool = True, backend: _Backend = "auto",
) -> tuple[Array, Array, Array, Array, Array]: ...
@overload
def sygvd_jit_ctx(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_eigenvectors: Literal[False], pad: bool = True, backend: _Backend = "auto",
) -> tuple[Array, Array, Array, Array]: ...
@overload
def sygvd_jit_ctx(
    a: _Matrix, b: _Matrix, T_A: SupportsIndex | None = None, mesh: _Mesh | None = None,
    matrix_specs: _Specs | None = None, *, in_specs: _Specs | None = None,
    return_eigenvectors: bool = True, pad: bool = True, backend: _Backend = "auto",
) -> tuple[Array, Array, Array, Array] | tuple[Array, Array, Array, Array, Array]: ...
