#!/usr/bin/env bash
# lineax 0.1.1: linear_solve with BiCGStab fails, with x = NaN, where the right-hand side is 0 and where A
# is a multiple of the identity, which one step solves. A gradient through it raises where the cotangent
# is 0, as behind a function that is constant there; throw=False doesn't reach the transposed solve.
# Guess: x = 0 without a step, as with lineax's GMRES and jax.scipy.sparse.linalg.bicgstab, and a
# gradient of 0.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $JAX lineax==0.1.1 equinox==0.13.8 <<'PROGRAM'
import logging

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import lineax
from jax.scipy.sparse.linalg import bicgstab

logging.disable()  # JAX prints the stack of the error below
a = jnp.array([[2.0, 1, 0], [0, 3, 1], [1, 0, 5]])
b, zero = jnp.array([1.0, 2, 3]), jnp.zeros(3)


def solve(a, b, solver):
    operator = lineax.MatrixLinearOperator(a)
    solution = lineax.linear_solve(operator, b, solver(1e-8, 1e-8), throw=False)
    return solution.value, solution.result == lineax.RESULTS.successful


def gradient(solver):
    try:
        return jax.grad(lambda b: jnp.maximum(solve(a, b, solver)[0] - 9, 0).sum())(b)
    except jax.errors.JaxRuntimeError as error:
        assert "A linear solver returned non-finite" in str(error)
        return None


for solver in lineax.BiCGStab, lineax.GMRES:
    general, by_zero, identity = (
        solve(*system, solver) for system in ((a, b), (a, zero), (2 * jnp.eye(3), b))
    )
    slope = gradient(solver)
    print(f"{solver.__name__}: b = 0: x = {by_zero[0].tolist()}, success {by_zero[1]}")
    print(f"  A = 2 I: x = {identity[0].tolist()}, success {identity[1]}")
    print("  gradient of a constant:", "raises" if slope is None else slope.tolist())
    assert general[1] and jnp.allclose(a @ general[0], b, atol=1e-6)
    if solver is lineax.GMRES:
        assert by_zero[1] and identity[1] and not by_zero[0].any() and not slope.any()
    else:
        assert not by_zero[1] and not identity[1], "it succeeds"
        assert jnp.isnan(by_zero[0]).all() and jnp.isnan(identity[0]).all() and slope is None
assert not bicgstab(a, zero)[0].any()
PROGRAM
