"""Solves with Hermitian and symmetric matrices that need not be definite, in the way that was
measured to be the fastest. benchmarks/results/indefinite.jsonl has the times."""

import functools
import math
import typing

import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg._call import blocks, ffi, results
from jaxmg._ldl import ldl_factor
from jaxmg._lu import gesv
from jaxmg._plugin import plugins
from jaxmg._stacks import native

# LU; LAPACK's sysv on one CPU device; `ldl_factor`.
LU, LAPACK, LDL = "lu", "lapack", "ldl"


class Row(typing.NamedTuple):
    """A way, and the matrices for which it is the fastest.

    Attributes:
        ranks: the number of ranks. `LAPACK` also needs one rank alone (`_is_alone`).
        orders: the least and the largest order.
        dtypes: kinds and bytes of their real parts, for example "f4".
    """

    platform: str
    way: str
    ranks: int
    orders: tuple[float, float]
    dtypes: tuple[str, ...]


# The first row that fits determines the way; if none fits, it is `LU`. LAPACK's sysv runs on one
# core, LU on all; both were measured on two cores.
ROWS = (
    Row("cpu", LAPACK, 1, (129, 500), ("f8", "c4", "c8")),
    Row("gpu", LDL, 1, (32768, math.inf), ("f8",)),
    Row("gpu", LDL, 2, (65536, math.inf), ("f8",)),
)


def choose(layout, n, dtype):
    """Returns the way for a matrix of order n."""
    dtype = np.dtype(dtype)
    kind = f"{dtype.kind}{np.finfo(dtype).dtype.itemsize}"
    for row in ROWS:
        fits = row.platform == layout.platform and row.ranks == layout.ranks
        fits = fits and row.orders[0] <= n <= row.orders[1] and kind in row.dtypes
        if fits and (row.way != LAPACK or _is_alone(layout)):
            return row.way
    return LU


def _is_alone(layout):
    """Whether one device has the whole matrix, and computes with it for all."""
    return layout.mesh.size == 1 or layout.solo


def solvers(layout, n, dtype, hermitian):
    """Returns two functions of (a, b), where ``a`` has both triangles: one that solves in the way
    that is the fastest, and one that is also differentiated and batched. LAPACK's way
    takes the derivatives of LU, which keeps its factor for them."""
    general = functools.partial(_by_lu, layout)
    way = choose(layout, n, dtype)
    if way == LAPACK:
        return functools.partial(_by_lapack, layout, hermitian), general
    if way == LDL:
        general = functools.partial(_by_ldl, layout, hermitian)
    return general, general


def _by_lu(layout, a, b):
    return gesv.gesv(a, b, **layout.where)


def _by_ldl(layout, hermitian, a, b):
    return ldl_factor.factorize(a, hermitian, **layout.where).solve(b)


def _by_lapack(layout, hermitian, a, b):
    plugins.load(layout.platform)

    def solve(coordinates, a, b):
        columns = results.columns(b)
        x = native.solve_indefinite(a[None], columns[None], hermitian)
        return results.like(x[0], b)

    run = ffi.over_ranks(layout, solve, (P(), P()), P())
    return run(*(blocks.replicate(x, layout) for x in (a, b)))
