"""`export_checks`: lists the native routines for `jax.export`."""

from __future__ import annotations

from typing import Any

from jaxmg._call import exporting
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
