"""An LU factor in lower precision with its matrix, to solve in the matrix's precision."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmg import _compat
from jaxmg._call import checks, record, results
from jaxmg._kept import leaves, lower_precision, pickling, refined, transposed
from jaxmg._layouts import exporting, layouts
from jaxmg._lu import refinement as lu_refinement
from jaxmg._matrices import hermitian
from jaxmg._types import Else, MatrixLike, MeshLike, Trans

# Attributes of an `LUFactor` that would have the accuracy of the lower precision here.
_NOT_HERE = ("slogdet", "logdet", "det", "diagonal", "packed", "from_packed", "inv")


@exporting.dataclass
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "rows", "tiles", "overflow", "pivots", "row_exponents", "column_exponents", "size",
        "status", "made_for",
    ],
    meta_fields=["layout", "n", "tile", "refine"],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RefinedLUFactor(pickling.Pickled):
    """Holds A and its LU factor in lower precision, spread over a mesh.

    `lu_factor` with ``refine`` creates it. It works as a `RefinedFactor`: `lu_solve` and `solve`
    compute x, and other operations raise an AttributeError. It takes as much memory as a
    `RefinedFactor`.

    Attributes:
        rows: (P ceil(n / P), n) on P ranks, sharded by rows: A. If the argument of `lu_factor` has
            this layout, ``rows`` is that array and takes no more memory.
        tiles, overflow, pivots: The factor of R A C, as in an `LUFactor`.
        row_exponents, column_exponents: (n,), int32: the diagonals of R and C are 2^-row_exponents
            and 2^-column_exponents.
        size: Frobenius norm of R A C.
        status: int32 scalar: 0; the status of the factorization in lower precision, as in `gesv`;
            or -2 if the range of A's entries is too large for products with A. If it is not 0,
            every solve factors A in its own precision.
        made_for, layout, n, tile: As in `CholeskyFactor`.
        refine: Name of the lower precision.
    """

    rows: jax.Array
    tiles: jax.Array
    overflow: jax.Array | None
    pivots: jax.Array
    row_exponents: jax.Array
    column_exponents: jax.Array
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
                    f"RefinedLUFactor has no {name!r}: its factor is in lower precision "
                    f"(refine={self.refine!r}), and only solutions are refined; call lu_factor "
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
        self, b: MatrixLike, trans: Trans = 0, return_status: Literal[False] = False,
        return_iterations: Literal[False] = False,
    ) -> Array: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike, trans: Trans = 0, return_status: Literal[True] = ...,
        return_iterations: Literal[False] = False,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike, trans: Trans = 0, return_status: Literal[False] = False,
        return_iterations: Literal[True] = ...,
    ) -> tuple[Array, Array]: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike, trans: Trans = 0, return_status: Literal[True] = ...,
        return_iterations: Literal[True] = ...,
    ) -> tuple[Array, Array, Array]: ...  # fmt: skip

    @overload
    def solve(
        self, b: MatrixLike | Else, trans: Trans | Else = 0, return_status: bool | Else = False,
        return_iterations: bool | Else = False,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip

    @_compat.overloaded_boundary
    def solve(
        self,
        b: MatrixLike,
        trans: Trans = 0,
        return_status: bool = False,
        return_iterations: bool = False,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
        """Solves op(A) x = b to A's own precision.

        Args:
            b: (n,) or (n, nrhs), of A's dtype; a JAX or NumPy array.
            trans: 0 or "N" for A x = b, 1 or "T" for A^T x = b, 2 or "C" for A^H x = b, as in
                `scipy.linalg.lu_solve`.
            return_status: Whether to return the status too.
            return_iterations: Whether to return the number of iterations too.

        Returns:
            x | (x, status) | (x, iterations) | (x, status, iterations), as `gesv` with ``refine``.

        Cost: each iteration takes 4 n^2 nrhs flops over all ranks (complex: 4 times), half of them
        in lower precision. A fallback costs as much as `gesv` without ``refine``.

        Raises:
            TypeError, ValueError, NotImplementedError: As `lu_solve`.
        """
        how = transposed.checked("lu_solve", "A", trans)
        turned = how == "T" and jnp.issubdtype(self.dtype, jnp.complexfloating)
        if turned:
            checks.array("lu_solve", "b", b, checks.ALL)
            b = jnp.conj(b)  # A^T b = conj(A^H conj(b))
        leaves.check("lu_solve", self, self.n)
        overflow = () if self.overflow is None else (self.overflow,)
        arrays = (
            self.rows, self.tiles, *overflow, self.pivots, self.row_exponents,
            self.column_exponents, self.size, self.status, b,
        )  # fmt: skip
        wanted = (True, bool(return_status), bool(return_iterations))
        solve = refined.Solve(_LU, self.layout, self.n, self.tile, self.refine, wanted, how != "N")
        x, *others = solve.differentiable(*arrays)
        x = jnp.conj(x) if turned else x
        values = [x, *(value for value, want in zip(others, wanted[1:], strict=True) if want)]
        return tuple(values) if len(values) > 1 else x

    def __repr__(self) -> str:
        return leaves.describe(self, f"n={self.n}", self.rows, "refine")


def lu_factor(a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine):
    """Computes `jaxmg.lu_factor` with ``refine``."""
    return refined.factorize(
        _LU, a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine
    )


def factor_for(a, arguments):
    """Factors an operand of another routine, for that routine's derivative."""
    return refined.factor_for(_LU, a, arguments)


def _factorize(call, coordinates, a):
    """Factors a matrix in lower precision on a rank."""
    lower = lu_refinement.factor_lower(call, coordinates, a, call.tile, call.overflow)
    return (
        lower.tiles, lower.overflow, lower.pivots, lower.status, lower.rows, lower.columns,
        lower.size,
    )  # fmt: skip


def _pack(call, values, rows):
    """Creates the factor from a call, its results and A by rows."""
    tiles, overflow, pivots, status, row_exponents, column_exponents, size = values
    return RefinedLUFactor(
        rows, tiles, overflow if call.overflow else None, pivots, row_exponents, column_exponents,
        size, status, leaves.made_for(call, tiles.shape[1], status), call.layout, tiles.shape[1],
        call.tile,
        dict(call.attributes).get("refine", ""),
    )  # fmt: skip


_LOWERED = record.Routine(
    name="lu_factor",
    native="getrf",
    results=(
        results.Tiles("tiles"),
        results.Overflow("overflow"),
        results.Pivots("pivots"),
        results.Status(),
        results.Pivots("row_exponents"),
        results.Pivots("column_exponents"),
        results.RealNumber("size"),
    ),
    outputs=(
        "tiles", "overflow", "pivots", "status", "row_exponents", "column_exponents", "size",
    ),
    options=(lu_refinement.OPTION,),
    triangle=None,
    factor=record.Factor("getrf", lower_precision.LOWER_DTYPES),
    kernel=_factorize,
)  # fmt: skip


def _solve(call, coordinates, rows, tiles, overflow, *others, adjoint):
    """Solves on a rank."""
    pivots, row_exponents, column_exponents, size, status, b = others
    lower = lu_refinement.Lowered(
        tiles, overflow, pivots, status.reshape(1), row_exponents, column_exponents,
        size.reshape(1), call.tile,
    )  # fmt: skip
    return lu_refinement.solve(call, coordinates, rows, lower, b, adjoint)


_LU = refined.Kind(
    "lu_solve", _LOWERED, _pack, 5, _solve, hermitian.general_product,
    hermitian.general_adjoint_product,
)  # fmt: skip
