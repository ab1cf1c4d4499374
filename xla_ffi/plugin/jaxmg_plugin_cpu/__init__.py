"""jaxmg's native code for XLA's CPU devices, found by jaxmg through an entry point."""

from importlib import metadata

from jaxmg_plugin_cpu import _native

# The functions of the native module are this module's. Those below replace or use them.
from jaxmg_plugin_cpu._native import *  # noqa: F403

PLATFORM = "cpu"


def process_address():
    """Returns the address of this process for the others of the job, as text. Starts to listen."""
    return _native.process_address(metadata.version("jaxmg-plugin-cpu"))


def registrations():
    """Returns the XLA FFI handlers by target name, ready to run."""
    _native.load_scipy()
    return _native.registrations()


def about():
    """Returns the facts about this plugin that a bug report needs."""
    import scipy

    _native.load_scipy()
    blas = scipy.show_config(mode="dicts")["Build Dependencies"]["lapack"]
    return {
        "plugin": "jaxmg-plugin-cpu " + metadata.version("jaxmg-plugin-cpu"),
        "compiler": _native.compiler(),
        "BLAS and LAPACK": f"{blas['name']} {blas['version']} of SciPy {scipy.__version__}",
        "BLAS found at": _native.blas_library() or "unknown",
        "BLAS threads": _native.blas_threads() or "unknown",
        "rendezvous time limit": f"{_native.rendezvous_timeout():g} s",
        "peer time limit": f"{_native.peer_timeout():g} s",
    }
