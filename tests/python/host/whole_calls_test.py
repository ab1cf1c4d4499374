"""The progress of whole calls on matrices in host memory."""

import time

import cases
import host_cases
import jax
import numpy as np
import pytest

import jaxmg
from jaxmg._host import block_columns, whole_calls

pytestmark = [
    cases.one_process("the process of the first rank reports"),
    pytest.mark.usefixtures("small_devices"),
]
small_devices = host_cases.small_devices
_N = 40


def watched(call):
    """Returns the reports of whole calls in ``call``."""
    seen = []
    with jaxmg.progress(seen.append, every=0):
        time.sleep(0.02)  # for the thread that looks
        call()
    return [report for report in seen if report.call < 0]


@pytest.fixture
def slow(monkeypatch):
    """Lets the thread that looks see each step."""
    advance = whole_calls.advance

    def slowly(*state):
        advance(*state)
        time.sleep(0.03)

    monkeypatch.setattr(whole_calls, "advance", slowly)


def likelihood(scale):
    made, _ = host_cases.tiles(_N, "float64")
    made = jaxmg.Tiles(made.function, made.shape, made.dtype, scale, 0.5)
    memory = host_cases.budget(_N, "float64", 2, 3)
    return jaxmg.gaussian_log_likelihood(made, np.ones(_N), mesh=cases.line(2), memory=memory)


def solved(function, whole=False):
    a, b = host_cases.problem(_N, "float64")
    memory = host_cases.budget(_N, "float64", 2, 3, whole=whole)
    return getattr(jaxmg, function)(a, b, mesh=cases.line(2), memory=memory)


@pytest.mark.parametrize(
    "name, call, stages",
    [
        ("potrs", lambda: solved("potrs"), ["factor", "substitute"]),
        pytest.param(
            "gesv", lambda: solved("gesv", True), ["factor", "substitute"],
            marks=pytest.mark.extended,
        ),
        pytest.param(
            "gaussian_log_likelihood", lambda: jax.grad(likelihood)(1.5),
            ["factor", "substitute", "invert"], marks=pytest.mark.extended,
        ),
    ],
)  # fmt: skip
def test_stages(name, call, stages, slow):
    call()
    reports = watched(call)
    assert {report.routine for report in reports} == {name}
    assert reports[-1].ended and reports[-1].ok and reports[-1].fraction == 1
    assert {report.call for report in reports} == {reports[-1].call}
    seen = dict.fromkeys(report.stage for report in reports)
    assert [stage for stage in seen if stage] == stages
    fractions = [report.fraction for report in reports if report.fraction is not None]
    assert fractions == sorted(fractions) and 0 <= fractions[0] < 0.5
    assert all(report.n == _N and report.devices == 2 for report in reports)


def test_a_call_that_fails(monkeypatch):
    """Nothing is kept of it, watched or not."""
    operand = block_columns.operand

    def wrong(handle, *where):
        time.sleep(0.05)
        return operand(10**6, *where)

    def fails():
        with pytest.raises(Exception, match="there is no matrix"):
            solved("potrs")

    monkeypatch.setattr(block_columns, "operand", wrong)
    report = watched(fails)[-1]
    assert report.ended and not report.ok and report.routine == "potrs"
    fails()
    assert whole_calls._source("cpu").progress() == []


def test_shares():
    made = block_columns.Geometry(None, 100, 1, "float64", 30, 10, 0)
    for share in (whole_calls.of_cholesky, whole_calls.of_lu):
        parts = [share(made, j) for j in range(made.blocks)]
        assert parts == sorted(parts) and parts[-1] == 1 and 0 < parts[0] < 0.3
    parts = [whole_calls.of_inverse(made, j) for j in reversed(range(made.blocks))]
    assert parts == sorted(parts) and parts[-1] == 1
