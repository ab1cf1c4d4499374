"""XLA compiles programs for several devices that use the GPUs' rows of the table."""

import dataclasses
import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stack_cases

import jaxmg
from jaxmg import linalg
from jaxmg._linalg import shares
from jaxmg._plugin import plugins
from jaxmg._stacks import choice, native, pieces, scaling
from jaxmg._transform import batched_calls
from jaxmg._trees import functions, iterations

pytestmark = cases.needs_transformations

# One function for each name in the table.
_FUNCTIONS = {
    "cholesky": linalg.cholesky,
    "potri": jax.vmap(jaxmg.potri),
    "trsm": lambda a: linalg.solve_triangular(a, a),
    "lu": jax.vmap(jaxmg.getri),
    "qr": linalg.qr,
    "inv": linalg.inv,
    "solve": lambda a: linalg.solve(a, a),
    "eigh": linalg.eigh,
    "svd": lambda a: linalg.svd(a, full_matrices=False),
    "polar": linalg.polar,
}


def _operands_of_shard_map(jaxpr, consts=(), inside=False):
    """Yields the shapes of all operands of `shard_map` in a program. JAX also makes operands of the
    constants of inner programs."""
    if inside:
        yield from (np.shape(x) for x in consts)
    for eqn in jaxpr.eqns:
        mapped = eqn.primitive.name == "shard_map"
        if inside or mapped:
            yield from (x.aval.shape for x in eqn.invars if mapped or hasattr(x, "val"))
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=stack_cases.is_jaxpr):
            if stack_cases.is_jaxpr(inner):
                program = getattr(inner, "jaxpr", inner)
                consts = getattr(inner, "consts", ())
                yield from _operands_of_shard_map(program, consts, inside or mapped)


@pytest.fixture
def ways_of_gpus(monkeypatch):
    """Makes this platform use the GPUs' rows of the table, also on several devices."""
    platform = jax.default_backend()
    rows = {
        operation.name: [
            row._replace(platform=platform) for row in operation.rows if row.platform == "gpu"
        ]
        for operation in choice.OPERATIONS
    }
    stack_cases.use_rows(monkeypatch, **rows)
    monkeypatch.setattr(choice, "_PRODUCTS", (platform,))
    one_device = functools.partial(dataclasses.replace, devices=1)
    share = shares.Share
    monkeypatch.setattr(shares, "Share", lambda *fields: one_device(share(*fields)))
    monkeypatch.setattr(batched_calls, "is_faster_at_once", lambda *_: True)
    cases.forget_plans()
    jax.clear_caches()
    yield
    cases.forget_plans()
    jax.clear_caches()


# Orders for which a loop over panels has one section, or several.
_CASES = [
    (name, order, ranks)
    for name in _FUNCTIONS
    for order in (32, 200, 300)
    for ranks in (2, 8)
    if name != "eigh" or order == 300
]


@pytest.mark.parametrize(
    "name, order, ranks",
    cases.broad(_CASES, lambda *case: case == ("eigh", 300, 2), alone=True),
)
def test_no_operand_of_shard_map_is_empty(ways_of_gpus, name, order, ranks):
    """Programs contain no empty operand: XLA of jaxlib 0.11.2 ends the process when it compiles
    one."""
    mesh = cases.line(ranks)
    a = jax.ShapeDtypeStruct((32 * ranks, order, order), "float32")
    with cases.context(mesh):
        program = jax.make_jaxpr(_FUNCTIONS[name])(a).jaxpr
    shapes = list(_operands_of_shard_map(program))
    assert shapes and all(0 not in shape for shape in shapes)


# The maximum number of operations in a stack's program as JAX traces it, and in a gradient; and the
# larger programs.
_OPERATIONS, _OF_GRADIENT = 150, 230
_LARGER = {
    ("det", True): 755, ("eigh", False): 470, ("eigh", True): 590, ("pinv", False): 430,
    ("pinv", True): 470, ("polar", True): 420, ("svd", False): 380, ("svd", True): 600,
    ("svdvals", False): 380, ("svdvals", True): 415, ("cholesky", True): 255,
}  # fmt: skip
# The maxima for a tree of three shapes, and for each additional leaf.
_OF_A_TREE, _OF_A_LEAF = {"qr": 165, "root": 275, "iteration": 225}, {"qr": 5, "bfloat16": 3}


_COUNTED = {
    "qr": linalg.qr,
    "r": lambda a: linalg.qr(a, mode="r"),
    "polar": linalg.polar,
    "svd": lambda a: linalg.svd(a, full_matrices=False),
    "svdvals": linalg.svdvals,
    "inv": linalg.inv,
    "solve": lambda a: linalg.solve(a, a),
    "cholesky": linalg.cholesky,
    "det": linalg.det,
    "pinv": linalg.pinv,
    "eigh": lambda a: linalg.eigh(a, symmetrize_input=False),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("name", _COUNTED)
def test_stacks_have_no_product_of_xla(ways_of_gpus, name, gradient):
    function = _COUNTED[name]
    if gradient:

        def function(a):
            def loss(a):
                return sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(_COUNTED[name](a)))

            return jax.grad(loss)(a)

    with cases.context(cases.line(1)):
        a = jax.ShapeDtypeStruct((50, 300, 300), "float32")
        operations, dots, _ = stack_cases.counts(function, a)
    assert dots == 0
    most = _OF_GRADIENT if gradient else _OPERATIONS
    assert operations <= _LARGER.get((name, gradient), most), operations


# Products of a batch that XLA places on devices.
@pytest.mark.extended
@pytest.mark.parametrize("ranks", [2, cases.breadth(4)])
@pytest.mark.parametrize("count", [8, cases.breadth(5)])
def test_gradients_of_eigh_on_devices_have_no_product_of_xla(ways_of_gpus, ranks, count):
    def loss(a):
        w, v = _COUNTED["eigh"](a)
        return jnp.sum(jnp.sin(w)) + jnp.sum(jnp.abs(v) ** 3)

    a = stack_cases.stack((count, 16, 16), "float64")
    a = a + jnp.swapaxes(a, 1, 2)
    mesh = cases.line(ranks)
    with cases.context(mesh):
        value_and_grad = jax.jit(jax.value_and_grad(loss))
        _, dots, _ = stack_cases.counts(value_and_grad, a)
        assert dots == 0
        text = value_and_grad.lower(a).compile().as_text()
        value, gradient = value_and_grad(a)
        hessian = jax.jvp(jax.grad(loss), (a,), (a,))[1]
    assert " dot(" not in text and text.count("jaxmg_stacked_product") >= 3
    with cases.context(cases.line(1)):
        expected = jax.value_and_grad(loss)(a)
        twice = jax.jvp(jax.grad(loss), (a,), (a,))[1]
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], rtol=0, atol=1e-10)
    np.testing.assert_allclose(hessian, twice, rtol=0, atol=1e-8 * np.abs(twice).max())


def test_a_batch_of_gradients_of_eigh_is_spread(ways_of_gpus):
    """Each device computes its products of a batch, also those that JAX transposes before it has
    the batch."""

    def loss(a):
        w, v = _COUNTED["eigh"](a)
        return jnp.sum(jnp.sin(w)) + jnp.sum(jnp.abs(v) ** 3)

    a = stack_cases.stack((8, 16, 16), "float64")
    a = a + jnp.swapaxes(a, 1, 2)
    with cases.context(cases.line(2)):
        gradients = jax.jit(jax.vmap(jax.grad(loss)))
        text = gradients.lower(a).compile().as_text()
        found = gradients(a)
    call = re.compile(r'= f64\[(\d+),.*custom_call_target="jaxmg_stacked_product"')
    counts = [match[1] for match in map(call.search, text.splitlines()) if match]
    assert len(counts) >= 3 and set(counts) == {"4"}, counts
    with cases.context(cases.line(1)):
        expected = jax.vmap(jax.grad(loss))(a)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


_SINGLE = {
    "eigh": (lambda a: linalg.eigh(a, symmetrize_input=False), (200, 200)),
    "pinv": (linalg.pinv, (200, 100)),
    "qr": (linalg.qr, (200, 100)),
    "qr of wide": (linalg.qr, (100, 200)),
    "svd": (lambda a: linalg.svd(a, full_matrices=False), (200, 100)),
}


@pytest.mark.parametrize("name", _SINGLE)
@pytest.mark.parametrize("ranks", [1, cases.breadth(2)])
def test_derivatives_of_a_matrix_have_no_product_of_xla(ways_of_gpus, name, ranks):
    function, shape = _SINGLE[name]

    def loss(a):
        return sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(function(a)))

    with cases.context(cases.line(ranks)):
        _, dots, _ = stack_cases.counts(jax.grad(loss), jax.ShapeDtypeStruct(shape, "float64"))
    assert dots == 0


_TREES = {
    "newton-schulz": jaxmg.tree.orthogonalize,
    "bfloat16": lambda tree: jaxmg.tree.orthogonalize(tree, dtype=jnp.bfloat16),
    "polar-express": lambda tree: jaxmg.tree.orthogonalize(tree, 8, "polar-express"),
    "exact": lambda tree: jaxmg.tree.orthogonalize(tree, method="exact"),
    "qr": jaxmg.tree.qr,
    "root": lambda tree: jaxmg.tree.inverse_pth_root(tree, 4),
    "newton": lambda tree: jaxmg.tree.inverse_pth_root(tree, 4, method="newton"),
    "iteration": lambda tree: jaxmg.tree.orthogonal_iteration(tree, tree),
}


@pytest.mark.core("exact", "newton")
@pytest.mark.parametrize("name", _TREES)
def test_trees_have_no_product_of_xla(ways_of_gpus, name):
    rows = 256 if name in ("root", "newton", "iteration") else 512
    shapes = [(256, 256), (rows, 256), (300, 300), (10, 256, 256)]
    leaves = [jax.ShapeDtypeStruct(shapes[i % 4], "float32") for i in range(40)]
    with cases.context(cases.line(1)):
        operations, dots, concatenations = stack_cases.counts(_TREES[name], leaves)
        twice = stack_cases.counts(_TREES[name], 2 * leaves)[0]
    assert dots == 0
    assert twice - operations <= _OF_A_LEAF.get(name, 4) * len(leaves), twice - operations
    assert 2 * operations - twice <= _OF_A_TREE.get(name, 70), 2 * operations - twice
    # XLA would compile a concatenation into each sum over it; there is one for each shape, behind a
    # barrier.
    assert concatenations <= 3 + (len(leaves) + 1 if name == "iteration" else 0), concatenations


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (0, 0)])
def test_results_are_as_the_functions_say(shape):
    """Programs assume these shapes, dtypes and named tuples without a trace."""
    options = {
        "eigh": {"UPLO": None, "symmetrize_input": True}, "inv": {},
        "cholesky": {"upper": False, "symmetrize_input": True}, "qr": {"mode": "reduced"},
        "svd": {"full_matrices": True, "compute_uv": True},
    }  # fmt: skip
    known = [functions.Function(name, tuple(given.items())) for name, given in options.items()]
    known += [functions.Function("qr", (("mode", mode),)) for mode in ("complete", "r")]
    known += [
        functions.Function("svd", (("full_matrices", False), ("compute_uv", values)))
        for values in (False, True)
    ]
    known += [functions.EXACTLY_ORTHOGONAL, functions.Orthogonal(((1, 1, 1),), False, None)]
    square = shape[0] == shape[1]
    known += [functions.InverseRoot(iterations.root_by_newton, 2, 0.1)] if square else []
    for function in known:
        if not square and getattr(function, "name", "") in ("eigh", "inv", "cholesky"):
            continue
        for dtype in ("float32", "complex128"):
            matrix = jax.ShapeDtypeStruct(shape, dtype)
            assert function.result(matrix) == jax.eval_shape(function, matrix), function
    for pair in ((4, 8), (8, 4), (0, 0)):
        function, matrix = functions.OrthogonalIteration(1), jax.ShapeDtypeStruct(pair, "float32")
        assert function.result(matrix) == jax.eval_shape(function, matrix)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, dtype",
    [
        cases.breadth("newton-schulz", "complex64"),
        cases.breadth("polar-express", "float64"),
        ("bfloat16", "float32"),
    ],
)
def test_orthogonal_factors_by_the_plugin(ways_of_gpus, monkeypatch, name, dtype):
    """Values and gradients equal those of XLA's products. In bfloat16, values are compared with
    those in float64, from which rounding moves XLA's by up to 0.09."""
    tree = [stack_cases.stack(shape, dtype) for shape in ((6, 6), (5, 7), (2, 7, 5), (0, 3))]
    tree = [x / 8 for x in tree]

    def loss(tree):
        return sum(jnp.sum(jnp.sin(x.real) + x.imag**2) for x in _TREES[name](tree))

    found = *_TREES[name](tree), *jax.grad(loss)(tree)
    with cases.context(cases.line(1)):
        assert "jaxmg_stacked_polynomials" in jax.jit(_TREES[name]).lower(tree).as_text()
    monkeypatch.setattr(choice, "_PRODUCTS", ())
    jax.clear_caches()
    limit, values = 100 * cases.eps(dtype), _TREES[name](tree)
    if name == "bfloat16":
        limit, values = 0.1, _TREES["newton-schulz"]([np.asarray(x, float) for x in tree])
    expected = *values, *jax.grad(loss)(tree)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        scale = np.abs(theirs).max(initial=1)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit * scale)


def test_pieces_and_their_derivatives():
    plugins.load(jax.default_backend())
    x = jnp.arange(30.0).reshape(2, 5, 3)

    def cut(x):
        return pieces.split(x, (1, 3, 1))

    def weigh(x):
        first, second, _ = cut(x)
        return jnp.sum(first * x[:1]) + jnp.sin(second).sum()

    def weigh_slices(x):
        return jnp.sum(x[:1] ** 2) + jnp.sin(x[1:4]).sum()

    for part, start in zip(jax.vmap(cut)(x), (0, 1, 4), strict=True):
        np.testing.assert_array_equal(part, x[:, start : start + part.shape[1]])
    np.testing.assert_array_equal(cut(x[0])[1], x[0, 1:4])
    second = jax.jit(jax.vmap(jax.hessian(weigh)))(x)
    expected = jax.jit(jax.vmap(jax.hessian(weigh_slices)))(x)
    np.testing.assert_allclose(second, expected, rtol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize("ranks", [1, 4])
def test_trees_are_cut_by_the_plugin(ways_of_gpus, monkeypatch, ranks):
    """The plugin splits trees also on several devices, which exchange matrices, and in the
    gradient."""
    mesh, tree = cases.line(ranks), [stack_cases.stack((8, 4), "float32") for _ in range(5)]
    tree += [stack_cases.stack((3, 4, 8), "float32"), stack_cases.stack((0, 4), "float32")]

    def factors(tree):
        return jaxmg.tree.orthogonalize(tree, mesh=mesh)

    def loss(tree):
        return sum(jnp.sum(jnp.sin(x)) for x in factors(tree))

    text = jax.jit(factors).lower(tree).as_text()
    assert text.count("jaxmg_stacked_split") >= (1 if ranks == 1 else ranks), text
    found = *factors(tree), *jax.jit(jax.grad(loss))(tree)
    monkeypatch.setattr(choice, "_PRODUCTS", ())
    jax.clear_caches()
    for ours, theirs in zip(found, (*factors(tree), *jax.grad(loss)(tree)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.core("3")
@pytest.mark.parametrize("p", [1, 3, 4])
def test_inverse_roots_by_the_plugin(ways_of_gpus, p):
    a = [stack_cases.definite(3, 6, "float64"), stack_cases.definite(1, 5, "float64")[0]]
    for method in ("eigh", "newton"):
        for x, root in zip(a, jaxmg.tree.inverse_pth_root(a, p, 0.0, method), strict=True):
            identity = np.linalg.matrix_power(np.asarray(root), p) @ np.asarray(x)
            np.testing.assert_allclose(identity, np.broadcast_to(np.eye(len(x[-1])), x.shape),
                                       atol=1e-9)  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_inverse_roots_that_newton_finds(ways_of_gpus, dtype):
    """One operation computes the roots, whatever their scales are; they have a forward
    derivative."""
    a = jnp.asarray(stack_cases.definite(3, 6, dtype))
    factors = jnp.asarray([1, 2.0**30, 2.0**-31], a.real.dtype)[:, None, None]

    def root(a):
        return jaxmg.tree.inverse_pth_root(a, 3, 0.0, "newton", mesh=cases.line(1))

    assert jax.jit(root).lower(a).as_text().count("jaxmg_stacked_root") == 1
    value, tangent = jax.jvp(root, (a,), (a,))
    np.testing.assert_allclose(3 * tangent, -value, rtol=0, atol=1e4 * cases.eps(dtype))
    scaled = root(a * factors**3)
    np.testing.assert_array_equal(scaled * factors, value)
    by_values = functions.InverseRoot(iterations.root_by_eigenvalues, 3, 0.0)
    indefinite = a.at[0].multiply(-1)
    assert np.isnan(root(indefinite)[0]).all()
    assert (
        "stacked_root"
        not in jax.jit(by_values.compute_stack, static_argnums=0)
        .lower(jax.default_backend(), a)
        .as_text()
    )


@pytest.mark.core("complex128")
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("step", [1, cases.breadth(3)])
def test_scales_are_those_of_scaling(dtype, step):
    plugins.load(jax.default_backend())
    a = np.array(stack_cases.stack((6, 3, 5), dtype))
    info = np.finfo(dtype)
    a *= np.array([1, info.max / 8, info.tiny * 2**20, 0, 1, 1], a.real.dtype)[:, None, None]
    a[4, 2, 4], a[5, 0, 0] = np.inf, np.nan
    scaled, exponents = native.scale(jnp.asarray(a), step)
    expected = scaling.exponent_of(jnp.asarray(a), (-2, -1))
    np.testing.assert_array_equal(exponents, expected - expected % step)
    over = scaling.over(exponents, 2)
    np.testing.assert_array_equal(scaled, scaling.multiplied(jnp.asarray(a), -over))


@pytest.mark.parametrize("name", ["qr", pytest.param("reflectors", marks=pytest.mark.breadth)])
def test_programs_of_stacks_compile_for_two_devices(ways_of_gpus, monkeypatch, name):
    row = choice.Row(jax.default_backend(), "blocked", (70, 70))
    stack_cases.use_rows(monkeypatch, qr=(row,))
    mesh = cases.line(2)
    if name == "qr":
        a = cases.normal(cases.rng(0), (4, 70, 70), "float32")
        q, r = linalg.qr(cases.shard(a, mesh, "r"), mesh=mesh)
        stack_cases.check(q @ r, a, "float32")
    else:
        plugins.load(jax.default_backend())
        spec = jax.sharding.PartitionSpec("r")
        apply = jax.shard_map(native.multiply_reflectors, mesh=mesh, in_specs=spec, out_specs=spec)
        zero = jnp.zeros((4, 70, 70))
        assert not jax.jit(apply)(zero, zero[..., 0], zero).any()
