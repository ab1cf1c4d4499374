"""Operations on factors that outlive a call: the part that Cholesky, LU and QR factors share.

`Operation` is the record of a native routine on a factor, `Factor` a factor without its arrays, and
`FactorCall` one operation on it, which runs on global arrays, in batches and inside a shard_map.
The families' `operations` define the operations of each kind of factor.

The tangent of a factor is the tangent of A, not of the tiles: it has the rows of dA in place of the
tiles. The derivative rules of all operations use these rows; nothing else reads tiles or rows.
JAX's operations on all leaves of a pytree (``where``, ``cond``, ``scan``) treat both alike.
"""

import abc
import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, programs, results
from jaxmg._layouts import layouts, local_layouts, meshes, shardings
from jaxmg._matrices import hermitian
from jaxmg._plugin import plugins
from jaxmg._stacks import batching, choice
from jaxmg._transform import batched_calls, derivatives

# Where a device processes all factors of a batch at once.
_ROWS_AT_ONCE = choice.rows_at_once(gpu=2048, cpu=64)
_PLAIN = (checks.PRODUCTS["highest"], checks.DEFAULT)


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A native routine whose operands are a factor and, for some routines, right-hand sides.

    Attributes:
        native: the routine's name; the FFI target has the prefix "jaxmg_".
        result: the kind of its result.
        by_rows: whether the right-hand sides are rows of an n x n matrix, sharded like A's.
        shared: the number of the factor's replicated arrays, which follow the overflow.
        in_place: whether the result overwrites the factor's tiles. XLA copies these first if the
            factor is still needed.
        at_once: function of (platform, a stack of factors, *right-hand sides, **attributes) that
            computes a whole batch at once, or None.
    """

    native: str
    result: results.Result
    by_rows: bool = False
    shared: int = 0
    in_place: bool = False
    at_once: typing.Any = None

    def on_rank(self, call, coordinates, tiles, *others):
        """Returns a rank's part of the result, given its rows and right-hand sides as columns."""
        n = tiles.shape[1]
        others = others if call.overflow else (jnp.zeros((0, n), tiles.dtype), *others)
        b = others[1 + self.shared :]
        (value,) = ffi.call(
            f"jaxmg_{self.native}", call.layout, call.tile, call.backend,
            (coordinates, tiles, *others),
            (self.result.native(call, tiles, *b),),
            in_place=int(self.in_place), differing=int(self.result.differs),
            n=n, **dict(call.attributes),
        )  # fmt: skip
        value = self.result.finished(value, coordinates.reshape(2)[0])
        return self.result.part(value, call.layout, tiles)

    def program(self, call, tiles, *others):
        """Returns the global result, in a trace."""
        layout, count = call.layout, 1 if call.overflow else 0
        overflow, (shared, b) = others[:count], self._split_operands(others[count:])
        by_rows, replicated = (b, ()) if self.by_rows else ((), b)
        rows = [blocks.split_rows(array, layout) for array in (tiles, *overflow)]
        rows_of_b = [blocks.split_rows(array, layout) for array in by_rows]
        shared, replicated = (
            tuple(blocks.replicate(array, layout) for array in arrays)
            for arrays in (shared, replicated)
        )
        in_specs = (
            *(layout.row_spec for _ in rows), *(P() for _ in shared),
            *(layout.row_spec for _ in rows_of_b), *(P() for _ in replicated),
        )  # fmt: skip
        out_specs = layout.row_spec if self.result.differs else P()
        local = functools.partial(self.on_rank, call)
        mapped = ffi.over_ranks(layout, local, in_specs, out_specs)
        value = mapped(*rows, *shared, *rows_of_b, *map(results.columns, replicated))
        return (self.result.whole(value, call, *replicated),)

    def _split_operands(self, arrays):
        """Splits arrays into those of the factor that all ranks hold, and right-hand sides."""
        return arrays[: self.shared], arrays[self.shared :]


@dataclasses.dataclass(frozen=True)
class Factor:
    """The static part of a factor, for calls on behalf of ``routine``.

    Its functions take the arrays of the factor first: the tiles, the overflow if it has one, and
    the replicated arrays.
    """

    routine: str
    layout: layouts.Layout
    n: int
    tile: int
    overflows: bool

    @property
    def shape(self):
        """The shape of the matrix whose rows are in the tiles; right-hand sides have n rows."""
        return self.n, self.n

    def run(self, native, *arrays, **attributes):
        """Runs the native routine, with batching."""
        operation = FactorCall(self, native, tuple(attributes.items()))
        return batching.batchable(operation, *arrays)

    def check(self, operation, *arrays):
        """Raises an error if these arrays are not a factor and right-hand sides."""
        if self.layout.inside:
            return
        meshes.refuse_manual_axes(self.routine)
        tiles, *others = arrays
        parts = self.overflows + operation.shared
        checks.array(self.routine, "factor", tiles, checks.ALL)
        checks.usable(self.routine, "factor", *others[:parts])
        checks.factor(self.routine, tiles, self.shape, self.layout.ranks)
        a = jax.ShapeDtypeStruct(self.shape, tiles.dtype)
        for array in () if operation.by_rows else others[parts:]:
            checks.right_hand_side(self.routine, a, array, checks.ALL)

    def differentiable(self, run, rule, arrays):
        """Calls ``run(*arrays)`` with the derivative rule ``rule``. The derivative is 0 if only
        leaves other than A's have tangents."""

        def derivative(primals, tangents):
            if tangents[0] is not None:
                return rule(primals, tangents)
            value = self.differentiable(run, rule, primals)
            return value, jax.tree.map(jnp.zeros_like, value)

        return derivatives.differentiable(run, derivative, *arrays)


def tangent(factor, a_dot):
    """Returns the tangent of a factor: the rows of dA in place of the tiles, and zeros."""
    tiles = hermitian.rows(factor.layout, a_dot) if factor.n else a_dot
    tiles = shardings.constrain_like(tiles, factor.tiles)
    return dataclasses.replace(derivatives.still(factor), tiles=tiles)


@dataclasses.dataclass(frozen=True)
class FactorCall(batching.Batchable):
    """An operation on a factor, with its attributes, as a function of the arrays."""

    of: Factor
    operation: Operation
    attributes: tuple

    @property
    def parts(self):
        """The number of arrays that belong to the factor."""
        return 1 + self.of.overflows + self.operation.shared

    def __call__(self, *arrays):
        if self.of.layout.inside:
            return _inside(self, *arrays)
        return _run(arrays, self.of, self.operation, self.attributes)

    def batched(self, settled, size, marks, *arrays):
        placement = self._make_placement(marks, arrays)
        if batching.is_alone(self.of.layout):
            return batching.spread(
                self.of.layout, self.program, size, marks, *arrays, placement=placement
            )
        return batching.in_turn(self, marks, *arrays, placement=placement)

    def _make_placement(self, marks, arrays):
        of, parts = self.of, self.parts
        a = jax.ShapeDtypeStruct(of.shape, arrays[0].dtype)
        each = list(zip(arrays, marks, strict=True))[parts:]
        b = [batching.element_of(array, mark) for array, mark in each]
        spec = self.operation.result.spec(of.layout, a, *b)
        return batching.make_placement(of.layout, arrays, marks, (spec,))

    @property
    def program(self):
        layout, n = self.of.layout, self.of.n
        function = self.operation.at_once
        plain = dict(self.attributes).get("products", checks.DEFAULT) in _PLAIN
        if function is None or self.of.overflows or not plain:
            return OnDevice(self)
        faster = batched_calls.is_faster_at_once(_ROWS_AT_ONCE, layout, n)
        return _AllOnDevice(self) if faster else OnDevice(self)

    def on_rank(self, coordinates, arrays):
        """Returns (a rank's part of the result, the call, b), inside a shard_map."""
        operation, parts = self.operation, self.parts
        factor, b = arrays[:parts], arrays[parts:]
        columns = b if operation.by_rows else map(results.columns, b)
        call = self.call(factor[0], *b)
        return operation.on_rank(call, coordinates, *factor, *columns), call, b

    def call(self, tiles, *b):
        """Returns the key of the cache of programs."""
        of, operation = self.of, self.operation
        a = jax.ShapeDtypeStruct(of.shape, tiles.dtype)
        spec = operation.result.spec(of.layout, a, *b)
        return programs.Call(
            operation.native, operation.program, of.layout, of.shape, of.tile, "native",
            (spec,), self.attributes, overflow=of.tile * of.overflows,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OnDevice:
    """`FactorCall` on a device that holds whole factors, inside a shard_map."""

    of: FactorCall

    def __call__(self, coordinates, *arrays):
        value, call, b = self.of.on_rank(coordinates, arrays)
        return self.of.operation.result.whole(value, call, *b)


@dataclasses.dataclass(frozen=True)
class _AllOnDevice:
    """`FactorCall` for all factors of a device's part of a batch at once, by routines on stacks."""

    of: FactorCall

    def compute_all(self, coordinates, *arrays):
        function = self.of.operation.at_once
        assert function is not None
        return function(self.of.of.layout.platform, *arrays, **dict(self.of.attributes))


@functools.partial(jax.jit, static_argnums=0)
@_compat.default_promotion()
def _inside(of, *arrays):
    """Runs a `FactorCall` on a rank's rows, inside the caller's shard_map. Jitted, because in an
    eager one XLA may abort the process when it compiles a native call in place on its own."""
    layout = of.of.layout
    value, _, b = of.on_rank(local_layouts.local_coordinates(layout), arrays)
    return of.operation.result.on_rank(value, layout, arrays[0], *b)


class LinearOperation(derivatives.Linear):
    """An operation that is linear in its right-hand sides."""

    of: Factor

    @property
    @abc.abstractmethod
    def native(self) -> FactorCall:
        """The `FactorCall` that computes the result."""

    @property
    def layout(self):
        return self.of.layout

    @property
    def program(self):
        return self.native.program

    def run(self, *arrays):
        return self.native(*arrays)

    def batched(self, size, marks, *arrays):
        *factor, b = arrays
        if not batching.is_alone(self.layout):
            return super().batched(size, marks, *arrays)
        if not marks[-1]:
            placement = batching.placement_of_last(self.layout, arrays, marks)
            b = batching.repeated(b, size)
            b = b if placement is None else placement.put(b)
        return derivatives.Spread(self, (*marks[:-1], True), size)(*factor, b)


class Apply(derivatives.ByColumns, LinearOperation):
    """An operation on right-hand sides that are the same on all ranks."""

    def __call__(self, *arrays):
        if not self.inside:
            return super().__call__(*arrays)
        *factor, b = map(jnp.asarray, arrays)
        alone = [axis for axis in _compat.varying_axes(b) if self.layout.mesh.shape[axis] == 1]
        b = jax.lax.psum(b, alone) if alone else b
        return super().__call__(
            *factor, _compat.vary(b, local_layouts.shared_axes(self.layout, *arrays))
        )

    def cotangent(self, value):
        """Returns the argument of the adjoint. If a shard_map doesn't track which values vary, a
        replicated number counts once for each rank, and the cotangent is the sum over the ranks.
        Each rank applies the adjoint to that sum, so each takes 1 / P of it."""
        layout = self.layout
        if not (layout.inside and layout.rows) or _compat.tracks_varying(layout.rows[0]):
            return value
        return jax.lax.psum(value, layout.rows) / layout.ranks


@programs.cache_plans
def _run(arrays, of, operation, attributes):
    of.check(operation, *arrays)
    run_of = FactorCall(of, operation, attributes)
    tiles, b = arrays[0], arrays[run_of.parts :]
    if of.n == 0:
        return lambda tiles, *others: operation.result.empty(
            tiles, *others[run_of.parts - 1 :], local=False
        )
    layout = meshes.located(of.routine, of.layout, arrays)
    plugins.load(layout.platform)
    here = dataclasses.replace(run_of, of=dataclasses.replace(of, layout=layout))
    run = programs.runner(here.call(tiles, *b), arrays)
    return lambda *arrays: run(*arrays)[0]
