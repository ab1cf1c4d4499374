"""NumPy's own tests of linear algebra, with `jaxmg.linalg` in place of NumPy's functions.

    python tests/peers/numpy_linalg.py [--axes explicit] [arguments of pytest]

The tests are those of the installed NumPy, for the functions in `FUNCTIONS`; `NOT_APPLICABLE` is
for NumPy 2.5. They run on four CPU devices, with ``jax_enable_x64``. Each test that isn't run is
skipped with a reason. Differences from NumPy's own run:

- The functions get NumPy arrays for lists, and return NumPy arrays.
- Errors about matrices that aren't square, or empty, are NumPy's ``LinAlgError``, and those about
  axes are NumPy's ``AxisError``.
- `eigh` and `eigvalsh` read one triangle, and accept lowercase letters for it.
- In single precision, 6 decimals are relative to the largest entry, if it is above 1.

The exit status is pytest's.
"""

import argparse
import functools
import inspect
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import numpy.linalg.tests.test_linalg as theirs
import pytest
from jax.sharding import AxisType

from jaxmg import linalg

FUNCTIONS = (
    "cholesky", "cond", "det", "eigh", "eigvalsh", "inv", "lstsq", "matrix_power", "matrix_rank",
    "norm", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
)  # fmt: skip
# Classes and functions whose tests run.
TESTS = (
    "TestSolve", "TestInv", "TestSVD", "TestSVDHermitian", "TestCond", "TestPinv",
    "TestPinvHermitian", "test_pinv_rtol_arg", "TestDet", "TestLstsq", "TestMatrixPower",
    "TestEigvalshCases", "TestEigvalsh", "TestEighCases", "TestEigh", "TestNorm_NonSystematic",
    "TestNormDouble", "TestNormSingle", "TestNormInt64", "TestMatrixRank", "test_reduced_rank",
    "TestQR", "TestCholesky", "test_byteorder_check", "test_empty_matrix_rank",
)  # fmt: skip
_RAISES = "raises where a matrix is singular or doesn't converge; here it is infinity or NaN"
_WORDS = "an error in other words"
_SUBCLASS = "subclasses of NumPy's array"
# Test -> the reason why it isn't run.
NOT_APPLICABLE = {
    "TestSVD.test_nonfinite": _RAISES,
    "TestLstsq.test_nonfinite": _RAISES,
    "TestMatrixPower.test_exceptions_not_invertible": _RAISES,
    "TestSolve.test_0_size": _SUBCLASS,
    "TestSolve.test_0_size_k": _SUBCLASS,
    "TestInv.test_0_size": _SUBCLASS,
    "TestDet.test_0_size": _SUBCLASS,
    "TestCholesky.test_0_size": _SUBCLASS,
    "TestEigh.test_0_size": _SUBCLASS,
    "TestEigvalsh.test_0_size": _SUBCLASS,
    "TestQR.test_qr_empty": _SUBCLASS,
    "TestNorm_NonSystematic.test_longdouble_norm": "NumPy's longdouble",
    "TestMatrixRank.test_matrix_rank": _WORDS,
    "TestLstsq.test_incompatible_dims": _WORDS,
    "test_pinv_rtol_arg": _WORDS,
    "TestLstsq.test_rcond": "counts a rounding error, in the place of 0, as LAPACK has it",
    "test_byteorder_check": "arrays of the other byte order, which JAX doesn't take",
}


class _Selection:
    """The pytest plugin that selects the tests."""

    def pytest_collection_modifyitems(self, config, items):
        kept = [item for item in items if _name(item).split(".")[0] in TESTS]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        for item in kept:
            if reason := NOT_APPLICABLE.get(_name(item)):
                item.add_marker(pytest.mark.skip(reason=f"{_name(item)}: {reason}"))


def _name(item):
    cls = getattr(item, "cls", None)
    name = getattr(item, "originalname", item.name)
    return name if cls is None else f"{cls.__name__}.{name}"


def _replacement(name, mesh):
    """Returns a function of `jaxmg.linalg` with the arguments and results of NumPy's."""
    of_numpy, ours = getattr(np.linalg, name), getattr(linalg, name)
    parameters = list(inspect.signature(ours).parameters)

    @functools.wraps(of_numpy)
    def call(*arguments, **options):
        bound = inspect.signature(of_numpy).bind(*arguments, **options).arguments
        bound = {key: x for key, x in bound.items() if x is not np._NoValue}
        if type(x := next(iter(bound.values()))) is not np.ndarray and isinstance(x, np.ndarray):
            pytest.skip(f"{name}: {_SUBCLASS}")
        values = list(bound.values())
        arrays = [_array(name, x) for x in values[: 2 if name in ("solve", "lstsq") else 1]]
        if name == "matrix_power" and arrays[0].dtype == bool:
            pytest.skip("matrix_power: matrices are of numbers, not of booleans")
        rest = dict(list(bound.items())[len(arrays) :])
        if name == "lstsq":
            rest["numpy_resid"] = True
        if name in ("eigh", "eigvalsh"):  # NumPy reads one triangle
            rest.update(UPLO=rest.get("UPLO", "L").upper(), symmetrize_input=False)
        unknown = [key for key in rest if key not in parameters]
        if unknown:
            pytest.skip(f"{name}: the argument {unknown[0]}, which JAX hasn't")
        try:
            return jax.tree.map(_as_numpys, ours(*arrays, **rest, mesh=mesh))
        except ValueError as error:
            if "out of bounds" in str(error):
                raise np.exceptions.AxisError(str(error)) from error
            if any(part in str(error) for part in ("square", "must have shape", "an empty matrix")):
                raise np.linalg.LinAlgError(str(error)) from error
            raise

    return call


def _array(name, x):
    x = np.asarray(x)
    if x.dtype.kind not in "biufc" or x.dtype.char in "egG":
        pytest.skip(f"{name}: NumPy's {x.dtype.name}")
    return x


def _as_numpys(x):
    """Returns a NumPy array, or a NumPy scalar."""
    return np.asarray(x)[()]


def _almost_equal(theirs):
    """Returns NumPy's comparison to a number of decimals, in single precision relative to the
    largest entry."""

    @functools.wraps(theirs)
    def compare(found, expected, **options):
        if np.asarray(found).dtype.char in "fF":
            finite = np.abs(expected)[np.isfinite(expected)]
            scale = np.maximum(1, np.max(finite, initial=1)).astype(np.float32)
            found, expected = np.asarray(found) / scale, np.asarray(expected) / scale
        theirs(found, expected, **options)

    return compare


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--axes", choices=("automatic", "explicit"), default="automatic")
    options, others = arguments.parse_known_args()
    jax.config.update("jax_enable_x64", True)
    kind = AxisType.Explicit if options.axes == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4,), ("rank",), axis_types=(kind,))
    if options.axes == "explicit":
        jax.set_mesh(mesh)
    for name in FUNCTIONS:
        replacement = _replacement(name, mesh)
        setattr(np.linalg, name, replacement)
        if hasattr(theirs, name):
            setattr(theirs, name, replacement)
    theirs.assert_almost_equal = _almost_equal(theirs.assert_almost_equal)
    defaults = ["-q", "-rs", "--tb=short", "-p", "no:cacheprovider"]
    return pytest.main([theirs.__file__, *defaults, *others], plugins=[_Selection()])


if __name__ == "__main__":
    sys.exit(main())
