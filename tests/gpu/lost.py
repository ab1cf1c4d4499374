"""Kills or stops a process while GPUs of several processes solve. The others get an error that
names it, within a limit; the GPUs are idle again, and a new job runs on them at once.

    python lost.py PROCESSES [N [ROUTINE ...]]        one GPU each; with JAX for CUDA

ROUTINE is one of `_LONG_CALLS` in tests/processes/worker.py, by default potrs. The first one loses
a process in each of three ways, the others in one of them.
"""

import itertools
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "processes"))

from jobs import Job  # noqa: E402

_LIMIT = 5  # seconds of silence after which a process is lost
_GPUS = {
    "JAX_PLATFORMS": "cuda",
    "JAXMG_TEST_DEVICES": "1",
    "JAXMG_PEER_TIMEOUT": str(_LIMIT),
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4",  # two jobs share a GPU if a process is stopped
}


def main():
    processes = int(sys.argv[1])
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 65536
    routines = sys.argv[3:] or ["potrs"]
    cases = (("KILL", processes - 1), ("STOP", processes - 1), ("STOP", 0))
    failed = 0
    further = zip(routines[1:], itertools.cycle(cases))
    for routine, (how, lost) in (*((routines[0], case) for case in cases), *further):
        about = {"kind": "lost", "routine": routine, "how": how, "lost": lost, "n": n}
        try:
            record = _lose(how, lost, processes, n, routine)
        except AssertionError as error:
            failed += 1
            print(f"FAIL {routine}, {how} of process {lost}: {error}", flush=True)
        else:
            print(json.dumps({**about, **record}), flush=True)
    print(f"{failed} failures")
    return 1 if failed else 0


def _lose(how, lost, processes, n, routine):
    with Job("long_call", n, routine, processes=processes, devices=1, **_GPUS) as job:
        for index in range(processes):
            job.until(index, "again", 200)  # compiled, and the next one is under way
        time.sleep(0.3)
        others = [index for index in range(processes) if index != lost]
        job.processes[lost].send_signal(getattr(signal, f"SIG{how}"))
        start = time.monotonic()
        for index in others:
            output = job.until(index, "failed:", _LIMIT + 20)
            assert f"process {lost}" in output, output
        seconds = time.monotonic() - start
        for output in job.wait(*others, seconds=60):
            again = re.search(r"failed again after (\d+) s: (.*)", output)
            assert again and int(again[1]) <= 2 and "went on alone" in output, output
        # A stopped process keeps its memory, and its GPU completes the work that is enqueued.
        idle = _seconds_until_idle()
        start = time.monotonic()
        with Job("solve", 2000, 2, processes=processes, devices=1, **_GPUS) as new:
            new.wait(seconds=120)
        anew = time.monotonic() - start
    return {"seconds": round(seconds, 2), "idle_after": round(idle, 2), "new_job": round(anew, 1)}


def _seconds_until_idle(limit=30):
    start = time.monotonic()
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    while time.monotonic() - start < limit:
        shown = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()
        if all(int(percent) == 0 for percent in shown):
            return time.monotonic() - start
        time.sleep(0.1)
    raise AssertionError(f"GPUs are at {shown} % after {limit} s")


if __name__ == "__main__":
    sys.exit(main())
