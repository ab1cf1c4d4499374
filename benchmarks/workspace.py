"""The memory that a call of the native engine needs on a GPU in addition to A, by the plugin's
`plan`, whatever platform the plugin is for (docs/memory.md has the formulas).

It excludes the memory that cuSOLVER asks for, the memory that cuBLAS keeps, and that of the parts
from which products are computed.
"""

import functools

import jax
import numpy as np

try:
    from jaxmg._plugin import plugins
except ImportError:  # an older version to compare with, whose package has no folders
    from jaxmg import _plugin as plugins

_PLAIN = 0  # products: plain ones, which were measured


def known():
    """Returns whether the plugin has plans."""
    return hasattr(plugins.load(jax.default_backend()), "plan")


@functools.cache
def plan(routine, dtype, n, ranks, T_A=None, nrhs=1):
    """Returns the plugin's `plan`, a dict."""
    plugin = plugins.load(jax.default_backend())
    native = {"cho_factor": "potrf", "cho_solve": "factor_apply"}.get(routine, routine)
    block = -(-n // ranks)
    # A version to compare with may take only the order.
    sizes = (n, n, block) if "block" in plugin.plan.__doc__ else (n, block)
    return plugin.plan(
        native, "native", dtype, *sizes, ranks, T_A or 0, nrhs, platform="gpu", products=_PLAIN
    )


def tile(routine, dtype, n, ranks, T_A=None):
    """Returns the tile width of the computation."""
    return plan(routine, dtype, n, ranks, T_A)["tile"]


def needed(routine, dtype, n, ranks, T_A=None, nrhs=1, donate=False, rank=0):
    """Returns the bytes that a call needs on GPU `rank`: workspace, results and a copy of A.

    Raises a ValueError if the plugin has no plan for the routine.
    """
    found = plan(routine, dtype, n, ranks, T_A, nrhs)
    copy = 0 if donate else -(-n // ranks) * n * np.dtype(dtype).itemsize
    return found["bytes"][rank] - found["solver"] * (rank == 0) + -(-copy // 256) * 256
