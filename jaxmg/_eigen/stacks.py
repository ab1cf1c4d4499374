"""Stacks of Hermitian matrices on one device: the ways to compute eigenvalues and eigenvectors, and
the routines that compute all matrices of a batch at once (`syevd`, `sygvd`).

For real symmetric matrices on a GPU `decompose` is a reduction to tridiagonal form, divide and
conquer, and a multiplication by the reflectors of the reduction. The batched routine of a library
leaves most of a GPU idle for medium orders. Here every stage processes all matrices in step, which
was 1.2 to 1.9 times as fast as cuSOLVER on one H200 for orders 256 and 512
(`benchmarks/results/batches.jsonl`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._eigen import tridiagonal
from jaxmg._stacks import choice, library, native, products, rotations, scaling, sections, triangle
from jaxmg._stacks.choice import AT_ONCE, JAX, TURNS, Row


@jax.custom_jvp
@_compat.default_promotion()
def decompose(a):
    """Computes (w, V) of symmetric A (count, n, n): w (count, n) ascending, V (count, n, n). Reads
    both triangles. A matrix with an entry that isn't finite gives NaN.

    Cost for each matrix: about 14/3 n^3 flops. Memory: about four stacks.
    """
    if a.shape[-1] == 1:
        return a[..., 0], jnp.where(jnp.isfinite(a), jnp.ones_like(a), jnp.nan)
    scaled, exponent = native.scale(a)
    reflectors, d, e, tau = native.reduce_to_tridiagonal(scaled)
    w, v = tridiagonal.eigh(d, e)
    return scaling.multiplied(w, exponent[:, None]), native.multiply_reflectors(reflectors, tau, v)


def decompose_lower(a):
    """Like `decompose`, but reads the lower triangles."""
    lower = jnp.tril(a, -1)
    diagonal = jnp.diagonal(a, axis1=-2, axis2=-1)[..., None] * jnp.eye(a.shape[-1], dtype=a.dtype)
    return decompose(lower + jnp.swapaxes(lower, -1, -2) + diagonal)


@decompose.defjvp
@_compat.default_promotion()
def _jvp(primals, tangents):
    (a_dot,) = tangents
    w, v = decompose(*primals)
    return (w, v), rotations.of_eigenpairs(w, v, a_dot, products.multiply)


def syevd(platform, a):
    """Computes eigenvalues and eigenvectors."""
    v, w, status = _eigh(platform, a)
    return (v, w, status), None


def sygvd(platform, a, b):
    """Solves for C = L^-1 A L^-H, where B = L L^H. The mask has the failures of both steps."""
    u, _, failed = cholesky_stacks.factorize(platform, b)
    half = cholesky_stacks.solve_upper(platform, u, triangle.whole(a, upper=True), left=False)
    v, w, status = _eigh(platform, cholesky_stacks.solve_upper(platform, u, half, adjoint=True))
    return (cholesky_stacks.solve_upper(platform, u, v), b, w, status), failed | (status != 0)


def _eigh(platform, a):
    """Returns (v, w, status); v and w are NaN where the status isn't 0."""
    w, v = EIGH(platform, sections.adjoint(a))  # cuSOLVER is slower on an upper triangle
    good = jnp.isfinite(jnp.triu(a)).all(axis=-1)
    failed = jnp.where(jnp.isfinite(w).all(axis=-1), 0, a.shape[-1])
    first = 1 + jnp.argmin(good, axis=-1)
    status = jnp.where(good.all(axis=-1), failed, first).astype(jnp.int32)
    solved = status[:, None] == 0
    return jnp.where(solved[..., None], v, jnp.nan), jnp.where(solved, w, jnp.nan), status


EIGH = choice.Operation(
    "eigh",
    {
        JAX: library.eigh_lower,
        TURNS: choice.in_turn(library.eigh_lower),
        "stages": decompose_lower,
    },
    (
        Row("gpu", "stages", (256, 512), 2, ("f4", "f8")),
        Row("gpu", "stages", (513, 768), 3, ("f4", "f8")),
        Row("gpu", "stages", (769, 1024), 48, ("f4", "f8")),
        Row("gpu", TURNS, (512, 1024), 2, ("f4", "f8"), 4),
        Row("gpu", TURNS, (1025, 4096), 2, ("f4", "f8"), 6),
        Row("gpu", TURNS, (512, 4096), 2, ("c4", "c8"), 7),
    ),
)
SYEVD = choice.at_once(syevd, *choice.rows_at_once(gpu=4096, cpu=128))
# XLA drops the eigenvectors that nobody reads. On an H200 the batched routines take as long for a
# few matrices as for eight: the native code then computes the values of each alone.
VALUES = choice.at_once(
    syevd,
    Row("gpu", AT_ONCE, (0, 128), 2),
    Row("gpu", AT_ONCE, (129, 256), 5),
    Row("gpu", AT_ONCE, (257, 4096), 8),
    Row("cpu", AT_ONCE, (0, 64), 0),
)
SYGVD = choice.at_once(sygvd, *choice.rows_at_once(gpu=2048, cpu=64))


def eigh(platform, a):
    """Computes (w, V) of Hermitian matrices; reads the lower triangles."""
    w, v = EIGH(platform, a)
    return w, v
