"""The plugin's factors, inverses and solutions of stacks of matrices, and functions that use
them."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases
from jax.sharding import AxisType

import jaxmg
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._lu import stacks as lu_stacks
from jaxmg._stacks import choice, native, products, triangle

pytestmark = [cases.needs_transformations, pytest.mark.usefixtures("plugin")]

# Orders of one block of the kernels and of several, that 32 doesn't divide, and with pairs of
# unequal blocks.
_ORDERS = (1, 5, 32, 33, 64, 100, 130, 257)
_CORE = [(5, "complex128", True), (33, "float32", False), (130, "float64", True)]


def _only(triangle_of, a):
    """Returns `a` with NaN in the other triangle."""
    return jnp.where(triangle_of(jnp.ones(a.shape[-2:])) == 0, jnp.nan, a)


@pytest.mark.core("5")
@pytest.mark.parametrize(
    "n, dtype, upper",
    cases.broad(
        [(n, d, u) for n in _ORDERS for d in cases.DTYPES for u in (False, True)],
        lambda *case: case in _CORE,
    ),
)
def test_factors_inverses_and_products(n, dtype, upper):
    a = stack_cases.definite(3, n, dtype)
    expected = np.linalg.cholesky(np.asarray(a))
    expected = stack_cases.adjoint(expected) if upper else expected
    factor = native.factor_cholesky(_only(jnp.triu if upper else jnp.tril, a), upper)
    assert factor.dtype == a.dtype
    stack_cases.check(factor, expected, dtype)
    other = np.tril(factor, -1) if upper else np.triu(factor, 1)
    assert not other.any()

    inverse = native.invert_triangle(factor, upper)
    eye = np.broadcast_to(np.eye(n), a.shape)
    stack_cases.check(np.asarray(inverse) @ np.asarray(factor), eye, dtype, n)
    assert not (np.tril(inverse, -1) if upper else np.triu(inverse, 1)).any()
    if upper:
        product = np.tril(native.multiply_triangle(inverse))
        stack_cases.check(product, np.tril(np.linalg.inv(np.asarray(a))), dtype, 1)
        whole = np.asarray(cholesky_stacks.invert_by_plugin(factor))
        stack_cases.check(whole @ np.asarray(a), eye, dtype, n)
        np.testing.assert_array_equal(whole, stack_cases.adjoint(whole))


@pytest.mark.parametrize(
    "n, dtype, upper, adjoint, unit",
    cases.broad(
        [
            (n, d, *flags)
            for n in (1, 5, 32, 33, 100, 300)
            for d in cases.DTYPES
            for flags in np.ndindex(2, 2, 2)
        ],
        lambda n, dtype, *flags: n == 33 and dtype == "complex128",
    ),
)
def test_substitution(n, dtype, upper, adjoint, unit):
    a = stack_cases.stack((3, n, n), dtype) / n + jnp.eye(n, dtype=dtype)
    t = np.asarray(jnp.triu(a) if upper else jnp.tril(a))
    if unit:
        t = t * (1 - np.eye(n)) + np.eye(n)
    given = _only(jnp.triu if upper else jnp.tril, a)
    if unit:
        given = jnp.where(jnp.eye(n, dtype=bool), jnp.nan, given)
    b = stack_cases.stack((3, n, 2), dtype)
    x = native.solve_triangle(given.astype(dtype), b, bool(upper), bool(adjoint), bool(unit))
    t = stack_cases.adjoint(t) if adjoint else t
    stack_cases.check(t @ np.asarray(x), b, dtype, np.abs(x).max() * n)


def test_matrices_that_are_not_positive_definite_are_nan_alone():
    n = 70
    a = np.stack([np.eye(n)] * 5)
    a[1, 66, 66], a[2, 2, 2], a[3, 40, 7] = -1, 0, np.nan
    lower = np.asarray(native.factor_cholesky(jnp.asarray(a)))
    assert np.isnan(lower[1:4][:, *np.tril_indices(n)]).all()
    assert not lower[:, *np.triu_indices(n, 1)].any()
    np.testing.assert_array_equal(lower[[0, 4]], a[[0, 4]])
    for empty in ((0, 3, 3), (2, 0, 0)):
        assert native.factor_cholesky(jnp.zeros(empty)).shape == empty
        assert native.invert_triangle(jnp.zeros(empty)).shape == empty
        assert native.multiply_triangle(jnp.zeros(empty)).shape == empty
        assert native.solve_triangle(jnp.zeros(empty), jnp.zeros(empty)).shape == empty


def test_substitution_with_a_singular_triangle_is_not_finite():
    a = np.stack([np.eye(3), np.diag([1.0, 0, 1])])
    x = np.asarray(native.solve_triangle(jnp.asarray(a), jnp.ones((2, 3, 1))))
    assert np.isfinite(x[0]).all() and not np.isfinite(x[1, 1, 0])


def test_many_columns_and_large_orders_are_solved_for_by_jax():
    def text(n, columns):
        a, b = (jax.ShapeDtypeStruct((2, n, m), "float32") for m in (n, columns))
        return str(jax.make_jaxpr(functools.partial(triangle.solve, True))(a, b))

    assert "jaxmg_stacked_trsm" in text(5, 4) and "jaxmg_stacked_trsm" in text(4096, 1)
    assert "jaxmg_stacked_trsm" not in text(5, 5) + text(4097, 1)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_derivatives_of_cholesky_are_those_of_jax(dtype):
    a = stack_cases.definite(2, 5, dtype)

    def evaluate(function):
        def value(a):
            a = (a + jnp.swapaxes(a, 1, 2).conj()) / 2
            return jnp.sum(jnp.sin(jnp.abs(function(a)) ** 2))

        return value

    ours, jaxs = evaluate(cholesky_stacks.factor_by_plugin), evaluate(jnp.linalg.cholesky)
    np.testing.assert_allclose(jax.grad(ours)(a), jax.grad(jaxs)(a), atol=1e-12)
    along = jnp.cos(jnp.arange(a.size)).reshape(a.shape).astype(dtype)

    def second(f):
        return jax.jvp(jax.grad(f), (a,), (along,))[1]

    np.testing.assert_allclose(second(ours), second(jaxs), atol=1e-10)


@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, d) for n in (1, 2, 7, 31, 32) for d in cases.DTYPES],
        lambda *case: case == (7, "complex64"),
    ),
)
def test_small_matrices(n, dtype):
    a = np.asarray(stack_cases.stack((6, n, n), dtype)) + n * np.roll(np.eye(n), 1, 0)
    a = np.concatenate([a, np.ones((1, n, n)) * (n > 1)]).astype(dtype)  # one is singular
    inverse = np.asarray(lu_stacks.inverse_of_small(jnp.asarray(a)))
    eye = np.broadcast_to(np.eye(n), (6, n, n))
    stack_cases.check(a[:6] @ inverse[:6], eye, dtype, 10 * n)
    assert not np.isfinite(inverse[6]).all()
    for columns in (1, 4, 5):  # JAX solves for five
        b = stack_cases.stack((7, n, columns), dtype)
        x = np.asarray(lu_stacks.solve_small(jnp.asarray(a), b))
        stack_cases.check(a[:6] @ x[:6], b[:6], dtype, 10 * n)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_small_inverses_and_solutions_are_those_of_jax(dtype):
    a = stack_cases.definite(2, 5, dtype)
    b = stack_cases.stack((2, 5, 2), dtype)

    def evaluate(inverse, solve):
        return jax.grad(lambda a, b: jnp.abs(jnp.sin(inverse(a)) @ solve(a, b)).sum(), (0, 1))(a, b)

    ours = evaluate(lu_stacks.inverse_of_small, lu_stacks.solve_small)
    for found, expected in zip(ours, evaluate(jnp.linalg.inv, jnp.linalg.solve), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11)


_N, _COUNT = 21, 6


@pytest.fixture
def by_the_plugin(monkeypatch):
    """Makes the plugin compute a batch's share; returns the set of its calls' names."""
    row = choice.Row(jax.default_backend(), "plugin", (1, 100), 1)
    names = ("cholesky", "potri", "trsm", "lu", "inv", "solve")
    stack_cases.use_rows(monkeypatch, **dict.fromkeys(names, (row,)))
    called, call, multiply = set(), native.call, products.multiply

    def recorded(name, *arguments, **options):
        called.add(name)
        return call(name, *arguments, **options)

    def multiplied(*arguments, **options):
        called.add("stacked_product")
        return multiply(*arguments, **options)

    monkeypatch.setattr(native, "call", recorded)
    monkeypatch.setattr(products, "multiply", multiplied)
    jax.clear_caches()
    yield called
    jax.clear_caches()


def _mesh():
    return cases.line(1)


def _general(a, b):
    factor = jaxmg.lu_factor(a, mesh=_mesh())
    return factor.solve(b), factor.inv()


_ROUTINES = {
    "potrs": (lambda a, b: jaxmg.potrs(a, b, mesh=_mesh()), np.linalg.solve,
              {"stacked_cholesky", "stacked_trsm"}),
    "potri": (lambda a, b: jaxmg.potri(a, mesh=_mesh()), lambda a, b: np.linalg.inv(a),
              {"stacked_cholesky", "stacked_trtri", "stacked_lauum"}),
    "cho_factor": (lambda a, b: jaxmg.cho_factor(a, mesh=_mesh()).solve(b), np.linalg.solve,
                   {"stacked_cholesky", "stacked_trsm"}),
    "linalg.cholesky": (lambda a, b: jaxmg.linalg.cholesky(a, mesh=_mesh()),
                        lambda a, b: np.linalg.cholesky(a), {"stacked_cholesky"}),
    "gesv": (lambda a, b: jaxmg.gesv(a, b, mesh=_mesh()), np.linalg.solve,
             {"stacked_lu", "stacked_trsm"}),
    "getri": (lambda a, b: jaxmg.getri(a, mesh=_mesh()), lambda a, b: np.linalg.inv(a),
              {"stacked_lu", "stacked_trtri", "stacked_product"}),
    "lu_factor": (lambda a, b: _general(a, b)[0], np.linalg.solve, {"stacked_lu", "stacked_trsm"}),
    "lu inverse": (lambda a, b: _general(a, b)[1], lambda a, b: np.linalg.inv(a),
                   {"stacked_lu", "stacked_trtri"}),
    "linalg.solve": (lambda a, b: jaxmg.linalg.solve(a, b, mesh=_mesh()), np.linalg.solve,
                     {"stacked_lu", "stacked_trsm"}),
    "linalg.inv": (lambda a, b: jaxmg.linalg.inv(a, mesh=_mesh()),
                   lambda a, b: np.linalg.inv(a), {"stacked_lu", "stacked_trtri"}),
}  # fmt: skip


@pytest.mark.core("lu_factor")
@pytest.mark.parametrize(
    "name, dtype",
    cases.broad(
        [(name, d) for name in _ROUTINES for d in cases.DTYPES],
        lambda name, dtype: dtype == "complex128",
    ),
)
def test_batches_of_routines_call_the_plugin(name, dtype, by_the_plugin):
    function, expected, operations = _ROUTINES[name]
    a = stack_cases.definite(_COUNT, _N, dtype)
    b = stack_cases.stack((_COUNT, _N, 2), dtype)
    found = jax.jit(jax.vmap(function))(a, b)
    assert operations <= by_the_plugin
    stack_cases.check(found, expected(np.asarray(a), np.asarray(b)), dtype, 10)


@pytest.mark.core("cholesky")
@pytest.mark.parametrize(
    "ranks, kind, name",
    cases.broad(
        [
            (ranks, kind, name)
            for ranks in (2, 4, 8)
            for kind in (AxisType.Auto, AxisType.Explicit)
            for name in ("cholesky", "solve", "inv")
        ],
        lambda *case: case in [(2, AxisType.Auto, "solve"), (4, AxisType.Explicit, "cholesky")],
    ),
)
def test_shares_of_several_devices_by_the_plugin(ranks, kind, name, by_the_plugin):
    mesh = cases.line(ranks, kind=kind)
    a = stack_cases.definite(ranks + 1, 9, "complex64")  # all shares have different sizes
    b = stack_cases.stack((ranks + 1, 9, 2), "complex64")
    given = (a, b) if name == "solve" else (a,)
    with cases.context(mesh):
        found = jax.jit(functools.partial(getattr(jaxmg.linalg, name), mesh=mesh))(*given)
    assert by_the_plugin
    expected = getattr(np.linalg, name)(*map(np.asarray, given))
    stack_cases.check(found, expected, "complex64", 10)


@pytest.mark.core("linalg.cholesky")
@pytest.mark.parametrize("name", ["potrs", "potri", "linalg.cholesky", "gesv", "getri"])
def test_gradients_of_batches_by_the_plugin(name, by_the_plugin):
    function, expected, _ = _ROUTINES[name]
    inverse = lambda a, b: jnp.linalg.inv(a)  # noqa: E731
    of_jax = {
        "potrs": jnp.linalg.solve, "gesv": jnp.linalg.solve, "potri": inverse, "getri": inverse,
        "linalg.cholesky": lambda a, b: jnp.linalg.cholesky(a),
    }[name]  # fmt: skip
    a = stack_cases.definite(3, 7, "float64")
    b = stack_cases.stack((3, 7, 2), "float64")

    def loss(of_one):
        def value(a, b):
            a = (a + jnp.swapaxes(a, 1, 2)) / 2
            return jnp.sum(jnp.cos(jax.vmap(of_one)(a, b)))

        return jax.grad(value, argnums=(0, 1))

    for ours, jaxs in zip(loss(function)(a, b), loss(of_jax)(a, b), strict=True):
        np.testing.assert_allclose(ours, jaxs, atol=1e-10)
    assert by_the_plugin


@pytest.mark.parametrize("upper, symmetrize", [(False, True), (True, False)])
def test_cholesky_of_trees_is_the_plugins(upper, symmetrize, by_the_plugin):
    a = stack_cases.definite(4, 9, "complex128")
    tree = {"a": a[:3], "b": a[3]}
    options = {"upper": upper, "symmetrize_input": symmetrize}
    given = jax.tree.map(lambda a: a if symmetrize else _only(jnp.tril, a), tree)
    found = jaxmg.tree.cholesky(given, mesh=_mesh(), **options)
    for name, one in tree.items():
        expected = np.asarray(jnp.linalg.cholesky(one, upper=upper))
        np.testing.assert_allclose(found[name], expected, atol=1e-13)
    assert "stacked_cholesky" in by_the_plugin


def test_one_matrix_that_fails_has_its_status_alone(by_the_plugin):
    a = np.array(stack_cases.definite(3, 9, "float64"))
    a[1, 4, 4] = -1
    x, status = jax.vmap(lambda a: jaxmg.potri(a, mesh=_mesh(), return_status=True))(jnp.asarray(a))
    assert list(np.asarray(status) != 0) == [False, True, False]
    assert list(np.isnan(x).all(axis=(1, 2))) == [False, True, False]


@pytest.mark.extended
def test_inverses_of_singular_matrices_are_not_finite(by_the_plugin):
    a = np.array(stack_cases.definite(3, 9, "float64"))
    a[1] = 0
    x = np.asarray(lu_stacks.inverse_by_plugin(jnp.asarray(a)))
    assert list(np.isfinite(x).all(axis=(1, 2))) == [True, False, True]
