"""Solving with any square matrix: LAPACK's getrf and getrs."""

from __future__ import annotations

import functools
from typing import Literal, SupportsIndex, overload

import jax
from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._call.execute import select_results
from jaxmg._factors import lu_refinement, refined_lu_factor, refinement, right_hand_sides
from jaxmg._routines import lu_factor
from jaxmg._transform import at_once, derivatives, dispatch
from jaxmg._types import Backend, MatrixLike, MeshLike, PrecisionLike, Refine, Specs

GESV = record.Routine(
    name="gesv",
    native="gesv",
    operands=("a", "b"),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.RealNumber("logdet", argument="return_logdet"),
        results.Sign("sign", argument="return_logdet"),
        results.Status(),
    ),
    outputs=("x", "sign", "logdet", "status"),
    local_outputs=("x", "sign", "logdet", "status"),
    traced_outputs=(record.WORK, "x", "sign", "logdet", "status"),
    options=(record.PRECISION,),
    triangle=None,
    extension=record.Extension(),
    at_once=at_once.AtOnce(at_once.gesv, (("gpu", 1024), ("cpu", 64))),
    refines=True,
)

# gesv with ``refine``. It has no native routine of its own: lu_refinement.py makes it of several.
REFINED = record.Routine(
    name="gesv",
    native="gesv",
    operands=("a", "b"),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.Status(),
        results.Status("iterations", "return_iterations"),
    ),
    outputs=("x", "status", "iterations"),
    options=(lu_refinement.OPTION,),
    triangle=None,
    kernel=lu_refinement.factor_and_solve,
)


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: Literal[False] = False,
) -> Array: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: Literal[False] = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False,
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: Refine,
    return_iterations: Literal[True],
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: Refine,
    return_iterations: Literal[True],
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: bool = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: bool = False,
) -> Array | tuple[Array, ...]: ...  # fmt: skip


@_compat.api_boundary
def gesv(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    return_status: bool = False,
    pad: bool = True,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    donate: bool = False,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
    refine: Refine | None = None,
    return_iterations: bool = False,
) -> Array | tuple[Array, ...]:
    """Solves ``a @ x = b`` for any square matrix spread over several devices.

    Factors ``a`` by a distributed LU decomposition with partial pivoting and substitutes (LAPACK's
    getrf and getrs; J. Choi et al., "Design and implementation of the ScaLAPACK LU, QR, and
    Cholesky factorization routines", LAPACK Working Note 80, 1994). It is the transpose of ``a``
    that is factored, which lies on the devices already: the pivots are the largest entries in the
    rows of ``a``. The backward error is that of LAPACK: N. J. Higham, "Accuracy and Stability of
    Numerical Algorithms", 2nd ed., section 9.3.

    Works eagerly, where the second call with the same shapes compiles nothing, and under ``jit``.
    Inside ``shard_map`` use `gesv_shardmap_ctx`. For a Hermitian positive definite matrix `potrs`
    takes half the operations.

    Args:
        a: (n, n), float32, float64, complex64 or complex128; sharding, batches and padding are as
            for `potrs`. All of it is read.
        b: (n,) or (n, nrhs), of a's dtype, as for `potrs`.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: the mesh to run on; inferred as in `potrs`.
        matrix_specs: how ``a`` is sharded; inferred as in `potrs`.
        return_status: also return the status.
        pad: as for `potrs`.
        in_specs: another name of ``matrix_specs``.
        return_logdet: also return the determinant's sign and logarithm.
        donate: give a's buffer to the factorization, so that no second matrix is needed; ``a`` is
            deleted. Ignored under an outer ``jit``, whose own ``donate_argnums`` decides.
        backend: "auto", "native" or "cusolvermp" (as for `potrs`), which takes no ``precision``,
            gives no determinant and x = NaN for a singular matrix, with a status of k or -1.
        precision: of the products that make up the factorization, for float32 and complex64, by the
            names that `potrs` takes. None: the fastest that is as accurate as float32.
        refine: None, or the precision in which ``a`` is factored, with x refined on ``a`` itself
            until its backward error is that of a solution without ``refine``: as for `potrs`. Where
            that doesn't work (``a`` is too ill-conditioned, singular, or its numbers are further
            apart than products with it can be), it falls back to the factorization without
            ``refine`` by itself. With the native backend.
        return_iterations: with ``refine``, also return the number of iterations.

    Returns:
        x | (x, status) | (x, sign, logdet) | (x, sign, logdet, status); with ``refine`` there is no
        determinant, and iterations come last. Here

        - x has b's shape, dtype and sharding, as for `potrs`;
        - sign and logdet are scalars: det(a) = sign * exp(logdet), with sign of a's dtype and
          abs(sign) = 1, and logdet real, as of `jax.numpy.linalg.slogdet`;
        - status is an int32 scalar: 0; or LAPACK's info k > 0, where ``a`` is singular: the k-th
          diagonal entry of U is the first that is exactly zero. Then x has infinity or NaN, as
          JAX's solution has it, sign is 0 and logdet is -inf; or -1, where ``a`` has NaN or
          infinity (or the factorization overflows): all other results are NaN;
        - iterations is an int32 scalar, as LAPACK's dsgesv has it: how many there were, of the
          column that took most; or why it fell back: -3 where the factorization in lower precision
          failed, -51 where 50 iterations are not enough, by the pace of the first ones.

    Cost: 2 n^3 / 3 + 2 n^2 nrhs multiplications and additions over all ranks (four times as many
    when complex). Memory: a copy of ``a`` unless ``donate``, a few panels of n x T_A, and b, per
    rank. With ``refine`` 2 n^3 / 3 are in lower precision, and each iteration has 2 n^2 nrhs in
    that and as many in a's; memory: ``a`` rounded (half of it, or for float32 and complex64 all of
    it) in place of the copy, which takes its place where it falls back, and 72 arrays like those
    columns of b that are refined at a time: a sixteenth of a rank's rows of ``a`` at most, or 8
    columns.

    Source of ``refine``: E. Carson and N. J. Higham, "A new analysis of iterative refinement and
    its application to accurate solution of ill-conditioned sparse linear systems", SIAM J. Sci.
    Comput. 39, 2017, and "Accelerating the solution of linear systems by iterative refinement in
    three precisions", 40, 2018: GMRES, preconditioned by the factors. The criterion is that of
    LAPACK's dsgesv (J. Langou et al., SC 2006), the scaling before rounding that of its geequ.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: as `potrs`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("r",))
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> x, status = jaxmg.gesv(a, b, return_status=True)
    """
    if refine is not None or return_iterations:
        backend = refinement.check_options(
            "gesv", refine, backend, precision=precision, return_logdet=return_logdet
        )
        arguments = collect(
            REFINED, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, refine=refine,
            return_status=return_status, return_iterations=return_iterations,
        )  # fmt: skip
        return dispatch.call(REFINED, (a, b), arguments, _refined_rule)
    _refuse_determinant("gesv", backend, return_logdet)
    arguments = collect(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, precision=precision,
        return_logdet=return_logdet, return_status=return_status,
    )  # fmt: skip
    return dispatch.call(GESV, (a, b), arguments, _rule)


@_compat.api_boundary
def gesv_shardmap_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]:
    """`gesv` on the local block inside ``shard_map``; outside of one, `gesv_jit_ctx`.

    Arguments are those of `potrs_shardmap_ctx`, for any square matrix.

    Returns:
        (x, status) or (x, sign, logdet, status), the same on all ranks; x has b's shape, the others
        have shape (1,). Where b differs between the ranks, it is a ValueError if the trace tracks
        that; with ``check_vma=False`` the status is -2 and the other results are NaN.

    JAX may differentiate and batch it, as `potrs_shardmap_ctx`.

    Errors, cost and source are those of `gesv`.
    """
    _refuse_determinant("gesv_shardmap_ctx", backend, return_logdet)
    arguments = collect_local(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.call_local(GESV, (a, b), arguments, _rule)


@overload
def gesv_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array, Array, Array]: ...  # fmt: skip


@overload
def gesv_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: bool = False, pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]: ...  # fmt: skip


@_compat.api_boundary
def gesv_jit_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]:
    """`gesv` on global arrays for use inside ``jit``: also gives the work array back.

    Donate A to the outer ``jit`` and return ``a_work`` from it, and the factorization runs in A's
    own buffer.

    Returns:
        (a_work, x, status) or (a_work, x, sign, logdet, status); ``a_work`` has a's shape and dtype
        and unspecified contents. The rest is as for `gesv`, as are arguments, errors and cost.
    """
    _refuse_determinant("gesv_jit_ctx", backend, return_logdet)
    arguments = collect_traced(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.transform(GESV, (a, b), arguments, _rule)


def _refuse_determinant(caller, backend, return_logdet):
    if return_logdet and backend == "cusolvermp":
        raise ValueError(
            f"{caller}: return_logdet=True needs backend 'native' (or 'auto'); got 'cusolvermp', "
            "which gives no determinant"
        )


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of lu_factor and its solve."""

    def solve(a, b):
        factor = lu_factor.factor_for(a, arguments)
        if arguments.inside is not None:
            factor, b = right_hand_sides.alike(factor, b, arguments.inside, ("_sign", "_log_det"))
        slogdet = functools.cache(factor.slogdet)
        makers = {
            record.WORK: lambda: jax.lax.stop_gradient(a),
            "x": lambda: factor.solve(b),
            "sign": lambda: slogdet()[0],
            "logdet": lambda: slogdet()[1],
            "status": lambda: factor.status,
        }
        return select_results(GESV, arguments, makers)

    return derivatives.as_composed(solve)


def _refined_rule(arguments):
    """JVP rule of gesv with ``refine``: the same composition with a factor in lower precision."""

    def solve(a, b):
        factor = refined_lu_factor.factor_for(a, arguments)
        x, status, iterations = factor.solve(b, return_status=True, return_iterations=True)
        makers = {"x": lambda: x, "status": lambda: status, "iterations": lambda: iterations}
        return select_results(REFINED, arguments, makers)

    return derivatives.as_composed(solve)
