"""A process that ends while calls are under way ends as it would without them.

Ranks on CPU devices run on threads of their own, which nothing joins: what keeps them from running
into what the end of the process takes down (BLAS, the allocator, static objects) is that JAX waits
for its programs. JAXMG_TEST_EXITS is how many processes are tried.
"""

import itertools
import os
import random

import pytest
from processes import run

from jaxmg._call import plugins

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
_CASES.sort(key=lambda case: case[-1] != 500)  # the first few are to be quick
_COUNT = int(os.environ.get("JAXMG_TEST_EXITS", 4))


@pytest.mark.parametrize("number", range(_COUNT))
def test_end_with_calls_under_way(number):
    if "cpu" not in plugins.entry_points():
        pytest.skip("needs the plugin for CPU devices")
    end, routine, mode, n = _CASES[number % len(_CASES)]
    result = run(
        "-c", _PROGRAM, end, routine, mode, str(n), timeout=60, JAX_PLATFORMS="cpu",
        JAX_ENABLE_X64="1", XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )  # fmt: skip
    assert result.returncode == _ENDS[end], result.stderr
    assert result.stdout == "under way\n"
