"""The end of a process: it waits for what it has called, for ten seconds at most.

JAX calls a program and returns, and a process that ends then takes JAX's client down under it. With
JAX 0.12.0.1 that is a segmentation fault if programs of several CPU devices are still queued, also
where nothing refers to their results any more. Handlers of atexit run in the reverse of the order
in which they were registered, so that this one runs before JAX's own.
"""

import atexit
import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _internals

# A call that waits for a process that is gone never ends.
_LIMIT = 10.0
_PAUSE = 0.005

_platforms: set[str] = set()


def wait_at_exit(platform):
    """Has the process wait at its end for what runs on the devices of a platform."""
    if not _platforms:
        atexit.register(_wait)
    _platforms.add(platform)


def _wait():
    if not _internals.backends_are_initialized():  # nothing was called, and it takes a while
        return
    deadline = time.monotonic() + _LIMIT
    for platform in sorted(_platforms):
        with contextlib.suppress(Exception):
            ended = _wait_for(jax.live_arrays(platform), deadline)
            if ended and platform == "cpu" and len(jax.local_devices(backend="cpu")) > 1:
                _wait_for([_sum_over_devices()], deadline)


def _wait_for(arrays, deadline):
    """Whether all of the arrays are there before the deadline."""
    for array in arrays:
        while not _is_ready(array):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
    return True


def _is_ready(array):
    try:
        return array.is_deleted() or array.is_ready()
    except Exception:  # of a computation that failed
        return True


def _sum_over_devices():
    """A sum over all CPU devices of this process, which are done with earlier programs then: of
    those whose results were dropped nothing else is left."""
    mesh = Mesh(np.array(jax.local_devices(backend="cpu")), ("device",))
    ones = jax.device_put(np.ones(mesh.size, "float32"), NamedSharding(mesh, P("device")))
    return jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(ones)
