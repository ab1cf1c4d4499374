"""What a call of the native engine needs on a GPU beside A, by the plugin's own account, whatever
platform the plugin is for (`plan`; docs/memory.md has the formulas).

Left out are what cuSOLVER asks for, what cuBLAS keeps, and the parts of products that are made of
those.
"""

import functools

import jax
import numpy as np

try:
    from jaxmg._call import plugins
except ImportError:  # a version to compare with, from before the package had folders
    from jaxmg import _plugin as plugins

_PLAIN = 0  # products: those that were measured


def known():
    """Whether the plugin has plans."""
    return hasattr(plugins.load(jax.default_backend()), "plan")


@functools.cache
def plan(routine, dtype, n, ranks, T_A=None, nrhs=1):
    """A dict, as the plugin's `plan` gives it."""
    plugin = plugins.load(jax.default_backend())
    native = {"cho_factor": "potrf", "cho_solve": "factor_apply"}.get(routine, routine)
    block = -(-n // ranks)
    # A version to compare with may take the order alone.
    sizes = (n, n, block) if "block" in plugin.plan.__doc__ else (n, block)
    return plugin.plan(
        native, "native", dtype, *sizes, ranks, T_A or 0, nrhs, platform="gpu", products=_PLAIN
    )


def tile(routine, dtype, n, ranks, T_A=None):
    """The width of the tiles that are worked on."""
    return plan(routine, dtype, n, ranks, T_A)["tile"]


def needed(routine, dtype, n, ranks, T_A=None, nrhs=1, donate=False, rank=0):
    """Bytes that a call needs on GPU `rank`: workspace, results and a copy of A.

    A ValueError where the plugin has no plan for the routine.
    """
    found = plan(routine, dtype, n, ranks, T_A, nrhs)
    copy = 0 if donate else -(-n // ranks) * n * np.dtype(dtype).itemsize
    return found["bytes"][rank] - found["solver"] * (rank == 0) + -(-copy // 256) * 256
