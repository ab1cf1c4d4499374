"""`precision=` of LU and QR: products in lower precision of matrices of any scaling."""

import functools
import itertools

import cases
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg

_X3_EPS = 2.0**-16
_X3, _X6, _F16 = "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F16_F16_F32_X3"
_GPU = jax.default_backend() == "gpu"
_N, _TILE = 96, 12
_DTYPES = ("float32", "complex64")
_ROUTINES = ("gesv", "lu_factor", "getri", "geqrf", "gels")
# Exponents of two of the first and the last row, and of the first and the last column. They are far
# beyond the range of float16.
_SCALES = {
    "plain": (0, 0, 0, 0),
    "graded rows": (-40, 40, 0, 0),
    "graded columns": (0, 0, -40, 40),
    "both": (40, -40, -35, 35),
    "tiny": (-50, -50, -40, -40),
    "huge": (40, 40, 40, 40),
}


@functools.cache
def _problem(dtype, scales, columns=_N):
    random = cases.rng(11)
    a = random.standard_normal((_N, columns)).astype(dtype)
    b = random.standard_normal((_N, 2)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        a = (a + 1j * random.standard_normal(a.shape)).astype(dtype)
    first, last, left, right = _SCALES[scales]
    rows = np.ldexp(np.float32(1), np.linspace(first, last, _N).astype(int))
    width = np.ldexp(np.float32(1), np.linspace(left, right, columns).astype(int))
    return a, b, rows, width


def _options(ranks, precision):
    return dict(T_A=_TILE, mesh=cases.line(ranks), matrix_specs=P("r", None), precision=precision)


def _error(a, x, b):
    """Returns the backward error for the matrix without the scaling of rows and columns."""
    a, x, b = (np.asarray(v).astype(np.complex128) for v in (a, x, b))
    return np.linalg.norm(a @ x - b) / (np.linalg.norm(a) * np.linalg.norm(x))


def _found(routine, dtype, scales, ranks, precision):
    """Returns the error of a routine's result."""
    options = _options(ranks, precision)
    columns = _N // 2 if routine == "gels" else _N
    a, b, rows, width = _problem(dtype, scales, columns)
    scaled = a * rows[:, None] * width
    if routine == "gesv":
        x, status = jaxmg.gesv(scaled, b * rows[:, None], **options, return_status=True)
        assert status == 0
        return _error(a, np.asarray(x) * width[:, None], b)
    if routine == "lu_factor":
        factor = jaxmg.lu_factor(scaled, **options)
        assert factor.status == 0 and factor.precision == precision
        return _error(a, np.asarray(factor.solve(b * rows[:, None])) * width[:, None], b)
    if routine == "getri":
        inverse = np.asarray(jaxmg.getri(scaled, **options)) * width[:, None] * rows
        return np.linalg.norm(a @ inverse - np.eye(_N)) / np.linalg.cond(a)
    if routine == "geqrf":
        r = np.asarray(jaxmg.geqrf(scaled, **options).r)
        gram, exact = ((v / width).astype(complex) for v in (r, scaled))
        difference = gram.conj().T @ gram - exact.conj().T @ exact
        return np.linalg.norm(difference) / np.linalg.norm(exact) ** 2
    x = np.asarray(jaxmg.least_squares(scaled, b * rows[:, None], **options)) * width[:, None]
    residual = (scaled / width).astype(complex) @ x - b * rows[:, None]
    gradient = (scaled / width).conj().T @ residual
    return np.linalg.norm(gradient) / (
        np.linalg.norm(scaled / width) * np.linalg.norm(b * rows[:, None])
    )


@pytest.mark.core("float32")
@pytest.mark.parametrize(
    "routine, dtype, ranks",
    cases.broad(
        itertools.product(_ROUTINES, _DTYPES, (1, 2, 4, 8)),
        core=lambda routine, dtype, ranks: (ranks == 2) == (dtype == "float32") and ranks < 8,
    ),
)
def test_as_accurate_as_plain_products(routine, dtype, ranks):
    """Products of three float16 parts and of six bfloat16 parts are as accurate as plain products.
    Products of three bfloat16 parts aren't, which shows that the parts are used."""
    found = {
        precision: _found(routine, dtype, "plain", ranks, precision)
        for precision in ("highest", _X6, _F16, _X3)
    }
    # Tensor cores truncate each sum, and narrow tiles have more sums.
    assert max(found[_X6], found[_F16]) < (6 if _GPU else 3) * found["highest"]
    if routine == "lu_factor" and ranks == 1 and not _GPU:
        assert len(set(found.values())) == 1  # LAPACK factors the whole matrix
        return
    if not _GPU:  # one GPU solves this order by plain products (tests/gpu/check.py)
        assert 3 * found["highest"] < found[_X3] < 10 * _X3_EPS
        assert found[_F16] != found["highest"]


@pytest.mark.core("both", "huge")
@pytest.mark.parametrize(
    "routine, dtype, scales",
    cases.broad(
        itertools.product(_ROUTINES, _DTYPES, _SCALES),
        core=lambda routine, dtype, scales: (dtype == "float32") == (scales in ("both", "huge")),
    ),
)
def test_rows_and_columns_of_any_size(routine, dtype, scales):
    """Each product scales its factors by powers of two, so the range of float16 is no limit. Sums
    of a few large terms show that float16 parts have 22 bits."""
    plain = _found(routine, dtype, scales, 2, "highest")
    found = _found(routine, dtype, scales, 2, _F16)
    assert found < 6 * max(plain, 3 * cases.eps(dtype))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("value", [0, np.nan, np.inf])
def test_status_of_float16_products(value, ranks):
    a, b, _, _ = _problem("float32", "plain")
    for failing in (0, 50, _N - 1):
        bad = a.copy()
        bad[:, failing] = value
        found = jaxmg.gesv(bad, b, **_options(ranks, _F16), return_status=True)
        expected = jaxmg.gesv(bad, b, **_options(ranks, "highest"), return_status=True)
        assert found[1] == expected[1] != 0
        assert np.isfinite(found[0]).any() == np.isfinite(expected[0]).any()


@pytest.mark.extended
def test_refinement_from_float16_products():
    a, b, _, _ = _problem("float32", "both")
    x, status, iterations = jaxmg.gesv(
        a.astype("float64"), b.astype("float64"), T_A=_TILE, mesh=cases.line(2),
        matrix_specs=P("r", None), refine=_F16, return_status=True, return_iterations=True,
    )  # fmt: skip
    assert status == 0 and 0 < iterations < 10
    assert _error(a, x, b) < 10 * cases.eps("float64")
