"""Gaussian processes on real data: fits hyperparameters with optax and predicts with variances.

    ./tools/bazel run //examples:gaussian_process -- --plot /tmp/diabetes.png
    python examples/gaussian_process.py --n 1000 --plot /tmp/terrain.png
    python examples/gaussian_process.py --n 65536 --refine auto       on GPUs

Without `--n` the data are scikit-learn's 442 diabetes patients: the progression of the disease in a
year, and ten measurements at its start. With `--n` the data are the 344 x 403 heights of the
Jacksboro fault in Tennessee (they come with matplotlib), of which n are known, chosen at random.

The kernel is Matern 3/2. optax's L-BFGS finds the amplitude, length and noise that maximize the
marginal likelihood. The kernel matrix is made, factored and inverted in shards: no device ever
holds all of it. With `--refine` predictions use a factor in lower precision.

Runs on the GPUs of JAX's default backend, or else on four CPU devices. Up to 2048 points everything
is compared with scikit-learn's GaussianProcessRegressor; the exit code is 1 if anything differs.
"""

import os
import time

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from likelihood import log_density
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from terrain import places, terrain

import jaxmg

jax.config.update("jax_enable_x64", True)

_N = flags.DEFINE_integer(
    "n", None, "heights of the terrain that are known; else the data are patients", lower_bound=10
)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")
_REFINE = flags.DEFINE_enum(
    "refine", None, ["auto", "float32", "tf32"], "precision of the factor that predictions go from"
)

MESH = Mesh(np.array(jax.devices()), ("rank",))
BY_ROWS = NamedSharding(MESH, P("rank", None))
NAMES = ("amplitude", "length", "noise")
# Where the fits start, as logarithms of the hyperparameters, in the units of the data.
PATIENTS_START, TERRAIN_START = np.log([50.0, 3.0, 50.0]), np.log([100.0, 1.0, 10.0])
EVERY = 4  # the picture has every EVERY-th row and column of the terrain


def main(_):
    """Fits, predicts, compares with scikit-learn, and returns the exit code."""
    if _N.value:
        heights, x, y, (x_new, y_new) = terrain(_N.value)
        start, what = TERRAIN_START, f"{len(x)} of {heights.size} heights (m, km)"
    else:
        heights, (x, y, (x_new, y_new)) = None, patients()
        start, what = PATIENTS_START, f"{len(x)} of {len(x) + len(x_new)} patients"
    print(f"{what}; {MESH.size} {MESH.devices.flat[0].device_kind}")

    theta, steps = fit(x, y, start)
    for name, value in zip(NAMES, np.exp(theta), strict=True):
        print(f"  {name:<14}{value:10.4f}")
    mean, variance = predict(theta, x, y, x_new, _REFINE.value)
    inside = np.mean(abs(y_new - mean) < 1.96 * np.sqrt(variance))
    print(f"{len(x_new)} others, of standard deviation {y_new.std():.1f}:")
    print(f"  {rms(y_new - mean):.3f} from their predictions, {inside:.1%} within 1.96 deviations")

    model, good = None, True
    if len(x) <= 2048:
        good = compare(theta, x, y, x_new[:500], mean[:500], variance[:500])
        model = regressor(start).fit(x, y)
        good &= compare_fits(theta, -steps[-1], rms(y_new - mean), model, x_new, y_new)
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        figure = draw(heights, x, y, theta, steps, model, (y_new, mean, np.sqrt(variance)))
        figure.savefig(_PLOT.value, dpi=100, bbox_inches="tight")
        print(_PLOT.value)
    print("all right" if good else "WRONG")
    return 0 if good else 1


def patients(n=342):
    """Returns (measurements of n patients (n, 10), their progression, the same for the other
    patients).

    Each measurement has a standard deviation of 1. The progression is relative to its mean.
    """
    x, y = load_diabetes(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(x))
    x, y = x[chosen] / x.std(axis=0), y[chosen] - y.mean()
    return x[:n], y[:n], (x[n:], y[n:])


def kernel(theta, x, y):
    """Returns the Matern 3/2 covariance matrix of values at x and at y."""
    amplitude, length, _ = jnp.exp(theta)
    squares = sum((x[:, None, i] - y[:, i]) ** 2 for i in range(x.shape[1]))
    # The square root has no derivative at 0. With the maximum the derivative at 0 is 0.
    r = jnp.sqrt(3 * jnp.maximum(squares, 1e-30)) / length
    return amplitude**2 * (1 + r) * jnp.exp(-r)


def covariance(theta, x):
    """Returns the covariance matrix of n measurements at x. Each device makes its own rows."""
    a = kernel(theta, x, x) + jnp.exp(theta[2]) ** 2 * jnp.eye(len(x))
    return jax.lax.with_sharding_constraint(a, BY_ROWS)


def loss(theta, x, y):
    """Returns the negative log marginal likelihood. A step of the fit computes it and its
    gradient."""
    # Recomputes the matrix for the derivative, so that its intermediate results aren't stored.
    return -log_density(jax.checkpoint(covariance)(theta, x), y, MESH)


value_and_grad = jax.jit(jax.value_and_grad(loss))
OPTIMIZER = optax.lbfgs()


@jax.jit
def step(theta, state, x, y):
    """Returns theta and the state after a step, and the loss and its largest gradient before the
    step."""

    def value_fn(theta):
        return loss(theta, x, y)

    # Except in the first step, the line search has already computed both.
    value, gradient = optax.value_and_grad_from_state(value_fn)(theta, state=state)
    updates, state = OPTIMIZER.update(
        gradient, state, theta, value=value, grad=gradient, value_fn=value_fn
    )
    return optax.apply_updates(theta, updates), state, value, jnp.abs(gradient).max()


def fit(x, y, theta, most=50):
    """Returns (the best logarithms of the hyperparameters, the loss before every step)."""
    print("fitting ...", flush=True)
    theta = jnp.asarray(theta)
    state = OPTIMIZER.init(theta)
    compiled = step.lower(theta, state, x, y).compile()
    losses, start = [], time.perf_counter()
    for _ in range(most):
        after, state, value, slope = jax.block_until_ready(compiled(theta, state, x, y))
        losses.append(float(value))
        if slope < 1e-7 * len(x):
            break
        theta = after
    seconds = time.perf_counter() - start
    print(f"  {len(losses)} steps, {seconds:.1f} s; log-likelihood {-losses[-1]:.4f}")
    return np.asarray(theta), losses


def predict(theta, x, y, x_new, refine=None, group=2048):
    """Returns mean and variance of measurements at x_new, computed group by group."""
    factor = jax.jit(
        lambda theta, x: jaxmg.cho_factor(covariance(theta, x), mesh=MESH, refine=refine)
    )(theta, x)
    weights = jaxmg.cho_solve(factor, y)
    parts = [
        jax.block_until_ready(posterior(factor, weights, theta, x, x_new[i : i + group]))
        for i in range(0, len(x_new), group)
    ]
    return (np.concatenate(both) for both in zip(*parts, strict=True))


@jax.jit
def posterior(factor, weights, theta, x, x_new):
    between = kernel(theta, x, x_new)
    # The prior variance minus the variance that the data explain, k^T A^-1 k = |L^-1 k|^2.
    if isinstance(factor, jaxmg.RefinedFactor):  # gives A^-1 k, but no accurate L
        explained = jnp.sum(between * factor.solve(between), axis=0)
    else:
        explained = jnp.sum(factor.solve_triangular(between) ** 2, axis=0)
    amplitude, _, noise = jnp.exp(theta)
    return weights @ between, amplitude**2 + noise**2 - explained


def regressor(theta, **options):
    """Returns scikit-learn's regressor with the same kernel, starting at these hyperparameters."""
    amplitude, length, noise = np.exp(theta)
    kernel = ConstantKernel(amplitude**2) * Matern(length, nu=1.5) + WhiteKernel(noise**2)
    return GaussianProcessRegressor(kernel, alpha=0, **options)


def compare(theta, x, y, x_new, mean, variance):
    """Returns whether scikit-learn has the same likelihood, gradient, means and deviations at
    theta."""
    print("the same with scikit-learn ...", flush=True)
    model = regressor(theta, optimizer=None).fit(x, y)
    value, gradient = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    ours, our_gradient = value_and_grad(theta, x, y)
    their_mean, deviation = model.predict(x_new, return_std=True)
    # Its parameters are also logarithms, but two of them are of squares.
    their_gradient = -gradient * np.array([2, 1, 2])
    pairs = {
        "log-likelihood": (-ours, value),
        "gradient": (our_gradient, their_gradient),
        "means": (mean, their_mean),
        "deviations": (np.sqrt(variance), deviation),
    }
    # The gradient is 0 at the best fit, so it is relative to the number of points, like its terms.
    scales = {"gradient": len(x)}
    worst = 0
    for name, (a, b) in pairs.items():
        difference = np.abs(a - b).max() / scales.get(name, np.abs(b).max())
        print(f"  {name:<16}differ by {difference:.1e}")
        worst = max(worst, difference)
    return worst < 1e-9


def compare_fits(theta, likelihood, error, model, x_new, y_new):
    """Returns whether scikit-learn's own fit, from the same start, has the same result."""
    theirs = np.exp(model.kernel_.theta / [2, 1, 2])
    rows = {
        "log-likelihood": (likelihood, model.log_marginal_likelihood_value_),
        **dict(zip(NAMES, zip(np.exp(theta), theirs, strict=True), strict=True)),
        "error": (error, rms(y_new - model.predict(x_new))),
    }
    print("fitted by                optax   scikit-learn")
    for name, both in rows.items():
        print("  {:<16}{:12.4f}   {:12.4f}".format(name, *both))
    # Its fit stops earlier, and the likelihood is flat in the noise if the noise is small.
    return all(
        np.isclose(*both, rtol=2e-2 if name in NAMES else 1e-5) for name, both in rows.items()
    )


def rms(x):
    return np.sqrt(np.mean(x**2))


def draw(heights, x, y, theta, steps, model, predictions):
    """Returns a figure of the predictions, their deviations, and the progress of the fit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=15)  # for phones
    shape, size = ((1, 2), (9, 4.4)) if heights is None else ((2, 2), (9, 8.4))
    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", facecolor="white")
    *others, last = axes.flat
    if heights is None:
        draw_patients(*others, *predictions)
    else:
        draw_terrain(figure, others, heights, x, y, theta)
    last.plot(-np.array(steps), marker=".", label="optax")
    if model:
        likelihood = model.log_marginal_likelihood_value_
        last.axhline(likelihood, color="k", linestyle=":", label="scikit-learn's")
    last.set(title="the fit", xlabel="step", ylabel="log likelihood")
    last.legend(fontsize=11)
    last.grid(alpha=0.3)
    return figure


def draw_patients(axis, y, mean, deviation):
    """Plots the measured progression over the predicted one, with its 95 % intervals."""
    axis.errorbar(mean, mean, yerr=1.96 * deviation, fmt="none", ecolor="lightgray", zorder=0)
    axis.plot(mean, y, ".")
    axis.axline((0, 0), slope=1, color="k", linestyle=":")
    axis.set(title=f"{len(y)} other patients", xlabel="predicted, from the mean", ylabel="measured")
    axis.grid(alpha=0.3)


def draw_terrain(figure, axes, heights, x, y, theta):
    """Draws maps of the terrain, of the known and predicted heights, and of their standard
    deviation."""
    rows, columns = np.mgrid[: heights.shape[0] : EVERY, : heights.shape[1] : EVERY]
    points = places(rows, columns)
    mean, variance = predict(theta, x, y, points, _REFINE.value)
    deviation = np.sqrt(variance - np.exp(theta[2]) ** 2)  # without the noise of a measurement
    extent = (0, points[:, 0].max(), points[:, 1].max(), 0)
    span = np.quantile(heights, [0.005, 0.995])
    pictures = (
        ("the terrain", heights[::EVERY, ::EVERY], "terrain", span, "height, m"),
        (f"from {len(x)} heights", mean.reshape(rows.shape), "terrain", span, "height, m"),
        ("standard deviation", deviation.reshape(rows.shape), "viridis", (0, None), "m"),
    )
    for axis, (title, values, colours, limits, label) in zip(axes, pictures, strict=True):
        image = axis.imshow(values, extent=extent, cmap=colours, clim=limits)
        axis.set(title=title, xlabel="km", ylabel="km")
        figure.colorbar(image, ax=axis, label=label, shrink=0.75)
    axes[1].plot(*x.T, "k.", markersize=2)
    axes[1].set(xlim=axes[0].get_xlim(), ylim=axes[0].get_ylim())


if __name__ == "__main__":
    app.run(main)
