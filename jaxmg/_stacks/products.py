"""A JAX primitive for products of stacks by the plugin: C = op(X) op(Y) for each matrix.

On a GPU XLA would time several algorithms for each shape of a product. The handler
`jaxmg_stacked_product` calls a library's product at once. A product is linear in X and in Y, and
its derivatives and transposes are such products again, so JAX differentiates it to any order.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxmg import _compat

# Values of the handler's attributes.
NONE, TRANSPOSE, ADJOINT = range(3)
DTYPES = ("float32", "float64", "complex64", "complex128")


def multiply(x, y, left=NONE, right=NONE):
    """Computes op(X) op(Y) of stacks x (..., m, k) and y (..., k, n), of one of the four dtypes.
    ``left`` and ``right`` select their transposes or adjoints. The plugin must be loaded."""
    axes = _compat.varying_axes(x) | _compat.varying_axes(y)
    return _product.bind(_compat.vary(x, axes), _compat.vary(y, axes), left=left, right=right)


def _result(x, y, *, left, right):
    rows = x.shape[-2 if left == NONE else -1]
    columns = y.shape[-1 if right == NONE else -2]
    return x.update(shape=(*x.shape[:-2], rows, columns), weak_type=False)


def _lower(context, x, y, *, left, right):
    call = jax.ffi.ffi_lowering("jaxmg_stacked_product")
    return call(context, x, y, left=np.int64(left), right=np.int64(right))


@functools.lru_cache(maxsize=16)
def _compiled(left, right):
    return jax.jit(functools.partial(_product.bind, left=left, right=right))


_product = Primitive("jaxmg_stacked_product")
_product.def_impl(lambda x, y, *, left, right: _compiled(left, right)(x, y))
_product.def_abstract_eval(_result)
mlir.register_lowering(_product, _lower)


def _jvp(primals, tangents, **ops):
    (x, y), (x_dot, y_dot) = primals, tangents
    terms = []
    if not isinstance(x_dot, ad.Zero):
        terms.append(multiply(x_dot, y, **ops))
    if not isinstance(y_dot, ad.Zero):
        terms.append(multiply(x, y_dot, **ops))
    return multiply(x, y, **ops), functools.reduce(jnp.add, terms)


def _transpose(cotangent, x, y, *, left, right):
    """With A = op(X) and B = op(Y), the cotangents of A and B are G B^T and A^T G."""
    if isinstance(cotangent, ad.Zero):
        return None, None
    if ad.is_undefined_primal(x):
        other, op = _turned(y, right)
        if left == NONE:
            return multiply(cotangent, other, NONE, op), None
        back = multiply(other, cotangent, TRANSPOSE - op, TRANSPOSE)
        return jnp.conj(back) if left == ADJOINT else back, None
    other, op = _turned(x, left)
    if right == NONE:
        return None, multiply(other, cotangent, op)
    back = multiply(cotangent, other, TRANSPOSE, TRANSPOSE - op)
    return None, jnp.conj(back) if right == ADJOINT else back


def _turned(x, op):
    """Returns (Z, op') with op'(Z) = op(X)^T, where op' is NONE or TRANSPOSE."""
    return jnp.conj(x) if op == ADJOINT else x, TRANSPOSE if op == NONE else NONE


def _batch(arrays, dimensions, **ops):
    """Moves the dimension of the batch to the front."""
    pairs = list(zip(arrays, dimensions, strict=True))
    size = next(x.shape[d] for x, d in pairs if d is not None)
    x, y = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in pairs
    )
    return multiply(x, y, **ops), 0


ad.primitive_jvps[_product] = _jvp
ad.primitive_transposes[_product] = _transpose
batching.primitive_batchers[_product] = _batch
