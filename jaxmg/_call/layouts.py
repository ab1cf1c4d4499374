"""The devices that hold a matrix, and how they hold it: the mesh and the spec, as a `Layout`."""

import dataclasses
import functools
import itertools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import exporting, places
from jaxmg._processes import rendezvous

# From this order on several devices are faster than one.
_WORTH_SHARING = 4096
_warned = False


class _Whole:
    """The type of `WHOLE`."""

    def __repr__(self):
        return "WHOLE"


# In place of a spec: each device has whole matrices, those of its part of a batch (`alone`).
WHOLE = _Whole()


@dataclasses.dataclass(frozen=True)
class Layout:
    """A matrix sharded by rows over a mesh.

    Attributes:
        mesh: the devices; their order along ``rows`` is the order of the ranks.
        rows: the axes that the rows are sharded over while the native code runs.
        others: the remaining axes; the matrix is replicated along them.
        spec: the caller's sharding, which a result of the same shape gets too.
        processes: the process of each rank of each group of replicas, one group after the other;
            empty if every group has its ranks in one process.
        inside: whether the layout describes blocks inside the caller's shard_map.
        solo: whether one device computes for all, inside a shard_map of this package (`on_one`).
    """

    mesh: Mesh | AbstractMesh
    rows: tuple[str, ...]
    others: tuple[str, ...]
    spec: P
    processes: tuple[int, ...] = ()
    inside: bool = False
    solo: bool = False

    @functools.cached_property
    def ranks(self) -> int:
        return axes_size(self.mesh, self.rows)

    @functools.cached_property
    def row_spec(self) -> P:
        return P(self.rows, None)

    @functools.cached_property
    def by_rows(self) -> "Layout":
        """This layout for a matrix that has been resharded to ``row_spec``."""
        return dataclasses.replace(self, spec=self.row_spec)

    @property
    def is_whole(self) -> bool:
        """Whether each device has whole matrices of a batch, and XLA places operations."""
        return not (self.rows or self.inside or self.explicit)

    @property
    def where(self) -> dict[str, typing.Any]:
        """The arguments with which a program calls a routine on this layout. The program's caller
        has checked the arrays."""
        return {"mesh": self}

    @property
    def grid_rows(self) -> int | None:
        """Number of rows of the grid of ranks, if a matrix is sharded over both of its dimensions;
        else None. Native code reads the grid column by column, so the axes that shard the columns
        of the matrix count as the rows of the grid."""
        rows, columns = map(entry_axes, (*self.spec, None, None)[:2])
        return axes_size(self.mesh, columns) if rows and columns else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The axes of several ranks over which the caller has sharded the columns."""
        return tuple(axis for axis in entry_axes(self.spec[1]) if self.mesh.shape[axis] > 1)

    @functools.cached_property
    def explicit(self) -> bool:
        return AxisType.Explicit in self.mesh.axis_types

    @property
    def automatic(self) -> "Layout":
        """This layout on automatic axes."""
        return dataclasses.replace(self, mesh=_automatic(self.mesh)) if self.explicit else self

    @functools.cached_property
    def platform(self) -> str:
        if isinstance(self.mesh, Mesh):
            return self.mesh.devices.flat[0].platform
        return _compat.abstract_platform(self.mesh) or jax.default_backend()

    @property
    def memory(self) -> int | None:
        """Bytes that JAX may take on one device, assumed to be the same for all devices; None if
        JAX doesn't say."""
        return device_memory(self.platform)

    @property
    def coordinates(self) -> np.ndarray:
        """[rank, group of replicas] of each device, in the mesh's order: (devices, 2), int32."""
        sizes = self.mesh.shape
        index = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))

        def along(axes):
            linear = np.zeros(tuple(sizes.values()), np.int32)
            for axis in axes:
                linear = linear * sizes[axis] + index[axis]
            return linear.ravel()

        return np.stack([along(self.rows), along(self.others)], axis=1).astype(np.int32)

    def sharding(self, spec: P) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def result_spec(self, shape: tuple[int, ...]) -> P | None:
        """Returns ``spec`` if its axes divide ``shape``, which JAX requires. Otherwise returns
        None, which leaves the choice to XLA."""
        for size, axes in zip(shape, self.spec, strict=True):
            if size % axes_size(self.mesh, entry_axes(axes)):
                return None
        return self.spec


def alone(mesh):
    """Returns the layout in which each device of ``mesh`` is the only rank of its problem."""
    return Layout(mesh, (), tuple(mesh.axis_names), P(None, None))


def device_memory(platform):
    """Returns the bytes that JAX may take on one device of this process; None if it doesn't say."""
    stats = jax.local_devices(backend=platform)[0].memory_stats()
    return (stats or {}).get("bytes_limit")


# The compute capabilities of GPUs (A100; H100 and H200) whose tensor cores multiply float64 at
# least as fast as their other cores multiply float32.
_FAST_IN_DOUBLE = ("8.0", "9.0")


def fast_in_double(platform):
    """Whether devices of this platform multiply matrices in float64 as fast as in float32."""
    if platform not in ("gpu", "cuda"):
        return False
    device = jax.local_devices(backend=platform)[0]
    return getattr(device, "compute_capability", None) in _FAST_IN_DOUBLE


def traced(arrays):
    for array in arrays:  # called often, so without a generator
        if isinstance(array, Tracer):
            return True
    return False


def infer(routine, arrays, mesh, spec):
    """Infers the layout of ``arrays[0]``, a matrix, from the arguments and the arrays. Returns
    ``mesh`` if it is a `Layout`."""
    if isinstance(mesh, Layout):
        return mesh
    mesh = resolve_mesh(routine, arrays, mesh)
    if spec is WHOLE:
        return alone(mesh)
    spec = known_spec(arrays[0], mesh) if spec is None else spec
    if spec is None:
        return with_processes(routine, Layout(mesh, mesh.axis_names, (), P(mesh.axis_names, None)))
    entries = check_spec(routine, spec, mesh.axis_names)
    # The native code takes whole rows, so the axes of the columns follow those of the rows. XLA
    # reshards a matrix with sharded columns.
    rows = tuple(itertools.chain.from_iterable(entry_axes(entry) for entry in entries))
    rows = rows or mesh.axis_names
    others = tuple(axis for axis in mesh.axis_names if axis not in rows)
    return with_processes(routine, Layout(mesh, rows, others, P(*entries)))


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
    for axis in itertools.chain.from_iterable(entry_axes(entry) for entry in entries):
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


def constrain(array, layout, spec):
    """Shards a traced ``array`` as ``spec``, on automatic or explicit axes."""
    if layout.solo:
        return array
    if layout.explicit:
        # An axis that shards the batch of an enclosing vmap can't shard its elements, too.
        spec = without(spec, _compat.mapped_axes())
        return _compat.reshard(array, layout.sharding(spec))
    return jax.lax.with_sharding_constraint(array, layout.sharding(spec))


def constrain_like(array, other):
    """Shards ``array`` like ``other``, if the sharding of ``other`` is known."""
    sharding = named_sharding(other)
    if sharding is None:
        return array
    if AxisType.Explicit in sharding.mesh.axis_types:
        return _compat.reshard(array, sharding)
    return jax.lax.with_sharding_constraint(array, sharding)


def placed_like(array, other):
    """Returns ``array``, eager or traced, in the sharding of ``other``."""
    if traced((array, other)):
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
        lambda spec: NamedSharding(mesh, without(spec, mapped)),
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
    axes = entry_axes(spec[axis])
    array = _compat.reshard(array, NamedSharding(mesh, without(spec, axes)))
    array = jax.lax.slice_in_dim(array, start, end, axis=axis)
    if array.shape[axis] % axes_size(mesh, axes):
        return array
    return _compat.reshard(array, NamedSharding(mesh, spec))


def axes_in(spec):
    """Returns all axes of a spec."""
    return tuple(itertools.chain.from_iterable(map(entry_axes, spec)))


def leading_axes(array):
    """Returns the explicit axes over which the first dimension of ``array`` is sharded."""
    explicit = explicit_spec(array)
    return () if explicit is None else entry_axes(explicit[1][0])


def without(spec, axes):
    """Returns ``spec`` without these axes."""
    if not axes:
        return spec
    entries = (tuple(axis for axis in entry_axes(entry) if axis not in axes) for entry in spec)
    return P(*(entry or None for entry in entries))


@functools.lru_cache(maxsize=64)
def _automatic(mesh):
    kinds = dict.fromkeys(mesh.axis_names, AxisType.Auto)
    if isinstance(mesh, AbstractMesh):
        return mesh.update_axis_types(kinds)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=tuple(kinds.values()))


def entry_axes(entry):
    """Converts an entry of a spec to a tuple of axes."""
    if entry is None:
        return ()
    if isinstance(entry, (tuple, list)):
        return tuple(entry)
    return (entry,)


def named_sharding(array):
    """Returns the sharding of ``array``, if it carries one: if it is concrete, or traced on a mesh
    of explicit axes. A trace doesn't know how XLA will shard automatic axes."""
    if isinstance(array, Tracer):
        sharding = getattr(jax.typeof(array), "sharding", None)
        if sharding is None or sharding.mesh.empty:
            return None
        return sharding if AxisType.Explicit in sharding.mesh.axis_types else None
    sharding = getattr(array, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def sharding_below(array):
    """As `named_sharding`, but looks below eager transformations. Returns the sharding of one
    element if ``array`` is batched."""
    value, batches = _compat.below(array)
    sharding = named_sharding(value)
    if sharding is None or not batches:
        return sharding
    entries = [*sharding.spec, *(None for _ in range(value.ndim - len(sharding.spec)))]
    for dimension in reversed(batches):
        del entries[dimension]
    return NamedSharding(sharding.mesh, P(*entries))


def mesh_of(routine, arrays):
    for array in arrays:
        sharding = sharding_below(array)
        if sharding is not None:
            return sharding.mesh
    context = jax.sharding.get_abstract_mesh()
    if not context.empty:
        return context
    arrays = [_compat.below(array)[0] for array in arrays]
    if traced(arrays):
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
    **dict.fromkeys(("expm", "funm", "logm", "null_space", "orth", "sqrtm"), "A"),
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
        f"{routine}: {a} is a JAX array on one device, {device}, which works on it alone; there "
        f"are {others} more here. For all of them pass mesh=jax.make_mesh(({others + 1},), "
        f"('rank',)), or shard {a} by rows over such a mesh (jax.device_put with a NamedSharding). "
        f"For this one, and without this warning, put {a} on it: jax.device_put({a}, device)"
    )


def matrix_name(routine):
    """Returns the name of the argument of a public function that is the matrix."""
    return _MATRIX_NAMES.get(routine.removeprefix("linalg."), "a")


def _usable(routine, mesh, arrays):
    """Returns ``mesh``, made concrete if the arrays have values. Raises if a call can't use it."""
    if isinstance(mesh, AbstractMesh) and not traced(arrays):
        mesh = _concrete(routine, mesh, arrays)
    context = jax.sharding.get_abstract_mesh()
    if traced(arrays) and not context.empty and context.size != mesh.size:
        raise ValueError(
            f"{routine}: inside jit a mesh must have the devices of the context mesh; got one of "
            f"{mesh.size} devices in the context of one of {context.size}. Call what is jitted "
            "outside of that context"
        )
    return mesh


def _one_device(device):
    return Mesh(np.array([device]), ("rank",))


def _concrete(routine, mesh, arrays):
    """Returns the mesh that an abstract one stands for: the mesh of an array, or the context's."""
    shardings = [named_sharding(array) for array in arrays]
    candidates = [sharding.mesh for sharding in shardings if sharding is not None]
    candidates.append(_compat.context_mesh())
    for candidate in candidates:
        if candidate is not None and candidate.shape == mesh.shape:
            return candidate
    raise ValueError(
        f"{routine}: mesh is abstract ({mesh}), and neither the arrays nor the context say which "
        "devices it stands for; pass a jax.sharding.Mesh, or run in jax.set_mesh(mesh)"
    )


def with_processes(routine, layout, concrete=None):
    """Returns ``layout`` with its processes, after these have met."""
    mesh = layout.mesh
    indices = rendezvous.indices(routine, mesh, concrete)
    processes = rendezvous.attribute(indices, mesh, layout.rows, layout.others)
    return _meet(routine, dataclasses.replace(layout, processes=processes))


def _meet(routine, layout):
    rendezvous.meet(routine, layout.platform, layout.processes)
    return layout


def axes_size(mesh, axes):
    return math.prod(mesh.shape[axis] for axis in axes)


def axes_names(axes):
    return " x ".join(map(repr, axes))
