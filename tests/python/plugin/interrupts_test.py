"""Ctrl-C ends the calls that are under way and reaches the caller as KeyboardInterrupt. It affects
neither the next call nor the caller's own handlers of SIGINT."""

import os
import signal
import types

import cases
import jax
import pytest
from processes import run

from jaxmg import _internals
from jaxmg._plugin import interrupts, plugins

_START = """
import ctypes, os, signal, sys, threading, time
# A shell that starts its programs in the background has them ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, numpy as np
import jaxmg
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.errors import JaxRuntimeError
mesh = Mesh(np.array(jax.devices()), ("r",))
rows, whole = NamedSharding(mesh, P("r", None)), NamedSharding(mesh, P())
def system(n):
    a = jax.jit(lambda: n * jax.numpy.eye(n, dtype="float32") + 1, out_shardings=rows)()
    return a, jax.device_put(np.ones(n, "float32"), whole)
def potrs(a, b):
    return jaxmg.potrs(a, b, 64, mesh, P("r", None))
@jax.jit
def many(a, b):  # longer than any machine needs for one call
    return jax.lax.fori_loop(0, 10**6, lambda i, x: potrs(a, b + x), 0 * b)
@jax.jit
def small(a, b):  # each by one CPU device for all
    def step(i, x):
        return jaxmg.potrs(a, b + x, mesh=mesh, matrix_specs=P("r", None))
    return jax.lax.fori_loop(0, 10**7, step, 0 * b)
def singular_values(a, b):  # LAPACK's routine can't be stopped
    return jaxmg.linalg.svdvals(a, mesh=mesh, matrix_specs=P("r", None))
@jax.jit
def eigenvalues(a, b):
    return jaxmg.syevd(a, mesh=mesh)[0]
def handler():  # that of the system, which a call replaces when it begins
    action = (ctypes.c_byte * 256)()
    assert ctypes.CDLL(None).sigaction(signal.SIGINT, None, action) == 0
    return bytes(action)[:8]
def signal_after(seconds):  # after the next call has begun
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
    before = handler()
    def send():
        until = time.monotonic() + 60
        while before == handler() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(seconds)
        at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    at = []
    threading.Thread(target=send).start()
    return at
def check_next():
    a, b = system(100)
    for f in (potrs, jax.jit(potrs)):
        assert np.allclose(a @ f(a, b), b, atol=1e-4)
check_next()
"""

_WAITS = {
    "jax.block_until_ready": "jax.block_until_ready(x)",
    "block_until_ready": "x.block_until_ready()",
    "numpy": "np.asarray(x)",
    "print": "print(x)",
    "python": "while True: time.sleep(0.01)",
}

_INTERRUPTED = """
a, b = system({n})
x = None
at = signal_after(0.2)
try:
    x = {call}(a, b)
    {wait}
except KeyboardInterrupt:
    took = time.monotonic() - at[0]
    assert took < 5, took
else:
    raise AssertionError("no KeyboardInterrupt")
try:
    if x is not None:  # a program of one device may run before JAX returns its results
        x.block_until_ready()
        raise AssertionError("the call has ended as if nothing had been")
except JaxRuntimeError as error:
    assert "interrupted by SIGINT (Ctrl-C)" in str(error), error
check_next()
print("right")
"""

_BY_ALL_RANKS = """
from jaxmg._plugin import plugins
plugins.load(jax.default_backend()).set_eigensolver("all")
"""


_ON_GPUS = os.environ.get("JAXMG_TEST_PLATFORM") == "cuda"


def _run(program, devices=4, **environment):
    if _ON_GPUS:
        there = len(jax.devices())
        if devices == 1:
            environment["CUDA_VISIBLE_DEVICES"] = _first_gpu()
        elif there == 1:
            pytest.skip("needs two GPUs")
        return run(
            "-c", _START + program, timeout=100, JAX_PLATFORMS="cuda",
            XLA_PYTHON_CLIENT_PREALLOCATE="false", **environment,
        )  # fmt: skip
    if "cpu" not in plugins.entry_points():
        pytest.skip("needs the plugin for CPU devices")
    return run(
        "-c", _START + program, timeout=100, JAX_PLATFORMS="cpu", OPENBLAS_NUM_THREADS="1",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}", **environment,
    )  # fmt: skip


def _first_gpu():
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


@pytest.mark.core("4-print")
@pytest.mark.parametrize("wait", _WAITS)
@pytest.mark.parametrize("devices", [1, 4])
def test_ctrl_c_ends_a_jitted_loop(wait, devices):
    program = _INTERRUPTED.format(n=500, call="many", wait=_WAITS[wait])
    result = _run(program, devices)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "right\n"


@pytest.mark.skipif(_ON_GPUS, reason="of CPU devices")
@pytest.mark.parametrize("n, call", [(64, "small"), (2000, "singular_values")])
def test_ctrl_c_ends_what_one_device_does_for_all(n, call):
    result = _run(_INTERRUPTED.format(n=n, call=call, wait=_WAITS["jax.block_until_ready"]))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "right\n"


@pytest.mark.extended
@pytest.mark.parametrize("call", ["potrs", "eigenvalues"])
def test_ctrl_c_ends_one_call(call):
    """Ctrl-C ends a call between the engine's steps."""
    n = (
        {"potrs": 80000, "eigenvalues": 20000}
        if _ON_GPUS
        else {"potrs": 12000, "eigenvalues": 5000}
    )
    n = n[call]
    program = _INTERRUPTED.format(n=n, call=call, wait=_WAITS["jax.block_until_ready"])
    result = _run(_BY_ALL_RANKS + program)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "right\n"


@pytest.mark.extended
def test_a_program_ends_as_python_ends_by_ctrl_c():
    result = _run("""
a, b = system(500)
signal_after(0.2)
jax.block_until_ready(many(a, b))
""")
    assert result.returncode == -signal.SIGINT
    assert "\nKeyboardInterrupt" in result.stderr  # JAX 0.6 adds a note about the error below


@pytest.mark.extended
def test_a_second_ctrl_c():
    result = _run("""
a, b = system(500)
for _ in range(3):
    at = signal_after(0.2)
    try:
        many(a, b).block_until_ready()
    except KeyboardInterrupt:
        assert time.monotonic() - at[0] < 5
    else:
        raise AssertionError("no KeyboardInterrupt")
check_next()
print("right")
""")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "right\n"


@pytest.mark.extended
@pytest.mark.parametrize(
    "when, handler",
    [
        ("before", "lambda number, frame: got.append(number)"),
        ("during", "signal.SIG_IGN"),
        cases.breadth("before", "signal.SIG_IGN"),
        cases.breadth("during", "lambda number, frame: got.append(number)"),
    ],
)
def test_other_handlers_are_left_alone(handler, when):
    if _ON_GPUS and when == "during":
        pytest.skip("JAX returns from a program with a loop on GPUs when it has ended")
    result = _run(f"""
got = []
def handle():
    signal.signal(signal.SIGINT, {handler})
@jax.jit
def some(a, b):
    return jax.lax.fori_loop(0, 500, lambda i, x: potrs(a, b + x), 0 * b)
a, b = system(500)
call = some.lower(a, b).compile()
if "{when}" == "before":
    handle()
timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
x = call(a, b)
assert {_ON_GPUS} or not x.is_ready()
if "{when}" == "during":
    handle()
before = signal.getsignal(signal.SIGINT)
while not x.is_ready():
    time.sleep(0.01)
assert np.allclose(a @ x - x, b, atol=1e-4)
timer.join()
assert got == ([] if before is signal.SIG_IGN else [signal.SIGINT])
assert signal.getsignal(signal.SIGINT) is before
check_next()
print("right")
""")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "right\n"


def test_only_pythons_own_handler_interrupts(monkeypatch):
    asked = []
    monkeypatch.setattr(_internals, "raise_signals_before_errors", lambda: asked.append(True))
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    assert interrupts._wanted() and asked == [True]
    for other in (signal.SIG_IGN, signal.SIG_DFL, None, lambda number, frame: None):
        monkeypatch.setattr(signal, "getsignal", lambda number, other=other: other)
        assert not interrupts._wanted()
    assert asked == [True]


def test_a_process_without_a_handler_of_its_own_is_not_watched(monkeypatch):
    watched = []
    plugin = types.SimpleNamespace(watch_interrupts=watched.append)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    interrupts.watch(plugin)
    assert not watched
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    interrupts.watch(plugin)
    assert watched == [interrupts._wanted]
    interrupts.watch(types.SimpleNamespace())  # a plugin of an earlier version


def test_errors_are_constructed_as_ever_without_a_signal():
    error = jax.errors.JaxRuntimeError
    before = error.__init__
    expected = str(error("INTERNAL: some text"))
    for _ in range(2):  # two signals
        _internals.raise_signals_before_errors()
    assert error.__init__ is not before
    assert str(error("INTERNAL: some text")) == expected
    assert error.__init__ is before
