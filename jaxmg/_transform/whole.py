"""Batches on automatic axes: whole matrices on the devices, and results that lie where operands do.

A type doesn't say how XLA shards automatic axes. So `over_devices` shards the batch over all of
them and lets XLA carry that on, and `Places` reads shardings of arrays that have values.
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
from jaxmg._call import layouts
from jaxmg._transform import batching


def holds(layout, array):
    """Whether ``array``, a matrix in a transformation, is one of a batch of which each device is to
    have whole matrices."""
    size = _compat.batch_size(array)
    if size == 1 or layout.explicit or layout.mesh.size == 1 or not array.size:
        return False
    return batching.is_spread_faster(layout, size, order_of(array.shape), array.dtype)


def order_of(shape):
    """The order of a square matrix of as many elements."""
    return math.isqrt(math.prod(shape)) + 1


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def over_devices(function, mesh, size, marks, *arrays):
    """``function`` of whole matrices, with the layout `layouts.alone`, for a batch: a list of
    results. The batch is extended by its last element, until the devices have as many each."""
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
    """Where the results of a batch lie, as its operands do.

    Attributes:
        mesh: the mesh, of automatic axes.
        front: an entry for each leading dimension.
        operands: the spec of one element of each operand; None where an operand has no sharding.
    """

    mesh: jax.sharding.Mesh
    front: tuple
    operands: tuple[P | None, ...]

    def put(self, kinds, results):
        """Shards the results, a pytree with leaves of these kinds (`jax_linalg.run`)."""
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
    """The `Places` of results of arrays that have so many leading dimensions each. None if the
    first one has no values, or doesn't lie on ``mesh``."""
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
