"""`*_shardmap_ctx` inside the caller's shard_map: axes, blocks, and values that vary over ranks."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxmg

# [[20, .1, .1, .1], ...]: with rows in another order it has other eigenvalues.
_MATRIX = np.array([[20, 0.1, 0.1, 0.1], [0.1, 5, 2, 0.1], [0.1, 2, 1, 0], [0.1, 0.1, 0, 9]])
_TRACKED = pytest.mark.parametrize("check_vma", [True, False], ids=["tracked", "untracked"])


def _deal(*rows):
    """Returns the cases with one dtype each; the dtypes are distributed over them."""
    return [(*row, cases.DTYPES[i % len(cases.DTYPES)]) for i, row in enumerate(rows)]


def _mesh(**sizes):
    """Returns a mesh of named axes of these sizes, also of size 1."""
    count = int(np.prod(list(sizes.values())))
    return Mesh(np.array(cases.devices(count)).reshape(tuple(sizes.values())), tuple(sizes))


def _map(function, mesh, in_specs, out_specs, check_vma=False):
    return jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma
        )
    )


def _needs_newer_ffi():
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this JAX takes the results of an FFI call for varying")


def _eigenvalues(a, mesh, spec, check_vma=False, **options):
    def local(a):
        w = jaxmg.syevd_shardmap_ctx(a, return_eigenvectors=False, **options)[0]
        return w[None]  # one row for each device: all must be correct

    return _map(local, mesh, spec, P(mesh.axis_names), check_vma)(a)


def _check_eigenvalues(found, matrix):
    __tracebackhide__ = True
    expected = np.linalg.eigvalsh(matrix)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, np.tile(expected, (len(found), 1)), atol=1e-13 * scale)


@pytest.mark.slow
@_TRACKED
@pytest.mark.parametrize("order", [("y", "x"), ("x", "y")], ids="".join)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_order_of_several_axes_is_asked_for(n, order, check_vma):
    """With several axes the order must be passed, since nothing else tells which rank has which
    block."""
    mesh, matrix = _mesh(x=2, y=2), _MATRIX[-n:, -n:]
    padded = np.zeros((4, n))
    padded[:n] = matrix
    spec = P(order, None)
    with pytest.raises(ValueError, match=r"any of .*; pass in_specs=P\(axis, None\).* order"):
        _eigenvalues(padded, mesh, spec, check_vma)
    _check_eigenvalues(_eigenvalues(padded, mesh, spec, check_vma, in_specs=spec), matrix)


_SMALL = [{"r": 8}, {"r": 2, "c": 4}, {"r": 2, "c": 2, "d": 2}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes, n, check_vma",
    cases.broad(
        itertools.product(_SMALL, [1, 2, 4], [True, False]),
        lambda sizes, n, check_vma: (_SMALL.index(sizes) + n) % 2 == check_vma,
    ),
)
def test_small_matrices_are_right_or_refused(sizes, n, check_vma):
    mesh, matrix = _mesh(**sizes), _MATRIX[-n:, -n:]
    for order in (mesh.axis_names, mesh.axis_names[::-1]):
        padded = np.zeros((8, n))
        padded[:n] = matrix
        spec = P(order, None)
        try:
            found = _eigenvalues(padded, mesh, spec, check_vma)
        except ValueError as error:
            assert "pass in_specs=P(axis, None)" in str(error)
        else:
            _check_eigenvalues(found, matrix)
        _check_eigenvalues(_eigenvalues(padded, mesh, spec, check_vma, in_specs=spec), matrix)


@pytest.mark.parametrize("axis", ["x", "y"])
def test_what_varies_decides(axis):
    """On a square mesh the shape allows two axes; the trace knows the right one."""
    mesh = _mesh(x=2, y=2)
    _check_eigenvalues(_eigenvalues(_MATRIX, mesh, P(axis, None), True), _MATRIX)
    with pytest.raises(ValueError, match="could be sharded over any of"):
        _eigenvalues(_MATRIX, mesh, P(axis, None), False)


def test_every_rank_may_have_all_of_it():
    mesh = _mesh(x=2, y=2)
    for check_vma in (True, False):
        _check_eigenvalues(_eigenvalues(_MATRIX, mesh, P(), check_vma), _MATRIX)
    one = np.full((1, 1), 3.0)
    _check_eigenvalues(_eigenvalues(one, mesh, P(), True), one)
    with pytest.raises(ValueError, match="could be sharded over any of"):
        _eigenvalues(one, mesh, P(), False)


@pytest.mark.parametrize("spec, given", [("x", "y"), (None, "x"), ("x", ("y", "x"))])
def test_spec_against_what_the_trace_knows(spec, given):
    mesh, rows = _mesh(x=2, y=2), 2 if isinstance(given, str) else 1
    a = np.ones((rows if spec is None else 2 * rows, 4))
    with pytest.raises(
        ValueError, match="block is the same on all ranks along '[xy]'; pass the sp"
    ):
        _eigenvalues(a, mesh, P(spec, None), True, in_specs=P(given, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec, sizes",
    cases.broad(
        itertools.product(
            ["r", ("r", "c"), ("c", "r")],
            [{"r": 1}, {"r": 2}, {"r": 2, "c": 1}, {"c": 1, "r": 4}],
        ),
        lambda spec, sizes: spec == "r" or "c" in sizes,
    ),
)
def test_axes_of_one_device_vary_over_nothing(sizes, spec):
    """Results that are equal on all ranks are also invariant in the trace."""
    _needs_newer_ffi()
    mesh, n = _mesh(**sizes), 8
    axes = tuple(axis for axis in spec if axis in sizes)
    matrix, b = cases.positive_definite("well", n, "float64"), np.ones(n)

    def local(a, b):
        x, logdet, status = jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
        upper, info = jaxmg.potri_shardmap_ctx(a, 3)
        w, v, found = jaxmg.syevd_shardmap_ctx(a, 3)
        return x, logdet, status, upper, info, w, v, found

    rows, columns = P(axes, None), P(None, axes)
    run = _map(
        local, mesh, (rows, P()), (P(), P(), P(), rows, P(), P(), columns, P()), check_vma=True
    )
    x, logdet, status, upper, info, w, v, found = run(matrix, b)
    cases.check_potrs(matrix, x, b)
    cases.check_potri(matrix, jaxmg.potri_symmetrize(upper))
    cases.check_syevd(matrix, w, v)
    np.testing.assert_allclose(logdet[0], np.linalg.slogdet(matrix)[1], rtol=1e-12)
    assert status[0] == info[0] == found[0] == 0


@pytest.mark.core("12", "13")
@pytest.mark.parametrize(
    "n, ranks, dtype", _deal((8, 1), (8, 2), (12, 4), (16, 8), (7, 2), (13, 4), (10, 8), (3, 4))
)
def test_eigenvectors_by_columns(n, ranks, dtype):
    """out_specs=P(None, axis) assembles V, with columns of zeros if P doesn't divide n."""
    mesh = _mesh(r=ranks)
    matrix = cases.normal(cases.rng(n), (n, n), dtype)
    matrix = (matrix + matrix.conj().T) / 2
    rows = -(-n // ranks)
    padded = np.full((rows * ranks, n), np.nan, dtype)
    padded[:n] = matrix
    shapes = []

    def local(a):
        w, v, status = jaxmg.syevd_shardmap_ctx(a, 3)
        shapes.append(v.shape)
        return w, v, status

    w, v, status = _map(local, mesh, P("r", None), (P(), P(None, "r"), P()))(padded)
    assert set(shapes) == {(n, rows)} and status[0] == 0
    cases.check_syevd(matrix, w, v[:, :n])
    assert not np.asarray(v[:, n:]).any()


@pytest.mark.parametrize("axes", [("y", "x"), ("x", "y"), "y"], ids=str)
def test_eigenvectors_by_columns_of_two_axes(axes):
    mesh, matrix = _mesh(x=4, y=2), cases.positive_definite("well", 16, "complex128")
    run = _map(
        lambda a: jaxmg.syevd_shardmap_ctx(a, 3, in_specs=P(axes, None))[:2],
        mesh, P(axes, None), (P(), P(None, axes)),
    )  # fmt: skip
    cases.check_syevd(matrix, *run(matrix))


def _with_rows_of_padding(matrix, ranks, extra):
    """Returns the matrix with ``extra`` rows of NaN below each rank's rows, which no rank may
    read."""
    blocks = np.split(matrix, ranks)
    padding = np.full((extra, matrix.shape[1]), np.nan, matrix.dtype)
    return np.concatenate([part for block in blocks for part in (block, padding)])


def _without_padding(array, ranks, extra):
    blocks = np.split(np.asarray(array), ranks)
    padding = np.concatenate([block[len(block) - extra :] for block in blocks])
    assert not padding.any()
    return np.concatenate([block[: len(block) - extra] for block in blocks])


@pytest.mark.slow
@pytest.mark.parametrize(
    "n, ranks, extra, dtype, jitted",
    cases.broad(
        [
            (*case, jitted)
            for case in _deal((8, 1, 3), (8, 2, 2), (12, 4, 1), (16, 8, 6))
            for jitted in (False, True)
        ],
        lambda n, ranks, extra, dtype, jitted: (ranks in (2, 8)) == jitted,
    ),
)
def test_padded_by_the_caller(n, ranks, extra, dtype, jitted):
    mesh, matrix = _mesh(r=ranks), cases.positive_definite("well", n, dtype)
    padded = cases.shard(_with_rows_of_padding(matrix, ranks, extra), mesh, "r", None)
    b, options = np.ones(n, dtype), {"mesh": mesh, "in_specs": P("r", None), "pad": False}
    jit = jax.jit if jitted else lambda function: function
    cases.check_potrs(matrix, jit(functools.partial(jaxmg.potrs, T_A=3, **options))(padded, b), b)
    inverse = jit(functools.partial(jaxmg.potri, T_A=3, **options))(padded)
    assert inverse.sharding.is_equivalent_to(padded.sharding, 2)
    cases.check_potri(matrix, _without_padding(inverse, ranks, extra))
    w, v = jit(functools.partial(jaxmg.syevd, T_A=3, **options))(padded)
    assert v.sharding.is_equivalent_to(padded.sharding, 2)
    cases.check_syevd(matrix, w, _without_padding(v, ranks, extra))


@pytest.mark.slow
@pytest.mark.parametrize(
    "n, ranks, extra, dtype", _deal((8, 2, 2), (12, 4, 1), (16, 8, 1), (6, 2, 1))
)
def test_local_blocks_padded_by_the_caller(n, ranks, extra, dtype):
    mesh, matrix = _mesh(r=ranks), cases.positive_definite("well", n, dtype)
    padded, b = _with_rows_of_padding(matrix, ranks, extra), np.ones((n, 2), dtype)

    def local(a, b):
        x, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, pad=False)
        upper, _ = jaxmg.potri_shardmap_ctx(a, 3, False)
        w, v, _ = jaxmg.syevd_shardmap_ctx(a, 3, True, False)
        return x, upper, w, v

    rows = P("r", None)
    x, upper, w, v = _map(local, mesh, (rows, P()), (P(), rows, P(), P(None, "r")))(padded, b)
    cases.check_potrs(matrix, x, b)
    cases.check_potri(matrix, jaxmg.potri_symmetrize(_without_padding(upper, ranks, extra)))
    cases.check_syevd(matrix, w, _without_padding(np.transpose(v), ranks, extra).T)
    with pytest.raises(ValueError, match="fits no P of the mesh .* padding below, pass pad=False"):
        _map(lambda a: jaxmg.potri_shardmap_ctx(a, 3)[0], mesh, rows, rows)(padded)


def test_padded_to_a_multiple_of_the_ranks():
    """Padding rows at the end of the matrix are padding at the end of the last block."""
    mesh, matrix = _mesh(r=2), cases.positive_definite("well", 7, "float64")
    padded = np.full((8, 7), np.nan)
    padded[:7] = matrix
    options = {"mesh": mesh, "in_specs": P("r", None), "pad": False}
    cases.check_potrs(matrix, jaxmg.potrs(padded, np.ones(7), 3, **options), np.ones(7))
    inverse = jaxmg.potri(padded, 3, **options)
    assert inverse.shape == (8, 7)
    cases.check_potri(matrix, inverse[:7])
    cases.check_potri(matrix, jaxmg.potri(matrix, 3, mesh))  # the same shapes, placed by the call
    local = _map(
        lambda a: jaxmg.potri_shardmap_ctx(a, 3, pad=False)[0], mesh, P("r", None), P("r", None)
    )
    cases.check_potri(matrix, jaxmg.potri_symmetrize(local(padded)[:7]))


@pytest.mark.parametrize(
    "shape, spec, message",
    [
        ((7, 6), ("r", None), "rows of a, 7, must be a multiple of 2"),
        ((10, 7), ("r", None), r"2 doesn't divide n = 7 \(a has shape \(10, 7\)\)"),
        ((10, 6), (None, "r"), r"so it must be sharded by rows, as P\(axis, None\)"),
        ((6, 8), ("r", None), r"must be a square matrix .* it has shape \(6, 8\)(\n|$)"),
    ],
)
def test_impossible_padding(shape, spec, message):
    a = np.ones(shape)
    with pytest.raises(ValueError, match=message):
        jaxmg.potri(a, 2, _mesh(r=2), P(*spec), pad=False)


def test_padding_has_to_be_announced():
    with pytest.raises(ValueError, match="If it has rows of padding, pass pad=False"):
        jaxmg.potri(np.ones((8, 6)), 2, _mesh(r=2), P("r", None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "row, column, dtype, check_vma",
    cases.broad(
        [
            (*case, check_vma)
            for case in _deal(
                ("r", "c"), ("c", "r"), (None, "r"), (None, ("c", "r")), (("r", "d"), "c")
            )
            for check_vma in (True, False)
        ],
        lambda row, column, dtype, check_vma: check_vma or (row, column) == (("r", "d"), "c"),
    ),
)
def test_blocks_of_rows_and_columns(row, column, dtype, check_vma):
    """A rank's block of the inverse or of V is the block that it passed of A."""
    if check_vma:
        _needs_newer_ffi()
    mesh = _mesh(r=2, c=2, d=2)
    matrix, b = (
        cases.positive_definite("well", 16, dtype),
        cases.normal(cases.rng(4), (16, 2), dtype),
    )
    both = P(row, column)

    def local(a, b):
        x, status = jaxmg.potrs_shardmap_ctx(a, b, 3, in_specs=both)
        upper, _ = jaxmg.potri_shardmap_ctx(a, 3, in_specs=both)
        w, v, _ = jaxmg.syevd_shardmap_ctx(a, 3, in_specs=both)
        return x, status, upper, w, v

    run = _map(local, mesh, (both, P()), (P(), P(), both, P(), both), check_vma)
    x, status, upper, w, v = run(matrix, b)
    cases.check_potrs(matrix, x, b)
    cases.check_potri(matrix, jaxmg.potri_symmetrize(upper))
    cases.check_syevd(matrix, w, v)
    assert status[0] == 0


@pytest.mark.core("1-2-tracked", "2-2-untracked")
@pytest.mark.parametrize("check_vma", [True, False], ids=["tracked", "untracked"])
@pytest.mark.parametrize("row, column", [(2, 1), (1, 2), (2, 2), (1, 1)])
def test_blocks_over_axes_of_any_size(row, column, check_vma):
    """V has the layout of the passed blocks, also if the columns' axis has one device. Axis names
    may have any length."""
    if check_vma:
        _needs_newer_ffi()
    mesh, both = _mesh(row=row, column=column), P("row", "column")
    a, b = (cases.positive_definite(kind, 8, "float64") for kind in ("cond", "well"))

    def local(a, b):
        w, v, _ = jaxmg.syevd_shardmap_ctx(a, in_specs=both)
        upper, _ = jaxmg.potri_shardmap_ctx(a, in_specs=both)
        return w, v, upper, *jaxmg.sygvd_shardmap_ctx(a, b, in_specs=both)[:2]

    run = _map(local, mesh, (both, both), (P(), both, both, P(), both), check_vma)
    w, v, upper, values, x = map(np.asarray, run(a, b))
    cases.check_syevd(a, w, v)
    np.testing.assert_array_equal(upper, np.triu(upper))
    assert x.shape == (8, 8)
    np.testing.assert_allclose(a @ x, b @ x * values, atol=1e-13)


@pytest.mark.parametrize("n", [6, 10])
def test_blocks_that_do_not_divide(n):
    mesh = _mesh(r=2, c=2)
    run = _map(
        lambda a: jaxmg.potri_shardmap_ctx(a, 3, in_specs=P("r", "c"))[0],
        mesh, P("r", "c"), P("r", "c"),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"Pr Pc must divide n; got .* with Pr = 2 and Pc = 2"):
        run(np.eye(n))


@pytest.mark.parametrize("spec", ["r", ("r", "c"), ("c", "r")], ids=str)
def test_right_hand_side_that_varies_over_the_ranks(spec):
    mesh = _mesh(r=2, c=2)
    a, b = np.eye(8), np.ones(8 * (2 if spec == "r" else 4))
    run = _map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3, in_specs=P(spec, None))[0],
        mesh, (P(spec, None), P(spec)), P(spec), True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="b must be the same on all ranks .* it varies over 'c|r'"):
        run(a, b)


def test_replicas_may_have_right_hand_sides_of_their_own():
    _needs_newer_ffi()
    mesh, matrix = _mesh(r=2, c=2), cases.positive_definite("well", 8, "float64")
    b = cases.normal(cases.rng(6), (8, 4), "float64")
    run = _map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3)[0],
        mesh, (P("r", None), P(None, "c")), P(None, "c"), True,
    )  # fmt: skip
    cases.check_potrs(matrix, run(matrix, b), b)


def test_native_code_is_asked_to_compare_where_the_trace_does_not_know():
    mesh, a, b = _mesh(r=2), np.eye(8), np.ones(8)

    def asks(run):
        text = run.lower(a, b).as_text()
        assert "check_b = " in text
        return "check_b = true" in text

    def local(mesh, check_vma):
        return _map(
            lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3)[0][None],
            mesh, (P("r", None), P()), P("r"), check_vma,
        )  # fmt: skip

    assert asks(local(mesh, False))
    assert not asks(local(mesh, True))
    assert not asks(local(_mesh(r=1), False))
    assert not asks(jax.jit(functools.partial(jaxmg.potrs, mesh=mesh, in_specs=P("r"))))


def test_right_hand_side_that_differs_is_an_illegal_argument():
    """The status follows LAPACK's convention: -2 is the second argument."""
    mesh = _mesh(r=4)

    def local(a, b):
        x, logdet, status = jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)
        return x[None], logdet, status

    x, logdet, status = _map(local, mesh, (P("r", None), P("r")), P("r"))(
        np.eye(8), np.arange(32.0)
    )
    assert np.isnan(x).all() and np.isnan(logdet).all()
    np.testing.assert_array_equal(status, -2)


@pytest.mark.parametrize("definite", [True, False])
def test_no_right_hand_sides(definite):
    """Without right-hand sides, status and log-determinant are still A's."""
    mesh, matrix = _mesh(r=2), cases.positive_definite("well", 8, "float64")
    if not definite:
        matrix[4, 4] = -1
    run = _map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True),
        mesh, (P("r", None), P()), P(),
    )  # fmt: skip
    x, logdet, status = run(matrix, np.ones((8, 0)))
    assert x.shape == (8, 0)
    assert status[0] == (0 if definite else 5)
    expected = np.linalg.slogdet(matrix)[1] if definite else np.nan
    np.testing.assert_allclose(logdet[0], expected, rtol=1e-12)


def test_empty_blocks():
    mesh = _mesh(r=2)
    run = _map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, return_logdet=True),
        mesh, (P("r", None), P()), P(),
    )  # fmt: skip
    x, logdet, status = run(jnp.zeros((0, 0)), jnp.zeros((0, 2)))
    assert x.shape == (0, 2) and logdet[0] == 0 and status[0] == 0
