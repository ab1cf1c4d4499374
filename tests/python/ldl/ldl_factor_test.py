"""`ldl_factor`: solutions, inertia and determinants of Hermitian and symmetric matrices that aren't
definite; derivatives; what it refuses."""

import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg._ldl import operations


def _matrix(n, dtype, hermitian=True, kind="random"):
    a = cases.normal(cases.rng(n, 3), (n, n), dtype)
    other = a.conj().T if hermitian else a.T
    if kind == "saddle":  # [H B^T; B 0]
        a = a + other
        a[2 * n // 3 :, 2 * n // 3 :] = 0
        return a
    if kind == "blocks":  # 2 x 2 blocks with a zero diagonal
        a = np.zeros((n, n), dtype)
        a[range(0, n - 1, 2), range(1, n, 2)] = 1
        return a + a.T
    return a + other


def _triangle(a, lower, dtype):
    """Returns one triangle of a matrix, and NaN in the other one."""
    keep = np.tril(np.ones_like(a, bool)) if lower else np.triu(np.ones_like(a, bool))
    return np.where(keep, a, np.array(np.nan, dtype))


_CASES = [
    (13, 4, "complex128", 2, True),
    (37, 8, "float64", 3, True),
    (29, 2, "complex128", 4, False),
    (80, 1, "float64", None, True),
    (31, 3, "complex64", 7, False),
    (24, 2, "float32", 5, False),
]


@pytest.mark.parametrize("lower", (True, False))
@pytest.mark.parametrize(
    "n, ranks, dtype, tile, hermitian", cases.broad(_CASES, core=lambda n, *_: n == 13)
)
def test_what_a_factor_gives(n, ranks, dtype, tile, hermitian, lower):
    a = _matrix(n, dtype, hermitian)
    mesh = cases.line(ranks)
    given = cases.shard_rows(_triangle(a, lower, dtype), mesh)
    factor = jaxmg.linalg.ldl_factor(given, lower, hermitian, T_A=tile, mesh=mesh)
    assert factor.status == 0 and factor.shape == a.shape and factor.dtype == a.dtype
    assert factor.mesh == mesh and "LDLFactor(n=" in repr(factor)
    b = cases.normal(cases.rng(n), (n, 2), dtype)
    for trans, op in {0: a, "T": a.T, 2: a.conj().T}.items():
        x = np.asarray(factor.solve(b, trans))
        assert cases.backward_error(op, x, b) < 20 * n * cases.eps(dtype)
        assert cases.backward_error(op, np.asarray(factor.solve(b[:, 0], trans)), b[:, 0]) < (
            20 * n * cases.eps(dtype)
        )
    sign, logdet = np.linalg.slogdet(cases.wide(a))
    tolerance = 1e3 * n * cases.eps(dtype)
    np.testing.assert_allclose(factor.slogdet()[0], sign, atol=tolerance)
    np.testing.assert_allclose(factor.slogdet()[1], logdet, atol=tolerance)
    if hermitian or dtype == "float32":
        values = np.linalg.eigvalsh(cases.wide(a))
        expected = int(np.sum(values > 0)), int(np.sum(values < 0)), 0
        assert tuple(map(int, factor.inertia())) == expected


@pytest.mark.extended
@pytest.mark.parametrize("kind, n", [("saddle", 27), ("blocks", 26), ("blocks", 25)])
def test_zero_blocks(kind, n):
    a = _matrix(n, "float64", kind=kind)
    mesh = cases.line(2)
    factor = jaxmg.linalg.ldl_factor(cases.shard_rows(a, mesh), T_A=4, mesh=mesh)
    values = np.linalg.eigvalsh(a)
    small = n * np.finfo(float).eps * np.abs(values).max()
    expected = np.sum(values > small), np.sum(values < -small), np.sum(np.abs(values) <= small)
    assert tuple(map(int, factor.inertia())) == tuple(map(int, expected))
    if kind == "blocks" and n % 2:
        assert factor.status == n and factor.det() == 0 and factor.slogdet()[1] == -np.inf
    else:
        b = cases.normal(cases.rng(n), (n, 1), "float64")
        assert cases.backward_error(a, np.asarray(factor.solve(b)), b) < 1e-13


def test_zero_and_nan():
    mesh = cases.line(2)
    factor = jaxmg.linalg.ldl_factor(cases.shard_rows(np.zeros((9, 9)), mesh), T_A=2, mesh=mesh)
    assert factor.status == 1 and factor.det() == 0
    assert tuple(map(int, factor.inertia())) == (0, 0, 9)
    a = _matrix(9, "float64")
    a[5, 5] = np.nan
    factor = jaxmg.linalg.ldl_factor(cases.shard_rows(a, mesh), T_A=2, mesh=mesh)
    assert factor.status == -1 and np.isnan(factor.solve(np.ones(9))).all()
    assert np.isnan(factor.slogdet()[1])
    assert tuple(map(int, factor.inertia())) == (-1, -1, -1)


@pytest.mark.parametrize("exponent", [-200, 201])
def test_powers_of_two_change_no_bit(exponent):
    mesh, n = cases.line(2), 13
    a, b = _matrix(n, "float64"), cases.normal(cases.rng(n), (n, 2), "float64")
    one, other = (
        jaxmg.linalg.ldl_factor(cases.shard_rows(x, mesh), T_A=3, mesh=mesh)
        for x in (a, np.ldexp(a, exponent))
    )
    x = np.asarray(one.solve(b))
    np.testing.assert_array_equal(other.solve(b), np.ldexp(x, -exponent))
    assert one.slogdet()[0] == other.slogdet()[0]
    np.testing.assert_array_equal(one.inertia(), other.inertia())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_dtypes_that_are_promoted(dtype):
    a = jnp.asarray(np.diag([1, -2, 4.0, -8]), dtype)
    factor = jaxmg.linalg.ldl_factor(a, mesh=cases.line(2))
    assert factor.dtype == "float32" and factor.det() == 64


def test_a_matrix_without_rows():
    factor = jaxmg.linalg.ldl_factor(jnp.zeros((0, 0)), mesh=cases.line(2))
    assert factor.solve(jnp.zeros((0, 2))).shape == (0, 2)
    assert factor.det() == 1 and tuple(map(int, factor.inertia())) == (0, 0, 0)


@pytest.mark.extended
def test_under_jit_on_explicit_axes():
    mesh = cases.line(2, kind=AxisType.Explicit)
    a = _matrix(12, "float64")

    @jax.jit
    def run(a, b):
        factor = jaxmg.linalg.ldl_factor(a, T_A=4)
        return factor.solve(b), factor.inertia()[1]

    with cases.context(mesh):
        x, negative = run(cases.shard_rows(a, mesh), cases.shard(np.ones(12), mesh))
    np.testing.assert_allclose(a @ np.asarray(x), np.ones(12), atol=1e-11)
    assert int(negative) == np.sum(np.linalg.eigvalsh(a) < 0)


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("dtype, hermitian", [("float64", True), ("complex128", False)])
def test_derivatives(dtype, hermitian):
    n, mesh = 11, cases.line(2)
    a, a_dot = (_matrix(n + i, dtype, hermitian)[:n, :n] for i in range(2))
    b = cases.normal(cases.rng(n), (n, 2), dtype)

    def solve(a, b):
        given = jnp.asarray(a)
        factor = jaxmg.linalg.ldl_factor(given, hermitian=hermitian, T_A=3, mesh=mesh)
        return factor.solve(b)

    x, x_dot = jax.jvp(solve, (cases.shard_rows(a, mesh), b), (cases.shard_rows(a_dot, mesh), b))
    np.testing.assert_allclose(x, np.linalg.solve(a, b), atol=1e-10)
    np.testing.assert_allclose(x_dot, np.linalg.solve(a, b - a_dot @ x), atol=1e-9)
    c = cases.normal(cases.rng(n, 1), (n, 2), dtype)
    _, pullback = jax.vjp(lambda b: solve(a, b), jnp.asarray(b))
    np.testing.assert_allclose(pullback(jnp.asarray(c))[0], np.linalg.solve(a.T, c), atol=1e-10)
    _, pullback = jax.vjp(lambda a: solve(a, b), cases.shard_rows(a, mesh))
    (a_bar,) = pullback(jnp.asarray(c))
    moved = np.sum(np.asarray(a_bar) * a_dot)
    np.testing.assert_allclose(moved, np.sum(c * np.asarray(x_dot - np.linalg.solve(a, b))))


@cases.needs_transformations
@pytest.mark.extended
def test_a_batch():
    a = np.stack([_matrix(n, "float64")[:9, :9] for n in (9, 10, 11)])
    b, mesh = np.ones((3, 9)), cases.line(2)

    def each(a, b):
        factor = jaxmg.linalg.ldl_factor(a, T_A=2, mesh=mesh)
        return factor.solve(b), factor.inertia()[0]

    x, positive = jax.vmap(each)(a, b)
    np.testing.assert_allclose(a @ np.asarray(x)[..., None], b[..., None], atol=1e-11)
    np.testing.assert_array_equal(positive, np.sum(np.linalg.eigvalsh(a) > 0, axis=-1))
    factors = jaxmg.linalg.ldl_factor(a, T_A=2, mesh=mesh)
    np.testing.assert_array_equal(jax.vmap(lambda f, b: f.solve(b))(factors, b), x)


@cases.one_process("a pickle is of one process")
def test_pickled():
    a = _matrix(13, "complex128")
    mesh = cases.line(4)
    factor = jaxmg.linalg.ldl_factor(cases.shard_rows(a, mesh), T_A=2, mesh=mesh)
    again = pickle.loads(pickle.dumps(factor))
    assert isinstance(again, jaxmg.LDLFactor) and again.hermitian
    b = np.ones(13, "complex128")
    np.testing.assert_array_equal(again.solve(b), factor.solve(b))


def test_what_it_refuses():
    mesh = cases.line(2)
    a = cases.shard_rows(_matrix(8, "complex128", hermitian=False), mesh)
    factor = jaxmg.linalg.ldl_factor(a, hermitian=False, T_A=2, mesh=mesh)
    with pytest.raises(ValueError, match="a complex symmetric matrix has complex eigenvalues"):
        factor.inertia()
    with pytest.raises(ValueError, match=r"b must have shape \(8,\)"):
        factor.solve(np.ones(3, "complex128"))
    with pytest.raises(ValueError, match="trans must be 0 or 'N'"):
        factor.solve(np.ones(8, "complex128"), 3)
    with pytest.raises(ValueError, match="norm must be 1 or inf"):
        factor.rcond(1.0, 2)


@pytest.mark.parametrize(
    "n, ranks, dtype, tile, hermitian", cases.broad(_CASES, core=lambda n, *_: n == 29)
)
def test_inverse_and_condition(n, ranks, dtype, tile, hermitian):
    a = _matrix(n, dtype, hermitian)
    mesh = cases.line(ranks)
    given = cases.shard_rows(a, mesh)
    factor = jaxmg.linalg.ldl_factor(given, hermitian=hermitian, T_A=tile, mesh=mesh)
    inverse, expected = factor.inv(), np.linalg.inv(cases.wide(a))
    assert inverse.shape == a.shape and inverse.dtype == a.dtype
    if n % ranks == 0:
        assert inverse.sharding.is_equivalent_to(given.sharding, 2)
    size = np.linalg.norm(a, 1) * np.linalg.norm(expected, 1)
    tolerance = 20 * n * cases.eps(dtype) * size * np.abs(expected).max()
    np.testing.assert_allclose(inverse, expected, atol=tolerance)
    for norm in (1, np.inf):
        rcond = factor.rcond(np.linalg.norm(a, norm), norm)
        assert 0.99 < float(rcond * np.linalg.norm(a, norm) * np.linalg.norm(expected, norm)) < 4


def test_the_inverse_by_several_blocks_of_columns(monkeypatch):
    monkeypatch.setattr(operations, "_COLUMNS", 5)
    mesh, a = cases.line(3), _matrix(13, "float64")
    factor = jaxmg.linalg.ldl_factor(cases.shard_rows(a, mesh), T_A=2, mesh=mesh)
    jax.clear_caches()
    np.testing.assert_allclose(factor.inv() @ a, np.eye(13), atol=1e-11)
    assert float(factor.rcond(np.inf)) == 0
    jax.clear_caches()


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype, hermitian, n",
    [("float64", True, 11), ("complex128", True, 7), ("complex128", False, 8)],
)
def test_derivatives_of_the_determinant_and_the_inverse(dtype, hermitian, n):
    mesh = cases.line(2)
    a, a_dot = (_matrix(n + i, dtype, hermitian)[:n, :n] for i in range(2))

    def factor(a):
        return jaxmg.linalg.ldl_factor(jnp.asarray(a), hermitian=hermitian, T_A=3, mesh=mesh)

    def values(a):
        return *factor(a).slogdet(), factor(a).det(), factor(a).inv()

    given = tuple(cases.shard_rows(x, mesh) for x in (a, a_dot))
    found, moved = jax.jvp(values, given[:1], given[1:])
    expected, slopes = jax.jvp(
        lambda a: (*jnp.linalg.slogdet(a), jnp.linalg.det(a), jnp.linalg.inv(a)),
        (jnp.asarray(a),), (jnp.asarray(a_dot),),
    )  # fmt: skip
    for x, y in zip((*found, *moved), (*expected, *slopes), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
    (a_bar,) = jax.vjp(lambda a: factor(a).slogdet()[1], given[0])[1](jnp.ones(()))
    np.testing.assert_allclose(np.sum(np.asarray(a_bar) * a_dot).real, moved[1], rtol=1e-9)
    x = jax.vmap(lambda a: factor(a).inv())(jnp.stack([given[0], 2 * given[0]]))
    np.testing.assert_allclose(x[1], found[3] / 2, rtol=1e-9, atol=1e-9)
