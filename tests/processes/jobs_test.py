"""Calls over several processes that tests of one process don't have: many at once, together with
collectives, replicas across processes, exported programs, and jobs that run concurrently or in
sequence."""

import os
import signal
import subprocess
import sys

import pytest
from jobs import Job
from namespaces import HOST, Namespaces, Unavailable


@pytest.mark.parametrize("processes, devices", [(2, 2), (4, 1)])
def test_replicas_across_processes(processes, devices):
    with Job("replicas", processes=processes, devices=devices) as job:
        job.wait()


def test_small_matrices_on_replicas():
    with Job("small_replicas") as job:
        job.wait()


@pytest.mark.parametrize("transport", ["auto", "unix", "tcp"])
def test_beside_collectives(transport):
    with Job("beside", 50, JAXMG_TRANSPORT=transport) as job:
        job.wait(seconds=240)


def test_numpy_inputs():
    with Job("numpy_inputs") as job:
        job.wait()


def test_bits_do_not_depend_on_the_processes():
    found = set()
    for processes, devices in ((1, 4), (2, 2), (4, 1)):
        with Job("bits", processes=processes, devices=devices) as job:
            for output in job.wait():
                lines = [line for line in output.splitlines() if line.startswith("bits")]
                assert len(lines) == 8
                found.add(tuple(lines))
    assert len(found) == 1


def test_two_jobs_at_once():
    with Job("solve", 40, 100) as one, Job("solve", 36, 100) as other:
        one.wait(seconds=120)
        other.wait(seconds=120)


def test_exported_program(tmp_path):
    pytest.importorskip("flatbuffers")
    with Job("export", tmp_path) as job:
        job.wait()
    with Job("run_exported", tmp_path) as job:
        job.wait()


def test_nothing_grows():
    with Job("growth", 500) as job:
        job.wait(seconds=240)


def test_after_a_crash():
    """A job whose processes were killed in a call leaves nothing behind that blocks the next
    job."""
    before = _left_behind()
    with Job("long_call", 4000) as job:
        job.until(0, "in the call")
        for process in job.processes:
            process.send_signal(signal.SIGKILL)
    with Job("solve", 24) as job:
        job.wait()
    assert _left_behind() <= before


def _left_behind():
    return {
        os.path.join(folder, name)
        for folder in ("/tmp", "/dev/shm")
        for name in os.listdir(folder)
        if "jaxmg" in name
    }


def test_two_network_namespaces():
    """Network namespaces are like two hosts: neither abstract sockets nor the loopback interface
    connect them."""
    try:
        namespaces = Namespaces()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with namespaces as prefixes:
        with Job("solve", 24, 5, host=HOST, prefixes=prefixes) as job:
            job.wait()
        with Job("addresses", host=HOST, prefixes=prefixes) as job:
            assert all("tcp" in output for output in job.wait())


@pytest.mark.parametrize("options", [(), ("--distributed",)])
def test_report(options):
    """``python -m jaxmg`` in two processes reports a checked solve, and how each process is
    reached."""
    command = [sys.executable, "-m", "jaxmg.launch", "-n", "2", "-m", "jaxmg", *options]
    path = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    for index in range(2):
        assert f"[{index}] all right" in result.stdout
        assert f"[{index}]   processes: 2, this is {index}" in result.stdout
        assert f"[{index}]   {1 - index}: unix, shared memory, connected" in result.stdout
