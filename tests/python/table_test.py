"""What holds for each routine of the table in routines.py."""

import itertools

import numpy as np
import pytest
from cases import (
    broad,
    eps,
    line,
    normal,
    one_process,
    positive_definite,
    rng,
    shard,
    shard_rows,
)
from routines import ROUTINES

import jaxmg

pytestmark = one_process("each routine has tests of its own")

# Each value of every parameter once; refinement, which takes long to compile, is breadth.
_SHAPES = [
    (7, 2, "complex64", 3),
    (1, 1, "float32", None),
    (33, 3, "float64", None),
    (50, 4, "complex128", 7),
]
_CASES = broad(
    [(name, *shape) for name, shape in itertools.product(ROUTINES, _SHAPES)],
    lambda name, *_: "jaxmg_hemm" not in ROUTINES[name].handlers,
)


def _matrices(n, dtype):
    """(a, m, b), with a and m positive definite and spectra of their own."""
    a = positive_definite("well", n, dtype) + np.diag(np.arange(n) / n).astype(dtype)
    return a, positive_definite("well", n, dtype), normal(rng(n, 3), (n, 2), dtype)


def _prepare(name, n, ranks, dtype, tile):
    """(function that calls the routine, its arrays on the host)."""
    routine, mesh = ROUTINES[name], line(ranks)
    arrays = dict(zip("amb", _matrices(n, dtype), strict=True))
    place = {kind: shard_rows(arrays[kind], mesh) for kind in "am"}
    place["b"] = shard(arrays["b"], mesh)
    operands = routine.make_operands(jaxmg, place.get, tile, mesh=mesh)
    return lambda: routine.call(jaxmg, operands, tile, mesh=mesh), arrays


def _error(name, arrays, results):
    return ROUTINES[name].error(arrays["a"], arrays["m"], arrays["b"], results.values())


@pytest.mark.parametrize("name, n, ranks, dtype, tile", _CASES)
def test_results_are_right(name, n, ranks, dtype, tile):
    call, arrays = _prepare(name, n, ranks, dtype, tile)
    results = dict(zip(ROUTINES[name].returns, call(), strict=True))
    assert results.pop("status", 0) == 0
    limit = 10 * n * eps(dtype)
    assert _error(name, arrays, results) <= limit
    # An entry that is wrong is seen.
    first, *others = map(np.array, results.values())
    first.flat[0] += 0.1
    assert _error(name, arrays, dict(enumerate((first, *others)))) > limit
    for key, result in results.items():
        real = np.finfo(dtype).dtype
        assert result.dtype == {
            "w": real, "logdet": real, "diagonal": real, "iterations": np.int32
        }.get(key, dtype)  # fmt: skip
