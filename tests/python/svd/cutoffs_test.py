"""`rtol` of pinv and `rcond` of lstsq as traced arrays; `rtol` also as one value per matrix."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxmg import linalg

_MESHES = [
    (2, AxisType.Auto),
    *(
        pytest.param(*case, marks=pytest.mark.breadth)
        for case in ((1, AxisType.Auto), (8, AxisType.Auto), (4, AxisType.Explicit))
    ),
]
_SINGULAR = (4.0, 2.0, 1e-3)


def _matrices(leading, m, n, dtype="float64"):
    """Returns matrices with the singular values _SINGULAR."""
    a = cases.normal(cases.rng(m, n, *leading), (*leading, m, n), dtype)
    u, _, vh = np.linalg.svd(a, full_matrices=False)
    return ((u * _SINGULAR) @ vh).astype(dtype)


def _close(found, expected, dtype="float64"):
    __tracebackhide__ = True
    limit = 1e5 * cases.eps(dtype) * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)


def _pinv(a, rtol):
    return np.linalg.pinv(a, rcond=rtol)


@pytest.mark.parametrize("ranks, kind", _MESHES)
@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", cases.breadth("complex128")])
def test_pinv_with_a_traced_rtol(ranks, kind, dtype):
    mesh, a = cases.line(ranks, kind=kind), _matrices((), 6, 3, dtype)
    jitted = jax.jit(lambda a, rtol: linalg.pinv(a, rtol=rtol, mesh=mesh))
    for rtol in (1e-6, 0.6):
        found = cases.on(mesh, jitted)(a, rtol)
        assert found.dtype == dtype
        _close(found, _pinv(a, rtol), dtype)
        _close(linalg.pinv(a, jnp.asarray(rtol), mesh=mesh), _pinv(a, rtol), dtype)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("ranks, kind", _MESHES)
def test_pinv_with_an_rtol_for_each_matrix(ranks, kind):
    mesh, a = cases.line(ranks, kind=kind), _matrices((2, 3), 3, 5)
    rtol = np.array([[1e-6, 0.1, 0.6], [0.6, 1e-6, 0.1]])
    for each in (rtol, rtol[:1], rtol[:, :1], rtol[0], rtol[0, 1]):
        of_all = np.broadcast_to(each, (2, 3))
        expected = [[_pinv(a[i, j], of_all[i, j]) for j in range(3)] for i in range(2)]
        _close(linalg.pinv(a, each, mesh=mesh), expected)
    _close(linalg.pinv(a[0, 0], rtol[0], mesh=mesh), [_pinv(a[0, 0], t) for t in rtol[0]])
    mapped = jax.vmap(lambda t: linalg.pinv(a[0, 0], rtol=t, mesh=mesh))
    _close(mapped(jnp.asarray(rtol[0])), [_pinv(a[0, 0], t) for t in rtol[0]])


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("leading", [(), cases.breadth(1)])
@pytest.mark.parametrize("shape", [(2, 200000), cases.breadth((200000, 2))])
def test_gradient_of_pinv_is_of_no_larger_products(shape, leading):
    """The gradient forms no square matrix of the larger dimension, which would take 160 GB."""
    leading = (leading,) if leading else ()
    a = jnp.asarray(cases.normal(cases.rng(1), (*leading, *shape), "float32"))
    slope = jax.grad(lambda a: jnp.sum(jnp.square(linalg.pinv(a, mesh=cases.line(2)))))(a)
    p = np.linalg.pinv(np.asarray(a, "float64"))
    turned = np.swapaxes(p, -1, -2)  # the sum is trace((A^T A)^+), or trace((A A^T)^+)
    wide = shape[0] < shape[1]
    expected = -2 * ((turned @ p) @ turned if wide else turned @ (p @ turned))
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-4 * abs(expected).max())


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("ranks, kind", _MESHES)
@pytest.mark.parametrize("leading", [(), cases.breadth(3)])
def test_gradient_of_pinv_with_a_traced_rtol(ranks, kind, leading):
    leading = (leading,) if leading else ()
    mesh, a = cases.line(ranks, kind=kind), jnp.asarray(_matrices(leading, 6, 3))

    def gradient(function, numbers):
        return jax.grad(lambda a, t: jnp.sum(jnp.sin(function(a, t))), numbers)

    def ours(a, rtol):
        return linalg.pinv(a, rtol=rtol, mesh=mesh)

    rtol = jnp.full(leading, 0.1)
    found, of_rtol = cases.on(mesh, gradient(ours, (0, 1)))(a, rtol)
    _close(found, gradient(lambda a, t: jnp.linalg.pinv(a, rtol=0.1), 0)(a, rtol))
    assert not np.any(of_rtol)


def test_rtol_that_fits_no_batch_is_an_error():
    a = np.ones((2, 3, 3))
    with pytest.raises(ValueError, match=r"rtol, of shape \(4,\), must broadcast"):
        linalg.pinv(a, np.ones(4), mesh=cases.line(1))
    with pytest.raises(ValueError, match="rtol must be real"):
        linalg.pinv(a[0], np.ones(1, complex), mesh=cases.line(1))


def _lstsq(a, b, rcond):
    x, _, rank, s = np.linalg.lstsq(a, b, rcond)
    return x, rank, s


@pytest.mark.extended
@pytest.mark.parametrize("ranks, kind", _MESHES)
@pytest.mark.parametrize("shape", [(6, 3), cases.breadth((3, 5))])
def test_lstsq_with_a_traced_rcond(shape, ranks, kind):
    mesh, a, b = cases.line(ranks, kind=kind), _matrices((), *shape), np.ones(shape[0])
    jitted = cases.on(mesh, jax.jit(lambda a, b, t: linalg.lstsq(a, b, t, mesh=mesh)))
    for rcond, rank in ((1e-6, 3), (0.1, 2), (0.6, 1), (-1.0, 3)):
        found = jitted(a, b, rcond)
        x, of_numpy, s = _lstsq(a, b, rcond)
        assert found[2] == rank == of_numpy and found[2].dtype == jnp.sum(jnp.ones(2, bool)).dtype
        _close(found[0], x)
        _close(found[3], s)
    eager = linalg.lstsq(a, b, jnp.asarray(0.1), mesh=mesh)
    _close(eager[0], _lstsq(a, b, 0.1)[0])


@pytest.mark.breadth
@cases.needs_transformations
@pytest.mark.parametrize("ranks, kind", _MESHES)
def test_derivatives_batches_and_damping_of_lstsq_with_a_traced_rcond(ranks, kind):
    mesh, a, b = cases.line(ranks, kind=kind), _matrices((), 6, 3), np.ones(6)

    def x(a, rcond, damp=None):
        return linalg.lstsq(a, b, rcond, damp=damp, mesh=mesh)[0]

    def gradient(rcond):
        loss = jax.grad(lambda a, t: jnp.sum(jnp.sin(x(a, t if rcond is None else rcond))), (0, 1))
        return cases.on(mesh, loss)(jnp.asarray(a), jnp.asarray(0.1))

    (found, of_rcond), (expected, _) = gradient(None), gradient(0.1)
    _close(found, expected)
    assert of_rcond == 0
    rconds = jnp.asarray([1e-6, 0.1, 0.6])
    _close(jax.vmap(lambda t: x(a, t))(rconds), [_lstsq(a, b, float(t))[0] for t in rconds])
    damped = np.linalg.solve(a.T @ a + 0.09 * np.eye(3), a.T @ b)
    _close(x(a, rconds[0], 0.3), damped)


def test_rcond_with_dimensions_is_an_error():
    with pytest.raises(ValueError, match="rcond must be a real scalar"):
        linalg.lstsq(np.ones((3, 2)), np.ones(3), jnp.ones(2), mesh=cases.line(1))
