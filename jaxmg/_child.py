"""One process of ``python -m jaxmg.launch``: runs the script as Python itself would, but that
``jax.distributed.initialize()`` finds what the launcher has chosen.

It is run by its path and imports neither jaxmg nor JAX: a script may set environment variables
before it does so.
"""

import ctypes
import importlib.abc
import importlib.util
import os
import runpy
import signal
import sys
import typing

_MODULE = "jax._src.clusters"
_PR_SET_PDEATHSIG = 1


class _Finder(importlib.abc.MetaPathFinder):
    """Registers the launcher as a cluster with JAX, as soon as JAX is imported."""

    def __init__(self, index, count):
        self._index, self._count = index, count

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: typing.Any = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            _register(module.ClusterEnv, self._index, self._count)

        loader.exec_module = exec_module
        return spec


def _register(cluster_env: typing.Any, index, count):
    # The coordinator's address and the devices JAX reads from the environment.
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
    # Before SLURM's, say, in whose allocation the launcher may run.
    types = cluster_env._cluster_types
    types.insert(0, types.pop(types.index(launched)))


def main():
    index, count, launcher, kind, target, *arguments = sys.argv[1:]
    # Without its launcher, killed say, a process would stay for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):
        sys.exit(1)
    sys.meta_path.insert(0, _Finder(int(index), int(count)))
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
