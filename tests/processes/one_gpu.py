"""Runs a script so that all processes of a job share the first GPU: to check what several ranks do
where there is one GPU. Nothing is fast that way.

    python -m jaxmg.launch -n 2 tests/processes/one_gpu.py script.py [arguments ...]

With JAXMG_TRANSPORT=nccl each process is a host of its own to NCCL, over loopback, which doesn't
support two ranks of one host on one GPU.
"""

import os
import runpy
import sys

rank = os.environ["JAX_LOCAL_DEVICE_IDS"]
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
os.environ["JAX_LOCAL_DEVICE_IDS"] = "0"
os.environ["NCCL_HOSTID"] = f"host{rank}"
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
