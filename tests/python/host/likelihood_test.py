"""Gaussian log-likelihoods of `jaxmg.Tiles` and their gradients, in core and out of core, beside
`jax.grad` of the dense formula in double precision."""

import functools

import cases
import host_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
from jaxmg._host import block_columns, pullback

pytestmark = [
    cases.one_process("a matrix in host memory is computed with by one process"),
    pytest.mark.usefixtures("small_devices"),
]
small_devices = host_cases.small_devices

_BLOCKS = (1, 2, 5, 100)
_EAGERLY = "gaussian_log_likelihood: it runs only eagerly"


def _kernel(rows, columns, points, p):
    """Entries of a positive definite matrix; p has scalars and an array. Complex if p has phases,
    which keep the matrix Hermitian."""
    apart = (points[rows][:, None] - points[columns]) / p["scale"]
    value = p["size"] * jnp.exp(-(apart**2)) + p["noise"][0] * (rows[:, None] == columns)
    if "phase" in p:
        value = value * jnp.exp(1j * (p["phase"] * (points[rows][:, None] - points[columns])))
    return value


def _problem(n, dtype, columns=None):
    """Returns (points, parameters, y)."""
    random, real = cases.rng(n, 7), np.dtype(dtype).type(0).real.dtype
    points = np.sort(random.uniform(0, 1 + n / 10, n)).astype(real)
    p = {"scale": 0.7, "size": 1.3, "noise": np.array([0.4, 0.1])}
    if np.dtype(dtype).kind == "c":
        p["phase"] = 0.6
    p = jax.tree.map(lambda one: np.asarray(one, real), p)
    shape = (n,) if columns is None else (n, columns)
    return points, p, cases.normal(random, shape, dtype).astype(dtype)


def _wide(points, p, y):
    """Returns the arguments in double precision."""
    wide = np.promote_types(y.dtype, np.float64)
    return jax.tree.map(lambda one: np.asarray(one).astype(np.float64), (points, p)) + (
        y.astype(wide),
    )


@jax.jit
def _matrix(points, p):
    index = jnp.arange(len(points))
    return _kernel(index, index, points, p)


@jax.jit
def _pull(points, p, cotangent):
    return jax.vjp(_matrix, points, p)[1](cotangent)


def _expected(points, p, y):
    """Returns the log-likelihood and its gradients by the textbook's formulas, in NumPy."""
    points, p, y = _wide(points, p, y)
    n, columns = len(points), y.reshape(len(y), -1)
    a = np.asarray(_matrix(points, p)).astype(y.dtype)
    x, count = np.linalg.solve(a, columns), columns.shape[1]
    quadratic = np.sum(columns.conj() * x).real
    log_det = np.linalg.slogdet(a)[1]
    value = -(quadratic + count * (log_det + n * np.log(2 * np.pi))) / 2
    cotangent = (x.conj() @ x.T - count * np.linalg.inv(a).T) / 2
    return value, (*_pull(points, p, cotangent), -x.conj().reshape(y.shape))


def _dense(points, p, y):
    """Computes the log-likelihood by JAX."""
    a = _matrix(points, p)
    quadratic = jnp.real(jnp.vdot(y, jnp.linalg.solve(a, y)))
    return -(quadratic + jnp.linalg.slogdet(a)[1] + len(y) * np.log(2 * np.pi)) / 2


def _ours(points, p, y, **named):
    tiles = jaxmg.Tiles(_kernel, (len(points),) * 2, y.dtype, points, p)
    return jaxmg.gaussian_log_likelihood(tiles, y, **named)


def _near(found, expected, n, dtype):
    """Compares pytrees; the condition of the matrices is about ten."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.shape(one) == jnp.shape(other)
        limit = 200 * (n + 9) * cases.eps(dtype) * (1 + np.abs(other).max(initial=0))
        np.testing.assert_allclose(one, other, rtol=0, atol=limit)


def _check(n, ranks, dtype, columns, blocks):
    points, p, y = _problem(n, dtype, columns)
    named = {"mesh": cases.line(ranks)}
    if blocks:
        named["memory"] = host_cases.budget(n, dtype, ranks, blocks, columns or 1)
    with host_cases.out_of_core() as found:
        value = _ours(points, p, y, **named)
        again, gradients = jax.value_and_grad(functools.partial(_ours, **named), (0, 1, 2))(
            points, p, y
        )
    assert len(found) == (2 if blocks else 0)
    expected, wanted = _expected(points, p, y)
    assert value.shape == () and value.dtype == y.real.dtype
    _near((value, again), (expected, expected), n, dtype)
    _near(gradients, wanted, n, dtype)
    for one, given in zip(jax.tree.leaves(gradients), jax.tree.leaves((points, p, y)), strict=True):
        assert one.dtype == given.dtype


_ORDERS = [
    pytest.param(
        n, 1 + n % 3, cases.DTYPES[n % 4], (None, 1, 3)[n % 3], _BLOCKS[(n // 4 + n) % 4],
        id=f"n{n}", marks=() if n in (1, 7, 60) else (pytest.mark.breadth,),
    )
    for n in range(1, 61)
]  # fmt: skip


@pytest.mark.core("n7")
@pytest.mark.parametrize("n, ranks, dtype, columns, blocks", _ORDERS)
def test_every_order(n, ranks, dtype, columns, blocks):
    _check(n, ranks, dtype, columns, blocks)


@pytest.mark.extended
@pytest.mark.parametrize(
    "blocks, ranks, dtype",
    cases.broad(
        [(blocks, ranks, d) for blocks in _BLOCKS for ranks in (1, 2, 3) for d in cases.DTYPES],
        lambda blocks, ranks, dtype: (
            (blocks, ranks, dtype) in ((5, 3, "float64"), (100, 1, "float32"))
        ),
    ),
)
def test_every_width(blocks, ranks, dtype):
    _check(50, ranks, dtype, None, blocks)


@pytest.mark.core("float64")
@pytest.mark.parametrize(
    "n, ranks, dtype, columns",
    cases.broad(
        [
            (n, ranks, dtype, columns)
            for n in (1, 5, 48)
            for ranks in (1, 2, 3)
            for dtype in cases.DTYPES
            for columns in (None, 2)
        ],
        lambda n, ranks, dtype, columns: (
            (n, ranks, dtype, columns) in ((48, 3, "complex64", 2), (5, 3, "float64", None))
        ),
    ),
)
def test_in_core(n, ranks, dtype, columns):
    _check(n, ranks, dtype, columns, None)


@pytest.mark.extended
@pytest.mark.parametrize("blocks", [None, 2])
def test_more_rows_than_a_tile(blocks):
    _check(300, 1, "float64", None, blocks)


@pytest.mark.core("float64")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_are_those_of_jax(dtype):
    arguments = _wide(*_problem(24, dtype))
    ours = functools.partial(_ours, memory=host_cases.budget(24, dtype, 4, 3))
    expected = jax.jit(jax.value_and_grad(_dense, (0, 1, 2)))(*arguments)
    _near(jax.value_and_grad(ours, (0, 1, 2))(*arguments), expected, 24, dtype)
    _near(jax.jacrev(ours)(*arguments), expected[1][0], 24, dtype)


@pytest.mark.extended
def test_placed_parameters():
    """Cotangents are on the devices of their variables."""
    points, p, y = _problem(24, "float64")
    placed = jax.tree.map(lambda one: jax.device_put(one, jax.devices()[-1]), (points, p, y))
    found = jax.grad(lambda *a: 2 * _ours(*a, mesh=cases.line(2)), (0, 1, 2))(*placed)
    for one in jax.tree.leaves(found):
        assert one.devices() == {jax.devices()[-1]}
    _near(found, jax.tree.map(lambda one: 2 * one, _expected(points, p, y)[1]), 24, "float64")


@pytest.mark.extended
@pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="JAX 0.6 loses the devices of a context mesh in jax.grad"
)
@pytest.mark.parametrize("out_of_core", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_mesh_of_two_axes_is_the_context(kind, out_of_core):
    points, p, y = _problem(24, "float64")
    memory = host_cases.budget(24, "float64", 4, 3) if out_of_core else None
    with cases.context(cases.grid(kind)):
        found = jax.value_and_grad(functools.partial(_ours, memory=memory), (0, 1, 2))(points, p, y)
    _near(found, _expected(points, p, y), 24, "float64")


@pytest.mark.parametrize("memory", [None, 1e5])
def test_no_points(memory):
    def likelihood(scale, noise, y):
        tiles = jaxmg.Tiles(host_cases.kernel, (0, 0), "float64", scale, noise)
        return jaxmg.gaussian_log_likelihood(tiles, y, memory=memory)

    arguments = jnp.float64(1.5), 0.5, np.zeros(0)
    value, gradients = jax.value_and_grad(likelihood, (0, 1, 2))(*arguments)
    assert value == 0 and gradients[:2] == (0, 0) and gradients[2].shape == (0,)


def _memory(n, out_of_core):
    return host_cases.budget(n, "float64", 2, 4) if out_of_core else None


@pytest.mark.parametrize("out_of_core", [False, True])
def test_not_positive_definite(out_of_core):
    n = 40
    points, p, y = _problem(n, "float64")
    memory = _memory(n, out_of_core)

    def kernel(rows, columns, points, p, at):
        bad = (rows[:, None] == columns) & (columns == at)
        return _kernel(rows, columns, points, p) - 9.0 * bad

    def likelihood(p, y, at):
        tiles = jaxmg.Tiles(kernel, (n, n), "float64", points, p, at)
        return jaxmg.gaussian_log_likelihood(tiles, y, cases.line(2), memory=memory)

    for at in (0, 17, 39):
        assert np.isnan(likelihood(p, y, at))
        value, gradients = jax.value_and_grad(likelihood, (0, 1))(p, y, at)
        assert np.isnan(value)
        assert all(np.isnan(one).all() for one in jax.tree.leaves(gradients))


@pytest.mark.extended
@pytest.mark.parametrize("out_of_core", [False, True])
def test_only_what_is_differentiated(out_of_core):
    """Gradients by y need no inverse, and parameters without tracers are constants."""
    n = 30
    points, p, y = _problem(n, "float64")
    memory = _memory(n, out_of_core)
    likelihood = functools.partial(_ours, mesh=cases.line(2), memory=memory)
    calls, make = [], block_columns.host_inverse
    block_columns.host_inverse = lambda geometry: calls.append(geometry) or make(geometry)
    try:
        of_y = jax.grad(likelihood, 2)(points, p, y)
        assert not calls
        of_scale = jax.grad(lambda s: likelihood(points, {**p, "scale": s}, y))(0.7)
        assert len(calls) == out_of_core
    finally:
        block_columns.host_inverse = make
    _, (_, of_p, expected) = _expected(points, p, y)
    _near((of_y, of_scale), (expected, of_p["scale"]), n, "float64")


@pytest.mark.parametrize("out_of_core", [False, True])
def test_compiled_once(out_of_core):
    n, traces = 40, []
    memory = _memory(n, out_of_core)

    def kernel(rows, columns, scale, kinds):
        traces.append(rows.shape)
        same = kinds[rows][:, None] == kinds[columns]
        return jnp.exp(-jnp.abs(rows[:, None] - columns) / scale) * same + (
            rows[:, None] == columns
        )

    @jax.value_and_grad
    def step(scale):
        tiles = jaxmg.Tiles(kernel, (n, n), "float64", scale, np.arange(n) % 3)
        return jaxmg.gaussian_log_likelihood(tiles, np.ones(n), cases.line(2), memory=memory)

    before = step(2.0)
    count = len(traces)
    after = step(2.1)
    assert len(traces) <= count + 1  # the check of its result
    np.testing.assert_allclose(after[0] - before[0], 0.1 * (after[1] + before[1]) / 2, rtol=1e-2)


def test_interrupted_between_two_block_columns(monkeypatch):
    n = 60
    points, p, y = _problem(n, "float64")
    memory = host_cases.budget(n, "float64", 2, 5)
    value_and_grad = jax.value_and_grad(functools.partial(_ours, memory=memory, mesh=cases.line(2)))
    add, seen = pullback.Pullback.add, []

    def interrupt(self, j, block):
        seen.append(j)
        if len(seen) == 2:
            raise KeyboardInterrupt
        add(self, j, block)

    with jaxmg.pinned(1e6) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(pullback.Pullback, "add", interrupt)
            with pytest.raises(KeyboardInterrupt):
                value_and_grad(points, p, y)
        assert len(seen) == 2 and pool.free == pool.bytes
        value, of_points = value_and_grad(points, p, y)
        assert pool.free == pool.bytes
    expected = _expected(points, p, y)
    _near((value, of_points), (expected[0], expected[1][0]), n, "float64")


def test_integers_have_no_derivative():
    def kernel(rows, columns, power, scale):
        apart = jnp.abs(rows[:, None] - columns) / scale
        return jnp.exp(-(apart**power)) + (rows[:, None] == columns)

    def likelihood(power, scale):
        tiles = jaxmg.Tiles(kernel, (20, 20), "float64", power, scale)
        memory = host_cases.budget(20, "float64", 1, 3)
        return jaxmg.gaussian_log_likelihood(tiles, np.ones(20), cases.line(1), memory=memory)

    of_power, of_scale = jax.grad(likelihood, (0, 1), allow_int=True)(1, 2.0)
    assert of_power.dtype == jax.dtypes.float0 and np.isfinite(of_scale)


@pytest.mark.parametrize("out_of_core", [False, True])
def test_traced_calls(out_of_core):
    n = 20
    points, p, y = _problem(n, "float64")
    memory = _memory(n, out_of_core)

    def likelihood(scale):
        return _ours(points, {**p, "scale": scale}, y, memory=memory)

    for transformed, scale in (
        (jax.jit(likelihood), 0.7),
        (jax.vmap(likelihood), np.array([0.7, 0.8])),
        (jax.jit(jax.grad(likelihood)), 0.7),
        (jax.grad(jax.jit(likelihood)), 0.7),
        (jax.jit(lambda scale: scale + likelihood(0.7)), 0.7),
        (jax.grad(jax.grad(likelihood)), 0.7),
    ):
        with pytest.raises(ValueError, match=_EAGERLY):
            transformed(scale)


@pytest.mark.parametrize(
    "tiles, y, named, error, words",
    [
        (np.eye(20), np.ones(20), {}, TypeError, "tiles must be jaxmg.Tiles"),
        (None, np.ones((20, 0)), {}, ValueError, "k at least 1"),
        (None, np.ones(19), {}, ValueError, r"y must have shape \(20,\)"),
        (None, np.ones(20, np.float32), {}, TypeError, "y must have the dtype of tiles"),
        (None, [1.0] * 20, {}, TypeError, "y must be"),
        (None, np.ones(20), {"memory": -1}, ValueError, "memory must be a positive number"),
        (None, np.ones(20), {"memory": 1e3}, ValueError, "aren't enough"),
        (None, np.ones(20), {"precision": "half"}, ValueError, "precision"),
    ],
)
def test_invalid_arguments(tiles, y, named, error, words):
    if tiles is None:
        tiles = host_cases.tiles(20, "float64")[0]
    with pytest.raises(error, match=f"gaussian_log_likelihood: .*{words}"):
        jaxmg.gaussian_log_likelihood(tiles, y, cases.line(1), **named)


def test_tiles_of_another_shape():
    """`Tiles` refuses a function that the likelihood can't use."""
    with pytest.raises(ValueError, match="Tiles: function must return an array of shape"):
        jaxmg.Tiles(lambda rows, columns: jnp.ones((4, 4)), (20, 20), "float64")
    rectangle = jaxmg.Tiles(lambda r, c: jnp.ones((len(r), len(c))), (20, 30), "float64")
    with pytest.raises(ValueError, match="gaussian_log_likelihood: tiles must have a shape"):
        jaxmg.gaussian_log_likelihood(rectangle, np.ones(30), memory=1e6)
