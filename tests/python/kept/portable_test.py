"""The portable form of factors, from any mesh to any other."""

import itertools

import cases
import jax
import numpy as np
import pytest

import jaxmg

pytestmark = cases.one_process("NumPy arrays are made of portable forms")

_N = 7


def _lower(a):
    return "float32" if a.dtype in ("float64", "complex128") else "tf32"


_MAKERS = {
    "CholeskyFactor": jaxmg.cho_factor,
    "LUFactor": jaxmg.lu_factor,
    "QRFactor": jaxmg.geqrf,
    "LDLFactor": lambda a, T, mesh: jaxmg.linalg.ldl_factor(a, T_A=T, mesh=mesh),
    "RefinedFactor": lambda a, T, mesh: jaxmg.cho_factor(a, T, mesh, refine=_lower(a)),
    "RefinedLUFactor": lambda a, T, mesh: jaxmg.lu_factor(a, T, mesh, refine=_lower(a)),
}


def _factor(kind, ranks, dtype="float64", tile=2):
    a = cases.positive_definite("well", _N, dtype)
    mesh = cases.line(ranks)
    return a, _MAKERS[kind](cases.shard(a, mesh), tile, mesh)


@pytest.mark.core("LUFactor")
@pytest.mark.parametrize(
    "kind, ranks, dtype",
    cases.broad(
        itertools.product(
            _MAKERS,
            ((4, 2), (1, 8), (2, 4), (8, 1)),
            ("float64", "float32", "complex64", "complex128"),
        ),
        lambda kind, ranks, dtype: (ranks, dtype) == ((4, 2), "float64"),
    ),
)
def test_a_factor_goes_to_another_number_of_devices(kind, ranks, dtype):
    before, after = ranks
    a, factor = _factor(kind, before, dtype)
    tree = {key: np.asarray(x) for key, x in factor.portable().items()}
    mesh = cases.line(after)
    again = jaxmg.from_portable(tree, mesh=mesh)
    assert type(again) is type(factor) and again.shape == factor.shape
    assert again.dtype == factor.dtype and again.mesh == mesh
    b = np.arange(1.0, _N + 1).astype(dtype)
    tolerance = 100 * cases.eps(dtype)
    np.testing.assert_allclose(again.solve(b), factor.solve(b), rtol=tolerance, atol=tolerance)
    if hasattr(factor, "logdet"):
        np.testing.assert_allclose(again.logdet(), factor.logdet(), rtol=tolerance)


def test_the_matrix_of_a_portable_form_is_sharded():
    mesh = cases.line(2)
    a = cases.positive_definite("well", 8, "float64")
    tree = jaxmg.cho_factor(cases.shard(a, mesh, "r", None), mesh=mesh).portable()
    assert tree["matrix"].sharding.shard_shape((8, 8)) == (4, 8)


@pytest.mark.extended
def test_a_portable_form_inside_jit():
    _, factor = _factor("LUFactor", 2)
    tree = factor.portable()
    inside = jax.jit(lambda factor: factor.portable())(factor)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), tree, inside))
    with pytest.raises(ValueError, match=r"tree\['header'\] is traced"):
        jax.jit(jaxmg.from_portable)(tree)


def test_an_ldl_factor_keeps_its_tile_width():
    _, factor = _factor("LDLFactor", 2)
    tree = {key: np.asarray(x) for key, x in factor.portable().items()}
    again = jaxmg.from_portable(tree, mesh=cases.line(4), T_A=2)
    np.testing.assert_array_equal(again.inertia(), factor.inertia())
    np.testing.assert_array_equal(again.slogdet(), factor.slogdet())
    np.testing.assert_array_equal(again.band, factor.band)
    for changed, message in (
        ({}, "T_A is 3, but the tile width is a part of an LDLFactor"),
        (
            {"band": tree["band"][:, :4]},
            r"tree\['band'\] of an LDLFactor of order 7 must be",
        ),
        ({"band_pivots": tree["band"]}, r"must be int32 of shape \(7,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            jaxmg.from_portable(tree | changed, T_A=None if changed else 3)


def test_a_foreign_form_is_refused():
    _, factor = _factor("LUFactor", 2)
    tree = {key: np.asarray(x) for key, x in factor.portable().items()}

    def header(place, value):
        changed = tree["header"].copy()
        changed[place] = value
        return tree | {"header": changed}

    for wrong, message in (
        ([1, 2], "must be the result of factor.portable"),
        ({"u": np.eye(3)}, "must be the result of factor.portable"),
        (header(0, 1), "not the header of a jaxmg factor"),
        (header(1, 9), "version 9"),
        (header(2, 77), "unknown kind, 77"),
        (header(2, 2), "of a QRFactor .* must be"),
        (tree | {"matrix": tree["matrix"][:3]}, r"must be float64 of shape \(7, 7\)"),
        (tree | {"matrix": tree["matrix"].astype(np.float32)}, "it is float32"),
        (tree | {"vector": tree["vector"][:3]}, r"must be int32 of shape \(7,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            jaxmg.from_portable(wrong)
