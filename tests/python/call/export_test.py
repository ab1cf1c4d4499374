"""Programs that `jax.export` serializes and a new process calls."""

import numpy as np
import pytest
from contract_test import _CPU, run

import jaxmg
from jaxmg import linalg
from jaxmg._layouts import exporting
from jaxmg._plugin import plugins
from jaxmg._routines import table

_PROGRAM = """
import sys
import jax, numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jaxmg

jax.config.update("jax_enable_x64", True)
folder, mode, *only = sys.argv[1:]
mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
a = np.diag(np.arange(4.0)) + np.diag([0.5] * 3, 1) + np.diag([0.5] * 3, -1) + 9 * np.eye(4)
a = jax.device_put(a, NamedSharding(mesh, P("r", None)))
b = jax.device_put(np.ones(4), NamedSharding(mesh, P()))
results = {
    "EighResult": lambda a: jaxmg.linalg.eigh(a, mesh=mesh),
    "EigshResult": lambda a: jaxmg.linalg.eigsh(a, 2, mesh=mesh),
    "QRResult": lambda a: jaxmg.linalg.qr(a, mesh=mesh),
    "SVDResult": lambda a: jaxmg.linalg.svd(a, mesh=mesh),
    "SlogdetResult": lambda a: jaxmg.linalg.slogdet(a, mesh=mesh),
    "SVDLowRankResult": lambda a: jaxmg.linalg.svd_lowrank(a, 2, mesh=mesh),
    "CGResult": lambda a: jaxmg.linalg.cg(a, a[0], mesh=mesh),
    "PivotedCholeskyResult": lambda a: jaxmg.linalg.pivoted_cholesky(a, 2, mesh=mesh),
    "CholeskyFactor": lambda a: jaxmg.cho_factor(a, mesh=mesh),
    "LDLFactor": lambda a: jaxmg.linalg.ldl_factor(a, mesh=mesh),
    "LUFactor": lambda a: jaxmg.lu_factor(a, mesh=mesh),
    "QRFactor": lambda a: jaxmg.geqrf(a, mesh=mesh),
    "RefinedFactor": lambda a: jaxmg.cho_factor(a, mesh=mesh, refine="float32"),
    "RefinedLUFactor": lambda a: jaxmg.lu_factor(a, mesh=mesh, refine="float32"),
}
names = only or results
derivatives = ("EighResult", "QRResult", "SlogdetResult")
solve = jax.jit(lambda factor, b: factor.solve(b))


def values(tree):
    return [float(abs(x).sum()) for x in jax.tree.leaves(tree)]


def total(f):
    return jax.grad(lambda a: sum(x.sum() for x in jax.tree.leaves(f(a))))(a)


def write(name, exported, order=0):
    with open(f"{folder}/{name}", "wb") as file:
        file.write(exported.serialize(vjp_order=order))


def read(name):
    with open(f"{folder}/{name}", "rb") as file:
        return export.deserialize(bytearray(file.read())).call


if mode == "read":
    jaxmg.register_handlers()
for name in names:
    f = results[name]
    gradient = name in derivatives and jax.__version_info__ >= (0, 10)
    if mode == "write":
        checks = jaxmg.export_checks()
        write(name, export.export(jax.jit(f), disabled_checks=checks)(a), int(gradient))
        if name.endswith("Factor"):
            write(name + ".solve", export.export(solve, disabled_checks=checks)(f(a), b))
        continue
    program = read(name)
    result = program(a)
    assert type(result).__name__ == name, result
    if gradient:
        np.testing.assert_allclose(total(program), total(f), rtol=1e-10, atol=1e-12)
    expected = f(a)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    np.testing.assert_allclose(values(result), values(expected), rtol=1e-12)
    if name.endswith("Factor"):
        np.testing.assert_allclose(result.solve(b), np.linalg.solve(a, b), rtol=1e-12)
        np.testing.assert_allclose(read(name + ".solve")(expected, b), result.solve(b))
"""


def _goes_the_whole_way(folder, *names):
    pytest.importorskip("flatbuffers")  # JAX serializes with it
    if "cpu" not in plugins.entry_points():
        pytest.skip("needs the plugin for CPU devices, on which the new processes run")
    for mode in ("write", "read"):
        result = run("-c", _PROGRAM, str(folder), mode, *names, **_CPU)
        assert result.returncode == 0, result.stderr


@pytest.mark.extended
def test_named_tuple_and_factor_run_in_a_new_process(tmp_path):
    _goes_the_whole_way(tmp_path, "SlogdetResult", "CholeskyFactor")


@pytest.mark.slow
def test_all_results_and_factors_run_in_a_new_process(tmp_path):
    _goes_the_whole_way(tmp_path)


def test_checks_name_all_native_routines():
    names = [check.is_custom_call() for check in jaxmg.export_checks()]
    assert sorted(names) == sorted(set(table.HANDLERS))


def test_named_tuples_and_factors_are_registered():
    from jax._src.export import _export

    jaxmg.export_checks()
    assert not exporting._waiting
    kinds = [getattr(linalg, name) for name in linalg.__all__ if name.endswith("Result")]
    factors = {name for name in jaxmg.__all__ if name.endswith("Factor")}
    hosts = {"HostCholeskyFactor", "HostLUFactor"}
    kinds += [getattr(jaxmg, name) for name in factors - hosts]  # no pytrees
    assert len(kinds) >= 10
    for kind in kinds:
        assert _export.serialization_registry[kind][0] == f"jaxmg.{kind.__name__}"


def test_a_type_that_the_caller_registered_stays(monkeypatch):
    def register(export):
        export.register_namedtuple_serialization(linalg.QRResult, serialized_name="another")

    jaxmg.export_checks()
    monkeypatch.setattr(exporting, "_waiting", [register])
    exporting.register()
    assert not exporting._waiting


def test_static_fields_come_back():
    factor = jaxmg.cho_factor(4 * np.eye(3))
    fields = (factor.layout, 3, factor.tile, None)
    assert exporting._load(exporting._dump(fields)) == fields
