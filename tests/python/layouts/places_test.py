"""Arrays that no routine computes with in place: in host memory, unreduced over an axis, or of
symbolic sizes."""

import dataclasses

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import linalg
from jaxmg._layouts import meshes, places

_N = 4
_A = np.diag(np.arange(1.0, _N + 1)) + 0.1
_B = np.ones(_N)


def _kinds():
    return [memory.kind for memory in jax.devices()[0].addressable_memories()]


_needs_host_memory = pytest.mark.skipif(
    "pinned_host" not in _kinds() or not hasattr(jax, "memory"),
    reason="this JAX has no pinned_host",
)

_FUNCTIONS = {
    "potrs": lambda a: jaxmg.potrs(a, _B),
    "cho_factor": lambda a: jaxmg.cho_factor(a).solve(_B),
    "eigvalsh": jaxmg.eigvalsh,
    "linalg.solve": lambda a: linalg.solve(a, _B),
    "linalg.slogdet": lambda a: linalg.slogdet(a)[1],
    "linalg.qr": lambda a: linalg.qr(a)[1],
    "linalg.svdvals": linalg.svdvals,
    "linalg.norm": linalg.norm,
    "linalg.expm": linalg.expm,
    "tree.inv": jaxmg.tree.inv,
}


def _on_host(mesh, a=_A):
    sharding = NamedSharding(mesh, P(*(None,) * (a.ndim - 2), "r"), memory_kind="pinned_host")
    return jax.device_put(a, sharding)


@_needs_host_memory
@cases.one_process("device_put to host memory")
@pytest.mark.core("potrs")
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_matrices_in_host_memory_are_copied(name):
    mesh = cases.line(2)
    f, a = _FUNCTIONS[name], _on_host(mesh)
    expected = f(cases.shard(_A, mesh, "r", None))
    for _ in range(2):  # the second call takes the cached plan
        value = f(a)
        np.testing.assert_array_equal(value, expected)
        assert value.sharding.memory_kind == jax.devices()[0].default_memory().kind
    assert not a.is_deleted()


@_needs_host_memory
@cases.needs_transformations
@cases.one_process("device_put to host memory")
@pytest.mark.extended
def test_matrices_in_host_memory_inside_jit():
    mesh = cases.line(2)
    a = _on_host(mesh)

    def f(a):
        return jaxmg.potrs(a, _B, mesh=mesh).sum() + linalg.slogdet(a, mesh=mesh)[1]

    b = cases.shard(_A, mesh, "r", None)
    np.testing.assert_allclose(jax.jit(f)(a), jax.jit(f)(b), rtol=1e-13)
    np.testing.assert_allclose(jax.jit(jax.grad(f))(a), jax.jit(jax.grad(f))(b), rtol=1e-12)


@pytest.mark.parametrize(
    "shape, b", [("k, 3, 3", "3"), ("n, n", "n"), ("3, 3", "3, k")], ids=["batch", "n", "nrhs"]
)
def test_symbolic_sizes_are_refused_in_one_sentence(shape, b):
    from jax import export

    a = jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32)
    scope = next((s.scope for s in a.shape if not isinstance(s, int)), None)
    b = jax.ShapeDtypeStruct(export.symbolic_shape(b, scope=scope), jnp.float32)
    mesh = cases.line(2)
    for solve in (jaxmg.potrs, jaxmg.gesv, linalg.solve, linalg.lstsq):
        exported = export.export(
            jax.jit(lambda a, b, solve=solve: solve(a, b, mesh=mesh)),
            disabled_checks=jaxmg.export_checks(),
        )
        with pytest.raises(ValueError, match="has the symbolic shape .* for each size"):
            exported(a, b)


@pytest.mark.skipif(not hasattr(jax, "reshard"), reason="this JAX has no unreduced arrays")
def test_unreduced_operands_are_refused():
    mesh = cases.line(2, kind=AxisType.Explicit)
    a = cases.shard(_A, mesh, None, None)
    with jax.set_mesh(mesh):
        try:
            unreduced = jax.jit(lambda a: jax.reshard(a, P(None, None, unreduced={"r"})))
            jax.eval_shape(unreduced, a)
        except (AttributeError, NotImplementedError, ValueError):
            pytest.skip("this JAX makes no unreduced arrays by reshard")
        for f in (lambda a: jaxmg.potrs(a, _B), linalg.inv, jaxmg.tree.inv):
            with pytest.raises(ValueError, match=r"unreduced over 'r'.*jax\.reshard"):
                jax.eval_shape(lambda a, f=f: f(unreduced(a)), a)


@_needs_host_memory
def test_a_layout_says_in_which_memory_a_matrix_lies():
    layout = meshes.infer("potrs", (_A,), cases.line(2), None)
    assert layout.memory_kind is None
    on_host = dataclasses.replace(layout, memory_kind="pinned_host")
    assert on_host != layout  # so that calls have plans and programs of their own
    for each in (on_host, on_host.by_rows):
        assert places.is_on_host(jax.device_put(_A, each.sharding(P("r", None))))
    assert not places.is_on_host(jax.device_put(_A, layout.sharding(P("r", None))))
