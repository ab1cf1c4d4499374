"""Runs a script so that all processes of a job share the first GPU, to check several ranks on a
machine with one GPU. It isn't fast.

    python -m jaxmg.launch -n 2 tests/processes/one_gpu.py script.py [arguments ...]

With JAXMG_TRANSPORT=nccl, NCCL takes each process for a host of its own and connects them over
loopback, since it doesn't support two ranks of one host on one GPU.
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
