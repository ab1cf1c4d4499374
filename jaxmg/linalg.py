"""`jax.numpy.linalg` and `jax.scipy.linalg` for matrices spread over several devices.

Names, order of arguments, defaults and results are those of JAX: of ``jax.numpy.linalg`` where it
has the name, else of ``jax.scipy.linalg``. `solve`, `solve_triangular`, `inv`, `det`, `slogdet`,
`cond`, `lu_solve`, `matrix_power` and `expm` take any square matrix, `lu`, `lu_factor`, `qr`,
`qr_multiply`, `least_squares`, `lstsq`, `svd`, `svdvals`, `polar`, `pinv`, `matrix_rank`, `norm`,
`orth`, `null_space` and `svd_lowrank` any (m, n). The others are for Hermitian matrices, positive
definite ones where a function says so. Results are spread over the devices as A is. Beside JAX's
arguments each function takes ``mesh`` and ``matrix_specs``, as `jaxmg.potrs` does.

What is read of A:

- Where an argument names a triangle (``lower``; ``UPLO`` or ``upper`` with
  ``symmetrize_input=False``), that one alone. The upper one is read where it lies; for the lower
  one all devices exchange blocks with all, which takes a copy of A.
- `solve`, `inv`, `det`, `slogdet` and negative powers read all of A. One pass over A finds whether
  it is Hermitian, but for rounding, and has a positive diagonal. Then a Cholesky factorization is
  tried, which has half the operations of LU; LU follows where that fails, and is taken at once of
  all other matrices, of batches, and where JAX differentiates. ``assume_a`` of `solve` skips this.
- Otherwise A has to be Hermitian. That is looked at with one pass over A; where it isn't, but for
  rounding, the results are NaN. ``symmetrize_input=True`` stands for this: the average of A and its
  adjoint isn't taken.

Matrices with leading dimensions are batches, as in JAX, and those of ``b`` broadcast against them.
A ``b`` with one dimension is a vector, one with two a matrix, for all of them.

Arrays are promoted as JAX promotes them: float32 with float64, real with complex, integers and
booleans to JAX's default; where ``jax_numpy_dtype_promotion`` is "strict" what differs raises. What
isn't a matrix of float32, float64, complex64 or complex128 then raises.

``overwrite_a``, ``overwrite_b``, ``check_finite``, ``turbo`` and ``debug`` are accepted and do
nothing, as in JAX.
"""

from typing import TYPE_CHECKING

from jaxmg import _names
from jaxmg._routines.jax_cholesky import cho_factor, cho_solve, cholesky
from jaxmg._routines.jax_eigh import EighResult, eigh, eigvalsh
from jaxmg._routines.jax_functions import expm, funm, logm, sqrtm
from jaxmg._routines.jax_householder import householder_product, qr_multiply
from jaxmg._routines.jax_lstsq import least_squares, lstsq
from jaxmg._routines.jax_lu import lu, lu_factor, lu_solve, solve_triangular
from jaxmg._routines.jax_qr import QRResult, qr
from jaxmg._routines.jax_square import (
    SlogdetResult,
    cond,
    det,
    inv,
    matrix_power,
    slogdet,
    solve,
)
from jaxmg._routines.jax_svd import SVDResult, matrix_rank, norm, polar, svd, svdvals
from jaxmg._routines.jax_svd_lowrank import SVDLowRankResult, svd_lowrank
from jaxmg._routines.jax_svd_spaces import null_space, orth, pinv

__all__ = [
    "EighResult",
    "QRResult",
    "SVDLowRankResult",
    "SVDResult",
    "SlogdetResult",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "det",
    "eigh",
    "eigvalsh",
    "expm",
    "funm",
    "householder_product",
    "inv",
    "least_squares",
    "logm",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_solve",
    "matrix_power",
    "matrix_rank",
    "norm",
    "null_space",
    "orth",
    "pinv",
    "polar",
    "qr",
    "qr_multiply",
    "slogdet",
    "solve",
    "solve_triangular",
    "sqrtm",
    "svd",
    "svd_lowrank",
    "svdvals",
]


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name):
        raise _names.missing(__name__, name)
