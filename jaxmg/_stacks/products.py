"""A JAX primitive for products of stacks by the plugin: C = op(X) op(Y) for each matrix.

On a GPU XLA would time several algorithms for each shape of a product. The handler
`jaxmg_stacked_product` calls a library's product at once. A product is linear in X and in Y, and
its derivatives and transposes are such products again, so JAX differentiates it to any order.

XLA can't partition a call of the plugin. A product that XLA places on several devices has a
function ``spread`` for a batch, which has the devices compute parts of it. Without a batch such a
product is XLA's.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxmg import _compat
from jaxmg._stacks import sections

# Values of the handler's attributes.
NONE, TRANSPOSE, ADJOINT = range(3)
DTYPES = ("float32", "float64", "complex64", "complex128")


def multiply(x, y, left=NONE, right=NONE, spread=None):
    """Computes op(X) op(Y) of stacks x (..., m, k) and y (..., k, n), of one of the four dtypes.
    ``left`` and ``right`` select their transposes or adjoints. The plugin must be loaded.

    Args:
        spread: A hashable function that computes the products of a batch of calls with matrices x
            and y. Its arguments are the size of the batch, a pair that says whether x and whether y
            has this leading dimension, x, y, ``left`` and ``right``. XLA computes the product of a
            call outside of a batch. None: the plugin computes all products.
    """
    axes = _compat.varying_axes(x) | _compat.varying_axes(y)
    x, y = (_compat.vary(one, axes) for one in (x, y))
    return _product.bind(x, y, left=left, right=right, spread=spread)


def _result(x, y, *, left, right, spread):
    rows = x.shape[-2 if left == NONE else -1]
    columns = y.shape[-1 if right == NONE else -2]
    return x.update(shape=(*x.shape[:-2], rows, columns), weak_type=False)


def _lower(context, x, y, *, left, right, spread):
    if spread is not None:
        by_xla = functools.partial(_multiply_by_xla, left, right)
        return mlir.lower_fun(by_xla, multiple_results=False)(context, x, y)
    call = jax.ffi.ffi_lowering("jaxmg_stacked_product")
    return call(context, x, y, left=np.int64(left), right=np.int64(right))


def _multiply_by_xla(left, right, x, y):
    x, y = (a.conj() if op == ADJOINT else a for a, op in ((x, left), (y, right)))
    sums = (0 if left else 1,), (1 if right else 0,)
    return jax.lax.dot_general(x, y, (sums, ((), ())), precision=jax.lax.Precision.HIGHEST)


@functools.lru_cache(maxsize=32)
def _compiled(left, right, spread):
    return jax.jit(functools.partial(_product.bind, left=left, right=right, spread=spread))


_product = Primitive("jaxmg_stacked_product")
_product.def_impl(lambda x, y, **options: _compiled(**options)(x, y))
_product.def_abstract_eval(_result)
mlir.register_lowering(_product, _lower)


def _jvp(primals, tangents, **options):
    (x, y), (x_dot, y_dot) = primals, tangents
    terms = []
    if not isinstance(x_dot, ad.Zero):
        terms.append(multiply(x_dot, y, **options))
    if not isinstance(y_dot, ad.Zero):
        terms.append(multiply(x, y_dot, **options))
    return multiply(x, y, **options), functools.reduce(jnp.add, terms)


def _transpose(cotangent, x, y, *, left, right, spread):
    """With A = op(X) and B = op(Y), the cotangents of A and B are G B^T and A^T G."""
    if isinstance(cotangent, ad.Zero):
        return None, None
    product = functools.partial(multiply, spread=spread)
    if ad.is_undefined_primal(x):
        other, op = _turned(y, right)
        if left == NONE:
            return product(cotangent, other, NONE, op), None
        back = product(other, cotangent, TRANSPOSE - op, TRANSPOSE)
        return jnp.conj(back) if left == ADJOINT else back, None
    other, op = _turned(x, left)
    if right == NONE:
        return None, product(other, cotangent, op)
    back = product(cotangent, other, TRANSPOSE, TRANSPOSE - op)
    return None, jnp.conj(back) if right == ADJOINT else back


def _turned(x, op):
    """Returns (Z, op') with op'(Z) = op(X)^T, where op' is NONE or TRANSPOSE."""
    return jnp.conj(x) if op == ADJOINT else x, TRANSPOSE if op == NONE else NONE


def _batch(arrays, dimensions, *, spread, **ops):
    """Moves the dimension of the batch to the front."""
    size, marks, arrays = sections.in_front(arrays, dimensions)
    if spread is not None:
        return spread(size, marks, *arrays, **ops), 0
    each = zip(arrays, marks, strict=True)
    x, y = (x if mark else jnp.broadcast_to(x, (size, *x.shape)) for x, mark in each)
    return multiply(x, y, **ops), 0


ad.primitive_jvps[_product] = _jvp
ad.primitive_transposes[_product] = _transpose
batching.primitive_batchers[_product] = _batch
