"""`jaxmg.linalg.pivoted_cholesky`, and the preconditioner that it makes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, NamedTuple, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, programs
from jaxmg._call.arguments import matrix_spec
from jaxmg._host.tiles import Tiles
from jaxmg._krylov import pivoted
from jaxmg._layouts import exporting, layouts, meshes, shardings
from jaxmg._linalg import compositions, halves
from jaxmg._qr import tall
from jaxmg._transform import derivatives
from jaxmg._types import AnyArray, AnyMatrixLike, MeshLike

_CALLED = "linalg.pivoted_cholesky"
_METHODS = ("random", "greedy")
# The kinds of results, after L.
_SMALL = ("small",) * 5


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["q", "noise"], meta_fields=["layout"]
)
@dataclasses.dataclass(frozen=True, eq=False)
class LowRankPreconditioner:
    """Multiplies by (L L^H + noise I)^-1; a pytree.

    Attributes:
        q: Q (n, k) by rows, such that the inverse is (I - Q Q^H) / noise.
    """

    q: Array
    noise: Array
    layout: layouts.Layout

    def __call__(self, v: Array) -> Array:
        """Returns the product with v, (n, m), sharded like v."""
        inner = tall.adjoint_product(self.layout, self.q, v)
        product = tall.times(self.layout, self.q, blocks.replicate(inner, self.layout))
        return (v - shardings.constrain_like(product, v)) / self.noise.astype(v.dtype)


@exporting.named_tuple
class PivotedCholeskyResult(NamedTuple):
    """Holds the results of `pivoted_cholesky`."""

    L: Array
    pivots: Array
    diagonal: Array
    error: Array
    rank: Array
    status: Array

    def preconditioner(
        self, noise: AnyArray | SupportsFloat, *, mesh: MeshLike | None = None
    ) -> LowRankPreconditioner:
        """Returns a function that multiplies arrays (n, m) by the inverse of L L^H + noise I.

        Args:
            noise: A positive scalar.
            mesh: That of L. Inside jit it is needed on automatic axes, unless there is a context
                mesh.

        The function is a pytree, an argument ``M`` of `cg`. Cost: 2 n k^2 flops over all ranks and
        a Cholesky factorization of (k, k); then 4 n k flops for each column. It has the memory of
        L, sharded like it.
        """
        caller = f"{_CALLED}: preconditioner"
        checks.real_scalar(caller, "noise", noise)
        layout = meshes.infer(caller, (self.L,), mesh, None)
        with _compat.entered(layout.mesh):
            return _preconditioner(layout, halves.widened(self.L), noise)


@functools.partial(jax.jit, static_argnums=0)
@_compat.default_promotion()
def _preconditioner(layout, rows, noise):
    rows = jax.lax.stop_gradient(rows)
    noise = jax.lax.stop_gradient(jnp.asarray(noise, jnp.finfo(rows.dtype).dtype))

    def factor(gram, noise):
        gram = gram + noise.astype(gram.dtype) * jnp.eye(len(gram), dtype=gram.dtype)
        # Only JAX's Cholesky factorization of one matrix is known to work on all CPU devices.
        return jax.lax.linalg.cholesky(gram, symmetrize_input=False).conj().T

    gram = blocks.replicate(tall.adjoint_product(layout, rows, rows), layout)
    r = tall.small(layout, factor, gram, noise, library=True)
    q = tall.right_solve(layout, rows, blocks.replicate(r, layout))
    return LowRankPreconditioner(shardings.constrain_like(q, rows), noise, layout)


@_compat.api_boundary
def pivoted_cholesky(
    a: AnyMatrixLike | Tiles,
    k: SupportsIndex,
    tol: AnyArray | SupportsFloat = 0.0,
    *,
    method: Literal["random", "greedy"] = "random",
    key: Array | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> PivotedCholeskyResult:
    """Approximates a Hermitian positive semidefinite matrix by L L^H with few columns.

    Args:
        a: (n, n), sharded by rows; no row moves: its diagonal is read, and the columns of
            candidates for pivots. Or `jaxmg.Tiles`: only these columns are made. Then the
            function gets any indices, in any order, and vectors of two lengths.
        k: Largest number of columns, 1 to n.
        tol: Real scalar: L has fewer columns if ``error`` is at most ``tol`` times the trace of
            ``a``.
        method: "random": pivots are sampled by the diagonal of a - L L^H. The expected error is
            close to that of the best approximation. "greedy": each pivot is the largest entry of
            that diagonal.
        key: Key of `jax.random`. None: the same random numbers in each call.
        mesh, matrix_specs, in_specs: As in `jaxmg.cho_factor`.

    Returns:
        A `PivotedCholeskyResult` (L, pivots, diagonal, error, rank, status), and its method
        ``preconditioner(noise)``, for `cg`. All but L are replicated.

        - L, (n, k), is sharded like ``a``. Columns from ``rank`` on are zeros.
        - pivots, (k,), are the rows and columns in which L L^H equals ``a``; -1 from ``rank`` on.
        - diagonal, (n,), is that of ``a - L @ L^H``, and error its sum: the trace norm.
        - status is 0, or i + 1 if entry i of the diagonal becomes negative beyond rounding, or
          isn't finite. L is NaN then. Not every indefinite matrix is noticed.

    L, diagonal and error have derivatives with respect to an array ``a``, at constant pivots. The
    preconditioner has none.

    Cost: about 3 n k^2 flops over all ranks for random pivots. There are about 1.5 k / 128 rounds.
    Greedy pivots take up to k rounds, and each reads L. Memory: n (k + 128) numbers over all
    ranks.

    Source: Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, Comm. Pure Appl. Math. 78, 2025; in
    blocks: arXiv 2410.03969.

    Raises:
        NotImplementedError: `Tiles` are being differentiated.
        TypeError, ValueError, RuntimeError: As `jaxmg.cho_factor`. k isn't an integer from 1 to n.

    Examples:
        >>> factor = jaxmg.linalg.pivoted_cholesky(kernel, 500)
        >>> a = kernel + 0.01 * jnp.eye(n)  # without the noise L approximates better
        >>> x, info = jaxmg.linalg.cg(a, b, M=factor.preconditioner(0.01))
    """
    if in_specs is not None:
        matrix_specs = matrix_spec(_CALLED, matrix_specs, in_specs)
    if method not in _METHODS:
        raise ValueError(f"{_CALLED}: method must be one of {', '.join(_METHODS)}; got {method!r}")
    checks.real_scalar(_CALLED, "tol", tol)
    seed = np.zeros(2, np.uint32) if key is None else jax.random.bits(key, (2,), "uint32")
    tol = tol if isinstance(tol, Array) else np.asarray(float(tol), jnp.result_type(float))
    greedy = method == "greedy"
    if isinstance(a, Tiles):
        return _of_tiles(a, k, greedy, seed, tol, mesh, matrix_specs)
    return _of_array((a, tol, seed), k, greedy, mesh, matrix_specs)


@programs.cache_plans
def _of_array(arrays, k, greedy, mesh, spec):
    a = arrays[0]
    checks.is_an_array(_CALLED, "a", a)
    checks.usable(_CALLED, "a", a)
    if a.ndim < 2:
        raise ValueError(f"{_CALLED}: a must be a matrix; it has shape {tuple(a.shape)}")
    k = _columns(k, a.shape[-1])

    def of_one_dtype(a, tol, seed):
        """Programs take two arrays of one dtype first."""
        (a,) = compositions.promote("pivoted_cholesky", a)
        return a, tol.astype(a.dtype), seed

    arrays = of_one_dtype(*arrays)
    kinds = ((a.shape[-2], k), *_SMALL)
    planned = compositions.plan(
        arrays, "pivoted_cholesky", factored, kinds, mesh, spec, k, greedy,
        pack=PivotedCholeskyResult,
    )  # fmt: skip
    return lambda *arrays: planned(*of_one_dtype(*arrays))


def _columns(k, n):
    try:
        k = checks.index(k)
    except TypeError:
        raise TypeError(f"{_CALLED}: k must be an integer; got {k!r}") from None
    if not 1 <= k <= n:
        raise ValueError(f"{_CALLED}: k must be from 1 to {n}; got {k}")
    return k


@compositions.program(single=(2, 3))
def factored(call, a, tol, seed):
    k, greedy = call.attributes
    return pivoted.factor(call.layout, k, greedy, a, seed, jax.lax.stop_gradient(tol.real))


def _of_tiles(a, k, greedy, seed, tol, mesh, spec):
    n = a.shape[1]
    if a.shape[0] != n:
        raise ValueError(f"{_CALLED}: a must be square; the Tiles have shape {a.shape}")
    k = _columns(k, n)
    matrix = jax.ShapeDtypeStruct(a.shape, a.dtype)
    leaves, tree = jax.tree.flatten(a.parameters)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    meshes.refuse_manual_axes(_CALLED)
    layout = meshes.infer(
        _CALLED, (matrix, *leaves) if layouts.traced(leaves) else (matrix,), mesh, spec
    )
    made = pivoted.Made(a.function, tree, n, a.dtype, -(-n // layout.ranks))
    program = _Tiled(pivoted.Pivoted(layout, made, n, k, greedy))
    specs = layout.result_spec((n, k)), *(P(),) * len(_SMALL)
    call = programs.Call("linalg_pivoted_cholesky_of_tiles", program, layout, a.shape, 0, "", specs)
    arrays = (seed, tol, *leaves)
    found: Any = programs.runner(call, arrays, matrices=0)(*arrays)
    return PivotedCholeskyResult(*found)


@dataclasses.dataclass(frozen=True)
class _Tiled:
    """The program of `Tiles`."""

    of: pivoted.Pivoted

    def __call__(self, call, seed, tol, *leaves):
        def refuse(primals, tangents):
            raise NotImplementedError(
                f"{_CALLED}: Tiles are being differentiated (jax.grad, jvp, linearize, ...), of "
                "which there is no derivative. To treat the results as constants, pass "
                "jax.lax.stop_gradient of the parameters; of an array there is a derivative"
            )

        return derivatives.differentiable(
            lambda *leaves: self.of(*leaves, seed, tol), refuse, *leaves
        )
