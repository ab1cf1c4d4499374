"""What is spelled differently in the JAX versions that this package supports (0.6.2 and up)."""

# pyright: reportAttributeAccessIssue=false

import contextlib
import os
import sys
import threading
import time
import typing
import warnings

import jax
import numpy as np
from jax._src import core as _core
from jax._src import distributed as _distributed
from jax._src.core import trace_state_clean as trace_state_clean
from jax._src.mesh import get_concrete_mesh as _get_concrete_mesh

_F = typing.TypeVar("_F")

if hasattr(jax, "set_mesh"):
    _set_mesh = jax.set_mesh
else:  # JAX 0.6
    _set_mesh = jax.sharding.use_mesh

if hasattr(jax.sharding, "use_abstract_mesh"):
    _use_abstract_mesh = jax.sharding.use_abstract_mesh
else:  # JAX 0.6
    from jax._src.mesh import use_abstract_mesh as _use_abstract_mesh

if hasattr(jax.sharding, "reshard"):
    reshard = jax.sharding.reshard
else:  # JAX 0.6
    from jax.experimental import shard

    reshard = shard.reshard

try:  # how JAX 0.8 hands NumPy arrays to the functions that it traces
    from jax._src.literals import TypedNdArray
except ImportError:
    numpy_types = (np.ndarray,)
else:
    numpy_types = (np.ndarray, TypedNdArray)


def _api_boundary():
    """What JAX's own functions hide their frames in tracebacks with, there being no public way; a
    function that changes nothing where this JAX has no such thing."""
    try:
        from jax._src import traceback_util

        traceback_util.register_exclusion(os.path.dirname(__file__))
        return traceback_util.api_boundary
    except (ImportError, AttributeError):
        return lambda function: function


_boundary = _api_boundary()


def api_boundary(function: _F) -> _F:
    """``function``, whose frames JAX's tracebacks leave out where this JAX can do that."""
    return _boundary(function)


# What differentiation and vmap put in the place of arrays, by class names: none is public.
_TRANSFORMATIONS = {
    "BatchTracer": "vmap",
    "JVPTracer": "grad",
    "LinearizeTracer": "grad",
    "JaxprTracer": "grad",
}


def context_mesh():
    """The concrete mesh of the enclosing ``jax.set_mesh`` (or ``use_mesh``), or None."""
    # The public jax.sharding.get_mesh isn't there in JAX 0.6, and raises where anything is traced.
    mesh = _get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


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


def shard_map_mesh():
    """The concrete mesh of the enclosing shard_map; None where there is none, or it isn't seen.

    JAX tells the function that it maps how many devices there are, and not which; only its own
    frames know that.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").endswith(".shard_map"):
            mesh = frame.f_locals.get("mesh")
            if isinstance(mesh, jax.sharding.Mesh):
                return mesh
        frame = frame.f_back
    return None


def abstract_platform(mesh):
    """The platform of an ``AbstractMesh``, where it knows one."""
    return getattr(getattr(mesh, "abstract_device", None), "platform", None)


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
    return _set_mesh(mesh) if trace_state_clean() else _use_abstract_mesh(mesh.abstract_mesh)


@contextlib.contextmanager
def default_promotion():
    """A context, and a decorator, in which dtypes and ranks are promoted by JAX's defaults, for
    which this package is written, where the caller has ``jax_numpy_dtype_promotion="strict"`` or
    ``jax_numpy_rank_promotion="raise"``."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def mapped_axes():
    """The explicit mesh axes over which the batch of an enclosing vmap is sharded. What is traced
    inside of it can't be sharded over these."""
    return frozenset(getattr(_core.get_axis_env(), "explicit_mesh_axis_names", ()))


def inside_vmap(axes):
    """A context in which the batch of an enclosing vmap is sharded over these axes too."""
    return _core.add_explicit_mesh_axis_names(axes) if axes else contextlib.nullcontext()


def outside_vmap():
    """A context in which all axes of the mesh can be used again, for what is traced to take the
    place of a batch."""
    axes = mapped_axes()
    return _core.remove_explicit_mesh_axis_names(axes) if axes else contextlib.nullcontext()


def transformation(array):
    """What ``array`` stands for in a transformation: "vmap", "grad" (any derivative) or None."""
    return _TRANSFORMATIONS.get(type(array).__name__)


def below(array):
    """(array, batches): the array that a tracer stands for where the caller transforms eagerly, and
    the dimensions that ``jax.vmap`` took off, the inner ones first. What has a value is its own;
    a tracer of which a jit hides the array comes back as it is."""
    value, batches = array, []
    while isinstance(value, jax.core.Tracer):
        kind, trace = type(value).__name__, getattr(value, "_trace", None)
        if kind == "BatchTracer":
            dimension, value = getattr(value, "batch_dim", None), getattr(value, "val", None)
            if isinstance(dimension, int):
                batches.append(dimension)
        elif kind in ("JVPTracer", "LinearizeTracer"):
            value = getattr(value, "primal", None)
        else:
            return array, []
        if value is None or not (isinstance(value, jax.core.Tracer) or _is_eager(trace)):
            return array, []  # such as a constant in a jit
    return value, batches


def _is_eager(trace):
    """Whether what is in a trace is computed as it comes, and not later by a jit."""
    while type(trace).__name__ in ("BatchTrace", "JVPTrace", "LinearizeTrace"):
        trace = getattr(trace, "parent_trace", None)
    return type(trace).__name__ == "EvalTrace"


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


def key_value_store():
    """The store that the processes of ``jax.distributed`` share; None where there is none."""
    return _distributed.global_state.client


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
