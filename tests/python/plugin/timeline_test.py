"""JAXMG_TRACE: the operations and times of each rank, as trace events in a file."""

import collections
import json
import os

import cases
import jax
import numpy as np
import pytest

import jaxmg
from jaxmg import timeline

_N, _TILE = 64, 8
_TILES = _N // _TILE


def _ranges(path):
    text = path.read_text()
    assert text.startswith("[\n") and text.endswith(",\n")  # later calls append
    events = json.loads(text.rstrip().rstrip(",") + "]")
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    ranges = [event for event in events if event["ph"] == "X"]
    assert names == {f"rank {event['pid']}" for event in ranges}
    return ranges


@pytest.fixture
def traced(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    monkeypatch.setenv("JAXMG_TRACE", str(path))
    return path


@cases.one_process("each records its own ranks")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_potrs_shows_every_step_of_every_rank(traced, ranks):
    a = cases.shard(cases.positive_definite("well", _N, "float64"), cases.line(ranks), "r", None)
    jax.block_until_ready(jaxmg.potrs(a, np.ones(_N), _TILE))
    steps = collections.defaultdict(lambda: collections.defaultdict(list))
    for event in _ranges(traced):
        assert event["cat"] == "potrs" and event["dur"] >= 0
        steps[event["pid"]][event["name"]].append(event["args"]["index"])
    assert sorted(steps) == list(range(ranks))
    for rank, names in steps.items():
        mine = list(range(rank, _TILES, ranks))
        assert names["potrf"] == mine and sorted(names["solve tile"]) == mine
        # An update is named by its last panel; on GPUs it comprises several panels.
        assert names["update"] == sorted(set(names["update"]))
        assert set(names["update"]) <= set(range(_TILES - 1)) and names["update"][-1] == _TILES - 2
    updates = [e for e in _ranges(traced) if e["name"] == "update" and e["pid"] == 0]
    begins = [event["ts"] for event in updates]
    assert begins == sorted(begins)


def test_calls_are_told_apart(traced):
    a = cases.shard(cases.positive_definite("well", _N, "float32"), cases.line(2), "r", None)
    for _ in range(2):
        jax.block_until_ready(jaxmg.potri(a, _TILE))
        jax.block_until_ready(jaxmg.syevd(a, _TILE))
    calls = collections.defaultdict(set)
    for event in _ranges(traced):
        calls[event["args"]["run"], event["args"]["call"]].add(event["cat"])
    assert sorted(map(sorted, calls.values())) == [["potri"], ["potri"], ["syevd"], ["syevd"]]


def test_a_line_that_was_cut_off_stays_alone(traced):
    traced.write_text('[\n{"ph":"X","na')
    jax.block_until_ready(jaxmg.potrs(np.eye(_N), np.ones(_N), _TILE, cases.line(2)))
    cut, *lines = [line for line in traced.read_text().split("\n")[1:] if line]
    assert cut == '{"ph":"X","na' and len(lines) > 2
    assert all(json.loads(line.rstrip(",")) for line in lines)


def test_nothing_is_written_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAXMG_TRACE", raising=False)
    a = cases.positive_definite("well", _N, "float64")
    jax.block_until_ready(jaxmg.potrs(a, np.ones(_N), _TILE, cases.line(2)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["missing folder", "pipe without a reader"])
def test_a_file_that_cannot_be_written_stops_nothing(kind, tmp_path, monkeypatch, capfd):
    """The call succeeds, and each file is reported once."""
    path = tmp_path / "trace.json"
    if kind == "missing folder":
        path = tmp_path / "missing" / "trace.json"
    else:
        os.mkfifo(path)
    monkeypatch.setenv("JAXMG_TRACE", str(path))
    a = cases.positive_definite("well", _N, "float64")
    for _ in range(2):
        x = jaxmg.potrs(a, np.ones(_N), _TILE, cases.line(2))
        np.testing.assert_allclose(a @ np.asarray(x), 1, rtol=1e-10)
    assert capfd.readouterr().err.count("JAXMG_TRACE: can't write") == 1


@cases.one_process("each records its own ranks")
def test_the_command_completes_and_sums_up(traced, tmp_path, capsys):
    a = cases.shard(cases.positive_definite("well", _N, "float64"), cases.line(2), "r", None)
    jax.block_until_ready(jaxmg.potrs(a, np.ones(_N), _TILE))
    jax.block_until_ready(jaxmg.potri(a, _TILE))
    assert timeline.main([str(traced)]) == 0
    out = capsys.readouterr().out.split("\n")
    heads = [line for line in out if line.startswith("call ")]
    assert [line.split()[2] for line in heads] == ["potrs,", "potri,"]
    assert sum(line.startswith("  rank 1: ") for line in out) == 2
    whole = tmp_path / "trace.full.json"
    events = json.loads(whole.read_text())["traceEvents"]
    assert [event for event in events if event["ph"] == "X"] == _ranges(traced)
    assert len(timeline.calls(whole)) == len(timeline.calls(traced)) == 2  # reads both kinds


def test_files_that_processes_shared_or_left_half_written(tmp_path, capsys):
    path = tmp_path / "trace.json"
    event = '{"ph":"X","name":"potrf","ts":1,"dur":2,"pid":0,"tid":0,"args":{"run":1,"call":1}}'
    path.write_text(f"[\n[\n{event},\n{event},\n" + event[:20])
    assert len(timeline.read(path)) == 2
    path.write_bytes(
        f"[\n{event},\n{event[:20]}{event},\n3,\n".encode() + b"\xff\n" + event.encode()
    )
    capsys.readouterr()
    assert len(timeline.read(path)) == 2
    assert "3 of 5 lines are left out" in capsys.readouterr().err


def test_files_of_two_processes(tmp_path, capsys):
    """Equal numbers of calls in them do not make them one call."""
    files = [tmp_path / f"{rank}.json" for rank in range(2)]
    for rank, file in enumerate(files):
        arguments = {"run": 1, "call": 1}
        times = {"ts": 1e9 * rank, "dur": 2e6, "pid": rank, "tid": 0}
        event = {"ph": "X", "name": "potrf", "cat": "potrs", "args": arguments, **times}
        file.write_text(f"[\n{json.dumps(event)},\n")
    assert timeline.main([*map(str, files)]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        "call 0: potrs, 2.0000 s", "  rank 0: potrf 2.0000",
        "call 1: potrs, 2.0000 s", "  rank 1: potrf 2.0000",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["no JSON\n", "3", '{"a": 1}'])
def test_files_that_are_no_traces(text, tmp_path, capsys):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as stop:
        timeline.main([str(path)])
    assert stop.value.code == 2 and str(path) in capsys.readouterr().err


@cases.one_process("each records its own ranks")
def test_a_picture(traced, tmp_path):
    pytest.importorskip("matplotlib")
    a = cases.positive_definite("well", _N, "float64")
    jax.block_until_ready(jaxmg.potrs(a, np.ones(_N), _TILE, cases.line(2)))
    picture = tmp_path / "a.png"
    assert timeline.main([str(traced), "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 1000
