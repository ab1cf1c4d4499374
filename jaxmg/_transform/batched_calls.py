"""Batching rules of calls of a routine. Either each device computes its matrices of the batch, one
after the other or all at once, or all devices together compute one matrix after the other."""

import collections.abc
import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import backends, checks, execute, programs, record, results
from jaxmg._call.arguments import Arguments
from jaxmg._layouts import layouts, local_layouts, meshes, shardings
from jaxmg._stacks import batching, choice

# Backends that name no vendor's solver.
_OPEN_BACKENDS = ("auto", "native")


def results_alone(call, results):
    """Returns the results unchanged."""
    return results


@dataclasses.dataclass(frozen=True)
class Execution(batching.Batchable):
    """`execute.run` as a function of the arrays.

    Attributes:
        pack: as in `dispatch`.
    """

    routine: record.Routine
    arguments: Arguments
    pack: collections.abc.Callable = results_alone

    def __call__(self, *arrays):
        return self.pack(*execute.run(self.routine, arrays, self.arguments))

    def batched(self, settled, size, marks, *arrays):
        return self.plan(settled, size, marks, *arrays)(*arrays)

    def plan(self, settled, size, marks, *arrays):
        """Returns the function that computes the results for batches such as this one."""
        routine = self.routine
        ones = [batching.element_of(x, mark) for x, mark in zip(arrays, marks, strict=True)]
        if not any(marks[: routine.matrices]):
            return functools.partial(self._columns, size, ones)
        (rows, n), dtype = arrays[0].shape[-2:], arrays[0].dtype
        arguments = element_arguments(arrays, marks, self.arguments)
        layout = execute.resolve_layout(routine, arrays, arguments)
        placement = self._make_placement(layout, ones, marks, arrays)
        free = not (settled and routine.factor)
        faster = free and n == rows > 0 and batching.is_spread_faster(layout, size, n, dtype)
        if layout.is_whole or faster:
            layout = batching.alone(layout)
            one = _OnDevice(routine, arguments, self.pack, layout)
            function = _all_at_once(one, n, size) or one
            return functools.partial(
                batching.spread, layout, function, size, marks, placement=placement
            )
        each = dataclasses.replace(self, arguments=arguments)
        return functools.partial(batching.in_turn, each, marks, placement=placement)

    def _make_placement(self, layout, ones, marks, arrays):
        """Returns the `Placement` of a batch's results; ``ones`` are the arrays of one element."""
        if self.routine.factor:
            square = layout.result_spec(ones[0].shape)
            return batching.make_placement(layout, arrays, marks, None, square)
        select, _ = execute.selection(
            self.routine, self.arguments.outputs, dict(self.arguments.options)
        )
        specs = select([result.spec(layout, *ones) for result in self.routine.results])
        specs = specs if type(specs) is tuple else (specs,)
        return batching.make_placement(layout, arrays, marks, specs)

    def _columns(self, size, ones, a, b):
        """Returns the results for one matrix and a batch of right-hand sides."""
        layout = execute.resolve_layout(self.routine, (a, b), self.arguments)
        placement = self._make_placement(layout, ones, (False, True), (a, b))
        values = self(a, batching.to_columns(b))
        options = dict(self.arguments.options)
        names = execute.requested(self.routine, self.arguments.outputs, options)
        values = [
            batching.from_columns(value, b) if name == "x" else batching.repeated(value, size)
            for name, value in zip(names, (values,) if len(names) == 1 else values, strict=True)
        ]
        columns = values[0] if len(names) == 1 else tuple(values)
        return columns if placement is None else placement.put(columns)


def element_arguments(arrays, marks, arguments):
    """Returns the arguments for each matrix of a batch. Marked arrays have the batch as leading
    dimension."""
    mesh, spec = arguments.mesh, arguments.spec
    if isinstance(mesh, layouts.Layout):
        return arguments._replace(donate=False)
    if mesh is None or mesh.empty:
        mesh = meshes.mesh_of(arguments.caller, arrays)
    known = shardings.known_spec(arrays[0], mesh) if spec is None else None
    if known is not None:
        spec = P(*known[1:] if marks[0] else known)
    return arguments._replace(mesh=mesh, spec=spec, donate=False)


@dataclasses.dataclass(frozen=True)
class LocalExecution(batching.Batchable):
    """`execute.run_on_rank` for a rank's rows and right-hand sides as columns, inside the caller's
    shard_map. All ranks compute the matrices of a batch one after the other."""

    call: programs.Call

    def __call__(self, *arrays):
        return execute.run_on_rank(
            self.call, local_layouts.local_coordinates(self.call.layout), *arrays
        )

    def batched(self, settled, size, marks, *arrays):
        routine = self.call.routine
        if any(marks[: routine.matrices]):
            return batching.in_turn(self, tuple(marks), *arrays)
        a, b = arrays
        values = self(a, batching.to_columns(b))
        return tuple(
            batching.from_columns(value, b)
            if isinstance(result, results.Solution)
            else batching.repeated(value, size)
            for result, value in zip(routine.results, values, strict=True)
        )


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """The routine on a device that holds whole matrices, inside a shard_map.

    Attributes:
        layout: an `alone` layout.
    """

    routine: record.Routine
    arguments: Arguments
    pack: collections.abc.Callable
    layout: layouts.Layout

    def __call__(self, coordinates, *arrays):
        return self.select(self.make_call(arrays[0]), self.compute(coordinates, *arrays))

    def make_call(self, a):
        """Returns the `programs.Call` for a matrix of the shape and dtype of ``a``."""
        routine, arguments, layout = self.routine, self.arguments, self.layout
        backend = backends.resolve(routine.native, layout, arguments.backend, a, arguments.caller)
        attributes = execute.resolve_attributes(routine, arguments, a.dtype, backend, layout)
        tile = checks.tile(arguments.caller, arguments.T_A)
        return execute.make_call(routine, layout, a, tile, backend, attributes)

    def compute(self, coordinates, a, *others):
        """Computes all results of the routine."""
        routine, call = self.routine, self.make_call(a)
        matrices, b = others[: routine.matrices - 1], others[routine.matrices - 1 :]
        values = execute.run_on_rank(call, coordinates, a, *matrices, *map(results.columns, b))
        return tuple(
            result.whole(value, call, *b)
            for result, value in zip(routine.results, values, strict=True)
        )

    def select(self, call, values):
        """Selects the public function's results from all results."""
        select, _ = execute.selection(
            self.routine, self.arguments.outputs, dict(self.arguments.options)
        )
        return self.pack(call, select(values))


def _all_at_once(one, n, count):
    """Returns the `_AtOnce` for ``count`` matrices of order n; None if one after the other is
    faster, or if the caller requested another backend or precision."""
    operations, options = one.routine.at_once, dict(one.arguments.options)
    if not operations or one.arguments.backend not in _OPEN_BACKENDS:
        return None
    if not _has_plain_products(options):
        return None
    operation = operations[0 if options.get("return_eigenvectors", True) else -1]
    if not is_faster_at_once(operation.rows, one.layout, n, count):
        return None
    return _AtOnce(one, operation.ways[choice.AT_ONCE])


def is_faster_at_once(rows, layout, n, count=sys.maxsize):
    """Returns whether it is faster, by these rows, to compute ``count`` matrices of order n, which
    the devices of ``layout`` share, at once. False for several CPU devices: JAX's LAPACK kernels
    wait in a thread of XLA's pool for other threads of it, and several devices at a time can lock
    up (seen with jaxlib 0.10.2)."""
    if layout.platform == "cpu" and layout.mesh.size > 1:
        return False
    each = -(-count // layout.mesh.size)
    return choice.choose(rows, layout.platform, n, each) == choice.AT_ONCE


def _has_plain_products(options):
    """Returns whether JAX's routines have the precision that the options request."""
    name = checks.plain_precision(options.get("precision"))
    return checks.PRODUCTS.get(name) in (checks.PRODUCTS["highest"], checks.DEFAULT)


@dataclasses.dataclass(frozen=True)
class _AtOnce:
    """Computes all matrices of a device's part of a batch by an operation on stacks. The native
    code computes failed ones again, to get their status.

    Attributes:
        one: the native code for one matrix.
    """

    one: _OnDevice
    function: collections.abc.Callable

    def compute_all(self, coordinates, *stacks):
        values, failed = self.function(self.one.layout.platform, *stacks)
        call = self.one.make_call(jax.ShapeDtypeStruct(stacks[0].shape[1:], stacks[0].dtype))
        if failed is not None:
            values = jax.lax.cond(
                jnp.any(failed),
                lambda: self._again(coordinates, stacks, values, failed),
                lambda: values,
            )
        return self.one.select(call, values)

    def _again(self, coordinates, stacks, values, failed):
        def each(one):
            arrays, values, failed = one
            return jax.lax.cond(
                failed, lambda: self.one.compute(coordinates, *arrays), lambda: values
            )

        return jax.lax.map(each, (stacks, values, failed))
