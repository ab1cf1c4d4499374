"""Pytree types of this package in programs that `jax.export` serializes.

The types are collected at import (`named_tuple`, `dataclass`) and registered with `jax.export`
later, by `register`: importing this package doesn't import `jax.export`. The names are part of
serialized programs, so they never change.
"""

import contextlib
import json
import sys
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxmg._layouts import layouts

_lock = threading.Lock()
_waiting: list = []  # functions of the module jax.export that register one type each


def named_tuple(kind):
    """Decorates a named tuple of `jaxmg.linalg`: `register` registers it, and a pickle names no
    private module."""
    kind.__module__ = "jaxmg.linalg"
    name = f"jaxmg.{kind.__name__}"
    _waiting.append(
        lambda export: export.register_namedtuple_serialization(kind, serialized_name=name)
    )
    return kind


def dataclass(kind):
    """Decorates a dataclass that is a pytree, and whose static fields are layouts or valid in
    JSON."""
    _waiting.append(
        lambda export: export.register_pytree_node_serialization(
            kind,
            serialized_name=f"jaxmg.{kind.__name__}",
            serialize_auxdata=_dump,
            deserialize_auxdata=_load,
        )
    )
    return kind


def register():
    """Registers the types with `jax.export`, once."""
    from jax import export

    with _lock:
        while _waiting:
            with contextlib.suppress(ValueError):  # the caller has registered the type already
                _waiting[-1](export)
            _waiting.pop()


def register_if_imported():
    """Calls `register` if the process has imported `jax.export`."""
    if _waiting and "jax.export" in sys.modules:
        register()


def _dump(fields):
    values = [_from_layout(x) if hasattr(x, "row_spec") else x for x in fields]
    return json.dumps(values).encode()


def _load(text):
    values = json.loads(bytes(text).decode())
    return tuple(_to_layout(x) if isinstance(x, dict) else x for x in values)


def _from_layout(layout):
    mesh = layout.mesh
    devices = None
    if isinstance(mesh, Mesh):
        everywhere = list(jax.devices(layout.platform))
        devices = [everywhere.index(device) for device in mesh.devices.flat]
    return {
        "platform": layout.platform if devices is not None else None,
        "devices": devices,
        "axes": list(mesh.shape.items()),
        "types": [kind.name for kind in mesh.axis_types],
        "rows": layout.rows,
        "others": layout.others,
        "spec": list(layout.spec),
        "processes": layout.processes,
    }


def _to_layout(state):
    names = tuple(name for name, _ in state["axes"])
    sizes = tuple(size for _, size in state["axes"])
    types = tuple(AxisType[name] for name in state["types"])
    if state["devices"] is None:
        mesh: Any = AbstractMesh(sizes, names, axis_types=types)
    else:
        here, needed = jax.devices(state["platform"]), max(state["devices"], default=-1) + 1
        if len(here) < needed:
            raise ValueError(
                f"jaxmg: the serialized program has a factor on a mesh of {len(state['devices'])} "
                f"devices of platform {state['platform']!r}, but only {len(here)} are available; "
                "run it with that number of devices"
            )
        devices = np.array([here[i] for i in state["devices"]], dtype=object).reshape(sizes)
        mesh = Mesh(devices, names, axis_types=types)
    entries = (tuple(entry) if isinstance(entry, list) else entry for entry in state["spec"])
    return layouts.Layout(
        mesh, tuple(state["rows"]), tuple(state["others"]), P(*entries), tuple(state["processes"])
    )
