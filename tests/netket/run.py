"""NetKet's solvers in one process and in two: the steps netket322 and netket323 of ci/cpu.sh."""

import pathlib
import subprocess
import sys

_TESTS = pathlib.Path(__file__).parents[1]
_COMMANDS = (
    [_TESTS / "pytest_main.py", _TESTS / "netket"],
    ["-m", "jaxmg.launch", "-n", "2", "-d", "2", _TESTS / "processes/suite.py", _TESTS / "netket"],
)


def main():
    codes = [subprocess.run([sys.executable, *command]).returncode for command in _COMMANDS]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
