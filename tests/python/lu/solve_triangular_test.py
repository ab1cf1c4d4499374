"""jaxmg.linalg.solve_triangular: reads one triangle of a matrix in place."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

from jaxmg import _compat, linalg

_N = 13
_OPTIONS = tuple(itertools.product((0, 1, 2), (False, True), (False, True)))


def _problem(n, dtype):
    """Returns a matrix and b. Both triangles are well-conditioned, with their own diagonal or
    ones."""
    matrix = cases.normal(cases.rng(n), (n, n), dtype) / (2 * n)
    return (matrix + 2 * np.eye(n)).astype(dtype), cases.normal(cases.rng(3), (n, 2), dtype)


def _only(matrix, lower, unit_diagonal):
    """Returns the matrix with NaN where the routine must not read."""
    n = len(matrix)
    read = np.tril(np.ones((n, n), bool), -int(unit_diagonal))
    return np.where(read if lower else read.T, matrix, np.nan).astype(matrix.dtype)


@pytest.mark.parametrize(
    "n, ranks, dtype, kind, options",
    cases.broad(
        [
            (n, ranks, dtype, kind, options)
            for (n, ranks), kind in itertools.product(
                ((1, 1), (_N, 1), (12, 2), (_N, 4), (16, 8), (3, 8)),
                (AxisType.Auto, AxisType.Explicit),
            )
            for dtype, options in zip(cases.DTYPES * 3, _OPTIONS, strict=True)
        ],
        core=lambda n, ranks, dtype, kind, options: (
            (
                ((n, ranks) == (_N, 4) and options in ((1, False, True), (2, False, True)))
                or (
                    (n, ranks) == (12, 2)
                    and kind == AxisType.Explicit
                    and options == (2, True, False)
                )
            )
            and (kind == AxisType.Explicit) == (ranks == 2)
        ),
    ),
)
def test_solves_with_one_triangle(n, ranks, dtype, kind, options):
    """Solutions agree with SciPy's, whatever the other triangle contains."""
    trans, lower, unit_diagonal = options
    mesh, (matrix, b) = cases.line(ranks, kind=kind), _problem(n, dtype)
    a = cases.shard_rows(_only(matrix, lower, unit_diagonal), mesh)
    expected = scipy.linalg.solve_triangular(matrix, b, *options)
    for columns in (b, b[:, 0]):
        x = linalg.solve_triangular(a, columns, *options, mesh=mesh)
        assert x.dtype == dtype
        np.testing.assert_allclose(
            x, expected.reshape(n, -1)[:, : columns.size // n].reshape(columns.shape),
            rtol=0, atol=20 * cases.eps(dtype) * np.abs(expected).max(),
        )  # fmt: skip


def test_singular_as_in_jax():
    matrix, b = _problem(5, "float64")
    matrix[2, 2] = 0
    for lower in (False, True):
        x = linalg.solve_triangular(matrix, b, lower=lower, mesh=cases.line(2))
        assert not np.isfinite(x).all()
        x = linalg.solve_triangular(matrix, b, lower=lower, unit_diagonal=True)
        assert np.isfinite(x).all()


def test_without_elements():
    a, mesh = np.zeros((0, 0)), cases.line(2)
    assert linalg.solve_triangular(a, np.zeros((0, 3)), mesh=mesh).shape == (0, 3)
    assert linalg.solve_triangular(np.eye(4), np.zeros((4, 0)), mesh=mesh).shape == (4, 0)


@pytest.mark.parametrize(
    "a, b, options, error, message",
    [
        (np.eye(3), np.ones(3), {"trans": 3}, ValueError, "trans must be 0 or 'N'"),
        (np.ones((3, 4)), np.ones(3), {}, ValueError, r"a must be .* shape \(3, 4\)"),
        (np.eye(3), np.ones(4), {}, ValueError, r"b must have shape \(3,\)"),
        (np.ones(3), np.ones(3), {}, ValueError, "a must be"),
        ([[1.0]], np.ones(1), {}, TypeError, "a must be a JAX or NumPy array"),
    ],
)
def test_what_can_not_be_right_raises(a, b, options, error, message):
    with pytest.raises(error, match=f"linalg.solve_triangular: {message}"):
        linalg.solve_triangular(a, b, **options)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "ranks, dtype, kind, options",
    cases.broad(
        [
            (ranks, dtype, kind, options)
            for ranks, dtype, kind in (
                (1, "float64", AxisType.Auto),
                (2, "complex128", AxisType.Auto),
                (4, "float64", AxisType.Explicit),
            )
            for options in _OPTIONS
        ],
        core=lambda ranks, dtype, kind, options: (
            ranks == 2 and options in ((0, False, False), (2, True, True))
        ),
    ),
)
def test_derivatives_are_those_of_jax(ranks, dtype, kind, options):
    """Derivatives agree for both triangles, of second order too."""
    mesh, (matrix, b) = cases.line(ranks, kind=kind), _problem(8, dtype)
    a = cases.shard_rows(matrix, mesh)
    along = np.roll(matrix, 1)

    def theirs(a, b):
        return jax.scipy.linalg.solve_triangular(a, b, *options)

    def ours(a, b):
        return linalg.solve_triangular(a, b, *options, mesh=mesh)

    def derivatives(f, along):
        def loss(a, b):
            return jnp.sum(jnp.abs(f(a, b) ** 2))

        def run(a, b):
            gradient = jax.grad(loss, (0, 1))
            return jax.jvp(lambda a: gradient(a, b), (a,), (cases.like(along, a),))

        return jax.jit(run)

    found = cases.on(mesh, derivatives(ours, jnp.asarray(along)))(a, b)
    expected = derivatives(theirs, jnp.asarray(along))(matrix, b)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * max(1, np.abs(y).max()))


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "ranks, lower",
    cases.broad(
        [(ranks, lower) for ranks in (1, 2, 8) for lower in (False, True)],
        core=lambda ranks, lower: (ranks, lower) == (2, True),
    ),
)
def test_batches(ranks, lower):
    """Batches of matrices, with a gradient, and batches of only right-hand sides agree with
    JAX's."""
    mesh = cases.line(ranks)
    matrices = np.stack([_problem(7, "float64")[0] * scale for scale in (1, 2, 3)])
    b = cases.normal(cases.rng(5), (3, 7, 2), "float64")

    def ours(a, b):
        return linalg.solve_triangular(a, b, 1, lower, mesh=mesh)

    def theirs(a, b):
        return jax.scipy.linalg.solve_triangular(a, b, 1, lower)

    expected = jax.vmap(theirs)(matrices, b)
    np.testing.assert_allclose(ours(matrices, b), expected, atol=1e-13)
    found = jax.vmap(ours, (None, 0))(matrices[0], b)
    np.testing.assert_allclose(found, jax.vmap(theirs, (None, 0))(matrices[0], b), atol=1e-13)
    found, expected = (
        jax.grad(lambda a, f=f: jnp.sum(jax.vmap(f)(a, b) ** 2))(matrices) for f in (ours, theirs)
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.extended
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_leaves_the_unknowns_below_alone(bad, ranks):
    """An entry of the matrix or of b that isn't finite affects only the unknowns above it, for one
    matrix and a batch."""
    if jax.default_backend() != "cpu" and ranks > 1:
        pytest.skip("on one H200 the unknowns below it were NaN; the cause isn't known")
    matrix, b = _problem(_N, "float64")
    expected = scipy.linalg.solve_triangular(matrix, b)
    for i, j in ((2, 5), (2, None)):
        a, right = matrix.copy(), b.copy()
        if j is None:
            right[i] = bad
        else:
            a[i, j] = bad
        for stacked in (False, True)[: 1 + _compat.TRANSFORMS]:
            arrays = (a[None], right[None]) if stacked else (a, right)
            x = np.asarray(linalg.solve_triangular(*arrays, mesh=cases.line(ranks))).reshape(
                b.shape
            )
            np.testing.assert_allclose(x[i + 1 :], expected[i + 1 :], rtol=1e-13)
            assert not np.isfinite(x[: i + 1]).any()
