"""Matrices (m, n) that aren't square, through all layers between a caller's array and the native
code. The routine here copies its matrix."""

import functools
import itertools

import cases
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, checks, execute, ffi, record, results
from jaxmg._call.arguments import collect, collect_local
from jaxmg._layouts import local_layouts, meshes
from jaxmg._transform import dispatch

SHAPES = ((1, 1), (2, 9), (9, 2), (8, 4), (4, 8), (13, 7), (7, 13), (1, 5), (5, 1))
_SHAPES_ON_RANKS = pytest.mark.parametrize(
    "ranks, shape",
    cases.broad(
        itertools.product((1, 2, 4), SHAPES),
        lambda ranks, shape: (ranks == 4 and max(shape) > 6) or shape in ((9, 2), (7, 13)),
    ),
)
_COPY = record.Routine(
    name="copy",
    native="getrf",  # takes matrices of any shape, and has a plan
    results=(results.Matrix("copy"), results.Status()),
    outputs=("copy",),
    traced_outputs=("copy",),
    square=False,
    triangle=None,
    kernel=lambda call, coordinates, a: (a, jax.numpy.zeros((1,), "int32")),
)


class _ComplexVector(results.RealVector):
    """A vector (n,) of the complex dtype of A's precision, as a general eigensolver returns it."""

    def _dtype(self, a):
        return np.result_type(a.dtype, np.complex64)


_PHASES = record.Routine(
    name="phases",
    native="getrf",
    results=(results.Matrix("copy"), _ComplexVector("w"), results.Status()),
    outputs=("w",),
    square=False,
    triangle=None,
    kernel=lambda call, coordinates, a: (
        a, 1j * jax.numpy.arange(a.shape[1], dtype=a.dtype), jax.numpy.zeros((1,), "int32")
    ),
)  # fmt: skip


def _matrix(shape):
    return np.arange(1.0, 1 + np.prod(shape)).reshape(shape)


def _copy(a, mesh, spec=None, pad=True, **options):
    arguments = collect(_COPY, 2, mesh, spec, None, pad, "auto", **options)
    return execute.run(_COPY, (a,), arguments)[1]


@_SHAPES_ON_RANKS
def test_a_rank_has_its_rows(ranks, shape):
    layout = meshes.infer("copy", (_matrix(shape),), cases.line(ranks), None)
    height = -(-shape[0] // ranks)

    @jax.jit
    def split(a):
        def local(coordinates, block):
            rows = blocks.to_rows(block, layout.by_rows, shape[0])
            assert rows.shape == (height, shape[1])
            return blocks.from_rows(rows, layout.by_rows, block.shape)

        mapped = ffi.over_ranks(layout, local, (layout.row_spec,), layout.row_spec)
        return mapped(blocks.split_rows(a, layout))

    rows = np.asarray(split(_matrix(shape)))
    assert rows.shape == (height * ranks, shape[1])
    np.testing.assert_array_equal(rows[: shape[0]], _matrix(shape))
    assert not rows[shape[0] :].any()
    np.testing.assert_array_equal(blocks.join_rows(rows, layout, shape[0]), _matrix(shape))


@pytest.mark.core("(13, 7)")
@_SHAPES_ON_RANKS
def test_a_rank_has_its_columns(ranks, shape):
    (m, n), layout = shape, meshes.infer("copy", (_matrix(shape),), cases.line(ranks), None)
    width = -(-n // ranks)

    @jax.jit
    def turn(a):
        def local(coordinates, rows):
            return blocks.to_columns(rows, layout, m, width)

        mapped = ffi.over_ranks(layout, local, (layout.row_spec,), P(None, layout.rows))
        return mapped(blocks.split_rows(a, layout))

    columns = np.asarray(turn(_matrix(shape)))
    assert columns.shape == (m, width * ranks)
    np.testing.assert_array_equal(columns[:, :n], _matrix(shape))
    assert not columns[:, n:].any()


@pytest.mark.core("(13, 7)")
@_SHAPES_ON_RANKS
def test_a_call_has_the_whole_matrix(ranks, shape):
    mesh, a = cases.line(ranks), _matrix(shape)
    for array in (a, cases.shard(a, mesh)):
        run = functools.partial(_copy, mesh=mesh)
        for result in (run(array), jax.jit(run)(array)):
            assert result.shape == shape
            np.testing.assert_array_equal(result, a)


@pytest.mark.parametrize("spec", (P("r"), P(None, "r"), P("r", "c"), P(("r", "c"), None)))
@pytest.mark.parametrize("shape", ((16, 8), (8, 16)))
def test_a_matrix_is_sharded_in_any_way(spec, shape):
    a = _matrix(shape)
    result = _copy(cases.shard(a, cases.grid(), *spec), cases.grid())
    np.testing.assert_array_equal(result, a)
    assert result.sharding.is_equivalent_to(cases.shard(a, cases.grid(), *spec).sharding, 2)


@pytest.mark.parametrize("spec", (P("r", None), P("r", "c")))
@pytest.mark.parametrize("shape", ((16, 8), (8, 16)))
def test_a_block_inside_a_shard_map(spec, shape):
    mesh, a = cases.grid(), _matrix(shape)

    def local(block):
        arguments = collect_local(_COPY, 2, None, spec, None, True, "auto")
        arguments = execute.resolve_local(_COPY, (block,), arguments)
        call = arguments.inside
        rows = execute.local_operands(_COPY, (block,), call)
        assert rows[0].shape == (shape[0] // call.layout.ranks, shape[1])
        values = execute.run_on_rank(call, local_layouts.local_coordinates(call.layout), *rows)
        return execute.local_results(_COPY, (block,), arguments, values)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_array_equal(jax.jit(mapped)(cases.shard(a, mesh, *spec)), a)


@pytest.mark.parametrize("dtype", ("float32", "float64", "complex64"))
def test_a_result_may_be_complex_where_a_is_real(dtype):
    """Its dtype follows from A's, also without rows, in a trace and in a batch."""
    mesh, kind = cases.line(2), np.result_type(dtype, np.complex64)

    def phases(a):
        arguments = collect(_PHASES, 2, mesh, None, None, True, "auto")
        return dispatch.call(_PHASES, (a,), arguments, rule=lambda arguments: None)

    for n in (0, 5):
        a = np.ones((n, n), dtype)
        for call in (phases, jax.jit(phases)):
            w = call(a)
            assert w.dtype == kind
            np.testing.assert_array_equal(w, 1j * np.arange(n))
    if checks.ALL:
        batch = phases(np.ones((3, 5, 5), dtype))
        assert batch.dtype == kind and batch.shape == (3, 5)


def test_what_a_matrix_must_be():
    mesh = cases.line(2)
    with pytest.raises(ValueError, match=r"copy: a must be a matrix of shape \(m, n\)"):
        _copy(np.ones(3), mesh)
    with pytest.raises(ValueError, match="rows of a, 3, must be a multiple of 2"):
        _copy(_matrix((3, 5)), mesh, pad=False)
    np.testing.assert_array_equal(_copy(_matrix((6, 2)), mesh, pad=False), _matrix((6, 2)))
    a, b = _matrix((6, 2)), _matrix((6, 3))
    checks.right_hand_side("lstsq", a, b, square=False)
    with pytest.raises(ValueError, match=r"b must have shape \(6,\) or \(6, nrhs\)"):
        checks.right_hand_side("lstsq", a, b[:2], square=False)
