"""Matrices in host memory, and budgets of device memory that cut them into block columns."""

import contextlib

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._call import checks
from jaxmg._host import block_columns, plans
from jaxmg._plugin import plugins

# By order, bytes of each device beyond b, and whether for LU.
_WIDTHS: dict = {}


@pytest.fixture
def small_devices(monkeypatch):
    """Lets calls with less than 1 GB of device memory leave the core, although their matrices are
    so small that they would fit; and in block columns that are narrower than those of the plugin's
    plans, for memory from `budget`."""
    widest = plans.widest

    def fits(layout, native, n, dtype, nrhs, memory, copies):
        return memory is None or memory >= 1e9

    def narrow(layout, n, nrhs, dtype, memory, products, whole):
        width = _WIDTHS.get((n, memory, whole))
        if width is None:
            return widest(layout, n, nrhs, dtype, memory, products, whole)
        plugin = plugins.load(layout.platform)
        return plugin.host_plan(
            str(dtype), n, nrhs, layout.ranks, layout.platform, memory, width, products,
            *[whole] * whole,
        )  # fmt: skip

    monkeypatch.setattr(plans, "fits_in_core", fits)
    monkeypatch.setattr(plans, "widest", narrow)


def budget(n, dtype, ranks, blocks, nrhs=1, cache=0, whole=False):
    """Returns the bytes of each device with which a call has about so many block columns.

    Args:
        cache: elements of the factor that fit on each device beside these.
        whole: whether for LU.
    """
    nrhs, size = max(nrhs, 1), np.dtype(dtype).itemsize
    plugin = plugins.load(jax.default_backend())
    width = -(-n // blocks)
    plan = plugin.host_plan(
        str(np.dtype(dtype)), n, nrhs, ranks, "cpu", 0, width, checks.DEFAULT, *[whole] * whole
    )
    room = plan["bytes"] + cache * size
    _WIDTHS[n, room, whole] = width
    return room + n * nrhs * size


def problem(n, dtype, nrhs=None):
    """Returns a positive definite matrix and right-hand sides, (n,) for None."""
    a = cases.positive_definite("well", n, dtype) if n else np.zeros((0, 0), dtype)
    shape = (n,) if nrhs is None else (n, nrhs)
    return a, cases.normal(cases.rng(n, 1), shape, dtype).astype(dtype)


def general(n, dtype, nrhs=None):
    """Returns a general matrix and right-hand sides, (n,) for None."""
    a = cases.normal(cases.rng(n, 2), (n, n), dtype).astype(dtype)
    shape = (n,) if nrhs is None else (n, nrhs)
    return a, cases.normal(cases.rng(n, 3), shape, dtype).astype(dtype)


@contextlib.contextmanager
def out_of_core():
    """Yields a list of the geometries of the calls that leave the core."""
    found, names = [], ("host_factor", "host_lu")
    makers = [getattr(block_columns, name) for name in names]

    def watching(make):
        def watched(geometry):
            found.append(geometry)
            return make(geometry)

        return watched

    for name, make in zip(names, makers, strict=True):
        setattr(block_columns, name, watching(make))
    try:
        yield found
    finally:
        for name, make in zip(names, makers, strict=True):
            setattr(block_columns, name, make)


def check(a, x, b):
    """Checks the backward error of a solution."""
    __tracebackhide__ = True
    a, x, b = np.asarray(a), np.asarray(x), np.asarray(b)
    assert x.shape == b.shape and x.dtype == b.dtype
    if not x.size:
        return
    error = np.abs(a @ x - b).max()
    scale = np.abs(a).sum(1).max() * np.abs(x).max() + np.abs(b).max()
    assert error <= 20 * len(a) * cases.eps(a.dtype) * scale


def kernel(rows, columns, scale, noise):
    """Entries of a positive definite matrix. Complex if ``scale`` is."""
    apart = (rows[:, None] - columns).astype(jnp.real(scale).dtype)
    value = (
        jnp.exp(-jnp.abs(apart) / 3) * jnp.exp(1j * apart / 7)
        if jnp.iscomplexobj(scale)
        else jnp.exp(-jnp.abs(apart) / 3)
    )
    return (value * scale + noise * (apart == 0)).astype(scale.dtype)


def tiles(n, dtype, scale=1.5, noise=0.5):
    """Returns `jaxmg.Tiles`, and the same matrix as an array."""
    scale = np.asarray(scale, dtype)
    made = jaxmg.Tiles(kernel, (n, n), dtype, scale, np.asarray(noise, scale.real.dtype))
    index = np.arange(n, dtype=np.int32)
    return made, np.asarray(kernel(jnp.asarray(index), jnp.asarray(index), *made.parameters))


def has_pinned_host():
    """Whether this JAX has host memory of CPU devices."""
    return "pinned_host" in [m.kind for m in jax.devices()[0].addressable_memories()]


def pinned(a, mesh, *entries):
    """Returns ``a`` in host memory of the mesh's devices, each shard in memory of its own: JAX
    copies arrays that don't begin at a multiple of 64 bytes."""
    memory = np.empty(a.size + 1, a.dtype)
    start = int(memory.ctypes.data % 64 == 0)
    apart = memory[start : start + a.size].reshape(a.shape)
    apart[:] = a
    sharding = NamedSharding(mesh, P(*entries), memory_kind="pinned_host")
    return jax.device_put(apart, sharding)
