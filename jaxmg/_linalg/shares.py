"""The computation of one device's share of a batch, for programs of `jaxmg.linalg`.

A program spreads one matrix over all devices. For a batch whose matrices each fit on a device, the
program has a second form, ``compute_stacks``: one device computes a stack of whole matrices with
the families' `stacks`. JAX can differentiate and batch this form.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxmg._linalg import halves
from jaxmg._stacks import choice
from jaxmg._stacks.parts import in_parts
from jaxmg._stacks.triangle import whole


def hermitian(a, triangle):
    """Returns the Hermitian matrices that this triangle of ``a``, "upper" or "lower", defines.

    "hermitian" returns the matrices themselves, symmetrized. A matrix that isn't Hermitian up to
    rounding becomes NaN.
    """
    if triangle.startswith("hermitian"):
        still = jax.lax.stop_gradient(a)
        off = jnp.abs(still - _adjoint(still)).max((-2, -1), keepdims=True, initial=0)
        largest = jnp.abs(still).max((-2, -1), keepdims=True, initial=0)
        eps = 10 * a.shape[-1] * float(jnp.finfo(a.dtype).eps) + 4 * halves.rounding(triangle)
        good = off <= eps * largest
        good &= jnp.isfinite(largest)
        a = a * jnp.where(good, 1, jnp.nan).astype(a.dtype)
        # (a + a^H) / 2 may overflow. In a / 2 + a^H / 2 XLA would merge the divisions with the
        # power of two that scales ``a``.
        return a + (_adjoint(a) - a) / 2
    return whole(a, upper=triangle == "upper")


def _adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


@dataclasses.dataclass(frozen=True)
class Share:
    """Computes a device's share of a batch; a function for `batching.spread`.

    Attributes:
        program: has ``compute_stacks``.
        options: second argument of ``compute_stacks``.
        devices: number of devices that compute shares.
    """

    program: Any
    options: tuple
    platform: str
    devices: int

    def __call__(self, coordinates, *arrays):
        values = self.compute_all(coordinates, *(array[None] for array in arrays))
        return tuple(value[0] for value in values)

    def compute_all(self, coordinates, *stacks):
        def compute(*stacks):
            return tuple(self.program.compute_stacks(self.platform, self.options, *stacks))

        if self.platform != "cpu" or self.devices == 1 or self._by_plugin(stacks[0]):
            return in_parts(compute, *stacks)

        # JAX's LAPACK kernels deadlock if several CPU devices call them with batches at the same
        # time (seen with jaxlib 0.10.2), and their threads compete for the cores.
        def one(arrays):
            return tuple(value[0] for value in compute(*(array[None] for array in arrays)))

        return jax.lax.map(one, stacks)

    def _by_plugin(self, stack):
        """Returns whether the plugin replaces all library calls; it has one thread per core."""
        by, stack = self.program.by, jax.eval_shape(halves.widened, stack)
        return by is not None and by.choose(self.platform, stack) != choice.JAX
