"""Finds the native library for a platform and registers its handlers with XLA, once.

A plugin is a module named by an entry point of the group ``jaxmg_plugins``: ``cpu``, ``cuda12`` or
``cuda13``. It offers ``PLATFORM``, ``registrations()``, ``about()``, ``backends(routine)`` and
``plan(routine, backend, dtype, m, n, block, ranks, tile, nrhs, vectors, products=)``. For ranks in
several processes it offers ``process_address()``, ``tcp_between(lower, higher)``,
``listen_over_tcp(scope)``, ``connect_processes(me, addresses, key)`` and ``rendezvous_timeout()``,
for Ctrl-C ``watch_interrupts(wanted)``, for those who watch long calls ``set_progress(wanted)`` and
``progress()``, and for matrices in host memory ``host_open(spec)``, ``host_close(id)``,
``host_plan(...)``, ``host_open_chunks(bytes, chunks)``, ``host_close_chunks(id)``,
``host_rows_bytes(...)``, ``host_copy(...)``, ``pin(address, bytes)``, ``unpin(address)``,
``is_pinned(address)`` and ``touch(address, bytes, threads)``. Nothing here runs when jaxmg is
imported.
"""

import importlib.metadata
import re
import threading
import types

import jax

from jaxmg._plugin import exits, interrupts, progress

GROUP = "jaxmg_plugins"

# JAX's name of a platform -> (XLA's name for it, entry points that serve it, newest first).
_PLATFORMS = {
    "cpu": ("cpu", ("cpu",)),
    "gpu": ("CUDA", ("cuda13", "cuda12")),
}

# Entry point -> the oldest JAX that its requirements allow. pip enforces this, but not for users
# who install with --no-deps, or install JAX afterwards.
_OLDEST_JAX = {"cpu": (0, 6, 2), "cuda12": (0, 6, 2), "cuda13": (0, 7, 2)}

# The FFI targets that the package calls, from `require`.
_required: tuple[str, ...] = ()

_lock = threading.Lock()
_loaded: dict[str, types.ModuleType] = {}


def require(targets):
    """Sets the FFI targets that a plugin must have. One that lacks a target belongs to another
    version."""
    global _required
    _required = targets


def entry_points():
    """Returns the installed plugins: a dict from entry-point names to lists of entry points."""
    points: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        points.setdefault(point.name, []).append(point)
    return points


def origin(point):
    """Returns the module of an entry point and the distribution that installed it, for messages."""
    of = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"{point.value}{of}"


def load(platform):
    """Returns the plugin module that serves ``platform``, with its handlers registered.

    Raises:
        RuntimeError: no plugin is installed for the platform, or more than one; it can't be loaded,
            or doesn't fit this package or this JAX. The next call tries again.
    """
    platform = "gpu" if platform == "cuda" else platform
    with _lock:
        if platform not in _loaded:
            plugin = _register(platform)
            progress.attach(plugin, platform)
            _loaded[platform] = plugin
            exits.wait_at_exit(platform)
            interrupts.watch(_loaded[platform])
        return _loaded[platform]


def _register(platform):
    if platform not in _PLATFORMS:
        raise RuntimeError(
            f"jaxmg has no plugin for platform {platform!r}; it runs on "
            f"{', '.join(map(repr, _PLATFORMS))} (NVIDIA) devices"
        )
    xla_platform, names = _PLATFORMS[platform]
    point = _choose(platform, names)
    _check_jax(point)
    _check_version(point)
    try:
        module = point.load()
        targets = module.registrations()
    except Exception as error:
        raise RuntimeError(
            f"the jaxmg plugin {point.name!r} ({origin(point)}) is installed but can't be loaded: "
            f"{error}"
        ) from error
    _check_handlers(point, targets)
    for target, handler in targets.items():
        jax.ffi.register_ffi_target(target, handler, platform=xla_platform, api_version=1)
    return module


def _choose(platform, names):
    """Returns the one entry point that serves ``platform``. Raises if there are none or several."""
    installed = entry_points()
    if any(name in installed for name in names):  # JAX must start to tell on which CUDA it runs
        names = _for_backend(names)
    points = next((installed[name] for name in names if name in installed), None)
    if not points and platform == "cpu" and installed and not _has_gpu():
        raise RuntimeError(_no_gpu(installed))
    if not points:
        raise RuntimeError(
            f"no jaxmg plugin is installed for platform {platform!r} (entry point "
            f"{' or '.join(map(repr, names))} of the group {GROUP!r}); install it with "
            f"{_install(names, _package_version())}"
        )
    if len(points) > 1:
        raise RuntimeError(
            f"{len(points)} installed distributions provide the jaxmg plugin {points[0].name!r}: "
            f"{', '.join(map(origin, points))}; jaxmg needs one of them: `pip uninstall` the others"
        )
    return points[0]


def _has_gpu():
    try:
        return bool(jax.local_devices(backend="gpu"))
    except RuntimeError:  # JAX has no such platform
        return False


def _no_gpu(installed):
    """Returns the error for the case that JAX runs on the CPU and all plugins are for GPUs."""
    there = [f"{p.name!r} ({origin(p)})" for points in installed.values() for p in points]
    cuda = next((name for name in _PLATFORMS["gpu"][1] if name in installed), "cuda13")
    return (
        "JAX found no GPU and runs on the CPU, but the installed plugin of jaxmg is for GPUs: "
        f"{', '.join(there)}. Check that `nvidia-smi` lists the GPUs (else the driver is missing, "
        f"or the container has no access to them), that jax[{cuda}] is installed, and that "
        "JAX_PLATFORMS and CUDA_VISIBLE_DEVICES don't hide the GPUs; `python -m jaxmg` reports "
        "what is found. To run on CPU devices, install the plugin for them with "
        f"{_install(['cpu'], _package_version())}"
    )


def _check_jax(point):
    oldest = _OLDEST_JAX[point.name]
    if jax.__version_info__ < oldest:
        needed = ".".join(map(str, oldest))
        raise RuntimeError(
            f"JAX is {jax.__version__}, but the jaxmg plugin {point.name!r} ({origin(point)}) "
            f"needs {needed} or newer; upgrade it with `pip install 'jax>={needed}'`"
        )


def _check_version(point):
    version = _package_version()
    if point.dist and version not in (None, point.dist.version):
        raise RuntimeError(
            f"the jaxmg plugin {point.name!r} ({origin(point)}) doesn't match jaxmg {version}: "
            f"both must have the same version; {_reinstall(point, version)}"
        )


def _check_handlers(point, targets):
    missing = [name for name in _required if name not in targets]
    if missing:
        version = _package_version()
        raise RuntimeError(
            f"the jaxmg plugin {point.name!r} ({origin(point)}) has no handler "
            f"{', '.join(map(repr, missing))}, which jaxmg {version or 'as imported here'} needs; "
            f"{_reinstall(point, version)}"
        )


def _package_version():
    """Returns the version of the installed package; None in a checkout, which has no metadata."""
    try:
        return importlib.metadata.version("jaxmg")
    except importlib.metadata.PackageNotFoundError:
        return None


def _reinstall(point, version):
    return f"install the matching plugin with {_install([point.name], version)}"


def _install(extras, version):
    """Returns the commands that install. PyPI's jaxmg before 2 is another package."""
    which = f"=={version}" if version else ">=2"
    commands = (f"`pip install --find-links WHEELS 'jaxmg[{e}]{which}'`" for e in extras)
    builds = " or ".join(f"`tools/install.sh {e}`" for e in extras)
    return (
        f"{' or '.join(commands)}, where WHEELS is the folder of jaxmg's wheels; in a checkout of "
        f"jaxmg, which has no wheels, with {builds}"
    )


def _for_backend(names):
    """Returns the ``names`` that fit the CUDA version of JAX's own plugin; all of them if that
    version is unknown.

    A process has one CUDA: the libraries of the other plugin would not be those that JAX loads.
    """
    if len(names) == 1:
        return names
    version = jax.local_devices(backend="gpu")[0].client.platform_version
    major = re.search(r"cuda (\d+)\d{3}\b", version)  # such as "PJRT C API\ncuda 12090"
    return (f"cuda{major[1]}",) if major else names
