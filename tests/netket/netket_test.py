"""NetKet's distributed solvers, as they are released, give what its local solvers give.

Importing NetKet makes a mesh "S" of all devices the context mesh, and its solvers run on that. It
isn't part of //tests:all: the steps netket322 and netket323 of ci/cpu.sh install the releases with
a JAX on which they import.
"""

import contextlib
import functools
import inspect

import jax
import netket as nk
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_SOLVERS = {
    "cholesky": (nk.optimizer.solver.cholesky_distributed, nk.optimizer.solver.cholesky),
    "pinv_smooth": (nk.optimizer.solver.pinv_smooth_distributed, nk.optimizer.solver.pinv_smooth),
}
# From 3.23 on NetKet may put A onto a two-dimensional grid of its own, and takes A by columns too.
_GRIDS = "process_grid" in inspect.signature(_SOLVERS["cholesky"][0]).parameters
_SHARDINGS = [P("S", None), P(None, "S")] if _GRIDS else [P("S", None)]
_N = 48  # on four devices; tiles that don't divide its blocks are among those below


def _problem(dtype, n=_N):
    random = np.random.default_rng(n)

    def normal(*shape):
        parts = random.standard_normal((2, *shape))
        return (parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]).astype(dtype)

    factor = normal(n, n)
    matrix = factor @ factor.conj().T / n + np.eye(n)
    return matrix.astype(dtype), normal(n)


def _place(matrix, b, spec=_SHARDINGS[0]):
    mesh = jax.sharding.get_mesh()
    return jax.device_put(matrix, NamedSharding(mesh, spec)), jax.device_put(
        b, NamedSharding(mesh, P())
    )


def _modes(solver, *arguments):
    """The solution eagerly and under jit."""
    yield solver(*arguments)[0]
    yield jax.jit(lambda *a: solver(*a)[0])(*arguments)


def _check(solver, matrix, b, a, placed, **options):
    """Both solutions from the same numbers; the local solver sees one device."""
    distributed, local = _SOLVERS[solver]
    device = jax.local_devices()[0]
    with _context(Mesh(np.array([device]), ("S",))):
        expected = local(jax.device_put(matrix, device), jax.device_put(b, device))[0]
    limit = 100 * len(matrix) * np.finfo(matrix.dtype).eps
    for x in _modes(functools.partial(distributed, **options), a, placed):
        assert x.dtype == matrix.dtype and x.shape == b.shape
        np.testing.assert_allclose(x, expected, rtol=limit, atol=limit)


@contextlib.contextmanager
def _context(mesh):
    before = jax.sharding.get_mesh()
    jax.sharding.set_mesh(mesh)
    try:
        yield
    finally:
        jax.sharding.set_mesh(before)


@pytest.mark.parametrize(
    "dtype, tile",
    [("float32", 5), ("float64", None), ("float64", 16), ("complex128", None), ("complex128", 100)],
)
@pytest.mark.parametrize("spec", _SHARDINGS, ids=str)
@pytest.mark.parametrize("solver", _SOLVERS)
def test_on_netkets_mesh(solver, dtype, spec, tile):
    matrix, b = _problem(dtype)
    _check(solver, matrix, b, *_place(matrix, b, spec), local_tile_size=tile)


@pytest.mark.parametrize("solver", _SOLVERS)
def test_arrays_that_are_not_sharded(solver):
    """NetKet's users may pass them so; the context mesh says where to go under jit."""
    matrix, b = _problem("float64")
    a, placed = _place(matrix, b, P())
    _check(solver, matrix, b, a, placed)


@pytest.mark.parametrize("solver", _SOLVERS)
def test_inputs_are_kept(solver):
    matrix, b = _problem("float64")
    a, placed = _place(matrix, b)
    for _ in range(2):
        _SOLVERS[solver][0](a, placed)
    np.testing.assert_array_equal(a, matrix)
    np.testing.assert_array_equal(placed, b)


def test_tree_of_parameters():
    matrix, b = _problem("float64")
    a, placed = _place(matrix, b)
    tree = {"kernel": placed[:40].reshape(8, 5), "bias": placed[40:]}
    x, _ = nk.optimizer.solver.cholesky_distributed(a, tree)
    expected = np.linalg.solve(matrix, np.concatenate([b[40:], b[:40]]))
    assert x["kernel"].shape == (8, 5)
    np.testing.assert_allclose(x["bias"], expected[:8], rtol=1e-11)
    np.testing.assert_allclose(x["kernel"].ravel(), expected[8:], rtol=1e-11)


def test_not_positive_definite():
    """NaN, which NetKet's fallbacks look for."""
    matrix, b = _problem("float64")
    matrix[20, 20] = -1
    for x in _modes(nk.optimizer.solver.cholesky_distributed, *_place(matrix, b)):
        assert np.isnan(x).all()


@pytest.mark.skipif(not _GRIDS, reason="this NetKet has no process_grid")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("process_grid", [None, (4, 1), (2, 2), (1, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("solver", _SOLVERS)
def test_process_grid(solver, dtype, process_grid, kind):
    matrix, b = _problem(dtype)
    with _context(Mesh(np.array(jax.devices()), ("S",), axis_types=(kind,))):
        a, placed = _place(matrix, b)
        tile = 7 if dtype == "complex128" else None
        _check(solver, matrix, b, a, placed, process_grid=process_grid, local_tile_size=tile)


@pytest.mark.parametrize("solver", _SOLVERS)
def test_optimization(solver):
    """Steps of stochastic reconfiguration take the same way with both solvers."""

    def energies(linear_solver):
        graph = nk.graph.Chain(4)
        hilbert = nk.hilbert.Spin(0.5, N=4)
        sampler = nk.sampler.ExactSampler(hilbert)
        state = nk.vqs.MCState(
            sampler, nk.models.RBM(alpha=1), n_samples=64, seed=1, sampler_seed=2
        )
        driver = nk.driver.VMC_SR(
            nk.operator.IsingJax(hilbert, graph, h=1.0), nk.optimizer.Sgd(0.05),
            variational_state=state, diag_shift=0.01, linear_solver=linear_solver,
            use_ntk=True,
        )  # fmt: skip
        log = nk.logging.RuntimeLog()
        driver.run(3, out=log, show_progress=False)
        return np.asarray(log.data["Energy"]["Mean"])

    distributed, local = _SOLVERS[solver]
    np.testing.assert_allclose(energies(distributed), energies(local), rtol=1e-8)
