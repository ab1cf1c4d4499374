"""Asks the plugin which backend can run a call, and how much memory the call needs."""

import numpy as np

from jaxmg._call import checks
from jaxmg._plugin import plugins

_ONE_PROCESS = "cusolvermg"
# Needs one process for each device. "auto" never selects it: docs/laboratory.md#cusolvermp.
_PROCESS_EACH = "cusolvermp"


def resolve(routine, layout, backend, a, caller=""):
    """Loads the plugin for the layout's platform and returns the name of the backend for ``a``,
    (rows, n). Errors name ``caller``.

    "auto" selects the first backend that fits in a device's memory (`_fits`), or the first one if
    none does.
    """
    caller = caller or routine
    available = plugins.load(layout.platform).backends(routine)
    if layout.processes and backend != _ONE_PROCESS:
        available = [name for name in available if name != _ONE_PROCESS]
    elif layout.processes and backend in available:
        raise ValueError(
            f"{caller}: backend {backend!r} drives the GPUs of one process, and the mesh has "
            "devices of several; use 'native' (or 'auto')"
        )
    if backend != _PROCESS_EACH:
        available = [name for name in available if name != _PROCESS_EACH]
    elif backend in available and not _has_process_each(layout):
        raise ValueError(
            f"{caller}: backend {backend!r} needs one process for each of its {layout.ranks} GPUs, "
            "but a process has several of them; use 'native' (or 'auto'), or start one process "
            "for each GPU (python -m jaxmg.launch)"
        )
    if backend == "auto" and len(available) > 1 and layout.ranks > 1:
        available = [*(name for name in available if _fits(routine, layout, name, a)), *available]
    name = checks.backend(caller, backend, available, layout.platform)
    checks.order(routine, name, a.shape[1], layout.ranks)
    return name


def _has_process_each(layout):
    """Whether the ranks that share a matrix are all in different processes."""
    if layout.ranks == 1:
        return True
    groups = np.array(layout.processes).reshape(-1, layout.ranks)
    return groups.size > 0 and all(len(set(group)) == layout.ranks for group in groups)


def _fits(routine, layout, backend, a):
    """Whether a device has the memory to solve a problem that one device solves alone. True if the
    memory is unknown, and for problems that all devices share."""
    memory = layout.memory
    sizes = plan(routine, layout, backend, a.dtype, a.shape, 0, vectors=True)
    if memory is None or not sizes["solver"] or not sizes["bytes"]:
        return True
    # The caller's matrix and the copy that the solver works on.
    return max(sizes["bytes"]) + 2 * block_bytes(layout, a.shape, a.dtype) <= memory


def lacks_room_for_parts(routine, layout, a, tile, donate):
    """Whether a device is known to lack the memory for the workspace of products in the default
    precision."""
    memory = layout.memory
    if memory is None or str(a.dtype) not in ("float32", "complex64"):
        return False
    block = block_bytes(layout, a.shape, a.dtype)
    needed = max(plan(routine, layout, "native", a.dtype, a.shape, tile)["bytes"])
    return needed + (1 if donate else 2) * block > memory


def block_bytes(layout, shape, dtype):
    """Returns the size of a rank's rows of a matrix in bytes."""
    m, n = shape
    return -(-m // layout.ranks) * n * np.dtype(dtype).itemsize


def plan(
    routine, layout, backend, dtype, shape, tile, nrhs=1, vectors=False, products=checks.DEFAULT
):
    """Returns the plugin's plan for a matrix (m, n).

    Returns:
        A dict: "tile", the tile width; "overflow_rows", the rows of a factor's overflow array on a
            rank; "bytes", the list of bytes that each rank needs beyond A; "solver", the
            approximate number of the first rank's bytes that the device's own solver takes;
            "gathered", whether one rank does all the work.
    """
    m, n = shape
    block = -(-m // layout.ranks)
    return plugins.load(layout.platform).plan(
        routine,
        backend,
        str(dtype),
        m,
        n,
        block,
        layout.ranks,
        tile,
        nrhs,
        bool(vectors),
        products=products,
    )
