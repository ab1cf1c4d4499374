"""jaxmg._stacks: functions of a stack of matrices on one device."""

import types

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import stack_cases

import jaxmg
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._eigen import stacks as eigen_stacks
from jaxmg._eigen import syevd
from jaxmg._lu import stacks as lu_stacks
from jaxmg._matrices import norms
from jaxmg._plugin import plugins
from jaxmg._qr import stacks as qr_stacks
from jaxmg._square import determinants
from jaxmg._stacks import choice, native, parts, triangle
from jaxmg._svd import spaces
from jaxmg._svd import stacks as svd_stacks
from jaxmg._transform import batched_calls

pytestmark = [cases.needs_transformations, pytest.mark.usefixtures("plugin")]


# Shapes of one panel, of several panels, and of several sections; some that panels don't divide.
_SHAPES = [(3, 1, 1), (2, 5, 3), (2, 3, 5), (2, 32, 32), (2, 40, 70), (1, 170, 130), (2, 0, 2)]
_CORE = [((2, 5, 3), "complex64")]


@pytest.mark.parametrize(
    "shape, dtype",
    cases.broad([(s, d) for s in _SHAPES for d in cases.DTYPES], lambda *case: case in _CORE),
)
def test_qr_is_that_of_lapack(shape, dtype):
    a = stack_cases.stack(shape, dtype)
    q, r = jax.jit(qr_stacks.reduced)(a)
    q0, r0 = np.linalg.qr(np.asarray(a))
    assert q.dtype == r.dtype == a.dtype
    stack_cases.check_orthonormal(q, dtype)
    if a.size:
        stack_cases.check(np.asarray(q) @ np.asarray(r), a, dtype)
        stack_cases.check(r, r0, dtype)
        stack_cases.check(q, q0, dtype, 10)
    assert not np.tril(np.asarray(r), -1).any()
    assert not np.diagonal(r, axis1=1, axis2=2).imag.any()


@pytest.mark.breadth
def test_qr_of_matrices_without_full_rank_and_of_any_size_of_numbers():
    a = np.zeros((5, 9, 4), "float32")
    a[1], a[2, :, 0], a[3] = 1, 1e-30, np.asarray(stack_cases.stack((9, 4), "float32")) * 1e30
    a[4] = np.asarray(stack_cases.stack((9, 4), "float32")) * 10.0 ** np.array([20, 0, -20, -30])
    q, r = qr_stacks.reduced(jnp.asarray(a))
    stack_cases.check_orthonormal(q, "float32")
    lengths = np.linalg.norm(a.astype("float64"), axis=1)  # of columns, each by itself
    off = np.abs(cases.wide(np.asarray(q)) @ cases.wide(np.asarray(r)) - a).max(axis=1)
    assert (off <= 40 * cases.eps("float32") * lengths).all()


@pytest.mark.breadth
def test_a_matrix_with_nan_is_alone():
    a = np.asarray(stack_cases.stack((3, 40, 40), "float64")).copy()
    a[1, 35, 3] = np.nan
    for function in (
        qr_stacks.reduced,
        lu_stacks.inverse_by_plugin,
        svd_stacks.decompose,
        svd_stacks.unitary,
    ):
        for result in jax.tree.leaves(jax.jit(function)(jnp.asarray(a))):
            bad = np.isnan(np.asarray(result)).reshape(3, -1).any(axis=1)
            assert list(bad) == [False, True, False]


def _check_lu(a, packed, pivots):
    """Checks against LAPACK's factors. A library on GPUs may choose complex pivots by their
    modulus."""
    __tracebackhide__ = True
    expected = [scipy.linalg.lu_factor(one) for one in np.asarray(a)]
    np.testing.assert_array_equal(pivots, [pivots for _, pivots in expected])
    stack_cases.check(packed, np.stack([packed for packed, _ in expected]), a.dtype, 30)


def _check_inverses_and_solutions(a, inverse, solve):
    __tracebackhide__ = True
    n, dtype = a.shape[-1], a.dtype
    x = cases.wide(np.asarray(jax.jit(inverse)(a)))
    stack_cases.check(cases.wide(np.asarray(a)) @ x, np.broadcast_to(np.eye(n), x.shape), dtype,
           np.linalg.norm(x, axis=(1, 2)).max() * n)  # fmt: skip
    b = stack_cases.stack((2, n, 3), dtype)
    x = cases.wide(np.asarray(jax.jit(solve)(a, b)))
    stack_cases.check(cases.wide(np.asarray(a)) @ x, b, dtype, np.abs(x).max() * n)


@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, d) for n in (1, 5, 32, 45, 70) for d in cases.DTYPES],
        lambda *case: case == (5, "complex128"),
    ),
)
def test_lu_by_the_plugin(n, dtype):
    a = stack_cases.stack((2, n, n), dtype)
    packed, pivots = native.factor_lu(a)
    _check_lu(a, packed, pivots)
    _check_inverses_and_solutions(a, lu_stacks.inverse_by_plugin, lu_stacks.solve_by_plugin)
    sign, log = lu_stacks.slogdet_by_plugin(a)
    expected = np.linalg.slogdet(cases.wide(np.asarray(a)))
    assert sign.dtype == a.dtype and log.dtype == np.abs(np.asarray(a)).dtype
    np.testing.assert_allclose(sign, expected[0], atol=100 * n * cases.eps(dtype))
    np.testing.assert_allclose(log, expected[1], atol=100 * n * cases.eps(dtype))


@pytest.mark.extended
def test_lu_by_the_plugin_of_singular_matrices_and_nan():
    a = np.ones((3, 3, 3))
    a[1] += np.eye(3)
    a[2, 1, 1] = np.nan
    packed, pivots = native.factor_lu(jnp.asarray(a))
    np.testing.assert_array_equal(packed[0], [[1, 1, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(packed[1], scipy.linalg.lu_factor(a[1])[0], atol=1e-15)
    np.testing.assert_array_equal(pivots[:2], 2 * [[0, 1, 2]])
    for result in (lu_stacks.inverse_by_plugin(a), lu_stacks.solve_by_plugin(a, a[..., :1])):
        assert np.isnan(result[2]).any() and np.isfinite(np.asarray(result[1])).all()
    assert lu_stacks.inverse_by_plugin(jnp.zeros((0, 3, 3))).shape == (0, 3, 3)
    sign, log = map(np.asarray, lu_stacks.slogdet_by_plugin(jnp.asarray(a)))
    assert sign[0] == 0 and log[0] == -np.inf and np.isnan(sign[2]) and np.isnan(log[2])
    np.testing.assert_allclose([sign[1], log[1]], np.linalg.slogdet(a[1]), atol=1e-14)


@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, d) for n in (1, 64, 130, 300) for d in cases.DTYPES],
        lambda *_: False,
    ),
)
def test_inverses_of_triangles(n, dtype):
    lower = np.linalg.cholesky(np.asarray(stack_cases.definite(2, n, dtype)))
    x = triangle.inverse(jnp.asarray(lower))
    stack_cases.check(np.asarray(x) @ lower, np.broadcast_to(np.eye(n), x.shape), dtype, n)


@pytest.mark.parametrize(
    "shape, dtype, kind",
    cases.broad(
        [
            (s, d, k)
            for s in ((2, 6, 6), (2, 9, 4), (2, 4, 9), (1, 40, 40))
            for d in cases.DTYPES
            for k in ("random", "zero", "equal", "graded")
        ],
        lambda *_: False,
    ),
)
def test_polar_and_svd(shape, dtype, kind):
    a = np.asarray(stack_cases.stack(shape, dtype)).copy()
    if kind == "zero":
        a[0], a[-1, :, 1:] = 0, a[-1, :, :1]  # of rank 0 and 1
    elif kind == "equal":
        a = np.broadcast_to(3 * np.eye(*shape[1:]), shape).astype(dtype)
    elif kind == "graded":
        a = (a * np.geomspace(1, cases.eps(dtype) ** 2, shape[-1])).astype(dtype)
    u, s, vh = map(np.asarray, jax.jit(svd_stacks.decompose)(jnp.asarray(a)))
    assert (np.diff(s) <= 0).all() and (s >= 0).all()
    stack_cases.check((u * s[:, None]) @ vh, a, dtype, max(np.abs(a).max(), 1e-30) * 10)
    stack_cases.check(
        s[:, None], np.linalg.svd(a, compute_uv=False)[:, None], dtype, s.max() + 1e-30
    )
    stack_cases.check_orthonormal(u, dtype)
    stack_cases.check_orthonormal(stack_cases.adjoint(vh), dtype)
    tall = shape[1] >= shape[2]
    w = np.asarray(jax.jit(svd_stacks.unitary)(jnp.asarray(a)))
    stack_cases.check_orthonormal(w if tall else stack_cases.adjoint(w), dtype)
    h = stack_cases.adjoint(w) @ a if tall else a @ stack_cases.adjoint(w)
    stack_cases.check(h, stack_cases.adjoint(h), dtype, max(np.abs(a).max(), 1e-30) * 10)
    assert (
        np.linalg.eigvalsh(cases.wide(h + stack_cases.adjoint(h))) >= -1e-3 * np.abs(a).max()
    ).all()


def _loss(function):
    def loss(a):
        return sum(jnp.sum(jnp.sin(x.real) + x.imag**2) for x in jax.tree.leaves(function(a)))

    return loss


def _svd(a):
    return jnp.linalg.svd(a, full_matrices=False)


def _unphased(function):
    """Returns a function of A whose results, from U, s and V^H, don't depend on their signs."""

    def call(a):
        u, s, vh = function(a)
        return (u * jnp.cos(s)[:, None]) @ vh, s

    return call


_GRADIENTS = {
    "slogdet": (
        lu_stacks.slogdet_by_plugin,
        lambda a: tuple(jnp.linalg.slogdet(a)),
        [(2, 4, 4)],
    ),
    "qr": (qr_stacks.reduced, jnp.linalg.qr, [(2, 5, 3), (2, 4, 4)]),
    "inverse": (lu_stacks.inverse_by_plugin, jnp.linalg.inv, [(2, 4, 4)]),
    "solve": (
        lambda a: lu_stacks.solve_by_plugin(a, jnp.cos(a)[..., :2]),
        lambda a: jnp.linalg.solve(a, jnp.cos(a)[..., :2]),
        [(2, 4, 4)],
    ),
    "svd": (_unphased(svd_stacks.decompose), _unphased(_svd), [(2, 4, 4), (2, 5, 3), (2, 3, 5)]),
    "polar": (
        svd_stacks.unitary,
        lambda a: (lambda u, s, vh: u @ vh)(*_svd(a)),
        [(2, 4, 4), (2, 5, 3), (2, 3, 5)],
    ),
}


@pytest.mark.parametrize(
    "name, shape, dtype",
    cases.broad(
        [(k, s, d) for k, v in _GRADIENTS.items() for s in v[2] for d in ("float64", "complex128")],
        lambda *_: False,
    ),
)
def test_gradients_are_those_of_jax(name, shape, dtype):
    ours, theirs, _ = _GRADIENTS[name]
    a = stack_cases.stack(shape, dtype)
    found, expected = (jax.jit(jax.grad(_loss(f)))(a) for f in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.breadth
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_determinants_by_the_plugin(monkeypatch, dtype):
    """Determinants by the GPUs' algorithm are right: det and its gradient, also of singular
    matrices."""
    if jax.default_backend() != "cpu":
        pytest.skip("for CPU devices; on GPUs all other tests go this way")
    stack_cases.use_rows(monkeypatch, lu=(choice.Row("cpu", "plugin", (4, 8)),))
    for operation in (lu_stacks.SLOGDET, determinants.TRACE):
        monkeypatch.setitem(operation.ways, choice.JAX, None)  # must not be used
    a = np.asarray(stack_cases.stack((3, 5, 5), dtype)).copy()
    a[1, :, 4] = a[1, :, 3] + 1e-12 * a[1, :, 2]  # nearly singular
    a = jnp.asarray(a)
    np.testing.assert_allclose(determinants.det("cpu", a), jnp.linalg.det(a), atol=1e-12)
    sign, log = lu_stacks.log_det("cpu", a)
    expected = jnp.linalg.slogdet(a)
    np.testing.assert_allclose(sign[::2], expected[0][::2], atol=1e-12)
    np.testing.assert_allclose(log[::2], expected[1][::2], atol=1e-12)

    def ours(a):
        return determinants.det("cpu", a).real.sum()

    found = jax.jit(jax.grad(ours))(a)
    expected = jax.grad(lambda a: jnp.linalg.det(a).real.sum())(a)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.core("5")
@pytest.mark.parametrize("count", range(1, 8))
def test_a_large_stack_is_taken_in_parts(monkeypatch, count):
    a = np.arange(count * 6.0).reshape(count, 2, 3)
    b = np.arange(count * 2.0).reshape(count, 2)
    lengths = []

    def function(a, b):
        lengths.append(len(a))
        return {"sum": a.sum(-1) + b, "b": (b,)}

    for most in (1, 2, 3, 100):  # maximum number of matrices at once
        monkeypatch.setattr(parts, "LARGEST", most * 6 + 1)
        lengths.clear()
        found = parts.in_parts(function, jnp.asarray(a), jnp.asarray(b))
        np.testing.assert_array_equal(found["sum"], a.sum(-1) + b)
        np.testing.assert_array_equal(found["b"][0], b)
        assert max(lengths) <= most
    monkeypatch.setattr(parts, "LARGEST", 1)  # a matrix is never divided
    np.testing.assert_array_equal(parts.in_parts(function, *map(jnp.asarray, (a, b)))["b"][0], b)


@cases.one_process("its mesh is one device")
def test_a_large_share_in_parts(monkeypatch):
    """jaxmg's own call computes its share of a batch in parts."""
    a = np.random.default_rng(2).standard_normal((7, 13, 13))  # compiled by no other test
    mesh = jax.make_mesh((1,), ("r",))
    expected = np.linalg.inv(a)
    sizes, original = [], lu_stacks.inverse
    monkeypatch.setattr(parts, "LARGEST", 3 * 169)
    monkeypatch.setattr(
        lu_stacks, "inverse", lambda platform, a: sizes.append(len(a)) or original(platform, a)
    )
    np.testing.assert_allclose(jaxmg.linalg.inv(jnp.asarray(a), mesh=mesh), expected, atol=1e-10)
    assert sizes and max(sizes) <= 3


def test_the_first_row_that_fits_is_the_way(monkeypatch):
    qr = (
        choice.Row("gpu", "lapack", (512, 4096), 4, ("f4",)),
        choice.Row("gpu", "blocked", (64, 4096)),
    )
    eigh = (choice.Row("gpu", "turns", (64, 4096), 3, most=5),)
    stack_cases.use_rows(monkeypatch, qr=qr, eigh=eigh)

    def way(count, m, n, dtype="float32", platform="gpu", operation=qr_stacks.QR):
        return operation.choose(platform, jax.ShapeDtypeStruct((count, m, n), dtype))

    assert way(4, 600, 512) == "lapack" and way(3, 600, 512) == way(4, 600, 511) == "blocked"
    assert way(4, 512, 512, "complex64") == "blocked" and way(4, 64, 63) == choice.JAX
    others = way(4, 512, 512, platform="cpu"), way(4, 512, 512, operation=lu_stacks.INV)
    assert others == (choice.JAX, choice.JAX)
    few = [way(count, 64, 64, operation=eigen_stacks.EIGH) for count in (2, 3, 5, 6)]
    assert few == [choice.JAX, "turns", "turns", choice.JAX]
    assert way(1, 512, 512) == choice.JAX and way(2, 4097, 4097) == choice.JAX


@pytest.mark.parametrize(
    "gpus, count, n, at_once",
    [
        (1, 24, 392, True),
        (1, 7, 392, False),
        (2, 14, 392, False),  # 7 on each
        (2, 15, 392, True),
        (1, 2, 60, True),
        (1, 4, 200, False),
        (1, 5, 200, True),
        (1, 99, 5000, False),
    ],
)
def test_few_matrices_of_a_gpu_get_their_eigenvalues_one_after_the_other(gpus, count, n, at_once):
    layout = types.SimpleNamespace(platform="gpu", mesh=types.SimpleNamespace(size=gpus))
    vectors, values = (operation.rows for operation in syevd.SYEVD.at_once)
    assert batched_calls.is_faster_at_once(values, layout, n, count) == at_once
    assert batched_calls.is_faster_at_once(vectors, layout, n, count) == (n <= 4096)


_WITH_RULES = {
    "reduced": qr_stacks.reduced,
    "r": qr_stacks.upper_by_lapack,
    "solve": lambda a: lu_stacks.solve_by_lapack(a[:, :3], jnp.ones_like(a[:, :3, :2])),
    "inverse": lambda a: lu_stacks.inverse_by_plugin(a[:, :3]),
    "slogdet": lambda a: lu_stacks.slogdet_by_plugin(a[:, :3]),
    "det": lambda a: determinants.det(jax.default_backend(), a @ jnp.swapaxes(a, 1, 2)),
    "svd": svd_stacks.decompose_by_jax,
    "values": svd_stacks.values_by_jax,
    "unitary": svd_stacks.unitary_by_jax,
    "cholesky": lambda a: cholesky_stacks.factor_by_lapack(a[:, :3] @ jnp.swapaxes(a[:, :3], 1, 2)),
    "largest": lambda a: norms._extreme(a, 1, True),
    "norm": lambda a: norms._euclidean(a, (1, 2)),
    "pseudoinverse": lambda a: spaces._pseudoinverse_stack(
        jax.default_backend(), a, jnp.full(len(a), 1e-9)
    ),
}


@pytest.mark.core("r")
@pytest.mark.parametrize("name", _WITH_RULES)
def test_derivatives_of_a_jit_in_batches(name):
    """The results of a derivative's rule have their batch dimension where the function's results
    have it, as JAX assumes."""
    function = _WITH_RULES[name]
    a, moved = np.random.default_rng(3).normal(size=(2, 3, 4, 2, 4, 3))

    def derivatives(function, a, moved):
        return jax.jit(lambda a, moved: jax.jvp(function, (a,), (moved,)))(a, moved)

    each = [
        derivatives(function, x, y)
        for x, y in zip(a.reshape(-1, 2, 4, 3), moved.reshape(-1, 2, 4, 3), strict=True)
    ]
    expected = jax.tree.map(lambda *x: np.stack(x).reshape(3, 4, *x[0].shape), *each)
    for outer, inner in ((0, 0), (1, 2)):

        def mapped(a, outer=outer, inner=inner):
            return jax.vmap(jax.vmap(jax.jit(function), in_axes=inner), in_axes=outer)(a)

        placed = (np.moveaxis(x, (1, 0), (inner + 1, 0)) for x in (a, moved))
        found = derivatives(mapped, *(np.moveaxis(x, 0, outer) for x in placed))
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), found, expected
        )


@pytest.mark.extended
def test_a_way_by_the_plugin_loads_it(monkeypatch):
    """In `jaxmg.tree`, nothing else loads the plugin."""
    loaded, platform = [], jax.default_backend()
    monkeypatch.setattr(plugins, "load", loaded.append)
    a = stack_cases.stack((3, 5, 5), "float64")
    stack_cases.use_rows(monkeypatch)
    lu_stacks.inverse(platform, a)
    assert not loaded
    stack_cases.use_rows(monkeypatch, inv=(choice.Row(platform, "plugin", (5, 5)),))
    lu_stacks.inverse(platform, a)
    assert loaded == [platform]
