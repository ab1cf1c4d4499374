"""Least squares and R of tall matrices in host memory, which pass through CPU devices by chunks."""

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._host import chunks, driver, passes, plans, pool
from jaxmg._plugin import plugins

pytestmark = [
    cases.one_process("a matrix in host memory is computed with by one process"),
    pytest.mark.usefixtures("small_devices"),
]


@pytest.fixture
def small_devices(monkeypatch):
    """Lets calls with memory= leave the core, although their matrices would fit."""
    monkeypatch.setattr(passes, "fits_in_core", lambda layout, a, memory: memory is None)


@pytest.fixture(params=["pinned", "pageable"])
def pageable(request, monkeypatch):
    """Has calls copy chunks through pinned memory, as they do from pageable memory on GPUs."""
    if request.param == "pageable":
        monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: bool(places))


def budget(shape, dtype, ranks, rows, nrhs=0):
    """Returns the bytes of each device for chunks of so many rows."""
    layout = plans.over("lstsq", cases.line(ranks))
    cut = chunks.Cut(layout, *shape, nrhs, str(np.dtype(dtype)), rows)
    return cut.bytes


def problem(m, n, dtype, nrhs=None, seed=0):
    shape = (m,) if nrhs is None else (m, nrhs)
    a = cases.normal(cases.rng(m, n, seed), (m, n), dtype).astype(dtype)
    return a, cases.normal(cases.rng(m, n, seed + 1), shape, dtype).astype(dtype)


def check(a, b, x, resid=None):
    """Checks a minimizer by the optimality of its residual, and the squares of the residuals."""
    __tracebackhide__ = True
    a, x = np.asarray(a), np.asarray(x)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    assert x.shape == (a.shape[1], *b.shape[1:]) and x.dtype == a.dtype
    exact = np.linalg.lstsq(a.astype(wide), b.astype(wide), rcond=None)[0]
    rest, best = (b - a.astype(wide) @ y for y in (x, exact))
    scale = np.linalg.norm(a) * np.linalg.norm(x) + np.linalg.norm(b)
    unit = cases.eps(a.dtype)
    assert np.linalg.norm(rest) <= np.linalg.norm(best) + 30 * len(a) * unit * scale
    if resid is not None:
        squares = np.atleast_1d((np.abs(best) ** 2).sum(0))
        atol = 100 * unit * np.linalg.norm(b) ** 2
        np.testing.assert_allclose(resid, squares, rtol=300 * unit, atol=atol)


def check_r(a, r):
    """Checks R by its Gram matrix."""
    __tracebackhide__ = True
    r, unit = np.asarray(r), cases.eps(a.dtype)
    assert r.shape == 2 * a.shape[1:] and r.dtype == a.dtype
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    assert (np.diagonal(r).real >= 0).all() and (np.diagonal(r).imag == 0).all()
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, r = a.astype(wide), r.astype(wide)
    lengths = np.linalg.norm(a, axis=0)
    lengths[lengths == 0] = 1
    flaw = (r / lengths).conj().T @ (r / lengths) - (a / lengths).conj().T @ (a / lengths)
    assert np.abs(flaw).max() <= 50 * len(a) ** 0.5 * a.shape[1] * unit


@pytest.mark.parametrize(
    "dtype, ranks, n, rows",
    cases.broad(
        [
            (dtype, ranks, n, rows)
            for dtype in cases.DTYPES
            for ranks in (1, 2, 3, 4)
            for n, rows in ((1, 3), (5, 2), (20, 37))
        ],
        lambda dtype, ranks, n, rows: (dtype, ranks, n) in (("complex64", 3, 1),),
    ),
)
def test_every_number_of_rows(dtype, ranks, n, rows, pageable):
    mesh = cases.line(ranks)
    memory = budget((100, n), dtype, ranks, rows, 2)
    for m in sorted({0, n - 1, n, n + 1, rows * ranks, rows * ranks + 1, 151}):
        a, b = problem(m, n, dtype, 2)
        x, resid, rank, s = jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
        assert rank == min(m, n) and s.shape == (min(m, n),)
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, P()), 2)
        if m:
            check(a, b, x, resid)
            np.testing.assert_allclose(
                s, np.linalg.svd(a, compute_uv=False), rtol=1e3 * cases.eps(dtype)
            )
        if m > n:
            check(a, b, jaxmg.linalg.least_squares(a, b, mesh=mesh, memory=memory))
            check_r(a, jaxmg.linalg.qr(a, "r", mesh=mesh, memory=memory))


def test_one_program_for_every_number_of_rows():
    n, rows, mesh = 4, 8, cases.line(2)
    memory, found = budget((90, n), "float64", 2, rows), []
    for m in (20, 33, 90):
        a, _ = problem(m, n, "float64")
        request = passes.choose("linalg.qr", a, None, mesh, None, memory)
        assert request.cut.rows == min(rows, -(-m // 2))
        found.append(chunks.host_step(request.cut))
    assert found[0] is found[1] is found[2]


@pytest.mark.extended
@pytest.mark.parametrize("nrhs", [None, 0, 1, 3])
def test_right_hand_sides(nrhs, pageable):
    m, n, mesh = 70, 6, cases.line(2)
    a, b = problem(m, n, "float64", nrhs)
    memory = budget((m, n), "float64", 2, 9, nrhs or 1)
    x, resid, rank, s = jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
    expected = jaxmg.linalg.lstsq(a, b, mesh=mesh)
    for one, other in zip((x, resid, rank, s), expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-12)
    given = jax.device_put(b, NamedSharding(mesh, P()))
    y = jaxmg.linalg.least_squares(a, given, mesh=mesh, memory=memory)
    np.testing.assert_allclose(y, x, rtol=1e-12)
    if nrhs == 3:
        for other in (np.asfortranarray(b), np.repeat(b, 2, axis=0)[::2]):
            np.testing.assert_array_equal(
                jaxmg.linalg.least_squares(a, other, mesh=mesh, memory=memory), y
            )


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype, kind, expected",
    cases.broad(
        [
            (dtype, *kind)
            for dtype in cases.DTYPES
            for kind in (("low", 3), ("zero", 6), ("repeated", 7), ("late", 8))
        ],
        lambda dtype, kind, expected: (
            (dtype, kind) in (("float64", "repeated"), ("complex64", "late"))
        ),
    ),
)
def test_rank(dtype, kind, expected):
    m, n, mesh = 120, 8, cases.line(2)
    a, b = problem(m, n, dtype)
    if kind == "low":
        a = (a[:, :3] @ problem(3, n, dtype)[0]).astype(dtype)
    elif kind == "zero":
        a[:, [0, 5]] = 0
    elif kind == "repeated":
        a[:, 6] = a[:, 2]
    else:  # columns that are zeros in the first chunks
        a[:100, 3:] = 0
    memory = budget((m, n), dtype, 2, 11, 1)
    x, resid, rank, s = jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
    best, _, _, values = np.linalg.lstsq(a, b, rcond=m * cases.eps(dtype))
    assert rank == expected
    np.testing.assert_allclose(x, best, atol=3e3 * cases.eps(dtype) * np.abs(best).max())
    np.testing.assert_allclose(s, values, atol=1e2 * cases.eps(dtype) * values[0])
    np.testing.assert_allclose(resid[0], np.linalg.norm(b - a @ best) ** 2, rtol=1e-4)
    check_r(a, jaxmg.linalg.qr(a, "r", mesh=mesh, memory=memory))


@pytest.mark.extended
@pytest.mark.parametrize("graded", ["values", "columns"])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex64", marks=pytest.mark.breadth)])
def test_conditions(dtype, graded):
    """R is backward stable for columns of any length, and x of any rank, whatever finds them."""
    m, n, mesh, unit = 200, 6, cases.line(2), cases.eps(dtype)
    memory = budget((m, n), dtype, 2, 13, 1)
    q = np.linalg.qr(problem(m, n, "complex128" if dtype == "complex64" else dtype)[0])[0]
    v = np.linalg.qr(problem(n, n, q.dtype, seed=4)[0])[0]
    b = problem(m, n, dtype)[1]
    for power in range(0, 19, 1 if dtype == "float64" else 3):
        weights = 10.0 ** -np.linspace(0, power, n)
        a = (q * weights @ v if graded == "values" else q @ v * weights).astype(dtype)
        check_r(a, jaxmg.linalg.qr(a, "r", mesh=mesh, memory=memory))
        x, resid, rank, s = map(np.asarray, jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory))
        cutoff = m * unit * s[0]
        assert (s > cutoff).sum() == rank
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=50 * unit * s[0])
        # As good as NumPy's of the same rank.
        left, values, right = np.linalg.svd(a, full_matrices=False)
        best = right[:rank].conj().T @ (left[:, :rank].conj().T @ b / values[:rank])
        rest, least = (np.linalg.norm(b - a @ y) for y in (x, best))
        size = np.linalg.norm(b) + s[0] * np.linalg.norm(x)
        assert rest <= least + 100 * m * unit * size, power
        assert np.linalg.norm(x) <= 2 * np.linalg.norm(best) + 1 or rank == n
        assert abs(resid[0] - rest**2) <= 1e-2 * rest**2 + 100 * m * unit * np.linalg.norm(b) ** 2


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("complex128", marks=pytest.mark.breadth)]
)
def test_powers_of_two(dtype):
    m, n, mesh = 90, 5, cases.line(3)
    a, b = problem(m, n, dtype, 2)
    memory = budget((m, n), dtype, 3, 7, 2)
    x, resid, rank, s = jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
    top = 120 if dtype == "float32" else 1000
    real = np.finfo(dtype).dtype.type
    for up, of_b in ((top, 20), (-top, -20), (top // 2, top - 9), (7, -top // 2)):
        found = jaxmg.linalg.lstsq(
            a * real(2.0) ** up, b * real(2.0) ** of_b, mesh=mesh, memory=memory
        )
        assert found[2] == rank
        np.testing.assert_array_equal(found[0], np.ldexp(1, of_b - up).astype(real) * x)
        np.testing.assert_array_equal(found[3], s * real(2.0) ** up)
    apart = np.array([0, 300, -300, 5, -5] if dtype != "float32" else [0, 30, -30, 5, -5])
    r = jaxmg.linalg.qr(a, "r", mesh=mesh, memory=memory)
    scaled = jaxmg.linalg.qr(a * real(2.0) ** apart, "r", mesh=mesh, memory=memory)
    np.testing.assert_allclose(scaled, r * real(2.0) ** apart, rtol=1e3 * cases.eps(dtype))


def test_residuals_that_are_small():
    """The difference of squares would leave 1e-16 of b's."""
    m, n = 300, 6
    a, _ = problem(m, n, "float64")
    a *= 10.0 ** np.arange(n)
    memory = budget((m, n), "float64", 2, 20, 2)
    rest = problem(m, 2, "float64")[0]
    rest -= a @ np.linalg.lstsq(a, rest, rcond=None)[0]
    for size in (0, 1e-11, 1e-6):
        b = a @ np.ones((n, 2)) / 1e5 + size * rest
        resid = jaxmg.linalg.lstsq(a, b, mesh=cases.line(2), memory=memory)[1]
        expected = size**2 * (rest**2).sum(0)
        np.testing.assert_allclose(resid, expected, rtol=1e-2, atol=1e-26 * (b**2).sum())


@pytest.mark.extended
@pytest.mark.parametrize("where", ["a", "b", "infinity"])
def test_not_finite(where):
    m, n, mesh = 60, 4, cases.line(2)
    a, b = problem(m, n, "float64", 2)
    (b if where == "b" else a)[41, 1] = np.inf if where == "infinity" else np.nan
    memory = budget((m, n), "float64", 2, 8, 2)
    x, resid, *_ = jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
    assert np.isnan(x[:, 1]).all() and np.isnan(resid[1])
    assert where == "b" or np.isnan(jaxmg.linalg.qr(a, "r", mesh=mesh, memory=memory)).any()


@pytest.mark.extended
def test_arguments_of_the_functions():
    m, n, mesh = 80, 5, cases.line(2)
    a, b = problem(m, n, "float64")
    memory = budget((m, n), "float64", 2, 9, 1)
    for named in ({"damp": 0.5}, {"rcond": 0.3}, {"rcond": jnp.float64(0.3)}, {"rcond": -1}):
        found = jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory, **named)
        expected = jaxmg.linalg.lstsq(a, b, mesh=mesh, **named)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11)
    x = jaxmg.linalg.least_squares(a, b, 0.5, mesh=mesh, memory=memory)
    np.testing.assert_allclose(x, jaxmg.linalg.least_squares(a, b, 0.5, mesh=mesh), rtol=1e-11)
    r, order = jaxmg.linalg.qr(a, "r", pivoting=True, mesh=mesh, memory=memory)
    expected, same = jaxmg.linalg.qr(a, "r", pivoting=True, mesh=mesh)
    np.testing.assert_array_equal(order, same)
    np.testing.assert_allclose(r, expected, atol=1e-12)
    assert jaxmg.linalg.lstsq(a, b, numpy_resid=True, mesh=mesh, memory=memory)[1].shape == (1,)


@pytest.mark.extended
def test_orders_in_memory(tmp_path, pageable):
    m, n, mesh = 90, 7, cases.line(2)
    a, b = problem(m, n, "complex128")
    memory = budget((m, n), "complex128", 2, 10, 1)
    expected = jaxmg.linalg.least_squares(a, b, mesh=mesh, memory=memory)
    path, offset = tmp_path / "a.bin", 4099
    path.write_bytes(bytes(offset) + a.tobytes())
    read = np.memmap(path, a.dtype, "r", offset, (m, n))
    wider = np.full((2 * m, n + 3), np.nan, a.dtype)
    wider[::2, :n] = a
    taller = np.full((m + 5, n), np.nan, a.dtype, order="F")
    taller[2 : m + 2] = a
    for same in (read, wider[::2, :n], np.asfortranarray(a), taller[2 : m + 2]):
        x = jaxmg.linalg.least_squares(same, b, mesh=mesh, memory=memory)
        np.testing.assert_array_equal(x, expected)
        check_r(a, jaxmg.linalg.qr(same, "r", mesh=mesh, memory=memory))
    for strange in (a[:, ::-1], np.repeat(a, 2, 1)[:, ::2], a[::-1]):
        with pytest.raises(ValueError, match="C- or Fortran-ordered.*ascontiguousarray"):
            jaxmg.linalg.least_squares(strange, b, mesh=mesh, memory=memory)
    with open(path, "r+b") as file:
        file.truncate(offset + a.nbytes - 1)
    with pytest.raises(ValueError, match="cut off since it was mapped"):
        jaxmg.linalg.least_squares(read, b, mesh=mesh, memory=memory)


@pytest.mark.skipif(
    not host_cases.has_pinned_host(), reason="this JAX has no pinned_host on CPU devices"
)
@pytest.mark.parametrize(
    "entries, ranks",
    [
        pytest.param(("r",), 4, marks=pytest.mark.extended),
        *(pytest.param(*case, marks=pytest.mark.breadth) for case in (((), 1), (("r",), 3))),
    ],
)
def test_pinned_host(entries, ranks):
    m, n, mesh = 96, 6, cases.line(ranks)
    a, b = problem(m, n, "float64", 2)
    host = host_cases.pinned(a, mesh, *entries)
    memory = budget((m, n), "float64", ranks, 7, 2)
    x, resid, *_ = jaxmg.linalg.lstsq(host, b, memory=memory)
    check(a, b, x, resid)
    np.testing.assert_array_equal(np.asarray(host), a)
    if ranks == 3:
        columns = host_cases.pinned(a, mesh, None, "r")
        with pytest.raises(ValueError, match="must be whole or sharded by rows"):
            jaxmg.linalg.lstsq(columns, b, memory=memory)


def polynomial(rows, columns, scale):
    """Entries of a matrix that is made: cosines."""
    t = rows[:, None].astype(jnp.real(scale).dtype) + 0.5
    return (jnp.cos(t * (columns + 1) / 40) * scale).astype(scale.dtype)


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype, ranks, n",
    [
        ("float64", 2, 5), cases.breadth("float32", 1, 1), cases.breadth("complex64", 3, 20),
        cases.breadth("complex128", 4, 3),
    ],
)  # fmt: skip
def test_tiles(dtype, ranks, n):
    m, mesh = 130, cases.line(ranks)
    scale = np.asarray(1.5, dtype)
    made = jaxmg.Tiles(polynomial, (m, n), dtype, scale)
    index = np.arange(m, dtype=np.int32)
    a = np.asarray(polynomial(jnp.asarray(index), jnp.arange(n), scale))
    b = problem(m, n, dtype, 2)[1]
    memory = budget((m, n), dtype, ranks, 17, 2) + 17 * n * 16
    for named in ({}, {"memory": memory}):
        x, resid, rank, _ = jaxmg.linalg.lstsq(made, b, mesh=mesh, **named)
        assert rank == n
        check(a, b, x, resid)
        check(a, b, jaxmg.linalg.least_squares(made, b, mesh=mesh, **named))
        check_r(a, jaxmg.linalg.qr(made, "r", mesh=mesh, **named))


def test_invalid_calls():
    m, n, mesh = 40, 4, cases.line(2)
    a, b = problem(m, n, "float64")
    made = jaxmg.Tiles(polynomial, (m, n), "float64", np.float64(1))
    wide = jaxmg.Tiles(polynomial, (n, m), "float64", np.float64(1))
    solve, qr = jaxmg.linalg.lstsq, jaxmg.linalg.qr
    for call, error, words in (
        (lambda: solve(a, b, mesh=mesh, memory=10), ValueError, "aren't enough: R and one row"),
        (lambda: solve(a, b, mesh=mesh, memory=-1), ValueError, "memory must be a positive"),
        (lambda: solve(jnp.asarray(a), b, memory=1e9), ValueError, "memory= is for a matrix in"),
        (lambda: solve(a, b[:-1], mesh=mesh, memory=1e5), ValueError, "b must have shape"),
        (lambda: solve(a, b.astype("f4"), mesh=mesh, memory=1e5), TypeError, "one dtype"),
        (lambda: solve(a.astype(int), b, mesh=mesh, memory=1e5), TypeError, "dtypes are"),
        (lambda: solve(a[None], b, mesh=mesh, memory=1e5), ValueError, r"of shape \(m, n\)"),
        (lambda: solve(wide, b[:n], mesh=mesh), ValueError, "at least as many rows"),
        (lambda: qr(made, mesh=mesh), ValueError, "are for mode='r'; got mode='reduced'"),
        (lambda: qr(a, "raw", mesh=mesh, memory=1e5), ValueError, "are for mode='r'"),
        (lambda: jax.jit(lambda y: solve(made, y))(b), ValueError, "in eager calls only"),
        (lambda: jax.jit(lambda y: solve(a, y, memory=1e5))(b), ValueError, "eager calls only"),
    ):
        with pytest.raises(error, match=f"linalg.(lstsq|qr): .*{words}"):
            call()
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else cases.without_64_bits():
        with pytest.raises(ValueError, match="64-bit"):
            solve(a, b, mesh=mesh, memory=1e5)


def test_what_fits_stays_in_core(monkeypatch):
    monkeypatch.undo()
    m, n, mesh = 4000, 4, cases.line(2)
    a, b = problem(m, n, "float64")
    assert passes.choose("linalg.lstsq", a, b, mesh, None, 2 * a.nbytes) is None
    assert passes.choose("linalg.lstsq", a, b, mesh, None, a.nbytes) is not None
    assert passes.choose("linalg.lstsq", a, b, mesh, None, None) is None


@pytest.mark.extended
def test_interrupted_between_two_chunks(monkeypatch, pageable):
    m, n, mesh = 100, 4, cases.line(2)
    a, b = problem(m, n, "float64")
    memory = budget((m, n), "float64", 2, 10, 1)
    prepare, seen, waited = passes._Feed.prepare, [], []

    def interrupt(feed, step):
        seen.append(feed)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return prepare(feed, step)

    monkeypatch.setattr(passes._Feed, "prepare", interrupt)
    wait = driver.wait_for
    monkeypatch.setattr(driver, "wait_for", lambda live: waited.append(len(live)) or wait(live))
    with pytest.raises(KeyboardInterrupt):
        jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
    assert len(seen) == 3 and waited == [9]
    with pytest.raises(ValueError, match="there is no matrix with chunks"):
        plugins.load(jax.default_backend()).host_close_chunks(seen[0].handle)
    check(a, b, jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)[0])


@pytest.mark.extended
def test_memory_is_given_back(monkeypatch):
    monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: bool(places))
    m, n, mesh = 1000, 4, cases.line(2)
    a, b = problem(m, n, "float64")
    memory = budget((m, n), "float64", 2, 100, 1)
    with jaxmg.pinned(1e6) as pinned:
        jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
        assert pinned.free == pinned.bytes
    with jaxmg.pinned(1) as small:
        with pytest.warns(UserWarning, match=r"linalg.lstsq: .* need.* in one piece, and .* free"):
            jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)
        jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=memory)  # without a second warning
        assert small.free == small.bytes
