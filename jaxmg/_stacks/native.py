"""The plugin's operations on stacks of matrices (xla_ffi/device/stacks/stack_kernels.h).

XLA would compile such operations in every program, and on a GPU time several algorithms for each
shape of a product. The plugin's are compiled already. JAX can't differentiate them, so only
functions with a derivative rule call them. The plugin must be loaded.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat

HANDLERS = (
    "stacked_cholesky", "stacked_inv32", "stacked_lauum", "stacked_ldl", "stacked_lu",
    "stacked_merge", "stacked_ormtr", "stacked_polar", "stacked_polynomials", "stacked_product",
    "stacked_qr", "stacked_root", "stacked_scale", "stacked_solve32", "stacked_split",
    "stacked_svd", "stacked_sysv", "stacked_sytrd", "stacked_tridiagonal", "stacked_trsm",
    "stacked_trtri", "stacked_unit",
)  # fmt: skip

# kMostStackSubstitution, kMostSmall and kMostSmallColumns of xla_ffi/device/constants.h.
MOST_SUBSTITUTION, MOST_SMALL, MOST_SMALL_COLUMNS = 4096, 32, 4


def call(name, results, *operands, aliases=None, **attributes):
    """Calls the operation. ``results`` are `jax.ShapeDtypeStruct`. ``aliases`` maps the indices of
    operands to those of the results that overwrite them."""
    function = jax.ffi.ffi_call(
        f"jaxmg_{name}", results, vmap_method="broadcast_all", input_output_aliases=aliases
    )
    values = function(*operands, **attributes)
    varying = frozenset().union(*map(_compat.varying_axes, operands))
    return jax.tree.map(lambda value: _compat.vary(value, varying), values)


def factor_qr(a, with_q=True):
    """Computes (Q, R) of a (count, m, n) with entries near 1 or smaller, as geqrf and orgqr: Q
    (count, m, k), k = min(m, n), or None, and R (count, k, n) with LAPACK's signs.

    Cost for each matrix: about 2 n k (m - k / 3) flops; half of that without Q if it is square.
    Memory: one stack of k columns in addition to the results.
    """
    count, m, n = a.shape
    k = min(m, n)
    of_q = jax.ShapeDtypeStruct((count, m, k) if with_q else (count, 0, k), a.dtype)
    r, q = call("stacked_qr", (_like(a), of_q), a, aliases={0: 0}, with_q=with_q)
    return q if with_q else None, r[:, :k]


def reduce_to_tridiagonal(a):
    """Computes (reflectors, d, e, tau) with A = Q T Q^T, Q = H_0 H_1 ..., as sytrd, for real
    symmetric a (count, n, n), n > 1, with entries near 1 or smaller. Reads both triangles.

    T has the diagonal d (count, n) and the off-diagonal e (count, n - 1). H_j = 1 - tau_j v_j
    v_j^T, where v_j is row j of the reflectors, with zeros up to element j and then a 1.
    """
    count, n, _ = a.shape
    rows = [jax.ShapeDtypeStruct((count, size), a.dtype) for size in (n, n - 1, n)]
    return call("stacked_sytrd", (_like(a), *rows), a, aliases={0: 0})


def multiply_reflectors(reflectors, tau, x):
    """Computes Q X, as ormtr, with the reflectors and tau of `reduce_to_tridiagonal` and x (count,
    n, k), in the compact form I - V T V^H. For complex numbers row j of the reflectors is v_j^H.

    Cost for each matrix: 2 n^2 k flops. Memory: 128 (n + k) numbers of each matrix in addition to
    the result.
    """
    return call("stacked_ormtr", _like(x), reflectors, tau, x, aliases={2: 0})


def decompose(a, vectors=True):
    """Computes the reduced (U, s, V^H) of a (count, m, n), as gesdd; only s without ``vectors``. A
    matrix that isn't finite gives NaN. For CPU devices."""
    count, m, n = a.shape
    k = min(m, n)
    of_u, of_vh = ((count, m, k), (count, k, n)) if vectors else ((count, 0, k), (count, k, 0))
    shapes = (a.shape, of_u, of_vh)
    results = [jax.ShapeDtypeStruct(shape, a.dtype) for shape in shapes]
    results.append(jax.ShapeDtypeStruct((count, k), jnp.finfo(a.dtype).dtype))
    _, u, vh, s = call("stacked_svd", results, a, aliases={0: 0}, vectors=vectors)
    return (u, s, vh) if vectors else s


def scale(a, step=1):
    """Returns (2^-e A, e) for each matrix A of a (count, m, n). The exponent e, int32 (count,), is
    that of `jaxmg._stacks.scaling.exponent_of`, rounded down to a multiple of ``step``, so that the
    largest entry is in [1, 2^step)."""
    exponents = jax.ShapeDtypeStruct(a.shape[:-2], jnp.int32)
    return call("stacked_scale", (_like(a), exponents), a, aliases={0: 0}, step=np.int64(step))


def normalize(a):
    """Divides each matrix of a (count, m, n) by its Frobenius norm, for any range of its entries.
    Zeros stay zeros."""
    return call("stacked_unit", _like(a), a, aliases={0: 0})


def inverse_root(a, p, epsilon):
    """Computes (A + epsilon w I)^(-1/p) of positive semidefinite a (count, n, n), where w is the
    largest eigenvalue, by the coupled Newton iteration. NaN if that doesn't converge."""
    return call(
        "stacked_root", _like(a), a, aliases={0: 0}, p=np.int64(p),
        epsilon=np.array([epsilon], np.float64),
    )  # fmt: skip


def polar(a, hermitian=False):
    """Computes (U, H, e) of A = U 2^e H by QDWH, for a (count, n, n). U has orthonormal columns for
    any rank of A. H is None unless ``hermitian``; e is int32 (count,)."""
    count, n, _ = a.shape
    of_h = jax.ShapeDtypeStruct((count, n, n) if hermitian else (count, 0, n), a.dtype)
    exponents = jax.ShapeDtypeStruct((count,), jnp.int32)
    u, h, exponents = call(
        "stacked_polar", (_like(a), of_h, exponents), a, aliases={0: 0}, hermitian=hermitian
    )
    return u, h if hermitian else None, exponents


def map_singular_values(x, coefficients):
    """Replaces each singular value s of x (count, m, n), also of bfloat16 or float16, by a s + b
    s^3 + c s^5, for each triple (a, b, c) of ``coefficients``, one after the other."""
    numbers = np.array(coefficients, np.float64).reshape(-1)
    return call("stacked_polynomials", _like(x), x, aliases={0: 0}, coefficients=numbers)


def factor_lu(a):
    """Computes (LU, pivots) of a (count, n, n) as getrf, in the form of `jax.lax.linalg.lu`."""
    pivots = jax.ShapeDtypeStruct(a.shape[:-1], jnp.int32)
    return call("stacked_lu", (_like(a), pivots), a, aliases={0: 0})


def factor_indefinite(a, lower, hermitian):
    """Computes (L, D, order) of A = L D L^H for Hermitian a (count, n, n), or of A = L D L^T, as
    sytrf and SciPy's ``ldl``. Reads one triangle. For CPU devices."""
    order = jax.ShapeDtypeStruct(a.shape[:-1], jnp.int32)
    return call(
        "stacked_ldl", (_like(a), _like(a), order), a, aliases={0: 0}, lower=bool(lower),
        hermitian=bool(hermitian),
    )  # fmt: skip


def solve_indefinite(a, b, hermitian):
    """Computes A^-1 B for Hermitian or symmetric a (count, n, n) and b (count, n, nrhs), as sysv.
    Both triangles must be there. If A is singular, the result is NaN. For CPU devices."""
    _, x = call(
        "stacked_sysv", (_like(a), _like(b)), a, b, aliases={0: 0, 1: 1}, hermitian=bool(hermitian)
    )
    return x


def invert_small(a):
    """Inverts a (count, n, n), n <= `MOST_SMALL`, by elimination with partial pivoting."""
    return call("stacked_inv32", _like(a), a)


def solve_small(a, b):
    """Computes A^-1 B for a as in `invert_small` and b (count, n, nrhs), nrhs <=
    `MOST_SMALL_COLUMNS`."""
    return call("stacked_solve32", _like(b), a, b)


def factor_cholesky(a, upper=False, hermitian=False):
    """Computes L of A = L L^H for Hermitian a (count, n, n), as potrf; reads the lower triangle.
    With ``upper`` computes U of A = U^H U and reads the upper one. The other triangle of the result
    is 0. A matrix that isn't positive definite gives NaN. With ``hermitian``, on CPU devices, the
    range of a is arbitrary, both triangles are read, and NaN results if they differ by more than
    rounding."""
    return call("stacked_cholesky", _like(a), a, aliases={0: 0}, upper=upper, hermitian=hermitian)


def invert_triangle(a, upper=False):
    """Inverts lower or upper triangular matrices (count, n, n), with zeros in the other triangle,
    as trtri. As for substitution, errors are bounded by the condition number times the rounding
    unit."""
    return call("stacked_trtri", _like(a), a, aliases={0: 0}, upper=upper)


def solve_triangle(a, b, upper=False, adjoint=False, unit=False):
    """Computes T^-1 B, with ``adjoint`` T^-H B, as trsm. T are the lower or upper triangles of a
    (count, n, n), n <= `MOST_SUBSTITUTION`; b is (count, n, nrhs), best with few right-hand sides.
    """
    attributes = {"upper": upper, "adjoint": adjoint, "unit": unit}
    return call("stacked_trsm", _like(b), a, b, aliases={1: 0}, **attributes)


def multiply_triangle(x):
    """Computes the lower triangle of X X^H, as lauum, for upper triangular X (count, n, n) with
    zeros below the diagonal. The result above the diagonal is undefined."""
    return call("stacked_lauum", _like(x), x)


def _like(a):
    return jax.ShapeDtypeStruct(a.shape, a.dtype)
