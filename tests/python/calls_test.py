"""What a call does beside its result: compile once, keep or consume its inputs."""

import contextlib
import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import check_potri, check_potrs, check_syevd, line, positive_definite, shard
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _call, _mesh

_N = 16


@contextlib.contextmanager
def _nothing_is_compiled():
    """Fails where JAX traces, lowers or compiles anything."""
    events = []

    def listen(event, *_, **__):
        if event.startswith("/jax/core/compile"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.clear_event_listeners()
    assert not events


def _calls(mesh, matrix):
    a, b = shard(matrix, mesh, "r", None), shard(np.ones(_N), mesh)
    return {
        "potrs": lambda: jaxmg.potrs(a, b, 3, return_logdet=True),
        "potri": lambda: jaxmg.potri(a, 3, return_status=True),
        "syevd": lambda: jaxmg.syevd(a, 3),
        "cyclic_1d": lambda: jaxmg.cyclic_1d(a, 2),
        "potri_symmetrize": lambda: jaxmg.potri_symmetrize(a),
        "potrs_jit_ctx": lambda: jaxmg.potrs_jit_ctx(a, b, 3),
        "numpy": lambda: jaxmg.potrs(matrix, np.ones(_N), 3, mesh),
    }


@pytest.mark.parametrize(
    "name",
    ["potrs", "potri", "syevd", "cyclic_1d", "potri_symmetrize", "potrs_jit_ctx", "numpy"],
)
def test_second_call_compiles_nothing(name):
    call = _calls(line(2), positive_definite("well", _N, "float64"))[name]
    first = jax.block_until_ready(call())
    with _nothing_is_compiled():
        second = jax.block_until_ready(call())
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_the_listener_hears_a_compilation():
    with pytest.raises(AssertionError), _nothing_is_compiled():
        jax.jit(lambda x: x + 1.25)(np.ones(3))


def test_equal_meshes_share_a_program():
    matrix = positive_definite("well", _N, "float64")
    a, b = shard(matrix, line(2), "r", None), shard(np.ones(_N), line(2))
    jaxmg.potrs(a, b, 5).block_until_ready()
    again = shard(matrix, line(2), "r", None)
    with _nothing_is_compiled():
        jaxmg.potrs(again, b, 5).block_until_ready()


@pytest.mark.parametrize("source", ["numpy", "sharded", "replicated", "one device"])
def test_inputs_are_kept(source):
    mesh = line(2)
    matrix = positive_definite("well", _N, "float64")
    kept = matrix.copy()
    a = {
        "numpy": lambda: matrix,
        "sharded": lambda: shard(matrix, mesh, "r", None),
        "replicated": lambda: shard(matrix, mesh),
        "one device": lambda: jnp.asarray(matrix),
    }[source]()
    b = shard(np.ones(_N), mesh)
    for _ in range(2):
        jax.block_until_ready(jaxmg.potrs(a, np.ones(_N), 3, mesh))
        jax.block_until_ready(jaxmg.potri(a, 3, mesh))
        jax.block_until_ready(jaxmg.syevd(a, 3, mesh))
        jax.block_until_ready(jaxmg.cyclic_1d(a, 2, mesh))
        jax.block_until_ready(jaxmg.potrs_jit_ctx(a, b, 3, mesh))
    np.testing.assert_array_equal(a, kept)
    np.testing.assert_array_equal(b, np.ones(_N))


@pytest.mark.parametrize("routine", ["potrs", "potri", "syevd"])
@pytest.mark.parametrize("n", [_N, 7])
@pytest.mark.parametrize("ranks", [1, 2])
def test_donate(ranks, n, routine):
    mesh = line(ranks)
    matrix = positive_definite("well", n, "float64")
    a = shard(matrix, mesh, *(("r", None) if n % ranks == 0 else ()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "donated buffers were not usable"
        if routine == "potrs":
            x = jaxmg.potrs(a, np.ones(n), 3, donate=True)
            check_potrs(matrix, x, np.ones(n))
        elif routine == "potri":
            check_potri(matrix, jaxmg.potri(a, 3, donate=True))
        else:
            check_syevd(matrix, *jaxmg.syevd(a, 3, donate=True))
            w = jaxmg.syevd(shard(matrix, mesh), 3, mesh, donate=True, return_eigenvectors=False)
            np.testing.assert_allclose(w, np.linalg.eigvalsh(matrix), rtol=1e-12)
    assert a.is_deleted()


def test_donated_buffer_is_the_work_space():
    """XLA aliases A's buffer to a result, and holds no second matrix."""
    n, mesh = 64, line(2)
    a = shard(positive_definite("well", n, "float64"), mesh, "r", None)
    b = shard(np.ones(n), mesh)
    jaxmg.potrs(a, b, 8)
    layout = _mesh.infer("potrs", (a, b), None, None)
    program = importlib.import_module("jaxmg.potrs")._potrs
    specs = (layout.row_spec, P(), P(), P())
    call = _call.Call(program, layout, n, 8, "native", specs, (("tf32", False),))
    block = n * n * 8 // 2
    analysis = _call._compiled(call, True, True).lower(a, b).compile().memory_analysis()
    assert analysis.alias_size_in_bytes >= block
    assert analysis.temp_size_in_bytes < block
    kept = _call._compiled(call, False, False).lower(a, b).compile().memory_analysis()
    assert kept.alias_size_in_bytes == 0
    assert kept.output_size_in_bytes < block


def test_donated_numpy_memory_is_kept():
    matrix = positive_definite("well", 64, "float64")
    kept = matrix.copy()
    check_potrs(kept, jaxmg.potrs(matrix, np.ones(64), donate=True), np.ones(64))
    np.testing.assert_array_equal(matrix, kept)
    jaxmg.potrs(jnp.asarray(matrix), np.ones(64), donate=True).block_until_ready()
    np.testing.assert_array_equal(matrix, kept)


def test_donate_under_jit_is_ignored():
    mesh = line(2)
    matrix = positive_definite("well", _N, "float64")
    a = shard(matrix, mesh, "r", None)
    x = jax.jit(lambda a, b: jaxmg.potrs(a, b, 3, mesh, donate=True))(a, np.ones(_N))
    check_potrs(matrix, x, np.ones(_N))
    np.testing.assert_array_equal(a, matrix)


def test_donation_to_the_outer_jit():
    """The work array takes the place of A."""
    mesh = line(2)
    matrix = positive_definite("well", _N, "float64")
    a = shard(matrix, mesh, "r", None)
    solve = jax.jit(lambda a, b: jaxmg.potrs_jit_ctx(a, b, 3, mesh, P("r", None)), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a_work, x, status = solve(a, np.ones(_N))
    assert a.is_deleted()
    assert a_work.shape == matrix.shape and status == 0
    check_potrs(matrix, x, np.ones(_N))


def test_64_bit_mode_is_left_alone():
    assert jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        matrix = positive_definite("well", 5, "float32")
        check_potrs(matrix, jaxmg.potrs(matrix, np.ones(5, "float32")), np.ones(5, "float32"))
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)
