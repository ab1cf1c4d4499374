"""The choice of the way to compute a device's share of a batch, a stack of matrices (count, m, n).

JAX's own routine is one way. It is batched on CPUs, and on GPUs for Cholesky, LU and eigenproblems.
For other functions it takes one matrix after the other, or calls a library's routine that is made
for matrices of order 32. If another way was measured to be faster, `TABLE` has a row for it.
`benchmarks/batches.py` measures the ways, and docs/laboratory.md has the times.
"""

import collections.abc
import functools
import math
import typing

import jax
import numpy as np

from jaxmg._plugin import plugins
from jaxmg._stacks import products, sections

JAX, TURNS = "jax", "turns"


class Row(typing.NamedTuple):
    """A way, and the stacks for which it is the fastest.

    Attributes:
        platform: "gpu" or "cpu".
        function: "cholesky", "potri", "trsm", "lu", "qr", "inv", "solve", "eigh", "svd" or
            "polar".
        way: a key of the function's ways, in the `stacks.py` of its family.
        orders: the least and the largest min(m, n).
        least: the minimum number of matrices.
        dtypes: kinds and bytes of their real parts, for example "f4".
        most: the maximum number of matrices; infinity by default.
    """

    platform: str
    function: str
    way: str
    orders: tuple[int, int]
    least: int = 2
    dtypes: tuple[str, ...] = ("f4", "f8", "c4", "c8")
    most: float = math.inf


# The first row that fits a stack applies, or JAX's own way if no row does. Times were measured on
# H200 for four dtypes at powers of two from order 32 to 4096 (docs/laboratory.md); other orders are
# assigned alike. "cholesky", "potri", "trsm" and "lu" are building blocks of routines. Small
# batches of medium orders are as fast with JAX's routine.
_NOT_COMPLEX128 = ("f4", "f8", "c4")
TABLE: tuple[Row, ...] = (
    Row("gpu", "cholesky", "plugin", (1, 4096), 16),
    Row("gpu", "cholesky", "plugin", (512, 4096)),
    Row("gpu", "potri", "plugin", (1, 4096)),
    Row("gpu", "trsm", "plugin", (1, 4096)),
    *(
        row
        for function in ("lu", "inv", "solve")
        for row in (
            Row("gpu", function, "plugin", (33, 1024), 4),
            Row("gpu", function, "plugin", (1025, 2048), 8, _NOT_COMPLEX128),
            Row("gpu", function, "plugin", (1025, 2048), 12),
        )
    ),
    Row("gpu", "inv", "small", (1, 32)),
    Row("gpu", "solve", "small", (1, 32)),
    Row("gpu", "qr", "blocked", (128, 4096), 8),
    Row("gpu", "eigh", "stages", (256, 512), 16, ("f4", "f8")),
    Row("gpu", "eigh", "stages", (513, 1024), 48, ("f4", "f8")),
    Row("gpu", "eigh", TURNS, (512, 1024), 2, ("f4", "f8"), 4),
    Row("gpu", "eigh", TURNS, (1025, 4096), 2, ("f4", "f8"), 6),
    Row("gpu", "eigh", TURNS, (512, 4096), 2, ("c4", "c8"), 7),
    Row("gpu", "polar", "qdwh", (32, 4096), 4),
    Row("gpu", "svd", "polar and stages", (256, 512), 32, ("f4", "f8")),
    Row("gpu", "svd", "polar", (32, 4096), 4),
    # The plugin distributes the matrices over the cores, each with one BLAS thread, for any number
    # of devices.
    *(
        Row("cpu", function, way, (1, 4096), 1)
        for way, functions in (
            ("plugin", ("svd", "lu", "inv")),
            ("lapack", ("cholesky", "qr", "solve", "trsm")),
        )
        for function in functions
    ),
)


# The ways that call the plugin.
_BY_PLUGIN = (
    "stages", "polar and stages", "plugin", "lapack", "small", "qdwh", "polar", "blocked",
)  # fmt: skip


# Platforms on which the plugin computes products of stacks. On a GPU XLA times several algorithms
# for each of its own products.
_PRODUCTS = ("gpu",)


def multiplies_by_plugin(platform):
    """Returns whether the plugin computes products of stacks on a platform. If so, loads it."""
    if platform not in _PRODUCTS:
        return False
    plugins.load(platform)
    return True


def choose(platform, function, a):
    """Returns the way for a stack."""
    dtype = np.dtype(a.dtype)
    kind = f"{dtype.kind}{np.finfo(dtype).dtype.itemsize}"
    order = min(a.shape[-2:])
    for row in TABLE:
        fits = row.platform == platform and row.function == function and kind in row.dtypes
        fits &= row.orders[0] <= order <= row.orders[1] and row.least <= len(a) <= row.most
        if fits:
            return row.way
    return JAX


def function(functions, platform, name, a):
    """Returns the function in ``functions`` that is chosen for a stack. Loads the plugin if it
    calls it."""
    way = choose(platform, name, a)
    if way in _BY_PLUGIN:
        plugins.load(platform)
    return functions[way]


def in_turn(function):
    """Applies ``function`` to one matrix after the other: libraries have other routines for a
    single matrix."""
    return functools.partial(jax.lax.map, function)


Ways: typing.TypeAlias = dict[str, collections.abc.Callable[..., typing.Any]]


def multiply(platform, *stacks):
    """Computes the product of the stacks, by the plugin on GPUs."""
    by_plugin = multiplies_by_plugin(platform)
    return functools.reduce(products.multiply if by_plugin else sections.multiply, stacks)
