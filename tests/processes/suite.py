"""Runs the tests of a folder in several processes of one job, test by test in step.

    python -m jaxmg.launch -n 2 -d 4 tests/processes/suite.py tests/python [arguments of pytest ...]

Every process runs every test, as every process of a job runs the same program. A test passes if it
passes in all of them; process 0 prints the other processes' results.
"""

import faulthandler
import hashlib
import json
import os
import sys

if _platform := os.environ.get("JAXMG_TEST_PLATFORM"):
    os.environ["JAX_PLATFORMS"] = f"{_platform},cpu"  # callbacks of tests run on a CPU device
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# A rank that waits in vain should raise before the test's time limit.
os.environ.setdefault("JAXMG_RENDEZVOUS_TIMEOUT", "40")
_LIMIT = 240  # seconds for one test; the first that hangs ends the job

import jax  # noqa: E402
import pytest  # noqa: E402
from _pytest.runner import runtestprotocol  # noqa: E402
from jax._src import array, distributed  # noqa: E402

from jaxmg._processes import rendezvous  # noqa: E402


class Steps:
    """Runs each test in all processes, with the same outcome in all."""

    def __init__(self):
        self._count = 0
        self._stderr = os.fdopen(os.dup(2), "w")  # pytest's own is a file while a test runs

    def pytest_collection_finish(self, session):
        names = "\n".join(item.nodeid for item in session.items)
        digests = self._exchange(hashlib.sha256(names.encode()).hexdigest())
        if len(set(digests)) > 1:
            raise pytest.UsageError("the processes have found different tests")

    def pytest_runtest_protocol(self, item, nextitem):
        faulthandler.dump_traceback_later(_LIMIT, exit=True, file=self._stderr)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        outcomes = [json.loads(text) for text in self._exchange(json.dumps(_summary(reports)))]
        if problem := _disagreement(outcomes):
            report = reports[min(1, len(reports) - 1)]  # the call's, or the setup's if skipped
            report.outcome = "failed"
            report.longrepr = problem
            if jax.process_index() == 0:  # at once, since later code may hang
                print(item.nodeid, problem, sep="\n", file=self._stderr, flush=True)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        faulthandler.cancel_dump_traceback_later()
        return True

    def _exchange(self, text):
        """Returns the texts of all processes, by their indices; all processes must call this
        equally often."""
        store, name = distributed.global_state.client, f"tests/{self._count}"
        self._count += 1
        store.key_value_set(f"{name}/{jax.process_index()}", text)
        return [
            store.blocking_key_value_get(f"{name}/{index}", 1000 * _LIMIT)
            for index in range(jax.process_count())
        ]


def _summary(reports):
    """Returns (outcome of a test in this process, its text)."""
    for outcome in ("failed", "skipped"):
        for report in reports:
            if report.outcome == outcome:
                text = report.longreprtext if outcome == "failed" else str(report.longrepr[2])
                return outcome, text
    return "passed", ""


def _disagreement(outcomes):
    """Returns the outcomes by process if they differ or are failures; None otherwise."""
    names = {outcome for outcome, _ in outcomes}
    if len(names) < 2 and "failed" not in names:
        return None
    return "\n".join(
        f"process {index}: {outcome} {text}" for index, (outcome, text) in enumerate(outcomes)
    )


def _read_from_all_processes():
    """Makes np.asarray of an array, which tests compare, fetch the shards of other processes.

    JAX itself raises. All processes run the same test, so all make this call.
    """
    local = array.ArrayImpl._value

    def value(self):
        if self.is_fully_addressable or self.is_fully_replicated:
            return local.fget(self)
        return rendezvous.gather(self)

    array.ArrayImpl._value = property(value)


def main():
    jax.distributed.initialize()
    _read_from_all_processes()
    if jax.process_index():
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
    arguments = ["-q", "-p", "no:cacheprovider", "--durations=10", "-rsfE", *sys.argv[1:]]
    return pytest.main(arguments, plugins=[Steps()])


if __name__ == "__main__":
    sys.exit(main())
