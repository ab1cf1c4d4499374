"""Where arrays lie, and where the mesh and the spec come from."""

import contextlib
import itertools
import re
import threading
import warnings

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat
from jaxmg._layouts import meshes, shardings

_N = 16
_MOVED = cases.one_process("JAX moves nothing to a mesh of other devices")
_UNSEEN = cases.one_process("an abstract mesh no larger than its own devices is taken for these")
_SPECS = {
    "row": P("r"),
    "rows": P("r", None),
    "columns": P(None, "c"),
    "both": P("r", "c"),
    "swapped": P("c", "r"),
    "joined": P(("r", "c"), None),
    "replicated": P(),
}


@pytest.mark.core("row", "both-explicit", "replicated-auto")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", _SPECS)
def test_specs(name, kind):
    """Every spec is inferred, and the result has it."""
    mesh = cases.grid(kind)
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, *_SPECS[name])
    b = np.arange(1.0, _N + 1)
    cases.check_potrs(matrix, jaxmg.potrs(a, b), b)
    inverse = jaxmg.potri(a, 3)
    cases.check_potri(matrix, inverse)
    assert inverse.sharding.is_equivalent_to(a.sharding, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", _SPECS)
def test_specs_given_under_jit(name):
    mesh = cases.grid()
    matrix = cases.positive_definite("well", _N, "complex64")
    a = cases.shard(matrix, mesh, *_SPECS[name])

    @jax.jit
    def solve(a, b):
        x = jaxmg.potrs(a, b, mesh=mesh, in_specs=_SPECS[name])
        return x, *jaxmg.syevd(a, mesh=mesh, matrix_specs=_SPECS[name])

    b = np.ones(_N, "complex64")
    x, w, v = solve(a, b)
    cases.check_potrs(matrix, x, b)
    cases.check_syevd(matrix, w, v)


@pytest.mark.parametrize(
    "name, n", [("rows", 16), ("both", 16), ("replicated", 16), ("replicated", 13)]
)
def test_explicit_axes_under_jit(name, n):
    """The mesh and the spec are part of the traced type."""
    mesh = cases.grid(AxisType.Explicit)
    matrix = cases.positive_definite("well", n, "float64")
    a = cases.shard(matrix, mesh, *_SPECS[name])
    b = cases.shard(np.ones((n, 2)), mesh)
    inverse, x = jax.jit(lambda a, b: (jaxmg.potri(a), jaxmg.potrs(a, b)))(a, b)
    cases.check_potri(matrix, inverse)
    cases.check_potrs(matrix, x, np.ones((n, 2)))
    assert inverse.sharding.is_equivalent_to(a.sharding, 2)


@pytest.mark.core("False")
@pytest.mark.parametrize(
    "n, jitted, kind",
    cases.broad(
        itertools.product([_N, 7], [False, True], [AxisType.Auto, AxisType.Explicit]),
        # Half of the cases; they include all combinations of any two values.
        lambda n, jitted, kind: ((n == 7) + jitted + (kind == AxisType.Explicit)) % 2 == 0,
    ),
)
def test_context_mesh(n, jitted, kind):
    mesh = cases.grid(kind)
    matrix = cases.positive_definite("well", n, "float64")
    b = np.ones(n)
    with cases.context(mesh):
        solve = jax.jit(jaxmg.potrs) if jitted else jaxmg.potrs
        x = solve(jnp.asarray(matrix), jnp.asarray(b))
        cases.check_potrs(matrix, x, b)
        assert len(x.devices()) == mesh.devices.size
        cases.check_potri(matrix, jaxmg.potri(matrix, 3))


def test_context_of_another_mesh():
    mesh = cases.line(4)
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    with cases.context(cases.line(2, "s")):
        cases.check_potrs(matrix, jaxmg.potrs(a, np.ones(_N)), np.ones(_N))


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [4, 5, 6, 7]])
def test_context_of_the_same_axes_on_other_devices(order):
    mesh = Mesh(cases.pick(order), ("r",))
    matrix, b = cases.positive_definite("well", _N, "float64"), np.arange(1.0, _N + 1)
    a = cases.shard(matrix, mesh, "r", None)
    with cases.context(cases.line(4)):
        cases.check_potrs(matrix, jaxmg.potrs(a, b, 3), b)
        cases.check_potri(matrix, jaxmg.potri(a, 3))


def test_context_of_another_size_under_jit():
    mesh, a = cases.line(4), cases.positive_definite("well", _N, "float64")
    with (
        cases.context(cases.line(2, "s")),
        pytest.raises(ValueError, match="got a mesh of 4 .* context mesh has 2"),
    ):
        jax.jit(lambda a: jaxmg.potri(a, 3, mesh, P("r")))(a)


@pytest.mark.extended
def test_a_shardmap_form_in_the_context_of_another_explicit_mesh():
    """Outside a shard_map the call works in the context of another explicit mesh; its status has
    shape (1,)."""
    mesh, other = (cases.line(n, axis, AxisType.Explicit) for n, axis in ((2, "r"), (4, "S")))
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    with cases.context(other):
        _, x, status = jaxmg.potrs_shardmap_ctx(a, np.ones(_N), 3, mesh, P("r", None))
    cases.check_potrs(matrix, x, np.ones(_N))
    assert status.shape == (1,) and status[0] == 0


def _two_axes(kind):
    return Mesh(np.array(cases.devices(4)).reshape(2, 2), ("pr", "pc"), axis_types=(kind,) * 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "inside, abstract, jitted, kind",
    cases.broad(
        itertools.product(*[(False, True)] * 3, (AxisType.Auto, AxisType.Explicit)),
        # Half of the cases; they include all combinations of any three values.
        lambda *case: (sum(case[:3]) + (case[3] == AxisType.Explicit)) % 2 == 0,
    ),
)
def test_given_mesh_against_the_context(inside, abstract, jitted, kind):
    """A passed mesh takes precedence over the context mesh."""
    if abstract and jitted and jax.process_count() > 1:
        pytest.skip("a traced array doesn't say which processes an abstract mesh stands for")
    mesh, other = _two_axes(kind), cases.line(4, "S", kind)
    matrix, b = cases.positive_definite("well", _N, "float64"), np.arange(1.0, _N + 1)
    where = (mesh.abstract_mesh if abstract else mesh), P("pr", "pc")

    def solve(a, b):
        work, x, _ = jaxmg.potrs_shardmap_ctx(a, b, 3, *where)
        return (
            jaxmg.potrs(a, b, 3, *where), x, work, jaxmg.potri(a, 3, *where),
            *jaxmg.syevd(a, 3, *where), jaxmg.cyclic_1d(a, 2, where[0], P("pr")),
        )  # fmt: skip

    a = cases.shard(matrix, mesh, "pr", "pc")
    with cases.context(other) if inside else contextlib.nullcontext():
        run = jax.jit(solve) if jitted else solve
        x, again, work, inverse, w, v, dealt = run(a, cases.shard(b, mesh))
        cases.check_potrs(matrix, x, b)
        cases.check_potrs(matrix, again, b)
        assert work.shape == matrix.shape
        cases.check_potri(matrix, inverse)
        cases.check_syevd(matrix, w, v)
        rows = Mesh(mesh.devices[:, 0], ("pr",))
        # A process without these devices has nothing to check.
        if len({device.process_index for device in rows.devices}) == jax.process_count():
            jaxmg.verify_cyclic(matrix, cases.shard(np.asarray(dealt), rows, "pr", None), 2)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_arrays_move_to_a_mesh_of_two_axes_under_jit(kind):
    """Arrays move from the context mesh to another mesh, passed as an abstract mesh, and back."""
    if not hasattr(jax.sharding, "use_abstract_mesh"):
        pytest.skip("this JAX has no public use_abstract_mesh")
    if kind == AxisType.Explicit and jax.__version_info__ < (0, 10):
        pytest.skip("this JAX can't move arrays of explicit axes to another mesh")
    other, mesh = cases.line(4, "S", kind), _two_axes(kind)
    matrix, b = cases.positive_definite("well", _N, "float64"), np.arange(1.0, _N + 1)

    @jax.jit
    def solve(a, b):
        a = jax.device_put(a, NamedSharding(mesh, P("pr", "pc")))
        b = jax.device_put(b, NamedSharding(mesh, P()))
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            _, x, _ = jaxmg.potrs_shardmap_ctx(a, b, T_A=4)
            _, w, v, _ = jaxmg.syevd_shardmap_ctx(a, T_A=4)
        return x, w, v

    with cases.context(other):
        x, w, v = solve(cases.shard(matrix, other, "S", None), cases.shard(b, other))
    cases.check_potrs(matrix, x, b)
    cases.check_syevd(matrix, w, v)


@_MOVED
def test_spec_is_not_taken_from_another_mesh():
    """The sharding of A's columns on its own mesh doesn't affect the spec on the passed mesh."""
    matrix = cases.positive_definite("well", _N, "float64")
    a, mesh = cases.shard(matrix, cases.line(4), None, "r"), cases.line(2)
    inverse = jaxmg.potri(a, 3, mesh)
    cases.check_potri(matrix, inverse)
    assert inverse.sharding.is_equivalent_to(NamedSharding(mesh, P("r", None)), 2)


@_UNSEEN
@pytest.mark.parametrize("n", [_N, 7])
def test_abstract_mesh(n):
    mesh = cases.line(2, "S")
    matrix = cases.positive_definite("well", n, "float64")
    a = cases.shard(matrix, mesh, *(("S", None) if n == _N else ()))
    b = np.ones(n)
    arguments = (3, mesh.abstract_mesh, P("S", None))
    cases.check_potrs(matrix, jaxmg.potrs(a, b, *arguments), b)
    cases.check_potrs(matrix, jax.jit(lambda a, b: jaxmg.potrs(a, b, *arguments))(a, b), b)


@pytest.mark.parametrize("n", [_N, 7])
@pytest.mark.parametrize("source", ["default", "other device"])
def test_one_device(source, n):
    """Without a mesh there is one rank, on the device that holds the matrix."""
    device = jax.local_devices()[-1 if source == "other device" else 0]
    matrix = cases.positive_definite("well", n, "float64")
    a = jnp.asarray(matrix) if source == "default" else jax.device_put(matrix, device)
    x = jaxmg.potrs(a, np.ones(n))
    cases.check_potrs(matrix, x, np.ones(n))
    assert x.devices() == {device}
    cases.check_potri(matrix, jaxmg.potri(a))


@pytest.mark.slow
@pytest.mark.parametrize(
    "n, dtype",
    cases.broad(
        itertools.product([_N, 7, 1], cases.DTYPES),
        lambda n, dtype: n == 7 or (n, dtype) in [(_N, "complex64"), (1, "float64")],
    ),
)
def test_numpy_matrix_goes_to_all_devices(n, dtype):
    matrix = cases.positive_definite("well", n, dtype)
    for b in (np.ones(n, dtype), jnp.ones(n, dtype)):  # JAX placed the second one by default
        x = jaxmg.potrs(matrix, b)
        cases.check_potrs(matrix, x, np.ones(n, dtype))
        assert x.devices() == set(jax.local_devices())
    inverse = jaxmg.potri(matrix)
    cases.check_potri(matrix, inverse)
    assert inverse.devices() == set(jax.local_devices())
    assert set(jaxmg.cyclic_1d(matrix, 2).sharding.mesh.axis_names) == {"rank"}


def test_numpy_matrix_goes_where_it_is_told():
    matrix, device = cases.positive_definite("well", _N, "float64"), jax.local_devices()[-1]
    assert jaxmg.potrs(matrix, np.ones(_N)).devices() == set(jax.local_devices())
    with jax.default_device(device):
        assert jaxmg.potrs(matrix, np.ones(_N)).devices() == {device}
    b = jax.device_put(np.ones(_N), device)
    assert jaxmg.potrs(matrix, b).devices() == {device}
    mesh = cases.line(2)
    with cases.context(mesh):
        assert jaxmg.potrs(matrix, np.ones(_N)).devices() == set(mesh.devices.flat)
    assert jaxmg.potrs(matrix, np.ones(_N)).devices() == set(jax.local_devices())


@pytest.mark.parametrize("n", [_N, 7])
@pytest.mark.parametrize(
    "source", ["numpy", "one device", pytest.param("other mesh", marks=_MOVED)]
)
def test_moves_to_the_mesh(source, n):
    mesh = cases.line(4)
    matrix = cases.positive_definite("well", n, "float64")
    a = {
        "numpy": lambda: matrix,
        "one device": lambda: jax.device_put(matrix, jax.local_devices()[-1]),
        "other mesh": lambda: cases.shard(matrix, cases.line(2, "s")),
    }[source]()
    cases.check_potrs(matrix, jaxmg.potrs(a, np.ones(n), mesh=mesh), np.ones(n))
    inverse = jaxmg.potri(a, mesh=mesh)
    cases.check_potri(matrix, inverse)
    assert inverse.devices() == set(mesh.devices.flat)


@pytest.mark.parametrize("n", [_N, 7])
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4)])
def test_moves_between_meshes_of_the_same_devices(shape, n, monkeypatch):
    """A program exchanges the shards; device_put would move them through the host."""
    mesh = cases.line(4)
    names = ("s", "t")[: len(shape)]
    other = Mesh(np.reshape(mesh.devices, shape), names)
    matrix = cases.positive_definite("well", n, "float64")
    entries = ("s",) if n == _N else ()
    a, b = cases.shard(matrix, other, *entries), cases.shard(np.ones(n), other)
    monkeypatch.setattr(jax, "device_put", None)
    x, inverse = jaxmg.potrs(a, b, mesh=mesh), jaxmg.potri(a, mesh=mesh)
    monkeypatch.undo()
    cases.check_potrs(matrix, x, np.ones(n))
    cases.check_potri(matrix, inverse)
    assert inverse.devices() == set(mesh.devices.flat)


@pytest.mark.core("order0", "order3")
@pytest.mark.parametrize("order", [[1, 0], [3, 1, 0, 2], [2, 3], [3, 1, 2]])
def test_permuted_and_partial_mesh(order):
    """The ranks are the mesh's devices in the mesh's order."""
    mesh = Mesh(cases.pick(order), ("r",))
    n = 4 * len(order)
    matrix = cases.positive_definite("well", n, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    b = np.arange(1.0, n + 1)
    cases.check_potrs(matrix, jaxmg.potrs(a, b, 3), b)
    cases.check_potri(matrix, jaxmg.potri(a, 3))
    cases.check_syevd(matrix, *jaxmg.syevd(a, 3))
    jaxmg.verify_cyclic(a, jaxmg.cyclic_1d(a, 2), 2)


@pytest.mark.parametrize("axis", ["r", "c"])
def test_replicas_along_other_axes(axis):
    mesh = cases.grid()
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, axis, None)
    cases.check_potri(matrix, jaxmg.potri(a, 3))
    cases.check_potrs(matrix, jaxmg.potrs(a, np.ones(_N), 3), np.ones(_N))


@pytest.mark.parametrize("entries", [(), ("r",), (None, "r"), ("r", None)])
def test_solution_is_sharded_like_right_hand_side(entries):
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    values = np.ones(_N) if len(entries) == 1 else np.ones((_N, 4))
    b = cases.shard(values, mesh, *entries)
    x = jaxmg.potrs(cases.shard(matrix, mesh, "r", None), b)
    cases.check_potrs(matrix, x, values)
    assert x.sharding.is_equivalent_to(b.sharding, b.ndim)


@_MOVED
@pytest.mark.parametrize("axis", ["r", "s"])
def test_right_hand_side_on_another_mesh(axis):
    """The spec of b doesn't apply to A's mesh, whatever the names of its axes are."""
    mesh, other = cases.line(4), cases.line(2, axis)
    matrix = cases.positive_definite("well", _N, "float64")
    b = cases.shard(np.ones(_N), other, axis)
    x = jaxmg.potrs(cases.shard(matrix, mesh, "r", None), b)
    cases.check_potrs(matrix, x, np.ones(_N))
    assert x.sharding.is_equivalent_to(NamedSharding(mesh, P()), 1)


@_UNSEEN
def test_solution_is_sharded_like_explicit_right_hand_side():
    mesh = cases.line(2, kind=AxisType.Explicit)
    matrix = cases.positive_definite("well", _N, "float64")
    b = cases.shard(np.ones(_N), mesh, "r")
    x = jax.jit(jaxmg.potrs)(cases.shard(matrix, mesh, "r", None), b)
    cases.check_potrs(matrix, x, np.ones(_N))
    assert x.sharding.is_equivalent_to(b.sharding, 1)


@pytest.mark.parametrize("entries", [("r",), (None, "r"), ()])
def test_solution_under_jit_is_sharded_like_a_constant(entries):
    """A right-hand side that isn't traced has a known sharding, and so has the solution."""
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", _N, "float64")
    b = cases.shard(np.ones((_N, 4)), mesh, *entries)
    x = jax.jit(lambda a: jaxmg.potrs(a, b, 3, mesh, P("r")))(matrix)
    cases.check_potrs(matrix, x, b)
    assert x.sharding.is_equivalent_to(b.sharding, 2)


def test_result_without_a_possible_sharding_is_replicated():
    mesh = cases.line(4)
    matrix = cases.positive_definite("well", 7, "float64")
    inverse = jaxmg.potri(matrix, mesh=mesh, in_specs=P("r", None))
    cases.check_potri(matrix, inverse)
    assert inverse.sharding.is_fully_replicated


@cases.one_process("each would start the programs of two threads in an order of its own")
def test_two_disjoint_meshes_from_two_threads():
    found = cases.devices(4)
    matrix = cases.positive_definite("well", _N, "float64")
    failures = []

    def work(part):
        try:
            mesh = Mesh(np.array(part), ("r",))
            a = jax.device_put(matrix, NamedSharding(mesh, P("r", None)))
            for _ in range(8):
                x = jaxmg.potrs(a, np.ones(_N), 3).block_until_ready()
                cases.check_potrs(matrix, x, np.ones(_N))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in (found[:2], found[2:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_two_disjoint_meshes_at_once():
    matrix = cases.positive_definite("well", _N, "float64")
    meshes = [Mesh(cases.pick(order), ("r",)) for order in ([0, 2], [1, 3])]
    solutions = [
        jaxmg.potrs(cases.shard(matrix, mesh, "r", None), np.ones(_N), 3) for mesh in meshes
    ]
    for x in jax.block_until_ready(solutions):
        cases.check_potrs(matrix, x, np.ones(_N))


def test_context_is_left_as_it_was():
    matrix = cases.positive_definite("well", 4, "float64")
    jaxmg.potrs(cases.shard(matrix, cases.line(2), "r", None), np.ones(4))
    assert _compat.context_mesh() is None
    assert jax.sharding.get_abstract_mesh().empty


@pytest.mark.extended
@cases.one_process("a warning is of this process's devices")
def test_a_large_matrix_on_one_of_several_devices_is_a_warning(monkeypatch):
    """The warning appears once, names the caller's line, and doesn't appear if the caller chose the
    device."""
    cases.devices(2)
    monkeypatch.setattr(meshes, "_WORTH_SHARING", 8)
    matrix = cases.positive_definite("well", 8, "float64")
    small, chosen = jnp.asarray(matrix[:7, :7]), jax.device_put(matrix, jax.local_devices()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tile in (2, 3):  # each width has a new plan
            monkeypatch.setattr(meshes, "_warned", False)
            jaxmg.potri(small, tile)
            jaxmg.potri(chosen, tile)
            jaxmg.potri(matrix, tile)
            jaxmg.potri(jnp.asarray(matrix), tile, cases.line(2))
            with jax.default_device(jax.local_devices()[0]):
                jaxmg.potri(jnp.asarray(matrix), tile)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for tile in (4, 5):
            inverse = jaxmg.potri(jnp.asarray(matrix), tile)
            assert inverse.devices() == jnp.asarray(matrix).devices()
    (warning,) = caught
    assert warning.filename == __file__
    assert re.match(
        "potri: a is a JAX array on one device, .* devices works. To use all", str(warning.message)
    )


@cases.needs_transformations
def test_a_type_without_a_mesh_names_no_sharding():
    """The transpose of a rule knows operands by their types alone; a constant's has no mesh."""
    kind = jax.typeof(np.ones((2, 2)))
    assert kind.sharding.mesh.empty and shardings.named_sharding(kind) is None
    array = jnp.ones((2, 2))
    assert shardings.constrain_like(array, kind) is array
