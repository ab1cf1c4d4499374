"""Everything that needs several processes, one after the other: tests/python in 2 and in 4 of them,
then the tests of this folder.  The step `processes` of ci/cpu.sh.

    python tests/processes/run.py
"""

import pathlib
import subprocess
import sys
import time

_FOLDER = pathlib.Path(__file__).parent
_PYTHON = _FOLDER.parent / "python"
_SUITE = _FOLDER / "suite.py"

# Processes, devices each, and what of tests/python.
_RUNS = [
    (2, 4, ["."]),
    (4, 2, ["."]),
    (2, 2, ["potrs_test.py", "potri_test.py", "syevd_test.py", "factor_test.py"]),
    (4, 1, ["potrs_test.py", "potri_test.py", "syevd_test.py", "factor_test.py"]),
]


def main():
    failed = []
    for processes, devices, files in _RUNS:
        command = [
            "-m", "jaxmg.launch", "-n", str(processes), "-d", str(devices), _SUITE,
            *(_PYTHON / file for file in files),
        ]  # fmt: skip
        if not _run(f"{processes} x {devices}", command):
            failed.append(f"{processes} x {devices}")
    if not _run("jobs", [_FOLDER.parent / "pytest_main.py", _FOLDER]):
        failed.append("jobs")
    print("failed:" if failed else "all passed", *failed, flush=True)
    return 1 if failed else 0


def _run(title, command):
    print(f"=== {title}", flush=True)
    start = time.monotonic()
    code = subprocess.run([sys.executable, *command], check=False).returncode
    print(f"=== {title}: exit code {code}, {time.monotonic() - start:.0f} s", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
