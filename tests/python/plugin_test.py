"""Which plugin serves the GPUs, where several are installed, and which of its backends."""

import types

import jax
import numpy as np
import pytest
from cases import line
from jax.sharding import PartitionSpec as P

from jaxmg import _call, _checks, _mesh, _plugin


class Point:
    """An entry point of a plugin that remembers which one it is."""

    value = "a_module"

    def __init__(self, name):
        self.name = name

    def load(self):
        return types.SimpleNamespace(name=self.name, registrations=dict)


@pytest.mark.parametrize(
    "version, installed, chosen",
    [
        ("PJRT C API\ncuda 13000", ("cuda12", "cuda13"), "cuda13"),
        ("PJRT C API\ncuda 12090", ("cuda12", "cuda13"), "cuda12"),
        ("cuda 12080", ("cuda12",), "cuda12"),
        ("something new", ("cuda12", "cuda13"), "cuda13"),
    ],
)
def test_plugin_of_the_cuda_that_jax_runs_on(monkeypatch, version, installed, chosen):
    _pretend(monkeypatch, version, installed)
    assert _plugin.load("gpu").name == chosen


def test_plugin_of_another_cuda_does_not_serve(monkeypatch):
    _pretend(monkeypatch, "cuda 13000", ("cuda12",))
    with pytest.raises(RuntimeError, match="install it with `pip install jaxmg.cuda13.`$"):
        _plugin.load("gpu")


@pytest.mark.parametrize(
    "backend, n, memory, chosen",
    [
        ("auto", 100, 10 * 100**2 * 8, "gathers"),
        ("auto", 101, 10 * 100**2 * 8, "spreads"),
        ("auto", 101, None, "gathers"),  # a device that doesn't say how much it has
        ("auto", 10000, 0, "spreads"),  # as far as is known
        ("gathers", 10000, 0, "gathers"),
    ],
)
def test_auto_takes_what_a_device_has_memory_for(monkeypatch, backend, n, memory, chosen):
    monkeypatch.setattr(_checks, "BACKENDS", ("auto", "gathers", "spreads"))
    plugin = types.SimpleNamespace(
        backends=lambda routine: ["gathers", "spreads"],
        needs=lambda routine, name, size, ranks: 10 * size if name == "gathers" else None,
    )
    device = types.SimpleNamespace(
        memory_stats=lambda: memory if memory is None else {"bytes_limit": memory}
    )
    layout = _mesh.Layout(line(1), ("r",), (), P("r", None))
    monkeypatch.setattr(_plugin, "_loaded", {layout.platform: plugin})
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    a = jax.ShapeDtypeStruct((n, n), np.float64)
    assert _call.resolve("syevd", layout, backend, a) == chosen


@pytest.mark.parametrize(
    "backend, n, ranks, refused",
    [
        ("cusolvermg", 2049, 2, True),
        ("cusolvermg", 2048, 2, False),
        ("cusolvermg", 2049, 1, False),
        ("native", 2049, 2, False),
        ("auto", 2049, 2, False),
    ],
)
def test_an_inverse_that_the_library_gets_wrong_is_refused(monkeypatch, backend, n, ranks, refused):
    layout = _mesh.Layout(line(ranks), ("r",), (), P("r", None))
    plugin = types.SimpleNamespace(
        backends=lambda routine: ["native", "cusolvermg"], needs=lambda *arguments: None
    )
    monkeypatch.setattr(_plugin, "_loaded", {layout.platform: plugin})
    a = jax.ShapeDtypeStruct((n, n), np.float32)
    if refused:
        with pytest.raises(ValueError, match="order 2049; .* right up to order 2048 .* 'native'"):
            _call.resolve("potri", layout, backend, a)
    else:
        assert _call.resolve("potri", layout, backend, a) in (backend, "native")
    assert _call.resolve("potrs", layout, backend, a)


def _pretend(monkeypatch, version, installed):
    device = types.SimpleNamespace(client=types.SimpleNamespace(platform_version=version))
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    monkeypatch.setattr(_plugin, "entry_points", lambda: {name: Point(name) for name in installed})
    monkeypatch.setattr(_plugin, "_loaded", {})


def test_attribute_that_the_plugin_does_not_know():
    """What a package of another version asks for is not passed over."""
    _plugin.load(jax.devices()[0].platform)
    a, place = np.eye(4), np.zeros(2, np.int32)
    attributes = {name: np.int64(1) for name in ("ranks", "tile", "call")}
    call = jax.ffi.ffi_call(
        "jaxmg_cyclic_1d", jax.ShapeDtypeStruct(a.shape, a.dtype), input_output_aliases={1: 0}
    )
    np.testing.assert_array_equal(call(place, a, backend="native", **attributes), a)
    with pytest.raises(jax.errors.JaxRuntimeError, match="does not know"):
        call(place, a, backend="native", novel=np.int64(1), **attributes)
