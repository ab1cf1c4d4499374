"""Stacks of matrices, and checks of their results, for the tests of `jaxmg._stacks`."""

import cases
import jax
import jax.numpy as jnp
import numpy as np

from jaxmg._stacks import choice

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


def use_rows(monkeypatch, **rows):
    """Replaces the rows of all operations on stacks, by name; by default with none. Operations that
    compute a routine at once keep theirs."""
    for operation in choice.OPERATIONS:
        if choice.AT_ONCE not in operation.ways:
            monkeypatch.setattr(operation, "rows", rows.get(operation.name, ()))


def is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


def _primitives(jaxpr):
    """Yields the names of all operations in a program."""
    for eqn in jaxpr.eqns:
        inner = [
            getattr(x, "jaxpr", x)
            for x in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr)
            if is_jaxpr(x)
        ]
        if not inner:
            yield eqn.primitive.name
        elif "jvp_jaxpr_fun" in eqn.params or "call_jaxpr" in eqn.params:
            yield from _primitives(inner[0])  # without the derivative's program
        else:
            for one in inner:
                yield from _primitives(one)


def counts(function, *operands):
    """Returns (operations, XLA's products, concatenations) of a program."""
    names = list(_primitives(jax.make_jaxpr(function)(*operands).jaxpr))
    names = [name for name in names if name != "jaxmg_front"]  # XLA compiles nothing for it
    return len(names), names.count("dot_general"), names.count("concatenate")
