"""Runs two processes, each with a GPU that only it sees, in network namespaces of their own, as on
two hosts. First NCCL's sockets carry their blocks over the cable between the two, then jaxmg's own
sockets.

    python hosts.py [N ...]             with JAX for CUDA, and root

If no namespaces can be made, NCCL is told that these are two hosts, and the output says "one
namespace".
"""

import contextlib
import os
import pathlib
import subprocess
import sys

import jaxmg
from jaxmg.launch import free_port

_TESTS = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(_TESTS / "processes"))

from namespaces import CABLE, HOST, Namespaces, Unavailable  # noqa: E402

_CHILD = (
    pathlib.Path(jaxmg.__file__).parent / "_processes" / "child.py"
)  # as jaxmg.launch starts it
_BENCHMARK = _TESTS.parent / "benchmarks" / "processes.py"
_SECONDS = 100  # for each of the jobs


def main():
    orders = [int(n) for n in sys.argv[1:]] or [4096, 16384]
    sizes = [word for n in orders for word in ("--n", str(n))]
    failed = 0
    with _two_hosts() as (prefixes, host, interface):
        nccl = {
            "JAXMG_TRANSPORT": "auto" if interface == CABLE else "nccl",
            "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": interface, "NCCL_DEBUG": "WARN",
        }  # fmt: skip
        report = _job(prefixes, host, nccl, "module", "jaxmg", "--distributed")
        for index, (code, output) in enumerate(report):
            print(output, flush=True)
            if code or ", NCCL " not in output:
                failed += 1
                print(f"FAIL: process {index} ended with {code}, or not over NCCL", flush=True)
        for label, environment in (("nccl, 2 hosts", nccl), ("tcp", {"JAXMG_TRANSPORT": "tcp"})):
            times = ["script", _BENCHMARK, *sizes, "--repeats", "3", "--label", label]
            for index, (code, output) in enumerate(_job(prefixes, host, environment, *times)):
                print(output, flush=True)
                if code:
                    failed += 1
                    print(f"FAIL: {label}, process {index} ended with {code}", flush=True)
    print(f"{failed} failures")
    return 1 if failed else 0


@contextlib.contextmanager
def _two_hosts():
    """Yields the commands that enter the namespaces, the address of the first one, and the
    interface between them."""
    try:
        namespaces = Namespaces()
    except Unavailable as reason:
        print(f"one namespace: {reason}", flush=True)
        yield [(), ()], "127.0.0.1", "lo"
    else:
        with namespaces as prefixes:
            yield prefixes, HOST, CABLE


def _job(prefixes, host, environment, *command):
    """Returns the exit code and the output of each of two processes."""
    address = f"{host}:{free_port()}"
    processes = [
        subprocess.Popen(
            [*prefix, sys.executable, *map(str, (_CHILD, index, 2, os.getpid(), *command))],
            env={
                **os.environ, **environment,
                "JAX_COORDINATOR_ADDRESS": address, "JAX_PLATFORMS": "cuda",
                "JAX_ENABLE_X64": "1", "CUDA_VISIBLE_DEVICES": str(index),
                "NCCL_HOSTID": f"host{index}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, prefix in enumerate(prefixes)
    ]  # fmt: skip
    results = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += f"killed after {_SECONDS} s"
        results.append((process.returncode, output))
    return results


if __name__ == "__main__":
    sys.exit(main())
