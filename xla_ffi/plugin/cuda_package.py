"""jaxmg's native code for NVIDIA GPUs, found by jaxmg through an entry point.

The same file is `__init__.py` of `jaxmg_plugin_cuda12` and `jaxmg_plugin_cuda13`.
"""

import glob
import importlib
import os
import re
import sys
from importlib import metadata

_native = importlib.import_module("._native", __name__)

PLATFORM = "CUDA"

rendezvous_timeout = _native.rendezvous_timeout
set_rendezvous_timeout = _native.set_rendezvous_timeout
set_eigensolver = _native.set_eigensolver
set_whole_matrices = _native.set_whole_matrices
set_brief_wait = _native.set_brief_wait
is_whole_qr = _native.is_whole_qr
whole_svd_order = _native.whole_svd_order
staged_eigen_order = _native.staged_eigen_order
plan = _native.plan
peer_timeout = _native.peer_timeout
set_peer_timeout = _native.set_peer_timeout
connect_processes = _native.connect_processes
tcp_between = _native.tcp_between
listen_over_tcp = _native.listen_over_tcp
connections = _native.connections
watch_interrupts = _native.watch_interrupts
set_progress = _native.set_progress
progress = _native.progress
host_open = _native.host_open
host_close = _native.host_close
host_plan = _native.host_plan
host_copy = _native.host_copy
pin = _native.pin
unpin = _native.unpin
is_pinned = _native.is_pinned
touch = _native.touch


def process_address():
    """Returns the address of this process for the others of the job, as text. Starts to listen."""
    return _native.process_address(metadata.version(f"jaxmg-plugin-cuda{_native.CUDA}"))


def registrations():
    """Returns the XLA FFI handlers by target name. Opens no library: the first call does."""
    _native.set_library_folders(_library_folders())
    return _native.registrations()


def backends(routine):
    """Returns the backends that serve `routine`, the preferred one first."""
    return _native.backends(routine)


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
        "rendezvous time limit": f"{rendezvous_timeout():g} s",
        "peer time limit": f"{peer_timeout():g} s",
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
