"""Runs all tests that need several processes, in sequence: tests/python in 2 and in 4 of them, then
the tests of this folder. The step `processes` of ci/cpu.sh.

    python tests/processes/run.py

With JAXMG_TEST_PROCESSES=core in the environment it runs less of tests/python: for each number of
processes and each transport, the files whose calls cross processes.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

_FOLDER = pathlib.Path(__file__).parent
_PYTHON = _FOLDER.parent / "python"
_SUITE = _FOLDER / "suite.py"

_ROUTINES = [
    "potrs_test.py",
    "potri_test.py",
    "syevd_test.py",
    "eigh_test.py",
    "sygvd_test.py",
    "factor_test.py",
]
_LU = ["gesv_test.py", "lu_factor_test.py"]
# The core runs these once, in two processes. Their calls exchange data; tests of arguments,
# options, plans and errors aren't among them, since each process checks those by itself.
_CORE = [
    *_ROUTINES,
    "calls_test.py",
    "condition_test.py",
    "derivatives_test.py",
    "expm_test.py",
    "host_processes_test.py",
    *_LU,
    "least_squares_test.py",
    "linalg_general_test.py",
    "local_test.py",
    "lu_refine_test.py",
    "process_test.py",
    "products_test.py",
    "qr_test.py",
    "refined_factor_test.py",
    "sharding_test.py",
    "solve_triangular_test.py",
    "tree_test.py",
    "vmap_test.py",
]
_FEW = ["potrs_test.py", "eigh_test.py", "factor_test.py"]
# (processes, devices of each, files of tests/python, transport)
_RUNS = {
    "all": [
        (2, 4, ["."], "auto"),
        (4, 2, [*_ROUTINES, *_LU, "calls_test.py", "sharding_test.py"], "unix"),
        (2, 2, [*_ROUTINES, *_LU], "tcp"),
        (4, 1, [*_ROUTINES, *_LU], "auto"),
    ],
    "core": [
        (2, 4, _CORE, "auto"),
        (4, 2, [*_ROUTINES, "sharding_test.py"], "unix"),
        (2, 2, [*_FEW, "gesv_test.py"], "tcp"),
        (4, 1, _FEW, "auto"),
    ],
}


def _paths(file):
    """Returns the path of a file of tests/python, which may be in a folder there."""
    return [_PYTHON] if file == "." else list(_PYTHON.rglob(file))


def main():
    failed = []
    for processes, devices, files, transport in _RUNS[
        os.environ.get("JAXMG_TEST_PROCESSES", "all")
    ]:
        command = [
            "-m", "jaxmg.launch", "-n", str(processes), "-d", str(devices), _SUITE,
            *(path for file in sorted(files) for path in _paths(file)),
        ]  # fmt: skip
        title = f"{processes} x {devices}, {transport}"
        if not _run(title, command, JAXMG_TRANSPORT=transport):
            failed.append(title)
    if not _run_jobs():
        failed.append("jobs")
    print("failed:" if failed else "all passed", *failed, flush=True)
    return 1 if failed else 0


def _run_jobs():
    """Runs the tests of this folder, which mostly wait. Those of lost processes, which have time
    limits, run in parallel with the others."""
    files = sorted(_FOLDER.glob("*_test.py"))
    lost = [file for file in files if file.name == "lost_test.py"]
    parts = [lost, [file for file in files if file not in lost]]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder, str(index)) for index in range(len(parts))]
        started = []
        for log, part in zip(logs, parts, strict=True):
            with log.open("w") as output:
                command = [sys.executable, _FOLDER.parent / "pytest_main.py", *part]
                started.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
        codes = [one.wait() for one in started]
        for log in logs:
            print(log.read_text())
    print(f"=== jobs: exit codes {codes}, {time.monotonic() - start:.0f} s", flush=True)
    return not any(codes)


def _run(title, command, **environment):
    print(f"=== {title}", flush=True)
    start = time.monotonic()
    code = subprocess.run(
        [sys.executable, *command], check=False, env={**os.environ, **environment}
    ).returncode
    print(f"=== {title}: exit code {code}, {time.monotonic() - start:.0f} s", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
