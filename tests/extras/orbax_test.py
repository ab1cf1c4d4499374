"""Factors and states of optimizers saved by orbax: leaves of the pytree, and the portable form."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg

ocp = pytest.importorskip("orbax.checkpoint")

_N = 8
_B = np.arange(1.0, _N + 1)
_MAKERS = {
    "CholeskyFactor": jaxmg.cho_factor,
    "LUFactor": jaxmg.lu_factor,
    "QRFactor": jaxmg.geqrf,
    "RefinedFactor": lambda a, T, mesh: jaxmg.cho_factor(a, T, mesh, refine="float32"),
    "RefinedLUFactor": lambda a, T, mesh: jaxmg.lu_factor(a, T, mesh, refine="float32"),
}


def _factor(kind, ranks, tile):
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("r",))
    random = np.random.default_rng(5).normal(size=(_N, _N))
    a = jax.device_put(random @ random.T + np.eye(_N), NamedSharding(mesh, P("r", None)))
    return _MAKERS[kind](a, tile, mesh)


def _save(path, tree):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


@pytest.mark.parametrize("kind", _MAKERS)
def test_leaves_come_back(kind, tmp_path):
    factor = _factor(kind, 2, 2)
    _save(tmp_path / "leaves", factor)
    again = ocp.StandardCheckpointer().restore(tmp_path / "leaves", factor)
    assert type(again) is type(factor)
    np.testing.assert_array_equal(again.solve(_B), factor.solve(_B))


@pytest.mark.parametrize("ranks, tile", [(4, 2), (1, 2), (2, 4)])
@pytest.mark.parametrize("kind", _MAKERS)
def test_leaves_in_another_tree(kind, ranks, tile, tmp_path):
    """orbax refuses them by the key, also where it cuts and pads arrays; of the arrays of the file
    without their tree the methods do."""
    _save(tmp_path / "leaves", _factor(kind, 2, 2))
    target = _factor(kind, ranks, tile)
    for strict in (True, False):
        with pytest.raises(
            ValueError,
            match=rf"ranks_2_tile_2(.|\n)*ranks_{ranks}_tile_{tile}|"
            rf"ranks_{ranks}_tile_{tile}(.|\n)*ranks_2_tile_2",
        ):
            ocp.StandardCheckpointer().restore(tmp_path / "leaves", target, strict=strict)
    restored = ocp.PyTreeCheckpointer().restore(tmp_path / "leaves")
    restored["made_for"] = dict(zip(target.made_for, restored["made_for"].values(), strict=True))
    names = {path[0].name for path, _ in jax.tree.leaves_with_path(target)}
    mixed = dataclasses.replace(target, **{name: restored[name] for name in names})
    for solve in (lambda f: f.solve(_B), jax.jit(lambda f: f.solve(_B))):
        with pytest.raises(ValueError, match=r"save factor.portable\(\)"):
            solve(mixed)


@pytest.mark.parametrize("kind", _MAKERS)
def test_the_portable_form_goes_to_any_mesh(kind, tmp_path):
    factor = _factor(kind, 2, 2)
    _save(tmp_path / "portable", factor.portable())
    tree = ocp.StandardCheckpointer().restore(tmp_path / "portable")
    mesh = Mesh(np.array(jax.devices()[:4]), ("r",))
    again = jaxmg.from_portable(tree, mesh=mesh)
    assert again.mesh == mesh
    np.testing.assert_allclose(again.solve(_B), factor.solve(_B), rtol=1e-11)


@pytest.mark.parametrize("name", ["scale_by_muon", "scale_by_shampoo", "scale_by_soap"])
def test_the_state_of_an_optimizer_comes_back(name, tmp_path):
    pytest.importorskip("optax", reason="optax is an extra: pip install jaxmg[optax]>=2")
    from jaxmg import optax as transformations

    mesh = Mesh(np.array(jax.devices()[:2]), ("r",))
    sharding = NamedSharding(mesh, P("r", None))
    g = {"w": jax.device_put(np.random.default_rng(3).normal(size=(_N, _N)), sharding), "b": _B}
    make = getattr(transformations, name)
    update = jax.jit(make(mesh=mesh, matrix_specs=P("r", None)).update)
    first = make().init(g)
    _, state = update(g, first)
    _save(tmp_path / "state", state)
    again = ocp.StandardCheckpointer().restore(tmp_path / "state", state)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    for a, b in zip(*(jax.tree.leaves(update(g, x)) for x in (state, again)), strict=True):
        np.testing.assert_array_equal(a, b)
