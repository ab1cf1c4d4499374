"""Finding the native library for a platform and registering its handlers with XLA, once.

A plugin is a module named by an entry point of the group ``jaxmg_plugins``: ``cpu``, ``cuda12`` or
``cuda13``. It offers ``PLATFORM``, ``registrations()``, ``about()`` and ``backends(routine)``, and
where it has several backends also ``needs(routine, backend, size, ranks)``.
Nothing here runs when jaxmg is imported.
"""

import importlib.metadata
import re
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
    found = entry_points()
    if any(name in found for name in names):  # JAX knows which CUDA it runs on, and must start
        names = _for_backend(names)
    point = next((found[name] for name in names if name in found), None)
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


def _for_backend(names):
    """Those of ``names`` that fit the CUDA of JAX's own plugin; all of them where it can't be told.

    One process has one CUDA: the other plugin's libraries would not meet JAX's.
    """
    if len(names) == 1:
        return names
    version = jax.local_devices(backend="gpu")[0].client.platform_version
    major = re.search(r"cuda (\d+)\d{3}\b", version)  # such as "PJRT C API\ncuda 12090"
    return (f"cuda{major[1]}",) if major else names
