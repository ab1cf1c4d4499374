"""The types of `jaxmg.lineax`; see ``__init__.pyi``."""

from typing import Any

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxmg import _Precision

__all__ = ["Cholesky"]

# A class whose base checkers need not know, and which lineax's functions take.
def Cholesky(
    mesh: Mesh | AbstractMesh | None = None,
    matrix_specs: PartitionSpec | None = None,
    T_A: int | None = None,
    precision: _Precision | None = None,
) -> Any: ...
