"""The functions of jaxmg.linalg that take any square matrix, and LU with LAPACK's pivots."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

import jaxmg
from jaxmg import _compat, linalg

_N = 13


def _matrices(dtype):
    """Returns (general, positive definite, Hermitian and indefinite) matrices."""
    return (
        cases.general("well", _N, dtype),
        cases.positive_definite("well", _N, dtype),
        cases.hermitian(_N, dtype),
    )


@pytest.mark.extended
@pytest.mark.parametrize("dtype", [cases.breadth("float64"), "complex128"])
def test_the_matrix_decides_what_solves(dtype):
    """Results equal Cholesky's exactly if it succeeds, and LU's otherwise."""
    mesh, b = cases.line(2), cases.normal(cases.rng(3), (_N, 2), dtype)
    general, definite, indefinite = _matrices(dtype)
    for matrix, solve, invert in (
        (general, jaxmg.gesv, jaxmg.getri),
        (definite, jaxmg.potrs, jaxmg.potri),
        (indefinite, jaxmg.gesv, jaxmg.getri),
        (-definite, jaxmg.gesv, jaxmg.getri),
    ):
        x = linalg.solve(matrix, b, mesh=mesh)
        np.testing.assert_array_equal(x, solve(matrix, b, None, mesh))
        np.testing.assert_array_equal(linalg.inv(matrix, mesh=mesh), invert(matrix, None, mesh))
        sign, logdet = linalg.slogdet(matrix, mesh=mesh)
        expected = np.linalg.slogdet(matrix)
        np.testing.assert_allclose([sign, logdet], expected, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(linalg.det(matrix, mesh=mesh), np.linalg.det(matrix), rtol=1e-10)


@pytest.mark.parametrize(
    "assumed, lower, dtype",
    cases.broad(
        [
            (assumed, lower, dtype)
            for assumed in ("gen", "her", "hermitian", "sym", "pos")
            for lower in (False, True)
            for dtype in ("float64", "complex128")
        ],
        core=lambda assumed, lower, dtype: (
            len(assumed) == 3 and lower == (dtype == "complex128") != (assumed == "her")
        ),
    ),
)
def test_what_is_assumed(assumed, lower, dtype):
    """One triangle is read if ``assume_a`` implies symmetry."""
    mesh, b = cases.line(3), cases.normal(cases.rng(3), (_N, 2), dtype)
    general, definite, indefinite = _matrices(dtype)
    matrix = {
        "gen": general, "her": indefinite, "hermitian": definite, "sym": general + general.T,
        "pos": definite,
    }[assumed]  # fmt: skip
    read = matrix
    if assumed != "gen":
        other = (np.triu if lower else np.tril)(np.ones((_N, _N), bool), 1 if lower else -1)
        read = np.where(other, np.nan, matrix)
    x = linalg.solve(read, b, lower=lower, assume_a=assumed, mesh=mesh)
    np.testing.assert_allclose(matrix @ np.asarray(x), b, atol=1e-10)


@pytest.mark.parametrize("assumed", ["upper triangular", "lower triangular"])
def test_one_triangle_is_assumed(assumed):
    mesh, lower = cases.line(3), assumed.startswith("lower")
    general, b = (
        cases.general("well", _N, "complex64"),
        cases.normal(cases.rng(3), (_N,), "float32"),
    )
    general += 9 * np.eye(_N, dtype="complex64")
    triangle = (np.tril if lower else np.triu)(general)
    read = np.where(triangle == general, general, np.nan)
    x = linalg.solve(read, b, assume_a=assumed, mesh=mesh)
    assert x.dtype == "complex64"
    np.testing.assert_allclose(triangle @ np.asarray(x), b, atol=1e-5)


@pytest.mark.parametrize(
    "ranks, kind, dtype",
    [
        (4, AxisType.Auto, "float64"),
        cases.breadth(3, AxisType.Explicit, "complex64"),
        cases.breadth(1, AxisType.Auto, "bfloat16"),
    ],
)
def test_a_diagonal_is_assumed(ranks, kind, dtype):
    """Other entries don't count, nor have they a derivative; 0 gives infinity."""
    mesh, n = cases.line(ranks, kind=kind), 12
    wide = "float32" if dtype == "bfloat16" else dtype
    diagonal = np.array(2.0 ** np.arange(n), wide)
    # NaN differs from NaN where JAX compares the array of each process.
    matrix = np.full((n, n), np.nan if jax.process_count() == 1 else 7, wide)
    np.fill_diagonal(matrix, diagonal)
    a, solve = cases.shard_rows(jnp.asarray(matrix, dtype), mesh), linalg.solve
    for b in (np.ones(n, wide), cases.shard_rows(jnp.ones((n, 2), dtype), mesh)):
        x = cases.on(mesh, solve)(
            a, jnp.asarray(b, dtype), False, False, False, False, True, "diagonal"
        )
        expected = np.asarray(b, wide) / (diagonal if b.ndim == 1 else diagonal[:, None])
        assert x.dtype == dtype
        np.testing.assert_allclose(np.asarray(x, wide), expected, rtol=1e-6)
    if not _compat.TRANSFORMS:
        return
    with cases.context(mesh):
        ones = jnp.ones(n, dtype)

        def total(a):
            return jnp.sum(solve(a, ones, assume_a="diagonal").real.astype(jnp.finfo(wide).dtype))

        gradient = np.asarray(jax.grad(total)(a), wide)
        np.testing.assert_allclose(gradient, np.diag(-1 / diagonal**2), rtol=1e-6)
        batch = jnp.asarray(np.stack([matrix, 2 * matrix]), dtype)
        x = solve(batch, ones, assume_a="diagonal")
        np.testing.assert_allclose(np.asarray(x, wide), [1 / diagonal, 0.5 / diagonal], rtol=1e-6)
        x = jax.vmap(lambda a: solve(a, ones, assume_a="diagonal"))(batch)
        np.testing.assert_allclose(np.asarray(x, wide), [1 / diagonal, 0.5 / diagonal], rtol=1e-6)
    assert np.isinf(solve(jnp.zeros((2, 2)), jnp.ones(2), assume_a="diagonal")).all()


@pytest.mark.extended
def test_singular_as_in_jax():
    matrix, mesh = cases.general("well", _N, "float64"), cases.line(2)
    matrix[3] = 0
    assert not np.isfinite(linalg.solve(matrix, np.ones(_N), mesh=mesh)).all()
    assert linalg.slogdet(matrix, mesh=mesh) == (0, -np.inf) and linalg.det(matrix) == 0
    matrix[3] = np.nan
    assert np.isnan(linalg.solve(matrix, np.ones(_N), mesh=mesh)).all()
    assert np.isnan(linalg.det(matrix, mesh=mesh))


@pytest.mark.core("(9, 9)")
@pytest.mark.parametrize(
    "shape, ranks, dtype, kind",
    cases.broad(
        [
            (shape, ranks, dtype, kind)
            for shape in ((8, 8), (9, 9), (12, 5), (5, 12), (1, 4), (4, 1))
            for ranks, dtype in ((1, "float32"), (2, "float64"), (4, "complex128"))
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda shape, ranks, dtype, kind: (
            (shape, ranks) in (((9, 9), 2), ((12, 5), 4), ((5, 12), 2))
            and (kind == AxisType.Explicit) == (shape == (12, 5))
        ),
    ),
)
def test_lu_is_that_of_lapack(shape, ranks, dtype, kind):
    if kind == AxisType.Explicit and not _compat.TRANSFORMS:
        pytest.skip("JAX before 0.10 has no sharding rule of a scatter over explicit axes")
    mesh = cases.line(ranks, kind=kind)
    matrix = cases.normal(cases.rng(*shape), shape, dtype)
    a = cases.shard_rows(matrix, mesh)
    tolerance = {"rtol": 0, "atol": 200 * cases.eps(dtype)}
    lu, pivots = linalg.lu_factor(a, mesh=mesh)
    getrf = scipy.linalg.get_lapack_funcs("getrf", (matrix,))
    expected, expected_pivots, _ = getrf(matrix)
    np.testing.assert_array_equal(pivots, expected_pivots)
    np.testing.assert_allclose(lu, expected, **tolerance)
    assert lu.dtype == dtype and pivots.dtype == np.int32
    for permute_l in (False, True):
        found = linalg.lu(a, permute_l, mesh=mesh)
        for ours, theirs in zip(found, scipy.linalg.lu(matrix, permute_l), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, **tolerance)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", [cases.breadth("float64"), "complex128"])
def test_lu_solve(dtype):
    mesh, b = cases.line(4), cases.normal(cases.rng(3), (_N, 2), dtype)
    matrix = cases.general("well", _N, dtype)
    pair = scipy.linalg.lu_factor(matrix)
    kept = jaxmg.lu_factor(matrix, None, mesh)
    for trans in (0, 1, 2):
        expected = scipy.linalg.lu_solve(pair, b, trans)
        for factor in (pair, kept, linalg.lu_factor(matrix, mesh=mesh)):
            where = {} if factor is kept else {"mesh": mesh}
            np.testing.assert_allclose(
                linalg.lu_solve(factor, b, trans, **where), expected, atol=1e-11
            )
    with pytest.raises(ValueError, match="trans must be 0 or 'N'"):
        linalg.lu_solve(pair, b, 3)
    with pytest.raises(TypeError, match="lu_and_piv must be a pair"):
        linalg.lu_solve(3, b)


def test_lu_solve_promotes_as_jax_does():
    mesh, lu, b = cases.line(2), np.array([[2, 1], [0, 4]]), np.ones(2, "complex64")
    for _ in range(2):  # the second call reuses the plan
        found = linalg.lu_solve((lu, np.arange(2, dtype="int32")), b, mesh=mesh)
        assert found.dtype == "complex64"
        np.testing.assert_allclose(found, np.linalg.solve(lu, b), rtol=1e-6)


@pytest.mark.extended
@cases.needs_transformations
def test_a_batch():
    mesh = cases.line(2)
    a = np.stack(
        [cases.general("well", _N, "float64"), cases.positive_definite("well", _N, "float64")]
    )
    b = np.ones((2, _N, 1))
    np.testing.assert_allclose(a @ np.asarray(linalg.solve(a, b, mesh=mesh)), b, atol=1e-11)
    np.testing.assert_allclose(linalg.det(a, mesh=mesh), np.linalg.det(a), rtol=1e-10)
    lu, pivots = linalg.lu_factor(a, mesh=mesh)
    x = linalg.lu_solve((lu, pivots), b, mesh=mesh)
    np.testing.assert_allclose(a @ np.asarray(x), b, atol=1e-11)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "name, kind",
    cases.broad(
        itertools.product(("solve", "inv", "slogdet", "lu"), ("general", "definite")),
        lambda name, kind: (kind == "definite") == (name == "inv") and name != "solve",
    ),
)
def test_gradients_are_those_of_jax(name, kind):
    """Gradients agree with JAX's, also at a Hermitian matrix in directions that aren't
    Hermitian."""
    mesh, n = cases.line(2), 6
    make = cases.general if kind == "general" else cases.positive_definite
    a, b = make("well", n, "complex128"), cases.normal(cases.rng(4), (n, 2), "complex128")
    functions = {
        "solve": (lambda a, **o: linalg.solve(a, b, **o), lambda a: jnp.linalg.solve(a, b)),
        "inv": (linalg.inv, jnp.linalg.inv),
        "slogdet": (linalg.slogdet, jnp.linalg.slogdet),
        "lu": (linalg.lu, jax.scipy.linalg.lu),
    }

    def gradient(function, **where):
        def loss(a):
            leaves = jax.tree.leaves(function(a, **where))
            return sum(jnp.sum(jnp.sin(leaf)).real for leaf in leaves)

        return jax.jit(jax.grad(loss))(a)

    ours, theirs = functions[name]
    expected = gradient(theirs)
    found = gradient(ours, mesh=mesh)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@cases.needs_transformations
@pytest.mark.parametrize(
    "shape, ranks, dtype, kind",
    cases.broad(
        [
            (shape, ranks, dtype, kind)
            for shape in ((8, 3), (3, 8), (7, 5), (5, 7))
            for ranks, dtype in ((2, "float64"), (4, "complex128"))
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda shape, ranks, dtype, kind: (
            (shape, ranks, kind) in (((7, 5), 2, AxisType.Auto), ((3, 8), 4, AxisType.Explicit))
        ),
        slow=lambda *_: True,
    ),
)
def test_derivatives_of_lu_that_is_not_square(shape, ranks, dtype, kind):
    mesh, random = cases.line(ranks, kind=kind), cases.rng(*shape)
    matrix, along = (cases.normal(random, shape, dtype) for _ in range(2))

    def derivatives(function):
        def loss(a):
            return sum(jnp.sum(jnp.sin(x)).real for x in function(a)[-2:])

        return jax.jit(
            lambda a, e: (jax.jvp(lambda a: function(a)[-2:], (a,), (e,))[1], jax.grad(loss)(a))
        )

    ours = derivatives(lambda a: linalg.lu(a, mesh=mesh))
    found = cases.on(mesh, ours)(*(cases.shard_rows(x, mesh) for x in (matrix, along)))
    expected = derivatives(jax.scipy.linalg.lu)(matrix, along)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-11 * max(1, np.abs(y).max()))
