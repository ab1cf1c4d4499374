"""Solves with any square matrix: LAPACK's getrf and getrs."""

from __future__ import annotations

import functools
from typing import Literal, SupportsIndex, overload

import jax
from jax import Array

from jaxmg import _compat
from jaxmg._call import record, results
from jaxmg._call.arguments import collect, collect_local, collect_traced, matrix_spec
from jaxmg._call.execute import select_results
from jaxmg._host import matrices, requests
from jaxmg._host.tiles import Tiles
from jaxmg._kept import lower_precision, refined, right_hand_sides
from jaxmg._lu import lu_factor, stacks
from jaxmg._lu import refined_factor as refined_lu_factor
from jaxmg._lu import refinement as lu_refinement
from jaxmg._transform import derivatives, dispatch
from jaxmg._types import Backend, Else, MatrixLike, MeshLike, PrecisionLike, Refine, Specs

GESV = record.Routine(
    name="gesv",
    native="gesv",
    operands=(record.MATRIX, record.RIGHT_HAND_SIDES),
    results=(
        results.Matrix(record.WORK),
        results.Solution("x"),
        results.RealNumber("logdet", argument="return_logdet"),
        results.Sign("sign", argument="return_logdet"),
        results.Status(),
    ),
    outputs=("x", "sign", "logdet", "status"),
    traced_outputs=(record.WORK, "x", "sign", "logdet", "status"),
    options=(record.PRECISION,),
    triangle=None,
    extension=record.Extension(),
    whole=True,
    at_once=(stacks.GESV,),
    refines=True,
)

# gesv with ``refine``. _lu/refinement.py composes it from several native routines.
REFINED = record.Routine(
    name="gesv",
    native="gesv",
    operands=(record.MATRIX, record.RIGHT_HAND_SIDES),
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
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, refine: Refine | None = None,
    return_iterations: Literal[False] = False, memory: float | None = None,
) -> Array: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, refine: Refine | None = None,
    return_iterations: Literal[False] = False, memory: float | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False, memory: float | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[True], donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, refine: None = None,
    return_iterations: Literal[False] = False, memory: float | None = None,
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[False] = False, pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, refine: Refine, return_iterations: Literal[True],
    memory: float | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike | Tiles, b: MatrixLike, T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None, matrix_specs: Specs | None = None,
    return_status: Literal[True] = ..., pad: bool = True, *, in_specs: Specs | None = None,
    return_logdet: Literal[False] = False, donate: bool = False, backend: Backend = "auto",
    precision: PrecisionLike | None = None, refine: Refine, return_iterations: Literal[True],
    memory: float | None = None,
) -> tuple[Array, Array, Array]: ...  # fmt: skip


@overload
def gesv(
    a: MatrixLike | Tiles | Else, b: MatrixLike | Else, T_A: SupportsIndex | None | Else = None,
    mesh: MeshLike | None | Else = None, matrix_specs: Specs | None | Else = None,
    return_status: bool | Else = False, pad: bool | Else = True, *,
    in_specs: Specs | None | Else = None, return_logdet: bool | Else = False,
    donate: bool | Else = False, backend: Backend | Else = "auto",
    precision: PrecisionLike | None | Else = None, refine: Refine | None | Else = None,
    return_iterations: bool | Else = False, memory: float | None | Else = None,
) -> Array | tuple[Array, ...]: ...  # fmt: skip


@_compat.overloaded_boundary
def gesv(
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
    memory: float | None = None,
) -> Array | tuple[Array, ...]:
    """Solves ``a @ x = b`` for any square matrix spread over several devices.

    Uses a distributed LU decomposition with partial pivoting (LAPACK's getrf and getrs; J. Choi et
    al., LAPACK Working Note 80, 1994), with LAPACK's backward error. The transpose of ``a`` is
    factored, so pivots are the largest entries in rows. For a Hermitian positive definite matrix
    `potrs` takes half as many operations as `gesv`. Inside ``shard_map`` use `gesv_shardmap_ctx`.

    Args:
        a: (n, n); dtypes, sharding, batches, padding, arrays in host memory and `Tiles` are as in
            `potrs`.
        b: (n,) or (n, nrhs), of a's dtype, as in `potrs`.
        T_A, mesh, matrix_specs, return_status, pad, in_specs: As in `potrs`.
        donate: As in `potrs`. A NumPy array that passes through the devices is overwritten with its
            factors.
        return_logdet: Whether to return the determinant's sign and logarithm too.
        backend: "auto", "native" or "cusolvermp". "cusolvermp" takes no ``precision`` and gives no
            determinant; for a singular matrix x is NaN and the status is k or -1.
        precision: Precision of the products in the factorization; see docs/precision.md.
        refine: Lower precision for the factorization; x is then refined in a's own precision. See
            docs/precision.md.
        return_iterations: Whether to return the number of iterations of ``refine`` too.
        memory: As in `potrs`.

    Returns:
        x | (x, status) | (x, sign, logdet) | (x, sign, logdet, status). With ``refine`` there is no
        determinant, and iterations come last.

        - x has b's shape, dtype and sharding, as in `potrs`.
        - sign and logdet are scalars with det(a) = sign * exp(logdet), as in
          `jax.numpy.linalg.slogdet`: sign has a's dtype and abs(sign) = 1, logdet is real.
        - status is an int32 scalar. 0: success. k > 0, LAPACK's info: ``a`` is singular, and the
          k-th diagonal entry of U is the first that is exactly zero. Then x has infinity or NaN as
          in JAX, sign is 0 and logdet is -inf. -1: ``a`` has NaN or infinity, or the factorization
          overflows. Then all other results are NaN.
        - iterations is an int32 scalar: the number of iterations, or a negative code after a
          fallback to the plain factorization.

    Cost: 2 n^3 / 3 + 2 n^2 nrhs flops over all ranks (complex: 4 times). Memory per rank: a copy of
    ``a`` unless ``donate``, a few panels of n x T_A, and b.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError, MemoryError: As `potrs`.

    Examples:
        >>> a = jax.device_put(a, jax.NamedSharding(mesh, P("r", None)))
        >>> x, status = jaxmg.gesv(a, b, return_status=True)
    """
    if memory is not None or matrices.is_host(a):
        request = requests.choose(
            "gesv", a, b, mesh=mesh, spec=matrix_spec("gesv", matrix_specs, in_specs),
            memory=memory, donate=donate, pad=pad, tile=T_A, backend=backend, precision=precision,
            refine=refine,
        )  # fmt: skip
        if request is not None and not request.in_core:
            return requests.solve_general(request, return_logdet, return_status)
        if request is not None:
            a, mesh, matrix_specs, in_specs = request.a, request.mesh, None, None
            pad, donate = False, True
    if refine is not None or return_iterations:
        backend = lower_precision.check_options(
            "gesv", refine, backend, precision=precision, return_logdet=return_logdet
        )
        arguments = collect(
            REFINED, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, refine=refine,
            return_status=return_status, return_iterations=return_iterations,
        )  # fmt: skip
        return dispatch.call(REFINED, (a, b), arguments, _refined_rule)
    if return_logdet:
        _refuse_determinant("gesv", backend)
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
    """Solves ``A @ x = b`` as `gesv`, for the local block of A inside ``shard_map``.

    Arguments are those of `potrs_shardmap_ctx`, for any square matrix. Outside of ``shard_map``
    `gesv_shardmap_ctx` takes global arrays, and returns the work array before x, as `potrs_jit_ctx`
    does.

    Returns:
        (x, status) | (x, sign, logdet, status), the same on all ranks. x has b's shape, the others
        have shape (1,). If b differs between ranks, the call raises a ValueError if the trace
        tracks this; with ``check_vma=False`` the status is -2 and the other results are NaN.

    Derivatives and batches are as in `potrs_shardmap_ctx`. Errors, cost and source are those of
    `gesv`.
    """
    if return_logdet:
        _refuse_determinant("gesv_shardmap_ctx", backend)
    arguments = collect_local(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, backend,
        precision=precision, return_logdet=return_logdet,
    )  # fmt: skip
    return dispatch.call_local(GESV, (a, b), arguments, _rule)


@_compat.api_boundary
def with_work(a, b, T_A, mesh, matrix_specs, in_specs, pad):
    """Returns (a_work, x, status) of global arrays, as JAXMg 1.4's ``lu_solve_shardmap_ctx``."""
    arguments = collect_traced(
        GESV, T_A, mesh, matrix_specs, in_specs, pad, "auto", precision=None, return_logdet=False
    )
    return dispatch.transform(GESV, (a, b), arguments, _rule)


def _refuse_determinant(caller, backend):
    if backend == "cusolvermp":
        raise ValueError(
            f"{caller}: return_logdet=True needs backend 'native' (or 'auto'); got 'cusolvermp', "
            "which gives no determinant"
        )


def _rule(arguments):
    """JVP rule: differentiates the equivalent composition of lu_factor and `LUFactor.solve`."""

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


# JVP rule with ``refine``: the same composition, with a factor in lower precision.
_refined_rule = refined.rule_of_solve(REFINED, refined_lu_factor.factor_for)
