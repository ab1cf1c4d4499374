"""What one CPU device does for all by LAPACK, and how batches are dealt to the cores."""

import functools
import json
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxmg import linalg

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices")


def _ranges(path):
    """{(routine, what it did): the ranks that did it} of a trace."""
    events = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    found = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault((event["cat"], event["name"]), set()).add(event["pid"])
    return found


_CALLS = {
    "svd": (linalg.svd, ("gesvd", "gesvd")),
    "svdvals": (linalg.svdvals, ("gesvd", "gesvd")),
    "qr": (linalg.qr, ("tall_qr", "qr")),
}


@pytest.mark.core("svd-4", "qr-4")
@cases.one_process("each records its own ranks")
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("name", _CALLS)
def test_one_rank_does_it_for_all(name, devices, tmp_path, monkeypatch):
    function, step = _CALLS[name]
    mesh = cases.line(devices)
    a = jnp.asarray(np.random.default_rng(0).standard_normal((40, 40)))
    call = functools.partial(function, mesh=mesh, matrix_specs=P("r", None))
    alone = tmp_path / "alone.json"
    monkeypatch.setenv("JAXMG_TRACE", str(alone))
    by_one = jax.block_until_ready(call(a))
    assert _ranges(alone)[step] == {0}
    together = tmp_path / "together.json"
    monkeypatch.setenv("JAXMG_TRACE", str(together))
    with cases.by_all_ranks():
        by_all = jax.block_until_ready(call(a))
        assert not together.exists() or step not in _ranges(together)
    for x, y in zip(jax.tree.leaves(by_one), jax.tree.leaves(by_all), strict=True):
        np.testing.assert_allclose(jnp.abs(x), jnp.abs(y), atol=1e-12)


_BATCHES = {
    "cholesky": ("stacked_cholesky", linalg.cholesky),
    "qr": ("stacked_qr", linalg.qr),
    "svd": ("stacked_svd", linalg.svd),
    "svdvals": ("stacked_svd", linalg.svdvals),
    "inv": ("stacked_lu", linalg.inv),
    "solve": ("stacked_lu", lambda a, **where: linalg.solve(a, a[..., :1], **where)),
}


def _batch(dtype="float64"):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((6, 12, 12))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(a.shape)
    return (a @ a.conj().swapaxes(1, 2) + 12 * np.eye(12)).astype(dtype)


def _on(devices):
    return {"mesh": cases.line(devices), "matrix_specs": P()}


@pytest.mark.core("cholesky-3", "svd-3", "solve-3")
@cases.needs_transformations
@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("name", _BATCHES)
def test_the_plugin_deals_batches_to_cores(name, devices):
    """No kernel of JAX's, of which several devices' hold each other up."""
    operation, function = _BATCHES[name]
    call = jax.jit(functools.partial(function, **_on(devices)))
    text = call.lower(jnp.asarray(_batch())).compile().as_text()
    assert f'custom_call_target="jaxmg_{operation}"' in text
    assert "lapack_" not in text


@pytest.mark.core("svd-float64", "cholesky-complex64")
@cases.needs_transformations
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("name", _BATCHES)
def test_a_matrix_of_a_batch_that_is_not_finite_spoils_no_other(name, dtype):
    function = _BATCHES[name][1]
    a = _batch(dtype)
    good = jax.tree.leaves(function(jnp.asarray(a), **_on(3)))
    a[2, 3, 3] = np.nan
    for before, after in zip(good, jax.tree.leaves(function(a, **_on(3))), strict=True):
        before, after = np.asarray(before), np.asarray(after)
        assert np.isnan(after[2]).any()
        others = [0, 1, 3, 4, 5]
        np.testing.assert_array_equal(after[others], before[others])


@pytest.mark.core("shape1")
@cases.needs_transformations
@pytest.mark.parametrize("shape", [(3, 9, 9), (2, 5, 9), (2, 9, 5), (2, 3, 0)])
def test_values_of_batches_are_numpys(shape):
    a = np.random.default_rng(3).standard_normal(shape)
    s = linalg.svdvals(jnp.asarray(a), **_on(2))
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-13)
    u, t, vh = linalg.svd(jnp.asarray(a), full_matrices=False, **_on(2))
    np.testing.assert_allclose(t, s, atol=1e-13)
    np.testing.assert_allclose((u * t[:, None, :]) @ vh, a, atol=1e-13)


@pytest.mark.core("3--900")
@pytest.mark.parametrize("exponent", [-900, 900])
@pytest.mark.parametrize("devices", [1, 3])
def test_powers_of_two_change_no_bit(devices, exponent):
    a = np.random.default_rng(2).standard_normal((21, 21))
    where = {"mesh": cases.line(devices), "matrix_specs": P("r", None)}
    u, s, vh = linalg.svd(a, **where)
    v, t, wh = linalg.svd(np.ldexp(a, exponent), **where)
    np.testing.assert_array_equal(u, v)
    np.testing.assert_array_equal(vh, wh)
    np.testing.assert_array_equal(np.ldexp(s, exponent), t)


@pytest.mark.extended
@cases.needs_transformations
@pytest.mark.parametrize("name", ["svd", "qr", "cholesky", "inv"])
def test_gradients_of_batches_on_several_devices(name):
    function = _BATCHES[name][1]
    a = jnp.asarray(_batch())

    def total(function, a):
        return sum(jnp.sum(jnp.abs(x) ** 2 * (1 + jnp.arange(x.shape[-1])))
                   for x in jax.tree.leaves(function(a)))  # fmt: skip

    ours = jax.grad(functools.partial(total, functools.partial(function, **_on(3))))(a)
    peer = getattr(jnp.linalg, name)
    theirs = jax.grad(functools.partial(total, peer))(a)
    if name == "cholesky":
        ours, theirs = (x + x.swapaxes(1, 2) for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, atol=1e-8 * float(jnp.abs(theirs).max()))


@pytest.mark.core("cholesky")
@cases.needs_transformations
@pytest.mark.parametrize("name", ["cholesky", "qr"])
def test_derivatives_call_a_kernel_of_jaxs_for_one_matrix(name):
    """Kernels of batches wait in a thread of XLA's pool for other threads of it with JAX 0.10."""
    function = _BATCHES[name][1]

    def total(a):
        return sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(function(a, **_on(3))))

    text = jax.jit(jax.grad(total)).lower(jnp.asarray(_batch())).compile().as_text()
    calls = re.findall(r"= f64\[([\d,]+)\].*custom_call_target=\"lapack_\w*trsm", text)
    assert calls and set(calls) == {"12,12"}, calls
