"""`ldl`: SciPy's factors of Bunch and Kaufman. `solve` of matrices that are assumed to be Hermitian
or symmetric, in each way."""

import functools
import math

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

from jaxmg import _compat, linalg
from jaxmg._layouts import layouts
from jaxmg._square import indefinite

_DTYPES = ("float32", "float64", "complex64", "complex128")


def _matrix(n, dtype, hermitian=True, kind="random"):
    a = cases.normal(cases.rng(n, 5), (n, n), dtype)
    a = a + (a.conj() if hermitian else a).T
    if kind == "kkt":
        a[2 * n // 3 :, 2 * n // 3 :] = 0
    elif kind == "skew":  # blocks of two rows with a zero diagonal
        a = np.where(np.abs(np.subtract.outer(np.arange(n), np.arange(n))) == 1, a, 0)
        a[np.arange(n), np.arange(n)] = 0
    elif kind == "graded":
        scale = np.logspace(0, -8, n).astype(np.finfo(dtype).dtype)
        a = scale[:, None] * a * scale
    elif kind == "singular":
        a[:, 0] = a[0] = 0
    return a


def _triangle(a, lower):
    """Returns one triangle of a matrix, and NaN in the other one."""
    keep = np.tri(len(a), dtype=bool) if lower else np.tri(len(a), dtype=bool).T
    return np.where(keep, a, np.array(np.nan, a.dtype))


_CASES = [
    (n, _DTYPES[n % 4], ranks, hermitian, lower, kind)
    for i, (n, ranks, kind) in enumerate((
        (8, 2, "random"), (1, 4, "random"), (2, 1, "skew"), (3, 2, "random"), (13, 4, "random"),
        (21, 1, "kkt"), (24, 2, "skew"), (32, 8, "random"), (40, 4, "graded"), (15, 1, "singular"),
    ))
    for hermitian, lower in ((i % 2 == 0, True), (i % 3 != 0, False))
]  # fmt: skip


@pytest.mark.parametrize(
    "n, dtype, ranks, hermitian, lower, kind",
    cases.broad(_CASES, core=lambda n, dtype, ranks, hermitian, lower, kind: n == 8 and lower),
)
def test_factors_are_scipys(n, dtype, ranks, hermitian, lower, kind):
    a, mesh = _matrix(n, dtype, hermitian, kind), cases.line(ranks)
    given = _triangle(a, lower)
    expected = scipy.linalg.ldl(a, lower, hermitian)
    found = linalg.ldl(cases.shard_rows(given, mesh), lower, hermitian, mesh=mesh)
    for x, y in zip(found, expected, strict=True):
        # Libraries round alike, but for their blocks.
        np.testing.assert_allclose(x, y, atol=100 * n * cases.eps(dtype) * max(1, np.abs(y).max()))
    lu, d, perm = map(np.asarray, found)
    assert lu.dtype == d.dtype == a.dtype and perm.dtype == np.int32
    triangle = lu[perm]
    np.testing.assert_array_equal(triangle, (np.tril if lower else np.triu)(triangle))
    other = lu.conj().T if hermitian else lu.T
    np.testing.assert_allclose(lu @ d @ other, a, atol=30 * n * cases.eps(dtype) * np.abs(a).max())
    if n % ranks == 0 and n > 1:
        assert found[0].sharding.shard_shape((n, n)) == (n // ranks, n)


@pytest.mark.extended
@pytest.mark.parametrize("ranks, n", [(1, 20), (2, 8), (4, 20), (8, 8)])
def test_factors_on_explicit_axes_and_under_jit(ranks, n):
    a, mesh = _matrix(n, "complex128"), cases.line(ranks, kind=AxisType.Explicit)
    expected = scipy.linalg.ldl(a)
    for run in (linalg.ldl, jax.jit(linalg.ldl)):
        with cases.context(mesh):
            found = run(cases.shard_rows(a, mesh))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)
    mesh = cases.line(ranks)
    found = jax.jit(functools.partial(linalg.ldl, mesh=mesh))(cases.shard_rows(a, mesh))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


def test_nan_batches_and_what_ldl_refuses():
    a = _matrix(5, "float64")
    a[3, 1] = np.nan
    lu, d, perm = linalg.ldl(a)
    assert np.isnan(lu).all() and np.isnan(d).all() and np.array_equal(perm, range(5))
    assert np.isfinite(linalg.ldl(a, lower=False)[0]).all()  # reads the other triangle
    assert [x.shape for x in linalg.ldl(jnp.zeros((0, 0)))] == [(0, 0), (0, 0), (0,)]
    if not _compat.TRANSFORMS:
        return
    stack = np.stack([_matrix(4, "float64"), _matrix(5, "float64")[:4, :4]])
    found = linalg.ldl(stack, mesh=cases.line(2))
    for i, matrix in enumerate(stack):
        for x, y in zip(found, scipy.linalg.ldl(matrix), strict=True):
            np.testing.assert_allclose(x[i], y, atol=1e-13)
    with pytest.raises(NotImplementedError, match="this factorization has no derivative"):
        jax.grad(lambda a: linalg.ldl(a, mesh=cases.line(2))[1].sum())(jnp.eye(3))


# Orders differ between the ways, because programs are cached.
@pytest.mark.parametrize(
    "way, n, dtype, kind",
    cases.broad(
        [
            (indefinite.LAPACK, 13, "complex128", "random"),
            (indefinite.LAPACK, 1, "float64", "random"),
            (indefinite.LAPACK, 2, "complex64", "skew"),
            (indefinite.LAPACK, 24, "float32", "kkt"),
            (indefinite.LAPACK, 40, "complex128", "graded"),
            (indefinite.LDL, 14, "complex128", "random"),
            (indefinite.LDL, 3, "float32", "random"),
            (indefinite.LDL, 27, "complex64", "kkt"),
            (indefinite.LDL, 38, "float64", "skew"),
        ],
        core=lambda way, n, dtype, kind: n == 13,
    ),
)
def test_solutions_in_each_way(monkeypatch, way, n, dtype, kind):
    if way == indefinite.LDL and not _compat.TRANSFORMS:
        pytest.skip("GPUs alone take ldl_factor")
    row = indefinite.Row("cpu", way, 1, (1, math.inf), ("f4", "f8", "c4", "c8"))
    monkeypatch.setattr(indefinite, "ROWS", (row,))
    mesh, b = cases.line(1), cases.normal(cases.rng(n), (n, 2), dtype)
    for assumed, lower in (("her", True), ("sym", False)):
        a = _matrix(n, dtype, assumed == "her", kind)
        assert indefinite.choose(layouts.alone(mesh), n, dtype) == way
        x = linalg.solve(_triangle(a, lower), b, lower=lower, assume_a=assumed, mesh=mesh)
        assert cases.backward_error(a, np.asarray(x), b) < 50 * n * cases.eps(dtype)


@pytest.mark.parametrize("exponent", [-300, 301])
def test_nan_zero_and_scaled_matrices(exponent):
    mesh, n = cases.line(1), 130
    assert indefinite.choose(layouts.alone(mesh), n, "complex128") == indefinite.LAPACK
    a, b = _matrix(n, "complex128"), np.ones(n, complex)
    x = linalg.solve(np.ldexp(a.view(float), exponent).view(complex), b, assume_a="her", mesh=mesh)
    one = np.asarray(linalg.solve(a, b, assume_a="her", mesh=mesh))
    np.testing.assert_array_equal(x, np.ldexp(one.view(float), -exponent).view(complex))
    bad = a.copy()
    bad[2, 2] = np.nan
    for wrong in (bad, _matrix(n, "complex128", kind="singular"), 0 * a):
        for assumed in ("her", "sym"):
            assert not np.isfinite(linalg.solve(wrong, b, assume_a=assumed, mesh=mesh)).all()


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("ranks, assumed", [(1, "her"), (2, "sym")])
def test_derivatives_and_batches_of_solutions(assumed, ranks):
    mesh, n = cases.line(ranks), 8
    a, a_dot = (_matrix(n + i, "complex128", assumed == "her")[:n, :n] for i in range(2))
    b = cases.normal(cases.rng(n), (n,), "complex128")

    def solve(a):
        return linalg.solve(a, b, assume_a=assumed, mesh=mesh)

    x, x_dot = jax.jvp(solve, (jnp.asarray(a),), (jnp.asarray(a_dot),))
    np.testing.assert_allclose(x, np.linalg.solve(a, b), atol=1e-11)
    np.testing.assert_allclose(x_dot, np.linalg.solve(a, -a_dot @ x), atol=1e-10)
    np.testing.assert_allclose(jax.vmap(solve)(jnp.stack([a, 2 * a]))[1], x / 2, atol=1e-11)
    np.testing.assert_allclose(jax.jit(solve)(a), x, atol=1e-12)
