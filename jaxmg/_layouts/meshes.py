"""The mesh of a call, and the layout of its matrix on it."""

import dataclasses

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import exporting, layouts, shardings
from jaxmg._processes import rendezvous

# From this order on several devices are faster than one.
_WORTH_SHARING = 4096
_warned = False


def infer(routine, arrays, mesh, spec):
    """Infers the layout of ``arrays[0]``, a matrix, from the arguments and the arrays. Returns
    ``mesh`` if it is a `Layout`."""
    if isinstance(mesh, layouts.Layout):
        return mesh
    mesh = resolve_mesh(routine, arrays, mesh)
    if spec is layouts.WHOLE:
        return layouts.alone(mesh)
    spec = shardings.known_spec(arrays[0], mesh) if spec is None else spec
    if spec is None:
        return with_processes(
            routine, layouts.Layout(mesh, mesh.axis_names, (), P(mesh.axis_names, None))
        )
    entries = check_spec(routine, spec, mesh.axis_names)
    # The native code takes whole rows, so the axes of the columns follow those of the rows. XLA
    # reshards a matrix with sharded columns.
    rows = layouts.axes_in(entries) or mesh.axis_names
    others = tuple(axis for axis in mesh.axis_names if axis not in rows)
    return with_processes(routine, layouts.Layout(mesh, rows, others, P(*entries)))


def resolve_mesh(routine, arrays, mesh):
    """Returns the mesh of a call. Its axes are all automatic or all explicit.

    It is the first of these that exists: the argument; the mesh of the first array with a
    ``NamedSharding`` (or, when traced, with explicit axes); the context mesh; the one device that
    holds the arrays; and for NumPy arrays all devices of this process.
    """
    exporting.register_if_imported()
    if mesh is not None and not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(
            f"{routine}: mesh must be a jax.sharding.Mesh or AbstractMesh; got "
            f"{type(mesh).__name__}"
        )
    if mesh is None or mesh.empty:  # get_abstract_mesh() is empty without a context
        mesh = mesh_of(routine, arrays)
    mesh = _usable(routine, mesh, arrays)
    kinds = set(mesh.axis_types)
    if kinds not in ({AxisType.Auto}, {AxisType.Explicit}):
        raise ValueError(
            f"{routine}: the axes of the mesh must be all Auto or all Explicit; those of {mesh} "
            f"are {', '.join(str(kind) for kind in mesh.axis_types)}"
        )
    return mesh


def located(routine, layout, arrays):
    """Returns ``layout``, which an earlier call made for its arrays, updated for a call now."""
    mesh = _usable(routine, layout.mesh, arrays)
    if isinstance(mesh, AbstractMesh):  # the earlier call knew its devices
        return _meet(routine, layout)
    return with_processes(routine, dataclasses.replace(layout, mesh=mesh))


def check_spec(routine, spec, axis_names):
    """Returns two entries, for rows and columns. Raises if ``spec`` can't lay out a matrix."""
    if len(spec) > 2:
        raise ValueError(
            f"{routine}: the spec of a matrix has at most 2 entries; got {spec} with {len(spec)}"
        )
    entries = tuple(spec) + (None,) * (2 - len(spec))
    seen = set()
    for axis in layouts.axes_in(entries):
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
    """Returns the axes of the enclosing shard_map, in the mesh's order; none outside of one."""
    if _compat.is_alone():
        return ()
    mesh = jax.sharding.get_abstract_mesh()
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in types if kind == AxisType.Manual)


def refuse_manual_axes(routine, local=None):
    """Raises inside a shard_map, where functions of global arrays can't be called.

    Args:
        local: the function that takes local blocks instead, if there is one.
    """
    if manual_axes():
        raise ValueError(
            f"{routine}: it takes global arrays, but this call is inside a shard_map; "
            + (
                f"use jaxmg.{local} there, which takes the local block"
                if local
                else "call it outside, on the global array"
            )
        )


def mesh_of(routine, arrays):
    for array in arrays:
        sharding = shardings.sharding_below(array)
        if sharding is not None:
            return sharding.mesh
    context = jax.sharding.get_abstract_mesh()
    if not context.empty:
        return context
    arrays = [_compat.below(array)[0] for array in arrays]
    if layouts.traced(arrays):
        if jax.device_count() == 1:
            return _one_device(jax.devices()[0])
        raise ValueError(
            f"{routine}: inside jit the mesh of {matrix_name(routine)} can't be seen; pass mesh= "
            f"and in_specs=, or run in a context mesh (jax.set_mesh), or use a "
            "mesh with explicit axes"
        )
    for array in arrays:
        # A device that JAX has chosen counts if it holds the matrix, not if it holds b.
        if isinstance(array, jax.Array) and (array is arrays[0] or array.committed):
            if len(array.devices()) > 1:
                raise ValueError(
                    f"{routine}: {matrix_name(routine)} has sharding {array.sharding}, which names "
                    "no mesh; pass mesh= and in_specs="
                )
            if array is arrays[0] and not array.committed and array.shape[-1:] >= (_WORTH_SHARING,):
                _warn_of_one_device(routine, next(iter(array.devices())))
            return _one_device(next(iter(array.devices())))
    if _compat.default_device() is not None:
        return _one_device(jax.numpy.zeros(()).devices().pop())
    return Mesh(np.array(jax.local_devices()), ("rank",))


# The functions whose matrix isn't called "a".
_MATRIX_NAMES = {
    **dict.fromkeys(("cond", "norm", "svdvals"), "x"),
    **dict.fromkeys(
        ("cg", "eigsh", "expm", "funm", "ldl", "logm", "null_space", "orth", "sqrtm"), "A"
    ),
    "matrix_rank": "M",
    **{f"optax.scale_by_{name}": "the updates" for name in ("muon", "shampoo", "soap")},
}


def _warn_of_one_device(routine, device):
    """Warns, once in a process, that devices stay idle that the caller may have meant to use."""
    global _warned
    others, a = len(jax.local_devices(backend=device.platform)) - 1, matrix_name(routine)
    if _warned or not others or _compat.default_device() is not None:
        return
    _warned = True
    _compat.warn_caller(
        f"{routine}: {a} is a JAX array on one device, {device}, so only 1 of "
        f"{others + 1} devices works. To use all, pass mesh=jax.make_mesh(({others + 1},), "
        f"('rank',)), or shard {a} by rows over such a mesh (jax.device_put with a NamedSharding). "
        f"To use this one without this warning, commit {a} to it: jax.device_put({a}, device)"
    )


def matrix_name(routine):
    """Returns the name of the argument of a public function that is the matrix."""
    return _MATRIX_NAMES.get(routine.removeprefix("linalg."), "a")


def _usable(routine, mesh, arrays):
    """Returns ``mesh``, made concrete if the arrays have values. Raises if a call can't use it."""
    if isinstance(mesh, AbstractMesh) and not layouts.traced(arrays):
        mesh = _concrete(routine, mesh, arrays)
    context = jax.sharding.get_abstract_mesh()
    if layouts.traced(arrays) and not context.empty and context.size != mesh.size:
        raise ValueError(
            f"{routine}: inside jit a mesh must have the devices of the context mesh; got a mesh "
            f"of {mesh.size} devices, and the context mesh has {context.size}. Call the jitted "
            "function outside of that context"
        )
    return mesh


def _one_device(device):
    return Mesh(np.array([device]), ("rank",))


def _concrete(routine, mesh, arrays):
    """Returns the mesh that an abstract one stands for: the mesh of an array, or the context's."""
    known = [shardings.named_sharding(array) for array in arrays]
    candidates = [sharding.mesh for sharding in known if sharding is not None]
    candidates.append(_compat.context_mesh())
    for candidate in candidates:
        if candidate is not None and candidate.shape == mesh.shape:
            return candidate
    raise ValueError(
        f"{routine}: mesh is abstract ({mesh}), and neither the arrays nor the context say which "
        "devices it stands for; pass a jax.sharding.Mesh, or run in jax.set_mesh(mesh)"
    )


def with_processes(routine, layout, concrete=None):
    """Returns ``layout`` with its processes, after their rendezvous."""
    mesh = layout.mesh
    indices = rendezvous.indices(routine, mesh, concrete)
    processes = rendezvous.attribute(indices, mesh, layout.rows, layout.others)
    return _meet(routine, dataclasses.replace(layout, processes=processes))


def _meet(routine, layout):
    rendezvous.meet(routine, layout.platform, layout.processes)
    return layout
