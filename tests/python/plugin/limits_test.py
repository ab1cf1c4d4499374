"""JAXMG_RENDEZVOUS_TIMEOUT limits the time that a rank waits for the others of its call."""

import re

import cases
import jax
import pytest
from processes import run

from jaxmg._plugin import plugins

_SOLVE = """
import jax, numpy as np
from jax.sharding import Mesh
import jaxmg

mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
print(jaxmg.potrs(np.eye(4, dtype="float32"), np.ones(4, "float32"), 1, mesh).sum())
"""


def _solve(limit):
    return run(
        "-c", _SOLVE, JAX_PLATFORMS="cpu", JAXMG_RENDEZVOUS_TIMEOUT=limit,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _on_cpu_devices():
    if jax.devices()[0].platform != "cpu":
        pytest.skip("about the plugin for CPU devices; the others read the limit by the same code")


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", cases.broad([("inf",), ("1e300",), ("2.5",)], lambda limit: limit != "1e300")
)
def test_a_number_of_seconds_or_none(limit):
    result = _solve(limit)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "4.0\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    cases.broad(
        [("abc",), ("5abc",), ("-1",), ("0",), ("nan",), ("",)],
        lambda limit: limit in ("5abc", "0", "nan"),
    ),
)
def test_what_is_no_limit_is_an_error_that_names_the_variable(limit):
    result = _solve(limit)
    assert result.returncode == 1
    message = f"JAXMG_RENDEZVOUS_TIMEOUT must be a positive number of seconds, or inf .* '{limit}'"
    assert re.search(message, result.stderr), result.stderr


def test_none_from_python():
    plugin = plugins.load("cpu")
    usual = plugin.rendezvous_timeout()
    try:
        plugin.set_rendezvous_timeout(float("inf"))
        assert plugin.rendezvous_timeout() == float("inf")
        with pytest.raises(ValueError, match="must be positive"):
            plugin.set_rendezvous_timeout(0)
    finally:
        plugin.set_rendezvous_timeout(usual)
