"""`jaxmg.linalg.ldl_factor` and `ldl`."""

from __future__ import annotations

from typing import SupportsIndex

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, ffi
from jaxmg._call.arguments import matrix_spec
from jaxmg._ldl import ldl_factor as keep_factor
from jaxmg._ldl.factor import LDLFactor
from jaxmg._linalg import compositions, shares
from jaxmg._matrices import completed
from jaxmg._plugin import plugins
from jaxmg._stacks import native
from jaxmg._types import AnyMatrixLike, MatrixLike, MeshLike


@_compat.api_boundary
def ldl_factor(
    a: MatrixLike,
    lower: bool = True,
    hermitian: bool = True,
    *,
    T_A: SupportsIndex | None = None,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> LDLFactor:
    """Factors a Hermitian or symmetric matrix that need not be definite, for repeated solves.

    Aasen's method in blocks (G. Ballard et al., IPDPS 2013): P A P^H = L T L^H, where T has a band
    of one tile on each side of its diagonal. Its pivots are those of LU with partial pivoting of
    L's tile columns, so it is about as stable as LU, with half of the operations.

    Args:
        a: (n, n); dtypes are promoted as in `solve`, bfloat16 and float16 to float32. Only one
            triangle is read. Leading dimensions make a batch of factors, one after the other.
        lower: Whether the lower triangle is read or the upper one.
        hermitian: True: ``a`` is Hermitian. False: ``a`` is symmetric, even if complex.
        T_A, mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        An `LDLFactor`, which solves, and has the inertia and the determinant of ``a``.

    Cost: n^3 / 3 flops over all ranks (complex: 4 times). Memory: a copy of ``a``, the factor, and
    panels; while the copy is made, two more of ``a``.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.lu_factor`.

    Examples:
        >>> factor = jaxmg.linalg.ldl_factor(a)
        >>> x = factor.solve(b)
        >>> positive, negative, zero = factor.inertia()
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.ldl_factor", matrix_specs, in_specs)
    whole = compositions.run(
        (a,), "ldl_factor", complete, ("matrix",), mesh, matrix_specs,
        compositions.triangle(lower), not hermitian,
    )  # fmt: skip
    return keep_factor.factorize(whole, bool(hermitian), T_A, mesh, matrix_specs)


@_compat.api_boundary
def ldl(
    A: AnyMatrixLike,
    lower: bool = True,
    hermitian: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, Array, Array]:
    """Computes the LDL^H factorization of Bunch and Kaufman, as `scipy.linalg.ldl`.

    LAPACK's sytrf or hetrf, on CPU devices only: one device gets the whole matrix and computes for
    all. On explicit axes and with several processes every device does. `ldl_factor` is spread over
    the devices, also over GPUs, and solves; its factors have another form.

    Args:
        A: (n, n). Only one triangle is read.
        lower: Whether the lower triangle is read or the upper one.
        hermitian: True: A is Hermitian. False: A is symmetric, even if complex.
        overwrite_a, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.lu_factor`.

    Returns:
        (lu, d, perm) with A = lu @ d @ lu^H, or lu^T for a symmetric matrix. lu and d, (n, n), have
        A's dtype and sharding. d is block diagonal, with blocks of order 1 and 2. ``lu[perm]`` is
        triangular with a unit diagonal, lower or upper as the triangle that is read; perm, (n,),
        int32, is replicated. lu and d are NaN if the triangle has NaN or infinity. They have no
        derivative.

    Cost: n^3 / 3 flops on one device (complex: 4 times). Memory on this device: four matrices.

    Raises:
        NotImplementedError: The devices aren't CPUs, or A is being differentiated.
        TypeError, ValueError, RuntimeError: As `jaxmg.lu_factor`.

    Examples:
        >>> lu, d, perm = jaxmg.linalg.ldl(a)
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.ldl", matrix_specs, in_specs)
    lu, d, perm = compositions.run(
        (A,), "ldl", decomposed, ("matrix", "matrix", "small"), mesh, matrix_specs, bool(lower),
        bool(hermitian),
    )  # fmt: skip
    return lu, d, perm


def _decompose_stacks(platform, options, a):
    """Computes `decomposed` of each matrix of a stack."""
    if platform != "cpu":
        raise NotImplementedError(
            f"linalg.ldl runs on CPU devices only; these are of platform {platform!r}. "
            "jaxmg.linalg.ldl_factor runs on GPUs too, or move the matrix with "
            'jax.device_put(a, jax.devices("cpu")[0])'
        )
    plugins.load(platform)
    lower, hermitian = options

    @jax.custom_jvp
    def factor(a):
        return tuple(native.factor_indefinite(a, lower, hermitian))

    @factor.defjvp
    def refuse(primals, tangents):
        raise NotImplementedError(
            "linalg.ldl: A is being differentiated (jax.grad, jvp, linearize, ...), but this "
            "factorization has no derivative; solutions and determinants of "
            "jaxmg.linalg.ldl_factor have"
        )

    return factor(a)


@compositions.program(compute_stacks=_decompose_stacks, on_one=True)
def decomposed(call, a):
    """Computes (L, D, order) on each device that computes it."""
    layout = call.layout
    if not a.size:
        return a, a, jnp.zeros(0, jnp.int32)
    share = shares.Share(decomposed, call.attributes, layout.platform, 1)
    run = ffi.over_ranks(layout, share, (P(),), P())
    return run(blocks.replicate(a, layout))


@compositions.program(
    compute_stacks=lambda platform, options, a: (completed.of_stack(a, *options),), single=(0,)
)
def complete(call, a):
    """Returns the Hermitian or symmetric matrix that a triangle defines."""
    return (completed.whole(a, call.layout, *call.attributes),)
