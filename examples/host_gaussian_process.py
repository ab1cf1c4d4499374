"""An exact Gaussian process whose kernel matrix is larger than the devices: fits hyperparameters.

    ./tools/bazel run //examples:host_gaussian_process
    python examples/host_gaussian_process.py --n 100000 --memory 72e9 --steps 10     on one GPU

The data are n of the 138,632 heights of the Jacksboro fault in Tennessee, chosen at random. The
kernel is Matern 3/2. The kernel matrix never exists: its Cholesky factor passes through the devices
by block columns, and then its inverse, from which the gradient of the likelihood is made tile by
tile. SciPy's L-BFGS finds the amplitude, length and noise. Then 2000 other heights are predicted.

Runs on the GPUs of JAX's default backend, or else on four CPU devices, of which each may take
`--memory` bytes. Up to 2048 points the likelihood and its gradient are compared with
scikit-learn's; the exit code is 1 if they differ.
"""

import contextlib
import os
import time

import cpu_devices  # noqa: F401  before JAX
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import Mesh
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from terrain import terrain

import jaxmg

jax.config.update("jax_enable_x64", True)

_N = flags.DEFINE_integer("n", 700, "heights that are known", lower_bound=10, upper_bound=130_000)
_MEMORY = flags.DEFINE_float("memory", 5e5, "bytes that a call may take on each device")
_STEPS = flags.DEFINE_integer("steps", 12, "most steps of the fit", lower_bound=1)
_PLOT = flags.DEFINE_string("plot", None, "file for a picture")

MESH = Mesh(np.array(jax.devices()), ("rank",))
NAMES = ("amplitude", "length", "noise")
START = np.log([100.0, 1.0, 10.0])  # logarithms of the hyperparameters, in m and km


def main(_):
    """Fits, predicts, compares with scikit-learn, and returns the exit code."""
    n, memory = _N.value, _MEMORY.value
    _, x, y, (x_new, y_new) = terrain(n)
    print(f"{n} heights (m, km); {MESH.size} {MESH.devices.flat[0].device_kind}")
    plan = jaxmg.plan("potrs", n, "float64", MESH, host=True, memory=memory)
    print(plan)
    # Without this memory each call would pin some for the factor, which takes long.
    with jaxmg.pinned(plan.host_bytes) if plan.blocks > 1 else contextlib.nullcontext():
        theta, values = fit(x, y, memory, _STEPS.value)
        for name, value in zip(NAMES, np.exp(theta), strict=True):
            print(f"  {name:<14}{value:10.4f}")
        mean = predict(theta, x, y, x_new, memory)
        error = np.sqrt(np.mean((y_new - mean) ** 2))
        print(f"{len(x_new)} others: {error:.2f} m from their predictions, of {y_new.std():.2f} m")
        good = error < y_new.std() and (n > 2048 or compare(theta, x, y, memory))
    if _PLOT.value:
        os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
        draw(values, y_new, mean).savefig(_PLOT.value, dpi=100, bbox_inches="tight")
        print(_PLOT.value)
    print("all right" if good else "WRONG")
    return 0 if good else 1


def between(theta, x, y):
    """Returns the Matern 3/2 covariance matrix of heights at x and at y."""
    squares = sum((x[:, None, i] - y[:, i]) ** 2 for i in range(x.shape[1]))
    # The square root has no derivative at 0. With the maximum the derivative at 0 is 0.
    r = jnp.sqrt(3 * jnp.maximum(squares, 1e-30)) / jnp.exp(theta[1])
    return jnp.exp(2 * theta[0]) * (1 + r) * jnp.exp(-r)


def entries(rows, columns, x, theta):
    """Returns a tile of the covariance matrix of measurements at x."""
    same = rows[:, None] == columns
    return between(theta, x[rows], x[columns]) + jnp.exp(2 * theta[2]) * same


def covariance(theta, x):
    return jaxmg.Tiles(entries, (len(x), len(x)), "float64", x, theta)


def value_and_gradient(theta, x, y, memory):
    """Returns the log marginal likelihood and its gradient by theta."""

    def likelihood(theta):
        return jaxmg.gaussian_log_likelihood(covariance(theta, x), y, MESH, memory=memory)

    value, gradient = jax.value_and_grad(likelihood)(theta)
    return float(value), np.asarray(gradient)


def fit(x, y, memory, steps):
    """Returns (the best logarithms of the hyperparameters, the likelihood of every evaluation)."""
    values, started = [], time.perf_counter()

    def loss(theta):
        value, gradient = value_and_gradient(theta, x, y, memory)
        values.append(value)
        seconds = time.perf_counter() - started
        print(f"  {seconds:7.1f} s: log-likelihood {value:.4f}", flush=True)
        return -value, -gradient

    found = minimize(loss, START, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return found.x, values


def predict(theta, x, y, x_new, memory, group=250):
    """Returns the means of the heights at x_new."""
    weights = jaxmg.potrs(covariance(theta, x), y, mesh=MESH, memory=memory)
    posterior = jax.jit(lambda theta, x, x_new, weights: between(theta, x_new, x) @ weights)
    weights = np.asarray(weights)
    groups = (x_new[i : i + group] for i in range(0, len(x_new), group))
    return np.concatenate([posterior(theta, x, one, weights) for one in groups])


def compare(theta, x, y, memory):
    """Returns whether scikit-learn has the same likelihood and gradient at theta."""
    amplitude, length, noise = np.exp(theta)
    kernel = ConstantKernel(amplitude**2) * Matern(length, nu=1.5) + WhiteKernel(noise**2)
    model = GaussianProcessRegressor(kernel, alpha=0, optimizer=None).fit(x, y)
    value, gradient = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    ours, our_gradient = value_and_gradient(theta, x, y, memory)
    # Its parameters are also logarithms, but two of them are of squares. The gradient is 0 at the
    # best fit, so it is relative to the number of points, like its terms.
    apart = np.abs(our_gradient - gradient * np.array([2, 1, 2])).max() / len(x)
    print(f"scikit-learn: likelihood differs by {abs(ours / value - 1):.0e}, gradient {apart:.0e}")
    return abs(ours / value - 1) < 1e-9 and apart < 1e-9


def draw(values, y_new, mean):
    """Returns a figure of the progress of the fit, and of the predictions."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rc("font", size=15)  # for phones
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
    left.plot(np.maximum.accumulate(values), marker=".")
    left.set(title="the fit", xlabel="evaluation", ylabel="log likelihood")
    right.plot(mean, y_new, ".", markersize=2)
    right.axline((0, 0), slope=1, color="k", linestyle=":")
    right.set(title=f"{len(mean)} other heights, m", xlabel="predicted", ylabel="measured")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    app.run(main)
