"""`jaxmg.linalg.pivoted_cholesky`, and its preconditioner for `cg`."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg import _compat, linalg
from jaxmg._krylov import pivoted

DTYPES = ("float32", "float64", "complex64", "complex128")
_AUTO, _EXPLICIT = AxisType.Auto, AxisType.Explicit
_needs_transforms = pytest.mark.skipif(not _compat.TRANSFORMS, reason="derivatives need JAX 0.10")


def _kernel(n, dtype, length=1.0):
    """Returns the matrix of a squared exponential kernel of random points, as a NumPy array."""
    x = np.sort(cases.rng(n).uniform(0, 10, n))
    a = np.exp(-((x[:, None] - x) ** 2) / (2 * length**2))
    if np.dtype(dtype).kind == "c":
        turn = np.exp(1j * np.arange(n))
        a = a * turn[:, None] * turn.conj()
    return a.astype(dtype)


def _greedy(a, k):
    """Returns the pivots of one step after the other."""
    rest, pivots = cases.wide(a), []
    for _ in range(k):
        pivots.append(int(np.argmax(np.diag(rest).real)))
        column = rest[:, pivots[-1]]
        rest = rest - np.outer(column, column.conj()) / column[pivots[-1]].real
    return pivots


def _check(a, k, found):
    """Checks that L L^H is what the pivots determine, and what is told of the rest."""
    left, pivots, diagonal, error, rank, status = (np.asarray(x) for x in found)
    eps, n = cases.eps(a.dtype), len(a)
    assert (left.shape, left.dtype, pivots.dtype, status) == ((n, k), a.dtype, np.int32, 0)
    assert np.all(left[:, rank:] == 0) and np.all(pivots[rank:] == -1)
    pivots = pivots[:rank]
    assert len(set(pivots)) == rank and np.all(pivots >= 0)
    rest = cases.wide(a) - cases.wide(left) @ cases.wide(left).conj().T
    rounding = 50 * eps * k**0.5
    assert np.abs(rest[:, pivots]).max() <= rounding
    assert np.abs(diagonal - np.diag(rest).real).max() <= rounding
    assert abs(error - diagonal.sum()) <= n * rounding
    triangle = left[pivots][:, :rank]
    above = np.triu(triangle, 1) * np.diagonal(
        triangle
    )  # rounding that was divided by small pivots
    assert np.abs(above).max(initial=0) <= rounding


@pytest.mark.parametrize(
    "dtype, kind, ranks, n, k, method",
    cases.broad(
        [
            (dtype, kind, ranks, n, k, method)
            for dtype in DTYPES
            for kind in (_AUTO, _EXPLICIT)
            for ranks in (1, 2, 4, 8)
            for n, k in ((40, 12), (37, 9), (37, 37), (1, 1))
            for method in ("random", "greedy")
        ],
        lambda dtype, kind, ranks, n, k, method: (
            (kind, ranks, k) == (_AUTO, 4, 9) and (dtype in ("float32", "complex128"))
        ),
    ),
)
def test_pivoted_cholesky(dtype, kind, ranks, n, k, method):
    a = _kernel(n, dtype)
    mesh = cases.line(ranks, kind=kind)
    on_mesh = cases.shard(a, mesh, "r" if n % ranks == 0 else None)
    with cases.context(mesh):
        found = linalg.pivoted_cholesky(on_mesh, k, method=method)
    _check(a, k, found)
    if n % ranks == 0:
        assert found.L.sharding.is_equivalent_to(on_mesh.sharding, 2)
    if method == "greedy" and k == 9 and cases.eps(dtype) < 1e-10:
        assert list(np.asarray(found.pivots)) == _greedy(a, k)


@pytest.mark.extended
def test_rank_and_tolerance():
    """A matrix of low rank is factored whole; a tolerance leaves columns out."""
    x = cases.normal(cases.rng(1), (30, 5), "float64")
    a = x @ x.T
    mesh = cases.line(2)
    for method in ("random", "greedy"):
        found = linalg.pivoted_cholesky(a, 9, method=method, mesh=mesh)
        assert found.rank == 5 and found.error == 0
        np.testing.assert_allclose(found.L @ found.L.T, a, rtol=0, atol=1e-11)
        part = linalg.pivoted_cholesky(_kernel(40, "float64"), 30, 0.05, method="greedy")
        assert part.rank < 20 and part.error <= 0.05 * 40
    assert linalg.pivoted_cholesky(np.zeros((4, 4)), 2).rank == 0
    assert linalg.pivoted_cholesky(np.diag([3, 2, 1]), 3).L.dtype == jnp.result_type(float)


@pytest.mark.extended
def test_keys():
    a = _kernel(40, "float64", 0.2)
    key = jax.random.key(3)
    one, same = linalg.pivoted_cholesky(a, 9), linalg.pivoted_cholesky(a, 9, mesh=cases.line(4))
    np.testing.assert_array_equal(one.pivots, same.pivots)
    other, again = (linalg.pivoted_cholesky(a, 9, key=key) for _ in range(2))
    np.testing.assert_array_equal(other.pivots, again.pivots)
    assert np.any(np.asarray(one.pivots) != np.asarray(other.pivots))


@pytest.mark.extended
@pytest.mark.parametrize("block", [1, 8, 128])
def test_random_pivots_have_their_distribution(block, monkeypatch):
    """For any number of candidates the pairs of pivots have the probabilities of pivots that are
    sampled one by one."""
    monkeypatch.setattr(pivoted, "_RANDOM", block)
    cases.forget_plans()
    a = np.array([[4.0, 1, 0, 1], [1, 2, 1, 0], [0, 1, 1, 0], [1, 0, 0, 3]])
    diagonal, expected = np.diag(a), np.zeros((4, 4))
    for i in range(4):
        rest = diagonal - a[i] ** 2 / a[i, i]
        rest[i] = 0
        expected[i] = diagonal[i] / diagonal.sum() * rest / rest.sum()
    run = jax.jit(lambda key: linalg.pivoted_cholesky(a, 2, key=key, mesh=cases.line(1)).pivots)
    count, found = 1500, np.zeros((4, 4))
    for key in jax.random.split(jax.random.key(1), count):
        found[tuple(np.asarray(run(key)))] += 1
    cases.forget_plans()
    spread = np.sqrt(expected / count) + 1 / count
    assert np.all(np.abs(found / count - expected) <= 4 * spread)


@pytest.mark.parametrize("method", ["random", "greedy"])
def test_not_semidefinite_and_not_finite(method):
    a = _kernel(20, "complex128")
    mesh = cases.line(2)
    negative, late = a.copy(), a + np.eye(20)
    negative[7, 7] = -1e-3
    late[5, 3] = late[3, 5] = 5
    spoilt = a.copy()
    spoilt[4, 4] = np.nan
    for matrix, status in ((negative, 8), (late, None), (spoilt, 5)):
        found = linalg.pivoted_cholesky(matrix, 20, method=method, mesh=mesh)
        assert found.status == status if status else found.status > 0
        assert np.all(np.isnan(found.L)) and np.isnan(found.error) and found.rank == 0
        assert np.all(np.asarray(found.pivots) == -1)


@pytest.mark.extended
@pytest.mark.parametrize("dtype, exponent", [("float64", 900), ("float64", -900), ("float32", 100)])
def test_scales(dtype, exponent):
    a = _kernel(20, dtype)
    one = linalg.pivoted_cholesky(a, 6)
    power = a.dtype.type(2.0)
    found = linalg.pivoted_cholesky(a * power**exponent, 6)
    np.testing.assert_array_equal(found.pivots, one.pivots)
    np.testing.assert_array_equal(found.L, one.L * power ** (exponent // 2))


def _exponential(rows, columns, points, scale):
    apart = points[rows][:, None] - points[columns]
    return jnp.exp(-((apart / scale) ** 2) / 2)


@pytest.mark.extended
@pytest.mark.parametrize("ranks, n", [(4, 37), cases.breadth(1, 40), (8, 3)])
def test_tiles(ranks, n, monkeypatch):
    """Only columns of candidates are made, in tiles; the results are those of the array."""
    monkeypatch.setattr(pivoted, "_TILE", 4)
    mesh, points = cases.line(ranks), cases.rng(5).uniform(0, 10, n)
    tiles = jaxmg.Tiles(_exponential, (n, n), "float64", points, 0.7)
    a = _exponential(np.arange(n), np.arange(n), points, 0.7)
    for method in ("random", "greedy"):
        k = min(n, 9)
        found = linalg.pivoted_cholesky(tiles, k, method=method, mesh=mesh)
        expected = linalg.pivoted_cholesky(a, k, method=method, mesh=mesh)
        np.testing.assert_array_equal(found.pivots, expected.pivots)
        np.testing.assert_allclose(found.L, expected.L, rtol=0, atol=1e-10)
    traced = jax.jit(lambda tiles: linalg.pivoted_cholesky(tiles, k, mesh=mesh).L)(tiles)
    np.testing.assert_allclose(traced, linalg.pivoted_cholesky(a, k, mesh=mesh).L, atol=1e-10)
    if _compat.TRANSFORMS:
        with pytest.raises(NotImplementedError, match="Tiles are being differentiated"):
            jax.grad(lambda t: linalg.pivoted_cholesky(t, k, mesh=mesh).error, allow_int=True)(
                tiles
            )


@_needs_transforms
@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype, ranks, method",
    cases.broad(
        [
            (dtype, ranks, method)
            for dtype in ("float64", "complex128")
            for ranks in (1, 4)
            for method in ("random", "greedy")
        ],
        lambda dtype, ranks, method: (dtype, ranks, method) == ("complex128", 4, "greedy"),
    ),
)
def test_derivatives(dtype, ranks, method):
    """Against the composition with the same pivots, first and second ones, below k columns too."""
    n, k = 12, 5
    mesh = cases.line(ranks)
    a = cases.shard(_kernel(n, dtype, 0.5) + 0.1 * np.eye(n), mesh, "r")
    moved = cases.hermitian_part(cases.normal(cases.rng(2), (n, n), dtype))
    tol = 0.3
    found = linalg.pivoted_cholesky(a, k, tol, method=method)
    chosen = np.asarray(found.pivots)[: int(found.rank)]
    assert 1 < len(chosen) <= k

    def composition(a):
        r = jnp.linalg.cholesky(a[chosen][:, chosen])
        left = jnp.linalg.solve(r, a[:, chosen].conj().T).conj().T
        rest = jnp.diag(a).real - jnp.sum(jnp.abs(left) ** 2, axis=1)
        return jnp.pad(left, ((0, 0), (0, k - len(chosen)))), rest.at[chosen].set(0)

    def ours(a):
        found = linalg.pivoted_cholesky(a, k, tol, method=method, mesh=mesh)
        return found.L, found.diagonal

    def derivatives(function):
        def loss(a):
            left, rest = function(a)
            return jnp.sum(jnp.sin(left.real) + jnp.cos(2 * left.imag)) + jnp.sum(rest**2)

        along = lambda a: jax.jvp(loss, (a,), (moved,))[1]  # noqa: E731
        gradient = jax.jit(jax.grad(loss))(a)
        back = jnp.sum(gradient * moved).real
        return (
            *jax.jvp(function, (a,), (moved,))[1],
            along(a),
            back,
            jax.jvp(along, (a,), (moved,))[1],
        )

    for one, other in zip(derivatives(ours), derivatives(composition), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@_needs_transforms
@pytest.mark.extended
def test_vmap():
    stack = np.stack([_kernel(13, "float64", length) for length in (0.3, 1.0, 2.0)])
    mesh = cases.line(4)
    run = lambda a: linalg.pivoted_cholesky(a, 4, mesh=mesh)  # noqa: E731
    for found in (run(stack), jax.vmap(run)(stack), jax.jit(jax.vmap(run))(stack)):
        for i, a in enumerate(stack):
            _check(a, 4, jax.tree.map(lambda x, i=i: x[i], found))


@pytest.mark.parametrize(
    "dtype, kind, ranks, made",
    [
        ("float64", _AUTO, 4, False),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in [
                ("float64", _EXPLICIT, 4, False),
                ("float32", _AUTO, 1, False),
                ("complex128", _AUTO, 2, False),
                ("float64", _AUTO, 8, True),
            ]
        ),
    ],
)
def test_preconditioner(dtype, kind, ranks, made):
    """It is (L L^H + noise I)^-1, and conjugate gradients with it take a fraction of the steps."""
    n, m = 400, 3
    single = cases.eps(dtype) > 1e-10
    noise = 4e-2 if single else 4e-4  # the condition is about 1e4 or 1e6
    kernel = _kernel(n, dtype)
    a = kernel + noise * np.eye(n, dtype=dtype)
    b = cases.normal(cases.rng(7), (n, m), dtype)
    mesh = cases.line(ranks, kind=kind)
    on_mesh = [cases.shard(x, mesh, "r") for x in (a, b)]
    with cases.context(mesh):
        if made:
            points = np.sort(cases.rng(n).uniform(0, 10, n))
            tiles = jaxmg.Tiles(_exponential, (n, n), dtype, points, 1.0)
            factor = linalg.pivoted_cholesky(tiles, 40, mesh=mesh)
        else:
            factor = linalg.pivoted_cholesky(cases.shard(kernel, mesh, "r"), 40)
        preconditioner = factor.preconditioner(noise)
        found = preconditioner(on_mesh[1])
        tol = 1e-4 if single else 1e-8
        plain = linalg.cg(*on_mesh, tol=tol)
        x, info = linalg.cg(*on_mesh, tol=tol, M=preconditioner)
        run = jax.jit(lambda a, b, factor: linalg.cg(
            a, b, tol=tol, M=factor.preconditioner(noise, mesh=mesh), mesh=mesh
        ).info.iterations)  # fmt: skip
        traced = run(*on_mesh, factor)
    left = cases.wide(factor.L)
    expected = np.linalg.solve(left @ left.conj().T + noise * np.eye(n), cases.wide(b))
    close = cases.eps(dtype) * 1e3 * np.abs(expected).max() * n / noise**0.5
    np.testing.assert_allclose(found, expected, rtol=0, atol=close)
    assert info.status == 0 and np.max(info.iterations) * 4 < np.max(plain.info.iterations)
    assert np.max(np.abs(np.asarray(traced) - info.iterations)) <= 1  # rounding differs
    a, b, x = map(np.asarray, (a, b, x))
    assert np.linalg.norm(a @ x - b, axis=0).max() <= 2 * tol * np.linalg.norm(b, axis=0).max()


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: linalg.pivoted_cholesky(np.eye(4), 5), ValueError, "k must be from 1 to 4; got 5"),
        (lambda: linalg.pivoted_cholesky(np.eye(4), 0), ValueError, "k must be from 1 to 4; got 0"),
        (lambda: linalg.pivoted_cholesky(np.eye(4), 2.0), TypeError, "k must be an integer; got 2"),
        (
            lambda: linalg.pivoted_cholesky(np.ones((4, 3)), 2),
            ValueError,
            "must be a square matrix",
        ),
        (lambda: linalg.pivoted_cholesky(np.ones(4), 2), ValueError, "a must be a matrix; it has"),
        (lambda: linalg.pivoted_cholesky([1], 1), TypeError, "a must be a JAX or NumPy array"),
        (
            lambda: linalg.pivoted_cholesky(np.eye(4), 1, 1j),
            ValueError,
            "tol must be a real scalar",
        ),
        (
            lambda: linalg.pivoted_cholesky(np.eye(4), 1, method="best"),
            ValueError,
            "method must be one of random, greedy; got 'best'",
        ),
        (
            lambda: linalg.pivoted_cholesky(
                jaxmg.Tiles(lambda i, j: jnp.ones((len(i), len(j))), (4, 3), "float64"), 2
            ),
            ValueError,
            "a must be square; the Tiles have",
        ),
        (
            lambda: linalg.pivoted_cholesky(np.eye(4), 1).preconditioner(np.ones(4)),
            ValueError,
            "noise must be a real scalar",
        ),
    ],
)
def test_bad_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_columns_beyond_the_mesh():
    """The sharding of L follows that of A over rows."""
    mesh = cases.grid()
    a = cases.shard(_kernel(16, "float64"), mesh, mesh.axis_names[0], mesh.axis_names[1])
    found = linalg.pivoted_cholesky(a, 4)
    _check(np.asarray(a), 4, found)
    assert found.pivots.sharding.is_equivalent_to(cases.shard(np.ones(4), mesh).sharding, 1)
