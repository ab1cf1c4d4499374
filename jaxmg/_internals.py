"""All that reaches into JAX's internals, which any release may change.

tests/python/internals_test.py has a canary for each function here: it fails with the name of what
broke and the version of JAX that broke it.
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

_F = typing.TypeVar("_F")

if hasattr(jax.sharding, "use_abstract_mesh"):
    use_abstract_mesh = jax.sharding.use_abstract_mesh
else:  # JAX 0.6
    from jax._src.mesh import use_abstract_mesh as use_abstract_mesh


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


if typing.TYPE_CHECKING:

    def api_boundary(function: _F) -> _F:
        """``function``, whose frames JAX leaves out of tracebacks if this JAX can do that."""
        return function

else:
    api_boundary = _api_boundary()


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
    mesh = concrete_mesh()
    return None if mesh is None or mesh.empty else mesh


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


def batched_here(arrays):
    """Whether ``jax.vmap`` is the innermost transformation that these arrays are in. Under
    ``vmap(grad(f))`` it is not, though an array that isn't differentiated is one of vmap's."""
    innermost = type(_core.trace_ctx.trace).__name__
    return innermost == "BatchTrace" and any(transformation(x) == "vmap" for x in arrays)


def in_eager_batch(arrays):
    """Whether ``jax.vmap`` maps what has values, and nothing else transforms these arrays."""
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


def batch_size(array):
    """Of how many elements ``array`` is one in the batches that ``jax.vmap`` is seen to map."""
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


def key_value_store():
    """The store that the processes of ``jax.distributed`` share; None where there is none."""
    return _distributed.global_state.client


def raise_signals_before_errors():
    """Makes the next error of JAX in the main thread give way to a pending KeyboardInterrupt.

    Python calls the handlers of signals between its own instructions alone. A wait in JAX's native
    code that ends in an error would raise that error, and the caller's ``except KeyboardInterrupt``
    would not see the interrupt. An error whose constructor is a Python function gives Python the
    occasion. The constructor is removed again as soon as it was called without a pending signal.
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
