"""Products with the reflectors of `native.reduce_to_tridiagonal`."""

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import products, sections

# Number of reflectors that are applied at a time.
_WIDTH = 64


@_compat.default_promotion()
def multiply(reflectors, tau, x):
    """Computes Q X, applying the last reflectors first, in the compact form I - V T V^H."""
    count, n, _ = x.shape
    padded = sections.padded(n, _WIDTH)
    v = jnp.swapaxes(sections.pad(jnp.triu(reflectors, 1), padded, n), 1, 2)
    v = jnp.moveaxis(v.reshape(count, n, -1, _WIDTH), 2, 1)
    tau = jnp.pad(tau, ((0, 0), (0, padded - n))).reshape(count, -1, _WIDTH)
    gram = jnp.triu(products.multiply(v, v, products.TRANSPOSE), 1)
    eye = jnp.eye(_WIDTH, dtype=x.dtype)
    t = jax.lax.linalg.triangular_solve(
        tau[..., None] * gram + eye, tau[..., None] * eye, left_side=True, lower=False,
        unit_diagonal=True,
    )  # fmt: skip
    for i in reversed(range(v.shape[1])):
        begin = i * _WIDTH
        rest = x[:, begin:]
        inner = products.multiply(v[:, i, begin:], rest, products.TRANSPOSE)
        rest = rest - products.multiply(v[:, i, begin:], products.multiply(t[:, i], inner))
        x = sections.put(x, rest, begin)
    return x
