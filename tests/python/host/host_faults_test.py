"""Calls on matrices in host memory in which something fails once: an allocation, a registration, a
copy or a native call. The error is the caller's, nothing stays open or pinned, and the next call
works."""

import gc

import cases
import host_cases
import jax
import numpy as np
import pytest

import jaxmg
from jaxmg._host import block_columns, passes, pool
from jaxmg._plugin import plugins

pytestmark = [
    cases.one_process("faults of several processes are in host_processes_test.py"),
    pytest.mark.usefixtures("small_devices"),
    pytest.mark.extended,
]
small_devices = host_cases.small_devices

_N, _M = 24, 120
_TILES, _A = host_cases.tiles(_N, "float64")
_B = host_cases.problem(_N, "float64", 2)[1]
_TALL = cases.normal(cases.rng(_M), (_M, 4), "float64")


def _memory(nrhs=2, whole=False):
    return host_cases.budget(_N, "float64", 2, 3, nrhs, whole=whole)


def _likelihood(scale):
    made = jaxmg.Tiles(_TILES.function, (_N, _N), "float64", scale, 0.5)
    return jaxmg.gaussian_log_likelihood(made, _B, mesh=cases.line(2), memory=_memory())


def _solve_with(factor):
    try:
        return factor.solve(_B)
    finally:
        factor.release()


_CALLS = {
    "potrs": lambda: jaxmg.potrs(_A, _B, mesh=cases.line(2), memory=_memory()),
    "potrs of tiles": lambda: jaxmg.potrs(_TILES, _B, mesh=cases.line(2), memory=_memory()),
    "cho_factor": lambda: _solve_with(jaxmg.cho_factor(_A, mesh=cases.line(2), memory=_memory(1))),
    "gesv": lambda: jaxmg.gesv(_A, _B, mesh=cases.line(2), memory=_memory(2, True)),
    "lu_factor": lambda: _solve_with(
        jaxmg.lu_factor(_A, mesh=cases.line(2), memory=_memory(1, True))
    ),
    "gaussian_log_likelihood": lambda: jax.grad(_likelihood)(np.float64(1.5)),
    "lstsq": lambda: jaxmg.linalg.lstsq(_TALL, _TALL[:, 0], mesh=cases.line(2), memory=2e4)[0],
    "qr": lambda: jaxmg.linalg.qr(_TALL, "r", mesh=cases.line(2), memory=2e4),
}


class Plugin:
    """The plugin, of which one of the calls that take memory or copy fails: that of number ``at``.

    Attributes:
        kept: what was opened or pinned and not given back.
    """

    _OPENS = ("pin", "host_open", "host_open_chunks")
    _CLOSES = ("unpin", "host_close", "host_close_chunks")
    _FAIL = (*_OPENS, "touch", "is_pinned", "host_copy")

    def __init__(self, at):
        self._plugin = plugins.load(jax.default_backend())
        self.at, self.calls, self.kept = at, 0, []

    def __getattr__(self, name):
        function = getattr(self._plugin, name)

        def call(*arguments):
            if name in self._FAIL:
                self.calls += 1
                if self.calls == self.at + 1:
                    raise RuntimeError(f"{name} failed on purpose")
            result = function(*arguments)
            if name in self._OPENS:
                index = self._OPENS.index(name)
                self.kept.append((index, arguments[0] if name == "pin" else result))
            elif name in self._CLOSES:
                self.kept.remove((self._CLOSES.index(name), arguments[0]))
            return result

        return call


@pytest.fixture
def copied(monkeypatch):
    """Has calls copy all host memory through pinned memory, as from pageable memory on GPUs."""

    def is_pageable(plugin, addresses):
        for address in addresses:
            plugin.is_pinned(address)
        return bool(addresses)

    monkeypatch.setattr(pool, "is_pageable", is_pageable)
    monkeypatch.setattr(passes, "fits_in_core", lambda layout, a, memory: memory is None)


_SOME = ("gesv", "lstsq")


@pytest.mark.parametrize("pooled", [False, cases.breadth(True)])
@pytest.mark.parametrize(
    "name", [name if name in _SOME else cases.breadth(name) for name in _CALLS]
)
def test_what_takes_memory_fails_once(name, pooled, copied, monkeypatch):
    call, failed = _CALLS[name], 0
    expected = call()
    while True:
        plugin = Plugin(failed)
        with jaxmg.pinned(2e5 if pooled else 1) as pinned, monkeypatch.context() as patch:
            pinned._warned = True
            patch.setattr(plugins, "load", lambda platform, plugin=plugin: plugin)
            try:
                found = call()
            except RuntimeError as error:
                assert "failed on purpose" in str(error)
                found = None
            gc.collect()
            assert plugin.kept == [] and pinned.free == pinned.bytes
        if found is not None:
            break
        failed += 1
        np.testing.assert_array_equal(call(), expected)
    np.testing.assert_array_equal(found, expected)
    assert failed == plugin.calls > 2


@pytest.mark.parametrize(
    "name",
    [
        name if name == "gaussian_log_likelihood" else cases.breadth(name)
        for name in _CALLS
        if name not in ("lstsq", "qr")
    ],
)
def test_a_native_call_fails(name, copied, monkeypatch):
    call, operand, made = _CALLS[name], block_columns.operand, [0]
    expected = call()
    at = 0  # the native call that fails, counted from 1; 0: none does
    while at <= len(made):
        made, plugin = [], Plugin(-1)

        def wrong(handle, *where, made=made, at=at):
            made.append(handle)
            return operand(10**6 if len(made) == at else handle, *where)

        with jaxmg.pinned(2e5) as pinned, monkeypatch.context() as patch:
            patch.setattr(plugins, "load", lambda platform, plugin=plugin: plugin)
            patch.setattr(block_columns, "operand", wrong)
            if at == 0:
                call()
                count = len(made)
            else:
                with pytest.raises(Exception, match="there is no matrix 1000000 in host memory"):
                    call()
                made.extend([0] * (count - len(made)))
            gc.collect()
            assert plugin.kept == [] and pinned.free == pinned.bytes
        np.testing.assert_array_equal(call(), expected)
        at += 1
    assert count > 3
