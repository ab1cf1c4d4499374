"""`jax.numpy.linalg` and `jax.scipy.linalg` for matrices spread over several devices.

Names, order of arguments, defaults and results are those of ``jax.numpy.linalg`` if it has the
name, else of ``jax.scipy.linalg`` (`cg`: of ``jax.scipy.sparse.linalg``). `solve`,
`solve_triangular`, `inv`, `det`, `slogdet`, `cond`, `lu_solve`, `matrix_power` and `expm` take any
square matrix. `lu`, `lu_factor`, `qr`, `qr_multiply`, `least_squares`, `lstsq`, `svd`, `svdvals`,
`polar`, `pinv`, `matrix_rank`, `norm`, `orth`, `null_space` and `svd_lowrank` take any (m, n). The
others take Hermitian matrices; some of these functions require them to be positive definite; `ldl`
and `ldl_factor` also take symmetric ones.
Results are sharded like A. In addition to JAX's arguments each function takes ``mesh`` and
``in_specs``, as `jaxmg.potrs`.

The functions read these parts of A:

- If an argument names a triangle (``lower``; ``UPLO`` or ``upper`` with
  ``symmetrize_input=False``), only this triangle. The upper one is read in place. For the lower one
  all devices exchange blocks, which takes a copy of A.
- `solve`, `inv`, `det`, `slogdet` and negative powers read all of A. One pass over A checks whether
  it is Hermitian up to rounding with a positive diagonal. If so, the functions try a Cholesky
  factorization, which takes half the operations of LU. The functions use LU if that fails, for all
  other matrices, for batches and for derivatives. ``assume_a`` of `solve` skips the check.
- `cg` reads all of A and doesn't check it. `pivoted_cholesky` reads the diagonal and some columns.
- Otherwise A has to be Hermitian. One pass checks this up to rounding; if the check fails, the
  results are NaN. ``symmetrize_input=True`` means this check: A and its adjoint aren't averaged.

Leading dimensions make a batch of matrices, as in JAX; b's leading dimensions broadcast against
A's. A ``b`` with one dimension is a vector for all matrices. With two dimensions it is a matrix for
all of them.

Arrays are promoted as in JAX: float32 with float64, real with complex, integers and booleans to
JAX's default. With ``jax_numpy_dtype_promotion="strict"`` different dtypes raise an error. Dtypes
that aren't promoted to float32, float64, complex64, complex128, bfloat16 or float16 raise an error
too.

All functions compute with bfloat16 and float16 in float32. Results are rounded to the arrays'
dtype. These results stay float32: eigenvalues, singular values, determinants, condition numbers,
residuals and estimates of errors, which may exceed float16's range, and the factors of `cho_factor`
and `lu_factor` and the reflectors of `qr`, with which further functions compute. Default cut-offs
are those of float32.

``overwrite_a``, ``overwrite_b``, ``check_finite``, ``turbo`` and ``debug`` are accepted and
ignored, as in JAX.
"""

from typing import TYPE_CHECKING

from jaxmg import _names
from jaxmg._cholesky.linalg import cho_factor, cho_solve, cholesky
from jaxmg._eigen.linalg import EighResult, eigh, eigvalsh
from jaxmg._krylov.linalg import CGInfo, CGResult, cg
from jaxmg._krylov.linalg_pivoted import PivotedCholeskyResult, pivoted_cholesky
from jaxmg._lanczos.eigsh import EigshInfo, EigshResult, eigsh
from jaxmg._ldl.linalg import ldl, ldl_factor
from jaxmg._lu.linalg import lu, lu_factor, lu_solve, solve_triangular
from jaxmg._qr.householder import householder_product, qr_multiply
from jaxmg._qr.linalg import QRResult, qr
from jaxmg._square.functions import expm, funm, logm, sqrtm
from jaxmg._square.linalg import SlogdetResult, cond, det, inv, matrix_power, slogdet, solve
from jaxmg._svd.linalg import SVDResult, matrix_rank, norm, polar, svd, svdvals
from jaxmg._svd.linalg_lowrank import SVDLowRankResult, svd_lowrank
from jaxmg._svd.linalg_spaces import null_space, orth, pinv
from jaxmg._svd.lstsq import least_squares, lstsq

__all__ = [
    "CGInfo",
    "CGResult",
    "EighResult",
    "EigshInfo",
    "EigshResult",
    "PivotedCholeskyResult",
    "QRResult",
    "SVDLowRankResult",
    "SVDResult",
    "SlogdetResult",
    "cg",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "det",
    "eigh",
    "eigsh",
    "eigvalsh",
    "expm",
    "funm",
    "householder_product",
    "inv",
    "ldl",
    "ldl_factor",
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
    "pivoted_cholesky",
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


if not TYPE_CHECKING:  # with it type checkers would accept any attribute

    def __getattr__(name):
        raise _names.missing(__name__, name)
