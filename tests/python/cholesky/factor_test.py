"""Cholesky factors that are kept: the functions that use them, and how they pass through JAX."""

import itertools
import warnings

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxmg

_N = 13  # only 1 of the numbers of devices divides it
_TRANS = {
    "N": lambda lower: lower,
    "T": lambda lower: lower.T,
    "C": lambda lower: lower.conj().T,
}


def _problem(n=_N, dtype="float64", nrhs=2):
    return cases.positive_definite("well", n, dtype), cases.normal(
        cases.rng(n, 1), (n, nrhs), dtype
    )


def _close(actual, expected, scale, dtype):
    """Compares up to rounding errors; ``scale`` bounds the sum of the terms' magnitudes."""
    __tracebackhide__ = True
    assert np.shape(actual) == np.shape(expected)
    error = np.abs(cases.wide(actual) - cases.wide(expected)).max(initial=0)
    assert error <= 10 * cases.eps(dtype) * scale


def _compute(factor, b):
    """Returns the results of all methods of a factor."""
    return {
        "upper": factor.upper(),
        "diagonal": factor.diagonal(),
        "logdet": factor.logdet(),
        "solve": factor.solve(b),
        "inv": factor.inv(),
        "matmul": {trans: factor.matmul(b, trans) for trans in _TRANS},
        "solve_triangular": {trans: factor.solve_triangular(b, trans) for trans in _TRANS},
    }


def _check(matrix, b, factor, compute=None):
    """Checks all attributes and methods of a factor; in one program, unless ``compute`` is
    passed."""
    __tracebackhide__ = True
    dtype, n = matrix.dtype, len(matrix)
    real = np.finfo(dtype).dtype
    norm = np.linalg.norm(cases.wide(matrix), 2)
    assert (factor.shape, factor.dtype, factor.status) == ((n, n), dtype, 0)
    assert factor.status.dtype == np.int32 and factor.status.shape == ()
    found = jax.tree.map(np.asarray, (compute or jax.jit(_compute))(factor, b))
    upper, diagonal, logdet = found["upper"], found["diagonal"], found["logdet"]
    assert upper.shape == matrix.shape and upper.dtype == dtype
    np.testing.assert_array_equal(upper, np.triu(upper))
    lower = cases.wide(upper).conj().T
    assert (
        np.linalg.norm(lower @ lower.conj().T - cases.wide(matrix), 2)
        <= 10 * n * cases.eps(dtype) * norm
    )
    assert diagonal.dtype == logdet.dtype == real and np.all(diagonal > 0)
    np.testing.assert_array_equal(diagonal, np.diagonal(upper))
    logarithms = 2 * np.log(cases.wide(diagonal))
    _close(logdet, logarithms.sum(), n * (1 + np.abs(logarithms).max()), dtype)
    cases.check_potrs(matrix, found["solve"], b)
    cases.check_potri(matrix, found["inv"])
    for trans, op in _TRANS.items():
        x, product = found["solve_triangular"][trans], found["matmul"][trans]
        assert x.dtype == product.dtype == dtype
        scale = n * np.linalg.norm(lower, 2)
        _close(product, op(lower) @ cases.wide(b), scale * np.linalg.norm(b, 2), dtype)
        _close(op(lower) @ cases.wide(x), b, scale * np.linalg.norm(x, 2), dtype)


def _is_dealt(n, ranks, *_):
    """Returns whether a case is in the third of the table in which every size, number of ranks,
    dtype and tile width occurs."""
    return cases.SIZES.index(n) % 3 == cases.RANKS.index(ranks) % 3


@pytest.mark.parametrize("n, ranks, dtype, tile", cases.broad(cases.TABLE, _is_dealt))
def test_sizes_and_meshes(n, ranks, dtype, tile):
    matrix, b = _problem(n, dtype)
    mesh = cases.line(ranks)
    _check(matrix, b, jaxmg.cho_factor(cases.shard_rows(matrix, mesh), tile, mesh))


@pytest.mark.core("4-complex128")
@pytest.mark.parametrize(
    "ranks, dtype",
    cases.broad(
        itertools.product([1, 2, 4], cases.DTYPES),
        lambda ranks, dtype: ranks == (4 if dtype == "complex128" else 2),
    ),
)
def test_dtypes(ranks, dtype):
    matrix, b = _problem(dtype=dtype)
    _check(matrix, b, jaxmg.cho_factor(cases.upper_only(matrix), 2, cases.line(ranks)), _compute)


def test_names_of_transposes():
    matrix, b = _problem(dtype="complex128")
    factor = jaxmg.cho_factor(matrix, 2, cases.line(2))
    for method in (factor.matmul, factor.solve_triangular):
        np.testing.assert_array_equal(method(b), method(b, "N"))
        for number, name in enumerate(_TRANS):
            np.testing.assert_array_equal(method(b, number), method(b, name))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,)])
@pytest.mark.parametrize("source", ["numpy", "replicated", "one device", "sharded"])
def test_right_hand_sides(source, shape):
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", 14, "float64")
    b = cases.normal(cases.rng(2), (14, *shape), "float64")
    array = {
        "numpy": lambda: b,
        "replicated": lambda: cases.shard(b, mesh),
        "one device": lambda: jnp.asarray(b),
        "sharded": lambda: cases.shard(b, mesh, "r"),
    }[source]()
    factor = jaxmg.cho_factor(matrix, 3, mesh)
    for x in (jaxmg.cho_solve(factor, array), factor.solve(array), factor.matmul(array)):
        assert x.shape == b.shape and x.dtype == b.dtype
        assert x.sharding.is_equivalent_to(
            array.sharding if source == "sharded" else cases.shard(b, mesh).sharding, b.ndim
        )
    if b.size:
        cases.check_potrs(matrix, jaxmg.cho_solve(factor, array), b)


def test_order_zero():
    factor = jaxmg.cho_factor(np.zeros((0, 0)), mesh=cases.line(2))
    assert (factor.log_det, factor.status, factor.shape) == (0, 0, (0, 0))
    assert factor.solve(np.zeros((0, 3))).shape == (0, 3)
    assert factor.inv().shape == factor.upper().shape == (0, 0)
    assert factor.diagonal().shape == (0,)
    again = jaxmg.CholeskyFactor.from_upper(factor.upper(), mesh=cases.line(2))
    assert (again.log_det, again.status) == (0, 0)


def _all_results(factor):
    b = np.ones(factor.n, factor.dtype)
    yield from (factor.solve(b), factor.solve_triangular(b), factor.matmul(b), factor.inv())
    yield from (factor.logdet(), factor.diagonal(), factor.upper()[np.triu_indices(factor.n)])


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("what", ["indefinite", "NaN", "infinite"])
def test_a_failed_factorization_is_a_nan_factor(what, ranks, jitted):
    mesh = cases.line(ranks)
    matrix = cases.positive_definite("well", _N, "float64")
    matrix[9, 9] = {"indefinite": -1, "NaN": np.nan, "infinite": np.inf}[what]

    def factorize(a):
        return jaxmg.cho_factor(a, 3, mesh)

    factor = (jax.jit(factorize) if jitted else factorize)(matrix)
    if what == "indefinite":
        assert factor.status == scipy.linalg.lapack.dpotrf(matrix)[1] == 10
    assert factor.status != 0
    for result in _all_results(factor):
        assert np.all(np.isnan(result))


def _factorize_on(mesh):
    matrix, b = _problem()
    return matrix, b, jaxmg.cho_factor(matrix, 2, mesh)


@pytest.mark.parametrize("ranks", cases.broad([(1,), (2,), (4,)], lambda ranks: ranks == 4))
def test_across_the_borders_of_jit(ranks):
    mesh = cases.line(ranks)
    matrix, b, eager = _factorize_on(mesh)
    factor = jax.jit(lambda a: jaxmg.cho_factor(a, 2, mesh))(matrix)
    assert jax.tree.structure(factor) == jax.tree.structure(eager)
    same = jax.jit(lambda factor: factor)(factor)
    for one in (factor, same):
        _check(matrix, b, one)
    solve = jax.jit(lambda factor, b: (factor.solve(b), factor.inv(), factor.matmul(b)))
    for one in (eager, factor):
        x, inverse, product = solve(one, b)
        cases.check_potrs(matrix, x, b)
        cases.check_potri(matrix, inverse)
        np.testing.assert_allclose(product, one.matmul(b), rtol=1e-12)


def test_closed_over():
    matrix, b, factor = _factorize_on(cases.line(4))
    cases.check_potrs(matrix, jax.jit(lambda b: factor.solve(b))(b), b)


@pytest.mark.extended
def test_in_a_loop():
    """A scan may close over a factor, and may carry and replace one."""
    mesh = cases.line(4)
    matrix, b, factor = _factorize_on(mesh)

    def refine(x, _):
        return x + factor.solve(b - matrix @ x), None

    cases.check_potrs(matrix, jax.lax.scan(refine, jnp.zeros_like(b), length=3)[0], b)

    def replace(kept, k):
        return jaxmg.cho_factor(k * matrix, 2, mesh), kept.solve(b)

    last, solutions = jax.jit(lambda kept: jax.lax.scan(replace, kept, jnp.array([2.0, 3.0, 4.0])))(
        factor
    )
    for k, x in zip((1, 2, 3), solutions, strict=True):
        cases.check_potrs(k * matrix, x, b)
    _check(4 * matrix, b, last)


@pytest.mark.core("False")
@pytest.mark.parametrize("first", [True, False])
def test_in_a_branch(first):
    mesh = cases.line(2)
    matrix, b, factor = _factorize_on(mesh)
    other = jaxmg.cho_factor(2 * matrix, 2, mesh)

    @jax.jit
    def choose(which, one, other):
        factor = jax.lax.cond(which, lambda: one, lambda: other)
        return factor, jax.lax.cond(which, lambda: one.solve(b), lambda: other.solve(2 * b))

    chosen, x = choose(first, factor, other)
    _check(matrix if first else 2 * matrix, b, chosen)
    cases.check_potrs(matrix, x, b)


@pytest.mark.parametrize("method", ["inv", "upper"])
def test_donated_factor(method):
    """The result takes the memory of the donated factor, which is deleted."""
    matrix = cases.positive_definite("well", 16, "float64")
    factor = jaxmg.cho_factor(cases.shard(matrix, cases.line(2), "r", None), 4)
    expected = np.asarray(getattr(factor, method)())
    assert not factor.tiles.is_deleted()
    donated = jax.jit(lambda factor: getattr(factor, method)(), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        np.testing.assert_array_equal(donated(factor), expected)
    assert factor.tiles.is_deleted()


def test_donated_factor_given_back():
    matrix, b, factor = _factorize_on(cases.line(2))
    expected = np.asarray(factor.solve(b))
    step = jax.jit(lambda factor, b: (factor, factor.solve(b)), donate_argnums=0)
    for _ in range(3):
        factor, x = step(factor, b)
        np.testing.assert_array_equal(x, expected)
    _check(matrix, b, factor)


@pytest.mark.parametrize("donate", [False, True])
def test_donated_matrix(donate):
    matrix, b = _problem(16)
    a = cases.shard(matrix, cases.line(2), "r", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "donated buffers were not usable"
        factor = jaxmg.cho_factor(a, 4, donate=donate)
    assert a.is_deleted() == donate
    _check(matrix, b, factor)


def test_the_factor_is_made_in_the_place_of_a():
    n, mesh = 64, cases.line(2)
    a = cases.shard(cases.positive_definite("well", n, "float64"), mesh, "r", None)
    block = n * n * 8 // 2

    def analyse(**options):
        made = jax.jit(lambda a: jaxmg.cho_factor(a, 8, mesh, P("r", None)), **options)
        return made.lower(a).compile().memory_analysis()

    assert analyse(donate_argnums=0).alias_size_in_bytes >= block
    for analysis in (analyse(), analyse(donate_argnums=0)):
        assert analysis.temp_size_in_bytes < block
        assert analysis.output_size_in_bytes < 1.1 * block


def _inputs(mesh_kind):
    """Yields meshes and specs of A."""
    yield Mesh(cases.pick([1, 3]), ("r",)), P("r", None)
    yield Mesh(cases.pick([2, 0, 3, 1]), ("r",)), P("r", None)
    for entries in (("r", None), (None, "c"), ("r", "c"), (("r", "c"), None), ()):
        yield cases.grid(mesh_kind), P(*entries)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, n",
    cases.broad(itertools.product(range(7), [16, _N]), lambda case, n: n == 16 or case in (1, 4)),
)
def test_meshes_and_specs(case, n):
    """Factors work on some of the devices, in any order, with replicas, and with sharded rows and
    columns; cases alternate between automatic and explicit axes."""
    kind = (AxisType.Auto, AxisType.Explicit)[(case + (n == 16)) % 2]
    mesh, spec = list(_inputs(kind))[case]
    matrix, b = _problem(n)
    a = cases.shard(matrix, mesh, *spec) if n == 16 else matrix
    factor = jaxmg.cho_factor(a, 3, mesh, spec)
    assert factor.tiles.devices() == set(mesh.devices.flat)
    assert factor.mesh == mesh
    _check(matrix, b, factor)
    if n == 16:
        assert factor.inv().sharding.is_equivalent_to(a.sharding, 2)
        assert factor.upper().sharding.is_equivalent_to(a.sharding, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_context_mesh(kind):
    mesh = cases.line(4, kind=kind)
    matrix, b = _problem(16)
    with cases.context(mesh):
        a = cases.shard(matrix, mesh, "r", None)
        factor = jax.jit(lambda a: jaxmg.cho_factor(a, 3))(a)
        _check(matrix, b, factor)
        cases.check_potrs(matrix, jax.jit(jaxmg.cho_solve)(factor, b), b)
    _check(matrix, b, factor)  # its arrays carry the devices


def test_padded_by_the_caller():
    mesh = cases.line(2)
    matrix, b = _problem(16)
    blocks = np.pad(matrix.reshape(2, 8, 16), ((0, 0), (0, 3), (0, 0)), constant_values=np.nan)
    factor = jaxmg.cho_factor(blocks.reshape(22, 16), 3, mesh, P("r", None), pad=False)
    _check(matrix, b, factor)
    with pytest.raises(ValueError, match="rows of a, 13, must be a multiple of 2"):
        jaxmg.cho_factor(_problem()[0], 3, mesh, pad=False)


_MOVES = [(4, 2), (1, 8), (8, 3), (2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "before, after, dtype",
    cases.broad(
        [(*move, dtype) for move in _MOVES for dtype in cases.DTYPES],
        lambda *case: _MOVES.index(case[:2]) == cases.DTYPES.index(case[2]),
    ),
)
def test_saved_and_restored_on_other_devices(tmp_path, before, after, dtype):
    matrix, b = _problem(dtype=dtype)
    factor = jaxmg.cho_factor(matrix, 2, cases.line(before))
    np.savez(tmp_path / "factor", u=factor.upper())
    with np.load(tmp_path / "factor.npz") as file:
        u = file["u"]
    restored = jaxmg.CholeskyFactor.from_upper(u, 3, cases.line(after))
    assert restored.tiles.devices() == set(cases.line(after).devices.flat)
    _check(matrix, b, restored)
    np.testing.assert_array_equal(restored.upper(), u)


@pytest.mark.extended
def test_restored_under_jit_and_from_spoilt_lower_triangle():
    mesh = cases.line(4)
    matrix, b = _problem()
    u = cases.upper_only(scipy.linalg.cholesky(matrix))
    restore = jax.jit(lambda u: jaxmg.CholeskyFactor.from_upper(u, 2, mesh, P("r", None)))
    factor = restore(u)
    _check(matrix, b, factor)
    eager = jaxmg.CholeskyFactor.from_upper(u, 2, mesh, P("r", None))
    assert jax.tree.structure(factor) == jax.tree.structure(eager)


def test_restored_failure_has_a_status():
    mesh = cases.line(2)
    u = scipy.linalg.cholesky(_problem()[0])
    u[4, 4] = np.nan
    factor = jaxmg.CholeskyFactor.from_upper(u, 2, mesh)
    assert factor.status == 5 and np.isnan(factor.log_det)
    u[4, 4] = -1
    factor = jaxmg.CholeskyFactor.from_upper(u, 2, mesh)
    assert factor.status == 5 and np.isnan(factor.log_det) and np.isnan(factor.solve(u[0])).all()


@pytest.mark.core("True-2")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_lower_factor_is_refused(jitted, ranks):
    """A lower factor is refused, since only its diagonal would be read. A diagonal factor is
    accepted, and so is an upper factor with anything below the diagonal."""
    mesh, matrix = cases.line(ranks), _problem()[0]

    def status(u):
        factor = jaxmg.CholeskyFactor.from_upper(u, 2, mesh, P("r", None))
        return factor.status, factor.log_det, *_all_results(factor)

    status = jax.jit(status) if jitted else status
    upper = scipy.linalg.cholesky(matrix)
    first, *others = status(upper.T)
    assert first == -1 and all(np.isnan(x).all() for x in others)
    for right in (upper, np.diag(np.diag(upper)), scipy.linalg.cho_factor(matrix)[0]):
        first, log_det, *_ = status(right)
        assert first == 0
        np.testing.assert_allclose(log_det, 2 * np.log(np.diag(upper)).sum(), rtol=1e-13)


def test_leaves_are_all_there_is():
    """Leaves can be saved and restored one by one onto the same mesh, as checkpoints do."""
    matrix, b, factor = _factorize_on(cases.line(4))
    leaves, structure = jax.tree.flatten(factor)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    on_host = jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in leaves])
    _check(matrix, b, on_host)
    placed = jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), on_host, factor)
    _check(matrix, b, placed)
    assert hash(structure) == hash(jax.tree.structure(placed))


def test_shapes_alone():
    mesh = cases.line(2)
    a = jax.ShapeDtypeStruct((_N, _N), np.float64)
    factor = jax.eval_shape(lambda a: jaxmg.cho_factor(a, 2, mesh, P("r", None)), a)
    assert factor.shape == (_N, _N) and factor.dtype == np.float64
    assert repr(factor).startswith("CholeskyFactor(n=13, dtype=float64, tile=")
    x = jax.eval_shape(jaxmg.cho_solve, factor, jax.ShapeDtypeStruct((_N, 3), np.float64))
    assert x.shape == (_N, 3)


@pytest.mark.extended
def test_precision_stays_with_the_factor():
    mesh = cases.line(2)
    matrix, b = _problem(dtype="float32")
    factor = jaxmg.cho_factor(matrix, 2, mesh, precision="tf32")
    assert factor.precision == "tf32" and jax.jit(lambda f: f)(factor).precision == "tf32"
    assert jaxmg.cho_factor(matrix, 2, mesh, precision="highest").precision == "highest"
    assert jaxmg.cho_factor(matrix, 2, mesh).precision is None
    u = scipy.linalg.cholesky(matrix)
    assert jaxmg.CholeskyFactor.from_upper(u, 2, mesh, precision="tf32").precision == "tf32"
    assert jnp.isfinite(factor.solve(b)).all() and jnp.isfinite(factor.inv()).all()
    for call in (jaxmg.cho_factor, jaxmg.CholeskyFactor.from_upper):
        with pytest.raises(ValueError, match="precision='tf32' is for float32 and complex64"):
            call(matrix.astype("float64"), 2, mesh, precision="tf32")


def test_in_the_context_of_another_mesh():
    matrix, b, factor = _factorize_on(cases.line(2))
    with cases.context(cases.line(4)):
        cases.check_potrs(matrix, jaxmg.cho_solve(factor, b), b)
        with pytest.raises(ValueError, match="cho_solve: inside jit a mesh must have the devices"):
            jax.jit(lambda b: factor.solve(b))(b)
