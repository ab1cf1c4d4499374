"""The problems that are measured: matrices made from a hash, operation counts, backward errors.

An entry depends only on its indices, so every device makes its own rows, both triangles agree, and
a donated matrix can be made again. Written for both NumPy and jax.numpy (`xp`).
"""

import math
import pathlib
import runpy

import numpy as np

_ROOT = pathlib.Path(__file__).absolute().parents[1]
# This checkout's files, by path: the measured jaxmg may be older, and would import JAX.
TABLE = runpy.run_path(str(_ROOT / "tests/python/routines.py"))["ROUTINES"]
_count = runpy.run_path(str(_ROOT / "jaxmg/_routines/counts.py"))["operations"]

_MEASURED = [name for name, routine in TABLE.items() if routine.benchmark]
ON_FACTORS = tuple(name for name in _MEASURED if TABLE[name].on_factor)
ROUTINES = tuple(name for name in _MEASURED if name not in ON_FACTORS)
# run.py times only the factorization, and checks a solution with the factor.
FACTORIZATIONS = ("cho_factor", "lu_factor")
GENERAL = ("lu_factor", *(n for n in _MEASURED if TABLE[n].takes[0] in ("g", "lu")))
SOLVES = tuple(name for name in _MEASURED if "b" in TABLE[name].takes)
DTYPES = ("float32", "float64", "complex64", "complex128")
PROBES = 4  # random vectors with which inverses and eigenvectors are checked


def operations(routine, dtype, n, nrhs, vectors=True):
    """Returns the number of floating-point operations, leading terms only."""
    return _count(routine, np.dtype(dtype).kind == "c", n, nrhs, vectors)


def factor_bytes(dtype, n):
    """Returns the bytes of the triangle that a substitution reads."""
    return n * (n + 1) // 2 * np.dtype(dtype).itemsize


def usual_kind(routine):
    """Returns the kind of matrix with which a routine is measured."""
    return "uniform" if routine in GENERAL else "dominant"


def matrix(xp, n, dtype, first_row=0, rows=None, kind="dominant"):
    """Returns rows of a matrix of order n, Hermitian positive definite except for "uniform".

    kind is one of

    - "dominant": entries off the diagonal are uniform in [-1, 1] (for complex dtypes both parts);
      the diagonal is 2n, larger than the spectrum of the rest, which reaches 2 sqrt(2 n / 3).
      Condition 1 + O(n^-1/2).
    - "ill": V C V^H, where C is the circulant matrix cosh(s (n/2 - d)) / sinh(s n/2), d = |i - j|,
      and V is diagonal with units from a hash. Its eigenvalues are `ill_eigenvalues`; its condition
      is `condition(dtype)`, exactly if n is even. Its diagonal is constant: scaling does not help.
    - "moderate": I + R, where R is random off the diagonal, with a spectrum that fills [-1/2, 1/2].
      Condition about 3; of all kinds it is the most sensitive to a wrong entry of a factor.
    - "graded": D (I + R) D, with D_i = condition(dtype)^(-i / 2n) and the same R. Condition 1 to 3
      times condition(dtype)^(1 - 1/n).
    - "uniform": entries uniform in [-1, 1] (for complex dtypes both parts), not Hermitian.
      Condition about n.
    """
    rows = n if rows is None else rows
    i = (xp.arange(rows, dtype=xp.uint32) + xp.uint32(first_row))[:, None]
    j = xp.arange(n, dtype=xp.uint32)[None, :]
    return KINDS[kind](xp, i, j, n, dtype).astype(dtype)


def condition(dtype):
    """Returns the approximate condition of the hard matrices."""
    return 1e12 if np.finfo(dtype).eps < 1e-10 else 1e5


def ill_eigenvalues(n, dtype):
    """Returns the eigenvalues of the "ill" matrix, ascending, in double precision."""
    s = _decay(dtype)
    angle = 2 * np.pi * np.arange(n) / n
    # sinh s / (cosh s - cos angle), in a form without cancellation.
    return np.sort(np.sinh(s) / (2 * np.sinh(s / 2) ** 2 + 2 * np.sin(angle / 2) ** 2))


def even_column(n, condition):
    """Returns the column, (n,) in double precision, from which `even_matrix` is made: the transform
    of its eigenvalues.

    These are condition^-t, with t evenly spaced in [0, 1], at frequencies in a random order. All
    but one or two occur twice, because the matrix is real and symmetric.
    """
    lowest = np.arange(n // 2 + 1)
    np.random.default_rng(5).shuffle(lowest)
    exponents = lowest / max(n // 2, 1)
    return np.fft.irfft(float(condition) ** -exponents, n) if n > 1 else np.ones(1)


def even_matrix(xp, column, dtype, first_row=0, rows=None):
    """Returns rows of V C V^H, where C is circulant with this first column, and V as in "ill".

    Its eigenvalues are evenly spaced in the logarithm, from 1 down to 1 / condition. Its diagonal
    is constant, so scaling does not help. Rounding its entries moves no eigenvalue by more than
    about eps / 2. It reads only the column, and computes no product of matrices.
    """
    n = column.shape[0]
    rows = n if rows is None else rows
    i = xp.arange(rows, dtype=xp.uint32) + xp.uint32(first_row)
    j = xp.arange(n, dtype=xp.uint32)
    distance = xp.maximum(i[:, None], j) - xp.minimum(i[:, None], j)
    entries = column.astype(np.finfo(dtype).dtype)[distance.astype(xp.int32)]
    return _turned(xp, entries, i[:, None], j[None, :], dtype).astype(dtype)


def _dominant(xp, i, j, n, dtype):
    return xp.where(i == j, 2 * n, _noise(xp, i, j, dtype))


def _ill(xp, i, j, n, dtype):
    real, s = np.finfo(dtype).dtype, _decay(dtype)
    d = (xp.maximum(i, j) - xp.minimum(i, j)).astype(real)
    near, far = xp.exp(real.type(-s) * d), xp.exp(real.type(-s) * (real.type(n) - d))
    return _turned(xp, (near + far) * real.type(-1 / math.expm1(-s * n)), i, j, dtype)


def _turned(xp, entries, i, j, dtype):
    """Returns V C V^H for C's real entries, where V is diagonal with units from a hash, whose
    products are exact: 1, i, -1, -i, or for real dtypes 1 and -1."""
    turns = (_mix(xp, i) - _mix(xp, j)) & xp.uint32(3)
    if np.dtype(dtype).kind != "c":
        return xp.where(turns % 2 == 0, entries, -entries)
    entries = xp.where(turns < 2, entries, -entries)
    along = xp.where(turns % 2 == 0, entries, 0)
    return along + 1j * (entries - along)


def _moderate(xp, i, j, n, dtype):
    variance = (2 if np.dtype(dtype).kind == "c" else 1) / 3
    # The spectrum of the noise fills +-2 sqrt(n variance).
    scale = np.finfo(dtype).dtype.type(1 / (4 * math.sqrt(n * variance)))
    return xp.where(i == j, 1, _noise(xp, i, j, dtype) * scale)


def _graded(xp, i, j, n, dtype):
    real = np.finfo(dtype).dtype
    rate = real.type(-math.log(condition(dtype)) / (2 * n))
    scale = xp.exp(rate * i.astype(real)) * xp.exp(rate * j.astype(real))
    return scale * _moderate(xp, i, j, n, dtype)


def _uniform_everywhere(xp, i, j, n, dtype):
    return _entries(xp, i, j, dtype, 1)


KINDS = {
    "dominant": _dominant,
    "moderate": _moderate,
    "ill": _ill,
    "graded": _graded,
    "uniform": _uniform_everywhere,
}


def _decay(dtype):
    """Returns s for which coth(s / 2)^2, the circulant matrix's condition, is condition(dtype)."""
    return 2 * math.atanh(condition(dtype) ** -0.5)


def _noise(xp, i, j, dtype):
    """Returns entries of a Hermitian matrix, uniform in [-1, 1], for complex dtypes both parts."""
    low, high = xp.minimum(i, j), xp.maximum(i, j)
    entries = _uniform(xp, low, high, 1, dtype)
    if np.dtype(dtype).kind == "c":
        imaginary = _uniform(xp, low, high, 2, dtype)
        entries = entries + 1j * xp.where(i < j, imaginary, -imaginary)
    return entries


def wide(array):
    """Converts an array to double precision, in which errors are measured."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def vectors(xp, n, count, dtype, seed=3):
    """Returns right-hand sides or probes: (n, count), uniform in [-1, 1]."""
    i = xp.arange(n, dtype=xp.uint32)[:, None]
    j = xp.arange(count, dtype=xp.uint32)[None, :]
    return _entries(xp, i, j, dtype, seed).astype(dtype)


def _entries(xp, i, j, dtype, seed):
    """Returns entries, uniform in [-1, 1), for complex dtypes both parts, from pairs of uint32."""
    entries = _uniform(xp, i, j, seed, dtype)
    if np.dtype(dtype).kind == "c":
        entries = entries + 1j * _uniform(xp, i, j, seed + 1, dtype)
    return entries


def _uniform(xp, i, j, seed, dtype):
    """Returns uniform numbers in [-1, 1) from pairs of uint32, by MurmurHash3's finalizer."""
    real = np.finfo(dtype).dtype
    h = _mix(xp, _mix(xp, i + xp.uint32(seed * 0x51ED27)) + j * xp.uint32(0x9E3779B1))
    return (h >> xp.uint32(8)).astype(real) * real.type(2.0**-23) - real.type(1)


def _mix(xp, h):
    h = (h ^ (h >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
    h = (h ^ (h >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
    return h ^ (h >> xp.uint32(16))


def same_bits(xp, first, second):
    """Returns whether two tuples of arrays are equal bit for bit, including NaN."""
    same = True
    for x, y in zip(first, second, strict=True):
        for part in (xp.real, xp.imag):
            same = same & (_bits(part(x)) == _bits(part(y))).all()
    return same


def _bits(x):
    return x.view({1: np.uint8, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize])


def backward_error(xp, routine, a, operands, results, multiply):
    """Returns the distance of the results from those of an exact computation, relative to 1.

    Solves and factorizations, whose result is x: the largest |b - A x| / (|A| |x| + |b|) of the
    columns, in the infinity norm.
    Inverses: |X (A g) - g| / (|X| |A| |g|) for random g, which bounds the residual of the inverse.
    syevd: the larger of |A V g - V W g| / (|A| |V g|) and |V^H V g - g| / |g|; without vectors, the
        distance of the sum of the eigenvalues from the trace, over n times the largest.

    Args:
        a: the matrix; may be sharded by rows, as may V and the inverse.
        operands: {"b": right-hand sides}, for solves and factorizations.
        results: the routine's results; for a factorization the solution for b by its factor.
        multiply: the product of matrices at full precision.
    """
    n = a.shape[0]

    def norm(v):
        return abs(v).max(axis=0)

    def matrix_norm(m):
        return abs(m).sum(axis=1).max()

    probe = vectors(xp, n, PROBES, a.dtype, seed=7)
    if routine in SOLVES or routine in FACTORIZATIONS:
        (x,), b = results, operands["b"]
        scale = matrix_norm(a) * norm(x) + norm(b)
        return (norm(b - multiply(a, x)) / scale).max()
    if routine in ("potri", "getri"):
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
