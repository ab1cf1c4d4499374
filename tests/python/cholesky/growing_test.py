"""Cholesky factors with a capacity, which get and lose rows."""

import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg import _compat

_CAPACITY = 21  # only 1 of the numbers of devices divides it


def _matrix(dtype="float64", n=30):
    return cases.positive_definite("well", n, dtype)


def _factor(a, n, ranks=2, kind=AxisType.Auto, tile=3):
    return jaxmg.cho_factor(a[:n, :n], tile, cases.line(ranks, kind=kind), capacity=_CAPACITY)


def _columns(a, n, k):
    """Returns the arguments that append rows n to n + k, with NaN where nothing may be read."""
    a12 = np.full((_CAPACITY, k), np.nan, a.dtype)
    a12[:n] = a[:n, n : n + k]
    return a12, a[n : n + k, n : n + k]


def _check(factor, a):
    """Checks the factor of [A 0; 0 I]."""
    __tracebackhide__ = True
    n = len(a)
    assert (factor.count, factor.status, factor.n) == (n, 0, _CAPACITY)
    whole = np.eye(_CAPACITY, dtype=cases.wide(a).dtype)
    whole[:n, :n] = cases.wide(a)
    u = cases.wide(factor.upper())
    bound = 10 * _CAPACITY * cases.eps(factor.dtype) * np.linalg.norm(whole)
    assert np.linalg.norm(u.conj().T @ u - whole) <= bound
    b = np.zeros((_CAPACITY, 2), a.dtype)
    b[:n] = cases.normal(cases.rng(1), (n, 2), a.dtype)
    x = np.asarray(factor.solve(b))
    assert cases.backward_error(a, x[:n], b[:n]) <= 1e3 * cases.eps(a.dtype)
    np.testing.assert_array_equal(x[n:], 0)
    wanted = np.linalg.slogdet(cases.wide(a))[1]
    np.testing.assert_allclose(factor.logdet(), wanted, rtol=1e3 * cases.eps(a.dtype))


@pytest.mark.parametrize(
    "ranks, kind, dtype",
    [
        (2, AxisType.Auto, "complex128"),
        cases.breadth(1, AxisType.Auto, "float32"),
        cases.breadth(4, AxisType.Explicit, "float64"),
        cases.breadth(8, AxisType.Auto, "complex64"),
        cases.breadth(1, AxisType.Explicit, "complex64"),
    ],
)
def test_append_and_remove(ranks, kind, dtype):
    a = _matrix(dtype)
    old = factor = _factor(a, 7, ranks, kind)
    _check(factor, a[:7, :7])
    n = 7
    for k in (3, 3):
        factor = factor.append(*_columns(a, n, k))
        n += k
        _check(factor, a[:n, :n])
    _check(old, a[:7, :7])
    for indices in (np.array([0, 12, 5]), *([np.arange(3, 9)] if ranks > 2 else ())):
        kept = np.delete(np.arange(n), indices)
        _check(factor.remove(indices), a[np.ix_(kept, kept)])
    _check(factor, a[:n, :n])


@pytest.mark.extended
@pytest.mark.parametrize("ranks", (1, cases.breadth(4)))
def test_one_row_at_a_time_compiles_once(ranks):
    a = _matrix()
    factor, step = _factor(a, 0, ranks), jax.jit(lambda f, a12, a22: f.append(a12, a22))
    for n in range(_CAPACITY):
        a12, a22 = _columns(a, n, 1)
        arrays = [cases.shard(x, cases.line(ranks)) for x in (a12[:, 0], a22[0, 0])]
        factor = jax.block_until_ready(step(factor, *arrays))
    _check(factor, a[:_CAPACITY, :_CAPACITY])
    assert step._cache_size() <= 2  # the first factor's placement may differ
    full = jax.block_until_ready(step(factor, *arrays))  # no room, which is known too late
    assert full.status > 0 and np.isnan(full.logdet())
    message = "capacity 21 with 21 rows can't take 1 more.*cho_factor"
    with pytest.raises(ValueError, match=message):
        factor.append(a12[:, 0], a22)
    smaller = jax.block_until_ready(jax.jit(lambda f, i: f.remove(i))(factor, jnp.array([2, 7])))
    kept = np.delete(np.arange(_CAPACITY), [2, 7])
    _check(smaller, a[np.ix_(kept, kept)])
    _check(smaller.remove(18), a[np.ix_(kept[:-1], kept[:-1])])


@pytest.mark.extended
def test_updates_ignore_rows_after_the_count():
    a, v = _matrix(), cases.normal(cases.rng(4), (_CAPACITY, 2), "float64")
    factor = _factor(a, 9)
    updated = a[:9, :9] + v[:9] @ v[:9].T
    v[9:] = 7
    _check(factor.update(v), updated)
    _check(factor.update(v[:, 0]).update(v[:, 1]), updated)


@pytest.mark.extended
def test_not_positive_definite():
    a = _matrix()
    factor = _factor(a, 9)
    a12, a22 = _columns(a, 9, 2)
    bad = factor.append(a12, a22 - 2 * np.diag(np.diagonal(a22)))
    assert bad.status == 10 and np.isnan(bad.logdet())
    assert np.all(np.isnan(bad.solve(np.ones(_CAPACITY))))
    failed = _factor(-a, 9)
    assert failed.status == 1 and failed.append(a12, a22).status == 1
    assert failed.remove([3]).status == 1
    _check(factor.append(a12, a22), a[:11, :11])


@pytest.mark.skipif(not _compat.TRANSFORMS, reason="derivatives need a newer JAX")
@pytest.mark.extended
def test_derivatives():
    a, n = _matrix(n=6), 4
    b = cases.normal(cases.rng(2), (8,), "float64")

    def ours(a):
        factor = jaxmg.cho_factor(a[:n, :n], 2, cases.line(2), capacity=8)
        a12 = jnp.pad(a[:n, n:], ((0, 4), (0, 0)))
        factor = factor.append(a12, a[n:, n:]).remove(jnp.array([1, 4]))
        used = jnp.where(jnp.arange(8) < 4, b, 0)
        return used @ factor.solve(used) + factor.logdet()

    def direct(a):
        kept = np.array([0, 2, 3, 5])
        a = (jnp.triu(a) + jnp.triu(a, 1).T)[kept[:, None], kept]
        return b[:4] @ jnp.linalg.solve(a, b[:4]) + jnp.linalg.slogdet(a)[1]

    a_dot = cases.hermitian(6, "float64")
    one, other = (jax.jvp(jax.jit(f), (a,), (a_dot,)) for f in (ours, direct))
    np.testing.assert_allclose(one, other, rtol=1e-10)
    found = jnp.vdot(jax.jit(jax.grad(ours))(a), a_dot)
    np.testing.assert_allclose(found, other[1], rtol=1e-10)


@cases.one_process("factors are pickled")
def test_a_factor_with_a_capacity_is_saved():
    a = _matrix()
    factor = pickle.loads(pickle.dumps(_factor(a, 9)))
    _check(factor.append(*_columns(a, 9, 1)), a[:10, :10])
    with pytest.raises(ValueError, match="no capacity; pickle the factor"):
        factor.portable()


def test_what_is_refused():
    a = _matrix()
    factor, mesh = _factor(a, 9), cases.line(2)
    a12, a22 = _columns(a, 9, 2)
    for bad in (a12[:-1], a12[None]):
        with pytest.raises(ValueError, match=r"a12 must have shape \(21,\) or \(21, k\)"):
            factor.append(bad, a22)
    with pytest.raises(ValueError, match=r"a22 must have shape \(2, 2\).* it has shape \(1, 2\)"):
        factor.append(a12, a22[:1])
    with pytest.raises(TypeError, match="a22 must have the factor's dtype, float64"):
        factor.append(a12, a22.astype(np.float32))
    with pytest.raises(ValueError, match="capacity 21 with 9 rows can't take 13 more"):
        factor.append(np.zeros((21, 13)), np.eye(13))
    for bad in ([9], [-1], [3, 3]):
        with pytest.raises(ValueError, match="different rows of the factor, from 0 to 8"):
            factor.remove(bad)
    for bad in ([1.5], [[1]]):
        with pytest.raises(TypeError, match="indices must be integers"):
            factor.remove(bad)
    assert factor.remove(np.zeros(0, int)) is factor
    plain = jaxmg.cho_factor(a, 3, mesh)
    for call in (lambda: plain.append(a12, a22), lambda: plain.remove([1])):
        with pytest.raises(ValueError, match="can't take or lose rows; create one with a capacity"):
            call()
    with pytest.raises(ValueError, match="capacity must be at least 1 and the order of a, 30"):
        jaxmg.cho_factor(a, 3, mesh, capacity=29)
    with pytest.raises(ValueError, match="capacity is for a single matrix"):
        jaxmg.cho_factor(a[None], 3, mesh, capacity=40)
    for options in ({"refine": "auto"}, {"memory": 1e9}, {"check": True}):
        with pytest.raises(ValueError, match="capacity goes with none of refine, memory"):
            jaxmg.cho_factor(a, 3, mesh, capacity=40, **options)
