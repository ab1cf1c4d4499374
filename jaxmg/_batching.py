"""What ``jax.vmap`` makes of the functions: a `Batchable` has a rule.

A rule gets the arrays with the batch in front, those that have one, and returns results that all
have one. As in _derivatives.py it looks at the level below, at the caller's own arrays where he
calls eagerly. Of many matrices each device takes its share, one after the other, where one fits a
device (`spread`); else all devices take one after the other (`in_turn`), as they do inside a
shard_map of the caller's, where each has its rows of all of them.
"""

import abc
import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.sharding import PartitionSpec as P

from jaxmg import _checks, _compat, _mesh, _native

# Matrices that are smaller are each faster on one device than on several, and so are as many as
# there are devices of any order.
_WORTH_SHARING = 4096
# How many matrices of one order a device must have room for to factor, invert or diagonalise it.
_MATRICES = 6


class Batchable(abc.ABC):
    """A function of arrays, hashable, that has a rule for batches."""

    @abc.abstractmethod
    def __call__(self, *arrays):
        """The results."""

    @abc.abstractmethod
    def batched(self, settled, size, marks, *arrays):
        """The results for a batch of so many; the arrays that are marked have it in front. Where
        ``settled``, a trace knows already how what is kept in the engine's layout lies."""


def batchable(of, *arrays):
    """``of(*arrays)`` of a `Batchable`."""
    if not _compat.TRANSFORMS or not _mesh.traced(arrays):
        return of(*arrays)
    if any(_compat.transformation(array) == "vmap" for array in arrays):
        return _below(of, arrays)
    # Arrays that nothing traces stay outside, where they can be looked at.
    moving = [i for i, array in enumerate(arrays) if isinstance(array, Tracer)]
    function = jax.custom_batching.custom_vmap(lambda *values: of(*put(arrays, moving, values)))

    @function.def_vmap
    def _(size, marks, *values):
        marks = tuple(put([False] * len(arrays), moving, marks))
        results = batchable(_Batch(of, True, size, marks), *put(arrays, moving, values))
        return results, jax.tree.map(lambda _: True, results)

    return function(*(arrays[i] for i in moving))


def put(arrays, places, values):
    """``arrays`` with ``values`` in these places."""
    found = list(arrays)
    for i, value in zip(places, values, strict=True):
        found[i] = value
    return found


def _below(of, arrays):
    """The results of a batch, which a primitive takes to the level below: a custom_vmap would trace
    ``of`` first, and hide where the arrays are."""
    trees = []

    def flat(size, marks, arrays):
        leaves, tree = jax.tree.flatten(batchable(_Batch(of, False, size, marks), *arrays))
        trees.append(tree)
        return leaves

    leaves = _batched.bind(*arrays, rule=flat)
    return jax.tree.unflatten(trees[-1], leaves)


def _batch(arrays, dimensions, *, rule):
    leaves = rule(*in_front(arrays, dimensions))
    return leaves, (0,) * len(leaves)


_batched = Primitive("jaxmg_batched")
_batched.multiple_results = True
batching.primitive_batchers[_batched] = _batch


@dataclasses.dataclass(frozen=True)
class _Batch(Batchable):
    """A `Batchable` for a batch; a batch of these is a larger one of that."""

    of: Batchable
    settled: bool
    size: int
    marks: tuple

    def __call__(self, *arrays):
        return self.of.batched(self.settled, self.size, self.marks, *arrays)

    def batched(self, settled, size, marks, *arrays):
        both = tuple(a or b for a, b in zip(self.marks, marks, strict=True))

        def merged(array, inner, outer):
            if not (inner or outer):
                return array
            array = array if outer else array[None]
            array = array if inner else array[:, None]
            array = jnp.broadcast_to(array, (size, self.size, *array.shape[2:]))
            return array.reshape(-1, *array.shape[2:])

        each = zip(arrays, self.marks, marks, strict=True)
        larger = _Batch(self.of, self.settled or settled, size * self.size, both)
        return jax.tree.map(
            lambda x: x.reshape(size, -1, *x.shape[1:]), larger(*(merged(*one) for one in each))
        )


def in_front(arrays, dimensions):
    """(how many there are of a batch, which arrays have it, the arrays with it in front)"""
    marks = [dimension is not None for dimension in dimensions]
    each = list(zip(arrays, dimensions, marks, strict=True))
    size = next(array.shape[dimension] for array, dimension, mark in each if mark)
    moved = [jnp.moveaxis(x, dimension, 0) if mark else x for x, dimension, mark in each]
    return size, tuple(marks), moved


def is_batch(a):
    """Whether ``a`` is a matrix with leading dimensions, where they are taken."""
    return bool(_checks.ALL) and getattr(a, "ndim", 0) > 2


def over_leading(routine, names, function, arrays, pad=True):
    """``function`` of each matrix of a batch with leading dimensions, as NumPy has them: those of
    the others are the same, or none."""
    _checks.batch(routine, names[0], arrays[0], pad)
    leading = arrays[0].shape[:-2]
    axes = []
    for name, array in zip(names, arrays, strict=False):
        _checks.array(routine, name, array, _checks.ALL)
        if array.ndim > 2 and array.shape[:-2] != leading:
            raise ValueError(
                f"{routine}: {name} must have the leading dimensions of {names[0]}, {leading}, or "
                f"be one for all of its matrices; it has shape {tuple(array.shape)}"
            )
        axes.append(0 if array.ndim > 2 else None)
    for _ in leading:
        function = jax.vmap(function, axes)
    return function(*arrays)


def repeated(results, size):
    """Results without a batch as a batch of the same ones."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), results)


def to_columns(b):
    """A batch of right-hand sides, (size, n) or (size, n, k), as those of one system."""
    return b.T if b.ndim == 2 else jnp.moveaxis(b, 0, 1).reshape(b.shape[1], -1)


def from_columns(x, b):
    """The results for `to_columns` as a batch again."""
    if b.ndim == 2:
        return x.T
    return jnp.moveaxis(x.reshape(b.shape[1], b.shape[0], b.shape[2]), 1, 0)


def alone(layout):
    """``layout`` with every device for itself, as a rank of its own."""
    return _mesh.Layout(layout.mesh, (), tuple(layout.mesh.axis_names), P(None, None))


def is_alone(layout):
    return not layout.rows and layout.mesh.size > 1


def had_better_spread(layout, size, n, dtype):
    """Whether each device had better take its own of so many matrices of order n."""
    room = layout.memory
    if room is not None and _MATRICES * n * n * jnp.dtype(dtype).itemsize > room:
        return False
    return size >= layout.mesh.size or (size > 1 and n < _WORTH_SHARING)


def spread(layout, function, size, marks, *arrays):
    """``function(place, *arrays)`` of each of a batch, on the devices of ``layout``, which are
    `alone`: every one takes its share, one after the other, or all at once by the function's
    ``of_all``. The function is hashable."""
    with _compat.entered(layout.mesh):
        return _spread(layout, function, size, tuple(marks), *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _spread(layout, function, size, marks, *arrays):
    share = -(-size // layout.mesh.size)
    extra = share * layout.mesh.size - size
    by_batch = P(layout.others)

    def on_device(place, *arrays):
        if hasattr(function, "of_all"):
            each = zip(arrays, marks, strict=True)
            stacks = [x if mark else jnp.broadcast_to(x, (share, *x.shape)) for x, mark in each]
            return function.of_all(place, *stacks)
        return _each(functools.partial(function, place), marks, arrays)

    padded = [
        jnp.pad(array, [(0, extra)] + [(0, 0)] * (array.ndim - 1)) if mark else array
        for array, mark in zip(arrays, marks, strict=True)
    ]
    in_specs = tuple(by_batch if mark else P() for mark in marks)
    results = _native.over_ranks(layout, on_device, in_specs, by_batch)(*padded)
    return jax.tree.map(lambda x: x[:size], results)


@functools.partial(jax.jit, static_argnums=(0, 1))
def in_turn(function, marks, *arrays):
    """``function(*arrays)`` of each of a batch, one after the other; the function is hashable."""
    return _each(function, marks, arrays)


def _each(function, marks, arrays):
    def one(stacked):
        found = iter(stacked)
        each = zip(arrays, marks, strict=True)
        return function(*(next(found) if mark else array for array, mark in each))

    return jax.lax.map(one, [x for x, mark in zip(arrays, marks, strict=True) if mark])
