"""Stacks of matrices, and checks of what is computed of them, for the tests of `jaxmg._stacks`."""

import cases
import jax.numpy as jnp
import numpy as np

_MULTIPLE = 40  # of n eps, for backward errors


def stack(shape, dtype, seed=0):
    return jnp.asarray(cases.normal(cases.rng(seed, *shape), shape, dtype))


def definite(count, n, dtype):
    a = np.asarray(stack((count, n, n), dtype))
    return jnp.asarray((a @ a.swapaxes(1, 2).conj() / n + np.eye(n)).astype(dtype))


def adjoint(a):
    return np.swapaxes(a, -1, -2).conj()


def check(found, expected, dtype, scale=None):
    __tracebackhide__ = True
    found, expected = cases.wide(np.asarray(found)), cases.wide(np.asarray(expected))
    if not expected.size:
        assert found.shape == expected.shape
        return
    scale = np.linalg.norm(expected, axis=(-2, -1)).max() if scale is None else scale
    limit = _MULTIPLE * max(expected.shape[-2:]) * cases.eps(dtype) * scale
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= limit


def check_orthonormal(q, dtype):
    __tracebackhide__ = True
    q = cases.wide(np.asarray(q))
    check(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), q.shape[:1] + q.shape[-1:] * 2),
           dtype, 1)  # fmt: skip
