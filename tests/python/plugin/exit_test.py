"""A process that ends while calls are under way ends as it would without them.

Ranks on CPU devices run on threads of their own, which nothing joins. The end of the process
destroys objects that they use (BLAS, the allocator, static objects); they are safe because JAX
waits for its programs. JAXMG_TEST_EXITS is the number of processes to try.
"""

import itertools
import os
import random
import time

import cases
import jax
import numpy as np
import pytest
from processes import run

import jaxmg
from jaxmg._plugin import exits, plugins

_PROGRAM = """
import sys
import jax
import numpy as np
import jaxmg
from jax.sharding import NamedSharding, PartitionSpec as P
end, routine, mode, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
mesh = jax.make_mesh((4,), ("r",))
a = jax.device_put(np.ones((n, n)) + n * np.eye(n), NamedSharding(mesh, P("r", None)))
b = jax.device_put(np.ones(n), NamedSharding(mesh, P()))
calls = {
    "potrs": lambda: jaxmg.potrs(a, b, 64, mesh, P("r", None)),
    "potri": lambda: jaxmg.potri(a, 64, mesh, P("r", None)),
    "syevd": lambda: jaxmg.syevd(a, 64, mesh, P("r", None)),
}
call = calls[routine] if mode == "eager" else jax.jit(calls[routine])
results = [call() for _ in range(4)]
print("under way" if not jax.tree.leaves(results)[-1].is_ready() else "done", flush=True)
if end == "results dropped":
    del results, a, b
elif end == "sys.exit":
    sys.exit(3)
elif end == "exception":
    raise ValueError("the end")
"""

_ENDS = {"end of the program": 0, "results dropped": 0, "sys.exit": 3, "exception": 1}
_CASES = [
    *itertools.product(_ENDS, ("potrs", "potri", "syevd"), ("eager", "jit"), (500, 800, 1200))
]
random.Random(0).shuffle(_CASES)
_CASES.sort(key=lambda case: case[-1] != 500)  # the first cases must be quick
_COUNT = int(os.environ.get("JAXMG_TEST_EXITS", 4))


# The processes run on CPU devices, whichever devices the other tests use.
_needs_cpu_plugin = pytest.mark.skipif(
    "cpu" not in plugins.entry_points(), reason="needs the plugin for CPU devices"
)


@_needs_cpu_plugin
@pytest.mark.parametrize("number", range(_COUNT))
def test_end_with_calls_under_way(number):
    end, routine, mode, n = _CASES[number % len(_CASES)]
    result = run(
        "-c", _PROGRAM, end, routine, mode, str(n), timeout=60, JAX_PLATFORMS="cpu",
        JAX_ENABLE_X64="1", XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )  # fmt: skip
    assert result.returncode == _ENDS[end], result.stderr
    assert result.stdout == "under way\n"


_WAITS = """
import atexit, sys, time
import jax, numpy as np
at_end = []  # called after the handlers that were registered later
atexit.register(lambda: print(*(f() for f in at_end), flush=True))
import jaxmg
from jaxmg._plugin import exits
from jax.sharding import Mesh
assert not exits._platforms
a = 800 * np.eye(800) + 1
mesh = Mesh(np.array(jax.devices()), ("r",))
exits._LIMIT = float(sys.argv[1])
w, v = jaxmg.syevd(a, mesh=mesh)
before = v.is_ready()
at_end.append(lambda: (before, v.is_ready()))
"""


@_needs_cpu_plugin
@pytest.mark.parametrize("limit, ready", [("10", True), ("0", False)])
def test_the_end_waits_for_results_up_to_a_limit(limit, ready):
    result = run(
        "-c", _WAITS, limit, timeout=60, JAX_PLATFORMS="cpu",
        JAX_ENABLE_X64="1", XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"(False, {ready})\n"


class _Never:
    """An array of a call whose peer is gone: it never becomes ready."""

    def is_deleted(self):
        return False

    def is_ready(self):
        return False


class _Failed(_Never):
    def is_ready(self):
        raise RuntimeError("a peer is gone")


def test_the_wait_has_an_end(monkeypatch):
    monkeypatch.setattr(exits, "_LIMIT", 0.2)
    monkeypatch.setattr(exits, "_platforms", {"cpu"})
    monkeypatch.setattr(exits.jax, "live_arrays", lambda platform: [_Failed(), _Never(), _Never()])
    start = time.monotonic()
    exits._wait()
    assert 0.2 <= time.monotonic() - start < 2

    def fail(platform):
        raise RuntimeError("no such platform")

    monkeypatch.setattr(exits.jax, "live_arrays", fail)
    exits._wait()


@cases.one_process("the devices are those of this process")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices")
def test_a_sum_over_devices_comes_after_what_was_called_before():
    mesh = cases.line(4)
    v = jaxmg.syevd(800 * np.eye(800) + 1, mesh=mesh)[1]
    exits._sum_over_devices().block_until_ready()
    assert v.is_ready()
