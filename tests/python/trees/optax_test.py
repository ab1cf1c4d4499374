"""jaxmg.optax: transformations of optax that compute each matrix on one device."""

import functools
import importlib
import importlib.util
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat

optax = pytest.importorskip("optax", reason="optax is an extra: pip install jaxmg[optax]>=2")
contrib = importlib.import_module("optax.contrib")

import jaxmg.optax  # noqa: E402

needs_trees = pytest.mark.skipif(not _compat.TRANSFORMS, reason="jaxmg.tree needs JAX 0.10")
Axes = contrib.MuonDimensionNumbers

# Sizes that nothing divides, and sizes that 8 devices divide. Only square matrices have averages of
# full rank at first, and so defined eigenvectors.
_LEAVES = {
    "rows": ((8, 8), "r", None),
    "columns": ((5, 8), None, "r"),
    "tall": ((7, 5),),
    "layers": ((3, 8, 8), None, "r", None),
    "experts": ((8, 2, 6, 6), "r"),
    "none": ((0, 3),),
    "bias": ((8,), "r"),
    "scale": ((),),
}
_SQUARE = ("rows", "layers", "experts", "bias", "scale")
_SPECS = {name: P(*spec) for name, (_, *spec) in _LEAVES.items()}


def _gradients(count=3, dtype="float32", names=_LEAVES, mesh=None):
    """Returns trees of arrays, which are on ``mesh`` if there is one."""
    trees = []
    for i in range(count):
        tree = {}
        for name in names:
            shape, *spec = _LEAVES[name]
            array = cases.normal(cases.rng(i, *shape), shape, dtype)
            tree[name] = jnp.asarray(array) if mesh is None else cases.shard(array, mesh, *spec)
        trees.append(tree)
    return trees


def _updates(transformation, gradients, jit=True):
    """Returns the updates of all steps, and the last state."""
    update = jax.jit(transformation.update, donate_argnums=1) if jit else transformation.update
    state, results = transformation.init(gradients[0]), []
    for g in gradients:
        result, state = jax.block_until_ready(update(g, state))
        results.append(result)
    return results, state


def _distance(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(np.abs(np.asarray(x) - np.asarray(y)).max(initial=0) for x, y in pairs)


def _make(name, **options):
    """Returns a transformation that computes roots and eigenvectors in every second step, on one
    device by default."""
    options.setdefault("mesh", cases.line(1))
    if name == "muon":
        return jaxmg.optax.scale_by_muon(**options)
    if name == "shampoo":
        options = {"matrix_epsilon": 0.1, **options}
        return jaxmg.optax.scale_by_shampoo(preconditioning_compute_steps=2, **options)
    return jaxmg.optax.scale_by_soap(precondition_frequency=2, **options)


_one_by_one = pytest.mark.parametrize(
    "name", ["muon", *(pytest.param(n, marks=pytest.mark.extended) for n in ("shampoo", "soap"))]
)


_OPTIONS = {
    "default": {},
    "no nesterov": {"nesterov": False, "beta": 0.9, "ns_steps": 3},
    "adaptive": {"adaptive": True},
    "spectral": {"preconditioning": "spectral"},
    "aol": {"preconditioning": "aol"},
    "schatten": {"preconditioning": "schatten", "eps": 1e-8},
    "large eps": {"eps": 0.5},
    "triples": {"ns_coeffs": ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377))},
    "mu_dtype": {"mu_dtype": jnp.bfloat16},
}
_EXTRA = (
    "no nesterov",
    "adaptive",
    "large eps",
    "aol",
    "schatten",
    "spectral",
    "triples",
    "mu_dtype",
)


@needs_trees
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.breadth)])
@pytest.mark.parametrize(
    "option", [pytest.param(o, marks=pytest.mark.breadth) if o in _EXTRA else o for o in _OPTIONS]
)
def test_muon_takes_the_steps_of_optax(option, dtype):
    names = ("rows", "columns", "tall")
    gradients = _gradients(3, dtype, names)
    known = {**_OPTIONS[option], "weight_dimension_numbers": dict.fromkeys(names, Axes())}
    with jax.default_matmul_precision("highest"):  # ours are; GPUs would take TF32
        expected, state = _updates(contrib.scale_by_muon(**known), gradients)
    found, ours = _updates(_make("muon", **_OPTIONS[option]), gradients)
    # Both round the momentum to bfloat16, perhaps to different neighbours.
    limit = 0.05 if option == "mu_dtype" else 200 * cases.eps(dtype)
    largest = max(np.abs(np.asarray(x)).max() for x in jax.tree.leaves(expected))
    assert _distance(found, expected) <= limit * largest
    assert jax.tree.structure(ours) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(state), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape


@needs_trees
@pytest.mark.extended
@cases.kinds
def test_muon_of_any_dimensions(kind):
    """As optax, for leaves whose rows or columns are several dimensions, of any sharding."""
    mesh = cases.line(2, kind=kind)
    specs = {"a": P(None, None, "r"), "b": P("r"), "c": P(None, "r"), "d": P()}
    shapes = {"a": (3, 5, 4), "b": (4, 3, 5), "c": (3, 4, 2, 2), "d": (6,)}
    axes = {"a": Axes((0, 2), 1), "b": Axes(0, (1, 2)), "c": Axes(-1, (0, 1)), "d": None}
    trees = [
        {key: cases.shard(np.float32(cases.rng(i).standard_normal(shape)), mesh, *specs[key])
         for key, shape in shapes.items()} for i in range(2)
    ]  # fmt: skip
    options = {"mesh": None}
    if kind == AxisType.Auto:
        options = {"mesh": mesh, "matrix_specs": specs}
    found, _ = _updates(
        _make("muon", weight_dimension_numbers=axes, adaptive=True, **options), trees
    )
    whole = [
        jax.tree.map(np.asarray, {k: x for k, x in tree.items() if k != "d"}) for tree in trees
    ]
    known = {key: value for key, value in axes.items() if value}
    theirs = contrib.scale_by_muon(weight_dimension_numbers=lambda _: known, adaptive=True)
    with jax.default_matmul_precision("highest"):
        expected, _ = _updates(theirs, whole)
    for i, one in enumerate(expected):
        for key, value in one.items():
            np.testing.assert_allclose(found[i][key], value, rtol=1e-4, atol=2e-5)
            assert found[i][key].sharding.is_equivalent_to(trees[i][key].sharding, value.ndim)
        np.testing.assert_array_equal(found[i]["d"], trees[i]["d"])


@needs_trees
@pytest.mark.extended
def test_muon_exactly():
    (g,) = _gradients(1, "float64", ("columns", "tall", "layers"))
    (found,), _ = _updates(_make("muon", method="exact"), [g])
    (near,), _ = _updates(_make("muon", ns_steps=10, method="polar-express"), [g])
    for key, value in g.items():
        u, _, v = np.linalg.svd(value, full_matrices=False)
        np.testing.assert_allclose(found[key], u @ v, atol=1e-12)
        np.testing.assert_allclose(near[key], u @ v, atol=1e-4)


def _root(a, p, epsilon):
    w, v = np.linalg.eigh(a)
    return v * (w + epsilon * w[-1]) ** (-1 / p) @ v.T


@needs_trees
@pytest.mark.parametrize(
    "beta2, most, order", [(0.9, 8192, 4), cases.breadth(1, 8192, 4), cases.breadth(0.9, 5, 2)]
)
def test_shampoo(beta2, most, order):
    gradients = _gradients(5, "float64", ("columns", "tall"))
    found, _ = _updates(_make("shampoo", beta2=beta2, max_precond_dim=most), gradients)
    for key in gradients[0]:
        left = right = 0
        for i, tree in enumerate(gradients):
            g = np.asarray(tree[key])
            new = 1 if beta2 == 1 else 1 - beta2
            left, right = beta2 * left + new * g @ g.T, beta2 * right + new * g.T @ g
            if i % 2 == 0:
                bias = 1 if beta2 == 1 else 1 - beta2 ** (i + 1)
                m, n = (
                    _root(a / bias, order, 0.1) if len(a) <= most else np.eye(len(a))
                    for a in (left, right)
                )
            np.testing.assert_allclose(found[i][key], m @ g @ n, rtol=1e-9, atol=1e-9)


@needs_trees
@cases.kinds
def test_shampoo_of_several_orders(kind):
    """A leaf's roots are of order 4, or of order 2 if one of its dimensions is too large."""
    mesh = cases.line(2, kind=kind)
    shapes = {"both": (4, 4), "rows": (4, 6), "columns": (6, 4)}
    whole = {k: cases.normal(cases.rng(*shape), shape, "float64") for k, shape in shapes.items()}
    g = {key: cases.shard(a, mesh, "r") for key, a in whole.items()}
    transformation = _make("shampoo", mesh=mesh, in_specs=P("r"), max_precond_dim=4)
    (found,), _ = _updates(transformation, [g])
    for key, a in whole.items():
        p = 4 if key == "both" else 2
        m, n = (_root(b, p, 0.1) if len(b) <= 4 else np.eye(6) for b in (a @ a.T, a.T @ a))
        np.testing.assert_allclose(found[key], m @ a @ n, rtol=1e-9, atol=1e-9)


@needs_trees
@pytest.mark.parametrize(
    "key, most, options",
    [
        ("tall", 5, {}),  # columns alone have a basis
        cases.breadth("rows", 8, {"shampoo_beta": 0.8}),
        cases.breadth("rows", 8, {"method": "eigh"}),
    ],
)
def test_soap(key, most, options):
    """Algorithm 3 of the paper, in NumPy."""
    gradients = _gradients(6, "float64", (key,))
    found, state = _updates(_make("soap", b1=0.9, max_precond_dim=most, **options), gradients)
    beta = options.get("shampoo_beta", 0.95)
    a, bases, mean, squares = [0, 0], [np.eye(n) for n in gradients[0][key].shape], 0, 0
    for i, tree in enumerate(gradients):
        g, expected = np.asarray(tree[key]), 0
        if i:
            q, p = bases
            mean, squares = 0.9 * mean + 0.1 * g, 0.95 * squares + 0.05 * (q.T @ g @ p) ** 2
            scale = np.sqrt(squares / (1 - 0.95**i)) + 1e-8
            expected = q @ (q.T @ mean @ p / (1 - 0.9**i) / scale) @ p.T
        np.testing.assert_allclose(found[i][key], expected + 0 * g, rtol=1e-7, atol=1e-7)
        a = [beta * old + (1 - beta) * x for old, x in zip(a, (g @ g.T, g.T @ g), strict=True)]
        for j in range(2):
            if len(a[j]) > most or i % 2:
                continue
            if i == 0 or "method" in options:
                bases[j] = np.linalg.eigh(a[j])[1][:, ::-1]
            else:
                bases[j] = np.linalg.qr(a[j] @ bases[j])[0]
    assert int(state.count) == 6


_ON_MESHES = [
    (name, ranks, kind)
    for name in ("muon", "shampoo", "soap")
    for ranks in (2, 4, 8)
    for kind in (AxisType.Auto, AxisType.Explicit)
]
_CORE = [("muon", 4, AxisType.Auto)]


@needs_trees
@pytest.mark.parametrize(
    "name, ranks, kind", cases.broad(_ON_MESHES, lambda *case: case in _CORE, alone=True)
)
def test_meshes_take_the_steps_of_one_device(name, ranks, kind):
    """Leaves are sharded along any axis; the state is donated, and a step compiles once."""
    mesh = cases.line(ranks, kind=kind)
    names = _SQUARE if name == "soap" else _LEAVES
    expected, _ = _updates(_make(name), _gradients(4, "float64", names))
    gradients = _gradients(4, "float64", names, mesh)
    options = {"mesh": None}
    if kind == AxisType.Auto:
        options = {"mesh": mesh, "matrix_specs": {key: _SPECS[key] for key in names}}
    transformation = _make(name, **options)
    update = jax.jit(transformation.update, donate_argnums=1)
    state = transformation.init(gradients[0])
    for i, g in enumerate(gradients):
        before = state
        found, state = jax.block_until_ready(update(g, state))
        assert all(x.is_deleted() for x in jax.tree.leaves(before) if x.size)
        assert _distance(found, expected[i]) <= 1e-9
        for key, value in g.items():
            assert found[key].dtype == value.dtype
            assert found[key].sharding.is_equivalent_to(value.sharding, value.ndim)
        if i == 1:
            programs = update._cache_size()
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
            assert i == 0 or a.sharding.is_equivalent_to(b.sharding, a.ndim)
    assert update._cache_size() == programs


@needs_trees
@_one_by_one
def test_other_leaves_pass_through(name):
    (g,) = _gradients(1)
    g |= {"number": 3.0, "nothing": None, "masked": optax.MaskedNode(), "count": np.arange(3)}
    transformation = _make(name)
    state = transformation.init(g)
    updates, state = transformation.update(g, state)
    assert jax.tree.structure(updates) == jax.tree.structure(g)
    for key in ("bias", "scale", "number", "count"):
        assert updates[key] is g[key]
    assert updates["none"].shape == (0, 3)
    trees = [state.mu] if name == "muon" else list(state[-2:])
    assert all(tree[key] == optax.MaskedNode() for tree in trees for key in ("bias", "number"))
    nothing = {"bias": g["bias"]}
    assert transformation.update(nothing, transformation.init(nothing))[0]["bias"] is g["bias"]


@needs_trees
@cases.kinds
def test_leaves_without_preconditioners(kind):
    """Dimensions above ``max_precond_dim``: Shampoo passes them through, and SOAP is Adam."""
    mesh = cases.line(2, kind=kind)
    gradients = _gradients(3, "float32", ("rows",), mesh)
    options = {"mesh": mesh, "in_specs": P("r"), "max_precond_dim": 4}
    found, state = _updates(_make("shampoo", **options), gradients)
    assert state.preconditioners == state.statistics == {"rows": (None, None)}
    for result, g in zip(found, gradients, strict=True):
        np.testing.assert_array_equal(result["rows"], g["rows"])
    found, state = _updates(_make("soap", **options), gradients)
    assert state.bases == state.statistics == {"rows": (None, None)}
    adam = optax.scale_by_adam(0.95, 0.95)
    expected, _ = _updates(adam, [{"rows": np.asarray(g["rows"])} for g in gradients[1:]])
    np.testing.assert_array_equal(found[0]["rows"], 0)
    assert _distance(found[1:], expected) <= 100 * cases.eps("float32")


@needs_trees
@pytest.mark.extended
@_one_by_one
def test_bfloat16(name):
    """bfloat16 leaves, momenta and averages are computed with in float32."""
    names = ("rows", "tall", "layers") if name != "soap" else ("rows", "layers")
    options = {"mu_dtype": jnp.bfloat16} if name == "muon" else {"stats_dtype": jnp.bfloat16}
    rounded = [
        jax.tree.map(lambda x: x.astype(jnp.bfloat16), g) for g in _gradients(3, names=names)
    ]
    wide = [jax.tree.map(lambda x: x.astype(jnp.float32), g) for g in rounded]
    expected, _ = _updates(_make(name), wide)
    found, state = _updates(_make(name, **options), rounded)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("bfloat16")}
    near = [jax.tree.map(lambda x: x.astype(jnp.float32), g) for g in found]
    assert _distance(near[0], expected[0]) < 0.03
    for key in names:  # in the direction of the step from float32 averages
        a, b = (np.asarray(x[1][key]).ravel() for x in (near, expected))
        assert a @ b > 0.97 * np.linalg.norm(a) * np.linalg.norm(b)
    of_state = {
        x.dtype.name for x in jax.tree.leaves(state.mu if name == "muon" else state.statistics)
    }
    assert of_state == {"bfloat16"}
    if name != "muon":
        assert {x.dtype.name for x in jax.tree.leaves(state[-1])} == {"float32"}


@needs_trees
@pytest.mark.parametrize("dtype", ["complex64", cases.breadth("complex128")])
@pytest.mark.extended
def test_complex_leaves(dtype):
    g = _gradients(3, dtype, ("rows",))
    found, _ = _updates(_make("muon", method="exact", beta=0.0), g)
    u, _, v = np.linalg.svd(g[-1]["rows"])
    np.testing.assert_allclose(found[-1]["rows"], u @ v, atol=50 * cases.eps(dtype))
    found, _ = _updates(_make("shampoo", beta2=0.0, matrix_epsilon=1e-3), g)
    a = np.asarray(g[0]["rows"])
    w, x = np.linalg.eigh(a @ a.conj().T)
    z, y = np.linalg.eigh(a.conj().T @ a)
    left, right = (v * (w + 1e-3 * w[-1]) ** -0.25 @ v.conj().T for w, v in ((w, x), (z, y)))
    np.testing.assert_allclose(found[0]["rows"], left @ a @ right, atol=1e4 * cases.eps(dtype))
    found, state = _updates(_make("soap"), g)
    assert state.nu["rows"].dtype == jnp.finfo(dtype).dtype and found[-1]["rows"].dtype == dtype
    assert 0.1 < np.abs(found[-1]["rows"]).max() < 8


@needs_trees
@_one_by_one
def test_zero_and_nan(name):
    """Zero gradients give zero updates, and NaN stays in its leaf."""
    (g,) = _gradients(1, names=("rows", "layers"))
    zero = jax.tree.map(jnp.zeros_like, g)
    found, _ = _updates(_make(name), [zero, zero, zero])
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(found))
    bad = {**g, "rows": g["rows"].at[1, 1].set(jnp.nan)}
    found, _ = _updates(_make(name), [g, bad, g])
    assert np.isnan(found[1]["rows"]).any() and np.isfinite(found[1]["layers"]).all()


@needs_trees
@_one_by_one
def test_the_state_is_a_tree_of_arrays(name):
    """A state that was taken apart, as in a checkpoint, goes on."""
    g = _gradients(3, names=("rows", "layers", "bias"))
    transformation = _make(name)
    update, state = jax.jit(transformation.update), transformation.init(g[0])
    assert jax.tree.map(
        lambda x: (x.shape, x.dtype), jax.eval_shape(transformation.init, g[0])
    ) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    leaves, structure = jax.tree.flatten(update(g[0], state)[1])
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    again = jax.tree.unflatten(structure, [jnp.asarray(np.asarray(leaf)) for leaf in leaves])
    expected, _ = _updates(transformation, g)
    found, _ = update(g[1], again)
    assert _distance(found, expected[1]) <= 1e-5


@needs_trees
@pytest.mark.extended
@cases.kinds
@_one_by_one
def test_in_other_transformations(name, kind):
    """`optax.partition` gives other leaves to Adam; `optax.MultiSteps` averages gradients."""
    mesh = cases.line(2, kind=kind)
    names = ("rows", "layers", "bias")
    g = _gradients(4, "float64", names, mesh)
    options = {"mesh": None}
    if kind == AxisType.Auto:
        options = {"mesh": mesh, "matrix_specs": P()}
    inner = optax.chain(_make(name, **options), optax.scale(-0.1))
    labels = {key: "adam" if key == "bias" else "matrices" for key in names}
    whole = optax.partition({"matrices": inner, "adam": optax.adam(0.1)}, labels)
    found, _ = _updates(whole, g)
    matrices = [{key: tree[key] for key in names[:2]} for tree in g]
    expected, _ = _updates(inner, matrices)
    for a, b, all_ in zip(found, expected, g, strict=True):
        assert max(_distance(a[key], b[key]) for key in b) <= 1e-9
        assert _distance(a["bias"], all_["bias"]) > 0
    several = optax.MultiSteps(inner, 2)
    found, _ = _updates(several, matrices)
    averages = [jax.tree.map(lambda *x: sum(x) / 2, *matrices[i : i + 2]) for i in (0, 2)]
    expected, _ = _updates(inner, averages)
    assert _distance(found[1], expected[0]) <= 1e-6 and _distance(found[3], expected[1]) <= 1e-6
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(found[2]))


@needs_trees
def test_where_the_mesh_comes_from():
    mesh, (g,) = cases.line(2), _gradients(1, names=("rows", "layers"))
    on_mesh = {key: cases.shard(np.asarray(x), mesh, *_SPECS[key]) for key, x in g.items()}
    (expected,), _ = _updates(_make("muon"), [g])
    transformation = jaxmg.optax.scale_by_muon()
    (eager,), _ = _updates(transformation, [on_mesh], jit=False)
    assert _distance(eager, expected) <= 1e-5
    assert eager["rows"].sharding.is_equivalent_to(on_mesh["rows"].sharding, 2)
    with pytest.raises(ValueError, match="scale_by_muon: inside jit the mesh of the updates can't"):
        _updates(transformation, [on_mesh])
    with cases.context(mesh):
        (found,), _ = _updates(transformation, [on_mesh])
    assert _distance(found, expected) <= 1e-5


@needs_trees
@pytest.mark.extended
def test_beta_may_be_traced():
    g = _gradients(2, names=("rows",))
    make = optax.inject_hyperparams(
        jaxmg.optax.scale_by_muon, static_args=("ns_coeffs", "ns_steps", "eps", "mesh")
    )
    found, _ = _updates(make(beta=0.5, mesh=cases.line(1)), g)
    expected, _ = _updates(_make("muon", beta=0.5), g)
    assert _distance(found, expected) <= 1e-5


_muon, _shampoo, _soap = "scale_by_muon", "scale_by_shampoo", "scale_by_soap"
_REFUSED = {
    "steps": (_muon, {"ns_steps": 0}, "scale_by_muon: ns_steps must be at least 1; got 0"),
    "beta": (_muon, {"beta": 1.0}, "beta must be at least 0 and below 1; got 1.0"),
    "method": (_muon, {"method": "svd"}, "method must be one of newton-schulz"),
    "preconditioning": (_muon, {"preconditioning": "x"}, "preconditioning must be one of frobeni"),
    "eps": (_muon, {"eps": -1}, "eps must be a number of at least 0; got -1"),
    "ns_coeffs": (_muon, {"ns_coeffs": (1, 2)}, r"\(a, b, c\), or such .* of shape \(2,\)"),
    "ns_dtype": (_muon, {"ns_dtype": "int8"}, "dtype must be one of float32"),
    "beta2": (_shampoo, {"beta2": 1.5}, "beta2 must be at least 0 and at most 1; got 1.5"),
    "ridge": (_shampoo, {"matrix_epsilon": -1.0}, "epsilon must be a number of at least 0"),
    "by": (_shampoo, {"method": "svd"}, "method must be 'eigh' or 'newton'; got 'svd'"),
    "every": (_shampoo, {"preconditioning_compute_steps": 0}, "must be at least 1; got 0"),
    "stats": (_shampoo, {"stats_dtype": "int8"}, "stats_dtype must be bfloat16, float32 or floa"),
    "b1": (_soap, {"b1": -0.1}, "b1 must be at least 0 and below 1; got -0.1"),
    "frequency": (_soap, {"precondition_frequency": 0}, "precondition_frequency must be at least"),
    "soap by": (_soap, {"method": "svd"}, "method must be 'qr' or 'eigh'; got 'svd'"),
}


@needs_trees
@pytest.mark.parametrize("case", _REFUSED)
def test_options_that_are_refused(case):
    name, options, message = _REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(jaxmg.optax, name)(**options)


_M = np.ones((2, 3), np.float32)
_BAD_TREES = {
    "integers": (_muon, {"a": np.ones((2, 2), int)}, {}, r"muon: updates\['a'\] has dtype int64"),
    "other shape": (_muon, _M.T, {}, r"updates has shape \(3, 2\), .* an array of shape \(2, 3\)"),
    "structure": (_soap, [_M], {}, "soap: the state doesn't match the updates; pass the state"),
    "statistics": (_shampoo, _M[:, :2], {}, r"has shape \(2, 2\), .* array of shape \(3, 3\)"),
    "specs": (_soap, _M, {"matrix_specs": P("z"), "mesh": "line"}, "doesn't fit"),
    "not specs": (_muon, _M, {"matrix_specs": "r"}, r"muon: in_specs \(or matrix_specs\) must"),
    "axes": (
        _muon,
        _M,
        {"weight_dimension_numbers": Axes(0, 2)},
        "is out of range for the 2 dimensions of updates",
    ),
    "twice": (_muon, _M, {"weight_dimension_numbers": Axes(0, 0)}, "and none twice; updates has"),
    "numbers": (_muon, _M, {"weight_dimension_numbers": 3}, "must be a pytree of MuonDimens"),
    "prefix": (_muon, _M, {"weight_dimension_numbers": [None]}, "must be a prefix of the updates"),
    "mesh": (_muon, _M, {"mesh": 3}, "muon: mesh must be a jax.sharding.Mesh"),
}


@needs_trees
@pytest.mark.parametrize("case", _BAD_TREES)
def test_trees_that_are_refused(case):
    name, updates, options, message = _BAD_TREES[case]
    if options.get("mesh") == "line":
        options = {**options, "mesh": cases.line(2)}
    state = getattr(jaxmg.optax, name)().init(_M)
    if case == "integers":
        state = state._replace(mu={"a": _M})
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(jaxmg.optax, name)(**options).update(updates, state)


@needs_trees
def test_inside_shard_map_is_refused():
    mesh, transformation = cases.line(2), jaxmg.optax.scale_by_muon()
    inside = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("r"), out_specs=P("r"))
    with pytest.raises(ValueError, match="muon: it takes global arrays, but this call is inside"):
        jax.jit(inside(lambda g: transformation.update(g, transformation.init(g))[0]))(np.eye(4))


@pytest.mark.skipif(_compat.TRANSFORMS, reason="this JAX has jaxmg.tree")
@pytest.mark.parametrize("name", [_muon, _shampoo, _soap])
def test_older_jax_is_refused(name):
    with pytest.raises(NotImplementedError, match=rf"^optax.{name}: needs JAX 0.10 or newer; this"):
        getattr(jaxmg.optax, name)()


def test_names_of_whole_optimizers_name_their_transformation():
    with pytest.raises(AttributeError, match="jaxmg.optax.scale_by_soap is the part of it on"):
        jaxmg.optax.soap  # noqa: B018
    with pytest.raises(AttributeError, match="^module 'jaxmg.optax' has no attribute 'xyz'$"):
        jaxmg.optax.xyz  # noqa: B018


def test_without_optax_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    spec = importlib.util.spec_from_file_location("jaxmg_optax_again", jaxmg.optax.__file__)
    with pytest.raises(ImportError, match=r'needs optax 0.2.6 .* pip install "jaxmg\[optax\]>=2"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@needs_trees
@pytest.mark.core("soap-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["muon", "shampoo", "soap"])
def test_strict_promotion_of_dtypes(name, dtype):
    """Under JAX's strict rules, in a chain, the steps are the same."""
    gradients = _gradients(names=("rows", "bias"))
    gradients = jax.tree.map(lambda x: x.astype(dtype), gradients)

    def steps():
        chain = optax.chain(_make(name), optax.scale(np.asarray(-0.5, dtype)))
        return _updates(chain, gradients)

    expected = steps()
    jax.clear_caches()
    with jax.numpy_dtype_promotion("strict"):
        results = steps()
    for a, b in zip(*map(jax.tree.leaves, (results, expected)), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
