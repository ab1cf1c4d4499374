"""bfloat16 and float16 leaves in jaxmg.tree: computed in float32, and rounded."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxmg import tree

pytestmark = cases.needs_transformations

_SHAPES = {"square": (8, 8), "batch": (4, 8, 8)}
_ANY = _SHAPES | {"tall": (8, 4), "wide": (4, 8)}


def _eigh(leaves, **options):
    return jax.tree.map(
        lambda x: (x.eigenvalues, x.eigenvectors**2),
        tree.eigh(leaves, **options),
        is_leaf=lambda x: hasattr(x, "eigenvalues"),
    )


def _bases(leaves):
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.eye(8, dtype=x.dtype), x.shape), leaves)


# Function of a tree; shapes; whether a leaf's first result stays float32.
_FUNCTIONS = {
    "cholesky": (tree.cholesky, _SHAPES, False),
    "inv": (tree.inv, _SHAPES, False),
    "eigh": (_eigh, _SHAPES, True),
    "eigh-upper": (functools.partial(_eigh, UPLO="U", symmetrize_input=False), _SHAPES, True),
    "svdvals": (functools.partial(tree.svd, compute_uv=False), _ANY, True),
    "qr-r": (functools.partial(tree.qr, mode="r"), _ANY, False),
    "qr": (tree.qr, _ANY, False),
    "orthogonal_iteration": (lambda x: tree.orthogonal_iteration(x, _bases(x)), _SHAPES, False),
    "orthogonalize": (functools.partial(tree.orthogonalize, method="exact"), _ANY, False),
    "newton": (
        lambda x: tree.inverse_pth_root(x, 4, epsilon=1e-2, method="newton"), _SHAPES, False,
    ),
    "inverse_pth_root": (lambda x: tree.inverse_pth_root(x, 2), _SHAPES, False),
}  # fmt: skip


def _leaves(shapes, mesh, dtype, seed=0):
    """Returns a dict of matrices; square ones are positive definite with distinct eigenvalues."""
    found = {}
    for name, shape in shapes.items():
        a = cases.rng(seed, *shape).normal(size=shape)
        if shape[-1] == shape[-2]:
            a = a @ a.swapaxes(-1, -2) / 8 + np.diag(np.arange(1.0, 9))
        a = jnp.asarray(a, dtype)
        found[name] = cases.shard(a, mesh, *("r",) + (None,) * (a.ndim - 1))
    return found


@pytest.mark.parametrize(
    "name, dtype, ranks, kind",
    cases.broad(
        [
            (name, ("bfloat16", "float16")[(i + j) % 2], ranks, kind)
            for i, name in enumerate(_FUNCTIONS)
            for j, ranks in enumerate((1, 2, 4))
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        core=lambda name, dtype, ranks, kind: (
            (name, ranks) in (("cholesky", 2), ("eigh", 4)) and kind == AxisType.Auto
        ),
    ),
)
def test_results_are_those_of_float32_rounded(name, dtype, ranks, kind):
    """Also in one tree with float32 leaves."""
    function, shapes, single = _FUNCTIONS[name]
    mesh = cases.line(ranks, kind=kind)
    half = _leaves(shapes, mesh, dtype)
    wide = jax.tree.map(lambda x: x.astype("float32"), half)
    found, expected = cases.on(mesh, function)({"half": half, "wide": wide}).values()
    for key in shapes:
        of_half, of_wide = jax.tree.leaves(found[key]), jax.tree.leaves(expected[key])
        for i, (x, y) in enumerate(zip(of_half, of_wide, strict=True)):
            assert str(x.dtype) == ("float32" if single and i == 0 else dtype)
            assert y.dtype == "float32"
            assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
            _close(x, y, x.dtype)


def _close(x, y, dtype, digits=2):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    atol = digits * float(jnp.finfo(dtype).eps) * np.abs(y).max()
    np.testing.assert_allclose(x, y, rtol=0, atol=atol)


@pytest.mark.extended
def test_svd():
    a = _leaves(_ANY, cases.line(2), "bfloat16")
    for full in (False, True):
        for key, (u, s, vh) in tree.svd(a, full).items():
            assert (u.dtype, s.dtype, vh.dtype) == ("bfloat16", "float32", "bfloat16")
            k = s.shape[-1]
            product = (np.float32(u)[..., :k] * s[..., None, :]) @ np.float32(vh)[..., :k, :]
            np.testing.assert_allclose(product, np.float32(a[key]), atol=0.1)


@pytest.mark.extended
@pytest.mark.leaks_in_jax
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", ["cholesky", "inv", "eigh", "svdvals", "inverse_pth_root"])
def test_gradients(name, ranks):
    function, shapes, _ = _FUNCTIONS[name]
    mesh = cases.line(ranks)
    half = _leaves(shapes, mesh, "bfloat16")

    def total(leaves):
        return sum(jnp.sum(x.astype("float32") ** 3) for x in jax.tree.leaves(function(leaves)))

    found = jax.grad(total)(half)
    expected = jax.grad(total)(jax.tree.map(lambda x: x.astype("float32"), half))
    for key in shapes:
        assert found[key].dtype == "bfloat16"
        _close(found[key], expected[key], "bfloat16", 16)


@pytest.mark.extended
def test_leaves_travel_in_their_dtype():
    """The exchange of leaves takes half the bytes of float32 ones, and so do those of matrices."""
    mesh = cases.line(4)
    half = _leaves(_SHAPES, mesh, "bfloat16")
    text = jax.jit(functools.partial(tree.inv, mesh=mesh)).lower(half).as_text()
    sent = [line for line in text.splitlines() if "all_to_all" in line and "->" in line]
    assert sent and all("bf16" in line and "f32" not in line.replace("bf16", "") for line in sent)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="dtype int32; .* complex128, bfloat16, float16"):
        tree.inv(jnp.eye(4, dtype="int32"))
