"""How many operations programs have: what JAX traces and XLA compiles in a first call."""

import re

import cases
import jax
import jax.numpy as jnp
import pytest
import stack_cases

import jaxmg
from jaxmg import linalg

pytestmark = cases.needs_transformations

_N = 400  # an order at which `svd` and others are by the engine
_SQUARE, _TALL = (_N, _N), (4 * _N, 64)
_VECTOR, _LONG = (_N,), (4 * _N,)

# Name: (function, shapes of its operands).
_PROGRAMS = {
    "cho_solve": (lambda a, b: linalg.cho_solve((a, False), b), _SQUARE, _VECTOR),
    "cholesky": (linalg.cholesky, _SQUARE),
    "cond": (linalg.cond, _SQUARE),
    "cond of sums": (lambda a: linalg.cond(a, "fro"), _SQUARE),
    "cond, estimated": (lambda a: linalg.cond(a, 1), _SQUARE),
    "det": (linalg.det, _SQUARE),
    "eigh": (linalg.eigh, _SQUARE),
    "eigvalsh": (linalg.eigvalsh, _SQUARE),
    "expm": (linalg.expm, _SQUARE),
    "expm of Hermitian": (lambda a: linalg.expm(a, assume_a="her"), _SQUARE),
    "gesv": (jaxmg.gesv, _SQUARE, _VECTOR),
    "inv": (linalg.inv, _SQUARE),
    "least_squares": (linalg.least_squares, _TALL, _LONG),
    "lstsq": (lambda a, b: linalg.lstsq(a, b)[0], _TALL, _LONG),
    "lstsq of square": (lambda a, b: linalg.lstsq(a, b)[0], _SQUARE, _VECTOR),
    "lu": (linalg.lu, _SQUARE),
    "matrix_power": (lambda a: linalg.matrix_power(a, 3), _SQUARE),
    "matrix_rank": (linalg.matrix_rank, _SQUARE),
    "norm of values": (lambda a: linalg.norm(a, 2), _SQUARE),
    "null_space": (lambda a: linalg.null_space(a, rank=3), _SQUARE),
    "orth": (lambda a: linalg.orth(a, rank=3), _SQUARE),
    "pinv": (linalg.pinv, _SQUARE),
    "polar": (linalg.polar, _SQUARE),
    "potrs": (jaxmg.potrs, _SQUARE, _VECTOR),
    "qr": (linalg.qr, _SQUARE),
    "qr of tall": (linalg.qr, _TALL),
    "slogdet": (linalg.slogdet, _SQUARE),
    "solve": (linalg.solve, _SQUARE, _VECTOR),
    "solve of definite": (lambda a, b: linalg.solve(a, b, assume_a="pos"), _SQUARE, _VECTOR),
    "solve_triangular": (linalg.solve_triangular, _SQUARE, _VECTOR),
    "sqrtm": (linalg.sqrtm, _SQUARE),
    "svd": (lambda a: linalg.svd(a, full_matrices=False), _SQUARE),
    "svd of tall": (lambda a: linalg.svd(a, full_matrices=False), _TALL),
    "svd, full": (linalg.svd, _TALL),
    "svd of Hermitian": (lambda a: linalg.svd(a, hermitian=True), _SQUARE),
    "svd_lowrank": (lambda a: linalg.svd_lowrank(a, 8), _SQUARE),
    "svdvals": (linalg.svdvals, _SQUARE),
    "syevd": (jaxmg.syevd, _SQUARE),
}


_NOT_DIFFERENTIABLE = "cond, estimated", "matrix_rank", "svd, full", "svd_lowrank"
# How many operations a program may have, and those that have more.
_MOST = {"value": 300, "gradient": 600}
_LARGER = {
    ("cholesky", "value"): 305,
    ("solve", "value"): 305,
    ("cond of sums", "value"): 500,
    ("expm", "value"): 875,
    ("expm", "gradient"): 1835,
    ("lstsq", "value"): 310,
    ("lstsq of square", "value"): 555,
    ("sqrtm", "value"): 350,
    ("sqrtm", "gradient"): 665,
    ("svd, full", "value"): 485,
    ("svd of Hermitian", "value"): 315,
    ("svd_lowrank", "value"): 890,
}


def _gradient(function):
    def loss(*arrays):
        results = jax.tree.leaves(function(*arrays))
        return sum(jnp.sum(jnp.abs(x) ** 2) for x in results)

    return lambda *arrays: jax.grad(loss, tuple(range(len(arrays))))(*arrays)


@pytest.mark.core("solve-value", "svd-value", "qr of tall-value")
@pytest.mark.parametrize(
    "name, kind",
    [
        (name, kind)
        for name in _PROGRAMS
        for kind in _MOST
        if kind == "value" or name not in _NOT_DIFFERENTIABLE
    ],
)
def test_programs_are_small(name, kind):
    function, *shapes = _PROGRAMS[name]
    mesh = cases.line(4)
    arrays = [jax.ShapeDtypeStruct(shape, "float64") for shape in shapes]
    with cases.context(mesh):
        function = function if kind == "value" else _gradient(function)
        operations, *_ = stack_cases.counts(function, *arrays)
    assert 0 < operations <= _LARGER.get((name, kind), _MOST[kind])


# How many instructions XLA makes of a program for four CPU devices. 300 are the aim: scaling has
# 216 of `solve`, and the check whether its matrix is Hermitian 410.
_COMPILED = {
    "batched svd": (lambda a: linalg.svd(a, full_matrices=False), 10, (12, 60, 60)),
    "expm": (linalg.expm, 3900, _SQUARE),
    "solve": (linalg.solve, 765, _SQUARE, _VECTOR),
}


@pytest.mark.core("solve")
@pytest.mark.parametrize("name", _COMPILED)
def test_compiled_programs_are_small(name):
    function, most, *shapes = _COMPILED[name]
    arrays = [jax.ShapeDtypeStruct(shape, "float64") for shape in shapes]
    with cases.context(cases.line(4)):
        text = jax.jit(function).lower(*arrays).compile().as_text()
    instructions = len(re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))
    assert 0 < instructions <= most
