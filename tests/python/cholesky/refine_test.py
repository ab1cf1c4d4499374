"""`refine=`: solutions from a factor in lower precision are as accurate as from one in A's own."""

import functools
import math
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._cholesky import refinement
from jaxmg._kept import lower_precision, pcg

_FAILED, _SLOW = -3, -51


_CPU = jax.default_backend() == "cpu"


def _solve(a, b, mesh, refine="auto", **options):
    """Returns (x, status, iterations)."""
    options |= dict(refine=refine, return_status=True, return_iterations=True)
    return jax.block_until_ready(jaxmg.potrs(a, b, None, mesh, **options))


_CORE = {
    (97, 1, "float32", "well"),
    (97, 3, "complex128", "graded"),
}


@pytest.mark.core("complex128")
@pytest.mark.parametrize(
    "n, ranks, dtype, kind",
    cases.broad(
        [
            (n, ranks, dtype, kind)
            for n, ranks in ((97, 1), (130, 2), (97, 3), (130, 8), (1, 2), (7, 4))
            for dtype in ("float32", "float64", "complex64", "complex128")
            for kind in ("well", "graded", "clustered", "diagonal")
        ],
        lambda *case: case in _CORE,
    ),
)
def test_error_is_that_of_the_plain_solution(n, ranks, dtype, kind):
    mesh, matrix = cases.line(ranks), cases.positive_definite(kind, n, dtype)
    a, b = (
        cases.shard_rows(cases.upper_only(matrix), mesh),
        cases.normal(cases.rng(1), (n, 3), dtype),
    )
    x, status, iterations = _solve(a, b, mesh)
    assert status == 0 and 0 < iterations < 10
    assert x.shape == b.shape and x.dtype == b.dtype and x.sharding.is_fully_replicated
    for scalar in (status, iterations):
        assert scalar.shape == () and scalar.dtype == np.int32
    cases.check_as_good_as_plain(matrix, a, b, mesh, x)


@pytest.mark.extended
@pytest.mark.parametrize(
    "n, ranks, dtype, nrhs",
    cases.broad(
        [
            (n, ranks, dtype, nrhs)
            for n, ranks in ((203, 1), (121, 2), (302, 4), (120, 8))
            for dtype in ("float32", "float64", "complex64", "complex128")
            for nrhs in (1, 3)
        ],
        lambda *case: case == (302, 4, "complex64", 3),
    ),
)
def test_residuals_by_parts(n, ranks, dtype, nrhs, monkeypatch):
    """Products are computed in parts of x whose lengths differ by at most one."""
    for name, value in (("_DEPTH", 30), ("_MEMORY", 2)):
        monkeypatch.setattr(refinement, name, value)
    count = refinement.parts(n, ranks, nrhs)
    assert count == n // max(30, 4 * ranks) // nrhs
    mesh, matrix = cases.line(ranks), cases.positive_definite("well", n, dtype)
    a, b = (
        cases.shard_rows(cases.upper_only(matrix), mesh),
        cases.normal(cases.rng(1), (n, nrhs), dtype),
    )
    programs = cases.watch_programs(monkeypatch)
    x, status, iterations = _solve(a, b, mesh)
    assert status == 0 and 0 < iterations < 10
    products = set(re.findall(r"\bparts = (\d+)", programs[-1].as_text()))
    assert products == {"1", str(count)}
    cases.check_as_good_as_plain(matrix, a, b, mesh, x)


@pytest.mark.extended
def test_a_solution_is_as_exact_as_its_residuals():
    """Only residuals need high precision. Less accurate products with A, such as sums of many
    terms, only determine the steps."""
    n = 300
    matrix, b = (
        cases.positive_definite("well", n, "float64"),
        cases.normal(cases.rng(5), (n, 2), "float64"),
    )
    inverse, size = np.linalg.inv(matrix), np.linalg.norm(matrix)

    def off(v):
        return v * (1 + 1e-14 * jnp.cos(jnp.arange(n)))[:, None]

    @functools.partial(jax.jit, static_argnums=0)
    def solve(exact, b):
        def multiply(v):
            return off(matrix @ v)

        def residual(b, x):
            return b - (matrix @ x if exact else multiply(x))

        return pcg.refine(multiply, residual, lambda r: inverse @ r, b, size)

    with _compat.default_promotion():  # as in all of the package's own code
        exact, same = (np.linalg.norm(b - matrix @ solve(which, b).x) for which in (True, False))
    assert exact < same / 10


def _shifted_by(monkeypatch, shift):
    """Changes the shift. A test calls with orders that no other test uses, since compiled programs
    ignore the change."""
    monkeypatch.setitem(
        lower_precision.PRECISIONS, "float32", lower_precision._Lower(checks.DEFAULT, shift)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition, n, iterations",
    cases.broad(
        [
            (1e2, 200, (1, 5)),
            (1e8, 200, (6, 17 if _CPU else 25)),  # GPUs factor such a small matrix in another way
            (1e10, 190, (_SLOW, _SLOW)),
            (1e14, 200, (_FAILED, _FAILED)),
        ],
        lambda condition, n, iterations: n == 200,
    ),
)
def test_ill_conditioned_matrices(condition, n, iterations, monkeypatch):
    """A solution is refined, abandoned after iterations, or falls back because the factorization
    failed."""
    if condition == 1e10:
        _shifted_by(monkeypatch, 1e-5)
    mesh = cases.line(2)
    matrix, b = cases.conditioned(condition, n), cases.normal(cases.rng(2), (n, 2), "float64")
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    x, status, taken = _solve(a, b, mesh, refine="float32")
    least, most = iterations
    assert status == 0 and least <= taken <= most
    cases.check_as_good_as_plain(matrix, a, b, mesh, x)
    # A refined solution differs from the plain one; the fallback is equal to it.
    assert np.array_equal(x, jaxmg.potrs(a, b, None, mesh)) == (taken < 0)


@pytest.mark.breadth
def test_right_hand_sides_of_all_kinds():
    mesh, n = cases.line(4), 60
    matrix = cases.positive_definite("well", n, "float64")
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    many = cases.normal(cases.rng(3), (n, 40), "float64") * np.logspace(-250, 250, 40)
    many[:, 17] = 0
    many[1:, 18] = 0
    there = cases.shard(many, mesh, "r", None)
    x, status, iterations = _solve(a, there, mesh)
    assert status == 0 and iterations > 0
    assert x.sharding.is_equivalent_to(there.sharding, 2)
    cases.check_as_good_as_plain(matrix, a, many, mesh, x)
    x, status, iterations = _solve(a, 0 * there, mesh)
    assert status == 0 and iterations == 0 and not np.asarray(x).any()


@pytest.mark.slow
@pytest.mark.parametrize("exponents", [(-60, -60), (80, 80), (-70, 70)])
def test_numbers_beyond_the_range_of_single_precision(exponents):
    mesh, n = cases.line(2), 64
    scale = np.exp2(np.round(np.linspace(*exponents, n) * np.log2(10)))
    matrix = scale[:, None] * cases.positive_definite("well", n, "complex128") * scale
    a, b = (
        cases.shard_rows(cases.upper_only(matrix), mesh),
        cases.normal(cases.rng(4), (n,), "complex128"),
    )
    x, status, iterations = _solve(a, b, mesh)
    assert status == 0 and 0 < iterations < 8
    plain = np.asarray(jaxmg.potrs(a, b, None, mesh))
    # Scaled, such that no row or column is negligible in the norm.
    x, plain = np.asarray(x) * scale, plain * scale
    np.testing.assert_allclose(x, plain, rtol=0, atol=1e-14 * np.abs(plain).max())


@pytest.mark.slow
def test_not_positive_definite():
    mesh, n = cases.line(3), 30
    b = cases.normal(cases.rng(5), (n, 2), "float64")
    for fault, place in ((-1, 12), (np.nan, 29), (np.inf, 0)):
        matrix = cases.positive_definite("well", n, "float64")
        matrix[place, place] = fault
        a = cases.shard_rows(matrix, mesh)
        x, status, iterations = _solve(a, b, mesh)
        expected = jaxmg.potrs(a, b, None, mesh, return_status=True)[1]
        assert np.isnan(x).all() and status == expected != 0 and iterations == _FAILED


@pytest.mark.breadth
def test_indefinite_by_less_than_the_shift(monkeypatch):
    """The shifted matrix that is factored is positive definite; conjugate gradients detect that A
    isn't."""
    _shifted_by(monkeypatch, 1e-5)
    mesh, n = cases.line(2), 42
    q, _ = np.linalg.qr(cases.normal(cases.rng(6), (n, n), "float64"))
    matrix = (q * np.append(np.linspace(1, 2, n - 1), -1e-7)) @ q.T
    a, b = (
        cases.shard_rows((matrix + matrix.T) / 2, mesh),
        cases.normal(cases.rng(7), (n,), "float64"),
    )
    x, status, iterations = _solve(a, b, mesh)
    assert np.isnan(x).all() and status == n and iterations == _SLOW


@pytest.mark.extended
def test_nan_in_the_right_hand_side_stays_in_its_column():
    mesh, n = cases.line(3), 30
    matrix, b = cases.positive_definite("well", n, "float64"), np.ones((n, 2))
    b[3, 1] = np.nan
    a = cases.shard_rows(matrix, mesh)
    x, status, iterations = _solve(a, b, mesh)
    assert status == 0 and iterations == _SLOW
    np.testing.assert_array_equal(x, jaxmg.potrs(a, b, None, mesh))


@pytest.mark.slow
def test_jit_gives_the_same():
    mesh, n = cases.line(8), 130
    matrix, b = (
        cases.positive_definite("well", n, "float64"),
        cases.normal(cases.rng(1), (n, 3), "float64"),
    )
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    solve = jax.jit(
        lambda a, b: _solve_traced(a, b, mesh), out_shardings=NamedSharding(mesh, P())
    )  # fmt: skip
    for found, expected in zip(solve(a, b), _solve(a, b, mesh), strict=True):
        np.testing.assert_array_equal(found, expected)


def _solve_traced(a, b, mesh):
    options = dict(refine="auto", return_status=True, return_iterations=True)
    return jaxmg.potrs(a, b, None, mesh, P("r", None), **options)


@pytest.mark.breadth
@pytest.mark.parametrize("donate", [True, False])
def test_nothing_is_gathered_or_copied(donate, monkeypatch):
    """In addition to A, a call needs half of A's size for the factor in lower precision, or, in the
    same memory, a copy of A as a fallback. XLA's account excludes the native code's workspace."""
    monkeypatch.setattr(lower_precision, "_PIECE", 2**10)
    mesh, n, nrhs = cases.line(4), 400, 1
    matrix, b = cases.conditioned(1e14, n), np.ones((n, nrhs))
    a = cases.shard(matrix, mesh, "r", None)
    expected = jaxmg.potrs(a, b, None, mesh)
    programs = cases.watch_programs(monkeypatch)
    x, status, iterations = _solve(a, b, mesh, donate=donate)
    assert status == 0 and iterations == _FAILED and a.is_deleted() == donate
    np.testing.assert_array_equal(x, expected)
    (program,) = programs
    sizes = re.findall(r"\b(?:f64|f32|pred|s32)\[([\d,]+)\]", program.as_text())
    assert max(math.prod(map(int, size.split(","))) for size in sizes) <= n * n // 4
    block, small = n * n // 4 * 8, 14 * n * nrhs * 8 + 6 * 8 * 2**10
    in_place = donate and _compat.BRANCHES_WORK_IN_PLACE
    most = block // 2 if in_place else block
    assert block // 2 <= program.memory_analysis().temp_size_in_bytes <= most + small


@pytest.mark.parametrize(
    "dtype, options, message",
    [
        (
            "float64",
            {"refine": "half"},
            "refine must be one of None, 'auto', 'float32', 'tf32', 'BF16_",
        ),
        ("float32", {"refine": "float32"}, "is for float64 and complex128; a has dtype float32"),
        ("float64", {"refine": "auto", "precision": "tf32"}, "with refine leave precision out"),
        ("float64", {"refine": "auto", "return_logdet": True}, "return_logdet=True isn't possible"),
        ("float64", {"return_iterations": True}, "return_iterations=True needs refin"),
    ],
)
def test_calls_that_can_not_be(dtype, options, message):
    with pytest.raises(ValueError, match=f"^potrs: .*{message}"):
        jaxmg.potrs(np.eye(3, dtype=dtype), np.ones(3, dtype), None, cases.line(1), **options)


def test_only_the_native_backend_has_it():
    assert lower_precision.check("potrs", "auto", "complex128", "native", "cpu") == "float32"
    assert lower_precision.check("potrs", "auto", "float32", "native", "cpu") == "tf32"
    for dtype in ("float64", "complex64"):
        assert lower_precision.check("potrs", "auto", dtype, "native", "gpu") == "BF16_BF16_F32_X3"
    with pytest.raises(ValueError, match="needs backend 'native' .*; got 'cusolvermg'"):
        lower_precision.check("potrs", "float32", "float64", "cusolvermg", "gpu")


def test_empty():
    x, status, iterations = _solve(np.zeros((0, 0)), np.zeros((0, 2)), cases.line(1))
    assert x.shape == (0, 2) and status == 0 and iterations == 0
