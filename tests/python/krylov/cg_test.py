"""`jaxmg.linalg.cg`."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat, linalg

DTYPES = ("float32", "float64", "complex64", "complex128")
_AUTO, _EXPLICIT = AxisType.Auto, AxisType.Explicit
_needs_transforms = pytest.mark.skipif(not _compat.TRANSFORMS, reason="derivatives need JAX 0.10")


def _problem(n, m, dtype, condition=30.0):
    """Returns (A, b) as NumPy arrays; b (n,) if m is None."""
    random = cases.rng(n, 1)
    q = np.linalg.qr(
        cases.normal(random, (n, n), dtype).astype(cases.wide(np.zeros(1, dtype)).dtype)
    )[0]
    a = (q * np.geomspace(1 / condition, 1, n)) @ q.conj().T
    b = cases.normal(random, (n,) if m is None else (n, m), dtype)
    return ((a + a.conj().T) / 2).astype(dtype), b


def _residuals(a, x, b):
    r = cases.wide(b) - cases.wide(a) @ cases.wide(x)
    return np.linalg.norm(r, axis=0) / np.linalg.norm(cases.wide(b), axis=0)


def _scaled_by(d, v):
    return v / d[:, None]


@pytest.mark.parametrize(
    "dtype, kind, ranks, n, m",
    cases.broad(
        [
            (dtype, kind, ranks, n, m)
            for dtype in DTYPES
            for kind in (_AUTO, _EXPLICIT)
            for ranks in (1, 2, 4, 8)
            for n, m in ((40, 3), (13, None), (13, 20), (1, 1))
        ],
        lambda dtype, kind, ranks, n, m: (kind, ranks, n) == (_AUTO, 4, 13) and m,
    ),
)
def test_cg(dtype, kind, ranks, n, m):
    a, b = _problem(n, m, dtype)
    mesh = cases.line(ranks, kind=kind)
    spec = "r" if n % ranks == 0 else None
    tol = 100 * cases.eps(dtype)
    on_mesh = [cases.shard(x, mesh, spec) for x in (a, b)]
    with cases.context(mesh):
        x, info = linalg.cg(*on_mesh, tol=tol)
    assert (x.shape, x.dtype) == (b.shape, b.dtype)
    assert x.sharding.is_equivalent_to(on_mesh[1].sharding, b.ndim)
    assert info.iterations.shape == info.residuals.shape == b.shape[1:]
    assert info.status == 0 and np.all(np.asarray(info.iterations) <= 4 * n)
    found = _residuals(a, x, b)
    assert np.all(found <= 2 * tol)
    np.testing.assert_allclose(info.residuals, found, rtol=0, atol=tol)


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.extended)])
def test_columns_are_independent(ranks):
    """A column of zeros takes no step, an eigenvector one; each column is as it is alone."""
    a, b = _problem(24, 4, "float64")
    b[:, 0], b[:, 2] = 0, np.linalg.eigh(a)[1][:, 3]
    mesh = cases.line(ranks)
    x, info = linalg.cg(a, b, tol=1e-10, mesh=mesh)
    one = linalg.cg(a, b[:, 1], tol=1e-10, mesh=mesh)
    iterations = np.asarray(info.iterations)
    assert list(iterations[[0, 2]]) == [0, 1] and one.info.iterations > 10
    assert abs(iterations[1] - one.info.iterations) <= 1  # rounding differs
    assert np.all(np.asarray(x)[:, 0] == 0) and info.residuals[0] == 0
    np.testing.assert_allclose(x[:, 1], one.x, rtol=1e-9, atol=1e-12)


@pytest.mark.extended
def test_tolerances_and_iterations():
    a, b = _problem(30, 2, "float64", 1e3)
    full = np.linalg.solve(a, b)
    norms = np.linalg.norm(b, axis=0)
    for options in ({"tol": 1e-3}, {"tol": 0.0, "atol": 1e-3 * norms.min()}):
        x, info = linalg.cg(a, b, **options)
        assert info.status == 0 and np.all(_residuals(a, x, b) <= 1e-3)
        assert np.all(_residuals(a, x, b) >= 1e-5)
    # The last iterate is returned as it is, as in SciPy.
    x, info = linalg.cg(a, b, tol=1e-10, maxiter=3)
    assert info.status == 2 and list(np.asarray(info.iterations)) == [3, 3]
    np.testing.assert_allclose(info.residuals, _residuals(a, x, b), rtol=1e-10)
    theirs = [jax.scipy.sparse.linalg.cg(a, v, tol=1e-10, maxiter=3)[0] for v in b.T]
    np.testing.assert_allclose(x, np.stack(theirs, 1), rtol=1e-8, atol=1e-10)
    x, info = linalg.cg(a, b, tol=1e-10, maxiter=0)
    assert not np.any(x) and info.status == 2
    # From the solution there is nothing to do, and from nearby it takes less.
    start = linalg.cg(a, b, full, tol=1e-8)
    assert start.info.status == 0 and not np.any(start.info.iterations)
    near = linalg.cg(a, b, full * (1 + 1e-6), tol=1e-8)
    cold = linalg.cg(a, b, tol=1e-8)
    assert np.all(np.asarray(near.info.iterations) < np.asarray(cold.info.iterations))
    # A tolerance that rounding doesn't allow ends the iteration, and is told.
    x, info = linalg.cg(a, b, tol=0.0)
    assert info.status == 2 and np.all(_residuals(a, x, b) < 1e-12)


def test_no_columns_and_no_rows():
    a, b = _problem(5, 0, "float64")
    x, info = linalg.cg(a, b, mesh=cases.line(2))
    assert x.shape == (5, 0) and info.iterations.shape == (0,) and info.status == 0
    x, info = linalg.cg(np.zeros((0, 0)), np.zeros((0, 2)), mesh=cases.line(2))
    assert x.shape == (0, 2) and info.status == 0


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.extended)])
def test_not_positive_definite(ranks):
    a, b = _problem(20, 2, "float64")
    values, vectors = np.linalg.eigh(a)
    b[:, 0] = vectors[:, 4:] @ np.ones(16)  # meets only positive eigenvalues
    indefinite = (vectors * np.where(np.arange(20) < 4, -values, values)) @ vectors.T
    x, info = linalg.cg(indefinite, b, tol=1e-6, mesh=cases.line(ranks))
    assert info.status == 1 and np.all(np.isfinite(x[:, 0])) and np.all(np.isnan(x[:, 1]))
    assert np.isnan(info.residuals[1])
    x, info = linalg.cg(np.zeros((20, 20)), b, mesh=cases.line(ranks))
    assert info.status == 2 and not np.any(x)
    x, info = linalg.cg(a, b, M=lambda v: -v, mesh=cases.line(ranks))
    assert info.status == 2 and np.all(np.isnan(x))


@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.extended)])
def test_not_finite(bad):
    """Ends at once: a column of b, or all if A has it."""
    a, b = _problem(20, 3, "complex128")
    mesh = cases.line(2)
    spoilt = b.copy()
    spoilt[3, 1] = bad
    x, info = linalg.cg(a, spoilt, mesh=mesh)
    assert info.status == 1 and info.iterations[1] == 0
    assert list(np.isnan(np.asarray(x)).any(0)) == [False, True, False]
    a[4, 7] = a[7, 4] = bad
    x, info = linalg.cg(a, b, mesh=mesh)
    assert info.status == 3 and np.all(np.isnan(x)) and np.all(np.asarray(info.iterations) == 1)


_SCALES = [("float64", -960), ("float32", 100), ("float32", -100)]


@pytest.mark.parametrize(
    "dtype, exponent",
    [
        ("float64", 960),
        *(pytest.param(*case, marks=pytest.mark.extended) for case in _SCALES),
    ],
)
def test_scales(dtype, exponent):
    """Powers of two change no digit, nor the number of iterations."""
    a, b = _problem(16, 2, dtype)
    one = linalg.cg(a, b)
    power = a.dtype.type(2.0) ** exponent
    for scaled_a, scaled_b in ((a * power, b), (a, b * power), (a * power, b * power)):
        x, info = linalg.cg(scaled_a, scaled_b)
        np.testing.assert_array_equal(info.iterations, one.info.iterations)
        np.testing.assert_array_equal(info.residuals, one.info.residuals)
        expected = np.asarray(one.x, np.longdouble) * np.abs(scaled_b).max() / np.abs(b).max()
        expected = expected * (np.abs(a).max() / np.abs(scaled_a).max())
        np.testing.assert_array_equal(x, expected.astype(dtype))
    if exponent > 0:  # a preconditioner of another size, and a function
        m = jax.tree_util.Partial(_scaled_by, np.diag(a) * power)
        preconditioned = linalg.cg(a, b, M=jax.tree_util.Partial(_scaled_by, np.diag(a)))
        x, info = linalg.cg(a * power, b, M=m)
        np.testing.assert_array_equal(info.iterations, preconditioned.info.iterations)
        x, info = linalg.cg(lambda v: (a * power) @ v, b, M=m)
        np.testing.assert_array_equal(info.iterations, preconditioned.info.iterations)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("kind", [_AUTO, _EXPLICIT])
@pytest.mark.extended
def test_operators(dtype, kind):
    """Functions as A and M, with and without a jit, and pytrees of arrays."""
    a, b = _problem(24, 3, dtype, 100)
    d = np.geomspace(1, 1e3 if dtype == "float64" else 10, 24).astype(dtype)
    a = a * d[:, None] * d
    tol = 1e-10 if dtype == "float64" else 1e-3
    mesh = cases.line(4, kind=kind)
    a, b = (cases.shard(x, mesh, "r") for x in (a, b))
    precondition = jax.tree_util.Partial(_scaled_by, jnp.diag(np.asarray(a)))
    if kind == _EXPLICIT:
        by_a = jax.tree_util.Partial(
            lambda a, v: a @ _compat.reshard(v, NamedSharding(mesh, P(None, None))), a
        )
    else:
        by_a = jax.tree_util.Partial(jnp.matmul, a)
    with cases.context(mesh):
        plain = linalg.cg(a, b, tol=tol, maxiter=2000)
        for function in (a, by_a):
            results = [linalg.cg(function, b, tol=tol, M=precondition)]
            results.append(linalg.cg(function, b, tol=tol, M=lambda v: precondition(v)))
            where = {"mesh": mesh} if function is a else {}
            run = jax.jit(lambda f, b, m, o=where: linalg.cg(f, b, tol=tol, M=m, **o))
            results.append(run(function, b, precondition))
            for x, info in results:
                assert x.sharding.is_equivalent_to(b.sharding, 2)
                assert info.status == 0 and np.all(_residuals(a, x, b) <= 2 * tol)
                assert np.max(info.iterations) < np.max(plain.info.iterations) * 0.6
        one = linalg.cg(by_a, cases.shard(np.asarray(b)[:, 0], mesh, "r"), tol=tol, M=precondition)
        assert one.x.shape == (24,) and one.info.iterations.shape == ()


def test_compiles_once(monkeypatch):
    a, b = _problem(12, 2, "float64")
    count = [0]

    def product(a, v):
        count[0] += 1
        return a @ v

    globals()["_product"] = product  # no closure of this function's is in the operator
    for factor in (1, 2, 3):
        linalg.cg(jax.tree_util.Partial(_counted, factor * a), b, tol=0.1 / factor)
    traced = count[0]
    linalg.cg(jax.tree_util.Partial(_counted, a + np.eye(12)), b)
    assert count[0] == traced > 0


def _counted(a, v):
    return globals()["_product"](a, v)


def _loss(x):
    return jnp.sum(jnp.sin(x.real)) + jnp.sum(jnp.cos(x.imag))


@_needs_transforms
@pytest.mark.parametrize(
    "dtype, ranks, how",
    cases.broad(
        [
            (dtype, ranks, how)
            for dtype in ("float64", "complex128")
            for ranks in (1, 4)
            for how in ("array", "with M", "function", "start")
        ],
        lambda dtype, ranks, how: dtype == "complex128" and ranks == 4 and how == "array",
    ),
)
def test_derivatives(dtype, ranks, how):
    """Those of `jax.numpy.linalg.solve`, first and second ones, jvp and vjp."""
    a, b = _problem(12, 2, dtype)
    mesh = cases.line(ranks)
    a, b = (cases.shard(x, mesh, "r") for x in (a, b))
    random = cases.rng(5)
    moved = (
        cases.hermitian_part(cases.normal(random, (12, 12), dtype)),
        cases.normal(random, (12, 2), dtype),
    )

    def ours(a, b):
        if how == "function":
            return linalg.cg(lambda v: a @ v, b, tol=1e-14).x
        m = (lambda v: v / jnp.diag(a)[:, None]) if how == "with M" else None
        x0 = jnp.ones_like(b) if how == "start" else None
        return linalg.cg(a, b, x0, tol=1e-14, M=m, mesh=mesh).x

    def derivatives(solve):
        def loss(a, b):
            return _loss(solve(a, b))

        gradient = jax.jit(jax.grad(loss, (0, 1)))
        return (
            jax.jvp(solve, (a, b), moved)[1],
            *gradient(a, b),
            *jax.jit(lambda a, b: jax.jvp(jax.grad(loss, (0, 1)), (a, b), moved)[1])(a, b),
        )

    for found, expected in zip(derivatives(ours), derivatives(jnp.linalg.solve), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@_needs_transforms
@pytest.mark.extended
def test_derivatives_by_parameters_of_a_function():
    """Against finite differences, eagerly and compiled. Convergence of small derivatives doesn't
    depend on the size of b or atol."""
    points, b = cases.rng(2).uniform(size=24), cases.normal(cases.rng(3), (24, 2), "float64")
    mesh = cases.line(4)
    b = cases.shard(b, mesh, "r")

    def value(length):
        kernel = jnp.exp(-((points[:, None] - points) ** 2) / length) + 0.1 * jnp.eye(24)
        x = linalg.cg(lambda v: kernel @ v, b, tol=1e-13, atol=1e-12, M=lambda v: v / 1.1).x
        return 1e-9 * jnp.sum(b * x)

    step = 1e-5
    expected = (value(0.3 + step) - value(0.3 - step)) / (2 * step)
    for run in (jax.grad(value), jax.jit(jax.grad(value)), jax.jit(jax.jacfwd(value))):
        np.testing.assert_allclose(run(0.3), expected, rtol=1e-7)


@_needs_transforms
@pytest.mark.extended
@pytest.mark.parametrize("ranks", [1, 4])
def test_vmap(ranks):
    a, b = _problem(12, 2, "float64")
    mesh = cases.line(ranks)
    stack = np.stack([a, a + np.eye(12), 2 * a])
    rights = np.stack([b, 2 * b, b + 1])
    expected = np.linalg.solve(stack, rights)

    def run(a, b, m=None):
        return linalg.cg(a, b, tol=1e-13, M=m, mesh=mesh)

    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-10)  # noqa: E731
    for results in (run(stack, rights), jax.vmap(run)(stack, rights)):
        close(results.x, expected)
        assert results.info.iterations.shape == (3, 2) and results.info.status.shape == (3,)
    close(jax.vmap(run, (None, 0))(a, rights).x, np.linalg.solve(a, rights))
    close(jax.vmap(run, (0, None))(stack, b).x, np.linalg.solve(stack, b))
    close(jax.vmap(lambda a, b: run(a, b, lambda v: v * 2))(stack, rights).x, expected)
    by_function = lambda a, b: linalg.cg(lambda v: a @ v, b, tol=1e-13)  # noqa: E731
    close(jax.jit(jax.vmap(by_function))(stack, rights).x, expected)
    found = jax.jit(jax.vmap(jax.grad(lambda a, b: _loss(run(a, b).x)), (0, 0)))(stack, rights)
    theirs = jax.vmap(jax.grad(lambda a, b: _loss(jnp.linalg.solve(a, b))))(stack, rights)
    close(found, theirs)


@pytest.mark.extended
def test_dtypes():
    a, b = _problem(10, 2, "float64")
    half = linalg.cg(a.astype("bfloat16"), b.astype("bfloat16"), M=lambda v: v)
    assert half.x.dtype == "bfloat16" and half.info.residuals.dtype == "float32"
    assert linalg.cg(lambda v: 2 * v, b.astype("float16")).x.dtype == "float16"
    assert linalg.cg(a.astype("float32"), b).x.dtype == "float64"
    assert linalg.cg(a, b.astype("complex64"), M=lambda v: v).x.dtype == "complex128"
    x = linalg.cg(np.diag([1, 2, 4]), np.array([1, 2, 4])).x
    np.testing.assert_allclose(x, np.ones(3), rtol=1e-5)


_A, _B = np.eye(4), np.ones((4, 2))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: linalg.cg(_A, np.ones(3)), ValueError, r"cg: b must have shape \(4,\) or"),
        (lambda: linalg.cg(np.ones((4, 3)), _B), ValueError, "cg: A must be a square matrix"),
        (lambda: linalg.cg([[1.0]], _B), TypeError, "cg: A must be .* got list"),
        (lambda: linalg.cg(_A, [1.0]), TypeError, "cg: b must be .* got list"),
        (lambda: linalg.cg(_A, _B, np.ones(4)), ValueError, r"x0 must have the shape of b, \(4, 2"),
        (lambda: linalg.cg(_A, _B, 1j * _B), TypeError, "x0 has dtype complex128, but A and b"),
        (lambda: linalg.cg(_A, _B, tol=_B), ValueError, "cg: tol must be a real scalar"),
        (lambda: linalg.cg(_A, _B, atol=1j), ValueError, "cg: atol must be a real scalar"),
        (
            lambda: linalg.cg(_A, _B, maxiter=-1),
            ValueError,
            "maxiter must be .* at least 0; got -1",
        ),
        (lambda: linalg.cg(_A, _B, maxiter=2.0), TypeError, "maxiter must be an integer"),
        (lambda: linalg.cg(_A, _B, M=_A), TypeError, "M must be a function of .*got ndarray"),
        (
            lambda: linalg.cg(_A, _B, M=lambda v: v[:3]),
            ValueError,
            r"M must .*returns shape \(3, 2",
        ),
        (lambda: linalg.cg(lambda v: 1, _B), ValueError, "A must return an array .*returns int"),
        (lambda: linalg.cg(lambda v: 1j * v, _B), ValueError, "dtype float64 it .* complex128"),
        (lambda: linalg.cg(abs, _B, mesh=cases.line(2)), ValueError, "A is a function, whose"),
        (lambda: linalg.cg(abs, np.ones((2, 4, 2))), ValueError, r"b must have shape \(n,\) or"),
        (
            lambda: linalg.cg(_A[None], _B[None], M=abs),
            ValueError,
            "Map over a batch with jax.vmap",
        ),
    ],
)
def test_bad_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()
