"""jaxmg.tree: functions of many matrices, each on one device."""

import functools
import math
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._qr import stacks as qr_stacks
from jaxmg._stacks import parts
from jaxmg._trees import exchanges, functions, homes

pytestmark = cases.needs_transformations


def _matrix(shape, dtype, seed=0):
    """Returns random matrices; square ones are Hermitian positive definite."""
    a = cases.normal(cases.rng(seed, *shape), shape, dtype)
    if shape[-1] != shape[-2]:
        return a
    return (a @ a.swapaxes(-1, -2).conj() / shape[-1] + np.eye(shape[-1])).astype(dtype)


def _make_tree(mesh, leaves, dtype):
    """Returns a dict of arrays with these shapes and specs."""
    return {
        name: cases.shard(_matrix(shape, dtype, i), mesh, *spec)
        for i, (name, (shape, *spec)) in enumerate(leaves.items())
    }


# Shapes that 8 devices or any fewer divide, shapes for a 2 x 4 grid, and shapes that nothing
# divides.
_ON_LINE = {
    "rows": ((16, 16), "r", None),
    "same": ((16, 16), "r", None),
    "columns": ((2, 8, 8), None, None, "r"),
    "copies": ((3, 5, 5),),
    "batch": ((8, 7, 7), "r", None, None),
    "one": ((1, 1),),
}
_ON_GRID = {
    "both": ((3, 8, 8), None, "r", "c"),
    "turned": ((10, 8, 8), None, "c", "r"),  # 10 on 8 devices: some have both kinds
    "together": ((16, 16), ("c", "r"), None),
    "inner": ((16, 16), None, "c"),
    "batch and columns": ((2, 4, 6, 6), None, "r", None, "c"),
    "all of the batch": ((8, 2, 4, 4), "r", "c"),
    "copies": ((5, 5),),
}
_REFERENCES = {
    "cholesky": np.linalg.cholesky,
    "inv": np.linalg.inv,
    "eigh": lambda a: np.linalg.eigvalsh(a),
    "svd": lambda a: np.linalg.svd(a, compute_uv=False),
    "qr": lambda a: np.abs(np.linalg.qr(a)[1]),
}


def _comparable(name, result):
    """Returns the part of a result that doesn't depend on signs."""
    chosen = {"eigh": lambda x: x[0], "svd": lambda x: x[1], "qr": lambda x: np.abs(x[1])}
    return np.asarray(chosen.get(name, lambda x: x)(result))


def _check(name, tree, results):
    __tracebackhide__ = True
    assert set(results) == set(tree)
    for key, a in tree.items():
        expected = _REFERENCES[name](cases.wide(a))
        found = _comparable(name, results[key])
        assert found.shape == expected.shape
        limit = 200 * a.shape[-1] * cases.eps(a.dtype)
        np.testing.assert_allclose(found, expected, rtol=0, atol=limit * np.abs(expected).max())
        whole = jax.tree.leaves(results[key])[-1 if name != "svd" else 0]
        assert whole.shape == a.shape and whole.dtype == a.dtype
        assert whole.sharding.is_equivalent_to(a.sharding, a.ndim)


_CASES = [
    (name, ranks, dtype, kind)
    for name in _REFERENCES
    for ranks in (1, 2, 4, 8)
    for dtype in cases.DTYPES
    for kind in (AxisType.Auto, AxisType.Explicit)
]
_CORE = [
    ("cholesky", 8, "float32", AxisType.Auto),
    ("eigh", 2, "complex128", AxisType.Explicit),
]


@pytest.mark.core("cholesky")
@pytest.mark.parametrize(
    "name, ranks, dtype, kind", cases.broad(_CASES, lambda *case: case in _CORE, alone=True)
)
def test_each_matrix_as_alone(name, ranks, dtype, kind):
    mesh = cases.line(ranks, kind=kind)
    tree = _make_tree(mesh, _ON_LINE, dtype)
    _check(name, tree, getattr(jaxmg.tree, name)(tree))


@pytest.mark.extended
@cases.kinds
@pytest.mark.parametrize(
    "name", ["eigh", *(pytest.param(n, marks=pytest.mark.breadth) for n in ("qr", "svd", "inv"))]
)
def test_leaves_sharded_in_every_way(name, kind):
    mesh = cases.grid(kind)
    tree = _make_tree(mesh, _ON_GRID, "float64")
    results = getattr(jaxmg.tree, name)(tree)
    _check(name, tree, results)
    if name == "eigh":
        for key, (w, v) in results.items():
            a, w, v = map(np.asarray, (tree[key], w, v))
            np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=1e-12)


@cases.kinds
def test_wide_and_tall_matrices(kind):
    mesh = cases.line(4, kind=kind)
    tree = {
        "tall": cases.shard(_matrix((8, 3), "float32"), mesh, "r", None),
        "wide": cases.shard(_matrix((2, 3, 8), "float32"), mesh, None, None, "r"),
        "none": cases.shard(np.zeros((0, 4, 3), "float32"), mesh),
    }
    results = jaxmg.tree.qr(tree)
    for key, (q, r) in results.items():
        np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), tree[key], atol=1e-5)
    shapes = {key: (q.shape, r.shape) for key, (q, r) in results.items()}
    assert shapes == {
        "tall": ((8, 3), (3, 3)), "wide": ((2, 3, 3), (2, 3, 8)), "none": ((0, 4, 3), (0, 3, 3)),
    }  # fmt: skip
    specs = {key: [x.sharding.spec for x in results[key]] for key in ("tall", "wide")}
    assert specs["tall"][0] == P("r", None) and results["tall"][1].sharding.is_fully_replicated
    assert (
        specs["wide"][1] == P(None, None, "r") and results["wide"][0].sharding.is_fully_replicated
    )


def test_a_failure_is_that_of_one_matrix():
    mesh = cases.line(4)
    stack = _matrix((5, 8, 8), "float64")
    stack[2] = -stack[2]
    tree = {"a": cases.shard(stack, mesh), "b": cases.shard(_matrix((8, 8), "float64"), mesh, "r")}
    result = jaxmg.tree.cholesky(tree)
    bad = np.isnan(np.asarray(result["a"])).any(axis=(1, 2))
    assert list(bad) == [False, False, True, False, False]
    assert np.isfinite(np.asarray(result["b"])).all()


def _triple(a):
    return {"a": 3 * a, "trace": jnp.trace(a), "int": jnp.int32(len(a))}


def test_numpy_matrices_that_are_not_finite():
    """In several processes too, each process puts its own shards on its devices."""
    a = _matrix((2, 8, 8), "float64")
    a[1, 3, 3] = np.nan
    found = np.asarray(jaxmg.tree.cholesky({"a": a}, mesh=cases.line(len(jax.devices())))["a"])
    np.testing.assert_allclose(found[0], np.linalg.cholesky(a[0]), rtol=0, atol=1e-13)
    assert np.isnan(found[1]).any()


def test_any_function_and_more_devices_than_matrices():
    mesh = cases.line(8)
    a = cases.shard(_matrix((8, 8), "float32"), mesh, "r", None)
    for tree in (a, (a,), {"a": [a, None]}):
        result = jaxmg.tree.map(_triple, tree)
        (found,) = jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, dict) and "int" in x)
        np.testing.assert_array_equal(found["a"], 3 * np.asarray(a))
        np.testing.assert_allclose(found["trace"], np.trace(np.asarray(a)), rtol=1e-6)
        assert found["int"] == 8 and found["int"].dtype == np.int32
    assert jaxmg.tree.map(_triple, {"a": None, "b": []}) == {"a": None, "b": []}


def test_dtypes_that_have_no_routine():
    mesh = cases.line(2)
    tree = [
        cases.shard(jnp.ones((2, 2), dtype), mesh) for dtype in ("bfloat16", "int32", "float32")
    ]
    for a, b in zip(tree, jaxmg.tree.map(lambda a: a + a, tree), strict=True):
        assert b.dtype == a.dtype
        np.testing.assert_array_equal(np.asarray(b, float), 2)


@pytest.mark.slow
@cases.kinds
def test_under_jit_nothing_is_traced_again(kind):
    mesh = cases.line(4, kind=kind)
    tree = _make_tree(mesh, _ON_LINE, "float64")
    traces = []

    def root(a):
        traces.append(a.shape)
        return jnp.linalg.cholesky(a)

    @jax.jit
    def step(tree):
        specs = {key: P(*spec) for key, (_, *spec) in _ON_LINE.items()}
        return jaxmg.tree.map(root, tree, mesh=mesh, matrix_specs=specs)

    first = step(tree)
    _check("cholesky", tree, first)
    count = len(traces)
    step(jax.tree.map(lambda a: a + 0, tree))
    assert len(traces) == count
    jaxmg.tree.map(root, tree)
    count = len(traces)
    jaxmg.tree.map(root, tree)
    assert len(traces) == count


def test_without_specs_a_trace_shards_what_it_can():
    mesh = cases.line(4)
    tree = {"a": _matrix((6, 8), "float32"), "b": _matrix((4, 3, 3), "float32"), "c": np.eye(3)}
    results = jax.jit(lambda tree: jaxmg.tree.map(jnp.negative, tree, mesh=mesh))(tree)
    specs = {key: value.sharding.spec for key, value in results.items()}
    assert specs["a"] == P(None, "r") and specs["b"][0] == "r" and not any(specs["c"])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, -b), results, tree)


def _collectives(text):
    names = ("all-to-all", "all-gather", "all-reduce", "collective-permute")
    return {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in names}


@pytest.mark.extended
def test_one_exchange_for_all_leaves():
    mesh = cases.line(8)
    shapes = [(8, 8)] * 5 + [(16, 8), (24, 24), (3, 8, 16)]
    sharded = [
        cases.shard(_matrix(s, "float32"), mesh, *(None,) * (len(s) - 2), "r") for s in shapes
    ]
    copies = [cases.shard(_matrix(s, "float32"), mesh) for s in shapes]

    def count(tree):
        specs = jax.tree.map(lambda a: a.sharding.spec, tree)
        run = jax.jit(lambda tree: jaxmg.tree.map(jnp.sin, tree, mesh=mesh, matrix_specs=specs))
        return _collectives(run.lower(tree).compile().as_text())

    nothing = dict.fromkeys(count(copies), 0)
    assert count(sharded) == nothing | {"all-to-all": 2}
    assert count(copies) == nothing | {"all-gather": 1}


def _transformer(spec):
    """Returns shapes of 200 matrices of a transformer with 1.02e9 parameters: 28 layers, and four
    more matrices; and the spec."""
    d, hidden = 2048, 4096
    layer = [(d, d), (d, d // 4), (d, d // 4), (d, d), (d, hidden), (d, hidden), (hidden, d)]
    shapes = layer * 28 + [(d, d), (d, d), (d // 2, d), (d // 2, d)]
    assert len(shapes) == 200
    assert 1e9 < sum(m * n for m, n in shapes) < 1.1e9
    return shapes, spec


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_share_of_each_device_and_what_it_sends(ranks):
    mesh = AbstractMesh((ranks,), ("r",))
    for spec in (P("r", None), P(None, "r"), P()):
        shapes, _ = _transformer(spec)
        leaves = tuple(homes.Leaf.make(shape, "float32", spec, mesh) for shape in shapes)
        deal = homes.deal(leaves, tuple(mesh.shape.items()), homes.operations)
        assert 1 <= deal.balance <= 1.1
        assert sum(deal.loads) == sum(homes.operations(leaf.matrix) for leaf in leaves)
        program = exchanges.Program(jnp.sin, mesh, leaves, deal)
        total = 4 * sum(math.prod(shape) for shape in shapes)
        sent, returned = program.bytes_sent
        if spec == P():
            least = 0, total / ranks * (ranks - 1)
        else:
            least = (total / ranks**2 * (ranks - 1),) * 2
        assert least[0] <= sent <= 1.1 * least[0]
        assert least[1] <= returned <= 1.1 * least[1]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_share_of_each_device_where_bases_are_refreshed(ranks):
    """Each device gets its share of both statistics of each matrix, and their bases."""
    mesh, function = AbstractMesh((ranks,), ("r",)), functions.OrthogonalIteration(1)
    shapes, spec = _transformer(P("r", None))
    orders = [n for shape in shapes for n in shape]
    leaves = tuple(homes.Leaf.make((n, 2 * n), "float32", spec, mesh) for n in orders)
    deal = homes.deal(leaves, tuple(mesh.shape.items()), functions.cost_of_pair)
    assert 1 <= deal.balance <= 1.1
    sent, returned = exchanges.Program(function, mesh, leaves, deal).bytes_sent
    least = 4 * sum(n * n for n in orders) / ranks**2 * (ranks - 1)
    assert 2 * least <= sent <= 1.1 * 2 * least and least <= returned <= 1.1 * least


def test_a_share_by_the_cost_that_is_passed():
    mesh = AbstractMesh((2,), ("r",))
    leaves = tuple(
        homes.Leaf.make(shape, "float32", P(), mesh) for shape in [(2, 2)] * 3 + [(9, 9)]
    )
    deal = homes.deal(leaves, (("r", 2),), lambda a: 3.0 if a.shape[0] == 9 else 1.0)
    assert deal.loads == (3, 3)
    (family,) = deal.families
    assert [sum(run.count for run in runs) for runs in family.homes] == [1, 3]


def test_the_order_of_what_costs_the_same_is_that_of_paths():
    mesh = AbstractMesh((2,), ("r",))
    leaves = tuple(homes.Leaf.make((4, 4), "float32", P(), mesh) for _ in range(4))
    (family,) = homes.deal(leaves, (("r", 2),), homes.operations).families
    pieces = [[piece for run in runs for piece in run.pieces] for runs in family.homes]
    assert pieces == [[(0, 0, 1), (2, 0, 1)], [(1, 0, 1), (3, 0, 1)]]


def test_batches_that_are_sharded_stay():
    """Leaves whose leading dimension is sharded over all devices aren't sent."""
    mesh = cases.line(4)
    a = cases.shard(_matrix((8, 3, 3), "float64"), mesh, "r")
    text = jax.jit(lambda a: jaxmg.tree.inv(a, mesh=mesh)).lower(a).compile().as_text()
    assert not any(_collectives(text).values())


@pytest.mark.slow
@cases.kinds
def test_grad(kind):
    mesh = cases.line(4, kind=kind)
    tree = _make_tree(mesh, {"a": ((8, 8), "r", None), "b": ((3, 4, 4),)}, "float64")

    def evaluate(function):
        return lambda tree: sum(jnp.sum(jnp.cos(x)) for x in jax.tree.leaves(function(tree)))

    found = cases.on(mesh, jax.grad(evaluate(lambda t: jaxmg.tree.inv(t, mesh=mesh))))(tree)
    alone = jax.tree.map(np.asarray, tree)
    expected = jax.grad(evaluate(lambda t: jax.tree.map(jnp.linalg.inv, t)))(alone)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-12), found, expected)


@pytest.mark.slow
def test_on_the_devices_of_a_context_mesh():
    mesh = cases.line(4, kind=AxisType.Explicit)
    a = _matrix((8, 8), "float64")
    with cases.context(mesh):
        b = cases.shard(a, mesh, "r", None)
        np.testing.assert_allclose(jaxmg.tree.inv(b), np.linalg.inv(a), atol=1e-12)
        c = jax.jit(lambda b: jaxmg.tree.inv([b, b]))(b)[1]
    assert c.sharding.is_equivalent_to(b.sharding, 2)


def _singular_values(low, shape, dtype):
    """Returns a matrix with singular values from ``low`` to 1."""
    k = min(shape)
    u, v = (
        np.linalg.qr(cases.normal(cases.rng(k, i), (n, k), dtype))[0] for i, n in enumerate(shape)
    )
    return ((u * np.geomspace(low, 1, k)) @ v.conj().T).astype(dtype)


# (method, iterations) -> the range of the results' singular values, if A's are at least 0.001 of
# its Frobenius norm.
_INTERVALS = {
    ("newton-schulz", 5): (0.4, 1.21),
    ("polar-express", 5): (0.84, 1.13),
    ("polar-express", 6): (0.994, 1.006),
    ("polar-express", 10): (1 - 1e-5, 1 + 1e-5),
    ("exact", 5): (1 - 1e-5, 1 + 1e-5),
}


@pytest.mark.parametrize(
    "method, steps", cases.broad(_INTERVALS, lambda method, steps: method == "newton-schulz")
)
@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(d, marks=pytest.mark.breadth) for d in cases.DTYPES[1:])]
)
def test_orthogonalize(method, steps, dtype):
    mesh = cases.line(4)
    tree = {
        "tall": cases.shard(_singular_values(0.01, (24, 8), dtype), mesh, "r"),
        "wide": cases.shard(1e-30 * _singular_values(0.01, (7, 12), dtype), mesh, None, "r"),
        "zero": cases.shard(np.zeros((2, 4, 4), dtype), mesh),
    }
    results = jaxmg.tree.orthogonalize(tree, steps, method)
    low, high = _INTERVALS[method, steps]
    for key in ("tall", "wide"):
        x, g = np.asarray(results[key]), np.asarray(tree[key])
        assert x.dtype == dtype and results[key].sharding.is_equivalent_to(tree[key].sharding, 2)
        u, s, v = np.linalg.svd(cases.wide(g), full_matrices=False)
        found = np.diagonal(u.conj().T @ x @ v.conj().T)
        assert low <= found.real.min() and found.real.max() <= high
        np.testing.assert_allclose(u * found @ v, x, atol=1e-4)
    if method != "exact":
        assert not np.asarray(results["zero"]).any()


@pytest.mark.extended
@pytest.mark.parametrize("preconditioning", ["frobenius", "spectral", "aol", "schatten"])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_orthogonalize_by_other_polynomials(preconditioning, shape):
    g, eps = _matrix(shape, "float64", 3), 0.5
    found = jaxmg.tree.orthogonalize(
        {"a": g, "zero": 0 * g}, coefficients=((2, -1.5, 0.5), (1.5, -0.5, 0)), eps=eps,
        preconditioning=preconditioning, mesh=cases.line(2),
    )  # fmt: skip
    wide = g.T if shape[0] > shape[1] else g
    gram, values = wide @ wide.T, np.linalg.svd(g, compute_uv=False)
    scale = {
        "frobenius": 1 / (np.linalg.norm(g) + eps),
        "spectral": 1 / (values[0] + eps),
        "aol": np.maximum(np.abs(gram).sum(axis=1, keepdims=True), eps) ** -0.5,
        "schatten": max(np.linalg.norm(gram), eps) ** -0.5,
    }[preconditioning]
    u, s, v = np.linalg.svd(scale * wide, full_matrices=False)
    s = 2 * s - 1.5 * s**3 + 0.5 * s**5
    expected = u * (1.5 * s - 0.5 * s**3) @ v
    expected = expected.T if wide is not g else expected
    np.testing.assert_allclose(found["a"], expected, rtol=0, atol=1e-13)
    assert not np.asarray(found["zero"]).any()


@pytest.mark.parametrize(
    "preconditioning", ["aol", *(cases.breadth(p) for p in ("frobenius", "spectral", "schatten"))]
)
@pytest.mark.parametrize("k", [100, -100])
def test_eps_of_large_and_small_matrices(preconditioning, k):
    """``eps`` has the degree of the norm to which it is added, or of the squares that it bounds."""
    degree = 1 if preconditioning in ("frobenius", "spectral") else 2
    call = functools.partial(
        jaxmg.tree.orthogonalize, preconditioning=preconditioning, mesh=cases.line(1)
    )
    g = _matrix((5, 9), "float32", 3)
    g[-1] = 0
    scaled = np.ldexp(g, k)
    for eps in (0.5, 100.0):
        np.testing.assert_array_equal(call(scaled, eps=eps * 2.0 ** (degree * k)), call(g, eps=eps))
    if k > 0:
        np.testing.assert_allclose(call(scaled, eps=1e-8), call(g), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_orthogonalize_in_bfloat16():
    g = _singular_values(0.05, (16, 32), "float32")
    exact = np.asarray(jaxmg.tree.orthogonalize(g, method="exact"))
    near = jaxmg.tree.orthogonalize(g, 8, "polar-express", dtype=jnp.bfloat16)
    assert near.dtype == np.float32
    error = np.abs(np.asarray(near) - exact).max()
    assert 1e-4 < error < 0.05
    rounded = jaxmg.tree.orthogonalize(jnp.asarray(g, jnp.bfloat16), 8, "polar-express")
    assert rounded.dtype == jnp.bfloat16


@pytest.mark.extended
def test_leaves_travel_in_bfloat16():
    """Exchanges transfer half the bytes, and results are rounded as on one device."""
    mesh = cases.line(4)
    tree = [cases.shard(jnp.asarray(_singular_values(0.05, (16, 32), dtype)), mesh)
            for dtype in ("float32", "float32", "float64")]  # fmt: skip
    on_mesh = jax.jit(functools.partial(jaxmg.tree.orthogonalize, dtype="bfloat16", mesh=mesh,
                                        matrix_specs=P("r", None)))  # fmt: skip
    for leaf, whole in zip(on_mesh(tree), tree, strict=True):
        alone = jaxmg.tree.orthogonalize(np.asarray(whole), dtype=jnp.bfloat16, mesh=cases.line(1))
        assert leaf.dtype == whole.dtype == alone.dtype
        # On a GPU, stacks of other sizes take other products.
        np.testing.assert_allclose(
            leaf, alone, rtol=0, atol=0.02 if jax.default_backend() == "gpu" else 0
        )
    text = on_mesh.lower(tree).as_text()
    exchanged = [line for line in text.splitlines() if "all_to_all" in line]
    assert sum("bf16" in line for line in exchanged) == 2, exchanged
    assert not any("f32" in line.replace("bf16", "") for line in exchanged)


@pytest.mark.parametrize(
    "p, method, dtype",
    cases.broad(
        [(p, m, d) for p in (1, 2, 3, 4, 7) for m in ("eigh", "newton") for d in cases.DTYPES],
        lambda *case: case in [(4, "eigh", "float32"), (3, "newton", "complex128")],
        slow=lambda p, method, dtype: method == "newton",
    ),
)
def test_inverse_pth_root(p, method, dtype):
    mesh = cases.line(2)
    unit, epsilon = cases.eps(dtype), 1e-4
    tree = {
        "a": cases.shard(cases.conditioned(1e6, 24, dtype), mesh, "r"),
        "b": cases.shard(cases.positive_definite("well", 7, dtype), mesh),
        "one": cases.shard(4 * np.ones((3, 1, 1), dtype), mesh),
    }
    results = jaxmg.tree.inverse_pth_root(tree, p, epsilon, method)
    for key, a in tree.items():
        w, v = np.linalg.eigh(cases.wide(a))
        ridged = (w + epsilon * w[..., -1:]) ** (-1 / p)
        expected = (v * ridged[..., None, :]) @ np.swapaxes(v, -1, -2).conj()
        x = np.asarray(results[key])
        assert x.dtype == dtype and results[key].sharding.is_equivalent_to(a.sharding, a.ndim)
        np.testing.assert_array_equal(x, np.swapaxes(x, -1, -2).conj())
        error = np.linalg.norm(x - expected) / np.linalg.norm(expected)
        # The effect of rounding in A on its smallest eigenvalue, and the power iteration's error.
        limit = 5 * a.shape[-1] * unit / epsilon / p + (1e-6 if key == "b" else 0)
        assert error <= (limit if method == "newton" else limit + 5e-8)


@pytest.mark.extended
@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_a_root_of_an_indefinite_matrix_is_nan(method):
    stack = np.stack([np.eye(4), np.diag([1.0, 1, 1, -0.5]), np.diag([4.0, 4, 4, 4])])
    root = np.asarray(jaxmg.tree.inverse_pth_root(stack, 2, 0.0, method))
    assert np.isnan(root[1]).any()
    np.testing.assert_allclose(root[[0, 2]], [np.eye(4), np.eye(4) / 2], atol=1e-12)
    moved = jax.jvp(
        lambda a: jaxmg.tree.inverse_pth_root(a, 2, 0.0, method), (stack,), (0 * stack + np.eye(4),)
    )[1]
    assert np.isnan(moved[1]).any() and (method == "eigh" or np.isfinite(moved[::2]).all())


@pytest.mark.extended
@pytest.mark.parametrize("method", ["eigh", "newton"])
@pytest.mark.parametrize("dtype", ["float64", cases.breadth("complex128")])
def test_derivative_of_a_root_where_eigenvalues_are_equal(dtype, method):
    q = np.linalg.qr(cases.normal(cases.rng(1), (6, 6), dtype))[0]
    w = np.array([3.0, 3, 2, 2, 1, 1])
    a, moved = (q * w) @ q.conj().T, cases.hermitian(6, dtype)
    inner = q.conj().T @ moved @ q
    gaps = w[:, None] - w
    equal = gaps == 0
    values = w**-0.25
    factors = np.where(equal, -0.25 * w**-1.25, 0) + (values[:, None] - values) / np.where(
        equal, 1, gaps
    )

    def root(a):
        return jaxmg.tree.inverse_pth_root([a], 4, 0.0, method)[0]

    found = jax.jvp(root, (jnp.asarray(a),), (jnp.asarray(moved),))[1]
    np.testing.assert_allclose(found, q @ (factors * inner) @ q.conj().T, atol=1e-12)
    weights = cases.normal(cases.rng(2), (6, 6), dtype)
    gradient = jax.grad(lambda a: jnp.vdot(weights, root(a)).real)(jnp.asarray(a))
    np.testing.assert_allclose(
        jnp.sum(gradient * moved).real, np.vdot(weights, found).real, rtol=1e-12
    )


def _bases(shape, dtype, seed):
    return np.linalg.qr(cases.normal(cases.rng(seed, *shape), shape, dtype))[0].astype(dtype)


@pytest.mark.parametrize(
    "ranks, dtype, kind",
    cases.broad(
        [
            (ranks, dtype, kind)
            for ranks in (1, 2, 4, 8)
            for dtype in cases.DTYPES
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        lambda *case: case == (4, "complex64", AxisType.Explicit),
        alone=True,
        slow=lambda *_: True,
    ),
)
def test_orthogonal_iteration(ranks, dtype, kind):
    mesh = cases.line(ranks, kind=kind)
    tree = _make_tree(mesh, _ON_LINE, dtype)
    bases = {
        key: cases.shard(_bases(a.shape, dtype, i), mesh, *_ON_LINE[key][1:])
        for i, (key, a) in enumerate(tree.items())
    }
    found = jaxmg.tree.orthogonal_iteration(tree, bases, 2)
    for key, a in tree.items():
        q = cases.wide(bases[key])
        for _ in range(2):
            q, r = np.linalg.qr(cases.wide(a) @ q)
            q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1).real)[..., None, :]
        limit = 1000 * a.shape[-1] * cases.eps(dtype)
        np.testing.assert_allclose(found[key], q, rtol=0, atol=limit)
        assert found[key].dtype == dtype
        assert found[key].sharding.is_equivalent_to(a.sharding, a.ndim)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_large_stacks_are_computed_in_parts(monkeypatch, ranks):
    """Results are the same with fewer matrices at once; several CPU devices compute one after the
    other."""
    mesh = cases.line(ranks)
    stacks = np.random.default_rng(1).standard_normal((7, 11, 11))  # compiled by no other test
    expected = np.linalg.qr(stacks)
    monkeypatch.setattr(parts, "LARGEST", 3 * 121)
    sizes, original = [], qr_stacks.reduced_qr
    monkeypatch.setattr(
        qr_stacks, "reduced_qr", lambda platform, a: sizes.append(len(a)) or original(platform, a)
    )
    found = jaxmg.tree.qr(jnp.asarray(stacks), mesh=mesh)
    np.testing.assert_allclose(found.R, expected.R, atol=1e-14)
    np.testing.assert_allclose(found.Q, expected.Q, atol=1e-14)
    if ranks == 1:
        assert sizes and max(sizes) <= 3


@pytest.mark.extended
def test_orthogonal_iteration_has_one_exchange_and_comes_to_eigenvectors():
    mesh = cases.line(4)
    w = 3.0 ** -np.arange(8)
    q = _bases((8, 8), "float64", 1)
    a = cases.shard((q * w) @ q.T, mesh, "r")
    start = cases.shard(_bases((8, 8), "float64", 2), mesh, "r")
    run = jax.jit(
        lambda a, q: jaxmg.tree.orthogonal_iteration(
            [a, a], [q, q], 60, mesh=mesh, matrix_specs=P("r", None)
        )
    )
    text = run.lower(a, start).compile().as_text()
    assert _collectives(text) == dict.fromkeys(_collectives(text), 0) | {"all-to-all": 2}
    found = np.asarray(run(a, start)[1])
    np.testing.assert_allclose(np.abs(found.T @ q), np.eye(8), atol=1e-10)


def _roots(a):
    return jaxmg.tree.inverse_pth_root(a, 4, 1e-3)


_ON_MESHES = {
    "newton-schulz": jaxmg.tree.orthogonalize,
    "exact": lambda a: jaxmg.tree.orthogonalize(a, method="exact"),
    "root": _roots,
    "newton": lambda a: jaxmg.tree.inverse_pth_root(a, 4, 1e-3, "newton"),
}


@pytest.mark.parametrize(
    "name, ranks, dtype, kind",
    cases.broad(
        [
            (name, ranks, dtype, kind)
            for name in _ON_MESHES
            for ranks in (2, 4, 8)
            for dtype in cases.DTYPES
            for kind in (AxisType.Auto, AxisType.Explicit)
        ],
        lambda *_: False,
    ),
)
def test_what_optimizers_compute_is_the_same_on_every_mesh(name, ranks, dtype, kind):
    tree = _make_tree(cases.line(ranks, kind=kind), _ON_LINE, dtype)
    found = _ON_MESHES[name](tree)
    alone = _ON_MESHES[name]({key: np.asarray(a) for key, a in tree.items()})
    for key, a in tree.items():
        x, y = np.asarray(found[key]), np.asarray(alone[key])
        limit = 1e4 * a.shape[-1] * cases.eps(dtype)
        np.testing.assert_allclose(x, y, rtol=0, atol=limit * np.abs(y).max())
        assert found[key].dtype == dtype
        assert found[key].sharding.is_equivalent_to(a.sharding, a.ndim)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, dtype",
    cases.broad(
        [(name, dtype) for name in _ON_MESHES for dtype in ("float64", "complex128")],
        lambda *case: case == ("newton-schulz", "complex128"),
    ),
)
def test_only_what_has_nan_is_nan(name, dtype):
    a = _matrix((3, 6, 6), dtype)
    a[1, 2, 2] = np.nan
    found = np.asarray(_ON_MESHES[name](cases.shard(a, cases.line(2))))
    assert list(np.isnan(found).any(axis=(1, 2))) == [False, True, False]
    assert np.isnan(found[1]).all()


@pytest.mark.breadth
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", ["newton-schulz", "exact", "root", "newton"])
def test_derivatives_of_what_optimizers_compute(name, dtype):
    """Derivatives agree with differences, and both modes with each other."""
    a = _matrix((2, 4, 4), dtype)
    moved = _matrix((2, 4, 4), dtype, 3)
    step = 1e-6
    tangent, pull = jax.jvp(_ON_MESHES[name], (a,), (moved,))[1], jax.vjp(_ON_MESHES[name], a)[1]
    cotangent = _matrix((2, 4, 4), dtype, 4)
    np.testing.assert_allclose(
        jnp.sum(pull(cotangent)[0] * moved).real, jnp.sum(tangent * cotangent).real, rtol=1e-9
    )
    later, before = (np.asarray(_ON_MESHES[name](a + s * moved)) for s in (step, -step))
    np.testing.assert_allclose(tangent, (later - before) / (2 * step), rtol=0, atol=1e-7)


@pytest.mark.extended
@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_a_root_of_a_singular_matrix_is_not_finite(method):
    root = jaxmg.tree.inverse_pth_root(np.diag([1.0, 2, 3, 0]), 2, 0.0, method)
    assert not np.isfinite(np.asarray(root)).all()


_F = np.eye(4)
_REFUSED = {
    "vector": (
        lambda: jaxmg.tree.map(jnp.sin, {"a": [np.ones(3)]}),
        r"\['a'\]\[0\] must be matrices",
    ),
    "number": (lambda: jaxmg.tree.map(jnp.sin, {"a": 3.0}), r"tree\['a'\] must be a JAX or NumPy"),
    "not square": (lambda: jaxmg.tree.inv([np.ones((2, 3))]), r"tree\[0\] must be square matrices"),
    "integers": (lambda: jaxmg.tree.eigh(np.ones((2, 2), int)), r"tree has dtype int64"),
    "no specs": (
        lambda: jaxmg.tree.inv(_F, matrix_specs="r"),
        r"in_specs \(or matrix_specs\) must be a PartitionSpec",
    ),
    "prefix": (
        lambda: jaxmg.tree.inv([_F], matrix_specs=[P(), P()]),
        r"in_specs \(or matrix_specs\) must be a PartitionSpec",
    ),
    "axis": (lambda: jaxmg.tree.inv(_F, matrix_specs=P("z")), "doesn't fit tree, of shape"),
    "length": (lambda: jaxmg.tree.inv(_F, matrix_specs=P(None, None, None)), "doesn't fit tree"),
    "UPLO": (lambda: jaxmg.tree.eigh(_F, "l"), "UPLO must be None, 'L' or 'U'"),
    "mode": (lambda: jaxmg.tree.qr(_F, "full"), "mode must be 'reduced'"),
    "method": (lambda: jaxmg.tree.orthogonalize(_F, method="svd"), "method must be one of newton-"),
    "steps": (lambda: jaxmg.tree.orthogonalize(_F, 0), "steps must be at least 1; got 0"),
    "dtype": (lambda: jaxmg.tree.orthogonalize(_F, dtype="int8"), "dtype must be one of float32"),
    "exact": (lambda: jaxmg.tree.orthogonalize(_F, 5, "exact", dtype="float32"), "dtype is not su"),
    "eps for exact": (
        lambda: jaxmg.tree.orthogonalize(_F, 5, "exact", eps=1e-8),
        "preconditioning and eps are not supported by method='exact'",
    ),
    "eps": (lambda: jaxmg.tree.orthogonalize(_F, eps=-1.0), "eps must be a number of at least 0"),
    "scale": (
        lambda: jaxmg.tree.orthogonalize(_F, preconditioning="nuclear"),
        "preconditioning must be one of frobenius, spectral, aol, schatten; got 'nuclear'",
    ),
    "coefficients": (
        lambda: jaxmg.tree.orthogonalize(_F, coefficients=[(1, 2)]),
        r"coefficients must be \(a, b, c\), or such a triple for each step; .* shape \(1, 2\)",
    ),
    "coefficients of": (
        lambda: jaxmg.tree.orthogonalize(_F, method="polar-express", coefficients=(1, 2, 3)),
        "coefficients are only for method='newton-schulz'",
    ),
    "structure": (
        lambda: jaxmg.tree.orthogonal_iteration([_F], _F),
        "bases must have the structure of tree",
    ),
    "other shape": (
        lambda: jaxmg.tree.orthogonal_iteration([_F], [np.eye(3)]),
        r"bases\[0\] must be like tree\[0\], float64 of shape \(4, 4\)",
    ),
    "no steps": (lambda: jaxmg.tree.orthogonal_iteration(_F, _F, 0), "steps must be at least 1"),
    "root": (lambda: jaxmg.tree.inverse_pth_root(_F, 0), "p must be at least 1; got 0"),
    "by": (lambda: jaxmg.tree.inverse_pth_root(_F, 2, method="svd"), "method must be 'eigh' or"),
    "ridge": (lambda: jaxmg.tree.inverse_pth_root(_F, 2, -1.0), "epsilon must be a number of at"),
    "mesh": (lambda: jaxmg.tree.inv(_F, mesh=3), "tree.inv: mesh must be a jax.sharding.Mesh"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_refused(name):
    call, message = _REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_spec_has_to_divide():
    mesh = cases.line(4)
    with pytest.raises(ValueError, match="of 6, which the 4 devices of 'r' in the spec .* don't"):
        jaxmg.tree.inv(np.eye(6), mesh=mesh, matrix_specs=P("r"))


def test_a_trace_needs_a_mesh():
    cases.devices(2)
    with pytest.raises(ValueError, match="^tree.inv: inside jit the mesh of a can't be seen; pass"):
        jax.jit(jaxmg.tree.inv)(_F)


@pytest.mark.parametrize("p", [1, 2, pytest.param(4, marks=pytest.mark.breadth)])
def test_newton_goes_on_until_it_has_converged(p):
    """The iteration doesn't stop if an error is barely below the previous one, and that one isn't
    in the region of convergence yet."""
    values = np.geomspace(1e-3, 1, 1000)
    a = np.stack([np.diag([1, value]) for value in values])
    root = jaxmg.tree.inverse_pth_root(a, p, 0.0, "newton", mesh=cases.line(1))
    np.testing.assert_allclose(root[:, 1, 1], values ** (-1 / p), rtol=1e-9)
