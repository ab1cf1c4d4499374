"""A matrix that isn't finite never reaches JAX's own linear algebra, since its LAPACK may not
return. The results are NaN.

Stand-ins replace JAX's functions. They record whether their argument is finite, and replace its
other values by zeros.
"""

import pathlib
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg import linalg, tree
from jaxmg._lu import stacks as lu_stacks
from jaxmg._stacks import library

# No other test uses these shapes, so no other test reuses programs with stand-ins.
_M, _N = 11, 9
_NAMES = ("svd", "eigh", "eigvalsh", "qr", "inv", "solve", "slogdet", "det")


@pytest.fixture
def seen(monkeypatch):
    """Returns a list that records whether each argument of the library was finite."""
    record: list[bool] = []

    def stand_in(function):
        def call(a, *others, **options):
            part = a if options.get("symmetrize_input", True) else jnp.tril(a)
            jax.debug.callback(lambda x: record.append(bool(x)), jnp.isfinite(part).all())
            return function(jnp.where(jnp.isfinite(a), a, 0), *others, **options)

        return call

    for name in _NAMES:
        monkeypatch.setattr(jnp.linalg, name, stand_in(getattr(jnp.linalg, name)))
    monkeypatch.setattr(jax.lax.linalg, "lu", stand_in(jax.lax.linalg.lu))
    return record


def _floats(results):
    """Returns the results that aren't integers, as arrays."""
    arrays = [np.asarray(x) for x in jax.tree.leaves(results)]
    return [x for x in arrays if x.dtype.kind in "fc"]


def _is_nan(name, x):
    """Returns whether a result is NaN, or one triangle of a factor with zeros in the other one. The
    condition number of infinity is infinite instead."""
    if name == "cond":
        return not np.isfinite(x).any()
    factors = name.removeprefix("tree.")[:2] in ("qr", "lu")
    return np.isnan(x).any() if factors else np.isnan(x).all()


def _positive_definite(a):
    return a @ a.conj().swapaxes(-1, -2) + np.eye(a.shape[-2])


_SINGLE = {
    "svd": lambda a, **o: linalg.svd(a, full_matrices=False, **o),
    "svd, whole": linalg.svd,
    "svd of a wide matrix": lambda a, **o: linalg.svd(a.T, full_matrices=False, **o),
    "svdvals": linalg.svdvals,
    "pinv": linalg.pinv,
    "polar": lambda a, **o: linalg.polar(a, **o),
    "cond": linalg.cond,
    "norm": lambda a, **o: linalg.norm(a, "nuc", **o),
    "orth": linalg.orth,
    "null_space": linalg.null_space,
    "svd_lowrank": lambda a, **o: linalg.svd_lowrank(a, 2, **o),
    "qr": linalg.qr,
    "qr with pivots": lambda a, **o: linalg.qr(a, pivoting=True, **o),
    "lstsq": lambda a, **o: linalg.lstsq(a, a[:, 0], **o),
    "least_squares": lambda a, **o: linalg.least_squares(a, np.ones(len(a)), **o),
}
_CORE_OF_SINGLE = [("svdvals", 4, np.inf)]


@pytest.mark.parametrize(
    "name, ranks, bad",
    [
        pytest.param(name, ranks, bad, id=f"{name}-{ranks}-{bad}", marks=() if core else mark)
        for name in _SINGLE
        for ranks, bad in ((4, np.inf), (1, np.nan), (2, np.nan), (8, -np.inf))
        for core in [(name, ranks, bad) in _CORE_OF_SINGLE]
        for mark in [pytest.mark.extended if ranks == 4 else pytest.mark.breadth]
    ],
)
def test_a_matrix(name, ranks, bad, seen):
    a = cases.normal(cases.rng(ranks), (_M, _N), "float64")
    a[3, 2] = bad
    a = a.astype(np.complex128) if ranks == 2 else a
    results = _SINGLE[name](jnp.asarray(a), mesh=cases.line(ranks))
    jax.effects_barrier()
    assert all(seen)
    assert all(_is_nan(name, x) for x in _floats(results))


_BATCHES = {
    **{name: _SINGLE[name] for name in ("svd", "svd, whole", "svdvals", "pinv", "polar", "qr")},
    "cond": linalg.cond,
    "eigh": lambda a, **o: linalg.eigh(_positive_definite(a), **o),
    "eigvalsh": lambda a, **o: linalg.eigvalsh(_positive_definite(a), **o),
    "inv": lambda a, **o: linalg.inv(a[:, :_N], **o),
    "solve": lambda a, **o: linalg.solve(a[:, :_N], a[0, :_N, 0] * 0 + 1, **o),
    "slogdet": lambda a, **o: linalg.slogdet(a[:, :_N], **o),
    "det": lambda a, **o: linalg.det(a[:, :_N], **o),
    "lu": lambda a, **o: linalg.lu(a, **o)[1:],  # P has integers
    "lu_factor": lambda a, **o: linalg.lu_factor(a[:, :_N], **o),
    "expm": lambda a, **o: linalg.expm(a[:, :_N], **o),
    "tree.svd": tree.svd,
    "tree.qr": tree.qr,
    "tree.eigh": lambda a, **o: tree.eigh(_positive_definite(a), **o),
    "tree.inv": lambda a, **o: tree.inv(a[:, :_N], **o),
    "orthogonalize": lambda a, **o: tree.orthogonalize(a, method="exact", **o),
    "inverse_pth_root": lambda a, **o: tree.inverse_pth_root(_positive_definite(a), 2, **o),
}
_CORE_OF_BATCHES = ("tree.svd",)


@cases.needs_transformations
@pytest.mark.parametrize(
    "name, ranks",
    [
        pytest.param(
            *(name, ranks),
            id=f"{name}-{ranks}",
            marks=()
            if ranks == 2 and name in _CORE_OF_BATCHES
            else (pytest.mark.extended if ranks == 2 else pytest.mark.breadth,),
        )
        for name in _BATCHES
        for ranks in (2, 1, 8)
    ],
)
def test_a_matrix_of_a_batch(name, ranks, seen):
    a = cases.normal(cases.rng(ranks, 1), (3, _M, _N), "float64")
    a[1, 2, 1] = np.nan if ranks == 2 else np.inf
    results = _BATCHES[name](a, mesh=cases.line(ranks))
    jax.effects_barrier()
    assert all(seen)
    for x in _floats(results):
        assert _is_nan(name, x[1]) and np.isfinite(x[::2]).all()


_TRIANGLES = {  # (function, whether the triangle of zeros lies below the diagonal)
    "qr": (lambda a, **o: linalg.qr(a, **o)[1], True),
    "r": (lambda a, **o: linalg.qr(a, "r", **o), True),
    "complete": (lambda a, **o: linalg.qr(a, "complete", **o)[1], True),
    "lower": (lambda a, **o: linalg.lu(a, **o)[1], False),
    "upper": (lambda a, **o: linalg.lu(a, **o)[2], True),
    "cholesky": (lambda a, **o: linalg.cholesky(a[..., :4, :4], **o), False),
    "upper cholesky": (lambda a, **o: linalg.cholesky(a[..., :4, :4], upper=True, **o), True),
    "tree.qr": (lambda a, **o: tree.qr(a, **o)[1], True),
    "tree.r": (lambda a, **o: tree.qr(a, "r", **o), True),
    "tree.complete": (lambda a, **o: tree.qr(a, "complete", **o)[1], True),
    "tree.cholesky": (lambda a, **o: tree.cholesky(a[..., :4, :4], **o), False),
    "tree.upper cholesky": (lambda a, **o: tree.cholesky(a[..., :4, :4], upper=True, **o), True),
}


@cases.needs_transformations
@pytest.mark.core("tree.qr")
@pytest.mark.parametrize(
    "name, ranks, dtype",
    cases.broad(
        [
            (name, ranks, cases.DTYPES[(i + j + k) % 4])
            for i, name in enumerate(_TRIANGLES)
            for j, ranks in enumerate((2, 1, 4, 8))
            for k in range(2)
        ],
        lambda name, ranks, dtype: ranks == 2 and dtype[0] == "f",
    ),
)
def test_beside_a_triangle_that_is_not_finite_are_zeros(name, ranks, dtype):
    function, below = _TRIANGLES[name]
    a = cases.normal(cases.rng(6), (3, 7, 7), dtype)
    a[1, 2, 1], a[2, 0, 0] = np.nan, np.inf
    for matrices in (a, a[:, :, :4], a[:, :4], a[1, :, :4], a[2, :, :4]):
        factor = np.asarray(function(matrices, mesh=cases.line(ranks)))
        assert np.isnan(factor[1:] if matrices.ndim == 3 else factor[None]).any((1, 2)).all()
        factor = factor if below else factor.swapaxes(-1, -2)
        assert (factor[..., np.tri(*factor.shape[-2:], -1, dtype=bool)] == 0).all()


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("ranks", [2, cases.breadth(1)])
def test_an_infinite_diagonal_entry_hides_nothing_of_a_factor(ranks):
    """The factor's columns after the infinite entry are finite, and so the solutions would be."""
    a, mesh = np.stack([2 * np.eye(5) + 1] * 3), cases.line(ranks)
    a[1, 2, 2] = np.inf
    for lower in (False, True):
        c = linalg.cho_factor(a, lower=lower, mesh=mesh)
        x = linalg.cho_solve(c, np.ones(5), mesh=mesh)
        assert np.isnan(x[1]).all() and np.isfinite(x[::2]).all()


_BY_STRUCTURE = {
    "solve": lambda a, **o: linalg.solve(a, np.ones(len(a), a.dtype), **o),
    "inv": linalg.inv,
    "det": linalg.det,
    "slogdet": linalg.slogdet,
    "power": lambda a, **o: linalg.matrix_power(a, -2, **o),
}


@pytest.mark.core("solve")
@pytest.mark.parametrize(
    "name, ranks, dtype",
    cases.broad(
        [
            (name, ranks, cases.DTYPES[(i + j) % 4])
            for i, name in enumerate(_BY_STRUCTURE)
            for j, ranks in enumerate((2, 1, 4, 8))
        ],
        lambda name, ranks, dtype: ranks == 2,
    ),
)
def test_a_triangle_with_infinity_is_not_hermitian(name, ranks, dtype):
    """Both products with a probe are infinite, and the other triangle is positive definite by
    itself. Without a check, results would be finite."""
    a = (3 * np.eye(6)).astype(dtype)
    for place in ((4, 1), (1, 4), (5, 0)):
        spoilt = a.copy()
        spoilt[place] = np.inf
        results = _BY_STRUCTURE[name](jnp.asarray(spoilt), mesh=cases.line(ranks))
        assert all(np.isnan(x).all() for x in _floats(results))
        with pytest.raises(ValueError, match="not Hermitian"):
            jaxmg.potrs(spoilt, np.ones(6, dtype), mesh=cases.line(ranks), check=True)


@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.extended)])
def test_all_results_but_integers_are_nan(bad):
    given = []

    def stand_in(a, b):
        given.append(a)
        return {"x": a @ b, "sum": a.sum((-2, -1)) * (1 + 1j), "at": jnp.argmax(a[..., 0], -1)}

    a = cases.normal(cases.rng(1), (2, 3, 3, 3), "float32")
    a[1, 2, 0, 1] = bad
    results = library.guarded(stand_in)(jnp.asarray(a), a[0, 0])
    assert np.isfinite(given[0]).all()
    np.testing.assert_array_equal(given[0][1, 2], np.eye(3))
    for values in (np.asarray(results["x"]), np.asarray(results["sum"])):
        assert np.isnan(values.real[1, 2]).all() and np.isfinite(np.delete(values[1], 2, 0)).all()
        assert np.isfinite(values[0]).all()
    assert np.isnan(results["sum"][1, 2].imag)
    assert results["at"][1, 2] == 0 and results["at"].dtype == jnp.argmax(a[0, 0, 0]).dtype


@pytest.mark.extended
def test_derivatives_of_a_matrix_that_is_not_finite_are_nan_and_others_stay():
    a = cases.normal(cases.rng(2), (2, 3, 3), "float64")
    good, a[1, 0, 2] = a.copy(), np.nan

    def loss(function):
        return lambda a: jnp.sum(jnp.sin(function(a)))

    guarded = library.guarded(lambda a: a @ a)

    def twice(f):
        return jax.grad(lambda a: jnp.sum(jax.grad(f)(a)))

    for derivative in (jax.grad, twice):
        found = np.asarray(derivative(loss(guarded))(a))
        expected = np.asarray(derivative(loss(lambda a: a @ a))(good))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        assert np.isnan(found[1]).all()
    moved = np.asarray(jax.jvp(guarded, (a,), (good,))[1])
    np.testing.assert_allclose(moved[0], 2 * good[0] @ good[0], rtol=1e-12)
    assert np.isnan(moved[1]).all()


@pytest.mark.extended
def test_only_the_triangle_that_is_read_is_looked_at():
    a = cases.hermitian(5, "float64")
    for name in ("U", "L"):
        spoilt = cases.upper_only(a) if name == "U" else cases.upper_only(a).T
        w = library.eigh(jnp.asarray(spoilt), UPLO=name, symmetrize_input=False)[0]
        np.testing.assert_allclose(w, np.linalg.eigvalsh(a), rtol=0, atol=1e-13)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("batch", [False, True])
def test_gradients_end_and_are_nan(batch, kind, seen):
    mesh = cases.line(2, kind=kind)
    a = cases.normal(cases.rng(3), (2, 12, 9), "float64")
    a[1, 3, 2] = np.nan
    placed = cases.shard(a, mesh, "r") if batch else cases.shard(a[1], mesh, "r")
    loss = cases.on(mesh, jax.grad(lambda a: linalg.svdvals(a, mesh=mesh).sum()))
    found = np.asarray(loss(placed))
    jax.effects_barrier()
    assert all(seen)  # on CPU devices the engine calls LAPACK, not the library
    assert np.isnan(found[1] if batch else found).all()
    assert not batch or np.isfinite(found[0]).all()


def test_no_other_file_calls_the_library():
    """Only library.py calls these functions; Cholesky factorization and substitution are exempt, as
    library.py says."""
    names = "|".join((*_NAMES, "lu", "eig", "schur", "householder_product", "geqrf", "geqp3"))
    call = re.compile(rf"\b(jnp|jax\.numpy|lax|jax\.lax|jax\.scipy)\.linalg\.({names})\(")
    folder = pathlib.Path(jaxmg.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.name == "library.py" or "_command" in path.parts:
            continue
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
        assert not call.findall(code), path


@pytest.mark.parametrize("name", ["inverse_of_small", "inverse_by_plugin", "solve_small"])
def test_an_infinite_pivot_hides_nothing(plugin, name):
    """Elimination divides by an infinite pivot, which could leave finite numbers."""
    a = cases.normal(cases.rng(5), (3, 6, 6), "float64")
    a[1, 2, 2] = np.inf
    others = (np.ones((3, 6, 1)),) if name == "solve_small" else ()
    x = jax.jit(getattr(lu_stacks, name))(a, *others)
    assert np.isnan(x[1]).all() and np.isfinite(x[::2]).all()
