"""What a device does with its share of a batch: programs of `jaxmg.linalg` as functions of stacks.

A program of one matrix spreads it over all devices. For a batch of matrices of which each fits on a
device it has a second form, ``of_stacks``: what one device does with a stack of them, by the ways
of `jaxmg._stacks`. JAX may differentiate and batch it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxmg._stacks import choice
from jaxmg._stacks.parts import in_parts
from jaxmg._stacks.triangle import whole


def hermitian(a, triangle):
    """The Hermitian matrices of which this triangle, "upper" or "lower", is read; with "hermitian"
    the matrices themselves, and NaN in the place of one that isn't Hermitian up to rounding."""
    if triangle == "hermitian":
        still = jax.lax.stop_gradient(a)
        off = jnp.abs(still - _adjoint(still)).max((-2, -1), keepdims=True, initial=0)
        largest = jnp.abs(still).max((-2, -1), keepdims=True, initial=0)
        good = off <= 10 * a.shape[-1] * float(jnp.finfo(a.dtype).eps) * largest
        good &= jnp.isfinite(largest)
        a = a * jnp.where(good, 1, jnp.nan).astype(a.dtype)
        # A sum may overflow, and XLA would merge a division with the power that scales this.
        return a + (_adjoint(a) - a) / 2
    return whole(a, upper=triangle == "upper")


def _adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


@dataclasses.dataclass(frozen=True)
class Share:
    """The share of a device, for `batching.spread`.

    Attributes:
        devices: how many compute theirs.
    """

    program: Any
    options: tuple
    platform: str
    devices: int

    def __call__(self, coordinates, *arrays):
        values = self.of_all(coordinates, *(array[None] for array in arrays))
        return tuple(value[0] for value in values)

    def of_all(self, coordinates, *stacks):
        def compute(*stacks):
            return tuple(self.program.of_stacks(self.platform, self.options, *stacks))

        if self.platform != "cpu" or self.devices == 1 or self._by_plugin(stacks[0]):
            return in_parts(compute, *stacks)

        # JAX's LAPACK kernels lock up where several devices call them with batches at a time (seen
        # with jaxlib 0.10.2), and their threads hold each other up.
        def one(arrays):
            return tuple(value[0] for value in compute(*(array[None] for array in arrays)))

        return jax.lax.map(one, stacks)

    def _by_plugin(self, stack):
        """Whether the plugin computes all that is a library's, on as many threads as cores."""
        by = self.program.by
        return by != "" and choice.choose(self.platform, by, stack) != choice.JAX
