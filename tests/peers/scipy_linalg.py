"""SciPy's own tests of linear algebra, with `jaxmg.linalg` in place of SciPy's functions.

    python tests/peers/scipy_linalg.py [--axes explicit] [--cases 4] [arguments of pytest]

The tests are those of the installed SciPy, for the functions in `FUNCTIONS`; `NOT_APPLICABLE` is
for SciPy 1.18. They run on four CPU devices, with ``jax_enable_x64``. Each test that isn't run is
skipped with a reason: tests of `NOT_APPLICABLE`, and calls with arguments, dtypes or scalars that
neither `jaxmg.linalg` nor JAX supports. Differences from SciPy's own run:

- The functions get NumPy arrays for lists, and return NumPy arrays.
- Errors about shapes start with "Shape mismatch".

The exit status is pytest's.
"""

import argparse
import functools
import inspect
import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import AxisType

from jaxmg import linalg

FUNCTIONS = (
    "solve", "solve_triangular", "inv", "det", "lu", "lu_factor", "lu_solve", "expm", "svd",
    "svdvals", "polar", "pinv", "orth", "null_space", "qr", "lstsq", "ldl",
)  # fmt: skip
# SciPy's name of an argument -> ours; then arguments that are ignored.
_NAMES = {"svdvals": {"a": "x"}, "lstsq": {"cond": "rcond"}}
_IGNORED = {
    "svdvals": ("overwrite_a", "check_finite"),
    "pinv": ("check_finite",),
    "lstsq": ("overwrite_a", "overwrite_b", "check_finite", "lapack_driver"),
}
# File -> the classes and functions whose tests run, or single tests of a class.
TESTS = {
    "test_basic": (
        "TestSolve", "TestSolveTriangular", "TestInv", "TestDet", "TestDTypes", "TestLstsq",
        "TestPinv", "TestPinvSymmetric",
    ),
    "test_decomp": (
        "TestSVD_GESDD", "TestSVDVals", "TestQR", "TestNullSpace", "test_orth", "test_orth_empty",
    ),
    "test_decomp_ldl": (
        "test_args", "test_empty_array", "test_simple", "test_permutations",
        "test_ldl_type_size_combinations_real", "test_ldl_type_size_combinations_complex",
    ),
    "test_decomp_polar": (
        "test_precomputed_cases", "test_verify_cases", "test_empty",
    ),
    "test_batch": (
        "TestBatch.test_matmat", "TestBatch.test_schur_lu", "TestBatch.test_solve",
        "TestBatch.test_lu_solve", "TestBatch.test_solve_triangular", "test_shapes_solve_like",
    ),
    "test_decomp_lu": ("TestLU", "TestLUFactor", "TestLUSolve"),
    "test_matfuncs": ("TestExpM",),
}  # fmt: skip
_RAISES = "raises where a matrix is singular or not definite; here x has infinity or NaN, as in JAX"
_WARNS = "warns of a matrix that is nearly singular"
_OVERWRITES = "that the result is in the memory of an argument"
_SINGLE = "compares a batch with each of its matrices to 1e-7, in single precision"
_ROUNDING = "compares rounding errors of 1e-15, in the place of 0, with LAPACK's"
_FLOAT32 = "a determinant in double precision of a matrix in single precision"
_WORDS = "an error in other words"
# Test, or one case of it -> the reason why it isn't run.
NOT_APPLICABLE = {
    "TestSolve.test_scalar_a_and_1D_b": "a scalar for a matrix",
    "TestSolve.test_singularity": _RAISES,
    "TestSolve.test_ill_condition_warning": _WARNS,
    "TestSolve.test_diagonal": _WARNS,
    "TestSolve.test_exactly_singular_gh22263": _RAISES,
    "TestSolve.test_singular_scalar": _RAISES,
    "TestSolve.test_overwrite_args": _OVERWRITES,
    "TestSolve.test_posdef_not_posdef": _RAISES,
    "TestInv.test_overwrite_a": _OVERWRITES,
    "TestInv.test_singular": _RAISES,
    "TestInv.test_ill_cond": _WARNS,
    "TestDet.test_1x1_all_singleton_dims": _FLOAT32,
    "TestDet.test_1by1_stacked_input_output": _FLOAT32,
    "TestDet.test_sample_compatible_dtype_input": _FLOAT32,
    "TestDet.test_incompatible_dtype_input": _WORDS,
    "TestDet.test_empty_edge_cases": _WORDS,
    "TestDet.test_overwrite_a": _OVERWRITES,
    "TestDet.test_simple_check_finite": "raises for infinity in A; here it is NaN, as in JAX",
    "TestBatch.test_matmat[float32-inv]": _SINGLE,
    "TestBatch.test_matmat[complex64-inv]": _SINGLE,
    "TestBatch.test_schur_lu[float32-lu_factor]": _SINGLE,
    "TestBatch.test_schur_lu[complex64-lu_factor]": _SINGLE,
    "TestLU.test_empty_edge_cases": "NumPy's float16, for which SciPy's results are float32",
    "TestLUFactor.test_hrectangular": _ROUNDING,
    "TestLUFactor.test_hrectangular_complex": _ROUNDING,
    "TestExpM.test_single_elt": "a scalar for a matrix",
    "TestExpM.test_gh25924": "compares a batch with each of its matrices to 10 eps by elements",
    "TestLstsq.test_errors": _WORDS,
    "TestLstsq.test_residuals[gelsy]": "a LAPACK driver that gives no residuals",
    "TestLstsq.test_rank_deficient_residuals": "residuals in the form that NumPy has for one",
    "TestLstsq.test_overwrite": _OVERWRITES,
    "test_args": "warns of a Hermitian matrix with a complex diagonal, which isn't read here",
    "TestSVD_GESDD.test_degenerate": "drivers of LAPACK that there aren't",
    "TestQR.test_lwork": "a warning of an argument that is gone",
}
# Parts of the names of SciPy's qr_multiply tests, which compare with the Q of `qr`.
_OF_QR_MULTIPLY = ("TestQR.", ("_left", "_right"))


class _Selection:
    """The pytest plugin that selects the tests, and this number of cases of each."""

    def __init__(self, cases):
        self.cases = cases

    def pytest_collection_modifyitems(self, config, items):
        cases = {}
        for item in items:
            if _is_of_ours(item):
                cases.setdefault(_name(item), []).append(item)
        kept = [x for each in cases.values() for x in each[:: -(-len(each) // self.cases)]]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        for item in kept:
            name = _name(item)
            case = name.split(".")[0] + "." + item.name
            reason = NOT_APPLICABLE.get(name, NOT_APPLICABLE.get(case))
            part, ends = _OF_QR_MULTIPLY
            if name.startswith(part) and any(end in name for end in ends):
                reason = "SciPy's qr_multiply, whose Q has LAPACK's signs"
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"{name}: {reason}"))


def _name(item):
    cls = getattr(item, "cls", None)
    name = getattr(item, "originalname", item.name)
    return name if cls is None else f"{cls.__name__}.{name}"


def _is_of_ours(item):
    name, wanted = _name(item), TESTS[item.path.stem]
    parameters = getattr(item, "callspec", None)
    function = parameters and (parameters.params.get("fun") or parameters.params.get("func"))
    known = getattr(function, "__name__", FUNCTIONS[0])
    return (name in wanted or name.split(".")[0] in wanted) and (
        known in FUNCTIONS or name == "test_shapes_solve_like" and "lstsq" not in item.name
    )


def _replacement(name, mesh):
    """Returns a function of `jaxmg.linalg` with the arguments and results of SciPy's."""
    theirs, ours = getattr(scipy.linalg, name), getattr(linalg, name)
    parameters = inspect.signature(ours).parameters
    arrays = [x for x in ("a", "A", "b", "x") if x in parameters]

    @functools.wraps(theirs)
    def call(*arguments, **options):
        bound = inspect.signature(theirs).bind(*arguments, **options).arguments
        if not bound.get("transposed"):
            bound.pop("transposed", None)
        for option in _IGNORED.get(name, ()):
            bound.pop(option, None)
        bound = {_NAMES.get(name, {}).get(option, option): x for option, x in bound.items()}
        for option in bound:
            if option not in parameters:
                pytest.skip(f"{name}: the argument {option}, which JAX hasn't")
        if bound.get("assume_a") in _STRUCTURES:
            pytest.skip(f"solve: assume_a={bound['assume_a']!r}")
        for x in bound.keys() & arrays:
            bound[x] = _array(name, bound[x])
        if name == "lu_solve":
            lu, piv = bound["lu_and_piv"]
            bound["lu_and_piv"] = _array(name, lu), np.asarray(piv, np.int32)
        if name == "qr":
            bound.setdefault("mode", "full")
        if name == "lstsq":
            if max(bound["a"].ndim - 2, bound["b"].ndim - 2) > 0:
                pytest.skip("lstsq: residuals of a batch in the form that NumPy has for one")
            bound.update(numpy_resid=True, rcond=bound.get("rcond") or -1)  # -1 is eps
        first = bound.pop(next(iter(parameters)))
        try:
            results = jax.tree.map(np.array, ours(first, **bound, mesh=mesh))
            return _as_scipys(name, results, bound)
        except NotImplementedError as error:
            pytest.skip(f"{name}: {error}")
        except ValueError as error:
            if "shape" in str(error):
                raise ValueError(f"Shape mismatch: {error}") from error
            raise

    return call


def _as_scipys(name, results, bound):
    """Returns the results in SciPy's form."""
    if name == "qr" and bound["mode"] == "r" and not isinstance(results, tuple):
        return (results,)
    if name == "qr" and bound["mode"] == "raw":
        h, taus = results
        h = np.swapaxes(h, -1, -2)
        return (h, taus), np.triu(h[..., : min(h.shape[-2:]), :])
    if name == "lstsq" and bound["b"].ndim == 1 and results[1].size:
        return results[0], results[1][0], *results[2:]
    return results


# Structures for which SciPy has special solvers.
_STRUCTURES = "tridiagonal", "banded"


def _array(name, x):
    x = np.asarray(x)
    if x.dtype.kind not in "biufc" or x.dtype.char in "egG":
        pytest.skip(f"{name}: NumPy's {x.dtype.name}")
    return x


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--axes", choices=("automatic", "explicit"), default="automatic")
    arguments.add_argument("--cases", type=int, default=4, help="of each test, at most")
    options, others = arguments.parse_known_args()
    jax.config.update("jax_enable_x64", True)
    kind = AxisType.Explicit if options.axes == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4,), ("rank",), axis_types=(kind,))
    if options.axes == "explicit":
        jax.set_mesh(mesh)
    for name in FUNCTIONS:
        setattr(scipy.linalg, name, _replacement(name, mesh))
    folder = pathlib.Path(scipy.linalg.__file__).parent / "tests"
    files = [str(folder / f"{name}.py") for name in TESTS]
    defaults = ["-q", "-rs", "--tb=short", "-p", "no:cacheprovider"]
    return pytest.main([*files, *defaults, *others], plugins=[_Selection(options.cases)])


if __name__ == "__main__":
    sys.exit(main())
