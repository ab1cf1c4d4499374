"""Products of stacks by the plugin: values, derivatives to second order, transposes and vmap."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases
from jax.test_util import check_grads

from jaxmg._stacks import native, products

pytestmark = [cases.needs_transformations, pytest.mark.usefixtures("plugin")]

_OPS = (products.NONE, products.TRANSPOSE, products.ADJOINT)


def _op(x, op):
    return (x, jnp.swapaxes(x, -1, -2), jnp.swapaxes(x, -1, -2).conj())[op]


def _operands(left, right, dtype, m=3, k=5, n=2):
    x = stack_cases.stack((4, m, k), dtype)
    y = stack_cases.stack((4, k, n), dtype, seed=1)
    return (jnp.swapaxes(x, 1, 2) if left else x), (jnp.swapaxes(y, 1, 2) if right else y)


_CASES = [(left, right, dtype) for left in _OPS for right in _OPS for dtype in cases.DTYPES]


@pytest.mark.parametrize(
    "left, right, dtype", cases.broad(_CASES, lambda *case: case == (2, 0, "complex64"))
)
def test_products(left, right, dtype):
    x, y = _operands(left, right, dtype)
    found = products.multiply(x, y, left, right)
    expected = cases.wide(np.asarray(_op(x, left))) @ cases.wide(np.asarray(_op(y, right)))
    stack_cases.check(found, expected, dtype, 10)
    jitted = jax.jit(products.multiply, static_argnums=(2, 3))(x, y, left, right)
    np.testing.assert_array_equal(found, jitted)


@pytest.mark.extended
@pytest.mark.parametrize("left", _OPS)
@pytest.mark.parametrize("right", _OPS)
def test_derivatives_of_products(left, right):
    for dtype in ("float64", "complex128"):
        x, y = _operands(left, right, dtype)

        def ours(x, y):
            return products.multiply(jnp.sin(x), y * x.sum(), left, right)

        def theirs(x, y):
            return _op(jnp.sin(x), left) @ _op(y * x.sum(), right)

        def loss(f, x, y):
            return jnp.sum(jnp.abs(f(x, y)) ** 2)

        for of in (0, 1):
            found, expected = (jax.grad(loss, 1 + of)(f, x, y) for f in (ours, theirs))
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        check_grads(lambda x, y: loss(ours, x, y), (x, y), 2, ["rev"], rtol=1e-3)
        tangents = _operands(left, right, dtype, m=3)[0] * 2, y
        pair = (jax.jvp(f, (x, y), tangents) for f in (ours, theirs))
        for found, expected in zip(*pair, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.core("1-2")
@pytest.mark.parametrize("left, right", [(0, 0), (1, 2)])
def test_a_batch_of_products(left, right):
    x, y = _operands(left, right, "complex128")
    many_x, many_y = jnp.stack([x, 2 * x, 3 * x], 1), jnp.stack([y, -y, 1j * y])
    times = jax.vmap(lambda x, y: products.multiply(x, y, left, right), (1, 0))
    for i, found in enumerate(times(many_x, many_y)):
        expected = _op(many_x[:, i], left) @ _op(many_y[i], right)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    one = jax.vmap(lambda y: products.multiply(x, y, left, right))(many_y)
    np.testing.assert_allclose(one[2], _op(x, left) @ _op(1j * y, right), rtol=1e-12, atol=1e-12)
    plain = jax.vmap(lambda x: products.multiply(x, y[0], left, right))(x)
    np.testing.assert_allclose(plain, _op(x, left) @ _op(y[0], right), rtol=1e-12, atol=1e-12)


@pytest.mark.core("shape1", "shape2")
@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 3, 7), (2, 7, 3), (0, 3, 3), (2, 0, 3)])
def test_polynomials_of_singular_values(shape):
    for dtype in (*cases.DTYPES, "bfloat16", "float16"):
        wide = cases.DTYPES[cases.DTYPES.index(dtype)] if dtype in cases.DTYPES else "float32"
        x = (stack_cases.stack(shape, wide) / 8).astype(dtype)
        found = native.map_singular_values(x, ((3.0, -2.0, 0.5), (1.5, -1.0, 0.25)))
        assert found.dtype == x.dtype and found.shape == shape
        if not x.size:
            continue
        u, s, vh = np.linalg.svd(cases.wide(np.asarray(x.astype(wide))), full_matrices=False)
        for a, b, c in ((3.0, -2.0, 0.5), (1.5, -1.0, 0.25)):
            s = a * s + b * s**3 + c * s**5
        eps = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(
            np.asarray(found.astype(wide)), (u * s[:, None]) @ vh, atol=30 * eps
        )
