"""Shardings of arrays, on automatic and on explicit axes."""

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import layouts, places


def constrain(array, layout, spec):
    """Shards a traced ``array`` as ``spec``, on automatic or explicit axes."""
    if layout.solo:
        return array
    if layout.explicit:
        # An axis that shards the batch of an enclosing vmap can't shard its elements, too.
        spec = layouts.without(spec, _compat.mapped_axes())
        return _compat.reshard(array, NamedSharding(layout.mesh, spec))
    return jax.lax.with_sharding_constraint(array, NamedSharding(layout.mesh, spec))


def constrain_like(array, other):
    """Shards ``array`` like ``other``, if the sharding of ``other`` is known."""
    sharding = named_sharding(other)
    if sharding is None:
        return array
    if AxisType.Explicit in sharding.mesh.axis_types:
        mapped = _compat.mapped_axes() if isinstance(array, Tracer) else ()
        if mapped:
            sharding = NamedSharding(sharding.mesh, layouts.without(sharding.spec, mapped))
        return _compat.reshard(array, sharding)
    return jax.lax.with_sharding_constraint(array, sharding)


def outside_batch(arrays):
    """Gathers arrays over the explicit axes that shard the batch of an enclosing vmap, over which
    JAX refuses to shard arrays inside that vmap, whether they are in the batch or not."""
    mapped = _compat.mapped_axes()

    def gather(array):
        known = explicit_spec(array)
        if known is None or not set(mapped).intersection(layouts.axes_in(known[1])):
            return array
        mesh, spec = known
        return _compat.reshard(array, NamedSharding(mesh, layouts.without(spec, mapped)))

    return jax.tree.map(gather, arrays) if mapped else arrays


def placed_like(array, other):
    """Returns ``array``, eager or traced, in the sharding of ``other``."""
    if layouts.traced((array, other)):
        return constrain_like(jnp.asarray(array), other)
    return places.put(array, other.sharding)


def spec_of(array, layout):
    """Returns the spec of ``array`` on the layout's mesh; None if a trace doesn't know it."""
    spec = known_spec(array, layout.mesh)
    return P() if spec is None and not isinstance(array, Tracer) else spec


def known_spec(array, mesh):
    """Returns the spec of ``array`` if it is known to lie on a mesh of this shape; else None."""
    sharding = sharding_below(array)
    return sharding.spec if sharding is not None and sharding.mesh.shape == mesh.shape else None


def automatically(mesh, function, specs, *arrays):
    """Traces ``function(*arrays)`` with automatic axes in place of a mesh's explicit ones: XLA
    moves the arrays as the function needs them.

    Args:
        specs: the specs of the results, in a pytree of the same structure.
    """
    mapped = _compat.mapped_axes()

    def run(*arrays):
        with _compat.outside_vmap():
            return function(*arrays)

    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, layouts.without(spec, mapped)),
        specs,
        is_leaf=lambda value: isinstance(value, P),
    )
    return jax.sharding.auto_axes(run, out_sharding=shardings)(*arrays)


def explicit_spec(array):
    """Returns (mesh, spec with an entry for each dimension) of an array on a mesh of explicit axes;
    None for other arrays."""
    sharding = named_sharding(array)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding.mesh, P(*sharding.spec, *(None,) * (array.ndim - len(sharding.spec)))


def columns(array, start, end, axis=-1):
    """Returns the columns from start to end of matrices; rows with ``axis`` -2. JAX doesn't cut
    dimensions that explicit axes shard: they are gathered, and sharded again if the axes divide."""
    known = explicit_spec(array)
    axis += array.ndim
    if known is None or known[1][axis] is None:
        return jax.lax.slice_in_dim(array, start, end, axis=axis)
    mesh, spec = known
    axes = layouts.entry_axes(spec[axis])
    array = _compat.reshard(array, NamedSharding(mesh, layouts.without(spec, axes)))
    array = jax.lax.slice_in_dim(array, start, end, axis=axis)
    if array.shape[axis] % layouts.axes_size(mesh, axes):
        return array
    return _compat.reshard(array, NamedSharding(mesh, spec))


def leading_axes(array):
    """Returns the explicit axes over which the first dimension of ``array`` is sharded."""
    explicit = explicit_spec(array)
    return () if explicit is None else layouts.entry_axes(explicit[1][0])


def named_sharding(array):
    """Returns the sharding of ``array``, if it carries one: if it is concrete, or traced on a mesh
    of explicit axes. A trace doesn't know how XLA will shard automatic axes."""
    if isinstance(array, Tracer):
        sharding = getattr(jax.typeof(array), "sharding", None)
        if sharding is None or sharding.mesh.empty:
            return None
        return sharding if AxisType.Explicit in sharding.mesh.axis_types else None
    sharding = getattr(array, "sharding", None)
    known = isinstance(sharding, NamedSharding) and not sharding.mesh.empty  # a type may have none
    return sharding if known else None


def sharding_below(array):
    """As `named_sharding`, but looks below eager transformations. Returns the sharding of one
    element if ``array`` is batched."""
    value, batches = _compat.below(array) if isinstance(array, Tracer) else (array, ())
    sharding = named_sharding(value)
    if sharding is None or not batches:
        return sharding
    entries = [*sharding.spec, *(None for _ in range(value.ndim - len(sharding.spec)))]
    for dimension in reversed(batches):
        del entries[dimension]
    return NamedSharding(sharding.mesh, P(*entries))
