"""Finding the native library for a platform and registering its handlers with XLA, once.

A plugin is a module named by an entry point of the group ``jaxmg_plugins``: ``cpu``, ``cuda12`` or
``cuda13``. It offers ``PLATFORM``, ``registrations()``, ``about()`` and ``backends(routine)``.
Nothing here runs when jaxmg is imported.
"""

import importlib.metadata
import threading

import jax

GROUP = "jaxmg_plugins"

# JAX's name of a platform -> (XLA's name for it, entry points that serve it, newest first).
_PLATFORMS = {
    "cpu": ("cpu", ("cpu",)),
    "gpu": ("CUDA", ("cuda13", "cuda12")),
}

_lock = threading.Lock()
_loaded = {}


def entry_points():
    """The installed plugins: entry-point name -> entry point."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def load(platform):
    """The plugin module that serves ``platform``, with its handlers registered.

    Raises:
        RuntimeError: no plugin is installed for the platform, or it can't be loaded. The next call
            tries again.
    """
    platform = "gpu" if platform == "cuda" else platform
    with _lock:
        if platform not in _loaded:
            _loaded[platform] = _register(platform)
        return _loaded[platform]


def loaded():
    """The plugins in use: platform -> module."""
    with _lock:
        return dict(_loaded)


def _register(platform):
    if platform not in _PLATFORMS:
        raise RuntimeError(
            f"jaxmg has no plugin for platform {platform!r}; it runs on "
            f"{', '.join(map(repr, _PLATFORMS))} (NVIDIA) devices"
        )
    xla_platform, names = _PLATFORMS[platform]
    point = _choose(names)
    if point is None:
        extras = " or ".join(f"`pip install jaxmg[{name}]`" for name in names)
        raise RuntimeError(
            f"no jaxmg plugin is installed for platform {platform!r} (entry point "
            f"{' or '.join(map(repr, names))} of the group {GROUP!r}); install it with {extras}"
        )
    try:
        module = point.load()
        targets = module.registrations()
    except Exception as error:
        raise RuntimeError(
            f"the jaxmg plugin {point.name!r} ({point.value}) is installed but can't be loaded: "
            f"{error}"
        ) from error
    for target, handler in targets.items():
        jax.ffi.register_ffi_target(target, handler, platform=xla_platform, api_version=1)
    return module


def _choose(names):
    """The entry point to use: the one for the CUDA that JAX itself runs on, where there are two."""
    found = entry_points()
    present = [name for name in names if name in found]
    for name in present:
        if _installed(f"jax-{name}-plugin"):
            return found[name]
    return found[present[0]] if present else None


def _installed(distribution):
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
