"""The example for several processes yields the same results there as in one process."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
_MINSR = [_EXAMPLES / "minsr.py", "--model", "square", "--samples", "128"]


def _energies(*launcher):
    """Returns the energies that the program prints, to eight digits, and its whole output."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "PYTHONSAFEPATH")
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(
        [sys.executable, *launcher, *_MINSR],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return re.findall(r" -[\d.]{9,}", result.stdout), result.stdout


@pytest.mark.slow
def test_minsr():
    expected, output = _energies()
    assert "2 x 2 cpu, 1 process(es)" in output
    assert len(expected) >= 5
    for processes, devices in ((2, 2), (4, 1)):
        launcher = ["-m", "jaxmg.launch", "-n", str(processes), "-d", str(devices)]
        found, output = _energies(*launcher)
        assert f"128 samples; 2 x 2 cpu, {processes} process(es)" in output
        assert found == expected
