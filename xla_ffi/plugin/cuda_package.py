"""jaxmg's native code for NVIDIA GPUs, found by jaxmg through an entry point.

The same file is `__init__.py` of `jaxmg_plugin_cuda12` and `jaxmg_plugin_cuda13`.
"""

import glob
import os
import re
import sys
from importlib import metadata

from . import _native

# The functions of the native module are this module's. Those below replace or use them.
from ._native import *  # noqa: F403

PLATFORM = "CUDA"


def process_address():
    """Returns the address of this process for the others of the job, as text. Starts to listen."""
    return _native.process_address(metadata.version(f"jaxmg-plugin-cuda{_native.CUDA}"))


def registrations():
    """Returns the XLA FFI handlers by target name. Opens no library: the first call does."""
    _native.set_library_folders(_library_folders())
    return _native.registrations()


def about():
    """Returns the facts about this plugin that a bug report needs."""
    name = f"jaxmg-plugin-cuda{_native.CUDA}"
    try:
        access = ["".join(".#"[linked] for linked in row) for row in _native.peer_access()]
    except RuntimeError as error:
        access = str(error)
    return {
        "plugin": f"{name} {metadata.version(name)}",
        "compiler": _native.compiler(),
        "libraries": {soname: path or "not opened" for soname, path in _native.libraries()},
        "library folders": _library_folders(),
        "peer access (row reaches column)": access,
        "rendezvous time limit": f"{_native.rendezvous_timeout():g} s",
        "peer time limit": f"{_native.peer_timeout():g} s",
    }


def _library_folders():
    """Returns the library folders of NVIDIA's wheels: nvidia/<library>/lib for CUDA 12, the folders
    nvidia/cu13/lib and nvidia/nccl/lib for CUDA 13, and for both the folder of cuBLASMp, which
    cuSOLVERMp needs.
    """
    cuda = _native.CUDA
    inside = (f"nvidia/cu{cuda}/lib", "nvidia/nccl/lib") if cuda >= 13 else ("nvidia/*/lib",)
    inside += (f"nvidia/cublasmp/cu{cuda}/lib",)
    places = (os.path.join(path, folder) for path in sys.path for folder in inside)
    folders = (folder for place in places for folder in glob.glob(place))
    # The folder of another CUDA version may hold a library of the same name, such as
    # libcusparse.so.12.
    others = re.compile(rf"/nvidia/cu(?!{cuda}/)\d+/lib$")
    found = dict.fromkeys(map(os.path.abspath, folders))
    return [folder for folder in found if not others.search(folder)]
