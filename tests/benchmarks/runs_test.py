"""What the benchmarks measure and record, in processes that they start: CI's step `benchmarks`."""

import json
import os
import subprocess
import sys

import batch
import batches
import batches_peers
import decompositions
import digests
import eigen_accuracy
import gradient
import host_memory
import host_memory_peers
import jax
import numpy as np
import plot
import problems
import pytest
import refine
import run
import trees
import two_builds


def measure(monkeypatch, tmp_path, words):
    """(exit code, records) of run.py with these words."""
    out = tmp_path / "out.jsonl"
    argv = ["run.py", "--out", str(out), *words.split()]
    monkeypatch.setattr("sys.argv", argv)
    code = run.main(run.batches_of(argv))
    return code, [json.loads(line) for line in out.read_text().splitlines()]


def test_batches_share_a_process_and_a_failure_loses_nothing_else(monkeypatch, tmp_path, capfd):
    code, records = measure(
        monkeypatch,
        tmp_path,
        "--shared --warmup 0 --repeats 2 --ranks 2 --n 64 --donate --gemm --repeat-check "
        "+ --backend cusolvermg native jax --compare --matrix ill "
        "+ --routine potri --dtype complex64 --backend native --repeats 0 --precision tf32 "
        f"--trace {tmp_path}",
    )
    assert code == 1  # there is no cuSOLVERMg on CPU devices
    assert "cusolvermg" in capfd.readouterr().err
    native, jaxs, inverse = records
    assert (native["routine"], native["backend"], native["ranks"]) == ("potrs", "native", 2)
    assert (native["matrix"], native["precision"], len(native["runs"])) == ("ill", None, 2)
    assert jaxs["backend"] == "jax" and jaxs["ranks"] == 1
    assert (inverse["dtype"], inverse["precision"], inverse["cold"]) == ("complex64", "tf32", True)
    for record in records:
        assert record["same_bits"] is True
        assert record["gemm_tflops"] > 0
        assert record["gemm_fraction"] == record["tflops"] / record["gemm_tflops"]
        assert 0 <= record["backward_error"] < 1e-5
        assert record["command"].startswith("python benchmarks/run.py --shared --warmup 0")
    (timeline,) = tmp_path.glob("potri-*.json")
    assert '"cat":"potri"' in timeline.read_text()
    assert 0 < inverse["ranges"]["potrf"] < inverse["traced_seconds"]
    assert "ranges" not in native
    assert plot.draw(records[:2], "potrs, float64")


def test_a_solution_from_a_factor_that_was_made_before(monkeypatch, tmp_path):
    code, records = measure(
        monkeypatch,
        tmp_path,
        "--shared --warmup 0 --repeats 2 --n 64 --nrhs 3 --routine cho_solve --backend jax scipy "
        "--dtype float64 complex64",
    )
    assert code == 0 and len(records) == 4
    for record in records:
        many = 4 if record["dtype"] == "complex64" else 1
        seconds = record["seconds"]
        assert record["tflops"] == pytest.approx(many * 2 * 64**2 * 3 / seconds / 1e12)
        assert record["factor_gbps"] == pytest.approx(2 * 8 * 65 * 64 / 2 / seconds / 1e9)
        assert 0 < record["backward_error"] < 1e-5


def test_a_factorization_beside_others(monkeypatch, tmp_path):
    code, records = measure(
        monkeypatch,
        tmp_path,
        "--shared --warmup 0 --repeats 2 --n 64 --routine lu_factor --backend native jax scipy "
        "--dtype float64 complex64 --repeat-check",
    )
    assert code == 0 and len(records) == 6
    for record in records:
        many = 4 if record["dtype"] == "complex64" else 1
        flops = many * 2 / 3 * 64**3
        assert record["tflops"] == pytest.approx(flops / record["seconds"] / 1e12)
        assert record["same_bits"] is True
        assert 0 < record["backward_error"] < (1e-5 if many == 4 else 1e-13)


def digest_file(path, words=()):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, digests.__file__, "--out", str(path), "--n", "12", *words]
    subprocess.run(command, env=environment, check=True)
    return path


def test_digests_are_those_of_the_results(tmp_path, capsys):
    names = [*problems.ROUTINES, "sygvd", "cyclic_1d", "cho_factor", "solve_triangular"]
    words = ["--routine", *names]
    old = digests.read(digest_file(tmp_path / "old", words))
    assert not any("error" in entry for entry in old.values())
    words[1:] = problems.ROUTINES
    parts = [digests.read(digest_file(tmp_path / i, [*words, "--share", f"{i}/2"])) for i in "12"]
    assert parts[0].keys().isdisjoint(parts[1])
    new = {case: old[case] for case in old if case[0] not in problems.ROUTINES}
    new |= parts[0] | parts[1]
    assert digests.compare(old, new) == 0
    assert {case[0] for case in old} == set(names)
    assert {case[1] for case in old} == set(problems.DTYPES)
    assert {case[3] for case in old} == set(digests.RANKS)
    assert {"tf32", None} == {case[6] for case in old}
    assert len({tuple(entry.values()) for entry in old.values()}) > len(old) / 3
    case = next(case for case in old if case[:3] == ("syevd", "float64", 12))
    assert digests.compare(old, new | {case: new[case] | {"v": "0"}}) == 1
    assert "syevd dtype=float64 n=12" in (said := capsys.readouterr().out) and "other v" in said
    del new[case]
    assert digests.compare(old, new) == 1
    assert digests.compare({}, {}) == 1


def test_a_batch_is_as_fast_as_is_said(tmp_path):
    out = tmp_path / "out.jsonl"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = "--platform cpu --n 13 --batch 4 --ranks 1 2 --dtype complex64 --out".split()
    command = [sys.executable, batch.__file__, *words, str(out)]
    assert subprocess.run(command, env=environment).returncode == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["kind"], r["ranks"]) for r in records] == [("jax", 1), ("jaxmg", 1), ("jaxmg", 2)]
    assert all(0 < record["backward_error"] < 1e-5 for record in records)
    for record in records:
        assert record["speed"] == pytest.approx(records[1]["seconds"] / record["seconds"])
    assert subprocess.run([*command, "--least", "1e6"], env=environment).returncode == 1


def test_ways_to_compute_a_batch(tmp_path):
    words = "--routine qr polar --n 6 --bytes 600 --dtype float64 --way jax blocked qdwh"
    code, said, found = program(batches, tmp_path / "out.jsonl", words)
    assert code == 0 and "!" not in said and "Error" not in said
    assert [(r["routine"], r["way"], r["batch"]) for r in found] == [
        ("qr", "blocked", 2), ("qr", "jax", 2), ("polar", "qdwh", 1), ("polar", "jax", 1),
    ]  # fmt: skip
    assert all(0 < r["error"] < 1e-14 and r["seconds"] > 0 for r in found)


def test_matrices_in_host_memory(tmp_path):
    words = "--ranks 2 --pool 3e6 --runs 1 --columns 20"
    words += " --row square:999 square:400:float64:1e6 tiles:300:float32:2e5"
    words += " factor:300:float64:4e5 core:200 tall:3000:float64:2e5 likelihood:200:float64:4e5"
    words += " general:400:float64:1e6 lu:300:float64:6e5 lucore:200"
    code, said, found = program(host_memory, tmp_path / "out.jsonl", words)
    assert code == 1 and "square n=999: MemoryError" in said  # the others are computed
    assert [(r["kind"], r["n"]) for r in found] == [
        ("square", 400), ("tiles", 300), ("factor", 300), ("core", 200), ("tall", 3000),
        ("likelihood", 200), ("general", 400), ("lu", 300), ("lucore", 200),
    ]  # fmt: skip
    for record in found:
        name = "identity" if record["kind"] == "likelihood" else "backward error"
        assert 0 < record[name] < 1e-6 and record["seconds"] > 0
        if record["kind"] not in ("core", "tall", "lucore"):
            assert record["blocks"] > 1 and record["device bytes"] <= record["memory"]
    assert found[2]["solve"] > 0 and found[7]["transposed"] > 0
    value, of_p, _ = host_memory_peers.by_scipy(200)
    np.testing.assert_allclose(found[5]["log-likelihood"], value, rtol=1e-12)
    np.testing.assert_allclose(found[5]["gradient"], of_p, rtol=1e-9)


def test_libraries_beside_host_memory(tmp_path):
    out = tmp_path / "out.jsonl"
    words = f"peers --n 120 --scipy 60 --libraries jax --out {out}".split()
    assert host_memory_peers.main(host_memory_peers.arguments(words)) == 0
    scipy, jaxs = map(json.loads, out.read_text().splitlines())
    assert scipy["scaled"] == 8 * scipy["seconds"] > 0 and jaxs["library"] == "jax"
    value = float(jaxs["said"].split("log-likelihood ")[1])
    np.testing.assert_allclose(value, host_memory_peers.by_scipy(120)[0], rtol=1e-7)


class Numpy(batches_peers.Library):
    """In the place of a library that has a GPU."""

    name = None

    def __init__(self):
        super().__init__(np)

    def call(self, routine):
        if routine == "cholesky":
            return lambda a: np.linalg.cholesky(a) * 1.01
        return np.linalg.inv if routine == "potri" else super().call(routine)

    def normal(self, shape, dtype):
        random = np.random.default_rng(0)
        a = random.standard_normal(shape)
        if np.dtype(dtype).kind == "c":
            a = (a + 1j * random.standard_normal(shape)) / 2**0.5
        return a.astype(dtype)

    def eye(self, n, dtype):
        return np.eye(n, dtype=dtype)

    def host(self, a):
        return a

    def wait(self):
        pass


def test_batches_by_other_libraries(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(batches_peers, "LIBRARIES", {"numpy": Numpy})
    out = tmp_path / "out.jsonl"
    words = "--n 6 --bytes 2500 --dtype float32 complex64 --routine"

    def measure(routines):
        argv = ["batches_peers.py", *words.split(), *routines.split(), "--out", str(out)]
        monkeypatch.setattr("sys.argv", argv)
        return batches_peers.main()

    assert measure("qr solve potri eigh svd potrs") == 0  # there is no potrs
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["routine"], r["batch"]) for r in records] == [
        (name, (17, 8)[i] // (4 if name in ("eigh", "svd") else 1))
        for i in range(2)
        for name in ("qr", "solve", "potri", "eigh", "svd")
    ]
    assert all(0 <= r["error"] < 1e-5 and r["seconds"] > 0 and r["way"] == "numpy" for r in records)
    assert measure("cholesky") == 1 and "!" in capsys.readouterr().out


def test_what_optimizers_compute_of_a_tree(tmp_path):
    words = "--step muon soap --layers 1 --width 16 --ranks 1 2 --repeats 1 --least 1e6"
    code, said, found = program(trees, tmp_path / "out.jsonl", words)
    assert code == 1 and said.count("SLOW") == 2  # of two devices, which aren't a million
    assert [(r["by"], r["ranks"]) for r in found] == 2 * [("jax", 1), ("jaxmg", 1), ("jaxmg", 2)]
    assert [r["matrices"] for r in found] == 3 * [11] + 3 * [22]
    for one, two in (found[1:3], found[4:6]):
        assert two["speed"] == pytest.approx(one["seconds"] / two["seconds"])
        assert one["balance"] == 1 <= two["balance"] < 1.3
    assert all(record["error"] < 1e-3 for record in found)


def program(module, out, words):
    """(exit code, what it prints, records) of a program that runs on CPU devices."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, module.__file__, *f"--platform cpu --out {out} {words}".split()]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, [json.loads(line) for line in out.read_text().splitlines()]


def test_a_gradient_beside_what_it_is_made_of(tmp_path):
    words = "--n 32 64 --ranks 2 --repeats 2 --dtype float64"
    code, said, found = program(gradient, tmp_path / "out.jsonl", words)
    assert code == 0 and "WRONG" not in said
    assert [record["n"] for record in found] == [32, 64]
    for record in found:
        seconds = record["seconds"]
        assert set(seconds) == set(gradient.CASES)
        parts = seconds["potrs"] + seconds["potri"]
        assert record["ratio"] == pytest.approx(seconds["value and gradient"] / parts)
        assert record["algebra"] < record["ratio"]
        assert 0 <= record["difference"] < 1e-5
    code, said, _ = program(gradient, tmp_path / "slow.jsonl", "--n 32 --ranks 1 --most 1e-6")
    assert code == 1 and "SLOW" in said


def test_refined_solutions_by_condition(tmp_path):
    words = "--n 64 --ranks 2 --repeats 1 --refine float32 tf32 --condition 1e3 1e13"
    code, said, found = program(refine, tmp_path / "out.jsonl", words)
    assert code == 0 and "WORSE" not in said
    cases = [(record["condition"], record["refine"]) for record in found]
    assert cases == [(c, mode) for c in (1e3, 1e13) for mode in (None, "float32", "tf32")]
    for record in found:
        assert record["status"] == 0 and 0 < record["backward_error"] < 1e-15
        if record["refine"] is None:
            assert record["iterations"] is None and record["speed"] == 1
        else:
            assert (record["iterations"] >= 0) == (record["condition"] == 1e3)


def test_a_refined_solution_that_is_worse_is_found():
    exact, plain, bad = ({"backward_error": error} for error in (1e-16, 2e-17, 1e-14))
    assert not refine.is_worse({None: plain, "tf32": exact}, "tf32", "float64")
    assert refine.is_worse({None: plain, "tf32": bad}, "tf32", "float64")
    assert refine.is_worse({None: plain, "tf32": {"backward_error": None}}, "tf32", "float64")
    nan = {"backward_error": float("nan")}
    assert refine.is_worse({None: plain, "tf32": nan}, "tf32", "float64")


def test_eigenvalues_of_hard_matrices_are_exact(tmp_path):
    words = "--n 37 --small 1 2 5 --ranks 2 --dtype complex64"
    code, said, found = program(eigen_accuracy, tmp_path / "out.jsonl", words)
    assert code == 0 and said.endswith("all right\n")
    assert [(r["dtype"], r["n"], r["ranks"]) for r in found] == [
        *((dtype, [1, 2, 5], count) for dtype in eigen_accuracy.SMALL_DTYPES for count in (1, 2)),
        ("complex64", [37], 2),
    ]
    for record in found:
        assert record["errors"].keys() == eigen_accuracy.KINDS.keys()
        assert all(errors["good"] for errors in record["errors"].values())
        assert record["errors"]["random"]["residual"] > 0


def test_eigenvectors_that_are_not_exact_are_found():
    def bad(*errors):
        found = eigen_accuracy.Errors()
        return not found.add(*errors) and found.bad

    assert not bad((9, 9), (0, 0), True)
    assert not bad((20, 9), (7, 0), True)
    assert bad((9, 20), (7, 0), True)
    assert bad((float("nan"), 1), (1, 1), True)
    assert bad((1, 20), (1, float("nan")), True)
    assert bad((1, 1), (1, 1), False)


def test_a_process_that_died_is_started_anew(monkeypatch, tmp_path):
    args = run.arguments("--n 32 --shared".split())
    (case,) = run.combinations(args)
    with run.Worker(case, args) as worker:
        os.kill(worker.process.pid, 9)
        worker.process.wait()
        assert worker.ask("first", case)["backward_error"] < 1e-14
        assert worker.starts == 2
        worker.limit = 1e-9
        assert "no answer" in worker.ask("time", case)["error"]
        assert worker.process.poll() is not None


def test_decompositions_beside_jax(tmp_path):
    out = tmp_path / "out.jsonl"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = "--platform cpu --ranks 2 --repeats 2 --shape 16x16 --function".split()
    names = ("r", "least_squares", "polar")
    command = [sys.executable, decompositions.__file__, *words, *names, "--out", str(out)]
    assert subprocess.run(command, env=environment).returncode == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    cases = [(record["routine"], record["kind"], record["ranks"]) for record in records]
    assert cases == [(name, *kind) for name in names for kind in (("jaxmg", 2), ("jax", 1))]
    assert all(len(record["runs"]) == 2 and record["error"] < 1e-13 for record in records)


@pytest.mark.parametrize("words", [[], ["--turns", "3", "--calls", "1", "--median"]])
def test_two_builds_take_turns(words, capfd):
    folders = [os.pathsep.join(filter(None, sys.path))] * 2
    cases = ["eigh:2x3x3:float64", "bfloat16:1:float32"]
    two_builds.main([*folders, "--labels", "a", "b", *words, "--case", *cases])
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["shape"] for record in found] == [[2, 3, 3], [1]]
    for record in found:
        assert record["labels"] == ["a", "b"]
        each = zip(record["median_ms" if words else "least_ms"], record["first_s"], strict=True)
        assert all(0 < ms < 1e3 * s for ms, s in each)


@pytest.mark.parametrize("name", decompositions.FUNCTIONS)
def test_a_wrong_result_has_an_error(name):
    ours, theirs, error = decompositions.FUNCTIONS[name]
    shape = (9, 9) if name == "solve" else (9, 4)
    operands = np.random.default_rng(0).standard_normal(shape), np.ones(9)
    operands = operands if name in decompositions._WITH_B else operands[:1]
    results = theirs(*operands)
    assert error(*operands, results) < 1e-5
    assert error(*operands, jax.tree.map(lambda x: x * 1.01, results)) > 1e-4


def test_a_picture_has_the_newest_measurement_of_a_case():
    case = {"machine": "4 x NVIDIA H200", "backend": "native", "ranks": 4, "processes": 1}
    runs = [
        {**case, "date": date, "n": n, "seconds": seconds, "tflops": n / seconds}
        for date, n, seconds in (
            ("2026-11-27", 1024, 1.0), ("2026-11-20", 1024, 3.0), ("2026-11-20", 4096, 4.0),
        )
    ]  # fmt: skip
    others = [{**run, "backend": "jax", "cold": True} for run in runs[1:]]
    time, rate = plot.draw([*runs, *others], "potrs, float64").axes
    lines = {line.get_label(): list(line.get_ydata()) for line in rate.lines}
    assert lines == {"jaxmg": [1024.0, 1024.0], "JAX": [1024 / 3, 1024.0]}
    assert (time.get_xscale(), rate.get_yscale()) == ("log", "log")
    (time, _) = plot.draw([*runs, *others], "potrs, float64", match="jaxmg").axes
    assert [text.get_text() for text in time.get_legend().get_texts()] == ["jaxmg"]
