"""`refine=` for any square matrix: gesv, lu_factor and lu_solve."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg
from jaxmg import _compat
from jaxmg._kept import gmres, lower_precision
from jaxmg._lu import refinement as lu_refinement

_FAILED, _SLOW = -3, -51


def _general(n, dtype, condition, seed=0):
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    random = cases.rng(n + seed)
    left, right = (np.linalg.qr(cases.normal(random, (n, n), wide))[0] for _ in range(2))
    return ((left * np.logspace(0, -np.log10(condition), n)) @ right).astype(dtype)


def _solve(a, b, mesh, refine="auto", **options):
    """Returns (x, status, iterations)."""
    options |= dict(refine=refine, return_status=True, return_iterations=True)
    return jax.block_until_ready(jaxmg.gesv(a, b, None, mesh, **options))


def _check_as_good_as_plain(matrix, x, plain, b):
    __tracebackhide__ = True
    x, plain, b = (np.asarray(v).reshape(len(matrix), -1) for v in (x, plain, b))
    for column in range(x.shape[1]):
        error, usual = (
            cases.backward_error(matrix, v[:, column], b[:, column]) for v in (x, plain)
        )
        assert error <= 2 * usual + 2 * cases.eps(matrix.dtype)


@pytest.mark.parametrize(
    "n, ranks, dtype, condition",
    cases.broad(
        [
            (n, ranks, dtype, condition)
            for n, ranks in ((97, 1), (130, 2), (61, 4), (70, 8), (1, 2), (7, 4))
            for dtype in cases.DTYPES
            for condition in (1e1, 1e2, 1e4)
        ],
        lambda *case: case in {(97, 1, "float64", 1e1), (61, 4, "complex64", 1e2)},
        slow=lambda n, *_: n == 61,
    ),
)
def test_error_is_that_of_the_plain_solution(n, ranks, dtype, condition):
    mesh, matrix = cases.line(ranks), _general(n, dtype, condition)
    a, b = cases.shard_rows(matrix, mesh), cases.normal(cases.rng(1), (n, 3), dtype)
    x, status, iterations = _solve(a, b, mesh)
    assert status == 0 and 0 < iterations < 10
    assert x.shape == b.shape and x.dtype == b.dtype and x.sharding.is_fully_replicated
    _check_as_good_as_plain(matrix, x, jaxmg.gesv(a, b, None, mesh), b)


@pytest.mark.parametrize(
    "condition, least, most",
    cases.broad(
        [(1e6, 3, 10), (1e8, 5, 40), (1e10, _SLOW, _SLOW), (1e14, _SLOW, _SLOW)],
        lambda condition, *_: condition in (1e8, 1e14),
        slow=lambda *_: True,
    ),
)
def test_ill_conditioned_matrices(condition, least, most):
    mesh, n = cases.line(2), 120
    matrix, b = _general(n, "float64", condition), cases.normal(cases.rng(2), (n, 2), "float64")
    a = cases.shard_rows(matrix, mesh)
    x, status, iterations = _solve(a, b, mesh, refine="float32")
    plain = jaxmg.gesv(a, b, None, mesh)
    assert status == 0 and least <= iterations <= most
    _check_as_good_as_plain(matrix, x, plain, b)
    assert np.array_equal(x, plain) == (iterations < 0)


@pytest.mark.slow
@pytest.mark.parametrize("power, dtype", [(100, "float64"), (10, "float32"), (100, "complex128")])
def test_rows_and_columns_of_other_sizes(power, dtype):
    """Rows and columns may have sizes beyond the range of the lower precision."""
    mesh, n = cases.line(3), 31
    well = _general(n, dtype, 1e2)
    rows, columns = (
        np.exp2(np.round(cases.rng(seed).uniform(-power, power, n) * np.log2(10) / 2))
        for seed in (5, 6)
    )
    matrix = (rows[:, None] * well * columns).astype(dtype)
    b = (rows * cases.normal(cases.rng(4), (n,), dtype)).astype(dtype)
    x, status, iterations = _solve(matrix, b, mesh)
    assert status == 0 and 0 < iterations < 8
    expected = np.linalg.solve(well.astype(complex), b / rows)
    error = np.linalg.norm(np.asarray(x) * columns - expected) / np.linalg.norm(expected)
    assert error < 500 * cases.eps(dtype)


@pytest.mark.slow
def test_denormal_entries_that_matter_are_not_lost():
    mesh, n = cases.line(2), 12
    matrix = _general(n, "float64", 10)
    matrix[3] *= 2.0**-1000 / np.abs(matrix[3]).max()
    matrix[3, :5] = 2.0**-1030  # negligible in the row, except for their digits
    b = np.ones(n)
    b[3] *= 2.0**-1000
    x, status, iterations = _solve(matrix, b, mesh)
    plain = jaxmg.gesv(matrix, b, None, mesh)
    assert status == 0 and iterations == _FAILED
    np.testing.assert_array_equal(x, plain)


@pytest.mark.extended
def test_singular_matrices_and_numbers_that_are_none():
    mesh, n = cases.line(2), 12
    good, b = _general(n, "float64", 10), np.ones((n, 2))
    for fault in (0, np.nan, np.inf):
        matrix = good.copy()
        matrix[4] = fault
        x, status, iterations = _solve(matrix, b, mesh)
        plain, expected = jaxmg.gesv(matrix, b, None, mesh, return_status=True)
        assert status == expected != 0 and iterations == _FAILED
        np.testing.assert_array_equal(x, plain)
    b[3, 1] = np.nan
    x, status, iterations = _solve(good, b, mesh)
    assert status == 0 and iterations == _SLOW
    np.testing.assert_array_equal(x, jaxmg.gesv(good, b, None, mesh))


@pytest.mark.slow
def test_right_hand_sides_of_all_kinds(monkeypatch):
    """Columns are solved eight at a time, each scaled separately."""
    mesh, n, nrhs = cases.line(4), 45, 19
    assert lu_refinement.columns_at_a_time(n, 4, nrhs) == 8
    matrix = _general(n, "float64", 1e3)
    many = cases.normal(cases.rng(3), (n, nrhs), "float64")
    many[:, 17] = 0
    many[1:, 18] = 0
    scales = np.logspace(-250, 250, nrhs)
    x, status, iterations = _solve(matrix, many * scales, mesh)
    assert status == 0 and 0 < iterations < 10 and not np.asarray(x)[:, 17].any()
    plain = np.asarray(jaxmg.gesv(matrix, many * scales, None, mesh))
    there = np.arange(nrhs) != 17
    x, plain, many = (v[:, there] for v in (np.asarray(x) / scales, plain / scales, many))
    _check_as_good_as_plain(matrix, x, plain, many)
    x, status, iterations = _solve(matrix, np.zeros((n, 2)), mesh)
    assert status == 0 and iterations == 0 and not np.asarray(x).any()


@pytest.mark.extended
@pytest.mark.parametrize("restart", [3, 20])
def test_a_residual_that_stands_still(restart, monkeypatch):
    """The residual of a cyclic shift, without preconditioning, falls only in the last of n
    steps."""
    monkeypatch.setattr(gmres, "RESTART", restart)
    n = 8
    shift, b = jnp.roll(jnp.eye(n), 1, axis=0), jnp.eye(n)[:, :1]

    def multiply(v):
        return jnp.sum(shift[:, :, None] * v, axis=1)

    with _compat.default_promotion():  # as in all of the package's own code
        found = jax.jit(lambda b: gmres.refine(multiply, lambda r: r, b, n**0.5))(b)
    assert bool(found.accepted) == (restart > n)
    if restart > n:
        assert found.steps == n
        np.testing.assert_allclose(multiply(found.x), b, atol=1e-15)


@pytest.mark.breadth
@pytest.mark.parametrize("donate", [True, False])
def test_nothing_is_gathered_or_copied(donate, monkeypatch):
    monkeypatch.setattr(lower_precision, "_PIECE", 2**10)
    mesh, n = cases.line(4), 400
    a, b = cases.shard(_general(n, "float64", 1e2), mesh, "r", None), np.ones((n, 1))
    programs = cases.watch_programs(monkeypatch)
    _, status, iterations = _solve(a, b, mesh, donate=donate)
    assert status == 0 and iterations > 0 and a.is_deleted() == donate
    (program,) = programs
    block, small = n * n // 4 * 8, (lu_refinement.LIKE_B + 4) * n * 8 + 12 * 8 * 2**10
    most = block // 2 if donate else block
    assert program.memory_analysis().temp_size_in_bytes <= most + small


@pytest.mark.parametrize(
    "n, ranks, dtype",
    cases.broad(
        [
            (n, ranks, dtype)
            for n, ranks in ((24, 1), (31, 2), (32, 4))
            for dtype in ("float64", "complex128", "complex64")
        ],
        lambda *case: case == (31, 2, "complex128"),
        slow=lambda *_: True,
    ),
)
def test_a_kept_factor(n, ranks, dtype):
    mesh, matrix = cases.line(ranks), _general(n, dtype, 1e2)
    b = cases.normal(cases.rng(9), (n, 2), dtype)
    a = cases.shard_rows(matrix, mesh)
    factor, plain = jaxmg.lu_factor(a, 5, mesh, refine="auto"), jaxmg.lu_factor(a, 5, mesh)
    assert isinstance(factor, jaxmg.RefinedLUFactor) and factor.status == 0
    assert factor.shape == (n, n) and factor.dtype == a.dtype and factor.mesh == mesh
    for trans, of in ((0, matrix), ("T", matrix.T), ("C", matrix.conj().T)):
        x, status, iterations = factor.solve(
            b, trans, return_status=True, return_iterations=True
        )  # fmt: skip
        assert status == 0 and 0 < iterations < 8
        _check_as_good_as_plain(of, x, plain.solve(b, trans), b)
        np.testing.assert_array_equal(x, jaxmg.lu_solve(factor, b, trans=trans))
    assert factor.solve(b[:, 0]).shape == (n,)


@pytest.mark.slow
def test_a_kept_factor_falls_back_as_often_as_it_is_used():
    mesh, n = cases.line(2), 24
    matrix, b = _general(n, "complex128", 1e14), np.ones((n, 2), complex)
    factor = jaxmg.lu_factor(matrix, 7, mesh, refine="float32")
    for trans, of in ((0, matrix), ("T", matrix.T), ("C", matrix.conj().T)):
        x, status, iterations = factor.solve(
            b, trans, return_status=True, return_iterations=True
        )  # fmt: skip
        assert status == 0 and iterations < 0
        assert cases.backward_error(of, x, b) <= 10 * cases.eps("float64")


def test_calls_that_can_not_be():
    a, b, mesh = np.eye(3), np.ones(3), cases.line(1)
    for options, message in (
        ({"refine": "half"}, "refine must be one of None, 'auto'"),
        ({"refine": "auto", "precision": "highest", "return_logdet": True}, "return_logdet=True"),
        ({"return_iterations": True}, "return_iterations=True needs refine"),
        ({"refine": "auto", "backend": "cusolvermg"}, "cusolvermg"),
    ):
        with pytest.raises(ValueError, match=f"^gesv: .*{message}"):
            jaxmg.gesv(a, b, None, mesh, **options)
    factor = jaxmg.lu_factor(a, mesh=mesh, refine="float32")
    assert "refine='float32'" in repr(factor)
    for name in ("slogdet", "inv", "diagonal", "packed"):
        with pytest.raises(AttributeError, match=f"RefinedLUFactor has no '{name}': .*without re"):
            getattr(factor, name)
    with pytest.raises(ValueError, match=r"^lu_solve: b must have shape \(3,\)"):
        factor.solve(np.ones(4))
    with pytest.raises(ValueError, match="^lu_solve: trans must be 0 or 'N'"):
        factor.solve(b, 3)


def test_empty():
    x, status, iterations = _solve(np.zeros((0, 0)), np.zeros((0, 2)), cases.line(1))
    assert x.shape == (0, 2) and status == 0 and iterations == 0
    factor = jaxmg.lu_factor(np.zeros((0, 0)), refine="auto")
    assert factor.solve(np.zeros(0), "C").shape == (0,)
