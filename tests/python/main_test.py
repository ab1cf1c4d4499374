"""What runs in a process of its own: the import, and ``python -m jaxmg``."""

import os
import subprocess
import sys

_IMPORT = """
import sys
import jax
config = dict(jax.config.values)
import jaxmg
from jax._src import xla_bridge
assert dict(jax.config.values) == config, "jax.config was changed"
assert not xla_bridge._backends, "a device was touched"
assert not [name for name in sys.modules if name.startswith("jaxmg_plugin")], "plugin loaded"
assert "matplotlib" not in sys.modules and "scipy" not in sys.modules
"""


def _run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_import_touches_nothing():
    result = _run("-c", _IMPORT)
    assert result.returncode == 0, result.stderr


def test_report():
    result = _run("-m", "jaxmg", JAX_ENABLE_X64="1")
    assert result.returncode == 0, result.stdout + result.stderr
    for part in ("python", "jax", "jaxlib", "numpy", "potrs", "potri", "syevd", "all right"):
        assert part in result.stdout
    assert result.stdout.count(" ok\n") == 3


def test_report_without_a_plugin():
    """It says which extra to install, and fails."""
    hide = (
        "import importlib.metadata as m, runpy, sys; m.entry_points = lambda **_: [];"
        "runpy.run_module('jaxmg', run_name='__main__', alter_sys=True)"
    )
    result = _run("-c", hide)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "pip install jaxmg[" in result.stdout
