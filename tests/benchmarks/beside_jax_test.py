"""What is drawn and measured beside JAX is what is said."""

import contextlib
import json
import math

import beside_jax
import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)


def test_a_seed_draws_the_same_cells_within_bounds():
    cells = beside_jax.draw("gpu", 60, 7, most_bytes=1e9)
    assert cells == beside_jax.draw("gpu", 60, 7, most_bytes=1e9)
    assert cells != beside_jax.draw("gpu", 60, 8, most_bytes=1e9)
    assert len({cell.routine for cell in cells}) > 8
    assert {len(cell.shape) for cell in cells} == {2, 3}
    for cell in cells:
        assert 1e6 <= cell.bytes <= 1e9
        assert min(cell.shape[-2:]) >= 50
        assert not cell.eager


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_named_cells_have_functions(platform):
    for cell in beside_jax.named(platform):
        assert cell.routine in beside_jax.FAMILIES
        assert cell.operations > 0


def test_a_name_names_its_cell():
    cells = beside_jax.draw("cpu", 40, 7)
    assert [beside_jax.parse(cell.name) for cell in cells] == cells
    options = beside_jax.arguments(["--cell", cells[0].name, cells[1].name])
    assert beside_jax.cells_of(options) == cells[:2]
    with pytest.raises(SystemExit, match="names no cell"):
        beside_jax.parse("qr float64 50 jitted")


@pytest.mark.parametrize("routine", beside_jax.FAMILIES)
def test_both_functions_compute_the_same(routine):
    shape = (6, 4) if beside_jax.FAMILIES[routine].operands == "t" else (5, 5)
    cell = beside_jax.Cell(routine, "float64", shape, eager=True)
    results = []
    for peer in (False, True):
        call, context = beside_jax.call_of(cell, "cpu", 1, peer)
        with context():
            results.append([np.abs(np.asarray(x)) for x in jax.tree.leaves(call())])
    for ours, jaxs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-9, atol=1e-11)


def test_limits():
    assert beside_jax.limit_of("cpu", 1, 1.0) == pytest.approx(1.1001)
    assert beside_jax.limit_of("cpu", 4, 1.0) == pytest.approx(1.2001)
    assert beside_jax.limit_of("gpu", 1, 1.0) == pytest.approx(1.10005)


def test_calls_take_turns_and_medians_count():
    calls = []

    def call_of(name):
        return (lambda: calls.append(name)), contextlib.nullcontext

    seconds = beside_jax.by_turns({name: call_of(name) for name in "ab"}, 3, least=0)
    assert calls == list("aabb") + list("ab") * 3
    assert set(seconds) == {"a", "b"} and all(0 < s < 1 for s in seconds.values())


def test_a_run_goes_on_where_it_stopped(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    words = ["--match", "qr float64 50 x 50", "--devices", "1", "--rounds", "1", "--out", str(out)]
    assert beside_jax.main([*words, "--seconds", "0"]) == []
    assert "left out for time" in capsys.readouterr().out and not out.exists()
    for _ in range(2):
        beside_jax.main(words)
    (record,) = map(json.loads, out.read_text().splitlines())
    assert record["cell"] == "qr float64 50 x 50 jitted" and record["devices"] == 1
    assert record["misses"] == (record["ms"] > record["limit_ms"])
    assert math.isclose(record["limit_ms"], 1.1 * record["jax_ms"] + 0.1)
    assert record["command"].startswith("python benchmarks/beside_jax.py --match")
