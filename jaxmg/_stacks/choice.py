"""Operations on stacks, (count, m, n), on one device: the ways to compute each, and a choice.

Each `Operation` is in the `stacks.py` of its family; `triangle.py` has substitution. JAX's own
routine is one way. It is batched on CPUs, and on GPUs for Cholesky, LU and eigenproblems. For other
functions it takes one matrix after the other, or calls a library's routine that is made for
matrices of order 32. If another way was measured to be faster, the operation has a row for it.
`benchmarks/batches.py` measures the ways, and docs/laboratory.md has the times: on H200, for four
dtypes, at powers of two from order 32 to 4096. Other orders are assigned alike.
"""

import collections.abc
import dataclasses
import functools
import math
import typing

import jax
import numpy as np

from jaxmg._plugin import plugins
from jaxmg._stacks import products, sections

JAX, TURNS, AT_ONCE = "jax", "turns", "at once"


class Row(typing.NamedTuple):
    """A way, and the stacks for which it is the fastest.

    Attributes:
        platform: "gpu" or "cpu".
        way: a key of the operation's ways.
        orders: the least and the largest min(m, n).
        least: the minimum number of matrices.
        dtypes: kinds and bytes of their real parts, for example "f4".
        most: the maximum number of matrices; infinity by default.
    """

    platform: str
    way: str
    orders: tuple[int, int]
    least: int = 2
    dtypes: tuple[str, ...] = ("f4", "f8", "c4", "c8")
    most: float = math.inf


def on_cpus(way):
    """Returns the row of a way for all stacks on a CPU device. The plugin distributes the matrices
    over the cores, each with one BLAS thread, for any number of devices."""
    return Row("cpu", way, (1, 4096), 1)


# All operations, for tests.
OPERATIONS: list["Operation"] = []


@dataclasses.dataclass(eq=False)
class Operation:
    """An operation on stacks. A call with a platform and stacks computes it in the way for the
    first stack.

    Attributes:
        name: the name of the rows, shared by operations that are computed in the same ways.
        ways: functions of the stacks by the names of the ways, with their own derivatives where JAX
            has none. All but `JAX` and `TURNS` call the plugin.
        rows: the first row that fits a stack determines its way; if none fits, it is `JAX`.
    """

    name: str
    ways: collections.abc.Mapping[str, collections.abc.Callable[..., typing.Any]]
    rows: tuple[Row, ...]

    def __post_init__(self):
        OPERATIONS.append(self)

    def choose(self, platform, a):
        """Returns the way for a stack."""
        return choose(self.rows, platform, min(a.shape[-2:]), len(a), np.dtype(a.dtype))

    def function(self, platform, a):
        """Returns the function chosen for a stack. Loads the plugin if the function calls it."""
        way = self.choose(platform, a)
        if way not in (JAX, TURNS):
            plugins.load(platform)
        return self.ways[way]

    def __call__(self, platform, *stacks):
        return self.function(platform, stacks[0])(*stacks)


def choose(rows, platform, order, count, dtype=None):
    """Returns the way of the first row that fits, or `JAX` if none does. Any dtype fits None."""
    kind = dtype and f"{dtype.kind}{np.finfo(dtype).dtype.itemsize}"
    for row in rows:
        fits = row.platform == platform and (kind is None or kind in row.dtypes)
        if fits and row.orders[0] <= order <= row.orders[1] and row.least <= count <= row.most:
            return row.way
    return JAX


def rows_at_once(gpu, cpu):
    """Returns the rows of a routine that computes matrices up to these orders at once. For others
    the native code computes one after the other."""
    return Row("gpu", AT_ONCE, (0, gpu), 1), Row("cpu", AT_ONCE, (0, cpu), 0)


def at_once(function, *rows):
    """Returns the operation that computes many matrices of a routine at once.

    Args:
        function: function of the platform and the stacks. Returns all results, and a mask (count,)
            of the matrices that the native code must compute again, or None.
    """
    return Operation(f"{function.__name__} at once", {AT_ONCE: function}, rows)


# Platforms on which the plugin computes products of stacks. On a GPU XLA times several algorithms
# for each of its own products.
_PRODUCTS = ("gpu",)


def multiplies_by_plugin(platform):
    """Returns whether the plugin computes products of stacks on a platform. If so, loads it."""
    if platform not in _PRODUCTS:
        return False
    plugins.load(platform)
    return True


def in_turn(function):
    """Applies ``function`` to one matrix after the other: libraries have other routines for a
    single matrix."""
    return functools.partial(jax.lax.map, function)


def multiply(platform, *stacks):
    """Computes the product of the stacks, by the plugin on GPUs."""
    by_plugin = multiplies_by_plugin(platform)
    return functools.reduce(products.multiply if by_plugin else sections.multiply, stacks)
