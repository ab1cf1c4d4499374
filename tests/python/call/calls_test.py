"""What calls do besides computing their results: they compile once, and keep or consume their
inputs."""

import contextlib
import gc
import itertools
import sys
import threading
import warnings
import weakref

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from routines import ROUTINES

import jaxmg
from jaxmg._call import checks, execute, programs
from jaxmg._cholesky import potrs
from jaxmg._layouts import meshes

_N = 16


@contextlib.contextmanager
def _nothing_is_compiled():
    """Fails if JAX traces, lowers or compiles anything."""
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


def _call_of(name, a, b):
    """Returns a function that calls a routine of the table with these arrays."""
    routine = ROUTINES[name]
    operands = routine.make_operands(jaxmg, {"a": a, "m": a, "g": a, "b": b}.get, 3)
    return lambda: routine.call(jaxmg, operands, 3)


# Other calls: functions of a matrix and right-hand sides that return the call.
_OTHERS = {
    "cho_factor(refine=)": lambda a, b: lambda: jaxmg.cho_factor(a, 3, refine="float32"),
    "linalg.eigh": lambda a, b: lambda: jaxmg.linalg.eigh(a),
    "linalg.solve": lambda a, b: lambda: jaxmg.linalg.solve(a, b),
    "numpy": lambda a, b: lambda: jaxmg.potrs(np.asarray(a), np.asarray(b), 3, cases.line(2)),
    "potri_symmetrize": lambda a, b: lambda: jaxmg.potri_symmetrize(a),
    "potrs_jit_ctx": lambda a, b: lambda: jaxmg.potrs_jit_ctx(a, b, 3),
}


def _call_on(mesh, name):
    """Returns a call of a routine of the table, or of _OTHERS, with arrays on a mesh."""
    matrix = cases.positive_definite("well", _N, "float64")
    a, b = cases.shard(matrix, mesh, "r", None), cases.shard(np.ones(_N), mesh)
    return _OTHERS[name](a, b) if name in _OTHERS else _call_of(name, a, b)


def _is_quick(name):
    """Returns whether the call compiles quickly; refinement compiles slowly."""
    return name not in ("refine", "refined", "cho_factor(refine=)")


_NAMES = cases.broad([(name,) for name in ROUTINES], _is_quick)


@pytest.mark.core("potrs", "eigh", "lu_solve", "qr_solve", "numpy")
@pytest.mark.parametrize("name", [*_NAMES, "numpy", "potri_symmetrize", "potrs_jit_ctx"])
def test_second_call_compiles_nothing(name):
    call = _call_on(cases.line(2), name)
    first = jax.block_until_ready(call())
    with _nothing_is_compiled():
        second = jax.block_until_ready(call())
    jax.tree.map(np.testing.assert_array_equal, first, second)


@contextlib.contextmanager
def _nothing_is_planned(monkeypatch):
    """Fails if a call is checked or laid out again."""

    def prepare(*_):
        raise AssertionError("planned again")

    with monkeypatch.context() as patch:
        patch.setattr(checks, "array", prepare)
        patch.setattr(meshes, "infer", prepare)
        yield


# from_upper and from_packed lay out a saved factor in each call.
_PLANNED = [name for name in ROUTINES if name not in ("from_upper", "from_packed")]


@pytest.mark.core("potrs", "eigh", "lu_solve", "qr_solve", "numpy")
@pytest.mark.parametrize("name", [*cases.broad([(name,) for name in _PLANNED], _is_quick), "numpy"])
def test_second_call_is_not_planned_again(monkeypatch, name):
    call = _call_on(cases.line(2), name)
    first = jax.block_until_ready(call())
    with _nothing_is_planned(monkeypatch):
        second = jax.block_until_ready(call())
    jax.tree.map(np.testing.assert_array_equal, first, second)


@contextlib.contextmanager
def _nothing_is_moved():
    """Fails if JAX copies an array to a device, or from one device to another."""
    moves = []

    def watch(frame, event, _):
        if event == "call" and "device_put" in frame.f_code.co_name:
            moves.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        with jax.transfer_guard("disallow"):
            yield
    finally:
        sys.setprofile(None)
    assert not moves


def _on_one_device(kind):
    """Returns a function that puts an array on the first local device, in one of JAX's ways."""
    device = jax.local_devices()[0]
    return {
        "uncommitted": jnp.asarray,
        "committed": lambda x: jax.device_put(x, device),
        "mesh": lambda x: jax.device_put(
            x, jax.NamedSharding(Mesh([device], ("x",)), P(*("x" for _ in x.shape[1:])))
        ),
    }[kind]


_KINDS = ["uncommitted", "committed", "mesh"]


@pytest.mark.core("potrs", "eigh", "lu_solve", "qr_solve")
@cases.one_process("the device is of this process's")
@pytest.mark.parametrize(
    "name, kind",
    cases.broad(
        itertools.product(
            [*_PLANNED, "cho_factor(refine=)", "linalg.eigh", "linalg.solve"], _KINDS
        ),
        # The core has each name with one of the kinds.
        lambda name, kind: _is_quick(name) and kind == _KINDS[sum(map(ord, name)) % len(_KINDS)],
    ),
)
def test_arrays_on_the_device_are_not_moved(monkeypatch, name, kind):
    """A second eager call only hands the arrays to the compiled program."""
    on_device = _on_one_device(kind)
    a = on_device(cases.positive_definite("well", _N, "float64"))
    b = on_device(np.ones(_N))
    call = _OTHERS[name](a, b) if name in _OTHERS else _call_of(name, a, b)
    first = jax.block_until_ready(call())
    with _nothing_is_moved(), _nothing_is_compiled(), _nothing_is_planned(monkeypatch):
        second = jax.block_until_ready(call())
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_arrays_on_the_mesh_are_not_moved():
    mesh = cases.line(2)
    a = cases.shard(cases.positive_definite("well", _N, "float64"), mesh, "r", None)
    b = cases.shard(np.ones(_N), mesh)
    first = jax.block_until_ready(jaxmg.potrs(a, b))
    with _nothing_is_moved(), _nothing_is_compiled():
        second = jax.block_until_ready(jaxmg.potrs(a, b))
    np.testing.assert_array_equal(first, second)


def test_arrays_on_the_only_device_of_a_mesh_are_not_moved():
    """No array is moved for explicit axes either, which are part of an array's type."""
    mesh = cases.line(1, kind=AxisType.Explicit)
    a, b = map(jax.numpy.asarray, (cases.positive_definite("well", _N, "float64"), np.ones(_N)))
    first = jax.block_until_ready(jaxmg.potrs(a, b, mesh=mesh))
    with _nothing_is_moved(), _nothing_is_compiled():
        second = jax.block_until_ready(jaxmg.potrs(a, b, mesh=mesh))
    np.testing.assert_array_equal(first, second)
    cases.check_potrs(cases.positive_definite("well", _N, "float64"), second, np.ones(_N))
    jaxmg.potrs(a, b, mesh=mesh, donate=True)
    assert a.is_deleted() and not b.is_deleted()


def test_one_program_serves_all_arrays_on_a_device():
    """Arrays on a device share a program whatever their shardings are; NumPy arrays do too."""
    matrix = cases.positive_definite("well", _N, "float64")
    mesh = Mesh(jax.local_devices()[:1], ("x",))
    kinds = [np.asarray, *map(_on_one_device, _KINDS)]
    arrays = [(kind(matrix), kind(np.ones(_N))) for kind in kinds]
    first = jaxmg.potrs(*arrays[0], 5, mesh, P("x")).block_until_ready()
    with _nothing_is_compiled():
        for a, _ in arrays:
            for _, b in arrays:
                x = jaxmg.potrs(a, b, 5, mesh, P("x")).block_until_ready()
                np.testing.assert_array_equal(x, first)


@pytest.mark.parametrize("kind", [*_KINDS, "other device", "two devices"])
def test_arrays_are_where_the_mesh_says(kind):
    """Results are on the single device of the mesh, wherever the arrays come from."""
    first, last = jax.local_devices()[0], jax.local_devices()[-1]
    on_device = {
        "other device": lambda x: jax.device_put(x, last),
        "two devices": lambda x: cases.shard(x, Mesh(jax.local_devices()[:2], ("r",))),
    }.get(kind) or _on_one_device(kind)
    matrix = cases.positive_definite("well", _N, "float64")
    a, b = on_device(matrix), on_device(np.ones(_N))
    for device in (first, last):
        x = jaxmg.potrs(a, b, 3, Mesh([device], ("r",)), P("r"))
        assert x.devices() == {device}
        cases.check_potrs(matrix, x, np.ones(_N))
    np.testing.assert_array_equal(a, matrix)


@pytest.mark.parametrize("kind", _KINDS)
def test_donated_on_one_device(kind):
    """The call uses the buffer as workspace and deletes the caller's array."""
    matrix = cases.positive_definite("well", _N, "float64")
    for _ in range(2):
        a = _on_one_device(kind)(matrix.copy())
        cases.check_potri(matrix, jaxmg.potri(a, 3, donate=True))
        assert a.is_deleted()


def test_a_plan_is_for_calls_that_are_alike():
    """Calls with the same shapes but other arguments, meshes or contexts don't reuse a plan."""
    matrix, b = cases.positive_definite("well", _N, "float64"), np.ones(_N)
    two, four = cases.line(2), cases.line(4)
    a = cases.shard(matrix, two, "r", None)

    def usual():
        x = jaxmg.potrs(matrix, b, 1)
        assert x.devices() == set(jax.local_devices())
        cases.check_potrs(matrix, x, b)

    usual()
    for wrong, error in ((True, TypeError), (1.0, TypeError), (0, ValueError)):
        with pytest.raises(error, match="T_A"):
            jaxmg.potrs(matrix, b, wrong)
    for mesh in (two, four):
        with cases.context(mesh):
            assert jaxmg.potrs(matrix, b, 1).devices() == set(mesh.devices.flat)
    for mesh in (two, four):
        assert jaxmg.potrs(matrix, b, 1, mesh).devices() == set(mesh.devices.flat)
    assert jaxmg.potrs(a, b, 1).devices() == set(two.devices.flat)
    with jax.default_device(jax.local_devices()[-1]):
        assert jaxmg.potrs(matrix, b, 1).devices() == {jax.local_devices()[-1]}
    with pytest.raises(ValueError, match="padding|multiple of 3"):
        jaxmg.potrs(matrix, b, 1, cases.line(3), pad=False)
    assert len(jaxmg.potrs(matrix, b, 1, return_status=True, return_logdet=True)) == 3
    with pytest.raises(TypeError, match="one dtype"):
        jaxmg.potrs(matrix, b.astype("float32"), 1)
    single = jaxmg.potrs(matrix.astype("float32"), b.astype("float32"), 1)
    assert single.dtype == np.float32
    with pytest.raises(TypeError, match="matrix_specs must be a PartitionSpec"):
        jaxmg.potrs(matrix, b, 1, two, ("r", None))
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="64-bit mode"):
            jaxmg.potrs(matrix, b, 1)
    finally:
        jax.config.update("jax_enable_x64", True)
    usual()


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4)], ids=str)
def test_double_precision_beside_single_needs_64_bits(shape):
    """Also where dtypes would be promoted; JAX would convert it without a word."""
    wide, single = np.broadcast_to(np.eye(4), shape), np.ones((4, 2), "float32")
    jax.config.update("jax_enable_x64", False)
    try:
        for a, b in ((wide, single), (wide.astype("float32"), single.astype("float64"))):
            with pytest.raises(ValueError, match=r"linalg.solve: [ab] has dtype float64.*64-bit"):
                jaxmg.linalg.solve(a, b)
    finally:
        jax.config.update("jax_enable_x64", True)


def test_an_abstract_mesh_is_planned_for_the_devices_of_its_context():
    """Two meshes with equal abstract meshes have plans of their own."""
    matrix, b = cases.positive_definite("well", _N, "float64"), np.ones(_N)
    for order in ([0, 2], [1, 3], [0, 2]):
        part = cases.pick(order)
        mesh = Mesh(part, ("r",))
        with cases.context(mesh):
            x = jaxmg.potrs(matrix, b, 3, mesh.abstract_mesh, P("r"))
        assert x.devices() == set(part)
        cases.check_potrs(matrix, x, b)


def test_plans_keep_no_arrays_alive():
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    a, b = cases.shard(matrix, mesh, "r", None), cases.shard(np.ones(_N), mesh)
    jaxmg.potrs(a, b, 6).block_until_ready()
    watched = [weakref.ref(a), weakref.ref(b)]
    del a, b
    gc.collect()
    assert [reference() for reference in watched] == [None, None]


def test_unhashable_tile_width():
    """A zero-dimensional array is accepted as an integer, although it isn't hashable."""
    matrix = cases.positive_definite("well", _N, "float64")
    for _ in range(2):
        cases.check_potrs(matrix, jaxmg.potrs(matrix, np.ones(_N), np.array(3)), np.ones(_N))


@cases.one_process("each would start the programs of two threads in an order of its own")
def test_plans_from_several_threads():
    matrix, failures = cases.positive_definite("well", _N, "float64"), []

    def work(mesh):
        try:
            for tile in (1, 2, 3, 1, 2, 3):
                x = jaxmg.potrs(matrix, np.ones(_N), tile, mesh).block_until_ready()
                cases.check_potrs(matrix, x, np.ones(_N))
        except BaseException as error:
            failures.append(error)

    meshes = [Mesh(np.array(part), ("t",)) for part in np.split(np.array(cases.devices(4)), 4)]
    threads = [threading.Thread(target=work, args=(mesh,)) for mesh in meshes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


_SWAPPED = cases.one_process("the program has the processes of its ranks")


@pytest.mark.parametrize("order", [[0, 1], pytest.param([1, 0], marks=_SWAPPED)])
def test_exported_program_runs_on_devices_in_another_order(order):
    """The program contains nothing about the devices of the trace."""
    matrix, b = cases.positive_definite("well", _N, "float64"), np.arange(1.0, _N + 1)
    traced, mesh = cases.line(2), Mesh(np.array(cases.devices(2))[order], ("r",))

    def solve(a, b):
        return jaxmg.potrs(a, b, 3, traced, P("r", None))

    check = [export.DisabledSafetyCheck.custom_call("jaxmg_potrs")]
    exported = export.export(jax.jit(solve), disabled_checks=check)(
        cases.shard(matrix, traced, "r", None), cases.shard(b, traced)
    )
    x = jax.jit(exported.call)(cases.shard(matrix, mesh, "r", None), cases.shard(b, mesh))
    cases.check_potrs(matrix, x, b)


def test_the_listener_hears_a_compilation():
    with pytest.raises(AssertionError), _nothing_is_compiled():
        jax.jit(lambda x: x + 1.25)(np.ones(3))


def test_the_profile_sees_an_array_move():
    with pytest.raises(AssertionError), _nothing_is_moved():
        with jax.transfer_guard("allow"):
            jax.device_put(jnp.ones(3), jax.local_devices()[0])


def test_equal_meshes_share_a_program():
    matrix = cases.positive_definite("well", _N, "float64")
    a, b = cases.shard(matrix, cases.line(2), "r", None), cases.shard(np.ones(_N), cases.line(2))
    jaxmg.potrs(a, b, 5).block_until_ready()
    again = cases.shard(matrix, cases.line(2), "r", None)
    with _nothing_is_compiled():
        jaxmg.potrs(again, b, 5).block_until_ready()


def test_calls_that_say_the_same_share_a_program():
    """A passed mesh and spec that equal the inferred ones don't cause another compilation."""
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    a, b = cases.shard(matrix, mesh, "r", None), cases.shard(np.ones(_N), mesh)
    jaxmg.potrs(a, b, 6).block_until_ready()
    with _nothing_is_compiled():
        jaxmg.potrs(a, b, 6, mesh, P("r", None)).block_until_ready()


@pytest.mark.core("sharded")
@pytest.mark.parametrize("source", ["numpy", "sharded", "replicated", "one device"])
def test_inputs_are_kept(source):
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    kept = matrix.copy()
    a = {
        "numpy": lambda: matrix,
        "sharded": lambda: cases.shard(matrix, mesh, "r", None),
        "replicated": lambda: cases.shard(matrix, mesh),
        "one device": lambda: jnp.asarray(matrix),
    }[source]()
    b = cases.shard(np.ones(_N), mesh)
    for _ in range(2):
        jax.block_until_ready(jaxmg.potrs(a, np.ones(_N), 3, mesh))
        jax.block_until_ready(jaxmg.potri(a, 3, mesh))
        jax.block_until_ready(jaxmg.syevd(a, 3, mesh))
        jax.block_until_ready(jaxmg.cyclic_1d(a, 2, mesh))
        jax.block_until_ready(jaxmg.potrs_jit_ctx(a, b, 3, mesh))
    np.testing.assert_array_equal(a, kept)
    np.testing.assert_array_equal(b, np.ones(_N))


@pytest.mark.parametrize("nrhs", [None, 0])
def test_donated_again_and_again(nrhs):
    """Calls may alternate between the plan for donated matrices and the plan for kept ones."""
    mesh, b = cases.line(2), np.ones(_N if nrhs is None else (_N, nrhs))
    matrix = cases.positive_definite("well", _N, "float64")
    for donate in (True, True, False, True):
        a = cases.shard(matrix, mesh, "r", None)
        x, status = jaxmg.potrs(a, b, 3, donate=donate, return_status=True)
        assert status == 0 and x.shape == b.shape
        if nrhs is None:
            cases.check_potrs(matrix, x, b)
        assert a.is_deleted() == donate


@pytest.mark.parametrize("routine", ["potrs", "potri", "syevd"])
@pytest.mark.parametrize("n", [_N, 7])
@pytest.mark.parametrize("ranks", [1, 2])
def test_donate(ranks, n, routine):
    mesh = cases.line(ranks)
    matrix = cases.positive_definite("well", n, "float64")
    a = cases.shard(matrix, mesh, *(("r", None) if n % ranks == 0 else ()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "donated buffers were not usable"
        if routine == "potrs":
            x = jaxmg.potrs(a, np.ones(n), 3, donate=True)
            cases.check_potrs(matrix, x, np.ones(n))
        elif routine == "potri":
            cases.check_potri(matrix, jaxmg.potri(a, 3, donate=True))
        else:
            cases.check_syevd(matrix, *jaxmg.syevd(a, 3, donate=True))
            w = jaxmg.syevd(
                cases.shard(matrix, mesh), 3, mesh, donate=True, return_eigenvectors=False
            )
            np.testing.assert_allclose(w, np.linalg.eigvalsh(matrix), rtol=1e-12)
    assert a.is_deleted()


def test_donated_buffer_is_the_work_space():
    """XLA aliases A's buffer to a result, and allocates no second matrix."""
    n, mesh = 64, cases.line(2)
    a = cases.shard(cases.positive_definite("well", n, "float64"), mesh, "r", None)
    b = cases.shard(np.ones(n), mesh)
    jaxmg.potrs(a, b, 8)
    layout = meshes.infer("potrs", (a, b), None, None)
    specs = (layout.row_spec, P(), P(), P())
    attributes = (("products", checks.DEFAULT), ("check_b", False))
    call = execute.make_call(potrs.POTRS, layout, a, 8, "native", attributes, specs)
    block = n * n * 8 // 2
    analysis = programs._compiled(call, (0,), (True,) * 4).lower(a, b).compile().memory_analysis()
    assert analysis.alias_size_in_bytes >= block
    assert analysis.temp_size_in_bytes < block
    kept = (
        programs._compiled(call, (), (False, True, True, True))
        .lower(a, b)
        .compile()
        .memory_analysis()
    )
    assert kept.alias_size_in_bytes == 0
    assert kept.output_size_in_bytes < block


def test_donated_numpy_memory_is_kept():
    matrix = cases.positive_definite("well", 64, "float64")
    kept = matrix.copy()
    cases.check_potrs(kept, jaxmg.potrs(matrix, np.ones(64), donate=True), np.ones(64))
    np.testing.assert_array_equal(matrix, kept)
    jaxmg.potrs(jnp.asarray(matrix), np.ones(64), donate=True).block_until_ready()
    np.testing.assert_array_equal(matrix, kept)


def test_donate_under_jit_is_ignored():
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    x = jax.jit(lambda a, b: jaxmg.potrs(a, b, 3, mesh, donate=True))(a, np.ones(_N))
    cases.check_potrs(matrix, x, np.ones(_N))
    np.testing.assert_array_equal(a, matrix)


def test_donation_to_the_outer_jit():
    """The work array takes the memory of A."""
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    solve = jax.jit(lambda a, b: jaxmg.potrs_jit_ctx(a, b, 3, mesh, P("r", None)), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a_work, x, status = solve(a, np.ones(_N))
    assert a.is_deleted()
    assert a_work.shape == matrix.shape and status == 0
    cases.check_potrs(matrix, x, np.ones(_N))


def test_64_bit_mode_is_left_alone():
    assert jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        matrix = cases.positive_definite("well", 5, "float32")
        cases.check_potrs(matrix, jaxmg.potrs(matrix, np.ones(5, "float32")), np.ones(5, "float32"))
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)
