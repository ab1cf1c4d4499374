"""Which plugin serves the GPUs, where several are installed."""

import types

import jax
import pytest

from jaxmg import _plugin


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


def _pretend(monkeypatch, version, installed):
    device = types.SimpleNamespace(client=types.SimpleNamespace(platform_version=version))
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    monkeypatch.setattr(_plugin, "entry_points", lambda: {name: Point(name) for name in installed})
    monkeypatch.setattr(_plugin, "_loaded", {})
