"""Solves and factors of matrices in host memory, which pass through CPU devices by block columns.

Budgets of device memory cut matrices into 1, 2, 5 and about 100 block columns.
"""

import gc
import resource
import signal

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._host import block_columns, driver, matrices, pool
from jaxmg._plugin import plugins

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
        marks=() if n in (1, 2, 7, 23, 42, 59, 60) else (pytest.mark.breadth,),
    )
    for n in range(1, 61)
]


@pytest.mark.parametrize("n, ranks, dtype, nrhs, blocks", _ORDERS)
def test_every_order(n, ranks, dtype, nrhs, blocks):
    a, b = host_cases.problem(n, dtype, nrhs)
    mesh, before = cases.line(ranks), a.copy()
    memory, cached = (
        host_cases.budget(n, dtype, ranks, blocks, nrhs, cache)
        for cache in (0, n * n // (2 + n % 7))
    )
    donated = a.copy()
    with host_cases.out_of_core() as found:
        x, logdet, status = jaxmg.potrs(
            a, b, mesh=mesh, memory=memory, return_logdet=True, return_status=True
        )
        y = jaxmg.potrs(donated, b, mesh=mesh, memory=cached, donate=True)
    assert x.sharding.is_fully_replicated and set(x.devices()) == set(mesh.devices.flat)
    assert status.shape == () and status.dtype == np.int32 and status == 0
    host_cases.check(a, x, b)
    np.testing.assert_allclose(
        logdet, np.linalg.slogdet(a)[1], rtol=0, atol=50 * n * n * cases.eps(dtype)
    )
    np.testing.assert_array_equal(a, before)
    np.testing.assert_array_equal(x, y)
    upper = np.linalg.cholesky(a).conj().T
    np.testing.assert_allclose(np.triu(donated), upper, atol=50 * n * cases.eps(dtype))
    assert [geometry.blocks for geometry in found] == [found[0].blocks] * 2
    assert found[0].cache == 0 and (found[1].cache > 0 or n == 1)
    assert (found[0].blocks == 1) == (blocks == 1 or n <= ranks)


@pytest.mark.parametrize(
    "blocks, ranks, dtype",
    cases.broad(
        [
            (blocks, ranks, dtype)
            for blocks in _BLOCKS
            for ranks in (1, 3)
            for dtype in cases.DTYPES
        ],
        lambda blocks, ranks, dtype: (
            (blocks, ranks, dtype)
            in ((2, 1, "complex128"), (5, 3, "float64"), (100, 1, "float32"), (5, 1, "complex64"))
        ),
    ),
)
def test_kept_factor(blocks, ranks, dtype):
    n = 100
    a, b = host_cases.problem(n, dtype, 3)
    memory = host_cases.budget(n, dtype, ranks, blocks, cache=n * n // 5)
    factor = jaxmg.cho_factor(a, mesh=cases.line(ranks), memory=memory)
    assert len(factor._cache) == 1
    assert isinstance(factor, jaxmg.HostCholeskyFactor)
    assert factor.shape == (n, n) and factor.dtype == a.dtype and factor.status == 0
    for right in (b, b[:, 0], b[:, :0]):
        host_cases.check(a, jaxmg.cho_solve(factor, right), right)
        host_cases.check(a, factor.solve(jnp.asarray(right)), right)
    expected = np.linalg.slogdet(a)[1]
    np.testing.assert_allclose(factor.logdet(), expected, rtol=50 * n * cases.eps(dtype))
    assert factor.log_det == factor.logdet() and factor.logdet().dtype == a.real.dtype
    upper = driver.read(factor._geometry, factor._storage)
    np.testing.assert_allclose(upper.conj().T @ upper, a, atol=50 * n * cases.eps(dtype))
    assert n * n * a.itemsize / 2 <= factor.nbytes < 1.6 * n * n * a.itemsize
    assert "HostCholeskyFactor(n=100" in repr(factor)
    factor.release()
    factor.release()
    assert factor.nbytes == 0 and "released" in repr(factor) and not factor._cache
    with pytest.raises(RuntimeError, match="cho_solve: the factor has been released"):
        factor.solve(b)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_donated_array_becomes_the_factor(dtype):
    n = 40
    a, b = host_cases.problem(n, dtype)
    donated = a.copy()
    memory = host_cases.budget(n, dtype, 1, 4)
    factor = jaxmg.cho_factor(donated, mesh=cases.line(1), memory=memory, donate=True)
    assert factor.nbytes == 0
    upper = np.triu(donated)
    np.testing.assert_allclose(upper.conj().T @ upper, a, atol=50 * n * cases.eps(dtype))
    host_cases.check(a, factor.solve(b), b)


@pytest.mark.parametrize(
    "dtype, donate",
    cases.broad(
        [(dtype, donate) for dtype in cases.DTYPES for donate in (False, True)],
        lambda dtype, donate: (
            dtype == ("float32" if donate else "complex128") or dtype == "complex64"
        ),
    ),
)
def test_fortran_order_reads_the_lower_triangle(dtype, donate):
    n = 30
    a, b = host_cases.problem(n, dtype, 2)
    fortran = np.asfortranarray(a)
    memory = host_cases.budget(n, dtype, 1, 3, 2)
    x = jaxmg.potrs(fortran, b, mesh=cases.line(1), memory=memory, donate=donate)
    host_cases.check(a, x, b)
    if donate:
        lower = np.tril(fortran)
        np.testing.assert_allclose(lower @ lower.conj().T, a, atol=50 * n * cases.eps(dtype))
    else:
        np.testing.assert_array_equal(fortran, a)
        with pytest.raises(ValueError, match="Fortran-ordered .* its triangles differ"):
            jaxmg.potrs(np.asfortranarray(np.triu(a)), b, mesh=cases.line(1), memory=memory)
        x = jaxmg.potrs(np.triu(a), b, mesh=cases.line(1), memory=memory)
        host_cases.check(a, x, b)


def test_rows_that_are_apart():
    n = 24
    a, b = host_cases.problem(n, "float64")
    memory, mesh = host_cases.budget(n, "float64", 1, 3), cases.line(1)
    wide = np.full((n + 3, n + 5), np.nan)
    wide[:n, :n] = a
    x = jaxmg.potrs(wide[:n, :n], b, mesh=mesh, memory=memory)
    host_cases.check(a, x, b)
    assert np.isnan(wide[:, n:]).all() and np.isnan(wide[n:]).all()
    x = jaxmg.potrs(wide[:, :n], b, mesh=mesh, memory=memory, pad=False)
    host_cases.check(a, x, b)
    bytes_ = np.zeros(a.nbytes + 1, np.uint8)
    unaligned = bytes_[1:].view("float64").reshape(n, n)
    unaligned[:] = a
    host_cases.check(a, jaxmg.potrs(unaligned, b, mesh=mesh, memory=memory), b)
    for strange in (wide[:n, :n][::-1, ::-1], np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2]):
        with pytest.raises(ValueError, match="C- or Fortran-ordered.*ascontiguousarray"):
            jaxmg.potrs(strange, b, mesh=mesh, memory=memory)


def test_file(tmp_path):
    n = 50
    a, b = host_cases.problem(n, "float64")
    path, offset = tmp_path / "a.bin", 4099
    with open(path, "wb") as file:
        file.write(bytes(offset))
        file.write(a.tobytes())
    memory, mesh = host_cases.budget(n, "float64", 2, 3), cases.line(2)
    read = np.memmap(path, "float64", "r", offset, (n, n))
    host_cases.check(a, jaxmg.potrs(read, b, mesh=mesh, memory=memory), b)
    with pytest.raises(ValueError, match=r"potrs: donate=True overwrites a .* read-only"):
        jaxmg.potrs(read, b, mesh=mesh, memory=memory, donate=True)
    written = np.memmap(path, "float64", "r+", offset, (n, n))
    host_cases.check(a, jaxmg.potrs(written, b, mesh=mesh, memory=memory), b)
    np.testing.assert_array_equal(np.fromfile(path, "float64", offset=offset).reshape(n, n), a)
    host_cases.check(a, jaxmg.potrs(written, b, mesh=mesh, memory=memory, donate=True), b)
    written.flush()
    upper = np.triu(np.fromfile(path, "float64", offset=offset).reshape(n, n))
    np.testing.assert_allclose(upper.T @ upper, a, atol=1e-12)


@pytest.mark.parametrize("kind", ["memmap", "view", "array", "offset"])
def test_file_that_has_been_cut_off(tmp_path, kind):
    """Reading beyond its end would end the process."""
    n = 64
    a, b = host_cases.problem(n, "float64")
    path = tmp_path / "a.bin"
    a.tofile(path)
    a = np.memmap(path, "float64", "r", 0, (n, n))
    if kind == "view":
        a = a[: n // 2, : n // 2]
        b = b[: n // 2]
    needed = n * n * 8 if kind != "view" else (n // 2 - 1) * n * 8 + n // 2 * 8
    if kind == "offset":
        a, b = np.memmap(path, "float64", "r", 8200, (48, 48)), b[:48]
        needed = 8200 + 48 * 48 * 8
    a = np.asarray(a) if kind == "array" else a
    memory = host_cases.budget(len(a), "float64", 1, 3)
    with open(path, "r+b") as file:
        file.truncate(needed - 1)
    with pytest.raises(ValueError, match=r"the file of a.* bytes, and a needs .* cut off"):
        jaxmg.potrs(a, b, mesh=cases.line(1), memory=memory)


_needs_pinned_host = pytest.mark.skipif(
    not host_cases.has_pinned_host(), reason="this JAX has no pinned_host on CPU devices"
)


@_needs_pinned_host
@pytest.mark.parametrize(
    "entries, ranks, blocks, donate",
    [
        # Of three block columns each has rows of two shards.
        ((), 1, 5, True), (("r",), 4, 3, False), cases.breadth((), 1, 5, False),
        cases.breadth((), 3, 5, False), cases.breadth((), 3, 5, True),
        cases.breadth(("r",), 2, 5, True), cases.breadth(("r",), 4, 5, True),
    ],
)  # fmt: skip
def test_pinned_host(entries, ranks, blocks, donate):
    n = 48
    a, b = host_cases.problem(n, "complex128", 2)
    mesh = cases.line(ranks)
    host = host_cases.pinned(a, mesh, *entries)
    memory = host_cases.budget(n, "complex128", ranks, blocks, 2)
    with host_cases.out_of_core() as found:
        x = jaxmg.potrs(host, b, memory=memory, donate=donate)
    assert found[0].layout.ranks == ranks and found[0].blocks > 1
    assert x.sharding == NamedSharding(mesh, P()) or ranks == 1
    host_cases.check(a, x, b)
    assert host.is_deleted() == donate
    if not donate:
        np.testing.assert_array_equal(np.asarray(host), a)
        columns = host_cases.pinned(a, cases.line(2), None, "r")
        with pytest.raises(ValueError, match="must be whole or sharded by rows"):
            jaxmg.potrs(columns, b, memory=memory)


@pytest.mark.core("complex64")
@pytest.mark.parametrize(
    "dtype, ranks, blocks",
    cases.broad(
        [(dtype, *cut) for dtype in cases.DTYPES for cut in ((1, 5), (3, 2), (2, 100), (4, 1))],
        lambda dtype, ranks, blocks: (
            (dtype, ranks) in (("float64", 2), ("complex64", 1), ("float32", 4), ("complex128", 3))
        ),
    ),
)
def test_tiles(dtype, ranks, blocks):
    n = 61
    made, a = host_cases.tiles(n, dtype)
    b = host_cases.problem(n, dtype, 2)[1]
    memory = host_cases.budget(n, dtype, ranks, blocks, 2)
    mesh = cases.line(ranks)
    with host_cases.out_of_core() as found:
        x, logdet = jaxmg.potrs(made, b, mesh=mesh, memory=memory, return_logdet=True)
    assert found and found[0].layout.ranks == ranks
    host_cases.check(a, x, b)
    np.testing.assert_allclose(logdet, np.linalg.slogdet(a)[1], rtol=50 * n * cases.eps(dtype))
    in_core = jaxmg.potrs(made, b, mesh=mesh)
    host_cases.check(a, in_core, b)
    memory = host_cases.budget(n, dtype, ranks, blocks)
    factor = jaxmg.cho_factor(made, mesh=mesh, memory=memory)
    host_cases.check(a, factor.solve(b), b)
    assert isinstance(jaxmg.cho_factor(made, mesh=mesh), jaxmg.CholeskyFactor)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8])
def test_tiles_of_small_orders(n):
    made, a = host_cases.tiles(n, "float64")
    for ranks in (1, 3):
        b = np.ones((n, 1))
        host_cases.check(a, jaxmg.potrs(made, b, mesh=cases.line(ranks), memory=1e9), b)
        host_cases.check(a, jaxmg.potrs(made, b, mesh=cases.line(ranks)), b)


def test_tiles_are_compiled_once():
    n, traces = 40, []

    def kernel(rows, columns, scale):
        traces.append(rows.shape)
        return jnp.exp(-jnp.abs(rows[:, None] - columns) / scale) + (rows[:, None] == columns)

    def solve(scale):
        made = jaxmg.Tiles(kernel, (n, n), "float64", scale)
        memory = host_cases.budget(n, "float64", 1, 5)
        return jaxmg.potrs(made, np.ones(n), mesh=cases.line(1), memory=memory)

    solve(2.0)
    count = len(traces)
    solve(3.0)
    assert len(traces) <= count + 1  # the check of its result


def test_parameters_that_are_not_finite():
    made, _ = host_cases.tiles(30, "float64", np.nan)
    memory = host_cases.budget(30, "float64", 1, 3)
    for m in (None, memory):
        x, logdet, status = jaxmg.potrs(
            made, np.ones(30), mesh=cases.line(1), memory=m, return_status=True, return_logdet=True
        )
        assert status != 0 and np.isnan(x).all() and np.isnan(logdet)


@pytest.mark.parametrize(
    "dtype, ranks, blocks, at",
    cases.broad(
        [
            (dtype, *cut, at)
            for dtype in ("float64", "complex64")
            for cut in ((1, 1), (1, 5), (3, 2))
            for at in (0, 13, 39)
        ],
        lambda dtype, ranks, blocks, at: (
            (dtype, blocks, at)
            in (("float64", 1, 0), ("complex64", 2, 13), ("float64", 5, 39), ("float64", 2, 39))
        ),
    ),
)
def test_not_positive_definite(dtype, ranks, blocks, at):
    n = 40
    a, b = host_cases.problem(n, dtype, 1)
    a[at, at] = -1
    memory, mesh = host_cases.budget(n, dtype, ranks, blocks), cases.line(ranks)
    x, logdet, status = jaxmg.potrs(
        a, b, mesh=mesh, memory=memory, return_logdet=True, return_status=True
    )
    assert status == at + 1 and np.isnan(x).all() and np.isnan(logdet)
    factor = jaxmg.cho_factor(a, mesh=mesh, memory=memory)
    assert factor.status == at + 1 and np.isnan(factor.logdet()) and np.isnan(factor.solve(b)).all()
    a[at, at] = np.nan
    x, status = jaxmg.potrs(a, b, mesh=mesh, memory=memory, return_status=True)
    assert status != 0 and np.isnan(x).all()


def test_right_hand_sides_keep_their_sharding():
    n, mesh = 32, cases.line(2)
    a, b = host_cases.problem(n, "float64", 2)
    memory = host_cases.budget(n, "float64", 2, 2, 2)
    for entries in ((), ("r", None), (None, "r")):
        given = cases.shard(b, mesh, *entries)
        x = jaxmg.potrs(a, given, memory=memory)
        assert x.sharding.is_equivalent_to(given.sharding, 2)
        np.testing.assert_array_equal(given, b)
        host_cases.check(a, x, b)
    with cases.context(cases.line(4)):
        x = jaxmg.potrs(a, b, mesh=mesh, memory=memory)
    host_cases.check(a, x, b)


def test_what_fits_stays_in_core():
    n = 48
    a, b = host_cases.problem(n, "float64")
    expected = jaxmg.potrs(a, b, mesh=cases.line(2))
    with host_cases.out_of_core() as found:
        np.testing.assert_array_equal(jaxmg.potrs(a, b, mesh=cases.line(2), memory=1e9), expected)
        factor = jaxmg.cho_factor(a, mesh=cases.line(2), memory=1e9)
    assert not found and isinstance(factor, jaxmg.CholeskyFactor)


@pytest.mark.extended
@pytest.mark.parametrize("made", [False, True], ids=["array", "tiles"])
def test_many_calls_take_no_more_memory(made):
    n = 256
    a, b = host_cases.problem(n, "float64")
    a = host_cases.tiles(n, "float64")[0] if made else a
    memory, mesh = host_cases.budget(n, "float64", 2, 8), cases.line(2)

    def solve():
        jaxmg.potrs(a, b, mesh=mesh, memory=memory).block_until_ready()
        jaxmg.cho_factor(a, mesh=mesh, memory=memory).solve(b).block_until_ready()

    for _ in range(3):
        solve()
    gc.collect()
    arrays, before = len(jax.live_arrays()), _resident()
    for _ in range(20):
        solve()
    gc.collect()
    assert len(jax.live_arrays()) <= arrays
    assert _resident() - before < 20 * n * n * 8 / 4


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_interrupted_between_two_block_columns(monkeypatch):
    n = 60
    a, b = host_cases.problem(n, "float64")
    before, memory = a.copy(), host_cases.budget(n, "float64", 1, 5)
    plugin = plugins.load(jax.default_backend())
    opened, closed = [], []

    class Watched:
        def __getattr__(self, name):
            return getattr(plugin, name)

        def host_open(self, spec):
            opened.append(plugin.host_open(spec))
            return opened[-1]

        def host_close(self, handle):
            closed.append(handle)
            plugin.host_close(handle)

    watched = Watched()
    monkeypatch.setattr(plugins, "load", lambda platform: watched)
    operand, seen = block_columns.operand, []

    def interrupt(handle, j, direction=0):
        seen.append((j, direction))
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)
        return operand(handle, j, direction)

    monkeypatch.setattr(block_columns, "operand", interrupt)
    # Programs that a shell has started in the background ignore SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            jaxmg.potrs(a, b, mesh=cases.line(1), memory=memory)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(seen) == 3 and opened == closed and opened
    host_cases.check(before, jaxmg.potrs(a, b, mesh=cases.line(1), memory=memory), b)
    assert opened == closed


def test_memory_as_the_matrix_has_it():
    a = np.arange(12.0).reshape(3, 4)[:, :3]
    matrix = matrices.describe("potrs", a, False)
    np.testing.assert_array_equal(matrices.view(matrix), a)
    assert matrix.block(1, 3, 1) == (a.ctypes.data + 8 * 5, 4)


def test_pool_has_all_memory_again():
    n = 64
    made, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", 1, 4)
    with jaxmg.pinned(4 * n * n * 8) as pinned:
        there = pinned.free
        matrix = pinned.array((n, n), "float64")
        matrix[:] = a
        x = jaxmg.potrs(matrix, np.ones(n), mesh=cases.line(1), memory=memory)
        assert pinned.free == there - n * n * 8
        host_cases.check(a, x, np.ones(n))
        factor = jaxmg.cho_factor(made, mesh=cases.line(1), memory=memory)
        assert pinned.free < there - n * n * 8 and pool._pools == [pinned]
        factor.release()
        del matrix
        gc.collect()
        assert pinned.free == there == pinned.bytes
    assert pool._pools == []
