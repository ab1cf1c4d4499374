"""Pickles of factors: NumPy arrays and their placement on a mesh."""

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _names
from jaxmg._kept import leaves, portable
from jaxmg._layouts import layouts

# Version of the contents of a pickle. Another layout of the engine needs another number.
_FORMAT = 1
_INSTEAD = "its portable form (factor.portable(), jaxmg.from_portable)"


class Pickled(portable.Portable):
    """A dataclass of arrays and a ``layout`` that supports pickle and ``copy``. When loaded it lies
    on the same number of devices as before: those with the same indices in ``jax.local_devices()``
    if they exist, else the first ones. A pickle names no module of this package but ``jaxmg``."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "jaxmg"

    layout: layouts.Layout
    made_for: dict[str, jax.Array] | None

    if not TYPE_CHECKING:  # with it type checkers would accept any attribute

        def __getattr__(self, name):
            raise _names.missing_of_factor(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        name = type(self).__name__
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore
        leaves.check(name, self, self.shape[1])  # type: ignore
        layout = values.pop("layout")
        if values["made_for"] is not None:  # its shape determines its key
            (values["made_for"],) = values["made_for"].values()
        arrays = {name: x for name, x in values.items() if isinstance(x, jax.Array)}
        if not all(array.is_fully_addressable for array in arrays.values()):
            raise ValueError(
                f"{name}: the factor is on devices of several processes and can't be pickled; save "
                f"{_INSTEAD} with orbax"
            )
        mesh = layout.mesh
        if isinstance(mesh, AbstractMesh):  # from a context; the arrays' mesh has the devices
            sharding = next(iter(arrays.values())).sharding
            assert isinstance(sharding, NamedSharding)
            mesh = sharding.mesh
        assert mesh.devices is not None
        devices = mesh.devices.ravel().tolist()
        platform = devices[0].platform
        local = jax.local_devices(backend=platform)
        state = {
            "format": _FORMAT,
            "platform": platform,
            "devices": [local.index(device) for device in devices],
            "shape": mesh.devices.shape,
            "axes": (mesh.axis_names, mesh.axis_types),
            "layout": {"rows": layout.rows, "others": layout.others, "spec": layout.spec},
            "specs": {name: _spec(array) for name, array in arrays.items()},
            "values": {**values, **{name: np.asarray(x) for name, x in arrays.items()}},
        }
        return self._restore, (state,)  # a class method, so the pickle names no private module

    @classmethod
    def _restore(cls, state):
        """Recreates the factor from a state that `__reduce__` made."""
        name, platform = cls.__name__, state["platform"]
        indices = state.get("devices", state.get("places"))  # "places": before 2.0.0
        if state["format"] != _FORMAT:
            raise ValueError(
                f"{name}: another version of jaxmg made this pickle; load it with that version and "
                f"save {_INSTEAD}"
            )
        try:
            local = jax.local_devices(backend=platform)
        except RuntimeError:
            local = []
        if len(local) < len(indices):
            raise ValueError(
                f"{name}: this pickle holds a factor on {len(indices)} devices of platform "
                f"{platform!r}, but this process has {len(local)}. To load a factor on any number "
                f"of devices, save {_INSTEAD}"
            )
        indices = indices if max(indices) < len(local) else range(len(indices))
        devices = np.array([local[i] for i in indices], dtype=object)
        names, types = state["axes"]
        mesh = Mesh(devices.reshape(state["shape"]), names, axis_types=types)
        values = dict(state["values"])
        for leaf, spec in state["specs"].items():
            if jax.dtypes.canonicalize_dtype(dtype := values[leaf].dtype) != dtype:
                raise ValueError(
                    f"{name}: this pickle holds {dtype}, which JAX would load in single precision. "
                    "Enable JAX's 64-bit mode first, with "
                    "jax.config.update('jax_enable_x64', True) or the environment variable "
                    "JAX_ENABLE_X64=1"
                )
            values[leaf] = jax.device_put(values[leaf], NamedSharding(mesh, spec))
        if values.get("made_for") is not None:
            values["made_for"] = leaves.with_key(values["made_for"])
        factor: Any = cls
        return factor(layout=layouts.Layout(mesh, **state["layout"]), **values)

    def __copy__(self) -> Self:
        return self  # immutable

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return jax.tree.map(jnp.copy, self)


def _spec(array):
    sharding = array.sharding
    return sharding.spec if isinstance(sharding, NamedSharding) else P()
