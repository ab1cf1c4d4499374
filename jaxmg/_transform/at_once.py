"""Which matrices of a batch one device computes at once: by JAX's own routines, which use LAPACK on
CPUs and batched routines of cuSOLVER and cuBLAS on GPUs, or by the plugin's operations on stacks.
The functions are in the `stacks.py` of each family; `jaxmg._stacks.choice` selects between ways."""

from __future__ import annotations

import collections.abc
import dataclasses
import math

import jax.numpy as jnp

from jaxmg._call import checks


@dataclasses.dataclass(frozen=True)
class AtOnce:
    """How a routine computes many matrices at once.

    Attributes:
        function: function of the platform and the stacks. Returns all results, and a mask
            (count,) of the matrices that the native code must compute again, or None.
        orders: (platform, order) pairs: the largest order for which this is faster than one matrix
            after the other (docs/laboratory.md).
        least: (order, count) pairs: on GPUs, the least number of matrices on a device for which
            this is faster, for matrices up to each order.
        values: the `AtOnce` for eigenvalues without eigenvectors; None: this one.
    """

    function: collections.abc.Callable
    orders: tuple
    least: tuple = ()
    values: AtOnce | None = None

    def is_faster(self, layout, n, count=math.inf):
        """Whether this is faster for ``count`` matrices of order n, which the devices of ``layout``
        share. False for several CPU devices: JAX's LAPACK kernels wait in a thread of XLA's pool
        for other threads of it, and several devices at a time can lock up (seen with jaxlib
        0.10.2)."""
        if layout.platform == "cpu" and layout.mesh.size > 1:
            return False
        if layout.platform == "gpu":
            least = next((least for order, least in self.least if n <= order), 1)
            if -(-count // layout.mesh.size) < least:
                return False
        return n <= dict(self.orders).get(layout.platform, 0)


def has_plain_products(options):
    """Whether JAX's routines have the precision that the options request."""
    name = checks.plain_precision(options.get("precision"))
    return checks.PRODUCTS.get(name) in (checks.PRODUCTS["highest"], checks.DEFAULT)


def zero_status(failed):
    """Returns the status 0 for each matrix."""
    return jnp.zeros(failed.shape, jnp.int32)
