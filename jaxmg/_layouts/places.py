"""Handles arrays that calls don't compute with directly: in host memory, unreduced, of symbolic
sizes.

A call checks for them once, when it begins: `refuse` raises for unreduced arrays, and for traced
ones in host memory or of symbolic sizes; `fetch` copies arrays with values from host memory to
their devices. `put` brings an array to a mesh, also to one of several processes.
"""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

_HOST = "pinned_host"


def refuse(routine, name, value):
    """Raises if ``value`` is traced and in host memory or of symbolic sizes, or is unreduced."""
    if not isinstance(value, jax.Array):
        return
    traced = isinstance(value, Tracer)
    kind: Any = jax.typeof(value) if traced else value
    spec = getattr(getattr(kind, "sharding", None), "spec", None)
    if axes := getattr(spec, "unreduced", None):
        raise ValueError(
            f"{routine}: {name}, of shape {tuple(value.shape)}, is unreduced over "
            f"{', '.join(map(repr, sorted(axes)))}: its values are partial sums, not yet added up; "
            "reduce it first, with jax.reshard to a PartitionSpec without unreduced axes"
        )
    if not traced:
        return
    if not all(isinstance(size, int) for size in value.shape):
        raise ValueError(
            f"{routine}: {name} has the symbolic shape ({', '.join(map(str, value.shape))}); the "
            "native routines need sizes that are known when they are traced: export one program "
            "for each size, or pad to one of a few sizes"
        )
    if _space(kind) == "Host":
        raise ValueError(
            f"{routine}: {name}, of shape {tuple(value.shape)}, is traced in host memory "
            f"({_HOST!r}); copy it to the devices first, with jax.device_put(..., "
            "jax.memory.Space.Device) inside jit, or to a sharding with memory_kind='device' before"
        )


def is_on_host(array):
    """Whether ``array`` is in the host memory `_HOST`, with which devices don't compute."""
    if isinstance(array, Tracer):
        return _space(jax.typeof(array)) == "Host"
    return isinstance(array, jax.Array) and array.sharding.memory_kind == _HOST


def fetch(arrays):
    """Returns ``arrays``, with those in host memory copied to their devices."""
    if not any(map(is_on_host, arrays)):
        return arrays
    return tuple(map(_to_device, arrays))


def put(array, sharding):
    """Returns ``array``, a NumPy array or a JAX array with values, in ``sharding``.

    An array that every process has whole is copied to the process's own devices only.
    ``jax.device_put`` would send one process's array to the others, to compare them, and treats NaN
    as different from NaN.
    """
    if sharding.is_fully_addressable or not _is_whole(array):
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: array[index], dtype=array.dtype
    )


def _is_whole(array):
    """Whether this process has all of ``array``."""
    return not isinstance(array, jax.Array) or (
        array.is_fully_addressable or array.is_fully_replicated
    )


def _space(kind):
    return getattr(getattr(kind, "memory_space", None), "name", "")


def _to_device(array):
    if not is_on_host(array):
        return array
    if isinstance(array, Tracer):
        return jax.device_put(array, jax.memory.Space.Device)
    if array.is_deleted():
        return array
    kind = next(iter(array.devices())).default_memory().kind
    return jax.device_put(array, array.sharding.with_memory_kind(kind))
