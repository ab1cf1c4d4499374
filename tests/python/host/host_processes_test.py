"""Matrices in host memory in jobs of several processes: each process solves by itself."""

import cases
import host_cases
import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxmg

pytestmark = pytest.mark.usefixtures("small_devices")
small_devices = host_cases.small_devices


def test_each_process_on_its_own_devices():
    n, mesh = 30, Mesh(np.array(jax.local_devices()[:2]), ("r",))
    made, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", 2, 3)
    for operand in (made, a):
        host_cases.check(a, jaxmg.potrs(operand, np.ones(n), mesh=mesh, memory=memory), np.ones(n))
    host_cases.check(a, jaxmg.potrs(made, np.ones(n), memory=memory), np.ones(n))


@pytest.mark.skipif(jax.process_count() == 1, reason="needs devices of several processes")
def test_devices_of_several_processes_are_refused():
    n, mesh = 30, cases.line(2 * jax.process_count())
    made, a = host_cases.tiles(n, "float64")
    memory = host_cases.budget(n, "float64", 2, 3)
    for operand, limit in ((made, None), (made, memory), (a, memory)):
        with pytest.raises(ValueError, match="for the devices of one process, and the mesh has"):
            jaxmg.potrs(operand, np.ones(n), mesh=mesh, memory=limit)
