"""How a routine reaches the native code: `local_call` on one rank, `run` on global arrays.

A routine gives `run` a *program*, a function of a `Call` and global arrays that is traced once:
it lays the matrix out by rows, maps `local_call` over the mesh and brings the results back.
"""

import collections.abc
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _checks, _compat, _mesh, _plugin

# Tells the calls of one program apart where ranks meet. It is drawn while tracing, so a compiled
# program keeps its numbers and the jit cache isn't disturbed.
_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Call:
    """What a program depends on besides its arrays: the key of the cache of compiled programs.

    Attributes:
        program: function of (call, *arrays) that returns a tuple, the matrix first.
        layout: where the matrix is.
        tile: tile width, 0 for the plugin's choice.
        backend: the solver, resolved.
        specs: for each result, how it is given back; None where XLA chooses when traced, and
            replicated when compiled here.
        options: further static options of the program, as (name, value) pairs.
    """

    program: collections.abc.Callable
    layout: _mesh.Layout
    tile: int
    backend: str
    specs: tuple = ()
    options: tuple = ()

    @property
    def option(self):
        return dict(self.options)


def resolve(routine, layout, backend, a):
    """Loads the plugin for the layout's platform and resolves ``backend`` for ``a``, (rows, n).

    "auto" is the first backend for which a device has the memory, as far as that is known; the
    first of all where none has it.
    """
    plugin = _plugin.load(layout.platform)
    available = plugin.backends(routine)
    if backend == "auto" and len(available) > 1:
        memory, size = layout.memory, a.shape[1] ** 2 * a.dtype.itemsize

        def fits(name):
            needed = plugin.needs(routine, name, size, layout.ranks)
            return None in (memory, needed) or needed <= memory

        available = [*filter(fits, available), *available]
    name = _checks.backend(routine, backend, available, layout.platform)
    _checks.order(routine, name, a.shape[1], layout.ranks)
    return name


def prepare(routine, arrays, T_A, mesh, matrix_specs, in_specs, pad):
    """Checks what all routines on a global matrix have in common: (layout, tile)."""
    tile = _checks.tile(routine, T_A)
    layout = _mesh.infer(routine, arrays, mesh, matrix_specs, in_specs)
    _checks.padding(routine, "a", arrays[0].shape[0], layout.ranks, pad)
    return layout, tile


def prepare_local(name, routine, a, T_A, matrix_specs, in_specs, pad, backend):
    """The same for a local block inside shard_map: (layout, tile, backend)."""
    _checks.array(name, "a", a)
    if a.ndim != 2:
        raise ValueError(f"{name}: a must be a local block of shape (rows, n); got {a.shape}")
    tile = _checks.tile(name, T_A)
    layout = _mesh.infer_local(name, a, matrix_specs, in_specs)
    _checks.padding(name, "a", a.shape[1], layout.ranks, pad)
    return layout, tile, resolve(routine, layout, backend, a)


def local_call(target, layout, tile, backend, operands, results, **attributes):
    """The native routine on this rank's block, inside a shard_map.

    Args:
        target: FFI target name.
        layout: gives this device its rank and, along the other axes, its group of replicas.
        operands: arrays; the first is the block, which the first result overwrites.
        results: shape and dtype of each result, as ShapeDtypeStructs.
        **attributes: integers that the routine takes beside the common ones.
    """
    index = [
        jax.lax.axis_index(axes) if axes else jnp.int32(0) for axes in (layout.rows, layout.others)
    ]
    place = jnp.stack(index).astype(jnp.int32)
    function = jax.ffi.ffi_call(target, results, input_output_aliases={1: 0})
    attributes.update(ranks=layout.ranks, tile=tile, call=next(_numbers))
    attributes = {name: np.int64(value) for name, value in attributes.items()}
    if layout.ordinals:
        attributes["ordinals"] = np.array(layout.ordinals, np.int64)
    matrix, *others = function(place, *operands, backend=backend, **attributes)
    # Newer JAX takes the results for the same on all devices: say what they vary over.
    varying = frozenset().union(*map(_compat.varying_axes, operands))
    matrix = _compat.vary(matrix, varying)
    return matrix, *(_compat.vary(other, varying - set(layout.rows)) for other in others)


def over_ranks(layout, function, in_specs, out_specs):
    """``function`` mapped over the ranks; results with spec P() are the same on all of them."""
    return jax.shard_map(
        function, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def split_rows(array, layout, multiple=1):
    """``array`` padded with rows of zeros until each rank has a multiple of ``multiple``."""
    extra = -array.shape[0] % (layout.ranks * multiple)
    if extra:
        if layout.explicit:
            array = _mesh.constrain(array, layout, P())
        array = jnp.pad(array, ((0, extra), (0, 0)))
    return _mesh.constrain(array, layout, layout.row_spec) if layout.explicit else array


def join_rows(array, layout, count):
    """The first ``count`` rows: undoes `split_rows`."""
    if array.shape[0] == count:
        return array
    if layout.explicit:  # a size that P doesn't divide can't be sharded over explicit axes
        array = _mesh.constrain(array, layout, P())
    return array[:count]


def replicate(array, layout):
    """A copy of ``array`` on every rank, as shard_map wants it of explicit axes."""
    return _mesh.constrain(array, layout, P()) if layout.explicit else array


def pick(first, *optional):
    """``first`` alone, or a tuple of it and of those of (wanted, value) that are wanted."""
    wanted = tuple(value for want, value in optional if want)
    return (first, *wanted) if wanted else first


def status_type():
    return jax.ShapeDtypeStruct((1,), jnp.int32)


def run(call, arrays, donate=False, keep_matrix=True):
    """Runs ``call.program``, within the caller's trace or compiled here once and cached.

    Args:
        arrays: the matrix first.
        donate: gives the matrix's buffer to the program and deletes it; ignored in a trace, where
            only the caller's own jit can donate.
        keep_matrix: False leaves out the first result.

    Returns:
        The program's results as a list; None in place of a matrix that isn't kept.
    """
    if _mesh.traced(arrays):
        results = list(_constrained(call, *arrays))
        return results if keep_matrix else [None, *results[1:]]
    matrix, layout = arrays[0], call.layout
    placed = [_place_matrix(matrix, layout)]
    placed += [_mesh.place(array, layout, P()) for array in arrays[1:]]
    # Only a buffer that already lies as the ranks need it can become the work space; one that
    # device_put made here is ours, the caller's NumPy memory behind it is not.
    reuse = donate and isinstance(matrix, jax.Array) and _in_place(matrix, layout)
    with _compat.entered(layout.mesh):
        results = list(_compiled(call, reuse, keep_matrix or reuse)(*placed))
    if not (keep_matrix or reuse):
        results.insert(0, None)
    if donate and isinstance(matrix, jax.Array) and not matrix.is_deleted():
        matrix.delete()
    return results if keep_matrix else [None, *results[1:]]


def _place_matrix(matrix, layout):
    """The matrix on the mesh, with its rows padded first where it has to move: a sharded transfer
    needs rows that divide, and a replicated one would put all of it on every device."""
    on_mesh = isinstance(matrix, jax.Array) and isinstance(matrix.sharding, NamedSharding)
    if not (on_mesh and matrix.sharding.mesh == layout.mesh):
        extra = -matrix.shape[0] % layout.ranks
        if extra:
            pad = jnp.pad if isinstance(matrix, jax.Array) else np.pad
            matrix = pad(matrix, ((0, extra), (0, 0)))
    return _mesh.place(matrix, layout, layout.row_spec)


def _in_place(matrix, layout):
    by_rows = layout.sharding(layout.row_spec)
    divides = matrix.shape[0] % layout.ranks == 0
    return divides and matrix.sharding.is_equivalent_to(by_rows, matrix.ndim)


def _constrained(call, *arrays):
    results = call.program(call, *arrays)
    return tuple(
        result if spec is None else _mesh.constrain(result, call.layout, spec)
        for result, spec in zip(results, call.specs, strict=True)
    )


@functools.lru_cache(maxsize=512)
def _compiled(call, reuse, keep_matrix):
    """The jitted program. The donated matrix has to be among its results, in its own sharding, for
    XLA to reuse the buffer; what isn't kept is not computed for the caller's sake."""
    specs = list(call.specs)
    if reuse:
        specs[0] = call.layout.row_spec
    call = dataclasses.replace(call, specs=tuple(specs))
    first = 0 if keep_matrix else 1

    def program(*arrays):
        return _constrained(call, *arrays)[first:]

    program.__name__ = f"jaxmg_{call.program.__name__}"
    shardings = tuple(call.layout.sharding(P() if spec is None else spec) for spec in specs)
    return jax.jit(program, donate_argnums=(0,) if reuse else (), out_shardings=shardings[first:])
