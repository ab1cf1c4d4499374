"""Meshes with devices of several processes: which process has which rank, and how they find each
other.

Native code of different processes communicates over its own sockets. In its first call on a shared
mesh, each process publishes its address in the key-value store of ``jax.distributed``. Anyone who
reaches JAX's coordinator can read the store. So if there is a secret that isn't in the store
(`_secret`), processes also prove that they know it.
"""

import hashlib
import hmac
import os
import secrets
import socket
import sys
import threading
import time
import typing

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmg import _compat
from jaxmg._plugin import plugins

_lock = threading.Lock()
_jobs: dict[str, "_Job"] = {}  # by platform
_SHORTEST_SECRET = 16  # characters
_BEFORE_NOTICE = 10  # seconds of waiting for a process before a message reports it

# The secret from ``python -m jaxmg.launch``, the same in all of its processes. child.py sets it
# when this module is imported. It isn't in the environment, which a script's subprocesses inherit
# and logs may show.
launcher_secret = b""


def attribute(indices, mesh, rows, others):
    """Returns the native code's ``processes``: the process of each rank of each group of replicas.

    Args:
        indices: the process of each device, in the mesh's shape; None: all are in this one.
        mesh: the mesh.
        rows: the axes of the mesh along which the ranks lie.
        others: the axes of the mesh along which the groups lie.

    Returns:
        A tuple of groups x ranks process numbers, one group after the other. It is empty if each
        group is in a single process, because then no rank looks for another one elsewhere.
    """
    if indices is None:
        return ()
    axes = [mesh.axis_names.index(axis) for axis in (*others, *rows)]
    ranks = int(np.prod([mesh.shape[axis] for axis in rows], dtype=int))
    table = np.transpose(indices, axes).reshape(-1, ranks)
    return () if np.all(table == table[:, :1]) else tuple(table.ravel().tolist())


def indices(routine, mesh, concrete=None):
    """Returns the process of each device of ``mesh``, in its shape. Returns None if there is only
    one process, or if all devices are assumed to be this process's.

    An abstract mesh has no devices. They are then taken from ``concrete``, from the mesh of the
    shard_map, or from the context's. If none of these fits, the mesh is assumed to have devices of
    this process, or all devices in their order. The native code compares this with each rank's own
    process, so a wrong assumption causes an error, not a wrong result.
    """
    if jax.process_count() == 1:
        return None
    shape = tuple(mesh.shape.values())
    meshes = (mesh, concrete, _compat.shard_map_mesh(), _compat.context_mesh())
    candidates = [one for one in meshes if isinstance(one, Mesh)]
    # Meshes of one program have the same devices in the same order, whatever their axes.
    for alike in (lambda one: one.shape == mesh.shape, lambda one: one.size == mesh.size):
        for candidate in filter(alike, candidates):
            return _indices_of(candidate.devices.reshape(shape))
    if mesh.size <= jax.local_device_count():
        return None
    if mesh.size == jax.device_count():
        return _indices_of(np.array(jax.devices()).reshape(shape))
    raise ValueError(
        f"{routine}: the mesh {mesh} is abstract and has {mesh.size} devices: more than the "
        f"{jax.local_device_count()} of this process, but not all {jax.device_count()}, so their "
        "processes are unknown; pass mesh= as a jax.sharding.Mesh, or run in jax.set_mesh(mesh)"
    )


def meet(routine, platform, processes):
    """Tells the native code the addresses of ``processes`` (see `attribute`), which share a mesh.

    Each of them has to make this call. The first call waits for the addresses of the others.

    Raises:
        ValueError: the platform's devices can't be shared between processes.
        RuntimeError: jax.distributed isn't initialized, or some process didn't come in time.
    """
    if not processes:
        return
    needed = frozenset(processes)
    me = jax.process_index()
    if me not in needed:
        return  # JAX runs nothing here for such a mesh
    with _lock:
        store = _compat.key_value_store()
        job = _jobs.get(platform)
        if job is None or job.store is not store:
            if store is None:
                raise RuntimeError(
                    f"{routine}: the mesh has devices of other processes, but this process has no "
                    "client of jax.distributed to find them; start each process with "
                    "jax.distributed.initialize()"
                )
            job = _jobs[platform] = _Job(store, platform, me)
        job.find(routine, needed)


def gather(array):
    """Returns ``array`` as a NumPy array, whichever processes have its shards. All of them have to
    make the call."""
    whole = not isinstance(array, jax.Array) or array.is_fully_replicated
    if not whole and not array.is_fully_addressable:
        sharding: typing.Any = array.sharding
        mesh = sharding.mesh
        with _compat.entered(mesh):
            array = jax.jit(_itself, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
    return np.asarray(array)


def _itself(array):
    return array


class _Job:
    """The addresses of the processes of one job, on one platform."""

    def __init__(self, store, platform, me):
        secret = _secret()
        self.store, self._me = store, me
        self._prefix = f"jaxmg/{platform}"
        self._plugin = plugins.load(platform)
        self._known = {me: self._plugin.process_address()}
        store.key_value_set(f"{self._prefix}/{me}", self._known[me])
        # The first process that comes names the job: process 0 may not be part of any mesh.
        _compat.set_if_new(store, f"{self._prefix}/job", secrets.token_hex(16))
        self._key = _key(_compat.get_key(store, f"{self._prefix}/job", 10), secret)
        self._listens: set[str] = set()  # the scopes for which this process listens over TCP

    def find(self, routine, needed):
        """Waits for the addresses of the processes ``needed``, and passes them to the native
        code."""
        if needed <= self._known.keys():
            return
        limit = self._plugin.rendezvous_timeout()
        until = time.monotonic() + limit
        others = sorted(needed - self._known.keys())
        keys = {index: f"{self._prefix}/{index}" for index in others}
        addresses = self._get(keys, min(until, time.monotonic() + _BEFORE_NOTICE))
        if late := sorted(keys.keys() - addresses.keys()):
            _say(
                f"{routine}: process {self._me} waits for a call on the mesh by "
                f"{_name_processes(late)}, for {_BEFORE_NOTICE} s so far; JAXMG_RENDEZVOUS_TIMEOUT "
                "sets the limit"
            )
            addresses |= self._get({index: keys[index] for index in late}, until)
        self._listen_for(addresses)
        over_tcp = self._tcp_of(addresses)
        lines = self._get(
            {index: self._tcp_key(index, scope) for index, scope in over_tcp.items()}, until
        )
        missing = sorted({*others} - addresses.keys() | over_tcp.keys() - lines.keys())
        if missing:
            here = f"process {self._me} (host {socket.gethostname()}, pid {os.getpid()})"
            raise RuntimeError(
                f"{routine}: {_name_processes(missing)} did not make this call within {limit:g} "
                f"s; every process with devices of the mesh ({_name_processes(sorted(needed))}) "
                f"has to make it. This is {here}. JAXMG_RENDEZVOUS_TIMEOUT sets the limit"
            )
        addresses = {i: address + lines.get(i, "") for i, address in addresses.items()}
        self._plugin.connect_processes(self._me, self._known | addresses, self._key)
        self._known |= addresses

    def _get(self, keys, until):
        """Returns the values that the store has, or gets before ``until``, for the key of each
        index. Indices without a value are left out."""
        values = {
            index: _compat.get_key(self.store, key, until - time.monotonic())
            for index, key in keys.items()
        }
        return {index: value for index, value in values.items() if value is not None}

    # Of two processes, the one with the lower index connects to the other. The other one knows
    # whether that needs TCP: within a host only if the user requests it. Until it is needed, a
    # process doesn't listen.

    def _listen_for(self, addresses):
        mine = self._known[self._me]
        for index, address in addresses.items():
            scope = index < self._me and self._plugin.tcp_between(address, mine)
            if scope and scope not in self._listens:
                lines = self._plugin.listen_over_tcp(scope)
                self.store.key_value_set(self._tcp_key(self._me, scope), lines)
                self._listens.add(scope)

    def _tcp_of(self, addresses):
        """Returns, for each process that this one reaches over TCP, the scope: the interfaces to
        use."""
        mine = self._known[self._me]
        scopes = {
            index: self._plugin.tcp_between(mine, address)
            for index, address in addresses.items()
            if index > self._me
        }
        return {index: scope for index, scope in scopes.items() if scope}

    def _tcp_key(self, index, scope):
        return f"{self._prefix}/{index}/tcp/{scope}"


def _say(text):
    print(f"jaxmg: {text}", file=sys.stderr, flush=True)


def _key(token, secret):
    """Returns the key by which the processes of a job know each other. If there is a secret, nobody
    else can compute it."""
    if not secret:
        return token
    return hmac.new(secret, b"jaxmg job " + token.encode(), hashlib.sha256).hexdigest()


def _secret():
    """Returns the secret of the processes of this job; b"" if there is none."""
    if launcher_secret:
        return launcher_secret
    text = os.environ.get("JAXMG_SECRET", "")
    if text and len(text) < _SHORTEST_SECRET:
        raise ValueError(
            f"JAXMG_SECRET must have at least {_SHORTEST_SECRET} characters that nobody can "
            f"guess, the same in all processes of the job; it has {len(text)}"
        )
    return text.encode()


def _indices_of(devices):
    flat = [device.process_index for device in devices.flat]
    return np.array(flat, int).reshape(devices.shape)


def _name_processes(indices):
    """Names the processes as in "processes 1, 2 and 3"."""
    *first, last = map(str, indices)
    return f"processes {', '.join(first)} and {last}" if first else f"process {last}"
