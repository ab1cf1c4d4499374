"""Batches on automatic axes: each device has whole matrices, and results lie where the operands do.

Types don't say how XLA shards automatic axes. So `over_devices` shards the batch over all of them
and lets XLA propagate this, and `Places` reads the shardings of arrays that have values.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import layouts
from jaxmg._stacks import batching

# Number of copies of a batch that a derivative on one device may hold; that of `expm` takes most.
_BATCHES = 16


def holds(layout, array, size=None):
    """Whether a batch is faster with whole matrices on each device: the batch of ``size`` matrices
    ``array``, or the batch of which a transformation makes ``array`` one element."""
    size = _compat.batch_size(array) if size is None else size
    if size == 1 or layout.explicit or not array.size:
        return False
    room = layout.memory
    if layout.mesh.size == 1 and room is not None:
        itemsize = max(array.dtype.itemsize, 4)  # bfloat16 and float16 become float32
        if _BATCHES * size * math.prod(array.shape[-2:]) * itemsize > room:
            return False  # one matrix after the other
    return batching.is_spread_faster(layout, size, order_of(array.shape[-2:]), array.dtype)


def order_of(shape):
    """Returns the order of a square matrix that has at least as many elements."""
    return math.isqrt(math.prod(shape)) + 1


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def over_devices(function, mesh, size, marks, *arrays):
    """Applies ``function``, which takes whole matrices with the layout `layouts.alone`, to a batch.
    Repeats the batch's last element until each device has the same number of elements, and drops
    the results for these copies."""
    extra = -size % mesh.size
    by_batch = NamedSharding(mesh, P(tuple(mesh.axis_names)))

    def spread(x):
        return jax.lax.with_sharding_constraint(x, by_batch)

    def extended(x):
        x = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (extra, *x.shape[1:]))]) if extra else x
        return spread(x)

    with _compat.entered(mesh):
        each = zip(arrays, marks, strict=True)
        larger = [extended(x) if mark else x for x, mark in each]
        results = jax.vmap(function, [0 if mark else None for mark in marks])(*larger)
        return jax.tree.map(lambda x: spread(x)[:size], results)


@dataclasses.dataclass(frozen=True)
class Places:
    """The placement of the results of a batch, which follows that of its operands.

    Attributes:
        mesh: the mesh, of automatic axes.
        front: the entries of the spec for the leading dimensions.
        operands: the spec of one element of each operand; None where an operand has no sharding.
    """

    mesh: jax.sharding.Mesh
    front: tuple
    operands: tuple[P | None, ...]

    def put(self, kinds, results):
        """Shards the results, a pytree with leaves of these kinds (`compositions.run`)."""
        leaves, tree = jax.tree.flatten(results)
        put = jax.lax.with_sharding_constraint if layouts.traced(leaves) else jax.device_put
        leaves = [
            put(x, NamedSharding(self.mesh, self._spec(kind, x.shape)))
            for kind, x in zip(kinds, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, leaves)

    def _spec(self, kind, shape):
        rest = shape[len(self.front) :]
        one = None if kind == "small" else self.operands[1 if kind == "like b" else 0]
        one = layouts.without(one or P(), layouts.axes_in(self.front))
        each = zip(rest, (*one, *(None,) * len(rest)), strict=False)
        # JAX shards a dimension only over axes that divide it.
        return P(*self.front, *(axes if self._divides(axes, size) else None for size, axes in each))

    def _divides(self, axes, size):
        return size % layouts.axes_size(self.mesh, layouts.entry_axes(axes)) == 0


def places(mesh, arrays, counts):
    """Returns the `Places` of results of arrays, whose numbers of leading dimensions are
    ``counts``. Returns None if the first array has no leading dimensions, has no values, or doesn't
    lie on ``mesh``."""
    specs = [_spec(mesh, array) for array in arrays]
    if specs[0] is None or not counts[0]:
        return None
    front = tuple(specs[0])[: counts[0]]
    each = (
        None if spec is None else P(*tuple(spec)[count:])
        for spec, count in zip(specs, counts, strict=True)
    )
    return Places(arrays[0].sharding.mesh, front, tuple(each))


def _spec(mesh, array):
    sharding = getattr(array, "sharding", None)
    if isinstance(array, Tracer) or not isinstance(sharding, NamedSharding):
        return None
    on = sharding.mesh
    explicit = jax.sharding.AxisType.Explicit in on.axis_types
    if explicit or on.size == 1 or mesh not in (on, on.abstract_mesh):
        return None
    return P(*sharding.spec, *(None,) * (array.ndim - len(sharding.spec)))
