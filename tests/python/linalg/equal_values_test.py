"""Derivatives of singular vectors and of matrix functions if singular values or eigenvalues are
equal, nearly equal, zero or of any scale. They must be right, or infinite or NaN."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg
from jaxmg import linalg

pytestmark = cases.needs_transformations


def _unitary(n, dtype, seed):
    return np.linalg.qr(cases.normal(cases.rng(seed), (n, n), dtype))[0]


def _equal(kind, dtype):
    """Returns a matrix with equal singular values, exactly or up to rounding."""
    return {
        "identity": np.eye(3),
        "tall": np.eye(5, 3),
        "wide": np.eye(3, 5),
        "orthogonal": _unitary(2, dtype, 1),
        "large orthogonal": _unitary(6, dtype, 2),
    }[kind].astype(dtype)


def _total(u, s, vh):
    return jnp.sum(((u * s.astype(u.dtype)[..., None, :]) @ vh).real)


_OF_VECTORS = {
    "U S Vh": _total,
    "U Vh": lambda u, s, vh: jnp.sum((u @ vh).real),
    "U": lambda u, s, vh: jnp.sum(u.real),
    "Vh": lambda u, s, vh: jnp.sum(vh.real),
}


@pytest.mark.parametrize(
    "kind, dtype, name, batch",
    cases.broad(
        [
            (kind, dtype, name, batch)
            for i, kind in enumerate(("identity", "tall", "wide", "orthogonal", "large orthogonal"))
            for j, dtype in enumerate(("float64", "complex64"))
            for k, name in enumerate(_OF_VECTORS)
            for batch in (False, True)
            if (i + j + k + batch) % 4 == 0
        ],
        lambda kind, dtype, name, batch: (kind, name) == ("identity", "U S Vh"),
    ),
)
def test_vectors_of_equal_singular_values_have_no_derivative(kind, dtype, name, batch):
    a = _equal(kind, dtype)
    along = cases.normal(cases.rng(3), a.shape, dtype)
    if batch:
        a, along = np.stack([a] * 2), np.stack([along] * 2)

    def function(a):
        return _OF_VECTORS[name](*linalg.svd(a, full_matrices=False, mesh=cases.line(2)))

    def both(a, along):
        return jax.jvp(function, (a,), (along,))[1], jax.grad(function)(a)

    for derivative in jax.jit(both)(a, along):
        assert not np.isfinite(derivative).any() if batch else not np.isfinite(derivative).all()


_VECTORS = {
    "linalg.eigh": lambda a: linalg.eigh(a, mesh=cases.line(2)).eigenvectors,
    "syevd": lambda a: jaxmg.syevd(a, mesh=cases.line(2))[1],
    "linalg.svd": lambda a: linalg.svd(a, mesh=cases.line(2)).U[..., ::-1],
    "tree.eigh": lambda a: jaxmg.tree.eigh([a], mesh=cases.line(2))[0].eigenvectors,
    "tree.eigh-L": lambda a: jaxmg.tree.eigh(a, "L", False, mesh=cases.line(2)).eigenvectors,
    "tree.svd": lambda a: jaxmg.tree.svd([a], mesh=cases.line(2))[0].U[..., ::-1],
}


@pytest.mark.parametrize(
    "name, dtype, batch",
    cases.broad(
        [
            (name, dtype, batch)
            for name in _VECTORS
            for dtype in ("float64", "complex64")
            for batch in (False, True)
            if not (name == "syevd" and batch)
        ],
        lambda *case: case in [("linalg.eigh", "float64", False), ("tree.svd", "float64", True)],
    ),
)
def test_vectors_of_values_that_differ_by_rounding_have_no_derivative(name, dtype, batch):
    a = np.diag([1, 1 + 2 * cases.eps(dtype), 3]).astype(dtype)
    along = cases.normal(cases.rng(3), (3, 3), dtype)
    along = along + along.conj().T
    if batch:
        a, along = np.stack([a] * 3), np.stack([along] * 3)

    def both(a, along):
        moved = jax.jvp(_VECTORS[name], (a,), (along,))[1]
        total = lambda a: jnp.sum(_VECTORS[name](a).real, tuple(range(a.ndim - 1)))  # noqa: E731
        return moved, [jax.grad(lambda a, i: total(a)[i])(a, i) for i in (0, 2)]

    moved, (of_close, of_far) = jax.jit(both)(a, along)
    assert np.isfinite(np.asarray(moved)[..., 2]).all() and np.isfinite(of_far).all()
    assert not np.isfinite(np.asarray(moved)[..., :2]).any()
    assert not np.isfinite(of_close).all()


@pytest.mark.extended
@pytest.mark.parametrize("batch", [False, True])
def test_vectors_of_other_singular_values_have_derivatives(batch):
    """Vectors of the largest singular value have derivatives although the other values are
    equal."""
    a, along = np.diag([3.0, 1, 1]), cases.normal(cases.rng(4), (3, 3), "float64")

    def function(a):
        u = linalg.svd(a, mesh=cases.line(2)).U
        return (u[..., 1, 0] * jnp.sign(u[..., 0, 0])).sum()

    expected = (along[1, 0] * 3 + along[0, 1]) / 8
    if batch:
        a, along, expected = np.stack([a] * 2), np.stack([along] * 2), 2 * expected
    found = jax.jvp(function, (a,), (along,))[1], np.vdot(jax.grad(function)(a), along)
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-13)


@pytest.mark.extended
@pytest.mark.parametrize("batch", [False, True])
def test_nearly_equal_singular_values_take_no_digits_of_the_unitary_factor(batch):
    """A e^(tK) with a skew K has the unitary factor U V^H e^(tK)."""
    left, right = _unitary(3, "float64", 5), _unitary(3, "float64", 6)
    a = (left * [1, 1 + 1e-9, 2]) @ right
    skew = cases.normal(cases.rng(7), (3, 3), "float64")
    skew = skew - skew.T

    def function(a):
        u, _, vh = linalg.svd(a, mesh=cases.line(2))
        return u @ vh

    point, along = (np.stack([x] * 2) if batch else x for x in (a, a @ skew))
    found = jax.jit(lambda a, d: jax.jvp(function, (a,), (d,))[1])(point, along)
    # The rounding of A K has a Hermitian part, whose quotients by 1e-9 cancel up to 1e-16.
    np.testing.assert_allclose(found, np.broadcast_to(left @ right @ skew, found.shape), atol=1e-13)
    gradient = jax.jit(jax.grad(lambda a: jnp.sum(function(a) * np.eye(3))))(point)
    inner = left.T @ np.reshape(gradient, (-1, 3, 3))[0] @ right.T
    cotangent = left.T @ right.T
    total = np.add.outer([1, 1 + 1e-9, 2], [1, 1 + 1e-9, 2])
    np.testing.assert_allclose(inner - inner.T, 2 * (cotangent - cotangent.T) / total, atol=1e-13)


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("complex128", marks=pytest.mark.extended)]
)
@pytest.mark.parametrize("batch", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_derivatives_of_any_scale(dtype, batch):
    """Derivatives of U, S, V^H and of a gradient by S scale exactly, also if squares of singular
    values underflow or overflow."""
    a, along = (cases.normal(cases.rng(i), (2, 4, 4) if batch else (4, 4), dtype) for i in (8, 9))

    @jax.jit
    def derivatives(a, along):
        def svd(a):
            return tuple(linalg.svd(a, mesh=cases.line(2)))

        def slope(a):
            return jax.grad(lambda a: linalg.svdvals(a, mesh=cases.line(2)).sum())(a)

        return *jax.jvp(svd, (a,), (along,))[1], jax.jvp(slope, (a,), (along,))[1]

    u, s, vh, slope = derivatives(a, along)
    far = 2.0**-90, 2.0**110
    for scale in far if dtype == "float32" else (2.0**-900, 2.0**900):
        scale = np.finfo(dtype).dtype.type(scale)
        found = derivatives(a * scale, along * scale)
        for x, y in zip(found, (u, s * scale, vh, slope), strict=True):
            np.testing.assert_array_equal(x, y)


_SINGULAR = {
    "diagonal": (lambda root: jnp.trace(root), np.diag([1.0, 0])),
    "ones": (lambda root: root[0, 0], np.ones((2, 2))),
    "zeros": (lambda root: jnp.trace(root), np.zeros((2, 2))),
    "scalar": (lambda root: root[0, 0], np.zeros((1, 1))),
}
_ROOTS = {
    "sqrtm": linalg.sqrtm,
    "funm": lambda a, **where: linalg.funm(a, jnp.sqrt, **where),
    "logm": linalg.logm,
}


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind, name, dtype",
    cases.broad(
        [(k, n, d) for k in _SINGULAR for n in _ROOTS for d in ("float64", "complex64")],
        lambda kind, name, dtype: (kind, name, dtype) == ("ones", "sqrtm", "float64"),
    ),
)
def test_roots_of_singular_matrices_have_infinite_derivatives(kind, name, dtype):
    of_root, a = _SINGULAR[kind]
    root = _ROOTS[name]
    gradient = jax.grad(lambda a: of_root(root(a, mesh=cases.line(2))).real)(a.astype(dtype))
    # Rounding may leave a nonzero eigenvalue. If a gap were replaced by 1, entries would be of
    # order 1.
    largest = 0.01 / cases.eps(dtype) ** 0.5
    assert not np.isfinite(gradient).all() or np.abs(gradient).max() > largest


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype", ["float64", pytest.param("complex128", marks=pytest.mark.extended)]
)
def test_roots_have_derivatives_that_leave_the_null_space_alone(dtype):
    a, along = np.diag([4, 0, 0]).astype(dtype), np.diag([2, 0, 0]).astype(dtype)
    root = lambda a: linalg.sqrtm(a, mesh=cases.line(2))  # noqa: E731
    np.testing.assert_allclose(jax.jvp(root, (a,), (along,))[1], along / 4)
    np.testing.assert_allclose(jax.grad(lambda a: root(a)[0, 0].real)(a), along / 8)


def _adjugate(a):
    n = len(a)
    minors = [
        [np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(n)] for i in range(n)
    ]
    return np.array(minors) * (-1.0) ** np.add.outer(range(n), range(n))


@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        [(n, dtype) for n in (2, 3, 5) for dtype in ("float64", "complex128")],
        lambda n, dtype: (n, dtype) == (5, "float64"),
    ),
)
def test_determinants_of_singular_matrices_of_a_batch_have_cofactors(n, dtype):
    regular, zero_row = (cases.normal(cases.rng(i), (n, n), dtype) for i in (10, 11))
    zero_row[0] = 0
    batch = np.stack([regular, zero_row, np.eye(n, k=1), np.ones((n, n))]).astype(dtype)
    det = lambda a: linalg.det(a, mesh=cases.line(2)).sum()  # noqa: E731
    found = jax.jit(jax.grad(det, holomorphic=dtype == "complex128"))(batch)
    expected = np.stack([_adjugate(a) for a in batch])
    np.testing.assert_allclose(found, expected, atol=1e-11)


@pytest.mark.extended
def test_log_determinants_of_order_two_do_not_overflow():
    scale = np.array([1e200, 1e-200, -3])
    batch = scale[:, None, None] * np.array([[2.0, 1], [0, 1]])
    sign, log = linalg.slogdet(batch, mesh=cases.line(2))
    np.testing.assert_array_equal(sign, 1)
    np.testing.assert_allclose(log, np.log(2) + 2 * np.log(np.abs(scale)), rtol=1e-15)


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype, batch",
    cases.broad(
        [(dtype, batch) for dtype in ("float64", "complex128") for batch in (False, True)],
        lambda dtype, batch: (dtype, batch) == ("float64", False),
    ),
)
def test_gradients_by_equal_eigenvalues_have_derivatives(dtype, batch):
    """The gradient of a sum of logarithms has a derivative, whether eigenvalues are equal exactly
    or up to rounding."""
    vectors = _unitary(4, dtype, 12)
    a = np.stack([3 * np.eye(4), (vectors * [2, 2, 2, 5]) @ vectors.conj().T]).astype(dtype)
    along = cases.normal(cases.rng(13), a.shape, dtype)
    along = along + np.swapaxes(along, -1, -2).conj()

    def total(a):
        a = (a + jnp.swapaxes(a, -1, -2).conj()) / 2
        return jnp.sum(jnp.log(linalg.eigvalsh(a, mesh=cases.line(2))))

    slope = jax.jit(lambda a, d: jax.jvp(jax.grad(total), (a,), (d,))[1])
    found = slope(a, along) if batch else [slope(*pair) for pair in zip(a, along, strict=True)]
    inverse = np.linalg.inv(a)
    expected = -np.swapaxes(inverse @ along @ inverse, -1, -2)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "dtype, reverse",
    cases.broad(
        [(dtype, reverse) for dtype in ("float64", "complex128") for reverse in (False, True)],
        lambda dtype, reverse: (dtype, reverse) == ("float64", False),
    ),
)
@pytest.mark.extended
def test_eigenvalues_have_third_derivatives(dtype, reverse):
    """Along a line, the eigenvalues are roots of a polynomial of degree 2."""
    a, along = (cases.normal(cases.rng(i), (2, 2), dtype) for i in (14, 15))
    a, along = (x + x.conj().T for x in (a, along))

    def value(t):
        return linalg.eigvalsh(a + t * along, mesh=cases.line(2))[1]

    def root(t):
        (p, q), (_, r) = a + t * along
        return (p + r).real / 2 + jnp.sqrt(((p - r).real / 2) ** 2 + q.real**2 + q.imag**2)

    derivative = jax.grad if reverse else jax.jacfwd
    found = jax.jit(derivative(derivative(derivative(value))))(0.0)
    np.testing.assert_allclose(found, jax.jacfwd(jax.jacfwd(jax.jacfwd(root)))(0.0), rtol=1e-9)
