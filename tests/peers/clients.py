"""Own tests of libraries that solve, with jaxmg in place of JAX's or lineax's solvers.

    python tests/peers/clients.py LIBRARY FOLDER [arguments of pytest]

FOLDER has the library's tests, of about the installed version; nothing is fetched. They run in the
context of a mesh of four CPU devices, all files of FOLDER or those named in the arguments:

- tinygp: the solver of docs/clients.md in place of `DirectSolver`;
- GPJax: its recipe there;
- numpyro: `jaxmg.linalg.cholesky`, `cho_solve` and `solve_triangular` in the distributions;
- optimistix, diffrax: the solvers of `jaxmg.lineax` in place of lineax's, also in
  ``lineax.AutoLinearSolver``;
- netket: nothing, because its distributed solvers call jaxmg.

The last line says in how many tests jaxmg was called. The exit status is pytest's.
"""

import argparse
import collections
import functools
import importlib
import os
import pathlib
import re
import sys
import types

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxmg
import jaxmg.linalg

_PAGE = pathlib.Path(__file__).parents[2] / "docs/clients.md"
_tests, _calls = collections.Counter(), collections.Counter()


def _counted(function, converts=True):
    """Counts the tests that call the function. As in JAX, NumPy's arrays get JAX's dtypes, unless
    ``converts`` is false, as for a constructor, whose object must not be copied."""

    @functools.wraps(function)
    def wrapper(*arguments, **options):
        _calls[os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]] += 1
        converted = jax.tree.map(_as_jax, arguments) if converts else arguments
        return function(*converted, **options)

    return wrapper


def _as_jax(x):
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def _replace(value, name, *modules):
    for module in modules:
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)


def _recipe(title, **names):
    """Runs a recipe of the page; returns its names."""
    block = rf'^```python title="{title}"\n(.*?)^```$'
    names = {"jaxmg": jaxmg, "jax": jax, "jnp": jnp, "np": np} | names
    exec(re.search(block, _PAGE.read_text(), re.M | re.S)[1], names)
    return names


def _tinygp():
    tinygp = importlib.import_module("tinygp")
    solver = _recipe("tinygp", tinygp=tinygp, mesh=None)["Solver"]
    solver.__init__ = _counted(solver.__init__, converts=False)
    _replace(solver, "DirectSolver", tinygp.gp, tinygp.solvers)


def _gpjax():
    gpjax = importlib.import_module("gpjax")
    importlib.import_module("gpjax.conditioning")
    linalg = {
        name: _counted(getattr(jaxmg.linalg, name))
        for name in ("cholesky", "cho_solve", "solve_triangular")
    }
    stand_in = types.SimpleNamespace(linalg=types.SimpleNamespace(**linalg))
    mesh = jax.make_mesh((4,), ("rank",), axis_types=(AxisType.Auto,))
    _recipe("gpjax", gpjax=gpjax, types=types, mesh=mesh, jaxmg=stand_in)


def _numpyro():
    module = importlib.import_module("numpyro.distributions.continuous")
    util = importlib.import_module("numpyro.distributions.util")
    for name, modules in {
        "cholesky": (jnp.linalg,),
        "cho_solve": (module,),
        "solve_triangular": (module, util),
    }.items():
        where = [each for each in modules if hasattr(each, name)]
        _replace(_counted(getattr(jaxmg.linalg, name)), name, *where)


def _lineax():
    lineax, ours = importlib.import_module("lineax"), importlib.import_module("jaxmg.lineax")
    for name in ours.__all__:
        solver = getattr(ours, name)
        solver.init = _counted(solver.init)
        _replace(solver, name, lineax, lineax._solver)


def _netket():
    for name in jaxmg.__all__:
        if callable(getattr(jaxmg, name)) and not isinstance(getattr(jaxmg, name), type):
            _replace(_counted(getattr(jaxmg, name)), name, jaxmg)


_IN_PLACE = {
    "tinygp": _tinygp,
    "gpjax": _gpjax,
    "numpyro": _numpyro,
    "optimistix": _lineax,
    "diffrax": _lineax,
    "netket": _netket,
}


class _Count:
    """The pytest plugin that prints in how many tests jaxmg was called."""

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            _tests[report.nodeid, report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter):
        counts = collections.Counter(outcome for test, outcome in _tests if _calls[test])
        terminalreporter.write_line(f"with jaxmg: {dict(counts)}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("library", choices=_IN_PLACE)
    arguments.add_argument("folder", type=pathlib.Path)
    options, others = arguments.parse_known_args()
    _IN_PLACE[options.library]()
    os.chdir(options.folder)
    sys.path.insert(0, os.getcwd())
    mesh = jax.make_mesh((4,), ("rank",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        return pytest.main(
            [
                "-q",
                "-rf",
                "-p",
                "no:cacheprovider",
                "-o",
                "addopts=",
                "--tb=line",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                *others,
            ],
            plugins=[_Count()],
        )


if __name__ == "__main__":
    sys.exit(main())
