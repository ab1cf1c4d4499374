"""Calls native code: `call` on one rank inside a shard_map, `over_ranks` on all ranks of a mesh."""

import collections.abc
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, mlir
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import layouts, local_layouts, shardings
from jaxmg._plugin import exits

_DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


def call(
    target, layout, tile, backend, operands, results, *, in_place=1, aliases=None, differing=1,
    **attributes,
):  # fmt: skip
    """Calls the native routine on this rank's block, inside a shard_map.

    Args:
        target: FFI target name.
        layout: determines the number of ranks.
        operands: arrays; the first is this device's coordinates, [rank, group of replicas],
            the second the block.
        results: shape and dtype of each result, as ShapeDtypeStructs.
        in_place: the number of leading results that overwrite the operands after the coordinates.
        aliases: dict from operands to the results that overwrite them, in place of ``in_place``.
        differing: the number of leading results that differ between ranks.
        **attributes: the routine's own attributes, integers and booleans. The handler refuses
            unknown and missing ones.
    """
    coordinates, *operands = operands
    if aliases is None:
        aliases = {i + 1: i for i in range(in_place)}
    function = jax.ffi.ffi_call(target, results, input_output_aliases=aliases)
    grid_rows = (layout.grid_rows or 0) if backend == "cusolvermp" else 0
    attributes.update(ranks=layout.ranks, tile=tile, grid_rows=grid_rows)
    numbers = {
        name: value if isinstance(value, bool) else np.int64(value)
        for name, value in attributes.items()
    }
    processes = np.array(layout.processes, np.int64)
    values = function(
        coordinates.reshape(2), *operands, backend=backend, processes=processes, **numbers
    )
    # Newer JAX assumes that results are equal on all devices, so declare the axes over which they
    # vary. Along an axis of one device nothing varies, whatever the caller's specs name.
    varying = frozenset().union(*map(_compat.varying_axes, operands))
    if not varying:
        return tuple(values)
    shared = local_layouts.shared_axes(layout, *operands)
    return tuple(
        _compat.vary(value, varying if i < differing else shared) for i, value in enumerate(values)
    )


def all_gather(part, layout, coordinates):
    """Returns the parts of all ranks, one after the other, on all ranks. What is computed from them
    is the same on all ranks, which isn't certain for a sum over ranks."""
    whole = jax.ShapeDtypeStruct((layout.ranks * part.shape[0], 1), part.dtype)
    return call(
        "jaxmg_all_gather", layout, 0, "native", (coordinates, part[:, None]), (whole,),
        in_place=0, differing=0, n=1,
    )[0][:, 0]  # fmt: skip


def meet(layout, coordinates, array=None):
    """Returns True once all ranks have made this call; None if there is only one process.

    The result is for `after_meeting`. XLA's collectives don't notice that a process is lost, and
    may wait for it forever. This call fails on all ranks instead. The ranks compare the dtype of
    ``array``.
    """
    if len(set(layout.processes)) < 2:
        return None
    dtype = np.float32 if array is None or array.dtype not in _DTYPES else array.dtype
    part = coordinates.reshape(2)[:1].astype(dtype)
    return jnp.all(all_gather(part, layout, coordinates).real >= 0)


def after_meeting(met, array):
    """Makes ``array`` depend on ``met``, the result of `meet`, so that XLA's collectives on it
    start only after all ranks have made that call."""
    return array if met is None else jnp.where(met, array, 0)


def meet_first(layout, *arrays):
    """Makes global arrays depend on `meet` if there are several processes, before XLA's collectives
    use the arrays."""
    if len(set(layout.processes)) < 2:
        return arrays
    one = arrays[0]
    met = over_ranks(layout, lambda coordinates: meet(layout, coordinates, one), (), P())()
    return tuple(after_meeting(met, array) for array in arrays)


def over_ranks(
    layout, function, in_specs, out_specs, plain=False
) -> collections.abc.Callable[..., typing.Any]:
    """Maps ``function`` of a device's rank coordinates and blocks over the ranks. Results with spec
    P() are equal on all of them.

    The coordinates are data, because axes have no index if the mesh isn't the context's.

    Args:
        plain: whether the function calls no native code. If so, and if each device has whole
            matrices, it is called directly, and XLA places its operations, also for a batch.
    """
    exits.wait_at_exit(layout.platform)
    if layout.solo:
        return functools.partial(function, np.zeros((1, 2), np.int32))
    if plain and layout.is_whole:
        return functools.partial(function, jnp.zeros((1, 2), jnp.int32))
    if layout.explicit and _compat.mapped_axes():
        # A shard_map can't map over the mesh axes that shard a batch.
        function = over_ranks(layout.automatic, function, in_specs, out_specs)
        return functools.partial(shardings.automatically, layout.mesh, function, out_specs)
    everywhere = P(layout.mesh.axis_names)
    mapped = jax.shard_map(
        function, mesh=layout.mesh, in_specs=(everywhere, *in_specs), out_specs=out_specs,
        check_vma=False,
    )  # fmt: skip
    # When JAX evaluates a trace eagerly, as for jax.checkpoint, it would compile the operations in
    # a shard_map one by one. XLA of jaxlib 0.11.2 ends the process if an operand of one has no
    # elements.
    mapped = _compat.compiled(jax.jit(mapped))
    if _compat.interpreted():
        mapped = functools.partial(_as_one_operation, mapped)
    coordinates = layout.coordinates
    if layout.explicit:
        coordinates = shardings.constrain(jnp.asarray(coordinates), layout, everywhere)
    return functools.partial(mapped, coordinates)


def _as_one_operation(function, *arrays):
    """Calls ``function`` as a single operation of the trace of the arrays."""
    if not layouts.traced(arrays):
        return function(*arrays)
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*arrays)
    return jax.tree.unflatten(jax.tree.structure(shapes), _operation.bind(*arrays, jaxpr=jaxpr))


def _jvp(primals, tangents, *, jaxpr):
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def function(*values):
        arrays = list(primals)
        for i, value in zip(moving, values, strict=True):
            arrays[i] = value
        return jaxpr_as_fun(jaxpr)(*arrays)

    return jax.jvp(function, [primals[i] for i in moving], [tangents[i] for i in moving])


_operation = Primitive("jaxmg_over_ranks")
_operation.multiple_results = True
_operation.def_impl(_compat.compiled(lambda *arrays, jaxpr: jax.jit(jaxpr_as_fun(jaxpr))(*arrays)))
_operation.def_abstract_eval(lambda *avals, jaxpr: jaxpr.out_avals)
mlir.register_lowering(
    _operation,
    mlir.lower_fun(lambda *arrays, jaxpr: jaxpr_as_fun(jaxpr)(*arrays), multiple_results=True),
)
ad.primitive_jvps[_operation] = _compat.compiled(_jvp)
