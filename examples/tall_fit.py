"""A tall least-squares fit of data that are read from disk in blocks onto the devices.

    ./tools/bazel run //examples:tall_fit -- --plot /tmp/fit.png
    python examples/tall_fit.py --degree 15

The data are the 344 x 403 heights of the Jacksboro fault in Tennessee (they come with matplotlib),
which are first written to a file. The matrix has a row for each height and a column for each
product of Chebyshev polynomials of its place: 138,632 rows. Each device reads its own heights, one
block at a time, and makes its rows from them, so that the host never holds more than a block.
`jaxmg.linalg.lstsq` moves no rows.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. The exit code is 1 if the
fit differs from that of `numpy.linalg.lstsq`.
"""

import functools
import os
import pathlib
import sys
import tempfile
import time

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib import cbook
from numpy.polynomial import chebyshev

import jaxmg

jax.config.update("jax_enable_x64", True)

_DEGREE = flags.DEFINE_integer("degree", 7, "of the polynomials, in each direction", 0, 30)
_BLOCK = flags.DEFINE_integer("block", 8192, "heights that are read at a time", 1)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
WIDTH = 40  # of the progress bar


def main(_):
    """Fits, compares with NumPy, and returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        path, shape = write(pathlib.Path(folder))
        print(f"{np.prod(shape)} heights; {MESH.size} {MESH.devices.flat[0].device_kind}")
        start = time.perf_counter()
        a, b = read(path, shape, _DEGREE.value, _BLOCK.value)
        print(f"  read in blocks       {time.perf_counter() - start:6.2f} s")
        heights = np.load(path).reshape(shape)
    start = time.perf_counter()
    x, resid, rank, _ = jax.block_until_ready(jaxmg.linalg.lstsq(a, b))
    print(f"  jaxmg.linalg.lstsq   {time.perf_counter() - start:6.2f} s with its compilation")
    start = time.perf_counter()
    exact = by_numpy(heights, _DEGREE.value)
    print(f"  numpy.linalg.lstsq   {time.perf_counter() - start:6.2f} s")

    rms = float(np.sqrt(resid[0] / heights.size))
    print(f"rank {int(rank)} of {a.shape[1]}; {rms:.2f} m from the fit, of {heights.std():.2f} m")
    differs = np.abs(np.asarray(x) - exact).max() / np.abs(exact).max()
    print(f"coefficients differ from NumPy's by {differs:.0e}")
    good = differs < 1e-10 and int(rank) == a.shape[1]
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(heights, fitted(x, shape)).savefig(_PLOT.value, dpi=100, bbox_inches="tight")
        print(_PLOT.value)
    print("all right" if good else "WRONG")
    return 0 if good else 1


def write(folder):
    """Returns (a file of all heights minus their mean, in row-major order; the number of rows and
    columns)."""
    heights = cbook.get_sample_data("jacksboro_fault_dem.npz")["elevation"].astype(float)
    path = folder / "heights.npy"
    np.save(path, heights.ravel() - heights.mean())
    return path, heights.shape


def read(path, shape, degree, block):
    """Returns (A, b) of the fit, sharded by rows, with rows of zeros at the end if necessary."""
    total = shape[0] * shape[1]
    share, n = -(-total // MESH.size), (degree + 1) ** 2
    file, shards = np.load(path, mmap_mode="r"), []
    for rank, device in enumerate(MESH.devices.flat):
        start, end = min(rank * share, total), min((rank + 1) * share, total)
        a, b = (jnp.zeros(s, device=device) for s in ((share, n), share))
        for first in range(start, end, block):
            last = min(first + block, end)
            rows = terms(np.arange(first, last), shape, degree)
            a, b = _write(a, b, rows, np.array(file[first:last]), first - start)
            progress(last, total)
        shards.append((a, b))
    sharding = NamedSharding(MESH, P("rank"))
    return tuple(
        jax.make_array_from_single_device_arrays(s, sharding, list(arrays))
        for s, arrays in zip(
            ((share * MESH.size, n), (share * MESH.size,)), zip(*shards, strict=True), strict=True
        )
    )


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _write(a, b, rows, heights, at):
    """Returns a device's A and b with a block inserted at row ``at``."""
    a = jax.lax.dynamic_update_slice_in_dim(a, rows, at, 0)
    return a, jax.lax.dynamic_update_slice_in_dim(b, heights, at, 0)


def terms(index, shape, degree):
    """Returns the rows of the matrix for the heights with these indices."""
    row, column = np.divmod(index, shape[1])
    of_row, of_column = (
        chebyshev.chebvander(2 * i / (count - 1) - 1, degree)
        for i, count in zip((row, column), shape, strict=True)
    )
    return (of_row[:, :, None] * of_column[:, None]).reshape(len(index), -1)


def progress(done, total):
    """Draws the bar on a terminal; elsewhere prints a line once all heights are read."""
    if sys.stderr.isatty():
        filled = WIDTH * done // total
        bar = "#" * filled + "." * (WIDTH - filled)
        print(f"\r  [{bar}] {done / total:4.0%}", end="", file=sys.stderr, flush=True)
    if done == total:
        print("" if sys.stderr.isatty() else f"  {total} heights are read", file=sys.stderr)


def by_numpy(heights, degree):
    """Returns NumPy's coefficients."""
    a = terms(np.arange(heights.size), heights.shape, degree)
    return np.linalg.lstsq(a, heights.ravel(), rcond=None)[0]


def fitted(x, shape):
    """Returns the surface of the coefficients x."""
    size = int(len(x) ** 0.5)
    grid = (np.linspace(-1, 1, count) for count in shape)
    return chebyshev.chebgrid2d(*grid, np.asarray(x).reshape(size, size))


def draw(heights, fit):
    """Returns a figure of the heights, their fit, and the residual."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=13)  # for phones
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.6), layout="constrained")
    limit = np.abs(heights).max()
    for each, values, title in zip(
        axes,
        (heights, fit, heights - fit),
        ("heights (m)", "their fit", "what is left"),
        strict=True,
    ):
        image = each.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
        each.set_title(title)
        each.set_axis_off()
    figure.colorbar(image, ax=axes, label="m")
    return figure


if __name__ == "__main__":
    app.run(main)
