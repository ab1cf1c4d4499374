"""Which devices hold a matrix and how: the mesh and the spec, given or inferred, as a `Layout`."""

import dataclasses
import itertools
import math

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat


@dataclasses.dataclass(frozen=True)
class Layout:
    """A matrix sharded by rows over a mesh.

    Attributes:
        mesh: the devices; their order along ``rows`` is the order of the ranks.
        rows: the axes that the rows are sharded over while the native code runs.
        others: the remaining axes; the matrix is replicated along them.
        spec: how the caller shards it, and how a result shaped like it is given back.
    """

    mesh: Mesh | AbstractMesh
    rows: tuple
    others: tuple
    spec: P

    @property
    def ranks(self):
        return math.prod(self.mesh.shape[axis] for axis in self.rows)

    @property
    def row_spec(self):
        return P(self.rows, None)

    @property
    def explicit(self):
        return AxisType.Explicit in self.mesh.axis_types

    @property
    def platform(self):
        if isinstance(self.mesh, Mesh):
            return self.mesh.devices.flat[0].platform
        return _compat.abstract_platform(self.mesh) or jax.default_backend()

    @property
    def memory(self):
        """Bytes that JAX may take on one device, all of which are taken for alike; None where it
        doesn't say."""
        stats = jax.local_devices(backend=self.platform)[0].memory_stats()
        return (stats or {}).get("bytes_limit")

    @property
    def ordinals(self):
        """Where the GPUs are in this process, group by group of replicas in rank order; () where
        it isn't known, and the native code has to ask the device for its place."""
        if not isinstance(self.mesh, Mesh) or self.platform != "gpu":
            return ()
        order = [self.mesh.axis_names.index(axis) for axis in (*self.others, *self.rows)]
        devices = np.transpose(self.mesh.devices, order).ravel()
        if any(device.process_index != jax.process_index() for device in devices):
            return ()
        return tuple(device.local_hardware_id for device in devices)

    def sharding(self, spec):
        return NamedSharding(self.mesh, spec)

    def result_spec(self, shape):
        """``spec`` where JAX can represent it for ``shape``: the axes have to divide it. Else None,
        which leaves the choice to XLA."""
        for size, axes in zip(shape, self.spec, strict=True):
            if size % math.prod(self.mesh.shape[axis] for axis in _axes(axes)):
                return None
        return self.spec


def traced(arrays):
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def infer(routine, arrays, mesh, specs, in_specs=None):
    """The layout of ``arrays[0]``, a matrix, from what is given and from the arrays themselves.

    The mesh is, in this order: the one given, that of the first array with a ``NamedSharding`` (or
    explicit axes, when traced), the context mesh, and the one device that holds the arrays.
    """
    if manual_axes():
        raise ValueError(
            f"{routine}: it takes global arrays, but this call is inside a shard_map; use "
            f"jaxmg.{routine}_shardmap_ctx there, which takes the local block"
        )
    spec = given_spec(routine, specs, in_specs)
    if mesh is not None and not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(
            f"{routine}: mesh must be a jax.sharding.Mesh or AbstractMesh; got "
            f"{type(mesh).__name__}"
        )
    if mesh is None or mesh.empty:  # an empty one is what get_abstract_mesh() gives without context
        mesh = _mesh_of(routine, arrays)
    if isinstance(mesh, AbstractMesh) and not traced(arrays):
        mesh = _concrete(routine, mesh, arrays)
    kinds = set(mesh.axis_types)
    if kinds not in ({AxisType.Auto}, {AxisType.Explicit}):
        raise ValueError(
            f"{routine}: the axes of the mesh must be all Auto or all Explicit; those of {mesh} "
            f"are {', '.join(str(kind) for kind in mesh.axis_types)}"
        )
    sharding = _named_sharding(arrays[0])
    if spec is None and sharding is not None and sharding.mesh.shape == mesh.shape:
        spec = sharding.spec
    if spec is None:
        return Layout(mesh, mesh.axis_names, (), P(mesh.axis_names, None))
    entries = check_spec(routine, spec, mesh.axis_names)
    # Columns join the rows: the native code takes whole rows, and XLA reshards what isn't so.
    rows = tuple(itertools.chain.from_iterable(_axes(entry) for entry in entries))
    rows = rows or mesh.axis_names
    others = tuple(axis for axis in mesh.axis_names if axis not in rows)
    return Layout(mesh, rows, others, P(*entries))


def given_spec(routine, specs, in_specs):
    """The spec of A from ``matrix_specs`` or ``in_specs``: one spec, or a sequence that starts so.

    Up to JAXMg 0.0.5 it was the pair (spec of A, spec of b); b is laid out from its own sharding.
    """
    if specs is not None and in_specs is not None:
        raise ValueError(
            f"{routine}: matrix_specs and in_specs are two names of one argument; pass one of them"
        )
    specs = in_specs if specs is None else specs
    if specs is None or isinstance(specs, P):
        return specs
    if isinstance(specs, (list, tuple)) and specs and isinstance(specs[0], P):
        return specs[0]
    raise TypeError(
        f"{routine}: in_specs must be a PartitionSpec, or a list or tuple that starts with A's; "
        f"got {specs!r}"
    )


def check_spec(routine, spec, axis_names):
    """Two entries, for rows and columns; raises where ``spec`` can't lay out a matrix."""
    if len(spec) > 2:
        raise ValueError(
            f"{routine}: the spec of a matrix has at most 2 entries; got {spec} with {len(spec)}"
        )
    entries = tuple(spec) + (None,) * (2 - len(spec))
    seen = set()
    for axis in itertools.chain.from_iterable(_axes(entry) for entry in entries):
        if axis not in axis_names:
            raise ValueError(
                f"{routine}: spec {spec} names axis {axis!r}, which the mesh doesn't have; its "
                f"axes are {tuple(axis_names)}"
            )
        if axis in seen:
            raise ValueError(
                f"{routine}: spec {spec} names axis {axis!r} twice; an axis shards one dimension"
            )
        seen.add(axis)
    return entries


def manual_axes():
    """The axes of the enclosing shard_map, in the mesh's order; empty outside of one."""
    mesh = jax.sharding.get_abstract_mesh()
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in types if kind == AxisType.Manual)


def infer_local(routine, block, specs=None, in_specs=None):
    """The layout of a matrix of which ``block`` is the local part, inside a shard_map.

    Without a spec the axes are those that make the ranks fit the block's shape, preferring what JAX
    knows of the axes that the block varies over.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = manual_axes()
    for axis in mesh.axis_names:
        if axis not in manual and mesh.shape[axis] > 1:
            raise ValueError(
                f"{routine}: inside shard_map all axes must be manual, but axis {axis!r} of size "
                f"{mesh.shape[axis]} is not; leave axis_names out of the shard_map"
            )
    spec = given_spec(routine, specs, in_specs)
    rows, n = block.shape
    if spec is not None:
        entries = check_spec(routine, spec, manual)
        if entries[1] is not None:
            raise ValueError(
                f"{routine}: inside shard_map A is sharded by rows, as P(axis, None); got {spec}"
            )
        axes = _axes(entries[0])
        fits = rows == math.ceil(n / math.prod(mesh.shape[axis] for axis in axes))
    else:
        axes = _fitting_axes(routine, mesh, manual, block)
        fits = axes is not None
    if not fits:
        sizes = {axis: mesh.shape[axis] for axis in manual}
        raise ValueError(
            f"{routine}: the local block of an (n, n) matrix on P ranks has shape (ceil(n / P), n);"
            f" {tuple(block.shape)} fits no P of the mesh {sizes}"
        )
    others = tuple(axis for axis in manual if axis not in axes)
    return Layout(mesh, axes, others, P(axes, None))


def place(array, layout, spec):
    """``array`` on the devices of ``layout``, untouched where it is there already."""
    if isinstance(array, jax.Array):
        sharding = array.sharding
        if isinstance(sharding, NamedSharding) and sharding.mesh == layout.mesh:
            return array
    return jax.device_put(array, layout.sharding(spec))


def constrain(array, layout, spec):
    """``array`` in ``spec`` while tracing, for meshes of automatic and of explicit axes."""
    if layout.explicit:
        return _compat.reshard(array, layout.sharding(spec))
    return jax.lax.with_sharding_constraint(array, layout.sharding(spec))


def constrain_like(array, other):
    """``array`` in the sharding that ``other`` is known to have while tracing."""
    sharding = _named_sharding(other)
    return array if sharding is None else _compat.reshard(array, sharding)


def spec_of(array, layout):
    """The spec of ``array`` on the layout's mesh; None where a trace doesn't know it."""
    sharding = _named_sharding(array)
    if sharding is not None and sharding.mesh.shape == layout.mesh.shape:
        return sharding.spec
    return None if isinstance(array, jax.core.Tracer) else P()


def _axes(entry):
    """One entry of a spec as a tuple of axes."""
    if entry is None:
        return ()
    if isinstance(entry, (tuple, list)):
        return tuple(entry)
    return (entry,)


def _named_sharding(array):
    """How ``array`` is sharded, where it says so: concrete arrays, and traced ones whose mesh has
    explicit axes (a trace doesn't know how XLA will shard automatic ones)."""
    if isinstance(array, jax.core.Tracer):
        sharding = getattr(jax.typeof(array), "sharding", None)
        if sharding is None or sharding.mesh.empty:
            return None
        return sharding if AxisType.Explicit in sharding.mesh.axis_types else None
    sharding = getattr(array, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def _mesh_of(routine, arrays):
    for array in arrays:
        sharding = _named_sharding(array)
        if sharding is not None:
            return sharding.mesh
    context = jax.sharding.get_abstract_mesh()
    if not context.empty:
        return context
    if traced(arrays):
        if jax.device_count() == 1:
            return _one_device(jax.devices()[0])
        raise ValueError(
            f"{routine}: inside jit the mesh of a can't be seen; pass mesh= and in_specs=, or run "
            "in a context mesh (jax.set_mesh), or use a mesh with explicit axes"
        )
    for array in arrays:
        if isinstance(array, jax.Array):
            if len(array.devices()) > 1:
                raise ValueError(
                    f"{routine}: a has sharding {array.sharding}, which names no mesh; pass mesh= "
                    "and in_specs="
                )
            return _one_device(next(iter(array.devices())))
    return _one_device(jax.numpy.zeros(()).devices().pop())


def _one_device(device):
    return Mesh(np.array([device]), ("rank",))


def _concrete(routine, mesh, arrays):
    """The mesh of devices that an abstract one stands for: the arrays' own, or the context's."""
    shardings = [_named_sharding(array) for array in arrays]
    candidates = [sharding.mesh for sharding in shardings if sharding is not None]
    candidates.append(_compat.context_mesh())
    for candidate in candidates:
        if candidate is not None and candidate.shape == mesh.shape:
            return candidate
    raise ValueError(
        f"{routine}: mesh is abstract ({mesh}), and neither the arrays nor the context say which "
        "devices it stands for; pass a jax.sharding.Mesh, or run in jax.set_mesh(mesh)"
    )


def _fitting_axes(routine, mesh, manual, block):
    """The axes whose ranks make ``block`` a local block of rows; None where there are none."""
    rows, n = block.shape
    wide = [axis for axis in manual if mesh.shape[axis] > 1]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(wide, count) for count in range(len(wide) + 1)
    )
    ranks = {axes: math.prod(mesh.shape[axis] for axis in axes) for axes in subsets}
    fitting = [axes for axes, p in ranks.items() if p * rows == n]
    fitting = fitting or [axes for axes, p in ranks.items() if math.ceil(n / p) == rows]
    if len(fitting) > 1:
        varying = _compat.varying_axes(block)
        fitting = [axes for axes in fitting if set(axes) == varying & set(wide)] or fitting
    if len(fitting) > 1:
        raise ValueError(
            f"{routine}: a local block of shape {tuple(block.shape)} could be sharded over any of "
            f"{fitting}; pass in_specs=P(axis, None)"
        )
    return fitting[0] if fitting else None
