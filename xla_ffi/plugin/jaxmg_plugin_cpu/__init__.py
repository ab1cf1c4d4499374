"""jaxmg's native code for XLA's CPU devices, found by jaxmg through an entry point."""

from importlib import metadata

from jaxmg_plugin_cpu import _native

PLATFORM = "cpu"

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
    return _native.process_address(metadata.version("jaxmg-plugin-cpu"))


def registrations():
    """Returns the XLA FFI handlers by target name, ready to run."""
    _native.load_scipy()
    return _native.registrations()


def backends(routine):
    """Returns the backends that serve `routine`, the preferred one first."""
    return _native.backends(routine)


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
        "rendezvous time limit": f"{rendezvous_timeout():g} s",
        "peer time limit": f"{peer_timeout():g} s",
    }
