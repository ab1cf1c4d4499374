"""`jaxmg.linalg.eigsh`: a few eigenpairs of matrices and of operators."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxmg import _compat, linalg
from jaxmg._lanczos import sizes

_WHICH = "SA", "LA", "BE", "LM"


@pytest.fixture(autouse=True)
def _small_matrices(monkeypatch):
    """Has block Lanczos compute small matrices too."""
    monkeypatch.setattr(sizes, "OF_MATRIX", 2)
    cases.forget_plans()
    yield
    cases.forget_plans()


def _with(w, dtype="float64", seed=0):
    """Returns a matrix with these eigenvalues."""
    q = np.linalg.qr(cases.normal(cases.rng(seed), (len(w), len(w)), dtype))[0]
    a = (q * w) @ q.conj().T
    return ((a + a.conj().T) / 2).astype(dtype)


def _random(n, dtype, seed=0):
    a = cases.normal(cases.rng(seed), (n, n), dtype)
    return ((a + a.conj().T) / 2).astype(dtype)


def _multiply(a, x):
    return jnp.matmul(a, x, precision="highest")


def _operator(a):
    return jax.tree_util.Partial(_multiply, a)


def _wanted(exact, which, k):
    """Returns the wanted ones of ascending values, ascending."""
    if which == "LM":
        return np.sort(exact[np.argsort(-abs(exact), kind="stable")[:k]])
    low = {"SA": k, "LA": 0, "BE": k // 2}[which]
    return np.concatenate([exact[:low], exact[len(exact) - k + low :]])


def _check(a, which, k, found, tolerance=0.0):
    """Checks that pairs are those that are wanted, and what is told of them."""
    w, v, info = jax.tree.map(np.asarray, found)
    eps, dtype = cases.eps(a.dtype), np.dtype(a.dtype)
    exact = np.linalg.eigvalsh(cases.wide(a))
    norm = np.max(np.abs(exact)) or 1.0
    rounding = (64 * eps + 2 * tolerance) * norm
    assert w.dtype == np.finfo(dtype).dtype and v.dtype == dtype and v.shape == (len(a), k)
    assert info.status == 0
    np.testing.assert_allclose(w, _wanted(exact, which, k), rtol=0, atol=rounding)
    residuals = np.linalg.norm(cases.wide(a) @ v - v * w, axis=0)
    assert np.max(residuals) <= rounding
    np.testing.assert_allclose(info.residuals, residuals, rtol=0, atol=rounding)
    np.testing.assert_allclose(v.conj().T @ v, np.eye(k), rtol=0, atol=100 * eps)


@pytest.mark.core("float64-4-203-3-SA", "complex64-2-150-1-LM")
@pytest.mark.parametrize("which", _WHICH)
@pytest.mark.parametrize(
    "dtype, devices, n, k",
    [
        ("float64", 4, 203, 3),
        ("complex64", 2, 150, 1),
        ("float32", 8, 240, 4),
        ("complex128", 1, 200, 2),
        ("float64", 1, 259, 5),
        ("complex128", 4, 160, 2),
    ],
)
def test_operators(dtype, devices, n, k, which):
    a = _random(n, dtype)
    mesh = cases.line(devices, kind=AxisType.Explicit if dtype == "complex64" else AxisType.Auto)
    found = linalg.eigsh(
        _operator(cases.shard(a, mesh)),
        k,
        which=which,
        shape=a.shape,
        dtype=dtype,
        mesh=mesh,
        return_info=True,
    )
    _check(a, which, k, found)


@pytest.mark.extended
@cases.kinds
@pytest.mark.parametrize(
    "dtype, devices, n",
    [("float64", 4, 209), ("complex64", 2, 240), ("float32", 8, 256), ("complex128", 1, 210)],
)
def test_matrices(dtype, devices, n, kind):
    a, mesh = _random(n, dtype), cases.line(devices, kind=kind)
    for k, which in ((2, "SA"), (3, "LM")):
        found = linalg.eigsh(
            jnp.asarray(a), k, which=which, mesh=mesh, in_specs=P("r", None), return_info=True
        )
        assert found[2].iterations > 0
        _check(a, which, k, found)


_SPECTRA = {
    "one multiple of 9": (np.repeat(7.0, 9), np.linspace(-1, 1, 231)),
    "pairs": (np.repeat(np.linspace(3, 4, 6), 2), np.linspace(-1, 1, 228)),
    "cluster": (1 + 1e-12 * np.arange(8), np.linspace(-1, 0.5, 232)),
    "graded": (np.logspace(0, -12, 240),),
    "few that aren't 0": (np.linspace(1, 2, 4), np.zeros(236)),
    "identity": (np.ones(240),),
    "zero": (np.zeros(240),),
}


@pytest.mark.core("one multiple of 9")
@pytest.mark.parametrize("name", _SPECTRA)
def test_multiple_and_close_eigenvalues(name):
    a = _with(np.concatenate(_SPECTRA[name]))
    on = cases.line(2)
    for k in (5, 9):
        found = linalg.eigsh(_operator(a), k, which="LA", v0=a[:, 0], mesh=on, return_info=True)
        _check(a, "LA", k, found)


@pytest.mark.extended
def test_a_multiplicity_of_50():
    a = _with(np.concatenate([np.linspace(-1, 1, 900), np.repeat(3.0, 50)]))
    w, v, info = linalg.eigsh(
        _operator(a), 49, which="LA", mesh=cases.line(4), return_info=True, **_like(a)
    )
    assert info.iterations > 0
    _check(a, "LA", 49, (w, v, info))


def _like(a):
    return {"shape": a.shape, "dtype": a.dtype}


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", cases.breadth("complex128")])
@pytest.mark.parametrize("n", [2, 3, 5, cases.breadth(8)])
def test_all_numbers_of_pairs(dtype, n):
    a, mesh = _random(n, dtype), cases.line(2)
    for k in range(1, n):
        for which in _WHICH:
            found = linalg.eigsh(jnp.asarray(a), k, which=which, mesh=mesh, return_info=True)
            _check(a, which, k, found)
            w, v, info = found
            assert info.iterations == 0
            same = linalg.eigsh(
                _operator(a), k, which=which, mesh=mesh, return_eigenvectors=False, **_like(a)
            )
            np.testing.assert_allclose(same, w, rtol=0, atol=50 * cases.eps(dtype) * np.max(abs(w)))


@pytest.mark.core("1e-200")
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 2.0**1020])
def test_scales(scale):
    a = _random(200, "float64")
    a /= np.max(abs(a))
    run = functools.partial(linalg.eigsh, which="SA", mesh=cases.line(2), in_specs=P("r", None))
    w, v = run(jnp.asarray(a), 2)
    scaled, same = run(jnp.asarray(a * scale), 2)
    np.testing.assert_allclose(scaled / scale, w, rtol=1e-12)
    np.testing.assert_allclose(abs(np.sum(same * v, axis=0)), 1, rtol=1e-9)


@pytest.mark.extended
def test_pairs_that_do_not_converge_are_nan():
    a = _with(np.concatenate([[50.0], np.linspace(-1, 1, 299)]))
    run = functools.partial(
        linalg.eigsh, k=3, which="LA", maxiter=7, mesh=cases.line(2), return_info=True, **_like(a)
    )
    w, v, info = run(_operator(a))
    assert info.status == 2 and info.iterations == 13 and info.products == 13 * 5
    np.testing.assert_allclose(w, [50, np.nan, np.nan], rtol=1e-13)
    assert np.isfinite(v[:, 0]).all() and np.isnan(v[:, 1:]).all()
    assert np.isfinite(info.residuals).all() and np.all(info.residuals[1:] > 1e-9)
    looser = run(_operator(a), tol=1e-1)
    assert looser[2].status == 0 and np.isfinite(looser[0]).all()
    jitted = jax.jit(lambda a: run(_operator(a)))(a)
    np.testing.assert_array_equal(jitted[2].status, info.status)
    np.testing.assert_allclose(jitted[0], w, rtol=1e-13)


@pytest.mark.core("nan")
@pytest.mark.parametrize("flaw", ["nan", "inf", "not Hermitian"])
def test_invalid_matrices_give_nan(flaw):
    a = _random(200, "float64")
    a[3, 5] = {"nan": np.nan, "inf": np.inf, "not Hermitian": a[3, 5] + 5}[flaw]
    mesh = cases.line(2)
    for given in (jnp.asarray(a), _operator(a)):
        more = {} if given is not None and hasattr(given, "shape") else _like(a)
        w, v, info = linalg.eigsh(given, 2, mesh=mesh, return_info=True, **more)
        assert info.status == 2 and np.isnan(w).all() and np.isnan(v).all()
        assert info.iterations < 20


@pytest.mark.extended
def test_a_start_saves_products():
    a = _random(400, "float64")
    run = functools.partial(
        linalg.eigsh, k=4, which="SA", mesh=cases.line(2), return_info=True, **_like(a)
    )
    w, v, cold = run(_operator(a))
    close = a + 1e-9 * _random(400, "float64", 1)
    again, _, warm = run(_operator(close), v0=v)
    exact = np.linalg.eigvalsh(close)[:4]
    np.testing.assert_allclose(again, exact, rtol=1e-12)
    assert 3 * warm.iterations < 2 * cold.iterations
    assert run(_operator(a), tol=1e-3)[2].iterations < cold.iterations


@pytest.mark.extended
def test_operators_of_all_kinds():
    a, mesh = _random(160, "float64"), cases.line(2)
    exact = np.linalg.eigvalsh(a)[-2:]
    placed = jax.device_put(jnp.asarray(a), jax.NamedSharding(mesh, P("r", None)))

    class Product:
        shape, dtype = a.shape, a.dtype

        def matmat(self, x):
            return placed @ x

    run = functools.partial(linalg.eigsh, k=2, which="LA", return_eigenvectors=False, mesh=mesh)
    np.testing.assert_allclose(run(Product()), exact, rtol=1e-12)
    np.testing.assert_allclose(run(lambda x: placed @ x, **_like(a)), exact, rtol=1e-12)
    np.testing.assert_allclose(run(lambda x: a @ x, v0=a[:, :2]), exact, rtol=1e-12)
    for given in (_operator(placed), lambda x: placed @ x):
        found = linalg.eigsh(given, 2, which="LA", **_like(a))
        np.testing.assert_allclose(found.eigenvalues, exact, rtol=1e-12)
        assert len(found.eigenvectors.sharding.device_set) == 2
    jitted = jax.jit(lambda b: run(lambda x: b @ x, **_like(a)))(placed)
    np.testing.assert_allclose(jitted, exact, rtol=1e-12)


@pytest.mark.extended
@cases.needs_transformations
def test_batches():
    a = np.stack([_random(150, "float64", i) for i in range(3)])
    exact = np.linalg.eigvalsh(a)[:, :2]
    run = functools.partial(linalg.eigsh, k=2, which="SA", mesh=cases.line(2))
    w, v = run(jnp.asarray(a))
    np.testing.assert_allclose(w, exact, rtol=1e-12)
    np.testing.assert_allclose(a @ v, v * w[:, None], atol=1e-11)
    np.testing.assert_allclose(jax.vmap(lambda a: run(a)[0])(jnp.asarray(a)), exact, rtol=1e-12)
    mapped = jax.jit(jax.vmap(lambda a: run(_operator(a), **_like(a[..., 0, :]) | _like(a))[0]))
    np.testing.assert_allclose(mapped(jnp.asarray(a)), exact, rtol=1e-12)


@pytest.mark.extended
@pytest.mark.skipif(not _compat.COMPILES_EXCHANGES, reason="needs JAX 0.10")
def test_results_lie_as_a_does():
    for kind in AxisType.Auto, AxisType.Explicit:
        mesh = cases.line(4, kind=kind)
        a = jax.device_put(_random(240, "float32"), jax.NamedSharding(mesh, P("r", None)))
        w, v, info = linalg.eigsh(a, 3, return_info=True)
        assert v.sharding.is_equivalent_to(a.sharding, 2)
        assert all(x.sharding.is_fully_replicated for x in (w, *info))


_A = np.eye(6)


@pytest.mark.parametrize(
    "given, options, error, words",
    [
        (_A, {"k": 0}, ValueError, r"k must be from 1 to n - 1, 5; got 0"),
        (_A, {"k": 6}, ValueError, r"k must be from 1 to n - 1, 5; got 6. jaxmg.eigh computes all"),
        (_A, {"k": 2.0}, TypeError, "k must be an integer; got 2.0"),
        (_A, {"k": 2, "which": "XX"}, ValueError, "which must be one of .*; got 'XX'"),
        (_A, {"k": 2, "which": "SM"}, ValueError, 'definite matrix are "SA"'),
        (_A, {"k": 2, "maxiter": 0}, ValueError, "maxiter must be at least 1; got 0"),
        (_A, {"k": 2, "maxiter": 1.5}, TypeError, "maxiter must be an integer; got 1.5"),
        (_A, {"k": 2, "tol": -1}, ValueError, "tol must be from 0 to 1; got -1"),
        (_A, {"k": 2, "tol": None}, TypeError, "tol must be a number; got None"),
        (_A, {"k": 2, "v0": np.ones(5)}, ValueError, r"v0 must have shape \(6,\) or .*\(5,\)"),
        (_A, {"k": 2, "v0": 1j * np.ones(6)}, TypeError, "v0 has dtype complex128, but A is real"),
        (_A, {"k": 2, "shape": (6, 6)}, ValueError, "shape is for operators, and A is an array"),
        (_A[:4], {"k": 2}, ValueError, r"A must be a square matrix .*\(4, 6\)"),
        (_A[0], {"k": 2}, ValueError, r"A must be a square matrix; it has shape \(6,\)"),
        ([[1.0]], {"k": 1}, TypeError, "A must be a JAX or NumPy array; got list"),
        (_multiply, {"k": 2}, ValueError, r"pass shape=\(n, n\) and dtype="),
        (_multiply, {"k": 2, "shape": (6, 5), "dtype": "f8"}, ValueError, r"square.*\(6, 5\)"),
        (_multiply, {"k": 2, "shape": 6, "dtype": "f8"}, TypeError, r"two integers.*got 6"),
        (_multiply, {"k": 2, "shape": (6, 6), "dtype": "i4"}, TypeError, "dtypes .*; got int32"),
        (lambda x: x[:3], {"k": 2, "v0": _A[0]}, ValueError, r"returns shape \(3, 6\) and dtype"),
        (lambda x: None, {"k": 2, "v0": _A[0]}, ValueError, "it returns NoneType"),
    ],
)
def test_refused(given, options, error, words):
    if isinstance(given, np.ndarray):
        given = jnp.asarray(given)
    with pytest.raises(error, match=f"linalg.eigsh: .*{words}"):
        linalg.eigsh(given, **options)


def _derivatives(dtype, devices, kind, which, given):
    """Compares derivatives of jvp and vjp with those of JAX's eigh."""
    n, k, mesh = 160, 2, cases.line(devices, kind=kind)
    a, a_dot = _random(n, dtype), _random(n, dtype, 1)
    weights = cases.normal(cases.rng(2), (n, k), np.finfo(dtype).dtype)

    def total(w, v):
        return jnp.sum(jnp.sin(w)) + jnp.sum(weights * jnp.abs(v) ** 2)

    def ours(a):
        of = {"array": a, "pytree": _operator(a), "closure": lambda x: _multiply(a, x)}[given]
        options = {} if given == "array" else _like(a)
        return total(*linalg.eigsh(of, k, which=which, mesh=mesh, **options))

    def theirs(a):
        w, v = jnp.linalg.eigh(a)
        order = jnp.arange(k) if which == "SA" else jnp.sort(jnp.argsort(-jnp.abs(w))[:k])
        return total(w[order], v[:, order])

    y, expected = jax.jvp(theirs, (a,), (a_dot,))
    placed = [cases.shard_rows(x, mesh) for x in (a, a_dot)]
    found, moved = jax.jit(lambda a, a_dot: jax.jvp(ours, (a,), (a_dot,)))(*placed)
    gradient = jax.jit(jax.grad(ours))(placed[0])
    np.testing.assert_allclose(found, y, rtol=1e-10)
    np.testing.assert_allclose(moved, expected, rtol=1e-9)
    product = np.sum((np.asarray(gradient) * a_dot).real)
    np.testing.assert_allclose(product, expected, rtol=1e-9)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "dtype, which, given",
    cases.broad(
        itertools.product(("float64", "complex128"), ("SA", "LM"), ("array", "pytree", "closure")),
        lambda *case: case in (("float64", "SA", "closure"), ("complex128", "LM", "array")),
    ),
)
def test_derivatives(dtype, which, given):
    _derivatives(dtype, 2, AxisType.Auto, which, given)


@pytest.mark.extended
@cases.needs_transformations
def test_derivatives_on_explicit_axes():
    with cases.context(cases.line(4, kind=AxisType.Explicit)):
        _derivatives("float64", 4, AxisType.Explicit, "SA", "array")


@pytest.mark.extended
@cases.needs_transformations
def test_derivatives_of_higher_order():
    """Derivatives of values by a parameter of an operator, against those of eigh, and batches."""
    a, b = _random(150, "float64"), _random(150, "float64", 1)
    mesh = cases.line(2)

    def ours(t):
        w, _ = linalg.eigsh(lambda x: _multiply(a + t * b, x), 2, which="SA", mesh=mesh, **_like(a))
        return w[0] * w[1]

    def theirs(t):
        w = jnp.linalg.eigvalsh(a + t * b)
        return w[0] * w[1]

    found, expected = (jax.jit(jax.hessian(f))(0.3) for f in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    each = jnp.array([0.1, 0.3])
    found, expected = (jax.jit(jax.vmap(jax.grad(f)))(each) for f in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.extended
@cases.needs_transformations
def test_derivatives_that_do_not_converge_are_nan():
    a = _random(150, "float64")
    run = functools.partial(linalg.eigsh, k=1, which="SA", maxiter=6, tol=0.5, **_like(a))

    def total(a):
        w, v = run(_operator(a), mesh=cases.line(1))
        return jnp.sum(v[0] ** 2)

    assert np.isfinite(total(a)) and np.isnan(jax.grad(total)(a)).all()
