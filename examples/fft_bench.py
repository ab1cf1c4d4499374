"""Times the transform of fft3d.py and compares it with JAX's on one device.

`random_field.py --fft_bench N` calls it. Forward and inverse transforms alternate, and each donates
its memory to the next, so that a field as large as half of the memory can be measured.
"""

import datetime
import importlib.metadata
import statistics
import time

import fft3d
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

PACKAGES = ("jax", "jaxlib")


def record(n, mesh, repeats=5, chunks=1):
    """Times the forward transform of a complex64 field of n^3 points over the devices of a mesh.

    Args:
        n: points along each axis; the size of ``mesh`` divides it.
        mesh: a ``jax.sharding.Mesh``.
        repeats: number of runs after one warm-up; the result is their median.
        chunks: as for `fft3d.fftn`.

    Returns:
        A dictionary for a line of JSON. ``gb_per_s`` is the size of the field, read once and
        written once, divided by the seconds. ``one_device_seconds`` is the time of `jnp.fft.fftn`
        for an equally large field on the first device, or None if it doesn't fit. ``errors`` are
        relative: of the sum of squares (Parseval), of the spectrum of a plane wave, and of the
        field after a forward and an inverse transform.
    """
    sharding = NamedSharding(mesh, P(mesh.axis_names))

    def forward(field):
        return fft3d.fftn(field, mesh, chunks)

    def inverse(spectrum):
        return fft3d.ifftn(spectrum, mesh)

    runs, errors = _runs(n, sharding, forward, inverse, repeats)
    seconds = statistics.median(runs)
    errors["plane_wave"] = _plane_wave_error(n, sharding, forward)
    first = mesh.devices.flat[0]
    alone = None
    if _has_room(first, 8 * n**3):
        on_one = jax.sharding.SingleDeviceSharding(first)
        alone = statistics.median(_runs(n, on_one, jnp.fft.fftn, jnp.fft.ifftn, repeats)[0])
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{mesh.size} x {first.device_kind}",
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "dtype": "complex64",
        "n": n,
        "devices": mesh.size,
        "chunks": chunks,
        "seconds": seconds,
        "runs": runs,
        "gb_per_s": 2 * 8 * n**3 / seconds / 1e9,
        "one_device_seconds": alone,
        "speedup": alone and alone / seconds,
        "errors": errors,
    }


def _runs(n, sharding, forward, inverse, repeats):
    """Returns (seconds of each forward transform, errors) for a random field with ``sharding``."""
    shape = (n, n, n)
    # Sharded from the start, because the field may not fit on one device.
    make = jax.jit(lambda key: jax.random.normal(key, shape, "complex64"), out_shardings=sharding)
    forward = jax.jit(forward, donate_argnums=0, out_shardings=sharding)
    inverse = jax.jit(inverse, donate_argnums=0, out_shardings=sharding)
    key = jax.random.key(0)
    field = make(key)
    before, runs = float(_squares(field)), []
    for i in range(repeats + 1):
        jax.block_until_ready(field)
        start = time.perf_counter()
        spectrum = jax.block_until_ready(forward(field))
        runs.append(time.perf_counter() - start)
        if i == 0:
            parseval = abs(float(_squares(spectrum)) / before / n**3 - 1)
        field = inverse(spectrum)
        if i == 0:
            pair = float(_distance(field, make(key)))
    return runs[1:], {"parseval": parseval, "pair": pair / before**0.5}


def _plane_wave_error(n, sharding, forward):
    """Returns the largest error of a plane wave's spectrum, which is 1 at one wavenumber and 0
    elsewhere."""
    wave = (3 % n, n // 2 - 1, n - 2)

    def make():
        places = (jax.lax.broadcasted_iota(jnp.int32, (n, n, n), axis) for axis in range(3))
        periods = sum(m * place % n for m, place in zip(wave, places, strict=True)) % n
        return jnp.exp(2j * jnp.pi * jnp.arange(n) / n).astype("complex64")[periods]

    def error(field):
        same = [m % n == w for m, w in zip(fft3d.wavenumbers((n, n, n)), wave, strict=True)]
        return jnp.max(abs(forward(field) / n**3 - (same[0] & same[1] & same[2])))

    return float(jax.jit(error)(jax.jit(make, out_shardings=sharding)()))


def _has_room(device, size):
    """Returns whether the device's memory holds the field, its spectrum and the transform's
    workspace."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit is None or 4 * size < limit


@jax.jit
def _squares(array):
    return jnp.sum((array.real**2 + array.imag**2).astype(float))


@jax.jit
def _distance(a, b):
    return jnp.sqrt(_squares(a - b))
