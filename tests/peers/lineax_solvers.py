"""lineax's own tests of its solvers, with `jaxmg.lineax.Cholesky` in the place of its `Cholesky`.

    python tests/peers/lineax_solvers.py FOLDER [--axes explicit] [arguments of pytest]

FOLDER has lineax's tests, of about the lineax that is installed; nothing is fetched. They run in
the context of a mesh of four CPU devices, in their own settings: 64 bits, strict promotion of
dtypes, no promotion of ranks. Of tests with a solver as parameter those with this one are run,
alone and in ``lineax.Normal``, and of the others those whose code names it. The exit status is
pytest's.
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
    """The plugin that picks the tests."""

    def pytest_collection_modifyitems(self, config, items):
        kept, others = [], []
        for item in items:
            (kept if _has_solver(item) else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def _has_solver(item):
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    solvers = [x for x in values if isinstance(x, lineax.AbstractLinearSolver)]
    if solvers:
        return any(
            isinstance(getattr(x, "inner_solver", x), jaxmg.lineax.Cholesky) for x in solvers
        )
    return "lx.Cholesky" in inspect.getsource(item.function)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--axes", choices=("automatic", "explicit"), default="automatic")
    options, others = arguments.parse_known_args()
    kind = AxisType.Explicit if options.axes == "explicit" else AxisType.Auto
    lineax.Cholesky = jaxmg.lineax.Cholesky
    with jax.set_mesh(jax.make_mesh((4,), ("rank",), axis_types=(kind,))):
        return pytest.main(
            [str(options.folder), "-q", "-rs", "-p", "no:cacheprovider", *others],
            plugins=[_Selection()],
        )


if __name__ == "__main__":
    sys.exit(main())
