"""JAX's own tests of linear algebra, with `jaxmg.linalg` in place of JAX's functions.

    python tests/peers/jax_linalg.py FOLDER [--axes explicit] [--x64] [--cases 10] [-k PART] [-v]

FOLDER has JAX's tests, the `FILES`, of about the installed version of JAX; nothing is fetched. They
run on four CPU devices, with their own settings: strict promotion of dtypes, no promotion of ranks;
``--x64`` adds float64 and complex128. Differences from JAX's own run:

- Names of ``jax.numpy.linalg`` and ``jax.scipy.linalg`` that `jaxmg.linalg` has are its functions,
  on a mesh of all devices; so are those of `_ELSEWHERE`.
- NumPy's and SciPy's `qr`, with which tests compare, return the R whose diagonal isn't negative.
- In tests of `_HERMITIAN` functions, square random matrices by ``jtu.rand_default`` are Hermitian
  positive definite, and those by ``jtu.rand_small`` are Hermitian. Such a test is skipped if its
  first matrix isn't Hermitian. All other functions get the same matrices as JAX's.
- `_HERMITIAN` functions take the Hermitian part of their matrix, unless an argument names a
  triangle. JAX does so if it symmetrizes; finite differences of derivatives leave Hermitian
  matrices.
- Tests of `lu_solve` that JAX skips on CPUs run.
- Results with explicit axes are replicated, since tests index them in ways that JAX refuses for
  shards.

Tests that call none of these functions are counted, not run. Tests that can't apply are skipped,
with the reason in `NOT_APPLICABLE`. The exit status is 1 if a test fails.
"""

import argparse
import ast
import collections
import functools
import importlib
import os
import pathlib
import sys
import unittest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy.linalg
from jax._src import test_util as jtu
from jax.sharding import AxisType

from jaxmg import linalg

FILES = ("linalg_test", "eigh_test", "svd_test", "lax_scipy_test")
# Name -> (another module of JAX's that has it, the name of that module in tests).
_ELSEWHERE = {
    "householder_product": ("jax.lax.linalg", "lax.linalg"),
    "svd": ("jax._src.tpu.linalg.svd", "svd"),
}
# Test -> the reason why it isn't run.
NOT_APPLICABLE = {
    "testInvDtypeError": "a TypeError in other words",
    "testPinvRcond": "an error in other words",
    "testMatrixRankTol": "an error in other words",
    "testLinalgPrimitivesInvalidDtype": "a TypeError in other words",
    "testQrInvalidDtypeCPU": "a TypeError in other words",
    "testMatrixPowerBool": "matrices are of floating-point numbers",
}
_DOUBLE = "NumPy's double precision without 64-bit mode, which raises"
_NEEDS_X64 = {"testLstsqZeroMatrix": _DOUBLE, "testSingularValues": _DOUBLE}
# (mode, whether SciPy's) of other QRs than ours: in NumPy "full" is a deprecated name of "reduced",
# and SciPy's "r" has R with m rows, in a tuple.
_OTHER_MODES = {("full", False), ("r", True)}
# Functions of a Hermitian matrix.
_HERMITIAN = {
    "cholesky", "cho_factor", "cho_solve", "eigh", "eigvalsh", "funm", "logm", "sqrtm",
}  # fmt: skip
# Whether a test calls one of these, and whether the next matrix is its first one.
_test = {"hermitian": False, "first": True}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--axes", choices=("automatic", "explicit"), default="automatic")
    arguments.add_argument("--x64", action="store_true", help="with JAX's 64-bit dtypes")
    arguments.add_argument("--cases", type=int, default=10, help="of each test, at most")
    arguments.add_argument("-k", default="", help="a part of the names of tests that are run")
    arguments.add_argument("-v", action="store_true", help="print failures with their tracebacks")
    options = arguments.parse_args()
    jax.config.update("jax_num_generated_cases", options.cases)
    jax.config.update("jax_enable_x64", options.x64)
    if not options.x64:
        NOT_APPLICABLE.update(_NEEDS_X64)
    sys.path.insert(0, str(options.folder))
    mesh = _mesh(options.axes)
    _replace(mesh)
    if options.axes == "explicit":  # without this context JAX jits nothing on the mesh
        jax.set_mesh(mesh)
    sys.argv[1:] = []  # JAX's tests would read it
    total = collections.Counter()
    for name in FILES:
        module = importlib.import_module(name)
        calling, others = _tests(pathlib.Path(module.__file__))
        total["calls none of the functions"] += others
        total += _run(module, calling, options)
    print(*(f"{count} {what}" for what, count in total.items()), sep=", ")
    return 1 if total["failed"] else 0


def _tests(path):
    """Returns ({name of each test that calls a function of `jaxmg.linalg`: whether one is of a
    Hermitian matrix}, the number of other tests)."""
    source, calling, others = path.read_text(), {}, 0
    ours = {name for name in linalg.__all__ if not name.endswith(("Result", "Info"))}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            names = {
                x.attr
                for x in ast.walk(node)
                if isinstance(x, ast.Attribute) and _is_replaced(ast.unparse(x.value), x.attr)
            }
            if "_normalizing_eigh" in ast.unparse(node):  # a helper that calls it
                names.add("eigh")
            if names & ours:
                calling[node.name] = bool(names & _HERMITIAN)
            else:
                others += 1
    return calling, others


def _is_replaced(module, name):
    """Returns whether ``module.name`` in a test is replaced by a function of `jaxmg.linalg`."""
    whole = "jnp.linalg", "jsp.linalg", "jax.numpy.linalg", "jax.scipy.linalg"
    return module in whole or (name in _ELSEWHERE and module == _ELSEWHERE[name][1])


def _run(module, names, options):
    """Runs those tests of a module; returns the numbers of passed, failed and skipped ones."""
    found, reasons = collections.Counter(), collections.Counter()
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            label = f"{type(test).__name__}.{test._testMethodName}"
            base = test._testMethodName.rstrip("0123456789")
            if base not in names or options.k not in label:
                continue
            reason = NOT_APPLICABLE.get(base)
            if reason:
                found["skipped"] += 1
                reasons[f"{base}: {reason}"] += 1
                continue
            _test.update(hermitian=names[base], first=True)
            result = unittest.TestResult()
            test.run(result)
            for _, text in result.skipped:
                found["skipped"] += 1
                reasons[f"{base}: {text}"] += 1
            failures = result.failures + result.errors
            if failures:
                found["failed"] += 1
                text = failures[0][1].strip()
                print(f"FAILED {label}", text if options.v else text.splitlines()[-1][:200])
            elif not result.skipped:
                found["passed"] += 1
    for reason, count in sorted(reasons.items()):
        print(f"skipped {count} x {reason}")
    return found


def _mesh(axes):
    kind = AxisType.Explicit if axes == "explicit" else AxisType.Auto
    return jax.make_mesh((4,), ("rank",), axis_types=(kind,))


def _replace(mesh):
    """Replaces JAX's functions by `jaxmg.linalg`'s, and random matrices by Hermitian ones."""

    symmetrized = _HERMITIAN - {"cho_factor", "cho_solve"}

    def replicated(x):
        if AxisType.Explicit not in mesh.axis_types or not isinstance(x, jax.Array):
            return x
        return jax.sharding.reshard(x, jax.NamedSharding(mesh, jax.sharding.PartitionSpec()))

    def wrapped(name, theirs):
        function = getattr(linalg, name)

        @functools.wraps(theirs)
        def call(a, *others, **options):
            if sys._getframe(1).f_globals["__name__"].startswith("jaxmg."):  # on one device
                return theirs(a, *others, **options)
            if options.get("disp") is False:
                raise unittest.SkipTest("disp=False, an estimate of the error, isn't there")
            if name == "qr_multiply" and options.get("pivoting"):
                raise unittest.SkipTest("qr_multiply has no pivoting")
            if name == "qr" and options.get("pivoting") and options.get("mode") == "full":
                raise unittest.SkipTest("pivoting is there for the first k columns of Q only")
            if name == "qr" and (options.get("mode"), "scipy" in theirs.__module__) in _OTHER_MODES:
                raise unittest.SkipTest("'full' is SciPy's mode, and 'r' is NumPy's")
            if name in symmetrized and options.get("symmetrize_input", True):
                a = hermitian_part(a)
            return jax.tree.map(replicated, function(a, *others, mesh=mesh, **options))

        return call

    def hermitian_part(a):
        if not (hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.inexact) and jnp.ndim(a) > 1):
            return a
        adjoint = jnp.conj(jnp.swapaxes(a, -1, -2))
        if _test["first"] and not isinstance(a, jax.core.Tracer):
            _test["first"] = False
            if not np.allclose(a, adjoint, atol=1e-3 * np.max(np.abs(a), initial=0)):
                raise unittest.SkipTest("its matrix isn't Hermitian")
        return (a + adjoint) / 2

    for name in linalg.__all__:
        for module in (jnp.linalg, jax.scipy.linalg):
            if hasattr(module, name) and not name.endswith(("Result", "Info")):
                setattr(module, name, wrapped(name, getattr(module, name)))
    for name, (path, _) in _ELSEWHERE.items():
        module = importlib.import_module(path)
        setattr(module, name, wrapped(name, getattr(module, name)))
    for module in (np.linalg, scipy.linalg):
        module.qr = _with_positive_diagonal(module.qr)
    for name, change in (("rand_default", _definite), ("rand_small", _hermitian)):
        setattr(jtu, name, functools.partial(_random, getattr(jtu, name), change))
    theirs = jtu.skip_on_devices
    jtu.skip_on_devices = lambda *names, **options: (
        (lambda test: test) if names == ("cpu",) else theirs(*names, **options)
    )


def _with_positive_diagonal(qr):
    """Returns NumPy's or SciPy's `qr` with Q and R such that R's diagonal isn't negative."""

    @functools.wraps(qr)
    def call(a, *others, mode=None, **options):
        results = qr(a, *others, **({} if mode is None else {"mode": mode}), **options)
        if mode == "raw":
            return results
        if not isinstance(results, tuple):
            return positive(results)[0]
        at = 0 if mode == "r" else 1
        r, units = positive(results[at])
        q = [x * units[..., None, : x.shape[-1]] for x in results[:at]]
        return (*q, r, *results[at + 1 :])

    def positive(r):
        diagonal = np.diagonal(r, axis1=-2, axis2=-1)
        units = np.ones(r.shape[:-1], r.dtype)
        np.divide(
            diagonal, abs(diagonal), out=units[..., : diagonal.shape[-1]], where=diagonal != 0
        )
        return units.conj()[..., None] * r, units

    return call


def _random(make, change, *arguments, **options):
    """Returns JAX's random numbers; ``change`` is applied to square matrices of inexact dtypes."""
    random = make(*arguments, **options)

    def changed(shape, dtype, *others):
        x = random(shape, dtype, *others)
        square = np.ndim(x) > 1 and x.shape[-1] == x.shape[-2]
        if not (_test["hermitian"] and square and np.dtype(dtype).kind in "fc"):
            return x
        return change(x).astype(dtype)

    return changed


def _definite(x):
    return x @ _adjoint(x) / (10 * max(x.shape[-1], 1)) + np.eye(x.shape[-1])


def _hermitian(x):
    return (x + _adjoint(x)) / 2


def _adjoint(x):
    return np.swapaxes(x, -1, -2).conj()


if __name__ == "__main__":
    sys.exit(main())
