"""The benchmarks' matrices are what they are said to be; the harness records what it is asked."""

import contextlib
import json
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import lu_model
import model
import numpy as np
import peaks
import problems
import pytest
import records
import run
import versions
import workspace

from jaxmg._plugin import plugins

jax.config.update("jax_enable_x64", True)

N = 96
CONDITION = {  # at least, at most
    "dominant": lambda dtype: (1, 1.2),
    "moderate": lambda dtype: (2, 4),
    "ill": lambda dtype: (0.99 * problems.condition(dtype), 1.01 * problems.condition(dtype)),
    "graded": lambda dtype: np.array([0.7, 3]) * problems.condition(dtype),
}


def matrix(xp, dtype, kind, n=N, **rows):
    return np.asarray(problems.matrix(xp, n, dtype, kind=kind, **rows))


@pytest.mark.parametrize("dtype", problems.DTYPES)
@pytest.mark.parametrize("kind", CONDITION)
def test_matrix_is_positive_definite_with_the_condition_that_is_said(kind, dtype):
    a = matrix(np, dtype, kind)
    assert a.dtype == dtype
    assert (a == a.conj().T).all()
    np.linalg.cholesky(a)
    least, most = CONDITION[kind](dtype)
    assert least <= np.linalg.cond(problems.wide(a)) <= most


@pytest.mark.parametrize("dtype", problems.DTYPES)
@pytest.mark.parametrize("kind", problems.KINDS)
def test_devices_make_the_rows_that_the_host_makes(kind, dtype):
    whole = matrix(np, dtype, kind)
    unit = 10 * np.finfo(dtype).eps * abs(whole)
    made = matrix(jnp, dtype, kind)
    assert kind == "uniform" or (made == made.conj().T).all()
    assert (abs(made - whole) <= unit).all()
    assert (abs(matrix(jnp, dtype, kind, first_row=30, rows=7) - whole[30:37]) <= unit[30:37]).all()


@pytest.mark.parametrize("dtype", problems.DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_eigenvalues_that_lie_evenly_over_the_logarithm(n, dtype):
    a = problems.even_matrix(np, problems.even_column(n, 1e4), dtype)
    assert a.dtype == dtype and (a == a.conj().T).all()
    assert (np.diagonal(a) == a[0, 0]).all()
    exact = 1e4 ** -(np.arange(n // 2 + 1) / max(n // 2, 1))
    found = np.linalg.eigvalsh(problems.wide(a))
    unit = np.finfo(dtype).eps
    assert abs(found[:, None] - exact).min(axis=1).max() <= 10 * unit  # each is one of them
    assert abs(found[:, None] - exact).min(axis=0).max() <= 10 * unit  # and all are there
    made = problems.even_matrix(jnp, jnp.asarray(problems.even_column(n, 1e4)), dtype, n // 3, 1)
    assert (np.asarray(made) == a[n // 3]).all()


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_eigenvalues_of_the_ill_conditioned_matrix(n, dtype):
    w = np.linalg.eigvalsh(matrix(np, dtype, "ill", n).astype(np.complex128))
    exact = problems.ill_eigenvalues(n, dtype)
    np.testing.assert_allclose(w, exact, rtol=0, atol=5 * np.finfo(dtype).eps * exact[-1])


def test_bits():
    x = np.array([1, np.nan, 0, 2], np.float32)
    minus = np.array([1, np.nan, -0.0, 2], np.float32)
    for xp in (np, jnp):
        one, other, third = xp.asarray(x), xp.asarray(minus), xp.asarray(x * 1j)
        assert problems.same_bits(xp, (one, third), (one + 0, third + 0))
        assert not problems.same_bits(xp, (one, one), (one, other))


@pytest.mark.parametrize(
    "routine, dtype, n, ranks, T_A, measured",
    [  # MiB on H200, with `donate`; T_A = 512 has four panels in an update, 1024 two
        ("potrs", "float64", 16384, 1, 1024, 1024.256),
        ("potrs", "float64", 32768, 1, 512, 2048.503),
        ("potrs", "float32", 32768, 1, 1024, 1024.256),
        ("potrs", "complex128", 16384, 1, 512, 2048.503),
        ("potri", "float64", 32768, 1, 1024, 2048.006),
        ("potrs", "float64", 16384, 4, 1024, 640.162),
        ("potrs", "float64", 131072, 4, 1024, 5121.256),
    ],
)
def test_workspace_is_what_was_measured(routine, dtype, n, ranks, T_A, measured):
    nrhs = 1 if routine == "potrs" else 0
    needed = workspace.needed(routine, dtype, n, ranks, T_A, nrhs=nrhs, donate=True)
    assert needed / 2**20 == pytest.approx(measured, abs=0.05)


@contextlib.contextmanager
def _eigensolver(name):
    plugin = plugins.load("cpu")
    plugin.set_eigensolver(name)
    try:
        yield
    finally:
        plugin.set_eigensolver("auto")


def _even(n, ranks, width):
    """The width that cuts the rows of a rank into the most equal tiles. Records have it that were
    measured before widths became multiples of 64 where that fits."""
    block = -(-n // ranks)
    return -(-block // -(-block // min(width, block)))


def _width_of_record(routine, dtype, n, ranks, T_A):
    """The T_A that has tiles as wide today: the caller's, or none where n is a single tile."""
    width = workspace.tile(routine, dtype, n, ranks, T_A)
    given = T_A or min(1024, -(-n // ranks))
    return T_A if width in (n, _even(n, ranks, given)) else _even(n, ranks, given)


def test_workspace_of_eigenproblems_is_what_was_measured():
    """On the GPU that has most of it, of those that share one."""
    lines = (model.RESULTS / "eigen_gpu.jsonl").read_text().splitlines()
    cases = [case for case in map(json.loads, lines) if case["eigensolver"] == "all"]
    cases = [case for case in cases if case["peak_bytes"]]  # XLA has said
    assert len(cases) > 20
    with _eigensolver("all"):
        for case in cases:
            n, ranks, vectors = case["n"], case["ranks"], case["vectors"]
            width = _even(n, ranks, 48 if case["dtype"] == "complex128" else 64)
            plan = plugins.load("cpu").plan(
                "syevd", "native", case["dtype"], n, n, n // ranks, ranks, width, vectors=vectors,
                platform="gpu",
            )  # fmt: skip
            # Panels in registers exchange up to 4.4 MB, which is no part of the plan.
            assert case["peak_bytes"] == pytest.approx(max(plan["bytes"]), rel=1e-3, abs=9 << 19)


# There are no measurements of general routines yet.
_HERMITIAN = [name for name in problems.ROUTINES if name not in problems.GENERAL]


@pytest.mark.parametrize("routine", [*_HERMITIAN, "cho_factor", "cho_solve"])
def test_workspace_is_what_was_measured_on_every_gpu(routine):
    with _eigensolver("one"):
        _check_workspace(routine)


def _check_workspace(routine):
    found = [json.loads(line) for line in (model.RESULTS / "memory.jsonl").read_text().splitlines()]
    cases = [case for case in found if case["routine"] == routine]
    assert {case["dtype"] for case in cases} == set(problems.DTYPES)
    for case in cases:
        n, ranks = case["n"], case["ranks"]
        width = _width_of_record(routine, case["dtype"], n, ranks, case["T_A"])
        known = [case["dtype"], n, ranks, width, case["nrhs"], case["donate"]]
        needed = [workspace.needed(routine, *known, rank) for rank in range(ranks)]
        first, *others = case["formula_bytes"]
        if routine == "potrs" and case["T"] == n and case["nrhs"] == 1:
            first -= n * np.dtype(case["dtype"]).itemsize  # measured when it still copied b
        assert needed == [first, *others]
        if routine == "syevd":  # what cuSOLVER asks for, on the first GPU
            needed[0] += (4 * n + 135) * n * np.dtype(case["dtype"]).itemsize
        # cuSOLVER asks for 0.6 MiB where a factor is made as a single tile.
        slack = 1 << 20 if routine == "cho_factor" else 1 << 17
        assert case["measured_bytes"] == pytest.approx(needed, rel=1e-3, abs=slack)


@pytest.mark.parametrize("dtype, least", [("float64", 20), ("float32", 3)])
def test_model_is_near_what_was_measured(dtype, least):
    found = model.measured(dtype)
    usual = {key: found[key] for key in found if key[0] >= 8192 and key[2] >= 512}
    assert len(usual) >= least
    for (n, ranks, width), seconds in usual.items():
        paper = model.solve(n, model.line(ranks), width, dtype)
        assert 0.8 < seconds / paper < 1.25, (n, ranks, width)


def test_lu_model_is_near_what_was_measured():
    """A single GPU takes longer: its panels don't run beside its updates."""
    found = lu_model.measured()
    over = [
        seconds / lu_model.solve(n, ranks, lu_model.best(n, ranks))
        for (n, ranks, _), seconds in sorted(found.items())
        if n >= 8192
    ]
    assert len(over) >= 4
    assert all(1 < ratio < 1.8 for ratio in over)


@pytest.mark.parametrize("ranks, most", [(4, 2), (8, 4)])
def test_lu_model_of_several_gpus(ranks, most):
    """Updates are shared, panels aren't: no GPU more than pays for itself."""
    seconds = [lu_model.solve(131072, count, 1024) for count in (1, ranks)]
    assert most < seconds[0] / seconds[1] <= ranks


MODELLED = [(n, dtype) for n in (131072, 524288, model.PUBLISHED_N) for dtype in model.SIZE]


@pytest.mark.parametrize("n, dtype", MODELLED)
def test_a_grid_of_one_row_is_1_x_P(n, dtype):
    for ranks in (8, 64, 512):
        first, row = next(model.grids(ranks)), model.nodes(ranks)
        assert first[:2] == (1, ranks)
        for width in model.WIDTHS:
            assert model.solve(n, first, width, dtype) == model.solve(n, row, width, dtype)
            # Nothing goes down a column of one rank.
            found = [model.factorization(n, row._replace(down=down), width) for down in (1e6, 1e12)]
            assert found[0] == found[1]


@pytest.mark.parametrize("n, dtype", MODELLED)
def test_best_grid_is_never_slower_than_fewer_gpus_or_1_x_P(n, dtype):
    before = math.inf
    for ranks in (2**i for i in range(10)):
        grid = model.fastest(n, ranks, dtype)
        seconds = model.seconds(n, grid, dtype)
        assert seconds <= before
        assert seconds <= model.seconds(n, model.nodes(ranks), dtype)
        if seconds < math.inf:
            panels = 1.5 * model.best(n, grid, dtype) / n  # of n³/3; they are beside the updates
            assert model.share(n, ranks, seconds, dtype) * (1 - panels) < 1.001
        before = seconds
    assert before < math.inf


@pytest.mark.parametrize("dtype", model.SIZE)
def test_one_gpu_is_bound_by_its_products_and_needs_no_link(dtype):
    n = 98304
    (grid,) = model.grids(1)
    assert model.share(n, 1, model.seconds(n, grid, dtype), dtype) > 0.97
    slow = model.Grid(1, 1, across=1.0, down=1.0)
    assert model.seconds(n, slow, dtype) == model.seconds(n, grid, dtype)


@pytest.mark.parametrize("dtype", model.SIZE)
@pytest.mark.parametrize("rows, columns", [(1, 64), (2, 32), (8, 8), (16, 4)])
def test_slow_links_carry_each_rank_its_rows_and_columns_of_the_panels(rows, columns, dtype):
    n, width, link = 131072, 128, 1e8
    total, _, _ = model.factorization(n, model.Grid(rows, columns, link, link), width, dtype)
    parts = 1 / rows + (1 / columns if rows > 1 else 0)
    assert total == pytest.approx(model.SIZE[dtype] * n * n / 2 * parts / link, rel=0.02)


@pytest.mark.parametrize("dtype", model.SIZE)
def test_panels_of_1_x_P_take_the_memory_that_the_engine_takes(dtype):
    for n, ranks in ((65536, 4), (131072, 8)):
        needed = workspace.needed("potrs", dtype, n, ranks, donate=True)
        assert model.DEPTH * model.panels(n, model.line(ranks), dtype) == pytest.approx(
            needed, rel=0.01
        )


def test_what_has_been_solved_has_room_in_the_model_and_what_is_larger_than_memory_has_none():
    filled = max(n for n, ranks, _ in model.measured("float32") if ranks == 4)
    assert model.depth(filled, model.line(4), "float32") == model.DEPTH
    n, ranks = model.PUBLISHED_N, model.PUBLISHED_RANKS
    assert model.seconds(n, model.fastest(n, ranks, "float32"), "float32") < math.inf
    assert model.seconds(n, model.fastest(n, ranks, "float64"), "float64") == math.inf
    assert model.seconds(n, model.fastest(n, ranks // 2, "float32"), "float32") == math.inf


@pytest.mark.parametrize("name", ["nvidia-cublas-cu12", "nvidia-cublas"])
def test_records_say_which_cuda(monkeypatch, name):
    def version(asked):
        if asked != name:
            raise records.importlib.metadata.PackageNotFoundError(asked)
        return "12.1.3.1"

    monkeypatch.setattr(records.importlib.metadata, "version", version)
    versions = records.origin("4 x GPU", "a command")["versions"]
    assert versions.pop("python") and versions == {name: "12.1.3.1"}


def test_peak_shows_where_more_was_needed_before(monkeypatch):
    class Device:
        peak, used = 1000, 300

        def memory_stats(self):
            return {
                "peak_bytes_in_use": self.peak,
                "bytes_in_use": self.used,
                "bytes_limit": 4000,
            }

        def allocate(self, size):
            self.used += size
            self.peak = max(self.peak, self.used)

    class Piece(np.ndarray):
        def delete(self):
            device.allocate(-self.size)

    device = Device()
    monkeypatch.setattr(peaks, "PIECES", (300, 50))
    monkeypatch.setattr(
        peaks, "_allocate", lambda d, size: d.allocate(size) or np.zeros(size, "u1").view(Piece)
    )
    monkeypatch.setattr(peaks.jax, "block_until_ready", lambda pieces: pieces)
    with peaks.peaks([device], 500) as found:
        device.allocate(70)
    device.allocate(-70)
    assert found == [70] and device.used == 300
    with peaks.peaks([device], 3500) as found:  # no room to fill
        device.allocate(70)
    assert found == [None]


def test_versions_are_compared_by_the_medians_of_all_turns(tmp_path, capsys):
    case = dict.fromkeys(versions.CASE) | {"routine": "potrs", "n": 512}
    for name, turns in {"old": ([1, 2, 9], [4, 4]), "new": ([3, 3, 3], [1, 3])}.items():
        lines = [json.dumps(case | {"runs": runs}) for runs in turns]
        (tmp_path / name).write_text("\n".join(lines))
    old, new = (versions.read(tmp_path / name) for name in ("old", "new"))
    ((_, one, other, ratio, apart),) = versions.table(old, new)
    assert (one, other, ratio, apart) == (4, 3, 0.75, 1)
    assert versions.main(["versions.py", *(str(tmp_path / n) for n in ("old", "new"))]) == 0
    assert (
        "| routine=potrs n=512 | 4000.000 | 3000.000 | 0.7500 | 100.00% |"
        in capsys.readouterr().out
    )


def test_options_before_the_first_plus_are_for_all():
    assert run.split(["--n", "1", "+", "--n", "2", "+", "--donate"]) == [
        ["--n", "1", "--n", "2"],
        ["--n", "1", "--donate"],
    ]
    assert run.split([]) == [[]]
    assert run.command(["--out", "x", "--n", "3"]) == ["--n", "3"]


def test_a_command_names_no_folder_of_one_machine():
    words = ["--out", "/somewhere/out.jsonl", "--shape", "8x4", "results/in.jsonl"]
    expected = "python benchmarks/run.py --out out.jsonl --shape 8x4 results/in.jsonl"
    assert records.python("benchmarks/run.py", words) == expected


def test_no_record_names_a_folder_of_one_machine():
    files = sorted(pathlib.Path(records.__file__).parent.glob("results/*.jsonl"))
    assert files
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            command = json.loads(line).get("command") or ""
            assert not re.search(r"(^|[\s=])/", command), f"{file.name}:{number}: {command}"
