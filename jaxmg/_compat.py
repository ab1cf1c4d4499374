"""What is spelled differently in the JAX versions that this package supports (0.6.2 and up)."""

# pyright: reportAttributeAccessIssue=false

import contextlib
import functools
import os
import sys
import threading
import time
import typing
import warnings

import jax

from jaxmg import _internals
from jaxmg._internals import (  # noqa: F401
    abstract_platform,
    batch_size,
    batched_here,
    below,
    concrete_mesh,
    context_mesh,
    in_eager_batch,
    inside_vmap,
    key_value_store,
    mapped_axes,
    numpy_types,
    outside_vmap,
    shard_map_mesh,
    trace_state_clean,
    transformation,
    use_abstract_mesh,
)

_F = typing.TypeVar("_F")

if hasattr(jax, "set_mesh"):
    _set_mesh = jax.set_mesh
else:  # JAX 0.6
    _set_mesh = jax.sharding.use_mesh

if hasattr(jax.sharding, "reshard"):
    reshard = jax.sharding.reshard
else:  # JAX 0.6
    from jax.experimental import shard

    reshard = shard.reshard


def compiled(function: _F) -> _F:
    """``function``, called with JAX's compilation switched on, where the caller has
    ``jax_disable_jit``. Operation by operation, JAX has no result where this package wants it, and
    XLA can't compile each native call on its own."""

    @functools.wraps(function)  # type: ignore
    def run(*args, **named):
        if not jax.config.jax_disable_jit:
            return function(*args, **named)  # type: ignore
        with jax.disable_jit(False), _interpreted():
            return function(*args, **named)  # type: ignore

    return run  # type: ignore


_here = threading.local()


@contextlib.contextmanager
def _interpreted():
    before, _here.interpreted = interpreted(), True
    try:
        yield
    finally:
        _here.interpreted = before


def interpreted():
    """Whether the caller of a `compiled` function has ``jax_disable_jit``: JAX may evaluate what is
    traced here later, operation by operation."""
    return getattr(_here, "interpreted", False)


def api_boundary(function: _F) -> _F:
    """A public function: ``function``, `compiled`, with its frames hidden in tracebacks."""
    return _internals.api_boundary(compiled(function))


def warn_caller(message):
    """Warns, in the name of the code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_internal(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _is_internal(frame):
    """Whether a frame is of this package or of JAX."""
    folders = (os.path.dirname(__file__), os.path.dirname(jax.__file__))
    return frame.f_code.co_filename.startswith(folders)


# The stubs of some versions of jax.config don't have these two.


def x64_enabled():
    """Whether JAX computes with 64 bits here."""
    return jax.config.jax_enable_x64


def default_device():
    """The device that JAX puts uncommitted arrays on, where somebody has chosen one."""
    return jax.config.jax_default_device


def is_entered(mesh):
    """Whether ``shard_map`` takes ``mesh`` in the current context: there is no context mesh, or it
    is this one."""
    current = jax.sharding.get_abstract_mesh()
    if current.empty:
        return True
    same = current == mesh.abstract_mesh
    # Outside of a trace the order of the devices counts too.
    return same and not (trace_state_clean() and context_mesh() != mesh)


def entered(mesh):
    """A context in which ``mesh`` is the context mesh, where another one is now.

    Without it ``shard_map`` refuses a mesh that isn't the context's. No context is entered where
    there is none: the mesh would be visible to what is traced inside, and cost a retrace. Inside a
    trace only the abstract mesh can be changed.
    """
    if is_entered(mesh):
        return contextlib.nullcontext()
    return _set_mesh(mesh) if trace_state_clean() else use_abstract_mesh(mesh.abstract_mesh)


def entered_by(array):
    """`entered` for the mesh whose explicit axes ``array`` is on, if it is on any: JAX refuses an
    operation on it in the context of another one."""
    sharding = jax.typeof(array).sharding
    if not sharding.mesh.explicit_axes:
        return contextlib.nullcontext()
    return entered(getattr(array, "sharding", sharding).mesh)


@contextlib.contextmanager
def default_promotion():
    """A context, and a decorator, in which dtypes and ranks are promoted by JAX's defaults, for
    which this package is written, where the caller has ``jax_numpy_dtype_promotion="strict"`` or
    ``jax_numpy_rank_promotion="raise"``."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def tracks_varying(axis):
    """Whether the enclosing shard_map tracks what varies over its manual ``axis``."""
    return bool(varying_axes(jax.lax.axis_index(axis)))


# Whether the functions have derivatives and take batches. A custom_jvp of JAX 0.6 wants tangents to
# be where their primals are, and its scan isn't transposed where it closes over what is linear; JAX
# 0.7 to 0.9 pass most tests of it, not all.
TRANSFORMS = jax.__version_info__ >= (0, 10)
# XLA of JAX 0.6.2 aborts the process when it compiles an all-to-all before some native calls. Those
# of JAX 0.10 and later don't; the versions between were not tried.
COMPILES_EXCHANGES = jax.__version_info__ >= (0, 10)


# Whether XLA lets a branch of a lax.cond work in the memory of a donated array; older ones copy it.
BRANCHES_WORK_IN_PLACE = jax.__version_info__ >= (0, 11)

# JAX before 0.9 hands programs to the GPUs of a mesh one by one. Two threads may then do so in
# different orders, and each GPU waits in a program for those that are at the other one.
_ONE_BY_ONE = jax.__version_info__ < (0, 9)
_handing_out = threading.Lock()


def launches_at_any_time(mesh):
    """Whether a program may be handed to the devices of ``mesh`` whatever other threads do."""
    return not _ONE_BY_ONE or mesh.size == 1 or mesh.devices.flat[0].platform != "gpu"


def launching(mesh):
    """A context in which a program may be handed to the devices of ``mesh``."""
    return contextlib.nullcontext() if launches_at_any_time(mesh) else _handing_out


def varying_axes(array):
    """The manual axes that ``array`` is known to vary over; empty where JAX doesn't track it."""
    aval = jax.typeof(array)
    if hasattr(aval, "vma"):
        return frozenset(aval.vma)
    return frozenset(getattr(getattr(aval, "mat", None), "varying", ()))


def vary(array, axes):
    """``array``, marked as varying over ``axes`` too, where the enclosing shard_map tracks it."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(array)))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)


def set_if_new(store, key, value):
    """Sets ``key``, unless some process has."""
    try:
        store.key_value_set(key, value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


def get_key(store, key, seconds):
    """What some process has set, or sets within so many seconds; else None."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            # In steps: a signal's handler, such as that of Ctrl-C, runs in between.
            return store.blocking_key_value_get(key, round(1000 * min(max(left, 0.001), 1)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if left <= 1:
            return None
