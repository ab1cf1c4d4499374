"""`export_checks`: what `jax.export` has to be told about the native routines."""

from __future__ import annotations

from typing import Any

from jaxmg._call import exporting
from jaxmg._routines import table


def export_checks() -> list[Any]:
    """The safety checks to switch off where `jax.export` exports programs that call this package.

    JAX exports native routines of other packages only where they are named, since it can't know
    whether they stay compatible. A serialized program runs with the version of jaxmg that made it;
    other versions raise if their routines differ.

    Returns:
        A `jax.export.DisabledSafetyCheck` for each native routine. The types of results and factors
        are also registered with `jax.export`.

    Examples:
        >>> exported = jax.export.export(solve, disabled_checks=jaxmg.export_checks())(a, b)
        >>> blob = exported.serialize()
    """
    from jax import export

    exporting.register()
    return [export.DisabledSafetyCheck.custom_call(name) for name in table.HANDLERS]
