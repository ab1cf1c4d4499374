"""`jaxmg.linalg.ldl_factor`."""

from __future__ import annotations

from typing import SupportsIndex

from jax.sharding import PartitionSpec

from jaxmg import _compat
from jaxmg._call.arguments import matrix_spec
from jaxmg._ldl import ldl_factor as keep_factor
from jaxmg._ldl.factor import LDLFactor
from jaxmg._linalg import compositions
from jaxmg._matrices import completed
from jaxmg._types import MatrixLike, MeshLike


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


@compositions.program(
    compute_stacks=lambda platform, options, a: (completed.of_stack(a, *options),), single=(0,)
)
def complete(call, a):
    """Returns the Hermitian or symmetric matrix that a triangle defines."""
    return (completed.whole(a, call.layout, *call.attributes),)
