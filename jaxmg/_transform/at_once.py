"""Computes all matrices of a batch at once on one device, by JAX's own routines: those of LAPACK on
CPUs, and batched ones of cuSOLVER and cuBLAS on GPUs.

The functions take stacks, (count, n, n) and (count, n) or (count, n, nrhs), and return all results
of a `Routine` with a leading batch dimension. Like the native code they read only the upper
triangle of a Hermitian matrix.
"""

import collections.abc
import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxmg._call import checks

# The order from which on a second solve with the factor is faster than the product of its inverse
# with itself, on an H200: by 10 to 18 % in complex64, in no other dtype (docs/laboratory.md).
_BY_TWO_SOLVES = 1024


@dataclasses.dataclass(frozen=True)
class AtOnce:
    """How a routine computes many matrices at once.

    Attributes:
        function: function of the stacks. Returns all results, and a mask (count,) of the matrices
            that the native code must compute again, or None.
        orders: (platform, order) pairs: the largest order for which this is faster than one matrix
            after the other (docs/laboratory.md).
        orders_of_values: the same for eigenvalues without eigenvectors; None: the same orders.
        by_platform: whether the function takes the name of the platform before the stacks.
    """

    function: collections.abc.Callable
    orders: tuple
    orders_of_values: tuple | None = None
    by_platform: bool = False

    def on(self, platform):
        """The function of the stacks alone."""
        return functools.partial(self.function, platform) if self.by_platform else self.function

    def is_faster(self, layout, n, vectors=True):
        """Whether this is faster for matrices of order n on the devices of ``layout``. False for
        several CPU devices: JAX's LAPACK kernels wait in a thread of XLA's pool for other threads
        of it, and several devices at a time can lock up (seen with jaxlib 0.10.2)."""
        if layout.platform == "cpu" and layout.mesh.size > 1:
            return False
        orders = self.orders if vectors or self.orders_of_values is None else self.orders_of_values
        return n <= dict(orders).get(layout.platform, 0)


def has_plain_products(options):
    """Whether JAX's routines have the precision that the options request."""
    name = checks.plain_precision(options.get("precision"))
    return checks.PRODUCTS.get(name) in (checks.PRODUCTS["highest"], checks.DEFAULT)


def factorize(a):
    """Returns U with A = U^H U, the logarithms of det(A), and which factorizations failed."""
    lower = _adjoint(a)  # cholesky reads the lower triangle
    lower = jax.lax.linalg.cholesky(_with_real_diagonal(lower), symmetrize_input=False)
    diagonal = _diagonal(lower)
    failed = ~jnp.isfinite(diagonal).all(axis=-1)
    return _adjoint(lower), 2 * jnp.log(diagonal).sum(axis=-1), failed


def solve_upper(u, b, adjoint=False, left=True):
    """Returns U^-1 B, or B U^-1 if not ``left``; with U^H in place of U if ``adjoint``."""
    columns = b[..., None] if b.ndim == 2 else b
    x = jax.lax.linalg.triangular_solve(
        u, columns, left_side=left, lower=False, transpose_a=adjoint, conjugate_a=adjoint
    )
    return x.reshape(b.shape)


def solve(u, b):
    """Solves U^H U x = b."""
    return solve_upper(u, solve_upper(u, b, adjoint=True)) if b.size else b


def inverse(u):
    """Returns the Hermitian inverse of U^H U."""
    eye = jnp.broadcast_to(jnp.eye(u.shape[-1], dtype=u.dtype), u.shape)
    if u.dtype == jnp.complex64 and u.shape[-1] >= _BY_TWO_SOLVES:
        return whole(solve(u, eye))
    inverse = solve_upper(u, eye)
    return whole(multiply(inverse, _adjoint(inverse)))


def multiply(x, y):
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def whole(a):
    """Returns the Hermitian matrices whose upper triangles the stack has."""
    upper = jnp.triu(a, 1)
    return _with_real_diagonal(upper + _adjoint(upper), _diagonal(a))


def potrs(a, b):
    u, log_det, failed = factorize(a)
    return (a, solve(u, b), log_det, _zero_status(failed)), failed


def potri(a):
    u, _, failed = factorize(a)
    return (inverse(u), _zero_status(failed)), failed


def cho_factor(a):
    """As the engine has a factor on one rank: U, and no overflow."""
    u, log_det, failed = factorize(a)
    overflow = jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    return (u, overflow, log_det, _zero_status(failed)), failed


def gesv(a, b):
    lu, pivots, log_det, sign, failed = _lu(a)
    return (a, lu_solve(lu, pivots, b), log_det, sign, _zero_status(failed)), failed


def getri(a):
    lu, pivots, *_, failed = _lu(a)
    return (lu_inverse(lu, pivots), _zero_status(failed)), failed


def lu_factor(a):
    """As the engine has a factor on one rank: of the transposed matrix, and no overflow."""
    lu, pivots, log_det, sign, failed = _lu(a)
    overflow = jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    return (lu, overflow, pivots, log_det, sign, _zero_status(failed)), failed


def _lu(a):
    """(LU of the transposed matrix, transposed; its pivots; the logarithm and the sign of det(A),
    where that is 0 or A isn't finite)"""
    lu, pivots, _ = jax.lax.linalg.lu(jnp.swapaxes(a, -1, -2))
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    sizes = jnp.abs(diagonal)
    units = diagonal / jnp.where(sizes == 0, 1, sizes).astype(a.dtype)
    sign = jnp.prod(units, axis=-1) * parity(pivots).astype(a.dtype)
    log_det = jnp.log(sizes).sum(axis=-1)
    # A diagonal of U may be finite where A isn't: cuSOLVER's search for a pivot passes over NaN.
    good = jnp.isfinite(log_det) & jnp.isfinite(a).all(axis=(-2, -1))
    return jnp.swapaxes(lu, -1, -2), pivots, log_det, sign, ~good


def parity(pivots):
    """The signs of permutations, as integers."""
    moved = jnp.sum(pivots != jnp.arange(pivots.shape[-1], dtype=pivots.dtype), axis=-1)
    return 1 - 2 * (moved % 2)


def lu_solve(lu, pivots, b, adjoint=False):
    """The x with A x = b, or A^H x = b, by `_lu`: A = U^T L^T P."""
    if not b.size:
        return b
    columns = b[..., None] if b.ndim == 2 else b
    permutation = jax.lax.linalg.lu_pivots_to_permutation(pivots, lu.shape[-1])
    rows = (permutation if adjoint else jnp.argsort(permutation, axis=-1))[..., None]

    def solve(x, lower):
        return jax.lax.linalg.triangular_solve(
            lu, x, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint,
            unit_diagonal=not lower,
        )  # fmt: skip

    if adjoint:
        x = solve(solve(jnp.take_along_axis(columns, rows, axis=-2), False), True)
    else:
        x = jnp.take_along_axis(solve(solve(columns, True), False), rows, axis=-2)
    return x.reshape(b.shape)


def lu_solve_rows(lu, pivots, b, adjoint=False):
    """B A^-1, or B A^-H, by `_lu`."""
    return _adjoint(lu_solve(lu, pivots, _adjoint(b), adjoint=not adjoint))


def lu_inverse(lu, pivots):
    """The inverse of A by `_lu`."""
    return lu_solve(lu, pivots, jnp.broadcast_to(jnp.eye(lu.shape[-1], dtype=lu.dtype), lu.shape))


def syevd(a, eigh):
    """``eigh`` gives (w, V) of matrices of which it reads the lower triangles."""
    v, w, status = _eigh(a, eigh)
    return (v, w, status), None


def sygvd(a, b, eigh):
    """Solves for C = L^-1 A L^-H, B = L L^H. A failure of either step is marked."""
    u, _, failed = factorize(b)
    half = solve_upper(u, whole(a), left=False)
    v, w, status = _eigh(solve_upper(u, half, adjoint=True), eigh)
    return (solve_upper(u, v), b, w, status), failed | (status != 0)


def _eigh(a, eigh):
    """(v, w, status)"""
    w, v = eigh(_adjoint(a))  # cuSOLVER is slower on an upper triangle
    good = jnp.isfinite(jnp.triu(a)).all(axis=-1)
    failed = jnp.where(jnp.isfinite(w).all(axis=-1), 0, a.shape[-1])
    first = 1 + jnp.argmin(good, axis=-1)
    status = jnp.where(good.all(axis=-1), failed, first).astype(jnp.int32)
    solved = status[:, None] == 0
    return jnp.where(solved[..., None], v, jnp.nan), jnp.where(solved, w, jnp.nan), status


def _zero_status(failed):
    """The status 0 of each."""
    return jnp.zeros(failed.shape, jnp.int32)


def _adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


def _diagonal(a):
    return jnp.diagonal(a, axis1=-2, axis2=-1).real


def _with_real_diagonal(a, diagonal=None):
    if diagonal is None and not jnp.iscomplexobj(a):
        return a
    diagonal = _diagonal(a) if diagonal is None else diagonal
    eye = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(eye, diagonal[..., None].astype(a.dtype), a)
