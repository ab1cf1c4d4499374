"""Runs a script so that its process sees only the GPUs of JAX_LOCAL_DEVICE_IDS, as under some SLURM
configurations.

    python -m jaxmg.launch -n 4 tests/processes/own_gpus.py script.py [arguments ...]
"""

import os
import runpy
import sys

visible = os.environ.get("CUDA_VISIBLE_DEVICES")
mine = os.environ["JAX_LOCAL_DEVICE_IDS"].split(",")
names = [visible.split(",")[int(i)] for i in mine] if visible else mine
os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
os.environ["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(len(mine))))
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
