"""Which solver of the plugin's a call takes: its ``backend=``, with "auto" resolved."""

from jaxmg import _checks, _plugin


def resolve(routine, layout, backend, a):
    """Loads the plugin for the layout's platform and resolves ``backend`` for ``a``, (rows, n).

    "auto" is the first backend for which a device has the memory, as far as that is known; the
    first of all where none has it.
    """
    plugin = _plugin.load(layout.platform)
    available = plugin.backends(routine)
    if backend == "auto" and len(available) > 1:
        memory, size = layout.memory, a.shape[1] ** 2 * a.dtype.itemsize

        def fits(name):
            needed = plugin.needs(routine, name, size, layout.ranks)
            return None in (memory, needed) or needed <= memory

        available = [*filter(fits, available), *available]
    name = _checks.backend(routine, backend, available, layout.platform)
    _checks.order(routine, name, a.shape[1], layout.ranks)
    return name
