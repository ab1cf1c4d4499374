"""Solves with a positive definite matrix: LAPACK's potrf and potrs."""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

import jax
from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced, matrix_spec
from jaxmg._call.execute import select_results
from jaxmg._cholesky import cho_factor, refined_factor, refinement, stacks
from jaxmg._host import matrices, requests
from jaxmg._host.tiles import Tiles
from jaxmg._kept import lower_precision, refined, right_hand_sides
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, PrecisionLike, Refine, Specs

POTRS = record.Routine(
    name="potrs",
    native="potrs",
    operands=(record.MATRIX, record.RIGHT_HAND_SIDES),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.RealNumber("logdet", argument="return_logdet"),
        results.Status(),
    ),
    outputs=("x", "logdet", "status"),
    traced_outputs=(record.WORK, "x", "logdet", "status"),
    options=(record.PRECISION,),
    refines=True,
    extension=record.Extension(),
    whole=True,
    at_once=(stacks.POTRS,),
)
# potrs with ``refine``. _cholesky/refinement.py composes it from several native routines.
REFINED = record.Routine(
    name="potrs",
    native="potrs",
    operands=(record.MATRIX, record.RIGHT_HAND_SIDES),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.Status(),
        results.Status("iterations", "return_iterations"),
    ),
    outputs=("x", "status", "iterations"),
    options=(lower_precision.OPTION,),
    kernel=refinement.factor_and_solve,
)


@overload
def potrs(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: Literal[False] = False, check: bool = False,
    memory: float | None = None,
) -> Array: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None,
    refine: Refine | None = None, return_iterations: Literal[False] = False, check: bool = False,
    memory: float | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False, check: bool = False,
    memory: float | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False, check: bool = False,
    memory: float | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: Refine,
    return_iterations: Literal[True], check: bool = False,
    memory: float | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False,
    backend: Backend = "auto", precision: PrecisionLike | None = None, refine: Refine,
    return_iterations: Literal[True], check: bool = False,
    memory: float | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def potrs(
    a: MatrixLike | Tiles | Else, b: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    return_status: bool | Else = False, pad: bool | Else = True, *,
    in_specs: Specs | None | Else = None, return_logdet: bool | Else = False,
    donate: bool | Else = False, backend: Backend | Else = "auto",
    precision: PrecisionLike | None | Else = None, refine: Refine | None | Else = None,
    return_iterations: bool | Else = False, check: bool | Else = False,
    memory: float | None | Else = None,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
def potrs(
    a: MatrixLike | Tiles,
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
    memory: float | None = None,
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    """Solves ``a @ x = b`` for a Hermitian positive definite matrix spread over several devices.

    Uses a distributed Cholesky decomposition (LAPACK's potrf; J. Choi et al., LAPACK Working Note
    80, 1994), with LAPACK's backward error. Inside ``shard_map`` use `potrs_shardmap_ctx`.

    Args:
        a: (n, n), float32, float64, complex64 or complex128; a JAX or NumPy array, sharded,
            replicated or on one device; or `Tiles`. Only the upper triangle is read. Leading
            dimensions make a batch. A matrix in host memory (a NumPy array, or one of memory kind
            "pinned_host") that doesn't fit the devices, and such `Tiles`, pass through them by
            block columns: see docs/howto/host_memory.md.
        b: (n,) or (n, nrhs), of a's dtype, with a's leading dimensions or none. Every device holds
            all of b during the solve.
        T_A: Tile width, at least 1. None: the plugin chooses.
        mesh: ``Mesh`` or ``AbstractMesh`` to run on. None: a's mesh, else the context mesh, else
            the default devices (docs/api.md). Required under ``jit`` with automatic axes and no
            context mesh.
        matrix_specs: Sharding of ``a``: ``P('r')``, ``P('r', None)``, ``P(None, 'c')``,
            ``P('r', 'c')`` or ``P(('r', 'c'), None)``. None: a's own, else all mesh axes along the
            rows.
        return_status: Whether to return the status too.
        pad: False adds no padding, so the number of ranks must divide the number of a's rows; these
            may include rows of padding, see docs/api.md.
        in_specs: Alias of ``matrix_specs``.
        return_logdet: Whether to return log(det(a)) too.
        donate: Whether to compute in a's buffer and delete ``a``. Under ``jit`` use
            ``donate_argnums``. A NumPy array that passes through the devices is overwritten, its
            upper triangle (Fortran-ordered: lower) with U of a = U^H U (L), and some entries of the
            other triangle near the diagonal.
        backend: "auto", "native", "cusolvermg" or "cusolvermp"; see docs/api.md.
        precision: Precision of the products in the factorization; see docs/precision.md.
        refine: Lower precision for the factorization; x is then refined in a's own precision. See
            docs/precision.md.
        return_iterations: Whether to return the number of iterations of ``refine`` too.
        check: Whether to check that ``a`` is Hermitian up to rounding. If it isn't, eager calls
            raise a ValueError; traced calls and batches return NaN.
        memory: Bytes that the call may take on each device, for a matrix in host memory. None: as
            many as JAX may take there; CPU devices then have no limit.

    Returns:
        x | (x, status) | (x, logdet) | (x, logdet, status). With ``refine`` there is no logdet, and
        iterations come last.

        - x has b's shape, dtype and sharding (replicated if b isn't sharded over the mesh). Under
          ``jit`` XLA chooses the sharding on automatic axes.
        - logdet is a real scalar.
        - status is an int32 scalar: 0; LAPACK's info, the order of the leading minor that is not
          positive definite; or another value if ``a`` has NaN or infinity. If it is not 0, x and
          logdet are NaN.
        - iterations is an int32 scalar: the number of iterations, or a negative code after a
          fallback to the plain factorization.

    Cost: n^3 / 3 + 2 n^2 nrhs flops over all ranks (complex: 4 times). Memory per rank: a copy of
    ``a`` unless ``donate``, a few panels of n x T_A, and b.

    Raises:
        TypeError: A type or dtype is unsupported, or the dtypes differ.
        ValueError: An argument is invalid, the backend isn't available, the call is inside
            ``shard_map``, ``jax_enable_x64`` is off for a 64-bit dtype, or b shares the memory
            of a donated ``a``.
        MemoryError: There isn't enough host memory for the factor of a matrix in host memory.
        NotImplementedError: Derivatives and batches with JAX before 0.10.
        RuntimeError: No plugin is installed, an array was deleted, or the mesh spans processes
            without ``jax.distributed``.

    Examples:
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> x, status = jaxmg.potrs(a, b, return_status=True)
    """
    if memory is not None or matrices.is_host(a):
        request = requests.choose(
            "potrs", a, b, mesh=mesh, spec=matrix_spec("potrs", matrix_specs, in_specs),
            memory=memory, donate=donate, pad=pad, tile=T_A, backend=backend, precision=precision,
            refine=refine, check=check,
        )  # fmt: skip
        if request is not None and not request.in_core:
            return requests.solve(request, return_logdet, return_status)
        if request is not None:
            a, mesh, matrix_specs, in_specs = request.a, request.mesh, None, None
            pad, donate, check = False, True, False
    if refine is not None or return_iterations:
        backend = lower_precision.check_options(
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
    """Solves ``A @ x = b`` as `potrs`, for the local block of A inside ``shard_map``.

    Every rank calls it with its block, in a ``shard_map`` with manual axes only. Outside of
    ``shard_map`` it is `potrs_jit_ctx` with a status of shape (1,).

    Args:
        a: (rows, n), the rank's rows of the matrix, rows = ceil(n / P) on P ranks. If P doesn't
            divide n, the last rows of the global array are padding and not read. With
            ``matrix_specs=P(row_axis, column_axis)`` ``a`` is the rank's block, (n / Pr, n / Pc),
            and Pr * Pc must divide n.
        b: (n,) or (n, nrhs), the same on all ranks.
        T_A, in_specs, backend, precision: As in `potrs`.
        mesh: Ignored. True or False is taken as ``pad``, the fourth argument in older code.
        matrix_specs: The ``shard_map``'s spec of A, ``P(axis, None)``. Required if several axes
            shard A, or if the block's shape and the trace don't determine the axis that shards A.
        return_logdet: Whether to return log(det(A)) too, of shape (1,).
        pad: False allows rows of padding after the block's ceil(n / P) rows if P divides n. They
            are not read.

    Returns:
        (x, status) | (x, logdet, status), the same on all ranks. x has b's shape, status has shape
        (1,). Older versions of JAX can't infer this and need ``check_vma=False``
        (``check_rep=False``). If b differs between ranks, the call raises a ValueError; with
        ``check_vma=False`` the status is -2 (argument 2 is illegal), and x and logdet are NaN.

    Derivatives work inside the ``shard_map`` and around it. Inside, with ``check_vma=False``, they
    are derivatives of the sum of all ranks' results, as for ``psum``. Under ``jax.vmap`` right-hand
    sides of one matrix become columns of one solve; several matrices are solved one after the
    other, each by all ranks.

    Errors, cost and source are those of `potrs`.
    """
    arguments = collect_local(
        POTRS, T_A, mesh, matrix_specs, in_specs, pad, backend,
        older=(("mesh", "pad"),), precision=precision, return_logdet=return_logdet,
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
    a: MatrixLike | Else, b: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None, *,
    in_specs: Specs | None | Else = None, return_logdet: bool | Else = False,
    pad: bool | Else = True, backend: Backend | Else = "auto",
    precision: PrecisionLike | None | Else = None,
) -> tuple[Array, Array, Array] | tuple[Array, Array, Array, Array]: ...  # fmt: skip


@_compat.overloaded_boundary
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
    """Solves ``a @ x = b`` as `potrs` inside ``jit``, and returns the work array too.

    The factorization runs in a's buffer if you donate ``a`` to the outer ``jit`` and return
    ``a_work`` from it.

    Returns:
        (a_work, x, status) | (a_work, x, logdet, status). ``a_work`` has a's shape and dtype; its
        contents are unspecified. Arguments, other results, errors and cost are those of `potrs`.
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


# JVP rule with ``refine``: the same composition, with a factor in lower precision.
_refined_rule = refined.rule_of_solve(REFINED, refined_factor.factor_for)
