"""geqrf and its factor, least_squares and qr of any shape, qr_multiply and householder_product,
against LAPACK's."""

import copy
import itertools
import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from qr_test import HARD, hard

import jaxmg
from jaxmg import linalg

KINDS = (AxisType.Auto, AxisType.Explicit)
SHAPES = ((13, 5), (5, 13), (11, 11), (1, 1), (2, 3), (24, 16))


def _normal(m, n, dtype="complex128", seed=0):
    return cases.normal(cases.rng(m + 7 * seed, n), (m, n), dtype)


def _close(found, expected, dtype, factor=200):
    np.testing.assert_allclose(
        cases.wide(np.asarray(found)), cases.wide(np.asarray(expected)),
        rtol=0, atol=factor * cases.eps(dtype) * max(1, np.abs(expected).max(initial=0)),
    )  # fmt: skip


def _check_q_and_r(a, q, r):
    a, q, r = (cases.wide(np.asarray(x)) for x in (a, q, r))
    unit = cases.eps(a.dtype if a.dtype == q.dtype else q.dtype)
    assert np.linalg.norm(q.conj().T @ q - np.eye(q.shape[1])) <= 50 * max(a.shape) * unit
    assert not np.tril(r, -1).any()


_EACH = [
    (shape, ranks, cases.DTYPES[(i + j) % 4], KINDS[(i + j) % 2])
    for (i, shape), (j, ranks) in itertools.product(enumerate(SHAPES), enumerate((1, 2, 4, 8)))
]


@pytest.mark.parametrize(
    "shape, ranks, dtype, kind",
    cases.broad(_EACH, core=lambda shape, ranks, *_: (shape, ranks) == ((13, 5), 4)),
)
def test_as_lapack(shape, ranks, dtype, kind):
    (m, n), a, mesh = shape, _normal(*shape, dtype), cases.line(ranks, kind=kind)
    k = min(m, n)
    factor = jaxmg.geqrf(a, 2, mesh)
    assert factor.shape == (m, n) and factor.dtype == a.dtype and factor.status == 0
    h, taus = scipy.linalg.lapack.get_lapack_funcs("geqrf", (a,))(a)[:2]
    q = scipy.linalg.qr(a)[0]
    _close(factor.packed()[0], h, dtype)
    _close(factor.packed()[1], taus, dtype)
    _close(factor.q(), q[:, :k], dtype)
    _close(factor.q("complete"), q, dtype)
    _close(factor.r, np.triu(h)[:k], dtype)
    _close(factor.diagonal(), np.diagonal(h), dtype)
    b = _normal(m, 3, dtype)
    for trans, matrix in zip("NTC", (q, q.T, q.conj().T), strict=True):
        _close(factor.multiply(b, trans), matrix @ b, dtype, 2e3)
    _close(factor.multiply(b[:, 0], 2), q.conj().T @ b[:, 0], dtype, 2e3)


@pytest.mark.parametrize(
    "shape, ranks, dtype, kind",
    cases.broad(_EACH, core=lambda shape, ranks, *_: (shape, ranks) in (((13, 5), 4),)),
)
def test_solutions(shape, ranks, dtype, kind):
    (m, n), a, mesh = shape, _normal(*shape, dtype), cases.line(ranks, kind=kind)
    b = _normal(m, 2, dtype)
    wide = [cases.wide(x) for x in (a, b)]
    x, status = jaxmg.least_squares(a, b, 2, mesh, return_status=True)
    assert status == 0
    scale = 1e4 if shape != (11, 11) else 1e6
    _close(x, np.linalg.lstsq(*wide)[0], dtype, scale)
    _close(jaxmg.least_squares(a, b[:, 0], 2, mesh), np.linalg.lstsq(*wide)[0][:, 0], dtype, scale)
    _close(linalg.least_squares(a, b, mesh=mesh), np.linalg.lstsq(*wide)[0], dtype, scale)
    factor = jaxmg.geqrf(a, 2, mesh)
    if m < n:
        with pytest.raises(ValueError, match="A is wide"):
            factor.solve(b)
        return
    _close(factor.solve(b), np.linalg.lstsq(*wide)[0], dtype, scale)
    c = _normal(n, 2, dtype, 1)
    for trans, matrix in ((1, wide[0].T), (2, wide[0].conj().T)):
        _close(factor.solve(c, trans), np.linalg.lstsq(matrix, cases.wide(c))[0], dtype, scale)


# Matrices of shape (m, n) that are hard for QR.
def _graded(m, n):
    return _normal(m, n) * np.logspace(0, -14, n)


def _scaled(m, n):
    return _normal(m, n) * np.where(np.arange(n) % 2, 1e150, 1e-150)


def _rank_2(m, n):
    return _normal(m, 2) @ _normal(2, n)


def _zero_columns(m, n):
    return _normal(m, n) * (np.arange(n) % 3 > 0)


# The names are test ids, which must be the same in all processes of a job.
_MAKERS = {
    "graded": _graded, "scaled": _scaled, "of rank 2": _rank_2, "zero columns": _zero_columns
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind, shape, ranks",
    cases.broad(
        itertools.product(_MAKERS, ((12, 9), (9, 12), (10, 10)), (2, 3)),
        core=lambda kind, shape, ranks: (kind, shape, ranks) == ("scaled", (12, 9), 3),
    ),
)
def test_hard_matrices(kind, shape, ranks):
    _check_hard(_MAKERS[kind](*shape), cases.line(ranks))


@pytest.mark.breadth
@pytest.mark.parametrize(
    "shape, ranks, dtype, kind",
    [
        (shape, (1, 2, 4, 8)[(i + j) % 4], dtype, KINDS[j // 2])
        for i, shape in enumerate(((17, 9), (9, 17), (13, 13)))
        for j, dtype in enumerate(cases.DTYPES)
    ],
)
def test_hard_matrices_that_are_not_tall(shape, ranks, dtype, kind):
    mesh = cases.line(ranks, kind=kind)
    for name in HARD:
        a = hard(name, max(shape), min(shape), dtype)
        _check_hard(a if shape[0] >= shape[1] else a.T.copy(), mesh)


def _check_hard(a, mesh):
    """Checks that Q is orthogonal up to rounding, and that each column has a small residual."""
    __tracebackhide__ = True
    q, r = (np.asarray(x) for x in linalg.qr(a, mesh=mesh))
    k = min(a.shape)
    bound = 100 * max(a.shape) * cases.eps(a.dtype)
    assert np.linalg.norm(q.conj().T @ q - np.eye(k)) <= bound
    lengths = np.abs(a).max(axis=0)
    errors = np.abs(cases.wide(q) @ cases.wide(r) - a).max(axis=0)
    assert (errors <= bound * lengths).all()
    assert (np.diagonal(r).real >= 0).all() and not np.tril(r, -1).any()
    complete, _ = linalg.qr(a, "complete", mesh=mesh)
    complete = np.asarray(complete)
    assert np.linalg.norm(complete.conj().T @ complete - np.eye(len(a))) <= bound


def test_a_matrix_that_has_not_full_rank_is_a_status():
    a, b = np.eye(6, 4), np.ones(6)
    a[:, 2] = 0
    x, status = jaxmg.least_squares(a, b, 2, cases.line(2), return_status=True)
    assert status == 3 and not np.isfinite(x).all()


@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_numbers_that_are_not_finite(bad):
    a, b, mesh = _normal(7, 5, "float64"), np.ones(7), cases.line(2)
    a[6, 2] = bad
    factor = jaxmg.geqrf(a, 2, mesh)
    assert factor.status == -1
    assert np.isnan(factor.q()).all() and np.isnan(factor.multiply(b)).all()
    x, status = jaxmg.least_squares(a, b, 2, mesh, return_status=True)
    assert status == -1 and np.isnan(x).all()


@pytest.mark.breadth
@pytest.mark.parametrize("m, n", [(0, 0), (0, 3), (3, 0)])
def test_no_elements(m, n):
    a, mesh = np.zeros((m, n)), cases.line(2)
    factor = jaxmg.geqrf(a, 2, mesh)
    assert factor.q().shape == (m, 0) and factor.r.shape == (0, n)
    np.testing.assert_array_equal(factor.q("complete"), np.eye(m))
    b = np.ones((m, 2))
    np.testing.assert_array_equal(factor.multiply(b), b)
    assert factor.diagonal().shape == factor.packed()[1].shape == (0,)
    np.testing.assert_array_equal(jaxmg.least_squares(a, b, 2, mesh), np.zeros((n, 2)))
    if m >= n:
        np.testing.assert_array_equal(factor.solve(b), np.zeros((n, 2)))


@pytest.mark.extended
@cases.one_process("a pickle holds no devices of others")
def test_a_pytree_that_is_kept():
    a, b, mesh = _normal(9, 4), _normal(9, 2), cases.line(2)
    factor = jax.jit(lambda a: jaxmg.geqrf(a, 2, mesh, P("r", None)))(a)
    again = copy.deepcopy(pickle.loads(pickle.dumps(factor)))
    for one in (factor, again):
        _close(jax.jit(lambda f, b: f.solve(b))(one, b), np.linalg.lstsq(a, b)[0], a.dtype, 1e4)
    assert "QRFactor(shape=(9, 4)" in repr(factor)
    placed = cases.shard_rows(a[:8], mesh)
    jaxmg.geqrf(placed, 2, donate=True).q()
    assert placed.is_deleted()


@pytest.mark.parametrize(
    "shape, ranks, tile",
    cases.broad(
        [
            ((9, 4), (2, 4), (2, None)), ((4, 9), (3, 1), (None, 2)), ((7, 7), (1, 2), (3, 2)),
            ((200, 150), (2, 1), (100, None)), ((150, 200), (1, 2), (None, 90)),
        ],
        core=lambda *_: False,
    ),
)  # fmt: skip
def test_from_packed_on_another_number_of_devices(shape, ranks, tile):
    a, b, (first, second) = _normal(*shape), _normal(shape[0], 2), map(cases.line, ranks)
    a[:, 1] = 0
    h, taus = (np.asarray(x) for x in jaxmg.geqrf(a, tile[0], first).packed())
    factor = jaxmg.QRFactor.from_packed(h, taus, tile[1], second)
    direct = jaxmg.geqrf(a, tile[1], second)
    for one, other in (
        (factor.q(), direct.q()),
        (factor.r, direct.r),
        (factor.multiply(b, 2), direct.multiply(b, 2)),
        (factor.q("complete"), direct.q("complete")),
    ):  # fmt: skip
        _close(one, other, a.dtype, 2e3)
    bad = h.copy()
    bad[-1, -1] = np.nan
    assert jaxmg.QRFactor.from_packed(bad, taus, tile[1], second).status == -1
    with pytest.raises(ValueError, match="taus must be"):
        jaxmg.QRFactor.from_packed(h, taus[1:])


@pytest.mark.breadth
def test_the_calls_of_jaxmg_1_4_1():
    mesh = cases.line(2)
    a, b = cases.shard_rows(_normal(8, 4), mesh), _normal(8, 1)
    q, r, status = jaxmg.qr(a, 2, mesh, P("r", None), return_status=True, donate=True)
    assert status == 0 and a.is_deleted()
    _close(q @ r, _normal(8, 4), "complex128")
    x = jaxmg.least_squares(_normal(8, 4), b, 2, mesh=mesh, in_specs=P("r", None), pad=True)
    _close(x, np.linalg.lstsq(_normal(8, 4), b)[0], "complex128", 1e4)


@pytest.mark.breadth
def test_groups_of_devices_and_columns_sharded():
    mesh, a, b = cases.grid(), _normal(16, 8), _normal(16, 2)
    for spec in (P("r", None), P(None, "c"), P("r", "c"), P(("r", "c"), None)):
        placed = cases.shard(a, mesh, *spec)
        factor = jaxmg.geqrf(placed, 2)
        _close(factor.q() @ factor.r, a, a.dtype)
        _close(jaxmg.least_squares(placed, b, 2), np.linalg.lstsq(a, b)[0], a.dtype, 1e4)
        _close(jnp.asarray(linalg.qr(placed)[0]), linalg.qr(a, mesh=cases.line(1))[0], a.dtype)


_QR_MULTIPLY = list(
    itertools.product(((9, 4), (4, 9), (40, 3)), ("left", "right"), (False, True), (1, 2))
)


@pytest.mark.extended
@pytest.mark.parametrize(
    "shape, mode, conjugate, ndim",
    cases.broad(_QR_MULTIPLY, core=lambda *case: case == ((9, 4), "right", True, 2)),
)
def test_qr_multiply(shape, mode, conjugate, ndim):
    a, mesh = _normal(*shape), cases.line(4)
    rows = min(shape) if mode == "left" else shape[0]
    c = _normal(rows, 2) if mode == "left" else _normal(2, rows)
    c = c if ndim == 2 else c[:, 0] if mode == "left" else c[0]
    product, r = linalg.qr_multiply(a, c, mode, conjugate=conjugate, mesh=mesh)
    q, same = (np.asarray(x) for x in linalg.qr(a, mesh=mesh))
    q = q.conj() if conjugate else q
    _close(product, q @ c if mode == "left" else c @ q, a.dtype)
    _close(r, same, a.dtype)
    assert product.shape == scipy.linalg.qr_multiply(a, c, mode, conjugate=conjugate)[0].shape


_LEADING = (((3,), (3,)), ((2, 1), (3,)), ((3,), ()), ((), (3,)), ((2, 3), None))


@pytest.mark.extended
@cases.needs_transformations
@cases.kinds
@pytest.mark.parametrize(
    "of_a, of_c, shape, mode",
    cases.broad(
        [
            (*each, *how)
            for each in _LEADING
            for how in itertools.product(((9, 4), (4, 9)), ("left", "right"))
        ],
        core=lambda of_a, of_c, shape, mode: (of_a, shape, mode) == ((2, 1), (9, 4), "left"),
    ),
)
def test_qr_multiply_of_a_batch(of_a, of_c, shape, mode, kind):
    """qr_multiply of a batch accepts c with other leading dimensions, or a vector for all
    matrices."""
    random, mesh = cases.rng(1), cases.line(2, kind=kind)
    a = cases.normal(random, (*of_a, *shape), "complex128")
    rows = min(shape) if mode == "left" else shape[0]
    of_one = (rows,) if of_c is None else (rows, 2) if mode == "left" else (2, rows)
    c = cases.normal(random, (*(of_c or ()), *of_one), "complex128")
    product, r = linalg.qr_multiply(a, c, mode, conjugate=True, mesh=mesh)
    q, same = (np.asarray(x) for x in linalg.qr(a, mesh=mesh))
    q = q.conj()
    if of_c is None:
        expected = q @ c if mode == "left" else c @ q
    else:
        expected = np.matmul(*((q, c) if mode == "left" else (c, q)))
    assert product.shape == expected.shape
    _close(product, expected, a.dtype)
    _close(r, np.broadcast_to(same, r.shape), a.dtype)


@pytest.mark.extended
@cases.needs_transformations
def test_qr_multiply_of_batches_that_do_not_fit():
    message = "dimensions of c, of shape .*, don't broadcast against those of a"
    with pytest.raises(ValueError, match=message):
        linalg.qr_multiply(np.ones((3, 6, 4)), np.ones((2, 2, 6)), mesh=cases.line(2))


@pytest.mark.extended
@pytest.mark.parametrize(
    "shape, ranks, count",
    cases.broad(
        [((9, 4), 4, 4), ((9, 4), 2, 3), ((7, 7), 2, 7), ((5, 0), 2, 0), ((40, 4), 4, 4)],
        core=lambda shape, ranks, count: count == 3,
    ),
)
def test_householder_product(shape, ranks, count):
    a, mesh = _normal(*shape), cases.line(ranks)
    h, taus = (np.asarray(x) for x in jaxmg.geqrf(a, mesh=mesh).packed())
    taus = taus[:count].copy()
    taus[1:2] = 0
    expected = jax.lax.linalg.householder_product(jnp.asarray(h), jnp.asarray(taus))
    _close(linalg.householder_product(h, taus, mesh=mesh), expected, a.dtype)
    if shape == (9, 4) and ranks == 4:
        stack = np.stack([h, h]), np.stack([taus, 0 * taus])
        expected = jax.lax.linalg.householder_product(*map(jnp.asarray, stack))
        _close(linalg.householder_product(*stack, mesh=mesh), expected, a.dtype)


def test_errors():
    a, mesh = _normal(6, 4, "float64"), cases.line(2)
    factor = jaxmg.geqrf(a, 2, mesh)
    with pytest.raises(ValueError, match=r"QRFactor.multiply: b must have shape \(6,\)"):
        factor.multiply(np.ones(4))
    with pytest.raises(ValueError, match=r"QRFactor.solve: b must have shape \(4,\)"):
        factor.solve(np.ones(6), 1)
    with pytest.raises(TypeError, match="must have one dtype"):
        factor.solve(np.ones(6, "float32"))
    with pytest.raises(ValueError, match="trans must be"):
        factor.multiply(np.ones(6), "H")
    with pytest.raises(ValueError, match="mode must be 'reduced' or 'complete'"):
        factor.q("full")
    with pytest.raises(ValueError, match=r"must be a matrix of shape \(m, n\)"):
        jaxmg.geqrf(a[0])
    with pytest.raises(ValueError, match=r"least_squares: b must have shape \(6,\)"):
        jaxmg.least_squares(a, np.ones(4))
    with pytest.raises(ValueError, match="c must have 4 rows"):
        linalg.qr_multiply(a, np.ones(6), "left")
    with pytest.raises(NotImplementedError, match="pivoting=True is not supported"):
        linalg.qr_multiply(a, np.ones(6), pivoting=True)
    with pytest.raises(ValueError, match="mode must be 'left' or 'right'"):
        linalg.qr_multiply(a, np.ones(6), "middle")
    with pytest.raises(ValueError, match="with m >= n"):
        linalg.householder_product(a.T, np.ones(2))
    with pytest.raises(ValueError, match="shard_map"):
        jax.shard_map(
            lambda a: jaxmg.geqrf(a).q(), mesh=mesh, in_specs=P("r"), out_specs=P("r")
        )(a)  # fmt: skip


def _solutions_by_jax(a, b, c):
    """Returns A^+ b, A^+H c and A^+T c of a tall A."""
    gram = a.conj().T @ a
    solved = jnp.linalg.solve(gram, c)
    return (
        jnp.linalg.solve(gram, a.conj().T @ b),
        a @ solved,
        a.conj() @ jnp.linalg.solve(gram.conj(), c),
    )


def _solutions(dtype, ranks, kind):
    """Returns (a function of A, b and c that uses a factor, arrays to call it with, tangents)."""
    mesh = cases.line(ranks, kind=kind)
    shapes = (7, 4), (7, 2), (4, 2)
    arrays, moved = (tuple(_normal(*shape, dtype, i) for shape in shapes) for i in (2, 3))

    def ours(a, b, c):
        factor = jaxmg.geqrf(a, 2, mesh, P("r", None))
        return factor.solve(b), factor.solve(c, "C"), factor.solve(c, "T")

    return ours, arrays, moved


def _check_derivative(function, reference, arrays, moved, dtype, factor):
    found, expected = (
        jax.jit(lambda x, t, f=f: jax.jvp(f, x, t))(arrays, moved) for f in (function, reference)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        _close(one, other, dtype, factor)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "dtype, ranks, kind",
    cases.broad(
        itertools.product(("float64", "complex128"), (1, 3), KINDS),
        core=lambda dtype, ranks, kind: (dtype, ranks, kind) == ("complex128", 3, AxisType.Auto),
    ),
)
def test_derivatives_of_solutions(dtype, ranks, kind):
    """Derivatives of solutions agree with derivatives of the normal equations."""
    ours, arrays, moved = _solutions(dtype, ranks, kind)
    _check_derivative(ours, _solutions_by_jax, arrays, moved, dtype, 1e5)


@cases.needs_transformations
@pytest.mark.breadth
@pytest.mark.parametrize("dtype, ranks", [("float64", 3), ("complex128", 2)])
def test_gradients_of_solutions_and_their_derivatives(dtype, ranks):
    ours, arrays, moved = _solutions(dtype, ranks, AxisType.Auto)

    def gradient(function):
        def loss(*arrays):
            return sum(jnp.sum(jnp.abs(x) ** 2) for x in function(*arrays))

        return jax.grad(loss, (0, 1, 2))

    _check_derivative(gradient(ours), gradient(_solutions_by_jax), arrays, moved, dtype, 1e6)


@cases.needs_transformations
@pytest.mark.parametrize(
    "shape, ranks, kind",
    cases.broad(itertools.product(((7, 4), (4, 7)), (2, 4), KINDS), core=lambda *case: False),
)
def test_derivatives_of_least_squares(shape, ranks, kind):
    mesh, a, b = cases.line(ranks, kind=kind), _normal(*shape), _normal(shape[0], 2)
    moved = _normal(*shape, seed=4), _normal(shape[0], 2, seed=5)

    def by_jax(a, b):
        adjoint = a.conj().T
        if shape[0] > shape[1]:
            return jnp.linalg.solve(adjoint @ a, adjoint @ b)
        return adjoint @ jnp.linalg.solve(a @ adjoint, b)

    where = {"mesh": mesh, "matrix_specs": P("r", None)}
    expected = jax.jvp(by_jax, (a, b), moved)
    for function in (jaxmg.least_squares, linalg.least_squares):
        found = jax.jit(lambda x, t, f=function: jax.jvp(lambda *x: f(*x, **where), x, t))(
            (a, b), moved
        )
        for one, other in zip(found, expected, strict=True):
            _close(one, other, a.dtype, 1e5)


@cases.needs_transformations
@pytest.mark.parametrize(
    "shape, dtype, kind",
    cases.broad(
        itertools.product(((7, 5), (5, 7), (6, 6)), ("float64", "complex128"), KINDS),
        core=lambda *case: False,
    ),
)
def test_derivatives_of_the_factor(shape, dtype, kind):
    mesh, a, moved = cases.line(3, kind=kind), _normal(*shape, dtype), _normal(*shape, dtype, 1)

    def ours(a):
        factor = jaxmg.geqrf(a, 2, mesh, P("r", None))
        return factor.q(), factor.r, factor.diagonal()

    def by_jax(a):
        q, r = jnp.linalg.qr(a)
        return q, r, jnp.diagonal(r)

    found = jax.jit(lambda a, t: jax.jvp(ours, (a,), (t,)))(a, moved)
    expected = jax.jvp(by_jax, (a,), (moved,))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        _close(one, other, dtype, 1e5)
    with pytest.raises(NotImplementedError, match="have no derivative with respect"):
        jax.jvp(
            lambda a: jaxmg.geqrf(a, 2, mesh).multiply(np.ones(shape[0], dtype)), (a,), (moved,)
        )


@cases.needs_transformations
@pytest.mark.parametrize("shape, ranks", [((2, 3), 2), cases.breadth((3, 6), 4)])
def test_gradients_where_padding_does_not_divide(shape, ranks):
    mesh, a, moved = cases.line(ranks), _normal(*shape, "float64"), _normal(*shape, "float64", 1)

    def r(a):
        return jaxmg.geqrf(a, mesh=mesh).r

    found = jax.jit(jax.grad(lambda a: jnp.sum(r(a) ** 3)))(a)
    expected = jax.grad(lambda a: jnp.sum(jnp.linalg.qr(a)[1] ** 3))(jnp.asarray(a))
    _close(jnp.vdot(found, moved), np.vdot(expected, moved), "float64", 1e5)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "shape, kind", cases.broad(itertools.product(((7, 3), (3, 7), (6, 6)), KINDS),
                               core=lambda shape, kind: (shape, kind) == ((7, 3), KINDS[0]))
)  # fmt: skip
def test_gradients_of_batches_where_padding_does_not_divide(shape, kind):
    """A batch is divided by whole factors, without the padding of two ranks."""
    mesh, a = cases.line(2, kind=kind), cases.normal(cases.rng(1), (2, *shape), "float64")

    def total(q, r, diagonal):
        return sum(jnp.sum(jnp.sin(x)) for x in (q, r, diagonal))

    def ours(a):
        factor = jaxmg.geqrf(a, mesh=mesh)
        return total(factor.q(), factor.r, factor.diagonal())

    def by_jax(a):
        q, r = jnp.linalg.qr(a)
        return total(q, r, jnp.diagonal(r))

    found = cases.on(mesh, jax.jit(jax.vmap(jax.grad(ours))))(a)
    expected = jnp.stack([jax.grad(by_jax)(jnp.asarray(one)) for one in a])
    _close(found, expected, "float64", 1e5)
    found = cases.on(mesh, jax.jit(jax.grad(lambda a: jnp.sum(jax.vmap(ours)(a)))))(a)
    _close(found, expected, "float64", 1e5)


@cases.needs_transformations
@pytest.mark.parametrize(
    "shape, ranks", cases.broad([((6, 4), 3), ((5, 5), 2), ((4, 6), 2)], core=lambda *case: False)
)
def test_batches(shape, ranks):
    mesh, (m, n) = cases.line(ranks), shape
    a, b = (
        cases.normal(cases.rng(1), (4, m, n), "float64"),
        cases.normal(cases.rng(2), (4, m), "float64"),
    )
    expected = np.stack([np.linalg.lstsq(*each)[0] for each in zip(a, b, strict=True)])
    _close(
        jax.vmap(lambda a, b: linalg.least_squares(a, b, mesh=mesh))(a, b), expected, "float64", 1e4
    )
    same = np.linalg.lstsq(a[0], b.T)[0].T
    _close(jax.vmap(lambda b: jaxmg.least_squares(a[0], b, 2, mesh))(b), same, "float64", 1e4)
    factor = jaxmg.geqrf(a, mesh=mesh)
    q, r = jax.vmap(lambda f: (f.q(), f.r))(factor)
    _close(q @ r, a, "float64")
    if m >= n:
        _close(jax.vmap(lambda f, b: f.solve(b))(factor, b), expected, "float64", 1e4)
    _close(jnp.matmul(*linalg.qr(a, mesh=mesh)), a, "float64")
    product, r = linalg.qr_multiply(a[0], b[0], mesh=mesh)
    _close(product @ r, b[0] @ a[0], "float64")
