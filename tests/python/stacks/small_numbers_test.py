"""Denormal intermediate values count: a problem scaled to tiny or huge numbers is solved as
accurately as the original one.

XLA's CPU code treats denormals as 0, and the native code would inherit that.
"""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxmg
from jaxmg import _compat, linalg
from jaxmg._plugin import plugins
from jaxmg._stacks import native, scaling

_N = 40


def _scale(dtype):
    """Returns a power of two that leaves the matrix's entries normal, but not their last digits."""
    return np.ldexp(
        np.ones((), np.finfo(dtype).dtype), -1010 if np.finfo(dtype).bits == 64 else -118
    )


@pytest.fixture(autouse=True)
def _only_cpu():
    if jax.devices()[0].platform != "cpu":
        pytest.skip("GPUs take denormals for what they are")


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_potrs(ranks, dtype):
    matrix, b = cases.positive_definite("well", _N, dtype), np.arange(1, _N + 1).astype(dtype)
    scale = _scale(dtype)
    cases.check_potrs(
        matrix, np.asarray(jaxmg.potrs(matrix * scale, b * scale, 8, cases.line(ranks))), b
    )


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_potri(ranks, dtype):
    matrix, scale = cases.positive_definite("well", _N, dtype), _scale(dtype)
    cases.check_potri(matrix, np.asarray(jaxmg.potri(matrix / scale, 8, cases.line(ranks))) / scale)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_syevd(ranks, dtype):
    matrix, scale = cases.positive_definite("well", _N, dtype), _scale(dtype)
    w, v = jaxmg.syevd(matrix * scale, 8, cases.line(ranks))
    cases.check_syevd(matrix, np.asarray(w) / scale, np.asarray(v))


def _kept(matrix, b, mesh):
    return jaxmg.cho_factor(matrix, mesh=mesh, refine="auto").solve(b)


def _refined(matrix, b, mesh):
    return jaxmg.potrs(matrix, b, mesh=mesh, refine="auto")


def _looked_at(matrix, b, mesh):
    return jaxmg.linalg.solve(matrix, b, mesh=mesh)


_SOLVERS = {"kept": _kept, "refined": _refined, "looked_at": _looked_at}


@pytest.mark.extended
@pytest.mark.parametrize(
    "ranks, dtype, solver",
    cases.broad(
        itertools.product((1, 4), cases.DTYPES, _SOLVERS),
        lambda ranks, dtype, solver: (
            ranks == 4 and cases.DTYPES.index(dtype) == list(_SOLVERS).index(solver)
        ),
    ),
)
def test_solutions_of_any_scale(ranks, dtype, solver):
    """Solutions are right if the largest entries are so small that others are denormal, and so
    large that sums overflow."""
    mesh, limits = cases.line(ranks), np.finfo(np.finfo(dtype).dtype)
    matrix, b = (
        cases.positive_definite("well", _N, dtype),
        cases.normal(cases.rng(1), (_N, 2), dtype),
    )
    tiny, huge = limits.minexp + 6, limits.maxexp - 4
    for of_a, of_b in ((tiny, tiny), (0, tiny), (tiny, 0), (huge, huge), (huge, 0), (0, huge)):
        a = cases.shard_rows(_times_power(matrix, of_a), mesh)
        x = _SOLVERS[solver](a, _times_power(b, of_b), mesh)
        cases.check_potrs(matrix, _times_power(np.asarray(x), of_a - of_b), b)


_ONE_OR_MORE = {
    "solve": jaxmg.linalg.solve,
    "solve_triangular": jaxmg.linalg.solve_triangular,
}


@pytest.mark.extended
@pytest.mark.parametrize(
    "dtype, ranks, name, n, batch",
    cases.broad(
        itertools.product(cases.DTYPES, (1, 4), _ONE_OR_MORE, (20, _N), (False, True)),
        lambda dtype, ranks, name, n, batch: (dtype, ranks, batch) in (
            ("float32", 1, False), ("float64", 4, True), ("complex64", 1, True),
        ),
    ),
)  # fmt: skip
def test_small_matrices_and_right_hand_sides(dtype, ranks, name, n, batch):
    """Solutions are right if all entries are normal but products of them aren't."""
    exponent = np.finfo(dtype).minexp + 3
    matrix = 2 * cases.positive_definite("well", n, dtype)
    matrix = np.triu(matrix) if name == "solve_triangular" else matrix
    b = cases.normal(cases.rng(1), (n, 2), dtype)
    arrays = [_times_power(x, exponent) for x in (matrix, b)]
    if batch:
        if not _compat.TRANSFORMS:
            pytest.skip("batches need JAX 0.10")
        arrays = [np.stack(3 * [x]) for x in arrays]
    found = np.asarray(_ONE_OR_MORE[name](*arrays, mesh=cases.line(ranks)))
    for x in found if batch else [found]:
        cases.check_potrs(matrix, x, b)


def _with_unit_diagonal(factors, b, **where):
    return linalg.solve_triangular(*factors, b, unit_diagonal=True, **where)


_WITH_FACTORS = {"unit_diagonal": _with_unit_diagonal, "lu_solve": linalg.lu_solve}


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "dtype, ranks, name, vector",
    cases.broad(
        itertools.product(cases.DTYPES, (1, 4), _WITH_FACTORS, (False, True)),
        lambda dtype, ranks, name, vector: (dtype, ranks, vector) in (
            ("float32", 1, False), ("complex128", 4, True),
        ),
    ),
)  # fmt: skip
def test_small_right_hand_sides_of_batches(dtype, ranks, name, vector):
    """Solutions are right although products with the matrix, whose largest entry is near 1, are
    denormal."""
    exponent = np.finfo(dtype).minexp + 3
    matrix = 2 * cases.positive_definite("well", _N, dtype)
    b = cases.normal(cases.rng(1), (3, _N, 2), dtype)
    b = b[:, :, 0] if vector else b
    if name == "unit_diagonal":
        matrix = np.triu(matrix, 1) / 8 + np.eye(_N, dtype=dtype)
        factors = (matrix,)
    else:
        factors = scipy.linalg.lu_factor(matrix)
    stacked = tuple(np.stack([x] * 3) for x in factors)
    solve = functools.partial(_WITH_FACTORS[name], mesh=cases.line(ranks))
    found = jax.vmap(solve)(stacked, _times_power(b, exponent))
    for x, of_one in zip(np.asarray(found), b, strict=True):
        cases.check_potrs(matrix, _times_power(x, -exponent), of_one)


_SCALED = {
    "svdvals": linalg.svdvals,
    "eigvalsh": linalg.eigvalsh,
    "norm": functools.partial(linalg.norm, axis=(-2, -1)),
    "r": lambda a, **where: jnp.abs(linalg.qr(a, "r", **where)),
    "slogdet": lambda a, **where: linalg.slogdet(a, **where)[1],
}


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, dtype, ranks, batch, factor",
    cases.broad(
        itertools.product(_SCALED, ("float32", "float64"), (1, 4), (False, True), (0.5, 2**-20)),
        lambda name, dtype, ranks, batch, factor: (
            (dtype, ranks, batch, factor) == ("float64", 1, False, 0.5)
        ),
    ),
)
def test_the_largest_numbers_times_a_constant(name, dtype, ranks, batch, factor):
    """XLA of JAX 0.11 would merge our scale with a constant of the same program into a denormal
    number."""
    mesh, limits = cases.line(ranks), np.finfo(dtype)
    matrix = np.diag(np.ldexp(np.array([1.75, 1.5, 1, 1.25], dtype), limits.maxexp - 1))
    if batch:
        if not _compat.TRANSFORMS:
            pytest.skip("batches need JAX 0.10")
        matrix = np.stack(4 * [matrix])
    function = functools.partial(_SCALED[name], mesh=mesh)
    found = jax.jit(lambda a: function(a * factor))(matrix)
    expected = function(matrix * np.array(factor, dtype))
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(expected).all() and np.min(expected, initial=1, where=expected > 0) >= 1


# One real and one complex dtype, of both precisions.
_TWO_DTYPES = pytest.mark.parametrize(
    "dtype",
    cases.broad([(dtype,) for dtype in cases.DTYPES], "complex128".__eq__),
)


@pytest.mark.extended
@_TWO_DTYPES
def test_right_hand_sides_of_different_scales(dtype):
    """Each column is scaled by itself, and with A's rows too."""
    limits = np.finfo(np.finfo(dtype).dtype)
    matrix, b = (
        cases.positive_definite("well", _N, dtype),
        cases.normal(cases.rng(1), (_N, 4), dtype),
    )
    powers = [limits.minexp - limits.nmant // 2, limits.minexp, 0, limits.maxexp - 4]
    columns = np.stack([_times_power(b[:, i], e) for i, e in enumerate(powers)], axis=1)
    x = np.asarray(_kept(matrix, columns, cases.line(2)))
    for i, exponent in enumerate(powers):
        found, read = (_times_power(v[:, i], -exponent) for v in (x, columns))
        # The first column has half of its digits.
        precision = 1 if i else 2.0 ** (limits.nmant // 2 + 4)
        error = cases.backward_error(matrix, found, read)
        assert error <= 10 * _N * cases.eps(dtype) * precision


@pytest.mark.extended
@_TWO_DTYPES
def test_hermitian_matrices_of_any_scale(dtype):
    """The Hermitian check includes denormal entries, and entries whose sums overflow."""
    limits = np.finfo(np.finfo(dtype).dtype)
    matrix = cases.hermitian(_N, dtype)
    for exponent in (limits.minexp - limits.nmant // 2, limits.minexp, limits.maxexp - 4):
        for ranks in (1, 4):
            a = _times_power(matrix, exponent)
            assert np.isfinite(jaxmg.linalg.eigvalsh(a, mesh=cases.line(ranks))).all()
            a[3, 4] *= 1.5
            assert np.isnan(jaxmg.linalg.eigvalsh(a, mesh=cases.line(ranks))).all()


def _times_power(array, exponent):
    """Returns array 2^exponent, which NumPy rounds once."""
    if np.iscomplexobj(array):
        parts = (np.ldexp(part, exponent) for part in (array.real, array.imag))
        return np.stack([*parts], axis=-1).view(array.dtype)[..., 0]
    return np.ldexp(array, exponent)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", cases.breadth("float64")])
def test_multiplication_by_powers(dtype):
    """Powers multiply any numbers correctly: random bits, denormals, the ends of the range and
    NaN."""
    limits, integer = np.finfo(dtype), f"uint{np.finfo(dtype).bits}"
    random = cases.rng(3)
    x = random.integers(np.iinfo(integer).max, size=20000, dtype=integer)
    x[::2] &= (limits.smallest_subnormal - limits.tiny).view(integer)  # sign and digits
    ends = [0, -0.0, np.inf, -np.inf, np.nan, limits.tiny, limits.smallest_subnormal, limits.max]
    x = np.concatenate([x.view(dtype), np.array(ends, dtype)])
    for most in (10, limits.maxexp, 2 * limits.maxexp):
        exponent = random.integers(-most, most, size=x.shape, dtype=np.int32)
        found = np.asarray(jax.jit(scaling.times_power)(x, exponent))
        with np.errstate(over="ignore", invalid="ignore"):
            expected = np.ldexp(x, exponent)
        same = (found.view(integer) == expected.view(integer)) | (np.isnan(x) & np.isnan(found))
        assert same.all()
    there = np.isfinite(x) & (x != 0)
    np.testing.assert_array_equal(scaling.exponents(x)[there], np.frexp(x)[1][there] - 1)


def _stack_and_more(a, b, c):
    """Returns solutions by a stack's handler, which runs on XLA's thread, and then a product of
    XLA's own."""
    x = native.solve_small(a, b)
    c, x = jax.lax.optimization_barrier((c, x))
    return x, c * 0.25


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("jitted", [False, True])
def test_stacks_keep_denormals_and_leave_the_mode_of_the_thread(jitted, size):
    plugins.load("cpu")
    smallest = np.finfo(np.float64).smallest_normal
    a = np.broadcast_to(2.0 * np.eye(2), (size, 2, 2))
    b = np.full((size, 2, 1), smallest)
    f = jax.jit(_stack_and_more) if jitted else _stack_and_more
    x, flushed = f(a, b, jnp.full((size, 3), smallest))
    assert np.all(np.asarray(x) == smallest / 2)
    assert not np.any(np.asarray(flushed))  # XLA flushes denormals to 0 on CPU devices
