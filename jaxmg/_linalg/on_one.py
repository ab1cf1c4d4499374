"""Runs programs of `jaxmg.linalg` on one of several CPU devices, for all of them.

    rows of all ranks  --root_exchange-->  the first rank: the program  --root_exchange-->  results

The devices of a process share its memory and its cores. One device computes with a small matrix in
less time than one rendezvous of all ranks takes, and a program on all ranks has several of these.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, by_one, ffi, programs
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins
from jaxmg._transform import batching, derivatives

# The native routine.
NATIVE = "root_exchange"
# This is faster for matrices with at most MOST^2 elements. 0: never.
MOST = 512


def is_faster(layout, shape):
    """Whether one device runs a program on a matrix of this shape for all."""
    # A rank's part with a single row would be as large as the whole matrix.
    if shape[0] < 2 or not 0 < math.prod(shape) <= MOST**2:
        return False
    return by_one.is_possible(layout)


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
    """A `compositions.Program` that one device runs for all. Its derivatives and batches are those
    of the program on all devices."""

    program: Any

    def __call__(self, call, *arrays):
        value = _Value(self.program, call)
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(value, *arrays),
            derivatives.as_composed(value.on_all),
            *arrays,
        )


@dataclasses.dataclass(frozen=True)
class _Value(batching.Batchable):
    program: Any
    call: Any

    def on_all(self, *arrays):
        return self.program(self.call, *arrays)

    def batched(self, settled, size, marks, *arrays):
        return jax.vmap(self.on_all, [0 if mark else None for mark in marks])(*arrays)

    def __call__(self, a, *others):
        layout = self.call.layout
        # What the caller has on all devices needs no exchange.
        gathers = layout.spec != P(None, None)
        shapes = self.call.shape, *(x.shape for x in others)
        arrays = [
            jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, (a, *others), strict=True)
        ]
        # Traced once, for the context in the `shard_map`.
        mesh = layout.mesh.abstract_mesh
        mesh = mesh.update_axis_types(dict.fromkeys(mesh.axis_names, AxisType.Manual))
        with _compat.alone(), _compat.use_abstract_mesh(mesh):
            jaxpr, shapes = jax.make_jaxpr(self._compute, return_shape=True)(*arrays)
        # By rows where a result lies so, and else on all devices.
        specs = tuple(
            layout.row_spec
            if spec == layout.row_spec and len(x.shape) == 2 and x.shape[0] % layout.ranks == 0
            else P()
            for spec, x in zip(self.call.specs, shapes, strict=True)
        )

        def on_rank(coordinates, a, *others):
            if gathers:
                (a,) = _exchange(layout, coordinates, True, (a,), arrays[:1])
            values = jax.lax.cond(
                coordinates.reshape(2)[0] == 0,
                jaxpr_as_fun(jaxpr),
                lambda *_: [jnp.zeros(x.shape, x.dtype) for x in shapes],
                a,
                *others,
            )
            parts = [
                x if spec == P() else x.update(shape=(x.shape[0] // layout.ranks, *x.shape[1:]))
                for x, spec in zip(shapes, specs, strict=True)
            ]
            moving = [i for i, x in enumerate(parts) if x.size]
            if not moving:
                return tuple(values)
            moved = _exchange(
                layout, coordinates, False, [values[i] for i in moving], [parts[i] for i in moving]
            )
            return tuple(batching.put([jnp.zeros(x.shape, x.dtype) for x in parts], moving, moved))

        of_matrix = layout.row_spec if gathers else P()
        mapped = ffi.over_ranks(layout, on_rank, (of_matrix, *(P() for _ in others)), specs)
        return mapped(blocks.split_rows(a, layout) if gathers else a, *others)

    def _compute(self, *arrays):
        """Runs the program on one device."""
        layout = dataclasses.replace(layouts.alone(self.call.layout.mesh), solo=True)
        return tuple(self.program(dataclasses.replace(self.call, layout=layout), *arrays))


def _exchange(layout, coordinates, gathers, arrays, shapes):
    """Moves parts of arrays to the first rank, or arrays of the first rank to all ranks."""
    plugins.load(layout.platform)
    return ffi.call(
        f"jaxmg_{NATIVE}", layout, 0, "native", (coordinates, *arrays), tuple(shapes),
        in_place=0, differing=len(shapes), n=1, gathers=gathers,
    )  # fmt: skip
