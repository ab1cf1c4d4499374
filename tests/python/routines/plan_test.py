"""The memory that a plan predicts before a call, and the memory that the call takes."""

import dataclasses
import re

import cases
import jax
import numpy as np
import pytest

import jaxmg
from jaxmg import _compat
from jaxmg._cholesky import refinement
from jaxmg._kept import lower_precision
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins
from jaxmg._routines import table


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("routine", table.PLANS)
def test_every_routine_has_a_plan(routine, dtype):
    before = len(jax.live_arrays())
    plan = jaxmg.plan(routine, 1000, dtype, cases.devices(2), nrhs=3)
    assert len(jax.live_arrays()) == before
    assert (plan.routine, plan.n, plan.dtype, plan.backend) == (routine, 1000, dtype, "native")
    assert 1 <= plan.tile <= 1000
    assert len(plan.bytes) == 2
    assert min(plan.bytes) > 500 * 1000 * np.dtype(dtype).itemsize  # at least A's rows
    assert str(plan).startswith(f"{routine}, n = 1000, {dtype}, on 2 devices: backend 'native'")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.tile = 1


@cases.one_process("a number of devices is of this process's")
def test_devices():
    found = cases.devices(4)
    mesh = cases.line(4)
    plans = [jaxmg.plan("potrs", 100, "float32", where) for where in (found, tuple(found), mesh, 4)]
    assert plans[0] == plans[1] == plans[2] == plans[3]
    assert len(jaxmg.plan("potrs", 100, "float32").bytes) == len(jax.local_devices())
    assert len(jaxmg.plan("potrs", 100, "float32", found[2:]).bytes) == 2


@pytest.mark.parametrize("refine", [None, "float32"])
@pytest.mark.parametrize("routine", ["potrs", "cho_factor", "cho_solve"])
def test_devices_that_are_not_there(routine, refine):
    """A plan for more devices than this process has is the plan for devices of another machine."""
    there = len(jax.local_devices())
    one = jaxmg.plan(routine, 16384, "float64", 1, refine=refine)
    plans = [jaxmg.plan(routine, 16384, "float64", there * k, refine=refine) for k in (1, 2, 4)]
    assert [plan.devices for plan in plans] == [there, 2 * there, 4 * there]
    assert [len(plan.bytes) for plan in plans] == [there, 2 * there, 4 * there]
    most = [max(plan.bytes) for plan in (one, *plans)]
    assert most == sorted(most, reverse=True) and len(set(most)) > 2
    if refine is None and there > 1:
        assert jaxmg.plan(routine, 16384, "float64", jax.local_devices()) == plans[0]


def test_memory_that_is_given():
    needed = max(jaxmg.plan("potrs", 1000, "float64", 3).bytes)
    for memory, fits in ((needed, True), (needed - 1, False), (1e12, True), (np.float32(9), False)):
        plan = jaxmg.plan("potrs", 1000, "float64", 3, memory=memory)
        assert (plan.memory, plan.fits) == (int(memory), fits)
    assert "it does NOT fit" in str(jaxmg.plan("potrs", 1000, "float64", 3, memory=1000))
    for wrong in (0, -1, "80 GB", 1j):
        with pytest.raises(ValueError, match="memory must be a positive number of bytes"):
            jaxmg.plan("potrs", 1000, "float64", memory=wrong)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("tile", [None, 1, 5, 1000])
@pytest.mark.parametrize("n", [1, 13, 64])
def test_the_factor_is_as_planned(n, tile, ranks):
    mesh = cases.line(ranks)
    plan = jaxmg.plan("cho_factor", n, "float64", mesh, T_A=tile)
    factor = jaxmg.cho_factor(cases.positive_definite("well", n, "float64"), tile, mesh)
    assert factor.tile == plan.tile
    assert tile is None or plan.tile <= tile
    overflow = 0 if factor.overflow is None else factor.overflow.nbytes // ranks
    kept = factor.tiles.nbytes // ranks + overflow
    assert min(plan.bytes) >= kept
    assert min(jaxmg.plan("cho_solve", n, "float64", mesh, T_A=tile).bytes) >= kept


@pytest.mark.parametrize("routine", table.PLANS)
def test_donated(routine):
    kept, donated = (
        jaxmg.plan(routine, 1001, "complex64", cases.devices(2), donate=x) for x in (False, True)
    )
    copies = {"cho_solve": 0, "sygvd": 2}.get(routine, 1)
    copy = copies * 501 * 1001 * 8
    assert [x - y for x, y in zip(kept.bytes, donated.bytes, strict=True)] == [copy] * 2


@pytest.mark.parametrize("routine", ["cho_factor", "lu_factor"])
def test_an_overflow_tile_is_planned_for(routine):
    """A plan includes the overflow tile. Tiles of 125 columns need none, since they divide a rank's
    250 rows; they take less memory, although their panels are wider."""
    where = cases.devices(4)
    beyond, within = (jaxmg.plan(routine, 1000, "float64", where, T_A=tile) for tile in (96, 125))
    assert beyond.tile < within.tile == 125
    assert min(beyond.bytes) > max(within.bytes)


@pytest.mark.parametrize("routine", ["potrs", "cho_solve", "gesv"])
def test_right_hand_sides(routine):
    one, many = (
        jaxmg.plan(routine, 1000, "float64", cases.devices(2), nrhs=nrhs) for nrhs in (1, 101)
    )
    for x, y in zip(one.bytes, many.bytes, strict=True):
        assert y - x >= 2 * 100 * 1000 * 8  # b and x


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("routine", ["potrs", "cho_factor", "cho_solve", "gesv", "lu_factor"])
def test_refined_calls_have_a_plan(routine, dtype):
    plan, usual = (
        jaxmg.plan(routine, 1000, dtype, cases.devices(2), nrhs=3, refine=refine)
        for refine in ("auto", None)
    )
    wide = dtype in ("float64", "complex128")
    refine = lower_precision.check("potrs", "auto", dtype, "native", cases.devices(1)[0].platform)
    assert (plan.refine, usual.refine) == (refine, None)
    assert plan == jaxmg.plan(routine, 1000, dtype, cases.devices(2), nrhs=3, refine=refine)
    assert str(plan).startswith(f"{routine} with refine={refine!r}, n = 1000, {dtype}, on 2 dev")
    rows = 500 * 1000 * np.dtype(dtype).itemsize
    lower = rows // 2 if wide else rows
    # A and a copy as a fallback; a kept factor too.
    least = {"cho_factor": rows + lower, "lu_factor": rows + lower, "cho_solve": 2 * rows + lower}
    least = least.get(routine, 2 * rows)
    panels = 0 if cases.devices(1)[0].platform == "cpu" else 200 * 2**20
    assert least < min(plan.bytes) <= max(plan.bytes) < least + 3 * rows + panels


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_donated_to_a_refined_call(dtype):
    """Donation saves the half of A by which a copy of A exceeds the factor in lower precision. Only
    double precision has this half."""
    kept, donated = (
        [
            jaxmg.plan(routine, 10**5, dtype, cases.devices(4), donate=donate, refine="auto").bytes[
                0
            ]
            for routine in ("potrs", "cho_factor", "cho_solve")
        ]
        for donate in (False, True)
    )
    rows = 25000 * 10**5 * np.dtype(dtype).itemsize
    wide = dtype in ("float64", "complex128")
    saved = rows // 2 if wide and _compat.BRANCHES_WORK_IN_PLACE else 0
    assert kept[0] - donated[0] == pytest.approx(saved, abs=rows // 25)
    assert kept[1:] == donated[1:]


def _refined(routine, a, b, mesh, donate):
    if routine == "potrs":
        return jaxmg.potrs(a, b, None, mesh, refine="auto", donate=donate)
    if routine == "gesv":
        return jaxmg.gesv(a, b, None, mesh, refine="auto", donate=donate)
    if routine == "lu_factor":
        return jaxmg.lu_factor(a, None, mesh, refine="auto")
    factor = jaxmg.cho_factor(a, None, mesh, refine="auto")
    return jaxmg.cho_solve(factor, b) if routine == "cho_solve" else factor


def _native_bytes(routine, n, dtype, ranks, nrhs):
    """Returns the largest workspace of the native calls in a refined call, on the first rank of CPU
    devices."""
    rows = n // ranks

    def beside_results(native, dtype):
        plan = plugins.load("cpu").plan(native, "native", str(dtype), n, n, rows, ranks, 0, nrhs)
        results = plan["overflow_rows"] if native in ("potrf", "getrf") else nrhs
        return plan["bytes"][0] - results * n * np.dtype(dtype).itemsize

    lower = lower_precision.lower_dtype(dtype)
    if routine in ("gesv", "lu_factor"):
        factoring = beside_results("getrf", lower)
        solving = max(beside_results("lu_apply", lower), beside_results("gesv", dtype))
        return max(factoring, solving) if routine == "gesv" else factoring
    factoring = beside_results("potrf", lower)
    # hemm holds y again, a rank's rows of it, and a tile; and x and y of all parts (hemm.h).
    parts = refinement.parts(n, ranks, nrhs)
    vectors = (n + rows) * nrhs + (2 * n * nrhs * parts if parts > 1 else 0)
    product = (vectors + min(256, rows) ** 2) * np.dtype(dtype).itemsize
    solving = max(product, beside_results("potrs", dtype))
    both = {"potrs": max(factoring, solving), "cho_factor": factoring, "cho_solve": solving}
    return both[routine]


@pytest.mark.slow
@cases.one_process("of what XLA says of its programs")
@pytest.mark.parametrize(
    "routine, dtype, ranks, nrhs, donate, piece",
    cases.broad(
        [
            (routine, dtype, (1, 2, 4, 8)[(i + j) % 4], nrhs, donate, piece)
            for i, (routine, nrhs, donate) in enumerate(
                [
                    ("potrs", 1, True),
                    ("potrs", 1, False),
                    ("potrs", 60, True),
                    ("potrs", 60, False),
                    ("cho_factor", 1, False),
                    ("cho_solve", 1, False),
                    ("cho_solve", 60, False),
                    ("gesv", 1, True),
                    ("gesv", 1, False),
                    ("gesv", 60, False),
                    ("lu_factor", 1, False),
                ]
            )
            for j, (dtype, piece) in enumerate(
                zip(cases.DTYPES, (2**10, 2**10, 2**24, 2**10), strict=True)
            )
        ],
        lambda routine, dtype, ranks, nrhs, donate, piece: (
            dtype == "float64"
            and (routine, nrhs, donate) in {("potrs", 60, True), ("cho_factor", 1, False)}
        ),
    ),
)
def test_refined_calls_take_what_is_planned(
    routine, dtype, ranks, nrhs, donate, piece, monkeypatch
):
    """The sum of XLA's arrays and the plugin's workspace is as planned."""
    if cases.devices(1)[0].platform != "cpu":
        pytest.skip("XLA's account of memory is that of CPU devices here")
    n = 392 + 16 * (piece == 2**24)  # compiled programs ignore a new piece, so n differs
    monkeypatch.setattr(lower_precision, "_PIECE", piece)
    monkeypatch.setattr(refinement, "_DEPTH", 40)
    mesh = cases.line(ranks)
    a, b = cases.shard(np.eye(n, dtype=dtype), mesh, "r", None), np.ones((n, nrhs), dtype)
    programs = cases.watch_programs(monkeypatch)
    jax.block_until_ready(_refined(routine, a, b, mesh, donate))
    # Another program makes the zeros that mark the layout of a factor's leaves.
    found = max(
        (program.memory_analysis() for program in programs),
        key=lambda analysis: analysis.argument_size_in_bytes,
    )
    measured = (
        found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
        - found.alias_size_in_bytes + _native_bytes(routine, n, dtype, ranks, nrhs)
    )  # fmt: skip
    plan = jaxmg.plan(routine, n, dtype, mesh, nrhs=nrhs, donate=donate, refine="auto")
    # An old XLA also stores the piece of A whose squares it sums.
    most = 1.1 if jax.__version_info__ >= (0, 10) else 1.4
    assert 0.99 * measured <= plan.bytes[0] <= most * measured


def test_eigenvectors_take_more_where_lapack_has_no_use_for_memory_without_them():
    with_them, without = (
        jaxmg.plan("syevd", 1000, "float64", cases.devices(2), return_eigenvectors=x)
        for x in (True, False)
    )
    same = cases.devices(1)[0].platform == "gpu"  # cuSOLVER asks for as much in both cases
    assert (max(with_them.bytes) == max(without.bytes)) is same
    assert max(with_them.bytes) >= max(without.bytes)


def test_any_plugin_plans_for_gpus():
    """Any plugin plans for GPUs. There a kept factor needs memory for the inverses of diagonal
    blocks; a single solution doesn't."""
    plugin = plugins.load(cases.devices(1)[0].platform)

    def total(routine):
        return plugin.plan(
            routine, "native", "float64", 8192, 8192, 2048, 4, 1024, 1, platform="gpu"
        )

    share, x = 2 * 1024 * 8, 8192 * 8
    kept, solved = total("potrf"), total("potrs")
    assert kept["tile"] == solved["tile"] == 1024
    assert kept["bytes"][0] - (solved["bytes"][0] - share - x) == 4 * 1024**2 * 8
    with pytest.raises(ValueError, match="unknown platform 'tpu'"):
        plugin.plan("potrs", "native", "float64", 8, 8, 8, 1, platform="tpu")


@pytest.mark.parametrize(
    "routine",
    ["potrs", "potri", "gesv", "getri", "syevd", "sygvd", "potrf", "factor_apply"]
    + ["lu_apply", "lu_invert"],
)
def test_the_plugin_plans_square_matrices_of_its_routines(routine):
    plugin = plugins.load(cases.devices(1)[0].platform)
    with pytest.raises(ValueError, match=f"{routine}: A must be square, but m = 9 and n = 8"):
        plugin.plan(routine, "native", "float64", 9, 8, 5, 2)
    with pytest.raises(ValueError, match="2 blocks of 3 rows.*for m = 8"):
        plugin.plan(routine, "native", "float64", 8, 8, 3, 2)


@pytest.mark.parametrize("offset, fits", [(0, True), (-1, False), (None, None)])
def test_whether_it_fits(monkeypatch, offset, fits):
    where = cases.devices(4)
    needed = max(jaxmg.plan("potri", 1000, "float64", where).bytes)
    memory = None if offset is None else needed + offset
    monkeypatch.setattr(layouts, "device_memory", lambda platform: memory)
    plan = jaxmg.plan("potri", 1000, "float64", where)
    assert plan.fits is fits
    expected = {True: "it fits", False: "it does NOT fit", None: "whether it fits isn't known"}
    assert str(plan).endswith(expected[fits])


@pytest.mark.parametrize("routine", ["potrs", "gesv", "potri", "getri"])
def test_one_cpu_device_works_for_all(routine):
    """The device that works for all holds the whole matrix and the workspace of one rank; the
    others hold neither."""
    if cases.devices(1)[0].platform != "cpu":
        pytest.skip("GPUs gather matrices of other orders")
    one, four = (jaxmg.plan(routine, 200, "float64", devices) for devices in (1, 4))
    results = 2 * 8 * 200 if routine in ("potrs", "gesv") else 0  # b and x
    copies = 2 * 8 * 50 * 200 + results
    workspace = one.bytes[0] - 2 * 8 * 200**2 - results
    assert four.gathered and not one.gathered
    assert four.bytes == (copies + 8 * 200**2 + workspace, *[copies] * 3)
    for together in (jaxmg.plan(routine, 200, "float64", 4, T_A=16),
                     jaxmg.plan(routine, 257, "float64", 4)):  # fmt: skip
        assert not together.gathered and together.bytes[0] == together.bytes[3]


def test_the_sentence():
    plan = jaxmg.Plan(
        "potri", 8, np.dtype("float32"), "native", 4, True, (100, 3 << 20), 5 << 30, 2
    )  # fmt: skip
    assert str(plan) == (
        "potri, n = 8, float32, on 2 devices: backend 'native', tiles of 4, gathered on one device;"
        " 3.00 MiB of 5.00 GiB on the busiest device: it fits"
    )


def test_a_backend_that_does_not_say_what_it_needs():
    plan = jaxmg.Plan(
        "syevd", 8, np.dtype("float32"), "cusolvermg", 4, False, (), 5 << 30, 2
    )  # fmt: skip
    assert plan.fits is None
    assert str(plan) == (
        "syevd, n = 8, float32, on 2 devices: backend 'cusolvermg', tiles of 4; memory that isn't "
        "known on the busiest device: whether it fits isn't known"
    )


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        (
            ("getrf", 8, "float32"),
            {},
            ValueError,
            "routine must be one of 'potrs', .*; got 'getrf'",
        ),
        (("potrs", -1, "float32"), {}, ValueError, "n must not be negative; got -1"),
        (("potrs", 0, "float32"), {}, ValueError, "n must be at least 1; got 0"),
        (("potrs", 8.5, "float32"), {}, TypeError, "n must be an integer; got 8.5"),
        (("potrs", 8, "float16"), {}, TypeError, "dtype must be one of float32, .*; got float16"),
        (("potrs", 8, "real"), {}, TypeError, "dtype must name a dtype; got 'real'"),
        (("potrs", 8, "float32", 0), {}, ValueError, "devices must be from 1 to .*; got 0"),
        (("potrs", 8, "float32", 10**6), {}, ValueError, "devices must be from 1 .*; got 1000000"),
        (("potrs", 8, "float32", "cpu"), {}, TypeError, "devices must be a sequence .*; got 'cpu'"),
        (("potrs", 8, "float32", [0]), {}, TypeError, "devices must be a sequence .*; got [0]"),
        (("potrs", 8, "float32"), {"T_A": 0}, ValueError, "T_A, .* at least 1; got 0"),
        (("potrs", 8, "float32"), {"nrhs": -1}, ValueError, "nrhs must not be negative; got -1"),
        (("potrs", 8, "float32"), {"backend": "magma"}, ValueError, "backend must be one of"),
        (("potri", 8, "float32"), {"refine": "auto"}, ValueError, "is only for .*'lu_factor'"),
        (("potrs", 8, "float32"), {"refine": "half"}, ValueError, "refine must be one of None, "),
        (("potrs", 8, "float32"), {"refine": "float32"}, ValueError, "is for float64 and complex1"),
        (
            ("potrs", 8, "float32"),
            {"refine": "auto", "backend": "cusolvermg"},
            ValueError,
            "'cusolvermg'",
        ),
        (
            ("cho_solve", 8, "float32"),
            {"backend": "cusolvermg"},
            ValueError,
            "cho_solve: backend 'cusolvermg' is not available",
        ),
    ],
)
def test_plans_that_cannot_be(arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message).replace(r"\.\*", ".*")):
        jaxmg.plan(*arguments, **options)
