"""jax.vmap, and batches by leading dimensions."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._lu import stacks as lu_stacks
from jaxmg._stacks import batching
from jaxmg._transform import batched_calls, derivatives

pytestmark = cases.needs_transformations

_SIZE, _N = 5, 7


def _factor(a, mesh):
    return jaxmg.cho_factor(a, 2, mesh)


def _magnitudes(v):
    """Returns magnitudes of eigenvectors, which don't depend on phases."""
    return jnp.abs(v)


# Name -> (function of (a, b, mesh), the same function of (a, b) by JAX only).
_FUNCTIONS = {
    "potrs": (lambda a, b, mesh: jaxmg.potrs(a, b, 2, mesh), jnp.linalg.solve),
    "logdet": (
        lambda a, b, mesh: jaxmg.potrs(a, b, 2, mesh, return_logdet=True, return_status=True),
        lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1], jnp.int32(0)),
    ),
    "potri": (lambda a, b, mesh: jaxmg.potri(a, 2, mesh), lambda a, b: jnp.linalg.inv(a)),
    "syevd": (
        lambda a, b, mesh: _magnitudes(jaxmg.syevd(a, mesh=mesh)[1]),
        lambda a, b: _magnitudes(jnp.linalg.eigh(a)[1]),
    ),
    "eigvalsh": (
        lambda a, b, mesh: jaxmg.eigvalsh(a, mesh=mesh),
        lambda a, b: jnp.linalg.eigvalsh(a),
    ),
    "subset": (
        lambda a, b, mesh: jaxmg.eigh(a, mesh=mesh, subset_by_index=(1, 3))[0],
        lambda a, b: jnp.linalg.eigvalsh(a)[1:3],
    ),
    "sygvd": (
        lambda a, b, mesh: jaxmg.eigvalsh(a, a + jnp.eye(a.shape[-1], dtype=a.dtype), mesh=mesh),
        lambda a, b: jnp.linalg.eigvalsh(a) / (1 + jnp.linalg.eigvalsh(a)),
    ),
    "cho_solve": (lambda a, b, mesh: jaxmg.cho_solve(_factor(a, mesh), b), jnp.linalg.solve),
    "refined": (
        lambda a, b, mesh: jaxmg.potrs(a, b, 2, mesh, refine="auto", return_status=True),
        lambda a, b: (jnp.linalg.solve(a, b), jnp.int32(0)),
    ),
    "refined factor": (
        lambda a, b, mesh: jaxmg.cho_solve(jaxmg.cho_factor(a, 2, mesh, refine="auto"), b),
        jnp.linalg.solve,
    ),
    "factor": (
        lambda a, b, mesh: (
            _factor(a, mesh).upper(),
            _factor(a, mesh).diagonal(),
            _factor(a, mesh).inv(),
            _factor(a, mesh).logdet(),
            _factor(a, mesh).matmul(b),
        ),
        lambda a, b: (
            jnp.linalg.cholesky(a).conj().T,
            jnp.diag(jnp.linalg.cholesky(a)).real,
            jnp.linalg.inv(a),
            jnp.linalg.slogdet(a)[1],
            jnp.linalg.cholesky(a) @ b,
        ),
    ),
}


def _batch(dtype, size=_SIZE, n=_N):
    matrix = cases.positive_definite("well", n, dtype)
    a = np.stack([matrix + i * np.diag(np.arange(n)).astype(dtype) / n for i in range(size)])
    return jnp.asarray(a), jnp.asarray(cases.normal(cases.rng(4), (size, n, 2), dtype))


def _takes_at_once(ranks):
    """Returns whether devices compute many matrices at once; several CPU devices don't."""
    return ranks == 1 or jax.devices()[0].platform == "gpu"


def _one_after_the_other(monkeypatch):
    """Makes a device compute its matrices one after the other, as large ones."""
    monkeypatch.setattr(batched_calls, "is_faster_at_once", lambda *_: False)
    derivatives._jaxpr.cache_clear()
    jax.clear_caches()


def _check(found, expected, dtype):
    __tracebackhide__ = True
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2000 * cases.eps(dtype)),
        found,
        expected,
    )


@cases.kinds
@pytest.mark.parametrize(
    "name, dtype, ranks, how",
    cases.broad(
        [
            (name, dtype, (1, 2, 4, 8)[(i + j) % 4], ("eager", "jit", "of jit")[(i + j) % 3])
            for i, name in enumerate(_FUNCTIONS)
            for j, dtype in enumerate(cases.DTYPES)
            if (i + j) % 2 == 0
        ],
        lambda name, dtype, *_: (name, dtype) in {("logdet", "float64"), ("refined", "complex128")},
    ),
)
def test_matrices(name, dtype, ranks, how, kind, monkeypatch):
    if (ranks + len(name)) % 2:
        _one_after_the_other(monkeypatch)
    ours, theirs = _FUNCTIONS[name]
    mesh, arrays = cases.line(ranks, kind=kind), _batch(dtype)
    function = lambda a, b: ours(a, b, mesh)  # noqa: E731
    function = jax.vmap(jax.jit(function) if how == "of jit" else function)
    found = (jax.jit(function) if how == "jit" else function)(*arrays)
    _check(found, jax.vmap(cases.precisely(theirs))(*arrays), dtype)


@pytest.mark.core("2-cho_solve-automatic")
@cases.kinds
@pytest.mark.parametrize("name", ["potrs", "cho_solve"])
@pytest.mark.parametrize("k", [None, 2])
def test_right_hand_sides_become_columns(name, k, kind):
    mesh, (a, b) = cases.line(2, kind=kind), _batch("complex128")
    b = b[..., 0] if k is None else b
    if name == "potrs":
        solve = lambda b: jaxmg.potrs(a[0], b, 2, mesh)  # noqa: E731
    else:
        factor = _factor(a[0], mesh)
        solve = lambda b: jaxmg.cho_solve(factor, b)  # noqa: E731
    expected = jax.vmap(lambda b: jnp.linalg.solve(a[0], b))(b)
    for how in (
        lambda f: jax.vmap(f),
        lambda f: jax.jit(jax.vmap(f)),
        lambda f: jax.vmap(jax.jit(f)),
    ):
        _check(how(solve)(b), expected, float)
    text = str(jax.make_jaxpr(jax.vmap(solve))(b))
    assert "scan" not in text and "while" not in text


@cases.kinds
@pytest.mark.slow
@pytest.mark.parametrize("kept", cases.broad([(False,), (True,)], lambda kept: not kept))
def test_refined_right_hand_sides_become_columns(kept, kind):
    mesh, (a, b) = cases.line(2, kind=kind), _batch("float64")
    b = b.at[1].set(0)  # by itself it would take no iteration

    def solve(b):
        found = dict(return_status=True, return_iterations=True)
        if kept:
            return factor.solve(b, **found)
        return jaxmg.potrs(a[0], b, 2, mesh, refine="auto", **found)

    factor = jaxmg.cho_factor(a[0], 2, mesh, refine="auto")
    x, status, iterations = jax.vmap(solve)(b)
    _check(x, jax.vmap(lambda b: jnp.linalg.solve(a[0], b))(b), float)
    np.testing.assert_array_equal(status, np.zeros(_SIZE))
    assert np.unique(iterations).size == 1 and iterations[0] > 0


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
def test_one_right_hand_side_for_all(kind):
    mesh, (a, b) = cases.line(2, kind=kind), _batch("float64")
    found = jax.vmap(lambda a: jaxmg.potrs(a, b[0, :, 0], 2, mesh))(a)
    _check(found, jax.vmap(lambda a: jnp.linalg.solve(a, b[0, :, 0]))(a), float)


@cases.kinds
@pytest.mark.core("axes2-eager-automatic")
@cases.one_process("it takes long")
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("axes", [((0, 0), (0, 0)), ((None, 0), (0, 0)), ((0, None), (None, 0))])
def test_nested(axes, jitted, kind):
    mesh, (a, b) = cases.line(2, kind=kind), _batch("float64")
    outer, inner = axes
    arrays = [
        jnp.stack([x, 2 * x, 3 * x])
        if o == 0 and i == 0
        else x[:3]
        if o == 0
        else x
        if i == 0
        else x[0]
        for x, o, i in zip((a, b), outer, inner, strict=True)
    ]
    ours = jax.vmap(lambda a, b: jaxmg.potrs(a, b, 2, mesh), inner)
    ours = jax.vmap(jax.jit(ours) if jitted else ours, outer)
    theirs = jax.vmap(jax.vmap(jnp.linalg.solve, inner), outer)
    _check(ours(*arrays), theirs(*arrays), float)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, jitted",
    cases.broad(
        [
            (name, jitted)
            for name in ("potrs", "potri", "factor", "refined factor", "eigvalsh")
            for jitted in (0, 1)
        ],
        lambda name, jitted: (name, jitted) == ("potrs", 1),
        alone=True,
    ),
)
@cases.kinds
@pytest.mark.parametrize("order", ["grad of vmap", "vmap of grad"])
def test_derivatives(name, jitted, order, kind):
    (ours, theirs), mesh, arrays = _FUNCTIONS[name], cases.line(2, kind=kind), _batch("float64")

    def size(f, mapped):
        def element(a, b):
            found = f((a + a.T) / 2, b)
            return sum(jnp.sum(x**3) for x in jax.tree.leaves(found))

        return (lambda a, b: jax.vmap(element)(a, b).sum()) if mapped else element

    first = order == "grad of vmap"
    found, expected = (
        (lambda f: f if first else jax.vmap(f))(jax.grad(size(f, first), (0, 1)))
        for f in (lambda a, b: ours(a, b, mesh), theirs)
    )
    found = jax.jit(found) if jitted else cases.on(mesh, found)
    _check(found(*arrays), expected(*arrays), float)


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
@pytest.mark.parametrize("name", ["potrs", "cho_solve", "potri"])
def test_one_after_the_other(name, kind, monkeypatch):
    """Matrices that don't fit a device's memory are computed one after the other."""
    monkeypatch.setattr(batching, "_MATRICES", float("inf"))
    monkeypatch.setattr(type(jaxmg.cho_factor(np.eye(2)).layout), "memory", 1)
    (ours, theirs), mesh, arrays = _FUNCTIONS[name], cases.line(2, kind=kind), _batch("float64")
    jax.clear_caches()
    function = jax.vmap(lambda a, b: ours(a, b, mesh))
    text = str(jax.make_jaxpr(function)(*arrays))
    assert re.search(r"scan|while", text)
    _check(function(*arrays), jax.vmap(theirs)(*arrays), float)
    size = lambda a, b: jnp.sum(function((a + a.mT) / 2, b) ** 2)  # noqa: E731
    expected = lambda a, b: jnp.sum(jax.vmap(theirs)((a + a.mT) / 2, b) ** 2)  # noqa: E731
    gradient = cases.on(mesh, jax.grad(size, (0, 1)))
    _check(gradient(*arrays), jax.grad(expected, (0, 1))(*arrays), float)


@cases.kinds
@cases.one_process("of a program's text")
def test_every_device_takes_its_share(kind):
    mesh, n = cases.line(4, kind=kind), 16
    a, b = _batch("float64", 8, n)
    a, b = (cases.shard(np.asarray(x), mesh, "r", None, None) for x in (a, b))
    function = jax.jit(jax.vmap(lambda a, b: jaxmg.potrs(a, b, mesh=mesh)))
    text = function.lower(a, b).compile().as_text()
    assert f"f64[2,{n},{n}]" in text and f"f64[8,{n},{n}]" not in text
    _check(function(a, b), jnp.linalg.solve(a, b), float)


@cases.kinds
@pytest.mark.breadth
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_leading_dimensions(shape, kind):
    mesh, count = cases.line(2, kind=kind), int(np.prod(shape))
    a, b = _batch("float64", count)
    a, b = a.reshape(*shape, _N, _N), b.reshape(*shape, _N, 2)
    _check(jaxmg.potrs(a, b, 2, mesh), jnp.linalg.solve(a, b), float)
    _check(
        jaxmg.potrs(a, b[(0,) * len(shape)][:, 0], 2, mesh),
        jnp.linalg.solve(a, b[(0,) * len(shape)][:, 0]),
        float,
    )
    factors = jaxmg.cho_factor(a, 2, mesh, refine="auto")
    solve = jaxmg.cho_solve
    for _ in shape:
        solve = jax.vmap(solve)
    for x in (jaxmg.potrs(a, b, 2, mesh, refine="auto"), solve(factors, b)):
        _check(x, jnp.linalg.solve(a, b), float)
    w, v = jaxmg.eigh(a, mesh=mesh)
    _check((w, _magnitudes(v)), (jnp.linalg.eigvalsh(a), _magnitudes(jnp.linalg.eigh(a)[1])), float)
    x, status = jaxmg.potri(a, 2, mesh, return_status=True)
    _check(x, jnp.linalg.inv(a), float)
    assert status.shape == shape and status.dtype == np.int32


@cases.kinds
def test_a_failure_is_that_of_one_matrix(kind):
    a, b = _batch("float64")
    a = a.at[2, 3, 3].set(-1)
    x, status = jaxmg.potrs(a, b, 2, cases.line(2, kind=kind), return_status=True)
    np.testing.assert_array_equal(status, [0, 0, 4, 0, 0])
    assert np.isnan(x[2]).all() and np.isfinite(np.delete(np.asarray(x), 2, 0)).all()


def test_calls_that_cannot_be():
    a, b = _batch("float64")
    with pytest.raises(ValueError, match=r"potrs: b must have the leading dimensions of a, \(5,\)"):
        jaxmg.potrs(a, b[:3])
    with pytest.raises(ValueError, match="Map over a batch of factors with jax.vmap"):
        jax.vmap(lambda a: jaxmg.cho_factor(a, 2, cases.line(2)))(a).solve(b[0])


@cases.kinds
@pytest.mark.breadth
@cases.one_process("it takes long")
def test_factors_of_upper_triangles(kind):
    mesh, (a, b) = cases.line(2, kind=kind), _batch("complex128")
    uppers = jnp.linalg.cholesky(a).conj().mT

    def solve(u, b):
        factor = jaxmg.CholeskyFactor.from_upper(u, 2, mesh)
        return factor.solve(b), factor.logdet(), factor.status

    expected = jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1], jnp.zeros(_SIZE, jnp.int32)
    _check(jax.vmap(solve)(uppers, b), expected, float)


def _all_of_factor(a, b, mesh):
    factor = _factor(a, mesh)
    triangular = [factor.solve_triangular(b, trans) for trans in "NTC"]
    products = [factor.matmul(b[:, 0], trans) for trans in "NTC"]
    inverse, upper, diagonal = factor.inv(), factor.upper(), factor.diagonal()
    return (
        factor.status,
        factor.logdet(),
        factor.solve(b),
        triangular,
        products,
        inverse,
        upper,
        diagonal,
    )


_ASKED = {"return_status": True}
_AT_ONCE = {
    "potrs": lambda a, b, mesh: jaxmg.potrs(a, b, 2, mesh, return_logdet=True, **_ASKED),
    "potrs of a vector": lambda a, b, mesh: jaxmg.potrs(a, b[:, 0], 2, mesh, **_ASKED),
    "potri": lambda a, b, mesh: jaxmg.potri(a, 2, mesh, **_ASKED),
    "factor": _all_of_factor,
    "eigvalsh": lambda a, b, mesh: jaxmg.eigvalsh(a, mesh=mesh, **_ASKED),
    "sygvd": lambda a, b, mesh: jaxmg.eigvalsh(b @ b.conj().T, a, mesh=mesh, **_ASKED),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, dtype, ranks, jitted",
    cases.broad(
        [
            (name, dtype, (1, 2, 4, 8)[(i + j) % 4], (i + j) % 2)
            for i, name in enumerate(_AT_ONCE)
            for j, dtype in enumerate(cases.DTYPES)
        ],
        lambda name, dtype, *_: (name, dtype) in (("potrs", "float32"), ("sygvd", "complex128")),
        alone=True,
    ),
)
def test_many_at_once(name, dtype, ranks, jitted):
    """Matrices computed at once behave as one after the other: the same status, NaN if a matrix
    fails, one triangle read."""
    a, b = map(np.array, _batch(dtype))
    below, places = np.tril_indices(_N, -1), np.arange(_N)
    a[:-1, *below] = np.nan
    a[-1, *below] = 0  # with zeros a factor of the lower triangle would not fail
    if np.dtype(dtype).kind == "c":
        a[:, places, places] += 1j  # this isn't read either
    a[1, 0, 0] = -1
    a[2, 3, 5] = np.nan
    a[3, 4, 4] = -2
    mesh, function = cases.line(ranks), _AT_ONCE[name]
    found = jax.vmap(lambda a, b: function(a, b, mesh))
    text = str(jax.make_jaxpr(found)(a, b))
    assert ("cholesky" in text or "eigh" in text) is _takes_at_once(ranks)
    found = (jax.jit(found) if jitted else found)(a, b)
    one_by_one = [function(a[i], b[i], mesh) for i in range(_SIZE)]
    expected = jax.tree.map(lambda *x: np.stack(x), *one_by_one)
    _check(found, expected, dtype)
    statuses = [x for x in jax.tree.leaves(found) if x.dtype == np.int32]
    assert statuses and all((x != 0).sum() >= 1 for x in statuses)


@pytest.mark.extended
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="calls the plugin of CPU devices")
@pytest.mark.parametrize("below", [0, np.nan])
def test_a_factor_at_once_reads_the_upper_triangle(below):
    """No matrix is marked as failed; the native code would factor it again and return the right
    result."""
    a = np.array(_batch("complex128")[0])
    stack = a.copy()
    stack[:, *np.tril_indices(_N, -1)] = below
    u, log_det, failed = cholesky_stacks.factorize("cpu", stack)
    assert not failed.any()
    _check(u, np.linalg.cholesky(a).conj().swapaxes(1, 2), "complex128")
    _check(log_det, np.linalg.slogdet(a)[1], "complex128")


@pytest.mark.extended
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="calls the plugin of CPU devices")
@pytest.mark.parametrize("order", [0, 1024])
def test_inverses_at_once_by_two_solves(order, monkeypatch):
    """Large matrices of complex64 take two solves; small ones take a product."""
    monkeypatch.setattr(cholesky_stacks, "_BY_TWO_SOLVES", order)
    stack = np.stack([cases.positive_definite("well", 9, "complex64") for _ in range(2)])
    text = str(
        jax.make_jaxpr(lambda a: cholesky_stacks.potri("cpu", a))(stack)
    )  # a new function, since JAX caches the trace of another order
    assert text.count("triangular_solve[") == (2 if order == 0 else 1)
    found = np.asarray(cholesky_stacks.potri("cpu", stack)[0][0])
    np.testing.assert_allclose(found, np.linalg.inv(stack), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found, np.swapaxes(found, -1, -2).conj())


@pytest.mark.extended
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="calls the plugin of CPU devices")
def test_lu_at_once_marks_what_is_not_finite(monkeypatch):
    """LU marks such matrices even if the diagonal of U is finite, as cuSOLVER's may be."""
    lu = jax.lax.linalg.lu
    monkeypatch.setattr(jax.lax.linalg, "lu", lambda a: lu(jnp.nan_to_num(a)))
    a = np.stack([np.eye(3)] * 3)
    a[1, 0, 2] = np.nan
    assert [bool(x) for x in lu_stacks.gesv("cpu", a, np.ones((3, 3)))[1]] == [False, True, False]


@pytest.mark.extended
def test_large_matrices_are_taken_one_after_the_other(monkeypatch):
    a, b = _batch("float64")
    solve = jax.vmap(lambda a, b: jaxmg.potrs(a, b, 2, cases.line(1)))
    assert "cholesky" in str(jax.make_jaxpr(solve)(a, b))
    _one_after_the_other(monkeypatch)
    assert "cholesky" not in str(jax.make_jaxpr(solve)(a, b))
    _check(solve(a, b), jnp.linalg.solve(a, b), float)


@pytest.mark.parametrize("precision", ["tf32", "BF16_BF16_F32_X3"])
def test_another_precision_is_that_of_the_native_code(precision):
    a, b = _batch("float32")
    solve = jax.vmap(lambda a, b: jaxmg.potrs(a, b, 2, cases.line(1), precision=precision))
    assert "cholesky" not in str(jax.make_jaxpr(solve)(a, b))


@pytest.mark.slow
@pytest.mark.parametrize("dtype, ranks", [(d, (1, 2, 4, 8)[i]) for i, d in enumerate(cases.DTYPES)])
def test_eigenproblems_at_once(dtype, ranks):
    a = np.array(_batch(dtype)[0])
    whole, below = a.copy(), np.tril_indices(_N, -1)
    a[:, *below] = np.nan  # isn't read
    a[2, 3, 5] = np.nan

    def solve(a):
        return jaxmg.syevd(a, mesh=cases.line(ranks), return_status=True)

    assert (" eigh[" in str(jax.make_jaxpr(jax.vmap(solve))(a))) is _takes_at_once(ranks)
    for function in (jax.vmap(solve), jax.jit(jax.vmap(solve))):
        w, v, status = map(np.asarray, function(a))
        np.testing.assert_array_equal(status, [0, 0, 4, 0, 0])
        assert np.isnan(w[2]).all() and np.isnan(v[2]).all()
        for i in (0, 1, 3, 4):
            _check(whole[i] @ v[i], v[i] * w[i], dtype)
            _check(v[i].conj().T @ v[i], np.eye(_N, dtype=dtype), dtype)


@pytest.mark.slow
def test_derivatives_of_eigenproblems_at_once():
    a = _batch("float64")[0]

    def loss(solver, a):
        w, v = solver(a)
        return jnp.sum(w**3) + jnp.sum(v**4)

    def ours(a):
        return jaxmg.syevd(a, mesh=cases.line(1))

    def symmetric(a):
        return jnp.linalg.eigh((a + a.T) / 2, symmetrize_input=False)

    found = jax.vmap(jax.grad(lambda a: loss(ours, (a + a.T) / 2)))(a)
    expected = jax.vmap(jax.grad(lambda a: loss(symmetric, a)))(a)
    np.testing.assert_allclose(found, expected, atol=1e-10 * np.abs(expected).max())


_OF_BATCHES = {
    "potrs": lambda a, mesh: jaxmg.potrs(a, jnp.ones(3), mesh=mesh),
    "potri": lambda a, mesh: jaxmg.potri(a, mesh=mesh),
    "syevd": lambda a, mesh: jaxmg.syevd(a, mesh=mesh),
    "subset": lambda a, mesh: jaxmg.eigh(a, mesh=mesh, subset_by_index=(0, 2)),
    "sygvd": lambda a, mesh: jaxmg.sygvd(a, jnp.eye(3), mesh=mesh),
    "refined": lambda a, mesh: jaxmg.potrs(a, jnp.ones(3), mesh=mesh, refine="auto"),
    "inv": lambda a, mesh: jaxmg.linalg.inv(a, mesh=mesh),
    "expm": lambda a, mesh: jaxmg.linalg.expm(a, mesh=mesh),
}


@pytest.mark.extended
@cases.kinds
@pytest.mark.parametrize(
    "name", cases.broad([(name,) for name in _OF_BATCHES], lambda name: name in ("potrs", "syevd"))
)
@pytest.mark.parametrize(
    "shape", cases.broad([((0, 5),), ((2, 0),), ((0,),)], lambda shape: shape == (0, 5))
)
def test_batches_of_none(name, shape, kind):
    mesh = cases.line(2, kind=kind)
    a = jnp.ones((*shape, 3, 3))
    found = jax.tree.leaves(_OF_BATCHES[name](a, mesh))
    assert all(x.shape[: len(shape)] == shape for x in found)

    def size(a):
        return sum(jnp.sum(x) for x in jax.tree.leaves(_OF_BATCHES[name](a, mesh)))

    gradient = jax.jit(jax.grad(size))(a)
    assert gradient.shape == a.shape


@pytest.mark.extended
@pytest.mark.parametrize("jitted", [False, True])
def test_derivatives_of_a_jit_in_a_batch_over_explicit_axes(jitted):
    """The derivative is right although JAX traces its rule after it has left the vmap."""
    mesh = cases.line(2, kind=AxisType.Explicit)
    random = cases.rng(4)
    a = np.stack([cases.positive_definite("well", 6, "float64") * (1 + i) for i in range(4)])
    direction = cases.normal(random, a.shape, "float64")
    a_dot = direction + direction.swapaxes(1, 2)
    derivative = functools.partial(jax.jvp, jax.vmap(jax.jit(lambda a: jaxmg.potri(a, 2, mesh))))
    with jax.set_mesh(mesh):
        arguments = ((cases.shard(x, mesh, "r", None, None),) for x in (a, a_dot))
        inverse, found = (jax.jit(derivative) if jitted else derivative)(*arguments)
    np.testing.assert_allclose(inverse, np.linalg.inv(a), rtol=0, atol=1e-11)
    expected = -np.linalg.inv(a) @ a_dot @ np.linalg.inv(a)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_batches_without_padding():
    a = np.stack([cases.positive_definite("well", 8, "float64") * (1 + i) for i in range(3)])
    expected = np.linalg.inv(a)
    np.testing.assert_allclose(jaxmg.potri(a, 2, cases.line(4), pad=False), expected, rtol=1e-11)
    batched = jax.vmap(lambda a: jaxmg.potri(a, 2, cases.line(4), pad=False))
    np.testing.assert_allclose(batched(a), expected, rtol=1e-11)
    with pytest.raises(ValueError, match="^potri: with pad=False the number of rows of a, 7, must"):
        jaxmg.potri(a[:, :7, :7], 2, cases.line(4), pad=False)


def test_no_axes_twice():
    """The result's spec names the batch's axis once, although the spec of each matrix names it
    too."""
    mesh, a = cases.line(4, kind=AxisType.Explicit), _batch("float64", 4, 8)[0]
    found = jaxmg.potri(cases.shard(np.asarray(a), mesh, "r"), 2, mesh, P("r", None))
    assert found.sharding.spec == P("r", None, None)
    _check(found, jnp.linalg.inv(a), float)


# Name -> (spec of the batch of matrices, spec of the right-hand sides); None is a NumPy array.
_LIE = {
    "replicated": ((), ()),
    "batch": (("r",), ("r",)),
    "batch over both": ((("r", "c"),), (("r", "c"),)),
    "batch and rows": (("c", "r"), ("c",)),
    "batch of a alone": (("r",), ()),
    "batch of b alone": ((), ("c",)),
    "rows": ((None, "r"), (None, "c")),
    "columns": ((None, None, "c"), (None, None)),
    "blocks": ((None, "r", "c"), (None, "r")),
    "batch of b alone, a as NumPy has it": (None, ("c",)),
}
# Functions with factors, which take no leading dimensions.
_OF_ONE_MATRIX = ("cho_solve", "refined factor", "factor")
_WAYS = {
    "leading": lambda f: f,
    "vmap": lambda f: jax.vmap(f),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(_size(f), (0, 1))),
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(_size(f), (0, 1)))),
    "vmap of jit of grad": lambda f: jax.vmap(jax.jit(jax.grad(_size(f), (0, 1)))),
    "grad of vmap": lambda f: jax.grad(_size(f, jax.vmap), (0, 1)),
    "jvp of vmap": lambda f: _jvp(jax.vmap(f)),
    "jit of vmap of jvp": lambda f: jax.jit(jax.vmap(_jvp(f))),
}


def _size(function, mapped=lambda f: f):
    """Returns a function that sums the squares of all results for a Hermitian matrix."""

    def size(*arrays):
        found = mapped(lambda a, b: function(cases.hermitian_part(a), b))(*arrays)
        return sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(found))

    return size


def _jvp(function):
    def tangents(a, b):
        found = jax.jvp(function, (a, b), (a * a + 1, b - 1))[1]
        return [x for x in jax.tree.leaves(found) if x.dtype != jax.dtypes.float0]

    return tangents


@pytest.mark.core("potri")
@pytest.mark.parametrize(
    "name, lie, way",
    cases.broad(
        [
            (name, lie, "leading" if "alone" in lie else list(_WAYS)[(i + j) % len(_WAYS)])
            for i, name in enumerate(_FUNCTIONS)
            for j, lie in enumerate(_LIE)
            if name not in _OF_ONE_MATRIX or not ("alone" in lie or (i + j) % len(_WAYS) == 0)
        ],
        lambda name, lie, way: (name, lie) in (("potri", "batch"), ("cho_solve", "blocks")),
        alone=True,
    ),
)
def test_explicit_axes(name, lie, way):
    """Results are sharded as the batch, and each one as its matrix or right-hand side."""
    (ours, theirs), mesh = _FUNCTIONS[name], cases.grid(AxisType.Explicit)
    of_a, of_b = _LIE[lie]
    a, b = _batch("float64", 8, 8)
    expected = _WAYS[way if way != "leading" else "vmap"](cases.precisely(theirs))(a, b)
    a = np.asarray(a) if of_a is None else cases.shard(np.asarray(a), mesh, *of_a)
    b = cases.shard(np.asarray(b), mesh, *of_b)
    found = cases.on(mesh, _WAYS[way](lambda a, b: ours(a, b, mesh)))(a, b)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-9 * max(1, np.abs(y).max())),
        found,
        expected,
    )
    axes = (of_a or ())[:1] or (of_b[:1] if name in ("potrs", "logdet", "refined") else ())
    for x in jax.tree.leaves(found):
        assert x.sharding.mesh == mesh and x.sharding.spec[:1] == (axes or (None,))
    if "grad" in way:
        for x, given in zip(found, (a, b), strict=True):
            assert x.sharding.is_equivalent_to(given.sharding, x.ndim)
    elif name in ("potrs", "cho_solve"):
        (x,) = jax.tree.leaves(found)
        assert x.sharding.spec[1] == (of_b[1] if len(of_b) > 1 else None)


@pytest.mark.parametrize(
    "name, outside",
    cases.broad(
        [(name, outside) for name in ("potrs", "gesv", "solve") for outside in (False, True)],
        lambda name, outside: (name, outside) == ("gesv", False),
    ),
)
def test_derivatives_of_a_jit_in_a_batch_of_batches(name, outside):
    """The rule scans over one batch, which leaves the other batch in the second dimension."""
    function = {"potrs": jaxmg.potrs, "gesv": jaxmg.gesv, "solve": jaxmg.linalg.solve}[name]
    mesh, b = cases.line(2), jnp.arange(1.0, 5)
    a = np.stack([cases.positive_definite("well", 4, "float64") + k * np.eye(4) for k in range(4)])
    a, moved = a.reshape(2, 2, 4, 4), cases.normal(cases.rng(1), (2, 2, 4, 4), "float64")
    moved = moved + moved.swapaxes(-1, -2)

    def one(a):
        return function(a, b, mesh=mesh)

    def mapped(a):
        return jax.vmap(jax.vmap(one if outside else jax.jit(one)))(a)

    x = np.linalg.solve(a, np.tile(b[:, None], (2, 2, 1, 1)))
    tangent = -np.linalg.solve(a, moved @ x)[..., 0]
    found = jax.jvp(jax.jit(mapped) if outside else mapped, (a,), (moved,))
    np.testing.assert_allclose(found[0], x[..., 0], rtol=1e-12)
    np.testing.assert_allclose(found[1], tangent, rtol=1e-10, atol=1e-14)
    weights = cases.normal(cases.rng(2), (2, 2, 4), "float64")
    gradient = jax.grad(lambda a: jnp.vdot(weights, mapped(a)))(jnp.asarray(a))
    np.testing.assert_allclose(jnp.vdot(gradient, moved), np.vdot(weights, tangent), rtol=1e-10)
