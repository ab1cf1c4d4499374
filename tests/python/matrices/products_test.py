"""Products of matrices that are distributed over ranks by rows, against NumPy's and JAX's on one
device."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import layouts, meshes
from jaxmg._matrices import product_calls, products

# Name -> (shapes of the operands for sizes (m, k, n), the product).
PRODUCTS = {
    "rows_times_adjoint": (lambda m, k, n: ((m, k), (n, k)), lambda x, y: x @ y.conj().T),
    "rows_times_rows": (lambda m, k, n: ((m, k), (k, n)), lambda x, y: x @ y),
    "adjoint_times_rows": (lambda m, k, n: ((k, m), (k, n)), lambda x, y: x.conj().T @ y),
    "adjoint": (lambda m, k, n: ((m, n),), lambda x: x.conj().T),
    "transposed": (lambda m, k, n: ((m, n),), lambda x: x.T),
}
WAYS = ("engine", "xla")
SIZES = ((8, 16, 24), (7, 5, 11), (3, 1, 2), (5, 0, 3))
TABLE = cases.broad(
    [
        (name, sizes, ranks, cases.DTYPES[(i + j + k + w) % 4], way)
        for (i, name), (j, sizes), (k, ranks), (w, way) in itertools.product(
            enumerate(PRODUCTS), enumerate(SIZES), enumerate((1, 2, 3, 4, 8)), enumerate(WAYS)
        )
    ],
    core=lambda name, sizes, ranks, dtype, way: (sizes[0], ranks) in ((8, 8), (7, 3), (5, 2)),
)


@pytest.fixture
def way(request, monkeypatch):
    """Selects the engine's products, or XLA's."""
    if request.param == "xla":
        monkeypatch.setattr(product_calls, "is_for", lambda *_: False)
    return request.param


def _layout(mesh, spec=None):
    rows = mesh.axis_names if spec is None else spec[0]
    others = tuple(axis for axis in mesh.axis_names if axis not in rows)
    layout = layouts.Layout(mesh, tuple(rows), others, P(tuple(rows), None))
    return meshes.with_processes("product", layout)


def _operands(name, sizes, dtype):
    shapes, _ = PRODUCTS[name]
    return [cases.normal(cases.rng(4, i), shape, dtype) for i, shape in enumerate(shapes(*sizes))]


def _product(name, layout):
    return jax.jit(functools.partial(getattr(products, name), layout=layout))


def _close(found, expected, depth):
    __tracebackhide__ = True
    expected = np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    atol = 10 * (depth + 1) * cases.eps(expected.dtype) * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.core("(7, 5, 11)")
@pytest.mark.parametrize("name, sizes, ranks, dtype, way", TABLE, indirect=["way"])
def test_is_the_product(name, sizes, ranks, dtype, way):
    mesh = cases.line(ranks)
    operands = [np.asarray(x) for x in _operands(name, sizes, dtype)]
    found = _product(name, _layout(mesh))(*(cases.shard_rows(x, mesh) for x in operands))
    _close(found, PRODUCTS[name][1](*operands), sizes[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("rows", [("r",), ("c",), ("c", "r")], ids="".join)
def test_axes_of_a_larger_mesh(name, rows):
    """The ranks may be along some axes, in another order than the mesh's; other axes have
    replicas."""
    mesh = cases.grid()
    operands = _operands(name, (7, 5, 11), "complex128")
    found = _product(name, _layout(mesh, (rows,)))(*operands)
    _close(found, PRODUCTS[name][1](*operands), 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("n", [16, 11])
def test_explicit_axes(name, n):
    mesh = cases.line(4, kind=AxisType.Explicit)
    operands = _operands(name, (n, n, n), "float64")
    with _compat.entered(mesh):
        found = _product(name, _layout(mesh))(*(cases.shard_rows(x, mesh) for x in operands))
    _close(found, PRODUCTS[name][1](*operands), n)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sizes, ranks, dtype, way",
    cases.broad(
        itertools.product(PRODUCTS, SIZES[:2], (1, 3, 4), ("float64", "complex128"), WAYS),
        core=lambda name, sizes, ranks, dtype, way: (
            (sizes[0], ranks, dtype) == (7, 3, "complex128")
        ),
    ),
    indirect=["way"],
)
def test_derivatives(name, sizes, ranks, dtype, way):
    mesh = cases.line(ranks)
    operands = tuple(_operands(name, sizes, dtype))
    tangents = tuple(cases.normal(cases.rng(8), x.shape, dtype) for x in operands)
    product = getattr(products, name)

    def found(*operands):
        return product(*operands, layout=_layout(mesh))

    def expected(*operands):
        return PRODUCTS[name][1](*operands)

    def derivatives(function):
        @jax.jit
        def all_of_them(operands, tangents, cotangent):
            value, tangent = jax.jvp(function, operands, tangents)
            _, back = jax.vjp(function, *operands)

            def norm(*operands):
                return jnp.sum(jnp.abs(function(*operands)) ** 4)

            _, second = jax.jvp(jax.grad(norm), operands, tangents)
            return value, tangent, back(cotangent), second

        shape = jax.eval_shape(expected, *operands)
        return all_of_them(operands, tangents, cases.normal(cases.rng(9), shape.shape, dtype))

    pairs = zip(*map(jax.tree.leaves, map(derivatives, (found, expected))), strict=True)
    for ours, theirs in pairs:
        _close(ours, theirs, 100)


BATCHES = {1: ((0,), (1,)), 2: ((0, None), (2, None), (None, 1), (0, 0), (1, 2))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, ranks, dtype",
    cases.broad(
        itertools.product(PRODUCTS, (1, 3, 4), ("float64", "complex64")),
        core=lambda name, ranks, dtype: (ranks, dtype) == (3, "complex64"),
    ),
)
def test_batches(name, ranks, dtype):
    """One operand, the other, or both may be batches; derivatives too."""
    product = functools.partial(getattr(products, name), layout=_layout(cases.line(ranks)))
    operands = _operands(name, (7, 5, 11), dtype)
    for places in BATCHES[len(operands)]:
        batches = [
            x if place is None else jnp.moveaxis(jnp.stack([x, 2 * x, x - 1j * x.imag]), 0, place)
            for x, place in zip(operands, places, strict=True)
        ]
        batches = [x.astype(dtype) for x in batches]

        def derivative(function, places=places):
            def norm(*operands):
                value = jax.vmap(function, places)(*operands)
                return jnp.sum(jnp.abs(value) ** 2), value

            everything = tuple(range(len(places)))
            return jax.jit(jax.value_and_grad(norm, everything, has_aux=True))

        (_, found), back = derivative(product)(*batches)
        (_, expected), back_expected = derivative(PRODUCTS[name][1])(*batches)
        _close(found, expected, 20)
        for ours, theirs in zip(back, back_expected, strict=True):
            _close(ours, theirs, 200)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_one_call(name):
    """A product is one call, and so are its derivatives; XLA compiles and tunes no product."""
    layout = _layout(cases.line(2))
    operands = _operands(name, (8, 6, 4), "float64")
    function = functools.partial(getattr(products, name), layout=layout)

    def counts(function):
        text = jax.jit(function).lower(*operands).compile().as_text()
        assert " dot(" not in text and "__cublas" not in text and "all-gather" not in text
        return text.count('custom_call_target="jaxmg_product"')

    def gradient(*operands):
        _, back = jax.vjp(function, *operands)
        return back(function(*operands))

    assert counts(function) == 1
    assert counts(gradient) == {"adjoint": 2, "transposed": 2}.get(name, 3)


@pytest.mark.core("rows_times_adjoint-True")
@pytest.mark.leaks_in_jax
@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_no_device_has_a_whole_matrix(name, differentiated):
    ranks = max(2, min(8, len(jax.devices())))
    rows = 48
    n, mesh = rows * ranks, cases.line(ranks)
    function = functools.partial(getattr(products, name), layout=_layout(mesh))
    operands = _operands(name, (n, n, n), "float64")
    operands = tuple(cases.shard(x, mesh, "r", None) for x in operands)

    def gradients(*operands):
        value, back = jax.vjp(function, *operands)
        return back(value * value)

    program = jax.jit(gradients if differentiated else function).lower(*operands).compile()
    text = program.as_text()
    assert f"f64[{rows},{n}]" in text and f"f64[{n},{n}]" not in text
    # Nor in parts, as a derivative would store them for each step; temporary memory is a few ranks'
    # rows.
    assert f"[{ranks},{n},{rows}]" not in text and f"[{ranks},{rows},{n}]" not in text
    matrices = program.memory_analysis().temp_size_in_bytes / (rows * n * 8)
    assert matrices <= (5.2 if differentiated else 3.2)


@cases.one_process("the mesh of a shard_map is that of the devices")
def test_on_the_rows_inside_a_shard_map():
    mesh = cases.line(4)
    x, y = _operands("rows_times_rows", (8, 12, 16), "float64")

    def local(x, y):
        layout = layouts.Layout(mesh, ("r",), (), P("r", None))
        return products.rows_times_rows_on_rank(x, y, layout)

    rows = P("r", None)
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(rows, rows), out_specs=rows))
    _close(run(x, y), x @ y, 12)

    def norm(product):
        return lambda x, y: jnp.sum(jnp.sin(product(x, y)))

    found = jax.jit(jax.grad(norm(run), (0, 1)))(x, y)
    expected = jax.grad(norm(lambda x, y: x @ y), (0, 1))(x, y)
    for ours, theirs in zip(found, expected, strict=True):
        _close(ours, theirs, 100)


def test_other_dtypes_are_by_xla():
    """XLA computes products of integers, as `linalg.matrix_power` takes them, and of half
    precision."""
    layout = _layout(cases.line(2))
    x = jnp.arange(20).reshape(4, 5)
    product = jax.jit(functools.partial(products.rows_times_adjoint, layout=layout))
    assert (product(x, x) == x @ x.T).all()
    assert product(x.astype("bfloat16"), x.astype("bfloat16")).dtype == "bfloat16"


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPU devices")
@cases.one_process("one device computes")
@pytest.mark.parametrize("dtype, ranks, native", [("float64", 1, 0), ("complex128", 1, 1),
                                                  ("float64", 2, 1)])  # fmt: skip
def test_xla_multiplies_real_matrices_on_one_cpu_device(dtype, ranks, native):
    """It does so faster than SciPy's BLAS, and complex ones slower."""
    layout = meshes.infer("", (np.eye(4),), cases.line(ranks), P("r", None))
    x = cases.normal(cases.rng(0), (4, 4), dtype)
    for multiply in (products.rows_times_rows, products.adjoint_times_rows):
        run = jax.jit(lambda x, multiply=multiply: multiply(x, x, layout))
        assert run.lower(x).as_text().count("@jaxmg_product") == native
        expected = x @ x if multiply is products.rows_times_rows else x.conj().T @ x
        np.testing.assert_allclose(run(x), expected, rtol=1e-12, atol=1e-12)
