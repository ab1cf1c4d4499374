"""Progress of calls: which steps are reported, once per call, in order, and to whom."""

import collections
import contextlib
import functools
import io
import itertools
import os
import re
import sys
import threading
import time
import types

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from processes import run

import jaxmg
from jaxmg._plugin import plugins
from jaxmg._plugin import progress as _progress

_N, _TILE = 480, 8
_SECONDS = 10
_LONGEST = 120  # seconds in which a thread of a busy machine must have looked during some call


@functools.cache
def _matrix(dtype="float64"):
    return cases.positive_definite("well", _N, dtype)


@functools.cache
def _general():
    return np.random.default_rng(0).standard_normal((_N, _N))


_CALLS = {
    "potrs": lambda mesh: jaxmg.potrs(_matrix(), np.ones((_N, 40)), _TILE, mesh),
    "potri": lambda mesh: jaxmg.potri(_matrix(), _TILE, mesh),
    "gesv": lambda mesh: jaxmg.gesv(_general(), np.ones((_N, 40)), _TILE, mesh),
    "getri": lambda mesh: jaxmg.getri(_general(), _TILE, mesh),
    "potrf": lambda mesh: jaxmg.cho_factor(_matrix(), _TILE, mesh).tiles,
    "getrf": lambda mesh: jaxmg.lu_factor(_general(), _TILE, mesh).tiles,
    "geqrf": lambda mesh: jaxmg.geqrf(_general(), _TILE, mesh).tiles,
    "syevd": lambda mesh: jaxmg.syevd(_matrix(), _TILE, mesh),
    "sygvd": lambda mesh: jaxmg.sygvd(_matrix(), _matrix(), _TILE, mesh),
    "inverse of a Cholesky factor": lambda mesh: jaxmg.cho_factor(_matrix(), _TILE, mesh).inv(),
    "inverse of an LU factor": lambda mesh: jaxmg.lu_factor(_general(), _TILE, mesh).inv(),
    "gels": lambda mesh: jaxmg.least_squares(_general(), np.ones((_N, 40)), _TILE, mesh),
    "eigenvalues": lambda mesh: jaxmg.syevd(_matrix(), _TILE, mesh, return_eigenvectors=False),
    "singular values": lambda mesh: jaxmg.linalg.svdvals(cases.shard(_general(), mesh, "r", None)),
    "sygvd by one rank": lambda mesh: jaxmg.sygvd(_matrix(), _matrix(), _TILE, mesh),
}
_STAGES = {
    "potrs": {"factor", "substitute"},
    "potri": {"factor", "invert the factor", "multiply the inverses"},
    "gesv": {"factor", "substitute"},
    "getri": {"factor", "invert L", "invert U"},
    "potrf": {"factor"},
    "getrf": {"factor"},
    "geqrf": {"factor"},
    "syevd": {
        "reduce to a band", "chase bulges", "merge", "apply the bulges' reflectors",
        "apply the band's reflectors",
    },
    "sygvd": {
        "factor", "substitute", "reduce to a band", "chase bulges", "merge",
        "apply the bulges' reflectors", "apply the band's reflectors",
    },
    "inverse of a Cholesky factor": {"factor", "invert the factor", "multiply the inverses"},
    "inverse of an LU factor": {"factor", "invert L", "invert U"},
    "gels": {"factor", "substitute"},
    "eigenvalues": {"reduce to a band", "chase bulges", "merge"},
    "singular values": {"reduce to a band", "chase bulges", "merge"},
    "sygvd by one rank": {"factor", "substitute", "diagonalize"},
}  # fmt: skip


def _watch(call, enough):
    """Returns the reports of calls, by call, until `enough(reports)`, or for some seconds."""
    reports = []
    jax.block_until_ready(call())  # compiles
    start = time.monotonic()
    while time.monotonic() - start < (_SECONDS if reports else _LONGEST):
        with jaxmg.progress(reports.append, every=0):
            jax.block_until_ready(call())
        if enough(reports):
            break
    by_call = collections.defaultdict(list)
    for report in reports:
        by_call[report.call].append(report)
    return by_call


def _tries():
    """Yields until a thread must have looked during some call."""
    start = time.monotonic()
    while time.monotonic() - start < _LONGEST:
        yield


def _stages(reports):
    return {report.stage for report in reports if report.stage and not report.ended}


@pytest.fixture(autouse=True)
def nobody_watches_afterwards():
    yield
    assert not _progress._watcher._viewers


@cases.one_process("the process of the first rank sees it")
@pytest.mark.core("1", "4")
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", _CALLS)
def test_steps_of_a_call_in_order(name, ranks, request):
    """All that is reported is right; nearly all stages are seen in some call."""
    mesh = cases.line(ranks)
    if name == "singular values" and jax.default_backend() != "cpu":
        pytest.skip("GPUs reduce to a band from larger orders on")

    def call():
        return _CALLS[name](mesh)

    def enough(reports):
        seen = _stages(reports)
        return len(seen) >= least and any(r.ended for r in reports)

    # A device alone factors by its library, in one step.
    least = 0 if name == "getrf" and ranks == 1 else min(len(_STAGES[name]), 2)

    if "chase bulges" in _STAGES[name]:
        cases.set_eigensolver("all")
        request.addfinalizer(lambda: cases.set_eigensolver("auto"))
    shares = name in ("gels", "singular values")
    with cases.by_all_ranks() if shares else contextlib.nullcontext():
        by_call = _watch(call, enough)
    assert by_call
    # For singular values a rank's rows are padded to a multiple of the band's width.
    n = 512 if name == "singular values" and ranks > 1 else _N
    for reports in by_call.values():
        assert len({r.routine for r in reports}) == 1
        assert {(r.n, r.devices) for r in reports} == {(n, ranks)}
        assert [r.ended for r in reports[:-1]] == [False] * (len(reports) - 1)
        assert reports[-1].ended and reports[-1].ok and reports[-1].fraction == 1
        assert _stages(reports) <= _STAGES[name]
        assert all(0 <= r.step <= r.steps for r in reports)
        seconds = [r.seconds for r in reports]
        assert seconds == sorted(seconds)
        fractions = [r.fraction for r in reports if r.fraction is not None]
        assert fractions == sorted(fractions)
        for report in reports:
            assert report.left is None or report.left >= 0


@cases.one_process("the process of the first rank sees it")
@pytest.mark.parametrize("ranks", [1, 4])
def test_steps_of_one_stage_count_up(ranks):
    mesh = cases.line(ranks)
    by_call = _watch(lambda: _CALLS["getrf"](mesh), lambda reports: len(reports) > 10)
    for reports in by_call.values():
        steps = [r.step for r in reports if r.stage == "factor" and not r.ended]
        count = 1 if ranks == 1 else _N // _TILE  # a device alone factors by its library
        assert steps == sorted(steps) and {r.steps for r in reports if r.stage} <= {count}


@pytest.mark.extended
@cases.one_process("the process of the first rank sees it")
@pytest.mark.parametrize("ranks", [1, 4])
def test_products_and_polar_decompositions(ranks):
    mesh = cases.line(ranks)
    a = cases.shard(_general(), mesh, "r", None)
    with cases.by_all_ranks():  # LAPACK on one CPU device multiplies nothing here
        seen = _watch(lambda: jaxmg.linalg.svd(a), lambda reports: "multiply" in _stages(reports))
    assert "multiply" in _stages(itertools.chain.from_iterable(seen.values()))
    for reports in seen.values():
        fractions = [r.fraction for r in reports if r.fraction is not None]
        assert fractions == sorted(fractions) and max(fractions, default=0) <= 1


@cases.one_process("the process of the first rank sees it")
def test_groups_report_once():
    """Each device solves a whole matrix; the first group's call is reported."""
    cases.devices(4)
    mesh = jax.make_mesh((2, 2), ("g", "r"))
    batch = np.stack([_matrix()] * 2)
    a = jax.device_put(batch, jax.NamedSharding(mesh, P("g", "r", None)))

    def solve(a):
        return jaxmg.potrs_shardmap_ctx(a[0], jnp.ones((_N, 8)), _TILE, in_specs=P("r", None))[0]

    try:
        call = jax.jit(
            jax.shard_map(solve, mesh=mesh, in_specs=P("g", "r"), out_specs=P("g"), check_vma=False)
        )
    except (AttributeError, TypeError):
        pytest.skip("an older shard_map")
    by_call = _watch(lambda: call(a), lambda reports: len(reports) > 4)
    assert all(sum(r.ended for r in reports) == 1 for reports in by_call.values())


@cases.one_process("the process of the first rank sees it")
def test_lines(capfd):
    mesh = cases.line(2)
    for _ in _tries():
        with jaxmg.progress(every=0):
            jax.block_until_ready(_CALLS["potrs"](mesh))
        text = capfd.readouterr().err
        if "done in" in text and " of 60, " in text:
            break
    head = f"jaxmg: potrs, n = {_N}, 2 devices: "
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith(head) for line in lines)
    assert re.search(r": done in \d+\.\d s$", lines[-1])
    assert any(
        re.search(r": \d+ %, (factor|substitute) \d+ of 60, \d+\.\d s(, about .* left)?$", x)
        for x in lines
    )


def test_short_calls_are_not_shown(capfd):
    with jaxmg.progress():
        jax.block_until_ready(jaxmg.potrs(_matrix(), np.ones(_N), mesh=cases.line(2)))
    assert "jaxmg: potrs" not in capfd.readouterr().err


@cases.one_process("the process of the first rank sees it")
def test_an_exception_in_the_function_is_printed_once(capfd):
    called = []

    def fails(report):
        called.append(report)
        raise RuntimeError("a mistake in the viewer")

    for _ in _tries():
        with jaxmg.progress(fails, every=0):
            a, b = _matrix(), np.ones(_N)
            x = jaxmg.potrs(a, b, _TILE, cases.line(2))
            np.testing.assert_allclose(a @ np.asarray(x), b, rtol=1e-8)
        if called:
            break
    text = capfd.readouterr().err
    assert len(called) == 1 and text.count("RuntimeError: a mistake") == 1
    assert "the function that shows progress raised an exception" in text


def test_nobody_watches_unless_asked():
    jax.block_until_ready(jaxmg.potrs(_matrix(), np.ones(_N), _TILE, cases.line(2)))
    assert plugins.load(jax.devices()[0].platform).progress() == []
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxmg-progress")]


def test_the_thread_ends_and_is_a_daemon():
    with jaxmg.progress(lambda report: None):
        (thread,) = (t for t in threading.enumerate() if t.name.startswith("jaxmg-progress"))
        assert thread.daemon
        with jaxmg.progress(lambda report: None):  # both share it
            assert sum(t.name.startswith("jaxmg-progress") for t in threading.enumerate()) == 1
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("options", [{"view": "bars"}, {"view": 3}, {"every": -1}])
def test_invalid_arguments(options):
    with pytest.raises(ValueError), jaxmg.progress(**options):
        pass


def _plugin():
    return types.SimpleNamespace(set_progress=lambda wanted: None, progress=list)


def test_a_variable_that_is_wrong_stops_nothing(monkeypatch, capfd):
    monkeypatch.setenv("JAXMG_PROGRESS", "yes")
    monkeypatch.setattr(_progress, "_watcher", _progress._Watcher())
    for _ in range(2):
        _progress.attach(_plugin(), "cpu")
    text = capfd.readouterr().err
    assert text.count("JAXMG_PROGRESS must be 0, 1 (lines) or bar; got 'yes'") == 1


def _facts(call=1, **changes):
    facts = dict(
        call=call, routine="gesv", n=64, devices=2, stage="", step=0, steps=0, fraction=-1.0,
        seconds=30.0, ended=False, ok=True,
    )  # fmt: skip
    return facts | changes


@pytest.fixture
def told(monkeypatch):
    """Returns a list of facts, which a plugin tells at the next look."""
    facts = []

    def take():
        taken = facts[:]
        facts.clear()
        return taken

    plugin = _plugin()
    plugin.progress = take
    monkeypatch.setattr(_progress, "_watcher", _progress._Watcher())
    _progress.attach(plugin, "cpu")
    return facts


def _wait(true):
    end = time.monotonic() + _SECONDS
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


def test_a_function_that_never_returns_holds_nobody_up(told):
    called, end = [], threading.Event()

    def hangs(report):
        called.append(report)
        end.wait()

    start = time.monotonic()
    with jaxmg.progress(hangs, every=0):
        told += [_facts(1), _facts(2)]
        _wait(lambda: called)
    assert time.monotonic() - start < _SECONDS / 2
    thread = _progress._watcher._thread
    end.set()
    thread.join(_SECONDS)
    assert len(called) == 1 and not _progress._watcher._viewers


def test_the_last_report_is_on_the_thread_too(told):
    threads = []
    with jaxmg.progress(lambda report: threads.append(threading.current_thread()), every=0):
        told.append(_facts())
    assert [thread.name for thread in threads] == ["jaxmg-progress"]


@pytest.mark.parametrize("exception", [SystemExit, KeyboardInterrupt])
def test_other_viewers_go_on_after_an_exception(exception, told, capfd):
    def fails(report):
        raise exception("a mistake")

    seen = []
    with jaxmg.progress(fails, every=0), jaxmg.progress(seen.append, every=0):
        for call in (1, 2):
            told.append(_facts(call))
            _wait(lambda call=call: len(seen) == call)
    assert capfd.readouterr().err.count("raised an exception") == 1


def test_ctrl_c_while_a_block_ends(told, monkeypatch):
    class Left(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    viewer = _progress._viewer(lambda report: None, None)
    viewer.left = Left()
    monkeypatch.setattr(_progress, "_viewer", lambda view, every: viewer)
    with pytest.raises(KeyboardInterrupt), jaxmg.progress():
        pass
    _wait(lambda: not _progress._watcher._viewers)


def test_no_thread(told, monkeypatch, capfd):
    def fails(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="new thread"), jaxmg.progress():
            pass
        patch.setenv("JAXMG_PROGRESS", "1")
        _progress.attach(_plugin(), "cpu")
        assert "no progress is shown: can't start new thread" in capfd.readouterr().err
    seen = []
    with jaxmg.progress(seen.append, every=0):
        told.append(_facts())
    assert len(seen) == 1


def test_a_bar_that_cannot_be_closed(told, monkeypatch, capfd):
    class Broken(_progress._Tqdm):
        def close(self):
            raise OSError("a mistake")

    monkeypatch.setattr(_progress, "_bars", lambda: Broken(types.SimpleNamespace(tqdm=None)))
    with jaxmg.progress("bar"):
        pass
    assert "a mistake" in capfd.readouterr().err


def _report(**changes):
    facts = dict(
        platform="cpu", call=3, routine="gesv", n=64, devices=2, stage="factor", step=1, steps=4,
        fraction=0.25, seconds=30.0, left=90.0, ended=False, ok=True,
    )  # fmt: skip
    return jaxmg.Progress(**{**facts, **changes})


def test_text_of_a_report():
    assert str(_report()) == "gesv, n = 64, 2 devices: 25 %, factor 1 of 4, 30 s, about 90 s left"
    assert str(_report(fraction=None, stage="", left=None)) == "gesv, n = 64, 2 devices: 30 s"
    assert str(_report(n=0, devices=1, ended=True)) == "gesv, 1 device: done in 30 s"
    ended = _report(ended=True, ok=False, seconds=3 * 3600.0)
    assert str(ended) == "gesv, n = 64, 2 devices: failed after 3.0 h"


class _Bar(io.StringIO):
    made: list = []  # noqa: RUF012

    def __init__(self, **options):
        super().__init__()
        self.options, self.states, self.n = options, [], 0
        _Bar.made.append(self)

    def set_postfix_str(self, text, refresh):
        self.text = text

    def refresh(self):
        self.states.append((self.n, self.text))


def test_a_bar_of_tqdm(monkeypatch):
    _Bar.made.clear()
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    module = types.ModuleType("tqdm.auto")
    module.tqdm = _Bar
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    show = _progress._bars()
    show(_report())
    show(_report(platform="gpu"))
    show(_report(ended=True, fraction=1.0))
    bar, other = _Bar.made
    assert not other.closed
    assert bar.options["desc"] == "gesv n=64" and bar.closed
    assert bar.states == [(0.25, "factor 1/4, 30 s, 90 s left"), (1.0, "done, 30 s")]


def test_a_bar_of_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    events = []

    class Display:
        def __init__(self, *columns):
            events.append("made")

        def start(self):
            events.append("start")

        def stop(self):
            events.append("stop")

        def add_task(self, title, **options):
            events.append(title)
            return 7

        def update(self, task, **state):
            events.append((task, state["completed"], state["state"]))

    module = types.ModuleType("rich.progress")
    module.Progress, module.BarColumn = Display, lambda: "bar"
    monkeypatch.setitem(sys.modules, "rich", types.ModuleType("rich"))
    monkeypatch.setitem(sys.modules, "rich.progress", module)
    show = _progress._bars()
    show(_report())
    show(_report(ended=True, fraction=1.0))
    assert events == [
        "made", "start", "gesv n=64", (7, 0.25, "factor 1/4, 30 s, 90 s left"),
        (7, 1.0, "done, 30 s"), "stop",
    ]  # fmt: skip
    viewer = _progress._viewer("bar", 0)
    viewer.take(_report())
    Display.update = None  # so that it raises
    viewer.take(_report())
    assert events[-1] == "stop"


def test_no_bar(monkeypatch):
    for name in ("tqdm", "tqdm.auto", "rich", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="tqdm or rich"), jaxmg.progress("bar"):
        pass


def test_only_displays_of_ours_are_closed(told):
    class Users:
        def __call__(self, report):
            pass

        def close(self):
            raise AssertionError

    with jaxmg.progress(Users()):
        pass


_FORKS = """
import os, sys, threading, types
from jaxmg._plugin import progress as _progress
facts = dict(call=1, routine="gesv", n=1, devices=1, stage="", step=0, steps=0, fraction=-1.0,
             seconds=9.0, ended=False, ok=True)
plugin = types.SimpleNamespace(set_progress=lambda wanted: None, progress=lambda: [facts])
_progress.attach(plugin, "cpu")
with _progress.progress(lambda report: None):
    child = os.fork()
    if child == 0:
        seen = []
        with _progress.progress(seen.append, every=0):
            pass
        os._exit(0 if seen else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@cases.one_process("it starts processes itself")
def test_a_child_of_fork_has_its_own_thread():
    result = run("-c", _FORKS)
    assert result.returncode == 0, result.stderr


_PROGRAM = """
import jax, numpy as np, jaxmg
from jaxmg._plugin import progress as _progress
from jax.experimental import multihost_utils
_progress._EVERY_LINE = 0.0
if {processes} > 1:
    jax.distributed.initialize()
mesh = jax.make_mesh((len(jax.devices()),), ("r",))
n = 480
a = np.eye(n, dtype="float32") * n + 1
for _ in range(20):
    x = jaxmg.potrs(a, np.ones((n, 40), "float32"), 8, mesh)
    jax.block_until_ready(x)
"""


@pytest.mark.slow
@cases.one_process("it starts processes itself")
@pytest.mark.parametrize("value", ["", "0", "1", "bar"])
def test_the_variable(value):
    cpu = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    result = run("-c", _PROGRAM.format(processes=1), JAXMG_PROGRESS=value, **cpu)
    assert result.returncode == 0, result.stderr
    if value != "bar":  # which takes what is installed
        assert ("jaxmg: potrs, n = 480, 2 devices: " in result.stderr) == (value == "1")


@pytest.mark.slow
@cases.one_process("it starts processes itself")
def test_of_two_processes_one_prints(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM.format(processes=2))
    result = run(
        "-m", "jaxmg.launch", "-n", "2", "-d", "2", str(script), JAX_PLATFORMS="cpu", XLA_FLAGS="",
        JAXMG_PROGRESS="1",
    )  # fmt: skip
    text = result.stdout + result.stderr
    assert result.returncode == 0, text
    lines = [line for line in text.split("\n") if "jaxmg: potrs, n = 480, 4 devices: " in line]
    assert lines and len({line.split("jaxmg:")[0] for line in lines}) == 1
