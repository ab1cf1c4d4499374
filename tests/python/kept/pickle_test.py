"""Pickles and copies of factors."""

import copy
import itertools
import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg

pytestmark = cases.one_process("a factor on devices of several processes isn't pickled")

_N = 7
_A = cases.positive_definite("well", _N, "float64")
_B = np.arange(1.0, _N + 1)


def _meshes():
    return {
        "one": lambda: cases.line(1),
        "line": lambda: cases.line(3),
        "backwards": lambda: jax.sharding.Mesh(cases.line(3).devices[::-1], ("r",)),
        "grid": cases.grid,
        "explicit": lambda: cases.line(2, kind=AxisType.Explicit),
    }


def _factor(mesh, refine=None, **options):
    return jaxmg.cho_factor(cases.shard(_A, mesh), 2, mesh, refine=refine, **options)


@pytest.mark.core("None")
@pytest.mark.parametrize(
    "mesh, refine",
    cases.broad(
        itertools.product(_meshes(), (None, "float32")),
        lambda mesh, refine: mesh == ("line" if refine is None else "explicit"),
    ),
)
def test_a_factor_comes_back(mesh, refine):
    factor = _factor(_meshes()[mesh](), refine)
    again = pickle.loads(pickle.dumps(factor))
    assert type(again) is type(factor) and again.layout == factor.layout
    assert repr(again) == repr(factor)
    for old, new in zip(*map(jax.tree.leaves, (factor, again)), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, old.ndim)
    np.testing.assert_array_equal(again.solve(_B), factor.solve(_B))
    if refine is None:
        np.testing.assert_array_equal(again.inv(), factor.inv())
        assert again.logdet() == factor.logdet()


def test_a_factor_that_a_jit_returned():
    mesh = cases.line(2)
    factor = jax.jit(lambda a: jaxmg.cho_factor(a, 2, mesh))(cases.shard(_A, mesh))
    again = pickle.loads(pickle.dumps(factor))
    np.testing.assert_array_equal(again.solve(_B), factor.solve(_B))


@cases.needs_transformations
def test_factors_of_a_batch():
    factors = jaxmg.cho_factor(jnp.stack([_A, 2 * _A]), 2, cases.line(2))
    again = pickle.loads(pickle.dumps(factors))
    solve = jax.vmap(lambda factor: factor.solve(_B))
    np.testing.assert_array_equal(solve(again), solve(factors))


def test_devices_at_other_indices(monkeypatch):
    """A factor is restored to devices at the same indices, or, without such devices, to the first
    ones."""
    here = jax.local_devices()
    mesh = jax.sharding.Mesh(cases.line(4).devices[2:], ("r",))
    pickled = pickle.dumps(_factor(mesh))
    assert pickle.loads(pickled).tiles.devices() == set(mesh.devices)
    monkeypatch.setattr(jax, "local_devices", lambda **_: here[:2])
    again = pickle.loads(pickled)
    assert again.tiles.devices() == set(here[:2])
    np.testing.assert_allclose(again.solve(_B), np.linalg.solve(_A, _B), rtol=1e-12)


@pytest.mark.parametrize("refine", [None, "float32"])
def test_too_few_devices(monkeypatch, refine):
    pickled, here = pickle.dumps(_factor(cases.line(3), refine)), jax.local_devices()
    monkeypatch.setattr(jax, "local_devices", lambda **_: here[:2])
    with pytest.raises(
        ValueError, match="holds a factor on 3 devices of platform .* this process has 2[.]"
    ):
        pickle.loads(pickled)


def test_another_platform(monkeypatch):
    pickled = pickle.dumps(_factor(cases.line(2)))

    def none(**_):
        raise RuntimeError("Unknown backend")

    monkeypatch.setattr(jax, "local_devices", none)
    with pytest.raises(ValueError, match="on 2 devices of platform .*this process has 0"):
        pickle.loads(pickled)


@pytest.mark.parametrize("refine", [None, cases.breadth("float32")])
def test_a_process_without_64_bits(refine):
    """Without the error, JAX would silently convert the leaves to single precision."""
    data = pickle.dumps(_factor(cases.line(2), refine))
    with cases.without_64_bits(), pytest.raises(ValueError, match="float64.*jax_enable_x64"):
        pickle.loads(data)
    single = pickle.dumps(jaxmg.lu_factor(_A.astype("float32"), mesh=cases.line(2)))
    with cases.without_64_bits():
        assert pickle.loads(single).dtype == "float32"


def test_another_format():
    restore, (state,) = _factor(cases.line(2)).__reduce__()
    with pytest.raises(ValueError, match="another version of jaxmg made this pickle"):
        restore({**state, "format": -1})


def test_a_pickle_with_the_name_that_devices_had_before():
    factor = _factor(cases.line(2))
    restore, (state,) = factor.__reduce__()
    state["places"] = state.pop("devices")
    np.testing.assert_array_equal(restore(state).tiles, factor.tiles)


@pytest.mark.breadth
@pytest.mark.parametrize(
    "mesh, refine", [*((mesh, None) for mesh in _meshes()), ("line", "float32")]
)
def test_an_lu_factor_comes_back(mesh, refine):
    factor = jaxmg.lu_factor(
        cases.general("well", _N, "float64"), 2, _meshes()[mesh](), refine=refine
    )
    again = pickle.loads(pickle.dumps(factor))
    assert repr(again) == repr(factor)
    for trans in (0, 1):
        np.testing.assert_array_equal(again.solve(_B, trans), factor.solve(_B, trans))


@pytest.mark.core("None")
@pytest.mark.parametrize("refine", [None, "float32"])
def test_copies(refine):
    factor = _factor(cases.line(2), refine)
    assert copy.copy(factor) is factor
    again = copy.deepcopy(factor)
    assert again.layout == factor.layout
    for leaf in jax.tree.leaves(factor):
        leaf.delete()
    np.testing.assert_allclose(again.solve(_B), np.linalg.solve(_A, _B), rtol=1e-12)


@pytest.mark.parametrize("refine", [None, "float32"])
def test_a_pickle_names_no_private_module(refine):
    assert b"jaxmg._" not in pickle.dumps(_factor(cases.line(1), refine))


def test_pickles_of_named_results_name_no_private_module():
    kinds = [getattr(jaxmg.linalg, name) for name in jaxmg.linalg.__all__ if name[0].isupper()]
    for kind in kinds:
        value = kind(*range(len(kind._fields)))
        text = pickle.dumps(value)
        assert pickle.loads(text) == value and type(pickle.loads(text)) is kind
        assert b"jaxmg._" not in text
