"""`precision=`: products are in lower precision where the caller requests them, and nowhere
else."""

import functools
import itertools

import cases
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._call import backends, checks, execute
from jaxmg._cholesky import potrs
from jaxmg._layouts import layouts, meshes

_TF32_EPS = 2.0**-10
_X3_EPS = 2.0**-16
_X3, _X6, _F16 = "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3"
_GPU = jax.default_backend() == "gpu"
_N, _TILE = 200, 16


def _problem(dtype):
    """Returns a problem whose off-diagonal entries are as large as the diagonal, so that errors of
    products are visible."""
    mesh, random = cases.line(2), cases.rng(5)
    u = random.uniform(0.5, 1.5, _N)
    if np.dtype(dtype).kind == "c":
        u = u * np.exp(2j * np.pi * random.uniform(size=_N))
    a = (np.outer(u, u.conj()) + np.eye(_N)).astype(dtype)
    b = random.standard_normal((_N, 2)).astype(dtype)
    return a, b, cases.shard(a, mesh, "r", None), mesh


def _backward_error(a, x, b):
    wide = np.complex128
    a, x, b = (np.asarray(v).astype(wide) for v in (a, x, b))
    return np.linalg.norm(a @ x - b) / (np.linalg.norm(a) * np.linalg.norm(x))


@pytest.mark.core("None", "highest", "tf32")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("precision", [None, "highest", "tf32", _X3, _X6, _F16])
def test_error_is_that_of_the_precision(dtype, precision):
    a, b, there, _ = _problem(dtype)
    x, status = jaxmg.potrs(there, b, _TILE, precision=precision, return_status=True)
    inverse = jaxmg.potri(there, _TILE, precision=precision)
    error = _backward_error(a, x, b)
    distance = np.linalg.norm(a @ np.asarray(inverse) - np.eye(_N)) / np.linalg.cond(a)
    assert status == 0
    if precision == "tf32" and _GPU:
        assert 10 * cases.eps(dtype) < error < _TF32_EPS and distance < _N * _TF32_EPS
    elif precision == _X3:
        exact = _backward_error(a, jaxmg.potrs(there, b, _TILE), b)
        assert 2 * exact < error < _X3_EPS and distance < _N * _X3_EPS
    else:
        assert error < 10 * cases.eps(dtype) and distance < _N * cases.eps(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_what_is_as_good_as_plain_products_and_three_have_half_the_bits(dtype, ranks):
    """Six bfloat16 parts and float16 parts are as accurate as plain products, and three bfloat16
    parts have half the bits. CPU devices compute the same products of parts."""
    n, random = 150, cases.rng(7)
    q = random.standard_normal((n, n)).astype(dtype)
    q = np.linalg.qr(q + random.standard_normal((n, n)) * (1j if q.dtype.kind == "c" else 0))[0]
    b = random.standard_normal((n, 3)).astype(dtype)
    for condition in (1e2, 1e4):
        spectrum = np.geomspace(1, 1 / condition, n)
        a = ((q * spectrum) @ q.conj().T).astype(dtype)
        there = cases.shard(a, cases.line(ranks), "r", None) if n % ranks == 0 else a
        found = {}
        for precision in (None, _X6, _F16, _X3):
            x, status = jaxmg.potrs(
                there,
                b,
                11,
                cases.line(ranks),
                P("r", None),
                precision=precision,
                return_status=True,
            )
            assert status == 0
            found[precision] = _backward_error(a, x, b)
        # Tensor cores truncate each sum, and narrow tiles have more sums.
        assert max(found[_X6], found[_F16]) < (6 if _GPU else 2) * found[None]
        assert 2 * found[None] < found[_X3] < _X3_EPS


# Exponents of rows and columns, such that A's elements range from 1e-36 to 1e36.
_SCALES = {"graded": (-60, 60), "tiny": (-60, -60), "huge": (60, 60)}


_WIDE_DTYPES = ("float32", "complex64")


@pytest.mark.core("huge")
@pytest.mark.parametrize(
    "dtype, scales, ranks",
    cases.broad(
        itertools.product(_WIDE_DTYPES, _SCALES, (1, 2, 4, 8)),
        lambda dtype, scales, ranks: (
            (_WIDE_DTYPES.index(dtype) + [*_SCALES].index(scales) + ranks.bit_length()) % 2 == 0
            and ranks in (1, 4)
        ),
    ),
)
def test_float16_has_exponents_enough(dtype, scales, ranks):
    """A is equilibrated exactly, so x, log det A, a factor and its inverse are as accurate as
    without scaling, although A and b exceed float16's range by far."""
    n, tile = 61, 7
    a, b, _, _ = _problem(dtype)
    a, b = a[:n, :n], b[:n]
    scale = np.ldexp(np.float32(1), np.linspace(*_SCALES[scales], n).astype(int))[:, None]
    scaled, mesh = a * scale * scale.T, cases.line(ranks)
    there = cases.shard(scaled, mesh, "r", None) if n % ranks == 0 else scaled
    options = dict(T_A=tile, mesh=mesh, matrix_specs=P("r", None), precision=_F16)
    x, log_det, status = jaxmg.potrs(
        there, b * scale, **options, return_logdet=True, return_status=True
    )
    assert status == 0
    assert _backward_error(a, np.asarray(x) * scale, b) < 10 * cases.eps(dtype)
    exact = np.linalg.slogdet(a.astype(complex))[1] + 2 * np.log(scale.astype(float)).sum()
    np.testing.assert_allclose(log_det, exact, rtol=1e-5)
    factor = jaxmg.cho_factor(there, **options)
    for inverse in (jaxmg.potri(there, **options), factor.inv()):
        found = a @ (np.asarray(inverse) * scale * scale.T)
        assert np.linalg.norm(found - np.eye(n)) < n * cases.eps(dtype) * np.linalg.cond(a)
    assert factor.precision == _F16
    u = np.asarray(factor.upper()) / scale.T
    np.testing.assert_allclose(u.conj().T @ u, a, atol=20 * cases.eps(dtype) * np.linalg.norm(a))
    solved = np.asarray(jaxmg.cho_solve(factor, b * scale)) * scale
    assert _backward_error(a, solved, b) < 10 * cases.eps(dtype)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("failing", [0, 29, 60])
def test_status_of_float16_products(failing, ranks):
    a, b, _, _ = _problem("float32")
    a, b = a[:61, :61].copy(), b[:61]
    a[failing, failing] = -1e6
    options = dict(T_A=7, mesh=cases.line(ranks), matrix_specs=P("r", None), return_status=True)
    for value in (-1e6, 0, 1e-3, np.nan, np.inf):
        a[failing, failing] = value
        x, status = jaxmg.potrs(a, b, **options, precision=_F16)
        expected = jaxmg.potrs(a, b, **options, precision="highest")[1]
        assert status == expected and (status == 0 or np.isnan(x).all())


def test_a_factor_keeps_the_precision():
    a, b, there, mesh = _problem("float32")
    factor = jaxmg.cho_factor(there, _TILE, mesh, precision="high")
    assert factor.precision == _X3 and jax.jit(lambda f: f)(factor).precision == _X3
    error = _backward_error(a, jaxmg.cho_solve(factor, b), b)
    exact = _backward_error(a, jaxmg.cho_solve(jaxmg.cho_factor(there, _TILE, mesh), b), b)
    assert 2 * exact < error < _X3_EPS
    plain = jaxmg.potri(there, _TILE, mesh, precision="high")
    np.testing.assert_allclose(factor.inv(), plain, rtol=1e-4, atol=1e-4)


_NAMES = {
    None: [None, "default", jax.lax.Precision.DEFAULT],
    "highest": ["highest", "float32", jax.lax.Precision.HIGHEST],
    "tf32": ["tf32", "tensorfloat32", jax.lax.DotAlgorithmPreset.TF32_TF32_F32],
    _X3: [_X3, "high", jax.lax.Precision.HIGH, jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3],
    _X6: [_X6, jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6],
    _F16: [_F16],
}


@pytest.mark.parametrize(
    "name, expected", [(name, key) for key, names in _NAMES.items() for name in names]
)
def test_names_of_jax(name, expected):
    products = checks.precision("potrs", name, "float32", "native")
    assert checks.precision_of(products) == expected
    _, b, there, _ = _problem("float32")
    solution = jaxmg.potrs(there, b, _TILE, precision=name)
    np.testing.assert_array_equal(solution, jaxmg.potrs(there, b, _TILE, precision=expected))


@pytest.mark.parametrize("name", ["BF16_BF16_F32_X9", "bfloat16", 3, ["high"], np.float32])
def test_names_that_mean_nothing_here(name):
    with pytest.raises(ValueError, match="potri: precision must be one of None, 'highest', "):
        jaxmg.potri(np.eye(3, dtype="float32"), precision=name)


@pytest.mark.extended
@pytest.mark.parametrize("matmul", ["bfloat16", "tensorfloat32", "highest"])
def test_jax_default_matmul_precision_changes_nothing(matmul):
    _, b, there, _ = _problem("float32")
    expected = jaxmg.potrs(there, b, _TILE)
    with jax.default_matmul_precision(matmul):
        jax.clear_caches()
        np.testing.assert_array_equal(jaxmg.potrs(there, b, _TILE), expected)


@pytest.mark.parametrize("routine", ["potrs", "potri"])
def test_every_way_to_call(routine):
    _, b, there, mesh = _problem("float32")
    arrays = (there, b) if routine == "potrs" else (there,)
    expected = jaxmg.potrs(there, b, _TILE) if routine == "potrs" else jaxmg.potri(there, _TILE)
    options = dict(T_A=_TILE, matrix_specs=P("r", None), precision="tf32")
    form = getattr(jaxmg, "potrs_jit_ctx" if routine == "potrs" else "potri_shardmap_ctx")
    jitted = jax.jit(functools.partial(form, mesh=mesh, **options))(*arrays)[-2]
    local = jax.shard_map(
        functools.partial(getattr(jaxmg, routine + "_shardmap_ctx"), **options),
        mesh=mesh,
        in_specs=(P("r", None), P())[: len(arrays)],
        out_specs=(P() if routine == "potrs" else P("r", None), P()),
        check_vma=False,
    )
    mapped = jax.jit(local)(*arrays)[0]
    if routine == "potri":
        mapped = jaxmg.potri_symmetrize(mapped)
    tolerance = 100 * (_TF32_EPS if _GPU else cases.eps("float32"))
    for result in (jitted, mapped):
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_only_the_native_backend_has_it():
    assert checks.precision("potrs", "tf32", "float32", "native")
    with pytest.raises(ValueError, match="needs backend 'native' .*; got 'cusolvermg'"):
        checks.precision("potrs", "tf32", "float32", "cusolvermg")
    for name in (None, "highest"):
        assert checks.precision("potrs", name, "float64", "cusolvermg") in (0, checks.DEFAULT)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
@pytest.mark.parametrize("donate", [False, True])
def test_products_are_plain_where_parts_have_no_room(dtype, donate, monkeypatch):
    routine, layout = (
        potrs.POTRS,
        meshes.infer("potrs", (np.eye(96, dtype=dtype),), cases.line(2), None),
    )
    a, attributes = jax.ShapeDtypeStruct((96, 96), dtype), {"products": checks.DEFAULT}
    block = 48 * 96 * np.dtype(dtype).itemsize
    least = max(backends.plan("potrs", layout, "native", dtype, (96, 96), 8)["bytes"])
    least += (1 if donate else 2) * block
    for memory, products in ((least, checks.DEFAULT), (least - 1, 0), (None, checks.DEFAULT)):
        monkeypatch.setattr(layouts.Layout, "memory", memory)
        fit = functools.partial(execute.fit_precision, routine)
        expected = {"products": checks.DEFAULT if dtype == "float64" else products}
        assert fit(attributes, layout, a, 8, donate) == expected
        assert fit({"products": 4}, layout, a, 8, donate) == {"products": 4}
