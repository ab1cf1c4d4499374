"""Names and behaviour that differ between the supported JAX versions (0.6.2 and up)."""

# pyright: reportAttributeAccessIssue=false

import contextlib
import contextvars
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
    prune_by,
    pruned,
    putter_of_parts,
    shard_map_mesh,
    trace_state_clean,
    transformation,
    use_abstract_mesh,
)

_F = typing.TypeVar("_F")
_R = typing.TypeVar("_R")

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
    """Wraps ``function`` so that it runs with JAX's compilation on, also under ``jax_disable_jit``.

    Without compilation JAX doesn't place results where this package needs them, and XLA can't
    compile each native call on its own.
    """

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
    """Returns whether the caller of a `compiled` function has ``jax_disable_jit``, so that JAX may
    later evaluate traced code operation by operation."""
    return getattr(_here, "interpreted", False)


def api_boundary(function: _F) -> _F:
    """Makes ``function`` public: `compiled`, and with its frames hidden in tracebacks."""
    return _internals.api_boundary(compiled(function))


def overloaded_boundary(
    function: typing.Callable[..., _R],
) -> typing.Callable[..., _R]:
    """As `api_boundary`, for the implementation of overloads.

    Type checkers don't compare its parameters with those of the overloads, which accept
    `_types.Else`. annotations_test.py compares them.
    """
    return api_boundary(function)


def warn_caller(message):
    """Issues a warning that points to the code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_internal(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _is_internal(frame):
    """Returns whether a frame belongs to this package or to JAX."""
    folders = (os.path.dirname(__file__), os.path.dirname(jax.__file__))
    return frame.f_code.co_filename.startswith(folders)


# Functions, because the stubs of jax.config lack these two in some versions.


def x64_enabled():
    """Returns whether JAX's 64-bit mode is on."""
    return jax.config.jax_enable_x64


def default_device():
    """Returns the configured default device for uncommitted arrays, or None."""
    return jax.config.jax_default_device


def guards_transfers():
    """Returns whether a ``jax.transfer_guard`` may refuse transfers, or log them."""
    config: typing.Any = jax.config
    return (
        config.jax_transfer_guard_host_to_device is not None
        or config.jax_transfer_guard_device_to_host is not None
        or config.jax_transfer_guard_device_to_device is not None
    )


_alone: contextvars.ContextVar[bool] = contextvars.ContextVar("jaxmg_alone", default=False)


@contextlib.contextmanager
def alone():
    """A context in which a device of a shard_map computes by itself, as if outside of a
    shard_map."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def is_alone():
    """Whether this is traced in a context of `alone`."""
    return _alone.get()


def is_entered(mesh):
    """Returns whether ``shard_map`` accepts ``mesh`` in the current context: there is no context
    mesh, or ``mesh`` is the context mesh."""
    if is_alone():
        return True
    current = jax.sharding.get_abstract_mesh()
    if current.empty:
        return True
    same = current == mesh.abstract_mesh
    # Outside a trace the order of the devices counts too.
    return same and not (trace_state_clean() and context_mesh() != mesh)


def entered(mesh):
    """Returns a context in which ``mesh`` is the context mesh, if another one is now.

    Without it ``shard_map`` refuses a mesh other than the context's. If there is no context mesh,
    none is entered: it would be visible to functions traced inside, and cause a retrace. Inside a
    trace only the abstract mesh can be changed.
    """
    if is_entered(mesh):
        return contextlib.nullcontext()
    return _set_mesh(mesh) if trace_state_clean() else use_abstract_mesh(mesh.abstract_mesh)


def entered_by(array):
    """Returns `entered` for the mesh of ``array`` if it has explicit axes: JAX refuses operations
    on such an array in the context of another mesh."""
    sharding = jax.typeof(array).sharding
    if not sharding.mesh.explicit_axes:
        return contextlib.nullcontext()
    return entered(getattr(array, "sharding", sharding).mesh)


@contextlib.contextmanager
def default_promotion():
    """A context, also usable as a decorator, with JAX's default promotion of dtypes and ranks, for
    which this package is written. The caller may have ``jax_numpy_dtype_promotion="strict"`` or
    ``jax_numpy_rank_promotion="raise"``."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def tracks_varying(axis):
    """Returns whether the enclosing shard_map tracks which values vary over its manual ``axis``."""
    return bool(varying_axes(jax.lax.axis_index(axis)))


# Whether functions support derivatives and batches. A custom_jvp of JAX 0.6 requires tangents to be
# placed like their primals, and its scan can't be transposed if it closes over linear values. JAX
# 0.7 to 0.9 pass most tests of derivatives and batches, but not all.
TRANSFORMS = jax.__version_info__ >= (0, 10)
# XLA of JAX 0.6.2 aborts the process when it compiles an all-to-all before some native calls. JAX
# 0.10 and later don't; the versions between were not tried.
COMPILES_EXCHANGES = jax.__version_info__ >= (0, 10)


# Whether XLA lets a branch of a lax.cond work in a donated array's memory; older versions copy it.
BRANCHES_WORK_IN_PLACE = jax.__version_info__ >= (0, 11)

# JAX before 0.9 enqueues a program on the GPUs of a mesh one by one. Two threads may do so in
# different orders; then each GPU waits inside one program for GPUs that run the other.
_ONE_BY_ONE = jax.__version_info__ < (0, 9)
_handing_out = threading.Lock()


def launches_at_any_time(mesh):
    """Returns whether a program may be enqueued on ``mesh`` while other threads enqueue theirs."""
    return not _ONE_BY_ONE or mesh.size == 1 or mesh.devices.flat[0].platform != "gpu"


def launching(mesh):
    """Returns a context in which a program may be enqueued on the devices of ``mesh``."""
    return contextlib.nullcontext() if launches_at_any_time(mesh) else _handing_out


def varying_axes(array):
    """Returns the manual axes over which ``array`` varies; empty if JAX doesn't track them."""
    aval = jax.typeof(array)
    if hasattr(aval, "vma"):
        return frozenset(aval.vma)
    return frozenset(getattr(getattr(aval, "mat", None), "varying", ()))


def vary(array, axes):
    """Marks ``array`` as varying over ``axes`` too, if the enclosing shard_map tracks that."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(array)))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)


def set_if_new(store, key, value):
    """Sets ``key``, unless a process has set it before."""
    try:
        store.key_value_set(key, value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


def get_key(store, key, seconds):
    """Returns the value of ``key`` once a process has set it; None if none does in time."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            # In steps of 1 s, so that signal handlers, such as Ctrl-C's, run in between.
            return store.blocking_key_value_get(key, round(1000 * min(max(left, 0.001), 1)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if left <= 1:
            return None
