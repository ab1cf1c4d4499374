"""The interface of JAXMg 0.0.x, function by function: code written for it runs unchanged.

Two results differ on purpose. A right-hand side that is a vector yields a vector (in 0.0.x, (N,
1)). Eigenvectors of global arrays are sharded like A (in 0.0.x, by columns).
"""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

_N, _RANKS, _T_A = 24, 4, 4
_ROWS = P("x", None)

# Forms of in_specs: one spec, a list or tuple of it, and the pair of versions up to 0.0.5.
_SPECS = {
    "spec": _ROWS,
    "tuple": (_ROWS,),
    "list": [_ROWS],
    "pair": (_ROWS, P(None, None)),
}


def _problem(dtype="float64", n=_N, nrhs=2):
    """Returns (mesh, A's values, A sharded by rows, right-hand sides, the same replicated)."""
    mesh = cases.line(_RANKS, "x")
    matrix, rhs = (
        cases.positive_definite("well", n, dtype),
        cases.normal(cases.rng(n), (n, nrhs), dtype),
    )
    a = cases.shard(matrix, mesh, *(_ROWS if n % _RANKS == 0 else ()))
    return mesh, matrix, a, rhs, cases.shard(rhs, mesh, None, None)


def _indefinite():
    mesh, matrix, _, _, b = _problem()
    matrix = matrix.copy()
    matrix[10, 10] = -1
    return mesh, cases.shard(matrix, mesh, *_ROWS), b


def _by_rows(array, mesh):
    return array.sharding.is_equivalent_to(NamedSharding(mesh, _ROWS), array.ndim)


def _modes(function, *arguments):
    """Yields the function's results, eager and under jit."""
    yield function(*arguments)
    yield jax.jit(function)(*arguments)


def _sharded(function, mesh, out_specs, in_specs):
    """Returns ``function`` in the caller's own shard_map, the place to call *_shardmap_ctx."""
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return jax.jit(mapped)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_potrs(dtype):
    mesh, matrix, a, rhs, b = _problem(dtype)
    for x in _modes(lambda a, b: jaxmg.potrs(a, b, _T_A, mesh, _ROWS), a, b):
        cases.check_potrs(matrix, x, rhs)
    by_name = dict(T_A=_T_A, mesh=mesh, in_specs=(_ROWS,), return_status=True, pad=True)
    for x, status in _modes(lambda a, b: jaxmg.potrs(a=a, b=b, **by_name), a, b):
        cases.check_potrs(matrix, x, rhs)
        assert status.shape == () and status.dtype == np.int32 and status == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_potri(dtype):
    mesh, matrix, a, *_ = _problem(dtype)
    for inverse in _modes(lambda a: jaxmg.potri(a, _T_A, mesh, _ROWS), a):
        cases.check_potri(matrix, inverse)
        assert _by_rows(inverse, mesh)
    by_name = dict(T_A=_T_A, mesh=mesh, in_specs=(_ROWS,), return_status=True, pad=True)
    for inverse, status in _modes(lambda a: jaxmg.potri(a=a, **by_name), a):
        cases.check_potri(matrix, inverse)
        assert status.shape == () and status.dtype == np.int32 and status == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_syevd(dtype):
    mesh, matrix, a, *_ = _problem(dtype)
    expected = np.linalg.eigvalsh(matrix)
    for w, v in _modes(lambda a: jaxmg.syevd(a, _T_A, mesh, _ROWS), a):
        cases.check_syevd(matrix, w, v)
        assert w.sharding.is_fully_replicated and _by_rows(v, mesh)
    by_name = dict(T_A=_T_A, mesh=mesh, in_specs=(_ROWS,), return_status=True, pad=True)
    for w, v, status in _modes(lambda a: jaxmg.syevd(a=a, **by_name), a):
        cases.check_syevd(matrix, w, v)
        assert status.shape == () and status.dtype == np.int32 and status == 0
    for w in _modes(lambda a: jaxmg.syevd(a, _T_A, mesh, _ROWS, False), a):
        np.testing.assert_allclose(w, expected, rtol=0, atol=10 * _N * cases.eps(dtype))
    by_name["return_eigenvectors"] = False
    for w, status in _modes(lambda a: jaxmg.syevd(a=a, **by_name), a):
        np.testing.assert_allclose(w, expected, rtol=0, atol=10 * _N * cases.eps(dtype))
        assert status == 0


@pytest.mark.parametrize("spelling", _SPECS)
def test_spellings_of_in_specs(spelling):
    mesh, matrix, a, rhs, b = _problem()
    specs = _SPECS[spelling]
    cases.check_potrs(matrix, jaxmg.potrs(a, b, _T_A, mesh, specs), rhs)
    cases.check_potri(matrix, jaxmg.potri(a, _T_A, mesh, specs))
    cases.check_syevd(matrix, *jaxmg.syevd(a, _T_A, mesh, specs))
    jaxmg.verify_cyclic(a, jaxmg.cyclic_1d(a, _T_A, mesh, specs), _T_A)


@cases.one_process("an abstract mesh as large as its own devices is taken for these")
def test_abstract_mesh():
    mesh, matrix, a, rhs, b = _problem()
    for x in _modes(lambda a, b: jaxmg.potrs(a, b, _T_A, mesh.abstract_mesh, _ROWS), a, b):
        cases.check_potrs(matrix, x, rhs)


@pytest.mark.parametrize("shape", [(_N,), (_N, 1), (_N, 7)])
def test_shape_of_the_right_hand_side(shape):
    mesh, matrix, a, *_ = _problem()
    rhs = cases.normal(cases.rng(3), shape, "float64")
    cases.check_potrs(matrix, jaxmg.potrs(a, cases.shard(rhs, mesh), _T_A, mesh, _ROWS), rhs)


@pytest.mark.slow
@pytest.mark.parametrize("T_A", [1, 5, 6, 7, 100])
def test_tile_that_does_not_fit_the_shards(T_A):
    mesh, matrix, a, rhs, b = _problem()
    cases.check_potrs(matrix, jaxmg.potrs(a, b, T_A, mesh, _ROWS), rhs)
    cases.check_potri(matrix, jaxmg.potri(a, T_A, mesh, _ROWS))
    cases.check_syevd(matrix, *jaxmg.syevd(a, T_A, mesh, _ROWS))


def test_status_where_it_fails():
    """The status is LAPACK's info, where 0.0.9 has a number of its own. Both are nonzero for a
    failure, and results are NaN."""
    mesh, a, b = _indefinite()
    for x, status in _modes(lambda a, b: jaxmg.potrs(a, b, _T_A, mesh, _ROWS, True), a, b):
        assert status == 11 and np.isnan(x).all()
    for inverse, status in _modes(lambda a: jaxmg.potri(a, _T_A, mesh, _ROWS, True), a):
        assert status == 11 and np.isnan(inverse).all()
    spoilt = cases.shard(np.full((_N, _N), np.nan), mesh, *_ROWS)
    for w, v, status in _modes(lambda a: jaxmg.syevd(a, _T_A, mesh, _ROWS, True, True), spoilt):
        assert status != 0 and np.isnan(w).all() and np.isnan(v).all()


def _padded(matrix, rows):
    """Pads as pad_rows does in a shard_map: below each rank's rows, to ``rows`` in total."""
    n = len(matrix)
    block = -(-n // _RANKS)
    blocks = [matrix[start : start + block] for start in range(0, n, block)]
    return np.concatenate(
        [
            np.pad(block, ((0, rows // _RANKS - len(block)), (0, 0)), constant_values=np.nan)
            for block in blocks
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("n, rows", [(22, 24), (24, 24), (24, 32)])
def test_matrix_that_the_caller_padded(n, rows):
    """With pad=False a matrix is (rows, n), and the values of the padding don't matter."""
    mesh, matrix, _, rhs, b = _problem(n=n)
    a = cases.shard(_padded(matrix, rows), mesh, *_ROWS)
    for x in _modes(lambda a, b: jaxmg.potrs(a, b, 3, mesh, _ROWS, pad=False), a, b):
        cases.check_potrs(matrix, x, rhs)
    for w in _modes(lambda a: jaxmg.syevd(a, 3, mesh, _ROWS, False, False, False), a):
        np.testing.assert_allclose(
            w, np.linalg.eigvalsh(matrix), rtol=0, atol=10 * n * cases.eps("f8")
        )


@pytest.mark.parametrize("n, rows", [(22, 24), (24, 24), (24, 32)])
def test_local_block_of_a_matrix_that_the_caller_padded(n, rows):
    mesh, matrix, _, rhs, b = _problem(n=n)
    a = cases.shard(_padded(matrix, rows), mesh, *_ROWS)
    solve = _sharded(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3, False), mesh, (P(), P()), (_ROWS, P())
    )
    x, status = solve(a, b)
    cases.check_potrs(matrix, x, rhs)
    assert status.shape == (1,) and status[0] == 0


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_potrs_shardmap_ctx(dtype):
    mesh, matrix, a, rhs, b = _problem(dtype)
    calls = {
        "positional": lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, _T_A, True),
        "by name": lambda a, b: jaxmg.potrs_shardmap_ctx(a=a, b=b, T_A=_T_A, pad=True),
        "default": lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, _T_A),
    }
    for call in calls.values():
        x, status = _sharded(call, mesh, (P(None, None), P(None)), (_ROWS, P(None, None)))(a, b)
        cases.check_potrs(matrix, x, rhs)
        assert status.shape == (1,) and status.dtype == np.int32 and status[0] == 0


# The dtype doesn't affect the form of a call, so only one dtype takes all forms.
_SPELT = pytest.mark.parametrize(
    "dtype, spelling",
    cases.broad(
        itertools.product(cases.DTYPES, ["positional", "by name", "default"]),
        lambda dtype, spelling: dtype == "float64" or spelling == "default",
    ),
)


@pytest.mark.slow
@_SPELT
def test_potri_shardmap_ctx(dtype, spelling):
    """potri_shardmap_ctx returns the upper triangle of the inverse; potri_symmetrize completes
    it."""
    mesh, matrix, a, *_ = _problem(dtype)
    calls = {
        "positional": lambda a: jaxmg.potri_shardmap_ctx(a, _T_A, True),
        "by name": lambda a: jaxmg.potri_shardmap_ctx(a=a, T_A=_T_A, pad=True),
        "default": lambda a: jaxmg.potri_shardmap_ctx(a, _T_A),
    }
    upper, status = _sharded(calls[spelling], mesh, (_ROWS, P(None)), (_ROWS,))(a)
    assert status.shape == (1,) and status[0] == 0
    for inverse in _modes(jaxmg.potri_symmetrize, upper):
        cases.check_potri(matrix, inverse)


@pytest.mark.slow
@_SPELT
def test_syevd_shardmap_ctx(dtype, spelling):
    """Each rank gets its columns of V, (N, N / P); callers concatenate them along axis 1."""
    mesh, matrix, a, *_ = _problem(dtype)
    shapes = []

    def shaped(w, v, status):
        shapes.append(v.shape)
        return w, v, status

    calls = {
        "positional": lambda a: shaped(*jaxmg.syevd_shardmap_ctx(a, _T_A, True, True)),
        "by name": lambda a: shaped(
            *jaxmg.syevd_shardmap_ctx(a=a, T_A=_T_A, return_eigenvectors=True, pad=True)
        ),
        "default": lambda a: shaped(*jaxmg.syevd_shardmap_ctx(a, _T_A)),
    }
    w, v, status = _sharded(calls[spelling], mesh, (P(None), P(None, "x"), P(None)), (_ROWS,))(a)
    cases.check_syevd(matrix, w, v)
    assert status.shape == (1,) and status[0] == 0
    assert set(shapes) == {(_N, _N // _RANKS)}


def test_syevd_shardmap_ctx_without_eigenvectors():
    mesh, matrix, a, *_ = _problem()
    calls = {
        "positional": lambda a: jaxmg.syevd_shardmap_ctx(a, _T_A, False, True),
        "by name": lambda a: jaxmg.syevd_shardmap_ctx(a, T_A=_T_A, return_eigenvectors=False),
    }
    for call in calls.values():
        w, status = _sharded(call, mesh, (P(None), P(None)), (_ROWS,))(a)
        np.testing.assert_allclose(
            w, np.linalg.eigvalsh(matrix), rtol=0, atol=10 * _N * cases.eps("f8")
        )
        assert status.shape == (1,) and status[0] == 0


def test_status_inside_shard_map():
    mesh, a, b = _indefinite()
    solve = _sharded(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, _T_A), mesh, (P(), P()), (_ROWS, P())
    )
    x, status = solve(a, b)
    assert status.shape == (1,) and status[0] == 11 and np.isnan(x).all()


def test_padding_inside_shard_map():
    """pad_rows adds to each local block the number of rows that calculate_padding returns, and
    unpad_rows removes them."""
    mesh, matrix, a, *_ = _problem()
    padding = jaxmg.calculate_padding(_N // _RANKS, 4)
    assert padding == 2

    def there_and_back(a):
        padded = jaxmg.pad_rows(a, padding)
        return padded, jaxmg.unpad_rows(padded, padding)

    padded, back = _sharded(there_and_back, mesh, (_ROWS, _ROWS), (_ROWS,))(a)
    blocks = np.split(matrix, _RANKS)
    np.testing.assert_array_equal(
        padded, np.concatenate([np.pad(block, ((0, padding), (0, 0))) for block in blocks])
    )
    np.testing.assert_array_equal(back, matrix)


@pytest.mark.parametrize("size, T_A, padding", [(6, 4, 2), (8, 4, 0), (1, 3, 2), (0, 5, 0)])
def test_calculate_padding(size, T_A, padding):
    assert jaxmg.calculate_padding(shard_size=size, T_A=T_A) == padding


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_cyclic_1d(dtype):
    """Tile t of the rows goes to rank t mod P; verify_cyclic asserts it."""
    mesh, matrix, a, *_ = _problem(dtype)
    expected = np.concatenate(
        [matrix[3 * tile :][:3] for rank in range(_RANKS) for tile in range(rank, 8, _RANKS)]
    )
    for tiles in _modes(lambda a: jaxmg.cyclic_1d(a, 3, mesh, _ROWS), a):
        np.testing.assert_array_equal(tiles, expected)
        jaxmg.verify_cyclic(a, tiles, 3)
        assert _by_rows(tiles, mesh)
    by_name = jaxmg.cyclic_1d(a=a, T_A=3, mesh=mesh, in_specs=(_ROWS,), pad=False)
    jaxmg.verify_cyclic(A=a, A_cyclic=by_name, T_A=3)
    with pytest.raises(AssertionError):
        jaxmg.verify_cyclic(a, a, 3)


def test_get_cols_cyclic():
    """The function returns (column, device before, device after) for each column, in order."""
    columns = jaxmg.get_cols_cyclic(N=12, N_batch=4, T_A=2, num_devices=3)
    assert columns == [(c, c // 4, c // 2 % 3) for c in range(12)]


@pytest.mark.slow
def test_plot_block_to_cyclic():
    figure = jaxmg.plot_block_to_cyclic(12, 2, 3)
    by_name = jaxmg.plot_block_to_cyclic(N=12, T_A=2, ndev=3, N_rows=8)
    for each in (figure, by_name):
        assert [len(axes.images) for axes in each.axes] == [1, 1]


def test_loop_over_steps_under_one_jit():
    """The results of an optimiser's step are the arguments of the next one."""
    mesh, matrix, a, rhs, b = _problem()

    @jax.jit
    def step(a, b):
        x = jaxmg.potrs(a, b, T_A=_T_A, mesh=mesh, in_specs=_ROWS)
        return b + jnp.sin(x)

    expected = rhs
    for _ in range(3):
        b = step(a, b)
        expected = expected + np.sin(np.linalg.solve(matrix, expected))
    np.testing.assert_allclose(b, expected, rtol=1e-10)


def test_mesh_with_a_second_axis():
    mesh = cases.grid()
    matrix = cases.positive_definite("well", _N, "float64")
    a, b = cases.shard(matrix, mesh, "r", None), cases.shard(np.ones((_N, 1)), mesh)
    x = jaxmg.potrs(a, b, _T_A, mesh, P("r", None))
    assert cases.backward_error(matrix, x, np.ones((_N, 1))) <= 10 * _N * cases.eps("float64")
