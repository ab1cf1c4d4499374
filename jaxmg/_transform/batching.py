"""The batching rules under ``jax.vmap``: a `Batchable` has one.

A rule takes the arrays with the batch in front, if they have one, and returns results that all have
one. As in derivatives.py it looks at the level below: at the caller's own arrays in an eager call.
Where a matrix fits on a device, each device takes its part of the batch, one matrix after the other
(`spread`). Else all devices take one matrix after the other (`in_turn`), as they do inside a
shard_map of the caller's, where each has its rows of all of them.
"""

import abc
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import checks, ffi, layouts

# Matrices that are smaller are each faster on one device than on several, and so are as many as
# there are devices of any order.
_WORTH_SHARING = 4096
# How many matrices of one order a device must have room for to factor, invert or diagonalise it.
_MATRICES = 6


@dataclasses.dataclass(frozen=True)
class Placement:
    """The shardings of the results of a batch on a mesh of explicit axes.

    Attributes:
        mesh: the mesh.
        axes: those that the batch is sharded over; the batch is in front.
        specs: of the results for one of the batch, leaf by leaf; None: all are as ``square`` where
            they are square matrices, and replicated otherwise.
        square: a spec.
    """

    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
    axes: tuple
    specs: tuple | None
    square: P = P()

    def of_results(self, results):
        """The spec of each leaf."""
        leaves, tree = jax.tree.flatten(results)
        specs = self.specs or [
            self.square if x.ndim == 3 and x.shape[1] == x.shape[2] else P() for x in leaves
        ]
        front = P(self.axes or None)
        return jax.tree.unflatten(
            tree, [P(*front, *layouts.without(spec, self.axes)) for spec in specs]
        )

    def put(self, results):
        """``results``, which lie in any way, so."""
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec),
            self.of_results(results),
            is_leaf=lambda value: isinstance(value, P),
        )
        return jax.tree.map(_compat.reshard, results, shardings)


def make_placement(layout, arrays, marks, specs, square=None):
    """The `Placement` of results for a batch of arrays, as the batch lies; None where no type says
    how arrays of this layout lie."""
    if not layout.explicit:
        return None
    specs = None if specs is None else tuple(P() if spec is None else spec for spec in specs)
    axes = axes_in_front(arrays, marks)
    return Placement(layout.mesh, axes, specs, square or P())


def placement_of_last(layout, arrays, marks):
    """The `Placement` of a result that lies as the last of the arrays does."""
    return make_placement(
        layout, arrays, marks, (layouts.spec_of(of_one(arrays[-1], marks[-1]), layout),)
    )


def axes_in_front(arrays, marks):
    """The explicit axes that a batch is sharded over."""
    each = (layouts.leading_axes(x) for x, mark in zip(arrays, marks, strict=True) if mark)
    return next((axes for axes in each if axes), ())


def of_one(array, mark):
    """Shape, dtype and sharding of one of a batch, or of an array without one."""
    explicit = layouts.explicit_spec(array)
    shape = array.shape[1:] if mark else array.shape
    if explicit is None:
        return jax.ShapeDtypeStruct(shape, array.dtype)
    mesh, spec = explicit
    sharding = NamedSharding(mesh, P(*spec[1:]) if mark else spec)
    return jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding)


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
    if not _compat.TRANSFORMS or not layouts.traced(arrays):
        return of(*arrays)
    if any(_compat.transformation(array) == "vmap" for array in arrays):
        return _below(of, arrays)
    # Arrays that nothing traces stay outside, where they can be looked at.
    moving = [i for i, array in enumerate(arrays) if isinstance(array, Tracer)]
    moved = [arrays[i] for i in moving]
    arrays = without(arrays, moving)
    function = jax.custom_batching.custom_vmap(lambda *values: of(*put(arrays, moving, values)))

    @function.def_vmap
    def _(size, marks, *values):
        marks = tuple(put([False] * len(arrays), moving, marks))
        results = batchable(_Batch(of, True, size, marks), *put(arrays, moving, values))
        return results, jax.tree.map(lambda _: True, results)

    return function(*moved)


def without(arrays, positions):
    """``arrays`` with None at these positions, for functions that outlive the trace of these."""
    return put(arrays, positions, [None] * len(positions))


def put(arrays, positions, values):
    """``arrays`` with ``values`` at these positions."""
    result = list(arrays)
    for i, value in zip(positions, values, strict=True):
        result[i] = value
    return result


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
        larger = _Batch(self.of, self.settled or settled, size * self.size, both)
        outer = axes_in_front(arrays, marks)
        inner = axes_in_front(
            [of_one(array, mark) for array, mark in zip(arrays, marks, strict=True)], self.marks
        )
        inner = tuple(axis for axis in inner if axis not in outer)
        each = zip(arrays, self.marks, marks, strict=True)
        results = larger(*(_merge(size, self.size, outer + inner, *one) for one in each))
        return jax.tree.map(lambda x: _split(x, (size, self.size), outer, inner), results)


def _merge(outer_size, inner_size, axes, array, inner, outer):
    """An array of a batch of batches as one of a larger batch, which is sharded over explicit
    ``axes``; ``inner`` and ``outer`` say of which of the two it has dimensions in front."""
    if not (inner or outer):
        return array
    rest = array.shape[outer + inner :]
    missing = tuple(i for i, there in enumerate((outer, inner)) if not there)
    shapes = (outer_size, inner_size, *rest), (outer_size * inner_size, *rest)
    explicit = layouts.explicit_spec(array)
    if explicit is None:
        return _reshape(missing, shapes, array)
    mesh, spec = explicit
    spec = P(axes or None, *layouts.without(P(*spec[outer + inner :]), axes))
    return _reshape_explicit(missing, shapes, mesh, spec, array)


def _split(result, sizes, outer, inner):
    """A result for a larger batch as one of a batch of batches, of which explicit axes shard the
    ``outer`` and the ``inner`` one."""
    shapes = result.shape, (*sizes, *result.shape[1:])
    explicit = layouts.explicit_spec(result)
    if explicit is None:
        return _reshape((), shapes, result)
    mesh, spec = explicit
    spec = P(outer or None, inner or None, *spec[1:])
    return _reshape_explicit((), shapes, mesh, spec, result)


def _reshape(missing, shapes, array):
    """``array`` with the dimensions that are missing, broadcast to one shape, and in another."""
    whole, shape = shapes
    return jnp.broadcast_to(jnp.expand_dims(array, missing), whole).reshape(shape)


def _reshape_explicit(missing, shapes, mesh, spec, array):
    """`_reshape` in this spec. Explicit axes don't allow every reshape."""
    with _compat.entered(mesh):
        return _reshape_automatically(missing, shapes, mesh, spec, array)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _reshape_automatically(missing, shapes, mesh, spec, array):
    return layouts.automatically(mesh, functools.partial(_reshape, missing, shapes), spec, array)


def in_front(arrays, dimensions):
    """(how many there are of a batch, which arrays have it, the arrays with it in front)"""
    marks = [dimension is not None for dimension in dimensions]
    each = list(zip(arrays, dimensions, marks, strict=True))
    size = next(array.shape[dimension] for array, dimension, mark in each if mark)
    moved = [jnp.moveaxis(x, dimension, 0) if mark else x for x, dimension, mark in each]
    return size, tuple(marks), moved


def is_batch(a):
    """Whether ``a`` is a matrix with leading dimensions, where they are taken."""
    return bool(checks.ALL) and getattr(a, "ndim", 0) > 2


def over_leading(routine, names, function, arrays, pad=True, dtypes=checks.DTYPES, square=True):
    """``function`` of each matrix of a batch with leading dimensions, as NumPy has them: those of
    the others are the same, or none."""
    checks.batch(routine, names[0], arrays[0], pad, square)
    leading = arrays[0].shape[:-2]
    axes = []
    for name, array in zip(names, arrays, strict=False):
        checks.array(routine, name, array, checks.ALL, dtypes)
        if array.ndim > 2 and array.shape[:-2] != leading:
            raise ValueError(
                f"{routine}: {name} must have the leading dimensions of {names[0]}, {leading}, or "
                f"be one for all of its matrices; it has shape {tuple(array.shape)}"
            )
        axes.append(0 if array.ndim > 2 else None)
    axes += [None] * (len(arrays) - len(axes))  # of scalars behind them
    for _ in leading:
        function = jax.vmap(function, axes)
    return function(*_alike_in_front(arrays, len(leading)))


def _alike_in_front(arrays, count):
    """The arrays with their first ``count`` dimensions, where they have them, sharded alike over
    explicit axes, as vmap wants them, and with none of these axes elsewhere."""
    explicit = [layouts.explicit_spec(array) for array in arrays]
    batches = [array.ndim > 2 for array in arrays]
    known = [one for one, batch in zip(explicit, batches, strict=True) if one and batch]
    lead = next((P(*spec[:count]) for _, spec in known if any(spec[:count])), None)
    if lead is None:
        return arrays
    mesh = known[0][0]
    axes = layouts.axes_in(lead)

    def put(array, known, batch):
        spec = P(*(None,) * array.ndim) if known is None else known[1]
        rest = layouts.without(P(*spec[count if batch else 0 :]), axes)
        wanted = P(*lead, *rest) if batch else rest
        if wanted == spec:
            return array
        move = _compat.reshard if isinstance(array, Tracer) else jax.device_put
        return move(array, NamedSharding(mesh, wanted))

    return [put(*each) for each in zip(arrays, explicit, batches, strict=True)]


def repeated(results, size):
    """Results without a batch as a batch of the same ones."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), results)


def to_columns(b):
    """A batch of right-hand sides, (size, n) or (size, n, k), as those of one system."""
    explicit = layouts.explicit_spec(b)
    if explicit is not None:  # which every device needs all of
        b = _compat.reshard(b, NamedSharding(explicit[0], P()))
    return b.T if b.ndim == 2 else jnp.moveaxis(b, 0, 1).reshape(b.shape[1], -1)


def from_columns(x, b):
    """The results for `to_columns` as a batch again."""
    explicit = layouts.explicit_spec(x)
    if explicit is not None:
        x = _compat.reshard(x, NamedSharding(explicit[0], P()))
    if b.ndim == 2:
        return x.T
    return jnp.moveaxis(x.reshape(b.shape[1], b.shape[0], b.shape[2]), 1, 0)


def alone(layout):
    """``layout`` with every device for itself, as a rank of its own."""
    return layouts.Layout(layout.mesh, (), tuple(layout.mesh.axis_names), P(None, None))


def is_alone(layout):
    """Whether each device has whole matrices."""
    return layout.ranks == 1 and not layout.inside


def had_better_spread(layout, size, n, dtype):
    """Whether it is faster that each device takes its part of so many matrices of order n."""
    room = layout.memory
    if room is not None and _MATRICES * n * n * jnp.dtype(dtype).itemsize > room:
        return False
    return size >= layout.mesh.size or (size > 1 and n < _WORTH_SHARING)


def spread(layout, function, size, marks, *arrays, placement=None):
    """``function(coordinates, *arrays)`` for each of a batch, on the devices of ``layout``, which
    are `alone`: each device computes its part of the batch, one after the other, or all at once by
    the function's ``of_all``. The function is hashable.

    Args:
        placement: the `Placement` of the results, on explicit axes.
    """
    if not size:
        return _of_none(functools.partial(_spread, layout, function, 1), marks, arrays, placement)
    with _compat.entered(layout.mesh):
        if placement is not None:
            return _spread_explicit(
                layout.automatic, function, size, tuple(marks), placement, *arrays
            )
        return _spread(layout, function, size, tuple(marks), *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _spread_explicit(layout, function, size, marks, placement, *arrays):
    run = functools.partial(_spread, layout, function, size, marks)
    with _compat.entered(layout.mesh):
        results = jax.eval_shape(run, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays))
    return layouts.automatically(placement.mesh, run, placement.of_results(results), *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
@_compat.default_promotion()
def _spread(layout, function, size, marks, *arrays):
    share = -(-size // layout.mesh.size)
    extra = share * layout.mesh.size - size
    by_batch = P(layout.others)

    def on_device(coordinates, *arrays):
        if hasattr(function, "of_all"):
            each = zip(arrays, marks, strict=True)
            stacks = [x if mark else jnp.broadcast_to(x, (share, *x.shape)) for x, mark in each]
            return function.of_all(coordinates, *stacks)
        return _each(functools.partial(function, coordinates), marks, arrays)

    padded = [
        jnp.pad(array, [(0, extra)] + [(0, 0)] * (array.ndim - 1)) if mark else array
        for array, mark in zip(arrays, marks, strict=True)
    ]
    in_specs = tuple(by_batch if mark else P() for mark in marks)
    results = ffi.over_ranks(layout, on_device, in_specs, by_batch)(*padded)
    return jax.tree.map(lambda x: x[:size], results)


def in_turn(function, marks, *arrays, placement=None):
    """``function(*arrays)`` of each of a batch, one after the other; the function is hashable.

    Args:
        placement: the `Placement` of the results, on explicit axes.
    """
    each = list(zip(arrays, marks, strict=True))
    if any(mark and not len(array) for array, mark in each):
        return _of_none(functools.partial(_in_turn, function), marks, arrays, placement)
    whole = [_unshard_batch(array) if mark else array for array, mark in each]
    results = _in_turn(function, tuple(marks), *whole)
    return results if placement is None else placement.put(results)


def _of_none(run, marks, arrays, placement):
    """The results for a batch of 0, which not all compilers take: none of ``run(marks, *arrays)``
    of a batch of one."""
    ones = (
        jax.ShapeDtypeStruct((1, *x.shape[1:]) if mark else x.shape, x.dtype)
        for x, mark in zip(arrays, marks, strict=True)
    )
    one = jax.eval_shape(functools.partial(run, tuple(marks)), *ones)
    results = jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), one)
    return results if placement is None else placement.put(results)


@functools.partial(jax.jit, static_argnums=(0, 1))
@_compat.default_promotion()
def _in_turn(function, marks, *arrays):
    return _each(function, marks, arrays)


def _unshard_batch(array):
    """``array`` with no explicit axis along the batch, which a loop can't be over; such axes shard
    the next dimension where they divide it."""
    axes, explicit = layouts.leading_axes(array), layouts.explicit_spec(array)
    if not axes or explicit is None:
        return array
    mesh, spec = explicit
    spec = P(None, *spec[1:])
    ranks = math.prod(mesh.shape[axis] for axis in axes)
    if array.ndim > 2 and spec[1] is None and array.shape[1] % ranks == 0:
        spec = P(None, axes, *spec[2:])
    return _compat.reshard(array, NamedSharding(mesh, spec))


def _each(function, marks, arrays):
    def one(stacked):
        values = iter(stacked)
        each = zip(arrays, marks, strict=True)
        return function(*(next(values) if mark else array for array, mark in each))

    return jax.lax.map(one, [x for x, mark in zip(arrays, marks, strict=True) if mark])
