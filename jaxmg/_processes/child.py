"""One process of ``python -m jaxmg.launch``. It runs the script as Python itself would, with two
differences: ``jax.distributed.initialize()`` finds the launcher's choices, and when the script
ends, the launcher immediately learns its exit code.

The launcher runs this file by its path. The file imports neither jaxmg nor JAX, because a script
may set environment variables before it imports them.
"""

import ctypes
import importlib.abc
import importlib.util
import os
import runpy
import signal
import sys
import typing

_PR_SET_PDEATHSIG = 1


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the module's import."""

    def __init__(self, module, function):
        self._module, self._function = module, function

    def find_spec(self, name, path, target=None):
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: typing.Any = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            self._function(module)

        loader.exec_module = exec_module
        return spec


def _register(cluster_env: typing.Any, index, count):
    # JAX reads the coordinator's address and the devices from the environment.
    launched = type(
        "Launched",
        (cluster_env,),
        {
            "name": "jaxmg.launch",
            "is_env_present": classmethod(lambda cls: True),
            "get_process_count": classmethod(lambda cls: count),
            "get_process_id": classmethod(lambda cls: index),
        },
    )
    # It goes before others such as SLURM's: the launcher may run in a SLURM allocation.
    types = cluster_env._cluster_types
    types.insert(0, types.pop(types.index(launched)))


def _exit_code(error):
    """Returns Python's exit code after this exception; 0 after Ctrl-C, which all processes get."""
    if isinstance(error, KeyboardInterrupt):
        return 0
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    return 1


def main():
    index, count, launcher, secret, failure, kind, target, *arguments = sys.argv[1:]
    # Without its launcher, for example after that was killed, a process would stay forever. The
    # launcher forwards every signal that gives it time to do so. The signal here is SIGKILL: nobody
    # else would end a process that ignores a signal, as jax.distributed ignores SIGTERM.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        sys.exit(1)
    with open(int(secret), "rb") as file:
        told = file.read()
    os.set_inheritable(int(failure), False)

    def register(module):
        _register(module.ClusterEnv, int(index), int(count))

    def tell(module):
        module.launcher_secret = told

    sys.meta_path[:0] = [
        _Finder("jax._src.clusters", register),
        _Finder("jaxmg._processes.rendezvous", tell),
    ]
    try:
        _run(kind, target, arguments)
    except BaseException as error:
        # At its end, a process of jax.distributed waits up to minutes for the end of all others.
        os.write(int(failure), bytes([_exit_code(error)]))
        raise
    os.write(int(failure), bytes([0]))
    if int(index) == 0 and int(count) > 1:
        _say_if_alone(count)


def _say_if_alone(count):
    """Prints a line if the script used jaxmg and never initialized jax.distributed."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if "jaxmg" in sys.modules and getattr(state, "num_processes", None) == 1:
        print(
            "jaxmg.launch: the script never called jax.distributed.initialize(), so each of the "
            f"{count} processes worked alone",
            file=sys.stderr,
        )


def _run(kind, target, arguments):
    sys.argv = [target, *arguments]
    module = kind == "module"
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.abspath(target))
    if module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
