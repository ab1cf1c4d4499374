"""Calls as parts of larger compiled programs, and inside the caller's own shard_map."""

import threading

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg._plugin import plugins

_N = 24


def _widest():
    return cases.line(min(8, len(jax.devices())))


def _inputs(mesh, dtype="float64"):
    matrix = cases.positive_definite("well", _N, dtype)
    return matrix, cases.shard(matrix, mesh, "r", None), cases.normal(cases.rng(3), (_N, 2), dtype)


def _local_solve(mesh, tile=3, **options):
    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, tile, **options)

    return jax.shard_map(
        local, mesh=mesh, in_specs=(P("r", None), P()), out_specs=P(), check_vma=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("traced", ["each", "once"])
def test_independent_calls(traced):
    """XLA may run calls of the same shapes in any order, and at the same time. Calls that JAX
    traced once have the same attributes."""
    mesh = _widest()
    matrix, a, b = _inputs(mesh)

    def one(a, b):
        return jaxmg.potrs(a, b, 2, mesh)

    if traced == "once":
        one = jax.jit(one)
    factors = range(1, 7)
    solve = jax.jit(lambda a, b: [one(factor * a, b) for factor in factors])
    for _ in range(20):
        for factor, x in zip(factors, solve(a, b), strict=True):
            cases.check_potrs(factor * matrix, x, b)


def test_identical_calls():
    mesh = _widest()
    matrix, a, b = _inputs(mesh)
    solutions = jax.jit(lambda a, b: [jaxmg.potrs(a, b, 2, mesh) for _ in range(3)])(a, b)
    for x in solutions:
        cases.check_potrs(matrix, x, b)


def test_all_routines_in_one_program():
    mesh = cases.line(min(4, len(jax.devices())))
    matrix, a, b = _inputs(mesh, "complex128")

    @jax.jit
    def everything(a, b):
        x = jaxmg.potrs(a, b, 4, mesh)
        return x, jaxmg.potri(a, 4, mesh), jaxmg.syevd(a, 4, mesh)

    x, inverse, (w, v) = everything(a, b)
    cases.check_potrs(matrix, x, b)
    cases.check_potri(matrix, inverse)
    cases.check_syevd(matrix, w, v)


def test_scan():
    mesh = _widest()
    matrix, a, b = _inputs(mesh)

    @jax.jit
    def solve(a, shifts):
        def step(x, shift):
            x = jaxmg.potrs(a + shift * jnp.eye(_N), x, 2, mesh)
            return x, x

        return jax.lax.scan(step, jnp.asarray(b), shifts)[1]

    shifts = np.arange(1.0, 6.0)
    right = b
    for shift, x in zip(shifts, solve(a, shifts), strict=True):
        cases.check_potrs(matrix + shift * np.eye(_N), x, right)
        right = np.asarray(x)


def test_fori_loop():
    mesh = cases.line(2)
    matrix, a, b = _inputs(mesh)
    power = jax.jit(
        lambda a, b: jax.lax.fori_loop(0, 4, lambda _, x: jaxmg.potrs(a, x, 5, mesh), b)
    )
    expected = np.linalg.matrix_power(np.linalg.inv(matrix), 4) @ b
    np.testing.assert_allclose(power(a, b), expected, rtol=1e-12, atol=1e-12)


def test_between_collectives():
    mesh = _widest()
    matrix, a, b = _inputs(mesh)

    def local(a, b):
        ranks = jax.lax.psum(1, "r")
        trace = jax.lax.psum(jnp.sum(a), "r")
        x, status = jaxmg.potrs_shardmap_ctx(a, b * (trace / trace), 2)
        return jax.lax.psum(x, "r") / ranks, jax.lax.pmax(status, "r")

    run = jax.shard_map(
        local, mesh=mesh, in_specs=(P("r", None), P()), out_specs=P(), check_vma=False
    )
    for _ in range(3):
        x, status = jax.block_until_ready(jax.jit(run)(a, b))
        cases.check_potrs(matrix, x, b)
        assert status == 0


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_local_potrs(jitted):
    mesh = cases.line(2)
    matrix, a, b = _inputs(mesh)
    solve = _local_solve(mesh, return_logdet=True)
    x, logdet, status = (jax.jit(solve) if jitted else solve)(a, b[:, 0])
    cases.check_potrs(matrix, x, b[:, 0])
    assert logdet.shape == status.shape == (1,)
    np.testing.assert_allclose(logdet[0], np.linalg.slogdet(matrix)[1], rtol=1e-12)
    assert status[0] == 0


def test_local_potri_gives_the_upper_triangle():
    mesh = cases.line(2)
    matrix, _, _ = _inputs(mesh, "complex64")
    a = cases.shard(cases.upper_only(matrix), mesh, "r", None)
    invert = jax.shard_map(
        lambda a: jaxmg.potri_shardmap_ctx(a, 3),
        mesh=mesh, in_specs=P("r", None), out_specs=(P("r", None), P()), check_vma=False,
    )  # fmt: skip
    upper, status = jax.jit(invert)(a)
    assert status.shape == (1,) and status[0] == 0
    assert not np.tril(upper, -1).any()
    cases.check_potri(matrix, jaxmg.potri_symmetrize(upper))


@pytest.mark.parametrize("vectors", [True, False])
def test_local_syevd(vectors):
    mesh = cases.line(2)
    matrix, a, _ = _inputs(mesh)
    specs = (P(), P(None, "r"), P()) if vectors else (P(), P())
    diagonalise = jax.shard_map(
        lambda a: jaxmg.syevd_shardmap_ctx(a, 3, return_eigenvectors=vectors),
        mesh=mesh, in_specs=P("r", None), out_specs=specs, check_vma=False,
    )  # fmt: skip
    w, *v, status = jax.jit(diagonalise)(a)
    assert status.shape == (1,) and status[0] == 0
    if vectors:
        cases.check_syevd(matrix, w, *v)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(matrix), rtol=1e-12)


def test_groups_hold_different_matrices():
    """Each column of the mesh solves its own system; ranks of two groups never join one
    rendezvous."""
    mesh = cases.grid()
    matrices = [
        cases.positive_definite("well", _N, "float64") + 3 * c * np.eye(_N) for c in range(2)
    ]
    a = cases.shard(np.concatenate(matrices, axis=1), mesh, "r", "c")
    b = cases.shard(cases.normal(cases.rng(5), (_N, 2), "float64"), mesh, None, "c")
    solve = jax.shard_map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3, in_specs=P("r", None))[0],
        mesh=mesh, in_specs=(P("r", "c"), P(None, "c")), out_specs=P(None, "c"), check_vma=False,
    )  # fmt: skip
    solve = jax.jit(solve)
    for _ in range(20):
        x = np.asarray(solve(a, b))
        for c, matrix in enumerate(matrices):
            cases.check_potrs(matrix, x[:, c : c + 1], np.asarray(b)[:, c : c + 1])


@cases.one_process("each would start the programs of two threads in an order of its own")
def test_one_program_from_two_threads():
    """Executions may run at the same time with keys that differ only in the number of the run."""
    mesh = cases.line(2)
    solve = jax.jit(lambda a, b: jaxmg.potrs(a, b, 3, mesh, P("r", None)))
    failures = []

    def work(factor):
        matrix = factor * cases.positive_definite("well", _N, "float64")
        a, b = cases.shard(matrix, mesh, "r", None), cases.shard(np.ones((_N, 2)), mesh)
        try:
            for _ in range(50):
                cases.check_potrs(matrix, np.asarray(solve(a, b)), np.ones((_N, 2)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_local_blocks_with_replicas():
    """Each column of the mesh solves with its own right-hand side."""
    mesh = cases.grid()
    matrix = cases.positive_definite("well", _N, "float64")
    a = cases.shard(matrix, mesh, "r", None)
    b = cases.shard(cases.normal(cases.rng(5), (_N, 2), "float64"), mesh, None, "c")
    # On a square mesh the shape of the block doesn't tell the axis that it is sharded over.
    spec = P("r", None) if len(set(mesh.shape.values())) == 1 else None
    solve = jax.shard_map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3, in_specs=spec)[0],
        mesh=mesh, in_specs=(P("r", None), P(None, "c")), out_specs=P(None, "c"), check_vma=False,
    )  # fmt: skip
    cases.check_potrs(matrix, jax.jit(solve)(a, b), np.asarray(b))


@pytest.mark.parametrize("n", [7, 2])
def test_local_block_with_padding_at_the_end(n):
    """Rows of the global array beyond n are never read."""
    mesh = cases.line(2)
    matrix = cases.positive_definite("well", n, "float64")
    padded = np.full((2 * -(-n // 2), n), np.nan)
    padded[:n] = matrix
    x, status = jax.jit(_local_solve(mesh))(cases.shard(padded, mesh, "r", None), np.ones(n))
    cases.check_potrs(matrix, x, np.ones(n))
    assert status[0] == 0


def test_checked_replication():
    """A newer shard_map learns that all ranks have the same solution."""
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this JAX takes the results of an FFI call for varying")
    mesh = cases.line(2)
    matrix, a, b = _inputs(mesh)
    solve = jax.shard_map(
        lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3),
        mesh=mesh, in_specs=(P("r", None), P()), out_specs=P(),
    )  # fmt: skip
    cases.check_potrs(matrix, jax.jit(solve)(a, b)[0], b)


@cases.one_process("tests/processes has ranks of other processes that never arrive")
def test_rank_that_never_arrives():
    """The error names the ranks that arrived and the missing ones. The next call works, and so does
    the next execution of the same call."""
    mesh = cases.line(2)
    matrix, a, b = _inputs(mesh)

    def local(a, b, skips):
        def solve(a, b):
            return jaxmg.potrs_shardmap_ctx(a, b, 3)[0]

        skips &= jax.lax.axis_index("r") == 1
        return jax.lax.cond(skips, lambda a, b: b, solve, a, b)[None]

    skips_one = jax.shard_map(
        local, mesh=mesh, in_specs=(P("r", None), P(), P()), out_specs=P("r"), check_vma=False
    )
    skips_one = jax.jit(skips_one)
    plugin = plugins.load(jax.devices()[0].platform)
    usual = plugin.rendezvous_timeout()
    plugin.set_rendezvous_timeout(0.5)
    try:
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(skips_one(a, b, True))
    finally:
        plugin.set_rendezvous_timeout(usual)
    assert str(caught.value).startswith("DEADLINE_EXCEEDED: ")
    assert "only rank(s) 0 of 2 came to the call; missing: 1" in str(caught.value)
    cases.check_potrs(matrix, jaxmg.potrs(a, b, 3), b)
    for x in np.asarray(skips_one(a, b, False)):
        cases.check_potrs(matrix, x, b)
