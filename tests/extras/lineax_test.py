"""The solvers of jaxmg.lineax, in the way that lineax tests its own: operators of every kind that
hold a known matrix, solved with, transposed, and differentiated, against jax.numpy on one device.

The step `lineax` of ci/cpu.sh.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

lineax = pytest.importorskip("lineax", reason="lineax is an extra: pip install jaxmg[lineax]>=2")

import jaxmg.lineax  # noqa: E402

_N = 6  # which 4 devices don't divide
_TAGS = {1: lineax.positive_semidefinite_tag, -1: lineax.negative_semidefinite_tag}


def _numbers(seed, shape, dtype):
    random = np.random.default_rng(seed)
    value = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        value = value + 1j * random.standard_normal(shape)
    return value.astype(dtype)


def _definite(seed, sign, dtype, n=_N):
    matrix = _numbers(seed, (n, n), dtype)
    return sign * (matrix @ matrix.conj().T + n * np.eye(n)).astype(dtype)


def _matrix(matrix, tags):
    return lineax.MatrixLinearOperator(matrix, tags)


def _function(matrix, tags):
    structure = jax.ShapeDtypeStruct(matrix.shape[1:], matrix.dtype)
    return lineax.FunctionLinearOperator(lambda x: matrix @ x, structure, tags)


def _jacobian(matrix, tags):
    at = jnp.zeros(matrix.shape[1:], matrix.dtype)
    return lineax.JacobianLinearOperator(lambda x, _: matrix @ x + x**2, at, None, tags)


def _sum(matrix, tags):
    return lineax.TaggedLinearOperator(_matrix(matrix / 4, ()) + _matrix(matrix * 3 / 4, ()), tags)


_OPERATORS = (_matrix, _function, _jacobian, _sum)
_every_kind = pytest.mark.parametrize("make", _OPERATORS, ids=lambda make: make.__name__)
_every_sign = pytest.mark.parametrize("sign", _TAGS)
_every_dtype = pytest.mark.parametrize("dtype", ["float64", "complex128"])


@pytest.fixture
def solver():
    return jaxmg.lineax.Cholesky(Mesh(np.array(jax.devices()), ("r",)))


def _close(found, expected):
    __tracebackhide__ = True
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10), found, expected
    )


@_every_dtype
@_every_sign
@_every_kind
def test_solves(make, sign, dtype, solver):
    matrix, b = _definite(1, sign, dtype), _numbers(2, _N, dtype)
    solution = lineax.linear_solve(make(matrix, _TAGS[sign]), b, solver)
    assert solution.result == lineax.RESULTS.successful
    _close(solution.value, np.linalg.solve(matrix, b))


@_every_dtype
@_every_sign
def test_state_of_the_transpose_and_of_the_conjugate(sign, dtype, solver):
    matrix, b = _definite(1, sign, dtype), _numbers(2, _N, dtype)
    operator = _matrix(matrix, _TAGS[sign])
    state = solver.init(operator, {})
    for other, of in ((solver.transpose, matrix.T), (solver.conj, matrix.conj())):
        changed, options = other(state, {})
        x, result, _ = solver.compute(changed, b, options)
        assert result == lineax.RESULTS.successful
        _close(x, np.linalg.solve(of, b))


@_every_dtype
@_every_kind
def test_linear_transpose(make, dtype, solver):
    matrix, b = _definite(1, 1, dtype), jnp.asarray(_numbers(2, _N, dtype))

    @jax.jit
    def transposed(matrix, b):
        operator = make(matrix, _TAGS[1])
        return jax.linear_transpose(lambda b: lineax.linear_solve(operator, b, solver).value, b)(b)

    _close(transposed(matrix, b), (np.linalg.solve(matrix.T, b),))


@_every_dtype
@_every_sign
@pytest.mark.parametrize("use_state", [False, True])
def test_derivatives(use_state, sign, dtype, solver):
    """Of the matrix and of b, forward, in reverse, and forward of reverse."""
    primals = _definite(1, sign, dtype), _numbers(2, _N, dtype)
    tangents = _definite(3, 1, dtype), _numbers(4, _N, dtype)

    def ours(matrix, b):
        operator = _matrix(matrix, _TAGS[sign])
        state = {"state": solver.init(jax.lax.stop_gradient(operator), {})} if use_state else {}
        return lineax.linear_solve(operator, b, solver, **state).value

    def derivatives(solve):
        def loss(matrix, b):
            return jnp.sum(jnp.abs(solve(matrix, b)) ** 4)

        @jax.jit
        def found(primals, tangents):
            gradient = jax.grad(loss, argnums=(0, 1))
            return jax.jvp(solve, primals, tangents), jax.jvp(gradient, primals, tangents)

        return found(primals, tangents)

    _close(derivatives(ours), derivatives(jnp.linalg.solve))


def test_pytrees(solver):
    matrix = _definite(1, 1, "float64")
    b = {"x": jnp.asarray(_numbers(2, 2, "float64")), "y": [jnp.asarray(_numbers(3, 4, "float64"))]}

    def times(x):
        flat = matrix @ jnp.concatenate([x["x"], x["y"][0]])
        return {"x": flat[:2], "y": [flat[2:]]}

    structure = jax.eval_shape(lambda: b)
    operator = lineax.FunctionLinearOperator(times, structure, lineax.positive_semidefinite_tag)
    x = lineax.linear_solve(operator, b, solver).value
    _close(times(x), b)


def test_state_stays_in_shards_and_is_used_again(solver):
    """Without a mesh: an eager state knows it from the matrix."""
    n = 8
    matrix = _definite(1, 1, "float64", n)
    a = jax.device_put(matrix, NamedSharding(solver.mesh, P("r", None)))
    solver, operator = jaxmg.lineax.Cholesky(), _matrix(a, _TAGS[1])
    state = solver.init(operator, {})
    assert state.factor.tiles.sharding.is_equivalent_to(a.sharding, 2)
    for seed in range(2):
        b = _numbers(seed, n, "float64")
        x = lineax.linear_solve(operator, b, solver, state=state).value
        _close(x, np.linalg.solve(matrix, b))


def test_inverse_operator(solver):
    matrix, b = _definite(1, 1, "float64"), _numbers(2, _N, "float64")
    inverse = lineax.invert(_matrix(matrix, _TAGS[1]), solver)
    _close(inverse.mv(jnp.asarray(b)), np.linalg.solve(matrix, b))


@_every_sign
def test_not_definite_is_singular(sign, solver):
    matrix = _definite(1, -sign, "float64")
    operator = _matrix(matrix, _TAGS[sign])
    solution = lineax.linear_solve(operator, np.ones(_N), solver, throw=False)
    assert solution.result == lineax.RESULTS.singular
    assert np.isnan(solution.value).all()


def test_operators_that_it_is_not_for(solver):
    with pytest.raises(ValueError, match=r"Cholesky: .* tag it with lineax.positive_semidef"):
        solver.init(_matrix(np.eye(3), ()), {})


def test_nothing_else_imports_lineax():
    command = "import jaxmg, jaxmg.linalg, sys; assert 'lineax' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)


def _on_all_devices(kind):
    return kind(Mesh(np.array(jax.devices()), ("r",)))


_every_shape = pytest.mark.parametrize(
    "kind, shape",
    [
        (jaxmg.lineax.LU, (_N, _N)),
        (jaxmg.lineax.QR, (_N, _N)),
        (jaxmg.lineax.QR, (9, 5)),
        (jaxmg.lineax.QR, (5, 9)),
    ],
    ids=["LU", "QR", "QR-tall", "QR-wide"],
)


def _least_squares(matrix, b):
    """The x of least norm(b - A x), or of least norm."""
    adjoint = matrix.conj().T
    if matrix.shape[0] >= matrix.shape[1]:
        return jnp.linalg.solve(adjoint @ matrix, adjoint @ b)
    return adjoint @ jnp.linalg.solve(matrix @ adjoint, b)


@_every_dtype
@_every_shape
def test_general_solvers_and_their_states(kind, shape, dtype):
    """Solved with, with the states of the transpose, of the conjugate and of the adjoint."""
    solver, matrix = _on_all_devices(kind), _numbers(1, shape, dtype)
    state = solver.init(_matrix(matrix, ()), {})
    transposed, _ = solver.transpose(state, {})
    states = {
        "A": (state, matrix),
        "T": (transposed, matrix.T),
        "conj": (solver.conj(state, {})[0], matrix.conj()),
        "H": (solver.conj(transposed, {})[0], matrix.conj().T),
    }
    for changed, of in states.values():
        b = _numbers(2, of.shape[0], dtype)
        x, result, _ = solver.compute(changed, b, {})
        assert result == lineax.RESULTS.successful
        _close(x, _least_squares(of, b))


@_every_dtype
@_every_shape
def test_derivatives_of_general_solvers(kind, shape, dtype):
    solver = _on_all_devices(kind)
    primals = _numbers(1, shape, dtype), _numbers(2, shape[0], dtype)
    tangents = _numbers(3, shape, dtype), _numbers(4, shape[0], dtype)

    def ours(matrix, b):
        return lineax.linear_solve(_matrix(matrix, ()), b, solver).value

    def derivatives(solve):
        def loss(matrix, b):
            return jnp.sum(jnp.abs(solve(matrix, b)) ** 2)

        @jax.jit
        def both(primals, tangents):
            return jax.jvp(solve, primals, tangents), jax.grad(loss, argnums=(0, 1))(*primals)

        return both(primals, tangents)

    _close(derivatives(ours), derivatives(_least_squares))


def test_pytrees_of_a_tall_operator():
    structure = jax.eval_shape(lambda: {"x": jnp.zeros(2), "y": [jnp.zeros((1, 3))]})
    matrix = _numbers(1, (8, 5), "float64")

    def times(x):
        return tuple(jnp.split(matrix @ jnp.concatenate([x["x"], x["y"][0].ravel()]), 2))

    operator = lineax.FunctionLinearOperator(times, structure)
    b = _numbers(2, 8, "float64")
    solver = _on_all_devices(jaxmg.lineax.QR)
    x = lineax.linear_solve(operator, tuple(np.split(b, 2)), solver).value
    assert jax.tree.map(jnp.shape, x) == {"x": (2,), "y": [(1, 3)]}
    flat = np.concatenate([x["x"], x["y"][0].ravel()])
    _close(flat, np.linalg.lstsq(matrix, b)[0])


@pytest.mark.parametrize("kind", [jaxmg.lineax.LU, jaxmg.lineax.QR])
def test_leaves_of_different_dtypes(kind):
    """Each leaf of x keeps its dtype under strict promotion."""
    single, double = jnp.float32, jnp.float64
    columns = [[single(1), double(5)], [single(-2), double(-2)]]
    b = [double(3), double(4)]
    operator = lineax.PyTreeLinearOperator(columns, jax.eval_shape(lambda: b))
    with jax.numpy_dtype_promotion("strict"):
        x = lineax.linear_solve(operator, b, _on_all_devices(kind)).value
    assert [leaf.dtype for leaf in x] == [single, double]
    np.testing.assert_allclose(x, [-3.25, 1.25], rtol=1e-6)


@_every_shape
def test_singular_operators(kind, shape):
    operator = _matrix(np.zeros(shape), ())
    solver, b = _on_all_devices(kind), np.ones(shape[0])
    solution = lineax.linear_solve(operator, b, solver, throw=False)
    assert solution.result == lineax.RESULTS.singular


def test_lu_of_an_operator_that_is_not_square():
    with pytest.raises(ValueError, match=r"LU: .* 5 entries to vectors of 9. jaxmg.lineax.QR"):
        jaxmg.lineax.LU().init(_matrix(np.ones((9, 5)), ()), {})


@pytest.mark.parametrize("shape", [(9, 5), (5, 9)], ids=str)
def test_normal_equations(shape, solver):
    """`lineax.Normal` treats ours as its own `Cholesky`: it materialises the operator first."""
    assert isinstance(solver, lineax.Cholesky)
    matrix, b = _numbers(1, shape, "float64"), _numbers(2, shape[0], "float64")
    operator = _function(matrix, ())
    normal = lineax.Normal(solver)
    _close(lineax.linear_solve(operator, b, normal).value, _least_squares(matrix, b))
    assert "FunctionLinearOperator" not in repr(normal.init(operator, {}))


@pytest.mark.parametrize("name", jaxmg.lineax.__all__)
def test_names_are_those_of_lineax(name):
    assert issubclass(getattr(jaxmg.lineax, name), getattr(lineax, name))


@pytest.mark.parametrize("kind", ["matrix", "function"])
def test_eigsh_takes_operators(kind):
    a = _numbers(3, (150, 150), "float64")
    a, tag = jnp.asarray(a + a.T), lineax.symmetric_tag

    def smallest(a):
        operator = lineax.MatrixLinearOperator(a, tag)
        if kind == "function":
            shape = jax.ShapeDtypeStruct((150,), a.dtype)
            operator = lineax.FunctionLinearOperator(lambda x: a @ x, shape, tag)
        return jaxmg.linalg.eigsh(operator, 2, which="SA").eigenvalues

    w, v = jnp.linalg.eigh(a)
    np.testing.assert_allclose(smallest(a), w[:2], rtol=1e-12)
    gradient = jax.grad(lambda a: smallest(a)[0])(a)
    np.testing.assert_allclose(gradient, jnp.outer(v[:, 0], v[:, 0]), atol=1e-12)
