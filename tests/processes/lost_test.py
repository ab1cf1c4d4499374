"""If a process dies, stops, never arrives or makes another call, the others get an error that names
it, within a limit, and go on."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from jobs import Job

_LIMIT = 5  # seconds, for a silent peer, and for one that doesn't arrive


def _limits(**more):
    return {"JAXMG_PEER_TIMEOUT": str(_LIMIT), "JAXMG_RENDEZVOUS_TIMEOUT": str(_LIMIT), **more}


@pytest.mark.parametrize(
    "how, lost, transport",
    [
        ("KILL", 1, "auto"),
        ("KILL", 2, "tcp"),
        ("STOP", 0, "auto"),
        ("STOP", 2, "tcp"),
        pytest.param("KILL", 1, "tcp", marks=pytest.mark.slow),
        pytest.param("KILL", 2, "auto", marks=pytest.mark.slow),
        pytest.param("STOP", 0, "tcp", marks=pytest.mark.slow),
        pytest.param("STOP", 2, "auto", marks=pytest.mark.slow),
    ],
)
def test_lost_in_a_call(how, lost, transport):
    """The lost process may be the process of rank 0, which leads the others and is the last one
    here, or another one."""
    _lose("potrs", 5100, how, lost, transport)


@pytest.mark.parametrize(
    "routine, n, how, lost, transport",
    [
        ("gesv", 3900, "KILL", 2, "auto"),
        ("lu_solve", 2100, "STOP", 2, "tcp"),
        pytest.param("lu_factor", 3900, "STOP", 2, "auto", marks=pytest.mark.slow),
        pytest.param("getri", 3000, "KILL", 2, "tcp", marks=pytest.mark.slow),
        pytest.param("gesv", 3900, "STOP", 0, "tcp", marks=pytest.mark.slow),
        pytest.param("lu_factor", 3900, "KILL", 1, "tcp", marks=pytest.mark.slow),
        pytest.param("getri", 3000, "STOP", 0, "auto", marks=pytest.mark.slow),
        pytest.param("lu_solve", 2100, "KILL", 1, "auto", marks=pytest.mark.slow),
    ],
)
def test_lost_in_an_lu(routine, n, how, lost, transport):
    """LU routines report a lost process, and errors name the routine."""
    _lose(routine, n, how, lost, transport)


@pytest.mark.parametrize(
    "how, lost, transport",
    [
        ("KILL", 2, "auto"),
        pytest.param("STOP", 0, "tcp", marks=pytest.mark.slow),
        pytest.param("KILL", 1, "tcp", marks=pytest.mark.slow),
        pytest.param("STOP", 2, "auto", marks=pytest.mark.slow),
    ],
)
def test_lost_in_a_qr(how, lost, transport):
    """XLA exchanges no rows of a wide matrix, so JAX itself doesn't know about the lost process."""
    _lose("wide", 2700, how, lost, transport)


@pytest.mark.parametrize(
    "routine, how, lost",
    [
        ("tall", "STOP", 2),
        ("geqrf", "STOP", 2),
        pytest.param("geqrf", "KILL", 1, marks=pytest.mark.slow),
        pytest.param("tall", "KILL", 1, marks=pytest.mark.slow),
        pytest.param("least_squares", "STOP", 2, marks=pytest.mark.slow),
        pytest.param("svd", "STOP", 2, marks=pytest.mark.slow),
        pytest.param("polar", "KILL", 1, marks=pytest.mark.slow),
        pytest.param("svdvals", "STOP", 2, marks=pytest.mark.slow),
        pytest.param("cg", "STOP", 2, marks=pytest.mark.slow),
        pytest.param("cg with M", "STOP", 2, marks=pytest.mark.slow),
        pytest.param("eigsh", "KILL", 1, marks=pytest.mark.slow),
        pytest.param("pivoted_cholesky", "STOP", 2, marks=pytest.mark.slow),
    ],
)
def test_lost_before_a_qr(routine, how, lost):
    """In routines whose rows only XLA exchanges, processes join a rendezvous first, and fail there
    if one was lost before."""
    _lose("potrs", 5100, how, lost, "auto", further=routine)


@pytest.mark.parametrize(
    "how, lost, transport",
    [
        ("STOP", 2, "auto"),
        pytest.param("KILL", 1, "tcp", marks=pytest.mark.slow),
        pytest.param("KILL", 2, "auto", marks=pytest.mark.slow),
    ],
)
def test_lost_in_a_call_from_host_memory(how, lost, transport):
    """Each process has its part of the factor, and Python makes a call for each block column."""
    _lose("host_potrf", 3000, how, lost, transport)


# What an error names: the native call, or what was called, whose processes agree before it begins.
_NAMES = {
    "lu_solve": ["LUFactor.solve"],
    "wide": ["gels"],
    "host_potrf": ["host_potrf", "cho_factor"],
}


def _lose(routine, n, how, lost, transport, further=None):
    limits = _limits(JAXMG_TRANSPORT=transport, JAXMG_RENDEZVOUS_TIMEOUT="60")
    with Job("long_call", n, routine, further or routine, processes=3, devices=1, **limits) as job:
        others = [index for index in range(3) if index != lost]
        for index in range(3):
            job.until(index, "in the call")
        time.sleep(1)
        job.processes[lost].send_signal(getattr(signal, f"SIG{how}"))
        start = time.monotonic()
        pid = job.processes[lost].pid
        for index in others:
            output = job.until(index, "failed:", _LIMIT + 15)
            assert f"process {lost}" in output and f"pid {pid}" in output
            assert any(name in output for name in _NAMES.get(routine, [routine]))
        # A dead process is detected at once, and a silent one after the limit; the machine may be
        # busy.
        assert time.monotonic() - start < (_LIMIT if how == "STOP" else 0) + 10
        for output in job.wait(*others):
            second = re.search(r"failed again after (\d+) s: (.*)", output)
            assert second and int(second[1]) <= 2 and f"process {lost}" in second[2]
            assert routine != "host_potrf" or "cho_factor: " in second[2]
            assert "went on alone" in output


def test_one_that_computes_for_longer_than_the_limit_is_not_lost():
    limits = _limits(JAXMG_PEER_TIMEOUT="1", JAXMG_RENDEZVOUS_TIMEOUT="60")
    with Job("patient", 3, **limits) as job:
        job.wait(seconds=120)


def test_one_that_was_stopped_for_less_than_the_limit_is_not_lost():
    with Job("solve", 400, 30, **_limits(JAXMG_PEER_TIMEOUT="30")) as job:
        time.sleep(6)
        with job.stopped(1):
            time.sleep(2)
        job.wait(seconds=120)


@pytest.mark.parametrize("first", ["first", "never"])
def test_one_that_makes_no_call(first):
    with Job("absent", first, **_limits()) as job:
        job.until(1, "away")
        output = job.until(0, "failed after", _LIMIT + 30)
        assert "process 1" in output and "potrs" in output
        job.wait(0)


@pytest.mark.parametrize("first", ["first", "never"])
def test_after_ten_seconds_a_line_says_for_whom_is_waited(first):
    with Job("absent", first, JAXMG_RENDEZVOUS_TIMEOUT="13") as job:
        output = job.until(0, "for 10 s so far", 40)
        (line,) = [line for line in output.splitlines() if "for 10 s so far" in line]
        assert line.startswith("jaxmg: potrs") and "process 1" in line, line
        assert "failed after" not in output
        job.until(0, "failed after", 30)


@pytest.mark.parametrize(
    "what, difference, at_once",
    [
        ("order", "n is 40 in process 0 and 48 in process 1", False),
        pytest.param(
            "routine", "the routine is potrs in process 0 and potri in process 1", False,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "tile", "the tile width is 5 in process 0 and 7 in process 1", False,
            marks=pytest.mark.slow,
        ),
        ("dtype", "the dtype is float64 in process 0 and float32 in process 1", True),
        ("dtype of a solve", "the dtype is float64 in process 0 and float32 in process 1", True),
        ("b", "the shape of b is 40 x 2 in process 0 and 40 x 3 in process 1", True),
    ],
)  # fmt: skip
def test_different_calls(what, difference, at_once):
    """Each process reports the first difference, long before the limit; at once if only operands
    differ."""
    with Job("different", what, JAXMG_RENDEZVOUS_TIMEOUT="100") as job:
        for output in job.wait(seconds=120):
            failure = re.search(r"failed after (\d+) s: (.*)", output, re.S)
            assert failure, output
            assert int(failure[1]) <= 5, output
            start, _, calls = failure[2].partition(": the processes of a mesh make different calls")
            assert start.endswith(difference), output
            assert calls.startswith(": process 0" if at_once else ", or the same"), output
            assert "solved" in output


@pytest.mark.parametrize(
    "processes, odd, known",
    [
        pytest.param(
            processes, odd, known,
            marks=[] if (processes, odd, known) in {(2, 0, "known"), (3, 2, "new")}
            else pytest.mark.slow,
        )
        for processes, odd in ((2, 0), (2, 1), (3, 0), (3, 2))
        for known in ("known", "new")
    ],
)  # fmt: skip
def test_calls_in_another_order(processes, odd, known):
    """Each process reports the calls of all, long before the limit. A process that arrives late
    causes no such error."""
    with Job("orders", odd, known, processes=processes, JAXMG_RENDEZVOUS_TIMEOUT="100") as job:
        for output in job.wait(seconds=120):
            failures = re.findall(r"failed after (\d+) s: (.*)", output)
            assert len(failures) == 2, output
            for seconds, failure in failures:
                assert int(seconds) <= 8, output
                assert "the same calls in different orders" in failure, output
                for words in ("waits in potrs", "waits in syevd", f"process {odd} ", "float64"):
                    assert words in failure, output
            assert "solved" in output


@pytest.mark.parametrize(
    "processes, index",
    [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0), (3, 1)))],
)
def test_one_that_is_late_is_waited_for(processes, index):
    with Job("late", index, processes=processes, JAXMG_RENDEZVOUS_TIMEOUT="100") as job:
        for output in job.wait(seconds=120):
            assert "solved" in output


_RAISES = """
import os, sys
os.environ["JAX_ENABLE_X64"] = "1"
import jax, jaxmg, numpy as np
jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("r",), devices=jax.devices())
print("solves", flush=True)
jax.block_until_ready(jaxmg.potrs(np.eye(8), np.ones(8), mesh=mesh))
if jax.process_index() == {index}:
    raise ValueError("this one fails")
jax.block_until_ready(jaxmg.potrs(np.eye(12), np.ones(12), mesh=mesh))
"""


@pytest.mark.parametrize("index", [0, 1])
def test_an_exception_ends_the_job(tmp_path, index):
    """The job ends although the other process is in a solve, and process 0 of jax.distributed waits
    for process 1."""
    script = tmp_path / "script.py"
    script.write_text(_RAISES.format(index=index))
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "jaxmg.launch", "-n", "2", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
             "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert f"[{index}] failed: exit code 1; ending the others" in result.stderr
    assert f"[{index}] ValueError: this one fails" in result.stderr
    assert time.monotonic() - start < 40  # 5 s of this are for processes that ignore SIGTERM
