"""What the processes of a call on a matrix in host memory do apart before its first native call, so
that all of them go on, or all raise: `in_step`."""

import contextlib
import functools
import zlib

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import ffi
from jaxmg._layouts import places


@contextlib.contextmanager
def in_step(caller, layout, call):
    """Raises at the end in all processes of the layout if the context raises in one of them, or if
    their calls differ. In one process it does nothing.

    Args:
        call: what must be equal in all processes; `repr` tells differences.
    """
    error = None
    try:
        yield
    except Exception as raised:
        if not layout.processes:
            raise
        error = raised
    if not layout.processes:
        return
    # Numbers of 24 bits are exact in float32.
    mine = np.array([error is not None, zlib.crc32(repr(call).encode()) >> 8], np.float32)
    failed, calls = _told(caller, layout, mine)
    if error is not None:
        raise error
    if failed.any():
        process = layout.processes[int(failed.argmax())]
        raise RuntimeError(
            f"{caller}: process {process} has failed before the call began; its own error says why"
        )
    if (calls != calls[0]).any():
        rank = int((calls != calls[0]).argmax())
        raise ValueError(
            f"{caller}: processes {layout.processes[0]} and {layout.processes[rank]} make "
            "different calls: shape, dtype, memory= and a mapped file must be the same in all"
        )


def _told(caller, layout, mine):
    """Returns for each of these numbers an array of the ranks' values."""
    numbers = np.tile(mine, (layout.ranks, 1))
    with _compat.entered(layout.mesh), _compat.default_promotion():
        rows = places.put(numbers, layout.sharding(layout.row_spec))
        try:
            found = jax.block_until_ready(_gatherer(layout, len(mine))(rows))
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises one or the other
            raise jax.errors.JaxRuntimeError(f"{caller}: {error}") from error
    return np.asarray(found).reshape(layout.ranks, -1).T


@functools.lru_cache(maxsize=32)
def _gatherer(layout, count):
    def local(coordinates, numbers):
        return ffi.all_gather(numbers.reshape(count), layout, coordinates)

    return jax.jit(lambda numbers: ffi.over_ranks(layout, local, (layout.row_spec,), P())(numbers))
