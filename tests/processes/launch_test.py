"""``python -m jaxmg.launch``: the environment of its processes, its output, and its end."""

import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest

from jaxmg import launch

_SEEN = """
import os, sys
os.environ["JAX_ENABLE_X64"] = "1"  # read when JAX is imported, which the launcher hasn't done
import jax
import jaxmg
jax.distributed.initialize()
print(jax.process_index(), "of", jax.process_count(), "with", jax.local_device_count(), "of",
      jax.device_count(), sys.argv[1:], __name__, jax.numpy.zeros(()).dtype)
print("to stderr", file=sys.stderr)
jax.distributed.shutdown()
"""


def _command(*arguments):
    return [sys.executable, "-m", "jaxmg.launch", *map(str, arguments)]


def _environment(**changes):
    path = os.pathsep.join(filter(None, sys.path))
    # Bazel's processes don't search for modules next to their script; a user's processes do.
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return {**usual, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **changes}


def _launch(*arguments, cwd=None, **changes):
    return subprocess.run(
        _command(*arguments), env=_environment(**changes), cwd=cwd, capture_output=True, text=True,
        timeout=90,
    )  # fmt: skip


def _script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_a_script_in_two_processes(tmp_path):
    # In a SLURM allocation, for example, JAX would take SLURM's variables.
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "nowhere", "SLURM_NTASKS": "9",
             "SLURM_PROCID": "3", "SLURM_LOCALID": "3"}  # fmt: skip
    result = _launch("-n", 2, "-d", 3, _script(tmp_path, _SEEN), "-n", "x", "--help", **slurm)
    assert result.returncode == 0, result.stderr
    expected = [
        f"[{i}] {i} of 2 with 3 of 6 ['-n', 'x', '--help'] __main__ float64" for i in range(2)
    ]
    assert sorted(result.stdout.splitlines()) == expected
    assert {"[0] to stderr", "[1] to stderr"} <= set(result.stderr.splitlines())
    assert "worked alone" not in result.stderr


def test_a_script_without_jax_distributed(tmp_path):
    result = _launch("-n", 2, _script(tmp_path, "import jaxmg"))
    said = "jaxmg.launch: the script never called jax.distributed.initialize(), so each of the 2"
    assert result.returncode == 0 and f"[0] {said}" in result.stderr, result.stderr
    assert f"[1] {said}" not in result.stderr


def test_a_module(tmp_path):
    _script(tmp_path, "import sys; print(sys.argv[1:], __name__, sys.path[0])")
    result = _launch("-n", 1, "-m", "script", "-m", "y", cwd=tmp_path)
    assert result.stdout == f"[0] ['-m', 'y'] __main__ {tmp_path}\n", result.stderr


def test_a_script_beside_its_modules(tmp_path):
    (tmp_path / "neighbour.py").write_text("name = 'found'")
    result = _launch("-n", 1, _script(tmp_path, "import neighbour; print(neighbour.name)"))
    assert result.stdout == "[0] found\n", result.stderr


_ONE_FAILS = """
import os, signal, sys, time
if os.environ["JAX_LOCAL_DEVICE_IDS"] == "1":
    {how}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("1 / 0", 1, "exit code 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV, "signal SIGSEGV"),
    ],
)
def test_one_that_fails_ends_the_others(tmp_path, how, code, said):
    # The processes ignore SIGTERM. The shorter grace period is only for the test.
    script = _script(tmp_path, _ONE_FAILS.format(how=how))
    program = "import sys; from jaxmg import launch; launch._GRACE = 0.5; sys.exit(launch.main())"
    result = subprocess.run(
        [sys.executable, "-c", program, "-n", "3", script],
        env=_environment(), capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert result.returncode == code
    assert f"[1] failed: {said}; ending the others" in result.stderr
    for pid in re.findall(r"\] (\d+)$", result.stdout, re.M):
        assert not _runs(int(pid))


_ONE_IS_KILLED = """
import os, signal, sys, time
pid = os.path.join(os.path.dirname(__file__), "pid")
if os.environ["JAX_LOCAL_DEVICE_IDS"] == "1":
    with open(pid + "~", "w") as file:
        file.write(str(os.getpid()))
    os.rename(pid + "~", pid)
    time.sleep(600)
while not os.path.exists(pid):
    time.sleep(0.01)
os.kill(int(open(pid).read()), signal.SIGKILL)
sys.exit(1)  # at once: the launcher may see this first
"""


def test_one_that_was_killed_is_named_before_those_that_lost_it(tmp_path):
    result = _launch("-n", 2, _script(tmp_path, _ONE_IS_KILLED))
    assert result.returncode == 128 + signal.SIGKILL
    assert "[1] failed: signal SIGKILL; ending the others" in result.stderr


@pytest.mark.parametrize(
    "codes, first",
    [
        ([1, -signal.SIGKILL], 1),
        ([-signal.SIGABRT, -signal.SIGSEGV], 1),  # JAX aborts processes that have lost one
        ([None, 1, 1], 1),
        ([-signal.SIGTERM, 1], 0),
    ],
)
def test_the_first_failure(codes, first, monkeypatch):
    monkeypatch.setattr(launch, "_SETTLE", 0)
    stop = types.SimpleNamespace(signal=0)
    assert launch._first_failure([None] * len(codes), codes, stop) == (first, codes[first])


def test_the_launcher_says_who_has_ended(tmp_path):
    """Process 1 waits for the others at its end, as in jax.distributed."""
    script = _script(
        tmp_path,
        "import atexit, os, time\n"
        "if os.environ['JAX_LOCAL_DEVICE_IDS'] != '1':\n    time.sleep(3)\n"
        "else:\n    atexit.register(time.sleep, 4)\n",
    )
    program = (
        "import sys; from jaxmg import launch; launch._BEFORE_NOTICE = 1; sys.exit(launch.main())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "-n", "3", script],
        env=_environment(), capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("ended 1 s ago") == 1
    assert "[1] ended 1 s ago; still running: [0, 2]" in result.stderr


# Like jax.distributed, where a process waits for all others at its end.
_WAITS_FOR_ALL = """
import atexit, os, sys, time
def wait():
    print("waits for the others", flush=True)
    time.sleep(600)
atexit.register(wait)
if os.environ["JAX_LOCAL_DEVICE_IDS"] == "1":
    {how}
time.sleep(600)
"""


@pytest.mark.parametrize(
    "how, code, text",
    [
        ("1 / 0", 1, "ZeroDivisionError"),
        ("sys.exit(7)", 7, "waits for"),
        ("sys.exit('no')", 1, "no"),
    ],
)
def test_an_exception_ends_the_others_at_once(tmp_path, how, code, text):
    script = _script(tmp_path, _WAITS_FOR_ALL.format(how=how))
    program = "import sys; from jaxmg import launch; launch._GRACE = 1; sys.exit(launch.main())"
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", program, "-n", "2", script],
        env=_environment(), capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert time.monotonic() - start < 20
    assert result.returncode == code
    assert f"[1] failed: exit code {code}; ending the others" in result.stderr
    # The process has run Python's normal exit, within the grace period.
    assert text in result.stdout + result.stderr
    assert "[1] waits for the others" in result.stdout


def test_an_end_without_an_error_ends_nobody(tmp_path):
    script = "import os, sys, time\nfirst = os.environ['JAX_LOCAL_DEVICE_IDS'] == '0'\n"
    script += "time.sleep(1.0 if first else 0)\nprint('through')\nsys.exit(None if first else 0)"
    result = _launch("-n", 2, _script(tmp_path, script))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] through", "[1] through"]


def test_processes_inherit_a_secret(tmp_path):
    """All processes of a job inherit the same secret, which differs between jobs; children and
    arguments don't show it."""
    script = _script(
        tmp_path,
        "import os, subprocess, sys\nfrom jaxmg._processes import rendezvous\n"
        "print(rendezvous._secret().hex())\n"
        "print(len(os.listdir('/proc/self/fd')), file=sys.stderr)\n"
        "seen = subprocess.run(['env'], capture_output=True, text=True).stdout + str(sys.argv)\n"
        "assert rendezvous._secret().hex() not in seen and 'SECRET' not in seen\n",
    )
    found = []
    for _ in range(2):
        result = _launch("-n", 2, script)
        assert result.returncode == 0, result.stderr
        secrets = {line.split()[1] for line in result.stdout.splitlines()}
        assert len(secrets) == 1
        found += secrets
    assert len({*found}) == 2 and all(len(secret) == 64 for secret in found)


_WAITS = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
def end(number, frame):
    print("told", signal.Signals(number).name, flush=True)
    sys.exit(5)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, {how})
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(tmp_path, number):
    process, pids = _waiting(tmp_path)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 5
    assert output.count(f"told {signal.Signals(number).name}") == 2
    assert not any(map(_runs, pids))  # nor the processes that they started


@pytest.mark.parametrize("how", ["end", "signal.SIG_IGN"])
def test_none_stays_without_the_launcher(tmp_path, how):
    """Processes end without the launcher, even if they ignore SIGTERM, as all do after
    jax.distributed.initialize."""
    process, pids = _waiting(tmp_path, how)
    process.kill()
    process.wait()
    until = time.monotonic() + 30
    while any(map(_runs, pids[::2])) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_runs, pids[::2]))
    for pid in pids[1::2]:  # they must end the processes that they started themselves
        os.kill(pid, signal.SIGKILL)


def _waiting(folder, how="end"):
    """Starts the launcher with two processes that wait; returns it and their pids, each followed by
    its child's."""
    process = subprocess.Popen(
        _command("-n", 2, _script(folder, _WAITS.format(how=how))), env=_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = [process.stdout.readline(), process.stdout.readline()]
    return process, [int(pid) for line in lines for pid in line.split()[-2:]]


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_how_many_must_be_a_number(count, capsys):
    with pytest.raises(SystemExit):
        launch.main(["-n", count, "script.py"])
    assert f"must be an integer of at least 1; got '{count}'" in capsys.readouterr().err
