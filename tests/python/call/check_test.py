"""``check=True``: matrices of which one triangle is read must be Hermitian."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg

_N = 7
_GOOD = {dtype: cases.positive_definite("well", _N, dtype) for dtype in ("float32", "complex128")}
_B = np.ones(_N)


def _b(a):
    return jnp.ones(_N, a.dtype)


# Name -> function of a matrix and options, which returns (result, status) with return_status.
_CALLS = {
    "potrs": lambda a, **o: jaxmg.potrs(a, _b(a), return_status=True, **o),
    "potrs_refine": lambda a, **o: jaxmg.potrs(a, _b(a), refine="tf32", return_status=True, **o),
    "potri": lambda a, **o: jaxmg.potri(a, return_status=True, **o),
    "syevd": lambda a, **o: jaxmg.syevd(a, return_status=True, **o)[1:],
    "sygvd": lambda a, **o: jaxmg.sygvd(a, jnp.eye(_N, dtype=a.dtype), return_status=True, **o)[1:],
    "sygvd_b": lambda b, **o: jaxmg.sygvd(jnp.eye(_N, dtype=b.dtype), b, return_status=True, **o)[
        1:
    ],
    "eigh": lambda a, **o: jaxmg.eigh(a, return_status=True, **o)[1:],
    "eigh_subset": lambda a, **o: jaxmg.eigh(a, subset_by_index=(0, 2), return_status=True, **o)[
        1:
    ],
    "eigvalsh": lambda a, **o: jaxmg.eigvalsh(a, return_status=True, **o),
    "cho_factor": lambda a, **o: _solved(jaxmg.cho_factor(a, **o)),
    "cho_factor_refine": lambda a, **o: _solved(jaxmg.cho_factor(a, refine="tf32", **o)),
}


def _cases(*others):
    """Returns each call with each of ``others``; the core has every other call with one of them."""
    names = list(_CALLS)
    return cases.broad(
        [(name, *other) for name in names for other in others],
        lambda name, *other: (
            names.index(name) % 2 == 0 and other == others[names.index(name) // 2 % len(others)]
        ),
        slow=lambda name, *_: "refine" in name,
    )


def _solved(factor):
    return factor.solve(_b(factor)), factor.status


def _bad(dtype, kind):
    a = _GOOD[dtype].copy()
    if kind == "triangle":
        return np.tril(a)
    if kind == "entry":
        a[_N - 1, 0] += 0.01
    return a


@pytest.mark.extended
@pytest.mark.parametrize("name, dtype, ranks", _cases(("float32", 1), ("complex128", 2)))
def test_a_hermitian_matrix_passes(name, dtype, ranks):
    call, mesh = _CALLS[name], cases.line(ranks)
    rounded = _GOOD[dtype] * (
        1 + np.finfo(dtype).eps * cases.normal(cases.rng(1), (_N, _N), "float64") / 4
    )
    jitted = jax.jit(lambda a: call(a, check=True, mesh=mesh)[0])
    for matrix in (_GOOD[dtype], rounded.astype(dtype)):
        a = cases.shard(matrix, mesh)
        expected, result = call(a), call(a, check=True)
        jax.tree.map(np.testing.assert_array_equal, result, expected)
        assert result[1] == 0
        np.testing.assert_allclose(jitted(a), expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.core("eigh")
@pytest.mark.parametrize(
    "name, dtype, kind, ranks", _cases(("float32", "triangle", 2), ("complex128", "entry", 1))
)
def test_another_matrix_does_not(name, dtype, kind, ranks):
    call, mesh = _CALLS[name], cases.line(ranks)
    a = cases.shard(_bad(dtype, kind), mesh)
    function, argument = name.split("_")[0], "b" if name == "sygvd_b" else "a"
    function = "cho_factor" if function == "cho" else function
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{function}: {argument} is not Hermitian: it diff"):
            call(a, check=True)
    if name not in ("cho_factor", "cho_factor_refine"):
        assert call(a)[1] == 0 or kind == "triangle"
    result, status = jax.jit(lambda a: call(a, check=True, mesh=mesh))(a)
    assert status != 0 and np.isnan(result).all()


@pytest.mark.extended
def test_nothing_is_changed_or_taken():
    a = jnp.asarray(_bad("float32", "triangle"))
    with pytest.raises(ValueError, match="is not Hermitian"):
        jaxmg.potri(a, donate=True, check=True)
    assert not a.is_deleted()
    factor = jaxmg.cho_factor(jnp.asarray(_GOOD["float32"]), refine="tf32", check=True)
    assert factor.status == 0


@pytest.mark.extended
def test_a_constant_in_a_jit():
    a = _bad("float32", "triangle")
    b = np.ones(_N, "float32")
    x = jax.jit(lambda b: jaxmg.potrs(jnp.asarray(a), b, mesh=cases.line(2), check=True))(b)
    assert np.isnan(x).all()


@pytest.mark.extended
@cases.needs_transformations
def test_of_a_batch_the_matrices_that_are_not():
    stack = jnp.stack([_GOOD["float32"], _bad("float32", "entry"), 2 * _GOOD["float32"]])
    x, status = jaxmg.potrs(stack, jnp.ones(_N, "float32"), return_status=True, check=True)
    np.testing.assert_array_equal(status == 0, [True, False, True])
    np.testing.assert_array_equal(np.isnan(x).all(axis=1), [False, True, False])


@pytest.mark.extended
@cases.needs_transformations
def test_derivatives():
    def loss(a, check):
        return jnp.sum(jaxmg.potrs(a, jnp.ones(_N), check=check))

    a = jnp.asarray(cases.positive_definite("well", _N, "float64"))
    np.testing.assert_allclose(jax.grad(loss)(a, True), jax.grad(loss)(a, False), rtol=1e-12)
    assert np.isnan(jax.value_and_grad(loss)(jnp.tril(a), True)[0])


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "syevd" else pytest.mark.breadth)
        for name in _CALLS
        if "refine" not in name
    ],
)
def test_a_derivative_is_nan_where_the_value_is(name):
    def loss(a):
        return jnp.sum(jnp.abs(_CALLS[name](a, mesh=cases.line(2), check=True)[0]))

    value, gradient = jax.jit(jax.value_and_grad(loss))(_bad("float32", "entry"))
    assert np.isnan(value) and np.isnan(gradient).all()
    value, gradient = jax.jit(jax.value_and_grad(loss))(_GOOD["float32"])
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_shapes():
    assert jaxmg.potri(np.ones((0, 0)), check=True).shape == (0, 0)
    with pytest.raises(ValueError, match="^potri: a must be a square matrix"):
        jaxmg.potri(np.ones((2, 3)), check=True)
    with pytest.raises(
        ValueError,
        match="^potri: check=True needs a square matrix without rows of padding; a has shape",
    ):
        jaxmg.potri(np.ones((8, 6)), 2, cases.line(2), pad=False, check=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("row", [0, 5])
def test_not_finite_on_the_diagonal(row, value):
    """The error is raised whichever device has the entry."""
    a = np.eye(8, dtype=np.float32)
    a[row, row] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        jaxmg.cho_factor(a, check=True, mesh=cases.line(4))
