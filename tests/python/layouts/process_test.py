"""Which process has which rank, and how processes find each other, with a fake store and plugin.
tests/processes has real ones."""

import functools
import hashlib
import hmac
import types

import cases
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxmg
from jaxmg import _compat
from jaxmg._call import backends
from jaxmg._layouts import layouts
from jaxmg._plugin import plugins
from jaxmg._processes import rendezvous

_A, _B = np.eye(6), np.ones(6)

pytestmark = cases.one_process("about a job of other processes that are not there")


class Store(dict):
    """The key-value store of jax.distributed, in which no other process sets a value later."""

    asked = ()

    def key_value_set(self, key, value):
        if key in self:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
        self[key] = value

    def blocking_key_value_get(self, key, milliseconds):
        self.asked = (*self.asked, key)
        if key not in self:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
        return self[key]


@pytest.fixture
def job(monkeypatch):
    """Process 2 of a job in which process 0 has already arrived, with a plugin that records its
    calls.

    Addresses that begin with a word are on another host ("far"), or on this one if TCP is requested
    ("tcp").
    """
    store = Store({"jaxmg/cpu/0": "address 0", "jaxmg/cpu/job": "token"})
    told, listens = [], []

    def tcp_between(lower, higher):
        assert int(lower[-1]) < int(higher[-1])
        scopes = {"far": "any", "tcp": "loopback"}
        return next((scopes[a[:3]] for a in (lower, higher) if a[:3] in scopes), "")

    def listen_over_tcp(scope):
        listens.append(scope)
        return f" at {scope}"

    plugin = types.SimpleNamespace(
        process_address=lambda: "address 2",
        tcp_between=tcp_between,
        listen_over_tcp=listen_over_tcp,
        connect_processes=lambda *arguments: told.append(arguments),
        rendezvous_timeout=lambda: 0.01,
    )
    monkeypatch.delenv("JAXMG_SECRET", raising=False)
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    monkeypatch.setattr(_compat, "key_value_store", lambda: store)
    monkeypatch.setattr(plugins, "load", lambda platform: plugin)
    monkeypatch.setattr(rendezvous, "_jobs", {})
    return types.SimpleNamespace(store=store, told=told, listens=listens)


def test_processes_are_those_of_the_ranks_of_each_group():
    mesh = cases.line(4).devices.reshape(2, 2)
    mesh = Mesh(mesh, ("r", "c"))
    indices = np.array([[0, 0], [1, 2]])
    attribute = functools.partial(rendezvous.attribute, indices, mesh)
    assert attribute(("r", "c"), ()) == (0, 0, 1, 2)
    assert attribute(("c", "r"), ()) == (0, 1, 0, 2)
    assert attribute(("r",), ("c",)) == (0, 1, 0, 2)
    assert attribute(("c",), ("r",)) == (0, 0, 1, 2)


def test_groups_that_are_each_in_one_process_need_nobody():
    mesh = Mesh(cases.line(4).devices.reshape(2, 2), ("r", "c"))
    indices = np.array([[0, 1], [0, 1]])
    assert rendezvous.attribute(indices, mesh, ("r",), ("c",)) == ()
    assert rendezvous.attribute(indices, mesh, ("c",), ("r",)) == (0, 1, 0, 1)
    assert rendezvous.attribute(None, mesh, ("r", "c"), ()) == ()


def test_processes_tell_each_other_where_they_are(job):
    rendezvous.meet("potrs", "cpu", (0, 0, 2, 2))
    assert job.store["jaxmg/cpu/2"] == "address 2"
    assert job.told == [(2, {0: "address 0", 2: "address 2"}, "token")]


def test_only_those_are_asked_who_are_not_known(job):
    rendezvous.meet("potrs", "cpu", (0, 2))
    rendezvous.meet("potrs", "cpu", (2, 0))
    assert len(job.told) == 1
    job.store["jaxmg/cpu/5"] = "address 5"
    job.store.asked = ()
    rendezvous.meet("potrs", "cpu", (0, 2, 5))
    assert job.store.asked == ("jaxmg/cpu/5",)
    assert job.told[1:] == [(2, {0: "address 0", 2: "address 2", 5: "address 5"}, "token")]


def test_the_first_one_names_the_job(job):
    del job.store["jaxmg/cpu/job"]
    rendezvous.meet("potrs", "cpu", (0, 2))
    assert job.told[0][2] == job.store["jaxmg/cpu/job"] and len(job.told[0][2]) >= 16


def test_a_secret_is_part_of_the_key(job, monkeypatch):
    """With a secret, the values in the store aren't sufficient, and jobs that share a secret have
    different keys."""
    monkeypatch.setenv("JAXMG_SECRET", "a secret of the job")
    rendezvous.meet("potrs", "cpu", (0, 2))
    expected = hmac.new(b"a secret of the job", b"jaxmg job token", hashlib.sha256).hexdigest()
    assert job.told[0][2] == expected
    assert not any("secret" in str(value) or expected in value for value in job.store.values())


def test_the_launcher_s_secret_comes_first(monkeypatch):
    monkeypatch.setenv("JAXMG_SECRET", "a secret of the job")
    monkeypatch.setattr(rendezvous, "launcher_secret", b"another")
    assert rendezvous._secret() == b"another"


def test_a_secret_that_can_be_guessed_is_refused(job, monkeypatch):
    monkeypatch.setenv("JAXMG_SECRET", "too short")
    with pytest.raises(ValueError, match="JAXMG_SECRET must have at least 16 .* it has 9"):
        rendezvous.meet("potrs", "cpu", (0, 2))


def test_nobody_listens_over_tcp_within_a_host(job):
    job.store["jaxmg/cpu/5"] = "address 5"
    rendezvous.meet("potrs", "cpu", (0, 2, 5))
    assert not job.listens and not any("tcp" in key for key in job.store)


def test_who_is_reached_over_tcp_listens_and_says_where(job):
    """Of two processes that connect over TCP, the one with the higher index listens, once for each
    scope."""
    job.store |= {"jaxmg/cpu/0": "far 0", "jaxmg/cpu/1": "tcp 1", "jaxmg/cpu/3": "far 3"}
    job.store["jaxmg/cpu/3/tcp/any"] = " at far"
    rendezvous.meet("potrs", "cpu", (0, 2))
    assert job.listens == ["any"] and job.store["jaxmg/cpu/2/tcp/any"] == " at any"
    rendezvous.meet("potrs", "cpu", (0, 1, 2))
    assert job.listens == ["any", "loopback"]
    assert job.store["jaxmg/cpu/2/tcp/loopback"] == " at loopback"
    rendezvous.meet("potrs", "cpu", (0, 1, 2, 3))
    assert job.listens == ["any", "loopback"]
    assert job.told[-1][1][3] == "far 3 at far"


def test_who_does_not_say_where_it_listens_is_named(job):
    job.store["jaxmg/cpu/3"] = "far 3"
    with pytest.raises(RuntimeError, match="potrs: process 3 did not make this call within"):
        rendezvous.meet("potrs", "cpu", (0, 2, 3))
    job.store["jaxmg/cpu/3/tcp/any"] = " at far"
    rendezvous.meet("potrs", "cpu", (0, 2, 3))
    assert job.told[0][1][3] == "far 3 at far"


def test_a_job_that_was_initialized_again_is_another(job, monkeypatch):
    rendezvous.meet("potrs", "cpu", (0, 2))
    store = Store({"jaxmg/cpu/0": "elsewhere 0", "jaxmg/cpu/job": "another"})
    monkeypatch.setattr(_compat, "key_value_store", lambda: store)
    rendezvous.meet("potrs", "cpu", (0, 2))
    assert job.told[1] == (2, {0: "elsewhere 0", 2: "address 2"}, "another")


def test_who_does_not_come_is_named(job):
    message = (
        r"potri: processes 1, 3 and 4 did not make this call within 0.01 s; every process with "
        r"devices of the mesh \(processes 0, 1, 2, 3 and 4\) .* This is process 2 .*"
        "JAXMG_RENDEZVOUS_TIMEOUT"
    )
    with pytest.raises(RuntimeError, match=message):
        rendezvous.meet("potri", "cpu", (0, 1, 2, 3, 4))
    assert not job.told
    for index in (1, 3, 4):  # the call is repeated once they have arrived
        job.store[f"jaxmg/cpu/{index}"] = f"address {index}"
    rendezvous.meet("potri", "cpu", (0, 1, 2, 3, 4))
    assert sorted(job.told[0][1]) == [0, 1, 2, 3, 4]


def test_what_else_the_store_says_is_an_error(job, monkeypatch):
    def gone(key, milliseconds):
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: the coordinator is gone")

    monkeypatch.setattr(job.store, "blocking_key_value_get", gone, raising=False)
    with pytest.raises(RuntimeError, match="the coordinator is gone"):
        rendezvous.meet("potrs", "cpu", (0, 2))


def test_a_backend_for_the_gpus_of_one_process_is_not_for_several(monkeypatch):
    plugin = types.SimpleNamespace(backends=lambda _: ["cusolvermg", "native"])
    monkeypatch.setattr(plugins, "load", lambda platform: plugin)
    monkeypatch.setattr(backends, "plan", lambda *_, **__: {"solver": False, "bytes": []})
    layout = types.SimpleNamespace(platform="gpu", ranks=2, memory=None, processes=(0, 1))
    for backend in ("native", "auto"):
        assert backends.resolve("syevd", layout, backend, _A) == "native"
    with pytest.raises(ValueError, match="syevd: backend 'cusolvermg' .* GPUs of one process"):
        backends.resolve("syevd", layout, "cusolvermg", _A)
    layout.processes = ()
    assert backends.resolve("syevd", layout, "auto", _A) == "cusolvermg"


@pytest.mark.parametrize(
    ("ranks", "processes", "right"),
    [
        (1, (), True),
        (2, (), False),
        (2, (0, 1), True),
        (4, (0, 1, 1, 2), False),
        (2, (0, 1, 1, 0), True),  # two groups of replicas
        (2, (0, 1, 2, 2), False),
    ],
)
def test_a_backend_for_a_process_each_is_for_nothing_else(monkeypatch, ranks, processes, right):
    plugin = types.SimpleNamespace(backends=lambda _: ["native", "cusolvermg", "cusolvermp"])
    monkeypatch.setattr(plugins, "load", lambda platform: plugin)
    monkeypatch.setattr(backends, "plan", lambda *_, **__: {"solver": False, "bytes": []})
    layout = types.SimpleNamespace(platform="gpu", ranks=ranks, memory=None, processes=processes)
    assert backends.resolve("potrs", layout, "auto", _A) == "native"
    if right:
        assert backends.resolve("potrs", layout, "cusolvermp", _A) == "cusolvermp"
    else:
        with pytest.raises(ValueError, match=f"one process for each of its {ranks} GPUs"):
            backends.resolve("potrs", layout, "cusolvermp", _A)


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        (("r",), None),
        (("r", None), None),
        ((None, "c"), None),
        ((("r", "c"), None), None),
        (("r", "c"), 2),
        (("c", "r"), 4),
    ],
)
def test_the_grid_of_a_matrix_on_one(spec, rows):
    """The grid's rows are the devices along A's columns, since native code reads A in column-major
    order."""
    mesh = jax.sharding.AbstractMesh((4, 2), ("r", "c"))
    layout = layouts.Layout(mesh, ("r", "c"), (), PartitionSpec(*spec))
    assert layout.grid_rows == rows


def _calls(mesh):
    where = 2, mesh, PartitionSpec("r")
    calls = (
        (lambda a, b: jaxmg.potrs(a, b, *where), (_A, _B)),
        (lambda a: jaxmg.potri(a, *where), (_A,)),
        (lambda a: jaxmg.syevd(a, *where), (_A,)),
        (lambda a: jaxmg.cho_factor(a, *where), (_A,)),
        (lambda a: jaxmg.cyclic_1d(a, *where), (_A,)),
    )
    for call, arrays in calls:
        yield functools.partial(call, *arrays)
        yield functools.partial(jax.jit(call), *arrays)


def test_without_jax_distributed(monkeypatch):
    """Without jax.distributed there is no store to find the devices of other processes."""
    mesh = cases.line(2)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(rendezvous, "_indices_of", lambda devices: np.arange(devices.size))
    for call in _calls(mesh):
        with pytest.raises(RuntimeError, match=r"no client of jax.distributed .*initialize\(\)"):
            call()


def test_abstract_mesh_whose_processes_can_not_be_seen(monkeypatch):
    mesh = cases.line(3).abstract_mesh
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    with pytest.raises(ValueError, match="potri: the mesh .* is abstract.*pass mesh="):
        jax.jit(lambda a: jaxmg.potri(a, 2, mesh, PartitionSpec("r")))(_A)


def test_who_says_which_devices_an_abstract_mesh_stands_for(monkeypatch):
    mesh, other = cases.line(2), Mesh(cases.line(2).devices[::-1], ("r",))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(rendezvous, "_indices_of", lambda found: [x.id for x in found.flat])
    ids = [device.id for device in mesh.devices]
    indices = functools.partial(rendezvous.indices, "potrs", mesh.abstract_mesh)
    assert indices(mesh) == ids
    assert indices(other) == ids[::-1]
    with _compat._set_mesh(other):
        assert indices() == ids[::-1]
        assert indices(mesh) == ids
    assert indices(cases.line(1)) is None  # of another size; the mesh fits this process's devices


def test_inside_a_shard_map_it_is_the_mesh_of_that(monkeypatch):
    mesh, seen = Mesh(cases.line(2).devices[::-1], ("r",)), []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(rendezvous, "_indices_of", lambda found: [x.id for x in found.flat])

    def local(a):
        seen.append(rendezvous.indices("potrs", jax.sharding.get_abstract_mesh()))
        return a

    spec = PartitionSpec("r")
    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec)
    jax.eval_shape(jax.jit(mapped), _B)
    assert seen == [[device.id for device in mesh.devices]]


def test_only_the_attribute_tells_programs_of_several_processes_apart(monkeypatch):
    mesh = cases.line(2)

    def text():
        solve = jax.jit(lambda a: jaxmg.potri(a, 2, mesh, PartitionSpec("r")))
        return solve.lower(_A).as_text()

    alone = text()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(rendezvous, "_indices_of", lambda devices: np.arange(devices.size))
    monkeypatch.setattr(rendezvous, "meet", lambda *_: None)
    none, both = "processes = dense<> : tensor<0xi64>", "processes = dense<[0, 1]> : tensor<2xi64>"
    assert none in alone
    assert alone.replace(none, both) == text()
