"""Principal components of images of digits, from `svd` and `svd_lowrank`, compared with
scikit-learn.

    ./tools/bazel run //examples:principal_components -- --plot /tmp/digits.png
    python examples/principal_components.py --copies 25

The data are scikit-learn's 1797 images of 8 x 8 pixels, and copies of them that are shifted by up
to one or two pixels: a tall matrix with an image per row, sharded by rows. The devices center its
columns; no row leaves its device.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. The exit code is 1 if a
component differs from that of scikit-learn's PCA.
"""

import os
import time

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import jaxmg

jax.config.update("jax_enable_x64", True)

_COPIES = flags.DEFINE_integer("copies", 9, "shifted copies of each image", 1, 25)
_COMPONENTS = flags.DEFINE_integer("components", 8, "principal components", 2, 32)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
BY_ROWS = NamedSharding(MESH, P("rank", None))


def main(_):
    """Computes the components in three ways, compares them, and returns the exit code."""
    k = _COMPONENTS.value
    x, digits = images(_COPIES.value)
    print(f"{len(x)} images; {MESH.size} {MESH.devices.flat[0].device_kind}")
    a = centred(x)
    whole, seconds = timed(lambda: by_svd(a, len(x)))
    print(f"  svd          {seconds:6.2f} s with its compilation")
    few, seconds = timed(lambda: by_projection(a, len(x), k))
    print(f"  svd_lowrank  {seconds:6.2f} s; what it leaves is at most {float(few[2]):.1f} long")
    model, seconds = timed(lambda: PCA(k, svd_solver="full").fit(x))
    print(f"  scikit-learn {seconds:6.2f} s")

    good = True
    for name, (variances, components, *_) in (("svd", whole), ("svd_lowrank", few)):
        differs = differences(variances[:k], components[:k], model)
        print(f"  {name:<12} differs from scikit-learn by {differs[0]:.0e} in variances and by")
        print(f"               {differs[1]:.0e} in components")
        good &= max(differs) < (1e-9 if name == "svd" else 1e-2)
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        figure = draw(x, digits, *whole[:2])
        figure.savefig(_PLOT.value, dpi=100, bbox_inches="tight")
        print(_PLOT.value)
    print("all right" if good else "WRONG")
    return 0 if good else 1


def images(copies):
    """Returns (images (m, 64), the digits that they show (m,)): each image and its shifted
    copies."""
    x, digits = load_digits(return_X_y=True)
    reach = range(-2, 3)
    shifts = sorted(((i, j) for i in reach for j in reach), key=lambda s: s[0] ** 2 + s[1] ** 2)
    x = x.reshape(-1, 8, 8)
    shifted = [np.roll(x, shift, axis=(1, 2)) for shift in shifts[:copies]]
    return np.concatenate(shifted).reshape(-1, 64), np.tile(digits, copies)


def centred(x):
    """Returns the images minus their mean, sharded by rows; pads with rows of zeros if
    necessary."""
    rows = -(-len(x) // MESH.size) * MESH.size
    a = jax.device_put(np.pad(x, ((0, rows - len(x)), (0, 0))), BY_ROWS)
    return _centre(a, len(x))


@jax.jit
def _centre(a, count):
    mean = jnp.sum(a, axis=0) / count
    return jnp.where(jnp.arange(len(a))[:, None] < count, a - mean, 0)


def by_svd(a, count):
    """Returns (variances along all components, components in rows) of ``count`` centred images."""
    _, s, vh = jaxmg.linalg.svd(a, full_matrices=False)
    return s**2 / (count - 1), vh


def by_projection(a, count, k):
    """Returns the same for the first k components, and a bound on the norm of the remainder of the
    images."""
    _, s, vh, error = jaxmg.linalg.svd_lowrank(a, k, iterations=6)
    return s**2 / (count - 1), vh, error


def differences(variances, components, model):
    """Returns the differences of the variances (relative) and of the components from
    scikit-learn's."""
    of_variances = np.abs(variances / model.explained_variance_ - 1).max()
    components = np.asarray(components)
    signs = np.sign(np.sum(components * model.components_, axis=1))
    of_components = np.linalg.norm(signs[:, None] * components - model.components_, axis=1)
    return float(of_variances), float(of_components.max())


def timed(run):
    """Returns (the function's result, the seconds until it is ready)."""
    start = time.perf_counter()
    results = jax.block_until_ready(run())
    return results, time.perf_counter() - start


def draw(x, digits, variances, components):
    """Returns a figure of components, their cumulative share of the variance, and images in the
    first two."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=13)  # for phones
    figure = plt.figure(figsize=(8.6, 8), layout="constrained")
    top, below = figure.subfigures(2, 1)
    parts = [top, *below.subfigures(1, 2)]
    for i, axes in enumerate(parts[0].subplots(2, 4).flat):
        axes.imshow(np.asarray(components[i]).reshape(8, 8), cmap="RdBu", vmin=-0.4, vmax=0.4)
        axes.set_title(f"component {i + 1}", fontsize=11)
        axes.set_axis_off()
    share = np.cumsum(variances) / np.sum(variances)
    axes = parts[1].subplots()
    axes.plot(np.arange(1, len(share) + 1), share, ".-")
    axes.set(xlabel="components", ylabel="share of the variance", ylim=(0, 1.02))
    scores = (x - x.mean(axis=0))[:1797] @ np.asarray(components[:2]).T
    axes = parts[2].subplots()
    points = axes.scatter(*scores.T, c=digits[:1797], cmap="tab10", s=6, vmin=-0.5, vmax=9.5)
    axes.set(xlabel="component 1", ylabel="component 2", title="images by their digit")
    parts[2].colorbar(points, ticks=range(10))
    return figure


if __name__ == "__main__":
    app.run(main)
