"""Pageable memory, which native calls copy through a ring of pinned memory. On CPU devices no
memory counts as pageable, so these tests say that it is."""

import cases
import host_cases
import numpy as np
import pytest

import jaxmg
from jaxmg._host import driver, pool

pytestmark = [
    cases.one_process("a matrix in host memory is computed with by one process"),
    pytest.mark.usefixtures("small_devices"),
]
small_devices = host_cases.small_devices


@pytest.fixture(params=[2**10, 2**15])
def ring(request, monkeypatch):
    """Makes rings of so many bytes; returns what has memory count as pageable."""
    monkeypatch.setattr(driver, "_RING", request.param)
    monkeypatch.setattr(driver, "_LEAST_RING", request.param)
    return lambda: monkeypatch.setattr(pool, "is_pageable", lambda plugin, places: bool(places))


@pytest.mark.parametrize(
    "dtype, ranks, blocks, donate",
    cases.broad(
        [
            (dtype, ranks, blocks, donate)
            for dtype in cases.DTYPES
            for ranks, blocks in ((1, 5), (2, 3), (4, 2), (3, 100))
            for donate in (False, True)
        ],
        lambda dtype, ranks, blocks, donate: (
            (dtype, ranks) in (("float64", 2), ("complex64", 1)) and donate == (ranks == 2)
        ),
    ),
)
def test_bits_are_those_without_a_ring(ring, dtype, ranks, blocks, donate, tmp_path):
    n = 53
    a, b = host_cases.problem(n, dtype, 2)
    memory, mesh = host_cases.budget(n, dtype, ranks, blocks, 2), cases.line(ranks)
    given = a.copy()
    expected = jaxmg.potrs(given, b, mesh=mesh, memory=memory, donate=donate)
    host_cases.check(a, expected, b)
    ring()
    if donate:
        other = a.copy()
    else:
        a.tofile(tmp_path / "a.bin")
        other = np.memmap(tmp_path / "a.bin", dtype, "r", 0, (n, n))
    x = jaxmg.potrs(other, b, mesh=mesh, memory=memory, donate=donate)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(other, given)
    kept = jaxmg.cho_factor(a, mesh=mesh, memory=host_cases.budget(n, dtype, ranks, blocks))
    host_cases.check(a, kept.solve(b), b)
    kept.release()


@pytest.mark.parametrize("ranks, donate", [(1, True), (3, False)])
def test_bits_of_lu_are_those_without_a_ring(ring, ranks, donate):
    n = 53
    a, b = host_cases.general(n, "float64", 2)
    memory, mesh = host_cases.budget(n, "float64", ranks, 5, 2, whole=True), cases.line(ranks)
    given, other = a.copy(), a.copy()
    expected = jaxmg.gesv(given, b, mesh=mesh, memory=memory, donate=donate)
    host_cases.check(a, expected, b)
    ring()
    x = jaxmg.gesv(other, b, mesh=mesh, memory=memory, donate=donate)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(other, given)
    memory = host_cases.budget(n, "float64", ranks, 5, whole=True)
    kept = jaxmg.lu_factor(a, mesh=mesh, memory=memory)
    host_cases.check(a.T, kept.solve(b, "T"), b)


def test_a_pool_has_the_ring(ring):
    n = 40
    a, b = host_cases.problem(n, "float64")
    memory, mesh = host_cases.budget(n, "float64", 1, 4), cases.line(1)
    ring()
    with jaxmg.pinned(1e6) as pinned:
        jaxmg.potrs(a, b, mesh=mesh, memory=memory)
        assert pinned.free == pinned.bytes
    with jaxmg.pinned(1) as small:
        with pytest.warns(UserWarning, match="needs .* in one piece, and .* of jaxmg.pinned are"):
            x = jaxmg.potrs(a, b, mesh=mesh, memory=memory)
        assert small.free == small.bytes
    host_cases.check(a, x, b)
