"""`jaxmg.linalg.cholesky`, `cho_factor` and `cho_solve`."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call.arguments import matrix_spec
from jaxmg._cholesky import cho_factor as keep_factor
from jaxmg._cholesky import stacks
from jaxmg._cholesky.factor import CholeskyFactor
from jaxmg._cholesky.refined_factor import RefinedFactor
from jaxmg._linalg import compositions, halves, shares
from jaxmg._plugin import plugins
from jaxmg._stacks import scaling
from jaxmg._types import AnyMatrixLike, MeshLike

# The largest order that a device that is alone factors with its library in one call. On a GPU the
# engine would also invert the factor's diagonal blocks, which only solves use.
ALONE = {"gpu": 12288, "cpu": 4096}


@_compat.api_boundary
def cholesky(
    a: AnyMatrixLike,
    lower: bool | None = None,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    upper: bool = False,
    symmetrize_input: bool = True,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Computes the Cholesky factor of a Hermitian positive definite matrix.

    Follows `jax.numpy.linalg.cholesky`, or `jax.scipy.linalg.cholesky` if ``lower`` is passed.

    Args:
        a: (n, n), Hermitian positive definite.
        lower: SciPy's argument. True: L, from the lower triangle of ``a``. False: U, from the upper
            one. The other triangle isn't read. None: ``upper`` decides.
        overwrite_a, check_finite: Ignored.
        upper: True: U with ``a = U^H U``. False: L with ``a = L L^H``.
        symmetrize_input: True: ``a`` has to be Hermitian. False: only the upper triangle is
            read if ``upper``, else only the lower one.
        mesh, matrix_specs, in_specs: As in `jaxmg.cho_factor`.

    Returns:
        L or U, (n, n), of a's dtype and sharding, with zeros in the other triangle. If ``a`` isn't
        positive definite, the result is NaN.

    Cost: that of `jaxmg.cho_factor` and two changes of layout. L takes longer than U: all devices
    exchange blocks to transpose it. To solve with the factor, use `jaxmg.cho_factor`.

    Raises:
        ValueError: Both ``lower`` and ``upper`` are passed.
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.cho_factor`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.cholesky", matrix_specs, in_specs)
    if lower is not None:
        if upper:
            raise ValueError(
                f"linalg.cholesky: lower={lower!r} is SciPy's argument and upper={upper!r} is that "
                "of jax.numpy.linalg; pass one of them"
            )
        upper, symmetrize_input = not lower, False
    read = compositions.HERMITIAN if symmetrize_input else compositions.triangle(not upper)
    return compositions.run(
        (a,),
        "cholesky",
        triangular_factor,
        ("matrix",),
        mesh,
        matrix_specs,
        read,
        bool(upper),
    )


@_compat.api_boundary
def cho_factor(
    a: AnyMatrixLike,
    lower: bool = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> tuple[Array, bool]:
    """Computes a Cholesky factor for `cho_solve`, as `jax.scipy.linalg.cho_factor`.

    Args:
        a: (n, n), Hermitian positive definite. Only one triangle is read.
        lower: True: read the lower triangle and return L. False: read the upper triangle and return
            U.
        overwrite_a, check_finite: Ignored.
        mesh, matrix_specs, in_specs: As in `jaxmg.cho_factor`.

    Returns:
        (c, lower). c is L with ``a = L L^H`` if ``lower``, else U with ``a = U^H U``, as `cholesky`
        returns it.

    Cost: that of `cholesky`. The factor of `jaxmg.cho_factor` solves faster and has a
    log-determinant, an inverse and products.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.cho_factor`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.cho_factor", matrix_specs, in_specs)
    read = compositions.triangle(lower)
    c = compositions.run(
        (a,),
        "cho_factor",
        factor_to_keep,
        ("matrix",),
        mesh,
        matrix_specs,
        read,
        not lower,
    )
    return c, lower


@_compat.api_boundary
def cho_solve(
    c_and_lower: tuple[AnyMatrixLike | CholeskyFactor | RefinedFactor, bool]
    | CholeskyFactor
    | RefinedFactor,
    b: AnyMatrixLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    mesh: MeshLike | None = None,
    matrix_specs: PartitionSpec | None = None,
    in_specs: PartitionSpec | None = None,
) -> Array:
    """Solves ``a @ x = b`` with a Cholesky factor of ``a``, as `jax.scipy.linalg.cho_solve`.

    Args:
        c_and_lower: The result of `cho_factor`. A factor of `jaxmg.cho_factor` may replace the pair
            or c.
        b: (n,) or (..., n, nrhs).
        overwrite_b, check_finite: Ignored.
        mesh, matrix_specs, in_specs: Mesh and sharding of c, as in `jaxmg.cho_factor`.

    Returns:
        x, of b's shape and sharding, with the broadcast leading dimensions of c and b. If ``lower``
        doesn't match c, x is NaN; `jaxmg.CholeskyFactor.from_upper` says how this is detected.

    Cost: that of `jaxmg.cho_solve`, and a move of c to the solver's layout, which also transposes
    L. A `jaxmg.CholeskyFactor` has this layout already.

    Raises:
        TypeError, ValueError, NotImplementedError, RuntimeError: As `jaxmg.cho_solve`.
    """
    if in_specs is not None:
        matrix_specs = matrix_spec("linalg.cho_solve", matrix_specs, in_specs)
    if isinstance(c_and_lower, (CholeskyFactor, RefinedFactor)):
        c_and_lower = c_and_lower, False
    try:
        c, lower = c_and_lower
    except (TypeError, ValueError):
        raise TypeError(
            "linalg.cho_solve: c_and_lower must be a pair (c, lower), the result of "
            "linalg.cho_factor, or a factor, the result of jaxmg.cho_factor; got "
            f"{type(c_and_lower).__name__}"
        ) from None
    b = halves.promoted(b, c)
    if isinstance(c, (CholeskyFactor, RefinedFactor)):
        return keep_factor.cho_solve(c, b)  # type: ignore[arg-type]
    return compositions.run(
        (c, b),
        "cho_solve",
        solve_again,
        ("like b",),
        mesh,
        matrix_specs,
        compositions.triangle(lower),
    )


def _factor_stacks(platform, options, a):
    """Computes `triangular_factor` of each matrix of a stack."""
    read, upper = options

    def composition(a):
        lower = stacks.cholesky(platform, a if read == "lower" else shares.hermitian(a, read))
        return jnp.swapaxes(lower, -1, -2).conj() if upper else lower

    if platform == "cpu" and read == compositions.HERMITIAN and a.shape[-1] <= ALONE["cpu"]:
        plugins.load(platform)
        return (stacks.factor_hermitian(a, upper, composition),)
    return (composition(a),)


@compositions.program(compute_stacks=_factor_stacks, by=stacks.CHOLESKY, alone=ALONE)
def triangular_factor(call, a):
    read, upper = call.attributes

    def factor(a, largest):
        a = compositions.upper(a, call.layout, read, largest)
        return keep_factor.cho_factor(a, **call.layout.where).upper()

    reads = compositions.reads(read)
    u = scaling.homogeneous(factor, 0.5, reads=reads, passes_largest=True)(a)
    return (u if upper else compositions.adjoint(u, call.layout),)


# It stays float32: a solve with it is as accurate as `solve`.
factor_to_keep = dataclasses.replace(triangular_factor, single=(0,))


@compositions.program()
def solve_again(call, c, b):
    def solve(u, b):
        return CholeskyFactor.from_upper(u, **call.layout.where).solve(b)

    u = compositions.upper(c, call.layout, *call.attributes)
    return (scaling.homogeneous(solve, -2, reads=scaling.upper, only_finite=True)(u, b),)
