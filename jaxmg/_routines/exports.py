"""Programs of other processes, as `jax.export` makes them: `export_checks` lists the native
routines, and `register_handlers` registers them."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh

from jaxmg import _compat
from jaxmg._layouts import exporting
from jaxmg._plugin import plugins
from jaxmg._processes import rendezvous
from jaxmg._routines import table


def export_checks() -> list[Any]:
    """Lists the safety checks to disable when `jax.export` exports programs that call jaxmg.

    JAX exports native routines of other packages only if they are named. A serialized program runs
    with the version of jaxmg that made it; other versions raise an error if their routines differ.

    Returns:
        A list with a `jax.export.DisabledSafetyCheck` for each native routine. The call also
        registers the types of results and factors with `jax.export`.

    Examples:
        >>> exported = jax.export.export(solve, disabled_checks=jaxmg.export_checks())(a, b)
        >>> blob = exported.serialize()
    """
    from jax import export

    exporting.register()
    return [export.DisabledSafetyCheck.custom_call(name) for name in table.HANDLERS]


@_compat.api_boundary
def register_handlers(platform: str | None = None, *, mesh: Mesh | None = None) -> None:
    """Registers the native routines with XLA, for programs that another process traced.

    Serialized programs of `jax.export` and deserialized executables call the routines by name. The
    first call of a jaxmg function registers them too; repeated calls are safe. Call
    `register_handlers` before `jax.export.deserialize`: it also registers the types of results and
    factors (``jaxmg.linalg.QRResult``, ...) with `jax.export`.

    Args:
        platform: "cpu" or "gpu". None: the platform of ``mesh``, or of JAX's default backend.
        mesh: ``jax.sharding.Mesh`` of the programs, if it has devices of several processes. Each of
            these processes has to make the call, and waits for the others.

    Raises:
        RuntimeError: No plugin is installed for the platform, it can't be loaded, or another
            process didn't make the call in time.

    Examples:
        >>> jaxmg.register_handlers()
        >>> x = jax.export.deserialize(blob).call(a, b)
    """
    if platform is None:
        platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    plugins.load(platform)
    exporting.register()
    if mesh is not None:
        processes = {device.process_index for device in mesh.devices.flat}
        rendezvous.meet("register_handlers", platform, processes if len(processes) > 1 else ())
