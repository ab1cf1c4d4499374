"""Which plugin serves a platform, whether its version fits, and which of its backends runs a
call."""

import importlib.metadata
import re
import types

import cases
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from processes import run

from jaxmg._call import backends, checks
from jaxmg._host import block_columns
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins
from jaxmg._routines import table


class Point:
    """An entry point of a plugin; the plugin that it loads has the point's name."""

    value = "a_module"

    def __init__(self, name, distribution=None, version="2.0.0", handlers=table.HANDLERS):
        self.name = name
        self.dist = distribution and types.SimpleNamespace(name=distribution, version=version)
        self.handlers = handlers

    def load(self):
        return types.SimpleNamespace(
            name=self.name, registrations=lambda: dict.fromkeys(self.handlers)
        )


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
    assert plugins.load("gpu").name == chosen


def test_plugin_of_another_cuda_does_not_serve(monkeypatch):
    _pretend(monkeypatch, "cuda 13000", ("cuda12",))
    message = re.escape(f"install it with {_how('[cuda13]==2.0.0')}")
    with pytest.raises(RuntimeError, match=message + "$"):
        plugins.load("gpu")


def _how(what):
    extra = re.search(r"\[(.*)\]", what)[1]
    return (
        f"`pip install --find-links WHEELS 'jaxmg{what}'`, where WHEELS is the folder of jaxmg's "
        f"wheels; in a checkout of jaxmg, which has no wheels, with `tools/install.sh {extra}`"
    )


_PLUGIN = "jaxmg-plugin-cpu"
_WITHOUT_TWO = set(table.HANDLERS) - {"jaxmg_potri", "jaxmg_cyclic_1d"}

# Name -> (installed plugins, versions, the error: one sentence that says what was found, what is
# needed and what to do).
_UNFIT = {
    "another version": (
        [Point("cpu", _PLUGIN, "2.1.0")],
        {},
        "the jaxmg plugin 'cpu' (a_module of jaxmg-plugin-cpu 2.1.0) doesn't match jaxmg 2.0.0: "
        f"both must have the same version; install the matching plugin with {_how('[cpu]==2.0.0')}",
    ),
    "two of one platform": (
        [Point("cpu", _PLUGIN), Point("cpu", "another", "3.0")],
        {},
        "2 installed distributions provide the jaxmg plugin 'cpu': a_module of jaxmg-plugin-cpu "
        "2.0.0, a_module of another 3.0; jaxmg needs one of them: `pip uninstall` the others",
    ),
    "a handler less": (
        [Point("cpu", _PLUGIN, handlers=_WITHOUT_TWO)],
        {},
        "the jaxmg plugin 'cpu' (a_module of jaxmg-plugin-cpu 2.0.0) has no handler 'jaxmg_potri', "
        "'jaxmg_cyclic_1d', which jaxmg 2.0.0 needs; install the matching plugin with "
        + _how("[cpu]==2.0.0"),
    ),
    "a handler less than a checkout needs": (
        [Point("cpu", _PLUGIN, handlers=())],
        {"version": None},
        "which jaxmg as imported here needs; install the matching plugin with " + _how("[cpu]>=2"),
    ),
    "an older JAX": (
        [Point("cpu", _PLUGIN)],
        {"jax_version": "0.6.1"},
        "JAX is 0.6.1, but the jaxmg plugin 'cpu' (a_module of jaxmg-plugin-cpu 2.0.0) needs 0.6.2 "
        "or newer; upgrade it with `pip install 'jax>=0.6.2'`",
    ),
    "an older JAX for CUDA 13": (
        [Point("cuda13", "jaxmg-plugin-cuda13")],
        {"jax_version": "0.7.1"},
        "JAX is 0.7.1, but the jaxmg plugin 'cuda13' (a_module of jaxmg-plugin-cuda13 2.0.0) needs "
        "0.7.2 or newer; upgrade it with `pip install 'jax>=0.7.2'`",
    ),
}


@pytest.mark.parametrize("name", _UNFIT)
def test_plugin_that_does_not_fit(monkeypatch, name):
    """No target of the plugin is registered, and the next call checks again."""
    points, versions, message = _UNFIT[name]
    platform = "cpu" if points[0].name == "cpu" else "gpu"
    monkeypatch.setattr(plugins, "_for_backend", lambda names: names)
    registered = _install(monkeypatch, *points, **versions)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=re.escape(message) + "$"):
            plugins.load(platform)
    assert not registered


def test_only_a_plugin_for_gpus_where_jax_finds_none(monkeypatch):
    """The message doesn't direct users with a broken driver to the plugin for CPU devices."""
    monkeypatch.setattr(plugins, "_has_gpu", lambda: False)
    _install(monkeypatch, Point("cuda13", "jaxmg-plugin-cuda13"))
    with pytest.raises(RuntimeError) as caught:
        plugins.load("cpu")
    message = str(caught.value)
    assert message.startswith(
        "JAX found no GPU and runs on the CPU, but the installed plugin of jaxmg is for GPUs: "
        "'cuda13' (a_module of jaxmg-plugin-cuda13 2.0.0). Check that `nvidia-smi`"
    )
    for word in ("jax[cuda13]", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "python -m jaxmg"):
        assert word in message
    assert message.endswith("install the plugin for them with " + _how("[cpu]==2.0.0"))
    # CPU devices next to a GPU: the error says that their plugin is missing.
    monkeypatch.setattr(plugins, "_has_gpu", lambda: True)
    with pytest.raises(RuntimeError, match="^no jaxmg plugin is installed for platform 'cpu'"):
        plugins.load("cpu")


@pytest.mark.parametrize(
    "points, versions",
    [
        ([Point("cpu", _PLUGIN)], {}),
        ([Point("cpu", _PLUGIN, "2.1.0")], {"version": None}),  # a checkout
        ([Point("cpu", _PLUGIN), Point("cuda12", "jaxmg-plugin-cuda12", "2.1.0")], {}),
        ([Point("cpu", _PLUGIN)], {"jax_version": "0.6.2"}),
        ([Point("cpu", _PLUGIN)], {"jax_version": "0.12.0.1"}),
    ],
    ids=["same versions", "checkout", "another platform's", "oldest JAX", "four numbers"],
)
def test_plugin_that_fits(monkeypatch, points, versions):
    registered = _install(monkeypatch, *points, **versions)
    assert plugins.load("cpu").name == "cpu"
    assert sorted(registered) == sorted(table.HANDLERS)


def test_handlers_are_the_plugins():
    plugin = plugins.load(jax.devices()[0].platform)
    of_host = {f"jaxmg_{name}" for name in block_columns.HANDLERS}
    assert set(plugin.registrations()) == {*table.HANDLERS, *of_host}


@pytest.mark.parametrize(
    "backend, n, memory, chosen",
    [
        ("auto", 100, 10 * 100**2 * 8, "gathers"),
        ("auto", 101, 10 * 100**2 * 8, "spreads"),
        ("auto", 101, None, "gathers"),  # a device that doesn't report its memory
        ("auto", 10000, 0, "spreads"),  # its need isn't known
        ("gathers", 10000, 0, "gathers"),
    ],
)
def test_auto_takes_what_a_device_has_memory_for(monkeypatch, backend, n, memory, chosen):
    monkeypatch.setattr(checks, "BACKENDS", ("auto", "gathers", "spreads"))

    def plan(routine, name, dtype, m, n, block, ranks, *others, products):
        bytes_ = [(10 * n - 2 * block) * n * 8, 0] if name == "gathers" else []
        return {"bytes": bytes_, "solver": 1}

    plugin = types.SimpleNamespace(backends=lambda routine: ["gathers", "spreads"], plan=plan)
    device = types.SimpleNamespace(
        memory_stats=lambda: memory if memory is None else {"bytes_limit": memory}
    )
    layout = layouts.Layout(cases.line(2), ("r",), (), P("r", None))
    monkeypatch.setattr(plugins, "_loaded", {layout.platform: plugin})
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    a = jax.ShapeDtypeStruct((n, n), np.float64)
    assert backends.resolve("syevd", layout, backend, a) == chosen


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
    layout = layouts.Layout(cases.line(ranks), ("r",), (), P("r", None))
    plugin = types.SimpleNamespace(
        backends=lambda routine: ["native", "cusolvermg"],
        plan=lambda *arguments, **_: {"bytes": [1], "solver": 0},
    )
    monkeypatch.setattr(plugins, "_loaded", {layout.platform: plugin})
    a = jax.ShapeDtypeStruct((n, n), np.float32)
    if refused:
        with pytest.raises(
            ValueError, match="order 2049; .* wrong results above order 2048; .* 'native'"
        ):
            backends.resolve("potri", layout, backend, a)
    else:
        assert backends.resolve("potri", layout, backend, a) in (backend, "native")
    assert backends.resolve("potrs", layout, backend, a)


def _pretend(monkeypatch, version, installed):
    device = types.SimpleNamespace(client=types.SimpleNamespace(platform_version=version))
    monkeypatch.setattr(jax, "local_devices", lambda backend: [device])
    _install(monkeypatch, *map(Point, installed))


def _install(monkeypatch, *points, version="2.0.0", jax_version="0.11.2"):
    """Makes these plugins the only installed ones, with jaxmg and JAX of these versions; returns a
    list of the targets that are registered."""

    def version_of(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    registered = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(importlib.metadata, "version", version_of)
    monkeypatch.setattr(jax, "__version__", jax_version)
    monkeypatch.setattr(jax, "__version_info__", tuple(map(int, jax_version.split("."))))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *a, **_: registered.append(a[0]))
    monkeypatch.setattr(plugins, "_loaded", {})
    return registered


def test_attribute_that_the_plugin_does_not_know():
    """An attribute of another version of the package is an error, and isn't ignored."""
    plugins.load(jax.devices()[0].platform)
    a, place = np.eye(4), np.zeros(2, np.int32)
    attributes = {"ranks": np.int64(1), "tile": np.int64(1), "inverse": False}
    attributes |= {"grid_rows": np.int64(0), "processes": np.zeros(0, np.int64)}
    call = jax.ffi.ffi_call(
        "jaxmg_cyclic_1d", jax.ShapeDtypeStruct(a.shape, a.dtype), input_output_aliases={1: 0}
    )
    np.testing.assert_array_equal(call(place, a, backend="native", **attributes), a)
    with pytest.raises(jax.errors.JaxRuntimeError, match="'novel' is unknown to this routine"):
        jax.block_until_ready(call(place, a, backend="native", novel=np.int64(1), **attributes))


_MISLEADING = """
import ctypes, shutil, sys
from jaxmg_plugin_cpu import _native

shutil.copy(_native.__file__, sys.argv[1])
ctypes.CDLL(sys.argv[1])  # stays in the process
import numpy, scipy.linalg

_native.load_scipy()
print(_native.blas_library(), _native.blas_threads() > 0)
"""


def test_a_folder_named_openblas_is_no_openblas(tmp_path):
    """Libraries that are already loaded come first in the list of libraries."""
    if "cpu" not in plugins.entry_points():
        pytest.skip("needs the plugin for CPU devices")
    folder = tmp_path / "openblas"
    folder.mkdir()
    result = run("-c", _MISLEADING, str(folder / "libother.so"))
    assert result.returncode == 0, result.stderr
    found, threads = result.stdout.split()
    assert str(folder) not in found
    assert threads == "True"
