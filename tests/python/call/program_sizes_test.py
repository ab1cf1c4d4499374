"""Numbers of operations in programs, which determine the time of JAX's trace and XLA's compilation
in a first call."""

import re

import cases
import jax
import jax.numpy as jnp
import pytest
import stack_cases

import jaxmg
from jaxmg import linalg
from jaxmg._linalg import on_one

pytestmark = cases.needs_transformations

_N = 400  # `svd` and others use the engine at this order
_SQUARE, _TALL = (_N, _N), (4 * _N, 64)
_VECTOR, _LONG = (_N,), (4 * _N,)

# Name -> (function, shapes of its operands).
_PROGRAMS = {
    "cho_solve": (lambda a, b: linalg.cho_solve((a, False), b), _SQUARE, _VECTOR),
    "cholesky": (linalg.cholesky, _SQUARE),
    "cond": (linalg.cond, _SQUARE),
    "cond of sums": (lambda a: linalg.cond(a, "fro"), _SQUARE),
    "cond, estimated": (lambda a: linalg.cond(a, 1), _SQUARE),
    "det": (linalg.det, _SQUARE),
    "eigh": (linalg.eigh, _SQUARE),
    "eigsh": (lambda a: linalg.eigsh(a, 2), _SQUARE),
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
# The maximum number of operations of a program, and the larger programs. expm chooses the number of
# squarings, and has formulas for triangles.
_MOST = {"value": 160, "gradient": 470}
_LARGER = {("det", "value"): 170, ("expm", "value"): 330, ("expm", "gradient"): 620}


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


# The maximum number of instructions that XLA compiles for four CPU devices, and the larger
# programs. `solve` and `cond` choose between two routines by a check, and CPU devices also scale
# right-hand sides. `det` scales its result; `cho_solve` checks U; estimated condition numbers have
# loops; `svd` with all of U changes the layout; svd_lowrank makes random numbers, with 260
# instructions; expm has 14 products.
_MOST_COMPILED = 300
_LARGER_COMPILED = {
    "cho_solve": 315,
    "cond of sums": 325,
    "cond, estimated": 375,
    "det": 345,
    "expm": 840,
    "solve": 350,
    "svd of Hermitian": 305,
    "svd, full": 365,
    "svd_lowrank": 900,
}
_COMPILED = {
    **_PROGRAMS,
    "batched svd": (lambda a: linalg.svd(a, full_matrices=False), (12, 60, 60)),
    "norm": (linalg.norm, _SQUARE),
}
_FEWER_COMPILED = {"batched svd": 10, "norm": 75, "potrs": 20, "gesv": 20, "syevd": 20, "svd": 20}


@pytest.mark.core("solve")
@pytest.mark.parametrize("name", _COMPILED)
def test_compiled_programs_are_small(name):
    most = _FEWER_COMPILED.get(name) or _LARGER_COMPILED.get(name, _MOST_COMPILED)
    assert 0 < _instructions(*_COMPILED[name]) <= most


# The same of gradients. That of expm has its 14 products and 16 more; those of `sqrtm` and of tall
# matrices' SVD divide by differences in several ways.
_MOST_COMPILED_OF_GRADIENTS = 600
_LARGER_GRADIENTS = {"expm": 1450, "sqrtm": 640, "svd of tall": 690}


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in _PROGRAMS if name not in _NOT_DIFFERENTIABLE])
def test_compiled_gradients_are_small(name):
    function, *shapes = _PROGRAMS[name]
    most = _LARGER_GRADIENTS.get(name, _MOST_COMPILED_OF_GRADIENTS)
    assert 0 < _instructions(_gradient(function), *shapes) <= most


@pytest.mark.extended
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices")
@cases.one_process("devices of several processes share no cores")
@pytest.mark.parametrize("name, most", [("lstsq", 720), ("lu", 560), ("svd", 470)])
def test_a_gradient_on_one_device_computes_only_what_it_needs(name, most, monkeypatch):
    """`lstsq` has four results, of which the gradient needs one. Without pruning it has 1,100
    instructions."""
    monkeypatch.setattr(on_one, "MOST", _N)
    cases.forget_plans()
    function, *shapes = _PROGRAMS[name]
    assert 0 < _instructions(_gradient(function), *shapes) <= most
    cases.forget_plans()


def _instructions(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, "float64") for shape in shapes]
    with cases.context(cases.line(4)):
        text = jax.jit(function).lower(*arrays).compile().as_text()
    return len(re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))
