"""LU factorizations of matrices in host memory, which pass through CPU devices by block columns.

Budgets of device memory cut matrices into 1, 2, 5 and about 100 block columns.
"""

import pickle
import signal

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg
from jaxmg._host import block_columns, pool

pytestmark = [
    cases.one_process("a matrix in host memory is computed with by one process"),
    pytest.mark.usefixtures("small_devices"),
]
small_devices = host_cases.small_devices

_BLOCKS = (1, 2, 5, 100)
# Orders with all numbers of ranks, dtypes, right-hand sides and block columns in turn.
_ORDERS = [
    pytest.param(
        *(n, 1 + n % 5, cases.DTYPES[n % 4], (0, 1, 3)[n % 3], _BLOCKS[(n // 4 + n) % 4]),
        id=f"n{n}",
        marks=() if n in (1, 2, 7, 42, 59) else (pytest.mark.breadth,),
    )
    for n in range(1, 61)
]


def _budget(n, dtype, ranks, blocks, nrhs=1, cache=0):
    return host_cases.budget(n, dtype, ranks, blocks, nrhs, cache, whole=True)


def _check_determinant(a, sign, logdet):
    expected = np.linalg.slogdet(a)
    limit = 100 * len(a) ** 2 * cases.eps(a.dtype)
    np.testing.assert_allclose(logdet, expected[1], rtol=0, atol=limit)
    np.testing.assert_allclose(sign, expected[0], rtol=0, atol=limit)
    assert sign.dtype == a.dtype and logdet.dtype == a.real.dtype


@pytest.mark.parametrize("n, ranks, dtype, nrhs, blocks", _ORDERS)
def test_every_order(n, ranks, dtype, nrhs, blocks):
    a, b = host_cases.general(n, dtype, nrhs)
    mesh, before, donated = cases.line(ranks), a.copy(), a.copy()
    memory, cached = (
        _budget(n, dtype, ranks, blocks, nrhs, cache) for cache in (0, n * n // (2 + n % 7))
    )
    with host_cases.out_of_core() as found:
        x, sign, logdet, status = jaxmg.gesv(
            a, b, mesh=mesh, memory=memory, return_logdet=True, return_status=True
        )
        y = jaxmg.gesv(donated, b, mesh=mesh, memory=cached, donate=True)
    assert x.sharding.is_fully_replicated and set(x.devices()) == set(mesh.devices.flat)
    assert status.shape == () and status.dtype == np.int32 and status == 0
    host_cases.check(a, x, b)
    _check_determinant(a, sign, logdet)
    np.testing.assert_array_equal(a, before)
    np.testing.assert_array_equal(x, y)
    assert [geometry.blocks for geometry in found] == [found[0].blocks] * 2
    assert found[0].cache == 0 and (found[1].cache > 0 or n == 1)
    assert (found[0].blocks == 1) == (blocks == 1 or n <= ranks)


@pytest.mark.parametrize(
    "blocks, ranks, dtype, order",
    cases.broad(
        [
            (blocks, ranks, dtype, order)
            for blocks in _BLOCKS
            for ranks in (1, 3)
            for dtype in cases.DTYPES
            for order in "CF"
        ],
        lambda *case: (
            case
            in (
                (2, 1, "complex128", "C"),
                (5, 3, "float64", "F"),
                (100, 1, "float32", "C"),
                (5, 1, "complex64", "F"),
            )
        ),
    ),
)
def test_kept_factor(blocks, ranks, dtype, order):
    n = 100
    a, b = host_cases.general(n, dtype, 3)
    stored = np.array(a, order=order)
    memory = _budget(n, dtype, ranks, blocks, cache=n * n // 5)
    factor = jaxmg.lu_factor(stored, mesh=cases.line(ranks), memory=memory)
    np.testing.assert_array_equal(stored, a)
    assert isinstance(factor, jaxmg.HostLUFactor) and len(factor._cache) == 1
    assert factor.shape == (n, n) and factor.dtype == a.dtype and factor.status == 0
    for right in (b, b[:, 0], b[:, :0]):
        host_cases.check(a, factor.solve(jnp.asarray(right)), right)
        host_cases.check(a, jaxmg.lu_solve(factor, right), right)
        for trans in (1, "T"):
            host_cases.check(a.T, factor.solve(right, trans), right)
        host_cases.check(a.conj().T, jaxmg.lu_solve(factor, right, trans=2), right)
    _check_determinant(a, *factor.slogdet())
    assert factor.logdet() == factor.slogdet()[1]
    expected = np.linalg.det(a.astype(np.result_type(dtype, "float64")))
    if dtype in ("float64", "complex128"):
        np.testing.assert_allclose(factor.det(), expected, rtol=1e-9)
    assert n * n * a.itemsize <= factor.nbytes < 1.6 * n * n * a.itemsize + 256 * 100
    assert "HostLUFactor(n=100" in repr(factor)
    with pytest.raises(ValueError, match=r"HostLUFactor.solve: trans must be .* got 'H'"):
        factor.solve(b, "H")
    with pytest.raises(TypeError, match="a HostLUFactor can't be pickled"):
        pickle.dumps(factor)
    factor.release()
    factor.release()
    assert factor.nbytes == 0 and "released" in repr(factor) and not factor._cache
    with pytest.raises(RuntimeError, match="HostLUFactor.solve: the factor has been released"):
        factor.solve(b)


@pytest.mark.parametrize("dtype, order", [("float64", "C"), ("complex64", "F")])
def test_donated_array_becomes_the_factors(dtype, order):
    n = 40
    a, b = host_cases.general(n, dtype)
    donated, memory = np.array(a, order=order), _budget(n, dtype, 1, 4)
    factor = jaxmg.lu_factor(donated, mesh=cases.line(1), memory=memory, donate=True)
    assert factor.nbytes == 0
    # Columns of L have the factor's rows below its diagonal, of at most 1 (complex: sqrt(2)).
    rows = donated if order == "C" else donated.T
    assert np.abs(np.triu(rows, 1)).max() <= 1.5
    magnitude = np.abs(np.diag(rows)).astype("float64")
    np.testing.assert_allclose(np.log(magnitude).sum(), factor.logdet(), rtol=1e-4)
    host_cases.check(a, factor.solve(b), b)
    host_cases.check(a, jaxmg.gesv(np.array(a, order=order), b, mesh=cases.line(1),
                                   memory=memory, donate=True), b)  # fmt: skip


def test_powers_of_two_change_no_bit():
    n = 50
    a, b = host_cases.general(n, "float64", 2)
    memory = _budget(n, "float64", 2, 5, 2)
    x = jaxmg.gesv(a, b, mesh=cases.line(2), memory=memory)
    for power in (-300, -7, 300):
        y, sign, logdet = jaxmg.gesv(
            np.ldexp(a, power), b, mesh=cases.line(2), memory=memory, return_logdet=True
        )
        np.testing.assert_array_equal(np.ldexp(np.asarray(y), power), x)
        expected = np.linalg.slogdet(a)[1] + n * power * np.log(2)
        np.testing.assert_allclose(logdet, expected, rtol=1e-12)


def test_rows_that_are_apart():
    n = 24
    a, b = host_cases.general(n, "float64")
    memory, mesh = _budget(n, "float64", 1, 3), cases.line(1)
    wide = np.full((n + 3, n + 5), np.nan)
    wide[:n, :n] = a
    host_cases.check(a, jaxmg.gesv(wide[:n, :n], b, mesh=mesh, memory=memory), b)
    x = jaxmg.gesv(wide[:n, :n], b, mesh=mesh, memory=memory, donate=True)
    host_cases.check(a, x, b)
    assert np.isnan(wide[:, n:]).all() and np.isnan(wide[n:]).all()
    with pytest.raises(ValueError, match="gesv: .*C- or Fortran-ordered.*ascontiguousarray"):
        jaxmg.gesv(wide[:n, :n][::-1, ::-1], b, mesh=mesh, memory=memory)


def test_file(tmp_path):
    n = 50
    a, b = host_cases.general(n, "float64")
    path = tmp_path / "a.bin"
    a.tofile(path)
    memory, mesh = _budget(n, "float64", 2, 3), cases.line(2)
    read = np.memmap(path, "float64", "r", 0, (n, n))
    host_cases.check(a, jaxmg.gesv(read, b, mesh=mesh, memory=memory), b)
    with pytest.raises(ValueError, match=r"gesv: donate=True overwrites a .* read-only"):
        jaxmg.gesv(read, b, mesh=mesh, memory=memory, donate=True)
    written = np.memmap(path, "float64", "r+", 0, (n, n))
    host_cases.check(a, jaxmg.gesv(written, b, mesh=mesh, memory=memory, donate=True), b)
    written.flush()
    assert not np.array_equal(np.fromfile(path, "float64").reshape(n, n), a)


@pytest.mark.skipif(
    not host_cases.has_pinned_host(), reason="this JAX has no pinned_host on CPU devices"
)
@pytest.mark.parametrize("entries, ranks, donate", [((), 1, True), (("r",), 4, False)])
def test_pinned_host(entries, ranks, donate):
    """Of three block columns each has rows of two shards."""
    n = 48
    a, b = host_cases.general(n, "complex128", 2)
    host = host_cases.pinned(a, cases.line(ranks), *entries)
    memory = _budget(n, "complex128", ranks, 3, 2)
    with host_cases.out_of_core() as found:
        x = jaxmg.gesv(host, b, memory=memory, donate=donate)
    assert found[0].layout.ranks == ranks and found[0].blocks > 1
    host_cases.check(a, x, b)
    assert host.is_deleted() == donate
    if not donate:
        np.testing.assert_array_equal(np.asarray(host), a)


def _entries(rows, columns, scale):
    """A matrix without symmetry."""
    apart = (2 * rows[:, None] - columns).astype(jnp.real(scale).dtype)
    return jnp.cos(apart**2 % 97 * 0.7) * scale + 3 * (apart == rows[:, None])


@pytest.mark.core("complex64")
@pytest.mark.parametrize(
    "dtype, ranks, blocks",
    cases.broad(
        [(dtype, *cut) for dtype in cases.DTYPES for cut in ((1, 5), (3, 2), (2, 100), (4, 1))],
        lambda dtype, ranks, blocks: (dtype, ranks) in (("float64", 2), ("complex64", 1)),
    ),
)
def test_tiles(dtype, ranks, blocks):
    n, mesh = 61, cases.line(ranks)
    scale = np.asarray(1.5 + 0.5j if np.dtype(dtype).kind == "c" else 1.5, dtype)[()]
    made = jaxmg.Tiles(_entries, (n, n), dtype, scale)
    index = jnp.arange(n, dtype=jnp.int32)
    a = np.asarray(_entries(index, index, scale))
    assert not np.allclose(a, a.T)
    b = host_cases.general(n, dtype, 2)[1]
    memory = _budget(n, dtype, ranks, blocks, 2)
    with host_cases.out_of_core() as found:
        x, sign, logdet = jaxmg.gesv(made, b, mesh=mesh, memory=memory, return_logdet=True)
    assert found and found[0].layout.ranks == ranks
    host_cases.check(a, x, b)
    _check_determinant(a, sign, logdet)
    host_cases.check(a, jaxmg.gesv(made, b, mesh=mesh), b)
    factor = jaxmg.lu_factor(made, mesh=mesh, memory=_budget(n, dtype, ranks, blocks))
    host_cases.check(a.T, factor.solve(b, "T"), b)
    assert isinstance(jaxmg.lu_factor(made, mesh=mesh), jaxmg.LUFactor)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_tiles_of_small_orders(n):
    made = jaxmg.Tiles(_entries, (n, n), "float64", 1.5)
    index = jnp.arange(n, dtype=jnp.int32)
    a, b = np.asarray(_entries(index, index, 1.5)), np.ones((n, 1))
    for memory in (None, 1e9):
        host_cases.check(a, jaxmg.gesv(made, b, mesh=cases.line(3), memory=memory), b)


@pytest.mark.parametrize(
    "dtype, ranks, blocks, at",
    cases.broad(
        [
            (dtype, *cut, at)
            for dtype in ("float64", "complex64")
            for cut in ((1, 1), (1, 5), (3, 2))
            for at in (0, 13, 39)
        ],
        lambda *case: case in (("complex64", 1, 5, 13), ("float64", 3, 2, 39)),
    ),
)
def test_singular(dtype, ranks, blocks, at):
    n = 40
    a, b = host_cases.general(n, dtype, 1)
    a[at] = 0
    memory, mesh = _budget(n, dtype, ranks, blocks), cases.line(ranks)
    named = {"mesh": mesh, "return_logdet": True, "return_status": True}
    expected = jaxmg.gesv(a, b, **named)
    for order in "CF":
        stored = np.array(a if order == "C" else a.T, order=order)
        x, sign, logdet, status = jaxmg.gesv(stored, b, memory=memory, **named)
        assert status == at + 1 == expected[3]
        assert sign == 0 and logdet == -np.inf and not np.isfinite(x).all()
        factor = jaxmg.lu_factor(stored, mesh=mesh, memory=memory)
        assert factor.status == at + 1 and factor.det() == 0
    a[n - 1, n - 1] = np.nan
    x, sign, logdet, status = jaxmg.gesv(a, b, memory=memory, **named)
    assert status == -1 and np.isnan([*np.ravel(x), sign, logdet]).all()
    factor = jaxmg.lu_factor(a, mesh=mesh, memory=memory)
    assert factor.status == -1 and np.isnan(factor.det()) and np.isnan(factor.solve(b)).all()


def test_what_fits_stays_in_core():
    n = 48
    a, b = host_cases.general(n, "float64")
    expected = jaxmg.gesv(a, b, mesh=cases.line(2))
    with host_cases.out_of_core() as found:
        np.testing.assert_array_equal(jaxmg.gesv(a, b, mesh=cases.line(2), memory=1e9), expected)
        factor = jaxmg.lu_factor(a, mesh=cases.line(2), memory=1e9)
    assert not found and isinstance(factor, jaxmg.LUFactor)


def test_interrupted_between_two_block_columns(monkeypatch):
    n = 60
    a, b = host_cases.general(n, "float64")
    memory, operand, seen = _budget(n, "float64", 1, 5), block_columns.operand, []

    def interrupt(handle, j, direction=0):
        seen.append((j, direction))
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)
        return operand(handle, j, direction)

    # Programs that a shell has started in the background ignore SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(block_columns, "operand", interrupt)
            with pytest.raises(KeyboardInterrupt):
                jaxmg.gesv(a, b, mesh=cases.line(1), memory=memory)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(seen) == 3
    host_cases.check(a, jaxmg.gesv(a, b, mesh=cases.line(1), memory=memory), b)


def test_invalid_calls(monkeypatch):
    n = 20
    a, b = host_cases.general(n, "float64")
    memory, mesh = _budget(n, "float64", 1, 4), cases.line(1)

    def solve(b):
        return jaxmg.gesv(a, b, mesh=mesh, memory=memory)

    for traced in (jax.jit(solve), jax.grad(lambda b: solve(b).sum())):
        with pytest.raises(
            ValueError, match="gesv: a matrix in host memory .* in eager calls only"
        ):
            traced(b)
    for named, words in (
        ({"T_A": 8}, "T_A=8 isn't supported for a matrix in host memory"),
        ({"refine": "float32"}, "refine='float32' isn't supported for a matrix in host memory"),
        ({"backend": "cusolvermp"}, "backend 'cusolvermp' is not available"),
    ):
        with pytest.raises(ValueError, match=f"gesv: .*{words}"):
            jaxmg.gesv(a, b, mesh=mesh, memory=memory, **named)
    with pytest.raises(ValueError, match="memory=100 bytes of each device aren't enough"):
        jaxmg.lu_factor(a, mesh=mesh, memory=100)
    with pytest.raises(ValueError, match="gesv: memory= is for a matrix in host memory"):
        jaxmg.gesv(jnp.asarray(a), b, memory=1e9)
    wide = jaxmg.Tiles(_entries, (n, n + 1), "float64", 1.5)
    with pytest.raises(ValueError, match="lu_factor: a must be a square matrix"):
        jaxmg.lu_factor(wide)
    monkeypatch.setenv(pool.VARIABLE, "1e-6")
    with pytest.raises(MemoryError, match="gesv: the factor, with donate=False beside a, needs"):
        solve(b)
    monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: False)  # needs no memory
    x = jaxmg.gesv(a.copy(), b, mesh=mesh, memory=memory, donate=True)
    host_cases.check(a, x, b)
