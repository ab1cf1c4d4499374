"""The caches of calls: of plans (`cache_plans`) and of compiled programs (`runner`).

A *program* is a function of a `Call` and global arrays that is traced once: it lays the matrix out
by rows, maps the native call over the mesh and brings the results back.
"""

import collections.abc
import dataclasses
import functools
import itertools
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import layouts, places


@dataclasses.dataclass(frozen=True)
class Call:
    """All that a program depends on besides its arrays: the key of the cache of compiled programs.

    Attributes:
        name: the program's, for profiles and dumps.
        program: function of (call, *arrays) that returns a tuple, the matrix first.
        layout: the layout of the matrix.
        shape: (m, n) of the caller's matrix, before rows are added on its way to the mesh.
        tile: tile width, 0 for the plugin's choice.
        backend: the solver, resolved.
        specs: the sharding of each result; None where XLA chooses when traced, and replicated
            when compiled here.
        attributes: those of the native routine beside the common ones, as (name, value) pairs.
        overflow: rows of each rank's overflow array, of a factor in the engine's layout.
        order: that of the larger matrix that is worked on in place of the caller's
            (`alignment`); None where there is none.
        routine: the `record.Routine` that the program runs, if it runs one.
        in_place: whether the program has the matrix's buffer to itself.
    """

    name: str
    program: collections.abc.Callable
    layout: layouts.Layout
    shape: tuple[int, ...]
    tile: int
    backend: str
    specs: tuple = ()
    attributes: tuple = ()
    overflow: int = 0
    order: int | None = None
    routine: typing.Any = None
    in_place: bool = False


def cache_plans(plan) -> collections.abc.Callable[..., typing.Any]:
    """Makes of ``plan(arrays, *options)``, which checks a call and returns the function of the
    arrays that runs it, a function that does both.

    A plan looks at shapes, dtypes and shardings, never at values. The plan of an eager call is
    cached under all that it depends on: the next such call goes straight to the compiled program.
    A call that raises leaves nothing. A solve evicts Python's code from the processor's caches,
    and makes it four times as slow: a later call executes as little of this package as possible.
    """

    def plan_on_devices(arrays, *options):
        if not any(map(places.is_on_host, arrays)):
            return plan(arrays, *options)
        planned = plan(places.fetch(arrays), *options)
        return lambda *arrays: planned(*places.fetch(arrays))

    @functools.wraps(plan)
    def run(arrays, *options):
        slot = slot_of(arrays, plan, *options)
        if not slot:
            slot.append(plan_on_devices(arrays, *options))
        return slot[0](*arrays)

    return run


def slot_of(arrays, plan, *options) -> list:
    """A list that has, or gets, what ``plan`` makes of arrays such as these and of the options."""
    circumstances = _circumstances(arrays)
    if circumstances is None:
        return []
    try:
        return _slots(plan, circumstances, *options)
    except TypeError:  # not hashable: planned at each call
        return []


# typed: T_A=1 isn't T_A=True
@functools.lru_cache(maxsize=16384, typed=True)
def _slots(plan, circumstances, *options) -> list:
    return []


def _circumstances(arrays):
    """The key of a plan for ``arrays`` besides its options; None where they
    are traced, or where a plan refuses them: they are deleted, masked, or no arrays."""
    keys: list[tuple] = []
    for array in arrays:
        kind = _kind(array.__class__)
        if kind == "placed":
            if array.is_deleted():
                return None
            keys.append((array.shape, array.dtype, array.sharding, array.committed))
        elif kind == "numpy":
            keys.append((array.shape, array.dtype))
        else:
            return None
    config: typing.Any = jax.config
    return (
        *keys,
        config.jax_enable_x64,
        config.jax_default_device,
        jax.sharding.get_abstract_mesh(),
        _compat.concrete_mesh(),
    )


@functools.cache
def _kind(kind):
    """Whether arrays of a type are NumPy's, or JAX's with values somewhere; None for others."""
    if issubclass(kind, _compat.numpy_types):
        return None if issubclass(kind, np.ma.MaskedArray) else "numpy"
    return "placed" if issubclass(kind, jax.Array) and not issubclass(kind, Tracer) else None


def runner(call, arrays, donate=False, wanted=None, matrices=1):
    """The function that runs ``call.program`` on arrays such as these: within the caller's trace,
    or compiled here once and cached.

    Args:
        arrays: the matrices first.
        donate: gives the matrices' buffers to the program and deletes them; ignored in a trace,
            where only the caller's own jit can donate.
        wanted: for each result whether the caller has a use for it; None: for all. On a mesh each
            costs the host some 10 us a device.
        matrices: how many matrices there are.

    Returns:
        A function of the arrays that returns the program's results as a list, None in place of one
        that isn't wanted.
    """
    mesh = call.layout.mesh
    wanted = (True,) * len(call.specs) if wanted is None else tuple(map(bool, wanted))
    if layouts.traced(arrays):

        def run_traced(*arrays):
            with _compat.entered(mesh):
                results = _constrain(call, *arrays)
            return [result if want else None for result, want in zip(results, wanted, strict=True)]

        return run_traced
    # Only a buffer that already lies as the ranks need it can become the work space; one that
    # device_put made here is ours, the caller's NumPy memory behind it is not.
    apart = call.order is not None or (call.routine is not None and call.routine.exchanges)
    reused = tuple(
        i
        for i, matrix in enumerate(arrays[:matrices])
        if donate and not apart and lies_by_rows(matrix, call.layout)
    )
    computed = tuple(want or i in reused for i, want in enumerate(wanted))
    compiled = _compiled(call, reused, computed)
    place = _placer(arrays, call.layout, matrices)
    # The context is one of the circumstances of a plan, so it is the same in each call of `run`.
    if not (_compat.is_entered(mesh) and _compat.launches_at_any_time(mesh)):
        compiled = _in_contexts(compiled, mesh)
    positions = iter(range(len(wanted)))
    sources = [next(positions) if there else None for there in computed]
    sources = [i if want else None for i, want in zip(sources, wanted, strict=True)]

    def run(*arrays):
        results = compiled(*(arrays if place is None else place(arrays)))
        if donate:
            _delete(arrays[:matrices])
        return [None if i is None else results[i] for i in sources]

    return run


def _in_contexts(compiled, mesh):
    """``compiled``, called where ``mesh`` is the context mesh and no other thread hands a program
    to its GPUs."""

    def run(*arrays):
        with _compat.entered(mesh), _compat.launching(mesh):
            return compiled(*arrays)

    return run


def _delete(matrices):
    for matrix in matrices:
        if isinstance(matrix, jax.Array) and not matrix.is_deleted():
            matrix.delete()


def _placer(arrays, layout, matrices):
    """The function that brings arrays like these, the matrices first, to where the compiled program
    takes them; None where they are there: a ``device_put`` of one takes the host as long as the
    rest of an eager call."""
    if _on_one_device(layout):
        placers = [_placer_on_one_device(array, layout) for array in arrays]
    else:
        placers = [
            *(_matrix_placer(matrix, layout) for matrix in arrays[:matrices]),
            *(_array_placer(b, layout, P()) for b in arrays[matrices:]),
        ]
    if not any(placers):
        return None
    return lambda arrays: [
        array if place is None else place(array)
        for place, array in zip(placers, arrays, strict=True)
    ]


def _on_one_device(layout):
    """Whether programs take their arrays as those of a device, without a mesh: so that one program
    serves all that lie on it, whatever their sharding says, and NumPy arrays. A mesh of explicit
    axes is part of an array's type."""
    return layout.mesh.size == 1 and not layout.explicit


def _placer_on_one_device(array, layout):
    """The function that makes of arrays like ``array`` those of the layout's one device; None where
    they are."""
    if not isinstance(array, jax.Array):
        return None  # jit takes NumPy arrays there
    sharding = layout.sharding(P())
    if not array.sharding.is_equivalent_to(sharding, array.ndim):
        return lambda array: jax.device_put(array, sharding).addressable_data(0)
    if isinstance(array.sharding, SingleDeviceSharding):
        return None
    return lambda array: array.addressable_data(0)


def _array_placer(array, layout, spec, extra=0):
    """The function that brings arrays like ``array`` to the mesh, with so many rows of zeros below;
    None where they are on it."""
    if _on_mesh(array, layout):
        return None
    sharding = layout.sharding(spec)
    if _lies_on_only_device(array, layout):
        # This takes a third of the time of device_put.
        return lambda array: jax.make_array_from_single_device_arrays(
            array.shape, sharding, [array.addressable_data(0)]
        )
    if _on_same_devices(array, layout):
        return _resharder(sharding, extra)
    if not extra:
        return lambda array: places.put(array, sharding)
    pad = jnp.pad if isinstance(array, jax.Array) else np.pad
    return lambda array: places.put(pad(array, ((0, extra), (0, 0))), sharding)


def _on_same_devices(array, layout):
    """Whether ``array`` lies on another mesh of the layout's devices, in the same order, and of
    automatic axes, of which a program of one computation can be."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or layout.explicit:
        return False
    meshes = np.asarray(sharding.mesh.devices), np.asarray(layout.mesh.devices)
    same = meshes[0].ravel().tolist() == meshes[1].ravel().tolist()
    return same and set(sharding.mesh.axis_types) == {AxisType.Auto}


@functools.lru_cache(maxsize=64)
def _resharder(sharding, extra):
    """The function that moves a matrix between meshes of the same devices, with so many rows of
    zeros below. A program exchanges shards between the devices; device_put takes them through the
    host, on GPUs at a hundredth of the speed."""

    def moved(array):
        return jnp.pad(array, ((0, extra), (0, 0))) if extra else array

    return jax.jit(moved, out_shardings=sharding)


def _lies_on_only_device(array, layout):
    """Whether ``array`` lies on the device of a mesh of one."""
    one = layout.mesh.size == 1 and isinstance(array, jax.Array)
    return one and array.devices() == set(layout.mesh.devices.flat)


def _matrix_placer(matrix, layout):
    """The same for the matrix, with its rows padded first where it has to move: a sharded transfer
    needs rows that divide, and a replicated one would put all of it on every device."""
    return _array_placer(matrix, layout, layout.row_spec, -matrix.shape[0] % layout.ranks)


def _on_mesh(array, layout):
    sharding = getattr(array, "sharding", None)
    return isinstance(sharding, NamedSharding) and sharding.mesh == layout.mesh


def lies_by_rows(matrix, layout):
    """Whether ``matrix`` has every rank's rows, and no more, where the rank is."""
    if not isinstance(matrix, jax.Array) or layouts.traced((matrix,)):
        return False
    by_rows = layout.sharding(layout.row_spec)
    divides = matrix.shape[0] % layout.ranks == 0
    return divides and matrix.sharding.is_equivalent_to(by_rows, matrix.ndim)


@_compat.default_promotion()
def _constrain(call, *arrays):
    results = zip(call.program(call, *arrays), call.specs, strict=True)
    return tuple([
        result if spec is None else layouts.constrain(result, call.layout, spec)
        for result, spec in results
    ])  # fmt: skip


@functools.lru_cache(maxsize=512)
def _compiled(call, reused, computed):
    """The jitted program, of those results that are marked. A matrix that is reused has to be among
    them, in its own sharding, for XLA to take its buffer; what isn't kept is not computed for the
    caller's sake."""
    specs = list(call.specs)
    for i in reused:
        specs[i] = call.layout.row_spec
    call = dataclasses.replace(call, specs=tuple(specs), in_place=bool(reused))

    def program(*arrays):
        return tuple(itertools.compress(_constrain(call, *arrays), computed))

    program.__name__ = f"jaxmg_{call.name}"
    shardings = tuple(call.layout.sharding(P() if spec is None else spec) for spec in specs)
    options: dict[str, typing.Any] = {}
    if _on_one_device(call.layout):
        # Without it jit compiles again for arrays that are committed to the device.
        options["in_shardings"] = call.layout.sharding(P())
    return jax.jit(
        program,
        donate_argnums=reused,
        out_shardings=tuple(itertools.compress(shardings, computed)),
        **options,
    )
