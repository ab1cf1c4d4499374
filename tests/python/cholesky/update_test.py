"""Updates and downdates of Cholesky factors that are kept."""

import itertools
import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg import _compat

_N = 13  # only 1 of the numbers of devices divides it


def _problem(n, k, dtype, *seed):
    """Returns (A, V), with A well conditioned and V of A's size."""
    return cases.positive_definite("well", n, dtype), cases.normal(
        cases.rng(n, k, *seed), (n, k), dtype
    )


def _updated(a, v, sign=1):
    a, v = cases.wide(a), cases.wide(v)
    return a + sign * (v @ v.conj().T)


def _error(factor, a, largest=None):
    """Returns the backward error of a factor in units of n eps |A|, or of the norm of ``largest``,
    from which A is a downdate."""
    u, a = cases.wide(factor.upper()), cases.wide(a)
    n = max(len(a), 1)
    size = np.linalg.norm(a if largest is None else cases.wide(largest))
    return np.linalg.norm(u.conj().T @ u - a) / (n * cases.eps(factor.dtype) * size)


def _check(factor, a, largest=None):
    __tracebackhide__ = True
    assert factor.status == 0
    assert _error(factor, a, largest) <= 10
    growth = 1 if largest is None else np.linalg.norm(largest) / np.linalg.norm(a)
    tolerance = 1e3 * cases.eps(factor.dtype) * growth
    wanted = np.linalg.slogdet(cases.wide(a))[1]
    np.testing.assert_allclose(factor.logdet(), wanted, rtol=tolerance, atol=len(a) * tolerance)
    b = cases.normal(cases.rng(3), (len(a), 2), factor.dtype)
    assert cases.backward_error(a, factor.solve(b), b) <= tolerance


_CASES = [
    (*mesh, dtype, *size, k)
    for mesh, dtype, size, k in itertools.product(
        (*((ranks, AxisType.Auto) for ranks in (1, 2, 4, 8)), (4, AxisType.Explicit)),
        ("float32", "complex128"),
        ((1, None), (_N, 2), (150, 9)),
        (1, 3, 20),
    )
] + [
    (1, AxisType.Auto, "complex64", 70, None, 3),
    (2, AxisType.Explicit, "float64", _N, 2, 1),
    (8, AxisType.Auto, "float64", _N, 2, 0),
]
_CORE = [*_CASES[-3:], (4, AxisType.Auto, "complex128", _N, 2, 20)]


@pytest.mark.parametrize(
    "ranks, kind, dtype, n, tile, k",
    cases.broad(
        _CASES,
        lambda *case: case in _CORE,
        alone=True,
    ),
)
def test_update_and_downdate(ranks, kind, dtype, n, tile, k):
    a, v = _problem(n, k, dtype)
    mesh = cases.line(ranks, kind=kind)
    factor = jaxmg.cho_factor(a, tile, mesh)
    updated = factor.update(v)
    _check(updated, _updated(a, v))
    _check(updated.update(v, -1), a, _updated(a, v))
    _check(factor, a)
    if k == 1:
        np.testing.assert_array_equal(factor.update(v[:, 0]).tiles, updated.tiles)


@pytest.mark.parametrize("dtype", ["float64", cases.breadth("float32")])
def test_a_thousand_updates_keep_the_error_small(dtype):
    """A window of ten vectors moves over a thousand: each is added and later taken away."""
    a, v = _problem(40, 500, dtype)
    factor, window = jaxmg.cho_factor(a, 9, cases.line(2)), 10
    up, down = jax.jit(lambda f, v: f.update(v)), jax.jit(lambda f, v: f.update(v, -1))
    for i in range(v.shape[1]):
        factor = jax.block_until_ready(up(factor, v[:, i]))
        if i >= window:
            factor = jax.block_until_ready(down(factor, v[:, i - window]))
    assert factor.status == 0
    assert _error(factor, _updated(a, v[:, -window:])) <= 10


def test_columns_of_v_that_are_applied_in_turn():
    a, v = _problem(20, 300, "float64")
    _check(jaxmg.cho_factor(a, 3, cases.line(2)).update(v), _updated(a, v))


@pytest.mark.parametrize("size", (1.0, 1.5))  # singular, and indefinite
def test_a_downdate_that_is_not_definite(size):
    a, v = _problem(_N, 1, "float64")
    bad, factor = 8, jaxmg.cho_factor(a, 2, cases.line(4))
    v = np.zeros((_N, 2))  # the minor before is A's
    v[bad, 1] = size * a[bad, bad] ** 0.5
    down = factor.update(v, -1)
    assert down.status == bad + 1
    assert np.all(np.isnan(down.solve(np.ones(_N)))) and np.isnan(down.logdet())
    assert down.update(v).status == down.status
    _check(factor, a)


def test_nan_and_a_failed_factor():
    a, v = _problem(_N, 2, "float64")
    factor = jaxmg.cho_factor(a, 2, cases.line(2))
    v[3, 1] = np.nan
    assert factor.update(v).status > 0 and np.isnan(factor.update(v).logdet())
    failed = jaxmg.cho_factor(-a, 2, cases.line(2))
    assert failed.status == 1
    assert failed.update(np.ones(_N)).status == 1


@pytest.mark.parametrize("exponent", (-200, 7, cases.breadth(300)))
def test_powers_of_two_change_no_bit(exponent):
    a, v = _problem(_N, 3, "float64")
    mesh = cases.line(2)
    factor = jaxmg.cho_factor(a, 2, mesh)
    scaled = jaxmg.cho_factor(np.ldexp(a, 2 * exponent), 2, mesh)
    v = np.concatenate([v, np.zeros_like(v[:, :1])], 1)
    for sign, size in ((1, 1), (-1, 1 / 16)):
        one = factor.update(size * v, sign).upper()
        other = scaled.update(np.ldexp(size * v, exponent), sign).upper()
        np.testing.assert_array_equal(np.ldexp(np.asarray(one), exponent), other)


@pytest.mark.skipif(not _compat.TRANSFORMS, reason="derivatives need a newer JAX")
@pytest.mark.extended
@pytest.mark.parametrize("sign, dtype", ((1, "float64"), cases.breadth(-1, "complex128")))
def test_derivatives(sign, dtype):
    n = 5
    a, v = _problem(n, 2, dtype)
    v, mesh = v / 4, cases.line(2)
    a_dot = cases.hermitian(n, dtype)
    v_dot, b = cases.normal(cases.rng(5), (2, n, 2), dtype)

    def ours(a, v):
        factor = jaxmg.cho_factor(a, 2, mesh).update(v, sign)
        return jnp.sum(jnp.abs(factor.solve(b)) ** 2) + factor.logdet()

    def direct(a, v):
        a = (a + a.conj().T) / 2 + sign * (v @ v.conj().T)
        return jnp.sum(jnp.abs(jnp.linalg.solve(a, b)) ** 2) + jnp.linalg.slogdet(a)[1]

    def both(f):
        def compute(a, v):
            by_a, by_v = jax.grad(f, (0, 1))(a, v)
            return by_v, jnp.vdot(by_a.conj(), a_dot).real, *jax.jvp(f, (a, v), (a_dot, v_dot))

        return jax.jit(compute)(a, v)

    for one, other in zip(both(ours), both(direct), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.skipif(not _compat.TRANSFORMS, reason="derivatives need a newer JAX")
def test_the_derivative_by_v_alone():
    a, v = _problem(5, 2, "float64")
    factor = jaxmg.cho_factor(a, 2, cases.line(2))
    found = jax.grad(lambda v: factor.update(v).logdet())(v)
    np.testing.assert_allclose(found, 2 * np.linalg.solve(_updated(a, v), v), rtol=1e-12)


@pytest.mark.skipif(not _compat.TRANSFORMS, reason="batches need a newer JAX")
@pytest.mark.parametrize("ranks", (1, 2))
@pytest.mark.parametrize("batched", ("both", cases.breadth("v"), cases.breadth("factor")))
def test_batches(ranks, batched):
    a, v = _problem(6, 6, "float64")
    stack, vs = jnp.stack([a, 2 * a, 3 * a]), v.reshape(6, 3, 2).transpose(1, 0, 2)
    mesh = cases.line(ranks)
    factors = jax.vmap(lambda a: jaxmg.cho_factor(a, 2, mesh))(stack)
    if batched == "v":
        factors = jaxmg.cho_factor(a, 2, mesh)
        found = jax.vmap(lambda v: factors.update(v).logdet())(vs)
        stack = [a] * 3
    elif batched == "factor":
        found = jax.vmap(lambda f: f.update(vs[0]).logdet())(factors)
        vs = [vs[0]] * 3
    else:
        found = jax.jit(jax.vmap(lambda f, v: f.update(v).logdet()))(factors, vs)
    wanted = [np.linalg.slogdet(_updated(a, v))[1] for a, v in zip(stack, vs, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.extended
@cases.one_process("NumPy arrays are made of portable forms")
def test_an_updated_factor_is_saved():
    a, v = _problem(_N, 2, "float64")
    factor = jaxmg.cho_factor(a, 2, cases.line(4)).update(v)
    again = pickle.loads(pickle.dumps(factor))
    np.testing.assert_array_equal(again.tiles, factor.tiles)
    tree = {key: np.asarray(x) for key, x in factor.portable().items()}
    moved = jaxmg.from_portable(tree, mesh=cases.line(2)).update(v, -1)
    _check(moved, a, _updated(a, v))
    upper = jaxmg.CholeskyFactor.from_upper(np.asarray(factor.upper()), 3, mesh=cases.line(2))
    _check(upper.update(v, -1), a, _updated(a, v))


def test_donated_and_compiled_once():
    a, v = _problem(_N, 8, "float64")
    factor, mesh = jaxmg.cho_factor(a, 2, cases.line(2)), cases.line(2)
    step = jax.jit(lambda f, v: f.update(v), donate_argnums=0)
    for i in range(3):
        factor = jax.block_until_ready(step(factor, cases.shard(v[:, i], mesh)))
    assert step._cache_size() <= 2  # the first factor's placement may differ
    _check(factor, _updated(a, v[:, :3]))


def test_no_rows():
    factor = jaxmg.cho_factor(np.zeros((0, 0)), mesh=cases.line(2))
    assert factor.update(np.zeros((0, 2))).shape == (0, 0)


def test_what_is_refused():
    a, v = _problem(_N, 2, "float64")
    factor = jaxmg.cho_factor(a, 2, cases.line(2))
    with pytest.raises(ValueError, match=r"v must have shape \(13,\) or \(13, k\).* \(12, 2\)"):
        factor.update(v[1:])
    with pytest.raises(ValueError, match="it has shape \\(1, 13, 2\\)"):
        factor.update(v[None])
    with pytest.raises(TypeError, match="v must have the factor's dtype, float64; it has float32"):
        factor.update(v.astype(np.float32))
    with pytest.raises(TypeError, match="v must be"):
        factor.update([1.0] * _N)
    for sign in (0, 2, True, "-", 1.0):
        with pytest.raises(ValueError, match=r"sign must be 1 \(A \+ V V\^H\) or -1"):
            factor.update(v, sign)
    refined = jaxmg.cho_factor(a, 2, cases.line(2), refine="auto")
    with pytest.raises(AttributeError, match="no 'update'.* without refine"):
        refined.update(v)
