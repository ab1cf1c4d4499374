"""The caches of calls: of plans (`cache_plans`) and of compiled programs (`runner`).

A *program* is a function of a `Call` and global arrays that is traced once: it lays the matrix out
by rows, maps the native call over the mesh and returns the results in the caller's layout.
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
from jaxmg._layouts import layouts, places, shardings


@dataclasses.dataclass(frozen=True)
class Call:
    """Everything that a program depends on, except its arrays: the key of the cache of compiled
    programs.

    Attributes:
        name: the name of the program, for profiles and dumps.
        program: function of (call, *arrays) that returns a tuple, the matrix first.
        layout: the layout of the matrix.
        shape: (m, n) of the caller's matrix, without the rows that are added for the mesh.
        tile: tile width, 0 for the plugin's choice.
        backend: the resolved backend.
        specs: the spec of each result. None: XLA chooses it in the caller's trace; the result is
            replicated if the program is compiled here.
        attributes: (name, value) pairs of the native routine's attributes beyond the common ones.
        overflow: rows of each rank's overflow array, for a factor in the engine's layout.
        order: the order of the larger matrix that replaces the caller's (`alignment`); None if none
            does.
        routine: the `record.Routine` that the program runs, if it runs one.
        in_place: whether a buffer of the matrices is donated to the program.
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
    """Decorates ``plan(arrays, *options)``, which checks a call and returns the function of the
    arrays that runs it. The decorated function does both.

    A plan depends on shapes, dtypes and shardings, never on values. The plan of an eager call is
    cached, and everything it depends on is its key: the next such call goes straight to the
    compiled program. A call that raises caches nothing. A solve evicts Python's code from the
    processor's caches, and makes it four times as slow, so a later call executes as little of this
    package as possible.
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
    """Returns the cached list for such arrays and options. It holds the result of ``plan``, or is
    still empty.

    A new list is returned if the arrays are traced, or if a plan refuses them because they are
    deleted, masked or no arrays.
    """
    keys: list[tuple] = []
    for array in arrays:
        kind = _kind(array.__class__)
        if kind == "placed":
            if array.is_deleted():
                return []
            keys.append((array.shape, array.dtype, array.sharding, array.committed))
        elif kind == "numpy":
            keys.append((array.shape, array.dtype))
        else:
            return []
    config: typing.Any = jax.config
    circumstances = (
        *keys,
        config.jax_enable_x64,
        config.jax_default_device,
        jax.sharding.get_abstract_mesh(),
        _compat.concrete_mesh(),
    )
    try:
        return _slots(plan, circumstances, *options)
    except TypeError:  # not hashable: planned at each call
        return []


# typed: T_A=1 isn't T_A=True
@functools.lru_cache(maxsize=16384, typed=True)
def _slots(plan, circumstances, *options) -> list:
    return []


@functools.cache
def _kind(kind):
    """Returns "numpy" for a type of NumPy arrays, "placed" for JAX arrays with values, else
    None."""
    if issubclass(kind, _compat.numpy_types):
        return None if issubclass(kind, np.ma.MaskedArray) else "numpy"
    return "placed" if issubclass(kind, jax.Array) and not issubclass(kind, Tracer) else None


def runner(call, arrays, donate=False, wanted=None, matrices=1):
    """Returns the function that runs ``call.program`` on such arrays: within the caller's trace, or
    compiled here once and cached.

    Args:
        arrays: the matrices first.
        donate: donates the matrices' buffers to the program and deletes them; ignored in a trace,
            where only the caller's own jit can donate.
        wanted: for each result, whether the caller uses it; None: all are used. On a mesh each
            result costs the host about 10 us per device.
        matrices: the number of matrices.

    Returns:
        A function of the arrays that returns the program's results as a list, with None in place of
        each result that isn't wanted.
    """
    mesh = call.layout.mesh
    wanted = (True,) * len(call.specs) if wanted is None else tuple(map(bool, wanted))
    if layouts.traced(arrays):

        def run_traced(*arrays):
            with _compat.entered(mesh):
                results = _constrain(call, *arrays)
            return [result if want else None for result, want in zip(results, wanted, strict=True)]

        return run_traced
    # The program can only reuse a buffer that is already laid out by rows. It can't reuse one from
    # device_put, which may be the caller's NumPy memory.
    routine = call.routine
    apart = call.order is not None or not (routine is None or routine.results[0].in_place)
    reused = tuple(
        i
        for i, matrix in enumerate(arrays[:matrices])
        if donate and not apart and lies_by_rows(matrix, call.layout)
    )
    computed = tuple(want or i in reused for i, want in enumerate(wanted))
    compiled = _compiled(call, reused, computed)
    place = _placer(arrays, call.layout, matrices)
    # The context mesh is in the key of a plan, so it is the same in each call of `run`.
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
    """Returns ``compiled``, to be called with ``mesh`` as the context mesh, and while no other
    thread starts a program on its GPUs."""

    def run(*arrays):
        with _compat.entered(mesh), _compat.launching(mesh):
            return compiled(*arrays)

    return run


def _delete(matrices):
    for matrix in matrices:
        if isinstance(matrix, jax.Array) and not matrix.is_deleted():
            matrix.delete()


def _placer(arrays, layout, matrices):
    """Returns the function that moves such arrays, the matrices first, to where the compiled
    program takes them; None if they are already there. That matters: a ``device_put`` takes the
    host as long as the rest of an eager call."""
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
    """Whether programs take their arrays on a single device, without a mesh. One program then
    serves NumPy arrays and all arrays on the device, whatever their sharding. This is impossible on
    explicit axes, because their mesh is part of an array's type."""
    return layout.mesh.size == 1 and not layout.explicit


def _placer_on_one_device(array, layout):
    """Returns the function that moves arrays like ``array`` to the layout's one device; None if jit
    takes them unchanged."""
    if not isinstance(array, jax.Array):
        return None  # jit moves NumPy arrays there
    sharding = layout.sharding(P())
    if not array.sharding.is_equivalent_to(sharding, array.ndim):
        return lambda array: jax.device_put(array, sharding).addressable_data(0)
    if isinstance(array.sharding, SingleDeviceSharding):
        return None
    return lambda array: array.addressable_data(0)


def _array_placer(array, layout, spec, extra=0):
    """Returns the function that moves arrays like ``array`` to the mesh, and appends ``extra`` rows
    of zeros; None if they are on the mesh."""
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
    """Whether ``array`` lies on a mesh with the layout's devices in the same order, and both meshes
    have automatic axes. One program can then move it."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or layout.explicit:
        return False
    meshes = np.asarray(sharding.mesh.devices), np.asarray(layout.mesh.devices)
    same = meshes[0].ravel().tolist() == meshes[1].ravel().tolist()
    return same and set(sharding.mesh.axis_types) == {AxisType.Auto}


@functools.lru_cache(maxsize=64)
def _resharder(sharding, extra):
    """Returns the function that moves a matrix between meshes of the same devices, and appends
    ``extra`` rows of zeros. The jitted function exchanges shards between the devices. device_put
    takes them through the host, at a hundredth of the speed on GPUs."""

    def moved(array):
        return jnp.pad(array, ((0, extra), (0, 0))) if extra else array

    return jax.jit(moved, out_shardings=sharding)


def _lies_on_only_device(array, layout):
    """Whether ``array`` lies on the only device of the layout's mesh."""
    one = layout.mesh.size == 1 and isinstance(array, jax.Array)
    return one and array.devices() == set(layout.mesh.devices.flat)


def _matrix_placer(matrix, layout):
    """As `_array_placer`, for a matrix. Pads its rows before it moves: a sharded transfer needs a
    number of rows that the ranks divide, and a replicated one would put the whole matrix on every
    device."""
    return _array_placer(matrix, layout, layout.row_spec, -matrix.shape[0] % layout.ranks)


def _on_mesh(array, layout):
    sharding = getattr(array, "sharding", None)
    return isinstance(sharding, NamedSharding) and sharding.mesh == layout.mesh


def lies_by_rows(matrix, layout):
    """Whether each rank's device has exactly the rank's rows of ``matrix``."""
    if not isinstance(matrix, jax.Array) or layouts.traced((matrix,)):
        return False
    by_rows = layout.sharding(layout.row_spec)
    divides = matrix.shape[0] % layout.ranks == 0
    return divides and matrix.sharding.is_equivalent_to(by_rows, matrix.ndim)


@_compat.default_promotion()
def _constrain(call, *arrays):
    results = zip(call.program(call, *arrays), call.specs, strict=True)
    return tuple([
        result if spec is None else shardings.constrain(result, call.layout, spec)
        for result, spec in results
    ])  # fmt: skip


@functools.lru_cache(maxsize=512)
def _compiled(call, reused, computed):
    """Returns the jitted program, which returns the results that ``computed`` marks. XLA takes the
    buffer of a reused matrix only if the corresponding result is among them, with the matrix's
    sharding. XLA computes no result that isn't returned."""
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
        # Without in_shardings, jit compiles again for arrays that are committed to the device.
        options["in_shardings"] = call.layout.sharding(P())
    return jax.jit(
        program,
        donate_argnums=reused,
        out_shardings=tuple(itertools.compress(shardings, computed)),
        **options,
    )
