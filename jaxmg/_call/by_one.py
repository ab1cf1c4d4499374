"""Runs eager calls with small matrices on one of several CPU devices, and starts no program on the
others.

    parts of arrays on all devices  -->  a program on the first device  -->  results on all devices

The devices of a process share its memory, so parts and results pass between them as NumPy arrays.
To start a program on several devices, and to let them wait for each other, takes longer than to
compute with many a small matrix.
"""

import collections.abc
import contextlib
import dataclasses
import itertools
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import programs
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins

# One device does a whole routine up to this order, as the plugin's `whole_solve_order`. 0: never.
MOST = 256

_NOTHING = contextlib.nullcontext()


def is_possible(layout):
    """Whether one CPU device of several can do a call on a matrix of this layout for all."""
    if layout.platform != "cpu" or layout.ranks == 1 or layout.explicit or layout.inside:
        return False
    if len(set(layout.processes)) > 1:
        return False
    if isinstance(layout.mesh, Mesh) and layout.mesh.is_multi_process:
        return False  # layout.processes is empty if each group of replicas is in one process
    return plugins.load("cpu").whole_svd_order() > 0  # unless all ranks are to work


def is_faster(routine, layout, arrays, tile, backend):
    """Whether one device runs an eager call of a routine for all. The ranks would do it in the same
    way, by the last one of them."""
    a = arrays[0]
    small = a.shape[0] == a.shape[1] <= MOST
    if not (routine.whole and small and tile == 0 and backend == "native"):
        return False
    return not layouts.traced(arrays) and is_possible(layout)


def layout_of_first(layout):
    """Returns the layout of a matrix on the first device of ``layout``."""
    mesh = Mesh(np.array([layout.mesh.devices.flat[0]]), ("rank",))
    return layouts.Layout(mesh, ("rank",), (), P("rank", None))


def runner(call, arrays, layout, specs, usual, wanted=None):
    """Returns a function like that of `programs.runner`, which runs ``call`` on its layout's only
    device and leaves the results on the devices of ``layout``.

    Args:
        specs: the spec of each result; None: replicated.
        usual: makes the function that is returned instead if arrays are traced, or if only a
            program can join their parts. The returned function calls it too if it is traced later.
        wanted: for each result, whether the caller uses it; None: all are used.
    """
    takers: list = [None if layouts.traced(arrays) else _taker(x, _device(call)) for x in arrays]
    if None in takers:
        return usual()
    counts = tuple([count for count, _ in takers])
    joined = dataclasses.replace(
        call, program=_Joined(call.program, counts), specs=(P(),) * len(specs)
    )
    takes = [take for _, take in takers]
    putters: list = [None] * len(specs)
    in_trace: list = []

    def make(parts):
        return programs.runner(joined, parts, wanted=wanted)

    def taken(arrays):
        return [part for take, array in zip(takes, arrays, strict=True) for part in take(array)]

    # A plan that is made in a trace also serves later calls.
    compiled: typing.Any = make(taken(arrays)) if _compat.trace_state_clean() else None

    def run_in_trace(*arrays):
        if not in_trace:
            in_trace.append(usual())
        return in_trace[0](*arrays)

    # One function, because a second call executes as little of this package as possible.
    def run(*arrays):
        nonlocal compiled
        if not _compat.trace_state_clean():
            return run_in_trace(*arrays)
        guarded = _compat.guards_transfers()
        if guarded:
            arrays = _put_explicitly(arrays, _device(call))
        with jax.transfer_guard("allow") if guarded else _NOTHING:
            parts = []
            for take, array in zip(takes, arrays, strict=True):
                parts.extend(take(array))
            if compiled is None:
                compiled = make(parts)
            results = compiled(*parts)
            for i, result in enumerate(results):
                if result is None:
                    continue
                if putters[i] is None:
                    spec = P() if specs[i] is None else specs[i]
                    putters[i] = _putter(result, layout.sharding(spec))
                results[i] = putters[i](np.asarray(result))
            return results

    return run


def _put_explicitly(arrays, device):
    """Puts NumPy arrays on ``device``, which ``jax.transfer_guard`` counts as a transfer. Passing
    parts between devices that share their memory isn't a transfer."""
    return [x if isinstance(x, jax.Array) else jax.device_put(x, device) for x in arrays]


def _device(call):
    return call.layout.mesh.devices.flat[0]


@dataclasses.dataclass(frozen=True)
class _Joined:
    """The program of a call whose arrays come in parts; ``counts`` has their numbers of parts."""

    program: collections.abc.Callable
    counts: tuple

    def __call__(self, call, *parts):
        rest = iter(parts)
        arrays = [list(itertools.islice(rest, count)) for count in self.counts]
        joined = [x[0] if len(x) == 1 else jnp.concatenate(x) for x in arrays]
        return self.program(dataclasses.replace(call, program=self.program), *joined)


def _taker(array, device):
    """Returns the number of parts, by rows, of arrays like ``array``, and the function that returns
    them for a program on ``device``. Returns None if the parts aren't rows."""
    if not isinstance(array, jax.Array):
        return 1, lambda array: (array,)
    if not array.is_fully_addressable:
        return None
    found: dict = {}
    for i, shard in enumerate(array.addressable_shards):
        bounds = [part.indices(n)[:2] for part, n in zip(shard.index, array.shape, strict=True)]
        if any(b != (0, n) for b, n in zip(bounds[1:], array.shape[1:], strict=True)):
            return None
        first = bounds[0][0] if bounds else 0
        if first not in found or shard.device == device:
            found[first] = i, shard.device == device
    parts = [found[first] for first in sorted(found)]
    if len(parts) == 1 and parts[0][1]:
        (i, _), alone = parts[0], isinstance(array.sharding, SingleDeviceSharding)
        return 1, lambda array: (array if alone else array.addressable_data(i),)
    # JAX would copy a part that is on another device, but uses the memory of a NumPy array.
    return len(parts), lambda array: [
        array.addressable_data(i) if here else np.asarray(array.addressable_data(i))
        for i, here in parts
    ]


def _putter(result, sharding):
    """Returns the function that puts a NumPy array like ``result`` into ``sharding``."""
    indices = list(sharding.addressable_devices_indices_map(result.shape).values())
    put = _compat.putter_of_parts(jax.device_put(np.asarray(result), sharding))
    if sharding.is_fully_replicated:
        return lambda host: put([host] * len(indices))
    return lambda host: put([host[index] for index in indices])
