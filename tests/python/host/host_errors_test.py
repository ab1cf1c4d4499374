"""Calls on matrices in host memory that can't be made, and what limits say."""

import pickle

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._host import passes, plans, pool
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins

pytestmark = [
    cases.one_process("arguments are checked before anything is computed"),
    pytest.mark.usefixtures("small_devices"),
]
small_devices = host_cases.small_devices

_N = 20
_A, _B = host_cases.problem(_N, "float64")
_EAGERLY = "a matrix in host memory .* work in eager calls only"


def _tiles():
    return host_cases.tiles(_N, "float64")[0]


@pytest.mark.parametrize("operand", ["array", "tiles"])
def test_traced_calls(operand):
    a = _A if operand == "array" else _tiles()
    named = {"memory": 1e9} if operand == "array" else {}
    mesh = cases.line(1)

    def solve(b):
        return jaxmg.potrs(a, b, mesh=mesh, **named)

    with pytest.raises(ValueError, match=f"potrs: {_EAGERLY}"):
        jax.jit(solve)(_B)
    with pytest.raises(ValueError, match=f"potrs: {_EAGERLY}"):
        jax.vmap(solve)(np.ones((3, _N)))
    with pytest.raises(ValueError, match=f"potrs: {_EAGERLY}"):
        jax.grad(lambda b: solve(b).sum())(_B)
    with pytest.raises(ValueError, match=f"potrs: {_EAGERLY}"):
        jax.jit(lambda b: b + solve(_B))(_B)
    with pytest.raises(ValueError, match="potrs: it takes global arrays, .* inside a shard_map"):
        jax.shard_map(solve, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(_B)


def test_traced_parameters():
    def factor(scale):
        made = jaxmg.Tiles(host_cases.kernel, (_N, _N), "float64", scale, 0.5)
        return jaxmg.cho_factor(made, mesh=cases.line(1)).logdet()

    for transformed in (jax.jit(factor), jax.grad(factor)):
        with pytest.raises(ValueError, match=f"cho_factor: {_EAGERLY}"):
            transformed(jnp.float64(1.5))
    with pytest.raises(ValueError, match=f"potrs: {_EAGERLY}"):
        jax.jit(lambda a: jaxmg.potrs(a, _B, memory=1e9))(_A)


def test_traced_right_hand_sides_of_a_factor():
    memory = host_cases.budget(_N, "float64", 1, 2)
    factor = jaxmg.cho_factor(_A, mesh=cases.line(1), memory=memory)
    for solve in (factor.solve, lambda b: b + factor.solve(_B)):
        with pytest.raises(ValueError, match=f"cho_solve: {_EAGERLY}"):
            jax.jit(solve)(_B)
    value = jax.grad(lambda b: b @ factor.solve(_B))(_B)  # a constant
    host_cases.check(_A, value, _B)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(factor)


@pytest.mark.parametrize(
    "a, b, named, error, words",
    [
        (_A, _B, {"memory": -1}, ValueError, "memory must be a positive number of bytes; got -1"),
        (_A, _B, {"memory": "8 GB"}, TypeError, "memory must be a number of bytes; got '8 GB'"),
        (_A, _B, {"memory": True}, TypeError, "memory must be a number of bytes; got True"),
        (_A, _B, {"memory": np.nan}, ValueError, "memory must be a positive number of bytes"),
        (_A, _B, {"memory": 100}, ValueError, "memory=100 bytes of each device aren't enough"),
        (_A, _B[:5], {}, ValueError, r"b must have shape \(20,\) or \(20, nrhs\)"),
        (_A, _B.astype("float32"), {}, TypeError, "a and b must have one dtype"),
        (_A[:5], _B, {}, ValueError, "a must be a square matrix"),
        (_A.astype("int64"), _B, {}, TypeError, "a has dtype int64; the supported dtypes are"),
        (_A.astype(">f8"), _B, {}, TypeError, "a has dtype >f8; the supported dtypes are"),
        (np.ma.array(_A), _B, {}, TypeError, "a is a masked array"),
        (_A[None], _B, {}, ValueError, r"with memory= a must be one matrix of shape \(n, n\)"),
        (_A.tolist(), _B, {}, TypeError, "a must be a JAX or NumPy array; got list"),
        (_A, _B, {"T_A": 8}, ValueError, "T_A=8 isn't supported for a matrix in host memory"),
        (_A, _B, {"refine": "float32"}, ValueError, "refine='float32' isn't supported for"),
        (_A, _B, {"backend": "cusolvermg"}, ValueError, "backend 'cusolvermg' is not available"),
        (_A, _B, {"precision": "tf32"}, ValueError, "precision='tf32' is for float32"),
        (np.triu(_A), _B, {"check": True}, ValueError, "a is not Hermitian: it differs from its"),
        (np.broadcast_to(1.0, (_N, _N)), _B, {}, ValueError, "C- or Fortran-ordered"),
    ],
)
def test_invalid_arguments(a, b, named, error, words):
    named = {"memory": host_cases.budget(_N, "float64", 1, 4)} | named
    with pytest.raises(error, match=f"potrs: .*{words}"):
        jaxmg.potrs(a, b, mesh=cases.line(1), **named)


def test_invalid_tiles():
    wide = jaxmg.Tiles(host_cases.kernel, (_N, _N + 1), "float64", 1.5, 0.5)
    with pytest.raises(ValueError, match=r"potrs: a must be a square matrix .* \(20, 21\)"):
        jaxmg.potrs(wide, _B)
    with pytest.raises(TypeError, match="must be a JAX or NumPy array; got Tiles"):
        jaxmg.linalg.solve(_tiles(), _B)
    for local in (jaxmg.potrs_shardmap_ctx, jaxmg.potrs_jit_ctx):
        with pytest.raises(TypeError, match="must be a JAX or NumPy array; got Tiles"):
            local(_tiles(), _B)


def test_matrices_on_devices():
    with pytest.raises(ValueError, match="potrs: memory= is for a matrix in host memory"):
        jaxmg.potrs(jnp.asarray(_A), _B, memory=1e9)
    with pytest.raises(ValueError, match="cho_factor: memory= is for a matrix in host memory"):
        jaxmg.cho_factor(jnp.asarray(_A), memory=1e9)


def test_64_bits_without_the_mode():
    with cases.without_64_bits():
        for memory in (None, 1e9):
            with pytest.raises(ValueError, match="a has dtype float64, which needs JAX's 64-bit"):
                jaxmg.potrs(_A, _B, memory=memory)
        a, b = _A.astype("float32"), _B.astype("float32")
        memory = host_cases.budget(_N, "float32", 1, 3)
        host_cases.check(a, jaxmg.potrs(a, b, mesh=cases.line(1), memory=memory), b)


def test_donated_memory_is_not_shared():
    memory = host_cases.budget(_N, "float64", 1, 4)
    a = _A.copy()
    with pytest.raises(ValueError, match="b shares its memory; pass a copy"):
        jaxmg.potrs(a, a[:, 0], mesh=cases.line(1), memory=memory, donate=True)
    np.testing.assert_array_equal(a, _A)


def test_right_hand_sides_are_kept():
    memory, b = host_cases.budget(_N, "float64", 1, 4), jnp.asarray(_B)
    jaxmg.potrs(_A, b, mesh=cases.line(1), memory=memory)
    np.testing.assert_array_equal(b, _B)


def test_devices_that_are_too_small(monkeypatch):
    """A NumPy array that doesn't fit the devices leaves the core by itself."""
    limit = -(-host_cases.budget(_N, "float64", 1, 4) * 16 // 15)
    monkeypatch.setattr(plans, "limit", lambda platform: limit)
    with host_cases.out_of_core() as found:
        x = jaxmg.potrs(_A, _B, mesh=cases.line(1))
        factor = jaxmg.cho_factor(_A, mesh=cases.line(1))
    assert len(found) == 2 and found[0].blocks == 4
    host_cases.check(_A, x, _B)
    host_cases.check(_A, factor.solve(_B), _B)
    # Under a transformation it stays a constant of the program.
    host_cases.check(_A, jax.jit(lambda b: jaxmg.potrs(_A, b, mesh=cases.line(1)))(_B), _B)


def test_host_memory_that_is_too_small(monkeypatch):
    memory = host_cases.budget(_N, "float64", 1, 4)
    monkeypatch.setenv(pool.VARIABLE, "1e-6")
    with pytest.raises(MemoryError, match="the factor, with donate=False beside a, needs .* kB of"):
        jaxmg.potrs(_A, _B, mesh=cases.line(1), memory=memory)
    with pytest.raises(MemoryError, match="cho_factor: the factor needs .* 1.0 kB are there"):
        jaxmg.cho_factor(_tiles(), mesh=cases.line(1), memory=memory)
    # GPUs need memory for the copies of a, too.
    monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: False)
    a = _A.copy()
    host_cases.check(_A, jaxmg.potrs(a, _B, mesh=cases.line(1), memory=memory, donate=True), _B)
    with pytest.raises(MemoryError, match=r"pinned: pinned\(4096\) needs 4.1 kB of host memory"):
        jaxmg.pinned(4096)


def test_narrower_block_columns_waste_less_host_memory(monkeypatch):
    """A factor is stored by rectangles, of which those on the diagonal are half empty."""
    n = 64
    made, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", 1, 2)

    def width():
        with host_cases.out_of_core() as found:
            x = jaxmg.potrs(made, np.ones(n), mesh=cases.line(1), memory=memory)
        host_cases.check(a, x, np.ones(n))
        return found[0].width

    assert width() == 32
    with jaxmg.pinned(5 * 4096):
        assert width() == 16
    monkeypatch.setenv(pool.VARIABLE, "20.5e-6")
    assert width() == 16
    monkeypatch.setenv(pool.VARIABLE, "17e-6")
    with pytest.raises(MemoryError, match="the factor needs 18.4 kB of host memory"):
        width()


def test_memory_that_cannot_be_pinned(monkeypatch):
    plugin = plugins.load("cpu")

    class Refuses:
        def __getattr__(self, name):
            return getattr(plugin, name)

        def pin(self, address, count):
            raise RuntimeError("the driver can't pin it")

    refuses = Refuses()
    memory, a = host_cases.budget(_N, "float64", 1, 4), _A.copy()
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "load", lambda platform: refuses)
        for call in (lambda: jaxmg.pinned(4096), lambda: jaxmg.cho_factor(a, memory=memory)):
            with pytest.raises(RuntimeError, match="the driver can't pin it"):
                call()
    assert pool._pools == []
    np.testing.assert_array_equal(a, _A)


def test_numbers_of_the_system_and_of_the_container(tmp_path, monkeypatch):
    there, source = pool.available()
    assert there > 2**20 and source
    assert pool._of_the_system() > 2**20
    for name, text in (("memory.max", "5000"), ("memory.current", "4000")):
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 500\n")
    assert pool._of_files(tmp_path) == 500
    assert pool._number(tmp_path / "memory.max") == 5000
    (tmp_path / "memory.max").write_text("max\n")
    assert pool._number(tmp_path / "memory.max") is None
    assert pool._number(tmp_path / "nothing") is None


def test_pinned():
    with jaxmg.pinned(3 * 4096) as memory:
        one, two = memory.array((4, 4), "float64"), memory.array(5, "complex64")
        assert one.shape == (4, 4) and two.shape == (5,) and two.dtype == np.complex64
        assert one.flags.writeable and one.ctypes.data % 4096 == 0
        one[:] = 1
        part = one[1:]
        del one
        assert memory.free == 4096 and "free" in repr(memory)
        with pytest.raises(MemoryError, match=r"an array of shape \(5000,\) and dtype uint8 needs"):
            memory.array(5000, "uint8")
        del part, two
        assert memory.free == memory.bytes == 3 * 4096
        kept = memory.array((2, 2), "float64")
        kept[:] = 7
    assert "released" in repr(memory)
    np.testing.assert_array_equal(kept, 7)
    memory.release()
    with pytest.raises(RuntimeError, match="PinnedMemory: the memory has been released"):
        memory.array(5, "uint8")
    for value, error in ((0, ValueError), (-5, ValueError), ("4", TypeError), (None, TypeError)):
        with pytest.raises(error, match="pinned: bytes must be a"):
            jaxmg.pinned(value)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="GPUs have wider tiles")
def test_plan():
    n, memory = 2000, 8e6
    plan = jaxmg.plan("potrs", n, "float64", 2, host=True, memory=memory)
    assert isinstance(plan, jaxmg.HostPlan) and plan.devices == 2
    assert plan.blocks == -(-n // plan.width) > 1 and plan.bytes <= plan.memory == memory
    assert n * n * 4 < plan.host_bytes < n * n * 8 and plan.fits
    assert plan.operations == n**3 / 3 + 2 * n**2
    assert plan.traffic > n * n * 8
    assert plan.seconds(1e9) == pytest.approx(plan.operations / 2e9)
    assert plan.seconds(1e30, 1e6) == pytest.approx(plan.traffic / 1e6)
    assert str(plan).startswith("potrs from host memory, n = 2000, float64, on 2 devices: ")
    donated = jaxmg.plan("cho_factor", n, "float64", 1, host=True, memory=memory, donate=True)
    assert donated.host_bytes == 0 and donated.traffic < plan.traffic + n * n * 16
    narrow = jaxmg.plan("potrs", n, "float64", 2, host=True, memory=memory / 4)
    assert narrow.blocks > plan.blocks and narrow.traffic > plan.traffic
    general = jaxmg.plan("gesv", n, "float64", 1, host=True, memory=memory, donate=True)
    assert general.host_bytes == 0 and general.bytes <= memory
    kept = jaxmg.plan("lu_factor", n, "float64", 1, host=True, memory=memory)
    assert kept.host_bytes >= n * n * 8 and kept.traffic < general.traffic
    assert general.operations == 2 * n**3 / 3 + 2 * n**2
    # Twice as much passes over the link for the same block columns.
    alike = jaxmg.plan("potrs", n, "float64", 1, host=True, memory=memory)
    assert general.traffic * general.width > 1.7 * alike.traffic * alike.width
    gradient = jaxmg.plan("gaussian_log_likelihood", n, "float64", 1, host=True, memory=memory)
    assert gradient.operations == n**3 + 2 * n**2 and gradient.host_bytes >= n * n * 4
    assert gradient.traffic > 1.5 * alike.traffic and gradient.width == alike.width
    with pytest.raises(
        ValueError, match="host=True is only for 'potrs', 'cho_factor', 'gesv', 'lu"
    ):
        jaxmg.plan("getri", n, "float64", 1, host=True, memory=memory)
    with pytest.raises(ValueError, match="memory=10 bytes of each device aren't enough"):
        jaxmg.plan("potrs", n, "float64", 1, host=True, memory=10)
    if layouts.device_memory(jax.default_backend()) is None:
        with pytest.raises(ValueError, match="host=True needs memory="):
            jaxmg.plan("potrs", n, "float64", 1, host=True)


def test_plan_of_tall_matrices():
    m, n, memory = 100_000, 30, 4e6
    plan = jaxmg.plan("lstsq", (m, n), "float64", 2, host=True, memory=memory, nrhs=3)
    assert isinstance(plan, jaxmg.HostPlan) and (plan.m, plan.n, plan.devices) == (m, n, 2)
    assert plan.blocks == -(-m // plan.width) > 2 and plan.bytes <= plan.memory == memory
    assert m * (n + 3) * 8 // 2 <= plan.traffic < m * (n + 3) * 5 and plan.fits
    assert plan.host_bytes == 4 * plan.width * (n + 3) * 8
    assert plan.seconds(1e9) == pytest.approx(plan.operations / 2e9)
    assert str(plan).startswith("lstsq from host memory, (100000, 30), float64, on 2 devices: ")
    of_r = jaxmg.plan("qr", (m, n), "complex64", 1, host=True, memory=memory)
    assert of_r.operations > 8 * m * n * n and of_r.traffic >= m * n * 8
    mesh, a = cases.line(2), np.ones((m, n))
    request = passes.choose("linalg.lstsq", a, np.ones((m, 3)), mesh, None, memory, True)
    assert (request.cut.rows, request.cut.bytes) == (plan.width, plan.bytes)
    for sizes in ((n, m), n, (m, n, 1), (m, 0)):
        with pytest.raises(
            ValueError, match=r"plan\('lstsq'\): n must be \(m, n\) with m >= n >= 1"
        ):
            jaxmg.plan("lstsq", sizes, "float64", 1, host=True, memory=memory)
    with pytest.raises(ValueError, match="R and one row of a, of shape .* need"):
        jaxmg.plan("qr", (m, n), "float64", 1, host=True, memory=100)
    with pytest.raises(ValueError, match="routine must be one of .* got 'qr'"):
        jaxmg.plan("qr", n, "float64")


def test_plan_is_the_call():
    n = 60
    memory = host_cases.budget(n, "float32", 2, 5, 3)
    plan = jaxmg.plan("potrs", n, "float32", 2, host=True, memory=memory, nrhs=3)
    a, b = host_cases.problem(n, "float32", 3)
    with host_cases.out_of_core() as found:
        jaxmg.potrs(a, b, mesh=cases.line(2), memory=memory)
    assert (found[0].width, found[0].tile, found[0].blocks) == (plan.width, plan.tile, plan.blocks)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_triangle_of_a_fortran_ordered_band(dtype):
    """Few entries aren't zero, and all of them are beside the diagonal."""
    n = 400
    a = np.diag(np.full(n, 4, dtype)) + np.diag(np.ones(n - 1, dtype), 1)
    memory = host_cases.budget(n, dtype, 1, 5)
    with pytest.raises(ValueError, match="its triangles differ"):
        jaxmg.potrs(np.asfortranarray(a), np.ones(n, dtype), memory=memory)


def test_spans_return_while_the_lock_is_held():
    """The garbage collector may end a span at any time."""
    with jaxmg.pinned(3 * 4096) as memory:
        span = memory.array(4096, "uint8")
        with memory._lock:
            del span
        assert memory.free == memory.bytes
