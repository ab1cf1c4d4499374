"""Shows a call on a matrix in host memory as one: `jaxmg.progress` would only see its native calls,
one for each block column, each of which may be too short to be reported."""

import contextlib
import itertools
import threading
import time

import jax

from jaxmg._plugin import progress


@contextlib.contextmanager
def running(caller, layout, n, phases):
    """Reports a call as under way while the context lasts.

    Args:
        caller: the public function.
        layout: the devices; the process of the first one reports.
        n: columns of the matrix.
        phases: the operations of each stage of the call, by name and in order.
    """
    source = _source(layout.platform)
    call = _Call(source, caller, layout, n, phases)
    before, _current.call = getattr(_current, "call", None), call
    try:
        yield
    except BaseException:
        call.ok = False
        raise
    finally:
        _current.call = before
        source.end(call)


def advance(stage, step, steps, part):
    """Reports that a share ``part`` of a stage is done, after a step of ``steps``, of the call that
    runs on this thread, if any."""
    call = getattr(_current, "call", None)
    if call is not None and stage in call.phases:
        call.at = stage, step, steps, part


def of_cholesky(geometry, j):
    """Returns the share of a factorization that is done after block column j, from the left."""
    done = geometry.ends(j)[1] / geometry.n
    return done**2 * (3 - 2 * done)


def of_lu(geometry, j):
    """Returns the same of LU."""
    done = geometry.ends(j)[1] / geometry.n
    return done**2 * (3 - done) / 2


def of_inverse(geometry, j):
    """Returns the share of an inverse that is done after block column j, from the right."""
    return (1 - geometry.ends(j)[0] / geometry.n) ** 3


_current = threading.local()


class _Call:
    def __init__(self, source, caller, layout, n, phases):
        self.phases, self.at = phases, ("", 0, 0, 0.0)
        self.ended, self.ok = False, True
        self._begin, self._end = time.perf_counter(), 0.0
        self._known = {"routine": caller, "n": n, "devices": layout.ranks}
        source.add(self, layout)

    def end(self):
        self.ended, self._end = True, time.perf_counter()

    def facts(self, number):
        stage, step, steps, part = self.at
        before = itertools.takewhile(lambda name: name != stage, self.phases)
        done = sum(self.phases[name] for name in before) if stage else 0
        done += self.phases.get(stage, 0) * part
        fraction = 1.0 if self.ended and self.ok else done / sum(self.phases.values())
        end = self._end if self.ended else time.perf_counter()
        return {
            **self._known, "call": number, "stage": stage, "step": step, "steps": steps,
            "fraction": fraction, "seconds": end - self._begin, "ended": self.ended, "ok": self.ok,
        }  # fmt: skip


class _Source:
    """What `progress` takes for a plugin."""

    def __init__(self):
        self._lock = threading.Lock()
        self._calls = {}  # by number: below 0, as those of native calls are not
        self._numbers = itertools.count(-1, -1)
        self._wanted = False

    def set_progress(self, wanted):
        with self._lock:
            self._wanted = wanted
            if not wanted:
                self._calls = {k: call for k, call in self._calls.items() if not call.ended}

    def progress(self):
        with self._lock:
            found = [call.facts(number) for number, call in self._calls.items()]
            self._calls = {k: call for k, call in self._calls.items() if not call.ended}
        return found

    def add(self, call, layout):
        processes = layout.processes
        if processes and layout.mesh.devices.flat[0].process_index != jax.process_index():
            return
        with self._lock:
            self._calls[next(self._numbers)] = call

    def end(self, call):
        with self._lock:
            call.end()
            if not self._wanted:
                self._calls = {k: each for k, each in self._calls.items() if each is not call}


_sources: dict[str, _Source] = {}
_sources_lock = threading.Lock()


def _source(platform):
    with _sources_lock:
        if platform not in _sources:
            _sources[platform] = _Source()
            progress.attach(_sources[platform], platform)
    return _sources[platform]
