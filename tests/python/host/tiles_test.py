"""`jaxmg.Tiles`: what its construction checks, and that a matrix is Hermitian."""

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg

pytestmark = [
    cases.one_process("a function's tiles are the same in each process"),
    pytest.mark.usefixtures("small_devices"),
]
small_devices = host_cases.small_devices


def _constant(rows, columns):
    return jnp.zeros((len(rows), len(columns)))


def test_attributes():
    made, a = host_cases.tiles(20, "complex64")
    assert made.shape == (20, 20) and made.ndim == 2 and made.nbytes == 20 * 20 * 8
    assert made.dtype == np.complex64 and made.function is host_cases.kernel
    assert repr(made) == "Tiles(kernel, shape=(20, 20), dtype=complex64, 2 parameters)"
    np.testing.assert_allclose(a, a.conj().T, atol=1e-6)


def test_pytree_of_its_parameters():
    made, _ = host_cases.tiles(20, "float64")
    leaves, tree = jax.tree.flatten(made)
    assert len(leaves) == 2
    doubled = jax.tree.map(lambda leaf: 2 * leaf, made)
    assert isinstance(doubled, jaxmg.Tiles) and doubled.parameters == (3.0, 1.0)
    assert doubled.function is made.function and doubled.shape == made.shape
    assert jax.tree.structure(doubled) == tree
    scale = jax.jit(lambda tiles: tiles.parameters[0] * 2)(made)
    assert scale == 3


@pytest.mark.parametrize(
    "function, shape, dtype, error, words",
    [
        (3, (4, 4), "float64", TypeError, "function must be callable; got int"),
        (_constant, 4, "float64", TypeError, r"shape must be two integers, \(m, n\); got 4"),
        (_constant, (4, 4, 4), "float64", ValueError, r"shape must be \(m, n\)"),
        (_constant, (4, -1), "float64", ValueError, r"shape must be \(m, n\)"),
        (_constant, (4, 4.5), "float64", TypeError, "two integers"),
        (_constant, (4, 4), "no dtype", TypeError, "dtype must name a dtype"),
        (_constant, (4, 4), "int32", TypeError, "dtype must be one of float32, float64"),
        (_constant, (4, 4), "float32", ValueError, r"returns shape \(8, 8\) and dtype float64"),
        (lambda r, c: r[:, None] * 1.0, (4, 4), "float64", ValueError, r"returns shape \(8, 1\)"),
        (lambda r, c: None, (4, 4), "float64", ValueError, "returns NoneType"),
    ],
)
def test_construction_refuses(function, shape, dtype, error, words):
    with pytest.raises(error, match=f"Tiles: .*{words}"):
        jaxmg.Tiles(function, shape, dtype)


def test_construction_refuses_64_bits_without_the_mode():
    with cases.without_64_bits():
        with pytest.raises(ValueError, match="Tiles: dtype float64 needs JAX's 64-bit mode"):
            jaxmg.Tiles(_constant, (4, 4), "float64")
        made = jaxmg.Tiles(host_cases.kernel, (9, 9), "float32", np.float32(1), np.float32(1))
        x = jaxmg.potrs(made, np.ones(9, "float32"), mesh=cases.line(1))
        assert x.dtype == np.float32 and not np.isnan(x).any()


def test_arguments_of_the_function():
    """They are consecutive indices, of which the last may repeat."""
    seen = []

    def record(rows, columns):
        seen.append((np.array(rows), np.array(columns)))
        return np.zeros((), bool)

    def kernel(rows, columns):
        assert rows.dtype == columns.dtype == jnp.int32 and rows.shape == columns.shape
        zero = jax.pure_callback(record, jax.ShapeDtypeStruct((), bool), rows, columns)
        return 1.0 * (rows[:, None] == columns) + zero

    n = 37
    made = jaxmg.Tiles(kernel, (n, n), "float64")
    memory = host_cases.budget(n, "float64", 1, 3)
    host_cases.check(
        np.eye(n), jaxmg.potrs(made, np.ones(n), mesh=cases.line(1), memory=memory), np.ones(n)
    )
    assert seen
    for indices in seen:
        for index in indices:
            steps = np.diff(index)
            assert index.min() >= 0 and index.max() < n
            assert ((steps == 1) | ((steps == 0) & (index[1:] == n - 1))).all()


@pytest.mark.parametrize("memory", [None, 0], ids=["in core", "out of core"])
def test_tiles_that_are_not_hermitian(memory):
    n = 90
    memory = memory if memory is None else host_cases.budget(n, "float64", 1, 3)

    def kernel(rows, columns):
        return jnp.cos(rows[:, None] - 2.0 * columns) + n * (rows[:, None] == columns)

    made = jaxmg.Tiles(kernel, (n, n), "float64")
    for call in (jaxmg.cho_factor, lambda a, **kw: jaxmg.potrs(a, np.ones(n), **kw)):
        with pytest.raises(ValueError, match="a is not Hermitian: the tile of rows .* mirror"):
            call(made, mesh=cases.line(1), memory=memory)


def test_an_imaginary_diagonal_is_not_hermitian():
    def kernel(rows, columns):
        return (1 + 1j) * (rows[:, None] == columns)

    made = jaxmg.Tiles(kernel, (9, 9), "complex128")
    with pytest.raises(ValueError, match="a is not Hermitian"):
        jaxmg.potrs(made, np.ones(9, complex))
