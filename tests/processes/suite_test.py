"""Runs some of tests/python in two processes; the step `processes` of ci/cpu.sh runs all of it."""

import os
import pathlib
import subprocess
import sys

_SUITE = pathlib.Path(__file__).with_name("suite.py")
_TESTS = _SUITE.parents[1] / "python"


def test_solves_in_two_processes():
    chosen = "test_solves and (n7 or n97) or test_all_routines_in_one_program or test_scan"
    command = ["-m", "jaxmg.launch", "-n", "2", "-d", "2", _SUITE]
    files = [_TESTS / "cholesky/potrs_test.py", _TESTS / "call/programs_test.py"]
    result = subprocess.run(
        [sys.executable, *command, *files, "-k", chosen],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTEST_ADDOPTS": "",  # these tests, whichever the step selects
        },
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    passed = int(result.stdout.rpartition(" passed")[0].split()[-1])
    assert passed >= 8
