"""The peak of a GPU's memory during a call, as JAX's allocator counts it.

JAX can't reset its peak. So before the call the devices are filled up to the peak so far; then any
allocation of the call raises the peak.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp

# Few sizes, to compile little. The unfilled rest is smaller than the least of them.
PIECES = (1 << 30, 64 << 20, 4 << 20)


@contextlib.contextmanager
def peaks(devices, needed):
    """Yields a list that gets, at the end, the bytes that each device needed in addition to those
    in use before.

    An entry is None if it is unknown, because the peak is an earlier one: the device had no memory
    both for the filling and for the call, which is expected to take at most `needed` bytes.
    """
    ballast = [_fill(device, needed) for device in devices]
    before = [device.memory_stats() for device in devices]
    found = []
    try:
        yield found
    finally:
        for piece in (piece for pieces in ballast for piece in pieces):
            piece.delete()
    for device, then in zip(devices, before, strict=True):
        peak = device.memory_stats()["peak_bytes_in_use"]
        new = peak > then["peak_bytes_in_use"]
        found.append(peak - then["bytes_in_use"] if new else None)


def _fill(device, needed):
    """Allocates arrays that fill the memory between the bytes in use and the peak so far."""
    stats = device.memory_stats()
    peak, missing = (stats["peak_bytes_in_use"] - held for held in (0, stats["bytes_in_use"]))
    pieces = []
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # if memory is fragmented
        for size in PIECES if peak + needed <= stats["bytes_limit"] else ():
            pieces += [_allocate(device, size) for _ in range(missing // size)]
            missing %= size
        jax.block_until_ready(pieces)
    return pieces


def _allocate(device, size):
    return _zeros(device, size)()


@functools.cache
def _zeros(device, size):
    """Returns a function that makes zeros on ``device``: `jnp.zeros(device=...)` would make them on
    the default device first, and raise the peak there."""
    there = jax.sharding.SingleDeviceSharding(device)
    return jax.jit(lambda: jnp.zeros(size, jnp.uint8), out_shardings=there)
