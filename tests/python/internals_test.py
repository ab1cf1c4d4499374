"""One canary test for each function of jaxmg/_internals.py. A failure names the version of JAX and
the internal that it broke; functions that need the internal fail in other ways."""

import contextlib
import inspect
import traceback

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmg import _compat, _internals


@contextlib.contextmanager
def canary(internal):
    """Adds the version of JAX and the internal's name to a failure."""
    try:
        yield
    except Exception as error:
        pytest.fail(
            f"JAX {jax.__version__} broke {internal}, on which jaxmg/_internals.py relies: "
            f"{type(error).__name__}: {error}"
        )


def shard_map(function, mesh, in_specs, out_specs):
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    from jax.experimental.shard_map import shard_map

    return shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def test_api_boundary():
    @_internals.api_boundary
    def raises():
        raise ValueError("expected")

    with canary("jax._src.traceback_util.api_boundary"):
        assert inspect.unwrap(raises) is not raises
        try:
            raises()
        except ValueError as error:
            assert traceback.extract_tb(error.__traceback__)


def test_trace_state_clean():
    states = []
    with canary("jax._src.core.trace_state_clean"):
        assert _internals.trace_state_clean()
        jax.jit(lambda x: (states.append(_internals.trace_state_clean()), x)[1])(1.0)
        assert states == [False]


def test_backends_are_initialized():
    with canary("jax._src.xla_bridge.backends_are_initialized"):
        assert jax.devices() and _internals.backends_are_initialized()


def test_putter_of_parts():
    a = np.arange(8.0).reshape(4, 2)
    like = jax.device_put(a, NamedSharding(cases.line(2), P("r")))
    with canary("jax._src.interpreters.pxla.batched_device_put"):
        assert _internals._batched_device_put() is not None
        result = _internals.putter_of_parts(like)([a[:2] + 1, a[2:] + 1])
        np.testing.assert_array_equal(result, a + 1)
        assert result.sharding == like.sharding and result.committed


def test_context_mesh():
    mesh = cases.line(2)
    with canary("jax._src.mesh.get_concrete_mesh"):
        assert _internals.context_mesh() is None
        with _compat._set_mesh(mesh):
            assert _internals.context_mesh() == mesh


def test_use_abstract_mesh():
    mesh, meshes = cases.line(2).abstract_mesh, []

    def traced(x):
        with _internals.use_abstract_mesh(mesh):
            meshes.append(jax.sharding.get_abstract_mesh())
        return x

    with canary("use_abstract_mesh"):
        jax.jit(traced)(1.0)
        assert meshes == [mesh]


def test_numpy_types():
    types = []
    with canary("jax._src.literals.TypedNdArray"):
        array = np.ones(2, np.float32)
        assert isinstance(array, _internals.numpy_types)
        jax.vmap(lambda x: types.append(_internals.transformation(x)) or x)(array)
        assert types == ["vmap"]


def test_shard_map_mesh():
    mesh, meshes = cases.line(2), []

    def local(x):
        meshes.append(_internals.shard_map_mesh())
        return x

    with canary("the local `mesh` in the frames of shard_map's modules"):
        assert _internals.shard_map_mesh() is None
        jax.jit(shard_map(local, mesh, (P("r"),), P("r")))(jnp.ones(2))
        assert meshes and all(seen == mesh for seen in meshes)


def test_in_eager_batch():
    found = []

    def one(x):
        found.append(_internals.in_eager_batch((x, np.ones(2))))
        return x**2

    with canary("jax._src.core.trace_ctx or BatchTracer.val"):
        assert not _internals.in_eager_batch((jnp.ones(2),))
        jax.vmap(one)(jnp.ones(2))
        jax.jit(jax.vmap(one))(jnp.ones(2))
        jax.vmap(jax.grad(one))(jnp.ones(2))
        jax.grad(lambda x: jax.vmap(one)(x).sum())(jnp.ones(2))
        jax.vmap(jax.vmap(one))(jnp.ones((2, 2)))
        assert found == [True, False, False, False, False]


def test_abstract_platform():
    with canary("AbstractMesh.abstract_device"):
        assert _internals.abstract_platform(cases.line(2).abstract_mesh) in (None, "cpu", "gpu")


def test_mapped_axes():
    axes = []

    def one(x):
        axes.append(_internals.mapped_axes())
        with _internals.outside_vmap():
            axes.append(_internals.mapped_axes())
        return x

    with canary("jax._src.core.get_axis_env or remove_explicit_mesh_axis_names"):
        jax.vmap(one)(jnp.ones(2))
        assert axes == [frozenset(), frozenset()]


def test_mapped_axes_that_are_explicit():
    if not hasattr(_internals._core.get_axis_env(), "explicit_mesh_axis_names"):
        pytest.skip("this JAX keeps no explicit axes of a vmap")
    mesh = cases.line(2, kind=jax.sharding.AxisType.Explicit)
    x, axes = jax.device_put(jnp.ones(2), NamedSharding(mesh, P("r"))), []

    def one(x):
        axes.append(_internals.mapped_axes())
        with _internals.outside_vmap():
            axes.append(_internals.mapped_axes())
            with _internals.inside_vmap(("r",)):
                axes.append(_internals.mapped_axes())
        return x

    with canary("explicit_mesh_axis_names of jax._src.core"):
        with _compat._set_mesh(mesh):
            jax.vmap(one)(x)
        assert axes == [frozenset({"r"}), frozenset(), frozenset({"r"})]


@pytest.mark.parametrize(
    "transform, name", [(jax.vmap, "vmap"), (jax.grad, "grad"), (jax.linearize, "grad")]
)
def test_transformation(transform, name):
    names = []

    def traced(x):
        names.append(_internals.transformation(x))
        return x

    with canary("the class names of tracers"):
        if transform is jax.linearize:
            jax.linearize(traced, 1.0)
        else:
            transform(traced)(jnp.ones(2) if transform is jax.vmap else 1.0)
        assert names == [name]


def test_batched_here():
    found, x = [], jnp.ones((2, 3))

    def traced(differentiated, other):
        found.append(_internals.batched_here((differentiated, other)))
        return jnp.sum(differentiated * other)

    with canary("the current trace, and the class names of traces"):
        jax.vmap(traced)(x, x)
        jax.vmap(jax.grad(traced))(x, x)
        jax.grad(lambda y: jnp.sum(jax.vmap(traced, (0, None))(x, y)))(x[0])
        jax.jit(traced)(x, x)
        jax.vmap(jax.jit(traced))(x, x)
        assert found == [True, False, True, False, False]


def test_batch_size():
    sizes, x = [], jnp.ones((2, 3, 4))

    def traced(x):
        sizes.append(_internals.batch_size(x))
        return jnp.sum(x)

    with canary("the attributes of BatchTracer, JVPTracer and LinearizeTracer"):
        jax.vmap(traced)(x)
        jax.vmap(jax.vmap(traced, 1))(x)
        jax.vmap(jax.grad(traced), 2)(x)
        jax.jit(jax.vmap(jax.grad(traced)))(x)
        jax.jit(traced)(x)
        assert sizes == [2, 8, 4, 2, 1]


def test_below():
    values, x = [], jnp.arange(6.0).reshape(2, 3)

    def traced(row):
        values.append(_internals.below(row))
        return jnp.sum(row)

    with canary("the attributes of BatchTracer and JVPTracer, and EvalTrace"):
        jax.vmap(jax.grad(traced), 1)(x)
        ((value, batches),) = values
        assert value is x and batches == [1]


def test_below_leaves_what_a_jit_traces():
    values = []

    def traced(x):
        values.append((x, _internals.below(x)))
        return x

    with canary("the attributes of tracers of a jit"):
        jax.jit(jax.vmap(traced))(jnp.ones(2))
        ((tracer, (value, batches)),) = values
        assert value is tracer and batches == []


def test_key_value_store():
    with canary("jax._src.distributed.global_state.client"):
        store = _internals.key_value_store()
        assert store is None or hasattr(store, "blocking_key_value_get")


def test_raise_signals_before_errors():
    def fail(x):
        raise ValueError("expected")

    error = jax.errors.JaxRuntimeError
    with canary("jax.errors.JaxRuntimeError, of which a constructor in Python takes effect"):
        error("removes what the signal of an earlier test has left")
        before = error.__init__
        _internals.raise_signals_before_errors()
        assert error.__init__ is not before
        x = jax.jit(lambda x: jax.pure_callback(fail, x, x))
        with pytest.raises(error, match="expected"):
            jax.block_until_ready(x(jnp.ones(2)))
        assert error.__init__ is before  # the call removes it


def test_launch_finds_its_cluster():
    """jaxmg/_processes/child.py relies on this, and imports neither JAX nor this package."""
    with canary("jax._src.clusters.ClusterEnv._cluster_types"):
        from jax._src.clusters import ClusterEnv

        assert isinstance(ClusterEnv._cluster_types, list)


def test_pruned():
    with canary("jax.interpreters.partial_eval.dce_jaxpr"):
        jaxpr = jax.make_jaxpr(lambda x, y: (jnp.sin(x), jnp.cos(y)))(1.0, 2.0)
        cosine, needs = _internals.pruned(jaxpr, (False, True))
        assert list(needs) == [False, True] and len(cosine.jaxpr.eqns) == 1
        assert jaxpr_as_fun(cosine)(0.0) == [1.0]


def test_prune_by():
    primitive = Primitive("pruned")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *avals: avals)
    asked = []

    def rule(used, equation):
        asked.append(list(used))
        return [False, True], equation.replace(
            invars=equation.invars[1:], outvars=equation.outvars[1:]
        )

    with canary("jax.interpreters.partial_eval.dce_rules"):
        _internals.prune_by(primitive, rule)
        jaxpr = jax.make_jaxpr(lambda x, y: primitive.bind(x, y))(1.0, 2.0)
        smaller, needs = _internals.pruned(jaxpr, (False, True))
        assert asked == [[False, True]] and list(needs) == [False, True]
        assert len(smaller.jaxpr.eqns[0].outvars) == 1
