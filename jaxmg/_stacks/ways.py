"""How a device computes its share of a batch: a stack of matrices, (count, m, n).

JAX's own routine is one way. It is batched on CPUs, and on GPUs for Cholesky, LU and eigenproblems;
of others it takes one matrix after the other, or calls a library's routine that is made for
matrices of order 32. Where a measurement says that another way is faster, `TABLE` has a row.
`benchmarks/batches.py` measures it, and docs/laboratory.md has the times.
"""

import collections.abc
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from jaxmg import _compat
from jaxmg._call import plugins
from jaxmg._stacks import eigh as stages
from jaxmg._stacks import lu, polar_svd, qr, sections

JAX, TURNS = "jax", "turns"


class Row(typing.NamedTuple):
    """A way, and for which stacks it is the fastest.

    Attributes:
        platform: "gpu" or "cpu".
        function: "qr", "inv", "solve", "eigh", "svd" or "polar".
        way: a key of the function's ways below.
        orders: the least and the largest min(m, n).
        least: the fewest matrices.
        dtypes: kinds and bytes of their real parts, as "f4".
    """

    platform: str
    function: str
    way: str
    orders: tuple[int, int]
    least: int = 2
    dtypes: tuple[str, ...] = ("f4", "f8", "c4", "c8")


# The first row that fits a stack is taken; JAX's own where there is none. Measured on one H200 for
# float64 and complex64 from order 32 to 2048, and for float32 in part: QR from 128 on, 7 to 340
# times as fast as JAX's; inverses and solutions by blocks at 2048, 2 to 11 times; polar and SVD
# from 64 on, 3 to 360 times. On one H100: inverses and solutions by the plugin from 128 to 1024,
# 1.1 to 10 times; eigenproblems by stages at 256 and 512, 1.2 to 2.8 times. Dtypes and orders that
# were not measured are taken the same way.
TABLE: tuple[Row, ...] = (
    Row("gpu", "qr", "blocked", (128, 4096), 8),
    Row("gpu", "inv", "plugin", (128, 1024), 4),
    Row("gpu", "inv", "blocked", (1025, 4096), 8, ("f4", "c4", "c8")),
    Row("gpu", "inv", "blocked", (1536, 4096), 8),
    Row("gpu", "solve", "plugin", (128, 1024), 4),
    Row("gpu", "solve", "blocked", (1025, 4096), 8, ("f4", "c4", "c8")),
    Row("gpu", "solve", "blocked", (1536, 4096), 8),
    Row("gpu", "eigh", "stages", (256, 512), 16, ("f4", "f8")),
    Row("gpu", "eigh", "stages", (513, 1024), 48, ("f4", "f8")),
    Row("gpu", "polar", "qdwh", (64, 4096), 4),
    Row("gpu", "svd", "polar and stages", (128, 512), 32, ("f4", "f8")),
    Row("gpu", "svd", "polar", (64, 4096), 4),
)


# The ways with kernels of Pallas, and those that call the plugin.
_BY_KERNELS = ("stages", "polar and stages")
_BY_PLUGIN = (*_BY_KERNELS, "plugin")


@functools.cache
def has_kernels():
    """Whether Pallas compiles kernels for this process's GPUs: Triton needs compute capability 8,
    and what the kernels use JAX 0.8."""
    if _compat.pallas_triton() is None:
        return False
    try:
        gpus = jax.local_devices(backend="gpu")
    except RuntimeError:  # there are none
        return False
    return all(float(gpu.compute_capability) >= 8 for gpu in gpus)


def choose(platform, function, a):
    """The way for a stack."""
    dtype = np.dtype(a.dtype)
    kind = f"{dtype.kind}{np.finfo(dtype).dtype.itemsize}"
    order = min(a.shape[-2:])
    for row in TABLE:
        fits = row.platform == platform and row.function == function and kind in row.dtypes
        fits &= row.orders[0] <= order <= row.orders[1] and len(a) >= row.least
        if fits and (row.way not in _BY_KERNELS or has_kernels()):
            return row.way
    return JAX


def _function(functions, platform, name, a):
    """The function of the way for a stack. Loads the plugin if that way calls it."""
    way = choose(platform, name, a)
    if way in _BY_PLUGIN:
        plugins.load(platform)
    return functions[way]


def _in_turn(function):
    """JAX's function of one matrix after the other: libraries have other routines for one."""
    return functools.partial(jax.lax.map, function)


_Ways: typing.TypeAlias = dict[str, collections.abc.Callable[..., typing.Any]]
_QR: _Ways = {JAX: jnp.linalg.qr, TURNS: _in_turn(jnp.linalg.qr), "blocked": qr.reduced}
_INV: _Ways = {
    JAX: jnp.linalg.inv,
    TURNS: _in_turn(jnp.linalg.inv),
    "plugin": lu.inverse_by_plugin,
    "blocked": lu.inverse,
}
_SOLVE: _Ways = {
    JAX: jnp.linalg.solve,
    TURNS: lambda a, b: jax.lax.map(lambda one: jnp.linalg.solve(*one), (a, b)),
    "plugin": lu.solve_by_plugin,
    "blocked": lu.solve,
}


def _eigh_by_jax(a):
    v, w = jax.lax.linalg.eigh(a, lower=True, symmetrize_input=False)
    return w, v


_EIGH: _Ways = {JAX: _eigh_by_jax, "stages": stages.decompose_lower}
_SVD: _Ways = {
    JAX: functools.partial(jnp.linalg.svd, full_matrices=False),
    "polar": polar_svd.decompose,
    "polar and stages": polar_svd.decompose_by_stages,
}
_POLAR: _Ways = {JAX: polar_svd.unitary_by_jax, "qdwh": polar_svd.unitary}


def reduced_qr(platform, a):
    """(Q, R), with LAPACK's signs."""
    q, r = _function(_QR, platform, "qr", a)(a)
    return q, r


def inverse(platform, a):
    """The inverse by LU."""
    return _function(_INV, platform, "inv", a)(a)


def solve(platform, a, b):
    """A^-1 B by LU, of b (count, n, nrhs)."""
    return _function(_SOLVE, platform, "solve", a)(a, b)


def eigh(platform, a):
    """(w, V) of Hermitian matrices, of which the lower triangles are read."""
    w, v = _function(_EIGH, platform, "eigh", a)(a)
    return w, v


def svd(platform, a):
    """(U, s, V^H), without further columns."""
    u, s, vh = _function(_SVD, platform, "svd", a)(a)
    return u, s, vh


def singular_values(platform, a):
    """The singular values alone."""
    if choose(platform, "svd", a) == JAX:
        return jnp.linalg.svd(a, compute_uv=False)
    return svd(platform, a)[1]


def polar(platform, a):
    """The U of A = U H, or A = H U."""
    return _function(_POLAR, platform, "polar", a)(a)


def multiply(*stacks):
    """Their product."""
    return functools.reduce(sections.multiply, stacks)
