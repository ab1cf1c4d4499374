"""Completes Hermitian and symmetric matrices, given one triangle."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._layouts import shardings
from jaxmg._matrices import products


def of_stack(a, read, symmetric):
    """Computes `whole` of each matrix of a stack."""
    half = _half(a, read)
    return _with_other_triangle(a, half, jnp.swapaxes(half, -1, -2), symmetric)


def whole(a, layout, read, symmetric):
    """Returns the Hermitian, or symmetric, matrix that the triangle ``read`` of ``a`` defines."""
    if layout.explicit and not _compat.COMPILES_EXCHANGES:
        a = shardings.constrain(a, layout, P())
        half = _half(a, read)
        return _with_other_triangle(a, half, half.T, symmetric)
    half = _half(a, read)
    other = products.transposed(half, layout)
    if layout.explicit:  # on which A may lie by columns
        a, half = (shardings.constrain_like(x, other) for x in (a, half))
    return _with_other_triangle(a, half, other, symmetric)


def _half(a, read):
    """Returns the elements of the triangle "lower" or "upper" beside the diagonal."""
    return jnp.tril(a, -1) if read == "lower" else jnp.triu(a, 1)


def _with_other_triangle(a, half, other, symmetric):
    eye = jnp.eye(a.shape[-1], dtype=bool)
    if symmetric:
        return half + other + jnp.where(eye, a, 0)
    # JAX 0.6.2 can't lower `conj` in a context of explicit axes.
    if jnp.iscomplexobj(other):
        other = jax.lax.complex(other.real, -other.imag)
    return half + other + jnp.where(eye, a.real.astype(a.dtype), 0)
