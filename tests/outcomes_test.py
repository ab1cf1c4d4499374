"""The programs that inject failures and faults record the outcomes of a run."""

import argparse
import importlib.util
import json
import pathlib

import pytest


def program(path):
    """Returns a program of this folder as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def inject(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent / "faults")  # for routine_calls
    return program(pathlib.Path(__file__).parent / "faults/inject.py")


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent / "mutants")  # for texts
    return program(pathlib.Path(__file__).parent / "mutants/run.py")


def entry(file):
    (line,) = file.read_text().splitlines()
    found = json.loads(line)
    assert found["date"] and found["machine"] and found["versions"]["python"]
    return found


def test_injected_failures_are_counted_by_case_and_together(inject, tmp_path):
    options = argparse.Namespace(out=tmp_path / "out")
    drivers = [inject.Driver(options, name) for name in ("potrs", "syevd")]
    error = {"failed": 1, "outcome": "RESOURCE_EXHAUSTED", "next": "right", "left": (0, 0)}
    assert drivers[0].judge("one", error)
    assert drivers[1].judge("two", error | {"outcome": "right"})
    drivers[1].said = lambda: "a line"
    assert not drivers[1].judge("three", error | {"left": (2, 0)})
    inject.record(options, drivers, 7.2)
    found = entry(options.out)
    assert found["command"].startswith("python tests/faults/inject.py")
    assert found["injected"] == 3 and found["seconds"] == 7
    assert found["errors"] == found["survived"] == found["wrong"] == found["left behind"] == 1
    assert found["cases"]["potrs"] == dict.fromkeys(inject.COUNTS, 0) | {
        "injected": 1, "errors": 1, "RESOURCE_EXHAUSTED": 1,
    }  # fmt: skip
    assert found["cases"]["syevd"]["wrong"] == 1 and found["cases"]["syevd"]["hangs"] == 0


def test_a_fault_is_recorded_with_what_found_it_or_why_nothing_did(mutants, tmp_path):
    outcomes = [
        ({"what": "a wait less"}, "cc/potrs_test", "found by cc/potrs_test in 3 s"),
        ({"what": "a wait twice", "survives": "it is"}, None, "cc/potrs_test passed in 2 s"),
    ]
    mutants.record(tmp_path / "out", outcomes, 0, 5)
    found = entry(tmp_path / "out")
    assert (found["faults"], found["found"], found["failures"]) == (2, 1, 0)
    assert found["found_by"] == {"a wait less": "cc/potrs_test"}
    said = {"said": "cc/potrs_test passed in 2 s", "reason": "it is"}
    assert found["survived"] == {"a wait twice": said}
