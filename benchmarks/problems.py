"""What is measured: matrices made from a hash, operation counts and backward errors.

An entry depends on its indices alone, so every device makes its own rows, both triangles agree, and
a matrix that was given away can be made again. Written for NumPy and jax.numpy alike (`xp`).
"""

import numpy as np

ROUTINES = ("potrs", "potri", "syevd")
DTYPES = ("float32", "float64", "complex64", "complex128")
PROBES = 4  # random vectors with which inverses and eigenvectors are checked


def operations(routine, dtype, n, nrhs, vectors=True):
    """Floating-point operations, with the leading terms alone.

    For syevd the count is nominal: tridiagonal reduction and, with vectors, divide and conquer
    without deflation and the back transformation.
    """
    count = {
        "potrs": n**3 / 3 + 2 * n**2 * nrhs,
        "potri": n**3,
        "syevd": (4 / 3 + (4 / 3 + 2) * vectors) * n**3,
    }[routine]
    return count * (4 if np.dtype(dtype).kind == "c" else 1)


def matrix(xp, n, dtype, first_row=0, rows=None):
    """Rows of a Hermitian positive definite matrix of order n.

    Off the diagonal its entries are uniform in [-1, 1] (both parts, where complex); the diagonal is
    2n, beyond the 2 sqrt(2 n / 3) that the spectrum of the rest reaches.
    """
    rows = n if rows is None else rows
    i = xp.arange(first_row, first_row + rows, dtype=xp.uint32)[:, None]
    j = xp.arange(n, dtype=xp.uint32)[None, :]
    low, high = xp.minimum(i, j), xp.maximum(i, j)
    entries = _uniform(xp, low, high, 1, dtype)
    if np.dtype(dtype).kind == "c":
        imaginary = _uniform(xp, low, high, 2, dtype)
        entries = entries + 1j * xp.where(i < j, imaginary, -imaginary)
    return xp.where(i == j, 2 * n, entries).astype(dtype)


def vectors(xp, n, count, dtype, seed=3):
    """(n, count), uniform in [-1, 1]: right-hand sides and probes."""
    i = xp.arange(n, dtype=xp.uint32)[:, None]
    j = xp.arange(count, dtype=xp.uint32)[None, :]
    entries = _uniform(xp, i, j, seed, dtype)
    if np.dtype(dtype).kind == "c":
        entries = entries + 1j * _uniform(xp, i, j, seed + 1, dtype)
    return entries.astype(dtype)


def _uniform(xp, i, j, seed, dtype):
    """Uniform numbers in [-1, 1) from pairs of uint32, by MurmurHash3's finalizer."""
    real = np.finfo(dtype).dtype
    h = _mix(xp, _mix(xp, i + xp.uint32(seed * 0x51ED27)) + j * xp.uint32(0x9E3779B1))
    return (h >> xp.uint32(8)).astype(real) * real.type(2.0**-23) - real.type(1)


def _mix(xp, h):
    h = (h ^ (h >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
    h = (h ^ (h >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
    return h ^ (h >> xp.uint32(16))


def backward_error(xp, routine, a, operands, results, multiply):
    """How far the results are from those of an exact computation, in units of 1.

    potrs: the largest |b - A x| / (|A| |x| + |b|) of the columns, in the infinity norm.
    potri: |X (A g) - g| / (|X| |A| |g|) for random g, which bounds the residual of the inverse.
    syevd: the larger of |A V g - V W g| / (|A| |V g|) and |V^H V g - g| / |g|; without vectors, how
        far the sum of the eigenvalues is from the trace, beside n times the largest.

    Args:
        a: the matrix; may be sharded by rows, as may V and the inverse.
        operands: {"b": right-hand sides}, for potrs.
        results: what the routine returned.
        multiply: the product of matrices at full precision.
    """
    n = a.shape[0]

    def norm(v):
        return abs(v).max(axis=0)

    def matrix_norm(m):
        return abs(m).sum(axis=1).max()

    probe = vectors(xp, n, PROBES, a.dtype, seed=7)
    if routine == "potrs":
        (x,), b = results, operands["b"]
        scale = matrix_norm(a) * norm(x) + norm(b)
        return (norm(b - multiply(a, x)) / scale).max()
    if routine == "potri":
        (x,) = results
        error = multiply(x, multiply(a, probe)) - probe
        return (norm(error) / (matrix_norm(x) * matrix_norm(a) * norm(probe))).max()
    if len(results) == 1:
        (w,) = results
        return abs(w.sum() - xp.diagonal(a).real.sum()) / (n * abs(w).max())
    w, v = results
    image = multiply(v, probe)
    residual = multiply(a, image) - multiply(v, w[:, None] * probe)
    back = multiply(v.conj().T, image) - probe
    first = norm(residual) / (matrix_norm(a) * norm(image))
    return xp.maximum(first.max(), (norm(back) / norm(probe)).max())
