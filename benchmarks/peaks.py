"""The peak of a GPU's memory during a call, as JAX's allocator counts it.

JAX can't reset its peak. So the devices are filled up to the peak so far before the call: then
whatever it allocates shows.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp

# Few sizes, so that little is compiled. What is left unfilled is less than the smallest.
PIECES = (1 << 30, 64 << 20, 4 << 20)


@contextlib.contextmanager
def peaks(devices, needed):
    """Yields a list that in the end has the bytes that each device needed beyond what it held.

    None stands where nothing can be said, for the peak is an earlier one: the device had no room
    both to be filled up and for the call, which is expected to take `needed` bytes at most.
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
    """Arrays that take the memory between what is in use and the peak so far."""
    stats = device.memory_stats()
    peak, missing = (stats["peak_bytes_in_use"] - held for held in (0, stats["bytes_in_use"]))
    pieces = []
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # scattered memory
        for size in PIECES if peak + needed <= stats["bytes_limit"] else ():
            pieces += [_allocate(device, size) for _ in range(missing // size)]
            missing %= size
        jax.block_until_ready(pieces)
    return pieces


def _allocate(device, size):
    return _zeros(device, size)()


@functools.cache
def _zeros(device, size):
    """Made where they are to lie: `jnp.zeros(device=...)` would make them on the default device
    first, and raise the peak there."""
    there = jax.sharding.SingleDeviceSharding(device)
    return jax.jit(lambda: jnp.zeros(size, jnp.uint8), out_shardings=there)
