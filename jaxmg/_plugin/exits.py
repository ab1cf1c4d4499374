"""At its end, a process waits up to ten seconds for the programs that it has started.

JAX starts a program and returns. If the process then ends, it destroys JAX's client under the
running program. With JAX 0.12.0.1 this is a segmentation fault if programs of several CPU devices
are still queued, even if nothing refers to their results any more. Handlers of atexit run in the
reverse order of their registration, so this one runs before JAX's own.
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

# Seconds. A call that waits for a lost process never ends.
_LIMIT = 10.0
_PAUSE = 0.005

_platforms: set[str] = set()


def wait_at_exit(platform):
    """Makes the process wait at its end for the programs on the devices of a platform."""
    if not _platforms:
        atexit.register(_wait)
    _platforms.add(platform)


def _wait():
    if not _internals.backends_are_initialized():  # no program ran, and initializing takes a while
        return
    deadline = time.monotonic() + _LIMIT
    for platform in sorted(_platforms):
        with contextlib.suppress(Exception):
            ended = _wait_for(jax.live_arrays(platform), deadline)
            if ended and platform == "cpu" and len(jax.local_devices(backend="cpu")) > 1:
                _wait_for([_sum_over_devices()], deadline)


def _wait_for(arrays, deadline):
    """Waits until the arrays are ready. Returns False if they aren't before the deadline."""
    for array in arrays:
        while not _is_ready(array):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
    return True


def _is_ready(array):
    try:
        return array.is_deleted() or array.is_ready()
    except Exception:  # the computation failed
        return True


def _sum_over_devices():
    """Returns a sum over all CPU devices of this process. When it is ready, the devices have
    finished all earlier programs, also those whose results were dropped, which nothing else can
    wait for."""
    mesh = Mesh(np.array(jax.local_devices(backend="cpu")), ("device",))
    ones = jax.device_put(np.ones(mesh.size, "float32"), NamedSharding(mesh, P("device")))
    return jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(ones)
