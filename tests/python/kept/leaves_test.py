"""Leaves of a factor in the tree of another: for another number of ranks or another tile width."""

import itertools
import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg

pytestmark = cases.one_process("leaves are moved by NumPy")

_N = 8
_B = np.arange(1.0, _N + 1)
_MAKERS = {
    "CholeskyFactor": jaxmg.cho_factor,
    "LUFactor": jaxmg.lu_factor,
    "QRFactor": jaxmg.geqrf,
    "RefinedFactor": lambda a, T, mesh: jaxmg.cho_factor(a, T, mesh, refine="float32"),
    "RefinedLUFactor": lambda a, T, mesh: jaxmg.lu_factor(a, T, mesh, refine="float32"),
}
# Pairs of (ranks, tile width) whose factors have leaves of the same shapes.
_PAIRS = [((2, 1), (4, 1)), ((4, 2), (2, 2)), ((1, 2), (8, 1)), ((2, 2), (2, 4)), ((1, 8), (1, 3))]


def _factor(kind, ranks, tile):
    mesh = cases.line(ranks)
    a = cases.positive_definite("well", _N, "float64")
    return _MAKERS[kind](cases.shard(a, mesh), tile, mesh)


def _onto(target, factor):
    """Returns the leaves of one factor in the tree of another, as if restored from a checkpoint."""
    pairs = zip(jax.tree.leaves(factor), jax.tree.leaves(target), strict=True)
    moved = [jax.device_put(np.asarray(x), y.sharding) for x, y in pairs]
    return jax.tree.unflatten(jax.tree.structure(target), moved)


def _methods(factor):
    """Returns functions that use all leaves of a factor."""
    found = [lambda f: f.solve(_B), lambda f: f.portable(), pickle.dumps]
    names = ("logdet", "diagonal", "inv", "upper", "packed", "slogdet", "q")
    for name in names:
        if callable(getattr(factor, name, None)):
            found.append(lambda f, name=name: getattr(f, name)())
    return found


@pytest.mark.core("CholeskyFactor")
@pytest.mark.parametrize(
    "kind, pair",
    cases.broad(itertools.product(_MAKERS, _PAIRS), lambda kind, pair: pair == _PAIRS[0]),
)
def test_leaves_of_another_mesh_or_tile_width(kind, pair):
    old, new = (_factor(kind, *each) for each in pair)
    mixed = _onto(new, old)
    message = "the mesh or the tile width of a factor, save factor.portable"
    for method in _methods(mixed):
        with pytest.raises(ValueError, match=message):
            method(mixed)
        if method is not pickle.dumps:
            with pytest.raises(ValueError, match=message):
                jax.jit(method)(mixed)
    with pytest.raises(ValueError, match=f"on {pair[0][0]} rank.*{pair[1][0]} rank"):
        jax.vmap(lambda f: f.solve(_B))(jax.tree.map(lambda x: jnp.stack([x, x]), mixed))
    again = jaxmg.from_portable(jax.tree.map(np.asarray, old.portable()), mesh=new.mesh)
    np.testing.assert_allclose(again.solve(_B), new.solve(_B), rtol=1e-12, atol=1e-12)


@pytest.mark.extended
@pytest.mark.parametrize("kind", _MAKERS)
def test_leaves_on_as_many_ranks(kind):
    """Leaves fit a tree for as many ranks, also on other devices, and for a tile width that yields
    the same tiles."""
    devices = cases.line(4).devices
    mesh = jax.sharding.Mesh(devices[::-1], ("other",))
    a = cases.shard(cases.positive_definite("well", _N, "float64"), mesh)
    old = _factor(kind, 4, 5)
    mixed = _onto(_MAKERS[kind](a, 7, mesh), old)
    np.testing.assert_array_equal(mixed.solve(_B), old.solve(_B))


@pytest.mark.extended
@pytest.mark.parametrize("kind", _MAKERS)
def test_arithmetic_on_leaves(kind):
    """Optimizers may average, scale and reset leaves. Zero leaves are valid, although no matrix has
    this factor."""
    factor = _factor(kind, 2, 2)
    x = np.asarray(factor.solve(_B))
    scaled = jax.tree.map(lambda leaf: (leaf * 0.5 + leaf * 0.5).astype(leaf.dtype), factor)
    np.testing.assert_allclose(scaled.solve(_B), x, rtol=1e-12)
    zeros = jax.tree.map(jnp.zeros_like, factor)
    assert zeros.solve(_B).shape == x.shape
    chosen = jax.jit(lambda flag: jax.lax.cond(flag, lambda: factor, lambda: zeros))(True)
    np.testing.assert_allclose(chosen.solve(_B), x, rtol=1e-12)
    spent = jax.jit(lambda f: jax.tree.map(jnp.copy, f), donate_argnums=0)(scaled)
    np.testing.assert_allclose(spent.solve(_B), x, rtol=1e-12)


@pytest.mark.core("CholeskyFactor")
@pytest.mark.parametrize("kind", _MAKERS)
def test_a_checkpoint_finds_another_tree(kind):
    """The paths of the leaves tell a checkpoint that the tree differs, whatever shapes they
    have."""
    for each in _PAIRS:
        old, new = (
            {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(factor)}
            for factor in (_factor(kind, *of) for of in each)
        )
        assert len(old - new) == len(new - old) == 1


@cases.needs_transformations
@pytest.mark.extended
@pytest.mark.parametrize("kind", _MAKERS)
def test_a_batch_on_explicit_axes(kind):
    """With one matrix on each device, the leaf of zeros is a stack of square matrices of order
    1."""
    mesh = cases.line(2, kind=AxisType.Explicit)
    a = np.stack([cases.positive_definite("well", _N, "float64") * k for k in (1, 2)])
    with cases.context(mesh):
        batch = _MAKERS[kind](cases.shard(a, mesh, None, "r", None), 1, mesh)
        x = jax.vmap(lambda f: f.solve(jnp.asarray(_B)))(batch)
    (leaf,) = batch.made_for.values()
    assert leaf.ndim == 3 and leaf.shape[-1] == 1
    np.testing.assert_allclose(x, np.linalg.solve(a, np.stack([_B, _B])[..., None])[..., 0])
