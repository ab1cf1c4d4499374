"""Runs programs of `jaxmg.linalg` on one of several CPU devices, for all of them.

The devices of a process share its memory and its cores. One device computes with a small matrix in
less time than one rendezvous of all ranks takes, and a program on all ranks has several of these.
"""

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from jaxmg._call import by_one, programs
from jaxmg._layouts import layouts
from jaxmg._linalg import first
from jaxmg._stacks import batching
from jaxmg._transform import derivatives

# This is faster for matrices with at most MOST^2 elements. 0: never.
MOST = 512


def is_faster(layout, shape):
    """Whether one device runs a program on a matrix of this shape for all."""
    return math.prod(shape) <= MOST**2 and is_possible(layout, shape)


def is_possible(layout, shape):
    """Whether one device can run a program on a matrix of this shape for all."""
    # A rank's part with a single row would be as large as the whole matrix.
    return shape[0] > 1 and math.prod(shape) > 0 and by_one.is_possible(layout)


def runner(call, arrays):
    """Returns the function that runs a `compositions.Program` on one device for all: for traced
    arrays in their trace, for others by `by_one`."""
    traced = dataclasses.replace(call, program=OnOne(call.program))
    if layouts.traced(arrays):
        return programs.runner(traced, arrays)
    alone = dataclasses.replace(call, layout=by_one.layout_of_first(call.layout))
    return by_one.runner(
        alone, arrays, call.layout, call.specs, lambda: programs.runner(traced, arrays)
    )


@dataclasses.dataclass(frozen=True)
class OnOne:
    """A `compositions.Program` that one device runs for all, and its derivatives. Its batches are
    those of the program on all devices."""

    program: Any

    def __call__(self, call, *arrays):
        value = _Value(self.program, call)
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(value, *arrays), value.rule, *arrays
        )


@dataclasses.dataclass(frozen=True)
class _Value(batching.Batchable):
    program: Any
    call: Any

    def batched(self, settled, size, marks, *arrays):
        def on_all(*arrays):
            return self.program(self.call, *arrays)

        return jax.vmap(on_all, [0 if mark else None for mark in marks])(*arrays)

    def __call__(self, *arrays):
        return self._first(arrays)(*arrays)

    def rule(self, primals, tangents):
        return derivatives.as_composed(self._first(primals))(primals, tangents)

    def _first(self, arrays):
        """Returns the `first.First` of these arrays."""
        layout = self.call.layout
        shapes = self.call.shape, *(x.shape for x in arrays[1:])
        jaxpr = first.trace(
            layout, self._compute,
            *(jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, arrays, strict=True)),
        )  # fmt: skip
        # What the caller has on all devices needs no exchange.
        matrix = first.WHOLE if layout.spec == P(None, None) else first.ROWS
        # Results whose spec is by rows are returned by rows, all others whole on all devices.
        results = tuple(
            first.kind_of(first.ROWS, x.shape, layout)
            if spec == layout.row_spec and len(x.shape) == 2
            else first.WHOLE
            for spec, x in zip(self.call.specs, jaxpr.out_avals, strict=True)
        )
        operands = (matrix, *(first.WHOLE for _ in arrays[1:]))
        return first.First(layout, jaxpr, operands, results)

    def _compute(self, *arrays):
        """Runs the program on one device."""
        layout = dataclasses.replace(layouts.alone(self.call.layout.mesh), solo=True)
        return tuple(self.program(dataclasses.replace(self.call, layout=layout), *arrays))
