"""jaxmg._stacks: eigenproblems of a stack of matrices by stages, and functions that use them."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases
from jax.test_util import check_grads

import jaxmg
from jaxmg._eigen import stacks as eigen_stacks
from jaxmg._eigen import tridiagonal
from jaxmg._stacks import choice, native
from jaxmg._svd import stacks as svd_stacks

pytestmark = [cases.needs_transformations, pytest.mark.usefixtures("plugin")]


_TRIDIAGONAL = ("random", "zero", "identity", "wilkinson", "graded", "low rank", "huge", "tiny")


def _tridiagonal(kind, n, dtype):
    """Returns the diagonals and off-diagonals of three matrices."""
    rng = cases.rng(0, n)
    d, e = rng.standard_normal((3, n)), rng.standard_normal((3, n - 1))
    huge, tiny = (1e30, 1e-25) if np.finfo(dtype).bits == 32 else (1e300, 1e-290)
    index, grades = np.arange(n), np.logspace(0, -20, n)
    d, e = {
        "random": (d, e),
        "zero": (0 * d, 0 * e),
        "identity": (0 * d + 1, 0 * e),
        "wilkinson": (np.abs(index - n // 2) + 0 * d, 0 * e + 1),
        "graded": (d * grades, e * grades[1:]),
        "low rank": (d * (index < n // 4), e * (index[1:] < n // 4)),
        "huge": (d * huge, e * huge),
        "tiny": (d * tiny, e * tiny),
    }[kind]
    return d.astype(dtype), e.astype(dtype)


def _check_eigenpairs(a, w, v, dtype):
    """Checks eigenpairs up to rounding, also if eigenvalues are equal or close to each other."""
    __tracebackhide__ = True
    a, w, v = (np.asarray(x, np.float64) for x in (a, w, v))
    bound = 8 * cases.eps(dtype) * a.shape[-1] ** 0.5
    for one, values, vectors in zip(a, w, v, strict=True):
        scale = np.abs(one).max() or 1
        one, values = one / scale, values / scale
        size = max(np.linalg.norm(one, 2), 1)
        assert np.all(np.diff(values) >= 0)
        assert np.linalg.norm(one @ vectors - vectors * values, 2) <= bound * size
        assert np.linalg.norm(vectors.T @ vectors - np.eye(len(one)), 2) <= bound
        assert np.abs(np.linalg.eigvalsh(one) - values).max() <= 2 * bound * size


@pytest.mark.parametrize(
    "dtype, kind, n",
    cases.broad(
        [
            (dtype, kind, n)
            for dtype in ("float32", "float64")
            for kind in _TRIDIAGONAL
            for n in (1, 2, 3, 32, 33, 65, 150)
        ],
        lambda dtype, kind, n: (dtype, n) == ("float32", 33),
    ),
)
def test_tridiagonal_eigenproblems(dtype, kind, n):
    d, e = _tridiagonal(kind, n, dtype)
    w, v = jax.jit(tridiagonal.eigh)(d, e)
    a = np.stack([np.diag(x) + np.diag(y, 1) + np.diag(y, -1) for x, y in zip(d, e, strict=True)])
    assert w.dtype == v.dtype == dtype
    _check_eigenpairs(a, w, v, dtype)


def test_a_tridiagonal_matrix_that_is_not_finite():
    d, e = _tridiagonal("random", 33, "float32")
    solve = jax.jit(tridiagonal.eigh)
    expected = solve(d, e)
    d[0, 7], e[2, 31] = np.inf, np.nan
    w, v = solve(d, e)
    assert np.isnan(w[::2]).all() and np.isnan(v[::2]).all()
    np.testing.assert_array_equal(w[1], expected[0][1])
    np.testing.assert_array_equal(v[1], expected[1][1])


def _symmetric(count, n, dtype):
    a = np.asarray(stack_cases.stack((count, n, n), dtype))
    return a + a.swapaxes(1, 2)


@pytest.mark.parametrize(
    "dtype, n",
    cases.broad(
        [(dtype, n) for dtype in ("float32", "float64") for n in (2, 3, 16, 17, 64, 65, 130)],
        lambda dtype, n: (dtype, n) == ("float32", 65),
    ),
)
def test_reduction_to_tridiagonal_form(dtype, n):
    a = _symmetric(2, n, dtype) / n
    if n > 3:
        a[1, 2:, :2] = a[1, :2, 2:] = 0  # columns 0 and 1 need no reduction
    reflectors, d, e, tau = native.reduce_to_tridiagonal(jnp.asarray(a))
    eye = jnp.broadcast_to(jnp.eye(n, dtype=dtype), a.shape)
    q = native.multiply_reflectors(reflectors, tau, eye)
    q = np.asarray(q, np.float64)
    t = [np.diag(x) + np.diag(y, 1) + np.diag(y, -1) for x, y in zip(d, e, strict=True)]
    stack_cases.check(q @ np.asarray(t, np.float64) @ q.swapaxes(1, 2), a, dtype)
    stack_cases.check(q @ q.swapaxes(1, 2), np.broadcast_to(np.eye(n), a.shape), dtype)


@pytest.mark.core("complex64-2-1")
@pytest.mark.parametrize("n, columns", [(2, 1), (3, 5), (65, 7), (130, 130), (9, 0)])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_products_with_reflectors(dtype, n, columns):
    """Row j of the reflectors is the adjoint of a vector. Their last row isn't one."""
    v = np.asarray(stack_cases.stack((3, n, n), dtype)).copy()
    v = np.triu(v, 2) + np.eye(n, k=1, dtype=dtype)
    tau = 2 / np.sum(np.abs(v) ** 2, axis=-1, initial=1e-30)
    tau[1, 0] = 0
    if v.dtype.kind == "c":  # unitary, too
        tau = tau * (1 + 1j * np.arange(n)) / (1 + np.arange(n) ** 2)
    v[:, -1] = tau[:, -1] = np.nan
    x = np.asarray(stack_cases.stack((3, n, columns), dtype, seed=1))
    expected = cases.wide(x)
    for j in reversed(range(n - 1)):
        row = cases.wide(v[:, j : j + 1])
        expected = expected - tau[:, j, None, None] * stack_cases.adjoint(row) @ (row @ expected)
    arrays = [jnp.asarray(one) for one in (v, tau.astype(dtype), x)]
    found = jax.jit(native.multiply_reflectors)(*arrays)
    assert found.dtype == dtype
    stack_cases.check(found, expected, dtype)
    none = native.multiply_reflectors(*(one[:0] for one in arrays))
    assert none.shape == (0, n, columns)
    twice = jax.vmap(native.multiply_reflectors)(*(jnp.stack([one, one]) for one in arrays))
    np.testing.assert_array_equal(twice[1], found)
    bad = native.multiply_reflectors(arrays[0].at[1, 0, 1].set(np.nan), *arrays[1:])
    np.testing.assert_array_equal(bad[::2], found[::2])


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.breadth), "float64"])
def test_symmetric_eigenproblems_by_stages(dtype):
    n, solve = 40, jax.jit(eigen_stacks.decompose)
    huge, tiny = (1e30, 1e-25) if dtype == "float32" else (1e300, 1e-290)
    for scale in (huge, tiny, 1):
        a = (_symmetric(3, n, "float64") * scale).astype(dtype)
        a[1] = scale * np.eye(n)
        w, v = solve(jnp.asarray(a))
        _check_eigenpairs(a, w, v, dtype)
    a[1, 20, 30] = np.nan
    bad = solve(jnp.asarray(a))
    assert np.isnan(bad[0][1]).all() and np.isnan(bad[1][1]).all()
    np.testing.assert_array_equal(bad[0][::2], w[::2])


@pytest.mark.breadth
def test_derivatives_of_symmetric_eigenproblems_by_stages():
    a = _symmetric(2, 7, "float64")

    def invariant(a):
        w, v = eigen_stacks.decompose((a + jnp.swapaxes(a, 1, 2)) / 2)
        return jnp.sin(w), (v * jnp.cos(w)[:, None, :]) @ jnp.swapaxes(v, 1, 2)

    check_grads(invariant, (jnp.asarray(a),), order=1, modes=("fwd", "rev"), rtol=1e-5)


@pytest.fixture
def by_stages(monkeypatch):
    """Selects stages for order 22 on this platform; returns a list of the shapes that took them."""
    taken, original = [], eigen_stacks.decompose
    row = choice.Row(jax.default_backend(), "stages", (22, 22), 3, ("f4", "f8"))
    stack_cases.use_rows(monkeypatch, eigh=(row,))
    monkeypatch.setattr(eigen_stacks, "decompose", lambda a: taken.append(a.shape) or original(a))
    return taken


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.breadth)])
def test_batches_by_stages(by_stages, dtype):
    mesh = cases.line(1)
    a = _symmetric(3, 22, dtype)
    b = np.asarray(stack_cases.definite(3, 22, dtype))
    upper = np.triu(a) + np.tril(np.full_like(a, 7), -1)  # nothing below the diagonal is read
    w, v = jax.vmap(lambda a: jaxmg.syevd(a, mesh=mesh))(jnp.asarray(upper))
    assert by_stages == [a.shape]
    _check_eigenpairs(a, w, v, dtype)
    w, x = jax.vmap(lambda a, b: jaxmg.sygvd(a, b, mesh=mesh))(jnp.asarray(upper), jnp.asarray(b))
    assert by_stages == 2 * [a.shape]
    stack_cases.check(a @ np.asarray(x), b @ np.asarray(x) * np.asarray(w)[:, None], dtype, 100)
    bad = a.copy()
    bad[1, 3, 5] = np.nan
    w, v, status = jax.vmap(lambda a: jaxmg.syevd(a, mesh=mesh, return_status=True))(bad)
    assert list(np.asarray(status) != 0) == [False, True, False]
    assert np.isnan(w[1]).all() and np.isnan(v[1]).all() and np.isfinite(np.asarray(v[::2])).all()


@pytest.mark.extended
def test_trees_by_stages(by_stages):
    mesh = cases.line(1)
    a = _symmetric(3, 22, "float32")
    tree = {"three": jnp.asarray(a), "two": jnp.asarray(a[:2, :9, :9])}
    for uplo, read in (("L", np.tril), ("U", np.triu)):
        one = jnp.where(read(np.ones_like(a)) > 0, a, 7)
        found = jaxmg.tree.eigh({"a": one}, UPLO=uplo, symmetrize_input=False, mesh=mesh)["a"]
        _check_eigenpairs(a, found.eigenvalues, found.eigenvectors, "float32")
    found = jaxmg.tree.eigh(tree, mesh=mesh)
    assert by_stages == 3 * [a.shape]  # the other leaf takes JAX's own way
    for name, leaf in tree.items():
        _check_eigenpairs(leaf, *found[name], "float32")
        assert type(found[name]) is type(jnp.linalg.eigh(leaf))


@pytest.mark.extended
@pytest.mark.parametrize(
    "shape",
    [(3, 20, 20)]
    + [pytest.param(shape, marks=pytest.mark.breadth) for shape in ((2, 30, 17), (2, 9, 30))],
)
def test_svd_by_stages(shape):
    a = np.asarray(stack_cases.stack(shape, "float64")).copy()
    a[0, :, 1:3] = a[0, :, :1]
    u, s, vh = map(np.asarray, jax.jit(svd_stacks.decompose_by_stages)(jnp.asarray(a)))
    stack_cases.check((u * s[:, None]) @ vh, a, "float64", 10 * np.abs(a).max())
    stack_cases.check(s[:, None], np.linalg.svd(a, compute_uv=False)[:, None], "float64", s.max())
    stack_cases.check_orthonormal(u, "float64")
    stack_cases.check_orthonormal(stack_cases.adjoint(vh), "float64")


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_few_matrices_in_turn(dtype, monkeypatch):
    """Small batches are solved one after the other where a library is faster that way."""
    platform = jax.default_backend()
    stack_cases.use_rows(monkeypatch, eigh=(choice.Row(platform, "turns", (9, 9), most=3),))
    a = stack_cases.stack((3, 9, 9), dtype)
    a = (a + jnp.swapaxes(a, 1, 2).conj()) / 2
    mesh = cases.line(1)
    for w, v in (jax.vmap(lambda a: jaxmg.syevd(a, mesh=mesh))(a), jaxmg.linalg.eigh(a, mesh=mesh)):
        stack_cases.check(w, np.linalg.eigvalsh(np.asarray(a)), dtype)
        stack_cases.check(
            np.asarray(a) @ np.asarray(v), np.asarray(v) * np.asarray(w)[:, None], dtype
        )
