"""`jaxmg.linalg.svd_lowrank`, and the part of an SVD that `subset_by_index` selects."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from svd_test import KINDS, SHAPED, check_svd, matrix, on, way  # noqa: F401

from jaxmg import _compat, linalg


def _falling(m, n, dtype, rate=0.5, scale=1.0):
    """Returns a matrix with singular values scale * rate^i, and these values."""
    u, _, vh = np.linalg.svd(matrix("random", m, n, dtype), full_matrices=False)
    s = scale * rate ** np.arange(min(m, n))
    return ((u * s) @ vh).astype(dtype), s


def _check(a, s, k, results, tolerance=1e-3):
    """Checks that triplets are close to the best ones, and that the error estimate is a tight
    bound."""
    u, values, vh, error = map(np.asarray, results)
    eps = float(np.finfo(a.dtype).eps)
    rounding = 50 * eps * s[0] * k**0.5
    assert u.dtype == a.dtype and values.dtype == np.finfo(a.dtype).dtype
    assert np.linalg.norm(u.conj().T @ u - np.eye(k)) <= 50 * eps * k**0.5
    assert np.linalg.norm(vh @ vh.conj().T - np.eye(k)) <= 50 * eps * k**0.5
    beyond = s[k] if k < len(s) else 0
    assert np.max(np.abs(values - s[:k])) <= tolerance * beyond + rounding
    norm = np.linalg.norm(a / s[0] - (u * (values / s[0])) @ vh, 2) * s[0]
    assert norm <= (1 + tolerance) * beyond + rounding
    assert norm <= error + rounding
    assert error <= 100 * norm + 100 * rounding


@pytest.mark.breadth
def test_svd_lowrank():
    a, s = _falling(23, 17, "float64")
    results = linalg.svd_lowrank(jnp.asarray(a), 4, oversample=3, **on(cases.line(2)))
    _check(a, s, 4, results)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices, k",
    [
        ("float32", (60, 21), 4, 5),
        ("float64", (21, 60), 8, 5),
        ("float64", (13, 13), 2, 13),
        ("float64", (200, 3), 4, 1),
        ("float64", (1, 40), 2, 1),
        ("complex64", (40, 40), 1, 3),
        ("complex128", (16, 40), 4, 4),
    ],
)
@pytest.mark.parametrize("scale", [1, 1e-30])
def test_lowrank_of_any_matrix(dtype, shape, devices, k, scale):
    a, s = _falling(*shape, dtype, scale=scale)
    _check(a, s, k, linalg.svd_lowrank(jnp.asarray(a), k, **on(cases.line(devices))))


@pytest.mark.breadth
@pytest.mark.parametrize("devices", range(1, 6))
def test_lowrank_of_small_matrices(devices):
    for m in range(1, 6):
        n = 1 + (m + devices) % 5
        k = min(m, n) - (m // 2) % min(m, n)
        a, s = _falling(m, n, ("float32", "float64", "complex64", "complex128")[(m + devices) % 4])
        _check(a, s, k, linalg.svd_lowrank(jnp.asarray(a), k, **on(cases.line(devices))))


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        ("float32", (23, 17), 2),
        ("float64", (17, 23), 4),
        ("complex64", (13, 13), 8),
        ("complex128", (40, 9), 1),
    ],
)
def test_lowrank_of_hard_matrices(dtype, shape, devices):
    """For hard A too, vectors are orthonormal, and the distance to A is within the returned
    error."""
    k, eps = 4, cases.eps(dtype)
    for kind in KINDS + SHAPED:
        a = matrix(kind, *shape, dtype)
        largest = np.linalg.norm(a, 2) or 1.0
        u, s, vh, error = map(
            np.asarray, linalg.svd_lowrank(jnp.asarray(a), k, **on(cases.line(devices)))
        )
        for q in (u, vh.conj().T):
            assert np.linalg.norm(q.conj().T @ q - np.eye(k)) <= 50 * eps * k**0.5, kind
        norm = np.linalg.norm(a / largest - (u * (s / largest)) @ vh, 2)
        assert norm <= error / largest + 100 * eps, kind
        exact = np.linalg.svd(a, compute_uv=False)[:k]
        assert np.all(s / largest <= exact / largest + 50 * eps), kind


@pytest.mark.breadth
def test_iterations_separate_what_falls_slowly():
    a, s = _falling(60, 40, "float64", 0.8)
    where = on(cases.line(2))
    errors = []
    for iterations in (0, 1, 4):
        results = linalg.svd_lowrank(
            jnp.asarray(a), 6, oversample=2, iterations=iterations, **where
        )
        errors.append(np.max(np.abs(np.asarray(results.S) - s[:6])))
    assert errors[0] > 1.5 * errors[1] and errors[1] > 10 * errors[2]


@pytest.mark.breadth
def test_keys_and_low_ranks():
    where = on(cases.line(4))
    a = jnp.asarray(matrix("random", 30, 3, "float64") @ matrix("random", 3, 20, "float64"))
    one, same, other = (
        linalg.svd_lowrank(a, 5, key=key, **where)
        for key in (None, jax.random.key(0), jax.random.key(1))
    )
    np.testing.assert_array_equal(one.U, same.U)
    assert not np.array_equal(one.error, other.error)
    for u, s, vh, error in (one, other):
        np.testing.assert_allclose((u * s) @ vh, a, atol=1e-13)
        assert error < 1e-12
        np.testing.assert_allclose(s[3:], 0, atol=1e-13)
        np.testing.assert_allclose(u.T @ u, np.eye(5), atol=1e-13)
    zero = linalg.svd_lowrank(0 * a, 2, **where)
    assert zero.error == 0 and not np.any(zero.S)
    for x in linalg.svd_lowrank(a.at[4, 5].set(np.nan), 2, **where):
        assert np.isnan(x).all()


@pytest.mark.breadth
@cases.needs_transformations
def test_lowrank_in_jit_and_of_batches():
    a = np.stack([_falling(24, 16, "float64", rate)[0] for rate in (0.5, 0.3)])
    where = on(cases.line(4))
    ones = [linalg.svd_lowrank(jnp.asarray(x), 3, **where) for x in a]
    batch = linalg.svd_lowrank(jnp.asarray(a), 3, **where)
    mapped = jax.jit(jax.vmap(lambda a: linalg.svd_lowrank(a, 3, **where)))(jnp.asarray(a))
    for i, one in enumerate(ones):
        for found in (batch, mapped):  # their vectors may have other signs
            u, s, vh, error = (np.asarray(x[i]) for x in found)
            np.testing.assert_allclose(s, one.S, atol=1e-12)
            np.testing.assert_allclose(error, one[3], atol=1e-12)
            np.testing.assert_allclose((u * s) @ vh, (one[0] * one.S) @ one[2], atol=1e-12)
    with pytest.raises(NotImplementedError, match="stop_gradient"):
        jax.grad(lambda a: jnp.sum(linalg.svd_lowrank(a, 3, **where).S))(jnp.asarray(a[0]))


@pytest.mark.breadth
@pytest.mark.skipif(not _compat.COMPILES_EXCHANGES, reason="needs JAX 0.10")
def test_lowrank_lies_as_a_does():
    for kind in jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit:
        mesh = cases.line(4, kind=kind)
        a = jax.device_put(_falling(24, 15, "float32")[0], jax.NamedSharding(mesh, P("r", None)))
        u, s, vh, error = linalg.svd_lowrank(a, 3)
        assert u.sharding.is_equivalent_to(a.sharding, 2)
        assert all(x.sharding.is_fully_replicated for x in (s, vh, error))


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        ("float64", (16, 16), 4),
        ("float32", (29, 7), 2),
        ("complex128", (7, 30), 1),
        ("complex64", (13, 13), 8),
    ],
)
def test_a_part_of_an_svd(dtype, shape, devices, way):  # noqa: F811
    where = on(cases.line(devices))
    a = matrix("random", *shape, dtype)
    exact, eps = np.linalg.svd(a, compute_uv=False), float(np.finfo(dtype).eps)
    for start, end in ((0, 2), (3, 6), (5, 7), (4, 4)):
        u, s, vh = map(
            np.asarray, linalg.svd(jnp.asarray(a), subset_by_index=(start, end), **where)
        )
        assert u.shape == (shape[0], end - start) and vh.shape == (end - start, shape[1])
        np.testing.assert_allclose(s, exact[start:end], atol=30 * eps * exact[0])
        np.testing.assert_allclose(a @ vh.conj().T, u * s, atol=100 * eps * exact[0])
        np.testing.assert_allclose(u.conj().T @ u, np.eye(end - start), atol=100 * eps)


@pytest.mark.breadth
@cases.needs_transformations
@pytest.mark.parametrize("shape", [(6, 6), (24, 5), (5, 24)], ids=str)
def test_the_derivative_of_a_part(shape, way):  # noqa: F811
    a, a_dot = (jnp.asarray(matrix("random", *shape, "float64", seed)) for seed in (1, 2))

    def run(a, svd):
        u, s, vh = svd(a)
        return (u * s) @ vh

    def theirs(a):
        u, s, vh = jnp.linalg.svd(a, full_matrices=False)
        return u[:, 1:3], s[1:3], vh[1:3]

    def ours(a):
        return linalg.svd(a, subset_by_index=(1, 3), **on(cases.line(2)))

    got, expected = (jax.jvp(lambda a, f=f: run(a, f), (a,), (a_dot,)) for f in (ours, theirs))
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "arguments, options, error, words",
    [
        ((0,), {}, ValueError, "k must be from 1 to 4"),
        ((5,), {}, ValueError, "k must be from 1 to 4"),
        ((2.0,), {}, TypeError, "k must be an integer"),
        ((2,), {"oversample": -1}, ValueError, "oversample must be at least 0"),
        ((2,), {"iterations": -1}, ValueError, "iterations must be at least 0"),
        ((2,), {"iterations": 1.5}, TypeError, "iterations must be an integer"),
    ],
)
def test_refused(arguments, options, error, words):
    with pytest.raises(error, match=words):
        linalg.svd_lowrank(jnp.ones((6, 4)), *arguments, **options)
    with pytest.raises(ValueError, match="svd_lowrank"):
        linalg.svd_lowrank(jnp.ones(3), 1)
