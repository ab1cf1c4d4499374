"""``jax.distributed.initialize()`` without arguments in the environments of SLURM, Open MPI and a
Kubernetes JobSet, with two processes of this machine and a solve over the devices of both.

No cluster: only the variables that the batch system sets and, for Kubernetes, a module in place of
its client, which answers as the API server would.
"""

import os
import socket
import subprocess
import sys

import pytest

_PROGRAM = """
import jax, numpy as np, jaxmg
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
assert jax.process_count() == 2 and jax.device_count() == 4, jax.devices()
n, mesh = 16, Mesh(np.array(jax.devices()), ("rank",))
matrix = np.eye(n, dtype="float32") * 2 + 1
a = jax.make_array_from_callback(
    (n, n), NamedSharding(mesh, P("rank", None)), lambda index: matrix[index]
)
x, status = jaxmg.potrs(a, np.ones(n, "float32"), return_status=True)
np.testing.assert_allclose(x, 1 / (n + 2), rtol=1e-5)
print("solved by", jax.process_index(), "status", status)
"""

_KUBERNETES = """
import os
from types import SimpleNamespace as S

_labels = {"job-name": "work", "jobset.sigs.k8s.io/jobset-name": "set"}
_pod = S(metadata=S(name="pod", labels=_labels, owner_references=[S(controller=True, kind="Job")]),
         spec=S(subdomain="set"))
_job = S(metadata=S(name="work", labels=_labels), spec=S(parallelism=2))


class _Core:
    def list_namespaced_pod(self, **_):
        return S(items=[_pod])


class _Batch:
    def read_namespaced_job(self, **_):
        return _job


config = S(load_incluster_config=lambda: None)
client = S(CoreV1Api=_Core, BatchV1Api=_Batch, exceptions=S(ApiException=OSError))

# What the cluster's files and its name server say.
import socket
from jax._src.clusters import k8s_cluster
k8s_cluster.K8sCluster._namespace = classmethod(lambda cls: "default")
_address = socket.gethostbyname
socket.gethostbyname = lambda name: _address("localhost")
_k8s = k8s_cluster.K8sCluster.get_coordinator_address.__func__
def _local(cls, *arguments, **options):
    address = _k8s(cls, *arguments, **options)
    assert address.startswith("work-0.set:"), address
    return address.replace("work-0.set", "localhost")
k8s_cluster.K8sCluster.get_coordinator_address = classmethod(_local)
"""


def _slurm(i, port):
    return {
        "SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURM_STEP_NUM_NODES": "1",
    }  # fmt: skip


def _open_mpi(i, port):
    return {
        "OMPI_MCA_orte_hnp_uri": f"{port * 2**12}.0;tcp://127.0.0.1,10.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(i),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(i),
    }  # fmt: skip


def _jobset(i, port):
    return {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": f"work-{i}",
        "JOB_COMPLETION_INDEX": str(i),
    }  # fmt: skip


def _free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("variables", [_slurm, _open_mpi, _jobset])
def test_initialize_needs_no_arguments(variables, tmp_path):
    (tmp_path / "kubernetes.py").write_text(_KUBERNETES)
    port, processes = _free_port(), []
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    for i in range(2):
        environment = {
            **os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2",
            "JAX_COORDINATOR_PORT": str(port), **variables(i, port),
        }  # fmt: skip
        environment.pop("XLA_FLAGS", None)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", _PROGRAM], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    try:
        for i, process in enumerate(processes):
            output = process.communicate(timeout=120)[0]
            assert process.returncode == 0, output
            assert f"solved by {i} status 0" in output
    finally:
        for process in processes:
            process.kill()
