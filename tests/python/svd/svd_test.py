"""`jaxmg.linalg.svd`, `svdvals`, `polar`, `pinv`, `matrix_rank`, `orth` and `null_space`, against
NumPy's, SciPy's and JAX's."""

import contextlib
import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jaxmg import _compat, linalg
from jaxmg._call import backends, ffi
from jaxmg._layouts import layouts, meshes
from jaxmg._svd import gesvd, polar
from jaxmg._svd import svd as svd_programs

DTYPES = ("float32", "float64", "complex64", "complex128")
KINDS = ("random", "ill", "singular", "graded", "zero", "huge", "tiny", "clustered", "orthogonal")
SHAPED = ("repeated", "scaled columns", "kahan", "hilbert", "signs", "bidiagonal")


def matrix(kind, m, n, dtype, seed=0):
    """Returns a NumPy matrix of this kind."""
    rng = np.random.default_rng([seed, m, n])
    single = np.finfo(dtype).bits == 32
    k = min(m, n)

    def numbers(*shape):
        x = rng.standard_normal(shape)
        return x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x

    a = numbers(m, n)
    if kind in ("ill", "clustered", "orthogonal", "repeated"):
        left, right = np.linalg.qr(numbers(m, k))[0], np.linalg.qr(numbers(n, k))[0]
        values = {
            "ill": np.logspace(0, -6 if single else -14, k),
            "clustered": 1 + np.arange(k) * float(np.finfo(dtype).eps),
            "orthogonal": np.ones(k),
            "repeated": 1.0 + np.arange(k) // 3,
        }[kind]
        a = (left * values) @ right.conj().T
    if kind == "singular" and n > 4:
        a[:, 1], a[:, 3] = 0, a[:, 4]
    if kind == "graded":
        a = a * np.logspace(0, -37 if single else -300, n)
    if kind == "scaled columns":
        a = a * np.where(np.arange(n) % 2, *((1e15, 1e-15) if single else (1e150, 1e-150)))
    if kind == "kahan":
        a = np.diag(np.sin(1.2) ** np.arange(k)) @ (np.eye(k) - np.cos(1.2) * np.tri(k, k, -1).T)
    if kind == "hilbert":
        a = 1 / (1.0 + np.arange(m)[:, None] + np.arange(n))
    if kind == "signs":
        a = np.diag((-1.0) ** np.arange(k) * np.roll(np.arange(1, k + 1), 2))
    if kind == "bidiagonal":
        a = np.diag(1.0 + np.arange(k) % 4) + np.eye(k, k=1)
    a = np.pad(a, ((0, m - a.shape[0]), (0, n - a.shape[1])))
    scale = {"zero": 0, "huge": 1e37 if single else 1e307, "tiny": 1e-34 if single else 1e-300}
    return (a * scale.get(kind, 1)).astype(dtype)


@pytest.fixture(params=["by_lapack", "by_polar"])
def way(request, monkeypatch):
    """Computes small matrices by LAPACK or JAX's own SVD, or by the algorithm of large ones."""
    if request.param == "by_polar":
        monkeypatch.setattr(svd_programs, "SMALL", 0)
        with cases.by_all_ranks():
            yield request.param
    else:
        yield request.param


def on(mesh):
    return {"mesh": mesh, "matrix_specs": P(mesh.axis_names[0], None)}


def bound_of_values(exact, way):
    """Returns the error bound of singular values. For small matrices they are JAX's, which on GPUs
    uses a Jacobi iteration."""
    multiple = 100 if way == "by_lapack" and jax.default_backend() == "gpu" else 20
    return multiple * float(np.finfo(exact.dtype).eps) * exact[0] + np.finfo(exact.dtype).tiny


def check_svd(a, u, s, vh):
    """Checks an SVD up to LAPACK's rounding, which grows at most with the square root of n."""
    u, s, vh = map(np.asarray, (u, s, vh))
    k, eps = min(a.shape), float(np.finfo(a.dtype).eps)
    largest = np.linalg.norm(a, 2) if a.size else 0
    exact = np.linalg.svd(a, compute_uv=False)
    identity = np.eye(k)
    bound = 30 * eps * max(k, 1) ** 0.5
    assert np.linalg.norm(u.conj().T @ u - identity) <= bound
    assert np.linalg.norm(vh @ vh.conj().T - identity) <= bound
    scaled = largest or 1
    assert np.linalg.norm(a / scaled - (u * (s / scaled)) @ vh) <= 2 * bound
    tiny = np.finfo(s.dtype).tiny  # XLA and LAPACK may flush smaller numbers to 0
    assert np.max(np.abs(s - exact), initial=0) <= 20 * eps * largest + tiny
    assert np.all(s >= 0)
    assert np.all(s[:-1] >= s[1:])


def test_svd():
    a = matrix("random", 29, 7, "float64")
    check_svd(a, *linalg.svd(jnp.asarray(a), full_matrices=False, **on(cases.line(2))))


@pytest.mark.breadth
def test_above_the_size_of_small_ones():
    n = svd_programs.SMALL
    where = on(cases.line(2))
    for order in (n, n + 1):
        a = matrix("random", order, order, "float64")
        check_svd(a, *linalg.svd(jnp.asarray(a), **where))


@pytest.fixture(
    params=[pytest.param(None, marks=pytest.mark.breadth), (2, 3)], ids=["wide", "narrow"]
)
def all_large(request, monkeypatch):
    """Computes only the singular values, of any matrix by the algorithm of large ones, in one or
    several tiles of a rank."""
    monkeypatch.setattr(svd_programs, "SMALL", 0)
    monkeypatch.setattr(svd_programs, "LARGE", 0)
    if request.param:
        monkeypatch.setattr(gesvd, "_WIDTHS", {"cpu": request.param, "gpu": request.param})
    with cases.by_all_ranks():
        yield


_LARGE = (
    ("random", (13, 13), 4, False),
    ("random", (16, 16), 8, True),
    ("zero", (16, 16), 2, True),
    ("huge", (7, 11), 2, False),
    ("tiny", (9, 9), 1, False),
    ("singular", (12, 12), 1, True),
    ("ill", (21, 10), 2, False),
)


@pytest.mark.parametrize(
    "dtype, kind, shape, devices, explicit",
    cases.broad(
        [(dtype, *case) for dtype in DTYPES for case in _LARGE],
        # Each kind in one dtype, and every dtype.
        lambda dtype, *case: _LARGE.index(case) % len(DTYPES) == DTYPES.index(dtype),
    ),
)
def test_values_of_large_matrices(dtype, kind, shape, devices, explicit, all_large):
    a = matrix(kind, *shape, dtype)
    mesh = cases.line(devices, kind=AxisType.Explicit if explicit else AxisType.Auto)
    operand = jnp.asarray(a)
    if shape[0] % devices == 0:
        operand = jax.device_put(operand, NamedSharding(mesh, P("r", None)))
    s = np.asarray(linalg.svdvals(operand, **on(mesh)))
    exact = np.linalg.svd(a, compute_uv=False)
    rounding, tiny = float(np.finfo(dtype).eps), np.finfo(s.dtype).tiny
    assert s.shape == exact.shape and np.all(s[:-1] >= s[1:]) and np.all(s >= 0)
    assert np.max(np.abs(s - exact)) <= 20 * rounding * exact[0] + tiny
    for what in (np.nan, np.inf):
        bad = a.copy()
        bad[3, 2] = what
        assert np.isnan(linalg.svdvals(jnp.asarray(bad), **on(mesh))).all()


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "devices",
    [pytest.param(1, marks=pytest.mark.breadth), 2, pytest.param(4, marks=pytest.mark.breadth)],
)
def test_transformed_values_of_large_matrices(devices, all_large):
    a = jnp.asarray(np.stack([matrix("random", 15, 15, "complex128", seed) for seed in (1, 2, 3)]))
    where = on(cases.line(devices))

    def values(a):
        return linalg.svdvals(a, **where)

    exact = np.linalg.svd(a, compute_uv=False)
    for s in (values(a), jax.vmap(values)(a), jax.jit(jax.vmap(values))(a)):
        np.testing.assert_allclose(s, exact, rtol=1e-12)
    # All devices compute one matrix after the other.
    layout = meshes.infer("svdvals", (a[0],), where["mesh"], P("r", None))
    one_by_one = jax.vmap(lambda a: gesvd.singular_values(a, layout))(a)
    np.testing.assert_allclose(one_by_one, exact, rtol=1e-12)
    g = jax.grad(lambda a: jnp.sum(values(a)[:3]))(a[0])
    wanted = jax.grad(lambda a: jnp.sum(jnp.linalg.svd(a, compute_uv=False)[:3]))(a[0])
    np.testing.assert_allclose(g, wanted, atol=1e-12)


_SHAPES = ((16, 16), (13, 13), (45, 5), (5, 45))


@pytest.mark.breadth
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        (dtype, shape, (1, 2, 4, 8)[(i + j) % 4])
        for i, dtype in enumerate(DTYPES)
        for j, shape in enumerate(_SHAPES)
    ],
)
def test_svd_of_any_matrix(dtype, kind, shape, devices, way):
    a = matrix(kind, *shape, dtype)
    where = on(cases.line(devices))
    check_svd(a, *linalg.svd(jnp.asarray(a), full_matrices=False, **where))
    exact = np.linalg.svd(a, compute_uv=False)
    bound = bound_of_values(exact, way)
    assert np.max(np.abs(np.asarray(linalg.svdvals(jnp.asarray(a), **where)) - exact)) <= bound
    rank = linalg.matrix_rank(jnp.asarray(a), rtol=3e-5, **where)
    assert rank == np.linalg.matrix_rank(a, rtol=3e-5)


@pytest.mark.core("complex64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_library_leaves_of_small_matrices_is_corrected(dtype):
    """A library may return singular vectors that are orthonormal only to a hundred times rounding,
    as on GPUs; they are corrected."""
    a = np.stack([matrix(kind, 13, 13, dtype) for kind in ("random", "clustered", "singular")])
    u, s, vh = np.linalg.svd(a)
    eps = float(np.finfo(dtype).eps)
    off = [100 * eps * matrix("random", 13, 13, dtype, seed) for seed in (1, 2)]
    u, vh = (x @ (np.eye(13) + y / 13**0.5) for x, y in zip((u, vh), off, strict=True))
    assert np.linalg.norm(u[0].conj().T @ u[0] - np.eye(13)) > 100 * eps
    corrected = svd_programs._corrected("cpu", *(jnp.asarray(x) for x in (a, u.astype(dtype), s)),
                                        jnp.asarray(vh.astype(dtype)))  # fmt: skip
    for one, *results in zip(a, *map(np.asarray, corrected), strict=True):
        assert np.linalg.norm(results[0].conj().T @ results[0] - np.eye(13)) <= 10 * eps * 13**0.5
        assert np.linalg.norm(results[2].conj().T @ results[2] - np.eye(13)) <= 10 * eps * 13**0.5
        exact = np.linalg.svd(one, compute_uv=False)
        assert np.max(np.abs(results[1] - exact)) <= 20 * eps * exact[0]
        assert np.all(np.diff(results[1]) <= 0) and np.all(results[1] >= 0)


@pytest.mark.parametrize(
    "devices, kind, shape, subset",
    [
        (1, AxisType.Auto, (300, 300), None),
        (4, AxisType.Auto, (301, 301), None),
        (2, AxisType.Explicit, (300, 300), (3, 44)),
        (4, AxisType.Auto, (560, 270), None),
        (2, AxisType.Auto, (270, 560), None),
    ],
)
def test_svd_is_one_call(devices, kind, shape, subset):
    """One call decomposes a square matrix, in a program of few instructions, or R of another
    matrix."""
    mesh = cases.line(devices, kind=kind)
    a = matrix("random", *shape, "float64")
    options = {"full_matrices": False, "subset_by_index": subset, **on(mesh)}
    compiled = jax.jit(functools.partial(linalg.svd, **options)).lower(jnp.asarray(a)).compile()
    text = compiled.as_text()
    assert text.count('custom_call_target="jaxmg_gesvd"') == 1
    assert not any(f'custom_call_target="jaxmg_{name}"' in text for name in ("polar", "syevd"))
    instructions = re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = ", text, re.M)
    assert shape[0] != shape[1] or len(instructions) <= 300
    u, s, vh = map(np.asarray, compiled(jnp.asarray(a)))
    exact = np.linalg.svd(a, compute_uv=False)[slice(*subset or (None,))]
    np.testing.assert_allclose(s, exact, atol=1e-13 * exact[0])
    np.testing.assert_allclose(u.T @ a, s[:, None] * vh, atol=1e-12 * exact[0])


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        (dtype, shape, (1, 2, 4, 8, 3)[(i + j) % 5])
        for i, dtype in enumerate(DTYPES)
        for j, shape in enumerate((*_SHAPES, (1, 11), (11, 1), (13, 9)))
    ],
)
def test_svd_of_hard_matrices(dtype, shape, devices, way):
    where = on(cases.line(devices))
    for kind in KINDS + SHAPED if 1 in shape else SHAPED:
        a = matrix(kind, *shape, dtype)
        check_svd(a, *linalg.svd(jnp.asarray(a), full_matrices=False, **where))
        exact = np.linalg.svd(a, compute_uv=False)
        found = np.asarray(linalg.svdvals(jnp.asarray(a), **where))
        assert np.max(np.abs(found - exact)) <= bound_of_values(exact, way), kind


@pytest.mark.breadth
@pytest.mark.parametrize("m", range(6))
@pytest.mark.parametrize("n", range(6))
def test_small_matrices(m, n, way):
    dtype = DTYPES[(m + n) % 4]
    a, where = matrix("random", m, n, dtype), on(cases.line(1 + (m + 2 * n) % 5))
    check_svd(a, *linalg.svd(jnp.asarray(a), full_matrices=False, **where))
    tolerance = 1e3 * cases.eps(dtype)
    p = np.asarray(linalg.pinv(jnp.asarray(a), **where))
    assert p.shape == (n, m)
    np.testing.assert_allclose(a @ p @ a, a, atol=tolerance * np.abs(p).max(initial=1))
    u, p = map(np.asarray, linalg.polar(jnp.asarray(a), **where))
    assert u.shape == (m, n) and p.shape == (n, n)
    np.testing.assert_allclose(u @ p, a, atol=tolerance)


@pytest.mark.breadth
@pytest.mark.parametrize("devices", range(1, 6))
@pytest.mark.parametrize("m", range(6))
def test_small_matrices_over_ranks(m, devices):
    for n in range(6):
        a = matrix("random", m, n, DTYPES[(m + n + devices) % 4])
        check_svd(a, *linalg.svd(jnp.asarray(a), full_matrices=False, **on(cases.line(devices))))


@pytest.mark.breadth
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(14, 14), (40, 6), (6, 40)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_polar(dtype, kind, shape, side, way):
    _check_polar(matrix(kind, *shape, dtype), side, 4, compare=kind == "random")


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, side, devices",
    [
        (dtype, shape, ("right", "left")[(i + j) % 2], (1, 2, 8, 3)[(i + j) % 4])
        for i, dtype in enumerate(DTYPES)
        for j, shape in enumerate(((14, 14), (13, 9), (40, 6), (6, 40), (1, 11), (11, 1)))
    ],
)
def test_polar_of_hard_matrices(dtype, shape, side, devices, way):
    for kind in KINDS + SHAPED if 1 in shape else SHAPED:
        _check_polar(matrix(kind, *shape, dtype), side, devices)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, devices, shape, axes",
    [
        ("float64", 1, (20, 20), AxisType.Auto),
        ("float32", 2, (23, 23), AxisType.Auto),
        ("complex64", 2, (24, 24), AxisType.Explicit),
        ("complex128", 4, (21, 18), AxisType.Auto),
        ("float64", 4, (24, 24), AxisType.Explicit),
        ("float64", 8, (37, 37), AxisType.Auto),
    ],
)
def test_polar_of_every_condition(dtype, devices, shape, axes, monkeypatch):
    """Polar factors are right for condition numbers that lead to each kind of step."""
    monkeypatch.setattr(svd_programs, "SMALL", 0)
    cases.forget_plans()
    single = np.finfo(dtype).bits == 32
    left, right = (matrix("orthogonal", n, shape[1], dtype) for n in shape)
    for condition in (1, 5, 300, 1e5) if single else (1, 5, 1e3, 1e5, 1e9):
        a = (left * np.geomspace(1, 1 / condition, shape[1])) @ right.conj().T
        _check_polar(a.astype(dtype), "right", devices, axes=axes)
    cases.forget_plans()


@pytest.mark.parametrize("side, shape", [("left", (40, 6)), ("right", (6, 40))])
def test_polar_of_the_largest_numbers(side, shape):
    """P on the longer side is half a sum of two matrices, which would overflow."""
    a = np.eye(*shape) + cases.normal(cases.rng(1), shape, "float64") / 1000
    huge = (a * 3e38).astype("float32")
    p = np.asarray(linalg.polar(jnp.asarray(huge), side, **on(cases.line(4)))[1], "float64")
    exact = scipy.linalg.polar(huge.astype("float64"), side)[1]
    assert np.linalg.norm(p / 3e38 - exact / 3e38) <= 50 * np.finfo("float32").eps


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_polar_of_what_is_not_finite(devices, value, monkeypatch):
    monkeypatch.setattr(svd_programs, "SMALL", 0)
    cases.forget_plans()
    a = matrix("random", 20, 20, "float64")
    a[3, 4] = value
    u, p = linalg.polar(jnp.asarray(a), **on(cases.line(devices)))
    assert np.isnan(u).all() and np.isnan(p).all()
    cases.forget_plans()


def _check_polar(a, side, devices, compare=False, axes=AxisType.Auto):
    """Checks that U is orthonormal up to rounding, and H positive semidefinite."""
    __tracebackhide__ = True
    mesh = cases.line(devices, kind=axes)
    shape, dtype, where = a.shape, a.dtype, on(mesh)
    placed = jnp.asarray(a)
    if axes == AxisType.Explicit:
        placed = jax.device_put(a, NamedSharding(mesh, P(mesh.axis_names[0], None)))
    u, p = map(np.asarray, linalg.polar(placed, side, **where))
    k, eps = min(shape), float(np.finfo(dtype).eps)
    scale = np.linalg.norm(a, 2) or 1
    gram = u.conj().T @ u if shape[0] >= shape[1] else u @ u.conj().T
    assert np.linalg.norm(gram - np.eye(k)) <= 30 * eps * k**0.5
    product = u @ (p / scale) if side == "right" else (p / scale) @ u
    assert np.linalg.norm(a / scale - product) <= 50 * eps * k**0.5
    assert np.linalg.norm((p - p.conj().T) / scale) <= 10 * eps * k**0.5
    assert np.linalg.eigvalsh(p / scale).min() >= -20 * eps * k**0.5
    if compare:
        exact = scipy.linalg.polar(a, side)[1]
        assert np.linalg.norm((p - exact) / scale) <= 50 * eps * k**0.5


@pytest.fixture
def double_is_fast(monkeypatch):
    """Makes polar decompositions of any order run as on a GPU that is as fast in double
    precision."""
    monkeypatch.setattr(svd_programs, "SMALL", 0)
    monkeypatch.setattr(polar, "DOUBLE", 0)
    monkeypatch.setattr(layouts, "fast_in_double", lambda platform: True)
    cases.forget_plans()
    yield
    cases.forget_plans()


@pytest.mark.parametrize(
    "dtype, devices, axes, bits",
    [
        pytest.param("float32", 1, AxisType.Auto, 32, marks=pytest.mark.extended),
        pytest.param("complex64", 2, AxisType.Auto, 64, marks=pytest.mark.extended),
        ("float32", 4, AxisType.Explicit, 32),
    ],
)
def test_single_precision_in_double(dtype, devices, axes, bits, double_is_fast):
    """U is accurate to rounding, whether or not the caller enables JAX's 64 bits; single precision
    would lose about six digits. Later computations are in single precision again."""
    a = matrix("ill", 40, 40, dtype)
    exact = scipy.linalg.polar(a.astype(np.result_type(dtype, np.float64)))[0]
    mesh = cases.line(devices, kind=axes)
    with contextlib.nullcontext() if bits == 64 else cases.without_64_bits():
        rows = jax.device_put(a, NamedSharding(mesh, P(mesh.axis_names[0], None)))
        u, p = jax.jit(functools.partial(linalg.polar, **on(mesh)))(rows)
        assert u.dtype == p.dtype == dtype
        np.testing.assert_allclose(u, exact, atol=3e-7)
        check_svd(a, *linalg.svd(rows, full_matrices=False, **on(mesh)))
    assert np.linalg.norm(np.asarray(u) @ np.asarray(p) - a) <= 1e-6 * np.linalg.norm(a)


@cases.needs_transformations
@pytest.mark.breadth
def test_derivatives_and_batches_in_double(double_is_fast):
    a = matrix("random", 12, 12, "float32")
    where = on(cases.line(2))

    def total(a):
        u, p = linalg.polar(a, **where)
        return jnp.sum(jnp.sin(u)) + jnp.sum(p * p)

    with cases.without_64_bits():
        got = jax.jit(jax.grad(total))(jnp.asarray(a))
        u, _ = jax.jit(jax.vmap(functools.partial(linalg.polar, **where)))(np.stack([a, 2 * a]))
    assert got.dtype == u.dtype == np.float32
    np.testing.assert_allclose(got, jax.grad(total)(jnp.asarray(a, "float64")), rtol=2e-4)
    np.testing.assert_allclose(u[0], u[1], atol=3e-7)


def test_single_precision_stays_where_double_is_slow_or_large(double_is_fast, monkeypatch):
    layout = meshes.infer("polar", (jnp.eye(4),), cases.line(2), P(cases.line(2).axis_names[0]))
    square = functools.partial(jax.ShapeDtypeStruct, (64, 64))
    assert polar.in_double(square("float32"), layout)
    assert not polar.in_double(square("float64"), layout)
    monkeypatch.setattr(polar, "DOUBLE", 65)
    assert not polar.in_double(square("float32"), layout)
    monkeypatch.setattr(polar, "DOUBLE", 64)
    monkeypatch.setattr(polar, "_DOUBLE_BYTES", 64 * 64 * 4 - 1)
    assert not polar.in_double(square("complex64"), layout)
    monkeypatch.setattr(polar, "_DOUBLE_BYTES", 64 * 64 * 8)
    monkeypatch.setattr(layouts, "fast_in_double", lambda platform: False)
    assert not polar.in_double(square("complex64"), layout)


@pytest.mark.breadth
@pytest.mark.parametrize("shape", [(9, 9), (30, 5), (5, 30)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pinv(dtype, shape, way):
    a = matrix("singular", *shape, dtype)
    where = on(cases.line(4))
    rtol = 1e-4
    exact = np.linalg.pinv(a, rcond=rtol)
    p = np.asarray(linalg.pinv(jnp.asarray(a), rtol, **where))
    eps = float(np.finfo(dtype).eps)
    condition = np.linalg.norm(a, 2) * np.linalg.norm(exact, 2)
    assert np.linalg.norm(p - exact) <= 100 * eps * condition * np.linalg.norm(exact)


def _low_rank(rank, m, n, dtype, seed=0):
    return matrix("random", m, rank, dtype, seed) @ matrix("random", rank, n, dtype, seed + 1)


def _check_bases(a, where, rcond=None, **options):
    """Compares the projectors of `orth` and `null_space` with SciPy's."""
    bound = 300 * float(np.finfo(a.dtype).eps)
    for ours, theirs in (
        (linalg.orth, scipy.linalg.orth), (linalg.null_space, scipy.linalg.null_space)
    ):  # fmt: skip
        exact = theirs(a, rcond)
        basis = np.asarray(ours(jnp.asarray(a), rcond, **options, **where))
        assert basis.shape == exact.shape and basis.dtype == a.dtype
        identity = np.eye(basis.shape[1])
        assert np.linalg.norm(basis.conj().T @ basis - identity) <= bound
        assert np.linalg.norm(basis @ basis.conj().T - exact @ exact.conj().T) <= bound


@cases.needs_transformations
@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("devices, kind", [(4, AxisType.Auto), (2, AxisType.Explicit)])
def test_orth_of_a_batch_that_is_not_small(devices, kind):
    """Each device computes whole matrices; the engine would compute a single one."""
    a = np.stack([matrix("random", 270, 270, "float64", seed) for seed in range(3)])
    a[:, :, 150:] = a[:, :, :120]
    q = np.asarray(linalg.orth(a, rank=150, **on(cases.line(devices, kind=kind))))
    np.testing.assert_allclose(q.swapaxes(1, 2) @ q, np.broadcast_to(np.eye(150), (3, 150, 150)),
                               atol=1e-13)  # fmt: skip
    np.testing.assert_allclose(q @ (q.swapaxes(1, 2) @ a), a, atol=1e-12 * np.abs(a).max() * 270)


@pytest.mark.extended
def test_orth_and_null_space():
    for shape in ((8, 8), (6, 9)):
        _check_bases(_low_rank(3, *shape, "float64"), on(cases.line(2)))


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        ("float32", (40, 6), 4),
        ("float64", (13, 13), 8),
        ("float64", (6, 29), 2),
        ("complex64", (6, 29), 1),
        ("complex128", (29, 7), 4),
        ("complex128", (13, 9), 4),
    ],
)
def test_bases_of_any_matrix(dtype, shape, devices, way):
    where = on(cases.line(devices))
    _check_bases(_low_rank(2, *shape, dtype), where, rank=2)
    for rank in (3, min(shape)):
        _check_bases(_low_rank(rank, *shape, dtype), where, 1e-4)


@pytest.mark.breadth
def test_bases_of_matrices_without_a_rank():
    where = on(cases.line(2))
    zero = jnp.zeros((6, 4))
    assert linalg.orth(zero, **where).shape == (6, 0)
    np.testing.assert_allclose(np.abs(linalg.null_space(zero, **where)), np.eye(4), atol=1e-15)
    for shape, orth, null in (((0, 3), (0, 0), (3, 3)), ((3, 0), (3, 0), (0, 0))):
        assert linalg.orth(jnp.zeros(shape), **where).shape == orth
        assert linalg.null_space(jnp.zeros(shape), **where).shape == null
    bad = zero.at[3, 2].set(jnp.nan)
    assert np.isnan(linalg.orth(bad, **where)).all() and linalg.orth(bad, **where).size
    assert np.isnan(linalg.null_space(bad, **where)).all()
    assert linalg.null_space(bad, **where).size
    huge = matrix("huge", 24, 3, "float64")
    assert linalg.null_space(jnp.asarray(huge), **where).shape == (3, 0)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("shape", [(6, 6), (24, 5), (5, 24)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_bases(dtype, shape):
    (m, n), k, where = shape, 3, on(cases.line(2))
    right = jnp.asarray(matrix("random", k, n, dtype))
    left, left_dot = _directions((m, k), dtype)

    def run(left):
        u, v = (f(left @ right, rank=k, **where) for f in (linalg.orth, linalg.null_space))
        return jnp.sin(u @ u.conj().T), jnp.sin(v @ v.conj().T)

    step = 1e-5
    for at, tolerance in ((run, 1e-8), (lambda x: jax.jvp(run, (x,), (left_dot,))[1], 1e-6)):
        plus, minus = (at(left + sign * step * left_dot) for sign in (1, -1))
        for x, y, z in zip(jax.jvp(at, (left,), (left_dot,))[1], plus, minus, strict=True):
            np.testing.assert_allclose(x, (y - z) / (2 * step), rtol=tolerance, atol=tolerance)


@cases.needs_transformations
@pytest.mark.breadth
def test_bases_need_a_rank_where_it_is_traced():
    a, where = jnp.asarray(_low_rank(3, 9, 5, "float64")), on(cases.line(2))
    with pytest.raises(TypeError, match="pass rank="):
        jax.jit(lambda a: linalg.orth(a, **where))(a)
    run = jax.jit(
        lambda a: (linalg.orth(a, rank=3, **where), linalg.null_space(a, rank=3, **where))
    )
    batch = jnp.stack([a, 2 * a])
    assert [x.shape for x in run(a)] == [(9, 3), (5, 2)]
    with pytest.raises(ValueError, match="pass rank="):
        linalg.orth(batch, **where)
    u = linalg.orth(batch, rank=3, **where)
    np.testing.assert_allclose(u[1] @ u[1].T, u[0] @ u[0].T, atol=1e-13)
    gradient = jax.grad(lambda a: jnp.sum(linalg.orth(a, **where) ** 2))(a)  # of constant rank
    np.testing.assert_allclose(gradient, 0, atol=1e-13)


def _directions(shape, dtype):
    return tuple(jnp.asarray(matrix("random", *shape, dtype, seed)) for seed in (1, 2))


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("shape", [(6, 6), (24, 5), (5, 24)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives(dtype, shape, way):
    """Derivatives of results that don't depend on the phases of singular vectors agree with
    JAX's."""
    a, a_dot = _directions(shape, dtype)
    where = on(cases.line(2))

    ours = functools.partial(linalg.svd, full_matrices=False, **where)
    theirs = functools.partial(jnp.linalg.svd, full_matrices=False)

    def function(svd, pinv):
        def run(a):
            u, s, vh = svd(a)
            return (u * jnp.sin(s)) @ vh, s, pinv(a)

        return run

    expected = jax.jvp(function(theirs, jnp.linalg.pinv), (a,), (a_dot,))
    got = jax.jvp(function(ours, functools.partial(linalg.pinv, **where)), (a,), (a_dot,))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9)

    def total(svdvals):
        return lambda a: jnp.sum(jnp.sin(svdvals(a)))

    got = jax.grad(total(functools.partial(linalg.svdvals, **where)))(a)
    expected = jax.grad(total(lambda a: jnp.linalg.svd(a, compute_uv=False)))(a)
    np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("shape", [(6, 6), (24, 5), (5, 24)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_polar(dtype, shape, side):
    a, a_dot = _directions(shape, dtype)
    run = functools.partial(linalg.polar, side=side, **on(cases.line(2)))
    step = 1e-5
    expected = [
        (np.asarray(x) - np.asarray(y)) / (2 * step)
        for x, y in zip(run(a + step * a_dot), run(a - step * a_dot), strict=True)
    ]
    for x, y in zip(jax.jvp(run, (a,), (a_dot,))[1], expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)


def _without_phases(a, **where):
    u, s, vh = linalg.svd(a, full_matrices=False, **where)
    return (u * jnp.sin(s)) @ vh, s


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("shape, order", [((5, 5), 2), ((13, 4), 1), ((4, 13), 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    "function",
    [_without_phases, linalg.svdvals, linalg.pinv, linalg.polar],
    ids=["svd", "svdvals", "pinv", "polar"],
)
def test_derivatives_by_differences(function, dtype, shape, order):
    """Derivatives agree with differences, forward and in reverse."""
    run = jax.jit(functools.partial(function, **on(cases.line(2))))
    a = _directions(shape, dtype)[0]
    check_grads(run, (a,), order, eps=1e-5, atol=1e-5, rtol=1e-5)


@cases.needs_transformations
@pytest.mark.breadth
def test_a_batch_and_jit(way):
    mesh = cases.line(4)
    a = np.stack([matrix("random", 8, 8, "float64", seed) for seed in range(3)])
    s = linalg.svdvals(jnp.asarray(a), **on(mesh))
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=1e-12)
    u, s, vh = jax.vmap(lambda a: linalg.svd(a, **on(mesh)))(jnp.asarray(a))
    for each in zip(a, u, s, vh, strict=True):
        check_svd(*each)
    u, s, vh = jax.jit(lambda a: linalg.svd(a, **on(mesh)))(jnp.asarray(a[0]))
    check_svd(a[0], u, s, vh)


@pytest.mark.breadth
@pytest.mark.skipif(not _compat.COMPILES_EXCHANGES, reason="needs JAX 0.10")
@pytest.mark.parametrize("n", [8, 13])
def test_automatic_axes_and_results(n, way):
    mesh = cases.line(4, kind=jax.sharding.AxisType.Auto)
    a = matrix("random", n, n, "float64")
    check_svd(a, *linalg.svd(jnp.asarray(a), **on(mesh)))
    u, *_ = linalg.svd(jnp.asarray(np.eye(8)), **on(mesh))
    assert len(u.sharding.device_set) == 4


@pytest.mark.breadth
@pytest.mark.skipif(not _compat.COMPILES_EXCHANGES, reason="needs JAX 0.10")
@pytest.mark.parametrize(
    "shape, dtype, devices",
    [
        *((shape, "float64", 4) for shape in ((16, 16), (16, 8), (8, 16), (13, 9), (9, 13))),
        ((16, 5), "float32", 2),
        ((9, 9), "complex64", 1),
        ((8, 24), "complex128", 8),
    ],
    ids=str,
)
def test_explicit_axes(shape, dtype, devices, way):
    """Matrices on a mesh of explicit axes need no other argument that names the mesh."""
    mesh = cases.line(devices, kind=jax.sharding.AxisType.Explicit)
    x, unit = matrix("random", *shape, dtype), cases.eps(dtype)
    fits = shape[0] % devices == 0
    a = jax.device_put(x, jax.NamedSharding(mesh, P("r" if fits else None, None)))
    (m, n), k = shape, min(shape)
    for order in (None, 1, np.inf, 2, -2, "nuc"):
        np.testing.assert_allclose(linalg.norm(a, order), np.linalg.norm(x, order), rtol=1e4 * unit)
    for p in (None, -2) if m != n else (None, -2, "nuc", "fro"):
        np.testing.assert_allclose(
            linalg.cond(a, p), np.linalg.cond(x, p), rtol=1e4 * unit * np.linalg.cond(x)
        )
    u, s, vh = map(np.asarray, linalg.svd(a))
    assert u.shape == (m, m) and vh.shape == (n, n)
    check_svd(x, u[:, :k], s, vh[:k])
    for q in (u, vh):
        assert np.linalg.norm(q.conj().T @ q - np.eye(len(q))) <= 500 * unit
    expected = np.linalg.pinv(x)
    atol = 100 * unit * np.linalg.cond(x) * np.abs(expected).max()
    np.testing.assert_allclose(linalg.pinv(a), expected, rtol=0, atol=atol)
    assert linalg.matrix_rank(a) == k
    assert linalg.orth(a).shape == (m, k) and linalg.null_space(a).shape == (n, n - k)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "shape, dtype", [((8, 8), "float64"), ((13, 4), "float32"), ((4, 13), "complex128")], ids=str
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad, shape, dtype, way):
    a = matrix("random", *shape, dtype)
    a[3, 2] = bad
    where = on(cases.line(2))
    u, s, vh = linalg.svd(jnp.asarray(a), full_matrices=False, **where)
    assert np.isnan(s).all() and np.isnan(u).all() and np.isnan(vh).all()
    assert all(np.isnan(x).all() for x in linalg.polar(jnp.asarray(a), **where))
    assert np.isnan(linalg.pinv(jnp.asarray(a), **where)).all()


@pytest.mark.breadth
@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
def test_ranks_of_vectors(dtype):
    for x in ([0, 0, 0], [0, 3, 0], []):
        x = np.array(x, dtype)
        assert linalg.matrix_rank(jnp.asarray(x)) == linalg.matrix_rank(x) == int(x.any())
    assert jax.jit(linalg.matrix_rank)(jnp.ones(3)) == linalg.matrix_rank(np.float64(2)) == 1


@pytest.mark.breadth
def test_hermitian_and_parts():
    a = matrix("random", 9, 9, "complex128")
    a = jnp.asarray(a + a.conj().T)
    where = on(cases.line(2))
    with jax.numpy_dtype_promotion("strict"):
        u, s, vh = linalg.svd(a, hermitian=True, **where)
    check_svd(np.asarray(a), u, s, vh)
    np.testing.assert_allclose(linalg.svd(a, compute_uv=False, hermitian=True, **where), s)
    part = linalg.svd(a, subset_by_index=(2, 5), **where)
    assert [x.shape for x in part] == [(9, 3), (3,), (3, 9)]
    np.testing.assert_allclose(part.S, s[2:5])
    gap = float(s[3] + s[4]) / 2
    assert 4 == linalg.matrix_rank(a, tol=gap, **where)
    assert 4 == linalg.matrix_rank(a, tol=gap, hermitian=True, **where)
    np.testing.assert_allclose(linalg.svd(a, True, False, subset_by_index=(0, 2), **where), s[:2])


@pytest.mark.breadth
def test_hermitian_by_columns_of_explicit_axes():
    mesh = cases.line(2, kind=AxisType.Explicit)
    a = matrix("random", 8, 8, "float64")
    a = a + a.T
    placed = cases.shard(a, mesh, None, "r")
    for subset in (None, (1, 5)):
        found = linalg.svd(placed, hermitian=True, subset_by_index=subset)
        expected = linalg.svd(a, hermitian=True, subset_by_index=subset, mesh=cases.line(1))
        np.testing.assert_allclose(found.S, expected.S, rtol=1e-12, atol=1e-13)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.abs(x), np.abs(y), atol=1e-11)


@cases.needs_transformations
@pytest.mark.breadth
def test_hermitian_batch():
    a = matrix("random", 9, 9, "complex128")
    a = jnp.asarray(a + a.conj().T)
    batch = jnp.stack([a, a.T + 2 * jnp.eye(9), -a])
    found = linalg.svd(batch, hermitian=True, **on(cases.line(2)))
    for each in zip(np.asarray(batch), *found, strict=True):
        check_svd(*each)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        ("float32", (9, 9), 4),
        ("float64", (24, 3), 2),
        ("float64", (9, 9), 8),
        ("complex64", (3, 24), 1),
        ("complex128", (9, 9), 2),
    ],
)
def test_norm_and_cond(dtype, shape, devices):
    a, where = matrix("random", *shape, dtype), on(cases.line(devices))
    eps = float(np.finfo(dtype).eps)
    for order in (None, "fro", 1, -1, np.inf, -np.inf, 2, -2, "nuc"):
        exact = np.linalg.norm(a, order)
        scale = max(exact, np.linalg.norm(a, 2))
        assert abs(linalg.norm(jnp.asarray(a), order, **where) - exact) <= 50 * eps * scale
    condition = np.linalg.cond(a)
    for p in (None, 2, -2) if shape[0] != shape[1] else (None, 2, -2, "nuc"):
        exact = np.linalg.cond(a, p)
        error = abs(linalg.cond(jnp.asarray(a), p, **where) - exact)
        assert error <= 100 * eps * condition * exact


@pytest.mark.breadth
@cases.needs_transformations
def test_norms_along_axes_and_their_derivatives():
    where = on(cases.line(2))
    x = jnp.asarray(matrix("random", 5, 24, "float64").reshape(5, 4, 6))
    for axis in ((1, 2), (2, 0), (-3, 1)):
        for order, keepdims in ((2, True), ("nuc", False), (-2, True), ("fro", True), (1, False)):
            expected = np.linalg.norm(x, order, axis, keepdims)
            got = linalg.norm(x, order, axis, keepdims, **where)
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(linalg.norm(x[0, 0], 2), np.linalg.norm(x[0, 0]))
    np.testing.assert_allclose(linalg.norm(x, 2, 1), np.linalg.norm(x, 2, 1))
    a = x[0]
    for order in (2, -2, "nuc"):
        expected = jax.grad(lambda a, order=order: jnp.linalg.norm(a, order))(a)
        got = jax.grad(lambda a, order=order: linalg.norm(a, order, **where))(a)
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11)
    expected = jax.grad(lambda a: jnp.linalg.cond(a))(a)
    got = jax.grad(lambda a: linalg.cond(a, **where))(a)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.breadth
def test_singular_values_that_are_zero_or_nan():
    where = on(cases.line(2))
    zero = jnp.zeros((6, 6))
    assert linalg.norm(zero, 2, **where) == 0 == linalg.norm(zero, "nuc", **where)
    assert linalg.norm(jnp.zeros((0, 6)), 2, **where) == 0
    for p in (None, "nuc"):
        assert linalg.cond(zero, p, **where) == np.inf
    for value in (linalg.cond(zero.at[2, 3].set(np.nan), **where), linalg.norm(zero + np.nan, 2)):
        assert np.isnan(value)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "dtype, shape, devices",
    [
        ("float32", (9, 13), 4),
        ("float64", (13, 9), 4),
        ("float64", (5, 0), 2),
        ("float64", (30, 3), 1),
        ("complex64", (13, 9), 2),
        ("complex128", (9, 13), 8),
    ],
)
def test_full_matrices(dtype, shape, devices, way):
    a = matrix("singular", *shape, dtype)
    u, s, vh = linalg.svd(jnp.asarray(a), **on(cases.line(devices)))
    (m, n), k, eps = shape, min(shape), float(np.finfo(dtype).eps)
    assert u.shape == (m, m) and vh.shape == (n, n)
    check_svd(a, u[:, :k], s, vh[:k])
    for q in map(np.asarray, (u, vh)):
        assert np.linalg.norm(q.conj().T @ q - np.eye(len(q))) <= 30 * eps * len(q) ** 0.5


@pytest.mark.breadth
@pytest.mark.parametrize("shape", [(13, 9), (9, 13)], ids=str)
def test_neither_tall_nor_square(shape, way):
    a, where = matrix("random", *shape, "float64"), on(cases.line(4))
    check_svd(a, *linalg.svd(jnp.asarray(a), full_matrices=False, **where))
    u, p = linalg.polar(jnp.asarray(a), **where)
    np.testing.assert_allclose(u @ p, a, atol=1e-13)
    np.testing.assert_allclose(linalg.pinv(jnp.asarray(a), **where), np.linalg.pinv(a), atol=1e-12)


@pytest.mark.breadth
@cases.needs_transformations
def test_full_matrices_have_no_derivative():
    a = jnp.asarray(matrix("random", 9, 4, "float64"))
    with pytest.raises(NotImplementedError, match="full_matrices=False"):
        jax.grad(lambda a: jnp.sum(linalg.svd(a, **on(cases.line(2))).S))(a)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda a: linalg.svd(a, False, hermitian=True), ValueError, "square"),
        (lambda a: linalg.svd(a, False, subset_by_index=(1, 9)), ValueError, "subset_by_index"),
        (lambda a: linalg.svd(a, False, subset_by_index=2), ValueError, "subset_by_index"),
        (lambda a: linalg.polar(a, "both"), ValueError, "side"),
        (lambda a: linalg.polar(a, method="newton"), ValueError, "method"),
        (lambda a: linalg.pinv(a, hermitian=True), ValueError, "square"),
        (lambda a: linalg.svdvals(a[0]), ValueError, "svdvals"),
        (lambda a: linalg.norm(a, 2, axis=(1, -1)), ValueError, "two different axes"),
        (lambda a: linalg.norm(a, 2, axis=(0, 2)), ValueError, "two different axes"),
        (lambda a: linalg.norm(a, "other"), ValueError, "other"),
        (lambda a: linalg.matrix_rank(a, 0.1, tol=0.1), ValueError, "only one"),
        (lambda a: linalg.pinv(a, 0.1, rcond=0.1), ValueError, "only one"),
        (lambda a: linalg.orth(a, rank=5), ValueError, "from 0 to 4"),
        (lambda a: linalg.null_space(a[0]), ValueError, "null_space"),
        (lambda a: linalg.cond(a, "nuc"), ValueError, "square"),
        (lambda a: linalg.cond(a[:0]), ValueError, "empty"),
    ],
)  # fmt: skip
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(jnp.ones((6, 4)))


_BY_LIBRARY = [
    ((8, 8), 1, False, "float32"),
    ((9, 9), 4, False, "complex64"),
    ((11, 5), 2, True, "float64"),
    ((5, 12), 8, False, "complex128"),
]


@pytest.fixture
def a_library(monkeypatch):
    """Replaces a vendor's library by JAX's functions, since CPU devices have no such library."""
    asked, call = [], ffi.call

    def resolve(routine, layout, backend, *_):
        asked.append(backend)
        return backend

    def in_its_place(target, layout, tile, backend, operands, results, **options):
        if backend != "cusolvermp":
            return call(target, layout, tile, backend, operands, results, **options)
        coordinates, rows = operands
        count, n = len(rows), options["n"]
        start = coordinates.reshape(2)[0] * count
        a = jax.lax.all_gather(rows, layout.rows, tiled=True)[:n]

        def own(x):
            x = jnp.pad(x, ((0, layout.ranks * count - n), (0, 0)), constant_values=jnp.nan)
            return jax.lax.dynamic_slice_in_dim(x, start, count)

        status = jnp.zeros(1, jnp.int32)
        u, s, vh = jnp.linalg.svd(a)
        if target == "jaxmg_polar":
            return own(jnp.matmul(u, vh, precision="highest")), status
        vectors = options["vectors"]
        return own(u), u[:0], own(vh) if vectors else vh[:0], s, status

    monkeypatch.setattr(backends, "resolve", resolve)
    monkeypatch.setattr(ffi, "call", in_its_place)
    cases.forget_plans()
    yield asked
    cases.forget_plans()


@pytest.mark.extended
@pytest.mark.parametrize(("shape", "ranks", "explicit", "dtype"), _BY_LIBRARY)
def test_by_a_library(a_library, shape, ranks, explicit, dtype):
    """The code around the library's call is right: matrices that aren't square, all of U and V^H,
    both sides."""
    a, k = matrix("random", *shape, dtype), min(shape)
    mesh = cases.line(ranks, kind=AxisType.Explicit if explicit else AxisType.Auto)
    placed, where = cases.shard_rows(a, mesh), {**on(mesh), "backend": "cusolvermp"}
    for full in (True, False):
        u, s, vh = linalg.svd(placed, full_matrices=full, **where)
        assert (u.shape[1], vh.shape[0]) == (shape if full else (k, k))
        check_svd(a, u[:, :k], s, vh[:k])
    part = linalg.svd(placed, subset_by_index=(1, 3), **where)
    np.testing.assert_array_equal(part.S, s[1:3])
    values = linalg.svdvals(placed, **where)
    np.testing.assert_allclose(values, s, rtol=0, atol=30 * cases.eps(dtype) * s[0])
    for side in ("right", "left"):
        found = linalg.polar(placed, side, **where)
        for x, y in zip(found, scipy.linalg.polar(a, side), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=300 * cases.eps(dtype) * s[0])
    assert set(a_library) >= {"cusolvermp"}
