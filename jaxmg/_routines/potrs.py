"""Solving with a positive definite matrix: LAPACK's potrf and potrs."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

import jax
from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced
from jaxmg._call.execute import select_results
from jaxmg._factors import refined_factor, refinement, right_hand_sides
from jaxmg._routines import cho_factor
from jaxmg._transform import at_once, derivatives, dispatch
from jaxmg._types import Backend, MatrixLike, MeshLike, PrecisionLike, Refine, Specs

POTRS = record.Routine(
    name="potrs",
    native="potrs",
    operands=("a", "b"),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.RealNumber("logdet", argument="return_logdet"),
        results.Status(),
    ),
    outputs=("x", "logdet", "status"),
    local_outputs=("x", "logdet", "status"),
    traced_outputs=(record.WORK, "x", "logdet", "status"),
    options=(record.PRECISION,),
    older=(("mesh", "pad"),),
    refines=True,
    extension=record.Extension(),
    at_once=at_once.AtOnce(at_once.potrs, (("gpu", 2048), ("cpu", 64))),
)
# potrs with ``refine``. It has no native routine of its own: refinement.py makes it of several.
REFINED = record.Routine(
    name="potrs",
    native="potrs",
    operands=("a", "b"),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.Status(),
        results.Status("iterations", "return_iterations"),
    ),
    outputs=("x", "status", "iterations"),
    options=(refinement.OPTION,),
    kernel=refinement.factor_and_solve,
)


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: Literal[False] = False, check: bool = False,
) -> Array: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: Literal[False] = False, check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False, check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False, check: bool = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[False] = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: Refine,
    return_iterations: Literal[True], check: bool = False,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: Literal[True] = ..., pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: Refine,
    return_iterations: Literal[True], check: bool = False,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Specs | None = None, return_logdet: bool = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: bool = False, check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.api_boundary
def potrs(
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
    check: bool = False,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    """Solves ``a @ x = b`` for a Hermitian positive definite matrix spread over several devices.

    Factors ``a`` by a distributed Cholesky decomposition and substitutes forward and back (LAPACK's
    potrf and potrs; the right-looking blocked algorithm on block-cyclic tiles of ScaLAPACK: J. Choi
    et al., "Design and implementation of the ScaLAPACK LU, QR, and Cholesky factorization
    routines", LAPACK Working Note 80, 1994). The backward error is that of LAPACK: N. J. Higham,
    "Accuracy and Stability of Numerical Algorithms", 2nd ed., theorem 10.4.

    Works eagerly, where the second call with the same shapes compiles nothing, and under ``jit``.
    Inside ``shard_map`` use `potrs_shardmap_ctx`.

    Args:
        a: (n, n), Hermitian positive definite, float32, float64, complex64 or complex128; a JAX or
            NumPy array, sharded, replicated or on one device. Only the upper triangle is read.
            With leading dimensions it is a batch, as ``jax.vmap`` would make one. Sharded as
            ``P('r', None)`` with n a multiple of the number of devices it is used where it lies;
            otherwise XLA pads its rows or reshards it first. With ``pad=False`` also (rows, n), see
            there.
        b: (n,) or (n, nrhs), of a's dtype. Every device holds all of it during the solve. In a
            batch it has a's leading dimensions too, or is the same for all.
        T_A: tile width, any integer of at least 1; None lets the plugin choose.
        mesh: ``jax.sharding.Mesh`` or ``AbstractMesh`` to run on; the order of its devices is the
            order of the ranks. None takes a's own mesh, else the context mesh, else the one device
            that holds ``a`` (with a warning, once, where other devices would be idle), else, for
            NumPy arrays, ``jax_default_device`` or all local devices.
            Under ``jit`` with automatic axes pass it, or set a context mesh; given, it need not be
            the context's.
        matrix_specs: how ``a`` is sharded: ``P('r')``, ``P('r', None)``, ``P(None, 'c')``,
            ``P('r', 'c')`` or ``P(('r', 'c'), None)``; a list or tuple that starts with it will do.
            None takes a's own, else all axes of the mesh along the rows.
        return_status: also return the status.
        pad: False raises where n isn't a multiple of the number of ranks, instead of padding; and
            ``a`` may be (rows, n) with rows > n, padded by the caller: each of P ranks has rows / P
            of them, of which the first n / P are the matrix's and the others are not read.
        in_specs: another name of ``matrix_specs``.
        return_logdet: also return log(det(a)).
        donate: give a's buffer to the factorization, so that no second matrix is needed; ``a`` is
            deleted. Ignored under an outer ``jit``, whose own ``donate_argnums`` decides.
        backend: "auto" (the fastest that can run the call), "native", "cusolvermg", or
            "cusolvermp", which wants a process for each GPU and works on a grid of them: on that of
            the mesh where ``a`` is sharded ``P('r', 'c')``, else one that is nearly square. What a
            derivative factors and solves beside the call itself takes "native".
        precision: of the products that make up the factorization, for float32 and complex64 with
            the native backend, by JAX's names (`jax.default_matmul_precision`), or a member of
            `jax.lax.Precision` or `jax.lax.DotAlgorithmPreset`. None: the fastest that is as
            accurate as float32, whatever ``jax_default_matmul_precision`` says: on GPUs that of
            "F16_F16_F32_X3" for large matrices, else "highest". "highest": plain.
            "F16_F16_F32_X3": three products of float16 parts of the equilibrated matrix, on tensor
            cores or emulated, which are as good as float32. "BF16_BF16_F32_X6" and
            "BF16_BF16_F32_X3" (or "high"): six, or three, products of bfloat16 parts, without
            equilibration; six are as good too, three have some 17 bits. "tf32": GPUs round
            factors to TF32, which has a unit roundoff of 5e-4 in place of 6e-8, and a matrix with a
            condition beyond some 1e3 may come out as not positive definite; CPUs compute as with
            "highest". For other dtypes None or "highest".
        refine: None, or the precision in which ``a`` is factored, with x refined on ``a`` itself
            until its backward error is that of a solution without ``refine``: "float32", for
            float64 and complex128; "F16_F16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X3" and
            "tf32", as for ``precision``, for all dtypes; "auto" is "BF16_BF16_F32_X3" on GPUs, on
            CPUs "float32" for float64 and complex128 and "tf32" for the others. Where that doesn't
            work (``a`` is too ill-conditioned, beyond about 1e7 with "float32", 1e6 with
            "BF16_BF16_F32_X3" and 1e4 with "tf32"), it falls back to the factorization without
            ``refine`` by itself. With the native backend.
            A matrix that misses being positive definite by less than the lower precision can tell
            may be solved with, as by LAPACK's dsposv.
        return_iterations: with ``refine``, also return the number of iterations.
        check: True looks whether ``a``, of which one triangle is read, is Hermitian but for
            rounding, with one pass over it. Where it isn't, that is a ValueError; under ``jit``,
            in derivatives and in batches the results are NaN and the status isn't 0.

    Returns:
        x | (x, status) | (x, logdet) | (x, logdet, status); with ``refine`` there is no logdet, and
        iterations come last. Here

        - x has b's shape, dtype and sharding (replicated if b isn't sharded over the mesh). Under
          ``jit`` that is known of explicit axes and of constants; otherwise XLA chooses;
        - logdet is a real scalar;
        - status is an int32 scalar: 0, or LAPACK's info, the order k of the leading minor that is
          not positive definite. Then x and logdet are NaN. NaN or infinity in ``a`` gives NaN and a
          status that is not 0;
        - iterations is an int32 scalar, as LAPACK's dsposv has it: how many there were, of the
          column that took most; or why it fell back: -3 where the factorization in lower precision
          failed, -51 where 50 iterations are not enough, by the pace of the first ones.

    Cost: n^3 / 3 + 2 n^2 nrhs multiplications and additions over all ranks (four times as many when
    complex). Memory: a copy of ``a`` unless ``donate``, a few panels of n x T_A, and b, per rank.
    With ``refine`` n^3 / 3 are in lower precision, and each iteration has 2 n^2 nrhs in that and as
    many in a's; memory: ``a`` rounded (half of it, or for float32 and complex64 all of it) in place
    of the copy, which takes its place where it falls back, and eight arrays like b.

    Source of ``refine``: J. Langou et al., "Exploiting the performance of 32 bit floating point
    arithmetic in obtaining 64 bit accuracy", SC 2006 (dsposv, and its criterion); N. J. Higham and
    S. Pranesh, "Exploiting lower precision arithmetic in solving symmetric positive definite linear
    systems and least squares problems", SIAM J. Sci. Comput. 43, 2021 (scaling and shift before
    rounding); E. Carson and N. J. Higham, "Accelerating the solution of linear systems by iterative
    refinement in three precisions", SIAM J. Sci. Comput. 40, 2018 (corrections by a preconditioned
    iteration); SLATE's posv_mixed_gmres is of that kind. Here it is conjugate gradients.

    Raises:
        TypeError: a or b is no array, has another dtype, or they have different dtypes; T_A is no
            integer; mesh or spec is none.
        ValueError: shapes don't fit, the spec or the mesh isn't possible, T_A < 1 or too large for
            64 bits, a call inside ``shard_map``, 64-bit dtypes while ``jax_enable_x64`` is off, the
            backend isn't available, the mesh has devices of another process, or b shares the memory
            of a donated ``a``.
        NotImplementedError: a derivative or a batch, with JAX before 0.10.
        RuntimeError: no plugin is installed for the platform.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("r",))
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> x, status = jaxmg.potrs(a, b, return_status=True)
    """
    if refine is not None or return_iterations:
        backend = refinement.check_options(
            "potrs", refine, backend, precision=precision, return_logdet=return_logdet
        )
        arguments = collect(
            REFINED, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, refine=refine,
            return_status=return_status, return_iterations=return_iterations,
        )  # fmt: skip
        return dispatch.call(REFINED, (a, b), arguments, _refined_rule, check)
    arguments = collect(
        POTRS, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, precision=precision,
        return_logdet=return_logdet, return_status=return_status,
    )  # fmt: skip
    return dispatch.call(POTRS, (a, b), arguments, _rule, check)


@_compat.api_boundary
def potrs_shardmap_ctx(
    a: MatrixLike,
    b: MatrixLike,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | bool | None = None,
    matrix_specs: Specs | None = None,
    *,
    in_specs: Specs | None = None,
    return_logdet: bool = False,
    pad: bool = True,
    backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, ...]:
    """`potrs` on the local block inside ``shard_map``; outside of one, `potrs_jit_ctx`, with a
    status of shape (1,) too.

    Inside a ``shard_map`` of which all axes are manual, every rank calls it with its block:

    Args:
        a: (rows, n), this rank's rows of the matrix, rows = ceil(n / P) on P ranks; where P doesn't
            divide n, the last rows of the global array are padding and never read. With
            ``matrix_specs=P(row_axis, column_axis)`` its block, (n / Pr, n / Pc), where Pr * Pc
            divides n.
        b: (n,) or (n, nrhs), the same on all ranks.
        T_A: tile width; None lets the plugin choose.
        mesh: not used here; True or False is taken for ``pad``, which is fourth in older code.
        matrix_specs: ``P(axis, None)``, the spec that the ``shard_map`` has for A; needed where the
            shape of the block, and what the trace knows that it varies over, leave open which axes
            it is sharded over, and always for several axes, whose order isn't known.
        in_specs: another name of ``matrix_specs``.
        return_logdet: also return log(det(A)), of shape (1,).
        pad: False allows rows of padding below the block's ceil(n / P), which are not read, where P
            divides n.
        backend: as for `potrs`.
        precision: as for `potrs`.

    Returns:
        (x, status) or (x, logdet, status), the same on all ranks; x has b's shape and status has
        shape (1,). In older versions of JAX ``shard_map`` can't see that they are the same and
        needs ``check_vma=False`` (``check_rep=False`` in older code). Where b differs between the
        ranks, it is a ValueError if the trace tracks that; with ``check_vma=False`` the status is
        -2 (argument 2 is illegal, in LAPACK's manner), and x and logdet are NaN.

    JAX may differentiate it, around the ``shard_map`` or inside. Inside and with
    ``check_vma=False`` that is, as of a ``psum``, a derivative of the sum of what all ranks return.
    In ``jax.vmap`` right-hand sides of one matrix become columns of one solve, and of many matrices
    all ranks take one after the other.

    Errors, cost and source are those of `potrs`.
    """
    arguments = collect_local(
        POTRS, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.call_local(POTRS, (a, b), arguments, _rule)


@overload
def potrs_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def potrs_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip


@overload
def potrs_jit_ctx(
    a: MatrixLike, b: MatrixLike, T_A: SupportsIndex | None = None, mesh: MeshLike | None = None,
    matrix_specs: Specs | None = None, *, in_specs: Specs | None = None,
    return_logdet: bool = False, pad: bool = True, backend: Backend = "auto",
    precision: PrecisionLike | None = None,
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]: ...  # fmt: skip


@_compat.api_boundary
def potrs_jit_ctx(
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
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]:
    """`potrs` on global arrays for use inside ``jit``: also gives the work array back.

    Donate A to the outer ``jit`` and return ``a_work`` from it, and the factorization runs in A's
    own buffer.

    Returns:
        (a_work, x, status) or (a_work, x, logdet, status); ``a_work`` has a's shape and dtype and
        unspecified contents. The rest is as for `potrs`, as are arguments, errors and cost.
    """
    arguments = collect_traced(
        POTRS, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.transform(POTRS, (a, b), arguments, _rule)


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of cho_factor and cho_solve."""

    def solve(a, b):
        factor = cho_factor.factor_for(a, arguments)
        if arguments.inside is not None:
            factor, b = right_hand_sides.alike(factor, b, arguments.inside, ("_log_det",))
        makers = {
            record.WORK: lambda: jax.lax.stop_gradient(a),
            "x": lambda: factor.solve(b),
            "logdet": factor.logdet,
            "status": lambda: factor.status,
        }
        return select_results(POTRS, arguments, makers)

    return derivatives.as_composed(solve)


def _refined_rule(arguments):
    """JVP rule of potrs with ``refine``: the same composition with a factor in lower precision."""

    def solve(a, b):
        factor = refined_factor.factor_for(a, arguments)
        x, status, iterations = factor.solve(b, return_status=True, return_iterations=True)
        makers = {"x": lambda: x, "status": lambda: status, "iterations": lambda: iterations}
        return select_results(REFINED, arguments, makers)

    return derivatives.as_composed(solve)
