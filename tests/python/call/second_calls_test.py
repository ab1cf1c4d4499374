"""How much of this package's Python runs in the first and the second eager call.

A solve evicts Python's code from the processor's caches, which makes it four times as slow.
Therefore a second call looks up its plan and calls a compiled program.
"""

import contextlib
import os
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import linalg
from jaxmg._call import by_one
from jaxmg._linalg import on_one

pytestmark = cases.one_process("what a call does with the values of arrays is the same in each")

_N = 12
_FOLDER = os.path.dirname(jaxmg.__file__)


class _Profile:
    """Records calls of this package's Python, and counts the changes from one file to another."""

    def __init__(self):
        self.calls, self.files = [], []

    @property
    def changes(self):
        return sum(a != b for a, b in zip(self.files, self.files[1:], strict=False))


@contextlib.contextmanager
def _profiled():
    profile = _Profile()

    def watch(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(_FOLDER):
            profile.calls.append(f"{os.path.relpath(file, _FOLDER)}: {frame.f_code.co_name}")
            profile.files.append(file)

    sys.setprofile(watch)
    try:
        yield profile
    finally:
        sys.setprofile(None)


def _arrays():
    mesh = cases.line(2)
    square = cases.positive_definite("well", _N, "float64")
    tall = np.random.default_rng(0).normal(size=(4 * _N, 3))
    arrays = {
        "a": (square, P("r", None)), "b": (np.ones((_N, 2)), P()), "tall": (tall, P("r", None)),
        "c": (np.ones(4 * _N), P()), "taus": (np.zeros(3), P()), "few": (np.ones((2, 4 * _N)), P()),
        "stack": (np.stack([square] * 4), P("r")), "rights": (np.ones((4, _N, 2)), P("r")),
    }  # fmt: skip
    return {name: cases.shard(array, mesh, *spec) for name, (array, spec) in arrays.items()}


# A call of each function with these arrays; parameters are the arrays' names.
_CALLS = {
    "pivoted_cholesky": lambda a: linalg.pivoted_cholesky(a, 2),
    "cg": lambda a, b: linalg.cg(a, b),
    "cho_factor": lambda a: linalg.cho_factor(a),
    "cho_solve": lambda a, b: linalg.cho_solve((a, False), b),
    "cholesky": lambda a: linalg.cholesky(a),
    "cond": lambda a: linalg.cond(a),
    "cond of sums": lambda a: linalg.cond(a, "fro"),
    "det": lambda a: linalg.det(a),
    "eigh": lambda a: linalg.eigh(a),
    "eigsh": lambda a: linalg.eigsh(a, 2),
    "eigvalsh": lambda a: linalg.eigvalsh(a),
    "expm": lambda a: linalg.expm(a),
    "expm of Hermitian": lambda a: linalg.expm(a, assume_a="her"),
    "funm": lambda a: linalg.funm(a, jnp.tanh),
    "householder_product": lambda tall, taus: linalg.householder_product(tall, taus),
    "inv": lambda a: linalg.inv(a),
    "least_squares": lambda tall, c: linalg.least_squares(tall, c),
    "ldl": lambda a: linalg.ldl(a),
    "ldl_factor": lambda a: linalg.ldl_factor(a),
    "logm": lambda a: linalg.logm(a),
    "lstsq": lambda tall, c: linalg.lstsq(tall, c),
    "lu": lambda a: linalg.lu(a),
    "lu_factor": lambda a: linalg.lu_factor(a),
    "lu_solve": lambda a, b: linalg.lu_solve((a, jnp.arange(_N)), b),
    "matrix_power": lambda a: linalg.matrix_power(a, 3),
    "matrix_rank": lambda a: linalg.matrix_rank(a),
    "norm": lambda a: linalg.norm(a),
    "norm of values": lambda a: linalg.norm(a, 2),
    "null_space": lambda tall: linalg.null_space(tall),
    "orth": lambda tall: linalg.orth(tall),
    "pinv": lambda a: linalg.pinv(a),
    "polar": lambda a: linalg.polar(a),
    "qr": lambda a: linalg.qr(a),
    "qr_multiply": lambda tall, few: linalg.qr_multiply(tall, few),
    "slogdet": lambda a: linalg.slogdet(a),
    "solve": lambda a, b: linalg.solve(a, b),
    "solve_triangular": lambda a, b: linalg.solve_triangular(a, b),
    "sqrtm": lambda a: linalg.sqrtm(a),
    "svd": lambda a: linalg.svd(a),
    "svd of Hermitian": lambda a: linalg.svd(a, hermitian=True),
    "svd_lowrank": lambda tall: linalg.svd_lowrank(tall, 2),
    "svdvals": lambda a: linalg.svdvals(a),
    "solve of a batch": lambda stack, rights: linalg.solve(stack, rights),
    "svd of a batch": lambda stack: linalg.svd(stack),
}
_MOST = 15
# Functions that call two programs. This one's first makes the other triangle.
_MOST_OF = {"ldl_factor": 26}
# Other calls, and the maximum number of Python calls for each.
_OTHERS = {
    "potrs": (lambda a, b: jaxmg.potrs(a, b), 13),
    "vmap": (lambda stack, rights: jax.vmap(jaxmg.potrs)(stack, rights), 25),
    "batch": (lambda stack, rights: jaxmg.potrs(stack, rights), 35),
}


def _call(name):
    function = _CALLS[name] if name in _CALLS else _OTHERS[name][0]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    arrays = _arrays()
    operands = [arrays[name] for name in names]
    return lambda: jax.block_until_ready(function(*operands))


def test_every_function_is_here():
    functions = {name for name in linalg.__all__ if not name[0].isupper()}
    assert functions == {name.split(" of ")[0] for name in _CALLS}


@cases.needs_transformations
@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="Python 3.11 counts each comprehension as a call"
)
@pytest.mark.parametrize(
    "name, by_one, most", [("solve", 0, 300), ("svd", 0, 400), ("solve", _N, 330)]
)
def test_a_first_call_changes_files_seldom(name, by_one, most, monkeypatch):
    """A trace passes the layout along, and doesn't call the public functions of its parts. What one
    device runs for all is traced once."""
    monkeypatch.setattr(on_one, "MOST", by_one)
    cases.forget_plans()
    call = _call(name)
    with _profiled() as profile:
        call()
    assert 50 < profile.changes <= most


_CORE = "potrs", "vmap", "solve", "svd"


@cases.needs_transformations
@pytest.mark.core(*_CORE)
@pytest.mark.parametrize(
    "name, by", [*((name, 0) for name in [*_CALLS, *_OTHERS]), ("solve", _N), ("potrs", _N)]
)
def test_a_second_call_executes_little(name, by, monkeypatch):
    monkeypatch.setattr(on_one, "MOST", by)
    monkeypatch.setattr(by_one, "MOST", by)
    cases.forget_plans()
    call = _call(name)
    first = call()
    with _profiled() as profile:
        second = call()
    jax.tree.map(np.testing.assert_array_equal, first, second)
    most = _OTHERS[name][1] if name in _OTHERS else _MOST_OF.get(name, _MOST)
    if by and name in _OTHERS:  # takes parts and puts parts; Python 3.11 counts comprehensions
        most += 3 if sys.version_info >= (3, 12) else 5
    assert profile.calls and len(profile.calls) <= most, profile.calls
