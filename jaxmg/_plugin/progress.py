"""Shows the progress of long calls: lines on standard error, a bar, or calls of a function.

The plugin records the steps that the first rank's device has finished (xla_ffi/device/progress.h).
A daemon thread, which exists only while somebody watches, takes these records a few times a second
and passes them to the viewers.
"""

import atexit
import collections.abc
import contextlib
import dataclasses
import importlib
import os
import sys
import threading
import traceback

VARIABLE = "JAXMG_PROGRESS"
_LONGEST_PAUSE = 0.25  # seconds between two looks, at most
_SHORTEST_PAUSE = 0.005
_PATIENCE = 1.0  # seconds that the end of a block, and of the program, waits for the last reports
_EVERY_LINE, _EVERY = 5.0, 0.5  # default seconds between reports: of lines, and of others
_SURE = 0.01  # below this share of its operations a call's remaining time is not estimated


@dataclasses.dataclass(frozen=True)
class Progress:
    """Holds the state of one call.

    Attributes:
        platform: ``"cpu"`` or ``"gpu"``.
        call: number of the call, unique in this process for its platform. Below 0: a whole call on
            a matrix in host memory, whose native calls are reported, too.
        routine: name of the native routine, such as ``"potrs"``, or of the function of such a call.
        n: number of columns of the matrix; 0 if unknown.
        devices: number of devices that work on the call.
        stage: the part of the algorithm, such as ``"factor"``; ``""`` before the first step, and in
            calls of LAPACK and of NVIDIA's solvers, which have no steps.
        step: number of steps of the stage that the first rank's device has finished.
        steps: number of steps of the stage.
        fraction: estimated share of the call's operations that are done, from 0 to 1; None if
            unknown.
        seconds: time since the device began with the call.
        left: estimated remaining seconds; None if unknown.
        ended: whether the call has ended.
        ok: False if the call has failed.
    """

    platform: str
    call: int
    routine: str
    n: int
    devices: int
    stage: str
    step: int
    steps: int
    fraction: float | None
    seconds: float
    left: float | None
    ended: bool
    ok: bool

    def __str__(self) -> str:
        name = f"{self.routine}, n = {self.n}" if self.n else self.routine
        name = f"{name}, {self.devices} device{'s' if self.devices > 1 else ''}"
        if self.ended:
            return f"{name}: {'done in' if self.ok else 'failed after'} {_time(self.seconds)}"
        parts = [] if self.fraction is None else [f"{100 * self.fraction:.0f} %"]
        if self.stage:
            parts.append(f"{self.stage} {self.step} of {self.steps}")
        parts.append(_time(self.seconds))
        if self.left is not None:
            parts.append(f"about {_time(self.left)} left")
        return f"{name}: {', '.join(parts)}"


def _time(seconds):
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def progress(
    view: collections.abc.Callable[[Progress], object] | str | None = None,
    *,
    every: float | None = None,
) -> collections.abc.Iterator[None]:
    """Shows the progress of the calls in a ``with`` block.

    Only calls that take longer than ``every`` are shown. JAX returns before a call is done, so wait
    for the results inside the block, with `jax.block_until_ready`. With several processes, the one
    that has the call's first rank shows it. The environment variable ``JAXMG_PROGRESS=1`` (or
    ``bar``) does the same for a whole program.

    Args:
        view: None prints lines on standard error. ``"bar"`` draws a bar with tqdm or rich. A
            function is called with a `Progress`, on another thread, while calls run and once when a
            call ends. If it raises, the exception is printed, the function is not called again,
            and the call goes on. The end of the block waits at most a second for it.
        every: seconds between two reports of a call; default 5 for lines, 0.5 for others.

    Raises:
        ImportError: ``view`` is ``"bar"``, and neither tqdm nor rich is installed.
        ValueError: ``view`` is another text, or ``every`` is negative.
    """
    viewer = _viewer(view, every)
    try:
        _watcher.add(viewer)
        yield
    finally:
        _watcher.remove(viewer)


def attach(plugin, platform):
    """Makes the calls of a plugin visible; also starts the viewer that JAXMG_PROGRESS names."""
    if hasattr(plugin, "progress"):
        _watch_as_the_variable_says()
        _watcher.attach(plugin, platform)


def _watch_as_the_variable_says():
    text = os.environ.get(VARIABLE, "")
    if text in ("", "0") or _watcher.from_variable:
        return
    _watcher.from_variable = True
    if text not in ("1", "bar"):
        _write(
            f"jaxmg: the environment variable {VARIABLE} must be 0, 1 (lines) or bar; "
            f"got {text!r}\n"
        )
        return
    try:
        viewer = _viewer("bar" if text == "bar" else None, None)
    except ImportError:
        viewer = _viewer(None, None)
    try:
        _watcher.add(viewer)
    except RuntimeError as error:
        _write(f"jaxmg: no progress is shown: {error}\n")


def _viewer(view, every):
    if every is not None and not every >= 0:
        raise ValueError(f"every must be at least 0 seconds; got {every!r}")
    if view is None:
        return _Viewer(_print, _EVERY_LINE if every is None else every)
    if view == "bar":
        return _Viewer(_bars(), _EVERY if every is None else every)
    if not callable(view):
        raise ValueError(f"view must be None, 'bar' or a function; got {view!r}")
    return _Viewer(view, _EVERY if every is None else every)


class _Viewer:
    """Passes the reports of each call to a function, at most one in `every` seconds."""

    def __init__(self, show, every):
        self.every = every
        self._show = show
        self._last = {}  # by call: its seconds at the last report
        self.leaves = False  # after one more look
        self.left = threading.Event()

    def take(self, report):
        key = _key(report)
        last = self._last.get(key)
        if report.ended:
            self._last.pop(key, None)
            due = last is not None
        else:
            due = report.seconds - (last or 0.0) >= self.every
            if due:
                self._last[key] = report.seconds
        if due:
            self._call(report)

    def silence(self):
        """Passes no further report."""
        self._show = None

    def close(self):
        show, self._show = self._show, None
        if isinstance(show, (_Tqdm, _Rich)):
            try:
                show.close()
            except BaseException:
                _write(f"jaxmg: the bar can't be closed:\n{traceback.format_exc()}")

    def _call(self, report):
        show = self._show
        if show is None:
            return
        try:
            show(report)
        except BaseException:  # sys.exit(), too, must not end the thread
            _write(
                "jaxmg: the function that shows progress raised an exception, and is not called "
                f"again:\n{traceback.format_exc()}"
            )
            self.close()


class _Watcher:
    """The thread that looks, while there are viewers. Only this thread calls and closes them."""

    def __init__(self):
        self.from_variable = False
        self._lock = threading.Lock()  # of the lists and of _thread
        self._viewers = []
        self._plugins = []
        self._thread = None
        self._changed = threading.Event()

    def attach(self, plugin, platform):
        with self._lock:
            self._plugins.append((plugin, platform))
            plugin.set_progress(bool(self._viewers))

    def add(self, viewer):
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="jaxmg-progress", daemon=True)
                thread.start()
                self._thread = thread
            self._viewers.append(viewer)
            self._want()
        self._changed.set()

    def remove(self, viewer):
        """Lets the thread look once more and close the viewer."""
        if viewer not in self._viewers:
            return
        viewer.leaves = True
        self._changed.set()
        thread = self._thread
        if thread is threading.current_thread():  # the function of a viewer watches, too
            return
        if thread is None or not viewer.left.wait(_PATIENCE):
            viewer.silence()
            self._drop(viewer)

    def stop(self):
        """Ends the thread, so that it doesn't print while the interpreter shuts down."""
        for viewer in tuple(self._viewers):
            self.remove(viewer)
        thread = self._thread
        if thread is not None:
            thread.join(_PATIENCE)

    def _drop(self, viewer):
        with self._lock:
            if viewer in self._viewers:
                self._viewers.remove(viewer)
            self._want()
        viewer.left.set()

    def _want(self):
        for plugin, _ in self._plugins:
            plugin.set_progress(bool(self._viewers))

    def _look(self, viewers):
        for plugin, platform in tuple(self._plugins):
            for facts in plugin.progress():
                report = _report({**facts, "platform": platform})
                for viewer in viewers:
                    viewer.take(report)

    def _run(self):
        try:
            while True:
                self._changed.clear()
                with self._lock:
                    viewers = tuple(self._viewers)
                    if not viewers:
                        self._thread = None
                        return
                leaving = [viewer for viewer in viewers if viewer.leaves]
                self._look(viewers)
                for viewer in leaving:
                    viewer.close()
                    self._drop(viewer)
                every = min(viewer.every for viewer in viewers)
                if not leaving:
                    self._changed.wait(min(max(every / 4, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        except BaseException:
            with self._lock:
                self._thread = None
            raise


def _report(facts):
    fraction, seconds = facts["fraction"], facts["seconds"]
    known = fraction >= 0 and (bool(facts["stage"]) or facts["ended"])
    left = None
    if known and not facts["ended"] and _SURE <= fraction < 0.99:  # 0.99: work beyond the estimate
        left = seconds * (1 - fraction) / fraction
    return Progress(**{**facts, "fraction": fraction if known else None, "left": left})


def _print(report):
    _write(f"jaxmg: {report}\n")


def _write(text):
    with contextlib.suppress(Exception):  # standard error may be closed
        sys.stderr.write(text)
        sys.stderr.flush()


def _bars():
    for name, kind in (("tqdm.auto", _Tqdm), ("rich.progress", _Rich)):
        try:
            return kind(importlib.import_module(name))
        except ImportError:
            continue
    raise ImportError("progress('bar') needs tqdm or rich; install one of them")


def _key(report):
    return report.platform, report.call


def _title(report):
    return f"{report.routine} n={report.n}" if report.n else report.routine


class _Tqdm:
    """A bar of tqdm for each call."""

    def __init__(self, module):
        self._tqdm = module.tqdm
        self._bars = {}

    def __call__(self, report):
        bar = self._bars.get(_key(report))
        if bar is None:
            form = "{desc}: {percentage:3.0f}%|{bar}| {postfix}"
            bar = self._tqdm(total=1.0, desc=_title(report), bar_format=form)
            self._bars[_key(report)] = bar
        bar.n = report.fraction or 0.0
        bar.set_postfix_str(_of_bar(report), refresh=False)
        bar.refresh()
        if report.ended:
            self._bars.pop(_key(report)).close()

    def close(self):
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()


class _Rich:
    """A task of rich's display for each call."""

    def __init__(self, module):
        self._module = module
        self._display = None
        self._tasks = {}

    def __call__(self, report):
        if self._display is None:
            columns = ("{task.description}", self._module.BarColumn(), "{task.fields[state]}")
            self._display = self._module.Progress(*columns)
            self._display.start()
        task = self._tasks.get(_key(report))
        if task is None:
            task = self._display.add_task(_title(report), total=1.0, state="")
            self._tasks[_key(report)] = task
        self._display.update(task, completed=report.fraction or 0.0, state=_of_bar(report))
        if report.ended:
            del self._tasks[_key(report)]
            if not self._tasks:
                self.close()

    def close(self):
        if self._display is not None:
            self._display.stop()
            self._display = None
            self._tasks.clear()


def _of_bar(report):
    if report.ended:
        return f"{'done' if report.ok else 'failed'}, {_time(report.seconds)}"
    parts = [f"{report.stage} {report.step}/{report.steps}"] if report.stage else []
    parts.append(_time(report.seconds))
    if report.left is not None:
        parts.append(f"{_time(report.left)} left")
    return ", ".join(parts)


def _after_fork():
    """Begins anew in a child of os.fork, which has no thread."""
    global _watcher
    plugins, _watcher = _watcher._plugins, _Watcher()
    _watcher._plugins = plugins


_watcher = _Watcher()
atexit.register(lambda: _watcher.stop())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
