"""jaxmg.linalg.qr of tall and of small matrices, against LAPACK's."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import linalg
from jaxmg._qr import linalg as qr_linalg


def _normal(m, n, dtype="complex128"):
    return cases.normal(cases.rng(m, n), (m, n), dtype)


def _low_rank(m, n, rank):
    return _normal(m, rank) @ _normal(rank, n)


def _kahan(m, n, angle=1.2):
    scale = np.sin(angle) ** np.arange(n)
    square = scale[:, None] * (np.eye(n) - np.cos(angle) * np.triu(np.ones((n, n)), 1))
    return np.concatenate([square, np.zeros((m - n, n))])


def _hilbert(m, n):
    return 1 / (1 + np.arange(m)[:, None] + np.arange(n))


def _with_columns(m, n, change):
    a = _normal(m, n)
    change(a)
    return a


def _repeat(a):
    a[:, 1::3] = a[:, ::3][:, : a[:, 1::3].shape[1]]


def _zero(a):
    a[:, 1::2] = 0


# Functions that return matrices (m, n), m >= n. The square of `huge` is in the dtype's range, or
# nearly so.
HARD = {
    "random": lambda m, n, huge, unit: _normal(m, n),
    "graded by columns": lambda m, n, huge, unit: _normal(m, n) * np.logspace(0, -12, n),
    "graded by rows": lambda m, n, huge, unit: np.logspace(0, -12, m)[:, None] * _normal(m, n),
    "graded up": lambda m, n, huge, unit: np.logspace(-12, 0, m)[:, None] * _normal(m, n),
    "kahan": lambda m, n, huge, unit: _kahan(m, n),
    "hilbert": lambda m, n, huge, unit: _hilbert(m, n),
    "vandermonde": lambda m, n, huge, unit: np.vander(np.linspace(-1, 1, m), n),
    "of rank 2": lambda m, n, huge, unit: _low_rank(m, n, 2),
    "nearly of rank 1": lambda m, n, huge, unit: np.ones((m, n)) + 50 * unit * _normal(m, n),
    "zero columns": lambda m, n, huge, unit: _with_columns(m, n, _zero),
    "repeated columns": lambda m, n, huge, unit: _with_columns(m, n, _repeat),
    "zero": lambda m, n, huge, unit: np.zeros((m, n)),
    "columns scaled": lambda m, n, huge, unit: (
        _normal(m, n) * np.where(np.arange(n) % 2, huge, 1 / huge)
    ),
}


def hard(kind, m, n, dtype):
    unit = cases.eps(dtype)
    made = HARD[kind](m, n, 1e150 if unit < 1e-10 else 1e15, unit)
    return (made if np.dtype(dtype).kind == "c" else made.real).astype(dtype)


def _errors(a, q, r):
    """Returns (the error of A - Q R by columns, Q's departure from orthogonality)."""
    a, q, r = map(cases.wide, (a, q, r))
    lengths = np.linalg.norm(a / np.where(_largest(a), _largest(a), 1), axis=0) * _largest(a)
    difference = a - q @ r
    scale = np.where(_largest(difference), _largest(difference), 1)
    columns = np.linalg.norm(difference / scale, axis=0) * scale
    of_a = np.max(columns / np.where(lengths, lengths, 1), initial=0)
    return of_a, np.linalg.norm(q.conj().T @ q - np.eye(q.shape[1]))


def _largest(a):
    return np.abs(a).max(axis=0, initial=0)


def _check(a, q, r):
    __tracebackhide__ = True
    m, n = a.shape
    k = min(m, n)
    assert q.shape == (m, k) and r.shape == (k, n)
    assert q.dtype == r.dtype == a.dtype
    q, r = np.asarray(q), np.asarray(r)
    assert not np.tril(r, -1).any()
    assert (np.diagonal(r).real >= 0).all() and not np.diagonal(r).imag.any()
    bound = 6 * (np.sqrt(m) + n) * cases.eps(a.dtype)
    of_a, of_q = _errors(a, q, r)
    assert of_a <= bound and of_q <= bound


def _run(a, mesh, mode="reduced", **options):
    return linalg.qr(cases.shard_rows(a, mesh), mode, mesh=mesh, **options)


_LARGER = ((1, 1), (8, 3), (13, 5), (40, 5), (33, 8))


@pytest.mark.parametrize(
    "shape, ranks, dtype, kind",
    cases.broad(
        [
            (shape, ranks, cases.DTYPES[(i + j) % 4], kind)
            for (i, shape), (j, ranks) in itertools.product(
                enumerate(_LARGER), enumerate((1, 2, 4, 8))
            )
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda shape, ranks, dtype, kind: (
            (shape, ranks, kind) == ((13, 5), 2, AxisType.Explicit)
        ),
    ),
)
def test_as_lapack(shape, ranks, dtype, kind):
    mesh, a = cases.line(ranks, kind=kind), _normal(*shape, dtype)
    q, r = _run(a, mesh)
    _check(a, q, r)
    q_lapack, r_lapack = scipy.linalg.qr(a, mode="economic")
    signs = np.sign(np.diagonal(r_lapack).real)
    tolerance = dict(rtol=0, atol=1e3 * cases.eps(dtype))
    np.testing.assert_allclose(r, signs[:, None] * r_lapack, **tolerance)
    np.testing.assert_allclose(q, q_lapack * signs, **tolerance)
    np.testing.assert_allclose(_run(a, mesh, "r"), r, **tolerance)
    if shape[0] % ranks == 0:
        assert q.sharding.is_equivalent_to(cases.shard_rows(a, mesh).sharding, 2)
    assert r.sharding.is_fully_replicated or shape[0] < ranks * min(shape)


@pytest.mark.parametrize(
    "kind, dtype, ranks",
    cases.broad(
        [
            (kind, dtype, ranks)
            for (i, kind), (j, ranks) in itertools.product(enumerate(HARD), enumerate((1, 2, 4)))
            for dtype in cases.DTYPES
        ],
        core=lambda kind, dtype, ranks: (dtype, ranks) == ("float64", 2),
    ),
)
def test_hard_matrices(kind, dtype, ranks):
    """For hard A too, Q is orthogonal up to rounding, and each column has a small residual."""
    a = hard(kind, 37, 6, dtype)
    _check(a, *_run(a, cases.line(ranks)))


@pytest.mark.extended
def test_matrices_of_any_condition():
    """Any condition number has an algorithm: CholeskyQR2 up to 1e8, with a shift up to 1e15, and
    Householder's QR without a limit."""
    for condition in 10.0 ** np.arange(1, 17):
        left, right = (np.linalg.qr(_normal(m, 6, "float64"))[0] for m in (48, 6))
        a = 1e-9 * (left * np.logspace(0, -np.log10(condition), 6)) @ right  # lengths don't matter
        _check(a, *_run(a, cases.line(2)))


@pytest.mark.breadth
@pytest.mark.parametrize("ranks", range(1, 6))
def test_every_small_shape(ranks):
    mesh = cases.line(ranks)
    for (i, m), n in itertools.product(enumerate(range(7)), range(7)):
        a = _normal(m, n, cases.DTYPES[(i + n) % 4])
        _check(a, *_run(a, mesh))
        q, r = _run(np.zeros_like(a), mesh)
        _check(np.zeros_like(a), q, r)


@pytest.mark.extended
def test_large_matrices_of_one_device_take_fewest_operations(monkeypatch):
    monkeypatch.setattr(qr_linalg, "SMALL", 16)
    mesh = cases.line(1)
    for m, n, by_reflectors in ((67, 17, True), (69, 17, False)):
        a = _normal(m, n)
        qr = jax.jit(functools.partial(linalg.qr, mesh=mesh))
        with cases.by_all_ranks():
            assert ("jaxmg_geqrf" in qr.lower(a).as_text()) == by_reflectors, (m, n)
            q, r = qr(a)
        assert np.linalg.norm(q @ r - a) < 1e-13 * np.linalg.norm(a), (m, n)
        assert np.linalg.norm(q.conj().T @ q - np.eye(n)) < 1e-13, (m, n)


_OTHER_MODES = [(m, n, 2, "complex128") for m, n in ((5, 3), (3, 5), (4, 4), (0, 2), (2, 0))]
_OTHER_MODES += [
    (*shape, ranks, dtype)
    for shape, ranks, dtype in zip(
        ((5, 3), (4, 9), (13, 5), (7, 7)), (8, 1, 4, 3), cases.DTYPES, strict=True
    )
]


@pytest.mark.extended
@pytest.mark.parametrize(
    "m, n, ranks, dtype",
    cases.broad(_OTHER_MODES, core=lambda m, n, ranks, dtype: (m, n, ranks) == (5, 3, 2)),
)
def test_other_modes(m, n, ranks, dtype):
    a, mesh, unit = _normal(m, n, dtype), cases.line(ranks), cases.eps(dtype)
    q, r = _run(a, mesh, "complete")
    assert q.shape == (m, m) and r.shape == (m, n)
    np.testing.assert_allclose(q @ r, a, rtol=0, atol=50 * unit)
    np.testing.assert_allclose(q.conj().T @ q, np.eye(m), rtol=0, atol=50 * unit)
    found, expected = _run(a, mesh, "raw"), jnp.linalg.qr(a, "raw")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=500 * unit)
    assert isinstance(_run(a, mesh, "economic"), linalg.QRResult)
    np.testing.assert_array_equal(_run(a, mesh, "full")[0], q)


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind, ranks, dtype",
    cases.broad(
        [
            (kind, ranks, dtype)
            for kind, ranks, dtype in itertools.product(HARD, (1, 2, 4), cases.DTYPES)
        ],
        core=lambda kind, ranks, dtype: (kind, ranks, dtype) == ("random", 2, "complex128"),
    ),
)
def test_column_pivoting(kind, ranks, dtype):
    a, mesh = hard(kind, 29, 6, dtype), cases.line(ranks)
    q, r, order = _run(a, mesh, pivoting=True)
    assert order.dtype == np.int32 and sorted(order.tolist()) == list(range(6))
    _check(a[:, np.asarray(order)], q, r)
    diagonal = cases.wide(np.diagonal(r)).real
    # Each diagonal entry is the length of the longest remaining column.
    for i in range(6):
        left = np.asarray(r)[i:, i:] / max(diagonal[i], np.finfo(dtype).tiny)
        assert (np.linalg.norm(cases.wide(left), axis=0) <= 1 + 1e3 * cases.eps(dtype)).all() or (
            diagonal[i] <= 1e2 * cases.eps(dtype) * diagonal[0]
        )
    if kind in ("random", "graded by rows"):
        expected = scipy.linalg.qr(a, mode="economic", pivoting=True)
        np.testing.assert_array_equal(order, expected[2])
    again, same = _run(a, mesh, "r", pivoting=True)
    np.testing.assert_array_equal(same, order)
    rounding = cases.eps(dtype) * np.abs(r).max()  # smaller values aren't determined further
    np.testing.assert_allclose(again, r, rtol=1e-3, atol=10 * rounding)


@pytest.fixture
def traced_anew():
    """Clears caches before and after, so that these tests and others share no traced program."""
    cases.forget_plans()
    jax.clear_caches()
    yield
    cases.forget_plans()
    jax.clear_caches()


@pytest.mark.extended
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="each GPU factors R for itself")
@pytest.mark.usefixtures("traced_anew")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_pivoting_where_a_library_rounds_differently(monkeypatch, kind):
    """Calls of the library return different bases of the complement of A's columns; all ranks use
    the basis of one rank."""
    calls = itertools.count()

    def factor(a):
        q, r = np.linalg.qr(a)
        turned, _ = np.linalg.qr(cases.rng(next(calls)).standard_normal((4, 4)))
        return np.hstack([q[:, :2], q[:, 2:] @ turned]), np.triu(r) * (np.arange(6) < 2)[:, None]

    def qr(a):
        return jax.pure_callback(factor, (jax.typeof(a),) * 2, a)

    monkeypatch.setattr(qr_linalg.library, "qr", qr)
    a, mesh = _normal(32, 2, "float64") @ _normal(2, 6, "float64"), cases.line(4, kind=kind)
    q, r, order = map(np.asarray, _run(a, mesh, pivoting=True))
    np.testing.assert_allclose(q.T @ q, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(q @ r, a[:, order], atol=1e-12)
    assert next(calls) == (jax.process_index() == 0)  # once, in the first rank's process


@pytest.mark.parametrize(
    "shape, dtype",
    cases.broad(
        itertools.product(((37, 6), (7, 6), (6, 37)), cases.DTYPES),
        core=lambda shape, dtype: (shape, dtype) == ((37, 6), "float64"),
    ),
)
def test_numbers_that_are_not_finite(shape, dtype):
    for bad in (np.nan, np.inf):
        a = _normal(*shape, dtype)
        a[5, 1] = bad
        q, r = _run(a, cases.line(2))
        assert np.isnan(q).any() and not np.isfinite(r).all()


def test_errors():
    a = _normal(6, 3, "float64")
    with pytest.raises(ValueError, match="mode must be one of"):
        linalg.qr(a, "fast")
    with pytest.raises(NotImplementedError, match="pivoting=True works only with mode"):
        linalg.qr(a, "complete", pivoting=True)
    with pytest.raises(ValueError, match=r"must be a matrix of shape \(m, n\)"):
        linalg.qr(a[0])
    large = jax.ShapeDtypeStruct((5000, 4500), "float64")
    run = jax.jit(functools.partial(linalg.qr, mesh=cases.line(2), pivoting=True))
    with pytest.raises(
        NotImplementedError, match="neither tall nor small: on 2 devices it must have at least"
    ):
        run.lower(large)


def _reference(a, pivots=None):
    """Returns JAX's factors, with a nonnegative diagonal of R."""
    q, r = jnp.linalg.qr(a if pivots is None else a[:, pivots])
    diagonal = jnp.diagonal(r)
    units = jax.lax.stop_gradient(diagonal / jnp.abs(diagonal))
    return q * units, units.conj()[:, None] * r


_DERIVATIVES = cases.broad(
    [
        (shape, ranks, dtype, kind)
        for shape, ranks in (((12, 3), 4), ((7, 4), 2), ((5, 5), 1), ((3, 6), 2))
        for dtype in ("float64", "complex128")
        for kind in (AxisType.Auto, AxisType.Explicit)
    ],
    core=lambda shape, ranks, dtype, kind: (
        (ranks, dtype) == (4, "complex128") and kind == AxisType.Explicit
    ),
)


@cases.needs_transformations
@pytest.mark.parametrize("shape, ranks, dtype, kind", _DERIVATIVES)
def test_derivatives(shape, ranks, dtype, kind):
    """Derivatives agree with those of JAX's own QR, forward, reverse and of second order."""
    mesh = cases.line(ranks, kind=kind)
    a, moved = (cases.normal(cases.rng(i), shape, dtype) for i in (1, 2))
    weights = cases.normal(cases.rng(3), (shape[0], min(shape)), dtype)

    def ours(a):
        return tuple(linalg.qr(a, mesh=mesh))

    def loss(function, place=lambda x: x):
        def run(a):
            q, r = function(a)
            return jnp.sum(jnp.abs(q - place(weights)) ** 2) + jnp.sum(jnp.abs(r) ** 3)

        return run

    def on_mesh(x):
        return cases.shard_rows(x, mesh)

    run = cases.on(mesh, jax.jit(lambda a, moved: jax.jvp(ours, (a,), (moved,))))
    found = run(on_mesh(a), on_mesh(moved))
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(jax.jvp(_reference, (a,), (moved,))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    if kind == AxisType.Explicit:
        return
    gradient = jax.grad(loss(ours))
    np.testing.assert_allclose(
        gradient(on_mesh(a)), jax.grad(loss(_reference))(jnp.asarray(a)), rtol=0, atol=1e-10
    )

    def second(function):
        return jax.jvp(jax.grad(loss(function)), (jnp.asarray(a),), (jnp.asarray(moved),))[1]

    np.testing.assert_allclose(
        jax.jit(lambda: second(ours))(), second(_reference), rtol=0, atol=1e-8
    )


@cases.needs_transformations
@pytest.mark.breadth
def test_derivatives_with_pivots():
    mesh, a, moved = cases.line(2), *(cases.normal(cases.rng(i), (9, 4), "float64") for i in (1, 2))
    order = np.asarray(_run(a, mesh, pivoting=True)[2])
    run = jax.jit(lambda a, t: jax.jvp(
        lambda a: linalg.qr(a, mesh=mesh, pivoting=True)[:2], (a,), (t,)
    ))  # fmt: skip
    expected = jax.jvp(lambda a: _reference(a, order), (a,), (moved,))
    for one, other in zip(jax.tree.leaves(run(a, moved)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


@cases.needs_transformations
@pytest.mark.parametrize(
    "ranks, kind, count, dtype",
    cases.broad(
        [
            (1, AxisType.Auto, 3, "float32"), (2, AxisType.Auto, 5, "float64"),
            (4, AxisType.Explicit, 8, "complex128"), (8, AxisType.Explicit, 3, "complex64"),
        ],
        core=lambda *_: False,
    ),
)  # fmt: skip
def test_batches(ranks, kind, count, dtype):
    mesh, a = cases.line(ranks, kind=kind), cases.normal(cases.rng(4), (count, 9, 3), dtype)
    a[1] = 0
    for q, r in (
        linalg.qr(a, mesh=mesh),
        jax.jit(jax.vmap(lambda a: tuple(linalg.qr(a, mesh=mesh))))(a),
    ):
        assert q.shape == (count, 9, 3) and r.shape == (count, 3, 3)
        for each in zip(a, np.asarray(q), np.asarray(r), strict=True):
            _check(*each)


@pytest.mark.breadth
def test_under_jit_and_columns_sharded():
    mesh = cases.grid()
    a = _normal(16, 4, "float64")
    placed = cases.shard(a, mesh, "r", "c")
    _check(a, *linalg.qr(placed))
    q, r = jax.jit(lambda a: linalg.qr(a, mesh=mesh, matrix_specs=P("r", "c")))(placed)
    _check(a, q, r)
    assert q.sharding.spec == P("r", "c")


@pytest.mark.breadth
def test_more_rows():
    """R of [R; A] is R of all rows."""
    a, more, mesh = _normal(12, 3, "float64"), _normal(6, 3, "float64"), cases.line(2)
    r = linalg.qr(jnp.concatenate([_run(a, mesh, "r"), more]), "r", mesh=mesh)
    expected = _run(np.concatenate([a, more]), mesh, "r")
    np.testing.assert_allclose(r, expected, rtol=0, atol=1e-13)
    assert jaxmg.linalg.qr is linalg.qr


@pytest.fixture
def taken_by_tiles(monkeypatch):
    """Returns a list of the shapes that are factored by tile columns. On CPU devices tall matrices
    of at least four columns are."""
    found = []

    def factor_and_r(call, a):
        found.append(a.shape)
        return original(call, a)

    original = qr_linalg.factor_and_r
    monkeypatch.setattr(qr_linalg, "factor_and_r", factor_and_r)
    monkeypatch.setattr(qr_linalg, "_LEAST_BY_TILES", 3)
    jax.clear_caches()
    with cases.by_all_ranks():
        yield found
    jax.clear_caches()


@cases.one_process("several processes take them by their rows")
@pytest.mark.extended
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("kind", (AxisType.Auto, AxisType.Explicit), ids=str)
@pytest.mark.parametrize("ranks", (1, 2, 4, 8))
def test_tall_by_tile_columns_on_cpu_devices(taken_by_tiles, ranks, kind, dtype):
    """The results agree with the factorization by rows, and have its sharding."""
    if jax.devices()[0].platform != "cpu":
        pytest.skip("GPUs take tall matrices by their rows")
    mesh, eps = cases.line(ranks, kind=kind), np.finfo(dtype).eps
    m, n = 4 * ranks + 32, 6
    a = cases.shard_rows(_normal(m, n, dtype), mesh)

    @jax.jit
    def both(a):
        return *linalg.qr(a, mesh=mesh), linalg.qr(a, "r", mesh=mesh)

    for q, r, alone in (both(a), (*linalg.qr(a, mesh=mesh), linalg.qr(a, "r", mesh=mesh))):
        assert q.shape == (m, n) and r.shape == (n, n) and r.sharding.is_fully_replicated
        q, r = np.asarray(q), np.asarray(r)
        np.testing.assert_allclose(q @ r, a, atol=50 * eps)
        np.testing.assert_allclose(q.conj().T @ q, np.eye(n), atol=50 * eps)
        np.testing.assert_array_equal(alone, r)
        assert (np.diagonal(r).real > 0).all() and not np.tril(r, -1).any()
    assert taken_by_tiles


@cases.one_process("several processes take them by their rows")
@pytest.mark.extended
def test_much_taller_ones_stay_where_they_are(taken_by_tiles):
    mesh = cases.line(2)
    linalg.qr(cases.shard_rows(_normal(102, 6, "float64"), mesh), mesh=mesh)
    assert not taken_by_tiles
