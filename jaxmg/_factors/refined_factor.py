"""A Cholesky factor in lower precision, kept with its matrix to solve in the precision of that."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import (
    blocks,
    checks,
    execute,
    ffi,
    layouts,
    plugins,
    programs,
    record,
    results,
    symmetry,
)
from jaxmg._call.arguments import Arguments, collect
from jaxmg._factors import pickling, refinement
from jaxmg._transform import batched_calls, batching, derivatives, hermitian
from jaxmg._types import MatrixLike, MeshLike

# What a `CholeskyFactor` has, and a factor in lower precision has with the accuracy of that alone.
_NOT_HERE = ("solve_triangular", "matmul", "logdet", "diagonal", "inv", "upper", "from_upper")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows", "tiles", "overflow", "scale", "size", "status"],
    meta_fields=["layout", "n", "tile", "refine"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RefinedFactor(pickling.Pickled):
    """A Cholesky factor in lower precision and the matrix A that it is of, spread over a mesh.

    `cho_factor` makes it where ``refine`` is given. `cho_solve` and `solve` give x as accurately as
    a factor in A's own precision would; what such a factor has beside that (log-determinant,
    inverse, triangular solves) would have the accuracy of the lower precision here, and an
    AttributeError says so. It is a pytree, as a `CholeskyFactor` is, and holds A once and half of
    that (for float64 and complex128; once more for float32 and complex64).

    Attributes:
        rows: (P ceil(n / P), n) on P ranks, sharded by rows: A. It is the array that was given to
            `cho_factor` where that lies so, and doesn't take memory again.
        tiles, overflow: the factor, as in a `CholeskyFactor`, of S A S + a small multiple of I.
        scale: (n,), the diagonal of S: powers of two.
        size: the Frobenius norm of S A S.
        status: int32 scalar: 0, or LAPACK's info of the factorization in lower precision. Where it
            isn't 0, every solve factors A in its own precision.
        layout: the mesh and the axes that the rows are sharded over; static, as what follows.
        n: the order of A.
        tile: the width of the tiles.
        refine: the name of the lower precision.
    """

    rows: jax.Array
    tiles: jax.Array
    overflow: jax.Array | None
    scale: jax.Array
    size: jax.Array
    status: jax.Array
    layout: layouts.Layout
    n: int
    tile: int
    refine: str

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name):
            if name in _NOT_HERE:
                raise AttributeError(
                    f"RefinedFactor has no {name!r}: its factor is one in lower precision "
                    f"(refine={self.refine!r}), and only solutions are refined; call cho_factor "
                    "without refine"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n), the shape of A."""
        return (self.n, self.n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of A and of solutions."""
        return self.rows.dtype

    @property
    def mesh(self) -> MeshLike:
        """The mesh that the factor is spread over."""
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

    @_compat.api_boundary
    def solve(
        self,
        b: MatrixLike,
        return_status: bool = False,
        return_iterations: bool = False,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
        """The x with A x = b, to A's own precision.

        Args:
            b: (n,) or (n, nrhs), of A's dtype; a JAX or NumPy array.
            return_status: also return the status.
            return_iterations: also return the number of iterations.

        Returns:
            x | (x, status) | (x, iterations) | (x, status, iterations), all as of `potrs` with
            ``refine``.

        Cost: in every iteration 4 n^2 nrhs multiplications and additions over all ranks (four times
        as many when complex), half of them in lower precision; where it falls back, that of `potrs`
        without ``refine``.

        Raises:
            TypeError, ValueError, NotImplementedError: as `cho_solve`.
        """
        overflow = () if self.overflow is None else (self.overflow,)
        arrays = (self.rows, self.tiles, *overflow, self.scale, self.size, self.status, b)
        wanted = (True, bool(return_status), bool(return_iterations))
        solve = _Solve(self.layout, self.n, self.tile, self.refine, wanted)
        values = solve.differentiable(*arrays)
        values = [value for value, want in zip(values, wanted, strict=True) if want]
        return tuple(values) if len(values) > 1 else values[0]

    def __repr__(self) -> str:
        return (
            f"RefinedFactor(n={self.n}, dtype={getattr(self.rows, 'dtype', None)}, "
            f"tile={self.tile}, mesh={dict(self.mesh.shape)}, rows over {self.layout.rows}, "
            f"refine={self.refine!r})"
        )


def cho_factor(
    a, T_A, mesh, matrix_specs, in_specs, pad, donate, precision, refine, check=False,
    caller="cho_factor",
):  # fmt: skip
    """`jaxmg.cho_factor` with ``refine``, on behalf of a ``caller``."""
    backend = refinement.check_options(caller, refine, "native", precision=precision)
    arguments = collect(
        _LOWERED, T_A, mesh, matrix_specs, in_specs, pad, backend, caller=caller, refine=refine
    )

    def factorize(a):
        if check:
            a = symmetry.check(caller, "a", a, (a,), arguments)
        return _differentiable(arguments, a)

    if batching.is_batch(a):
        factor = batching.over_leading(caller, _LOWERED.operands, factorize, (a,), pad)
    else:
        factor = factorize(a)
    if donate and factor.rows is not a and isinstance(a, jax.Array) and not layouts.traced((a,)):
        a.delete()
    return factor


def factor_for(a, arguments):
    """The factor of a matrix that is an operand of another routine, for its derivative."""
    return cho_factor(
        a, arguments.T_A, arguments.mesh, arguments.spec, None, arguments.pad, False, None,
        dict(arguments.options)["refine"], caller=arguments.caller,
    )  # fmt: skip


def _differentiable(arguments, a):
    """The factor, whose tangent is that of A, in the place of A's rows."""

    def derivative(primals, tangents):
        factor = _differentiable(arguments, *primals)
        a_dot = tangents[0]
        rows = hermitian.rows(factor.layout, a_dot) if factor.n else a_dot
        rows = layouts.constrain_like(rows, factor.rows)
        return factor, dataclasses.replace(derivatives.still(factor), rows=rows)

    factor = _Factor(arguments)
    return derivatives.differentiable(lambda a: batching.batchable(factor, a), derivative, a)


@dataclasses.dataclass(frozen=True)
class _Factor(batching.Batchable):
    """The factorization, a function of the matrix."""

    arguments: Arguments

    def __call__(self, a):
        call, values = execute.run(_LOWERED, (a,), self.arguments)
        return _pack(call, values, _rows(a, call.layout))

    def batched(self, settled, size, marks, a):
        arguments = batched_calls.of_each((a,), marks, self.arguments)
        layout = execute.resolve_layout(_LOWERED, (a,), arguments)
        square = layout.result_spec(a.shape[1:])
        placement = batching.make_placement(layout, (a,), marks, None, square)
        return batching.in_turn(_Factor(arguments), marks, a, placement=placement)


def _rows(a, layout):
    """``a`` by rows as the native code takes them: itself where it lies so."""
    n = a.shape[1]
    padded = -(-n // layout.ranks) * layout.ranks
    if n == 0 or (a.shape[0] == padded and programs.lies_by_rows(a, layout)):
        return a
    call = programs.Call("cho_factor_rows", _laid_out, layout, a.shape, 0, "", (layout.row_spec,))
    return programs.runner(call, (a,))(a)[0]


def _laid_out(call, a):
    return (hermitian.rows(call.layout, a),)


def _factorize(call, coordinates, a):
    """The factorization in lower precision on a rank."""
    lower = refinement.factor_lower(call, coordinates, a, call.tile, call.overflow)
    return lower.tiles, lower.overflow, lower.status, lower.scale, lower.size


def _pack(call, values, rows):
    """The factor, of a call, its results and A by rows."""
    tiles, overflow, status, scale, size = values
    return RefinedFactor(
        rows, tiles, overflow if call.overflow else None, scale, size, status, call.layout,
        tiles.shape[1], call.tile, dict(call.attributes).get("refine", ""),
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
    options=(refinement.OPTION,),
    factor="potrf",
    factor_dtypes=refinement.LOWER_DTYPES,
    kernel=_factorize,
)


@dataclasses.dataclass(frozen=True)
class _Solve(batching.Batchable):
    """A solve, of the factor's arrays, A's rows first, and right-hand sides; (x, status,
    iterations), None in place of one that isn't wanted."""

    layout: layouts.Layout
    n: int
    tile: int
    refine: str
    wanted: tuple = (True, False, False)

    def __call__(self, *arrays):
        return tuple(_solve(arrays, self))

    def batched(self, settled, size, marks, *arrays):
        *factor, b = arrays
        one = batching.of_one(b, marks[-1])
        there = (x for x, want in zip(_RESULTS, self.wanted, strict=True) if want)
        specs = [x.spec(self.layout, None, one) for x in there]
        placement = batching.make_placement(self.layout, arrays, marks, specs)
        if any(marks[:-1]):
            return batching.in_turn(self, marks, *arrays, placement=placement)
        x, *others = self(*factor, batching.to_columns(b))
        values = (batching.from_columns(x, b), *batching.repeated(others, size))
        return values if placement is None else placement.put(values)

    def differentiable(self, *arrays):
        """`__call__` with a derivative."""
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(self, *arrays), self._rule, *arrays
        )

    def _rule(self, primals, tangents):
        values = self.differentiable(*primals)
        x_dot = _Solution(self).moved(primals, tangents, values[0])
        return values, (x_dot, *derivatives.still(values[1:]))


@dataclasses.dataclass(frozen=True)
class _Solution(derivatives.ByColumns):
    """The x of a solve as a linear function of the right-hand sides."""

    of: _Solve

    @property
    def layout(self):
        return self.of.layout

    def run(self, *arrays):
        return dataclasses.replace(self.of, wanted=(True, False, False))(*arrays)[0]

    @property
    def adjoint(self):
        return self

    def rule(self, primals, tangents):
        x = self(*primals)
        return x, self.moved(primals, tangents, x)

    def moved(self, primals, tangents, x):
        """A^-1 (db - dA x), refined as x is."""
        (a_dot, *_, b_dot), moved = tangents, None
        if a_dot is not None and x.size:
            moved = -hermitian.of_right_hand_sides(hermitian.product, self.of.layout, a_dot, x)
        moved = derivatives.sum_of(b_dot, moved)
        return jnp.zeros_like(x) if moved is None else self(*primals[:-1], moved)


@programs.cache_plans
def _solve(arrays, of):
    name, n, layout = "cho_solve", of.n, of.layout
    layouts.refuse_manual_axes(name)
    (rows, tiles, *_), b = arrays[:-1], arrays[-1]
    checks.array(name, "factor", rows)
    checks.usable(name, "factor", *arrays[1:-1])
    a = jax.ShapeDtypeStruct((n, n), rows.dtype)
    checks.right_hand_side(name, a, b)
    checks.factor(name, tiles, n, layout.ranks)
    if n == 0:
        return lambda *arrays: tuple(
            x.empty(arrays[0], arrays[-1], local=False) if want else None
            for x, want in zip(_RESULTS, of.wanted, strict=True)
        )
    layout = layouts.located(name, layout, arrays)
    plugins.load(layout.platform)
    call = programs.Call(
        name, _program, layout, (n, n), of.tile, "native",
        tuple(x.spec(layout, a, b) for x in _RESULTS), (("refine", of.refine),),
        overflow=of.tile if len(arrays) > 6 else 0,
    )  # fmt: skip
    return programs.runner(call, arrays, wanted=of.wanted)


_RESULTS: tuple[results.Result, ...] = (
    results.Solution("x"),
    results.Status(),
    results.Status("iterations", "return_iterations"),
)


def _program(call, *arrays):
    """All that a solve gives; traced."""
    layout, count = call.layout, 3 if call.overflow else 2
    others = tuple(blocks.replicate(array, layout) for array in arrays[count:])
    b = others[-1]

    def local(coordinates, rows, tiles, *others):
        *overflow, scale, size, status, b = others
        spare = overflow[0] if overflow else jnp.zeros((0, tiles.shape[1]), tiles.dtype)
        lower = refinement.Lowered(
            tiles, spare, status.reshape(1), scale, size.reshape(1), call.tile
        )
        return refinement.solve(call, refinement.after(coordinates, b), rows, lower, b)[1:]

    rows = [blocks.split_rows(array, layout) for array in arrays[:count]]
    others = (*others[:-1], results.columns(b))
    in_specs = (*(layout.row_spec for _ in rows), *(P() for _ in others))
    mapped = ffi.over_ranks(layout, local, in_specs, tuple(P() for _ in _RESULTS))
    operands: list[jax.Array] = [*rows, *others]
    values = mapped(*operands)
    return tuple(x.whole(value, call, b) for x, value in zip(_RESULTS, values, strict=True))
