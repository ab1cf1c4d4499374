"""The wheels, installed with pip into an empty environment, solve a system."""

import os
import pathlib
import subprocess
import sys

import pytest

WHEELS = sorted(pathlib.Path().glob("**/*.whl"))

SOLVE = """
import importlib.metadata
import jax
jax.config.update("jax_enable_x64", True)
import jaxmg
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

assert importlib.metadata.version("jaxmg")
assert "site-packages" in jaxmg.__file__, jaxmg.__file__
n = 100
rng = np.random.default_rng(0)
a = rng.normal(size=(n, n))
a = a @ a.T + n * np.eye(n)
b = rng.normal(size=n)
mesh = Mesh(jax.devices(), "x")
sharded = jax.device_put(a, NamedSharding(mesh, P("x", None)))
x = jaxmg.potrs(sharded, jax.device_put(b, NamedSharding(mesh, P())), 16)
assert len(jax.devices()) == 2
np.testing.assert_allclose(a @ x, b, atol=1e-10)
print("solved")
"""


def run(*command, **env):
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    assert not result.returncode, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An environment with the wheels; what they need is on its path, so nothing is fetched."""
    folder = tmp_path_factory.mktemp("venv")
    # The environment's pip would come from a bundle that some systems leave out.
    pip = (sys._base_executable, "-m", "pip", "--disable-pip-version-check")
    run(sys._base_executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin/python")
    (site,) = folder.glob("lib/python*/site-packages")
    requirements = [os.path.realpath(p) for p in sys.path if p.endswith("/site")]
    (site / "requirements.pth").write_text("\n".join(requirements))
    install = [*pip, "--python", python, "install", "--no-index", "--no-cache-dir", "-q"]
    run(*install, *(f"--find-links={w.parent.absolute()}" for w in WHEELS), "jaxmg[cpu]")
    run(*pip, "--python", python, "check")
    return python


def test_import_alone(python):
    """The package imports without its plugin's being loaded, and without a device."""
    code = "import jaxmg, sys; assert 'jaxmg_plugin_cpu' not in sys.modules"
    run(python, "-c", code, JAX_PLATFORMS="none")


def test_plugin_is_found(python):
    code = "from importlib.metadata import entry_points as e; print(*e(group='jaxmg_plugins'))"
    assert "jaxmg_plugin_cpu" in run(python, "-c", code)


def test_solve(python):
    flags = "--xla_force_host_platform_device_count=2"
    assert "solved" in run(python, "-c", SOLVE, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)


def test_report(python):
    assert "jaxmg" in run(python, "-m", "jaxmg", JAX_PLATFORMS="cpu")
