"""Batching rules under ``jax.vmap``: each `Batchable` defines one.

Arrays that have a batch have it as the leading dimension, and all results of a rule have a batch.
As in derivatives.py, a rule works one transformation level below: in an eager call, on the caller's
own arrays. If a matrix fits on one device, each device computes its part of the batch, one matrix
after the other (`spread`). Otherwise all devices compute one matrix after the other (`in_turn`),
also inside the caller's shard_map, where each device has rows of every matrix.
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
from jaxmg._call import checks, ffi
from jaxmg._layouts import layouts, places, shardings
from jaxmg._stacks import sections

# A single matrix below this order is faster on one device than on several. A batch of at least as
# many matrices as devices is faster with whole matrices on the devices for any order.
_WORTH_SHARING = 4096
# A device can factor, invert or diagonalise a matrix if it has room for this many matrices like it.
_MATRICES = 6


@dataclasses.dataclass(frozen=True)
class Placement:
    """The shardings of the results of a batch on a mesh of explicit axes.

    Attributes:
        mesh: the mesh.
        axes: the axes over which the batch, the leading dimension, is sharded.
        specs: the specs of the results for one element of the batch, leaf by leaf. None: square
            matrices have the spec ``square``, other results are replicated.
        square: the spec of square matrices, if ``specs`` is None.
    """

    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
    axes: tuple
    specs: tuple | None
    square: P = P()

    def result_specs(self, results):
        """Returns the spec of each leaf."""
        leaves, tree = jax.tree.flatten(results)
        specs = self.specs or [self.square if _are_square(x) else P() for x in leaves]
        front = P(self.axes or None)
        return jax.tree.unflatten(
            tree, [P(*front, *layouts.without(spec, self.axes)) for spec in specs]
        )

    def put(self, results):
        """Reshards ``results`` to these specs."""
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec),
            self.result_specs(results),
            is_leaf=lambda value: isinstance(value, P),
        )
        return jax.tree.map(_compat.reshard, results, shardings)


def _are_square(stack):
    """Whether ``stack`` consists of square matrices of an inexact dtype."""
    square = stack.ndim == 3 and stack.shape[1] == stack.shape[2]
    return square and jnp.issubdtype(stack.dtype, jnp.inexact)


def make_placement(layout, arrays, marks, specs, square=None):
    """Returns the `Placement` of results that follows from the batch's sharding. Returns None if
    the layout has automatic axes, whose shardings aren't part of types."""
    if not layout.explicit:
        return None
    specs = None if specs is None else tuple(P() if spec is None else spec for spec in specs)
    axes = axes_in_front(arrays, marks)
    return Placement(layout.mesh, axes, specs, square or P())


def placement_of_last(layout, arrays, marks):
    """Returns the `Placement` of a result that is sharded like the last array."""
    return make_placement(
        layout, arrays, marks, (shardings.spec_of(element_of(arrays[-1], marks[-1]), layout),)
    )


def axes_in_front(arrays, marks):
    """Returns the explicit axes over which a batch is sharded."""
    each = (shardings.leading_axes(x) for x, mark in zip(arrays, marks, strict=True) if mark)
    return next((axes for axes in each if axes), ())


def element_of(array, mark):
    """Returns shape, dtype and sharding of one element of a batch, or of an array without batch."""
    explicit = shardings.explicit_spec(array)
    shape = array.shape[1:] if mark else array.shape
    if explicit is None:
        return jax.ShapeDtypeStruct(shape, array.dtype)
    mesh, spec = explicit
    sharding = NamedSharding(mesh, P(*spec[1:]) if mark else spec)
    return jax.ShapeDtypeStruct(shape, array.dtype, sharding=sharding)


class Batchable(abc.ABC):
    """A hashable function of arrays that has a batching rule.

    Attributes:
        by_jax: whether JAX may trace, differentiate and batch the operations of the function one by
            one. The rule then only applies if the arrays of a call are in a batch.
    """

    @property
    def by_jax(self) -> bool:
        return False

    @abc.abstractmethod
    def __call__(self, *arrays):
        """Returns the results for arrays without a batch."""

    @abc.abstractmethod
    def batched(self, settled, size, marks, *arrays):
        """Returns the results for a batch.

        Args:
            settled: whether the trace has already fixed the placement of factors.
            size: the number of elements in the batch.
            marks: for each array, whether it has a batch as its leading dimension.
        """


def batchable(of, *arrays):
    """Calls the `Batchable` ``of`` on arrays, with its batching rule under ``vmap``."""
    if not _compat.TRANSFORMS or not layouts.traced(arrays):
        return of(*arrays)
    if _compat.batched_here(arrays):
        return below(
            lambda size, marks, arrays: batchable(_Batch(of, False, size, marks), *arrays), arrays
        )
    if of.by_jax:
        return of(*arrays)
    # Arrays that aren't traced are closed over, so that rules can read their shardings.
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
    """Returns ``arrays`` with None at these positions, for functions that outlive these tracers."""
    return put(arrays, positions, [None] * len(positions))


def put(arrays, positions, values):
    """Returns ``arrays`` with ``values`` at these positions."""
    result = list(arrays)
    for i, value in zip(positions, values, strict=True):
        result[i] = value
    return result


def below(function, arrays):
    """Calls ``function(size, marks, arrays)`` with the batched arrays below these tracers of vmap.

    Uses a primitive that binds at the transformation level below. A custom_vmap would trace
    ``function`` first, and so hide the arrays' shardings.
    """
    trees = []

    def flat(size, marks, arrays):
        leaves, tree = jax.tree.flatten(function(size, marks, arrays))
        trees.append(tree)
        return leaves

    leaves = _batched.bind(*arrays, rule=flat)
    return jax.tree.unflatten(trees[-1], leaves)


def _batch(arrays, dimensions, *, rule):
    leaves = rule(*sections.in_front(arrays, dimensions))
    return leaves, (0,) * len(leaves)


_batched = Primitive("jaxmg_batched")
_batched.multiple_results = True
batching.primitive_batchers[_batched] = _batch


@dataclasses.dataclass(frozen=True)
class _Batch(Batchable):
    """The batch of a `Batchable` as a `Batchable`. A batch of batches becomes one larger batch."""

    of: Batchable
    settled: bool
    size: int
    marks: tuple

    @property
    def by_jax(self):
        return self.of.by_jax

    def __call__(self, *arrays):
        return self.of.batched(self.settled, self.size, self.marks, *arrays)

    def batched(self, settled, size, marks, *arrays):
        both = tuple(a or b for a, b in zip(self.marks, marks, strict=True))
        larger = _Batch(self.of, self.settled or settled, size * self.size, both)
        return merged(larger, (size, self.size), (marks, self.marks), *arrays)


def merged(larger, sizes, marks, *arrays):
    """Returns the results of a batch of batches, by ``larger``, the function of a larger batch.

    Args:
        sizes: the sizes of the outer and of the inner batch.
        marks: for the outer and for the inner batch, whether each array has it.
    """
    of_outer, of_inner = marks
    outer = axes_in_front(arrays, of_outer)
    ones = [element_of(array, mark) for array, mark in zip(arrays, of_outer, strict=True)]
    inner = tuple(axis for axis in axes_in_front(ones, of_inner) if axis not in outer)
    each = zip(arrays, of_inner, of_outer, strict=True)
    results = larger(*(_merge(sizes, outer + inner, *one) for one in each))
    return jax.tree.map(lambda x: _split(x, sizes, outer, inner), results)


def _merge(sizes, axes, array, inner, outer):
    """Merges the two batch dimensions of an array into one, sharded over explicit ``axes``.
    ``inner`` and ``outer`` tell which of the two dimensions the array has."""
    if not (inner or outer):
        return array
    outer_size, inner_size = sizes
    rest = array.shape[outer + inner :]
    missing = tuple(i for i, there in enumerate((outer, inner)) if not there)
    shapes = (outer_size, inner_size, *rest), (outer_size * inner_size, *rest)
    explicit = shardings.explicit_spec(array)
    if explicit is None:
        return _reshape(missing, shapes, array)
    mesh, spec = explicit
    spec = P(axes or None, *layouts.without(P(*spec[outer + inner :]), axes))
    return _reshape_explicit(missing, shapes, mesh, spec, array)


def _split(result, sizes, outer, inner):
    """Splits the batch dimension of a result into two, sharded over the explicit axes ``outer`` and
    ``inner``."""
    shapes = result.shape, (*sizes, *result.shape[1:])
    explicit = shardings.explicit_spec(result)
    if explicit is None:
        return _reshape((), shapes, result)
    mesh, spec = explicit
    spec = P(outer or None, inner or None, *spec[1:])
    return _reshape_explicit((), shapes, mesh, spec, result)


def _reshape(missing, shapes, array):
    """Adds the missing dimensions to ``array``, broadcasts it to the first shape and reshapes it to
    the second."""
    whole, shape = shapes
    return jnp.broadcast_to(jnp.expand_dims(array, missing), whole).reshape(shape)


def _reshape_explicit(missing, shapes, mesh, spec, array):
    """Reshapes on automatic axes, to a result with this spec: explicit axes don't support every
    reshape."""
    with _compat.entered(mesh):
        return _reshape_automatically(missing, shapes, mesh, spec, array)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _reshape_automatically(missing, shapes, mesh, spec, array):
    return shardings.automatically(mesh, functools.partial(_reshape, missing, shapes), spec, array)


def is_batch(a):
    """Whether ``a`` is a matrix with leading dimensions, in a call that accepts them."""
    return bool(checks.ALL) and getattr(a, "ndim", 0) > 2


def over_leading(routine, names, function, arrays, pad=True, dtypes=checks.DTYPES, square=True):
    """Returns the function of such arrays that applies ``function`` to each matrix of a batch with
    leading dimensions, as in NumPy. The other arrays have the same leading dimensions, or none."""
    checks.batch(routine, names[0], arrays[0], pad, square)
    leading = arrays[0].shape[:-2]
    axes = []
    for name, array in zip(names, arrays, strict=False):
        checks.array(routine, name, array, checks.ALL, dtypes)
        if array.ndim > 2 and array.shape[:-2] != leading:
            raise ValueError(
                f"{routine}: {name} must have the leading dimensions of {names[0]}, {leading}, or "
                f"none; it has shape {tuple(array.shape)}"
            )
        axes.append(0 if array.ndim > 2 else None)
    axes += [None] * (len(arrays) - len(axes))  # for scalars after them
    for _ in leading:
        function = jax.vmap(function, axes)
    if not any(map(shardings.explicit_spec, arrays)):
        return function
    return lambda *arrays: function(*_alike_in_front(arrays, len(leading)))


def _alike_in_front(arrays, count):
    """Shards the ``count`` leading dimensions of all arrays alike over explicit axes, as vmap
    requires, and removes these axes from other dimensions."""
    explicit = [shardings.explicit_spec(array) for array in arrays]
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
        move = _compat.reshard if isinstance(array, Tracer) else places.put
        return move(array, NamedSharding(mesh, wanted))

    return [put(*each) for each in zip(arrays, explicit, batches, strict=True)]


def repeated(results, size):
    """Repeats results without a batch ``size`` times."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), results)


def to_columns(b):
    """Arranges a batch of right-hand sides, (size, n) or (size, n, k), as columns of a matrix."""
    explicit = shardings.explicit_spec(b)
    if explicit is not None:  # every device needs all right-hand sides
        b = _compat.reshard(b, NamedSharding(explicit[0], P()))
    return b.T if b.ndim == 2 else jnp.moveaxis(b, 0, 1).reshape(b.shape[1], -1)


def from_columns(x, b):
    """Undoes `to_columns` for the solution ``x``."""
    explicit = shardings.explicit_spec(x)
    if explicit is not None:
        x = _compat.reshard(x, NamedSharding(explicit[0], P()))
    if b.ndim == 2:
        return x.T
    return jnp.moveaxis(x.reshape(x.shape[0], b.shape[0], b.shape[2]), 1, 0)


def alone(layout):
    """Returns a layout of the same mesh in which each device is the only rank of its problem."""
    return layouts.alone(layout.mesh)


def is_alone(layout):
    """Whether each device has whole matrices."""
    return layout.ranks == 1 and not layout.inside


def is_spread_faster(layout, size, n, dtype):
    """Whether ``size`` matrices of order n are faster if each device has whole matrices."""
    room = layout.memory
    if room is not None and _MATRICES * n * n * jnp.dtype(dtype).itemsize > room:
        return False
    return size >= layout.mesh.size or (size > 1 and n < _WORTH_SHARING)


def spread(layout, function, size, marks, *arrays, placement=None):
    """Computes ``function(coordinates, *arrays)`` for a batch, on the devices of an `alone` layout.

    Each device computes its part of the batch: one element after the other, or all at once if the
    function has ``compute_all``. The function must be hashable.

    Args:
        placement: the `Placement` of the results, on explicit axes.
    """
    if not size:
        return _map_none(functools.partial(_spread, layout, function, 1), marks, arrays, placement)
    with _compat.entered(layout.mesh):
        if placement is not None:
            return _spread_explicit(
                layout.automatic, function, size, tuple(marks), placement, *arrays
            )
        return _spread(layout, function, size, tuple(marks), *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _spread_explicit(layout, function, size, marks, placement, *arrays):
    run = functools.partial(_spread, layout, function, size, marks)
    with _compat.entered(layout.mesh), _compat.outside_vmap():
        results = jax.eval_shape(run, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays))
    return shardings.automatically(placement.mesh, run, placement.result_specs(results), *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
@_compat.default_promotion()
def _spread(layout, function, size, marks, *arrays):
    share = -(-size // layout.mesh.size)
    extra = share * layout.mesh.size - size
    by_batch = P(layout.others)

    def on_device(coordinates, *arrays):
        if hasattr(function, "compute_all"):
            each = zip(arrays, marks, strict=True)
            stacks = [x if mark else jnp.broadcast_to(x, (share, *x.shape)) for x, mark in each]
            return function.compute_all(coordinates, *stacks)
        return _each(functools.partial(function, coordinates), marks, arrays)

    padded = [
        jnp.pad(array, [(0, extra)] + [(0, 0)] * (array.ndim - 1)) if mark else array
        for array, mark in zip(arrays, marks, strict=True)
    ]
    in_specs = tuple(by_batch if mark else P() for mark in marks)
    results = ffi.over_ranks(layout, on_device, in_specs, by_batch)(*padded)
    return jax.tree.map(lambda x: x[:size], results)


def in_turn(function, marks, *arrays, placement=None):
    """Computes ``function(*arrays)`` for the elements of a batch one after the other. The function
    must be hashable.

    Args:
        placement: the `Placement` of the results, on explicit axes.
    """
    each = list(zip(arrays, marks, strict=True))
    if any(mark and not len(array) for array, mark in each):
        return _map_none(functools.partial(_in_turn, function), marks, arrays, placement)
    whole = [_unshard_batch(array) if mark else array for array, mark in each]
    results = _in_turn(function, tuple(marks), *whole)
    return results if placement is None else placement.put(results)


def _map_none(run, marks, arrays, placement):
    """Returns the results for an empty batch, which not all compilers support. Their shapes are
    those of ``run(marks, *arrays)`` for a batch of one."""
    ones = (
        jax.ShapeDtypeStruct((1, *x.shape[1:]) if mark else x.shape, x.dtype)
        for x, mark in zip(arrays, marks, strict=True)
    )
    one = jax.eval_shape(functools.partial(run, tuple(marks)), *ones)

    def nothing():
        return jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), one)

    if placement is None:
        return nothing()
    # Only shard_map tells JAX on which devices a program runs whose operands lie elsewhere.
    mapped = jax.shard_map(nothing, mesh=placement.mesh, in_specs=(), out_specs=P())
    return placement.put(mapped())


@functools.partial(jax.jit, static_argnums=(0, 1))
@_compat.default_promotion()
def _in_turn(function, marks, *arrays):
    return _each(function, marks, arrays)


def _unshard_batch(array):
    """Removes explicit axes from the batch dimension, because a loop can't run over a sharded one.
    The axes shard the next dimension instead, if they divide it."""
    axes, explicit = shardings.leading_axes(array), shardings.explicit_spec(array)
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
