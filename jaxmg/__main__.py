"""``python -m jaxmg``: prints the facts for a bug report, then runs a small checked solve on all
devices.

``python -m jaxmg --bench`` measures the routines instead, and ``--version`` prints the version.
Started by ``python -m jaxmg.launch -n 2 -m jaxmg`` it is one of several processes; other launchers
need ``--distributed``, as in ``srun python -m jaxmg --distributed``.

The exit code is 1 if a routine is missing, fails or returns a wrong result.
"""

import argparse
import importlib.metadata
import itertools
import os
import platform
import sys
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxmg
from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._command import bench, output
from jaxmg._plugin import plugins
from jaxmg._processes import rendezvous

# Beginnings of names of environment variables: docs/precision.md says what they change.
_CHANGE_RESULTS = (
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATE_",
    "CUBLAS_EMULATION_",
    "CUBLAS_FIXEDPOINT_EMULATION_",
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "XLA_FLAGS",
    "OPENBLAS_CORETYPE",
    "MKL_CBWR",
)
_N = 250  # few device counts divide it, so padding is exercised too
_LIMIT = 30 * _N  # largest residual that passes, in units of eps


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m jaxmg", description="Reports what a bug report needs, and solves to check."
    )
    add = parser.add_argument
    add("--version", action="store_true", help="print the version instead")
    add(
        "--bench",
        type=_positive,
        metavar="n",
        nargs="?",
        const=0,
        help="measure instead, with matrices of order n; default: 16384 on GPUs, 2048 on CPUs",
    )
    add("--routine", nargs="+", choices=bench.ROUTINES, default=bench.ROUTINES)
    add("--dtype", choices=checks.DTYPES, help="default: what JAX computes with")
    add("--repeat", type=_positive, default=5, help="timed runs of each, at most; default: 5")
    add("--limit", type=float, default=60, help="seconds that one run may take; default: 60")
    add(
        "--distributed", action="store_true",
        help="call jax.distributed.initialize() first, in each of several processes",
    )  # fmt: skip
    words = sys.argv[1:] if arguments is None else arguments
    args = parser.parse_args(words)
    if args.distributed and args.bench is not None:
        parser.error("--bench measures in one process")
    if args.version:
        print(f"jaxmg {_version('jaxmg') or 'in a checkout, which has no version'}")
        return 0
    if args.bench is None:
        if [word for word in words if word != "--distributed"]:
            parser.error("the other options are for --bench n")
        return _report(args.distributed or rendezvous.launcher_secret)
    return 0 if bench.bench(args.bench, args.routine, args.dtype, args.repeat, args.limit) else 1


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"it must be at least 1; got {number}")
    return number


def _report(distributed):
    """Prints the report and returns the exit code."""
    _print_versions()
    _print_environment()
    devices = _start_jax(distributed)
    plugin = _print_plugins(devices and devices[0].platform)
    if devices is None or plugin is None:
        print("\nFAILED")
        return 1
    known = plugin.about()  # for example its libraries
    _print_facts(known)
    passed = _solve(devices)
    # The solve opens most libraries.
    if changed := {k: v for k, v in plugin.about().items() if known.get(k) != v}:
        output.section("plugin, after the solve")
        _print_facts(changed)
    if jax.process_count() > 1:
        _print_processes(plugin)
    print("\nall right" if passed else "\nFAILED")
    return 0 if passed else 1


def _print_versions():
    output.section("versions")
    output.fact("python", f"{platform.python_version()} ({platform.platform()})")
    names = ["jax", "jaxlib", "jaxmg"]
    names += [f"jaxmg-plugin-{name}" for name in ("cpu", "cuda12", "cuda13")]
    names += ["jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "scipy"]
    for name in names:
        version = _version(name)
        if version is not None or "cuda" not in name:
            output.fact(name, version or "not installed")
    output.fact("jax_enable_x64", _compat.x64_enabled())
    config: Any = jax.config
    output.fact("jax_default_matmul_precision", config.jax_default_matmul_precision)


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_environment():
    """Prints the environment variables that change the rounding of libraries and of JAX."""
    output.section("environment variables that change results")
    names = [name for name in sorted(os.environ) if name.startswith(_CHANGE_RESULTS)]
    for name in names:
        output.fact(name, os.environ[name])
    if not names:
        output.fact("none", f"of {', '.join(_CHANGE_RESULTS)}")


def _start_jax(distributed):
    """Prints the devices and returns them; returns None if JAX can't start."""
    output.section("devices")
    try:
        if distributed:
            jax.distributed.initialize()
        devices = jax.devices()
    except Exception as error:
        output.fact("error", f"JAX can't start: {type(error).__name__}: {error}")
        for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"):
            output.fact(name, os.environ.get(name, "not set"))
        return None
    _print_devices(devices)
    return devices


def _print_devices(devices):
    count = jax.process_count()
    output.fact("processes", f"{count}, this is {jax.process_index()}" if count > 1 else count)
    for device in devices:
        output.fact(str(device.id), f"{device.device_kind} ({device.platform}, {device})")


def _print_plugins(name):
    output.section("plugins")
    for point in itertools.chain(*plugins.entry_points().values()):
        output.fact(f"{point.name} (found)", plugins.origin(point))
    if name is None:
        return None
    try:
        plugin = plugins.load(name)
    except RuntimeError as error:
        output.fact("error", error)
        return None
    output.fact("loaded", f"{plugin.__name__} from {getattr(plugin, '__file__', '?')}")
    for routine in ("potrs", "potri", "syevd"):
        output.fact(f"backends of {routine}", ", ".join(plugin.backends(routine)))
    return plugin


def _print_processes(plugin):
    output.section("other processes")
    for known in plugin.connections():
        output.fact(
            known["process"], "{transport}, {state} (host {host}, pid {pid})".format(**known)
        )


def _print_facts(facts):
    for key, value in facts.items():
        output.fact(key, value)


def _solve(devices):
    dtype = np.dtype(np.float64 if _compat.x64_enabled() else np.float32)
    output.section(f"checked solve, n = {_N}, {dtype}, {len(devices)} device(s)")
    mesh = Mesh(np.array(devices), ("rank",))
    random = np.random.default_rng(0)
    factor = random.standard_normal((_N, _N))
    matrix = (factor @ factor.T / _N + np.eye(_N)).astype(dtype)
    rhs = random.standard_normal(_N).astype(dtype)
    a = jax.device_put(matrix, NamedSharding(mesh, P()))
    b = jax.device_put(rhs, NamedSharding(mesh, P()))
    exact = matrix.astype(np.float64)
    residuals = {
        "potrs |Ax - b| / (|A| |x|)": lambda: _potrs_residual(exact, rhs, a, b, mesh),
        "cho_solve |Ax - b| / (|A| |x|)": lambda: _cho_solve_residual(exact, rhs, a, b, mesh),
        "potri |A inv(A) - I|": lambda: _potri_residual(exact, a, mesh),
        "syevd |AV - VW| / |A|": lambda: _syevd_residual(exact, a, mesh),
    }
    # A list, because all checks have to run, also after one fails.
    return all([_check(name, run, float(jnp.finfo(dtype).eps)) for name, run in residuals.items()])


def _potrs_residual(matrix, rhs, a, b, mesh):
    return _residual(matrix, rhs, jaxmg.potrs(a, b, mesh=mesh))


def _cho_solve_residual(matrix, rhs, a, b, mesh):
    return _residual(matrix, rhs, jaxmg.cho_solve(jaxmg.cho_factor(a, mesh=mesh), b))


def _residual(matrix, rhs, x):
    x = np.asarray(x, np.float64)
    return np.linalg.norm(matrix @ x - rhs) / (np.linalg.norm(matrix, 2) * np.linalg.norm(x))


def _potri_residual(matrix, a, mesh):
    inverse = np.asarray(jaxmg.potri(a, mesh=mesh), np.float64)
    return np.linalg.norm(matrix @ inverse - np.eye(_N), 2)


def _syevd_residual(matrix, a, mesh):
    w, v = (np.asarray(part, np.float64) for part in jaxmg.syevd(a, mesh=mesh))
    return np.linalg.norm(matrix @ v - v * w, 2) / np.linalg.norm(matrix, 2)


def _check(name, run, eps):
    try:
        residual = run()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return False
    good = bool(residual <= _LIMIT * eps)
    output.fact(
        name, f"{residual:.2e} {'ok' if good else f'WRONG, the limit is {_LIMIT * eps:.2e}'}"
    )
    return good


if __name__ == "__main__":
    sys.exit(main())
