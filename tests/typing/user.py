"""A user's script, for type checkers: what they infer is asserted, and what they must refuse.

``check.py`` has it checked; `results` is also run, and its assertions are compared with what comes
out (user_test.py).
"""

# Of JAX's own functions.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

import jaxmg

_N = 8


def results(a: Array, b: Array, mesh: Mesh, flag: bool) -> None:
    """Every combination of what decides what is returned."""
    _potrs(a, b, mesh, flag)
    _potri(a, mesh, flag)
    _gesv(a, b, mesh, flag)
    _lu(a, b, mesh)
    _ldl(a, b, mesh)
    _qr(a, b, mesh, flag)
    _syevd(a, mesh, flag)
    _sygvd(a, mesh, flag)
    _contexts(a, b, mesh, flag)
    _factor(a, b, mesh)
    _linalg(a, b, mesh)
    _refined(a, b, mesh)
    _tree(a, mesh)
    _plan(mesh)
    _host_memory(mesh)
    _layout(a, mesh)


def _potrs(a: Array, b: Array, mesh: Mesh, flag: bool) -> None:
    assert_type(jaxmg.potrs(a, b), Array)
    assert_type(jaxmg.potrs(a, b, 2, mesh, P("r", None), False), Array)
    assert_type(jaxmg.potrs(a, b, return_status=False, return_logdet=False), Array)
    assert_type(jaxmg.potrs(a, b, return_status=True), tuple[Array, Array])
    assert_type(jaxmg.potrs(a, b, None, None, None, True), tuple[Array, Array])
    assert_type(jaxmg.potrs(a, b, return_logdet=True), tuple[Array, Array])
    assert_type(
        jaxmg.potrs(a, b, return_status=True, return_logdet=True), tuple[Array, Array, Array]
    )
    assert_type(
        jaxmg.potrs(a, b, None, mesh, None, True, return_logdet=True), tuple[Array, Array, Array]
    )
    assert_type(
        jaxmg.potrs(a, b, return_status=flag),
        Array | tuple[Array, Array] | tuple[Array, Array, Array],
    )
    x = jaxmg.potrs(
        np.eye(_N, dtype=np.float32),
        np.ones(_N, np.float32),
        T_A=np.int64(3),
        in_specs=(P(), P()),
        precision=None,
    )
    assert_type(x, Array)


def _potri(a: Array, mesh: Mesh, flag: bool) -> None:
    assert_type(jaxmg.potri(a), Array)
    assert_type(jaxmg.potri(a, return_status=True), tuple[Array, Array])
    assert_type(jaxmg.potri(a, None, mesh, None, True), tuple[Array, Array])
    assert_type(jaxmg.potri(a, return_status=flag), Array | tuple[Array, Array])
    assert_type(jaxmg.potri_shardmap_ctx(a, 4, mesh, P("r")), tuple[Array, Array])
    assert_type(jaxmg.potri_symmetrize(a), Array)


def _gesv(a: Array, b: Array, mesh: Mesh, flag: bool) -> None:
    assert_type(jaxmg.gesv(a, b), Array)
    assert_type(jaxmg.gesv(a, b, return_status=True), tuple[Array, Array])
    assert_type(jaxmg.gesv(a, b, 2, mesh, return_logdet=True), tuple[Array, Array, Array])
    assert_type(
        jaxmg.gesv(a, b, return_status=True, return_logdet=True), tuple[Array, Array, Array, Array]
    )
    assert_type(jaxmg.getri(a), Array)
    assert_type(jaxmg.getri(a, return_status=True), tuple[Array, Array])
    assert_type(jaxmg.getri(a, return_status=flag), Array | tuple[Array, Array])
    assert_type(jaxmg.getri_shardmap_ctx(a, 4, mesh, P("r")), tuple[Array, Array])


def _lu(a: Array, b: Array, mesh: Mesh) -> None:
    factor = jaxmg.lu_factor(a, 2, mesh)
    assert_type(factor, jaxmg.LUFactor)
    assert_type(jaxmg.lu_solve(factor, b, trans=1), Array)
    assert_type(jaxmg.lu_solve(a, b, 2, mesh), Array)
    assert_type(jaxmg.lu_solve(a, b, 2, mesh, return_status=True), tuple[Array, Array])
    assert_type(factor.inv(), Array)
    assert_type(factor.diagonal(), Array)
    assert_type(factor.slogdet(), tuple[Array, Array])
    lu, pivots = factor.packed()
    assert_type(jaxmg.LUFactor.from_packed(lu, pivots, 2, mesh), jaxmg.LUFactor)
    assert_type(factor.rcond(1.0, jnp.inf), Array)
    assert_type(factor.matrix_rank(), Array)


def _ldl(a: Array, b: Array, mesh: Mesh) -> None:
    factor = jaxmg.linalg.ldl_factor(a, lower=False, hermitian=False, T_A=2, mesh=mesh)
    assert_type(factor, jaxmg.LDLFactor)
    assert_type(factor.solve(b, "T"), Array)
    assert_type(factor.inertia(), tuple[Array, Array, Array])
    assert_type(factor.slogdet(), tuple[Array, Array])
    assert_type(factor.det(), Array)
    assert_type(factor.rcond(1.0), Array)
    assert_type(factor.inv(), Array)
    assert_type(jaxmg.linalg.ldl(a, hermitian=False), tuple[Array, Array, Array])


def _qr(a: Array, b: Array, mesh: Mesh, flag: bool) -> None:
    factor = jaxmg.geqrf(a, 2, mesh)
    assert_type(factor, jaxmg.QRFactor)
    assert_type(factor.solve(b, "C"), Array)
    assert_type(factor.multiply(b, trans=1), Array)
    assert_type(factor.q("complete"), Array)
    assert_type(factor.r, Array)
    assert_type(factor.diagonal(), Array)
    h, taus = factor.packed()
    assert_type(jaxmg.QRFactor.from_packed(h, taus, 2, mesh), jaxmg.QRFactor)
    assert_type(jaxmg.qr(a, 2, mesh), tuple[Array, Array])
    assert_type(jaxmg.qr(a, return_status=True), tuple[Array, Array, Array])
    assert_type(jaxmg.least_squares(a, b), Array)
    assert_type(jaxmg.least_squares(a, b, return_status=True), tuple[Array, Array])
    assert_type(jaxmg.least_squares(a, b, return_status=flag), Array | tuple[Array, Array])
    assert_type(jaxmg.linalg.qr_multiply(a, b, "left", mesh=mesh), tuple[Array, Array])
    assert_type(jaxmg.linalg.householder_product(a, b), Array)


def _syevd(a: Array, mesh: Mesh, flag: bool) -> None:
    assert_type(jaxmg.syevd(a), tuple[Array, Array])
    assert_type(jaxmg.syevd(a, return_eigenvectors=False), Array)
    assert_type(jaxmg.syevd(a, None, mesh, None, False), Array)
    assert_type(jaxmg.syevd(a, return_status=True), tuple[Array, Array, Array])
    assert_type(jaxmg.syevd(a, None, mesh, None, True, True), tuple[Array, Array, Array])
    assert_type(jaxmg.syevd(a, return_eigenvectors=False, return_status=True), tuple[Array, Array])
    assert_type(jaxmg.syevd(a, None, mesh, None, False, True), tuple[Array, Array])
    assert_type(
        jaxmg.syevd(a, return_eigenvectors=flag),
        Array | tuple[Array, Array] | tuple[Array, Array, Array],
    )


def _sygvd(a: Array, mesh: Mesh, flag: bool) -> None:
    assert_type(jaxmg.sygvd(a, a), tuple[Array, Array])
    assert_type(jaxmg.sygvd(a, a, None, mesh, None, False), Array)
    assert_type(jaxmg.sygvd(a, a, return_status=True), tuple[Array, Array, Array])
    assert_type(
        jaxmg.sygvd(a, a, return_eigenvectors=flag),
        Array | tuple[Array, Array] | tuple[Array, Array, Array],
    )
    assert_type(jaxmg.eigh(a, a), tuple[Array, Array])
    assert_type(jaxmg.eigh(a, a, 3, mesh, return_status=True), tuple[Array, Array, Array])
    assert_type(jaxmg.eigvalsh(a, a, subset_by_index=(0, 2)), Array)


def _contexts(a: Array, b: Array, mesh: Mesh, flag: bool) -> None:
    assert_type(jaxmg.potrs_jit_ctx(a, b, None, mesh), tuple[Array, Array, Array])
    assert_type(
        jaxmg.potrs_jit_ctx(a, b, None, mesh, return_logdet=True),
        tuple[Array, Array, Array, Array],
    )
    assert_type(
        jaxmg.potrs_jit_ctx(a, b, return_logdet=flag),
        tuple[Array, Array, Array] | tuple[Array, Array, Array, Array],
    )
    assert_type(jaxmg.syevd_jit_ctx(a), tuple[Array, Array, Array, Array])
    assert_type(jaxmg.syevd_jit_ctx(a, return_eigenvectors=False), tuple[Array, Array, Array])
    # How many there are depends on whether a shard_map is around the call.
    _, x, _ = jaxmg.potrs_shardmap_ctx(a, b)
    assert_type(x, Array)

    def local(block: Array, b: Array) -> Array:
        assert_type(jaxmg.potrs_shardmap_ctx(block, b, None, False), tuple[Array, ...])
        assert_type(jaxmg.syevd_shardmap_ctx(block, None, True, True), tuple[Array, ...])
        assert_type(jaxmg.potri_shardmap_ctx(block, None, True), tuple[Array, Array])
        x, _ = jaxmg.potrs_shardmap_ctx(block, b)
        return assert_type(x, Array)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("r"), P()), out_specs=P(), check_vma=False)
    jax.jit(mapped)(a, b)


def _factor(a: Array, b: Array, mesh: Mesh) -> None:
    factor = jaxmg.cho_factor(a, mesh=mesh, precision="highest")
    assert_type(factor, jaxmg.CholeskyFactor)
    assert_type(jaxmg.cho_solve(factor, b), Array)
    assert_type(factor.solve(np.ones(_N, np.float32)), Array)
    assert_type(factor.solve_triangular(b, trans="C"), Array)
    assert_type(factor.matmul(b, 1), Array)
    assert_type(factor.update(b, -1), jaxmg.CholeskyFactor)
    grown = jaxmg.cho_factor(a, mesh=mesh, capacity=2 * _N)
    rows, block = jnp.zeros((2 * _N, 2), a.dtype), jnp.eye(2, dtype=a.dtype)
    assert_type(grown.append(rows, block).remove([0, 1]), jaxmg.CholeskyFactor)
    assert_type(grown.count, Array | None)
    assert_type(factor.logdet(), Array)
    assert_type(factor.diagonal(), Array)
    assert_type(factor.inv(), Array)
    assert_type(factor.shape, tuple[int, int])
    assert_type(factor.dtype, np.dtype[Any])
    assert_type(factor.mesh, Mesh | AbstractMesh)
    assert_type(factor.status, Array)
    assert_type(factor.overflow, Array | None)
    assert_type(factor.n, int)
    again = jaxmg.CholeskyFactor.from_upper(np.asarray(factor.upper()), mesh=mesh)
    assert_type(again, jaxmg.CholeskyFactor)


def _linalg(a: Array, b: Array, mesh: Mesh) -> None:
    assert_type(jaxmg.linalg.solve(a, b, assume_a="pos"), Array)
    assert_type(jaxmg.linalg.cholesky(np.eye(_N, dtype=np.float32), upper=True, mesh=mesh), Array)
    assert_type(jaxmg.linalg.solve_triangular(a, b, "T", lower=True), Array)
    c, lower = jaxmg.linalg.cho_factor(a, True)
    assert_type(jaxmg.linalg.cho_solve((c, lower), b), Array)
    assert_type(jaxmg.linalg.cho_solve((jaxmg.cho_factor(a), False), b), Array)
    w, v = jaxmg.linalg.eigh(a, "U", symmetrize_input=False)
    assert_type((w, v), tuple[Array, Array])
    assert_type(jaxmg.linalg.slogdet(a, mesh=mesh).logabsdet, Array)
    inverse = jaxmg.linalg.matrix_power(a, np.int64(-1), mesh=mesh, matrix_specs=P("r", None))
    assert_type(inverse, Array)
    q, r = jaxmg.linalg.qr(a, mesh=mesh)
    assert_type((q, r), tuple[Array, Array])
    assert_type(jaxmg.linalg.qr(a, "r"), Array)
    assert_type(jaxmg.linalg.lstsq(a, b, damp=0.1), tuple[Array, Array, Array, Array])
    assert_type(jaxmg.linalg.least_squares(a, b, mesh=mesh), Array)
    assert_type(jaxmg.linalg.qr(a, pivoting=True), tuple[Array, Array, Array])
    u, s, vh = jaxmg.linalg.svd(a, full_matrices=False, mesh=mesh)
    assert_type((u, s, vh), tuple[Array, Array, Array])
    assert_type(jaxmg.linalg.svd(a, compute_uv=False), Array)
    assert_type(jaxmg.linalg.svdvals(a), Array)
    assert_type(jaxmg.linalg.norm(a, "nuc", mesh=mesh), Array)
    assert_type(jaxmg.linalg.norm(a, 2, axis=(0, 1), keepdims=True), Array)
    assert_type(jaxmg.linalg.cond(a), Array)
    assert_type(jaxmg.linalg.polar(a, "left"), tuple[Array, Array])
    assert_type(jaxmg.linalg.pinv(a, 1e-8), Array)
    assert_type(jaxmg.linalg.matrix_rank(a), Array)
    u, s, vh, error = jaxmg.linalg.svd_lowrank(a, 3, iterations=np.int32(1), mesh=mesh)
    assert_type((u, s, vh, error), tuple[Array, Array, Array, Array])
    solved = jaxmg.linalg.cg(a, b, tol=1e-8, maxiter=np.int32(9), mesh=mesh)
    assert_type((solved.x, solved.info.status), tuple[Array, Array])
    assert_type(jaxmg.linalg.cg(lambda v: 2 * v, b, b, M=lambda v: v / 2)[0], Array)
    w, v = jaxmg.linalg.eigsh(a, np.int32(3), which="SA", mesh=mesh)
    assert_type((w, v), tuple[Array, Array])
    w, v, info = jaxmg.linalg.eigsh(lambda x: 2 * x, v0=b, return_info=True)
    assert_type((w, v, info.status), tuple[Array, Array, Array])
    assert_type(jaxmg.linalg.eigsh(a, return_eigenvectors=False), Array)
    low_rank = jaxmg.linalg.pivoted_cholesky(a, np.int32(2), 1e-3, method="greedy", mesh=mesh)
    assert_type(low_rank.error, Array)
    near = low_rank.preconditioner(0.1)
    assert_type(jaxmg.linalg.cg(a, b, M=near, mesh=mesh).info.residuals, Array)
    assert_type(jaxmg.linalg.orth(a, mesh=mesh), Array)
    assert_type(jaxmg.linalg.null_space(a, 1e-8, rank=np.int32(3)), Array)
    assert_type(jaxmg.linalg.funm(a, jnp.cos), Array)
    assert_type(jaxmg.linalg.cond(a, 1, mesh=mesh), Array)
    assert_type(jaxmg.linalg.expm(a, assume_a="her", max_squarings=np.int32(3)), Array)
    assert_type(jaxmg.linalg.cond(a, jnp.inf), Array)


def _refined(a: Array, b: Array, mesh: Mesh) -> None:
    assert_type(jaxmg.potrs(a, b, mesh=mesh, refine="tf32"), Array)
    assert_type(jaxmg.potrs(a, b, refine="auto", return_status=True), tuple[Array, Array])
    assert_type(jaxmg.potrs(a, b, refine="auto", return_iterations=True), tuple[Array, Array])
    assert_type(
        jaxmg.potrs(a, b, refine="tf32", return_status=True, return_iterations=True),
        tuple[Array, Array, Array],
    )
    factor = jaxmg.cho_factor(a, mesh=mesh, refine="auto")
    assert_type(factor, jaxmg.RefinedFactor)
    assert_type(jaxmg.cho_solve(factor, b), Array)
    assert_type(factor.solve(b), Array)
    assert_type(factor.solve(b, return_iterations=True), tuple[Array, Array])
    assert_type(factor.solve(b, True), tuple[Array, Array])
    assert_type(factor.solve(b, True, True), tuple[Array, Array, Array])
    assert_type(factor.dtype, np.dtype[Any])
    assert_type(factor.refine, str)


def refined_lu(a: Array, b: Array, mesh: Mesh) -> None:
    """Not run: its programs would take longer to compile than all others."""
    assert_type(jaxmg.gesv(a, b, mesh=mesh, refine="tf32"), Array)
    assert_type(jaxmg.gesv(a, b, refine="auto", return_status=True), tuple[Array, Array])
    assert_type(jaxmg.gesv(a, b, refine="auto", return_iterations=True), tuple[Array, Array])
    assert_type(
        jaxmg.gesv(a, b, refine="tf32", return_status=True, return_iterations=True),
        tuple[Array, Array, Array],
    )
    factor = jaxmg.lu_factor(a, mesh=mesh, refine="auto")
    assert_type(factor, jaxmg.RefinedLUFactor)
    assert_type(jaxmg.lu_solve(factor, b, trans="T"), Array)
    assert_type(jaxmg.linalg.lu_solve(factor, b), Array)
    assert_type(factor.solve(b), Array)
    assert_type(factor.solve(b, 2, return_iterations=True), tuple[Array, Array])
    assert_type(factor.solve(b, 0, True), tuple[Array, Array])
    assert_type(factor.solve(b, "C", True, True), tuple[Array, Array, Array])
    assert_type(factor.dtype, np.dtype[Any])
    assert_type(factor.refine, str)


def _tree(a: Array, mesh: Mesh) -> None:
    weights = {"a": [a, None], "b": a}
    assert_type(jaxmg.tree.map(jnp.sin, weights, mesh=mesh), Any)
    jaxmg.tree.map(jnp.sin, a, cost=lambda matrix: matrix.shape[0])
    jaxmg.tree.eigh(weights, "U", mesh=mesh, matrix_specs={"a": None, "b": P("r", None)})
    jaxmg.tree.cholesky(weights, upper=True)
    jaxmg.tree.inv(weights, matrix_specs=P())
    jaxmg.tree.inv(weights, in_specs=P())
    pairs = {"a": (a, a)}
    assert_type(jaxmg.tree.inv(pairs, mesh=mesh), dict[str, tuple[Array, Array]])
    assert_type(jaxmg.tree.cholesky([a], mesh=mesh), list[Array])
    assert_type(jaxmg.tree.orthogonalize(a, mesh=mesh), Array)
    assert_type(jaxmg.tree.orthogonal_iteration(pairs, pairs), dict[str, tuple[Array, Array]])
    assert_type(jaxmg.tree.inverse_pth_root((a, a), 2), tuple[Array, Array])
    assert_type(jaxmg.tree.eigh(pairs), Any)  # each leaf becomes a pair
    jaxmg.tree.qr(a, "r")
    jaxmg.tree.svd(a, compute_uv=False)
    jaxmg.tree.orthogonal_iteration(weights, weights, 2, mesh=mesh)
    jaxmg.tree.orthogonalize(weights, 8, "polar-express", dtype=jnp.bfloat16, mesh=mesh)
    jaxmg.tree.inverse_pth_root(weights, 4, 1e-4, "newton")


def _host_memory(mesh: Mesh) -> None:
    def kernel(rows: Array, columns: Array) -> Array:
        return jnp.where(rows[:, None] == columns, 2.0, 0.0).astype("float32")

    tiles = jaxmg.Tiles(kernel, (_N, _N), "float32")
    assert_type(tiles.shape, tuple[int, int])
    b = np.ones(_N, np.float32)
    assert_type(jaxmg.potrs(tiles, b, mesh=mesh, memory=1e9), Array)
    factor = jaxmg.cho_factor(tiles, mesh=mesh, memory=1e9)
    assert_type(factor, jaxmg.CholeskyFactor | jaxmg.HostCholeskyFactor)
    assert_type(jaxmg.cho_solve(factor, b), Array)
    assert_type(jaxmg.gaussian_log_likelihood(tiles, b, mesh, memory=1e9), Array)
    assert_type(jaxmg.gesv(tiles, b, mesh=mesh, memory=1e9), Array)
    general = jaxmg.lu_factor(tiles, mesh=mesh, memory=1e9)
    assert_type(general, jaxmg.LUFactor | jaxmg.HostLUFactor)
    assert_type(general.solve(b, "T"), Array)
    assert_type(jaxmg.lu_solve(general, b), Array)
    with jaxmg.pinned(1e4) as memory:
        assert_type(memory, jaxmg.PinnedMemory)
        assert_type(memory.array((2, 2), "float32"), NDArray[Any])
    plan = jaxmg.plan("potrs", 1000, "float32", 1, host=True, memory=1e7)
    assert_type(plan, jaxmg.HostPlan)
    tall = jaxmg.plan("lstsq", (1000, 10), "float32", 1, host=True, memory=1e7)
    assert_type(tall, jaxmg.HostPlan)
    assert_type(plan.seconds(1e12), float)


def _plan(mesh: Mesh) -> None:
    found = jaxmg.plan("potrs", 1000, jnp.float32, mesh, nrhs=3)
    assert_type(found, jaxmg.Plan)
    assert_type(found.fits, bool | None)
    assert_type(found.bytes, tuple[int, ...])
    assert_type(found.memory, int | None)
    assert_type(found.backend, str)
    assert_type(jaxmg.plan("potrs", 10, "float64", refine="auto").refine, str | None)
    jaxmg.plan(
        "syevd", np.int64(10), "complex64", list(mesh.devices.flat), return_eigenvectors=False
    )
    jaxmg.plan("cho_solve", 10, np.dtype(np.float64), 1)


def _layout(a: Array, mesh: Mesh) -> None:
    tiles = jaxmg.cyclic_1d(a, 2, mesh, P("r", None), inverse=False)
    assert_type(tiles, Array)
    jaxmg.verify_cyclic(a, tiles, 2)
    assert_type(jaxmg.get_cols_cyclic(4, 2, 1, 2), list[tuple[int, int, int]])
    assert_type(jaxmg.calculate_padding(10, 4), int)
    assert_type(jaxmg.pad_rows(a, 2), Array)
    assert_type(jaxmg.unpad_rows(a, 2), Array)
    rows: NDArray[np.float64] = np.ones((3, 2))
    assert_type(jaxmg.pad_rows(rows, 1), Array | NDArray[Any])
    jaxmg.register_handlers("cpu")
    assert_type(len(jaxmg.export_checks()), int)
    jaxmg.from_portable(jaxmg.cho_factor(np.eye(3, dtype=np.float32)).portable())


def accepted(a: Array, b: Array, mesh: Mesh) -> None:
    """Needs GPUs, and a process for each of them."""
    assert_type(jaxmg.potrs(a, b, mesh=mesh, backend="cusolvermp"), Array)
    assert_type(jaxmg.gesv(a, b, mesh=mesh, backend="cusolvermp"), Array)
    assert_type(jaxmg.syevd(a, backend="cusolvermp"), tuple[Array, Array])
    assert_type(jaxmg.plan("syevd", 10, "float32", mesh, backend="cusolvermp"), jaxmg.Plan)


def refused(a: Array, b: Array, mesh: Mesh) -> None:
    """Each of these is an error to a type checker, or its comment is one: it would be of no use."""
    jaxmg.potrs(a)  # type: ignore[call-overload]
    jaxmg.potrs(a, b, tile=3)  # type: ignore[call-overload]
    jaxmg.potrs(a, b, T_A=2.5)  # type: ignore[arg-type]
    jaxmg.potrs(a, b, mesh="r")  # type: ignore[arg-type]
    jaxmg.potrs(a, b, matrix_specs="r")  # type: ignore[arg-type]
    jaxmg.potrs(a, b, backend="cusolver")  # type: ignore[arg-type]
    jaxmg.potrs(a, b, precision="bf16")  # type: ignore[arg-type]
    jaxmg.potrs(a, b, return_status=3)  # type: ignore[arg-type]
    jaxmg.potrs(a, b, T_A=2.5, return_status=True)  # type: ignore[arg-type]
    jaxmg.potrs([[1.0]], b)  # type: ignore[arg-type]
    jaxmg.potrs(a, b, None, mesh, None, False, True, P("r"))  # type: ignore[call-overload]
    jaxmg.potri(a, return_logdet=True)  # type: ignore[call-overload]
    jaxmg.potri(a, precision=jax.lax.Precision.HIGH)
    jaxmg.syevd(a, precision="tf32")  # type: ignore[call-overload]
    jaxmg.sygvd(a)  # type: ignore[call-overload]
    jaxmg.eigh(a, 256)  # type: ignore[arg-type]
    jaxmg.gesv(a, b, refine="bf16")  # type: ignore[arg-type]
    jaxmg.gesv(a, [1.0], return_logdet=True)  # type: ignore[arg-type]
    jaxmg.lu_factor(a, T_A="4")  # type: ignore[arg-type]
    jaxmg.cho_factor(a, refine="bf16")  # type: ignore[arg-type]
    jaxmg.cho_factor(a, refine="tf32", donate=1)  # type: ignore[arg-type]
    jaxmg.cho_factor(a, refine="tf32").solve([1.0], return_status=True)  # type: ignore[arg-type]
    jaxmg.least_squares(a, b, mesh="r")  # type: ignore[arg-type]
    jaxmg.cho_factor(a, backend="native")  # type: ignore[call-overload]
    jaxmg.cho_solve(a, b)  # type: ignore[arg-type]
    jaxmg.cho_factor(a).solve(b, 1)  # type: ignore[call-arg]
    jaxmg.cho_factor(a).matmul(b, trans="H")  # type: ignore[arg-type]
    jaxmg.cho_factor(a, refine="auto").inv()  # type: ignore[attr-defined]
    jaxmg.cho_factor(a).n = 3  # type: ignore[misc]
    jaxmg.linalg.solve(a, b, assume_a="band")  # type: ignore[arg-type]
    jaxmg.linalg.eigh(a, "lower")  # type: ignore[arg-type]
    jaxmg.linalg.qr(a, "half")  # type: ignore[arg-type]
    jaxmg.linalg.qr(3.5, "r")  # type: ignore[arg-type]
    jaxmg.linalg.svd(a, compute_uv=False, mesh="r")  # type: ignore[arg-type]
    jaxmg.tree.eigh(a, "lower")  # type: ignore[arg-type]
    jaxmg.tree.qr(a, "full")  # type: ignore[arg-type]
    jaxmg.tree.orthogonalize(a, method="svd")  # type: ignore[arg-type]
    jaxmg.tree.inverse_pth_root(a)  # type: ignore[call-arg]
    jaxmg.plan("getrf", 10, "float64")  # type: ignore[arg-type]
    jaxmg.plan("potrs", 10.5, "float64")  # type: ignore[arg-type]
    jaxmg.gels(a, b)  # type: ignore[attr-defined]
    x, status = jaxmg.potrs(a, b, return_status=True, return_logdet=True)  # type: ignore[misc]
    assert_type(jaxmg.potri(a), tuple[Array, Array])  # type: ignore[assert-type]
    del x, status
