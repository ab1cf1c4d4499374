"""A Cholesky factor in lower precision with its matrix, to solve in the matrix's precision."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._cholesky import refinement
from jaxmg._kept import leaves, lower_precision, pickling, refined
from jaxmg._layouts import exporting, layouts
from jaxmg._matrices import hermitian
from jaxmg._types import Else, MatrixLike, MeshLike

# Attributes of a `CholeskyFactor` that would have the accuracy of the lower precision here.
_NOT_HERE = (
    "solve_triangular", "matmul", "logdet", "diagonal", "inv", "upper", "from_upper", "update",
    "append", "remove",
)  # fmt: skip


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", "tiles", "overflow", "scale", "size", "status", "made_for"],
    meta_fields=["layout", "n", "tile", "refine"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RefinedFactor(pickling.Pickled):
    """Holds A and its Cholesky factor in lower precision, spread over a mesh.

    `cho_factor` with ``refine`` creates it. `cho_solve` and `solve` compute x as accurately as with
    a factor in A's own precision. Other operations (log-determinant, inverse, triangular solves)
    would have the accuracy of the lower precision and raise an AttributeError. The factor is a
    pytree and takes 1.5 times the memory of A (float32, complex64: twice).

    Attributes:
        rows: (P ceil(n / P), n) on P ranks, sharded by rows: A. If the argument of `cho_factor` has
            this layout, ``rows`` is that array and takes no more memory.
        tiles, overflow: The factor of S A S plus a small multiple of I, as in a `CholeskyFactor`.
        scale: (n,), the diagonal of S: powers of two.
        size: Frobenius norm of S A S.
        status: int32 scalar: 0, or LAPACK's info of the factorization in lower precision. If it is
            not 0, every solve factors A in its own precision.
        made_for, layout, n, tile: As in `CholeskyFactor`.
        refine: Name of the lower precision.
    """

    rows: jax.Array
    tiles: jax.Array
    overflow: jax.Array | None
    scale: jax.Array
    size: jax.Array
    status: jax.Array
    made_for: dict[str, jax.Array] | None
    layout: layouts.Layout
    n: int
    tile: int
    refine: str

    if not TYPE_CHECKING:  # with it type checkers would accept any attribute

        def __getattr__(self, name):
            if name in _NOT_HERE:
                raise AttributeError(
                    f"RefinedFactor has no {name!r}: its factor is in lower precision "
                    f"(refine={self.refine!r}), and only solutions are refined; call cho_factor "
                    "without refine"
                )
            return super().__getattr__(name)

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the shape of A, (n, n)."""
        return (self.n, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of A and of solutions."""
        return self.rows.dtype

    @property
    def mesh(self) -> MeshLike:
        """Returns the mesh that the factor is spread over."""
        return self.layout.mesh

    @overload
    def solve(
        self, b: MatrixLike, return_status: Literal[False] = False,
        return_iterations: Literal[False] = False,
    ) -> Array: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike, return_status: Literal[True],
        return_iterations: Literal[False] = False,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike, return_status: Literal[False] = False,
        return_iterations: Literal[True] = ...,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike, return_status: Literal[True], return_iterations: Literal[True],
    ) -> tuple[Array, Array, Array]: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike | Else, return_status: bool | Else = False,
        return_iterations: bool | Else = False,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip

    @_compat.overloaded_boundary
    def solve(
        self,
        b: MatrixLike,
        return_status: bool = False,
        return_iterations: bool = False,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
        """Solves A x = b to A's own precision.

        Args:
            b: (n,) or (n, nrhs), of A's dtype; a JAX or NumPy array.
            return_status: Whether to return the status too.
            return_iterations: Whether to return the number of iterations too.

        Returns:
            x | (x, status) | (x, iterations) | (x, status, iterations), as `potrs` with ``refine``.

        Cost: each iteration takes 4 n^2 nrhs flops over all ranks (complex: 4 times), half of them
        in lower precision. A fallback costs as much as `potrs` without ``refine``.

        Raises:
            TypeError, ValueError, NotImplementedError: As `cho_solve`.
        """
        leaves.check("cho_solve", self, self.n)
        overflow = () if self.overflow is None else (self.overflow,)
        arrays = (self.rows, self.tiles, *overflow, self.scale, self.size, self.status, b)
        wanted = (True, bool(return_status), bool(return_iterations))
        solve = refined.Solve(_CHOLESKY, self.layout, self.n, self.tile, self.refine, wanted)
        values = solve.differentiable(*arrays)
        values = [value for value, want in zip(values, wanted, strict=True) if want]
        return tuple(values) if len(values) > 1 else values[0]

    def __repr__(self) -> str:
        return leaves.describe(self, f"n={self.n}", self.rows, "refine")


def cho_factor(
    a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check=False
):  # fmt: skip
    """Computes `jaxmg.cho_factor` with ``refine``."""
    return refined.factorize(
        _CHOLESKY, a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check
    )


def factor_for(a, arguments):
    """Factors an operand of another routine, for that routine's derivative."""
    return refined.factor_for(_CHOLESKY, a, arguments)


def _factorize(call, coordinates, a):
    """Factors a matrix in lower precision on a rank."""
    lower = refinement.factor_lower(call, coordinates, a, call.tile, call.overflow)
    return lower.tiles, lower.overflow, lower.status, lower.scale, lower.size


def _pack(call, values, rows):
    """Creates the factor from a call, its results and A by rows."""
    tiles, overflow, status, scale, size = values
    return RefinedFactor(
        rows, tiles, overflow if call.overflow else None, scale, size, status,
        leaves.made_for(call, tiles.shape[1], status), call.layout, tiles.shape[1], call.tile,
        dict(call.attributes).get("refine", ""),
    )  # fmt: skip


_LOWERED = record.Routine(
    name="cho_factor",
    native="potrf",
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.Status(),
        results.RealVector("scale"),
        results.RealNumber("size"),
    ),
    outputs=("tiles", "overflow", "status", "scale", "size"),
    options=(lower_precision.OPTION,),
    factor=record.Factor("potrf", lower_precision.LOWER_DTYPES),
    kernel=_factorize,
)


def _solve(call, coordinates, rows, tiles, overflow, scale, size, status, b, adjoint):
    """Solves on a rank."""
    lower = refinement.Lowered(
        tiles, overflow, status.reshape(1), scale, size.reshape(1), call.tile
    )
    return refinement.solve(call, coordinates, rows, lower, b)


_CHOLESKY = refined.Kind(
    "cho_solve", _LOWERED, _pack, 3, _solve, hermitian.product, hermitian.product
)
