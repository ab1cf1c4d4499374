"""Products of matrices that lie on the ranks by rows, by the engine: a JAX primitive. Each product
is one call of the plugin.

A product of X and Y is linear in each of them. Its derivatives and transposes are products of this
kind, too, so JAX can differentiate it to any order. `Product` describes a call. With the cotangent
G:

    X Y      transposed in X: G Y^T     in Y: X^T G
    X Y^T                     G Y             G^T X
    X^T Y                     Y G^T           X G

A batch of X with one Y, or of Y with one X, is one product with more rows or columns. Two batches
are for `collective_products`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.interpreters import batching as jax_batching

from jaxmg import _compat
from jaxmg._layouts import layouts, local_layouts
from jaxmg._matrices import collective_products
from jaxmg._plugin import plugins
from jaxmg._stacks import sections

NATIVE = "product"
# The values of the handler's attribute ``operation``. The handler also has X^H X, and products with
# triangles. The engine's own routines use these.
TIMES, TIMES_ADJOINT, ADJOINT_TIMES, _, ADJOINT = range(5)
_GENERAL = 0
_DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclasses.dataclass(frozen=True)
class Product:
    """A product C (m, n) of X and Y, or of X alone, by rows on the ranks.

    Attributes:
        kind: TIMES: X Y, x (m, k) and y (k, n). TIMES_ADJOINT: X Y^H, x (m, k) and y (n, k).
            ADJOINT_TIMES: X^H Y, x (k, m) and y (k, n). ADJOINT: X^H, x (k, m) with k = n.
        block: number of rows of C on a rank.
        conjugates: False: X^T and Y^T in place of X^H and Y^H.
    """

    kind: int
    m: int
    n: int
    k: int
    block: int
    layout: layouts.Layout
    conjugates: bool = True

    def __call__(self, coordinates, *operands):
        axes = frozenset().union(*map(_compat.varying_axes, operands))
        plugins.load(self.layout.platform)
        varying = (_compat.vary(x, axes) for x in operands)
        return _product.bind(jnp.reshape(coordinates, 2), *varying, of=self)

    def like(self, kind, m, n, k, block, conjugates=False):
        """Returns another product on the same ranks."""
        return dataclasses.replace(
            self, kind=kind, m=m, n=n, k=k, block=block, conjugates=conjugates
        )

    def turned(self, x):
        """Returns an operand of the transposed product: ``x``, conjugated if ``conjugates``."""
        return jnp.conj(x) if self.conjugates else x


def is_for(layout, *operands):
    """Whether the engine computes products of these rows."""
    dtypes = {str(x.dtype) for x in operands}
    return (
        bool(layout.rows)
        and len(dtypes) == 1
        and dtypes <= {*_DTYPES}
        and all(x.size for x in operands)
    )


def coordinates_of(layout, coordinates):
    """Returns ``coordinates``. If they are None, returns those of this device, inside the caller's
    shard_map."""
    return local_layouts.local_coordinates(layout) if coordinates is None else coordinates


def _is_for_xla(of, dtype):
    """Whether XLA multiplies real matrices on the only rank of CPU devices, in two thirds of the
    time of SciPy's BLAS."""
    layout = of.layout
    alone = layout.ranks == 1 and layout.platform == "cpu" and len(set(layout.processes)) < 2
    return alone and of.kind != ADJOINT and jnp.issubdtype(dtype, jnp.floating)


def _by_dot(coordinates, x, y, *, of):
    x = x.T if of.kind == ADJOINT_TIMES else x
    y = y.T if of.kind == TIMES_ADJOINT else y
    product = jnp.matmul(x, y[: x.shape[1]], precision="highest")[: of.block, : of.n]
    return jnp.pad(product, [(0, of.block - len(product)), (0, 0)])


_lower_by_dot = mlir.lower_fun(_by_dot, multiple_results=False)


def _lower(context, coordinates, x, *y, of):
    if _is_for_xla(of, context.avals_in[1].dtype):
        return _lower_by_dot(context, coordinates, x, *y, of=of)
    attributes = {
        "operation": of.kind, "m": of.m, "n": of.n, "k": of.k, "triangle": _GENERAL,
        "ranks": of.layout.ranks, "tile": 0, "grid_rows": 0,
    }  # fmt: skip
    if not y:
        of_x = context.avals_in[1]
        context = context.replace(avals_in=[*context.avals_in, of_x])
    call = jax.ffi.ffi_lowering(f"jaxmg_{NATIVE}")
    return call(
        context, coordinates, x, *(y or (x,)), backend="native", conjugates=of.conjugates,
        processes=np.array(of.layout.processes, np.int64),
        **{name: np.int64(value) for name, value in attributes.items()},
    )  # fmt: skip


def _result(coordinates, x, *y, of):
    return x.update(shape=(of.block, of.n), weak_type=False)


@functools.lru_cache(maxsize=256)
def _compiled(of):
    return jax.jit(functools.partial(_product.bind, of=of))


_product = Primitive("jaxmg_product")
_product.def_impl(lambda *arrays, of: _compiled(of)(*arrays))
_product.def_abstract_eval(_result)
mlir.register_lowering(_product, _lower)


def _jvp(primals, tangents, *, of):
    coordinates, *operands = primals
    _, *tangents = tangents
    result = of(coordinates, *operands)
    if of.kind == ADJOINT:
        return result, of(coordinates, *tangents)
    (x, y), (x_dot, y_dot) = operands, tangents
    terms = []
    if not isinstance(x_dot, ad.Zero):
        terms.append(of(coordinates, x_dot, y))
    if not isinstance(y_dot, ad.Zero):
        terms.append(of(coordinates, x, y_dot))
    return result, functools.reduce(jnp.add, terms)


def _transpose(cotangent, coordinates, x, *y, of):
    blank = (None,) * (2 + len(y))
    if isinstance(cotangent, ad.Zero):
        return blank
    if of.kind == ADJOINT:
        back = of.like(ADJOINT, of.n, of.m, of.m, x.aval.shape[0], conjugates=of.conjugates)
        return None, back(coordinates, cotangent)
    (other,) = y
    m, n, k = of.m, of.n, of.k
    if ad.is_undefined_primal(x):
        return None, _back_to_x(of, x.aval.shape[0], m, n, k, coordinates, cotangent, other), None
    return None, None, _back_to_y(of, other.aval.shape[0], m, n, k, coordinates, cotangent, x)


def _back_to_x(of, block, m, n, k, coordinates, cotangent, y):
    if of.kind == TIMES:
        return of.like(TIMES_ADJOINT, m, k, n, block)(coordinates, cotangent, y)
    if of.kind == TIMES_ADJOINT:
        return of.like(TIMES, m, k, n, block)(coordinates, cotangent, of.turned(y))
    return of.turned(of.like(TIMES_ADJOINT, k, m, n, block)(coordinates, y, cotangent))


def _back_to_y(of, block, m, n, k, coordinates, cotangent, x):
    if of.kind == TIMES:
        return of.like(ADJOINT_TIMES, k, n, m, block)(coordinates, x, cotangent)
    if of.kind == TIMES_ADJOINT:
        return of.turned(of.like(ADJOINT_TIMES, n, k, m, block)(coordinates, cotangent, x))
    return of.like(TIMES, k, n, m, block)(coordinates, of.turned(x), cotangent)


def _batch(arrays, dimensions, *, of):
    _, (_, *mapped), (coordinates, *operands) = sections.in_front(arrays, dimensions)
    if mapped == [True, False] and of.kind != ADJOINT_TIMES:
        return _with_more_rows(of, coordinates, *operands), 0
    if mapped == [True, False]:
        return _with_more_blocks(of, coordinates, *operands), 0
    if mapped == [False, True] and of.kind == TIMES_ADJOINT:
        return _with_more_rows_of_y(of, coordinates, *operands), 0
    if mapped == [False, True]:
        return _with_more_columns(of, coordinates, *operands), 0
    axes = [0 if marked else None for marked in mapped]
    return jax.vmap(functools.partial(_by_xla, of), axes)(*operands), 0


def _with_more_rows(of, coordinates, x, y):
    size, rows, k = x.shape
    block = size * rows
    more = dataclasses.replace(of, m=of.layout.ranks * block, block=block)
    return more(coordinates, x.reshape(block, k), y).reshape(size, rows, of.n)


def _with_more_blocks(of, coordinates, x, y):
    size, rows, _ = x.shape
    ranks, block = of.layout.ranks, of.block
    x = jnp.pad(x, ((0, 0), (0, 0), (0, ranks * block - of.m)))
    x = x.reshape(size, rows, ranks, block).transpose(1, 2, 0, 3).reshape(rows, -1)
    more = dataclasses.replace(of, m=x.shape[1], block=size * block)
    return more(coordinates, x, y).reshape(size, block, of.n)


def _with_more_columns(of, coordinates, x, y):
    size, rows, n = y.shape
    more = dataclasses.replace(of, n=size * n)
    product = more(coordinates, x, y.transpose(1, 0, 2).reshape(rows, size * n))
    return product.reshape(of.block, size, n).transpose(1, 0, 2)


def _with_more_rows_of_y(of, coordinates, x, y):
    size, rows, k = y.shape
    ranks = of.layout.ranks
    more = dataclasses.replace(of, n=ranks * size * rows)
    product = more(coordinates, x, y.reshape(size * rows, k))
    product = product.reshape(of.block, ranks, size, rows).transpose(2, 0, 1, 3)
    return product.reshape(size, of.block, ranks * rows)[:, :, : of.n]


def _by_xla(of, x, *y):
    """Computes the product by XLA's collectives."""
    layout, by = of.layout, collective_products
    if of.kind == TIMES:
        product = by.rows_times_rows(x, y[0], layout)
    elif of.kind == TIMES_ADJOINT:
        product = by.rows_times_adjoint(x, y[0], layout, of.conjugates)
    elif of.kind == ADJOINT_TIMES:
        product = by.adjoint_times_rows(x, y[0], layout, of.conjugates)
    else:
        product = by.adjoint(x, layout, of.k, of.conjugates)
    rows = jnp.pad(product[: of.block], ((0, max(of.block - len(product), 0)), (0, 0)))
    return rows[:, : of.n]


ad.primitive_jvps[_product] = _jvp
ad.primitive_transposes[_product] = _transpose
jax_batching.primitive_batchers[_product] = _batch
