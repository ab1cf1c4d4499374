"""Properties of every routine in the table in routines.py."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from routines import ROUTINES

import jaxmg

pytestmark = cases.one_process("each routine has tests of its own")

# Refinement compiles slowly and is breadth.
_SHAPES = [
    (7, 2, "complex64", 3),
    (9, 1, "float32", None),
    (1, 1, "float32", None),
    (33, 3, "float64", None),
    (50, 4, "complex128", 7),
]
_CASES = cases.broad(
    [(name, *shape) for name, shape in itertools.product(ROUTINES, _SHAPES)],
    lambda name, *_: "jaxmg_hemm" not in ROUTINES[name].handlers,
)


def _matrices(n, dtype):
    """Returns (a, m, g, b); a and m are positive definite and have different spectra."""
    a = cases.positive_definite("well", n, dtype) + np.diag(np.arange(n) / n).astype(dtype)
    return (
        a,
        cases.positive_definite("well", n, dtype),
        cases.general("well", n, dtype),
        cases.normal(cases.rng(n, 3), (n, 2), dtype),
    )


def _prepare(name, n, ranks, dtype, tile):
    """Returns (a function that calls the routine, its arrays on the host)."""
    routine, mesh = ROUTINES[name], cases.line(ranks)
    arrays = dict(zip("amgb", _matrices(n, dtype), strict=True))
    on_mesh = {kind: cases.shard_rows(arrays[kind], mesh) for kind in "amg"}
    on_mesh["b"] = cases.shard(arrays["b"], mesh)
    operands = routine.make_operands(jaxmg, on_mesh.get, tile, mesh=mesh)
    return lambda: routine.call(jaxmg, operands, tile, mesh=mesh), arrays


def _error(name, arrays, results):
    routine = ROUTINES[name]
    return routine.error(arrays[routine.matrix], arrays["m"], arrays["b"], results.values())


@pytest.mark.core("complex64")
@pytest.mark.parametrize("name, n, ranks, dtype, tile", _CASES)
def test_results_are_right(name, n, ranks, dtype, tile):
    call, arrays = _prepare(name, n, ranks, dtype, tile)
    results = dict(zip(ROUTINES[name].returns, call(), strict=True))
    assert results.pop("status", 0) == 0
    limit = 10 * n * cases.eps(dtype)
    assert _error(name, arrays, results) <= limit
    # A wrong entry is detected.
    first, *others = map(np.array, results.values())
    first.flat[0] += 1 if first.dtype.kind == "i" else 0.1
    assert _error(name, arrays, dict(enumerate((first, *others)))) > limit
    for key, result in results.items():
        real = np.finfo(dtype).dtype
        assert result.dtype == {
            "w": real, "s": real, "logdet": real, "diagonal": real,
            "iterations": np.int32, "pivots": np.int32,
            **dict.fromkeys(("positive", "negative", "zero"), np.int32),
        }.get(key, dtype)  # fmt: skip


# The core of transformations; the factors' other methods are parts of these routines.
_MAIN = (
    *("potrs", "potri", "syevd", "eigvalsh", "eigh", "sygvd", "cho_solve", "solve_triangular"),
    *("matmul", "inv", "gesv", "getri", "lu_solve", "slogdet"),
)

_TRANSFORMED = cases.broad(
    [(name,) for name, routine in ROUTINES.items() if routine.transforms],
    lambda name: "jaxmg_hemm" not in ROUTINES[name].handlers,
)


def _function(name, ranks):
    """Returns the routine as a function of (a, m, g, b), which makes a factor of a or g if
    needed."""
    routine, mesh = ROUTINES[name], cases.line(ranks)

    def function(*arrays):
        arrays = dict(zip("amgb", arrays, strict=True))
        operands = routine.make_operands(jaxmg, arrays.get, 2, mesh=mesh)
        return dict(zip(routine.returns, routine.call(jaxmg, operands, 2, mesh=mesh), strict=True))

    return function


@pytest.mark.core(*_MAIN)
@cases.needs_transformations
@pytest.mark.parametrize("name", _TRANSFORMED)
def test_each_matrix_of_a_batch_has_its_result(name):
    n, dtype = 6, "float64"
    batch = [np.stack([x * scale for scale in (1, 2, 3)]) for x in _matrices(n, dtype)]
    found = jax.vmap(_function(name, 2))(*batch)
    for i, arrays in enumerate(zip(*batch, strict=True)):
        results = {key: found[key][i] for key in ROUTINES[name].returns}
        assert results.pop("status", 0) == 0
        limit = 10 * n * cases.eps(dtype)
        assert _error(name, dict(zip("amgb", arrays, strict=True)), results) <= limit


@pytest.mark.core("potrs", "syevd", "gesv", "solve_triangular")
@cases.needs_transformations
@pytest.mark.parametrize("name", _TRANSFORMED)
def test_the_derivative_is_that_of_finite_differences(name):
    n, step, function = 6, 1e-5, _function(name, 2)
    arrays = _matrices(n, "float64")
    directions = [
        cases.normal(cases.rng(n, k), array.shape, "float64") for k, array in enumerate(arrays)
    ]
    directions[:2] = map(cases.hermitian_part, directions[:2])

    def along(t):
        results = function(*(x + t * y for x, y in zip(arrays, directions, strict=True)))
        # An eigenvector may have either sign.
        return {
            key: value**2 if key == "v" else value
            for key, value in results.items()
            if jnp.issubdtype(value.dtype, jnp.inexact)
        }

    _, found = jax.jvp(along, (0.0,), (1.0,))
    ahead, behind = along(step), along(-step)
    for key, value in found.items():
        difference = (ahead[key] - behind[key]) / (2 * step)
        assert np.any(difference)
        np.testing.assert_allclose(value, difference, rtol=0, atol=1e-6 * np.abs(difference).max())
