"""All accesses to JAX's internals, which any release may change.

tests/python/internals_test.py has a canary for each function here: if it fails, it reports what
broke and the JAX version that broke it.
"""

# pyright: reportAttributeAccessIssue=false

import contextlib
import os
import sys
import threading
import typing

import jax
import numpy as np
from jax._src import core as _core
from jax._src import distributed as _distributed
from jax._src.core import trace_state_clean as trace_state_clean
from jax._src.mesh import get_concrete_mesh as concrete_mesh
from jax._src.xla_bridge import backends_are_initialized as backends_are_initialized
from jax.interpreters import partial_eval as _partial_eval

_F = typing.TypeVar("_F")

if hasattr(jax.sharding, "use_abstract_mesh"):
    use_abstract_mesh = jax.sharding.use_abstract_mesh
else:  # JAX 0.6
    from jax._src.mesh import use_abstract_mesh as use_abstract_mesh


try:  # the type in which JAX 0.8 passes NumPy arrays to traced functions
    from jax._src.literals import TypedNdArray
except ImportError:
    numpy_types = (np.ndarray,)
else:
    numpy_types = (np.ndarray, TypedNdArray)


def _api_boundary():
    """Returns the decorator by which JAX hides its own functions' frames in tracebacks. There is no
    public one. If this JAX has none, returns the identity."""
    try:
        from jax._src import traceback_util

        traceback_util.register_exclusion(os.path.dirname(__file__))
        return traceback_util.api_boundary
    except (ImportError, AttributeError):
        return lambda function: function


if typing.TYPE_CHECKING:

    def api_boundary(function: _F) -> _F:
        """Returns ``function`` with its frames left out of tracebacks, if this JAX supports it."""
        return function

else:
    api_boundary = _api_boundary()


# Class names of the tracers that differentiation and vmap put in place of arrays; none is public.
_TRANSFORMATIONS = {
    "BatchTracer": "vmap",
    "JVPTracer": "grad",
    "LinearizeTracer": "grad",
    "JaxprTracer": "grad",
}


def _batched_device_put():
    """Returns JAX's function that makes a JAX array from a list with a NumPy array for each device;
    None if this JAX has no such function."""
    try:
        from jax._src.interpreters import pxla

        return pxla.batched_device_put
    except (ImportError, AttributeError):
        return None


def putter_of_parts(like):
    """Returns the function that makes arrays like ``like`` from a list with a NumPy array for each
    device. It takes a fifth of the time of ``jax.device_put``."""
    sharding, aval = like.sharding, like.aval
    devices = list(sharding.addressable_devices_indices_map(like.shape))
    batched_device_put = _batched_device_put()
    if batched_device_put is not None:
        return lambda parts: batched_device_put(aval, sharding, parts, devices)

    def put(parts):
        arrays = [jax.device_put(x, device) for x, device in zip(parts, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(aval.shape, sharding, arrays)

    return put


def context_mesh():
    """Returns the concrete mesh of the enclosing ``jax.set_mesh`` (or ``use_mesh``), or None."""
    # JAX 0.6 lacks the public jax.sharding.get_mesh, and later versions raise inside a trace.
    mesh = concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


def shard_map_mesh():
    """Returns the concrete mesh of the enclosing shard_map; None outside one, or if it is hidden.

    JAX tells a mapped function the number of devices but not the devices themselves; only the
    frames of shard_map contain them.
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
    """Returns the platform of an ``AbstractMesh`` if it has one, else None."""
    return getattr(getattr(mesh, "abstract_device", None), "platform", None)


def mapped_axes():
    """Returns the explicit mesh axes over which the batch of an enclosing vmap is sharded. Arrays
    traced inside that vmap can't be sharded over them."""
    return frozenset(getattr(_core.get_axis_env(), "explicit_mesh_axis_names", ()))


def inside_vmap(axes):
    """Returns a context in which the batch of an enclosing vmap is also sharded over ``axes``."""
    return _core.add_explicit_mesh_axis_names(axes) if axes else contextlib.nullcontext()


def outside_vmap():
    """Returns a context in which all mesh axes can be used again, to trace code whose results
    replace a batch."""
    axes = mapped_axes()
    return _core.remove_explicit_mesh_axis_names(axes) if axes else contextlib.nullcontext()


def transformation(array):
    """Returns the transformation that ``array`` is a tracer of: "vmap", "grad" (any derivative) or
    None."""
    return _TRANSFORMATIONS.get(type(array).__name__)


def batched_here(arrays):
    """Returns whether ``jax.vmap`` is the innermost transformation of these arrays. Under
    ``vmap(grad(f))`` it isn't, although arrays that aren't differentiated are vmap's tracers."""
    innermost = type(_core.trace_ctx.trace).__name__
    return innermost == "BatchTrace" and any(transformation(x) == "vmap" for x in arrays)


def in_eager_batch(arrays):
    """Returns whether ``jax.vmap`` maps concrete arrays and is their only transformation."""
    trace = _core.trace_ctx.trace
    if type(trace).__name__ != "BatchTrace":
        return False
    batched = False
    for array in arrays:
        if isinstance(array, jax.core.Tracer):
            # A tracer of an outer vmap belongs to another trace.
            batched = type(array).__name__ == "BatchTracer" and array._trace is trace
            if not batched or isinstance(getattr(array, "val", array), jax.core.Tracer):
                return False
    return batched


def pruned(jaxpr, used):
    """Returns a closed jaxpr with only the results that ``used`` marks, and marks of the operands
    that it needs; its other operands are left out."""
    inner, needs = _partial_eval.dce_jaxpr(jaxpr.jaxpr, used)
    return jaxpr.replace(jaxpr=inner), needs


def prune_by(primitive, rule):
    """Lets JAX prune the equations of a primitive by ``rule``, a function of the marks of the used
    results and of the equation. It returns the marks of the operands that remain, and the equation;
    None if nothing remains."""
    # JAX 0.12 also says which references are alive.
    _partial_eval.dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def batch_size(array):
    """Returns the number of elements, over all visible ``jax.vmap`` batches around ``array``."""
    size, value = 1, array
    while isinstance(value, jax.core.Tracer):
        kind = type(value).__name__
        if kind == "BatchTracer":
            dimension, value = getattr(value, "batch_dim", None), getattr(value, "val", ())
            size *= np.shape(value)[dimension] if isinstance(dimension, int) else 1
        elif kind in ("JVPTracer", "LinearizeTracer"):
            value = getattr(value, "primal", None)
        else:
            break
    return size


def below(array):
    """Returns (array, batches): the concrete array under a tracer of an eager transformation, and
    the dimensions that ``jax.vmap`` removed, innermost first. Returns (array, []) for a concrete
    array, and for a tracer whose array a jit hides."""
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
            return array, []  # for example a constant in a jit
    return value, batches


def _is_eager(trace):
    """Returns whether a trace computes its operations immediately, not later in a jit."""
    while type(trace).__name__ in ("BatchTrace", "JVPTrace", "LinearizeTrace"):
        trace = getattr(trace, "parent_trace", None)
    return type(trace).__name__ == "EvalTrace"


def key_value_store():
    """Returns the store that the processes of ``jax.distributed`` share, or None."""
    return _distributed.global_state.client


def raise_signals_before_errors():
    """Makes the next error of JAX in the main thread give way to a pending KeyboardInterrupt.

    Python calls signal handlers only between its own instructions. If a wait in JAX's native code
    ends in an error, that error is raised first, and the caller's ``except KeyboardInterrupt``
    doesn't see the interrupt. A constructor written in Python lets Python call the handlers before
    the error exists. It is removed at its first call without a pending signal.
    """
    error = jax.errors.JaxRuntimeError
    before, own = error.__init__, vars(error).get("__init__")
    if getattr(before, "gives_way", False):  # since an earlier signal
        return

    def construct(self, *arguments):
        if threading.current_thread() is threading.main_thread():
            if own is not None:
                error.__init__ = own
            elif vars(error).get("__init__") is construct:
                del error.__init__
        before(self, *arguments)

    construct.gives_way = True
    error.__init__ = construct
