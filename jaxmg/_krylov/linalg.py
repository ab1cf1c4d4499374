"""`jaxmg.linalg.cg`."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import checks, ffi, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._krylov import conjugate_gradients, operators
from jaxmg._layouts import exporting, layouts, meshes, shardings
from jaxmg._linalg import compositions, halves
from jaxmg._stacks import scaling
from jaxmg._types import AnyArray, AnyMatrixLike, MeshLike, Operator

_CG = "linalg.cg"


@exporting.named_tuple
class CGInfo(NamedTuple):
    """Says how far `cg` has come."""

    iterations: Array
    residuals: Array
    status: Array


@exporting.named_tuple
class CGResult(NamedTuple):
    """Holds the results of `cg`."""

    x: Array
    info: CGInfo


@_compat.api_boundary
def cg(
    A: AnyMatrixLike | Operator,
    b: AnyMatrixLike,
    x0: AnyMatrixLike | None = None,
    *,
    tol: AnyArray | SupportsFloat = 1e-5,
    atol: AnyArray | SupportsFloat = 0.0,
    maxiter: SupportsIndex | None = None,
    M: Operator | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> CGResult:
    """Solves A x = b by conjugate gradients, as `jax.scipy.sparse.linalg.cg`, for all columns of b.

    Args:
        A: Hermitian positive definite. An array (n, n), sharded by rows, which is read whole and
            isn't copied; or an operator: a function that returns A V, sharded like V, for any V
            (n, m) of b's dtype.
        b: (n,) or (n, m), real or complex. Columns are independent: one that has converged doesn't
            change any more.
        x0: Where to start, of b's shape. None: 0. It has no derivative.
        tol, atol: Real scalars. A column has converged if norm(b - A x) is at most
            max(tol norm(b), atol).
        maxiter: Most iterations. None: 10 n.
        M: An operator with an approximate inverse of A, Hermitian positive definite: for example
            `PivotedCholeskyResult.preconditioner`. It has no derivative. None: the identity.
        mesh, matrix_specs, in_specs: As in `jaxmg.cho_factor`, for an array A. With a function,
            arrays stay where they are: shard b by rows.

    Returns:
        (x, info). x is sharded like b. info has, for each column of b, ``iterations`` and
        ``residuals``, norm(b - A x) / norm(b) of the x that is returned; and ``status``, the number
        of columns that didn't converge. Such a column is the last iterate, as in JAX and SciPy. It
        is NaN if A or M turns out not to be positive definite, or if b isn't finite.

    Each iteration multiplies A and M by all columns at once. One more product determines residuals,
    from A and not from a recursion. While they are too large and fall, the iteration starts again
    from x. If A isn't Hermitian, columns usually don't converge; the derivatives are wrong then.

    x has derivatives with respect to b, to A, and to arrays on which the function A depends, of any
    order. Each is a solution of another system by this iteration, which ``tol`` ends, and whose
    convergence isn't told. Complex functions need a transpose in JAX. ``jax.vmap`` maps all
    arguments; leading dimensions make a batch if A is an array and there is no M.

    An operator may be a pytree, such as `jax.tree_util.Partial`, whose arrays are arguments of the
    compiled program. A function with a closure is compiled again in each call outside of a jit.

    Cost: 2 n^2 m flops an iteration for an array, over all ranks, which reads A once. Memory: four
    arrays like b, sharded by rows, beyond b and x.

    Source: M. R. Hestenes, E. Stiefel, J. Res. Natl. Bur. Stand. 49, 1952.

    Raises:
        TypeError, ValueError, RuntimeError: As `jaxmg.potrs`. ``maxiter`` isn't an integer of at
            least 0; an operator returns another shape or dtype than that of its argument.

    Examples:
        >>> x, info = jaxmg.linalg.cg(a, b, tol=1e-8)
        >>> a = kernel + noise * jnp.eye(n)
        >>> factor = jaxmg.linalg.pivoted_cholesky(kernel, 500)
        >>> x, info = jaxmg.linalg.cg(a, b, M=factor.preconditioner(noise))
    """
    if in_specs is not None:
        matrix_specs = matrix_spec(_CG, matrix_specs, in_specs)
    if maxiter is not None:
        maxiter = _limit(maxiter)
    start = () if x0 is None else (x0,)
    arrays = (A, b, _tolerances(tol, atol), *start)
    if M is not None or callable(A):
        return _by_operators(arrays, M, maxiter, mesh, matrix_specs)
    return _by_matrix(arrays, maxiter, mesh, matrix_specs)


def _limit(maxiter):
    try:
        limit = checks.index(maxiter)
    except TypeError:
        limit = -1
    if limit < 0:
        error = ValueError if isinstance(maxiter, int) else TypeError
        raise error(f"{_CG}: maxiter must be an integer of at least 0; got {maxiter!r}")
    return limit


def _tolerances(tol, atol):
    """Returns (tol, atol) in an array."""
    if isinstance(tol, float) and isinstance(atol, float):
        return np.array([tol, atol], np.float64 if _compat.x64_enabled() else np.float32)
    for name, value in (("tol", tol), ("atol", atol)):
        checks.real_scalar(_CG, name, value)
    if not any(isinstance(value, jax.Array) for value in (tol, atol)):
        return _tolerances(float(tol), float(atol))
    return jnp.stack([jnp.asarray(value, jnp.result_type(float)) for value in (tol, atol)])


@programs.cache_plans
def _by_matrix(arrays, limit, mesh, spec):
    _check_start(arrays)
    kinds = "like b", "small", "small", "small"
    return compositions.plan(arrays, "cg", iterated, kinds, mesh, spec, limit, pack=_pack)


def _check_start(arrays):
    """Raises unless the start, if there is one, has the shape of b."""
    a, b, _, *start = arrays
    for x0 in start:
        for name, array in (("b", b), ("x0", x0)):
            checks.is_an_array(_CG, name, array)
            checks.usable(_CG, name, array)
        if x0.shape != b.shape:
            raise ValueError(
                f"{_CG}: x0 must have the shape of b, {tuple(b.shape)}; it has {tuple(x0.shape)}"
            )
        are_real = callable(a) or not jnp.iscomplexobj(a), not jnp.iscomplexobj(b)
        if jnp.iscomplexobj(x0) and all(are_real):
            raise TypeError(f"{_CG}: x0 has dtype {x0.dtype}, but A and b are real")


def _pack(x, *info):
    return CGResult(x, CGInfo(*info))


@compositions.program(with_b=True, single=(2,))
def iterated(call, a, b, tolerances, *start):
    (limit,) = call.attributes
    return _iterated(call.layout, a, None, limit, b, tolerances, *start)


def _iterated(layout, a, m, limit, b, tolerances, *start):
    """Returns x, iterations, relative residuals and the status.

    Args:
        layout: that of an array ``a``; None if ``a`` is a function.
        m: the preconditioner; None if there is none.
    """
    columns = b if b.ndim == 2 else b[:, None]
    limit = 10 * len(columns) if limit is None else limit
    if layout is None:
        multiply, exponent = a, 0
    else:
        multiply, power = operators.scaled_product(a, layout)
        exponent = scaling.exponent_of_power(power)
        columns = operators.by_rows(columns, layout)
    down, up = scaling.scale_of(columns, 0, only_finite=True)
    exponents = scaling.exponent_of_power(up) - exponent
    tol, atol = tolerances.astype(down.dtype)
    x0 = None
    if start:
        x0 = start[0].reshape(columns.shape).astype(columns.dtype)
        x0 = shardings.constrain_like(scaling.multiplied(x0, -exponents), columns)
    x, found = conjugate_gradients.solve(
        multiply, m, scaling.times_scale(columns, down), x0, (tol, atol * down), limit
    )
    x = scaling.multiplied(x, exponents).reshape(b.shape)
    status = jnp.sum(found.unsolved, dtype=jnp.int32)
    shape = b.shape[1:]
    return x, found.iterations.reshape(shape), found.residuals.reshape(shape), status


def _by_operators(arrays, m, limit, mesh, spec):
    """Solves with a function as A, M or both."""
    a, b, tolerances, *start = arrays
    if not callable(a):
        checks.is_an_array(_CG, "A", a)
    checks.is_an_array(_CG, "b", b)
    if m is not None and not callable(m):
        raise TypeError(f"{_CG}: M must be a function of an array (n, m); got {type(m).__name__}")
    _check_start(arrays)
    checks.usable(_CG, "b", b)
    if not callable(a):
        return _by_matrix_and_operator(arrays, m, limit, mesh, spec)
    if mesh is not None or spec is not None:
        raise ValueError(
            f"{_CG}: A is a function, whose arrays stay where they are: shard b, and don't pass "
            "mesh, matrix_specs or in_specs"
        )
    (b,) = compositions.promote("cg", b, names=("b",))
    if b.ndim not in (1, 2):
        raise ValueError(
            f"{_CG}: b must have shape (n,) or (n, m) for a function A; it has {tuple(b.shape)}"
        )
    checks.array(_CG, "b", b, checks.ALL, (*checks.DTYPES, *checks.HALVES))
    leaves, static = operators.split((a, m))
    arrays = (b, tolerances, *start, *leaves)
    return _pack(*_run(_Functions(static, limit, bool(start)), arrays))


class _Functions(NamedTuple):
    """`cg` of a function, which takes b, the tolerances, the start and the operators' arrays."""

    static: operators.Static
    limit: int | None
    starts: bool

    def __call__(self, b, tolerances, *arrays):
        start, leaves = arrays[: self.starts], arrays[self.starts :]
        a, m = self.static.join(leaves)
        a = operators.checked(_CG, "A", a)
        m = None if m is None else operators.checked(_CG, "M", m)
        x, *info = _iterated(
            None, a, m, self.limit, halves.widened(b), tolerances, *map(halves.widened, start)
        )
        return shardings.constrain_like(halves.narrowed(x, halves.dtype_of(b)), b), *info


def _run(function, arrays):
    """Calls a `_Functions` on arrays: in the caller's trace, or compiled."""
    if layouts.traced(arrays):
        with _compat.default_promotion():
            return function(*arrays)
    if function.static.is_permanent:
        return _compiled(function)(*arrays)
    return _compat.compiled(_compile(function))(*arrays)


def _compile(function):
    return jax.jit(_compat.default_promotion()(lambda *arrays: function(*arrays)))


_compiled = functools.lru_cache(maxsize=128)(_compile)


def _by_matrix_and_operator(arrays, m, limit, mesh, spec):
    """Solves with an array as A and a function as M."""
    a, b, tolerances, *start = arrays
    checks.usable(_CG, "A", a)
    meshes.refuse_manual_axes(_CG)
    a, b = compositions.promote("cg", a, b)
    dtypes = (*checks.DTYPES, *checks.HALVES)
    if a.ndim > 2 or b.ndim > 2:
        raise ValueError(
            f"{_CG}: A and b must be one matrix and its right-hand sides if M is passed; they have "
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}. Map over a batch with jax.vmap"
        )
    checks.matrix(_CG, "A", a, True, checks.ALL, dtypes)
    checks.right_hand_side(_CG, a, b, checks.ALL, dtypes=dtypes)
    layout = meshes.infer(_CG, (a, b), mesh, spec)
    leaves, static = operators.split(m)
    specs = shardings.spec_of(b, layout), P(), P(), P()
    program = _WithOperator(static, limit, bool(start))
    call = programs.Call("linalg_cg_with_operator", program, layout, a.shape, 0, "", specs)
    arrays = (a, b, tolerances, *start, *leaves)
    if layouts.traced(arrays) or static.is_permanent:
        return _pack(*programs.runner(call, arrays)(*arrays))

    def run(*arrays):
        return programs.runner(call, arrays)(*arrays)

    with _compat.entered(layout.mesh):
        return _pack(*_compat.compiled(jax.jit(run))(*arrays))


@dataclasses.dataclass(frozen=True)
class _WithOperator:
    """The program of an array as A and a function as M, whose arrays come last."""

    static: operators.Static
    limit: int | None
    starts: bool

    def __call__(self, call, a, b, tolerances, *arrays):
        start, leaves = arrays[: self.starts], arrays[self.starts :]
        m = operators.checked(_CG, "M", self.static.join(leaves))
        a, b = ffi.meet_first(call.layout, a, b)
        a = a[: call.shape[0]]
        x, *info = _iterated(
            call.layout, *map(halves.widened, (a,)), m, self.limit, halves.widened(b), tolerances,
            *map(halves.widened, start),
        )  # fmt: skip
        return halves.narrowed(x, halves.dtype_of(b)), *info
