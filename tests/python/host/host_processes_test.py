"""Matrices in host memory in jobs of several processes: each solves by itself, or all together."""

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxmg
from jaxmg._host import passes, pool
from jaxmg._plugin import plugins

pytestmark = pytest.mark.usefixtures("small_devices")
small_devices = host_cases.small_devices
several = pytest.mark.skipif(jax.process_count() == 1, reason="needs devices of several processes")


def shared(each):
    """Returns a mesh of so many devices of each process."""
    by_process = [
        [device for device in jax.devices() if device.process_index == index][:each]
        for index in range(jax.process_count())
    ]
    return Mesh(np.array(by_process).ravel(), ("r",))


def test_each_process_on_its_own_devices():
    n, mesh = 30, Mesh(np.array(jax.local_devices()[:2]), ("r",))
    made, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", 2, 3)
    for operand in (made, a):
        host_cases.check(a, jaxmg.potrs(operand, np.ones(n), mesh=mesh, memory=memory), np.ones(n))
    host_cases.check(a, jaxmg.potrs(made, np.ones(n), memory=memory), np.ones(n))


@several
@pytest.mark.parametrize(
    "dtype, each, blocks", [("float64", 2, 3), ("complex64", 1, 100), ("float32", 2, 1)]
)
def test_tiles_of_several_processes(dtype, each, blocks):
    n, mesh = 61, shared(each)
    made, a = host_cases.tiles(n, dtype)
    b = host_cases.problem(n, dtype, 2)[1]
    memory = host_cases.budget(n, dtype, mesh.size, blocks, 2)
    with host_cases.out_of_core() as found:
        x, logdet, status = jaxmg.potrs(
            made, b, mesh=mesh, memory=memory, return_logdet=True, return_status=True
        )
    assert status == 0 and found[0].layout.processes and (found[0].blocks == 1) == (blocks == 1)
    host_cases.check(a, x, b)
    np.testing.assert_allclose(logdet, np.linalg.slogdet(a)[1], rtol=50 * n * cases.eps(dtype))
    # A factor is kept by all processes, each its part of it.
    memory = host_cases.budget(n, dtype, mesh.size, blocks, cache=n * n // 9)
    factor = jaxmg.cho_factor(made, mesh=mesh, memory=memory)
    assert 0 < factor.nbytes < 0.8 * n * n * a.itemsize
    for right in (b, b[:, 0]):
        host_cases.check(a, factor.solve(right), right)
    factor.release()
    host_cases.check(a, jaxmg.potrs(made, b, mesh=mesh), b)  # in core


@several
@pytest.mark.parametrize("dtype, blocks", [("float64", 4), ("complex64", 100)])
def test_factors_of_general_matrices(dtype, blocks):
    n, mesh = 47, shared(2)
    made, a = host_cases.tiles(n, dtype)
    b = host_cases.problem(n, dtype, 2)[1]
    memory = host_cases.budget(n, dtype, mesh.size, blocks, 2, n * n // 9, whole=True)
    host_cases.check(a, jaxmg.gesv(made, b, mesh=mesh, memory=memory), b)
    memory = host_cases.budget(n, dtype, mesh.size, blocks, whole=True)
    factor = jaxmg.lu_factor(made, mesh=mesh, memory=memory)
    for trans, op in (("N", a), ("T", a.T), ("C", a.conj().T)):
        host_cases.check(op, factor.solve(b, trans), b)


@several
@pytest.mark.parametrize("pageable", [False, True])
def test_file_that_all_processes_map(pageable, tmp_path_factory, monkeypatch):
    n, mesh = 40, shared(2)
    if pageable:
        monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: bool(places))
    a, b = host_cases.problem(n, "float64", 1)
    path = tmp_path_factory.getbasetemp() / "a.bin"  # of each process, with the same content
    a.tofile(path)
    mapped = np.memmap(path, "float64", "r", 0, (n, n))
    memory = host_cases.budget(n, "float64", mesh.size, 3)
    host_cases.check(a, jaxmg.potrs(mapped, b, mesh=mesh, memory=memory), b)
    host_cases.check(a, jaxmg.potrs(mapped.T, b, mesh=mesh, memory=memory), b)
    host_cases.check(a, jaxmg.gesv(mapped, b, mesh=mesh, memory=2 * memory), b)
    with pytest.raises(ValueError, match="potrs: donate=True isn't supported for a file"):
        jaxmg.potrs(mapped, b, mesh=mesh, memory=memory, donate=True)
    other = np.memmap(path, "float64", "c", 0, (n, n))
    other[0, 0] += jax.process_index()
    with pytest.raises(ValueError, match="potrs: processes 0 and 1 make different calls"):
        jaxmg.potrs(other, b, mesh=mesh, memory=memory)


@several
def test_likelihood_and_its_gradient():
    n, mesh = 50, shared(2)
    made, a = host_cases.tiles(n, "float64")
    y = host_cases.problem(n, "float64")[1]

    def value(scale, mesh, memory):
        tiles = jaxmg.Tiles(made.function, made.shape, made.dtype, scale, made.parameters[1])
        return jaxmg.gaussian_log_likelihood(tiles, y, mesh=mesh, memory=memory)

    memory = host_cases.budget(n, "float64", mesh.size, 3)
    expected = jax.value_and_grad(value)(1.5, Mesh(np.array(jax.local_devices()[:1]), ("r",)), None)
    for limit in (memory, None):
        found = jax.value_and_grad(value)(1.5, mesh, limit)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@several
def test_plan_is_for_each_process():
    memory, mesh = 1e6, shared(2)
    for routine, n in (("potrs", 800), ("qr", (40_000, 8))):
        plan, other = (
            jaxmg.plan(routine, n, "float64", devices, host=True, memory=memory)
            for devices in (mesh, mesh.size)
        )
        assert plan.width == other.width and plan.traffic == other.traffic
        assert plan.host_bytes == -(-other.host_bytes // jax.process_count())


@several
def test_not_positive_definite():
    n, mesh = 30, shared(1)
    made, _ = host_cases.tiles(n, "float64", -1.0, 0.0)
    memory = host_cases.budget(n, "float64", mesh.size, 3)
    x, status = jaxmg.potrs(made, np.ones(n), mesh=mesh, memory=memory, return_status=True)
    assert status == 1 and np.isnan(x).all()


@several
def test_error_of_one_process_is_one_of_all(monkeypatch):
    n, mesh = 30, shared(2)
    made, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", mesh.size, 3)
    here, last = jax.process_index(), jax.process_count() - 1
    if here == last:
        monkeypatch.setattr(pool, "available", lambda: (10, "a limit"))
    for call in (
        lambda: jaxmg.potrs(made, np.ones(n), mesh=mesh, memory=memory),
        lambda: jaxmg.lu_factor(made, mesh=mesh, memory=2 * memory),
    ):
        words = "only 10 bytes are there" if here == last else f"process {last} has failed before"
        with pytest.raises(MemoryError if here == last else RuntimeError, match=words):
            call()
    monkeypatch.undo()
    monkeypatch.setenv("JAXMG_HOST_MEMORY_GB", "1")
    with pytest.raises(ValueError, match="there is no matrix"):
        plugins.load(jax.default_backend()).host_close(10**6)


@several
def test_arrays_of_one_process_are_refused():
    n, mesh = 30, shared(2)
    _, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", mesh.size, 3)
    for operand in (a, np.asfortranarray(a)):
        for call in (jaxmg.potrs, jaxmg.gesv):
            with pytest.raises(
                ValueError, match="be jaxmg.Tiles or a NumPy array that maps a file"
            ):
                call(operand, np.ones(n), mesh=mesh, memory=memory)


def cosines(rows, columns, scale):
    return jnp.cos((rows[:, None] + 0.5) * (columns + 1) / 40) * scale


@several
@pytest.mark.parametrize("made", [True, False])
def test_tall_matrices(made, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(passes, "fits_in_core", lambda layout, a, memory: memory is None)
    m, n, mesh = 150, 5, shared(2)
    index = np.arange(m, dtype=np.int32)
    a = np.asarray(cosines(jnp.asarray(index), jnp.arange(n), np.float64(1.5)))
    b = cases.normal(cases.rng(m), (m, 2), "float64")
    if made:
        operand = jaxmg.Tiles(cosines, (m, n), "float64", np.float64(1.5))
    else:
        path = tmp_path_factory.getbasetemp() / "tall.bin"
        a.tofile(path)
        operand = np.memmap(path, "float64", "r", 0, (m, n))
        monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: bool(places))
    x, resid, rank, s = jaxmg.linalg.lstsq(operand, b, mesh=mesh, memory=3e4)
    best, squares, _, values = np.linalg.lstsq(a, b, rcond=None)
    for found, expected in ((x, best), (resid, squares), (s, values)):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert rank == n
    x = jaxmg.linalg.least_squares(operand, b, 0.5, mesh=mesh, memory=3e4)
    ridge = np.linalg.solve(a.T @ a + 0.25 * np.eye(n), a.T @ b)
    np.testing.assert_allclose(x, ridge, rtol=1e-9)
    r = np.asarray(jaxmg.linalg.qr(operand, "r", mesh=mesh, memory=3e4))
    np.testing.assert_allclose(r.T @ r, a.T @ a, rtol=1e-10)
    with pytest.raises(ValueError, match="be jaxmg.Tiles or a NumPy array that maps a file"):
        jaxmg.linalg.lstsq(a, b, mesh=mesh, memory=3e4)
