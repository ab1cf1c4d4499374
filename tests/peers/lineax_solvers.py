"""lineax's own tests of its solvers, with those of `jaxmg.lineax` in place of its own.

    python tests/peers/lineax_solvers.py FOLDER [--axes explicit] [--solvers LU QR]
        [arguments of pytest]

FOLDER has lineax's tests, of about the installed version of lineax; nothing is fetched. They run in
the context of a mesh of four CPU devices, with their own settings: 64 bits, strict promotion of
dtypes, no promotion of ranks. Tests with a solver as parameter run with our solvers, by themselves
and in ``lineax.Normal``; other tests run if their code names one. The exit status is pytest's.
"""

import argparse
import inspect
import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import lineax
import pytest
from jax.sharding import AxisType

import jaxmg.lineax


class _Selection:
    """The pytest plugin that selects the tests of some solvers."""

    def __init__(self, names):
        self._names = names

    def pytest_collection_modifyitems(self, config, items):
        kept, others = [], []
        for item in items:
            (kept if _has_solver(item, self._names) else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def _has_solver(item, names):
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    solvers = [x for x in values if isinstance(x, lineax.AbstractLinearSolver)]
    if solvers:
        ours = tuple(getattr(jaxmg.lineax, name) for name in names)
        return any(isinstance(getattr(x, "inner_solver", x), ours) for x in solvers)
    source = inspect.getsource(item.function)
    return any(f"lx.{name}(" in source for name in names)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--axes", choices=("automatic", "explicit"), default="automatic")
    arguments.add_argument("--solvers", nargs="+", default=jaxmg.lineax.__all__)
    options, others = arguments.parse_known_args()
    kind = AxisType.Explicit if options.axes == "explicit" else AxisType.Auto
    for name in options.solvers:
        setattr(lineax, name, getattr(jaxmg.lineax, name))
    with jax.set_mesh(jax.make_mesh((4,), ("rank",), axis_types=(kind,))):
        return pytest.main(
            # Without lineax's own options of pytest, which name plugins.
            [str(options.folder), "-q", "-rs", "-p", "no:cacheprovider", "-o", "addopts=", *others],
            plugins=[_Selection(options.solvers)],
        )


if __name__ == "__main__":
    sys.exit(main())
