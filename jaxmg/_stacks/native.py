"""The plugin's operations on stacks of matrices (xla_ffi/device/stack_kernels.h).

XLA would compile each of them in every program, and on a GPU time several algorithms for each shape
of a product. These are compiled already. JAX can't differentiate them, so only functions with a
derivative of their own call them. The plugin must be loaded.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat

HANDLERS = (
    "stacked_cholesky", "stacked_inv32", "stacked_lauum", "stacked_lu", "stacked_merge",
    "stacked_polar", "stacked_polynomials", "stacked_product", "stacked_qr", "stacked_root",
    "stacked_scale", "stacked_solve32", "stacked_split", "stacked_svd", "stacked_sytrd",
    "stacked_tridiagonal", "stacked_trsm", "stacked_trtri", "stacked_unit",
)  # fmt: skip

# kMostStackSubstitution, kMostSmall and kMostSmallColumns of xla_ffi/device/constants.h.
MOST_SUBSTITUTION, MOST_SMALL, MOST_SMALL_COLUMNS = 4096, 32, 4


def call(name, results, *operands, aliases=None, **attributes):
    """Calls the operation; the results are `jax.ShapeDtypeStruct`. ``aliases``: the results, by
    number, that overwrite operands."""
    function = jax.ffi.ffi_call(
        f"jaxmg_{name}", results, vmap_method="broadcast_all", input_output_aliases=aliases
    )
    values = function(*operands, **attributes)
    varying = frozenset().union(*map(_compat.varying_axes, operands))
    return jax.tree.map(lambda value: _compat.vary(value, varying), values)


def factor_qr(a, with_q=True):
    """(Q, R) of a (count, m, n) of entries near 1 or smaller: Q (count, m, k), k = min(m, n), or
    None, and R (count, k, n) with LAPACK's signs: geqrf and orgqr.

    Cost for each matrix: about 2 n k (m - k / 3) multiplications and additions, and without Q half
    of it where it is square. Memory: beside the results one stack of k columns.
    """
    count, m, n = a.shape
    k = min(m, n)
    of_q = jax.ShapeDtypeStruct((count, m, k) if with_q else (count, 0, k), a.dtype)
    r, q = call("stacked_qr", (_like(a), of_q), a, aliases={0: 0}, with_q=with_q)
    return q if with_q else None, r[:, :k]


def reduce_to_tridiagonal(a):
    """(reflectors, d, e, tau) with A = Q T Q^T, Q = H_0 H_1 ..., of real symmetric a (count, n, n),
    n > 1, of entries near 1 or smaller, of which both triangles are read: sytrd.

    T has the diagonal d (count, n) and e (count, n - 1) beside it. H_j = 1 - tau_j v_j v_j^T, with
    v_j row j of the reflectors, 0 up to element j and 1 in the next.
    """
    count, n, _ = a.shape
    rows = [jax.ShapeDtypeStruct((count, size), a.dtype) for size in (n, n - 1, n)]
    return call("stacked_sytrd", (_like(a), *rows), a, aliases={0: 0})


def decompose(a, vectors=True):
    """(U, s, V^H) of a (count, m, n), without further columns: gesdd. Without ``vectors`` s alone.
    NaN for a matrix that isn't finite. On CPU devices."""
    count, m, n = a.shape
    k = min(m, n)
    of_u, of_vh = ((count, m, k), (count, k, n)) if vectors else ((count, 0, k), (count, k, 0))
    shapes = (a.shape, of_u, of_vh)
    results = [jax.ShapeDtypeStruct(shape, a.dtype) for shape in shapes]
    results.append(jax.ShapeDtypeStruct((count, k), jnp.finfo(a.dtype).dtype))
    _, u, vh, s = call("stacked_svd", results, a, aliases={0: 0}, vectors=vectors)
    return (u, s, vh) if vectors else s


def scale(a, step=1):
    """(2^-e A, e): each of a (count, m, n) with its largest entry in [1, 2), and its exponent,
    int32 (count,), as `jaxmg._factors.scaling.exponent_of` gives it, rounded down to a multiple of
    ``step``."""
    exponents = jax.ShapeDtypeStruct(a.shape[:-2], jnp.int32)
    return call("stacked_scale", (_like(a), exponents), a, aliases={0: 0}, step=np.int64(step))


def normalize(a):
    """A / |A| of each of a (count, m, n), whatever its range, in the Frobenius norm; zeros of
    zeros."""
    return call("stacked_unit", _like(a), a, aliases={0: 0})


def inverse_root(a, p, epsilon):
    """(A + epsilon w I)^(-1/p) of positive semidefinite a (count, n, n), w the largest eigenvalue,
    by the coupled Newton iteration. NaN where it doesn't converge."""
    return call(
        "stacked_root", _like(a), a, aliases={0: 0}, p=np.int64(p),
        epsilon=np.array([epsilon], np.float64),
    )  # fmt: skip


def polar(a, hermitian=False):
    """(U, H, e) of A = U 2^e H of a (count, n, n), with orthonormal columns whatever the rank of
    A is; H is None unless it is asked for, e int32 (count,). By QDWH."""
    count, n, _ = a.shape
    of_h = jax.ShapeDtypeStruct((count, n, n) if hermitian else (count, 0, n), a.dtype)
    exponents = jax.ShapeDtypeStruct((count,), jnp.int32)
    u, h, exponents = call(
        "stacked_polar", (_like(a), of_h, exponents), a, aliases={0: 0}, hermitian=hermitian
    )
    return u, h if hermitian else None, exponents


def map_singular_values(x, coefficients):
    """x (count, m, n), also of bfloat16 or float16, with each singular value s replaced by a s + b
    s^3 + c s^5 for each triple (a, b, c), one after the other."""
    numbers = np.array(coefficients, np.float64).reshape(-1)
    return call("stacked_polynomials", _like(x), x, aliases={0: 0}, coefficients=numbers)


def factor_lu(a):
    """(LU, pivots) of a (count, n, n), as `jax.lax.linalg.lu` gives them: getrf."""
    pivots = jax.ShapeDtypeStruct(a.shape[:-1], jnp.int32)
    return call("stacked_lu", (_like(a), pivots), a, aliases={0: 0})


def invert_small(a):
    """The inverses of a (count, n, n), n <= `MOST_SMALL`, by elimination with partial pivoting."""
    return call("stacked_inv32", _like(a), a)


def solve_small(a, b):
    """A^-1 B of such matrices and b (count, n, nrhs), nrhs <= `MOST_SMALL_COLUMNS`."""
    return call("stacked_solve32", _like(b), a, b)


def factor_cholesky(a, upper=False):
    """L of A = L L^H of Hermitian a (count, n, n), of which it reads the lower triangle: potrf.
    With ``upper`` U of A = U^H U, of the upper triangle. What is beside the factor is 0. NaN for a
    matrix that isn't positive definite."""
    return call("stacked_cholesky", _like(a), a, aliases={0: 0}, upper=upper)


def invert_triangle(a, upper=False):
    """The inverses of lower or upper triangular matrices (count, n, n), beside which is 0: trtri.
    Errors are bounded as those of substitution are, by the condition times rounding."""
    return call("stacked_trtri", _like(a), a, aliases={0: 0}, upper=upper)


def solve_triangle(a, b, upper=False, adjoint=False, unit=False):
    """T^-1 B of the lower or upper triangles T of a (count, n, n), n <= `MOST_SUBSTITUTION`, and b
    (count, n, nrhs): trsm. With ``adjoint`` T^-H B. Made for few right-hand sides."""
    attributes = {"upper": upper, "adjoint": adjoint, "unit": unit}
    return call("stacked_trsm", _like(b), a, b, aliases={1: 0}, **attributes)


def multiply_triangle(x):
    """The lower triangle of X X^H of upper triangular X (count, n, n), below which is 0: lauum.
    What is above it is undefined."""
    return call("stacked_lauum", _like(x), x)


def _like(a):
    return jax.ShapeDtypeStruct(a.shape, a.dtype)
