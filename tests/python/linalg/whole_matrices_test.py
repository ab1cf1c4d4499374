"""Matrices that one CPU device computes for all by LAPACK, and the distribution of batches over
cores."""

import functools
import json
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat, linalg
from jaxmg._layouts import layouts

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices")


def _ranges(path):
    """Returns {(routine, operation): the ranks that executed it} of a trace."""
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


def _factor_by_jax(a, upper=False, lower=None):
    """JAX's factor of what `linalg.cholesky` reads with these arguments."""
    upper = upper if lower is None else not lower
    if lower is not None:
        half = jnp.triu(a, 1).conj().T if upper else jnp.tril(a, -1)
        a = half + half.conj().T + jnp.diag(jnp.diag(a).real)
    found = jnp.linalg.cholesky(a, symmetrize_input=lower is None)
    return found.conj().T if upper else found


@pytest.mark.extended
@cases.kinds
@pytest.mark.parametrize(
    "dtype", [cases.breadth("float32"), "float64", "complex64", cases.breadth("complex128")]
)
def test_a_device_that_is_alone_factors_by_its_library(dtype, kind):
    """The factor of each triangle, its derivative, what isn't finite, and 2^k A."""
    mesh = cases.line(1, kind=kind)
    matrix = _system(dtype, 43)[0]
    a = jax.device_put(matrix, jax.NamedSharding(mesh, P("r", None)))
    tolerance = 1e3 * np.finfo(dtype).eps
    weights = jnp.arange(43.0, dtype=np.finfo(dtype).dtype)

    def loss(factor, a):
        return jnp.sum(jnp.abs(factor(a)) ** 2 * weights)

    for options in ({}, {"upper": True}, {"lower": True}, {"lower": False}):
        factor = functools.partial(linalg.cholesky, mesh=mesh, **options)
        by_jax = functools.partial(_factor_by_jax, **options)
        assert "jaxmg_potrf" not in jax.jit(factor).lower(a).as_text()
        found = factor(a)
        assert found.sharding.is_equivalent_to(a.sharding, 2)
        np.testing.assert_allclose(found, by_jax(matrix), atol=tolerance)
        np.testing.assert_array_equal(factor(a * 2.0**-40), found * 2.0**-20)
        if _compat.TRANSFORMS:
            np.testing.assert_allclose(
                cases.on(mesh, jax.grad(functools.partial(loss, factor)))(a),
                jax.grad(functools.partial(loss, by_jax))(matrix),
                atol=50 * tolerance,
            )
        for bad in (np.nan, np.inf, -1):
            changed = matrix.copy()
            changed[30, 30] = bad
            assert np.isnan(factor(jnp.asarray(changed))[40, 40])


_SOLVES = {
    "potrs": lambda a, b, **where: jaxmg.potrs(a, b, return_status=True, **where),
    "gesv": lambda a, b, **where: jaxmg.gesv(a, b, return_status=True, **where),
    "potri": lambda a, b, **where: jaxmg.potri(a, return_status=True, **where),
    "getri": lambda a, b, **where: jaxmg.getri(a, return_status=True, **where),
}


def _system(dtype, n=40):
    rng = np.random.default_rng(5)
    shapes = (n, n), (n, 3)
    a, b = (rng.standard_normal(shape) for shape in shapes)
    if np.dtype(dtype).kind == "c":
        a, b = (x + 1j * rng.standard_normal(x.shape) for x in (a, b))
    return (a @ a.conj().T / n + 4 * np.eye(n)).astype(dtype), b.astype(dtype)


@pytest.mark.core("potrs-4", "getri-4")
@cases.one_process("each records its own ranks")
@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", _SOLVES)
def test_one_rank_solves_for_all_and_nothing_is_exchanged(name, devices, tmp_path, monkeypatch):
    call = functools.partial(_SOLVES[name], mesh=cases.line(devices), matrix_specs=P("r", None))
    a, b = _system("float64")
    alone = tmp_path / "alone.json"
    monkeypatch.setenv("JAXMG_TRACE", str(alone))
    by_one = jax.block_until_ready(call(a, b))
    steps = _ranges(alone)
    assert set().union(*steps.values()) == {0}, steps
    assert not [step for _, step in steps if "receive" in step], steps
    together = tmp_path / "together.json"
    monkeypatch.setenv("JAXMG_TRACE", str(together))
    with cases.by_all_ranks():
        by_all = jax.block_until_ready(call(a, b))
    assert set().union(*_ranges(together).values()) == set(range(devices))
    for x, y in zip(by_one, by_all, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


@pytest.mark.core("potrs-complex64", "gesv-float64")
@cases.one_process("several processes work together")
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", _SOLVES)
def test_several_devices_give_the_bits_of_one(name, dtype):

    def on(devices, n):
        a, b = _system(dtype, n)
        call = _SOLVES[name](a, b, mesh=cases.line(devices), matrix_specs=P("r", None))
        return [np.asarray(x) for x in call]

    for n in (37, 203):  # BLAS may use several threads for the second order
        one = on(1, n)
        assert one[-1] == 0
        for devices in (2, 4, 8):
            for x, y in zip(one, on(devices, n), strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.core("potrs")
@cases.one_process("each records its own ranks")
@pytest.mark.parametrize("name", ["potrs", "gesv"])
def test_a_width_of_tiles_is_for_all_ranks(name, tmp_path, monkeypatch):
    """With a tile width, all ranks share the work."""
    a, b = _system("float64")
    trace = tmp_path / "trace.json"
    monkeypatch.setenv("JAXMG_TRACE", str(trace))
    x = _SOLVES[name](a, b, mesh=cases.line(2), matrix_specs=P("r", None), T_A=5)[0]
    np.testing.assert_allclose(a @ x, b, atol=1e-10)
    assert set().union(*_ranges(trace).values()) >= {0, 1}


@pytest.mark.core("2")
@cases.one_process("ranks of several processes work together")
@pytest.mark.parametrize("devices", [2, 4])
def test_calls_in_a_loop_and_side_by_side_meet_their_own(devices):
    """Calls don't mix although a loop repeats them before all ranks have left the previous ones."""
    a, b = _system("float64", 12)
    where = {"mesh": cases.line(devices), "matrix_specs": P("r", None)}

    @jax.jit
    def run(a, b):
        def step(_, carry):
            x, y = carry
            x = jaxmg.potrs(a, x, **where)
            y = jaxmg.gesv(a + jnp.eye(12), y, **where)
            return x / jnp.linalg.norm(x), y / jnp.linalg.norm(y)

        return jax.lax.fori_loop(0, 100, step, (b, b))

    for matrix, iterate in zip((a, a + np.eye(12)), run(a, b), strict=True):
        expected = b
        for _ in range(100):
            expected = np.linalg.solve(matrix, expected)
            expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(iterate, expected, atol=1e-10)


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
    """The program contains no kernel of JAX's: on several devices, those block each other."""
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
    """Derivatives call JAX's kernels for single matrices. With JAX 0.10, kernels of batches wait in
    a thread of XLA's pool for its other threads."""
    function = _BATCHES[name][1]

    def total(a):
        return sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(function(a, **_on(3))))

    text = jax.jit(jax.grad(total)).lower(jnp.asarray(_batch())).compile().as_text()
    calls = re.findall(r"= f64\[([\d,]+)\].*custom_call_target=\"lapack_\w*trsm", text)
    assert calls and set(calls) == {"12,12"}, calls


@cases.one_process("of ranks that are threads")
@pytest.mark.parametrize("seconds", [0, 10])
@pytest.mark.parametrize("name", ["potrs", "eigh"])
def test_ranks_wait_on_threads_of_xla_or_on_their_own(name, seconds, plugin):
    """`potrs` by one rank for all, and `eigh` by ranks that wait for each other."""
    mesh = cases.line(4)
    a, b = _system("float64")
    on = {"mesh": mesh, "in_specs": P("r", None)}
    calls = {
        "potrs": lambda: jaxmg.potrs(a, b, **on),
        "eigh": lambda: jaxmg.eigvalsh(a, T_A=3, **on),
    }
    expected = np.asarray(calls[name]())
    plugin.set_brief_wait(seconds)
    try:
        np.testing.assert_array_equal(calls[name](), expected)
    finally:
        plugin.set_brief_wait(1e-3)


@pytest.mark.extended
@cases.needs_transformations
def test_one_device_differentiates_a_batch_at_once(monkeypatch):
    """No loop over matrices, unless one is too large; values agree with JAX's, to second order."""
    mesh, one = cases.line(1), cases.hermitian(5, "complex128")
    matrices = np.stack([one, np.diag(np.arange(5.0)) - one])

    def gradient(values):
        each = jax.vmap(lambda a: values(cases.hermitian_part(a)))
        return jax.grad(lambda a: jnp.sum(each(a) ** 3))

    def moved(values):
        return lambda a: jax.jvp(gradient(values), (a,), (a @ a,))[1]

    def loops(function, a):
        return jax.jit(function).lower(a).as_text().count("stablehlo.while")

    ours = functools.partial(linalg.eigvalsh, mesh=mesh)
    value = loops(ours, matrices)
    for make in (gradient, moved):
        for wrap, a in ((lambda f: f, matrices), (jax.vmap, matrices[:, None])):
            found, expected = wrap(make(ours)), wrap(make(jnp.linalg.eigvalsh))
            assert loops(found, a) <= value
            np.testing.assert_allclose(found(a), expected(a), atol=1e-10)
    for room, in_turn in ((16 * matrices.nbytes, False), (16 * matrices.nbytes - 1, True)):
        monkeypatch.setattr(layouts, "device_memory", lambda platform, room=room: room)
        jax.clear_caches()
        assert (loops(gradient(ours), matrices) > value) == in_turn
