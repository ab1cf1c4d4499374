"""Eigenproblems that all ranks share, and subsets of eigenvalues."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg

# On CPU devices all ranks share the first order, and a single rank solves the second.
_SHARED, _ALONE = 300, 40


@pytest.fixture(params=["all"], autouse=True)
def _eigensolver(request):
    """Sets the eigensolver, since one device solves matrices as small as these by default."""
    cases.set_eigensolver(request.param)
    yield
    cases.set_eigensolver("auto")


@pytest.mark.parametrize("_eigensolver", ["one", "all", "auto"], indirect=True)
def test_which_ranks_work(request):
    for n in (4800, 20000):
        _, second = jaxmg.plan("syevd", n, "float64", cases.line(2)).bytes
        chosen = request.node.callspec.params["_eigensolver"]
        alone = {"one": True, "all": False, "auto": n == 4800}[chosen]
        assert (second < 12 * n**2) == alone


def test_eigensolvers_that_there_are_not():
    with pytest.raises(ValueError, match="must be auto, one or all; got 'two'"):
        cases.set_eigensolver("two")


@pytest.mark.core("float64", "complex64-all")
@pytest.mark.parametrize("_eigensolver", ["one", "all"], indirect=True)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_small_ones(dtype):
    for n, ranks in ((1, 2), (2, 3), (7, 4), (40, 5)):
        matrix = cases.hermitian(n, dtype)
        cases.check_syevd(matrix, *jaxmg.syevd(cases.shard_rows(matrix, cases.line(ranks)), 3))


@pytest.mark.core("all-300-4-complex128-None")
@pytest.mark.parametrize(
    "n, ranks, dtype, tile",
    cases.broad(
        [
            (_SHARED, 2, "float64", None),
            (_SHARED, 4, "complex128", None),
            (_SHARED, 3, "float32", 7),
            (333, 8, "complex64", None),
            (331, 5, "float64", 24),
            (512, 4, "float32", 1000),
            (517, 2, "complex64", None),
            (605, 8, "complex128", 50),
        ],
        lambda n, *_: n <= 333,
    ),
)
def test_ranks_share_the_work(n, ranks, dtype, tile):
    a, w = cases.check_diagonalises(n, ranks, dtype, tile)
    values = jaxmg.eigvalsh(a, None, tile, cases.line(ranks))
    largest = np.abs(np.asarray(w)).max()
    np.testing.assert_allclose(values, w, rtol=0, atol=10 * n * cases.eps(dtype) * largest)


@pytest.mark.parametrize("kind", ["cond", "graded", "clustered", "diagonal", "identity"])
def test_accuracy_of_lapack(kind):
    mesh = cases.line(2)
    matrix = cases.positive_definite(kind, _SHARED, "float64")
    cases.check_syevd(matrix, *jaxmg.syevd(cases.shard_rows(matrix, mesh)))


def test_a_kernel_of_smooth_functions():
    x = np.linspace(0, 1, _SHARED)
    matrix = np.exp(-((x[:, None] - x) ** 2) / 0.02)
    cases.check_syevd(matrix, *jaxmg.syevd(cases.shard_rows(matrix, cases.line(4))))


@pytest.mark.parametrize("scale", [1e-250, 1e-150, 1e150, 1e250])
def test_very_small_and_very_large_numbers(scale):
    matrix = cases.hermitian(_SHARED, "float64")
    w, v = map(np.asarray, jaxmg.syevd(cases.shard_rows(matrix * scale, cases.line(2))))
    cases.check_syevd(matrix, w / scale, v)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("row, column", [(0, 0), (150, 290), (299, 299)])
def test_not_finite(value, row, column):
    matrix = cases.hermitian(_SHARED, "complex64")
    matrix[row, column] = value
    w, v, status = jaxmg.syevd(cases.shard_rows(matrix, cases.line(2)), return_status=True)
    assert status == row + 1
    assert np.isnan(w).all() and np.isnan(v).all()


def test_the_same_bits_every_time():
    a = cases.shard_rows(cases.hermitian(_SHARED, "float64"), cases.line(3))
    first, second = jaxmg.syevd(a), jaxmg.syevd(a)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize("_eigensolver", ["one", "all"], indirect=True)
@pytest.mark.parametrize(
    "n, ranks, dtype, subset",
    cases.broad(
        [
            (_ALONE, 2, "float32", (0, 1)),
            (_ALONE, 1, "complex128", (10, 31)),
            (_ALONE - 1, 4, "float64", (38, 39)),
            (_SHARED, 2, "complex64", (0, 5)),
            (_SHARED, 4, "float64", (297, 300)),
            (301, 3, "complex128", (100, 201)),
            (333, 8, "float32", (0, 333)),
            (555, 5, "float64", (17, 18)),
        ],
        lambda n, *_: n <= 301,
    ),
)
def test_subset(n, ranks, dtype, subset):
    mesh = cases.line(ranks)
    matrix = cases.hermitian(n, dtype)
    a = cases.shard_rows(cases.upper_only(matrix), mesh)
    w, v, status = jaxmg.eigh(a, mesh=mesh, subset_by_index=subset, return_status=True)
    cases.check_subset(matrix, *subset, w, v)
    assert status == 0
    if n % ranks == 0:
        assert v.sharding.is_equivalent_to(a.sharding, 2)
    np.testing.assert_array_equal(a, cases.upper_only(matrix))


@pytest.mark.parametrize("n", [_ALONE, _SHARED])
def test_subset_under_jit_and_on_grids(n):
    mesh = cases.grid()
    matrix = cases.hermitian(n, "float64")
    a = cases.shard(matrix, mesh, "r", "c")

    @jax.jit
    def smallest(a):
        w, v = jaxmg.eigh(a + a, mesh=mesh, matrix_specs=P("r", "c"), subset_by_index=(0, 4))
        return w / 2, v

    cases.check_subset(matrix, 0, 4, *smallest(a))


def test_all_of_them_are_syevd():
    a = cases.shard_rows(cases.hermitian(_ALONE, "complex64"), cases.line(2))
    for found, expected in zip(jaxmg.eigh(a), jaxmg.syevd(a), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(jaxmg.eigh(a, return_status=True)) == 3


def test_eigvalsh_of_a_subset():
    a = cases.shard_rows(cases.hermitian(_ALONE, "float64"), cases.line(2))
    every, status = jaxmg.eigvalsh(a, return_status=True)
    assert status == 0
    np.testing.assert_array_equal(jaxmg.eigvalsh(a, subset_by_index=(3, 7)), every[3:7])
    some, status = jaxmg.eigvalsh(a, subset_by_index=(3, 7), return_status=True)
    np.testing.assert_array_equal(some, every[3:7])
    assert status == 0


def test_subset_of_what_is_not_finite():
    matrix = cases.hermitian(_SHARED, "float64")
    matrix[4, 9] = np.nan
    w, v, status = jaxmg.eigh(
        cases.shard_rows(matrix, cases.line(2)), subset_by_index=(1, 3), return_status=True
    )
    assert status == 5 and np.isnan(w).all() and np.isnan(v).all()


def test_donated():
    a = cases.shard_rows(cases.hermitian(_SHARED, "float64"), cases.line(2))
    matrix = np.asarray(a)
    w, v = jaxmg.eigh(a, subset_by_index=(2, 9), donate=True)
    assert a.is_deleted()
    cases.check_subset(matrix, 2, 9, w, v)


@pytest.mark.parametrize("routine", ["eigh", "eigvalsh"])
@pytest.mark.parametrize(
    "subset, error", [((0, 9), ValueError), ((-1, 3), ValueError), ((4, 4), ValueError),
                      ((5, 2), ValueError), (3, TypeError), ((1, 2, 3), TypeError),
                      ((0.5, 3), TypeError), ("ab", TypeError)],
)  # fmt: skip
def test_subsets_that_there_are_not(routine, subset, error):
    with pytest.raises(error, match=f"^{routine}: subset_by_index must be .*got "):
        getattr(jaxmg, routine)(np.eye(8), subset_by_index=subset)


@pytest.mark.parametrize("subset", [None, (0, 1)])
def test_what_is_no_matrix_is_refused_as_such(subset):
    with pytest.raises(ValueError, match="a must be"):
        jaxmg.eigh(jnp.ones((3,)), subset_by_index=subset)


@pytest.mark.parametrize("_eigensolver", ["one", "all"], indirect=True)
def test_one_device():
    matrix = cases.hermitian(_SHARED, "float64")
    a = jax.device_put(matrix, cases.devices(1)[0])
    cases.check_subset(matrix, 0, 3, *jaxmg.eigh(a, subset_by_index=(0, 3)))
