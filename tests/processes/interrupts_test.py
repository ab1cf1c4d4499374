"""Ctrl-C in a job: every process ends its calls and goes on, whichever process got the signal."""

import signal
import time

import pytest
from jobs import Job

_SOON = 5  # seconds


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_ctrl_c_in_all_processes(transport):
    with Job("interrupted", JAXMG_TRANSPORT=transport) as job:
        _send(job, 0, 1)
        for index in range(2):
            job.until(index, "KeyboardInterrupt", _SOON)
        for output in job.wait():
            assert "error:" not in output and "went on" in output


@pytest.mark.parametrize("index", [0, 1])
def test_ctrl_c_in_one_process(index):
    """Ctrl-C may reach only the process of rank 0, which leads the others, or only another one."""
    with Job("interrupted") as job:
        _send(job, index)
        job.until(index, "KeyboardInterrupt", _SOON)
        output = job.until(1 - index, "error:", _SOON)
        assert f"interrupted by SIGINT (Ctrl-C) in process {index}" in output
        assert f"pid {job.processes[index].pid}" in output
        for output in job.wait():
            assert "went on" in output


@pytest.mark.parametrize("index", [0, 1])
def test_ctrl_c_while_another_process_has_not_come(index):
    with Job("interrupted", str(1 - index)) as job:
        job.until(1 - index, "waits")
        _send(job, index)
        job.until(index, "KeyboardInterrupt", _SOON)
        # A process that arrives later gets the reason at once.
        job.processes[1 - index].stdin.close()
        output = job.until(1 - index, "error:", _SOON)
        assert f"interrupted by SIGINT (Ctrl-C) in process {index}" in output
        for output in job.wait():
            assert "went on" in output


def _send(job, *indices):
    """Sends Ctrl-C, once the calls of these processes are under way."""
    for index in indices:
        job.until(index, "in the call")
    time.sleep(1)
    for index in indices:
        job.processes[index].send_signal(signal.SIGINT)
