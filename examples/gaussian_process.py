"""A Gaussian process on real terrain: hyperparameters by gradients, predictions with variances.

    ./tools/bazel run //examples:gaussian_process -- --plot /tmp/gaussian_process.png
    python examples/gaussian_process.py --n 2048

The heights of the Jacksboro fault in Tennessee, 344 x 403 of them (they come with matplotlib), are
known at n points chosen at random; a Gaussian process with a Matern 3/2 kernel fills in the rest.
Amplitude, length and noise are those at which the marginal likelihood of the n heights is greatest.
The kernel matrix is made, factored and inverted in shards: no device ever holds all of it.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. Up to 2048 points everything
is compared with scikit-learn's GaussianProcessRegressor; the exit code is 1 if anything differs.
"""

import os
import time

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from likelihood import log_density
from matplotlib import cbook

import jaxmg

jax.config.update("jax_enable_x64", True)

_N = flags.DEFINE_integer("n", 1000, "heights that are known", lower_bound=10)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
BY_ROWS = NamedSharding(MESH, P("rank", None))
NAMES = ("amplitude, m", "length, km", "noise, m")
START = np.log([100.0, 1.0, 10.0])
EVERY = 4  # of the terrain's rows and columns, where the picture is predicted
KM = 111.2 * 0.000833333  # between rows; columns are closer by the cosine of the latitude


def main(_):
    """Fits, predicts, compares with scikit-learn; the exit code."""
    heights, x, y, others = terrain(_N.value)
    x_new, y_new = others
    print(f"{len(x)} of {heights.size} heights; {MESH.size} {MESH.devices.flat[0].device_kind}")

    theta, steps = fit(x, y)
    for name, value in zip(NAMES, np.exp(theta), strict=True):
        print(f"  {name:<14}{value:8.3f}")

    mean, variance = predict(theta, x, y, x_new)
    errors = y_new - mean
    inside = np.mean(abs(errors) < 1.96 * np.sqrt(variance))
    error = np.sqrt(np.mean(errors**2))
    print(f"{len(x_new)} other heights, of standard deviation {y_new.std():.1f} m:")
    print(f"  {error:.1f} m from their predictions, {inside:.1%} of them within 1.96 deviations")

    good = len(x) > 2048 or compare(theta, x, y, x_new[:500], mean[:500], variance[:500])
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(_PLOT.value, heights, x, y, theta, steps)
    print("all right" if good else "WRONG")
    return 0 if good else 1


def terrain(n):
    """(all heights, points, their heights, (2000 other points, their heights)).

    Points are in km, (n, 2); heights in m, from their mean.
    """
    heights = cbook.get_sample_data("jacksboro_fault_dem.npz")["elevation"].astype(float)
    heights -= heights.mean()
    chosen = np.random.default_rng(0).permutation(heights.size)
    points = places(*np.unravel_index(chosen, heights.shape))
    values = heights.ravel()[chosen]
    return heights, points[:n], values[:n], (points[n : n + 2000], values[n : n + 2000])


def places(row, column):
    """Where the heights are, (n, 2) in km."""
    return np.stack([np.ravel(column) * KM * np.cos(np.radians(36.6)), np.ravel(row) * KM], axis=1)


def kernel(theta, x, y):
    """The Matern 3/2 covariance of heights at x and at y, a matrix."""
    amplitude, length, _ = jnp.exp(theta)
    squares = sum((x[:, None, i] - y[:, i]) ** 2 for i in range(2))
    # The square root has no derivative at 0; from the maximum on it has, and it is 0.
    r = jnp.sqrt(3 * jnp.maximum(squares, 1e-30)) / length
    return amplitude**2 * (1 + r) * jnp.exp(-r)


def covariance(theta, x):
    """Of n measurements at x. Each device makes its own rows."""
    a = kernel(theta, x, x) + jnp.exp(theta[2]) ** 2 * jnp.eye(len(x))
    return jax.lax.with_sharding_constraint(a, BY_ROWS)


@jax.jit
@jax.value_and_grad
def loss(theta, x, y):
    """The negative log marginal likelihood: this and its gradient make up a step of the fit."""
    # Made anew for its derivative, the matrix leaves none of what it was made of behind.
    return -log_density(jax.checkpoint(covariance)(theta, x), y, MESH)


def fit(x, y):
    """(the best logarithms of the hyperparameters, the loss after every step)."""
    print("fitting ...", flush=True)
    compiled = loss.lower(START, x, y).compile()
    steps, start = [], time.perf_counter()

    def evaluate(theta):
        value, gradient = jax.block_until_ready(compiled(theta, x, y))
        steps.append(float(value))
        return steps[-1], np.asarray(gradient)

    found = scipy.optimize.minimize(evaluate, START, jac=True, method="L-BFGS-B")
    each = (time.perf_counter() - start) / len(steps)
    print(f"  {len(steps)} gradients, {each:.3f} s each; log-likelihood {-found.fun:.4f}")
    return found.x, steps


def predict(theta, x, y, x_new, group=2048):
    """Mean and variance of measurements at x_new, a group after the other."""
    factor = jax.jit(lambda t, x: jaxmg.cho_factor(covariance(t, x), mesh=MESH))(theta, x)
    weights = jaxmg.cho_solve(factor, y)
    parts = [
        jax.block_until_ready(posterior(factor, weights, theta, x, x_new[i : i + group]))
        for i in range(0, len(x_new), group)
    ]
    return (np.concatenate(both) for both in zip(*parts, strict=True))


@jax.jit
def posterior(factor, weights, theta, x, x_new):
    between = kernel(theta, x, x_new)
    # The variance before, less what the data explain: k^T A^-1 k = |L^-1 k|^2.
    explained = jnp.sum(factor.solve_triangular(between) ** 2, axis=0)
    amplitude, _, noise = jnp.exp(theta)
    return weights @ between, amplitude**2 + noise**2 - explained


def compare(theta, x, y, x_new, mean, variance):
    """Whether scikit-learn has the same likelihood, gradient, means and deviations."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    print("the same with scikit-learn ...", flush=True)
    amplitude, length, noise = np.exp(theta)
    model = GaussianProcessRegressor(
        ConstantKernel(amplitude**2) * Matern(length, nu=1.5) + WhiteKernel(noise**2),
        alpha=0,
        optimizer=None,
    ).fit(x, y)
    value, gradient = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    ours, our_gradient = loss(theta, x, y)
    their_mean, deviation = model.predict(x_new, return_std=True)
    # Its parameters are logarithms too, of squares where ours aren't.
    their_gradient = -gradient * np.array([2, 1, 2])
    pairs = {
        "log-likelihood": (-ours, value),
        "gradient": (our_gradient, their_gradient),
        "means": (mean, their_mean),
        "deviations": (np.sqrt(variance), deviation),
    }
    # The gradient is 0 at the best fit; its terms are as large as the number of heights.
    scales = {"gradient": len(x)}
    worst = 0
    for name, (a, b) in pairs.items():
        difference = np.abs(a - b).max() / scales.get(name, np.abs(b).max())
        print(f"  {name:<16}differ by {difference:.1e}")
        worst = max(worst, difference)
    return worst < 1e-9


def draw(path, heights, x, y, theta, steps):
    """Writes a picture: the terrain, what is known, what is predicted, and how the fit went."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows, columns = np.mgrid[: heights.shape[0] : EVERY, : heights.shape[1] : EVERY]
    points = places(rows, columns)
    mean, variance = predict(theta, x, y, points)
    deviation = np.sqrt(variance - np.exp(theta[2]) ** 2)  # of the height, not of a measurement
    extent = (0, points[:, 0].max(), points[:, 1].max(), 0)
    figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained", facecolor="white")
    span = np.quantile(heights, [0.005, 0.995])
    pictures = (
        ("the terrain", heights[::EVERY, ::EVERY], "terrain", span, "height, m"),
        (f"from {len(x)} heights (dots)", mean.reshape(rows.shape), "terrain", span, "height, m"),
        ("standard deviation", deviation.reshape(rows.shape), "viridis", (0, None), "m"),
    )
    for axis, (title, values, colours, limits, label) in zip(axes.flat, pictures, strict=False):
        image = axis.imshow(values, extent=extent, cmap=colours, clim=limits)
        axis.set(title=title, xlabel="km", ylabel="km")
        figure.colorbar(image, ax=axis, label=label)
    axes[0, 1].plot(*x.T, "k.", markersize=2)
    axes[0, 1].set(xlim=axes[0, 0].get_xlim(), ylim=axes[0, 0].get_ylim())
    axes[1, 1].plot(-np.array(steps), marker=".")
    axes[1, 1].set(title="the fit", xlabel="gradient", ylabel="log marginal likelihood")
    axes[1, 1].grid(alpha=0.3)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    print(path)


if __name__ == "__main__":
    app.run(main)
