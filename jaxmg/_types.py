"""The types in the signatures of public functions; the names are not part of the public API."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Never, Protocol, SupportsIndex, TypeAlias, TypeVar

import jax.lax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from numpy.typing import NDArray

MatrixLike: TypeAlias = Array | NDArray[np.inexact[Any]]
"""A matrix, or right-hand sides: float32, float64, complex64 or complex128."""

AnyMatrixLike: TypeAlias = Array | NDArray[np.number[Any] | np.bool_]
"""The same for `jaxmg.linalg`, which also takes bfloat16, float16, integers and booleans."""

AnyArray: TypeAlias = Array | NDArray[Any]
"""An array of any dtype."""

Operator: TypeAlias = Callable[[Array], Array]
"""A function that multiplies arrays (n, m) by a matrix."""

MeshLike: TypeAlias = Mesh | AbstractMesh
"""A mesh of devices."""

# Any stands for jax.Device, which isn't a type to a checker if jaxlib has no stubs.
Devices: TypeAlias = Sequence[Any] | NDArray[Any] | Mesh
"""Instances of ``jax.Device``, or a mesh of them."""

Specs: TypeAlias = PartitionSpec | Sequence[PartitionSpec]
"""How a matrix is sharded; of a sequence the first spec counts."""

# tests/typing/annotations_test.py compares the names below with those that functions accept.

Backend: TypeAlias = Literal["auto", "native", "cusolvermg", "cusolvermp"]
"""The solver that takes the call."""

PrecisionName: TypeAlias = Literal[
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
"""The precision of products, by JAX's names."""

PrecisionLike: TypeAlias = PrecisionName | jax.lax.Precision | jax.lax.DotAlgorithmPreset
"""The same, or a member of JAX's enumerations."""

Refine: TypeAlias = Literal[
    "auto", "float32", "tf32", "high", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3"
]
"""The precision of a factorization whose solutions are refined."""

HostRoutineName: TypeAlias = Literal["gaussian_log_likelihood", "lstsq", "qr"]
RoutineName: TypeAlias = Literal[
    "potrs",
    "potri",
    "gesv",
    "getri",
    "syevd",
    "sygvd",
    "cho_factor",
    "cho_solve",
    "lu_factor",
    "geqrf",
    "least_squares",
]
"""A routine that `plan` knows."""

Trans: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]
"""L itself, its transpose or its conjugate transpose, as in ``scipy.linalg``."""

Triangle: TypeAlias = Literal["L", "U"]
"""The lower or the upper triangle of a matrix."""

AssumeA: TypeAlias = Literal[
    "pos",
    "positive definite",
    "her",
    "hermitian",
    "sym",
    "symmetric",
    "gen",
    "general",
    "upper triangular",
    "lower triangular",
    "diagonal",
]
"""What is known of a matrix, as in ``scipy.linalg``."""

# float, because there is no literal of infinity.
Norm: TypeAlias = Literal[1, "1", "O", "inf", "I"] | float
"""The 1-norm, or the infinity norm: `jax.numpy.inf`."""

Subset: TypeAlias = Sequence[SupportsIndex]
"""(first, last): indices of eigenvalues in ascending order, first <= i < last."""


_Text_co = TypeVar("_Text_co", bound=str, covariant=True)


class Nothing(Protocol[_Text_co]):
    """A protocol that no object fits as ``Nothing[Never]``, because `dir` returns strings."""

    def __dir__(self) -> Iterable[_Text_co]: ...


Else: TypeAlias = Nothing[Never]
"""Makes mypy report one wrong argument of an overloaded function in one message.

If no overload fits, mypy takes the first that fits without type parameters, and says which argument
doesn't fit; without such an overload it lists all. Every object fits `Nothing` without its
parameter, and no object fits it with ``Never``. So ``X | Else`` accepts what X accepts. All
parameters of the last overload have it. If that overload doesn't take all calls, the others have it
too, except in the parameters that tell the overloads apart. For an unknown keyword or a missing
argument mypy still lists all overloads.
"""
