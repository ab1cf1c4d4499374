"""bfloat16 and float16 in jaxmg.linalg: computed in float32, and rounded."""

import functools

import cases
import jax
import jax.numpy as jnp
import linalg_cases
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg import _compat, linalg
from jaxmg._linalg import on_one

DTYPES = ("bfloat16", "float16")
# jaxmg's own routines take no such arrays.
NAMES = [name for name in linalg_cases.TABLE if name != "rcond"]
# Functions whose results stay float32: factors to solve with, and numbers.
SINGLE = {
    "cho_factor", "cho_solve", "cond", "det", "eigvalsh", "householder_product", "ldl_factor",
    "lu_factor", "lu_solve", "slogdet", "svdvals",
}  # fmt: skip
# Functions with one such result, at this position.
_SPECTRA = {"eigh": 0, "eigsh": 0, "svd": 1, "svd_lowrank": 1}


def _dtypes(of, count, dtype):
    """Returns the dtypes of the floating-point results of a case."""
    single = range(count) if of in SINGLE else (_SPECTRA.get(of),)
    return ["float32" if i in single else dtype for i in range(count)]


def _close(found, expected, dtype, digits=2):
    """Compares numbers with the same numbers in float32."""
    __tracebackhide__ = True
    found, expected = (np.asarray(x.real, np.float64) for x in (found, expected))
    assert found.shape == expected.shape
    largest = np.abs(expected).max(initial=0.01)  # smaller gradients are rounding errors
    atol = digits * float(jnp.finfo(dtype).eps) * largest
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def _check(case, found, expected, dtype):
    __tracebackhide__ = True
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    real = [x for x in found if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert [str(x.dtype) for x in real] == _dtypes(case.of, len(real), dtype)
    for x, y in zip(found, expected, strict=True):
        _close(x, y, dtype)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


def _pair(case, dtype, leading=()):
    """Returns a matrix of this dtype and the same matrix in float32."""
    a = jnp.asarray(linalg_cases.matrices(case.kind, leading), dtype)
    return a, a.astype(jnp.float32)


def test_the_table_has_all_functions():
    named = {case.of for case in linalg_cases.TABLE.values()}
    assert named == {name for name in linalg.__all__ if not name.endswith(("Result", "Info"))}


_CORE = ("cholesky", "eigh-2", "solve", "svd-tall", "qr-wide", "funm")


@pytest.mark.parametrize(
    "name, dtype, ranks, kind",
    cases.broad(
        [
            (name, DTYPES[(i + j + (kind == AxisType.Explicit)) % 2], ranks, kind)
            for i, name in enumerate(NAMES)
            for j, ranks in enumerate((1, 2, 4))
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda name, dtype, ranks, kind: (
            name in _CORE and ranks == 2 + 2 * (len(name) % 2) and kind == AxisType.Auto
        ),
        alone=True,
    ),
)
def test_results_are_those_of_float32_rounded(name, dtype, ranks, kind):
    case, mesh = linalg_cases.TABLE[name], cases.line(ranks, kind=kind)
    call = cases.on(mesh, case.call)
    a, wide = (cases.shard_rows(x, mesh) for x in _pair(case, dtype))
    _check(case, call(a), call(wide), dtype)


@cases.needs_transformations
@pytest.mark.parametrize(
    "name, dtype, kind",
    cases.broad(
        [
            (name, DTYPES[(i + j) % 2], kind)
            for i, name in enumerate(NAMES)
            for j, kind in enumerate(("leading", "vmap"))
        ],
        core=lambda name, dtype, kind: (name, kind) in (("solve", "leading"), ("eigh", "vmap")),
        alone=True,
    ),
)
def test_batches(name, dtype, kind):
    case, mesh = linalg_cases.TABLE[name], cases.line(4)
    call = jax.vmap(case.call) if kind == "vmap" else case.call
    with cases.context(mesh):
        _check_batch(case, *(call(x) for x in _pair(case, dtype, (4,))), dtype)


def _check_batch(case, found, expected, dtype):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    real = [x for x in found if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert [str(x.dtype) for x in real] == _dtypes(case.of, len(real), dtype)
    for x, y in zip(found, expected, strict=True):
        _close(x, y, dtype)


@cases.needs_transformations
@pytest.mark.leaks_in_jax
@pytest.mark.parametrize(
    "name, dtype",
    cases.broad(
        [(n, DTYPES[i % 2]) for i, n in enumerate(NAMES) if linalg_cases.TABLE[n].derivative],
        core=lambda name, dtype: name == "solve",
        alone=True,
    ),
)
def test_gradients(name, dtype):
    """Cotangents are rounded, as results are."""
    case, mesh = linalg_cases.TABLE[name], cases.line(2)

    def weighted(a):
        leaves = [x for x in jax.tree.leaves(case.call(a)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        weights = [np.cos(np.arange(x.size, dtype="float32")).reshape(x.shape) for x in leaves]
        return sum(jnp.sum(x.astype("float32") * t) for x, t in zip(leaves, weights, strict=True))

    a, wide = (cases.shard_rows(x, mesh) for x in _pair(case, dtype))
    with cases.context(mesh):
        found, expected = jax.grad(weighted)(a), jax.grad(weighted)(wide)
    assert found.dtype == dtype
    _close(found, expected, dtype, 16)


@pytest.mark.extended
def test_promotion():
    a, b = np.eye(4, dtype="float32") * 3, np.arange(1.0, 5, dtype="float32")
    half = functools.partial(jnp.asarray, dtype="bfloat16")

    def dtype(a, b):
        x = linalg.solve(a, b)
        _close(x, b / 3, "bfloat16")
        return str(x.dtype)

    with jax.numpy_dtype_promotion("standard"):
        assert dtype(half(a), half(b)) == "bfloat16"
        assert dtype(half(a), b) == dtype(a, half(b)) == "float32"
        assert dtype(half(a), jnp.asarray(b, "float16")) == "float32"
        assert dtype(half(a), b.astype("int32")) == "bfloat16"
        assert dtype(half(a), b.astype("float64")) == "float64"
        assert dtype(half(a), b.astype("complex64")) == "complex64"
        assert dtype(np.asarray(half(a)), np.asarray(half(b))) == "bfloat16"


@pytest.mark.extended
def test_strict_promotion():
    a, b = jnp.eye(3, dtype="bfloat16"), jnp.ones(3, "bfloat16")
    with jax.numpy_dtype_promotion("strict"):
        assert linalg.solve(a, b).dtype == "bfloat16"
        assert linalg.sqrtm(a).dtype == "bfloat16"
        assert linalg.norm(a).dtype == "bfloat16"
        assert linalg.cho_solve(linalg.cho_factor(a), b).dtype == "float32"
        assert linalg.lu_solve(linalg.lu_factor(a), b).dtype == "float32"
        for other in ("float16", "float32"):
            with pytest.raises(ValueError, match="no available implicit"):
                linalg.solve(a, b.astype(other))


@pytest.mark.extended
def test_factors_to_solve_with():
    """A factor stays float32, so that a solve with it is as accurate as `solve`. x has the dtype
    that JAX promotes to."""
    a = jnp.asarray(linalg_cases.matrices("definite", ()), "bfloat16")
    b = jnp.asarray(cases.rng(1).normal(size=8), "bfloat16")
    wide = np.asarray(a, "float64")
    expected = np.linalg.solve(wide, np.asarray(b, "float64"))
    for lower in (False, True):
        factor = linalg.cho_factor(a, lower)
        assert factor[0].dtype == "float32"
        x = linalg.cho_solve(factor, b)
        assert x.dtype == "float32"
        np.testing.assert_allclose(x, expected, rtol=1e-5)
        rounded = linalg.cho_solve((factor[0].astype("bfloat16"), lower), b)
        assert rounded.dtype == "bfloat16"
        _close(rounded, expected, "bfloat16", 16)
    factor = linalg.lu_factor(a)
    x = linalg.lu_solve(factor, b)
    assert (factor[0].dtype, factor[1].dtype, x.dtype) == ("float32", "int32", "float32")
    np.testing.assert_allclose(x, expected, rtol=1e-5)
    assert linalg.lu_solve((factor[0].astype("bfloat16"), factor[1]), b).dtype == "bfloat16"
    for dtype in ("float32", "float64"):
        kept = jaxmg.cho_factor(wide.astype(dtype))
        for x in (linalg.cho_solve(kept, b), linalg.cho_solve((kept, False), b)):
            assert x.dtype == dtype
            np.testing.assert_allclose(x, expected, rtol=1e-5)
        x = linalg.lu_solve(jaxmg.lu_factor(wide.astype(dtype)), b)
        assert x.dtype == dtype
        np.testing.assert_allclose(x, expected, rtol=1e-5)


_OF_HERMITIAN = {
    "cholesky": linalg.cholesky,
    "eigvalsh": linalg.eigvalsh,
    "eigh": lambda a: linalg.eigh(a)[1],
    "sqrtm": linalg.sqrtm,
    "svd": lambda a: linalg.svd(a, hermitian=True)[1],
    "matrix_rank": lambda a: linalg.matrix_rank(a, hermitian=True) / 1.0,
}


@pytest.mark.parametrize("leading", [(), cases.breadth((4,))], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", cases.broad([(n,) for n in _OF_HERMITIAN], lambda n: n == "cholesky")
)
def test_hermitian_up_to_the_rounding_of_its_dtype(name, dtype, leading):
    if leading and not _compat.TRANSFORMS:
        pytest.skip("no batches")
    call, mesh = _OF_HERMITIAN[name], cases.line(2)
    a = linalg_cases.matrices("definite", leading, 16)
    eps = float(jnp.finfo(dtype).eps)
    with cases.context(mesh):
        noise = np.triu(cases.rng(2).uniform(-1, 1, a.shape), 1)
        for other, hermitian in ((a * (1 + eps * noise), True), (a + 16 * noise, False)):
            found = np.asarray(call(jnp.asarray(other, dtype)), "float64")
            assert np.isfinite(found).all() == (hermitian or name == "matrix_rank")
            if name == "matrix_rank":
                assert (found == (16 if hermitian else 0)).all()


@pytest.mark.extended
def test_range_of_float16():
    """Numbers that describe a matrix may be larger than float16's largest, 65504."""
    a = 100 * jnp.eye(16, dtype="float16")
    np.testing.assert_allclose(linalg.det(a), 1e32, rtol=1e-5)
    np.testing.assert_allclose(linalg.slogdet(a)[1], 16 * np.log(100), rtol=1e-6)
    ones = jnp.ones((400, 400), "float16")
    assert linalg.norm(ones) == 400 and linalg.norm(ones).dtype == "float16"
    assert linalg.norm(ones, 2) == 400 and linalg.norm(ones, "nuc").dtype == "float16"


@pytest.mark.extended
def test_scalars_keep_their_digits():
    """Cutoffs and damping aren't rounded to the dtype of the matrix."""
    a = jnp.asarray(np.diag([1.0, 0.5, 1e-5]), "float16")
    for rtol in (jnp.asarray(1e-6), np.float32([1e-6])[0], 1e-6):
        x = linalg.pinv(a, rtol)
        assert x.dtype == "float16" and (np.asarray(x[2, 2]) == np.inf or x[2, 2] > 6e4)
    assert linalg.pinv(a, jnp.asarray(1e-3))[2, 2] == 0
    b = jnp.ones(3, "float16")
    x, resid, rank, s = linalg.lstsq(a, b, jnp.asarray(1e-3), damp=1e-9)
    assert (x.dtype, resid.dtype, s.dtype, rank) == ("float16", "float32", "float32", 2)
    assert linalg.least_squares(a[:, :2], b, damp=jnp.float16(0.5)).dtype == "float16"
    result = linalg.svd_lowrank(a, 2, key=jax.random.key(1))
    assert [str(x.dtype) for x in result] == ["float16", "float32", "float16", "float32"]
    assert linalg.matrix_rank(a) == 3 and linalg.matrix_rank(a[0]) == 1


@pytest.mark.extended
def test_by_one_device(monkeypatch):
    """One device computes for all, in an eager call and in a trace."""
    monkeypatch.setattr(on_one, "MOST", 512)
    cases.forget_plans()
    mesh = cases.line(4)
    for name in ("cholesky", "eigh", "lu_solve", "svd-tall"):
        case = linalg_cases.TABLE[name]
        a, wide = (cases.shard_rows(x, mesh) for x in _pair(case, "bfloat16"))
        _check(case, case.call(a), case.call(wide), "bfloat16")
        with cases.context(mesh):
            _check(case, jax.jit(case.call)(a), jax.jit(case.call)(wide), "bfloat16")
    cases.forget_plans()


def test_other_dtypes_are_refused():
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        with pytest.raises(TypeError, match=f"a has dtype {dtype}; .* complex128, bfloat16, float"):
            linalg.inv(jnp.eye(3, dtype=dtype))
