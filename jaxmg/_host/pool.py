"""Pinned host memory: each call takes some for a factor, and `pinned` keeps such memory between
calls.

Memory is anonymous, begins at a page, is touched by all cores and then pinned (registered with the
driver, so that copies run at the speed of the link). Both take long: 6 to 17 s for 90 GB.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import math
import mmap
import os
import threading
from typing import Any, SupportsFloat

import jax
import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxmg import _compat
from jaxmg._plugin import plugins

# Gigabytes of host memory that calls may take; for containers whose own numbers are wrong.
VARIABLE = "JAXMG_HOST_MEMORY_GB"

_lock = threading.Lock()
_pools: list[PinnedMemory] = []


class _Region:
    """Anonymous memory, touched and pinned. It is unmapped once nothing refers to this object."""

    def __init__(self, plugin, count):
        self._map = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.count = count
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._unpin = None
        plugin.touch(self.address, count, threads())
        self._unpin = plugin.unpin  # before, because Ctrl-C may be raised as pin returns
        try:
            plugin.pin(self.address, count)
        except Exception:
            self._unpin = None
            raise

    def release(self):
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin(self.address)

    def __del__(self):
        with contextlib.suppress(Exception):  # at the exit of the process the driver may be gone
            self.release()


class Span:
    """A part of a region, given back when it is released or nothing refers to it. NumPy arrays made
    from it (`__array_interface__`) refer to it."""

    def __init__(self, region, address, shape, dtype, give_back):
        self._region = region  # keeps the memory mapped
        self._give_back = give_back
        self.address, self.bytes = address, math.prod(shape) * dtype.itemsize
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "typestr": dtype.str,
        }  # fmt: skip

    def release(self):
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()
        self._region = None

    def __del__(self):
        with contextlib.suppress(Exception):
            self.release()


class PinnedMemory:
    """Holds pinned host memory that `pinned` allocated; as a context manager, releases it.

    Attributes:
        bytes: Number of bytes, whole pages.
    """

    def __init__(self, count: int) -> None:
        check_available("pinned", count, f"pinned({count})")
        self.bytes: int = _pages(count)
        self._region: _Region | None = _Region(plugins.load(jax.default_backend()), self.bytes)
        self._free = [(0, self.bytes)]
        # What spans gave back. The garbage collector may end a span while the lock is held.
        self._returned: collections.deque[tuple[int, int]] = collections.deque()
        self._lock = threading.Lock()
        self._warned = False  # whether a call was said to need more
        with _lock:
            _pools.append(self)

    @property
    def free(self) -> int:
        """Returns the number of bytes that neither a call, a kept factor nor an array uses."""
        with self._lock:
            self._merge()
            return sum(size for _, size in self._free)

    def array(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Returns a NumPy array in this memory, with unspecified contents.

        Its part of the memory is free again once nothing refers to the array or a view of it.

        Args:
            shape: Shape of the array, in C order.
            dtype: Its dtype.

        Raises:
            MemoryError: No part of the memory that is free is large enough.
            RuntimeError: The memory has been released.

        Examples:
            >>> with jaxmg.pinned(90e9) as memory:
            ...     a = memory.array((n, n), "float64")
        """
        dtype = np.dtype(dtype)
        shape = tuple(map(int, np.atleast_1d(shape)))
        count = math.prod(shape) * dtype.itemsize
        if self._region is None:
            raise RuntimeError("PinnedMemory: the memory has been released")
        span = self._take(count, shape, dtype)
        if span is None:
            raise MemoryError(
                f"PinnedMemory.array: an array of shape {shape} and dtype {dtype} needs "
                f"{readable(count)} in one piece; {readable(self.free)} of "
                f"{readable(self.bytes)} are free"
            )
        return np.asarray(span)

    def _take(self, count, shape, dtype):
        """Returns a `Span`, or None if no free part is large enough or the memory was released."""
        size = _pages(count)
        with self._lock:
            region = self._region
            if region is None:
                return None
            self._merge()
            fitting = (i for i, (_, there) in enumerate(self._free) if there >= size)
            i = next(fitting, None)
            if i is None:
                return None
            start, there = self._free[i]
            self._free[i : i + 1] = [(start + size, there - size)] if there > size else []
        give_back = lambda: self._returned.append((start, size))  # noqa: E731
        return Span(region, region.address + start, shape, dtype, give_back)

    def _merge(self):
        """Adds the parts that spans gave back to those that are free. The lock must be held."""
        while self._returned:
            merged: list[tuple[int, int]] = []
            for first, length in sorted([*self._free, self._returned.popleft()]):
                if merged and sum(merged[-1]) == first:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length)
                else:
                    merged.append((first, length))
            self._free = merged

    def release(self) -> None:
        """Gives the memory back, once no array in it and no call uses it."""
        with _lock:
            if self in _pools:
                _pools.remove(self)
        with self._lock:
            self._region = None

    def __enter__(self) -> PinnedMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._region is None else f"{readable(self.free)} free"
        return f"PinnedMemory({readable(self.bytes)}, {state})"


@_compat.api_boundary
def pinned(bytes: SupportsFloat) -> PinnedMemory:
    """Allocates pinned host memory, which later calls on matrices in host memory use.

    Without it each such call allocates and pins memory for its factor, and frees it. This takes
    longer than many factorizations. See docs/howto/host_memory.md.

    Args:
        bytes: Number of bytes, such as 90e9.

    Returns:
        A `PinnedMemory`. Its ``release``, or the end of a ``with`` block, releases the memory. Its
        ``array`` makes matrices in the memory, for example for ``donate=True``.

    Raises:
        MemoryError: The host, or the container, doesn't have so much memory.
        TypeError, ValueError: ``bytes`` isn't a positive number.
        RuntimeError: No plugin is installed, or the driver can't pin the memory.

    Examples:
        >>> with jaxmg.pinned(90e9):
        ...     x = jaxmg.potrs(tiles, b)
        ...     y = jaxmg.potrs(more_tiles, b)
    """
    return PinnedMemory(positive("pinned", "bytes", bytes))


def positive(caller, name, value):
    """Returns a positive number of bytes as an int. Raises for anything else."""
    if isinstance(value, (bool, np.bool_, str)):
        raise TypeError(f"{caller}: {name} must be a number of bytes; got {value!r}")
    try:
        count = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{caller}: {name} must be a number of bytes; got {value!r}") from None
    if not 1 <= count < 2.0**63:
        raise ValueError(f"{caller}: {name} must be a positive number of bytes; got {value!r}")
    return int(count)


def take(count):
    """Returns a `Span` of memory that `pinned` allocated; None if none has a part that is free."""
    with _lock:
        pools = tuple(reversed(_pools))
    spans = (pool._take(count, (count,), np.dtype(np.uint8)) for pool in pools)
    return next((span for span in spans if span is not None), None)


def allocate(caller, plugin, count, what):
    """Returns a `Span` of pinned memory.

    Args:
        what: what the memory is for, for errors.
    """
    check_available(caller, count, what)
    _warn_of_small_pools(caller, count, what)
    region = _Region(plugin, _pages(count))
    return Span(region, region.address, (count,), np.dtype(np.uint8), region.release)


def _warn_of_small_pools(caller, count, what):
    """Warns once of each pool that is too small for a call, which then takes memory of its own."""
    with _lock:
        pools = [pool for pool in _pools if not pool._warned]
        for pool in pools:
            pool._warned = True
    for pool in pools:
        _compat.warn_caller(
            f"{caller}: {what} needs {readable(count)} in one piece, and {readable(pool.free)} of "
            f"the {readable(pool.bytes)} of jaxmg.pinned are free: the call pins memory of its own,"
            " which takes longer"
        )


def is_pageable(plugin, addresses):
    """Whether devices can't copy from or to all of these places at the speed of their links."""
    return not all(map(plugin.is_pinned, addresses))


def threads():
    """Returns the number of threads for copies on the host: its cores."""
    return len(os.sched_getaffinity(0))


def _pages(count):
    return -(-max(count, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


def check_available(caller, count, what):
    """Raises a MemoryError if the host doesn't have ``count`` bytes."""
    there, source = available()
    if there is not None and count > there:
        raise MemoryError(
            f"{caller}: {what} needs {readable(count)} of host memory, but only "
            f"{readable(there)} are there ({source}). If that number is wrong, set {VARIABLE}"
        )


def available():
    """Returns the number of bytes of host memory that can be allocated now, and the number's
    source; None if it is unknown."""
    override = os.environ.get(VARIABLE)
    if override:
        try:
            return int(float(override) * 1e9), VARIABLE
        except ValueError:
            raise ValueError(f"{VARIABLE} must be a number of GB; it is {override!r}") from None
    numbers = [(_of_the_system(), "MemAvailable in /proc/meminfo")]
    numbers += [(count, "limit of the container") for count in _of_the_container()]
    known = [number for number in numbers if number[0] is not None]
    return min(known, default=(None, ""))


def _of_the_system():
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _of_the_container():
    """Returns what is left of each limit of the control groups of this process."""
    folder = ""
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers in ("", "memory"):
                folder = path.strip("/")
    found = []
    for root, limit, usage in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        parts = folder.split("/") if folder else []
        for depth in range(len(parts) + 1):
            place = os.path.join(root, *parts[:depth])
            most, used = (_number(os.path.join(place, name)) for name in (limit, usage))
            if most is not None and used is not None:
                found.append(max(most - used + _of_files(place), 0))
    return found


def _number(path):
    try:
        with open(path) as file:
            return int(file.read())  # "max" is no limit
    except (OSError, ValueError):
        return None


def _of_files(place):
    """Returns the bytes of a group's usage that the kernel frees when they are needed."""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(place, "memory.stat")) as file:
        for line in file:
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return int(line.split()[1])
    return 0


def readable(count):
    """Returns a number of bytes as text."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
