"""Generalized eigenproblems: A x = w B x."""

import re
import warnings

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg


@pytest.fixture(params=["one", "all"])
def _eigensolver(request):
    """Sets the eigensolver of the reduced problem; by default one device solves small matrices."""
    cases.set_eigensolver(request.param)
    yield
    cases.set_eigensolver("auto")


both = pytest.mark.usefixtures("_eigensolver")


def _metric(n, dtype, kappa=10.0):
    """Returns a positive definite matrix of this condition number."""
    q, _ = np.linalg.qr(cases.normal(cases.rng(n, 3), (n, n), np.result_type(dtype, np.float64)))
    matrix = (q * np.logspace(0, -np.log10(kappa), n)) @ q.conj().T
    return ((matrix + matrix.conj().T) / 2).astype(dtype)


def _errors(a, b, w, x):
    """Returns the norms of A X - B X W, relative to |A| |X| + |B| |X| |W|, and of X^H B X - 1."""
    a, b, w, x = map(cases.wide, (a, b, w, x))
    size = np.linalg.norm(a, 2) + np.linalg.norm(b, 2) * np.abs(w).max(initial=0)
    residual = np.linalg.norm(a @ x - b @ x * w, 2) / (size * np.linalg.norm(x, 2))
    return residual, np.linalg.norm(x.conj().T @ b @ x - np.eye(x.shape[1]), 2)


def _check(a, b, w, x, first=0, last=None):
    """Checks against LAPACK's, through SciPy: its eigenvalues, and its errors."""
    __tracebackhide__ = True
    n, unit = len(a), cases.eps(a.dtype)
    expected, vectors = scipy.linalg.eigh(a, b, driver="gvd")
    expected, vectors = expected[first:last], vectors[:, first:last]
    assert x.shape == vectors.shape and x.dtype == a.dtype
    assert w.dtype == expected.dtype
    _check_values(a, b, w, expected)
    references = _errors(a, b, expected, vectors)
    for error, reference in zip(_errors(a, b, w, x), references, strict=True):
        assert error <= 10 * reference + 10 * unit * n


def _check_values(a, b, w, expected):
    """Checks that values are as accurate as LAPACK's: |A| |B^-1| and cond(B) |w| in units of n eps
    (LAPACK Users' Guide, error bounds for the generalized symmetric definite eigenproblem)."""
    __tracebackhide__ = True
    unit = 10 * len(a) * cases.eps(a.dtype)
    smallest = np.linalg.norm(b, -2)
    atol = unit * np.linalg.norm(a, 2) / smallest
    rtol = unit * np.linalg.norm(b, 2) / smallest
    np.testing.assert_allclose(w, expected, rtol=rtol, atol=atol)


@both
@pytest.mark.parametrize(
    "n, ranks, dtype, tile",
    cases.broad(
        [
            (1, 2, "float64", None),
            (7, 4, "complex64", 1),
            (40, 1, "complex128", None),
            (64, 8, "float32", 3),
            (97, 3, "float64", 200),
            (130, 5, "complex64", 32),
            (256, 4, "float64", None),
            (301, 8, "complex128", 7),
        ],
        lambda n, *_: n <= 97,
    ),
)
def test_diagonalises(n, ranks, dtype, tile):
    mesh = cases.line(ranks)
    a, b = cases.hermitian(n, dtype), _metric(n, dtype)
    rows, metric = (cases.shard_rows(cases.upper_only(matrix), mesh) for matrix in (a, b))
    w, x, status = jaxmg.sygvd(rows, metric, tile, mesh, return_status=True)
    _check(a, b, w, x)
    assert x.sharding.is_equivalent_to(rows.sharding, 2)
    assert w.sharding.is_fully_replicated
    assert status.shape == () and status.dtype == np.int32 and status == 0
    np.testing.assert_array_equal(rows, cases.upper_only(a))
    np.testing.assert_array_equal(metric, cases.upper_only(b))


@both
@pytest.mark.parametrize("kappa", [1e3, 1e6])
def test_ill_conditioned(kappa):
    a, b = cases.hermitian(60, "float64"), _metric(60, "float64", kappa)
    _check(a, b, *jaxmg.sygvd(cases.shard_rows(a, cases.line(2)), b))


@both
@pytest.mark.parametrize("subset", [(0, 3), (17, 40)])
def test_subset(subset):
    mesh = cases.line(4)
    a, b = cases.hermitian(40, "complex128"), _metric(40, "complex128")
    rows, metric = (cases.shard_rows(cases.upper_only(matrix), mesh) for matrix in (a, b))
    w, x, status = jaxmg.eigh(rows, metric, subset_by_index=subset, return_status=True)
    _check(a, b, w, x, *subset)
    assert status == 0
    assert x.sharding.is_equivalent_to(rows.sharding, 2)


@both
def test_eigenvalues_alone():
    a, b = cases.hermitian(39, "float64"), _metric(39, "float64")
    expected = scipy.linalg.eigh(a, b, eigvals_only=True)
    rows = cases.shard_rows(a, cases.line(2))
    w, status = jaxmg.sygvd(rows, b, return_eigenvectors=False, return_status=True)
    assert status == 0
    _check_values(a, b, w, expected)
    np.testing.assert_array_equal(jaxmg.eigvalsh(rows, b), w)
    np.testing.assert_array_equal(jaxmg.eigvalsh(rows, b, subset_by_index=(3, 9)), w[3:9])


def test_eigh_of_all_is_sygvd():
    mesh = cases.line(2)
    a, b = cases.hermitian(10, "float32"), _metric(10, "float32")
    for found, expected in zip(
        jaxmg.eigh(a, b, 3, mesh, return_status=True),
        jaxmg.sygvd(a, b, 3, mesh, return_status=True),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_diagonal_matrices(dtype):
    """The eigenvalues are quotients, and the eigenvectors are columns of B^(-1/2)."""
    b = np.arange(1, 9)[::-1] ** 2
    a = (b * np.arange(8)).astype(dtype)
    w, x = jaxmg.sygvd(np.diag(a), np.diag(b.astype(dtype)), mesh=cases.line(3))
    np.testing.assert_allclose(
        w, np.arange(8), rtol=10 * cases.eps(dtype), atol=100 * cases.eps(dtype)
    )
    np.testing.assert_allclose(np.abs(x), np.diag(b**-0.5), atol=100 * cases.eps(dtype))


@both
@pytest.mark.parametrize("order", [1, 6, 20])
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_b_is_not_positive_definite(order, wrong):
    mesh = cases.line(2)
    a, b = (cases.positive_definite("well", 20, "float64") for _ in range(2))
    b[order - 1, order - 1] = wrong
    a, b = cases.shard_rows(a, mesh), cases.shard_rows(b, mesh)
    w, x, status = jaxmg.sygvd(a, b, 3, return_status=True)
    assert status == 20 + order
    assert np.isnan(w).all() and np.isnan(x).all()
    w, x, status = jaxmg.eigh(a, b, 3, subset_by_index=(2, 4), return_status=True)
    assert status == 20 + order
    assert np.isnan(w).all() and np.isnan(x).all()


@both
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("row, column", [(0, 0), (3, 30), (39, 39)])
def test_not_finite(value, row, column):
    mesh = cases.line(2)
    good = cases.positive_definite("well", 40, "complex64")
    bad = good.copy()
    bad[row, column] = value
    good, bad = cases.shard_rows(good, mesh), cases.shard_rows(bad, mesh)
    for a, b in ((bad, good), (good, bad)):
        w, x, status = jaxmg.sygvd(a, b, 7, return_status=True)
        assert 0 < status <= 40 if a is bad else 40 < status <= 80
        assert np.isnan(w).all() and np.isnan(x).all()


@both
def test_the_same_bits_every_time():
    mesh = cases.line(3)
    a, b = (cases.shard_rows(f(60, "float64"), mesh) for f in (cases.hermitian, _metric))
    for first, second in zip(jaxmg.sygvd(a, b), jaxmg.sygvd(a, b), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("subset", [None, (2, 9)])
def test_donated(subset):
    mesh = cases.line(2)
    a, b = cases.hermitian(40, "float64"), _metric(40, "float64")
    rows, metric = cases.shard_rows(a, mesh), cases.shard_rows(b, mesh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "donated buffers were not usable"
        w, x = jaxmg.eigh(rows, metric, subset_by_index=subset, donate=True)
    _check(a, b, w, x, *(subset or ()))
    assert rows.is_deleted() and metric.is_deleted()


def test_donated_where_one_of_them_lies_otherwise():
    mesh = cases.line(2)
    a, b = cases.hermitian(40, "float64"), _metric(40, "float64")
    rows, metric = cases.shard_rows(a, mesh), cases.shard(b, mesh)
    w = jaxmg.sygvd(rows, metric, return_eigenvectors=False, donate=True)
    _check_values(a, b, w, scipy.linalg.eigh(a, b, eigvals_only=True))
    assert rows.is_deleted() and metric.is_deleted()
    kept = b.copy()
    jax.block_until_ready(jaxmg.sygvd(cases.shard_rows(a, mesh), b, donate=True))
    np.testing.assert_array_equal(b, kept)


def test_one_matrix_twice_cannot_be_donated():
    a = cases.shard_rows(_metric(8, "float64"), cases.line(2))
    np.testing.assert_allclose(jaxmg.sygvd(a, a)[0], np.ones(8), rtol=1e-13)
    with pytest.raises(ValueError, match="sygvd: b shares the memory of a"):
        jaxmg.sygvd(a, a, donate=True)


@pytest.mark.extended
@both
def test_under_jit_on_a_grid():
    mesh = cases.grid()
    a, b = cases.hermitian(40, "float64"), _metric(40, "float64")

    @jax.jit
    def solve(a, b):
        where = {"mesh": mesh, "matrix_specs": P("r", "c")}
        w, x = jaxmg.sygvd(a + a, b, **where)
        return w / 2, x, *jaxmg.eigh(a, b, subset_by_index=(1, 5), **where)

    w, x, some, of_some = solve(cases.shard(a, mesh, "r", "c"), cases.shard(b, mesh, None, "c"))
    _check(a, b, w, x)
    _check(a, b, some, of_some, 1, 5)


def test_meshes_of_explicit_axes():
    mesh = cases.grid(AxisType.Explicit)
    a, b = cases.hermitian(24, "float64"), _metric(24, "float64")
    w, x = jax.jit(jaxmg.sygvd)(cases.shard(a, mesh, "r", "c"), cases.shard(b, mesh, None, "r"))
    _check(a, b, w, x)


def test_the_mesh_is_that_of_either_matrix():
    mesh = cases.line(2)
    a, b = cases.hermitian(20, "float64"), _metric(20, "float64")
    for pair in ((cases.shard_rows(a, mesh), b), (a, cases.shard_rows(b, mesh))):
        w, x = jaxmg.sygvd(*pair)
        assert x.sharding.mesh == mesh
        _check(a, b, w, x)


@cases.one_process("a device is of this process's")
def test_one_device():
    a, b = cases.hermitian(30, "complex64"), _metric(30, "complex64")
    _check(a, b, *jaxmg.sygvd(jax.device_put(a, cases.devices(1)[0]), jnp.asarray(b)))


@pytest.mark.slow
@both
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("n", [20, 21])
def test_inside_shard_map(n, vectors):
    ranks = 4
    mesh = cases.line(ranks)
    extra = -n % ranks
    a, b = cases.hermitian(n, "float64"), _metric(n, "float64")
    padded = [
        cases.shard(np.pad(matrix, ((0, extra), (0, 0))), mesh, "r", None) for matrix in (a, b)
    ]

    def solve(a, b):
        found = jaxmg.sygvd_shardmap_ctx(a, b, 3, return_eigenvectors=vectors)
        return found[:2] if vectors else found[:1]

    specs = (P(), P(None, "r")) if vectors else (P(),)
    w, *x = jax.jit(
        jax.shard_map(
            solve, mesh=mesh, in_specs=(P("r", None),) * 2, out_specs=specs, check_vma=False
        )
    )(*padded)
    if vectors:
        _check(a, b, w, x[0][:, :n])
    else:
        _check_values(a, b, w, scipy.linalg.eigh(a, b, eigvals_only=True))


def test_padding_of_the_caller():
    n, ranks = 20, 4
    mesh = cases.line(ranks)
    a, b = cases.hermitian(n, "float64"), _metric(n, "float64")

    def pad(matrix):
        blocks = matrix.reshape(ranks, n // ranks, n)
        return cases.shard(np.pad(blocks, ((0, 0), (0, 2), (0, 0))).reshape(-1, n), mesh, "r", None)

    w, x = jaxmg.sygvd(pad(a), pad(b), pad=False)
    x = np.asarray(x).reshape(ranks, -1, n)[:, : n // ranks].reshape(n, n)
    _check(a, b, w, x)


def test_the_work_arrays_take_the_memory_of_both():
    mesh = cases.line(2)
    a, b = cases.hermitian(20, "float64"), _metric(20, "float64")
    solve = jax.jit(
        lambda a, b: jaxmg.sygvd_shardmap_ctx(a, b, 3, mesh, P("r", None)), donate_argnums=(0, 1)
    )
    rows, metric = (cases.shard(matrix, mesh, "r", None) for matrix in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a_work, b_work, w, x, status = solve(rows, metric)
    assert rows.is_deleted() and metric.is_deleted()
    assert a_work.shape == b_work.shape == (20, 20) and status[0] == 0
    _check(a, b, w, x)
    assert len(jax.jit(lambda a, b: jaxmg.sygvd_shardmap_ctx(
        a, b, mesh=mesh, return_eigenvectors=False))(a, b)) == 4  # fmt: skip


@both
@pytest.mark.parametrize("vectors", [True, False])
def test_its_plan(request, vectors):
    """As docs/memory.md says, the plan is syevd's, plus B and two of its tile columns, plus memory
    for a rank's rows of A: on all ranks if they solve together with vectors, and on rank 0 if it
    solves alone. On GPUs this is a lower bound."""
    n, mesh = 1024, cases.line(2)
    alone, pair = (
        jaxmg.plan(name, n, "float64", mesh, donate=True, return_eigenvectors=vectors)
        for name in ("syevd", "sygvd")
    )
    rows = n * n // 2 * 8
    columns = 2 * n * jaxmg.plan("cho_factor", n, "float64", mesh).tile * 8
    room = np.subtract(pair.bytes, alone.bytes) - rows - columns
    least = 512  # pieces begin at multiples of 256 bytes
    most = least if jax.default_backend() == "cpu" else np.inf  # GPUs also have panels of B
    if request.node.callspec.params["_eigensolver"] == "one":
        more = room - np.array([0, rows])
        assert np.all((-least <= more) & (more <= most))
    elif vectors:
        assert np.all((-least <= room) & (room <= most))
    else:
        assert np.all((0 < room) & (room < rows + most))


def test_empty():
    w, x, status = jaxmg.sygvd(np.zeros((0, 0)), np.zeros((0, 0)), return_status=True)
    assert w.shape == (0,) and x.shape == (0, 0) and status == 0


_A, _B = np.eye(6), np.eye(6)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: jaxmg.sygvd(_A, _B[0]), ValueError, "b must be a matrix of a's shape, (6, 6); it"),
        (
            lambda: jaxmg.sygvd(_A, np.eye(5)),
            ValueError,
            "of a's shape, (6, 6); it has shape (5, 5",
        ),
        (lambda: jaxmg.sygvd(_A[0], _B), ValueError, "sygvd: a must be a square matrix"),
        (lambda: jaxmg.sygvd(_A, _B.astype("f4")), TypeError, "sygvd: a and b must have one dtype"),
        (lambda: jaxmg.sygvd(_A, _B.astype("i4")), TypeError, "sygvd: b has dtype int32"),
        (lambda: jaxmg.sygvd(_A, 3), TypeError, "sygvd: b must be a JAX or NumPy array; got int"),
        (lambda: jaxmg.eigh(_A, 3), TypeError, "eigh: b must be a JAX or NumPy array; got int"),
        (
            lambda: jaxmg.eigh(_A, np.eye(5), subset_by_index=(0, 1)),
            ValueError,
            "eigh: b must be a matrix of a's shape, (6, 6); it has shape (5, 5)",
        ),
        (
            lambda: jaxmg.eigh(_A, _B, subset_by_index=(0, 7)),
            ValueError,
            "eigh: subset_by_index must be (first, last) with 0 <= first < last <= 6",
        ),
        (
            lambda: jaxmg.sygvd(_A, _B, backend="cusolvermg"),
            ValueError,
            "sygvd: backend 'cusolvermg' is not available on platform",
        ),
    ],
)
def test_calls_that_cannot_be(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
