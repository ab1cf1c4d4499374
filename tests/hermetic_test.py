"""Under Bazel, imports come from the packages that the lock names, and none from the machine's
own."""

import importlib.metadata
import sys

import jax
import numpy
import pytest
import scipy

import jaxmg


@pytest.mark.parametrize("module", [jax, jaxmg, numpy, pytest, scipy])
def test_from_runfiles(module):
    assert ".runfiles/" in module.__file__


def test_host_packages_are_invisible():
    others = [p for p in sys.path if p.endswith("site-packages") and "local_python" not in p]
    assert not others
    with pytest.raises(ImportError):
        import pip  # noqa: F401


def test_found_as_if_installed():
    version = importlib.metadata.version("jaxmg")
    assert version == importlib.metadata.version("jaxmg-plugin-cpu")
    assert not hasattr(jaxmg, "__version__")  # users' code takes it for another project's
    (point,) = importlib.metadata.entry_points(group="jaxmg_plugins")
    assert (point.name, point.value) == ("cpu", "jaxmg_plugin_cpu")
    assert point.load().registrations()
