"""Invalid calls with factors, and calls under vmap, grad and shard_map, are refused."""

import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg

_N = 13  # only 1 of the numbers of devices divides it
_B = np.ones(_N)
_METHODS = {
    "cho_solve": lambda factor, b: jaxmg.cho_solve(factor, b),
    "CholeskyFactor.solve_triangular": lambda factor, b: factor.solve_triangular(b),
    "CholeskyFactor.matmul": lambda factor, b: factor.matmul(b, "C"),
}


@pytest.mark.parametrize("name", _METHODS)
@pytest.mark.parametrize(
    "b, error, message",
    [
        (np.ones(12), ValueError, "b must have shape (13,) or (13, nrhs) .* it has shape (12,)"),
        (np.ones((13, 1, 1)), ValueError, "b must have shape (13,) or (13, nrhs)"),
        (np.ones(13, "float32"), TypeError, "one dtype; a has float64 and b has float32"),
        ([1.0] * 13, TypeError, "b must be a JAX or NumPy array; got list"),
    ],
    ids=["rows", "dimensions", "dtype", "list"],
)
def test_right_hand_sides_that_do_not_fit(name, b, error, message):
    factor = jaxmg.cho_factor(cases.positive_definite("well", _N, "float64"), 2, cases.line(2))
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(error, match=f"^{name}: .*{pattern}"):
        _METHODS[name](factor, b)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda f: jaxmg.cho_solve((f, True), _B), TypeError, "factor must be .*; got tuple"),
        (lambda f: f.matmul(_B, "H"), ValueError, "trans must be 0 or 'N' .*; got 'H'"),
        (lambda f: f.solve_triangular(_B, 3), ValueError, "trans must be .*; got 3"),
        (
            lambda f: jaxmg.cho_factor(np.ones((2, 3))),
            ValueError,
            "^cho_factor: a must be a square",
        ),
        (
            lambda f: jaxmg.CholeskyFactor.from_upper(np.ones((2, 3))),
            ValueError,
            "^CholeskyFactor.from_upper: u must be a square",
        ),
        (lambda f: jaxmg.cho_factor(np.eye(3), 0), ValueError, "T_A, .* at least 1; got 0"),
        (
            lambda f: jax.jit(jaxmg.cho_factor)(np.eye(3)),
            ValueError,
            "pass mesh= and in_specs=",
        ),
        (
            lambda f: jax.tree.map(lambda x: jnp.stack([x, x]), f).solve(_B),
            ValueError,
            "the tiles of the factor have shape .* those of a factor .*jax.vmap",
        ),
    ],
)
def test_calls_that_cannot_be_right(call, error, message):
    factor = jaxmg.cho_factor(cases.positive_definite("well", _N, "float64"), 2, cases.line(2))
    with pytest.raises(error, match=message):
        call(factor)


def _scaled(factor, x):
    return jax.tree.map(lambda leaf: x.astype(leaf.dtype) * leaf, factor)


_EVERY = {
    "cho_factor": lambda f, x: jaxmg.cho_factor(x * jnp.eye(_N), 2, f.mesh).log_det,
    "cho_solve": lambda f, x: f.solve(x * _B),
    "CholeskyFactor.solve_triangular": lambda f, x: f.solve_triangular(x * _B),
    "CholeskyFactor.matmul": lambda f, x: f.matmul(x * _B),
    "CholeskyFactor.inv": lambda f, x: _scaled(f, x).inv(),
    "CholeskyFactor.diagonal": lambda f, x: _scaled(f, x).diagonal(),
    "CholeskyFactor.upper": lambda f, x: _scaled(f, x).upper(),
    "CholeskyFactor.from_upper": lambda f, x: (
        jaxmg.CholeskyFactor.from_upper(x * jnp.eye(_N), 2, f.mesh).log_det
    ),
}


@pytest.mark.parametrize("name", _EVERY)
def test_inside_shard_map(name):
    mesh = cases.line(2)
    factor = jaxmg.cho_factor(cases.positive_definite("well", _N, "float64"), 2, mesh)
    call = jax.shard_map(
        lambda x: _EVERY[name](factor, x), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    message = f"^{name}: .* this call is inside a shard_map; call it outside, on the global array"
    with pytest.raises(ValueError, match=message):
        jax.jit(call)(1.0)
