"""Products of matrices that lie on the ranks by rows, against NumPy's and JAX's on one device."""

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
from jaxmg._call import layouts
from jaxmg._transform import products

# Name -> (shapes of the operands for sizes (m, k, n), the product).
PRODUCTS = {
    "rows_times_adjoint": (lambda m, k, n: ((m, k), (n, k)), lambda x, y: x @ y.conj().T),
    "rows_times_rows": (lambda m, k, n: ((m, k), (k, n)), lambda x, y: x @ y),
    "adjoint_times_rows": (lambda m, k, n: ((k, m), (k, n)), lambda x, y: x.conj().T @ y),
    "rows_times_upper": (lambda m, k, n: ((m, n), (n, n)), lambda x, y: x @ y),
    "rows_times_lower": (lambda m, k, n: ((m, n), (n, n)), lambda x, y: x @ y),
    "gram": (lambda m, k, n: ((k, n),), lambda x: x.conj().T @ x),
    "adjoint": (lambda m, k, n: ((n, n),), lambda x: x.conj().T),
}
TRIANGLES = {"rows_times_upper": jnp.triu, "rows_times_lower": jnp.tril}
SIZES = ((8, 16, 24), (7, 5, 11), (3, 1, 2), (5, 0, 3))
TABLE = cases.broad(
    [
        (name, sizes, ranks, cases.DTYPES[(i + j + k) % 4])
        for (i, name), (j, sizes), (k, ranks) in itertools.product(
            enumerate(PRODUCTS), enumerate(SIZES), enumerate((1, 2, 3, 4, 8))
        )
    ],
    core=lambda name, sizes, ranks, dtype: (sizes[0], ranks) in ((8, 8), (7, 3), (5, 2)),
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Products of which half is computed are so from order 3 on."""
    monkeypatch.setattr(products, "_BLOCK", 2)


def _layout(mesh, spec=None):
    rows = mesh.axis_names if spec is None else spec[0]
    others = tuple(axis for axis in mesh.axis_names if axis not in rows)
    return layouts.Layout(mesh, tuple(rows), others, P(tuple(rows), None))


def _operands(name, sizes, dtype):
    shapes, _ = PRODUCTS[name]
    operands = [
        cases.normal(cases.rng(4, i), shape, dtype) for i, shape in enumerate(shapes(*sizes))
    ]
    return _with_triangle(name, operands)


def _with_triangle(name, operands):
    x, *y = operands
    return [x, *map(TRIANGLES.get(name, lambda y: y), y)]


def _product(name, layout):
    return jax.jit(functools.partial(getattr(products, name), layout=layout))


def _close(found, expected, depth):
    __tracebackhide__ = True
    expected = np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    atol = 10 * (depth + 1) * cases.eps(expected.dtype) * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.core("(7, 5, 11)")
@pytest.mark.parametrize("name, sizes, ranks, dtype", TABLE)
def test_is_the_product(name, sizes, ranks, dtype):
    mesh = cases.line(ranks)
    operands = [np.asarray(x) for x in _operands(name, sizes, dtype)]
    found = _product(name, _layout(mesh))(*(cases.shard_rows(x, mesh) for x in operands))
    _close(found, PRODUCTS[name][1](*operands), sizes[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("rows", [("r",), ("c",), ("c", "r")], ids="".join)
def test_axes_of_a_larger_mesh(name, rows):
    """Ranks along some axes, in another order than the mesh's; the rest has replicas."""
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
    "name, sizes, ranks, dtype",
    cases.broad(
        itertools.product(PRODUCTS, SIZES[:2], (1, 3, 4), ("float64", "complex128")),
        core=lambda name, sizes, ranks, dtype: (sizes[0], ranks, dtype) == (7, 3, "complex128"),
    ),
)
def test_derivatives(name, sizes, ranks, dtype):
    mesh = cases.line(ranks)
    operands = tuple(_operands(name, sizes, dtype))
    tangents = tuple(cases.normal(cases.rng(8), x.shape, dtype) for x in operands)
    product = getattr(products, name)

    def found(*operands):
        return product(*_with_triangle(name, operands), layout=_layout(mesh))

    def expected(*operands):
        return PRODUCTS[name][1](*_with_triangle(name, operands))

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
    # Nor in parts, as a derivative would keep them of every step: as much as a few ranks' rows.
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
