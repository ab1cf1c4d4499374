"""Eager calls with small matrices that one of several CPU devices does for all."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import linalg
from jaxmg._call import by_one, programs
from jaxmg._linalg import on_one

pytestmark = [
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices"),
    cases.one_process("devices of several processes share no memory"),
]

_N = 12
_ROWS = P("r")
_ROUTINES = {
    "potrs": lambda a, b: jaxmg.potrs(a, b, return_logdet=True, return_status=True),
    "gesv": lambda a, b: jaxmg.gesv(a, b, return_status=True),
    "potri": lambda a, b: jaxmg.potri(a, return_status=True),
    "getri": lambda a, b: jaxmg.getri(a),
}
_FUNCTIONS = _ROUTINES | {
    "cholesky": lambda a, b: linalg.cholesky(a),
    "solve": lambda a, b: linalg.solve(a, b),
    "svd": lambda a, b: linalg.svd(a),
}


@pytest.fixture(autouse=True)
def _by_one(monkeypatch):
    monkeypatch.setattr(on_one, "MOST", _N)
    monkeypatch.setattr(by_one, "MOST", _N)
    cases.forget_plans()
    yield
    cases.forget_plans()


@pytest.fixture
def sizes(monkeypatch):
    """The numbers of devices of the programs that eager calls run."""
    found, runner = [], programs.runner

    def counted(call, *arguments, **named):
        found.append(call.layout.mesh.size)
        return runner(call, *arguments, **named)

    monkeypatch.setattr(programs, "runner", counted)
    return found


def _arrays(n=_N, dtype="float64"):
    a = cases.positive_definite("well", n, dtype)
    return a, cases.normal(cases.rng(n), (n, 2), dtype)


def _on(mesh, spec=_ROWS, n=_N, dtype="float64"):
    a, b = _arrays(n, dtype)
    return jax.device_put(a, NamedSharding(mesh, spec)), jax.device_put(b, NamedSharding(mesh, P()))


def _by_ranks(function, *arrays):
    with cases.by_all_ranks():
        return jax.block_until_ready(function(*arrays))


def _same(results, expected):
    results, expected = jax.tree.leaves(results), jax.tree.leaves(expected)
    for x, y in zip(results, expected, strict=True):
        assert (x.shape, x.dtype, x.committed) == (y.shape, y.dtype, y.committed)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        if "V" not in x.dtype.str and x.ndim != 2:
            np.testing.assert_allclose(x, y, rtol=1e-10)


@pytest.mark.core("potrs", "solve")
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_no_program_starts_on_the_other_devices(name, sizes):
    arrays = _on(cases.line(4))
    results = _FUNCTIONS[name](*arrays)
    assert sizes and set(sizes) == {1}
    _same(results, _by_ranks(_FUNCTIONS[name], *arrays))


@pytest.mark.parametrize("name", _ROUTINES)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_the_bits_are_those_of_one_device(name, dtype):
    results = _ROUTINES[name](*_on(cases.line(4), dtype=dtype))
    alone = _ROUTINES[name](*_on(cases.line(1), dtype=dtype))
    jax.tree.map(np.testing.assert_array_equal, results, alone)


@pytest.mark.parametrize(
    "spec, devices",
    [(P(), 1), (P("r"), 1), (P("c"), 1), (P(None, "r"), 4), (P("r", "c"), 4)],
)
def test_rows_and_whole_matrices_are_joined_by_one(spec, devices, sizes):
    mesh = cases.grid()
    for function in (_FUNCTIONS["potri"], _FUNCTIONS["cholesky"]):
        arrays = _on(mesh, spec)
        sizes.clear()
        results = jax.block_until_ready(function(*arrays))
        assert (max(sizes) == 1) == (devices == 1)
        _same(results, _by_ranks(function, *arrays))
        np.testing.assert_allclose(
            jax.tree.leaves(results)[0], jax.tree.leaves(function(*_on(cases.line(1))))[0],
            rtol=1e-10, atol=1e-12,
        )  # fmt: skip


def test_arrays_elsewhere_and_of_numpy(sizes):
    mesh, (a, b) = cases.line(4), _arrays()
    expected = np.linalg.solve(a, b)
    for wanted in (b, jnp.asarray(b), jax.device_put(b, jax.devices()[3])):
        for matrix in (a, jax.device_put(a, NamedSharding(mesh, P("r")))):
            x = jaxmg.potrs(matrix, wanted, mesh=mesh)
            np.testing.assert_allclose(x, expected, rtol=1e-10)
            assert x.sharding.is_fully_replicated and len(x.devices()) == 4
    assert set(sizes) == {1}


def test_what_is_large_tiled_or_donated_is_for_all(sizes):
    a, b = _on(cases.line(4))
    jax.block_until_ready(jaxmg.potrs(a, b, T_A=3))
    jax.block_until_ready(jaxmg.potrs(jnp.copy(a), b, donate=True))
    jax.block_until_ready(jaxmg.potrs(*_on(cases.line(4), n=2 * _N)))
    assert set(sizes) == {4}


def test_constants_of_a_trace():
    a, b = _on(cases.line(4))
    x = jaxmg.potrs(a, b)
    for function in (jaxmg.potrs, linalg.solve):
        function(a, b)
        traced = jax.jit(lambda c, function=function: function(a, b) + c)(b)
        np.testing.assert_allclose(traced, x + b, rtol=1e-12)


def test_a_plan_that_a_trace_made_serves_later_calls(sizes):
    a, b = _on(cases.line(4))
    traced = jax.jit(lambda c: linalg.inv(a)[:, :2] + c)(b)
    sizes.clear()
    np.testing.assert_allclose(linalg.inv(a)[:, :2] + b, traced, rtol=1e-12)
    assert set(sizes) == {1}


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="JAX 0.6 knows the devices")
def test_a_trace_in_a_context_mesh_has_no_devices():
    a, b = _on(cases.line(4))
    for function in _FUNCTIONS.values():
        with cases.context(cases.line(4)):
            expected = jax.block_until_ready(jax.jit(function)(a, b))
            _same(function(a, b), expected)


def test_guarded_transfers():
    a, b = _on(cases.line(4))
    with jax.transfer_guard("disallow"):
        x, _ = linalg.solve(a, b), jaxmg.potrs(a, b)
    np.testing.assert_allclose(x, np.linalg.solve(*_arrays()), rtol=1e-10)


@pytest.mark.parametrize("small", [True, False])
def test_a_guard_sees_operands_that_are_not_on_devices(small, monkeypatch):
    """As it does where all devices work."""
    if not small:
        monkeypatch.setattr(by_one, "MOST", 0)
    arrays, on_devices = _arrays(), _on(cases.line(4))
    for function in (linalg.solve, jaxmg.potrs):
        for _ in range(2):
            with jax.transfer_guard("disallow_explicit"):
                with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
                    function(*arrays)
                function(*on_devices)
            function(*arrays)


def test_results_are_arrays_of_their_own():
    """Devices share the memory of a result, so a program may not write into it."""
    a, b = _on(cases.line(4))
    for function in (linalg.cholesky, linalg.inv):
        result = function(a)
        kept = np.array(result)
        donated = jax.jit(lambda x: x * 2, donate_argnums=0)(result)
        np.testing.assert_array_equal(donated, 2 * kept)
    x = jaxmg.potrs(a, b)
    kept = np.array(x)
    parts = [shard.data for shard in x.addressable_shards]
    for part in parts[1:]:
        jax.block_until_ready(jax.jit(lambda x: x * 2, donate_argnums=0)(part))
    np.testing.assert_array_equal(parts[0], kept)
    again = jax.jit(lambda x: x * 2, donate_argnums=0)(jaxmg.potrs(a, b))
    for shard in again.addressable_shards:
        np.testing.assert_array_equal(shard.data, 2 * kept)
    np.testing.assert_array_equal(a, _arrays()[0])
    np.testing.assert_array_equal(b, _arrays()[1])
